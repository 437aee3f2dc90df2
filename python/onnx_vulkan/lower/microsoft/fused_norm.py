"""Fused normalizations of ONNX Runtime (com.microsoft): after a residual sum, after embeddings, over groups of channels."""

from __future__ import annotations

from onnx_vulkan.dims import require_at_least, require_same
from onnx_vulkan.dtypes import FLOATS, DType
from onnx_vulkan.errors import Unsupported
from onnx_vulkan.lower.elementwise import GPU_FLOATS
from onnx_vulkan.lower.norm import normalize_groups
from onnx_vulkan.lower.registry import LowerContext, lowers
from onnx_vulkan.program import composites
from onnx_vulkan.program.builder import Builder
from onnx_vulkan.program.ir import Value

__all__: list[str] = []

_I32 = frozenset({DType.I32})


# ------------------------------------------------------------------------------------------------------- residual sums


def _residual(b: Builder, x: Value, skip: Value, bias: Value | None) -> Value:
    """``x + skip + bias`` in float32 for half floats; skip may lack the batch axis or have a batch of 1."""
    total = b.map("add", composites.wide(b, x), b.broadcast(composites.wide(b, skip), x.shape))
    return b.map("add", total, composites.wide(b, bias)) if bias is not None else total


@lowers("SkipLayerNormalization", versions=[1], dtypes={"x": FLOATS}, domain="com.microsoft")
def skip_layer_norm(
    b: LowerContext,
    x: Value,
    skip: Value,
    gamma: Value,
    beta: Value | None = None,
    bias: Value | None = None,
    *,
    epsilon: float = 1e-12,
) -> tuple[Value, Value, Value, Value]:
    """SkipLayerNormalization of ONNX Runtime: LayerNormalization of ``x + skip + bias``, mean, 1/deviation and that sum."""
    total = _residual(b, x, skip, bias)
    y, mean, inverse = composites.layer_norm(b, total, (-1,), gamma, beta, epsilon)
    return b.cast(y, x.dtype), b.cast(mean, DType.F32), b.cast(inverse, DType.F32), b.cast(total, x.dtype)


@lowers("SkipSimplifiedLayerNormalization", versions=[1], dtypes={"x": FLOATS}, domain="com.microsoft")
def skip_simplified_layer_norm(
    b: LowerContext, x: Value, skip: Value, gamma: Value, bias: Value | None = None, *, epsilon: float = 1e-12
) -> tuple[Value, Value | None, Value, Value]:
    """SkipSimplifiedLayerNormalization of ONNX Runtime: RMS normalization of ``x + skip + bias``, 1/rms and that sum."""
    total = _residual(b, x, skip, bias)
    y, inverse = composites.rms_norm(b, total, (-1,), gamma, epsilon)
    return b.cast(y, x.dtype), None, b.cast(inverse, DType.F32), b.cast(total, x.dtype)


# ---------------------------------------------------------------------------------------------------------- embeddings


def _rows(b: Builder, table: Value, ids: Value) -> Value:
    """Rows of an embedding table, in float32 for half floats."""
    return composites.wide(b, b.gather(table, ids, 0, wrap=False))


@lowers(
    "EmbedLayerNormalization",
    versions=[1],
    dtypes={
        **dict.fromkeys(("word_embedding", "position_embedding", "segment_embedding", "gamma", "beta"), GPU_FLOATS),
        **dict.fromkeys(("input_ids", "segment_ids", "mask", "position_ids"), _I32),
    },
    domain="com.microsoft",
)
def embed_layer_norm(
    b: LowerContext,
    input_ids: Value,
    segment_ids: Value | None,
    word_embedding: Value,
    position_embedding: Value,
    segment_embedding: Value | None,
    gamma: Value,
    beta: Value,
    mask: Value | None = None,
    position_ids: Value | None = None,
    *,
    epsilon: float = 1e-12,
    mask_index_type: int = 0,
) -> tuple[Value, Value, Value]:
    """EmbedLayerNormalization of ONNX Runtime: LayerNormalization of the sum of word, position and segment embeddings.

    Ids are ``[B, S]``. Gives ``[B, S, hidden]``, how many of each sequence's mask are 1 (``[B]``, 0 without a mask) and the sum.
    """
    if input_ids.rank != 2:
        raise Unsupported(f"input_ids of rank {input_ids.rank} is not supported")
    batch, steps = input_ids.shape
    hidden = word_embedding.shape[1]
    total = _rows(b, word_embedding, input_ids)
    if position_ids is None:
        require_at_least(position_embedding.shape[0], steps, "position_embedding has fewer rows than the sequence")
        places = composites.wide(b, b.slice(position_embedding, (0, 0), (steps, hidden)))
    else:
        places = _rows(b, position_embedding, position_ids)
    total = b.map("add", total, b.broadcast(places, total.shape))
    if segment_ids is not None and segment_embedding is not None:
        total = b.map("add", total, _rows(b, segment_embedding, segment_ids))
    elif segment_ids is not None or segment_embedding is not None:
        raise Unsupported("segment_ids and segment_embedding go together")
    y, _, _ = composites.layer_norm(b, total, (-1,), gamma, beta, epsilon)
    count = b.full((batch,), 0, DType.I32)
    if mask is not None:
        ones = b.cast(b.map("eq", mask, b.scalar(1, DType.I32)), DType.I32)
        count = b.reduce("sum", ones, (1,))
    dtype = word_embedding.dtype
    return b.cast(y, dtype), count, b.cast(total, dtype)


