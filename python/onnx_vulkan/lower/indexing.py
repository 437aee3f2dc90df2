"""Operators that move elements by indices held in tensors: gather, scatter, one-hot, reversal, selection."""

from __future__ import annotations

import numpy as np

from onnx_vulkan.dims import Dim, at_least, axis_of, product, require_at_least, require_same
from onnx_vulkan.dtypes import ALL, NUMERIC, REAL, DType
from onnx_vulkan.errors import Unsupported
from onnx_vulkan.lower.host import array_of, is_plain
from onnx_vulkan.lower.movement import slice_axis
from onnx_vulkan.lower.registry import Host, LowerContext, Operand, lowers
from onnx_vulkan.program.ir import Value

__all__: list[str] = []

_INDICES = frozenset({DType.I32, DType.I64})


@lowers("Gather", [1, 11, 13], {"x": ALL, "indices": _INDICES})
def gather(b: LowerContext, x: Value, indices: Operand, *, axis: int = 0) -> Value:
    """One known index is a slice."""
    axis = axis_of(axis, x.rank)
    known = None
    if isinstance(indices, Host) and len(indices.items()) == 1:
        known = indices.ints()[0]
    elif isinstance(indices, Value) and indices.data is not None and indices.data.size == 1:
        known = int(indices.data.reshape(-1)[0])
    if known is not None:
        index = known if at_least(known, 0) else known + x.shape[axis]
        if at_least(index, 0) and at_least(x.shape[axis], index + 1):
            row = slice_axis(b, x, axis, index, 1)
            return b.reshape(row, (*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]))
    return b.gather(x, b.device(indices), axis)


@lowers("GatherElements", [11, 13], {"x": NUMERIC, "indices": _INDICES})
def gather_elements(b: LowerContext, x: Value, indices: Value, *, axis: int = 0) -> Value:
    return b.gather_elements(x, indices, axis)


@lowers("GatherND", [1], {"x": NUMERIC, "indices": _INDICES}, "com.microsoft")
@lowers("GatherND", [11, 12, 13], {"x": NUMERIC, "indices": frozenset({DType.I64})})
def gather_nd(b: LowerContext, x: Value, indices: Value, *, batch_dims: int = 0) -> Value:
    if isinstance(indices.shape[-1], Dim):
        raise Unsupported("the last extent of its indices depends on the run's shapes")
    return b.gather_nd(x, indices, batch_dims)


@lowers("ScatterElements", [11, 13, 16, 18], {"x": NUMERIC, "indices": _INDICES})
def scatter_elements(
    b: LowerContext, x: Value, indices: Value, updates: Value, *, axis: int = 0, reduction: str = "none"
) -> Value:
    return b.scatter(x, indices, updates, kind="elements", axis=axis, reduction=_reduction(x, reduction))


@lowers("Scatter", [9, 11], {"x": NUMERIC, "indices": _INDICES})
def scatter(b: LowerContext, x: Value, indices: Value, updates: Value, *, axis: int = 0) -> Value:
    return b.scatter(x, indices, updates, kind="elements", axis=axis)


@lowers("ScatterND", [11, 13, 16, 18], {"x": NUMERIC, "indices": frozenset({DType.I64})})
def scatter_nd(b: LowerContext, x: Value, indices: Value, updates: Value, *, reduction: str = "none") -> Value:
    if isinstance(indices.shape[-1], Dim):
        raise Unsupported("the last extent of its indices depends on the run's shapes")
    return b.scatter(x, indices, updates, kind="nd", reduction=_reduction(x, reduction))


def _reduction(x: Value, reduction: str) -> str:
    if reduction not in ("none", "add", "mul", "max", "min"):
        raise Unsupported(f"reduction {reduction!r} is not known")
    if x.dtype is DType.BOOL and reduction != "none":
        raise Unsupported(f"reduction {reduction!r} of bool is not supported")
    return reduction


@lowers("TensorScatter", [24], {"x": NUMERIC, "start": frozenset({DType.I64})})
def tensor_scatter(
    b: LowerContext, x: Value, update: Value, start: Value | None = None, *, axis: int = -2, mode: str = "linear"
) -> Value:
    """TensorScatter: *update* takes the place of a cache's steps from ``start[batch]`` on, in a ring where ``mode`` is circular.

    A linear write that leaves the cache is an error of the run.
    """
    if mode not in ("linear", "circular"):
        raise Unsupported(f"mode {mode!r} is not known")
    if axis_of(axis, x.rank) == 0:
        raise Unsupported(f"axis {axis} of a cache of rank {x.rank}")
    axis %= x.rank
    for i, (have, given) in enumerate(zip(x.shape, update.shape, strict=True)):
        if i != axis:
            require_same(have, given, f"cache and update disagree on axis {i}")
    require_at_least(x.shape[axis], update.shape[axis], "the update is longer than the cache")
    steps = [e if i == axis else 1 for i, e in enumerate(update.shape)]
    index = b.iota(steps, axis, DType.I64)
    if start is not None:
        require_same(start.shape[0], x.shape[0], "there is not one write index for each sequence")
        first = b.reshape(start, [e if i == 0 else 1 for i, e in enumerate(x.shape)])
        extent = b.dims([x.shape[axis]], ())
        if mode == "circular":  # reduced before the sum, which could leave 64 bits
            below = b.bounded(b.map("min", first, b.scalar(0, DType.I64)), 1)
            index = b.map("mod", b.map("add", index, b.map("mod", b.map("add", first, below), extent)), extent)
        else:
            index = b.map("add", index, b.bounded(first, x.shape[axis]))
    return b.scatter(x, b.broadcast(index, update.shape), update, kind="elements", axis=axis)


