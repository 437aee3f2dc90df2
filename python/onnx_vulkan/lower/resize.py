"""Resize and Upsample: separable, one axis after the other, by gathers (or repeats) along the axis.

Nearest neighbours on symbolic extents are exact integer arithmetic, so no rounding of the device can pick another pixel; where
ONNX Runtime's float32 could (a scale like 0.6), the extents are pinned. Where things fall is ``coordinates``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnx_vulkan.dims import Dim, Extent, at_least, axis_of, current_scope, evaluate, product, same, symbol
from onnx_vulkan.dtypes import FLOATS, NUMERIC, DType
from onnx_vulkan.errors import ShapeMismatch, Unsupported
from onnx_vulkan.lower.coordinates import (
    MODES,
    Axis,
    Line,
    coordinate_vector,
    extent_value,
    fraction,
    index_type,
    known_coordinates,
    line,
    numbers,
    pinned,
)
from onnx_vulkan.lower.registry import Host, LowerContext, Unknown, lowers
from onnx_vulkan.program import composites
from onnx_vulkan.program.builder import Builder
from onnx_vulkan.program.ir import Value

__all__ = ["cubic_weights"]

_FLOATS_ONLY = "linear and cubic on floats only"


@dataclass(frozen=True, slots=True)
class _Options:
    mode: str
    coordinates: str
    nearest: str | None
    cubic_coeff_a: float = -0.75
    exclude_outside: bool = False
    extrapolation_value: float = 0.0
    antialias: bool = False


# ---------------------------------------------------------------------------------------------------------- nearest

_NEAREST: dict[str, Callable[[Extent, Extent, Extent], Line]] = {
    "floor": lambda a, b, c: (a, b, c),
    "ceil": lambda a, b, c: (a, b + c - 1, c),
    "round_prefer_floor": lambda a, b, c: (2 * a, 2 * b + c - 1, 2 * c),  # ceil(v - 1/2)
    "round_prefer_ceil": lambda a, b, c: (2 * a, 2 * b + c, 2 * c),  # floor(v + 1/2)
}


def _repeats(line: Line, a: Axis) -> int | None:
    """k where the line is ``o // k`` and the output k times the input: every element k times in a row."""
    step, first, divisor = line
    if isinstance(step, int) and step < 1:
        return None
    k = divisor // step
    if not isinstance(k, int) or k < 1 or divisor - k * step != 0:
        return None
    if not at_least(first, 0) or not at_least(step - 1, first):
        return None
    return k if same(a.out, a.size * k) else None


