"""Quantization: QuantizeLinear, DequantizeLinear, DynamicQuantizeLinear, QLinearConv. ONNX Runtime's own: ``qlinear``.

Integer sums are exact; the float steps are float32 whatever the scale's type is, as in ONNX Runtime, but for the quotient of
QuantizeLinear since version 23; ties go to even. Small element types are those of :mod:`onnx_vulkan.lower.small`.
"""

from __future__ import annotations

from collections.abc import Collection

from onnx_vulkan.dims import Extent, axis_of, is_one, require_at_least, require_same
from onnx_vulkan.dtypes import SMALL_FLOATS, SMALL_INTS, DType
from onnx_vulkan.errors import Unsupported
from onnx_vulkan.lower.conv import (
    BYTES,
    centred,
    channels_first,
    check_ranks,
    convolve,
    filter_zero_point,
    kernel_extents,
    plan_window,
)
from onnx_vulkan.lower.dequantized import Weight, note_weight
from onnx_vulkan.lower.linear import requantize, scalar_or
from onnx_vulkan.lower.registry import LowerContext, lowers
from onnx_vulkan.lower.small import bounds, convert, wide
from onnx_vulkan.program.builder import Builder
from onnx_vulkan.program.ir import Value

__all__ = ["dequantize", "dynamic_range", "quantize"]

_SCALES = (DType.F32, DType.F16, DType.BF16)
_SHORTS = (*BYTES, DType.I16, DType.U16)
_FLOATS8 = SMALL_FLOATS - {DType.F8E8M0, DType.F4E2M1}
_QUANTIZED = frozenset({*_SHORTS, *_FLOATS8, *SMALL_INTS, DType.F4E2M1})
_SHORTS_AND_4 = (*_SHORTS, DType.I4, DType.U4)
_ANY_SCALES = (*_SCALES, DType.F8E8M0)
_CONV_TYPES = {"x": BYTES, "w": BYTES, "y_zero_point": BYTES}


def _along(b: Builder, v: Value, x: Value, axis: int, block_size: int) -> Value:
    """A scale or zero point, shaped to broadcast against *x*: of one element, one an index of *axis*, or one a block."""
    if v.rank == 0 or (v.rank == 1 and is_one(v.shape[0])):
        return b.reshape(v, ())
    if v.rank == 1 and not (x.rank == 1 and block_size):
        axis = 0 if x.rank == 1 else axis_of(axis, x.rank)
        require_same(v.shape[0], x.shape[axis], "a scale or zero point does not fit its axis")
        return b.reshape(v, (v.shape[0], *(1,) * (x.rank - 1 - axis)))
    if v.rank != x.rank or block_size < 1:
        raise Unsupported(f"a scale of rank {v.rank} for a tensor of rank {x.rank} with block_size {block_size}")
    axis = axis_of(axis, x.rank)
    shape = list(v.shape)
    blocks: Extent = shape[axis]
    spread = [*shape[: axis + 1], 1, *shape[axis + 1 :]]
    v = b.reshape(v, spread)
    spread[axis + 1] = block_size
    shape[axis] = blocks * block_size
    v = b.reshape(b.broadcast(v, spread), shape)
    require_at_least(shape[axis], x.shape[axis], f"{blocks} blocks of {block_size} do not cover an axis of {x.shape[axis]}")
    return b.slice(v, (0,) * x.rank, [x.shape[i] if i == axis else e for i, e in enumerate(shape)])


def quantize(
    b: Builder,
    x: Value,
    scale: Value,
    zero_point: Value | None,
    dtype: DType,
    saturate: bool = True,
    precision: DType = DType.F32,
) -> Value:
    """``saturate(round(x / scale) + zero_point)``; scale and zero point broadcast to x. *precision*: of the quotient.

    To a small float ``x / scale + zero_point`` is rounded once, and *saturate* tells what becomes of a number out of its range.
    """
    y = b.map("div_rn", b.cast(x, DType.F32), b.cast(scale, DType.F32))
    if precision is not DType.F32:
        y = b.cast(b.cast(y, precision), DType.F32)
    if dtype not in SMALL_FLOATS:
        y = b.map("round", y)
    if zero_point is not None:
        y = b.map("add", y, b.cast(zero_point, DType.F32))
    if dtype in SMALL_FLOATS:
        return convert(b, y, dtype, saturate=saturate)
    if dtype in SMALL_INTS:
        low, high = (b.scalar(n, DType.F32) for n in bounds(dtype))
        return b.bits(b.cast(b.map("min", b.map("max", y, low), high), dtype.carrier, saturate=True), dtype)
    return b.cast(y, dtype, saturate=True)


