"""Gates, gated norms and stream mixes of ONNX Runtime, as recent language models have them. All float32 inside."""

from __future__ import annotations

from onnx_vulkan.dims import is_one, require_same, same
from onnx_vulkan.dtypes import DType
from onnx_vulkan.errors import Unsupported
from onnx_vulkan.lower.elementwise import GPU_FLOATS
from onnx_vulkan.lower.linear import matmul
from onnx_vulkan.lower.registry import LowerContext, lowers
from onnx_vulkan.program import composites
from onnx_vulkan.program.builder import Builder
from onnx_vulkan.program.ir import Value

__all__ = ["swiglu"]


def _silu(b: Builder, x: Value) -> Value:
    return b.map("mul", x, composites.sigmoid(b, x))


def swiglu(b: Builder, gate: Value, up: Value, *, alpha: float, beta: float, limit: float | None) -> Value:
    """``G * sigmoid(alpha * G) * (U + beta)`` in float32, with ``G = min(gate, limit)`` and ``U`` within ±limit."""
    if limit is not None:
        gate = b.map("min", gate, b.scalar(limit, DType.F32))
        up = composites.clamp(b, up, -limit, limit)
    if beta:
        up = b.map("add", up, b.scalar(beta, DType.F32))
    weight = composites.sigmoid(b, composites.affine(b, gate, alpha, 0.0))
    return b.map("mul", b.map("mul", gate, weight), up)


@lowers("ScaledSiLU", versions=[1], dtypes={"x": GPU_FLOATS, "scale": GPU_FLOATS}, domain="com.microsoft")
def scaled_silu(b: LowerContext, x: Value, scale: Value | None = None, *, alpha: float = 1.0) -> Value:
    """ScaledSiLU of ONNX Runtime: ``z * sigmoid(z)`` with ``z = scale * x``, each step rounded to the type of x."""
    factor = b.reshape(b.cast(scale, DType.F32), ()) if scale is not None else b.scalar(alpha, DType.F32)
    z = b.cast(b.map("mul", b.cast(x, DType.F32), factor), x.dtype)
    weight = b.cast(composites.sigmoid(b, b.cast(z, DType.F32)), x.dtype)
    return b.map("mul", z, weight)


@lowers("GatedAdd", versions=[1], dtypes={"x": GPU_FLOATS, "y": GPU_FLOATS, "gate": GPU_FLOATS}, domain="com.microsoft")
def gated_add(b: LowerContext, x: Value, y: Value, gate: Value, gate_weight: Value | None = None) -> Value:
    """GatedAdd of ONNX Runtime: ``x + y * gate``, one gate a row."""
    if gate_weight is not None:
        raise Unsupported("gate_weight is not supported")
    return b.map("add", x, b.map("mul", y, gate))


