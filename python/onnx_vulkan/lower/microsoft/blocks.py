"""Weights quantized in blocks: MatMulNBits, MatMulBnb4 and GatherBlockQuantized (see ``program.blocks``)."""

from __future__ import annotations

from onnx_vulkan.dims import Extent, axis_of, ceil_div, is_one, is_zero, product, require_same
from onnx_vulkan.dtypes import SMALL_FLOATS, DType
from onnx_vulkan.errors import Unsupported
from onnx_vulkan.lower.elementwise import GPU_FLOATS
from onnx_vulkan.lower.linear import matmul
from onnx_vulkan.lower.registry import LowerContext, lowers
from onnx_vulkan.lower.small import wide
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


_FP4 = (0.0, 1 / 192, 2 / 3, 1.0, 1 / 3, 1 / 2, 1 / 6, 1 / 4)
_NF4 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip
_BNB_TABLES = ((*_FP4, *(-v for v in _FP4)), _NF4)
"""What 4 bits stand for, by quant_type: a sign and three bits, or the quantiles of a normal distribution."""


@lowers(
    "MatMulBnb4",
    versions=[1],
    dtypes={"a": GPU_FLOATS, "b_": _BYTE, "absmax": GPU_FLOATS},
    domain="com.microsoft",
    note="the weights stay packed where K is whole blocks",
)
def matmul_bnb4(
    b: LowerContext,
    a: Value,
    b_: Value,
    absmax: Value,
    *,
    K: int,
    N: int,
    block_size: int,
    quant_type: int,
    training_mode: int = 0,
    transB: int = 1,
) -> Value:
    """MatMulBnb4 of ONNX Runtime: ``a [*, K] @ w^T``, w ``[N, K]`` of FP4 (quant_type 0) or NF4 (1) numbers times ``absmax``.

    Two elements a byte, the first in its high bits; blocks of ``block_size`` go on from row to row. Sums are float32.
    """
    if quant_type not in (0, 1) or not transB or training_mode:
        raise Unsupported(f"quant_type {quant_type} with transB {transB} and training_mode {training_mode} is not supported")
    _check_blocks(4, block_size)
    require_same(a.shape[-1], K, "the last extent of A is not K")
    table = _BNB_TABLES[quant_type]
    if K % block_size:
        count = ceil_div(N * K, block_size)
        numbers = blocks.look_up(b, b.reshape(b_, (ceil_div(N * K, 2),)), table, N * K)
        scale = blocks.spread_blocks(b, b.cast(b.reshape(absmax, (count,)), DType.F32), 0, block_size, N * K)
        w = b.reshape(b.map("mul", numbers, scale), (N, K))
        return b.cast(matmul(b, b.cast(a, DType.F32), b.transpose(w, (1, 0))), a.dtype)
    packed, scales = b.reshape(b_, (N, K // 2)), b.reshape(absmax, (N, K // block_size))
    rows = b.reshape(a, (product(a.shape[:-1]), K))
    y = blocks.contract_blocks(b, rows, packed, scales, None, bits=4, block=block_size, table=table)
    return b.reshape(y, (*a.shape[:-1], N))


_TABLE = frozenset({DType.U8, DType.I4, DType.U4, *SMALL_FLOATS} - {DType.F8E8M0})


@lowers(
    "GatherBlockQuantized",
    versions=[1],
    dtypes={
        "data": _TABLE,
        "indices": {DType.I32, DType.I64},
        "scales": GPU_FLOATS,
        "zero_points": {DType.U8, DType.I4, DType.U4},
    },
    domain="com.microsoft",
    note="uint8 data of 2, 4 and 8 bits: gathered along the first axis, in blocks along the last",
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
    """GatherBlockQuantized of ONNX Runtime: Gather of *data*, dequantized by float32 products rounded to the scales' type.

    Scales have data's shape, with ``ceil(extent / block_size)`` along ``quantize_axis``; zero points too, in data's type. Data
    of uint8 is ``[V, *, D * bits/8]``, packed along the last axis as its zero points are, which are ``2^(bits-1)`` when left
    out (0 for the other types). Floats have no zero points, may have a ``block_size`` of 0 (all of the axis), and a scale
    extent of 1 spreads. An index outside the axis gives zeros.
    """
    packed, floats = data.dtype is DType.U8, data.dtype in SMALL_FLOATS
    if not (floats and block_size == 0):
        _check_blocks(bits if packed else 4, block_size)
    axis, along = axis_of(gather_axis, data.rank), axis_of(quantize_axis, data.rank)
    if packed and (axis != 0 or along == 0 or along != data.rank - 1):
        raise Unsupported(f"gather_axis {gather_axis} with quantize_axis {quantize_axis} of uint8 data is not supported")
    if floats and zero_points is not None:
        raise Unsupported(f"zero points of {data.dtype.onnx_name} data are not supported")
    if scales.rank != data.rank:
        raise Unsupported(f"scales of rank {scales.rank} for data of rank {data.rank} are not supported")
    per_byte = 8 // bits if packed else 1
    shape = [*data.shape[:-1], data.shape[-1] * per_byte]
    for i, (have, e) in enumerate(zip(scales.shape, shape, strict=True)):
        want = (-((-e) // block_size) if block_size else 1) if i == along else e
        if not (floats and i != along and is_one(have)):
            require_same(have, want, "the scales do not fit the data")

    index = b.cast(indices, DType.I64)
    zero, extent = b.scalar(0, DType.I64), b.dims([data.shape[axis]], ())
    index = b.map("select", b.map("lt", index, zero), b.map("add", index, extent), index)
    inside = b.map("and", b.map("ge", index, zero), b.map("lt", index, extent))
    index = b.map("select", inside, index, zero)

    def elements(v: Value, count: Extent) -> Value:
        """Data or zero points at the indices, as int32 or float32."""
        at = block if v is not data and axis == along else index
        v = b.gather(v, at, axis)
        if packed:
            return blocks.unpack(b, v, bits, count)
        return wide(b, v) if floats else b.cast(wide(b, v), DType.I32)

    def spread(v: Value) -> Value:
        """What the indices picked of a tensor with one element a block, as one a data element."""
        if axis == along or not block_size:
            return v
        at = along if along < axis else along - 1 + indices.rank
        return blocks.spread_blocks(b, v, at, block_size, shape[along])

    block = index
    if axis == along:
        shift = b.scalar(block_size.bit_length() - 1, DType.I64)
        block = b.map("shift_right", index, shift) if block_size else b.map("mul", index, zero)
    q = elements(data, shape[-1])
    if zero_points is not None:
        q = b.map("sub", q, spread(elements(zero_points, scales.shape[-1])))
    elif packed:
        q = b.map("sub", q, b.scalar(1 << (bits - 1), q.dtype))
    if floats and axis != along and is_one(scales.shape[axis]):
        block = b.map("mul", index, zero)
    scale = b.cast(spread(b.gather(scales, block, axis)), DType.F32)
    y = b.map("mul", b.cast(q, DType.F32), scale)
    there = b.reshape(inside, (*indices.shape, *(1,) * (data.rank - 1 - axis)))
    return b.cast(b.map("select", there, y, b.scalar(0, DType.F32)), scales.dtype)
