"""Attention and rotary embeddings, in primitives: Attention-23 to -25, RotaryEmbedding.

Scores are float32 (float64 of float64 operands). Query heads that share a key head are folded into the rows of one product, so
keys and values are never repeated.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from onnx_vulkan.dims import Extent, at_least, require_same, same
from onnx_vulkan.dtypes import FLOATS, DType
from onnx_vulkan.errors import Unsupported
from onnx_vulkan.lower.elementwise import GPU_FLOATS
from onnx_vulkan.lower.registry import LowerContext, lowers
from onnx_vulkan.program import composites
from onnx_vulkan.program.builder import Builder
from onnx_vulkan.program.ir import Value

__all__ = ["Masks", "Scores", "merge_heads", "positions", "rotary", "rotate", "scaled_attention", "split_heads"]

NEG_INF = -math.inf


def split_heads(b: Builder, x: Value, heads: int) -> Value:
    """``[B, S, heads*D]`` to ``[B, heads, S, D]``."""
    batch, steps, hidden = x.shape
    require_same(hidden % heads, 0, f"a hidden size does not divide into {heads} heads")
    return b.transpose(b.reshape(x, (batch, steps, heads, hidden // heads)), (0, 2, 1, 3))


def merge_heads(b: Builder, x: Value) -> Value:
    """``[B, heads, S, D]`` to ``[B, S, heads*D]``."""
    batch, heads, steps, width = x.shape
    return b.reshape(b.transpose(x, (0, 2, 1, 3)), (batch, steps, heads * width))


@dataclass(frozen=True, slots=True)
class Masks:
    """What limits the keys that a query sees; all broadcast to ``[B, H, S, T]``.

    ``allowed`` are bools (all must hold; ``fill`` is the score where one does not), ``added`` floats added to the scores;
    ``may_be_empty``: a query may see no key, and then gives zeros.
    """

    allowed: tuple[Value, ...] = ()
    added: tuple[Value, ...] = ()
    may_be_empty: bool = False
    fill: float = NEG_INF


@dataclass(frozen=True, slots=True)
class Scores:
    """The stages of an attention: result, and what Attention's fourth output may ask for."""

    y: Value
    scaled: Value
    capped: Value
    masked: Value
    probabilities: Value


