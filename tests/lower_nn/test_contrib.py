"""Single operators of ONNX Runtime that have no family here, against its CPU EP."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from one_node import RNG, Array, check, model_of, normal
from onnx_vulkan.lower import LOWERINGS
from onnx_vulkan.lower.refused import REFUSED
from onnxruntime.capi.onnxruntime_pybind11_state import get_all_operator_schema
from run_case import graph_of, refusals, run

CONTRIB: dict[str, Any] = {"domain": "com.microsoft", "dynamic": True}


def ints(*values: int) -> Array:
    return np.array(values, np.int64)


def test_triangle_and_padding() -> None:
    x = normal(2, 4, 5)
    check("Trilu", 13, {"x": x, "k": np.array(1, np.int64)}, {"upper": 0}, **CONTRIB)
    check("Pad", 13, {"x": x, "pads": ints(0, 1, -1, 2, 0, 3), "v": np.float32([2.5])}, constants=("pads",), **CONTRIB)
    for mode in ("reflect", "edge"):
        check("Pad", 13, {"x": x, "pads": ints(0, 1, 1, 0, 2, 3)}, {"mode": mode}, constants=("pads",), **CONTRIB)


@pytest.mark.parametrize("axis", [0, 2, 3, -1, -2, -4])
def test_expand_dims(axis: int) -> None:
    check("ExpandDims", 13, {"x": normal(2, 4, 5), "axis": np.array(axis, np.int32)}, constants=("axis",), **CONTRIB)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_gather_nd(dtype: Any) -> None:
    check("GatherND", 13, {"x": normal(2, 4, 5), "i": np.array([[0, 1], [1, -1]], dtype)}, constants=("i",), **CONTRIB)


@pytest.mark.parametrize("dim,size,step", [(1, 2, 1), (-1, 3, 2), (0, 2, 1), (2, 5, 3)])
def test_unfold(dim: int, size: int, step: int) -> None:
    check("UnfoldTensor", 13, {"x": normal(2, 4, 5)}, {"dim": dim, "size": size, "step": step}, device=dim == -1, **CONTRIB)


@pytest.mark.parametrize("size", [1, 2, 3, 9])
def test_ngram_repeat_block(size: int) -> None:
    given = {"ids": RNG.integers(0, 4, (3, 8)), "scores": normal(3, 6)}
    check("NGramRepeatBlock", 13, given, {"ngram_size": size}, device=size == 2, **CONTRIB)


def test_range() -> None:
    check("Range", 13, {"a": np.array(2), "b": np.array(9)}, constants=("a", "b"), **CONTRIB)
    floats = {k: np.float32([v]) for k, v in (("a", 2), ("b", 9), ("d", 1.5))}
    check("Range", 13, floats, constants=tuple("abd"), **CONTRIB)


@pytest.mark.parametrize("align", [0, 1])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
def test_grid_sample(mode: str, padding: str, align: int) -> None:
    given = {"x": normal(2, 3, 5, 6), "grid": RNG.uniform(-1.4, 1.4, (2, 4, 3, 2)).astype(np.float32)}
    check("GridSample", 13, given, {"mode": mode, "padding_mode": padding, "align_corners": align}, **CONTRIB)


@pytest.mark.parametrize("size", [(3, 4), (1, 5), (4, 1)])
@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
def test_crop_and_resize(mode: str, size: tuple[int, int]) -> None:
    given = {
        "x": normal(2, 3, 7, 6),
        "rois": RNG.uniform(-0.3, 1.3, (5, 4)).astype(np.float32),
        "images": np.array([0, 1, 1, 0, 1], np.int32),
        "size": np.array(size, np.int32),
    }
    attributes = {"mode": mode, "extrapolation_value": 2.5}
    check("CropAndResize", 13, given, attributes, constants=("size",), device=size == (3, 4), **CONTRIB)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize(
    "window",
    [{"pads": [1, 0, 1, 1]}, {"strides": [2, 2], "ceil_mode": 1}, {"dilations": [2, 1]}, {"auto_pad": "SAME_UPPER"}],
    ids=str,
)
def test_max_pool_channels_last(window: dict[str, Any], dtype: Any) -> None:
    info = np.iinfo(dtype)
    x = RNG.integers(info.min, info.max + 1, (2, 9, 8, 3)).astype(dtype)
    check("NhwcMaxPool", 13, {"x": x}, {"kernel_shape": [3, 2], **window}, device="pads" in window, **CONTRIB)


def test_conv_transpose_with_pads() -> None:
    given = {"x": normal(1, 4, 5, 4), "w": normal(4, 3, 3, 3), "pads": ints(1, 0, 1, 1), "b": normal(6)}
    attributes = {"group": 2, "strides": [2, 2]}
    check("ConvTransposeWithDynamicPads", 13, given, attributes, constants=("w", "pads", "b"), **CONTRIB)


@pytest.mark.parametrize("dtype,rtol", [(np.float32, 1e-4), (np.float64, 1e-12), (np.float16, 2e-2)])
@pytest.mark.parametrize("shape", [(1, 1), (4, 4), (2, 3, 7, 7)])
def test_inverse(shape: tuple[int, ...], dtype: Any, rtol: float) -> None:
    x = (normal(*shape) + 3 * np.eye(shape[-1])[::-1]).astype(dtype)  # the large entries are off the diagonal
    check("Inverse", 13, {"x": x}, rtol=rtol, atol=rtol, domain="com.microsoft", device=shape == (4, 4))


@pytest.mark.parametrize("metric", ["euclidean", "sqeuclidean"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_distances(metric: str, dtype: Any) -> None:
    check("CDist", 13, {"a": normal(5, 7).astype(dtype), "b": normal(4, 7).astype(dtype)}, {"metric": metric}, **CONTRIB)


@pytest.mark.parametrize("shape", [(8,), (3, 8), (2, 3, 9)])
def test_fourier(shape: tuple[int, ...]) -> None:
    """Against numpy: ONNX Runtime's CPU EP has neither."""
    attributes = {"onesided": 1, "normalized": 0, "signal_ndim": 1}
    x = normal(*shape)
    there, back = (
        graph_of(model_of(op, 13, {"x": v}, attributes, **CONTRIB)) for op, v in (("Rfft", x), ("Irfft", x[..., None]))
    )
    assert not refusals(there) and not refusals(back)
    (y,) = run(there, {"x": x})
    want = np.fft.rfft(x)
    np.testing.assert_allclose(y, np.stack([want.real, want.imag], -1), rtol=1e-5, atol=1e-5)
    (z,) = run(back, {"x": y})
    np.testing.assert_allclose(z, np.fft.irfft(want), rtol=1e-5, atol=1e-5)


def test_refused_by_name() -> None:
    """Each name is an operator without a lowering, and its refusal says why."""
    assert not REFUSED.keys() & LOWERINGS.keys()
    known = {(s.domain, s.name) for s in (*get_all_operator_schema(), *onnx.defs.get_all_schemas())}
    assert known >= REFUSED.keys()
    assert not {name for name in known if name[0] == "com.microsoft"} - REFUSED.keys() - LOWERINGS.keys()
    (refusal,) = refusals(graph_of(model_of("Unique", 13, {"x": normal(3)}, **CONTRIB)))
    assert "com.microsoft::Unique is not supported: the shape of its result depends on data." in refusal.reason
