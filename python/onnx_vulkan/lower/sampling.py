"""Reading a tensor at computed places: GridSample, AffineGrid and ONNX Runtime's CropAndResize."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from onnx_vulkan.dims import Extent, is_one, product, require_same
from onnx_vulkan.dtypes import FLOATS, NUMERIC, DType
from onnx_vulkan.errors import Unsupported
from onnx_vulkan.lower.coordinates import extent_value
from onnx_vulkan.lower.registry import Host, LowerContext, lowers
from onnx_vulkan.lower.resize import cubic_weights
from onnx_vulkan.program import composites
from onnx_vulkan.program.builder import Builder
from onnx_vulkan.program.ir import Value

__all__: list[str] = []

FAR = 2.0**30
"""Coordinates beyond this are taken for this: they are outside of any tensor, and float32 has no fractions there."""


@dataclass(frozen=True, slots=True)
class Tap:
    """One neighbour along one axis, a number a sample: its index, whether it lies inside (None: always), its weight."""

    index: Value
    inside: Value | None
    weight: Value | None


def _place(b: Builder, index: Value, size: Extent, padding: str, align_corners: bool) -> tuple[Value, Value | None]:
    """An int32 index brought into the axis, and for ``zeros`` whether it was inside."""
    zero, last = b.scalar(0, DType.I32), extent_value(b, size - 1, DType.I32)
    inside = None
    if padding == "zeros":
        inside = b.map("and", b.map("ge", index, zero), b.map("le", index, last))
    elif padding == "reflection":
        period = 2 * (size - 1) if align_corners else 2 * size
        folded = b.map("mod", index, extent_value(b, period, DType.I32))
        mirrored = b.map("sub", extent_value(b, period if align_corners else period - 1, DType.I32), folded)
        index = b.map("min", folded, mirrored)
    elif padding != "border":
        raise Unsupported(f"padding_mode {padding!r} is unknown")
    return b.map("min", b.map("max", index, zero), last), inside


def _taps(b: Builder, x: Value, size: Extent, mode: str, padding: str, align_corners: bool) -> list[Tap]:
    """The neighbours of normalised coordinates *x* (-1 to 1 over the axis)."""
    dtype = x.dtype
    one, half = b.scalar(1, dtype), b.scalar(0.5, dtype)
    if align_corners:
        at = b.map("mul", b.map("mul", b.map("add", x, one), half), extent_value(b, size - 1, dtype))
    else:
        at = b.map("mul", b.map("sub", b.map("mul", b.map("add", x, one), extent_value(b, size, dtype)), one), half)
    at = composites.clamp(b, at, -FAR, FAR)
    if mode == "nearest":
        index, inside = _place(b, b.cast(b.map("round", at), DType.I32, saturate=True), size, padding, align_corners)
        return [Tap(index, inside, None)]
    base = b.map("floor", at)
    t = b.map("sub", at, base)
    first = b.cast(base, DType.I32, saturate=True)
    if mode == "linear":
        weights = [b.map("sub", one, t), t]
    else:
        weights = cubic_weights(b, t, -0.75)
    taps = []
    for offset, weight in enumerate(weights, 1 - len(weights) // 2):
        index = b.map("add", first, b.scalar(offset, DType.I32)) if offset else first
        taps.append(Tap(*_place(b, index, size, padding, align_corners), weight))
    return taps


def _grid_sample(b: Builder, x: Value, grid: Value, mode: str, padding: str, align_corners: bool) -> Value:
    spatial = x.shape[2:]
    require_same(grid.shape[-1], len(spatial), "the grid's last extent is not the number of spatial axes")
    require_same(x.shape[0], grid.shape[0], "input and grid have different batches")
    if mode != "nearest" and x.dtype not in FLOATS:
        raise Unsupported(f"mode {mode} on {x.dtype.onnx_name}")
    places = grid.shape[:-1]
    rank = len(places)
    wide = DType.F64 if DType.F64 in (x.dtype, grid.dtype) else DType.F32
    by_axis = []
    for i, size in enumerate(spatial):
        component = len(spatial) - 1 - i  # the grid's last axis is (x, y, z): the innermost axis first
        coordinate = b.reshape(b.slice(grid, (*(0,) * rank, component), (*places, 1)), places)
        by_axis.append(_taps(b, b.cast(coordinate, wide), size, mode, padding, align_corners))
    cells = b.transpose(x, (0, *range(2, x.rank), 1))
    flat = b.reshape(cells, (x.shape[0] * product(spatial), x.shape[1]))
    first = b.iota((x.shape[0], *(1,) * (rank - 1)), 0, DType.I32)
    total: Value | None = None
    for taps in itertools.product(*by_axis):
        index = first
        for tap, size in zip(taps, spatial, strict=True):
            index = b.map("add", b.map("mul", index, extent_value(b, size, DType.I32)), tap.index)
        value = b.gather(flat, index, 0)
        for tap in taps:
            if tap.inside is not None:
                value = b.map("select", b.reshape(tap.inside, (*places, 1)), value, b.scalar(0, value.dtype))
        weights = [tap.weight for tap in taps if tap.weight is not None]
        if weights:
            weight = weights[0]
            for w in weights[1:]:
                weight = b.map("mul", weight, w)
            value = b.map("mul", b.cast(value, wide), b.reshape(weight, (*places, 1)))
        total = value if total is None else b.map("add", total, value)
    assert total is not None
    return b.cast(b.transpose(total, (0, rank, *range(1, rank))), x.dtype)


_MODES_16 = {"bilinear": "linear", "nearest": "nearest", "bicubic": "cubic"}


@lowers("GridSample", versions=[1], dtypes={"x": FLOATS, "grid": FLOATS}, domain="com.microsoft")
@lowers("GridSample", versions=[16], dtypes={"x": NUMERIC, "grid": FLOATS})
def grid_sample_16(
    b: LowerContext, x: Value, grid: Value, *, align_corners: int = 0, mode: str = "bilinear", padding_mode: str = "zeros"
) -> Value:
    """GridSample-16 and ONNX Runtime's: two spatial axes."""
    if x.rank != 4 or mode not in _MODES_16:
        raise Unsupported(f"an input of rank {x.rank} with mode {mode!r}")
    return _grid_sample(b, x, grid, _MODES_16[mode], padding_mode, bool(align_corners))


