"""The QLinear operators of ONNX Runtime on 8-bit tensors, one scale and zero point a tensor. What ONNX has too: ``quantize``.

Most dequantize, compute in float32 and quantize again with ties to even, which is what ONNX Runtime's CPU kernels (and their
tables of 256 entries) do too. Sums, products and window averages add the zero point before they round; global averages sum
integers first.
"""

from __future__ import annotations

from collections.abc import Callable

from onnx_vulkan.dims import axis_of, product, require_same
from onnx_vulkan.dtypes import DType
from onnx_vulkan.errors import Unsupported
from onnx_vulkan.lower.conv import BYTES, centred, channels_first, plan_window
from onnx_vulkan.lower.conv import channels_last as channels_last_of
from onnx_vulkan.lower.linear import requantize
from onnx_vulkan.lower.pool import average
from onnx_vulkan.lower.quantize import dequantize, quantize
from onnx_vulkan.lower.registry import LowerContext, lowers
from onnx_vulkan.program import composites
from onnx_vulkan.program.builder import Builder
from onnx_vulkan.program.ir import Value

__all__: list[str] = []


def _scalar(b: Builder, v: Value | None) -> Value | None:
    if v is None or v.rank == 0:
        return v
    require_same(v.shape[0], 1, "only one scale and zero point a tensor are supported")
    return b.reshape(v, ())


def _float(b: Builder, x: Value, scale: Value, zero_point: Value | None) -> Value:
    s = _scalar(b, scale)
    assert s is not None
    return dequantize(b, x, s, _scalar(b, zero_point))


def _back(b: Builder, y: Value, scale: Value, zero_point: Value | None, dtype: DType) -> Value:
    s = _scalar(b, scale)
    assert s is not None
    return quantize(b, y, s, _scalar(b, zero_point), dtype)


def _rounded(b: Builder, y: Value, zero_point: Value | None, dtype: DType) -> Value:
    """``saturate(round(y + zero_point))``: an odd zero point that is added first sends a half the other way."""
    z = _scalar(b, zero_point)
    if z is not None:
        y = b.map("add", y, b.cast(z, DType.F32))
    return b.cast(b.map("round", y), dtype, saturate=True)


def _steps(b: Builder, x: Value, zero_point: Value | None) -> Value:
    """``x - zero_point``, a whole number, in float32."""
    return b.cast(centred(b, x, _scalar(b, zero_point)), DType.F32)


@lowers("QLinearAdd", versions=[1], dtypes={"x": BYTES, "y": BYTES}, domain="com.microsoft", note="one scale a tensor")
def qlinear_add(
    b: LowerContext,
    x: Value,
    x_scale: Value,
    x_zero_point: Value | None,
    y: Value,
    y_scale: Value,
    y_zero_point: Value | None,
    z_scale: Value,
    z_zero_point: Value | None = None,
) -> Value:
    """QLinearAdd of ONNX Runtime: ``round((x - x0) * (x_scale / z_scale) + (y - y0) * (y_scale / z_scale) + z0)``.

    Where that lies next to a half a result may be one step off: ONNX Runtime's CPU kernels fuse the products with the sums.
    """
    sx, sy, sz = _scalar(b, x_scale), _scalar(b, y_scale), _scalar(b, z_scale)
    assert sx is not None and sy is not None and sz is not None
    left = b.map("mul", _steps(b, x, x_zero_point), b.map("div_rn", sx, sz))
    right = b.map("mul", _steps(b, y, y_zero_point), b.map("div_rn", sy, sz))
    return _rounded(b, b.map("add", left, right), z_zero_point, x.dtype)


@lowers("QLinearMul", versions=[1], dtypes={"x": BYTES, "y": BYTES}, domain="com.microsoft", note="one scale a tensor")
def qlinear_mul(
    b: LowerContext,
    x: Value,
    x_scale: Value,
    x_zero_point: Value | None,
    y: Value,
    y_scale: Value,
    y_zero_point: Value | None,
    z_scale: Value,
    z_zero_point: Value | None = None,
) -> Value:
    """QLinearMul of ONNX Runtime: ``round((x - x0) * (y - y0) * (x_scale * y_scale / z_scale) + z0)``."""
    sx, sy, sz = _scalar(b, x_scale), _scalar(b, y_scale), _scalar(b, z_scale)
    assert sx is not None and sy is not None and sz is not None
    both = b.map("mul", _steps(b, x, x_zero_point), _steps(b, y, y_zero_point))
    return _rounded(b, b.map("mul", both, b.map("div_rn", b.map("mul", sx, sy), sz)), z_zero_point, x.dtype)