@lowers("GatedRMSNorm", versions=[1], dtypes={"x": GPU_FLOATS, "scale": GPU_FLOATS, "gate": GPU_FLOATS}, domain="com.microsoft")
def gated_rms_norm(
    b: LowerContext, x: Value, scale: Value, gate: Value, *, activation: str = "silu", epsilon: float = 1e-5
) -> Value:
    """GatedRMSNorm of ONNX Runtime: an RMS norm of each C elements of ``[*, H * C]``, times ``scale`` and the activated gate."""
    if activation not in ("silu", "swish", "sigmoid"):
        raise Unsupported(f"activation {activation!r} is not supported")
    width, last = scale.shape[0], x.shape[-1]
    shape = (*x.shape[:-1], last // width, width)
    y, _ = composites.rms_norm(b, b.cast(b.reshape(x, shape), DType.F32), (-1,), b.cast(scale, DType.F32), epsilon)
    z = b.cast(gate, DType.F32)
    z = composites.sigmoid(b, z) if activation == "sigmoid" else _silu(b, z)
    return b.cast(b.map("mul", b.reshape(y, x.shape), z), x.dtype)


def _branches(b: Builder, x: Value, num_branches: int) -> Value:
    """``[*, C * H]`` as ``[*, C, H]``; with 0 branches it is so already."""
    if not num_branches:
        return x
    return b.reshape(x, (*x.shape[:-1], num_branches, x.shape[-1] // num_branches))


@lowers("BranchwiseRMSNorm", versions=[1], dtypes={"x": GPU_FLOATS, "scale": GPU_FLOATS}, domain="com.microsoft")
def branchwise_rms_norm(
    b: LowerContext, x: Value, scale: Value | None = None, *, epsilon: float = 1e-5, num_branches: int = 0
) -> Value:
    """BranchwiseRMSNorm of ONNX Runtime: an RMS norm of each branch of ``[*, C, H]``.

    The scale is ``[C * H]``, ``[C, H]`` or ``[H]``.
    """
    wide = b.cast(_branches(b, x, num_branches), DType.F32)
    if wide.rank < 2:
        raise Unsupported(f"an input of rank {x.rank} with num_branches {num_branches}")
    branches, width = wide.shape[-2:]
    if scale is not None:
        scale = b.cast(scale, DType.F32)
        if scale.rank == 1 and not same(scale.shape[0], width):
            scale = b.reshape(scale, (branches, width))
    y, _ = composites.rms_norm(b, wide, (-1,), scale, epsilon)
    return b.cast(b.reshape(y, x.shape), x.dtype)


@lowers(
    "LinearAttentionGate",
    versions=[1],
    dtypes={"a": GPU_FLOATS, "dt_bias": {DType.F32}, "decay_scale": {DType.F32}, "update": GPU_FLOATS},
    domain="com.microsoft",
)
def linear_attention_gate(
    b: LowerContext, a: Value, dt_bias: Value, decay_scale: Value, update: Value | None = None
) -> tuple[Value, Value | None]:
    """LinearAttentionGate of ONNX Runtime: ``decay_scale * softplus(a + dt_bias)`` and ``sigmoid(update)``."""
    decay = composites.softplus(b, b.map("add", b.cast(a, DType.F32), dt_bias))
    decay = b.cast(b.map("mul", decay, decay_scale), a.dtype)
    if update is None:
        return decay, None
    return decay, b.cast(composites.sigmoid(b, b.cast(update, DType.F32)), update.dtype)


@lowers("SwiGLU", versions=[1], dtypes={"gate": GPU_FLOATS, "up": GPU_FLOATS}, domain="com.microsoft")
def swiglu_ms(
    b: LowerContext,
    gate: Value,
    up: Value | None = None,
    *,
    activation_alpha: float = 1.0,
    activation_beta: float = 0.0,
    limit: float = 0.0,
    round_activation: int = 0,
) -> Value:
    """SwiGLU of ONNX Runtime; without *up* the last axis of *gate* holds the gate and then the other half."""
    if round_activation and gate.dtype is not DType.F32:
        raise Unsupported("round_activation is not supported")
    dtype = gate.dtype
    if up is None:
        half = gate.shape[-1] // 2
        require_same(half * 2, gate.shape[-1], "the gate does not divide into halves")
        lead, zeros = gate.shape[:-1], (0,) * (gate.rank - 1)
        gate, up = b.slice(gate, (*zeros, 0), (*lead, half)), b.slice(gate, (*zeros, half), (*lead, half))
    wide = b.cast(gate, DType.F32), b.cast(up, DType.F32)
    y = swiglu(b, *wide, alpha=activation_alpha, beta=activation_beta, limit=limit if limit > 0 else None)
    return b.cast(y, dtype)


def _mix(b: Builder, mix: Value, streams: Value) -> Value:
    """A mix ``[*, C]``, ``[*, C, 1]``, ``[*, C, H]`` or ``[*, C * H]`` in float32, shaped for the streams ``[*, C, H]``."""
    branches, width = streams.shape[-2:]
    mix = b.cast(mix, DType.F32)
    if mix.rank == streams.rank:
        return mix
    return b.reshape(mix, (*mix.shape[:-1], branches, 1 if same(mix.shape[-1], branches) else width))


@lowers("HyperConnectionPreMix", versions=[1], dtypes={"streams": GPU_FLOATS, "pre_mix": GPU_FLOATS}, domain="com.microsoft")
def hyper_connection_pre_mix(
    b: LowerContext, streams: Value, pre_mix: Value, *, num_branches: int = 0, reduction_scale: float = 1.0
) -> Value:
    """HyperConnectionPreMix of ONNX Runtime: the streams ``[*, C, H]`` times the mix, summed over C and scaled."""
    wide = b.cast(_branches(b, streams, num_branches), DType.F32)
    y = b.reduce("sum", b.map("mul", wide, _mix(b, pre_mix, wide)), (-2,))
    return b.cast(composites.affine(b, y, reduction_scale, 0.0), streams.dtype)


@lowers(
    "HyperConnectionPostMix",
    versions=[1],
    dtypes={**dict.fromkeys(("streams", "block_output", "post_mix", "stream_mix"), GPU_FLOATS)},
    domain="com.microsoft",
)
def hyper_connection_post_mix(
    b: LowerContext,
    streams: Value,
    block_output: Value,
    post_mix: Value,
    stream_mix: Value | None = None,
    *,
    num_branches: int = 0,
) -> Value:
    """HyperConnectionPostMix of ONNX Runtime: ``stream_mix^T @ streams + post_mix * block_output``; without, the streams stay."""
    wide = b.cast(_branches(b, streams, num_branches), DType.F32)
    mixed = wide
    if stream_mix is not None:
        rank = stream_mix.rank
        across = b.transpose(b.cast(stream_mix, DType.F32), (*range(rank - 2), rank - 1, rank - 2))
        mixed = matmul(b, across, wide)
    out = b.reshape(b.cast(block_output, DType.F32), (*block_output.shape[:-1], 1, block_output.shape[-1]))
    y = b.map("add", mixed, b.map("mul", _mix(b, post_mix, wide), out))
    return b.cast(b.reshape(y, streams.shape), streams.dtype)


@lowers("GemmFastGelu", versions=[1], dtypes={"x": GPU_FLOATS, "w": GPU_FLOATS, "bias": GPU_FLOATS}, domain="com.microsoft")
def gemm_fast_gelu(b: LowerContext, x: Value, w: Value, bias: Value | None = None) -> Value:
    """GemmFastGelu of ONNX Runtime (its CPU EP has none): MatMul, then FastGelu."""
    y = matmul(b, x, w)
    return composites.tanh_gelu(b, b.map("add", y, bias) if bias is not None else y)


def _register_complex(op_type: str, sign: str, other: str) -> None:
    @lowers(op_type, versions=[1], dtypes={"x": GPU_FLOATS, "y": GPU_FLOATS}, domain="com.microsoft")
    def multiply(b: LowerContext, x: Value, y: Value) -> Value:
        parts = []
        for v in (x, y):
            if not v.rank or is_one(v.shape[-1]):
                raise Unsupported("an operand that holds no complex numbers")
            require_same(v.shape[-1], 2, "the last axis holds no complex numbers")
            wide, lead = b.cast(v, DType.F32), v.shape[:-1]
            parts += [b.slice(wide, (*(0,) * len(lead), i), (*lead, 1)) for i in (0, 1)]
        a, c, d, e = parts  # (a + ci)(d + ei)
        real = b.map(sign, b.map("mul", a, d), b.map("mul", c, e))
        imaginary = b.map(other, b.map("mul", c, d), b.map("mul", a, e))
        return b.cast(b.concat([real, imaginary], -1), x.dtype)


_register_complex("ComplexMul", "sub", "add")
_register_complex("ComplexMulConj", "add", "sub")
