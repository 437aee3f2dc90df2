"""Products with quantized weights: where MatMul or Gemm multiplies by what DequantizeLinear makes of a constant of 2 or 4 bits,
the weights stay packed and are dequantized on their way into the product (composite ``contract_blocks``), never in memory.

The weights are then float32 in the product, also where DequantizeLinear would have rounded them to a half.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from onnx_vulkan.dims import current_scope, is_one, product, require_same
from onnx_vulkan.dtypes import FLOATS, SMALL_INTS, DType
from onnx_vulkan.graph import Array
from onnx_vulkan.lower.registry import LowerContext
from onnx_vulkan.packing import unpack
from onnx_vulkan.program import blocks
from onnx_vulkan.program.builder import Builder
from onnx_vulkan.program.ir import Value

__all__ = ["Weight", "note_transpose", "note_weight", "product_with_weight"]

LEAST_BLOCK, LARGEST_BLOCK = 16, 1024
"""Elements with one scale in the composite, a power of two between these."""


@dataclass(frozen=True, slots=True)
class Weight:
    """A dequantized matrix: the constant ``codes`` of a small integer type, ``scale`` and ``zero_point`` as DequantizeLinear
    takes them: one for all, one an index of *axis*, or one a block of ``block`` elements along it. ``transposed``: afterwards.
    """

    codes: Value
    scale: Value
    zero_point: Value | None
    axis: int
    block: int
    transposed: bool = False


def note_weight(b: LowerContext, made: Value, weight: Weight) -> None:
    """Remember that *made* is *weight*, where a product can use that."""
    w, zero = weight.codes, weight.zero_point
    if w.is_const and w.rank == 2 and w.dtype in SMALL_INTS and made.dtype in FLOATS and (zero is None or zero.is_const):
        b.weights[made] = weight


def note_transpose(b: LowerContext, x: Value, made: Value) -> None:
    """Remember that *made* is the transpose of *x*."""
    weight = b.weights.get(x)
    if weight is not None:
        b.weights[made] = replace(weight, transposed=not weight.transposed)


def product_with_weight(b: Builder, x: Value, w: Value, transposed: bool = False) -> Value | None:
    """``x [..., K] @ w [K, N]`` (or ``@ w^T`` with *transposed*) by ``contract_blocks``.

    None where *w* is not such a weight, or the composite cannot do it: one scale for each index of K, or blocks along N or of
    a size that is no power of two from 16 on.
    """
    weight = b.weights.get(w) if isinstance(b, LowerContext) else None
    if weight is None or x.rank < 2 or x.dtype is not w.dtype or x.dtype is DType.F64:
        return None
    depth_axis = int(weight.transposed != transposed)
    extents = [e for e in weight.codes.shape if isinstance(e, int)]
    depth, columns = extents[depth_axis], extents[1 - depth_axis]
    block = _block(weight, depth_axis, depth)
    if block is None or not depth or not columns:
        return None
    require_same(x.shape[-1], depth, f"matrix product of {x.shape} and {w.shape}: inner extents differ")
    bits, groups = weight.codes.dtype.bits, -(-depth // block)

    def rows(v: Value, width: int) -> Value:
        """A constant of the weight's type as ``[N, width]``, packed by rows: numbers above the least of the type."""
        shape = (columns, -(-width * bits // 8))
        if current_scope().values is None:
            return Value(DType.U8, shape, "packed rows")  # only while claiming: stands for the constant
        form = f"{columns}x{width} rows of axis {depth_axis}"
        data = _kept(v, form, lambda: _packed_rows(v, depth_axis, columns, width))
        return Value(DType.U8, shape, v.name and f"{v.name}:{form}", data)

    zero_points = None
    if weight.zero_point is not None:
        zero_points = rows(weight.zero_point, groups)
    elif weight.codes.dtype.carrier is DType.U8:
        zero_points = b.const(np.zeros((columns, -(-groups * bits // 8)), np.uint8))
    y = blocks.contract_blocks(
        b,
        b.reshape(x, (product(x.shape[:-1]), depth)),
        rows(weight.codes, groups * block),
        _scales(b, weight, depth_axis, columns, groups),
        zero_points,
        bits=bits,
        block=block,
    )
    return b.reshape(y, (*x.shape[:-1], columns))


def _block(weight: Weight, depth_axis: int, depth: int) -> int | None:
    """How many elements of a row have one scale in the composite, or None."""
    scale = weight.scale
    if scale.rank == 2:
        size = weight.block
        good = weight.axis == depth_axis and size >= LEAST_BLOCK and size & (size - 1) == 0
        return size if good and scale.shape[depth_axis] == -(-depth // size) else None
    if scale.rank == 1 and not is_one(scale.shape[0]) and weight.axis == depth_axis:
        return None
    size = min(depth & -depth, LARGEST_BLOCK)
    return size if size >= LEAST_BLOCK else 2 * LEAST_BLOCK


def _scales(b: Builder, weight: Weight, depth_axis: int, columns: int, groups: int) -> Value:
    """The scales as ``[N, groups]``."""
    scale = weight.scale
    if scale.rank == 2:
        return b.transpose(scale, (1, 0)) if depth_axis == 0 else scale
    return b.broadcast(b.reshape(scale, (product(scale.shape), 1)), (columns, groups))


def _packed_rows(v: Value, depth_axis: int, columns: int, width: int) -> Array:
    """See ``rows`` above, in numpy. *v* is the weight's codes or zero points; those of fewer axes are spread."""
    assert v.data is not None
    bits = v.dtype.bits
    codes = unpack(v.data, v.dtype, [e for e in v.shape if isinstance(e, int)]).view(np.uint8)
    if codes.ndim < 2:
        codes = np.broadcast_to(codes.reshape(-1, 1), (columns, width))
    elif depth_axis == 0:
        codes = codes.T
    if v.dtype.carrier is DType.I8:
        codes = codes ^ np.uint8(1 << (bits - 1))
    per_byte = 8 // bits
    out = np.zeros((columns, -(-width // per_byte)), np.uint8)
    for i in range(per_byte):
        part = codes[:, i::per_byte]
        out[:, : part.shape[1]] |= part << np.uint8(i * bits)
    return out


_arrays: dict[tuple[int, str], Array] = {}


def _kept(v: Value, form: str, make: Callable[[], Array]) -> Array:
    """What *make* makes of a constant, once as long as its bytes live: every set of shapes is lowered anew."""
    assert v.data is not None
    key = (id(v.data), form)
    if key not in _arrays:
        _arrays[key] = make()
        weakref.finalize(v.data, _arrays.pop, key, None)
    return _arrays[key]
