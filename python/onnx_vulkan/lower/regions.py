"""Operators that read a feature map at places held in tensors: RoiAlign, MaxRoiPool, DeformConv."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from onnx_vulkan.dims import Extent, at_least, product, require_same
from onnx_vulkan.dtypes import FLOATS, DType
from onnx_vulkan.errors import Unsupported
from onnx_vulkan.lower.conv import per_axis, split_pads
from onnx_vulkan.lower.coordinates import extent_value
from onnx_vulkan.lower.registry import LowerContext, lowers
from onnx_vulkan.program.builder import Builder
from onnx_vulkan.program.ir import Value

__all__: list[str] = []


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A cell beside each place along one axis: its index inside the axis, and its weight in the linear interpolation."""

    index: Value
    weight: Value


def _column(b: Builder, table: Value, i: int) -> Value:
    """Column *i* of ``[R, K]`` as ``[R, 1, 1]``."""
    return b.reshape(b.slice(table, (0, i), (table.shape[0], 1)), (table.shape[0], 1, 1))


def _index_type(rows: Extent) -> DType:
    """int32 where it holds the number of every row."""
    return DType.I32 if at_least(2**31 - 1, rows) else DType.I64


def _at(b: Builder, index: Value, axis: int, rank: int) -> Value:
    """``[R, P, S]`` spread over the axes 0, *axis* and *axis* + 1 of *rank* ones."""
    rois, bins, samples = index.shape
    shape: list[Extent] = [1] * rank
    shape[0], shape[axis], shape[axis + 1] = rois, bins, samples
    return b.reshape(index, shape)


# ------------------------------------------------------------------------------------------------------------- RoiAlign


def _roi_places(
    b: Builder, first: Value, last: Value, size: Extent, bins: int, samples: int, half_pixel: bool, dtype: DType
) -> tuple[Neighbour, Neighbour]:
    """The two neighbours along one axis of every sample of every bin, ``[R, bins, samples]``; outside the axis they weigh 0.
    Indices are of *dtype*.

    The operations are in ONNX Runtime's order: a sample at the very border may be in or out.
    """
    t = first.dtype
    extent = b.map("sub", last, first)
    if not half_pixel:
        extent = b.map("max", extent, b.scalar(1, t))
    step = b.map("div", extent, b.scalar(bins, t))
    bin_start = b.map("add", first, b.map("mul", b.iota((1, bins, 1), 1, t), step))
    middle = b.map("add", b.iota((1, 1, samples), 2, t), b.scalar(0.5, t))
    at = b.map("add", bin_start, b.map("div", b.map("mul", middle, step), b.scalar(samples, t)))
    inside = b.map("and", b.map("ge", at, b.scalar(-1, t)), b.map("le", at, extent_value(b, size, t)))
    top = extent_value(b, size - 1, t)
    at = b.map("min", b.map("max", at, b.scalar(0, t)), top)
    low = b.map("floor", at)
    part = b.map("sub", at, low)
    zero, one = b.scalar(0, t), b.scalar(1, t)
    index = b.cast(low, dtype, saturate=True)
    after = b.map("min", b.map("add", index, b.scalar(1, dtype)), extent_value(b, size - 1, dtype))
    return (
        Neighbour(index, b.map("select", inside, b.map("sub", one, part), zero)),
        Neighbour(after, b.map("select", inside, part, zero)),
    )


@dataclass(frozen=True, slots=True)
class Regions:
    """What RoiAlign reads: the map ``[N, C, H, W]``, the edges of each region ``[R, 1, 1]`` in cells, its image ``[R]`` int64."""

    x: Value
    columns: tuple[Value, Value]
    rows: tuple[Value, Value]
    image: Value
    half_pixel: bool