def dequantize(b: Builder, x: Value, scale: Value, zero_point: Value | None) -> Value:
    """``(x - zero_point) * scale`` in float32; the difference of integers is exact."""
    if not x.dtype.is_float:
        x = b.cast(centred(b, x, zero_point), DType.F32)
    elif zero_point is not None:
        x = b.map("sub", x, zero_point)
    return b.map("mul", x, b.cast(scale, DType.F32))


def _dtype_attribute(number: int) -> DType | None:
    """An element type by ONNX's number; None for 0."""
    if not number:
        return None
    if number not in {t.value for t in DType}:
        raise Unsupported(f"output_dtype {number} is not supported")
    return DType(number)


@lowers("QuantizeLinear", versions=[1], dtypes={"x": _SCALES, "y_zero_point": _SHORTS_AND_4}, domain="com.microsoft")
@lowers("QuantizeLinear", versions=[10, 13], dtypes={"x": (*_SCALES, DType.I32), "y_scale": _SCALES, "y_zero_point": BYTES})
@lowers(
    "QuantizeLinear",
    versions=[19],
    dtypes={"x": (*_SCALES, DType.I32), "y_scale": _SCALES, "y_zero_point": _FLOATS8.union(BYTES)},
)
@lowers(
    "QuantizeLinear",
    versions=[21, 23, 24, 25, 28],
    dtypes={"x": (*_SCALES, DType.I32), "y_scale": _ANY_SCALES, "y_zero_point": _QUANTIZED},
)
def quantize_linear(
    b: LowerContext,
    x: Value,
    y_scale: Value,
    y_zero_point: Value | None = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: int = 0,
    precision: int = 0,
    saturate: int = 1,
) -> Value:
    """QuantizeLinear. Since version 23 the quotient is rounded to ``precision``, by default the scale's type."""
    quotient = y_scale.dtype if b.version >= 23 and y_scale.dtype in _SCALES else DType.F32
    if precision:
        if precision not in {t.value for t in _SCALES}:
            raise Unsupported(f"precision {precision} is not supported")
        quotient = DType(precision)
    dtype = y_zero_point.dtype if y_zero_point is not None else _dtype_attribute(output_dtype) or DType.U8
    if dtype not in _QUANTIZED or (output_dtype and dtype.value != output_dtype):
        raise Unsupported(f"quantizing to output_dtype {output_dtype or dtype.onnx_name} is not supported")
    zero_point = _along(b, wide(b, y_zero_point), x, axis, block_size) if y_zero_point is not None else None
    scale = _along(b, wide(b, y_scale), x, axis, block_size)
    return quantize(b, x, scale, zero_point, dtype, bool(saturate), quotient)


def _dequantized(x: Collection[DType], scale: Collection[DType] = _SCALES) -> dict[str, Collection[DType]]:
    return {"x": frozenset({*x, DType.I32}), "x_scale": scale, "x_zero_point": frozenset({*x, DType.I32})}


