"""Steps of equal make share their kernels, and only those; each still reads, writes and names what is its own."""

from __future__ import annotations

import numpy as np
import pytest
from onnx_vulkan.dims import Scope, symbol
from onnx_vulkan.dtypes import DType
from onnx_vulkan.errors import InvalidInput
from onnx_vulkan.fuse import fuse
from onnx_vulkan.program.builder import Builder
from onnx_vulkan.program.interp import interpret
from run_program import ProgramRun

RNG = np.random.default_rng(11)
N = symbol("n")


def data(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def softmax(b, x):
    e = b.exp(b.sub(x, b.reduce("max", x, [1], keepdims=True)))
    return b.div(e, b.reduce("sum", e, [1], keepdims=True))


def layers(count, scale=lambda n: 0.5):
    """A chain of product, bias, scale, residual and softmax; each layer has weights and a name of its own."""
    b = Builder()
    x = b.input("x", DType.F32, (N, 24))
    for n in range(count):
        b.source = f"layer {n}"
        y = b.contract(x, b.const(data(24, 24)), acc=DType.F32)
        y = b.mul(b.add(y, b.const(data(24))), b.scalar(scale(n), DType.F32))
        x = softmax(b, b.add(y, x))
    return b.finish([x])


def bodies(program, at=5):
    with ProgramRun(program, {"n": at}) as run:
        kernels = [x.kernel for s in run.steps for x in s.launches(lambda e: e if isinstance(e, int) else at, run.limits)]
        return [k.label for k in kernels], [k.body for k in kernels]


def test_layers_share_their_kernels_and_are_right() -> None:
    program = layers(4)
    labels, texts = bodies(program)
    assert len(labels) == 8
    assert len({id(text) for text in texts}) == 3  # the first layer reads an input
    assert sorted(labels) == sorted(2 * [f"layer {n}" for n in range(4)])
    with ProgramRun(program, {"n": 7}) as run:
        for rows in (7, 1, 300):
            x = data(rows, 24)
            np.testing.assert_allclose(run.run({"x": x})[0], interpret(program, {"x": x})[0], rtol=1e-5, atol=1e-6)


def test_scratch_is_each_step_s_own() -> None:
    """Independent products with K split among workgroups: their partial sums live at the same time."""
    b = Builder()
    x = b.input("x", DType.F32, (N, 2048))
    program = b.finish([b.contract(x, b.const(data(2048, 8)), acc=DType.F32) for _ in range(3)])
    feeds = {"x": data(2, 2048)}
    with ProgramRun(program, {"n": 2}) as run:
        for got, want in zip(run.run(feeds), interpret(program, feeds), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def test_another_number_in_the_text_is_another_kernel() -> None:
    program = layers(2, scale=lambda n: 0.5 + n)
    _, texts = bodies(program)
    assert len({id(text) for text in texts}) == 3  # the softmaxes alone are equal
    x = data(5, 24)
    with ProgramRun(program, {"n": 5}) as run:
        np.testing.assert_allclose(run.run({"x": x})[0], interpret(program, {"x": x})[0], rtol=1e-5, atol=1e-6)


def test_one_operand_twice_is_not_two_operands() -> None:
    b = Builder()
    x, y, z = (b.input(n, DType.F32, (N, 3)) for n in "xyz")
    program = b.finish([b.contract(p, b.transpose(q, [1, 0]), acc=DType.F32) for p, q in ((x, y), (z, z))])
    feeds = {n: data(4, 3) for n in "xyz"}
    with Scope({"n": 4}):
        assert len(fuse(program).steps) == 2
    with ProgramRun(program, {"n": 4}) as run:
        for got, want in zip(run.run(feeds), interpret(program, feeds), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_an_error_names_the_node_of_its_own_step() -> None:
    b = Builder()
    indices = [b.input(n, DType.I64, (N,)) for n in "ij"]
    outputs = []
    for n, i in enumerate(indices):
        b.source = f"look-up {n}"
        outputs.append(b.gather(b.const(data(6, 40)), i, 0))
    program = b.finish(outputs)
    good, bad = np.zeros(3, np.int64), np.array([1, 9, 2])
    with ProgramRun(program, {"n": 3}) as run:
        run.run({"i": good, "j": good})
        for n in (0, 1):
            feeds = {"i": bad if n == 0 else good, "j": bad if n == 1 else good}
            with pytest.raises(InvalidInput, match=f"look-up {n} met the index 9"):
                run.run(feeds)
