"""Resize against ONNX Runtime's CPU EP: modes, coordinate modes, scales and sizes, with known and with symbolic extents."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from one_node import Array, check, graph_of, model_of, normal
from run_case import bind

COORDINATES = ["half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric", "half_pixel_symmetric"]
ROUNDINGS = ["floor", "ceil", "round_prefer_floor", "round_prefer_ceil"]
TARGETS: list[dict[str, list[float]]] = [
    {"scales": [1, 1, 2, 2]},
    {"scales": [1, 1, 1.5, 0.6]},
    {"scales": [1, 1, 3, 0.25]},
    {"sizes": [2, 3, 14, 9]},
    {"sizes": [2, 3, 3, 1]},
    {"sizes": [2, 3, 7, 24]},
]


def target(given: dict[str, list[float]], roi: list[float] | None = None) -> dict[str, Array | None]:
    """The inputs after x."""
    inputs: dict[str, Array | None] = {"roi": np.array(roi, np.float32) if roi else None}
    inputs["scales"] = np.array(given["scales"], np.float32) if "scales" in given else None
    if "sizes" in given:
        inputs["sizes"] = np.array(given["sizes"], np.int64)
    return inputs


def resize(version: int, shape: tuple[int, ...], inputs: dict[str, Array | None], dynamic: bool, **attributes: Any) -> None:
    constants = tuple(k for k, v in inputs.items() if v is not None)
    check("Resize", version, {"x": normal(*shape), **inputs}, attributes, constants=constants, dynamic=dynamic, atol=1e-4)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("coordinates", COORDINATES)
def test_nearest(coordinates: str, rounding: str, dynamic: bool) -> None:
    for given in TARGETS:
        resize(
            19, (2, 3, 7, 12), target(given), dynamic,
            mode="nearest", coordinate_transformation_mode=coordinates, nearest_mode=rounding,
        )  # fmt: skip


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize("coordinates", COORDINATES)
def test_interpolation(coordinates: str, mode: str, dynamic: bool) -> None:
    for given in TARGETS:
        resize(13, (2, 3, 7, 12), target(given), dynamic, mode=mode, coordinate_transformation_mode=coordinates)
    if mode == "cubic":
        resize(
            13, (2, 3, 7, 12), target(TARGETS[1]), dynamic,
            mode=mode, coordinate_transformation_mode=coordinates, exclude_outside=1, cubic_coeff_a=-0.5,
        )  # fmt: skip


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_crop_antialias_and_aspect(mode: str, dynamic: bool) -> None:
    crop = {"mode": mode, "coordinate_transformation_mode": "tf_crop_and_resize", "extrapolation_value": 7.0}
    for given in ({"scales": [1, 1, 2, 2]}, {"sizes": [1, 1, 5, 9]}):
        resize(13, (1, 1, 6, 6), target(given, [0, 0, 0.3, 0.2, 1, 1, 0.9, 1.3]), dynamic, **crop)
    if mode != "nearest":
        for given in ({"scales": [1, 1, 0.4, 0.7]}, {"sizes": [1, 1, 3, 9]}):
            resize(18, (1, 1, 9, 6), target(given), dynamic, mode=mode, antialias=1)
    for policy in ("not_larger", "not_smaller"):
        inputs = target({"sizes": [7, 8]})
        resize(18, (1, 1, 9, 6), inputs, dynamic, mode=mode, axes=[2, 3], keep_aspect_ratio_policy=policy)


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("scale", [2.0, 0.5, 0.6, 1.5])
def test_before_11(mode: str, scale: float) -> None:
    scales = np.array([1, 1, scale, scale], np.float32)
    for dynamic in (False, True):
        check("Resize", 10, {"x": normal(1, 2, 6, 8), "s": scales}, {"mode": mode}, constants=("s",), dynamic=dynamic)
        if scale >= 1:
            check("Upsample", 9, {"x": normal(1, 2, 6, 8), "s": scales}, {"mode": mode}, constants=("s",), dynamic=dynamic)
            check("Upsample", 7, {"x": normal(1, 2, 6, 8)}, {"mode": mode, "scales": scales.tolist()}, dynamic=dynamic)


def test_integer_enlargement_needs_no_gather() -> None:
    given = target({"scales": [1, 1, 2, 3]})
    model = model_of("Resize", 13, {"x": normal(1, 3, 4, 5), **given}, {"mode": "nearest"}, constants=("scales",), dynamic=True)
    lowered, scope = bind(graph_of(model), {"x": normal(1, 3, 4, 5)})
    assert "gather" not in {i.op for i in lowered.program.instrs}
    assert all(g.holds({"x_0": 2, "x_1": 1, "x_2": 9, "x_3": 7}) for g in scope.guards), "it serves other sizes"
