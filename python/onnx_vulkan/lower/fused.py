"""Fused activations of ONNX Runtime: what its graph optimizer leaves in the graph before an execution provider sees it."""

from __future__ import annotations

from onnx_vulkan.lower.elementwise import GPU_FLOATS
from onnx_vulkan.lower.registry import LowerContext, lowers
from onnx_vulkan.program import composites
from onnx_vulkan.program.ir import Value

__all__: list[str] = []


@lowers("Gelu", versions=[1], dtypes={"x": GPU_FLOATS}, domain="com.microsoft")
def gelu(b: LowerContext, x: Value) -> Value:
    """Gelu of ONNX Runtime (by erf)."""
    return composites.gelu(b, x)


@lowers("BiasGelu", versions=[1], dtypes={"x": GPU_FLOATS}, domain="com.microsoft")
def bias_gelu(b: LowerContext, x: Value, bias: Value) -> Value:
    """BiasGelu of ONNX Runtime: ``gelu(x + bias)`` (by erf)."""
    return composites.gelu(b, b.map("add", x, bias))


@lowers("FastGelu", versions=[1], dtypes={"x": GPU_FLOATS}, domain="com.microsoft")
def fast_gelu(b: LowerContext, x: Value, bias: Value | None = None) -> Value:
    """FastGelu of ONNX Runtime: ``gelu(x + bias)`` by tanh."""
    return composites.tanh_gelu(b, b.map("add", x, bias) if bias is not None else x)


@lowers("QuickGelu", versions=[1], dtypes={"x": GPU_FLOATS}, domain="com.microsoft")
def quick_gelu(b: LowerContext, x: Value, *, alpha: float = 1.702) -> Value:
    """QuickGelu of ONNX Runtime: ``x * sigmoid(alpha * x)``; alpha 1 is SiLU."""
    return composites.quick_gelu(b, x, alpha)
