"""Puts loop kernels of one shape together: what they share is read and computed once, and fewer kernels wait for each other.

Two ways: a value joins the kernel whose results it reads at its own index, and it joins a kernel that reads a tensor that it
reads too, or any while both are small. Neither makes any kernel wait for more than before: all that a joined kernel reads from
others is made earlier than what its members would have waited for.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from onnx_vulkan.dims import Extent, current_scope, evaluate, product
from onnx_vulkan.fuse.dataflow import Dataflow
from onnx_vulkan.fuse.regions import Region
from onnx_vulkan.program.ir import Instr, Value

__all__ = ["join_loops"]

MAX_OUTPUTS = 12
"""Tensors that one loop kernel writes."""

SMALL = 1 << 14
"""Elements up to which (at the sizes of the first run) a kernel costs its launch, and not what it does."""

_Kernel = Region | Value


@dataclass(slots=True)
class _Group:
    """One loop kernel: what it computes, what it reads from memory, and how many kernels stand before it in a row."""

    depth: int
    values: dict[Value, None] = field(default_factory=dict)
    inside: set[Instr] = field(default_factory=set)
    reads: set[Value] = field(default_factory=set)


class _Joiner:
    def __init__(self, flow: Dataflow, regions: Sequence[Region], loops: Sequence[Value], stored: Collection[Value]):
        self.flow = flow
        self.stored = stored
        self.loops = loops
        self.region_of = {i: region for region in regions for i in region.instrs}
        self.kernels: dict[Value, _Kernel] = {v: region for region in regions for i in region.instrs for v in i.outputs}
        self.kernels.update((v, v) for v in loops)
        self.depth: dict[_Kernel, int] = {}
        self.groups: dict[tuple[Extent, ...], list[_Group]] = {}

    def reached(self, roots: Iterable[Value], own: Region | None = None) -> tuple[set[Instr], dict[Value, bool]]:
        """What is computed for *roots* on the way from memory, and what is read there: whether only at the same index."""
        inside: set[Instr] = set()
        reads: dict[Value, bool] = {}
        seen: set[tuple[Value, bool]] = set()
        todo = [(v, True) for v in roots]
        while todo:
            v, same = todo.pop()
            if (v, same) in seen:
                continue
            seen.add((v, same))
            made = self.flow.producers.get(v)
            if made is None or v in self.stored or self.region_of.get(made) not in (None, own):
                if not (v.data is not None and v.data.size == 1):
                    reads[v] = reads.get(v, True) and same
                continue
            inside.add(made)
            todo.extend((x, same and made.op in ("map", "cast")) for x in made.inputs)
        return inside, reads

    def needs(self, kernel: _Kernel) -> tuple[set[Instr], dict[Value, bool]]:
        if isinstance(kernel, Region):
            members = set(kernel.instrs)
            made = {v for i in members for v in i.outputs}
            return self.reached((v for i in members for v in i.inputs if v not in made), kernel)
        instr = self.flow.producers[kernel]
        inside: set[Instr] = {instr}
        reads: dict[Value, bool] = {}
        for x in instr.inputs:
            found, read = self.reached([x])
            inside |= found
            for v, same in read.items():
                reads[v] = reads.get(v, True) and same and instr.op in ("map", "cast")
        return inside, reads

    def run(self, most_inside: int, most_reads: int) -> list[list[Value]]:
        needs: dict[_Kernel, tuple[set[Instr], dict[Value, bool]]] = {}
        todo: list[_Kernel] = [*reversed(self.loops)]
        while todo:
            kernel = todo[-1]
            if kernel in self.depth:
                todo.pop()
                continue
            if kernel not in needs:
                needs[kernel] = self.needs(kernel)
            inside, reads = needs[kernel]
            before = [self.kernels[v] for v in reads if v in self.kernels]
            waits = [k for k in before if k not in self.depth]
            if waits:
                todo.extend(waits)
                continue
            todo.pop()
            if isinstance(kernel, Region):
                self.depth[kernel] = 1 + max((self.depth[k] for k in before), default=0)
            else:
                self.place(kernel, inside, reads, most_inside, most_reads)
        return [list(group.values) for groups in self.groups.values() for group in groups]

    def place(self, v: Value, inside: set[Instr], reads: dict[Value, bool], most_inside: int, most_reads: int) -> None:
        """Put loop value *v* into a kernel that it may join, else into one of its own."""
        groups = self.groups.setdefault(v.shape, [])
        numbers = current_scope().values
        small = numbers is not None and evaluate(product(v.shape), numbers) <= SMALL
        for group in reversed(groups):
            if len(group.values) < MAX_OUTPUTS and self.may_join(group, reads, small):
                if (
                    len(group.inside | inside) > most_inside
                    or len((group.reads | reads.keys()) - group.values.keys()) > most_reads
                ):
                    continue
                break
        else:
            depths = (self.depth[self.kernels[x]] for x in reads if x in self.kernels)
            group = _Group(1 + max(depths, default=0))
            groups.append(group)
        group.values[v] = None
        group.inside |= inside
        group.reads |= reads.keys()
        self.depth[v] = group.depth

    def may_join(self, group: _Group, reads: dict[Value, bool], small: bool) -> bool:
        depths = (self.depth[self.kernels[x]] for x in reads if x in self.kernels and x not in group.values)
        latest = max(depths, default=0)
        own = [same for x, same in reads.items() if x in group.values]
        if own:
            return all(own) and latest < group.depth
        return latest + 1 == group.depth and (small or any(x in group.reads for x in reads if not x.is_const))


def join_loops(
    flow: Dataflow,
    regions: Sequence[Region],
    loops: Sequence[Value],
    stored: Collection[Value],
    most_inside: int,
    most_reads: int,
) -> list[list[Value]]:
    """The values that loop kernels store, by kernel; with at most so many instructions and tensors read in each."""
    return _Joiner(flow, regions, loops, stored).run(most_inside, most_reads)
