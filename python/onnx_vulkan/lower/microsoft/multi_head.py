"""Attention and MultiHeadAttention of ONNX Runtime (com.microsoft), on the one scaled attention of :mod:`attention`.

Both share their masks: padding adds ``mask_filter_value`` to a score, the causal mask replaces it by the lowest float32. So a
query whose keys are all padding still weighs them by their scores, as ONNX Runtime does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from onnx_vulkan.dims import Extent, is_one, require_at_least, require_same, same
from onnx_vulkan.dtypes import DType
from onnx_vulkan.errors import Unsupported
from onnx_vulkan.lower.attention import Masks, Scores, merge_heads, positions, scaled_attention, split_heads
from onnx_vulkan.lower.elementwise import GPU_FLOATS
from onnx_vulkan.lower.linear import matmul
from onnx_vulkan.lower.registry import Host, LowerContext, lowers
from onnx_vulkan.program.builder import Builder
from onnx_vulkan.program.ir import Value

__all__ = ["FILTER", "attend", "attend_projected"]

_I32 = frozenset({DType.I32})
_LOWEST = float(np.finfo(np.float32).min)
FILTER = -10000.0
"""The default of ``mask_filter_value``."""


def _padding_bias(b: Builder, mask: Value, batch: Extent, total: Extent, filler: float) -> Value:
    """A padding mask as a float32 bias that broadcasts to ``[B, H, S, T]``: 0 for a valid key, *filler* for another.

    The mask is ``[B]`` lengths, ``[2B]`` ends and then starts, ``[3B+2]`` lengths and then offsets that say the same,
    ``[B, T]`` or ``[B, S, T]`` with numbers above 0 for valid keys.
    """
    if mask.rank == 1:
        count = mask.shape[0]
        starts = same(count, 2 * batch)
        if not starts and not same(count, 3 * batch + 2):
            require_same(count, batch, "a mask of rank 1 fits no batch")
        column = (batch, 1, 1, 1)
        key = b.iota((1, 1, 1, total), 3, DType.I64)
        valid = b.map("lt", key, b.reshape(b.cast(b.slice(mask, (0,), (batch,)), DType.I64), column))
        if starts:
            first = b.reshape(b.cast(b.slice(mask, (batch,), (batch,)), DType.I64), column)
            valid = b.map("and", valid, b.map("ge", key, first))
    elif mask.rank in (2, 3):
        require_same(mask.shape[-1], total, "a mask is not as long as the keys")
        rows = mask.shape[1] if mask.rank == 3 else 1
        valid = b.reshape(b.map("gt", mask, b.scalar(0, mask.dtype)), (mask.shape[0], 1, rows, total))
    else:
        raise Unsupported(f"a mask of rank {mask.rank} is not supported")
    return b.map("select", valid, b.scalar(0, DType.F32), b.scalar(filler, DType.F32))


def attend(
    b: Builder, q: Value, k: Value, v: Value, mask: Value | None, bias: Value | None, past: Extent,
    *, scale: float, filler: float, unidirectional: bool,
) -> Scores:  # fmt: skip
    """Scaled attention of ``[B, H, S, D]`` queries after *past* keys under a padding mask, a bias and the causal mask.

    ONNX Runtime's causal mask leaves the last query of cross attention all keys, so a single query has no mask.
    """
    batch, _, steps, width = q.shape
    total = k.shape[2]
    if not isinstance(width, int):
        raise Unsupported("the head size is not known before the run")
    added = [bias] if bias is not None else []
    if mask is not None:
        added.append(_padding_bias(b, mask, batch, total, filler))
    allowed = []
    if unidirectional and not is_one(steps):
        rows, columns = positions(b, steps, total, past)
        seen = b.map("le", columns, rows)
        if not same(past + steps, total):
            last = b.dims([past + steps - 1], ())
            seen = b.map("or", seen, b.map("eq", rows, last))
        allowed.append(seen)
    masks = Masks(tuple(allowed), tuple(added), fill=_LOWEST)
    return scaled_attention(b, q, k, v, scale=scale or 1 / math.sqrt(width), masks=masks)


@lowers(
    "Attention",
    versions=[1],
    dtypes={"x": GPU_FLOATS, "weights": GPU_FLOATS, "mask_index": _I32, "past_sequence_length": _I32},
    domain="com.microsoft",
    note="no do_rotary, no past_present_share_buffer, no mask of rank 4",
)
def attention_ms(
    b: LowerContext,
    x: Value,
    weights: Value,
    bias: Value | None = None,
    mask_index: Value | None = None,
    past: Value | None = None,
    attention_bias: Value | None = None,
    past_sequence_length: Value | None = None,
    *,
    do_rotary: int = 0,
    mask_filter_value: float = FILTER,
    num_heads: int,
    past_present_share_buffer: int = 0,
    qkv_hidden_sizes: Sequence[int] = (),
    rotary_embedding_dim: int = 0,
    scale: float = 0.0,
    unidirectional: int = 0,
) -> tuple[Value, Value]:
    """Attention of ONNX Runtime: x ``[B, S, I]`` times weights ``[I, hidden + hidden + v_hidden]`` gives query, key and value.

    past and present are ``[2, B, H, T, D]``. Gives ``[B, S, v_hidden]`` and present.
    """
    if do_rotary or past_present_share_buffer or past_sequence_length is not None:
        raise Unsupported("do_rotary and past_present_share_buffer are not supported")
    projected = matmul(b, x, weights)
    if bias is not None:
        projected = b.map("add", projected, bias)
    return attend_projected(
        b, projected, mask_index, past, attention_bias, qkv_hidden_sizes=qkv_hidden_sizes, num_heads=num_heads, scale=scale,
        filler=mask_filter_value, unidirectional=bool(unidirectional),
    )  # fmt: skip


def attend_projected(
    b: LowerContext, projected: Value, mask_index: Value | None, past: Value | None, attention_bias: Value | None,
    *, qkv_hidden_sizes: Sequence[int], num_heads: int, scale: float, filler: float, unidirectional: bool,
) -> tuple[Value, Value]:  # fmt: skip
    """What Attention does with its projection ``[B, S, hidden + hidden + v_hidden]``: output and present."""
    batch, steps, columns = projected.shape
    sizes: Sequence[Extent] = tuple(qkv_hidden_sizes)
    if not sizes:
        require_same(columns % 3, 0, "the weights do not divide into query, key and value")
        sizes = (columns // 3,) * 3
    elif len(sizes) != 3:
        raise Unsupported(f"qkv_hidden_sizes of {len(sizes)} numbers is not supported")
    require_same(sizes[0] + sizes[1] + sizes[2], columns, "qkv_hidden_sizes and the weights' width differ")
    starts: Sequence[Extent] = (0, sizes[0], sizes[0] + sizes[1])
    q, k, v = (
        split_heads(b, b.slice(projected, (0, 0, start), (batch, steps, size)), num_heads)
        for start, size in zip(starts, sizes, strict=True)
    )
    before: Extent = 0
    if past is not None:
        before, shape = past.shape[3], past.shape[1:]
        kept = [b.reshape(b.slice(past, (i, 0, 0, 0, 0), (1, *shape)), shape) for i in (0, 1)]
        k, v = b.concat([kept[0], k], 2), b.concat([kept[1], v], 2)
    if mask_index is not None and mask_index.rank == 2 and is_one(mask_index.shape[1]):
        mask_index = None  # ONNX Runtime takes one column for no mask
    stages = attend(b, q, k, v, mask_index, attention_bias, before, scale=scale, filler=filler, unidirectional=unidirectional)
    present = k
    if b.wants(1):
        require_same(k.shape[3], v.shape[3], "a present output needs heads of one size")
        present = b.concat([b.reshape(y, (1, *y.shape)) for y in (k, v)], 0)
    return merge_heads(b, stages.y), present


def _unpacked(b: Builder, x: Value, heads: int) -> list[Value]:
    """``[B, S, heads, n, D]`` as n tensors ``[B, heads, S, D]``."""
    batch, steps, count, n, width = x.shape
    require_same(count, heads, "a packed operand has another number of heads")
    if not isinstance(n, int):
        raise Unsupported("how much is packed together is not known before the run")
    parts = [b.slice(x, (0, 0, 0, i, 0), (batch, steps, count, 1, width)) for i in range(n)]
    return [b.transpose(b.reshape(p, (batch, steps, count, width)), (0, 2, 1, 3)) for p in parts]


def _operands(
    b: Builder, query: Value, key: Value | None, value: Value | None, bias: Value | None, heads: int
) -> tuple[Value, Value, Value]:
    """Query, key and value as ``[B, H, S, D]`` from any of MultiHeadAttention's forms, with the projections' bias."""
    if query.rank == 5:
        parts = _unpacked(b, query, heads)
        if key is not None or value is not None or len(parts) != 3:
            raise Unsupported("a packed query with a key, or not of three parts, is not supported")
        q, k, v = parts
    elif query.rank != 3 or key is None:
        raise Unsupported("a query of this form without a key is not supported")
    elif key.rank == 5:
        if value is not None:
            raise Unsupported("a value besides a packed key is not supported")
        parts = _unpacked(b, key, heads)
        if len(parts) != 2:
            raise Unsupported(f"a packed key of {len(parts)} parts is not supported")
        q, k, v = split_heads(b, query, heads), parts[0], parts[1]
    elif value is None or (key.rank == 4) != (value.rank == 4):
        raise Unsupported("a key and a value of different forms are not supported")
    else:
        q = split_heads(b, query, heads)
        k, v = (split_heads(b, x, heads) if x.rank == 3 else x for x in (key, value))
    if bias is None:
        return q, k, v
    given = [True, key is None or key.rank != 4, key is None or key.rank != 4]  # keys that are cached have their bias
    start: Extent = 0
    biased = []
    for x, wanted in zip((q, k, v), given, strict=True):
        size = x.shape[1] * x.shape[3]
        if wanted:
            part = b.reshape(b.slice(bias, (start,), (size,)), (1, x.shape[1], 1, x.shape[3]))
            x = b.map("add", x, part)
        biased.append(x)
        start = start + size
    return biased[0], biased[1], biased[2]


def _replaced(b: Builder, past: Value, new: Value, at: Extent) -> Value:
    """*past* ``[B, H, M, D]`` with the rows from *at* on replaced by *new* ``[B, H, S, D]``."""
    batch, heads, capacity, size = past.shape
    end = at + new.shape[2]
    before = b.slice(past, (0, 0, 0, 0), (batch, heads, at, size))
    behind = b.slice(past, (0, 0, end, 0), (batch, heads, capacity - end, size))
    return b.concat([before, new, behind], 2)


def _of_beams(b: Builder, cache: Value, beams: Value, count: Extent) -> Value:
    """The first *count* rows of ``[B, H, M, D]`` as each beam has them: row t of beam j is that of beam ``beams[i, j, t]``.

    *beams* is ``[B/W, W, M]``; the batch of the cache holds the W beams of each of the B/W inputs.
    """
    groups, width = beams.shape[:2]
    batch, heads, _, size = cache.shape
    shape = (groups, width, count)
    chosen = b.bounded(b.cast(b.slice(beams, (0, 0, 0), shape), DType.I64), width)
    row = b.map("add", chosen, b.iota((groups, 1, 1), 0, DType.I64, 0, width))
    step = b.broadcast(b.iota((1, 1, count), 2, DType.I64), shape)
    index = b.concat([b.reshape(x, (batch, count, 1)) for x in (row, step)], 2)
    rows = b.gather_nd(b.transpose(cache, (0, 2, 1, 3)), index)
    return b.transpose(b.reshape(rows, (batch, count, heads, size)), (0, 2, 1, 3))


def shared_caches(
    b: Builder,
    past: tuple[Value, Value],
    new: tuple[Value, Value],
    at: Extent,
    beams: Value | None,
    bias: Value | None,
) -> tuple[tuple[Value, Value], tuple[Value, Value]]:
    """The caches ``[B, H, M, D]`` of keys and values with *new* rows from row *at* on, and the rows that a step attends to.

    *beams* says where each beam's rows come from, for one step at a time. Raises ShapeMismatch when the rows lie outside.
    """
    steps = new[0].shape[2]
    require_at_least(at, 0, "past_sequence_length is negative")
    require_at_least(past[0].shape[2], at + steps, "past_sequence_length is not below the capacity of the cache")
    present = _replaced(b, past[0], new[0], at), _replaced(b, past[1], new[1], at)
    if beams is None:
        (batch, heads, _, size), (_, _, _, v_size) = (x.shape for x in past)
        used = (batch, heads, at + steps)
        return present, (b.slice(present[0], (0,) * 4, (*used, size)), b.slice(present[1], (0,) * 4, (*used, v_size)))
    require_same(steps, 1, "beams take one step at a time")
    if bias is not None and not is_one(bias.shape[0]):
        raise Unsupported("an attention_bias of its own for each beam is not supported")
    keys, values = (b.concat([_of_beams(b, x, beams, at), y], 2) for x, y in zip(past, new, strict=True))
    return present, (keys, values)


@lowers(
    "MultiHeadAttention",
    versions=[1],
    dtypes={
        **dict.fromkeys(("query", "key", "value", "bias", "attention_bias", "past_key", "past_value"), GPU_FLOATS),
        **dict.fromkeys(("key_padding_mask", "past_sequence_length", "cache_indirection"), _I32),
    },
    domain="com.microsoft",
)
def multi_head_attention(
    b: LowerContext,
    query: Value,
    key: Value | None = None,
    value: Value | None = None,
    bias: Value | None = None,
    key_padding_mask: Value | None = None,
    attention_bias: Value | None = None,
    past_key: Value | None = None,
    past_value: Value | None = None,
    past_sequence_length: Host | None = None,
    cache_indirection: Value | None = None,
    *,
    mask_filter_value: float = FILTER,
    num_heads: int,
    scale: float = 0.0,
    unidirectional: int = 0,
) -> tuple[Value, Value, Value, Value]:
    """MultiHeadAttention of ONNX Runtime.

    Query ``[B, S, hidden]`` with key and value ``[B, L, hidden]`` or (cached) ``[B, H, L, D]``, or a key packed with the value
    ``[B, L, H, 2, D]``, or all packed ``[B, S, H, 3, D]``; past ``[B, H, P, D]``, or ``[B, H, M, D]`` with past_sequence_length
    rows in use. Gives ``[B, S, v_hidden]``, the keys and values ``[B, H, T or M, D]`` and the masked scores ``[B, H, S, T]``.
    """
    q, k, v = _operands(b, query, key, value, bias, num_heads)
    before: Extent = 0
    if (past_key is None) != (past_value is None):
        raise Unsupported("past_key and past_value go together")
    if (past_key is None and past_sequence_length is not None) or (
        past_sequence_length is None and cache_indirection is not None
    ):
        raise Unsupported("past_sequence_length without past_key, or cache_indirection without both, is not supported")
    if cache_indirection is not None and key_padding_mask is not None and key_padding_mask.rank != 2:
        raise Unsupported(f"cache_indirection with a mask of rank {key_padding_mask.rank} is not supported")
    present = (k, v)
    if past_key is not None and past_value is not None:
        if past_sequence_length is None:
            before = past_key.shape[2]
            present = k, v = b.concat([past_key, k], 2), b.concat([past_value, v], 2)
        else:
            before = past_sequence_length.ints()[0]
            present, (k, v) = shared_caches(b, (past_key, past_value), (k, v), before, cache_indirection, attention_bias)
    stages = attend(
        b, q, k, v, key_padding_mask, attention_bias, before,
        scale=scale, filler=mask_filter_value, unidirectional=bool(unidirectional),
    )  # fmt: skip
    return merge_heads(b, stages.y), *present, b.cast(stages.masked, q.dtype)
