"""Where the output indices of a resized axis fall in the input, by the coordinate modes of Resize-19.

It is a line ``(a*o + b) / c`` with integer coefficients, also for symbolic extents. With known numbers the coordinates are
computed here in float32 (for float64 data: in float64), operation by operation as ONNX Runtime does.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnx_vulkan.dims import Dim, Extent, at_least, current_scope, evaluate, is_one, same
from onnx_vulkan.dtypes import DType
from onnx_vulkan.program.builder import Builder
from onnx_vulkan.program.ir import Value

__all__ = [
    "MODES",
    "Axis",
    "Line",
    "coordinate_vector",
    "extent_value",
    "fraction",
    "index_type",
    "known_coordinates",
    "line",
    "numbers",
    "pinned",
]

Line = tuple[Extent, Extent, Extent]

MODES = (
    "half_pixel",
    "half_pixel_symmetric",
    "pytorch_half_pixel",
    "align_corners",
    "asymmetric",
    "tf_half_pixel_for_nn",
    "tf_crop_and_resize",
)


def pinned(e: Extent) -> int | None:
    """The number of *e* in this run (the structure then serves no other), None while claiming."""
    if isinstance(e, int):
        return e
    values = current_scope().values
    if values is None:
        return None
    n = evaluate(e, values)
    same(e, n)
    return n


@dataclass(frozen=True, slots=True)
class Axis:
    """How one axis is resized. ``scale`` is out / size as a fraction; both parts may be symbolic.

    ``roi`` (start, end) matters for ``tf_crop_and_resize`` only.
    """

    axis: int
    size: Extent
    out: Extent
    scale: tuple[Extent, Extent]
    roi: tuple[float, float] = (0.0, 1.0)

    @property
    def is_unscaled(self) -> bool:
        p, q = self.scale
        return same(p, q) and self.roi == (0.0, 1.0)


def fraction(scale: float) -> tuple[int, int]:
    """The plainest fraction that rounds to the float32 *scale*: what the model's author meant by 0.7 or 4/3."""
    single = np.float32(scale)
    for limit in (1, 16, 256, 4096, 65536):
        f = Fraction(float(single)).limit_denominator(limit)
        if np.float32(f.numerator / f.denominator) == single:
            return f.numerator, f.denominator
    f = Fraction(float(single))
    return f.numerator, f.denominator


def line(mode: str, a: Axis) -> Line:
    """``(a, b, c)`` with x_original = (a*o + b) / c, by the formulas of Resize-19."""
    p, q = a.scale
    if mode == "asymmetric":
        return q, 0, p
    if mode == "align_corners":
        return (0, 0, 1) if is_one(a.out) else (a.size - 1, 0, a.out - 1)
    if mode == "tf_half_pixel_for_nn":
        return 2 * q, q, 2 * p
    if mode == "half_pixel_symmetric":
        return 2 * q, a.size * p - a.out * q + q - p, 2 * p
    if mode == "pytorch_half_pixel" and is_one(a.out):
        return 0, 0, 1
    return 2 * q, q - p, 2 * p


def known_coordinates(mode: str, a: Axis, out: int, size: int, scale: float, dtype: DType = DType.F32) -> NDArray[Any]:
    """x_original of every output index, in *dtype* operation by operation."""
    f = dtype.numpy.type
    coordinates: NDArray[Any] = _coordinates(mode, a, out, size, f(scale), f)
    return coordinates


def _coordinates(mode: str, a: Axis, out: int, size: int, s: Any, f: type[Any]) -> Any:
    o = np.arange(out, dtype=f)
    half = f(0.5)
    if mode == "asymmetric":
        return o / s
    if mode == "align_corners":
        return o * f(0) if out == 1 else o * f(size - 1) / f(out - 1)
    if mode == "tf_half_pixel_for_nn":
        return (o + half) / s
    if mode == "half_pixel_symmetric":
        adjustment = f(out) / (s * f(size))
        center = f(size) / f(2)
        return center * (f(1) - adjustment) + (o + half) / s - half
    if mode == "tf_crop_and_resize":
        start, end = f(a.roi[0]), f(a.roi[1])
        if out == 1:
            return np.full(1, half * (start + end) * f(size - 1), f)
        return start * f(size - 1) + (o * (end - start) * f(size - 1)) / f(out - 1)
    if mode == "pytorch_half_pixel" and out == 1:
        return o * f(0)
    return (o + half) / s - half


def numbers(a: Axis) -> tuple[int, int, float] | None:
    """out, size, scale as numbers, where none is symbolic."""
    p, q = a.scale
    if isinstance(a.out, Dim) or isinstance(a.size, Dim) or isinstance(p, Dim) or isinstance(q, Dim):
        return None
    return a.out, a.size, p / q


def coordinate_vector(b: Builder, mode: str, a: Axis, dtype: DType = DType.F32) -> Value:
    """x_original as a vector of *dtype*, a float; a constant where all is known."""
    known = numbers(a)
    if mode == "tf_crop_and_resize" and known is None:  # its roi is no line with integer coefficients
        out, size = pinned(a.out), pinned(a.size)
        if out is None or size is None:
            return b.iota((a.out,), 0, dtype)  # claiming: any vector will do
        known = out, size, 1.0
    if known is not None:
        return b.const(known_coordinates(mode, a, *known, dtype))
    first, step, divisor = line(mode, a)[1], line(mode, a)[0], line(mode, a)[2]
    numerator = b.cast(b.iota((a.out,), 0, index_type(a, step, first), first, step), dtype)
    return b.map("div", numerator, extent_value(b, divisor, dtype))


def extent_value(b: Builder, e: Extent, dtype: DType) -> Value:
    return b.scalar(e, dtype) if isinstance(e, int) else b.cast(b.dims([e], ()), dtype)


def index_type(a: Axis, step: Extent, first: Extent) -> DType:
    """int32 where every value of the line fits."""
    return DType.I32 if at_least(2**30, step * a.out) and at_least(2**30, first) else DType.I64