@lowers("GridSample", versions=[20, 22], dtypes={"x": NUMERIC, "grid": FLOATS}, note="2 and 3 spatial axes; cubic: 2")
def grid_sample(
    b: LowerContext, x: Value, grid: Value, *, align_corners: int = 0, mode: str = "linear", padding_mode: str = "zeros"
) -> Value:
    """GridSample."""
    if x.rank not in (4, 5) or mode not in ("linear", "nearest", "cubic") or (mode == "cubic" and x.rank != 4):
        raise Unsupported(f"an input of rank {x.rank} with mode {mode!r}")
    return _grid_sample(b, x, grid, mode, padding_mode, bool(align_corners))


@lowers("AffineGrid", versions=[20], dtypes={"theta": FLOATS})
def affine_grid(b: LowerContext, theta: Value, size: Host, *, align_corners: int = 0) -> Value:
    """AffineGrid: places evenly from -1 to 1, each moved by theta."""
    extents = size.ints()
    if len(extents) not in (4, 5):
        raise Unsupported(f"a size of {len(extents)} numbers")
    spatial = extents[2:]
    wide = DType.F64 if theta.dtype is DType.F64 else DType.F32
    lines = []
    for i, e in enumerate(reversed(spatial)):  # (x, y[, z])
        axis = len(spatial) - 1 - i
        shape = [e if a == axis else 1 for a in range(len(spatial))]
        if align_corners and is_one(e):  # both corners are its centre: ONNX Runtime takes the last one
            line = b.full(shape, 2, wide)
        elif align_corners:
            line = b.map("div", b.iota(shape, axis, wide, 0, 2), extent_value(b, e - 1, wide))
        else:
            line = b.map("div", b.iota(shape, axis, wide, 1, 2), extent_value(b, e, wide))
        line = b.map("sub", line, b.scalar(1, wide))
        lines.append(b.reshape(b.broadcast(line, spatial), (product(spatial), 1)))
    ones = b.full((product(spatial), 1), 1, wide)
    points = b.concat([*lines, ones], 1)
    moved = b.contract(points, b.transpose(b.cast(theta, wide), (0, 2, 1)))
    return b.cast(b.reshape(moved, (extents[0], *spatial, len(spatial))), theta.dtype)