def _sampled(b: Builder, r: Regions, mode: str, bins: tuple[int, int], samples: int) -> Value:
    """*samples* x *samples* places in every bin, averaged or the largest: ``[R, C, *bins]``."""
    n, c, height, width = r.x.shape
    t = r.rows[0].dtype
    dtype = _index_type(n * height * width)
    rows = _roi_places(b, *r.rows, height, bins[0], samples, r.half_pixel, dtype)
    columns = _roi_places(b, *r.columns, width, bins[1], samples, r.half_pixel, dtype)
    image = b.reshape(b.cast(r.image, dtype), (r.image.shape[0], *(1,) * 4))
    flat = b.reshape(b.transpose(r.x, (0, 2, 3, 1)), (n * height * width, c))
    parts = []
    for row, column in itertools.product(rows, columns):
        index = b.map("add", b.map("mul", image, extent_value(b, height, dtype)), _at(b, row.index, 1, 5))
        index = b.map("add", b.map("mul", index, extent_value(b, width, dtype)), _at(b, column.index, 3, 5))
        weight = b.map("mul", _at(b, row.weight, 1, 5), _at(b, column.weight, 3, 5))
        parts.append(b.map("mul", b.cast(b.gather(flat, index, 0), t), b.reshape(weight, (*weight.shape, 1))))
    total = parts[0]
    for part in parts[1:]:
        total = b.map("add" if mode == "avg" else "max", total, part)
    # [R, rows, samples, columns, samples, C] to [R, C, rows, columns, samples, samples]
    sampled = b.transpose(total, (0, 5, 1, 3, 2, 4))
    return b.mean(sampled, (4, 5)) if mode == "avg" else b.reduce("max", sampled, (4, 5))


NEAR = 6
"""Two samples of a bin are more than half a cell apart, so that fewer than these fall within a cell of another."""


def _roi_weights(b: Builder, first: Value, last: Value, size: Extent, bins: int, half_pixel: bool) -> tuple[Value, Value]:
    """What each cell of an axis counts in each bin ``[R, bins, size]`` when a bin has one sample for each cell that it is long;
    and the number of samples ``[R, 1, 1]``, 0 or less for a region turned round."""
    t = first.dtype
    zero, one, half = (b.scalar(v, t) for v in (0, 1, 0.5))
    extent = b.map("sub", last, first)
    if not half_pixel:
        extent = b.map("max", extent, one)
    step = b.map("div", extent, b.scalar(bins, t))
    count = b.map("ceil", step)
    gap = b.map("div", step, count)
    start = b.map("add", first, b.map("mul", b.iota((1, bins, 1), 1, t), step))
    cell = b.cast(b.iota((1, 1, size), 2, DType.I64), t)
    before = b.map("sub", b.map("sub", cell, one), start)  # a cell's first neighbour comes after this
    number = b.map("max", b.map("floor", b.map("sub", b.map("div", before, gap), half)), zero)
    last_cell, limit = extent_value(b, size - 1, t), extent_value(b, size, t)
    total: Value | None = None
    for k in range(NEAR):
        sample = b.map("add", number, b.scalar(k, t))
        at = b.map("add", start, b.map("mul", b.map("add", sample, half), gap))
        there = b.map("and", b.map("ge", sample, zero), b.map("lt", sample, count))
        there = b.map("and", there, b.map("and", b.map("ge", at, b.scalar(-1, t)), b.map("le", at, limit)))
        clamped = b.map("min", b.map("max", at, zero), last_cell)
        weight = b.map("max", b.map("sub", one, b.map("abs", b.map("sub", clamped, cell))), zero)
        weight = b.map("select", there, weight, zero)
        total = weight if total is None else b.map("add", total, weight)
    assert total is not None
    return total, count


def _adaptive(b: Builder, r: Regions, bins: tuple[int, int]) -> Value:
    """A sample for each cell that a bin is long: bilinear samples are sums of cells, so that each axis is one product."""
    n, c, height, width = r.x.shape
    rois = r.image.shape[0]
    rows, down = _roi_weights(b, *r.rows, height, bins[0], r.half_pixel)
    columns, across = _roi_weights(b, *r.columns, width, bins[1], r.half_pixel)
    t = rows.dtype
    # rows of all images side by side; those of other images count nothing
    own = b.map("eq", b.iota((1, 1, n, 1), 2, DType.I64), b.reshape(r.image, (rois, 1, 1, 1)))
    spread = b.map("select", own, b.reshape(rows, (rois, bins[0], 1, height)), b.scalar(0, t))
    cells = b.reshape(b.transpose(b.cast(r.x, t), (0, 2, 3, 1)), (n * height, width * c))
    lines = b.contract(b.reshape(spread, (rois * bins[0], n * height)), cells)
    y = b.contract(b.reshape(columns, (rois, 1, bins[1], width)), b.reshape(lines, (rois, bins[0], width, c)))
    number = b.map("max", b.map("mul", down, across), b.scalar(1, t))
    return b.transpose(b.map("div", y, b.reshape(number, (rois, 1, 1, 1))), (0, 3, 1, 2))