def _register_unary(op_type: str, fn: Callable[[Builder, Value], Value]) -> None:
    @lowers(op_type, versions=[1], dtypes={"x": BYTES}, domain="com.microsoft", note="one scale a tensor")
    def unary(
        b: LowerContext,
        x: Value,
        x_scale: Value,
        x_zero_point: Value | None,
        y_scale: Value,
        y_zero_point: Value | None = None,
    ) -> Value:
        return _back(b, fn(b, _float(b, x, x_scale, x_zero_point)), y_scale, y_zero_point, x.dtype)


_register_unary("QLinearSigmoid", composites.sigmoid)


@lowers("QLinearLeakyRelu", versions=[1], dtypes={"x": BYTES}, domain="com.microsoft", note="one scale a tensor")
def qlinear_leaky_relu(
    b: LowerContext,
    x: Value,
    x_scale: Value,
    x_zero_point: Value | None,
    y_scale: Value,
    y_zero_point: Value | None = None,
    *,
    alpha: float = 0.01,
) -> Value:
    """QLinearLeakyRelu of ONNX Runtime."""
    y = composites.leaky_relu(b, _float(b, x, x_scale, x_zero_point), alpha)
    return _back(b, y, y_scale, y_zero_point, x.dtype)


@lowers("QLinearGlobalAveragePool", versions=[1], dtypes={"x": BYTES}, domain="com.microsoft", note="one scale a tensor")
def qlinear_global_average_pool(
    b: LowerContext,
    x: Value,
    x_scale: Value,
    x_zero_point: Value,
    y_scale: Value,
    y_zero_point: Value,
    *,
    channels_last: int = 0,
) -> Value:
    """QLinearGlobalAveragePool of ONNX Runtime: the int32 sum of a plane, scaled once."""
    axes = range(1, x.rank - 1) if channels_last else range(2, x.rank)
    total = b.reduce("sum", centred(b, x, _scalar(b, x_zero_point)), axes, keepdims=True)
    sx, sy, zero_point = _scalar(b, x_scale), _scalar(b, y_scale), _scalar(b, y_zero_point)
    assert sx is not None and sy is not None and zero_point is not None
    multiplier = b.map("div_rn", sx, b.map("mul", sy, b.count(x, axes, DType.F32)))
    return requantize(b, total, multiplier, zero_point)


@lowers("QLinearAveragePool", versions=[1], dtypes={"x": BYTES}, domain="com.microsoft", note="one scale a tensor")
def qlinear_average_pool(
    b: LowerContext,
    x: Value,
    x_scale: Value,
    x_zero_point: Value | None,
    y_scale: Value,
    y_zero_point: Value | None = None,
    *,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    channels_last: int = 0,
    count_include_pad: int = 0,
    kernel_shape: list[int],
    pads: list[int] | None = None,
    strides: list[int] | None = None,
) -> Value:
    """QLinearAveragePool of ONNX Runtime: ``round(average / y_scale + y_zero_point)``.

    With ``channels_last`` x and y are ``[N, *spatial, C]``.
    """
    if channels_last:
        x = channels_first(b, x)
    window = plan_window(
        x.shape[2:], kernel_shape, auto_pad=auto_pad, dilations=None, pads=pads, strides=strides, ceil_mode=ceil_mode
    )
    y = average(b, _float(b, x, x_scale, x_zero_point), window, bool(count_include_pad))
    scale = _scalar(b, y_scale)
    assert scale is not None
    y = _rounded(b, b.map("div_rn", y, scale), y_zero_point, x.dtype)
    return channels_last_of(b, y) if channels_last else y