@lowers(
    "CropAndResize",
    versions=[1],
    dtypes={"x": FLOATS - {DType.F64}, "rois": FLOATS - {DType.F64}, "batch_indices": {DType.I32}},
    domain="com.microsoft",
    note="crop_size must be known before the run",
)
def crop_and_resize(
    b: LowerContext,
    x: Value,
    rois: Value,
    batch_indices: Value,
    crop_size: Host,
    *,
    extrapolation_value: float = 0.0,
    mode: str = "bilinear",
) -> Value:
    """CropAndResize of ONNX Runtime: ``x [N, C, H, W]`` at an even grid over each roi ``(y1, x1, y2, x2)`` of ``[R, 4]``.

    Coordinates are shares of ``H - 1`` and ``W - 1``; a crop of one line takes the middle. Outside the image the result is
    ``extrapolation_value``. An index of no image is an error of the run.
    """
    if mode not in ("bilinear", "nearest"):
        raise Unsupported(f"mode {mode!r} is unknown")
    if x.rank != 4 or rois.rank != 2:
        raise Unsupported(f"an input of rank {x.rank} with rois of rank {rois.rank}")
    require_same(rois.shape[1], 4, "a roi is four numbers")

    def f32(v: float) -> Value:
        return b.scalar(v, DType.F32)

    out = crop_size.ints()
    count, one = rois.shape[0], b.scalar(1, DType.I32)
    edges = b.cast(rois, DType.F32)
    axes: list[tuple[Value, list[tuple[Value, Value | None]]]] = []
    for i in (0, 1):
        last = extent_value(b, x.shape[2 + i] - 1, DType.F32)
        low, high = (b.slice(edges, (0, n), (count, 1)) for n in (i, i + 2))
        if is_one(out[i]):
            at = b.map("mul", b.map("mul", b.map("add", low, high), f32(0.5)), last)
        else:
            step = b.map("div", b.map("mul", b.map("sub", high, low), last), extent_value(b, out[i] - 1, DType.F32))
            at = b.map("add", b.map("mul", low, last), b.map("mul", b.iota((1, out[i]), 1, DType.F32), step))
        inside = b.map("and", b.map("ge", at, f32(0)), b.map("le", at, last))
        at = b.map("select", inside, at, f32(0))
        if mode == "nearest":
            taps: list[tuple[Value, Value | None]] = [(b.cast(b.map("floor", b.map("add", at, f32(0.5))), DType.I32), None)]
        else:
            base = b.map("floor", at)
            t, first = b.map("sub", at, base), b.cast(base, DType.I32)
            second = b.map("min", b.map("add", first, one), extent_value(b, x.shape[2 + i] - 1, DType.I32))
            taps = [(first, b.map("sub", f32(1), t)), (second, t)]
        axes.append((inside, taps))

    def placed(v: Value, i: int) -> Value:  # [R, out] to [R, 1, h, 1] or [R, 1, 1, w]
        return b.reshape(v, (count, 1, out[0], 1) if i == 0 else (count, 1, 1, out[1]))

    whole = (count, x.shape[1], *out)
    image = b.broadcast(b.reshape(batch_indices, (count, 1, 1, 1)), whole)
    channel = b.broadcast(b.iota((1, x.shape[1], 1, 1), 1, DType.I32), whole)
    total: Value | None = None
    for (row, above), (column, beside) in itertools.product(axes[0][1], axes[1][1]):
        where = [image, channel, b.broadcast(placed(row, 0), whole), b.broadcast(placed(column, 1), whole)]
        value = b.cast(b.gather_nd(x, b.concat([b.reshape(v, (*whole, 1)) for v in where], 4)), DType.F32)
        if above is not None and beside is not None:
            value = b.map("mul", value, b.map("mul", placed(above, 0), placed(beside, 1)))
        total = value if total is None else b.map("add", total, value)
    assert total is not None
    inside = b.map("and", placed(axes[0][0], 0), placed(axes[1][0], 1))
    return b.cast(b.map("select", inside, total, f32(extrapolation_value)), x.dtype)
