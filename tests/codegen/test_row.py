"""Row kernels by themselves: every reduction and dtype over short, long and empty rows, in one launch and in two."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from onnx_vulkan.dims import symbol
from onnx_vulkan.dtypes import FLOATS, NUMERIC, DType
from onnx_vulkan.kernels import supports
from onnx_vulkan.program.builder import Builder
from onnx_vulkan.program.interp import interpret
from run_program import ProgramRun

RNG = np.random.default_rng(2)
N = symbol("n")


def data(shape, dtype, fn="sum"):
    if dtype is DType.BOOL:
        return RNG.random(shape) < 0.5
    if dtype.is_float:
        a = RNG.uniform(0.99, 1.01, shape) if fn == "prod" else RNG.integers(-8, 9, shape) / 4
        return a.astype(dtype.numpy)
    return RNG.integers(0 if not dtype.is_signed else -9, 10, shape).astype(dtype.numpy)


def check(shape, axes, fn, dtype, a=None, tolerance=0.0, **options):
    b = Builder()
    x = b.input("x", dtype, shape)
    p = b.finish([b.reduce(fn, x, axes, last=options.pop("last", False))])
    if supports(p.instrs[0]) is not None:
        return 0
    a = data([e if isinstance(e, int) else 5 for e in shape], dtype, fn) if a is None else a
    (want,) = interpret(p, {"x": a})
    numbers = {"n": a.shape[shape.index(N)]} if N in shape else {}
    with ProgramRun(p, numbers, **options) as run:
        (got,) = run.run({"x": a})
    assert got.dtype == want.dtype and got.shape == want.shape
    if dtype in FLOATS:
        np.testing.assert_allclose(
            got.astype(np.float64), want.astype(np.float64), rtol=tolerance, atol=tolerance, equal_nan=True
        )
    else:
        np.testing.assert_array_equal(got, want)
    return len(run.plans[0][0].commands)


LOOSE = {DType.F32: 2e-4, DType.F64: 1e-9, DType.F16: 4e-3, DType.BF16: 2e-2}


@pytest.mark.parametrize("fn", ["sum", "prod", "max", "min", "argmax", "argmin"])
def test_every_dtype(fn):
    cases = itertools.cycle([((3, 70), [1]), ((70, 3), [0]), ((2, 5, 40), [1])])
    for dtype, (shape, axes) in zip(sorted(NUMERIC, key=lambda d: d.value), cases, strict=False):
        check(shape, axes, fn, dtype, tolerance=LOOSE.get(dtype, 0))


@pytest.mark.parametrize("fn", ["sum", "prod", "max", "min"])
def test_few_long_rows_are_reduced_in_pieces(fn):
    for dtype in (DType.F32, DType.F16, DType.I64, DType.BOOL):
        for shape, axes in (((2, 70001), [1]), ((40009, 3), [0]), ((131, 3, 501), [0, 2])):
            commands = check(shape, axes, fn, dtype, tolerance=10 * LOOSE.get(dtype, 0))
            assert commands in (0, 3)  # two launches and a barrier


@pytest.mark.parametrize("fn", ["sum", "max", "argmax"])
@pytest.mark.parametrize(
    "shape,axes",
    [((1,), [0]), ((7, 1), [1]), ((1, 9), [0]), ((3, 1, 4), [1]), ((300, 2), [1]), ((2, 3000), [1]), ((900, 3, 2), [1])],
)
def test_odd_sizes(fn, shape, axes):
    check(shape, axes, fn, DType.F32, tolerance=1e-4)


@pytest.mark.parametrize("fn", ["sum", "prod", "max", "min"])
def test_empty_rows_give_the_neutral_element(fn):
    for dtype in (DType.F32, DType.F16, DType.U8, DType.I64, DType.BOOL):
        check((3, 0), [1], fn, dtype)
        check((0, 3), [1], fn, dtype)
        check((0, 0), [0], fn, dtype)


@pytest.mark.parametrize("fn", ["max", "min", "argmax", "argmin"])
@pytest.mark.parametrize("last", [False, True])
def test_nan_infinities_and_ties(fn, last):
    a = RNG.integers(-2, 3, (40, 50)).astype(np.float32)
    a[RNG.random(a.shape) < 0.03] = np.nan
    a[RNG.random(a.shape) < 0.03] = np.inf
    a[RNG.random(a.shape) < 0.03] = -np.inf
    a[0] = np.nan
    a[1], a[2] = -np.inf, np.inf
    for dtype in (DType.F32, DType.BF16, DType.F64):
        check(a.shape, [1], fn, dtype, a.astype(dtype.numpy), last=last)
        check(a.shape, [0], fn, dtype, a.astype(dtype.numpy), last=last)


def test_run_time_rows_and_columns():
    b = Builder()
    x = b.input("x", DType.F32, (N, 3, symbol("m")))
    p = b.finish([b.reduce("sum", x, [2]), b.reduce("max", x, [0])])
    with ProgramRun(p, {"n": 4, "m": 5}, runtime={"n": 9, "m": 40000}) as run:
        for n, m in ((4, 5), (1, 1), (0, 5), (4, 0), (9, 40000), (2, 3000), (0, 0)):
            a = data((n, 3, m), DType.F32)
            for got, want in zip(run.run({"x": a}), interpret(p, {"x": a}), strict=True):
                np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-2)
        assert len(run.plans) == 1


def test_rows_of_no_tensor():
    b = Builder()
    line = b.iota((3, 40), 1, DType.F32, start=1, step=2)
    p = b.finish([b.reduce("sum", line, [1]), b.reduce("max", b.iota((1,), 0, DType.I32, start=7, step=1), [0])])
    with ProgramRun(p) as run:
        for got, want in zip(run.run({}), interpret(p, {}), strict=True):
            np.testing.assert_array_equal(got, want)


def test_what_is_widened_by_hand():
    """A comparison with 0 of an int made 64 bits wide, which one driver folds to the wrong answer."""
    a = np.arange(-3, 4).astype(np.int32)
    b = Builder()
    x = b.input("x", DType.I32, a.shape)
    wide = b.cast(x, DType.I64)
    p = b.finish([b.sign(wide), b.abs(wide), b.div(wide, b.scalar(2, DType.I64)), b.sign(b.reduce("argmax", x, [0]))])
    with ProgramRun(p) as run:
        for got, want in zip(run.run({"x": a}), interpret(p, {"x": a}), strict=True):
            np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("axis", [0, 1])
def test_a_reduction_that_reads_nothing(axis):
    b = Builder()
    x = b.input("x", DType.F32, (N, 40))
    p = b.finish([b.reduce("sum", b.iota((N, 40), axis, DType.F32), [axis]), b.neg(x)])
    feeds = {"x": data((5, 40), DType.F32)}
    with ProgramRun(p, {"n": 5}) as run:
        for got, want in zip(run.run(feeds), interpret(p, feeds), strict=True):
            np.testing.assert_array_equal(got, want)
