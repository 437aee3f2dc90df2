"""Chains of small row kernels in one workgroup, against the interpreter."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from onnx_vulkan.dims import symbol
from onnx_vulkan.dtypes import DType
from onnx_vulkan.program import composites
from onnx_vulkan.program.builder import Builder
from onnx_vulkan.program.interp import interpret
from run_program import ProgramRun

RNG = np.random.default_rng(8)


def launches(b, outputs, feeds, tolerance=1e-5, numbers=None, **limits):
    """The number of dispatches of a right program."""
    program = b.finish(outputs)
    with ProgramRun(program, numbers) as run:
        run.limits = replace(run.limits, **limits)
        got = run.run(feeds)
        count = sum(len(s.launches(lambda e: e if isinstance(e, int) else numbers["n"], run.limits)) for s in run.steps)
    for g, w in zip(got, interpret(program, feeds, numbers), strict=True):
        np.testing.assert_allclose(g.astype("f8"), w.astype("f8"), rtol=tolerance, atol=tolerance, equal_nan=True)
    return count


def softmax_over(b, x, axis):
    moved, back = composites.moved_last(b, x, (axis,))
    return b.transpose(composites.softmax(b, moved), back)


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [((40, 33), DType.F32), ((33, 40), DType.F16), ((2, 900), DType.F32), ((900, 2), DType.BF16)],
)
def test_softmaxes_over_alternating_axes(shape, dtype):
    b = Builder()
    y = b.input("x", dtype, shape)
    factor = 9 if dtype is DType.F32 else 3  # beyond 4 softmaxes of softmaxes enlarge differences, which half floats make
    for n in range(11):
        y = softmax_over(b, b.mul(y, b.scalar(factor, dtype)), n % 2)
    a = RNG.normal(size=shape).astype(dtype.numpy)
    tolerance = {DType.F16: 3e-3, DType.BF16: 3e-2}.get(dtype, 1e-5)
    assert launches(b, [y], {"x": a}, tolerance) == 2
    a[0, -1] = np.nan
    a[-1, 0] = np.inf
    launches(b, [y], {"x": a}, tolerance)


def test_three_axes_rows_and_other_operands():
    b = Builder()
    x, scale, more = b.input("x", DType.F32, (6, 7, 30)), b.input("scale", DType.F32, (30,)), b.input("more", DType.F32, (7, 30))
    y, _, _ = composites.layer_norm(b, x, (-1,), scale, None, 1e-5)
    z = softmax_over(b, b.add(y, b.broadcast(more, y.shape)), 1)
    mean = b.mean(z, [0, 2])
    low = b.reduce("argmin", b.sub(b.broadcast(b.reshape(mean, (1, 7)), (4, 7)), b.scalar(0.5, DType.F32)), [1])
    feeds = {v.name: RNG.normal(size=v.shape).astype(np.float32) for v in (x, scale, more)}
    assert launches(b, [low], feeds) == 1


def test_what_does_not_make_a_chain():
    feeds = {"x": RNG.normal(size=(32, 32)).astype(np.float32)}

    def two(between=lambda b, y: y, outputs=lambda y, z: [z], shape=(32, 32), **options):
        b = Builder()
        x = b.input("x", DType.F32, shape)
        y = softmax_over(b, x, 0)
        z = softmax_over(b, between(b, y), 1)
        return launches(b, outputs(y, z), feeds, **options)

    assert two() == 1
    assert two(outputs=lambda y, z: [y, z]) == 2
    assert two(lambda b, y: b.contract(y, y)) == 3
    n = symbol("n")
    assert two(shape=(32, n), numbers={"n": 32}) == 2
    feeds = {"x": RNG.normal(size=(65, 64)).astype(np.float32)}
    assert two(shape=(65, 64)) == 2


def test_devices_with_little_shared_memory_and_without_shuffles():
    b = Builder()
    x = y = b.input("x", DType.F32, (64, 30))
    for n in range(3):
        y = softmax_over(b, y, n % 2)
    feeds = {"x": RNG.normal(size=x.shape).astype(np.float32)}
    assert launches(b, [y], feeds, max_shared_memory=16384) == 3
    assert launches(b, [y], feeds, features=frozenset()) == 1
