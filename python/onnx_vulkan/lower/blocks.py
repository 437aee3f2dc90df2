"""Weights quantized in blocks: MatMulNBits and GatherBlockQuantized of ONNX Runtime. What a block is: ``program.blocks``."""

from __future__ import annotations

from onnx_vulkan.dims import ceil_div, is_zero, product, require_same
from onnx_vulkan.dtypes import DType
from onnx_vulkan.errors import Unsupported
from onnx_vulkan.lower.elementwise import GPU_FLOATS
from onnx_vulkan.lower.linear import matmul
from onnx_vulkan.lower.norm import axis_of
from onnx_vulkan.lower.registry import LowerContext, lowers
from onnx_vulkan.program import blocks
from onnx_vulkan.program.builder import Builder
from onnx_vulkan.program.ir import Value

__all__: list[str] = []

_BYTE = frozenset({DType.U8})


def _check_blocks(bits: int, block_size: int) -> None:
    if bits not in (2, 4, 8):
        raise Unsupported(f"{bits} bits a weight are not supported; 2, 4 and 8 are")
    if block_size < 16 or block_size & (block_size - 1):
        raise Unsupported(f"block_size {block_size} is not a power of two of at least 16")


@lowers(
    "MatMulNBits",
    versions=[1],
    dtypes={"a": GPU_FLOATS, "b_": _BYTE, "scales": GPU_FLOATS, "zero_points": {DType.U8, *GPU_FLOATS}},
    domain="com.microsoft",
    note="2, 4 and 8 bits; the weights stay packed, except with g_idx",
)
def matmul_nbits(
    b: LowerContext,
    a: Value,
    b_: Value,
    scales: Value,
    zero_points: Value | None = None,
    g_idx: Value | None = None,
    bias: Value | None = None,
    *,
    K: int,
    N: int,
    accuracy_level: int = 0,
    bits: int = 4,
    block_size: int,
    weight_prepacked: int = 0,
) -> Value:
    """MatMulNBits of ONNX Runtime: ``a [*, K] @ w^T + bias``, w ``[N, K]`` in blocks along K; sums in float32.

    ``accuracy_level`` is the least accuracy that the model wants for the inner arithmetic; float32 is above all of them.
    With ``g_idx`` element k of a row has the scale and zero point of block ``g_idx[k]``. Empty weights stand for zeros.
    Raises Unsupported for weights in a layout of one execution provider.
    """
    if weight_prepacked:
        raise Unsupported(f"weight_prepacked {weight_prepacked}, a layout of another execution provider, is not supported")
    _check_blocks(bits, block_size)
    if a.rank < 1:
        raise Unsupported("a scalar operand of a matrix product")
    require_same(a.shape[-1], K, "the last extent of A is not K")
    if is_zero(product(b_.shape)):
        y = b.full((*a.shape[:-1], N), 0, a.dtype)
        return b.map("add", y, bias) if bias is not None else y
    groups = ceil_div(K, block_size)
    packed = b.reshape(b_, (N, groups * (block_size * bits // 8)))
    scales = b.reshape(scales, (N, groups))
    if zero_points is not None:
        zero_points = b.reshape(zero_points, (N, ceil_div(groups * bits, 8) if zero_points.dtype is DType.U8 else groups))
    if g_idx is not None and (bits != 4 or (zero_points is not None and zero_points.dtype is DType.U8)):
        raise Unsupported("g_idx is only supported with 4 bits and without packed zero points")  # no runtime agrees on the rest
    if g_idx is None:
        rows = b.reshape(a, (product(a.shape[:-1]), K))
        y = blocks.contract_blocks(b, rows, packed, scales, zero_points, bits=bits, block=block_size)
        y = b.reshape(y, (*a.shape[:-1], N))
    else:
        w = _grouped(b, blocks.unpack(b, packed, bits, K), scales, zero_points, g_idx)
        y = matmul(b, b.cast(a, DType.F32), b.transpose(w, (1, 0)))
        y = b.cast(y, a.dtype)
    return b.map("add", y, bias) if bias is not None else y


def _grouped(b: Builder, q: Value, scales: Value, zero_points: Value | None, g_idx: Value) -> Value:
    """The weights in float32, from ``q [N, K]``, where ``g_idx`` names the block of each element of a row."""
    group = b.slice(g_idx, (0,), (q.shape[1],))  # it may go on to whole blocks
    zero = b.scalar(8, DType.F32) if zero_points is None else b.cast(b.gather(zero_points, group, 1), DType.F32)
    return b.map("mul", b.map("sub", b.cast(q, DType.F32), zero), b.cast(b.gather(scales, group, 1), DType.F32))


@lowers(
    "GatherBlockQuantized",
    versions=[1],
    dtypes={"data": _BYTE, "indices": {DType.I32, DType.I64}, "scales": GPU_FLOATS, "zero_points": _BYTE},
    domain="com.microsoft",
    note="uint8 data of 2, 4 and 8 bits, gathered along the first axis, in blocks along the last",
)
def gather_block_quantized(
    b: LowerContext,
    data: Value,
    indices: Value,
    scales: Value,
    zero_points: Value | None = None,
    *,
    bits: int = 4,
    block_size: int = 128,
    gather_axis: int = 0,
    quantize_axis: int = 1,
) -> Value:
    """GatherBlockQuantized of ONNX Runtime: rows of packed *data* ``[V, *, D * bits/8]``, dequantized.

    Scales are ``[V, *, ceil(D / block_size)]``; zero points are packed like the data, ``2^(bits-1)`` without. The product is
    float32, rounded to the scales' type. An index outside the first axis gives zeros.
    """
    _check_blocks(bits, block_size)
    along = axis_of(quantize_axis, data.rank)
    if axis_of(gather_axis, data.rank) != 0 or along == 0 or along != data.rank - 1:
        raise Unsupported(f"gather_axis {gather_axis} with quantize_axis {quantize_axis} of uint8 data is not supported")
    count = data.shape[-1] * (8 // bits)
    groups = (*data.shape[:-1], -((-count) // block_size))
    if scales.rank != data.rank:
        raise Unsupported(f"scales of rank {scales.rank} for data of rank {data.rank} are not supported")
    for have, want in zip(scales.shape, groups, strict=True):
        require_same(have, want, "the scales do not fit the data")
    index = b.cast(indices, DType.I64)
    zero, extent = b.scalar(0, DType.I64), b.dims([data.shape[0]], ())
    inside = b.map("and", b.map("ge", index, b.map("neg", extent)), b.map("lt", index, extent))
    index = b.map("select", inside, index, zero)
    q = blocks.unpack(b, b.gather(data, index, 0), bits, count)
    offset = b.scalar(1 << (bits - 1), DType.I32)
    if zero_points is not None:
        offset = blocks.unpack(b, b.gather(zero_points, index, 0), bits, groups[-1])
        offset = blocks.spread_blocks(b, offset, offset.rank - 1, block_size, count)
    scale = b.gather(scales, index, 0)
    scale = b.cast(blocks.spread_blocks(b, scale, scale.rank - 1, block_size, count), DType.F32)
    y = b.map("mul", b.cast(b.map("sub", q, offset), DType.F32), scale)
    there = b.reshape(inside, (*indices.shape, *(1,) * (data.rank - 1)))
    return b.cast(b.map("select", there, y, b.scalar(0, DType.F32)), scales.dtype)
