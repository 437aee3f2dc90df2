"""The cache of GroupQueryAttention that holds little more than a window (sliding_window_cache): which rows stay, which are read.

With capacity C, window W and G = C - W + 1, a sequence of n tokens keeps its last ``n - G * ceil((n - C) / G)`` (all of them
while n <= C), in increasing order from row 0 on. So what a cache holds depends on n alone, not on the steps that led there.
"""

from __future__ import annotations

from dataclasses import dataclass

from onnx_vulkan.dims import Extent, is_one, require_at_least, same
from onnx_vulkan.dtypes import DType
from onnx_vulkan.program.builder import Builder
from onnx_vulkan.program.ir import Value

__all__ = ["WindowStep", "window_step"]


@dataclass(frozen=True, slots=True)
class WindowStep:
    """A step's caches ``[B, G, C, D]``, and the keys and values ``[B, G, K, D]`` that its queries read.

    ``allowed`` is bool ``[B, 1, S, K]``: what each query sees.
    """

    present: tuple[Value, Value]
    keys: Value
    values: Value
    allowed: tuple[Value, ...]


def _integer(b: Builder, e: Extent) -> Value:
    return b.dims([e], ())


def _resident(b: Builder, tokens: Value, capacity: Extent, window: int) -> Value:
    """How many of so many *tokens* a cache holds."""
    if same(capacity, window):
        return b.map("min", tokens, _integer(b, capacity))
    group = _integer(b, capacity - window + 1)
    over = b.map("max", b.map("sub", tokens, _integer(b, capacity)), b.scalar(0, DType.I64))
    evictions = b.map("div", b.map("add", over, _integer(b, capacity - window)), group)
    return b.map("sub", tokens, b.map("mul", evictions, group))


def _rows(b: Builder, x: Value, index: Value) -> Value:
    """Rows of ``[B, G, n, D]`` by an index ``[B, 1, m, 1]``, which is held inside."""
    last = b.map("sub", _integer(b, x.shape[2]), b.scalar(1, DType.I64))
    inside = b.map("min", b.map("max", index, b.scalar(0, DType.I64)), last)
    return b.gather_elements(x, b.broadcast(inside, (x.shape[0], x.shape[1], index.shape[2], x.shape[3])), 2)


def window_step(
    b: Builder, past: tuple[Value, Value], new: tuple[Value, Value], before: Value | None, after: Value, window: int
) -> WindowStep:
    """Take *new* rows ``[B, G, S, D]`` into the caches *past* ``[B, G, C, D]``.

    *before* and *after* are the tokens of each sequence before and after the step, int64 ``[B, 1, 1, 1]``; without *before* it
    is the first step. Raises ShapeMismatch when the caches are smaller than the window.
    """
    capacity = past[0].shape[2]
    steps = new[0].shape[2]
    require_at_least(capacity, window, "the cache is smaller than local_window_size")
    kept = _resident(b, after, capacity, window)
    first = b.map("sub", after, kept)
    row = b.iota((1, 1, capacity, 1), 2, DType.I64)
    position = b.map("add", first, row)
    held = b.map("lt", row, kept)
    if before is None:
        old_first, old_kept = None, None
        present = tuple(b.map("select", held, _rows(b, y, position), b.scalar(0, y.dtype)) for y in new)
    else:
        old_kept = _resident(b, before, capacity, window)
        old_first = b.map("sub", before, old_kept)
        from_new, from_past = b.map("sub", position, before), b.map("sub", position, old_first)
        is_old = b.map("lt", position, before)
        present = tuple(
            b.map("select", held, b.map("select", is_old, _rows(b, x, from_past), _rows(b, y, from_new)), b.scalar(0, y.dtype))
            for x, y in zip(past, new, strict=True)
        )
    caches = (present[0], present[1])

    query = b.iota((1, 1, steps, 1), 2, DType.I64)
    if before is not None:
        query = b.map("add", before, query)
    if before is None or old_first is None or old_kept is None:
        keys, values = new
        key = b.iota((1, 1, 1, steps), 3, DType.I64)
        known = []
    elif is_one(steps):
        keys, values = caches
        column = b.iota((1, 1, 1, capacity), 3, DType.I64)
        key, known = b.map("add", first, column), [b.map("lt", column, kept)]
    else:
        keys, values = (b.concat([x, y], 2) for x, y in zip(past, new, strict=True))
        column = b.iota((1, 1, 1, capacity + steps), 3, DType.I64)
        is_new = b.map("ge", column, _integer(b, capacity))
        fresh = b.map("sub", b.map("add", before, column), _integer(b, capacity))
        key = b.map("select", is_new, fresh, b.map("add", old_first, column))
        known = [b.map("or", is_new, b.map("lt", column, old_kept))]
    distance = b.map("sub", query, key)
    inside = b.map("lt", distance, b.scalar(window, DType.I64))
    return WindowStep(caches, keys, values, (b.map("ge", distance, b.scalar(0, DType.I64)), inside, *known))
