"""Fused elementwise operators of ONNX Runtime: what its graph optimizer leaves before an execution provider sees the graph."""

from __future__ import annotations

from onnx_vulkan.dims import require_same
from onnx_vulkan.dtypes import FLOATS, DType
from onnx_vulkan.errors import Unsupported
from onnx_vulkan.lower.elementwise import GPU_FLOATS
from onnx_vulkan.lower.registry import Host, LowerContext, Operand, lowers
from onnx_vulkan.program import composites
from onnx_vulkan.program.builder import Builder
from onnx_vulkan.program.ir import Value

__all__: list[str] = []


def _sum(b: Builder, x: Value, *others: Value | None) -> Value:
    """x and what is broadcast to it, summed in float32 for half floats."""
    total = composites.wide(b, x)
    for other in others:
        if other is not None:
            total = b.map("add", total, b.broadcast(composites.wide(b, other), x.shape))
    return total


@lowers("Gelu", versions=[1], dtypes={"x": GPU_FLOATS}, domain="com.microsoft")
def gelu(b: LowerContext, x: Value) -> Value:
    """Gelu of ONNX Runtime (by erf)."""
    return composites.gelu(b, x)


@lowers("BiasGelu", versions=[1], dtypes={"x": GPU_FLOATS}, domain="com.microsoft")
def bias_gelu(b: LowerContext, x: Value, bias: Value) -> Value:
    """BiasGelu of ONNX Runtime: ``gelu(x + bias)`` (by erf)."""
    return b.cast(composites.gelu(b, _sum(b, x, bias)), x.dtype)


@lowers("FastGelu", versions=[1], dtypes={"x": GPU_FLOATS}, domain="com.microsoft")
def fast_gelu(b: LowerContext, x: Value, bias: Value | None = None) -> Value:
    """FastGelu of ONNX Runtime: ``gelu(x + bias)`` by tanh."""
    return b.cast(composites.tanh_gelu(b, _sum(b, x, bias)), x.dtype)


@lowers("QuickGelu", versions=[1], dtypes={"x": GPU_FLOATS}, domain="com.microsoft")
def quick_gelu(b: LowerContext, x: Value, *, alpha: float = 1.702) -> Value:
    """QuickGelu of ONNX Runtime: ``x * sigmoid(alpha * x)``; alpha 1 is SiLU."""
    return composites.quick_gelu(b, x, alpha)


@lowers("BiasSplitGelu", versions=[1], dtypes={"x": GPU_FLOATS}, domain="com.microsoft")
def bias_split_gelu(b: LowerContext, x: Value, bias: Value) -> Value:
    """BiasSplitGelu of ONNX Runtime: the first half of ``x + bias`` times gelu (by erf) of the second half."""
    total = _sum(b, x, bias)
    *lead, width = x.shape
    require_same(width % 2, 0, "the last extent does not divide into halves")
    zeros = (0,) * len(lead)
    left, right = (b.slice(total, (*zeros, start), (*lead, width // 2)) for start in (0, width // 2))
    return b.cast(b.map("mul", left, composites.gelu(b, right)), x.dtype)


@lowers("BiasAdd", versions=[1], dtypes={"x": GPU_FLOATS}, domain="com.microsoft")
def bias_add(b: LowerContext, x: Value, bias: Value, skip: Value) -> Value:
    """BiasAdd of ONNX Runtime: ``x + bias + skip``."""
    return b.cast(_sum(b, x, bias, skip), x.dtype)


@lowers("BiasDropout", versions=[1], dtypes={"x": FLOATS}, domain="com.microsoft", note="inference")
def bias_dropout(
    b: LowerContext,
    x: Value,
    bias: Value,
    residual: Value | None = None,
    ratio: Operand | None = None,
    training_mode: Host | None = None,
    *,
    seed: int = 0,
) -> tuple[Value, Value]:
    """BiasDropout of ONNX Runtime in inference: ``x + bias + residual``, and a mask that keeps everything."""
    if training_mode is not None and any(v is not False for v in training_mode.items()):
        raise Unsupported("training_mode 1 is not supported")
    return b.cast(_sum(b, x, bias, residual), x.dtype), b.full(x.shape, True, DType.BOOL)
