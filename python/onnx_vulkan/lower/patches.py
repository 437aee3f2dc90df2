"""Operators that cut or place patches: CenterCropPad, Col2Im, MaxUnpool."""

from __future__ import annotations

from onnx_vulkan.dims import Extent, at_least, axis_of, product, require_at_least, require_same
from onnx_vulkan.dtypes import FLOATS, NUMERIC, REAL, DType
from onnx_vulkan.errors import Unsupported
from onnx_vulkan.lower.conv import per_axis, split_pads
from onnx_vulkan.lower.registry import Host, LowerContext, lowers
from onnx_vulkan.program import composites
from onnx_vulkan.program.ir import Value

__all__: list[str] = []


@lowers("CenterCropPad", versions=[18], dtypes={"x": NUMERIC})
def center_crop_pad(b: LowerContext, x: Value, shape: Host, *, axes: list[int] | None = None) -> Value:
    """CenterCropPad: what is odd is cut off or added at the end."""
    chosen = [axis_of(a, x.rank) for a in axes] if axes is not None else list(range(x.rank))
    wanted = shape.ints()
    if len(wanted) != len(chosen):
        raise Unsupported(f"{len(wanted)} extents for {len(chosen)} axes")
    starts: list[Extent] = [0] * x.rank
    sizes = list(x.shape)
    before: list[Extent] = [0] * x.rank
    after: list[Extent] = [0] * x.rank
    for axis, want in zip(chosen, wanted, strict=True):
        require_at_least(want, 0, f"its shape {tuple(wanted)} has a negative extent")
        have = x.shape[axis]
        if at_least(have, want):
            starts[axis], sizes[axis] = (have - want) // 2, want
        else:
            before[axis] = (want - have) // 2
            after[axis] = want - have - before[axis]
    return b.pad(b.slice(x, starts, sizes), before, after)


@lowers("Col2Im", versions=[18], dtypes={"x": REAL})
def col2im(
    b: LowerContext,
    x: Value,
    image_shape: Host,
    block_shape: Host,
    *,
    dilations: list[int] | None = None,
    pads: list[int] | None = None,
    strides: list[int] | None = None,
) -> Value:
    """Col2Im: each cell of the image sums the block entries that fall on it, which it finds by their place in the block."""
    image, block = image_shape.ints(), block_shape.ints()
    rank = len(image)
    if len(block) != rank or not rank:
        raise Unsupported(f"its image has {rank} axes and its block {len(block)}")
    step, dil = per_axis("strides", strides, rank, 1), per_axis("dilations", dilations, rank, 1)
    begin, end = split_pads(pads, rank)
    places = [
        (e + p + q - (k - 1) * d - 1) // s + 1 for e, p, q, k, d, s in zip(image, begin, end, block, dil, step, strict=True)
    ]
    size, count = product(block), product(places)
    channels = x.shape[1] // size
    require_same(x.shape[1], channels * size, "the channels are no multiple of the block's size")
    require_same(x.shape[2], count, "the number of blocks does not fit the image")
    entry, place, inside = b.scalar(0, DType.I64), b.scalar(0, DType.I64), b.scalar(True, DType.BOOL)
    zero = b.scalar(0, DType.I64)
    for i in range(rank):  # the axes of every operand: the block's, then the image's
        within = b.iota([e if a == i else 1 for a, e in enumerate((*block, *(1,) * rank))], i, DType.I64)
        at = b.iota([e if a == rank + i else 1 for a, e in enumerate((*(1,) * rank, *image))], rank + i, DType.I64, begin[i])
        reach = b.map("sub", at, b.map("mul", within, b.scalar(dil[i], DType.I64)))
        stride, limit = b.scalar(step[i], DType.I64), b.dims([places[i]], ())
        origin = b.map("div", reach, stride)
        fits = b.map("and", b.map("ge", reach, zero), b.map("lt", origin, limit))
        fits = b.map("and", fits, b.map("eq", b.map("mul", origin, stride), reach))
        inside = b.map("and", inside, fits)
        place = b.map("add", b.map("mul", place, limit), origin)
        entry = b.map("add", b.map("mul", entry, b.dims([block[i]], ())), within)
    index = b.map("select", inside, b.map("add", b.map("mul", entry, b.dims([count], ())), place), zero)
    cells = product(image)
    index, inside = (b.reshape(b.broadcast(v, (*block, *image)), (size * cells,)) for v in (index, inside))
    blocks = b.gather(b.reshape(x, (x.shape[0], channels, size * count)), index, 2)
    blocks = composites.wide(b, blocks)
    kept = b.map("select", b.broadcast(inside, blocks.shape), blocks, b.scalar(0, blocks.dtype))
    summed = b.reduce("sum", b.reshape(kept, (x.shape[0], channels, size, cells)), (2,))
    return b.reshape(b.cast(summed, x.dtype), (x.shape[0], channels, *image))


@lowers("MaxUnpool", versions=[9, 11, 22], dtypes={"x": FLOATS}, note="output_shape only as inferred")
def max_unpool(
    b: LowerContext,
    x: Value,
    indices: Value,
    output_shape: Host | None = None,
    *,
    kernel_shape: list[int],
    pads: list[int] | None = None,
    strides: list[int] | None = None,
) -> Value:
    """MaxUnpool: each value goes to its flat index in the output, the rest is 0."""
    rank = x.rank - 2
    step = per_axis("strides", strides, rank, 1)
    begin, end = split_pads(pads, rank)
    spatial = [(e - 1) * s - (p + q) + k for e, s, p, q, k in zip(x.shape[2:], step, begin, end, kernel_shape, strict=True)]
    shape: tuple[Extent, ...] = (*x.shape[:2], *spatial)
    if output_shape is not None and tuple(output_shape.ints()) != shape:
        raise Unsupported("its output_shape is not the inferred one, and then ONNX and ONNX Runtime read the indices differently")
    count = product(x.shape)
    empty = b.full((product(shape),), 0, x.dtype)
    places = b.bounded(b.reshape(b.cast(indices, DType.I64), (count,)), product(shape))
    filled = b.scatter(empty, places, b.reshape(x, (count,)), kind="elements", axis=0)
    return b.reshape(filled, shape)