def _plain_scale(a: Axis) -> Axis:
    """*a* with its scale as k or 1/k where that holds in this run (a guard), so that other sizes are served as well."""
    values = current_scope().values
    if values is None or all(isinstance(e, int) for e in a.scale):
        return a
    p, q = (evaluate(e, values) for e in a.scale)
    if p and q and p % q == 0 and same(a.scale[0], a.scale[1] * (p // q)):
        return replace(a, scale=(p // q, 1))
    if p and q and q % p == 0 and same(a.scale[1], a.scale[0] * (q // p)):
        return replace(a, scale=(1, q // p))
    return a


def _is_exact(a: Axis) -> bool:
    """Whether float32 holds the scale exactly: then ONNX Runtime's rounded coordinates fall on the same side as exact ones."""
    p, q = a.scale
    return isinstance(p, int) and isinstance(q, int) and Fraction(float(np.float32(p / q))) == Fraction(p, q)


def _nearest_index(b: Builder, mode: str, rounding: str, a: Axis) -> Value:
    if mode != "tf_crop_and_resize" and not _is_exact(a):
        size, out, p, q = (pinned(e) for e in (a.size, a.out, *a.scale))
        if size is not None and out is not None and p is not None and q is not None:
            a = replace(a, size=size, out=out, scale=(p, q))
    known = numbers(a)
    if known is not None or mode == "tf_crop_and_resize":
        shift = {"round_prefer_floor": -0.5, "round_prefer_ceil": 0.5}.get(rounding, 0.0)
        up = rounding in ("ceil", "round_prefer_floor")
        shifted = composites.affine(b, coordinate_vector(b, mode, a), 1.0, shift)
        return _clamped(b, b.map("ceil" if up else "floor", shifted), a)
    step, first, divisor = _NEAREST[rounding](*line(mode, a))
    dtype = index_type(a, step, first)
    numerator = b.map("max", b.iota((a.out,), 0, dtype, first, step), b.scalar(0, dtype))
    index = b.map("div", numerator, extent_value(b, divisor, dtype))
    return b.map("min", index, extent_value(b, a.size - 1, dtype))


def _clamped(b: Builder, index: Value, a: Axis) -> Value:
    """A float index limited to the axis, as int32."""
    last = extent_value(b, a.size - 1, index.dtype)
    return b.cast(b.map("min", b.map("max", index, b.scalar(0, index.dtype)), last), DType.I32)


def _resize_nearest(b: Builder, x: Value, mode: str, chosen: str | None, axes: Sequence[Axis]) -> Value:
    """Before Resize-11 (None) no rounding is specified; ONNX Runtime rounds an axis that it enlarges down, another up."""
    repeated: dict[int, int] = {}
    for a in axes:
        a = _plain_scale(a)
        rounding = chosen or ("floor" if at_least(a.scale[0], a.scale[1]) else "ceil")
        if mode != "tf_crop_and_resize":
            k = _repeats(_NEAREST[rounding](*line(mode, a)), a)
            if k is not None:
                repeated[a.axis] = k
                continue
        x = b.gather(x, _nearest_index(b, mode, rounding, a), a.axis)
    if repeated:
        split = [e for i, extent in enumerate(x.shape) for e in ((extent, 1) if i in repeated else (extent,))]
        spread = [e for i, extent in enumerate(x.shape) for e in ((extent, repeated[i]) if i in repeated else (extent,))]
        x = b.reshape(b.broadcast(b.reshape(x, split), spread), [e * repeated.get(i, 1) for i, e in enumerate(x.shape)])
    return x


# ---------------------------------------------------------------------------------------------------- linear, cubic


def _linear_taps(b: Builder, coordinate: Value, a: Axis) -> list[Value]:
    """Indices and weights of the two neighbours; outside, the edge counts."""
    dtype = coordinate.dtype
    last = extent_value(b, a.size - 1, dtype)
    one = b.scalar(1, dtype)
    x = b.map("min", b.map("max", coordinate, b.scalar(0, dtype)), last)
    low = b.map("floor", x)
    weight = b.map("sub", x, low)
    high = b.map("min", b.map("add", low, one), last)
    return [b.cast(low, DType.I32), b.map("sub", one, weight), b.cast(high, DType.I32), weight]


def cubic_weights(b: Builder, t: Value, coeff: float) -> list[Value]:
    """Weights of the cells at -1, 0, 1, 2 for a fraction *t* (Keys, "Cubic convolution interpolation", 1981)."""
    near, far = (coeff + 2, -(coeff + 3), 0.0, 1.0), (coeff, -5 * coeff, 8 * coeff, -4 * coeff)

    def polynomial(x: Value, coefficients: Sequence[float]) -> Value:
        y = b.scalar(coefficients[0], t.dtype)
        for c in coefficients[1:]:
            y = b.map("add", b.map("mul", y, x), b.scalar(c, t.dtype))
        return y

    one = b.scalar(1, t.dtype)
    rest = b.map("sub", one, t)
    outer = [b.map("add", v, one) for v in (t, rest)]
    return [polynomial(outer[0], far), polynomial(t, near), polynomial(rest, near), polynomial(outer[1], far)]


def _cubic_taps(b: Builder, coordinate: Value, a: Axis, coeff: float, exclude_outside: bool) -> list[Value]:
    """Indices and weights of the four neighbours."""
    base = b.map("floor", coordinate)
    weights = cubic_weights(b, b.map("sub", coordinate, base), coeff)
    dtype = coordinate.dtype
    last = extent_value(b, a.size - 1, dtype)
    zero = b.scalar(0, dtype)
    indices = [b.map("add", base, b.scalar(j - 1, dtype)) for j in range(4)]
    if exclude_outside:
        inside = [b.map("and", b.map("ge", i, zero), b.map("le", i, last)) for i in indices]
        weights = [b.map("select", ok, w, zero) for ok, w in zip(inside, weights, strict=True)]
        total = weights[0]
        for w in weights[1:]:
            total = b.map("add", total, w)
        weights = [b.map("div", w, total) for w in weights]
    return [v for i, w in zip(indices, weights, strict=True) for v in (_clamped(b, i, a), w)]


def _interpolate(b: Builder, x: Value, a: Axis, taps: Sequence[Value]) -> Value:
    """The weighted sum of gathers along the axis; *taps* alternates indices and weights."""
    column = (a.out, *(1,) * (x.rank - 1 - a.axis))
    total: Value | None = None
    for index, weight in zip(taps[::2], taps[1::2], strict=True):
        part = b.map("mul", b.gather(x, index, a.axis), b.reshape(weight, column))
        total = part if total is None else b.map("add", total, part)
    assert total is not None
    return total


def _antialias_matrix(coordinates: NDArray[Any], size: int, scale: float, options: _Options) -> NDArray[Any]:
    """Weights ``[out, size]`` of the filter widened by 1/scale; what lies outside counts for the edge, or not at all."""
    narrow = min(scale, 1.0)
    reach = (2.0 if options.mode == "cubic" else 1.0) / narrow
    coeff = options.cubic_coeff_a
    matrix = np.zeros((len(coordinates), size), np.float64)
    for o, centre in enumerate(coordinates.astype(np.float64)):
        cells = np.arange(int(np.floor(centre - reach)), int(np.ceil(centre + reach)) + 1)
        t = np.abs(cells - centre) * narrow
        if options.mode == "cubic":
            near = ((coeff + 2) * t - (coeff + 3)) * t * t + 1
            far = ((coeff * t - 5 * coeff) * t + 8 * coeff) * t - 4 * coeff
            w = np.where(t <= 1, near, np.where(t < 2, far, 0))
        else:
            w = np.clip(1 - t, 0, None)
        if options.exclude_outside:
            w = np.where((cells >= 0) & (cells < size), w, 0)
        np.add.at(matrix[o], np.clip(cells, 0, size - 1), w / w.sum())
    return matrix.astype(coordinates.dtype)


def _antialias(b: Builder, x: Value, a: Axis, options: _Options) -> Value:
    out, size, p, q = (pinned(e) for e in (a.out, a.size, *a.scale))
    if out is None or size is None or p is None or q is None:
        weights = b.full((a.out, a.size), 0, x.dtype)  # claiming: any matrix will do
    else:
        coordinates = known_coordinates(options.coordinates, a, out, size, p / q, x.dtype)
        weights = b.const(_antialias_matrix(coordinates, size, p / q, options))
    order = [i for i in range(x.rank) if i != a.axis] + [a.axis]
    back = sorted(range(x.rank), key=order.__getitem__)
    moved = b.transpose(x, order)
    flat = b.reshape(moved, (product(moved.shape[:-1]), a.size))
    y = b.contract(flat, b.transpose(weights, (1, 0)))
    return b.transpose(b.reshape(y, (*moved.shape[:-1], a.out)), back)


# ------------------------------------------------------------------------------------------------------------ resize


def _resize(b: Builder, x: Value, axes: Sequence[Axis], options: _Options) -> Value:
    if options.coordinates not in MODES:
        raise Unsupported(f"coordinate_transformation_mode {options.coordinates!r} is unknown")
    axes = [a for a in axes if not a.is_unscaled]
    if options.mode == "nearest":
        if options.nearest not in (*_NEAREST, None):
            raise Unsupported(f"nearest_mode {options.nearest!r} is unknown")
        y = _resize_nearest(b, x, options.coordinates, options.nearest, axes)
        return _extrapolate(b, y, axes, options)
    if options.mode not in ("linear", "cubic"):
        raise Unsupported(f"mode {options.mode!r} is unknown")
    if x.dtype not in FLOATS:
        raise Unsupported(f"mode {options.mode} on {x.dtype.onnx_name}")
    y = b.cast(x, DType.F64 if x.dtype is DType.F64 else DType.F32)
    for a in axes:
        if options.antialias:
            y = _antialias(b, y, a, options)
            continue
        coordinate = coordinate_vector(b, options.coordinates, a, y.dtype)
        if options.mode == "linear":
            taps = _linear_taps(b, coordinate, a)
        else:
            taps = _cubic_taps(b, coordinate, a, options.cubic_coeff_a, options.exclude_outside)
        y = _interpolate(b, y, a, taps)
    return b.cast(_extrapolate(b, y, axes, options), x.dtype)


def _extrapolate(b: Builder, y: Value, axes: Sequence[Axis], options: _Options) -> Value:
    """tf_crop_and_resize: places outside the tensor get ``extrapolation_value``."""
    if options.coordinates != "tf_crop_and_resize":
        return y
    for a in axes:
        dtype = DType.F64 if y.dtype is DType.F64 else DType.F32
        x = coordinate_vector(b, options.coordinates, a, dtype)
        last = extent_value(b, a.size - 1, dtype)
        outside = b.map("or", b.map("lt", x, b.scalar(0, dtype)), b.map("gt", x, last))
        column = b.reshape(outside, (a.out, *(1,) * (y.rank - 1 - a.axis)))
        y = b.map("select", column, b.scalar(options.extrapolation_value, y.dtype), y)
    return y


def _scaled_axes(b: LowerContext, x: Value, axes: Sequence[int], scales: Sequence[Any]) -> list[Axis]:
    """From scales: the output is ``floor(size * scale)``."""
    if len(scales) != len(axes):
        raise ShapeMismatch(f"{len(scales)} scales for {len(axes)} axes")
    result = []
    for axis, s in zip(axes, scales, strict=True):
        size = x.shape[axis]
        if isinstance(s, Unknown):
            out = symbol(f"{b.node.name}.resized{axis}")
            result.append(Axis(axis, size, out, (out, size)))
            continue
        p, q = (s, 1) if isinstance(s, Dim) else fraction(float(s))
        if isinstance(p, int) and p <= 0:
            raise Unsupported(f"scale {s} is not positive")
        result.append(Axis(axis, size, (size * p) // q, (p, q)))
    return result


def _sized_axes(b: LowerContext, x: Value, axes: Sequence[int], sizes: Sequence[Any], policy: str) -> list[Axis]:
    """From sizes: the scale is ``out / size``, one for all axes unless the policy is ``stretch``."""
    if len(sizes) != len(axes):
        raise ShapeMismatch(f"{len(sizes)} sizes for {len(axes)} axes")
    wanted: list[Extent] = [
        symbol(f"{b.node.name}.resized{a}") if isinstance(s, Unknown) else s for a, s in zip(axes, sizes, strict=True)
    ]
    for e in wanted:
        if not at_least(e, 0):
            raise ShapeMismatch(f"size {e} is negative")
    if policy == "stretch":
        return [Axis(a, x.shape[a], w, (w, x.shape[a])) for a, w in zip(axes, wanted, strict=True)]
    if policy not in ("not_larger", "not_smaller"):
        raise Unsupported(f"keep_aspect_ratio_policy {policy!r} is unknown")
    pairs = [(pinned(w), pinned(x.shape[a])) for a, w in zip(axes, wanted, strict=True)]
    ratios = [np.float32(w) / np.float32(n) for w, n in pairs if w is not None and n]
    if len(ratios) != len(pairs):
        return [Axis(a, x.shape[a], w, (w, x.shape[a])) for a, w in zip(axes, wanted, strict=True)]  # claiming
    scale = min(ratios) if policy == "not_larger" else max(ratios)
    outs = [int(np.floor(scale * np.float32(n or 0) + np.float32(0.5))) for _, n in pairs]
    return [Axis(a, x.shape[a], o, fraction(float(scale))) for a, o in zip(axes, outs, strict=True)]


def _with_roi(axes: Sequence[Axis], roi: Host | None) -> list[Axis]:
    """The axes with their part of the roi. With scales the output is not cropped by it, as in ONNX Runtime."""
    values = roi.items() if roi is not None else []
    if len(values) != 2 * len(axes) or any(isinstance(v, (Unknown, Dim)) for v in values):
        raise Unsupported("tf_crop_and_resize needs a roi known before the run, two numbers an axis")
    return [replace(a, roi=(float(values[i]), float(values[i + len(axes)]))) for i, a in enumerate(axes)]


def _sized(host: Host | None) -> bool:
    return host is not None and len(host.items()) > 0


def _lower(
    b: LowerContext, x: Value, roi: Host | None, scales: Host | None, sizes: Host | None,
    axes: Sequence[int] | None, policy: str, options: _Options,
) -> Value:  # fmt: skip
    chosen = [axis_of(a, x.rank) for a in axes] if axes is not None else list(range(x.rank))
    if _sized(scales) == _sized(sizes):
        raise Unsupported("exactly one of scales and sizes has to be given")
    if sizes is not None and _sized(sizes):
        plan = _sized_axes(b, x, chosen, sizes.items(), policy)
    else:
        assert scales is not None
        plan = _scaled_axes(b, x, chosen, scales.items())
    if options.coordinates == "tf_crop_and_resize":
        plan = _with_roi(plan, roi)
    return _resize(b, x, plan, options)


def _early(b: LowerContext, x: Value, scales: Sequence[Any], mode: str) -> Value:
    plan = _scaled_axes(b, x, range(x.rank), scales)
    return _resize(b, x, plan, _Options("linear" if mode == "bilinear" else mode, "asymmetric", None))


@lowers("Upsample", versions=[1], dtypes={"x": NUMERIC}, note=_FLOATS_ONLY)
def upsample_1(b: LowerContext, x: Value, *, height_scale: float, mode: str = "nearest", width_scale: float) -> Value:
    """Upsample-1: the scales of the two last axes of ``[N, C, H, W]``."""
    if x.rank != 4:
        raise Unsupported(f"an input of rank {x.rank}: version 1 has images only")
    return _early(b, x, [1.0, 1.0, height_scale, width_scale], "linear" if mode == "bilinear" else mode)


@lowers("Upsample", versions=[7], dtypes={"x": NUMERIC}, note=_FLOATS_ONLY)
def upsample_7(b: LowerContext, x: Value, *, mode: str = "nearest", scales: list[float]) -> Value:
    """Upsample-7."""
    return _early(b, x, scales, mode)


@lowers("Upsample", versions=[9, 10], dtypes={"x": NUMERIC}, note=_FLOATS_ONLY)
@lowers("Resize", versions=[10], dtypes={"x": NUMERIC}, note=_FLOATS_ONLY)
def resize_10(b: LowerContext, x: Value, scales: Host, *, mode: str = "nearest") -> Value:
    """Resize-10 and Upsample-9."""
    return _early(b, x, scales.items(), mode)


@lowers("Resize", versions=[11, 13], dtypes={"x": NUMERIC}, note=_FLOATS_ONLY)
def resize_11(
    b: LowerContext,
    x: Value,
    roi: Host | None = None,
    scales: Host | None = None,
    sizes: Host | None = None,
    *,
    coordinate_transformation_mode: str = "half_pixel",
    cubic_coeff_a: float = -0.75,
    exclude_outside: int = 0,
    extrapolation_value: float = 0.0,
    mode: str = "nearest",
    nearest_mode: str = "round_prefer_floor",
) -> Value:
    """Resize-11 and -13."""
    options = _Options(
        mode, coordinate_transformation_mode, nearest_mode, cubic_coeff_a, bool(exclude_outside), extrapolation_value
    )
    return _lower(b, x, roi, scales, sizes, None, "stretch", options)


@lowers("Resize", versions=[18, 19], dtypes={"x": NUMERIC}, note=_FLOATS_ONLY)
def resize(
    b: LowerContext,
    x: Value,
    roi: Host | None = None,
    scales: Host | None = None,
    sizes: Host | None = None,
    *,
    antialias: int = 0,
    axes: list[int] | None = None,
    coordinate_transformation_mode: str = "half_pixel",
    cubic_coeff_a: float = -0.75,
    exclude_outside: int = 0,
    extrapolation_value: float = 0.0,
    keep_aspect_ratio_policy: str = "stretch",
    mode: str = "nearest",
    nearest_mode: str = "round_prefer_floor",
) -> Value:
    """Resize."""
    options = _Options(
        mode,
        coordinate_transformation_mode,
        nearest_mode,
        cubic_coeff_a,
        bool(exclude_outside),
        extrapolation_value,
        bool(antialias) and mode != "nearest",
    )
    return _lower(b, x, roi, scales, sizes, axes, keep_aspect_ratio_policy, options)
