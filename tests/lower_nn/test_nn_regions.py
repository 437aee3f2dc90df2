"""RoiAlign, MaxRoiPool, DeformConv, Col2Im and TensorScatter against ONNX Runtime's CPU EP."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_vulkan
import pytest
from one_node import Array, check, graph_of, model_of, normal, refusals
from onnx_vulkan.errors import OnnxVulkanError

REGIONS = np.array([[0, 0, 9, 9], [-3, 2, 5, 4], [4.25, 1.5, 30, 8.75], [3, 3, 3, 3], [20, 20, 24, 30]], np.float32)
IMAGES = np.array([0, 1, 1, 0, 1], np.int64)


@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize("opset,form", [(10, {}), (16, {}), (16, {"coordinate_transformation_mode": "output_half_pixel"})])
def test_roi_align(opset: int, form: dict[str, Any], mode: str) -> None:
    attributes = {"mode": mode, "output_height": 3, "output_width": 2, "sampling_ratio": 2, "spatial_scale": 0.75, **form}
    given: dict[str, Array | None] = {"x": normal(2, 3, 7, 10), "rois": REGIONS, "images": IMAGES}
    check("RoiAlign", opset, given, attributes, dynamic=True, device=opset == 16)


@pytest.mark.parametrize("opset,form", [(10, {}), (16, {}), (16, {"coordinate_transformation_mode": "output_half_pixel"})])
@pytest.mark.parametrize("scale", [0.75, 4.0, 0.1])
def test_roi_align_with_as_many_samples_as_cells(opset: int, form: dict[str, Any], scale: float) -> None:
    attributes = {"output_height": 3, "output_width": 2, "spatial_scale": scale, **form}
    rois = np.concatenate([REGIONS, [[-40, -30, 90, 70], [9, 9, 2, 1], [5, 2, 5.5, 9]]]).astype(np.float32)
    images = np.concatenate([IMAGES, [0, 1, 1]])
    check(
        "RoiAlign", opset, {"x": normal(2, 3, 7, 10), "rois": rois, "images": images}, attributes, dynamic=True, device=not form
    )


def test_roi_align_does_not_look_for_the_largest_of_any_number() -> None:
    given: dict[str, Array | None] = {"x": normal(2, 3, 7, 10), "rois": REGIONS, "images": IMAGES}
    assert "sampling_ratio 0" in str(refusals(graph_of(model_of("RoiAlign", 16, given, {"mode": "max"})))[0])


@pytest.mark.parametrize("samples", [0, 1])
@pytest.mark.parametrize("image", [-1, 2])
def test_roi_align_of_an_image_that_is_not_there(image: int, samples: int) -> None:
    feeds: dict[str, Array] = {"x": normal(2, 3, 7, 10), "rois": REGIONS, "images": np.where(IMAGES > 0, image, 0)}
    with (
        onnx_vulkan.Session.load(model_of("RoiAlign", 16, feeds, {"sampling_ratio": samples}).SerializeToString()) as session,
        pytest.raises(OnnxVulkanError, match="outside"),
    ):
        session.run(feeds)


@pytest.mark.parametrize("scale", [1.0, 0.6])
def test_max_roi_pool(scale: float) -> None:
    rois = np.concatenate([IMAGES[:, None].astype(np.float32), REGIONS], 1)
    rois[3, 1:] = [2.5, 0.5, 4.5, 3.5]  # halves are rounded away from 0
    attributes = {"pooled_shape": [3, 4], "spatial_scale": scale}
    check("MaxRoiPool", 1, {"x": normal(2, 3, 8, 11), "rois": rois}, attributes, dynamic=True, device=True)


DEFORMED: list[dict[str, Any]] = [
    {},
    {"strides": [2, 1], "pads": [1, 0, 2, 1], "dilations": [1, 2]},
    {"group": 2, "offset_group": 3, "pads": [1, 1, 1, 1]},
]


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("form", DEFORMED, ids=str)
def test_deform_conv(form: dict[str, Any], masked: bool) -> None:
    pads, strides, dilations = form.get("pads", [0] * 4), form.get("strides", [1, 1]), form.get("dilations", [1, 1])
    kernel, size = (3, 2), (8, 9)
    out = [(size[i] + pads[i] + pads[2 + i] - (kernel[i] - 1) * dilations[i] - 1) // strides[i] + 1 for i in (0, 1)]
    groups = form.get("offset_group", 1)
    given: dict[str, Array | None] = {
        "x": normal(2, 6, *size),
        "w": normal(4, 6 // form.get("group", 1), *kernel),
        "offset": 2 * normal(2, 12 * groups, *out),
        "bias": normal(4) if masked else None,
        "mask": np.abs(normal(2, 6 * groups, *out)) if masked else None,
    }
    check("DeformConv", 19, given, form, constants=("w", "bias"), dynamic=True, device=masked, atol=1e-4)


def test_deform_conv_with_computed_weights() -> None:
    given = {"x": normal(1, 4, 5, 6), "w": normal(2, 4, 3, 2), "offset": normal(1, 12, 3, 5)}
    check("DeformConv", 19, given, {"kernel_shape": [3, 2]}, dynamic=True, atol=1e-4)
    assert "kernel" in str(refusals(graph_of(model_of("DeformConv", 19, given, dynamic=True)))[0])


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("form", [{}, {"strides": [2, 1], "pads": [1, 0, 2, 1], "dilations": [1, 2]}], ids=str)
def test_col2im(form: dict[str, Any], known: bool) -> None:
    cells = 5 * 6 if not form else 4 * 6
    given: dict[str, Array | None] = {
        "x": normal(2, 3 * 6, cells),
        "image": np.array([7, 7], np.int64),
        "block": np.array([3, 2], np.int64),
    }
    check("Col2Im", 18, given, form, constants=("image", "block") if known else (), device=True)


@pytest.mark.parametrize("axis", [-2, 1])
@pytest.mark.parametrize("mode,start", [("linear", None), ("linear", [0, 5, 2]), ("circular", [7, 20, 0])])
def test_tensor_scatter(mode: str, start: list[int] | None, axis: int) -> None:
    shape, new = [3, 4, 8, 5], [3, 4, 8, 5]
    shape[axis], new[axis] = 8, 3
    given: dict[str, Array | None] = {"x": normal(*shape), "update": normal(*new)}
    if start is not None:
        given["start"] = np.array(start, np.int64)
    check("TensorScatter", 24, given, {"mode": mode, "axis": axis}, dynamic=True, device=axis == 1, rtol=0, atol=0)


@pytest.mark.parametrize("start", [-1, 6])
def test_tensor_scatter_outside_its_cache(start: int) -> None:
    feeds: dict[str, Array] = {"x": normal(2, 8, 5), "update": normal(2, 3, 5), "start": np.array([0, start], np.int64)}
    with (
        onnx_vulkan.Session.load(model_of("TensorScatter", 24, feeds).SerializeToString()) as session,
        pytest.raises(OnnxVulkanError, match="outside"),
    ):
        session.run(feeds)
