"""The interpreter's corners, by hand: it is the meaning that every kernel is tested against."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray
from onnx_vulkan.dims import Scope, symbol
from onnx_vulkan.dtypes import DType
from onnx_vulkan.errors import InvalidInput, ModelError, ShapeMismatch
from onnx_vulkan.program.builder import Builder
from onnx_vulkan.program.interp import interpret
from onnx_vulkan.program.ir import Value

Array = NDArray[Any]


def run(build: Any, *arrays: Array, float64: bool = False) -> Array:
    """What a one-output program of these inputs gives."""
    b = Builder()
    values = [b.input(f"x{i}", DType.of(a.dtype), a.shape) for i, a in enumerate(arrays)]
    (out,) = interpret(b.finish([build(b, *values)]), {f"x{i}": a for i, a in enumerate(arrays)}, float64=float64)
    return out


def elementwise(fn: str, *arrays: Array) -> list[Any]:
    return run(lambda b, *xs: b.map(fn, *xs), *arrays).tolist()


def i32(*values: int) -> Array:
    return np.array(values, np.int32)


def f32(*values: float) -> Array:
    return np.array(values, np.float32)


def test_integers_wrap_and_divide_towards_zero() -> None:
    low = -(2**31)
    assert elementwise("add", i32(2**31 - 1), i32(1)) == [low]
    assert elementwise("mul", i32(65536), i32(65536)) == [0]
    assert elementwise("abs", i32(low, -3)) == [low, 3]
    assert elementwise("div", i32(7, -7, 7, -7, 5, low), i32(2, 2, -2, -2, 0, -1)) == [3, -3, -3, 3, 0, low]
    assert elementwise("mod", i32(7, -7, 7, -7), i32(3, 3, -3, -3)) == [1, 2, -2, -1]
    assert elementwise("fmod", i32(7, -7, 7, -7), i32(3, 3, -3, -3)) == [1, -1, 1, -1]
    assert elementwise("pow", i32(2, -1, -1, 3, 0), i32(10, -3, -2, -1, 0)) == [1024, -1, 1, 0, 1]
    assert elementwise("neg", np.array([1, 0, 255], np.uint8)) == [255, 0, 1]


def test_nan_wins_in_min_and_max_and_loses_comparisons() -> None:
    nan = float("nan")
    x, y = f32(nan, 1, nan), f32(1, nan, nan)
    assert all(np.isnan(elementwise(fn, x, y)).all() for fn in ("min", "max"))
    assert elementwise("eq", x, y) == elementwise("lt", x, y) == elementwise("ge", x, y) == [False] * 3
    assert elementwise("ne", x, y) == [True] * 3
    assert np.isnan(run(lambda b, v: b.reduce("max", v, [0]), x))
    assert elementwise("select", np.array([True, False]), f32(1, 2), f32(3, nan))[0] == 1


def test_round_is_half_to_even_and_erf_is_exact() -> None:
    assert elementwise("round", f32(0.5, 1.5, 2.5, -0.5, -1.5)) == [0, 2, 2, 0, -2]
    np.testing.assert_allclose(elementwise("erf", f32(0.5)), 0.5204998778130465, rtol=1e-7)


@pytest.mark.parametrize(
    ("x", "dtype", "saturate", "want"),
    [
        (f32(2.9, -2.9, 300, -1, np.nan), DType.U8, True, [2, 0, 255, 0, 0]),
        (f32(2.9, 300, -1, 65536.0 * 65536 + 5), DType.U8, False, [2, 44, 255, 0]),
        (f32(3e9, -3e9, 2**31), DType.I32, True, [2**31 - 1, -(2**31), 2**31 - 1]),
        (f32(2**63, -(2**63)), DType.I64, True, [2**63 - 1, -(2**63)]),
        (np.array([2**31, -1], np.int64), DType.I32, False, [-(2**31), -1]),
        (np.array([2**31, -(2**40)], np.int64), DType.I32, True, [2**31 - 1, -(2**31)]),
        (f32(0.0, -0.0, 0.1, np.nan), DType.BOOL, False, [False, False, True, True]),
        (np.array([True, False]), DType.F32, False, [1.0, 0.0]),
        (np.array([2**24 + 1], np.int32), DType.F32, False, [2.0**24]),
        (f32(70000), DType.F16, False, [np.inf]),
    ],
)
def test_casts(x: Array, dtype: DType, saturate: bool, want: list[Any]) -> None:
    got = run(lambda b, v: b.cast(v, dtype, saturate=saturate), x)
    assert got.dtype == dtype.numpy and got.tolist() == want


def test_halves_are_rounded_once_an_instruction() -> None:
    a, c = np.array([1.0], np.float16), np.array([0.00048], np.float16)
    assert run(lambda b, x, y: b.map("add", b.map("add", x, y), y), a, c).tolist() == [1.0]
    assert run(lambda b, x, y: b.map("add", b.map("add", x, y), y), a, c, float64=True)[0] > 1.0009
    many = np.full(4096, 1.0, ml_dtypes.bfloat16)
    assert float(run(lambda b, x: b.reduce("sum", x, [0]), many)) == 4096


def test_reductions_of_nothing() -> None:
    empty = np.zeros((0, 2), np.float32)
    assert run(lambda b, x: b.reduce("sum", x, [0]), empty).tolist() == [0, 0]
    assert run(lambda b, x: b.reduce("prod", x, [0]), empty).tolist() == [1, 1]
    assert run(lambda b, x: b.reduce("max", x, [0]), empty).tolist() == [-np.inf] * 2
    assert run(lambda b, x: b.reduce("min", x, [0]), empty.astype(np.int32)).tolist() == [2**31 - 1] * 2


def test_argmax_first_or_last() -> None:
    x = i32(3, 1, 3)
    assert [int(run(lambda b, v, last=last: b.reduce("argmax", v, [0], last=last), x)) for last in (False, True)] == [0, 2]


def test_slices_run_backwards_and_may_be_empty() -> None:
    x = np.arange(12, dtype=np.int32).reshape(3, 4)
    assert run(lambda b, v: b.slice(v, [2, 3], [3, 2], [-1, -3]), x).tolist() == x[::-1, ::-3].tolist()
    assert run(lambda b, v: b.slice(v, [0, 0], [3, 0]), x).shape == (3, 0)
    for starts, sizes, steps in (([1, 0], [3, 4], [1, 1]), ([-1, 0], [1, 4], [1, 1]), ([1, 0], [3, 4], [-1, 1])):
        with pytest.raises(ShapeMismatch, match="a slice"):
            run(lambda b, v, form=(starts, sizes, steps): b.slice(v, *form), x)


def test_an_index_outside_is_an_error_not_a_value() -> None:
    x, good, bad = f32(1, 2, 3), np.array([-3, 2]), np.array([0, 3])
    assert run(lambda b, v, i: b.gather(v, i, 0), x, good).tolist() == [1, 3]
    for build in (
        lambda b, v, i: b.gather(v, i, 0),
        lambda b, v, i: b.gather_elements(v, i, 0),
        lambda b, v, i: b.scatter(v, i, b.cast(i, DType.F32), kind="elements", axis=0),
        lambda b, v, i: b.gather_nd(v, b.reshape(i, (2, 1))),
    ):
        with pytest.raises(ModelError, match="index 3 is outside an axis of 3"):
            run(build, x, bad)


@pytest.mark.parametrize(("reduction", "want"), [("add", [111, 2]), ("mul", [1000, 2]), ("max", [100, 2]), ("min", [1, 2])])
def test_scatter_reduces_every_duplicate(reduction: str, want: list[float]) -> None:
    got = run(
        lambda b, x, i, u: b.scatter(x, i, u, kind="elements", axis=0, reduction=reduction),
        f32(1, 2), np.array([0, -2]), f32(10, 100),
    )  # fmt: skip
    assert got.tolist() == want


def test_iota_and_dims_follow_the_run() -> None:
    n = symbol("n")
    b = Builder()
    x = b.input("x", DType.F32, (n,))
    with Scope({"n": 3}):
        program = b.finish([b.iota((2, n), 1, DType.I32, start=n, step=-1), b.dims([n * n, 7], (2,)), x])
    for size in (3, 5):
        line, dims, _ = interpret(program, {"x": np.zeros(size, np.float32)})
        assert line.tolist() == [list(range(size, 0, -1))] * 2 and dims.tolist() == [size * size, 7]


def test_inputs_are_checked() -> None:
    b = Builder()
    x = b.input("x", DType.F32, (symbol("n"), 2))
    program = b.finish([x])
    for feeds, sentence in (
        ({}, "missing"),
        ({"x": np.zeros((1, 2))}, "float64"),
        ({"x": np.zeros((1, 3), np.float32)}, "shape"),
        ({"x": np.zeros(3, np.float32)}, "rank"),
    ):
        with pytest.raises(InvalidInput, match=sentence):
            interpret(program, feeds)


def test_bits_and_shared_scalars() -> None:
    assert run(lambda b, x: b.bits(x, DType.I32), f32(1.0)).tolist() == [0x3F800000]
    b = Builder()
    assert b.scalar(1, DType.F32) is b.scalar(1.0, DType.F32)
    assert isinstance(b.scalar(1, DType.I32), Value)


def test_shifts() -> None:
    assert elementwise("shift_right", i32(-8, 8), i32(1, 1)) == [-4, 4]
    assert elementwise("shift_left", np.array([129], np.uint8), np.array([1], np.uint8)) == [2]
