"""Grows the regions that become one kernel: the epilogue of an anchor, the reductions of one row space.

A region is convex: nothing outside lies on a path between two of its members. It grows in program order, and is cut back to the
longest prefix that hands the fewest values to the outside, because each of those is a store that fusion was to save.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from onnx_vulkan.dims import Extent
from onnx_vulkan.fuse.dataflow import Dataflow
from onnx_vulkan.program.ir import Instr, Value

__all__ = ["Region", "epilogue", "row_region"]

MAX_REGION = 48
"""Instructions in one region: bounds a kernel's length and its compile time."""


@dataclass(frozen=True, eq=False)
class Region:
    """A set of instructions of one kernel, in program order, and the values it hands to the outside."""

    instrs: tuple[Instr, ...]
    exports: tuple[Value, ...]


def _grow(flow: Dataflow, seed: list[Instr], taken: set[Instr], accepts: Callable[[Instr], bool]) -> Region:
    members = list(seed)
    inside = set(seed)
    mask = flow.mask(seed)
    best = Region(tuple(members), tuple(flow.exported(members)))
    best_size = len(best.exports)
    frontier = sorted(
        {u for i in seed for v in i.outputs for u in flow.users.get(v, ()) if u not in inside}, key=flow.order.__getitem__
    )
    while frontier and len(members) < MAX_REGION:
        candidate = frontier.pop(0)
        if candidate in inside or candidate in taken or not accepts(candidate):
            continue
        foreign = [v for v in candidate.inputs if flow.producers.get(v) not in inside]
        if any(flow.depends(v, mask) for v in foreign):
            continue
        members.append(candidate)
        inside.add(candidate)
        mask |= flow.mask([candidate])
        for v in candidate.outputs:
            for u in flow.users.get(v, ()):
                if u not in inside and u not in frontier:
                    frontier.append(u)
        frontier.sort(key=flow.order.__getitem__)
        exports = flow.exported(members)
        if len(exports) <= best_size:
            best, best_size = Region(tuple(members), tuple(exports)), len(exports)
    return best


def epilogue(flow: Dataflow, anchor: Instr, taken: set[Instr]) -> Region:
    """The anchor with the elementwise instructions of its output's shape that can run on the accumulator."""
    shape = anchor.outputs[0].shape

    def accepts(u: Instr) -> bool:
        return u.op in ("map", "cast") and u.out.shape == shape

    if not flow.family_epilogue(anchor) or len(anchor.outputs) != 1:
        return Region((anchor,), tuple(flow.exported([anchor])))
    return _stored_transposed(flow, _grow(flow, [anchor], taken, accepts), taken)


def _stored_transposed(flow: Dataflow, region: Region, taken: set[Instr]) -> Region:
    """The region with the transpose that alone reads its result, when that keeps the last axis: then stores stay coalesced."""
    if len(region.exports) != 1 or region.exports[0] in flow.outputs:
        return region
    users = flow.users.get(region.exports[0], [])
    if len(users) != 1 or users[0].op != "transpose" or users[0] in taken:
        return region
    perm = users[0].attrs["perm"]
    if perm[-1] != len(perm) - 1:
        return region
    return Region((*region.instrs, users[0]), users[0].outputs)


def _dense(shape: tuple[Extent, ...]) -> tuple[Extent, ...]:
    return tuple(e for e in shape if e != 1)


def row_region(flow: Dataflow, first: Instr, taken: set[Instr]) -> Region:
    """The reduction with later reductions over the same axes of the same space, and the elementwise work between and after.

    The elementwise producers of the reduced value join as well where they are read from outside too (a residual sum that
    a norm reads and the next block adds to): the kernel then stores them on the way.
    """
    space, axes = first.inputs[0].shape, first.attrs["axes"]
    row = _dense(tuple(e for i, e in enumerate(space) if i not in axes))

    def spread(x: Value) -> bool:
        """Whether *x*, broadcast over the space, is one value a row (and not a tensor of the same shape along other axes)."""
        shape = (*([1] * (len(space) - x.rank)), *x.shape)
        return all(e == 1 if i in axes else e == n for i, (e, n) in enumerate(zip(shape, space, strict=True)))

    def accepts(u: Instr) -> bool:
        if u.op == "reduce":
            return u.inputs[0].shape == space and u.attrs["axes"] == axes
        if u.op not in ("map", "cast", "broadcast", "reshape"):
            return False
        if u.out.shape == space:
            return u.op in ("map", "cast") or (u.op == "broadcast" and spread(u.inputs[0]))
        return _dense(u.out.shape) == row

    seed = [first]
    source = flow.producers.get(first.inputs[0])
    if source is not None and source not in taken and source.op in ("map", "cast") and source.out.shape == space:
        others = [u for u in flow.users.get(source.out, ()) if u is not first]
        # `source` may be computed here when nobody outside needs it before this region ends.
        if others and all(flow.order[u] > flow.order[first] for u in others):
            seed = [source, first]
    region = _grow(flow, seed, taken, accepts)
    if len(seed) == 2 and not _convex(flow, region):
        region = _grow(flow, [first], taken, accepts)
    return region


def _convex(flow: Dataflow, region: Region) -> bool:
    mask = flow.mask(region.instrs)
    inside = set(region.instrs)
    return not any(flow.depends(v, mask) for i in region.instrs for v in i.inputs if flow.producers.get(v) not in inside)