def _grouped(b: Builder, x: Value, groups: Extent) -> Value:
    """``[B, H, S, D]`` to ``[B, groups, H/groups * S, D]``."""
    batch, heads, steps, width = x.shape
    return b.reshape(x, (batch, groups, (heads // groups) * steps, width))


def scaled_attention(
    b: Builder,
    q: Value,
    k: Value,
    v: Value,
    *,
    scale: float,
    masks: Masks,
    softcap: float = 0.0,
    sink: Value | None = None,
    precision: DType = DType.F32,
) -> Scores:
    """``softmax(mask(q k^T * scale)) v`` for ``[B, H, S, D]`` queries and ``[B, G, T, D]`` keys with H a multiple of G.

    *sink* (``[H]``) is one more score a head in the softmax, of a key whose value is 0. Scores are float32, of float64 operands
    float64; the softmax is in the wider of that and *precision*.
    """
    batch, heads, steps, _ = q.shape
    groups, total = k.shape[1], k.shape[2]
    for x in (k, v):
        require_same(x.shape[0], batch, "queries, keys and values are of different batches")
    require_same(heads % groups, 0, "query heads are no multiple of key heads")
    t = DType.F64 if q.dtype is DType.F64 else DType.F32
    full = (batch, heads, steps, total)
    product = b.contract(_grouped(b, q, groups), b.transpose(k, (0, 1, 3, 2)), dtype=t, acc=t)
    scaled = composites.affine(b, b.reshape(product, full), scale, 0.0)
    capped = scaled
    if softcap:
        capped = composites.affine(b, b.map("tanh", composites.affine(b, scaled, 1 / softcap, 0.0)), softcap, 0.0)
    masked = capped
    for bias in masks.added:
        masked = b.map("add", masked, b.broadcast(b.cast(bias, t), full))
    for mask in masks.allowed:
        masked = b.map("select", b.broadcast(mask, full), masked, b.scalar(masks.fill, t))
    logits = b.cast(masked, DType.F64) if precision is DType.F64 else masked
    if sink is not None:
        probabilities = composites.sink_softmax(b, logits, b.reshape(b.cast(sink, logits.dtype), (1, heads, 1, 1)))
    else:
        probabilities = composites.masked_softmax(b, logits) if masks.may_be_empty else composites.softmax(b, logits)
    y = b.contract(_grouped(b, b.cast(probabilities, v.dtype), groups), v, dtype=v.dtype)
    return Scores(b.reshape(y, (batch, heads, steps, v.shape[3])), scaled, capped, masked, probabilities)


def positions(b: Builder, steps: Extent, total: Extent, offset: Extent | Value) -> tuple[Value, Value]:
    """int64 columns and rows to compare: the query's position ``offset + i`` (``[.., S, 1]``) and the key's (``[1, T]``).

    An *offset* that is a tensor has one entry a sequence, and the positions get shape ``[B, 1, S, 1]``.
    """
    keys = b.iota((1, total), 1, DType.I64)
    if isinstance(offset, Value):
        queries = b.iota((steps, 1), 0, DType.I64)
        return b.map("add", queries, b.reshape(b.cast(offset, DType.I64), (offset.shape[0], 1, 1, 1))), keys
    return b.iota((steps, 1), 0, DType.I64, offset), keys


def _attention_mask(b: Builder, mask: Value, total: Extent) -> Value:
    """attn_mask at full length: what is missing at the end of the last axis is masked out (Attention-24)."""
    if mask.rank == 0 or same(mask.shape[-1], total):
        return mask
    if mask.dtype is DType.BOOL and isinstance(mask.shape[-1], int) and mask.shape[-1] == 1:
        return mask
    fill = b.scalar(False, DType.BOOL) if mask.dtype is DType.BOOL else b.scalar(NEG_INF, mask.dtype)
    before = (0,) * mask.rank
    if not at_least(total, mask.shape[-1]):
        raise Unsupported("attn_mask is longer than the keys")
    return b.pad(mask, before, (*before[1:], total - mask.shape[-1]), fill=fill)


def _attention(
    b: LowerContext,
    q: Value,
    k: Value,
    v: Value,
    attn_mask: Value | None,
    past_key: Value | None,
    past_value: Value | None,
    nonpad: Value | None,
    *,
    is_causal: int,
    kv_num_heads: int,
    q_num_heads: int,
    qk_matmul_output_mode: int,
    scale: float | None,
    softcap: float,
    softmax_precision: int,
    left: int = -1,
    right: int = -1,
) -> tuple[Value | None, ...]:
    flat = q.rank == 3
    if flat:
        if not q_num_heads or not kv_num_heads:
            raise Unsupported("operands of rank 3 need q_num_heads and kv_num_heads")
        q, k, v = split_heads(b, q, q_num_heads), split_heads(b, k, kv_num_heads), split_heads(b, v, kv_num_heads)
    if (past_key is None) != (past_value is None) or (past_key is not None and nonpad is not None):
        raise Unsupported("past_key and past_value go together, and not with nonpad_kv_seqlen")
    offset: Extent | Value = 0
    if past_key is not None and past_value is not None:
        offset = past_key.shape[2]
        k, v = b.concat([past_key, k], 2), b.concat([past_value, v], 2)
    steps, total = q.shape[2], k.shape[2]
    allowed: list[Value] = []
    added: list[Value] = []
    if nonpad is not None:
        nonpad = b.bounded(b.cast(nonpad, DType.I64), total + 1)
        offset = b.map("sub", b.cast(nonpad, DType.I64), b.dims([steps], ()))
    if attn_mask is not None:
        mask = _attention_mask(b, attn_mask, total)
        (allowed if mask.dtype is DType.BOOL else added).append(mask)
    if is_causal or left >= 0 or right >= 0:
        query, key = positions(b, steps, total, offset)
        if is_causal:
            allowed.append(b.map("le", key, query))
        if left >= 0:
            allowed.append(b.map("le", b.map("sub", query, key), b.scalar(left, DType.I64)))
        if right >= 0:
            allowed.append(b.map("le", b.map("sub", key, query), b.scalar(right, DType.I64)))
    if nonpad is not None:
        valid = b.reshape(b.cast(nonpad, DType.I64), (nonpad.shape[0], 1, 1, 1))
        allowed.append(b.map("lt", b.iota((1, 1, 1, total), 3, DType.I64), valid))
    masks = Masks(tuple(allowed), tuple(added), attn_mask is not None or nonpad is not None or left >= 0 or right >= 0)
    if scale is None:
        width = q.shape[3]
        if not isinstance(width, int):
            raise Unsupported("the head size is not known before the run")
        scale = 1 / math.sqrt(width)
    precision = DType.F64 if softmax_precision == DType.F64.value else DType.F32  # halves are computed in float32
    stages = scaled_attention(b, q, k, v, scale=scale, masks=masks, softcap=softcap, precision=precision)
    if b.wants(3) and qk_matmul_output_mode == 0 and softcap:
        raise Unsupported("qk_matmul_output_mode 0 with softcap (its meaning changed) is not supported")
    shown = {0: stages.scaled, 1: stages.capped, 2: stages.masked, 3: stages.probabilities}
    if qk_matmul_output_mode not in shown:
        raise Unsupported(f"qk_matmul_output_mode {qk_matmul_output_mode} is unknown")
    y = merge_heads(b, stages.y) if flat else stages.y
    return y, k, v, b.cast(shown[qk_matmul_output_mode], q.dtype)


_TYPES = {"q": FLOATS, "k": FLOATS, "v": FLOATS, "attn_mask": FLOATS | {DType.BOOL}}


@lowers("Attention", versions=[23], dtypes=_TYPES)
def attention_23(
    b: LowerContext,
    q: Value,
    k: Value,
    v: Value,
    attn_mask: Value | None = None,
    past_key: Value | None = None,
    past_value: Value | None = None,
    *,
    is_causal: int = 0,
    kv_num_heads: int = 0,
    q_num_heads: int = 0,
    qk_matmul_output_mode: int = 0,
    scale: float | None = None,
    softcap: float = 0.0,
    softmax_precision: int = 0,
) -> tuple[Value | None, ...]:
    """Attention-23."""
    return _attention(
        b, q, k, v, attn_mask, past_key, past_value, None,
        is_causal=is_causal, kv_num_heads=kv_num_heads, q_num_heads=q_num_heads,
        qk_matmul_output_mode=qk_matmul_output_mode, scale=scale, softcap=softcap, softmax_precision=softmax_precision,
    )  # fmt: skip


@lowers("Attention", versions=[24, 25], dtypes=_TYPES)
def attention(
    b: LowerContext,
    q: Value,
    k: Value,
    v: Value,
    attn_mask: Value | None = None,
    past_key: Value | None = None,
    past_value: Value | None = None,
    nonpad_kv_seqlen: Value | None = None,
    *,
    is_causal: int = 0,
    kv_num_heads: int = 0,
    left_window_size: int = -1,
    q_num_heads: int = 0,
    qk_matmul_output_mode: int = 0,
    right_window_size: int = -1,
    scale: float | None = None,
    softcap: float = 0.0,
    softmax_precision: int = 0,
) -> tuple[Value | None, ...]:
    """Attention-24 and -25 (windows from 25 on)."""
    return _attention(
        b, q, k, v, attn_mask, past_key, past_value, nonpad_kv_seqlen,
        is_causal=is_causal, kv_num_heads=kv_num_heads, q_num_heads=q_num_heads,
        qk_matmul_output_mode=qk_matmul_output_mode, scale=scale, softcap=softcap, softmax_precision=softmax_precision,
        left=left_window_size, right=right_window_size,
    )  # fmt: skip


# ------------------------------------------------------------------------------------------------------------ rotary


def rotate(b: Builder, x: Value, cos: Value, sin: Value, width: int, *, interleaved: bool) -> Value:
    """Rotate the first *width* numbers of each head of ``[B, S, H, D]`` by ``[B, S, 1, width/2]`` angles; in float32."""
    size = x.shape[-1]
    lead = x.shape[:-1]
    half = width // 2
    y = b.cast(x, DType.F32)
    cos, sin = b.cast(cos, DType.F32), b.cast(sin, DType.F32)
    zeros = (0,) * (x.rank - 1)
    steps = (1,) * (x.rank - 1)
    if interleaved:
        first = b.slice(y, (*zeros, 0), (*lead, half), (*steps, 2))
        second = b.slice(y, (*zeros, 1), (*lead, half), (*steps, 2))
    else:
        first, second = b.slice(y, (*zeros, 0), (*lead, half)), b.slice(y, (*zeros, half), (*lead, half))
    real = b.map("sub", b.map("mul", cos, first), b.map("mul", sin, second))
    imaginary = b.map("add", b.map("mul", sin, first), b.map("mul", cos, second))
    if interleaved:
        pairs = [b.reshape(part, (*lead, half, 1)) for part in (real, imaginary)]
        turned = b.reshape(b.concat(pairs, -1), (*lead, width))
    else:
        turned = b.concat([real, imaginary], -1)
    turned = b.cast(turned, x.dtype)
    if isinstance(size, int) and size == width:
        return turned
    return b.concat([turned, b.slice(x, (*zeros, width), (*lead, size - width))], -1)


def rotary(
    b: Builder, x: Value, cos: Value, sin: Value, ids: Value | None, *, heads: int, width: int, interleaved: bool
) -> Value:
    """RotaryEmbedding on ``[B, S, H*D]`` or ``[B, H, S, D]``; *ids* ``[B, S]`` picks rows of the caches."""
    if x.rank == 3:
        batch, steps, hidden = x.shape
        if not heads:
            if not width:
                half = cos.shape[-1]
                if not isinstance(half, int):
                    raise Unsupported("the rotary width is not known before the run")
                heads_of: Extent = hidden // (2 * half)
            else:
                raise Unsupported("an input of rank 3 with rotary_embedding_dim needs num_heads")
        else:
            heads_of = heads
        split = b.reshape(x, (batch, steps, heads_of, hidden // heads_of))
    else:
        split = b.transpose(x, (0, 2, 1, 3))
    batch, steps, _, size = split.shape
    width = width or (size if isinstance(size, int) else 0)
    if not width or width % 2:
        raise Unsupported(f"a rotary width of {size} is not supported")
    for e, n in zip(cos.shape, sin.shape, strict=True):
        require_same(e, n, "the cosine and the sine cache are of different shapes")
    if ids is not None:
        cos, sin = b.gather(cos, ids, 0, wrap=False), b.gather(sin, ids, 0, wrap=False)
    angles = (cos.shape[0], cos.shape[1], 1, width // 2)
    y = rotate(b, split, b.reshape(cos, angles), b.reshape(sin, angles), width, interleaved=interleaved)
    return b.reshape(y, x.shape) if x.rank == 3 else b.transpose(y, (0, 2, 1, 3))


@lowers("RotaryEmbedding", versions=[23], dtypes={"x": GPU_FLOATS})
def rotary_embedding(
    b: LowerContext,
    x: Value,
    cos_cache: Value,
    sin_cache: Value,
    position_ids: Value | None = None,
    *,
    interleaved: int = 0,
    num_heads: int = 0,
    rotary_embedding_dim: int = 0,
) -> Value:
    """RotaryEmbedding."""
    return rotary(
        b, x, cos_cache, sin_cache, position_ids,
        heads=num_heads, width=rotary_embedding_dim, interleaved=bool(interleaved),
    )  # fmt: skip
