"""Operators that cut or place patches: CenterCropPad, Col2Im, MaxUnpool."""

from __future__ import annotations

import numpy as np

from onnx_vulkan.dims import Extent, at_least, product, require_same
from onnx_vulkan.dtypes import FLOATS, NUMERIC, DType
from onnx_vulkan.errors import Unsupported
from onnx_vulkan.lower.conv import channels_first, per_axis, split_pads
from onnx_vulkan.lower.norm import axis_of
from onnx_vulkan.lower.registry import Host, LowerContext, lowers
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
        have = x.shape[axis]
        if at_least(have, want):
            starts[axis], sizes[axis] = (have - want) // 2, want
        else:
            before[axis] = (want - have) // 2
            after[axis] = want - have - before[axis]
    return b.pad(b.slice(x, starts, sizes), before, after)


@lowers("Col2Im", versions=[18], dtypes={"x": FLOATS})
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
    """Col2Im: a transposed convolution whose kernel puts each entry of a block in its place."""
    image, block = image_shape.ints(), block_shape.ints()
    rank = len(image)
    if not all(isinstance(e, int) for e in block):
        raise Unsupported("its block_shape must be a constant")
    if len(block) != rank or not 1 <= rank <= 3:
        raise Unsupported(f"its image has {rank} axes and its block {len(block)}; supported are 1 to 3 of both")
    kernel = tuple(int(e) for e in block if isinstance(e, int))
    step, dil = per_axis("strides", strides, rank, 1), per_axis("dilations", dilations, rank, 1)
    begin, end = split_pads(pads, rank)
    places = [
        (e + p + q - (k - 1) * d - 1) // s + 1 for e, p, q, k, d, s in zip(image, begin, end, kernel, dil, step, strict=True)
    ]
    size = int(np.prod(kernel))
    channels = x.shape[1] // size
    if not isinstance(channels, int):
        raise Unsupported("the number of channels is not known before the run")
    require_same(x.shape[1], channels * size, "the channels are no multiple of the block's size")
    require_same(x.shape[2], product(places), "the number of blocks does not fit the image")
    w = np.tile(np.eye(size, dtype=np.float32).reshape(*kernel, size, 1), (*(1,) * rank, channels, 1))
    blocks = b.reshape(b.transpose(x, (0, 2, 1)), (x.shape[0], *places, channels * size))
    (y,) = b.window(
        "conv_transpose",
        blocks,
        b.const(w.astype(x.dtype.numpy)),
        out_channels=channels,
        out_spatial=image,
        kernel=kernel,
        strides=step,
        dilations=dil,
        pads_begin=begin,
        pads_end=end,
        groups=channels,
    )
    return channels_first(b, y)


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
    filled = b.scatter(empty, b.reshape(b.cast(indices, DType.I64), (count,)), b.reshape(x, (count,)), kind="elements", axis=0)
    return b.reshape(filled, shape)