def _roi_align(
    b: LowerContext, x: Value, rois: Value, images: Value, mode: str, bins: tuple[int, int], samples: int, scale: float,
    half_pixel: bool,
) -> Value:  # fmt: skip
    if mode not in ("avg", "max"):
        raise Unsupported(f"mode {mode!r} is not known")
    if samples <= 0 and mode == "max":
        raise Unsupported("sampling_ratio 0 (a number of samples that depends on data) with mode max is not supported")
    if x.rank != 4 or rois.rank != 2:
        raise Unsupported(f"an input of rank {x.rank} with regions of rank {rois.rank}")
    require_same(rois.shape[0], images.shape[0], "regions and batch_indices have different numbers")
    t = DType.F64 if x.dtype is DType.F64 else DType.F32
    edges = b.map("mul", b.cast(rois, t), b.scalar(scale, t))
    if half_pixel:
        edges = b.map("sub", edges, b.scalar(0.5, t))
    x0, y0, x1, y1 = (_column(b, edges, i) for i in range(4))
    regions = Regions(x, (x0, x1), (y0, y1), b.bounded(images, x.shape[0]), half_pixel)
    pooled = _sampled(b, regions, mode, bins, samples) if samples > 0 else _adaptive(b, regions, bins)
    return b.cast(pooled, x.dtype)


_ROI_TYPES = {"x": FLOATS, "rois": FLOATS, "batch_indices": frozenset({DType.I64})}
_SAMPLED = "mode max with sampling_ratio above 0"


@lowers("RoiAlign", versions=[10], dtypes=_ROI_TYPES, note=_SAMPLED)
def roi_align_10(
    b: LowerContext,
    x: Value,
    rois: Value,
    batch_indices: Value,
    *,
    mode: str = "avg",
    output_height: int = 1,
    output_width: int = 1,
    sampling_ratio: int = 0,
    spatial_scale: float = 1.0,
) -> Value:
    """RoiAlign-10: coordinates are not shifted by half a cell, and a region is at least 1 wide.

    ``[N, C, H, W]``, ``[R, 4]`` regions ``x1 y1 x2 y2`` and ``[R]`` images give ``[R, C, output_height, output_width]``. An image
    that is not there is an error of the run. Mode max takes the largest of the weighted neighbours, as ONNX and ONNX Runtime do.
    """
    bins = (output_height, output_width)
    return _roi_align(b, x, rois, batch_indices, mode, bins, sampling_ratio, spatial_scale, False)


@lowers("RoiAlign", versions=[16, 22], dtypes=_ROI_TYPES, note=_SAMPLED)
def roi_align(
    b: LowerContext,
    x: Value,
    rois: Value,
    batch_indices: Value,
    *,
    coordinate_transformation_mode: str = "half_pixel",
    mode: str = "avg",
    output_height: int = 1,
    output_width: int = 1,
    sampling_ratio: int = 0,
    spatial_scale: float = 1.0,
) -> Value:
    """RoiAlign with ``half_pixel`` (the default) or, as before version 16, ``output_half_pixel``."""
    if coordinate_transformation_mode not in ("half_pixel", "output_half_pixel"):
        raise Unsupported(f"coordinate_transformation_mode {coordinate_transformation_mode!r} is not known")
    bins, half_pixel = (output_height, output_width), coordinate_transformation_mode == "half_pixel"
    return _roi_align(b, x, rois, batch_indices, mode, bins, sampling_ratio, spatial_scale, half_pixel)


# ----------------------------------------------------------------------------------------------------------- MaxRoiPool


def _rounded(b: Builder, x: Value) -> Value:
    """To the nearest whole number, halves away from 0 as C's round does."""
    size = b.map("abs", x)
    whole = b.map("floor", size)
    up = b.map("ge", b.map("sub", size, whole), b.scalar(0.5, x.dtype))
    whole = b.map("select", up, b.map("add", whole, b.scalar(1, x.dtype)), whole)
    return b.map("select", b.map("lt", x, b.scalar(0, x.dtype)), b.map("neg", whole), whole)


def _bin_members(b: Builder, first: Value, last: Value, size: Extent, bins: int) -> Value:
    """Which cells of an axis are in each bin of each region, ``[R, bins, size]``."""
    t = first.dtype
    extent = b.map("max", b.map("add", b.map("sub", last, first), b.scalar(1, t)), b.scalar(1, t))
    step = b.map("div", extent, b.scalar(bins, t))
    number = b.iota((1, bins, 1), 1, t)
    low = b.map("add", b.map("floor", b.map("mul", number, step)), first)
    high = b.map("add", b.map("ceil", b.map("mul", b.map("add", number, b.scalar(1, t)), step)), first)
    cell = b.cast(b.iota((1, 1, size), 2, DType.I64), t)
    return b.map("and", b.map("ge", cell, low), b.map("lt", cell, high))