@lowers("DequantizeLinear", versions=[1], dtypes=_dequantized(_SHORTS_AND_4), domain="com.microsoft")
@lowers("DequantizeLinear", versions=[10, 13], dtypes=_dequantized(BYTES))
@lowers("DequantizeLinear", versions=[19], dtypes=_dequantized(_FLOATS8.union(BYTES)))
@lowers(
    "DequantizeLinear",
    versions=[21, 23, 24, 25, 28],
    dtypes=_dequantized(_QUANTIZED, _ANY_SCALES),
    note="weights of 2 and 4 bits stay packed in MatMul and Gemm",
)
def dequantize_linear(
    b: LowerContext,
    x: Value,
    x_scale: Value,
    x_zero_point: Value | None = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: int = 0,
) -> Value:
    """DequantizeLinear."""
    if x_zero_point is not None and x_zero_point.dtype is not x.dtype:
        raise Unsupported(f"a zero point of {x_zero_point.dtype.onnx_name} for {x.dtype.onnx_name} is not supported")
    zero_point = _along(b, wide(b, x_zero_point), x, axis, block_size) if x_zero_point is not None else None
    y = dequantize(b, wide(b, x), _along(b, wide(b, x_scale), x, axis, block_size), zero_point)
    dtype = _dtype_attribute(output_dtype) or x_scale.dtype
    if dtype not in _SCALES:
        raise Unsupported(f"output_dtype {dtype.onnx_name} is not supported")
    y = b.cast(y, dtype)
    note_weight(b, y, Weight(x, wide(b, x_scale), x_zero_point, axis_of(axis, x.rank) if x.rank > 1 else 0, block_size))
    return y


@lowers("DynamicQuantizeLinear", versions=[11], dtypes={"x": (DType.F32,)})
def dynamic_quantize_linear(b: LowerContext, x: Value) -> tuple[Value, Value, Value]:
    """DynamicQuantizeLinear: all of x shares one scale and zero point."""
    scale, zero_point = dynamic_range(b, x)
    return quantize(b, x, scale, zero_point, DType.U8), scale, zero_point


def dynamic_range(b: Builder, x: Value) -> tuple[Value, Value]:
    """The scale and uint8 zero point of a float32 tensor: the range includes 0; without any extent the scale is 1."""
    zero, span = b.scalar(0, DType.F32), b.scalar(255, DType.F32)
    axes = range(x.rank)
    low, high = b.map("min", b.reduce("min", x, axes), zero), b.map("max", b.reduce("max", x, axes), zero)
    flat = b.map("eq", low, high)
    scale = b.map("select", flat, b.scalar(1, DType.F32), b.map("div_rn", b.map("sub", high, low), span))
    offset = b.map("round", b.map("neg", b.map("div_rn", low, scale)))
    return scale, b.cast(b.map("min", b.map("max", offset, zero), span), DType.U8)


@lowers("QLinearConv", versions=[1], dtypes=_CONV_TYPES, domain="com.microsoft", note="1 to 3 spatial axes")
@lowers("QLinearConv", versions=[10], dtypes=_CONV_TYPES, note="1 to 3 spatial axes")
def qlinear_conv(
    b: LowerContext,
    x: Value,
    x_scale: Value,
    x_zero_point: Value,
    w: Value,
    w_scale: Value,
    w_zero_point: Value,
    y_scale: Value,
    y_zero_point: Value,
    bias: Value | None = None,
    *,
    auto_pad: str = "NOTSET",
    channels_last: int = 0,
    dilations: list[int] | None = None,
    group: int = 1,
    kernel_shape: list[int] | None = None,
    pads: list[int] | None = None,
    strides: list[int] | None = None,
) -> Value:
    """QLinearConv: exact int32 sums with the int32 bias, then ``round(acc * (x_scale * w_scale / y_scale)) + y_zero_point``.

    With ``channels_last`` (ONNX Runtime's) x and y are ``[N, *spatial, C]``; the weights keep ONNX's order.
    """
    if b.node.domain == "" and channels_last:
        raise Unsupported("attribute channels_last is not one of ONNX's QLinearConv")
    check_ranks(x, w)
    if channels_last:
        x = channels_first(b, x)
    window = plan_window(
        x.shape[2:], kernel_extents(w, kernel_shape), auto_pad=auto_pad, dilations=dilations, pads=pads, strides=strides
    )
    acc = convolve(b, centred(b, x, x_zero_point), centred(b, w, filter_zero_point(b, w, w_zero_point)), window, group)
    if bias is not None:
        acc = b.map("add", acc, bias)
    sx, sw, sy = (scalar_or(b, s, s.shape) for s in (x_scale, w_scale, y_scale))
    y = requantize(b, acc, b.map("div_rn", b.map("mul", sx, sw), sy), scalar_or(b, y_zero_point, y_zero_point.shape))
    return y if channels_last else channels_first(b, y)
