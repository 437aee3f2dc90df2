"""Weights quantized in blocks along one axis, packed 2, 4 or 8 bits an element: unpacking, dequantization, the matrix product.

A packed row is a run of bytes; element 0 of a byte lies in its lowest bits. A row is whole blocks of ``block`` elements.

Composite ``contract_blocks``
-----------------------------
``x @ w^T`` where row n of w is quantized in blocks along K. Attrs: ``bits`` 2 | 4 | 8; ``block`` a power of two, at least 16,
or 0 for one block a row; ``acc`` the dtype of sums, float32; ``table`` None, or the 16 numbers that 4 bits stand for (then
element 0 of a byte lies in its highest bits, and there are no zero points); ``present`` the names of the optional inputs given.

=========== =========================== =========================================================================
x           ``[M, K]`` float
packed      ``[N, B * block * bits/8]``  uint8, ``B = ceil(K / block)``; what lies past K is not read as weights. Without
                                        blocks B is 1 and a row ``K * bits/8`` bytes, a multiple of 4
scales      ``[N, B]`` float
zero_points ``[N, B]`` float, or         optional; packed as the weights are, each row in whole bytes.
            ``[N, ceil(B * bits/8)]``    Without them the zero point is ``2^(bits-1)``
            uint8
index       ``[Z]`` int32                optional, for batches
=========== =========================== =========================================================================

The output is ``[M, N]``: ``sum_k x[m, k] * ((q[n, k] - zero_point[n, k/block]) * scale[n, k/block])``, weights in float32; with
a table ``table[q[n, k]]`` takes the difference's place.

In batches x is ``[Z, M, K]``, packed, scales and zero points have E in front, and the output is ``[Z, M, N]``: product z takes
matrix z (E is Z), or ``index[z]`` of the E, which the maker of the index keeps inside.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from onnx_vulkan.dims import Extent
from onnx_vulkan.dtypes import DType
from onnx_vulkan.program.builder import Builder
from onnx_vulkan.program.composites import DECOMPOSITIONS
from onnx_vulkan.program.ir import Instr, Value

__all__ = ["contract_blocks", "dequantize_blocks", "look_up", "spread_blocks", "unpack"]


def unpack(b: Builder, packed: Value, bits: int, count: Extent, *, high_first: bool = False) -> Value:
    """The first *count* elements along the last axis of a uint8 tensor that holds ``8 / bits`` of them a byte, as int32.

    The first of a byte lies in its lowest bits, with *high_first* in its highest.
    """
    lead, row = packed.shape[:-1], packed.shape[-1]
    per_byte = 8 // bits
    wide = b.cast(packed, DType.I32)
    if per_byte > 1:
        shifts = b.iota((per_byte,), 0, DType.I32, 8 - bits if high_first else 0, -bits if high_first else bits)
        wide = b.map("shift_right", b.reshape(wide, (*lead, row, 1)), shifts)
        wide = b.reshape(b.map("bit_and", wide, b.scalar((1 << bits) - 1, DType.I32)), (*lead, row * per_byte))
    return b.slice(wide, (0,) * packed.rank, (*lead, count))


def spread_blocks(b: Builder, v: Value, axis: int, block: int, count: Extent) -> Value:
    """Each element along *axis* repeated *block* times, cut to *count*; with 0 the only one, *count* times."""
    if not block:
        return b.broadcast(v, [count if i == axis else e for i, e in enumerate(v.shape)])
    shape = list(v.shape)
    spread = [*shape[: axis + 1], block, *shape[axis + 1 :]]
    v = b.broadcast(b.reshape(v, (*shape[: axis + 1], 1, *shape[axis + 1 :])), spread)
    shape[axis] = shape[axis] * block
    v = b.reshape(v, shape)
    shape[axis] = count
    return b.slice(v, (0,) * len(shape), shape)


def dequantize_blocks(
    b: Builder, packed: Value, scales: Value, zero_points: Value | None, bits: int, block: int, count: Extent
) -> Value:
    """The weights ``[*, N, count]`` of a ``contract_blocks``, in float32."""
    q = unpack(b, packed, bits, count)
    zero = b.scalar(1 << (bits - 1), DType.I32)
    last = scales.rank - 1
    if zero_points is not None and zero_points.dtype is DType.U8:
        zero_points = unpack(b, zero_points, bits, scales.shape[last])
    if zero_points is not None:
        zero = spread_blocks(b, zero_points, last, block, count)
    scale = b.cast(spread_blocks(b, scales, last, block, count), DType.F32)
    if zero.dtype is DType.I32:
        centred = b.cast(b.map("sub", q, zero), DType.F32)
    else:
        centred = b.map("sub", b.cast(q, DType.F32), b.cast(zero, DType.F32))
    return b.map("mul", centred, scale)


def look_up(b: Builder, packed: Value, table: Sequence[float], count: Extent) -> Value:
    """What the first *count* elements of 4 bits along the last axis stand for; a byte's first lies in its high bits."""
    return b.gather(b.const(np.array(table, np.float32)), unpack(b, packed, 4, count, high_first=True), 0)


def contract_blocks(
    b: Builder,
    x: Value,
    packed: Value,
    scales: Value,
    zero_points: Value | None,
    *,
    bits: int,
    block: int,
    table: tuple[float, ...] | None = None,
    index: Value | None = None,
) -> Value:
    """The ``contract_blocks`` composite described above, in the dtype of *x*."""
    given = {"zero_points": zero_points, "index": index}
    present = {name: v for name, v in given.items() if v is not None}
    return b.emit(
        "contract_blocks",
        [x, packed, scales, *present.values()],
        [(x.dtype, (*x.shape[:-1], packed.shape[-2]))],
        bits=bits,
        block=block,
        table=table,
        present=tuple(present),
        acc=DType.F32,
    )[0]


def _decompose(b: Builder, instr: Instr) -> tuple[Value, ...]:
    x, packed, scales, *rest = instr.inputs
    given: dict[str, Value] = dict(zip(instr.attrs["present"], rest, strict=True))
    bits, block, table = (instr.attrs[n] for n in ("bits", "block", "table"))
    depth = x.shape[-1]
    if table is None:
        w = dequantize_blocks(b, packed, scales, given.get("zero_points"), bits, block, depth)
    else:
        scale = b.cast(spread_blocks(b, scales, scales.rank - 1, block, depth), DType.F32)
        w = b.map("mul", look_up(b, packed, table, depth), scale)
    if "index" in given:
        w = b.gather(w, given["index"], 0)
    y = b.contract(b.cast(x, DType.F32), b.transpose(w, (*range(w.rank - 2), w.rank - 1, w.rank - 2)))
    return (b.cast(y, instr.out.dtype),)


DECOMPOSITIONS["contract_blocks"] = _decompose
