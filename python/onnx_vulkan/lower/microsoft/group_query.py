"""GroupQueryAttention of ONNX Runtime: attention with shared key heads, its cache, rotary embedding, window and sinks.

The cache that comes out is written in one pass from the one that went in: row *t* of a sequence with *p* cached rows is the
cached row where ``t < p``, the new row ``t - p`` where there is one, and 0 behind. So a growing cache and a buffer of fixed
capacity are one form, and every sequence of a batch may have its own length.
"""

from __future__ import annotations

import math

from onnx_vulkan.dims import Extent, at_least, is_one, require_at_least, require_same, same
from onnx_vulkan.dtypes import DType
from onnx_vulkan.errors import Unsupported
from onnx_vulkan.lower.attention import Masks, merge_heads, positions, rotate, scaled_attention
from onnx_vulkan.lower.elementwise import GPU_FLOATS
from onnx_vulkan.lower.microsoft.window_cache import window_step
from onnx_vulkan.lower.registry import Host, LowerContext, lowers
from onnx_vulkan.program import composites
from onnx_vulkan.program.builder import Builder
from onnx_vulkan.program.ir import Value

__all__: list[str] = []

_I32 = frozenset({DType.I32})
_CACHED = ("query", "key", "value", "past_key", "past_value", "cos_cache", "sin_cache", "attention_bias", "head_sink")


