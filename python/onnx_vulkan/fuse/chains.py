"""Finds chains: regions of reductions over small tensors, each of which alone reads what the one before it makes.

See :mod:`onnx_vulkan.codegen.chain` for how they run.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from onnx_vulkan.codegen.chain import is_small
from onnx_vulkan.fuse.dataflow import Dataflow
from onnx_vulkan.fuse.regions import Region
from onnx_vulkan.program.ir import Instr, Value

__all__ = ["find_chains"]

MAX_CHAIN = 8
"""Regions of a chain: bounds the length of its text."""


def _reader(flow: Dataflow, v: Value, owner: Mapping[Instr, Region], stored: Collection[Value]) -> Region | None:
    """The region that alone reads *v*, None where there are others."""
    found: set[Region] = set()
    todo = [v]
    while todo:
        x = todo.pop()
        if x in flow.outputs:
            return None
        for user in flow.users.get(x, ()):
            region = owner.get(user)
            if region is not None:
                found.add(region)
            elif any(out in stored for out in user.outputs):
                return None
            else:
                todo.extend(user.outputs)
    return found.pop() if len(found) == 1 else None


def _walks_few(region: Region) -> bool:
    """Whether a region is reductions over a small tensor."""
    reduces = [i for i in region.instrs if i.op == "reduce"]
    return bool(reduces) and is_small(reduces[0].inputs[0])


def find_chains(
    flow: Dataflow, regions: Sequence[Region], owner: Mapping[Instr, Region], stored: Collection[Value]
) -> list[list[Region]]:
    """The *regions* in chains of one or more. Values that are computed where they are read are in no region."""
    follows: dict[Region, Region] = {}
    for region in regions:
        if len(region.exports) == 1 and is_small(region.exports[0]) and _walks_few(region):
            reader = _reader(flow, region.exports[0], owner, stored)
            if reader is not None and _walks_few(reader) and reader not in follows.values():
                follows[region] = reader
    chains: list[list[Region]] = []
    begun = {second: first for first, second in follows.items()}
    for region in regions:
        if region in begun:
            continue
        chain = [region]
        while chain[-1] in follows:
            chain.append(follows[chain[-1]])
        chains += [chain[n : n + MAX_CHAIN] for n in range(0, len(chain), MAX_CHAIN)]
    return chains