@lowers("OneHot", [9, 11, 28], {"indices": REAL, "depth": REAL, "values": NUMERIC})
def one_hot(b: LowerContext, indices: Value, depth: Host, values: Value, *, axis: int = -1) -> Value:
    """``values[1]`` where the new axis' index equals the (wrapped) index, else ``values[0]``."""
    n = depth.ints()[0]
    require_at_least(n, 1, f"its depth of {n} is not positive")
    require_same(values.shape[0], 2, "its values are not two")
    rank = indices.rank + 1
    axis = axis_of(axis, rank)
    index = b.cast(indices, DType.I64)
    extent = b.cast(b.dims([n], ()), DType.I64)
    index = b.map("select", b.map("lt", index, b.scalar(0, DType.I64)), b.map("add", index, extent), index)
    shape = [*indices.shape[:axis], n, *indices.shape[axis:]]
    place = b.iota([n if i == axis else 1 for i in range(rank)], axis, DType.I64)
    hot = b.map("eq", b.reshape(index, [*indices.shape[:axis], 1, *indices.shape[axis:]]), place)
    off, on = (b.reshape(slice_axis(b, values, 0, i, 1), ()) for i in (0, 1))
    return b.broadcast(b.map("select", hot, on, off), shape)


@lowers("ReverseSequence", [10, 28], {"x": NUMERIC, "lens": frozenset({DType.I64})})
def reverse_sequence(b: LowerContext, x: Value, lens: Value, *, batch_axis: int = 1, time_axis: int = 0) -> Value:
    """Step t of a sequence of length n reads step ``n - 1 - t`` where t < n, else t. A length is from 0 to the axis' extent."""
    batch_axis, time_axis = axis_of(batch_axis, x.rank), axis_of(time_axis, x.rank)
    shape = [e if i in (batch_axis, time_axis) else 1 for i, e in enumerate(x.shape)]
    t = b.iota(shape, time_axis, DType.I64)
    lens = b.bounded(lens, x.shape[time_axis] + 1)
    n = b.reshape(lens, [e if i == batch_axis else 1 for i, e in enumerate(x.shape)])
    mirrored = b.map("sub", b.map("sub", n, b.scalar(1, DType.I64)), t)
    source = b.map("select", b.map("lt", t, n), mirrored, t)
    return b.gather_elements(x, b.broadcast(source, x.shape), time_axis)


@lowers("UnfoldTensor", [1], {"x": NUMERIC}, "com.microsoft")
def unfold_tensor(b: LowerContext, x: Value, *, dim: int = -1, size: int, step: int = 1) -> Value:
    """UnfoldTensor of ONNX Runtime: windows of *size* elements, *step* apart along *dim*, each laid out on a new last axis."""
    axis = dim % x.rank
    if size < 1 or step < 1:
        raise Unsupported(f"windows of {size} elements, {step} apart, are not supported")
    require_at_least(x.shape[axis], size, "its size is larger than the axis")
    count = (x.shape[axis] - size) // step + 1
    index = b.map("add", b.iota((count, 1), 0, DType.I32, 0, step), b.iota((1, size), 1, DType.I32))
    y = b.gather(x, index, axis)
    return b.transpose(y, [*(i for i in range(y.rank) if i != axis + 1), axis + 1])


@lowers("NGramRepeatBlock", [1], {"input_ids": frozenset({DType.I64}), "scores": frozenset({DType.F32})}, "com.microsoft")
def ngram_repeat_block(b: LowerContext, input_ids: Value, scores: Value, *, ngram_size: int) -> Value:
    """NGramRepeatBlock of ONNX Runtime: -inf for each token that would end an n-gram which ``input_ids [B, S]`` holds already."""
    if ngram_size < 1:
        raise Unsupported(f"an ngram_size of {ngram_size} is not supported")
    length = input_ids.shape[1]
    if not at_least(length, ngram_size):
        return scores
    count = length - ngram_size + 1
    repeats: Value | None = None
    for i in range(ngram_size - 1):  # does the n-gram that starts at j begin as the sequence ends?
        last = slice_axis(b, input_ids, 1, length - ngram_size + 1 + i, 1)
        equal = b.map("eq", slice_axis(b, input_ids, 1, i, count), last)
        repeats = equal if repeats is None else b.map("and", repeats, equal)
    infinity = b.scalar(np.inf, DType.F32)
    banned = b.map("neg", infinity)
    updates = b.map("select", repeats, banned, infinity) if repeats is not None else banned
    ends = slice_axis(b, input_ids, 1, ngram_size - 1, count)
    if repeats is not None:  # a token that bans nothing may be anything
        ends = b.map("select", repeats, ends, b.scalar(0, DType.I64))
    return b.scatter(scores, ends, b.broadcast(updates, ends.shape), kind="elements", axis=1, reduction="min")


@lowers("Compress", [9, 11, 28], {"x": NUMERIC}, note="the condition must be known before the run")
def compress(b: LowerContext, x: Value, condition: Host, *, axis: int | None = None) -> Value:
    if not is_plain(condition):
        raise Unsupported("its condition depends on the run's shapes")
    kept = b.const(np.nonzero(array_of(condition).reshape(-1))[0].astype(np.int64))
    if axis is None:
        return b.gather(b.reshape(x, (product(x.shape),)), kept, 0)
    return b.gather(x, kept, axis)


@lowers("NonZero", [9, 13], {"x": NUMERIC}, note="the input must be known before the run: the result's shape depends on it")
def non_zero(b: LowerContext, x: Host) -> Host:
    raise Unsupported("the shape of its result depends on data")
