"""QAttention and QEmbedLayerNormalization of ONNX Runtime: the float operators on 8-bit weights."""

from __future__ import annotations

from onnx_vulkan.dtypes import DType
from onnx_vulkan.errors import Unsupported
from onnx_vulkan.lower.conv import BYTES
from onnx_vulkan.lower.microsoft.fused_norm import embed_layer_norm
from onnx_vulkan.lower.microsoft.integer import scaled_product
from onnx_vulkan.lower.microsoft.multi_head import FILTER, attend_projected
from onnx_vulkan.lower.quantize import dequantize
from onnx_vulkan.lower.registry import LowerContext, lowers
from onnx_vulkan.program.ir import Value

__all__: list[str] = []

_FLOATS = (DType.F32, DType.F16)
_I32 = (DType.I32,)


@lowers(
    "QAttention",
    versions=[1],
    dtypes={"x": BYTES, "weights": BYTES, "bias": _FLOATS, "x_scale": _FLOATS, "mask_index": _I32, "past": _FLOATS},
    domain="com.microsoft",
    note="no do_rotary, no past_present_share_buffer",
)
def qattention(
    b: LowerContext,
    x: Value,
    weights: Value,
    bias: Value,
    x_scale: Value,
    weight_scale: Value,
    mask_index: Value | None = None,
    x_zero_point: Value | None = None,
    weight_zero_point: Value | None = None,
    past: Value | None = None,
    *,
    do_rotary: int = 0,
    mask_filter_value: float = FILTER,
    num_heads: int,
    past_present_share_buffer: int = 0,
    scale: float = 0.0,
    unidirectional: int = 0,
) -> tuple[Value, Value]:
    """QAttention of ONNX Runtime: an exact integer projection ``x [B, S, I] @ weights [I, 3 * hidden]``, scaled, then Attention.

    Gives ``[B, S, hidden]`` and present ``[2, B, H, T, D]``, in the bias' type.
    """
    if do_rotary or past_present_share_buffer:
        raise Unsupported("do_rotary and past_present_share_buffer are not supported")
    projected = scaled_product(b, x, x_scale, x_zero_point, weights, weight_scale, weight_zero_point, bias)
    return attend_projected(
        b, b.cast(projected, bias.dtype), mask_index, past, None, qkv_hidden_sizes=(), num_heads=num_heads, scale=scale,
        filler=mask_filter_value, unidirectional=bool(unidirectional),
    )  # fmt: skip


_TABLES = ("word_embedding", "position_embedding", "segment_embedding", "gamma", "beta")


@lowers(
    "QEmbedLayerNormalization",
    versions=[1],
    dtypes={**dict.fromkeys(_TABLES, BYTES), **dict.fromkeys(("input_ids", "segment_ids", "mask"), _I32)},
    domain="com.microsoft",
)
def qembed_layer_norm(
    b: LowerContext,
    input_ids: Value,
    segment_ids: Value | None,
    word_embedding: Value,
    position_embedding: Value,
    segment_embedding: Value | None,
    gamma: Value,
    beta: Value,
    mask: Value | None,
    word_scale: Value,
    position_scale: Value,
    segment_scale: Value | None,
    gamma_scale: Value,
    beta_scale: Value,
    word_zero_point: Value,
    position_zero_point: Value,
    segment_zero_point: Value | None,
    gamma_zero_point: Value,
    beta_zero_point: Value,
    *,
    epsilon: float = 1e-12,
) -> tuple[Value, Value]:
    """QEmbedLayerNormalization of ONNX Runtime: EmbedLayerNormalization of dequantized tables, gamma and beta, in float32."""
    if (segment_embedding is None) != (segment_scale is None) or (segment_scale is None) != (segment_zero_point is None):
        raise Unsupported("segment_embedding goes with its scale and zero point")

    def floats(v: Value, scale: Value, zero_point: Value) -> Value:
        return dequantize(b, v, b.reshape(scale, ()), b.reshape(zero_point, ()))

    segments = None
    if segment_embedding is not None and segment_scale is not None and segment_zero_point is not None:
        segments = floats(segment_embedding, segment_scale, segment_zero_point)
    y, count, _ = embed_layer_norm(
        b,
        input_ids,
        segment_ids,
        floats(word_embedding, word_scale, word_zero_point),
        floats(position_embedding, position_scale, position_zero_point),
        segments,
        floats(gamma, gamma_scale, gamma_zero_point),
        floats(beta, beta_scale, beta_zero_point),
        mask,
        epsilon=epsilon,
    )
    return y, count
