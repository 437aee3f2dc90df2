"""Finds causal masks: a query sees the keys up to its own position, whatever the values of any tensor are."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from onnx_vulkan.dims import Extent
from onnx_vulkan.graph import Array
from onnx_vulkan.program.ir import Instr, Value

__all__ = ["causal_offset"]

LARGEST = 1 << 24
"""Elements of a constant mask that is looked at."""


def causal_offset(mask: Value, producers: Mapping[Value, Instr]) -> Extent | None:
    """The number d for which *mask* (bool, ``[.., S, T]``) is true exactly where the key's index is at most the query's plus d.

    None where that is not known for all queries and keys.
    """
    rows = mask.shape[-2:]
    while (made := producers.get(mask)) is not None and made.op in ("reshape", "broadcast"):
        mask = made.inputs[0]
    if mask.rank < 2 or mask.shape[-2:] != rows or any(e != 1 for e in mask.shape[:-2]):
        return None
    if mask.data is not None:
        return _of_constant(mask.data.reshape(mask.data.shape[-2:])) if 0 < mask.data.size <= LARGEST else None
    if made is None or made.op != "map" or made.attrs["fn"] != "le":
        return None
    key, query = (_position(v, axis, producers) for v, axis in zip(made.inputs, (-1, -2), strict=True))
    return None if key is None or query is None else query - key


def _of_constant(data: Array) -> int | None:
    rows, keys = data.shape
    seen = int(np.count_nonzero(data[0]))
    blind = int(data[:, 0].argmax()) if data[:, 0].any() else rows  # queries at the start that see nothing
    offset = seen - 1 if seen else -blind
    return offset if np.array_equal(data, np.tri(rows, keys, offset, dtype=bool)) else None


def _position(v: Value, axis: int, producers: Mapping[Value, Instr]) -> Extent | None:
    """What an index along *axis* (from the end) has to be raised by to be *v*, None where *v* is something else."""
    length = v.shape[axis]
    while (made := producers.get(v)) is not None and made.op == "broadcast":
        v = made.inputs[0]
    if made is None or made.op != "iota" or made.attrs["step"] != 1 or made.attrs["axis"] - v.rank != axis:
        return None
    start: Extent = made.attrs["start"]
    return start if v.shape[axis] == length else None
