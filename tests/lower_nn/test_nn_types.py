"""Element types beyond float32: doubles are computed in doubles, integers as ONNX Runtime computes them."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_vulkan
import pytest
from one_node import RNG, Array, check, model_of, normal


def engine(
    op: str, opset: int, inputs: dict[str, Array | None], attributes: dict[str, Any], constants: tuple[str, ...] = ()
) -> Array:
    """The first output of one node on the device."""
    model = model_of(op, opset, inputs, attributes, constants=constants)
    with onnx_vulkan.Session.load(model.SerializeToString()) as session:
        feeds = {k: v for k, v in inputs.items() if v is not None and k not in constants}
        return next(iter(session.run(feeds).values()))


def small(x: Array) -> Array:
    """*x* as a change of 1 that float32 could not hold."""
    return 1 + 1e-10 * x.astype(np.float64)


@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize("antialias", [0, 1])
def test_resize_of_doubles(mode: str, antialias: int) -> None:
    x = normal(1, 2, 6, 7)
    given: dict[str, Array | None] = {"x": x, "roi": None, "scales": np.array([1, 1, 1.5, 0.5], np.float32)}
    attributes = {"mode": mode, "antialias": antialias}
    single = engine("Resize", 18, given, attributes, ("scales",))
    double = engine("Resize", 18, {**given, "x": small(x)}, attributes, ("scales",))
    np.testing.assert_allclose((double - 1) * 1e10, single, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("mode", ["linear", "nearest", "cubic"])
@pytest.mark.parametrize("grid_type", [np.float32, np.float64])
def test_grid_sample_of_doubles(mode: str, grid_type: Any) -> None:
    x, grid = normal(2, 3, 4, 7), RNG.uniform(-1, 1, (2, 5, 6, 2)).astype(np.float32)
    attributes = {"mode": mode, "padding_mode": "border"}
    single = engine("GridSample", 20, {"x": x, "grid": grid}, attributes)
    double = engine("GridSample", 20, {"x": small(x), "grid": grid.astype(grid_type)}, attributes)
    np.testing.assert_allclose((double - 1) * 1e10, single, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("align", [0, 1])
def test_affine_grid_of_doubles(align: int) -> None:
    given = {"theta": normal(2, 2, 3).astype(np.float64), "size": np.array([2, 3, 4, 5], np.int64)}
    check("AffineGrid", 20, given, {"align_corners": align}, constants=("size",), rtol=1e-13, atol=1e-14, device=True)


@pytest.mark.parametrize("dtype,tolerance", [(np.float64, 1e-13), (np.float32, 1e-6)])
def test_attention_with_scores_in_doubles(dtype: Any, tolerance: float) -> None:
    q, k, v = (normal(1, 2, s, 8).astype(dtype) for s in (3, 5, 5))
    mask = normal(3, 5).astype(dtype)
    scores = (q.astype(np.float64) @ k.transpose(0, 1, 3, 2)) * 8**-0.5 + mask
    e = np.exp(scores - scores.max(-1, keepdims=True))
    want = (e / e.sum(-1, keepdims=True)) @ v.astype(np.float64)
    got = engine("Attention", 23, {"q": q, "k": k, "v": v, "mask": mask}, {"softmax_precision": 11})
    assert got.dtype == dtype
    np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)


POWERS = [
    (2, 3),
    (3, 0.5),
    (-1, -3),
    (-2, -1),
    (4, 0.5),
    (9, 1.5),
    (10, 9),
    (0, 0),
    (0, 2),
    (5, -1),
    (27, 0.25),
    (-1, 200),
    (7, 1),
]
POWERS += [(1, -0.5), (6, 2.7), (100, 0.5), (1000, 0.3), (-3, 3), (2, 30)]


@pytest.mark.parametrize("exponent", [np.float32, np.float64])
@pytest.mark.parametrize("base", [np.int32, np.int64])
def test_integers_to_float_powers(base: Any, exponent: Any) -> None:
    x, y = (np.array(part, t) for part, t in zip(zip(*POWERS, strict=True), (base, exponent), strict=True))
    check("Pow", 15, {"x": x, "y": y}, device=True)


def test_exponents_are_not_rounded_to_the_base() -> None:
    x, y = np.array([60000, 1000, 3, 0.5], np.float32), np.array([0.9, 0.1, -10.1, 20.3])
    check("Pow", 15, {"x": x, "y": y}, rtol=2e-7, device=True)
    halves = engine("Pow", 15, {"x": x.astype(np.float16), "y": y.astype(np.float32)}, {})
    np.testing.assert_allclose(halves, (x.astype(np.float64) ** y.astype(np.float32)).astype(np.float16), rtol=1e-3)


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint8, np.int8])
def test_shrink_of_integers(dtype: Any) -> None:
    x = np.array([-3, -2, -1, 0, 1, 2, 3, 100]).astype(dtype)
    check("Shrink", 9, {"x": x}, {"bias": 1.5, "lambd": 1.4}, device=True)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("op", ["ReduceL2", "ReduceLogSum", "ReduceLogSumExp"])
def test_roots_and_logarithms_of_integers(op: str, dtype: Any) -> None:
    x = np.array([[3, 4, 5], [1, 0, 0], [7, 7, 8], [30, 1, 2], [40000, 50000, 3], [0, 3, 4]], dtype)
    check(op, 13, {"x": x}, {"axes": [1]}, device=True)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint16])
def test_einsum_of_narrow_integers(dtype: Any) -> None:
    x, y = (RNG.integers(0, 100, shape).astype(dtype) for shape in ((3, 40), (40, 5)))
    got = engine("Einsum", 12, {"x": x, "y": y}, {"equation": "ij,jk->ik"})
    np.testing.assert_array_equal(got, x @ y)  # which wraps


def test_col2im_of_integers() -> None:
    x = RNG.integers(-9, 9, (2, 12, 6)).astype(np.int32)
    shapes: dict[str, Array | None] = {"image": np.array([3, 5], np.int64), "block": np.array([2, 3], np.int64)}
    integer = engine("Col2Im", 18, {"x": x, **shapes}, {}, ("image", "block"))
    single = engine("Col2Im", 18, {"x": x.astype(np.float32), **shapes}, {}, ("image", "block"))
    np.testing.assert_array_equal(integer, single.astype(np.int32))
