"""Integer products of ONNX Runtime whose result is float or a wider integer: exact sums, scaled once in float32."""

from __future__ import annotations

from onnx_vulkan.dims import axis_of
from onnx_vulkan.dtypes import DType
from onnx_vulkan.errors import Unsupported
from onnx_vulkan.lower.conv import BYTES, centred
from onnx_vulkan.lower.linear import matmul
from onnx_vulkan.lower.quantize import dynamic_range, quantize
from onnx_vulkan.lower.registry import LowerContext, lowers
from onnx_vulkan.program.builder import Builder
from onnx_vulkan.program.ir import Value

__all__ = ["scaled_product"]


def scaled_product(
    b: Builder,
    x: Value,
    x_scale: Value,
    x_zero_point: Value | None,
    y: Value,
    y_scale: Value,
    y_zero_point: Value | None,
    bias: Value | None,
) -> Value:
    """``(x - x_zero_point) @ (y - y_zero_point) * (x_scale * y_scale) + bias`` in float32.

    x has one scale and zero point, y one or one a column: ``[N]``, which may be full batches ``[*, 1, N]``.
    """
    for v in (x_scale, x_zero_point):
        if v is not None and v.rank > 0 and v.shape != (1,):
            raise Unsupported("a scale or zero point of the left operand that is not one number is not supported")
    acc = matmul(b, centred(b, x, x_zero_point), centred(b, y, y_zero_point))
    left, right = (b.reshape(v, ()) if v.rank == 1 and v.shape == (1,) else v for v in (x_scale, y_scale))
    scale = b.map("mul", b.cast(left, DType.F32), b.cast(right, DType.F32))
    z = b.map("mul", b.cast(acc, DType.F32), scale)
    return b.map("add", z, b.cast(bias, DType.F32)) if bias is not None else z


_SCALES = (DType.F32, DType.F16)


@lowers(
    "MatMulIntegerToFloat",
    versions=[1],
    dtypes={"x": BYTES, "y": BYTES, "x_scale": _SCALES, "y_scale": _SCALES, "bias": _SCALES},
    domain="com.microsoft",
    note="one scale for the left operand",
)
def matmul_integer_to_float(
    b: LowerContext,
    x: Value,
    y: Value,
    x_scale: Value,
    y_scale: Value,
    x_zero_point: Value | None = None,
    y_zero_point: Value | None = None,
    bias: Value | None = None,
) -> Value:
    """MatMulIntegerToFloat of ONNX Runtime: the result has the scales' type."""
    return b.cast(scaled_product(b, x, x_scale, x_zero_point, y, y_scale, y_zero_point, bias), x_scale.dtype)


@lowers("DynamicQuantizeMatMul", versions=[1], dtypes={"x": (DType.F32,), "y": BYTES}, domain="com.microsoft")
def dynamic_quantize_matmul(
    b: LowerContext, x: Value, y: Value, y_scale: Value, y_zero_point: Value | None = None, bias: Value | None = None
) -> Value:
    """DynamicQuantizeMatMul of ONNX Runtime: x becomes uint8 as by DynamicQuantizeLinear, then MatMulIntegerToFloat."""
    scale, zero_point = dynamic_range(b, x)
    q = quantize(b, x, scale, zero_point, DType.U8)
    return scaled_product(b, q, scale, zero_point, y, y_scale, y_zero_point, bias)


_SHORTS = (DType.I16, DType.U16)


@lowers("MatMulInteger16", versions=[1], dtypes={"x": _SHORTS, "y": _SHORTS}, domain="com.microsoft")
def matmul_integer_16(b: LowerContext, x: Value, y: Value) -> Value:
    """MatMulInteger16 of ONNX Runtime: sums of 32 bits, unsigned where both operands are."""
    dtype = DType.U32 if x.dtype is y.dtype is DType.U16 else DType.I32
    return matmul(b, b.cast(x, dtype), b.cast(y, dtype))


@lowers("MulInteger", versions=[1], dtypes={"x": BYTES, "y": BYTES}, domain="com.microsoft")
def mul_integer(b: LowerContext, x: Value, x_zero_point: Value | None, y: Value, y_zero_point: Value | None = None) -> Value:
    """MulInteger of ONNX Runtime (its CPU EP has none): ``(x - x_zero_point) * (y - y_zero_point)`` in int32."""
    return b.map("mul", centred(b, x, x_zero_point), centred(b, y, y_zero_point))


@lowers("ReduceSumInteger", versions=[1], dtypes={"x": BYTES}, domain="com.microsoft")
def reduce_sum_integer(b: LowerContext, x: Value, *, axes: list[int], keepdims: int) -> Value:
    """ReduceSumInteger of ONNX Runtime (its CPU EP has none): over *axes* (all, if none), int32 of int8 and uint32 of uint8."""
    wide = b.cast(x, DType.U32 if x.dtype is DType.U8 else DType.I32)
    return b.reduce("sum", wide, [axis_of(a, x.rank) for a in axes] or range(x.rank), keepdims=bool(keepdims))
