"""Proves that a plan has no hazards: what validation layers cannot see when buffers are reached by address.

Works from the ranges that each dispatch declares to read and write, and from the plan's commands alone: two dispatches with
no barrier between them must not touch the same bytes unless both only read. It shares no code with the planner's placing of
barriers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from onnx_vulkan.plan.build import Range
from onnx_vulkan.plan.table import Op

__all__ = ["Hazard", "find_hazards", "verify_plan"]


@dataclass(frozen=True, slots=True)
class Hazard:
    """Dispatches *first* and *second* (counted from 0) touch the same bytes with no barrier between them; kind is one of
    read-after-write, write-after-write, write-after-read."""

    kind: str
    first: int
    second: int
    range: Range

    def __str__(self) -> str:
        r = self.range
        return f"{self.kind}: dispatches {self.first} and {self.second} on bytes {r.start} to {r.end} of segment {r.segment}"


def find_hazards(commands: NDArray[np.void], accesses: Sequence[tuple[Sequence[Range], Sequence[Range]]]) -> list[Hazard]:
    """All hazards of a plan. ``accesses[n]`` is what dispatch *n* reads and writes."""
    found: list[Hazard] = []
    since: list[int] = []
    n = 0
    for command in commands:
        op = int(command["op"])
        if op == Op.BARRIER:
            since.clear()
        elif op in (Op.DISPATCH, Op.DISPATCH_INDIRECT):
            reads, writes = accesses[n]
            for m in since:
                earlier_reads, earlier_writes = accesses[m]
                found += _clashes("read-after-write", m, n, earlier_writes, reads)
                found += _clashes("write-after-write", m, n, earlier_writes, writes)
                found += _clashes("write-after-read", m, n, earlier_reads, writes)
            since.append(n)
            n += 1
        elif op == Op.COPY:
            source = Range(int(command["x"]), int(command["a"]), int(command["a"]) + int(command["size"]))
            for m in since:
                found += _clashes("read-after-write", m, n, accesses[m][1], [source])
    return found


def verify_plan(commands: NDArray[np.void], accesses: Sequence[tuple[Sequence[Range], Sequence[Range]]]) -> None:
    """Raise AssertionError with every hazard of a plan."""
    found = find_hazards(commands, accesses)
    if found:
        raise AssertionError(f"the plan has {len(found)} hazards: " + "; ".join(map(str, found[:8])))


def _clashes(kind: str, first: int, second: int, a: Sequence[Range], b: Sequence[Range]) -> list[Hazard]:
    by_segment: dict[int, list[Range]] = {}
    for r in a:
        by_segment.setdefault(r.segment, []).append(r)
    return [
        Hazard(kind, first, second, y) for y in b for x in by_segment.get(y.segment, ()) if x.start < y.end and y.start < x.end
    ]
