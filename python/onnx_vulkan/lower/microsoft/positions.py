"""Positions in attention as ONNX Runtime's operators (com.microsoft) have them: rotary embedding, relative position biases."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from onnx_vulkan.dims import require_same
from onnx_vulkan.dtypes import DType
from onnx_vulkan.errors import Unsupported
from onnx_vulkan.graph import Array
from onnx_vulkan.lower.attention import rotary, split_heads
from onnx_vulkan.lower.elementwise import GPU_FLOATS
from onnx_vulkan.lower.registry import Host, LowerContext, lowers
from onnx_vulkan.program import composites
from onnx_vulkan.program.ir import Value

__all__: list[str] = []

_INTEGERS = frozenset({DType.I32, DType.I64})
_HALVES = frozenset({DType.F32, DType.F16})


@lowers(
    "RotaryEmbedding",
    versions=[1],
    dtypes={"x": GPU_FLOATS, "position_ids": _INTEGERS},
    domain="com.microsoft",
    note="no scale",
)
def rotary_embedding_ms(
    b: LowerContext,
    x: Value,
    position_ids: Value,
    cos_cache: Value,
    sin_cache: Value,
    *,
    interleaved: int = 0,
    is_packed_batching: int = 0,
    num_heads: int = 0,
    rotary_embedding_dim: int = 0,
    scale: float = 1.0,
) -> Value:
    """RotaryEmbedding of ONNX Runtime on ``[B, S, hidden]`` or ``[B, H, S, D]``.

    position_ids are ``[B, S]``, or ``[1]``: the offset of the first step. is_packed_batching only says that sequences may be
    longer than the caches.
    """
    if scale != 1.0:
        raise Unsupported("scale is not supported")
    if x.rank not in (3, 4) or position_ids.rank not in (1, 2):
        raise Unsupported(f"an input of rank {x.rank} with position_ids of rank {position_ids.rank} is not supported")
    steps = x.shape[1] if x.rank == 3 else x.shape[2]
    ids = b.cast(position_ids, DType.I64)
    if ids.rank == 1:
        ids = b.broadcast(b.map("add", b.reshape(ids, (1, 1)), b.iota((1, steps), 1, DType.I64)), (x.shape[0], steps))
    return rotary(
        b, x, cos_cache, sin_cache, ids,
        heads=num_heads, width=rotary_embedding_dim, interleaved=bool(interleaved),
    )  # fmt: skip


def _streams(section: Sequence[int], layout: int) -> Array:
    """int64: which of the three position streams (time, height, width) turns each number of half a head."""
    if len(section) != 3 or min(section) < 0 or layout not in (0, 1):
        raise Unsupported(f"mrope_section {list(section)} with mrope_layout {layout} is not supported")
    if layout == 0:
        return np.repeat(np.arange(3), section)
    place = np.arange(sum(section))
    streams = np.zeros(sum(section), np.int64)
    for stream in (1, 2):
        streams[(place % 3 == stream) & (place < 3 * section[stream])] = stream
    return streams


@lowers("MRotaryEmbedding", versions=[1], dtypes={"x": GPU_FLOATS, "position_ids": _INTEGERS}, domain="com.microsoft")
def multimodal_rotary_embedding(
    b: LowerContext,
    x: Value,
    position_ids: Value,
    cos_cache: Value,
    sin_cache: Value,
    *,
    interleaved: int = 0,
    is_packed_batching: int = 0,
    mrope_layout: int = 0,
    mrope_section: Sequence[int],
    num_heads: int = 0,
    rotary_embedding_dim: int = 0,
    scale: float = 1.0,
) -> Value:
    """MRotaryEmbedding of ONNX Runtime (Qwen's vision models) on ``[B, S, hidden]`` or ``[B, H, S, D]``.

    position_ids are ``[3, B, S]``: each number of half a head is turned by the position in time, height or width.
    """
    if scale != 1.0:
        raise Unsupported("scale is not supported")
    if x.rank not in (3, 4) or position_ids.rank != 3:
        raise Unsupported(f"an input of rank {x.rank} with position_ids of rank {position_ids.rank} is not supported")
    streams = _streams(mrope_section, mrope_layout)
    rows, half = cos_cache.shape
    require_same(half, len(streams), "mrope_section and the caches' width differ")
    _, batch, steps = position_ids.shape
    ids = b.bounded(b.cast(position_ids, DType.I64), rows)
    each = b.transpose(b.gather(ids, b.const(streams), 0), (1, 2, 0))
    index = b.reshape(each, (batch * steps, len(streams)))
    cos, sin = (b.reshape(b.gather_elements(cache, index, 0), (batch, steps, half)) for cache in (cos_cache, sin_cache))
    return rotary(b, x, cos, sin, None, heads=num_heads, width=rotary_embedding_dim, interleaved=bool(interleaved))


@lowers(
    "GemmaRotaryEmbedding",
    versions=[1],
    dtypes={"emb": (DType.F32,), **dict.fromkeys(("q", "q_rot", "k", "k_rot"), (DType.F16,))},
    domain="com.microsoft",
)
def gemma_rotary_embedding(b: LowerContext, emb: Value, q: Value, q_rot: Value, k: Value, k_rot: Value) -> tuple[Value, Value]:
    """GemmaRotaryEmbedding of ONNX Runtime: ``x * cos(emb) + x_rot * sin(emb)`` in half floats for queries and keys."""
    batch, steps, size = emb.shape
    cos, sin = (b.reshape(b.cast(b.map(fn, emb), DType.F16), (batch, 1, steps, size)) for fn in ("cos", "sin"))
    query, keys = (b.map("add", b.map("mul", x, cos), b.map("mul", turned, sin)) for x, turned in ((q, q_rot), (k, k_rot)))
    return query, keys


def _buckets(count: int, longest: int) -> Array:
    """int64 ``[longest + 1]``: the bucket of each distance among *count* (T5): one each for the first half, then by logarithm.

    Distances from *longest* on share the last bucket. In float32, as ONNX Runtime computes it.
    """
    exact = count // 2
    distance = np.arange(longest + 1, dtype=np.float32)
    with np.errstate(divide="ignore"):
        steps = np.log(distance / np.float32(exact)) / np.log(np.float32(longest) / np.float32(exact))
    far = exact + np.where(distance < exact, np.float32(0), steps * np.float32(count - exact)).astype(np.int64)
    return np.where(distance < exact, distance.astype(np.int64), np.minimum(far, count - 1))


@lowers(
    "RelativePositionBias",
    versions=[1],
    dtypes={"bias_table": GPU_FLOATS, "query_length": _INTEGERS, "key_length": _INTEGERS},
    domain="com.microsoft",
)
def relative_position_bias(
    b: LowerContext, bias_table: Value, query_length: Host, key_length: Host, *, is_bidirectional: int = 0, max_distance: int
) -> Value:
    """RelativePositionBias of ONNX Runtime (T5): ``[1, heads, S, S]`` from a table of a number a bucket and head.

    The table is declared ``[buckets, heads]`` but holds the buckets of the first head, then those of the second, and so on.
    """
    buckets, heads = bias_table.shape
    if not isinstance(buckets, int):
        raise Unsupported("the number of buckets is not known before the run")
    count = buckets // 2 if is_bidirectional else buckets
    if count < 2 or max_distance <= count // 2:
        raise Unsupported(f"{buckets} buckets for distances up to {max_distance} are not supported")
    steps = require_same(query_length.ints()[0], key_length.ints()[0], "query_length and key_length differ")
    offset = b.map("sub", b.iota((1, steps), 1, DType.I64), b.iota((steps, 1), 0, DType.I64))
    distance = b.map("min", b.map("abs", offset), b.scalar(max_distance, DType.I64))
    bucket = b.gather(b.const(_buckets(count, max_distance)), distance, 0)
    if is_bidirectional:
        ahead = b.map("gt", offset, b.scalar(0, DType.I64))
        bucket = b.map("add", bucket, b.map("select", ahead, b.scalar(count, DType.I64), b.scalar(0, DType.I64)))
    table = b.reshape(bias_table, (heads, buckets))
    return b.reshape(b.gather(table, bucket, 1), (1, heads, steps, steps))


@lowers(
    "GatedRelativePositionBias",
    versions=[1],
    dtypes=dict.fromkeys(("query_layer", "query_bias", "rel_pos", "weight", "bias", "eco_a"), _HALVES),
    domain="com.microsoft",
    note="no token_offset",
)
def gated_relative_position_bias(
    b: LowerContext,
    query_layer: Value,
    query_bias: Value,
    rel_pos: Value,
    weight: Value,
    bias: Value,
    eco_a: Value,
    token_offset: Value | None = None,
    *,
    num_heads: int,
) -> Value:
    """GatedRelativePositionBias of ONNX Runtime (WavLM): rel_pos ``[1, H, S, S]`` scaled by two gates of each query.

    The gates are sigmoids of the sums of the two halves of ``(query + query_bias) @ weight + bias``, weight ``[D, 2n]``.
    """
    if token_offset is not None or query_layer.rank != 3:
        raise Unsupported("token_offset (queries without padding) is not supported")
    query = b.map("add", b.cast(query_layer, DType.F32), b.cast(query_bias, DType.F32))
    heads = split_heads(b, query, num_heads)
    batch, _, steps, size = heads.shape
    width = weight.shape[1]
    require_same(width % 2, 0, "the width of weight does not divide into halves")
    rows = b.reshape(heads, (batch * num_heads * steps, size))
    projected = b.map("add", b.contract(rows, b.cast(weight, DType.F32)), b.cast(bias, DType.F32))
    halves = b.reduce("sum", b.reshape(projected, (batch, num_heads, steps, 2, width // 2)), (-1,))
    gates = composites.sigmoid(b, halves)
    u, r = (b.slice(gates, (0, 0, 0, i), (batch, num_heads, steps, 1)) for i in (0, 1))
    one = b.scalar(1, DType.F32)
    inner = b.map("sub", b.map("mul", r, b.cast(eco_a, DType.F32)), one)
    scale = b.map("add", b.map("mul", u, inner), b.scalar(2, DType.F32))
    return b.cast(b.map("mul", scale, b.cast(rel_pos, DType.F32)), query_layer.dtype)