# ------------------------------------------------------------------------------------------------------------- groups


def _group_norm(
    b: Builder, x: Value, gamma: Value, beta: Value, *, groups: int, epsilon: float, channels_last: bool, activation: int
) -> Value:
    """Normalize float32 *x* of any layout over each group of channels, scale and shift a channel, perhaps SiLU."""
    if activation not in (0, 1):
        raise Unsupported(f"activation {activation} is not known")
    if x.rank != 4:
        raise Unsupported(f"an input of rank {x.rank} is not supported")
    if channels_last:
        x = b.transpose(x, (0, 3, 1, 2))
    y = normalize_groups(b, x, groups, epsilon)
    for fn, vector in (("mul", gamma), ("add", beta)):
        require_same(vector.shape[0], x.shape[1], "gamma and beta have one number a channel")
        y = b.map(fn, y, b.reshape(b.cast(vector, DType.F32), (vector.shape[0], 1, 1)))
    if activation:
        y = composites.quick_gelu(b, y, 1.0)
    return b.transpose(y, (0, 2, 3, 1)) if channels_last else y


_HALVES = frozenset({DType.F32, DType.F16})


@lowers("GroupNorm", versions=[1], dtypes={"x": _HALVES, "gamma": _HALVES, "beta": _HALVES}, domain="com.microsoft")
def group_norm_ms(
    b: LowerContext,
    x: Value,
    gamma: Value,
    beta: Value,
    *,
    activation: int,
    channels_last: int = 1,
    epsilon: float = 1e-5,
    groups: int,
) -> Value:
    """GroupNorm of ONNX Runtime on ``[N, H, W, C]`` (or ``[N, C, H, W]``), perhaps with SiLU behind."""
    y = _group_norm(
        b, b.cast(x, DType.F32), gamma, beta,
        groups=groups, epsilon=epsilon, channels_last=bool(channels_last), activation=activation,
    )  # fmt: skip
    return b.cast(y, x.dtype)


@lowers("SkipGroupNorm", versions=[1], dtypes={"x": _HALVES, "gamma": _HALVES, "beta": _HALVES}, domain="com.microsoft")
def skip_group_norm(
    b: LowerContext,
    x: Value,
    gamma: Value,
    beta: Value,
    skip: Value,
    bias: Value | None = None,
    *,
    activation: int,
    channels_last: int = 1,
    epsilon: float = 1e-5,
    groups: int,
) -> tuple[Value, Value]:
    """SkipGroupNorm of ONNX Runtime: GroupNorm of ``x + skip + bias``, and that sum; skip is as x, or one number a channel."""
    if x.rank != 4:
        raise Unsupported(f"an input of rank {x.rank} is not supported")
    if skip.rank == 2:
        n, c = skip.shape
        skip = b.reshape(skip, (n, 1, 1, c) if channels_last else (n, c, 1, 1))
    total = b.map("add", b.cast(x, DType.F32), b.broadcast(b.cast(skip, DType.F32), x.shape))
    if bias is not None:
        vector = b.cast(bias, DType.F32)
        total = b.map("add", total, vector if channels_last else b.reshape(vector, (bias.shape[0], 1, 1)))
    y = _group_norm(
        b, total, gamma, beta,
        groups=groups, epsilon=epsilon, channels_last=bool(channels_last), activation=activation,
    )  # fmt: skip
    return b.cast(y, x.dtype), b.cast(total, x.dtype)
