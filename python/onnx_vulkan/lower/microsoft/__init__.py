"""The operators of ONNX Runtime's own domain, ``com.microsoft``: its optimizers' and its exporters'. Importing registers them."""

from onnx_vulkan.lower.microsoft import (  # noqa: F401
    blocks,
    causal,
    decoder_attention,
    fused,
    fused_linear,
    fused_norm,
    gated,
    group_query,
    integer,
    moe,
    multi_head,
    positions,
    qlinear,
    quantized_bert,
    quantized_lstm,
    window_cache,
)
