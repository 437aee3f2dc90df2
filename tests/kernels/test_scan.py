"""Running sums and products against the interpreter."""

from __future__ import annotations

import itertools

import numpy as np
import onnx_vulkan.kernels.scan  # noqa: F401  (registers the family)
import pytest
from onnx_vulkan.dims import symbol
from onnx_vulkan.dtypes import REAL, DType
from onnx_vulkan.program.builder import Builder
from run_step import check_program

RNG = np.random.default_rng(3)


def check(shape, axis, fn="sum", dtype=DType.F32, tolerance=1e-5, declared=None, **attrs):
    b = Builder()
    x = b.input("x", dtype, declared or shape)
    if dtype.is_float:
        a = RNG.uniform(0.9, 1.1, shape) * RNG.choice([-1, 1], shape) if fn == "prod" else RNG.standard_normal(shape)
    else:
        a = RNG.integers(-9 if dtype.is_signed else 0, 10, shape)
    check_program(b, [b.scan(fn, x, axis, **attrs)], {"x": a.astype(dtype.numpy)}, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("exclusive,reverse", list(itertools.product([False, True], repeat=2)))
def test_shapes_and_axes(exclusive, reverse):
    for fn, (shape, axis) in itertools.product(
        ["sum", "prod"],
        [((5,), 0), ((1,), 0), ((0,), 0), ((3, 0), 0), ((2, 3, 4), 1), ((3, 100), 1), ((100, 3), 0), ((2, 1, 3, 70, 2), 3)],
    ):
        check(shape, axis, fn, exclusive=exclusive, reverse=reverse)
    check((2, 3001), 1, exclusive=exclusive, reverse=reverse, tolerance=1e-4)
    check((20000, 3), 1, exclusive=exclusive, reverse=reverse)


@pytest.mark.parametrize("dtype", sorted(REAL, key=lambda d: d.value))
def test_every_dtype(dtype):
    tolerance = {DType.F16: 2e-2, DType.BF16: 1e-1, DType.F64: 1e-12}.get(dtype, 1e-5)
    for shape, axis in ((3, 7), 0), ((3, 90), 1):
        check(shape, axis, "sum", dtype, tolerance)
        check(shape, axis, "prod", dtype, tolerance)


def test_large_integers_are_exact():
    b = Builder()
    x = b.input("x", DType.I64, (2, 50))
    check_program(b, [b.scan("sum", x, 1)], {"x": RNG.integers(-(2**62), 2**62, (2, 50))})


def test_views():
    b = Builder()
    x = b.input("x", DType.F32, (4, 1, 90))
    y = b.transpose(b.broadcast(x, (4, 3, 90)), (2, 0, 1))
    y = b.slice(y, (89, 1, 0), (45, 3, 3), (-2, 1, 1))
    check_program(b, [b.scan("sum", y, 0)], {"x": RNG.standard_normal((4, 1, 90)).astype("f")}, atol=1e-5)


def test_run_time_extents():
    n, m = symbol("n"), symbol("m")
    for shape in (2, 5), (3, 300):
        check(shape, 1, declared=(n, m), tolerance=1e-4)
