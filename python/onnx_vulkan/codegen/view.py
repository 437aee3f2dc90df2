"""Strided views: an operand that is only a re-arranged tensor in memory is read in place, by its strides."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from onnx_vulkan.codegen.index import reshape_groups, row_major
from onnx_vulkan.dims import Extent
from onnx_vulkan.program.ir import Instr, Value

__all__ = ["View", "strided_view"]


@dataclass(frozen=True, slots=True)
class View:
    """Element ``x`` of the viewed value lies at ``offset + sum(x[i] * strides[i])`` of ``leaf`` (in elements)."""

    leaf: Value
    offset: Extent
    strides: tuple[Extent, ...]


def strided_view(value: Value, producers: Mapping[Value, Instr], is_leaf: Callable[[Value], bool]) -> View | None:
    """*value* as a view of a materialised one, or None where it has to be computed or gathered."""
    instr = producers.get(value)
    if instr is None or is_leaf(value):
        return View(value, 0, tuple(row_major(value.shape)))
    if instr.op not in ("transpose", "broadcast", "slice", "reshape"):
        return None
    x = instr.inputs[0]
    inner = strided_view(x, producers, is_leaf)
    if inner is None:
        return None
    strides = inner.strides
    if instr.op == "transpose":
        return View(inner.leaf, inner.offset, tuple(strides[p] for p in instr.attrs["perm"]))
    if instr.op == "broadcast":
        lead = value.rank - x.rank
        kept = [s if e == value.shape[lead + i] else 0 for i, (s, e) in enumerate(zip(strides, x.shape, strict=True))]
        return View(inner.leaf, inner.offset, (*([0] * lead), *kept))
    if instr.op == "slice":
        offset = inner.offset
        for start, s in zip(instr.attrs["starts"], strides, strict=True):
            offset = offset + start * s
        steps = instr.attrs["steps"]
        return View(inner.leaf, offset, tuple(s * step for s, step in zip(strides, steps, strict=True)))
    moved = _reshape_strides(x.shape, strides, value.shape)
    return None if moved is None else View(inner.leaf, inner.offset, tuple(moved))


def _reshape_strides(shape: Sequence[Extent], strides: Sequence[Extent], to: Sequence[Extent]) -> list[Extent] | None:
    out: list[Extent] = [0] * len(to)
    for a, b in reshape_groups(shape, to):
        source = [i for i in a if shape[i] != 1]
        target = [j for j in b if to[j] != 1]
        if not target:
            continue
        if not source:
            return None
        for i, j in pairwise(source):
            if strides[i] != strides[j] * shape[j]:
                return None
        step = strides[source[-1]]
        for j in reversed(target):
            out[j] = step
            step = step * to[j]
    return out