@lowers("QLinearConcat", versions=[1], domain="com.microsoft", note="one scale a tensor")
def qlinear_concat(b: LowerContext, y_scale: Value, y_zero_point: Value, *xs: Value, axis: int) -> Value:
    """QLinearConcat of ONNX Runtime: inputs in threes (tensor, scale, zero point), each brought to the output's scale."""
    if len(xs) % 3:
        raise Unsupported("its inputs do not come in threes")
    parts = [_back(b, _float(b, *xs[i : i + 3]), y_scale, y_zero_point, y_zero_point.dtype) for i in range(0, len(xs), 3)]
    return b.concat(parts, axis_of(axis, parts[0].rank))


@lowers("QLinearSoftmax", versions=[1], dtypes={"x": BYTES}, domain="com.microsoft", note="one scale a tensor")
def qlinear_softmax(
    b: LowerContext,
    x: Value,
    x_scale: Value,
    x_zero_point: Value | None,
    y_scale: Value,
    y_zero_point: Value,
    *,
    axis: int = -1,
    opset: int,
) -> Value:
    """QLinearSoftmax of ONNX Runtime: ``round(e * floor(1 / y_scale) / sum(e)) + y_zero_point``.

    e is ``exp((x - max) * x_scale)``; the factor is a whole number in ONNX Runtime too. ``opset`` below 13 takes all axes from
    *axis* on, else one. Where the quotient lies halfway a result may be one step off: ONNX Runtime's e are rounded integers.
    """
    along = axis_of(axis, x.rank)
    if opset < 13:
        moved, back = b.reshape(x, (product(x.shape[:along]), product(x.shape[along:]))), None
    else:
        moved, back = composites.moved_last(b, x, (along,))
    scale, step, zero_point = _scalar(b, x_scale), _scalar(b, y_scale), _scalar(b, y_zero_point)
    assert scale is not None and step is not None and zero_point is not None
    wide = b.cast(moved, DType.I32)
    below = b.map("sub", wide, b.reduce("max", wide, (-1,), keepdims=True))
    e = b.map("exp", b.map("mul", b.cast(below, DType.F32), scale))
    total = b.reduce("sum", e, (-1,), keepdims=True)
    steps = b.map("floor", b.map("div_rn", b.scalar(1, DType.F32), step))
    y = b.map("round", b.map("div_rn", b.map("mul", e, steps), total))
    y = b.cast(b.map("add", y, b.cast(zero_point, DType.F32)), x.dtype, saturate=True)
    return b.reshape(y, x.shape) if back is None else b.transpose(y, back)


@lowers(
    "QLinearWhere",
    versions=[1],
    dtypes={"condition": {DType.BOOL}, "x": BYTES, "y": BYTES},
    domain="com.microsoft",
    note="one scale a tensor",
)
def qlinear_where(
    b: LowerContext,
    condition: Value,
    x: Value,
    x_scale: Value,
    x_zero_point: Value,
    y: Value,
    y_scale: Value,
    y_zero_point: Value,
    z_scale: Value,
    z_zero_point: Value,
) -> Value:
    """QLinearWhere of ONNX Runtime: each side brought to the output's scale, then chosen; all three broadcast."""
    left = _back(b, _float(b, x, x_scale, x_zero_point), z_scale, z_zero_point, x.dtype)
    right = _back(b, _float(b, y, y_scale, y_zero_point), z_scale, z_zero_point, x.dtype)
    return b.map("select", condition, left, right)


@lowers("QLinearReduceMean", versions=[1], dtypes={"x": BYTES}, domain="com.microsoft", note="one scale a tensor")
def qlinear_reduce_mean(
    b: LowerContext,
    x: Value,
    x_scale: Value,
    x_zero_point: Value | None,
    y_scale: Value,
    y_zero_point: Value | None = None,
    *,
    axes: list[int],
    keepdims: int,
) -> Value:
    """QLinearReduceMean of ONNX Runtime (its CPU EP has none): the int32 sum over *axes* (all, if none), scaled once."""
    over = [axis_of(a, x.rank) for a in axes] or range(x.rank)
    total = b.reduce("sum", centred(b, x, _scalar(b, x_zero_point)), over, keepdims=bool(keepdims))
    sx, sy = _scalar(b, x_scale), _scalar(b, y_scale)
    zero_point = _scalar(b, y_zero_point) if y_zero_point is not None else b.scalar(0, x.dtype)
    assert sx is not None and sy is not None and zero_point is not None
    return requantize(b, total, b.map("div_rn", sx, b.map("mul", sy, b.count(x, over, DType.F32))), zero_point)
