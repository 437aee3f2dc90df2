"""DecoderMaskedMultiHeadAttention of ONNX Runtime: one step of a decoder, over a cache of fixed capacity or an encoder's keys."""

from __future__ import annotations

from onnx_vulkan.dims import Extent, is_one, require_same
from onnx_vulkan.dtypes import DType
from onnx_vulkan.errors import Unsupported
from onnx_vulkan.lower.attention import merge_heads, split_heads
from onnx_vulkan.lower.elementwise import GPU_FLOATS
from onnx_vulkan.lower.microsoft.multi_head import FILTER, attend, shared_caches
from onnx_vulkan.lower.registry import Host, LowerContext, lowers
from onnx_vulkan.program.builder import Builder
from onnx_vulkan.program.ir import Value

__all__: list[str] = []

_I32 = frozenset({DType.I32})


def _step(b: Builder, query: Value, key: Value | None, value: Value | None, bias: Value | None) -> tuple[Value, Value, Value]:
    """Query, key and value ``[B, 1, hidden]`` of a self attention, from one tensor or three, with the projections' bias."""
    if key is None and value is None:
        batch, steps, whole = query.shape
        require_same(whole % 3, 0, "a packed query does not divide into query, key and value")
        size = whole // 3
        parts = [b.slice(query, (0, 0, i * size), (batch, steps, size)) for i in range(3)]
    elif key is not None and value is not None:
        parts = [query, key, value]
    else:
        raise Unsupported("key and value go together")
    start: Extent = 0
    for i, part in enumerate(parts):
        if bias is not None:
            parts[i] = b.map("add", part, b.slice(bias, (start,), (part.shape[2],)))
        start = start + part.shape[2]
    return parts[0], parts[1], parts[2]


@lowers(
    "DecoderMaskedMultiHeadAttention",
    versions=[1],
    dtypes={
        **dict.fromkeys(("query", "key", "value", "attention_bias", "past_key", "past_value", "bias"), GPU_FLOATS),
        **dict.fromkeys(("mask_index", "past_sequence_length", "beam_width", "cache_indirection"), _I32),
    },
    domain="com.microsoft",
    note="the cache in the plain order of the CPU's kernel",
)
def decoder_attention(
    b: LowerContext,
    query: Value,
    key: Value | None = None,
    value: Value | None = None,
    mask_index: Value | None = None,
    attention_bias: Value | None = None,
    past_key: Value | None = None,
    past_value: Value | None = None,
    past_sequence_length: Host | None = None,
    beam_width: Host | None = None,
    cache_indirection: Value | None = None,
    bias: Value | None = None,
    *,
    mask_filter_value: float = FILTER,
    num_heads: int,
    output_qk: int = 0,
    past_present_share_buffer: int = 0,
    scale: float = 0.0,
) -> tuple[Value | None, ...]:
    """DecoderMaskedMultiHeadAttention of ONNX Runtime, on a query ``[B, 1, hidden]``.

    Self attention: key and value ``[B, 1, hidden]`` (or packed with the query) become row past_sequence_length of the caches
    ``[B, H, M, D]``. Cross attention: key and value are ``[B, H, L, D]`` and there is no cache. Gives ``[B, 1, hidden]``, the
    caches and the masked scores ``[B, H, 1, T]``.
    """
    if query.rank != 3:
        raise Unsupported(f"a query of rank {query.rank} is not supported")
    require_same(query.shape[1], 1, "the query is longer than one step")
    if mask_index is not None and mask_index.rank != 2:
        raise Unsupported(f"a mask of rank {mask_index.rank} is not supported")
    present: tuple[Value | None, Value | None] = (None, None)
    if past_key is None and past_value is None:
        if key is None or value is None or key.rank != 4 or value.rank != 4 or b.wants(1) or b.wants(2):
            raise Unsupported("without a cache, key and value are those of a cross attention: of rank 4, and no present output")
        if attention_bias is not None:
            raise Unsupported("attention_bias in a cross attention is not supported")
        if bias is not None:
            query = b.map("add", query, b.slice(bias, (0,), (query.shape[2],)))
        q, k, v = split_heads(b, query, num_heads), key, value
    else:
        if past_key is None or past_value is None or past_sequence_length is None or not past_present_share_buffer:
            raise Unsupported("a cache without past_value, past_sequence_length or past_present_share_buffer is not supported")
        q, new_key, new_value = (split_heads(b, x, num_heads) for x in _step(b, query, key, value, bias))
        if (beam_width is None) != (cache_indirection is None):
            raise Unsupported("beam_width and cache_indirection go together")
        beams = cache_indirection
        if beam_width is not None and beams is not None:
            width = beam_width.ints()[0]
            require_same(beams.shape[1], width, "cache_indirection has another number of beams")
            beams = None if is_one(width) else beams
        (at,) = past_sequence_length.ints()
        present, (k, v) = shared_caches(b, (past_key, past_value), (new_key, new_value), at, beams, attention_bias)
    stages = attend(b, q, k, v, mask_index, attention_bias, 0, scale=scale, filler=mask_filter_value, unidirectional=False)
    return merge_heads(b, stages.y), *present, b.cast(stages.masked, query.dtype)