def _heads(b: Builder, x: Value, heads: int, what: str) -> Value:
    """``[B, S, heads*D]`` to ``[B, S, heads, D]``."""
    if x.rank != 3:
        raise Unsupported(f"{what} of rank {x.rank} is not supported")
    batch, steps, hidden = x.shape
    require_same(hidden % heads, 0, f"{what} does not divide into {heads} heads")
    return b.reshape(x, (batch, steps, heads, hidden // heads))


def _split(
    b: Builder, query: Value, key: Value | None, value: Value | None, heads: int, groups: int
) -> tuple[Value, Value, Value]:
    """Query, keys and values as ``[B, S, heads, D]``, from three tensors or from one that holds all their heads."""
    if key is not None and value is not None:
        parts = (_heads(b, query, heads, "query"), _heads(b, key, groups, "key"), _heads(b, value, groups, "value"))
        require_same(parts[0].shape[3], parts[1].shape[3], "query and key differ in the head size")
        require_same(parts[1].shape[1], parts[0].shape[1], "query and key differ in the sequence length")
        return parts
    if key is not None or value is not None:
        raise Unsupported("a key without a value, or a value without a key, is not supported")
    whole = _heads(b, query, heads + 2 * groups, "packed query, key and value")
    batch, steps, _, size = whole.shape

    def part(start: int, count: int) -> Value:
        return b.slice(whole, (0, 0, start, 0), (batch, steps, count, size))

    return part(0, heads), part(heads, groups), part(heads + groups, groups)


def _present(b: Builder, past: Value | None, new: Value, before: Value | None, valid: Value | None, total: Extent) -> Value:
    """The cache after this step, ``[B, G, total, D]``: *before* cached rows (None: none), then *new* ones, then zeros.

    *new* is ``[B, G, S, D]``; *before* and *valid* (how many of the new rows count, None: all) are int64 ``[B, 1, 1, 1]``.
    """
    batch, groups, steps, size = new.shape
    behind = (0, 0, total - steps, 0)
    if before is None and valid is None:
        require_at_least(total, steps, "the cache is shorter than the sequence")
        return b.pad(new, (0, 0, 0, 0), behind)
    shape = (batch, groups, total, size)
    row = b.iota((1, 1, total, 1), 2, DType.I64)
    index = row if before is None else b.map("sub", row, before)
    if is_one(steps):
        found = b.broadcast(new, shape)
    else:
        last = b.map("sub", b.dims([steps], ()), b.scalar(1, DType.I64))
        inside = b.map("min", b.map("max", index, b.scalar(0, DType.I64)), last)
        found = b.gather_elements(new, b.broadcast(inside, shape), 2)
    zero = b.scalar(0, new.dtype)
    end = valid if valid is not None else b.dims([steps], ())
    made = b.map("select", b.map("lt", index, end), found, zero)
    if before is None:
        return made
    kept: Value = zero
    if past is not None:
        kept = b.pad(past, (0, 0, 0, 0), (0, 0, total - past.shape[2], 0))
    return b.map("select", b.map("lt", row, before), kept, made)


def _angles(
    b: Builder, cache: Value, ids: Value | None, before: Value | None, *, batch: Extent, steps: Extent, prompt: bool
) -> Value:
    """The rows of a cosine or sine cache for each query, ``[B or 1, S, 1, W/2]``.

    A first prompt reads from row 0, or from the first of the position ids; a later step from the number of cached rows on.
    """
    half = cache.shape[1]
    if prompt and ids is None and before is None:
        require_at_least(cache.shape[0], steps, "cos_cache is shorter than the sequence")
        return b.reshape(b.slice(cache, (0, 0), (steps, half)), (1, steps, 1, half))
    along = b.iota((1, steps), 1, DType.I64)
    if ids is not None and not prompt:
        rows = ids
    elif ids is not None:
        first = b.slice(b.reshape(ids, (ids.shape[0] * ids.shape[1],)), (0,), (1,))
        rows = b.map("add", b.reshape(first, (1, 1)), along)
    else:
        assert before is not None
        rows = b.map("add", b.reshape(before, (batch, 1)), along)
    return b.reshape(b.gather(cache, rows, 0, wrap=False), (rows.shape[0], steps, 1, half))


def _refuse_new_forms(*, k_quant_type: str, v_quant_type: str, scales: bool, causal: int, local_window_size: int) -> None:
    if scales or k_quant_type != "NONE" or v_quant_type != "NONE":
        raise Unsupported("a quantized key and value cache is not supported")
    if causal not in (0, 1) or (not causal and local_window_size >= 0):
        raise Unsupported(f"causal {causal} with local_window_size {local_window_size} is not supported")


@lowers(
    "GroupQueryAttention",
    versions=[1],
    dtypes={**dict.fromkeys(_CACHED, GPU_FLOATS), "seqlens_k": _I32, "query_seqlens": _I32},
    domain="com.microsoft",
    note="no quantized cache",
)
def group_query_attention(
    b: LowerContext,
    query: Value,
    key: Value | None,
    value: Value | None,
    past_key: Value | None,
    past_value: Value | None,
    seqlens_k: Value,
    total_sequence_length: Host,
    cos_cache: Value | None = None,
    sin_cache: Value | None = None,
    position_ids: Value | None = None,
    attention_bias: Value | None = None,
    head_sink: Value | None = None,
    k_scale: Value | None = None,
    v_scale: Value | None = None,
    q_norm_weight: Value | None = None,
    k_norm_weight: Value | None = None,
    query_seqlens: Value | None = None,
    *,
    causal: int = 1,
    do_rotary: int = 0,
    k_norm_epsilon: float | None = None,
    k_quant_type: str = "NONE",
    kv_cache_bit_width: int = 0,
    kv_num_heads: int,
    local_window_size: int = -1,
    num_heads: int,
    q_norm_epsilon: float | None = None,
    qk_norm_epsilon: float = 1e-6,
    qk_output: int = 0,
    rotary_interleaved: int = 0,
    scale: float = 0.0,
    sliding_window_cache: int = 0,
    smooth_softmax: int = -1,
    softcap: float = 0.0,
    v_quant_type: str = "NONE",
) -> tuple[Value | None, ...]:
    """GroupQueryAttention of ONNX Runtime.

    Query ``[B, S, H*D]`` and keys and values ``[B, S, G*D]``, or all in query; past ``[B, G, P, D]``; seqlens_k ``[B]`` counts
    each sequence's keys after this step, less one. Gives ``[B, S, H*D]``, the caches ``[B, G, max(P, total), D]`` and the
    scores ``[B, H, S, total]``. A sequence as long as the total is a first prompt: then nothing of the past is read. Rows of
    a prompt behind a sequence's end are not specified. With sliding_window_cache the caches keep their capacity P, see
    :mod:`window_cache`.
    """
    _refuse_new_forms(
        k_quant_type=k_quant_type, v_quant_type=v_quant_type, scales=k_scale is not None or v_scale is not None,
        causal=causal, local_window_size=local_window_size,
    )  # fmt: skip
    q, k, v = _split(b, query, key, value, num_heads, kv_num_heads)
    batch, steps, _, size = q.shape
    if not isinstance(size, int):
        raise Unsupported("the head size is not known before the run")
    if (past_key is None) != (past_value is None):
        raise Unsupported("past_key and past_value go together")
    if any(p is not None and p.dtype is not q.dtype for p in (past_key, past_value)):
        raise Unsupported("a cache of another element type than the query is not supported")
    if q_norm_weight is not None and k_norm_weight is not None:
        q = composites.rms_norm(b, q, (-1,), q_norm_weight, q_norm_epsilon or qk_norm_epsilon)[0]
        k = composites.rms_norm(b, k, (-1,), k_norm_weight, k_norm_epsilon or qk_norm_epsilon)[0]
    elif q_norm_weight is not None or k_norm_weight is not None:
        raise Unsupported("q_norm_weight and k_norm_weight go together")
    (total,) = total_sequence_length.ints()
    capacity: Extent = past_key.shape[2] if past_key is not None else 0

    # How long the caches are, and where each sequence's new rows go.
    before: Value | None = None
    if past_key is None:
        if query_seqlens is not None:
            raise Unsupported("query_seqlens without a cache is not supported")
        require_same(steps, total, "without a cache the total length is the sequence's")
    prompt = query_seqlens is None and (past_key is None or same(steps, total))
    total = steps if prompt else total
    length = total
    if sliding_window_cache or not at_least(total, capacity + 1):
        length = capacity
    elif query_seqlens is None and not prompt:
        total = length = require_same(total, capacity + steps, "total_sequence_length is not the cached and the new length")
    per_sequence = (batch, 1, 1, 1)
    valid = b.reshape(b.cast(query_seqlens, DType.I64), per_sequence) if query_seqlens is not None else None
    if not prompt or not causal or sliding_window_cache:
        ends = b.reshape(b.bounded(b.cast(b.reshape(seqlens_k, (batch,)), DType.I64), total), per_sequence)
        ends = b.map("add", ends, b.scalar(1, DType.I64))
    if not prompt:
        before = b.map("sub", ends, valid if valid is not None else b.dims([steps], ()))
        before = b.map("max", before, b.scalar(0, DType.I64))

    if do_rotary:
        if cos_cache is None or sin_cache is None or not isinstance(cos_cache.shape[1], int):
            raise Unsupported("do_rotary needs caches of a width that is known before the run")
        width = 2 * cos_cache.shape[1]
        caches = (cos_cache, sin_cache)
        cos, sin = (_angles(b, c, position_ids, before, batch=batch, steps=steps, prompt=prompt) for c in caches)
        q, k = (rotate(b, x, cos, sin, width, interleaved=bool(rotary_interleaved)) for x in (q, k))

    q, k, v = (b.transpose(x, (0, 2, 1, 3)) for x in (q, k, v))
    present: tuple[Value, Value]
    if sliding_window_cache:
        if past_key is None or past_value is None or local_window_size <= 0 or not causal:
            raise Unsupported("sliding_window_cache without a cache or without local_window_size is not supported")
        if attention_bias is not None or b.wants(3):
            raise Unsupported("sliding_window_cache with attention_bias or a fourth output is not supported")
        step = window_step(b, (past_key, past_value), (k, v), before, ends, local_window_size)
        present, k, v, allowed = step.present, step.keys, step.values, list(step.allowed)
    else:
        present = _present(b, past_key, k, before, valid, length), _present(b, past_value, v, before, valid, length)
        k, v = (b.slice(x, (0, 0, 0, 0), (batch, kv_num_heads, total, size)) for x in present)
        rows, columns = positions(b, steps, total, b.reshape(before, (batch,)) if before is not None else 0)
        if causal:
            allowed = [b.map("le", columns, rows)]
            if local_window_size > 0:
                allowed.append(b.map("lt", b.map("sub", rows, columns), b.scalar(local_window_size, DType.I64)))
        else:
            allowed = [b.map("lt", b.reshape(columns, (1, 1, 1, total)), ends)]
    sink = head_sink
    if sink is None and smooth_softmax == 1:
        sink = b.full((num_heads,), 0, DType.F32)
    idle = query_seqlens is not None  # a sequence without new rows may see no key
    masks = Masks(tuple(allowed), (attention_bias,) if attention_bias is not None else (), may_be_empty=idle)
    stages = scaled_attention(b, q, k, v, scale=scale or 1 / math.sqrt(size), masks=masks, softcap=softcap, sink=sink)
    scores: Value | None = None
    if b.wants(3):
        if qk_output not in (1, 2):
            raise Unsupported(f"a fourth output with qk_output {qk_output} is not supported")
        scores = stages.probabilities
        if qk_output == 1:
            zero = b.scalar(0, DType.F32)
            scores = b.map("select", b.map("isneginf", stages.masked), zero, stages.masked)
        scores = b.cast(scores, q.dtype)
    return merge_heads(b, stages.y), *present, scores
