"""Corners of loop kernels that random programs seldom meet."""

from __future__ import annotations

import numpy as np
import pytest
from onnx_vulkan.dims import symbol
from onnx_vulkan.dtypes import REAL, DType
from onnx_vulkan.errors import OnnxVulkanError
from onnx_vulkan.program.builder import Builder
from onnx_vulkan.program.interp import interpret
from run_program import ProgramRun

N = symbol("n")


def check(b, outputs, feeds, numbers=None, **options):
    program = b.finish(outputs)
    with ProgramRun(program, numbers, **options) as run:
        got = run.run(feeds)
    for g, w in zip(got, interpret(program, feeds, numbers), strict=True):
        assert g.dtype == w.dtype
        np.testing.assert_array_equal(g.astype(np.float64), w.astype(np.float64))
    return run


@pytest.mark.parametrize("dtype", sorted(REAL, key=lambda d: d.value))
def test_iotas_wrap_and_round(dtype):
    b = Builder()
    line = b.iota((3, 3000), 1, dtype, start=250, step=3)
    # a comparison sees what is stored, not what is in the register
    check(b, [line, b.map("ge", line, b.scalar(100, dtype)), b.add(line, line)], {})


def test_iotas_beyond_32_bits():
    b = Builder()
    check(
        b, [b.iota((70000,), 0, DType.I64, start=1 << 40, step=123457), b.iota((5,), 0, DType.I64, start=3, step=-(1 << 33))], {}
    )


@pytest.mark.parametrize("mode", ["edge", "reflect", "wrap"])
@pytest.mark.parametrize("n", [1, 2, 5])
def test_pads_wider_than_the_tensor(mode, n):
    b = Builder()
    x = b.input("x", DType.I32, (n, 3))
    check(b, [b.pad(x, [3 * n + 1, 4], [5 * n + 2, 7], mode)], {"x": np.arange(3 * n, dtype=np.int32).reshape(n, 3)})


def test_a_wrapped_pad_of_a_long_axis():
    b = Builder()
    n = (1 << 20) + 3
    x = b.input("x", DType.I8, (n,))
    y = b.pad(x, [5], [7], "wrap")
    check(b, [b.slice(y, [0], [20]), b.slice(y, [n - 8], [20])], {"x": np.arange(n).astype(np.int8)})


def test_grids_beyond_one_direction():
    """More than 65535 workgroups of 64 are folded into two directions."""
    b = Builder()
    x = b.input("x", DType.U8, (N, 7))
    rows = 90001
    a = (np.arange(rows * 7) % 251).astype(np.uint8).reshape(rows, 7)
    check(b, [b.bit_xor(b.transpose(x, [1, 0]), b.scalar(85, DType.U8)), b.reduce("max", x, [1])], {"x": a}, {"n": rows})


def test_more_sizes_than_push_constants_hold():
    b = Builder()
    xs = [b.input(f"x{i}", DType.F32, (2, 3, 4)) for i in range(20)]
    total = xs[0]
    for i, x in enumerate(xs[1:]):
        total = b.add(total, b.slice(b.pad(x, [i, 0, 1], [0, i, 0]), [i, 0, 1], [2, 3, 4]))
    feeds = {x.name: np.full((2, 3, 4), i, np.float32) for i, x in enumerate(xs)}
    run = check(b, [total], feeds)
    assert run.plans[0][0].record  # they are in the record


@pytest.mark.parametrize("dtype", [DType.I64, DType.I32])
def test_an_index_outside_is_an_error_and_not_a_value(dtype):
    b = Builder()
    x, i = b.input("x", DType.F32, (4, 3)), b.input("i", dtype, (N,))
    program = b.finish([b.gather(x, i, 0)])
    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    with ProgramRun(program, {"n": 3}) as run:
        for bad in (4, -5, 2**31 - 1, -(2**31), *([2**32 + 1, -(2**40)] if dtype is DType.I64 else [])):
            with pytest.raises(OnnxVulkanError, match=str(bad)):
                run.run({"x": x, "i": np.array([0, bad, 1], dtype.numpy)})
        (got,) = run.run({"x": x, "i": np.array([-1, 3, -4], dtype.numpy)})
        np.testing.assert_array_equal(got, x[[3, 3, 0]])


def test_nothing_at_all():
    b = Builder()
    x = b.input("x", DType.F32, (N, 0, 3))
    y = b.concat([x, x], 1)
    padded = b.pad(y, [0, 1, 0], [0, 0, 0], "constant", b.scalar(2, DType.F32))
    outs = [y, padded, b.reduce("sum", y, [1]), b.reshape(y, (0,))]
    check(b, outs, {"x": np.zeros((4, 0, 3), np.float32)}, {"n": 4})
    b = Builder()
    x = b.input("x", DType.F32, (N, 2))
    check(
        b,
        [b.exp(x), b.reduce("max", x, [0]), b.contract(x, b.transpose(x, [1, 0]))],
        {"x": np.zeros((0, 2), np.float32)},
        {"n": 0},
    )


def test_numbers_of_no_dimension():
    b = Builder()
    x = b.input("x", DType.F32, ())
    check(b, [b.neg(x), b.broadcast(x, (2, 3)), b.reshape(x, (1, 1)), x], {"x": np.array(3, np.float32)})
