"""Forms of operators that resample: resizing, grids, patches, Fourier transforms."""

from __future__ import annotations

from typing import Any

import numpy as np
from forms import Draw, Form, Given, Operator, Recipe, Skip
from onnx_vulkan.dtypes import REAL, DType
from recipes_nn import HALVES

__all__ = ["SIGNAL", "grid_sample"]


def resize(d: Draw, op: Operator) -> Form:
    spatial = d.pick([2, 2, 1, 3])
    x = d.like(d.dtype(op.dtypes() & REAL), (d.extent(1, 2), d.extent(1, 3), *d.shape(spatial, 1, 8)))
    mode = d.pick(["nearest", "linear", "cubic"]) if op.version >= 11 else d.pick(["nearest", "linear"])
    scales = [1.0, 1.0, *(float(d.pick([0.5, 0.6, 1.0, 1.5, 2.0, 3.0])) for _ in range(spatial))]
    attributes: dict[str, Any] = {"mode": mode}
    if op.version <= 10:
        if op.name == "Upsample":
            scales = [max(s, 1.0) for s in scales]
            if op.version == 7:
                return Form([x], attributes | {"scales": scales})
        return Form([x, d.host(scales, DType.F32)], attributes)
    kinds = ["half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel", "tf_crop_and_resize"]
    if op.version >= 19:
        kinds.append("half_pixel_symmetric")
    attributes |= d.some(
        coordinate_transformation_mode=kinds,
        nearest_mode=("round_prefer_floor", "round_prefer_ceil", "floor", "ceil"),
        cubic_coeff_a=(-0.5, -0.75),
        exclude_outside=(0, 1),
        extrapolation_value=(1.0,),
    )
    if mode != "nearest":
        attributes.pop("nearest_mode", None)
    if mode != "cubic":
        attributes = {k: v for k, v in attributes.items() if k not in ("cubic_coeff_a", "exclude_outside")}
    roi = None
    crop = attributes.get("coordinate_transformation_mode") == "tf_crop_and_resize"
    rank = 2 + spatial
    axes = list(range(rank))
    if op.version >= 18:
        if d.chance(20) and mode != "nearest":
            attributes["antialias"] = 1
        if d.chance(30):
            axes = list(range(2, rank))
            attributes["axes"] = axes
    if crop:
        roi = d.host([0.0 if a < 2 else 0.1 for a in axes] + [1.0 if a < 2 else 0.8 for a in axes], DType.F32)
    by_sizes = d.chance(40)
    if by_sizes:
        sizes = [x.shape[a] if a < 2 else d.extent(1, 12) for a in axes]
        return Form([x, roi, None, d.numbers(sizes)], attributes)
    if op.version < 13 and roi is None:
        roi = d.host(np.zeros(0), DType.F32)
    return Form([x, roi, d.host([scales[a] for a in axes], DType.F32)], attributes)


def grid_sample(d: Draw, op: Operator) -> Form:
    x_type = d.dtype(op.dtypes() & REAL)
    spatial = 2 if op.version < 20 or d.chance(60) else 3
    size, out = d.shape(spatial, 1, 7), d.shape(spatial, 1, 5)
    n = d.extent(1, 3)
    modes = ("bilinear", "nearest", "bicubic") if op.version < 20 else ("linear", "nearest", "cubic")
    grid_type = d.dtype(op.dtypes(1) & HALVES)
    if x_type.is_float and op.version < 22:
        grid_type = DType.F32
    grid = Given((d.rng.uniform(-1.3, 1.3, (n, *out, spatial))).astype(grid_type.numpy))
    choices = d.some(mode=modes, padding_mode=("zeros", "border", "reflection"), align_corners=(0, 1))
    return Form([d.like(x_type, (n, d.extent(1, 3), *size)), grid], choices)


def affine_grid(d: Draw, op: Operator) -> Form:
    t = d.dtype(op.dtypes())
    spatial = d.int(2, 3)
    n = d.extent(1, 3)
    theta = d.like(t, (n, spatial, spatial + 1))
    return Form([theta, d.numbers([n, d.extent(1, 3), *d.shape(spatial, 1, 6)])], d.some(align_corners=(0, 1)))


def col2im(d: Draw, op: Operator) -> Form:
    t = d.dtype(op.dtypes())
    spatial = d.pick([2, 1, 3])
    kernel = [d.int(1, 3) for _ in range(spatial)]
    size = d.shape(spatial, 3, 7)
    strides, dilations = ([d.int(1, 2) for _ in range(spatial)] for _ in range(2))
    pads = [d.int(0, 1) for _ in range(2 * spatial)]
    counts = []
    for i in range(spatial):
        room = size[i] + pads[i] + pads[i + spatial] - dilations[i] * (kernel[i] - 1) - 1
        if room < 0:
            raise Skip
        counts.append(room // strides[i] + 1)
    x = d.like(t, (d.extent(1, 2), d.extent(1, 3) * int(np.prod(kernel)), int(np.prod(counts))))
    return Form([x, d.numbers(size), d.numbers(kernel)], {"strides": strides, "dilations": dilations, "pads": pads})


def dft(d: Draw, op: Operator) -> Form:
    t = d.dtype(op.dtypes())
    inverse, onesided = int(d.chance(30)), int(d.chance(30))
    shape = (*d.shape(d.int(1, 2), 1, 4), d.extent(1, 17), (2 if inverse else 1) if onesided else d.pick([1, 2]))
    x = d.like(t, shape)
    attributes = {"inverse": inverse, "onesided": onesided}
    axis = d.int(1, x.rank - 2) if x.rank > 2 else 1
    length = d.maybe(lambda: d.numbers(np.int64(d.number(1, 20))), 30)  # type: ignore[arg-type]
    if op.version >= 20:
        return Form([x, length, d.numbers(np.int64(axis))], attributes)  # type: ignore[arg-type]
    return Form([x, length], attributes | {"axis": axis})


def stft(d: Draw, op: Operator) -> Form:
    t = d.dtype(op.dtypes())
    n, frame, step = d.number(16, 40), d.pick([8, 5, 16]), d.int(1, 8)
    onesided = int(d.chance(60))
    x = d.like(t, (d.extent(1, 3), n, 1 if onesided else d.pick([1, 2])))
    window = d.maybe(lambda: d.like(t, (frame,)), 50)
    length = None if window and d.chance(50) else d.numbers(np.int64(frame))  # type: ignore[arg-type]
    return Form([x, d.numbers(np.int64(step)), window, length], {"onesided": onesided})  # type: ignore[arg-type]


SIGNAL: dict[str, Recipe] = {
    "Resize": resize, "Upsample": resize, "GridSample": grid_sample, "AffineGrid": affine_grid, "Col2Im": col2im, "DFT": dft,
    "STFT": stft,
}  # fmt: skip