@lowers("MaxRoiPool", versions=[1, 22], dtypes={"x": FLOATS, "rois": FLOATS})
def max_roi_pool(b: LowerContext, x: Value, rois: Value, *, pooled_shape: list[int], spatial_scale: float = 1.0) -> Value:
    """MaxRoiPool: the largest cell of each bin, first along the rows, then across them; 0 for a bin without cells.

    ``[N, C, H, W]`` and ``[R, 5]`` regions ``image x1 y1 x2 y2`` give ``[R, C, *pooled_shape]``. An image that is not there is an
    error of the run.
    """
    if x.rank != 4 or rois.rank != 2 or len(pooled_shape) != 2:
        raise Unsupported(f"an input of rank {x.rank}, regions of rank {rois.rank} and {len(pooled_shape)} pooled axes")
    n, c, height, width = x.shape
    count = rois.shape[0]
    t = DType.F64 if x.dtype is DType.F64 else DType.F32
    table = b.cast(rois, t)
    edges = _rounded(b, b.map("mul", table, b.scalar(spatial_scale, t)))
    columns = _bin_members(b, _column(b, edges, 1), _column(b, edges, 3), width, pooled_shape[1])
    rows = _bin_members(b, _column(b, edges, 2), _column(b, edges, 4), height, pooled_shape[0])
    image = b.reshape(b.cast(_column(b, table, 0), DType.I64, saturate=True), (count,))
    chosen = b.gather(x, b.bounded(image, n), 0)
    lowest = b.scalar(float("-inf"), x.dtype)
    members = b.reshape(columns, (count, 1, 1, pooled_shape[1], width))
    wide = b.map("select", members, b.reshape(chosen, (count, c, height, 1, width)), lowest)
    across = b.reduce("max", wide, (4,))  # [R, C, H, pooled columns]
    members = b.reshape(rows, (count, 1, pooled_shape[0], 1, height))
    lines = b.reshape(b.transpose(across, (0, 1, 3, 2)), (count, c, 1, pooled_shape[1], height))
    pooled = b.reduce("max", b.map("select", members, lines, lowest), (4,))
    some = [b.reduce("max", b.cast(m, DType.I32), (2,)) for m in (rows, columns)]
    filled = b.map(
        "mul",
        b.reshape(some[0], (count, 1, pooled_shape[0], 1)),
        b.reshape(some[1], (count, 1, 1, pooled_shape[1])),
    )
    return b.map("select", b.map("gt", filled, b.scalar(0, DType.I32)), pooled, b.scalar(0, x.dtype))


# ----------------------------------------------------------------------------------------------------------- DeformConv


def _deformed(b: Builder, base: Value, offset: Value, size: Extent, dtype: DType) -> tuple[Neighbour, Neighbour]:
    """The two neighbours along one axis of ``base + offset``, indices of *dtype*; a cell outside the axis weighs 0."""
    t = offset.dtype
    at = b.map("add", b.broadcast(base, offset.shape), offset)
    low = b.map("floor", at)
    part = b.map("sub", at, low)
    zero, top = b.scalar(0, t), extent_value(b, size - 1, t)
    last = extent_value(b, size - 1, dtype)

    def neighbour(place: Value, weight: Value) -> Neighbour:
        inside = b.map("and", b.map("ge", place, zero), b.map("le", place, top))
        index = b.cast(b.map("select", inside, place, zero), dtype)
        return Neighbour(b.map("min", index, last), b.map("select", inside, weight, zero))

    one = b.scalar(1, t)
    return neighbour(low, b.map("sub", one, part)), neighbour(b.map("add", low, one), part)


