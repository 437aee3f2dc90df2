"""The cache of GroupQueryAttention that holds little more than a window (sliding_window_cache): which rows stay, which are read.

With capacity C, window W and G = C - W + 1, a sequence of n tokens keeps its last ``n - G * ceil((n - C) / G)`` (all of them
while n <= C), in increasing order from row 0 on. So what a cache holds depends on n alone, not on the steps that led there.
"""

from __future__ import annotations

from dataclasses import dataclass

from onnx_vulkan.dims import Extent, require_at_least, same
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


def _resident(b: Builder, tokens: Value, capacity: Extent, window: int) -> Value:
    """How many of so many *tokens* a cache holds."""
    if same(capacity, window):
        return b.map("min", tokens, b.dims([capacity], ()))
    group = b.dims([capacity - window + 1], ())
    over = b.map("max", b.map("sub", tokens, b.dims([capacity], ())), b.scalar(0, DType.I64))
    evictions = b.map("div", b.map("add", over, b.dims([capacity - window], ())), group)
    return b.map("sub", tokens, b.map("mul", evictions, group))


def _rows(b: Builder, x: Value, index: Value) -> Value:
    """Rows of ``[B, G, n, D]`` by an index ``[B, 1, m, 1]``, which is held inside."""
    last = b.map("sub", b.dims([x.shape[2]], ()), b.scalar(1, DType.I64))
    inside = b.map("min", b.map("max", index, b.scalar(0, DType.I64)), last)
    return b.gather_elements(x, b.broadcast(inside, (x.shape[0], x.shape[1], index.shape[2], x.shape[3])), 2)


def window_step(
    b: Builder, past: tuple[Value, Value], new: tuple[Value, Value], before: Value | None, after: Value, window: int
) -> WindowStep:
    """Take *new* rows ``[B, G, S, D]`` into the caches *past* ``[B, G, C, D]``.

    *before* and *after* are the tokens of each sequence before and after the step, int64 ``[B, 1, 1, 1]``; without *before* it
    is the first step. Raises ShapeMismatch when the caches are smaller than the window.

    Rows move inside a cache, and a caller may bind one buffer to both its input and its output. So both what the queries read
    and what stays come from old and new rows put together, which the product keeps in memory of its own.
    """
    capacity, steps = past[0].shape[2], new[0].shape[2]
    require_at_least(capacity, window, "the cache is smaller than local_window_size")
    kept = _resident(b, after, capacity, window)
    row = b.iota((1, 1, capacity, 1), 2, DType.I64)
    position = b.map("add", b.map("sub", after, kept), row)
    query = b.iota((1, 1, steps, 1), 2, DType.I64)
    known: list[Value] = []
    if before is None:
        whole, index = new, position
        key = b.iota((1, 1, 1, steps), 3, DType.I64)
    else:
        old = _resident(b, before, capacity, window)
        first = b.map("sub", before, old)
        behind = b.map("sub", before, b.dims([capacity], ()))  # the position that a new row's place in *whole* starts from
        # a row that holds nothing may be NaN, which 0 times a value would be too
        values = b.map("select", b.map("lt", row, old), past[1], b.scalar(0, past[1].dtype))
        whole = b.concat([past[0], new[0]], 2), b.concat([values, new[1]], 2)
        index = b.map("sub", position, b.map("select", b.map("lt", position, before), first, behind))
        query = b.map("add", before, query)
        column = b.iota((1, 1, 1, capacity + steps), 3, DType.I64)
        is_new = b.map("ge", column, b.dims([capacity], ()))
        key = b.map("add", column, b.map("select", is_new, behind, first))
        known.append(b.map("or", is_new, b.map("lt", column, old)))
    held = b.map("lt", row, kept)
    present = [b.map("select", held, _rows(b, x, index), b.scalar(0, x.dtype)) for x in whole]
    distance = b.map("sub", query, key)
    seen = b.map("ge", distance, b.scalar(0, DType.I64)), b.map("lt", distance, b.scalar(window, DType.I64))
    return WindowStep((present[0], present[1]), *whole, (*seen, *known))