@lowers("DeformConv", versions=[19, 22], dtypes={"x": FLOATS, "w": FLOATS, "offset": FLOATS}, note="2 spatial axes")
def deform_conv(
    b: LowerContext,
    x: Value,
    w: Value,
    offset: Value,
    bias: Value | None = None,
    mask: Value | None = None,
    *,
    dilations: list[int] | None = None,
    group: int = 1,
    kernel_shape: list[int] | None = None,
    offset_group: int = 1,
    pads: list[int] | None = None,
    strides: list[int] | None = None,
) -> Value:
    """DeformConv: the product of the weights and the cells that each tap reads at its moved place.

    x ``[N, C, H, W]``, w ``[M, C/group, KH, KW]``, offset ``[N, offset_group*KH*KW*2, OH, OW]``, mask
    ``[N, offset_group*KH*KW, OH, OW]``.
    """
    if x.rank != 4:
        raise Unsupported(f"an input of rank {x.rank}: 2 spatial axes are supported")
    n, c, height, width = x.shape
    kernel = kernel_shape or [e for e in w.shape[2:] if isinstance(e, int)]
    if len(kernel) != 2 or w.rank != 4:
        raise Unsupported("the size of its kernel is not known before the run, or not of 2 axes")
    for have, e in zip(w.shape[2:], kernel, strict=True):
        require_same(have, e, "the weights do not have the size of kernel_shape")
    step, dil = per_axis("strides", strides, 2, 1), per_axis("dilations", dilations, 2, 1)
    begin, end = split_pads(pads, 2)
    taps, og = kernel[0] * kernel[1], offset_group
    out = [
        (e + p + q - (k - 1) * d - 1) // s + 1
        for e, p, q, k, d, s in zip((height, width), begin, end, kernel, dil, step, strict=True)
    ]
    for i in (0, 1):
        require_same(offset.shape[2 + i], out[i], "the offsets do not have the size of the result")
    require_same(offset.shape[1], 2 * og * taps, "the offsets do not fit the kernel and offset_group")
    require_same(c % og, 0, "the channels do not divide into offset_group")
    require_same(c, w.shape[1] * group, "the channels do not fit the weights")
    require_same(w.shape[0] % group, 0, "the output channels do not divide into group")
    t = DType.F64 if x.dtype is DType.F64 else DType.F32
    places = (n, og, *kernel, *out)
    dtype = _index_type(n * og * height * width)
    moved = b.reshape(b.cast(offset, t), (n, og, *kernel, 2, *out))
    by_axis = []
    for i, size in enumerate((height, width)):
        starts = (0, 0, 0, 0, i, 0, 0)
        own = b.reshape(b.slice(moved, starts, (n, og, *kernel, 1, *out)), places)
        tap = b.iota([kernel[i] if a == 2 + i else 1 for a in range(6)], 2 + i, t, -begin[i], dil[i])
        base = b.map("add", b.iota([out[i] if a == 4 + i else 1 for a in range(6)], 4 + i, t, 0, step[i]), tap)
        by_axis.append(_deformed(b, base, own, size, dtype))
    # rows of C/offset_group channels: the cells of one image and offset group follow each other
    flat = b.reshape(
        b.transpose(b.reshape(x, (n, og, c // og, height, width)), (0, 1, 3, 4, 2)), (n * og * height * width, c // og)
    )
    first = b.map("add", b.iota((n, 1, 1, 1, 1, 1), 0, dtype, 0, og), b.iota((1, og, 1, 1, 1, 1), 1, dtype))
    total: Value | None = None
    for row, column in itertools.product(*by_axis):
        index = b.map("add", b.map("mul", first, extent_value(b, height, dtype)), row.index)
        index = b.map("add", b.map("mul", index, extent_value(b, width, dtype)), column.index)
        weight = b.reshape(b.map("mul", row.weight, column.weight), (*places, 1))
        value = b.map("mul", b.cast(b.gather(flat, index, 0), t), weight)
        total = value if total is None else b.map("add", total, value)
    assert total is not None
    if mask is not None:
        total = b.map("mul", total, b.reshape(b.cast(mask, t), (*places, 1)))
    # [N, og, KH, KW, OH, OW, C/og] to one matrix a group: [N, group, OH*OW, C/group * taps]
    cells = product(out)
    columns = b.transpose(b.reshape(total, (n, og, taps, cells, c // og)), (0, 1, 4, 2, 3))  # [N, og, C/og, taps, cells]
    columns = b.reshape(columns, (n, group, (c // group) * taps, cells))
    weights = b.reshape(b.cast(w, t), (1, group, w.shape[0] // group, (c // group) * taps))
    y = b.reshape(b.contract(weights, columns), (n, w.shape[0], *out))
    if bias is not None:
        y = b.map("add", y, b.reshape(b.cast(bias, t), (1, w.shape[0], 1, 1)))
    return b.cast(y, x.dtype)
