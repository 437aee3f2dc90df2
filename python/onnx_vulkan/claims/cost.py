"""What a block costs on the device and what it would cost on the CPU: whether it is worth the crossing.

A block takes a submit and a wait, copies of what it reads and writes, and its kernels; on the CPU each node, also those that a
loop unrolls to, takes a call and its own work. Either side's work is the longer of its arithmetic and its bytes at that side's
rates. The rates are assumed by the kind of device and counted in cores, not measured, so that a model is cut alike in every
session on a machine. A software device stands for the GPU that it replaces: it has a discrete one's rates.

A symbolic dim counts as the capacity that the options declare for it, else as 1 where its name or its place says that it counts a
batch, else as :data:`ASSUMED_EXTENT`.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from onnx_vulkan.claims.blocks import bodies_of
from onnx_vulkan.codegen.render import INLINE_OPS
from onnx_vulkan.dims import Dim, evaluate, product
from onnx_vulkan.dtypes import DType
from onnx_vulkan.fuse.dataflow import VIEW_OPS
from onnx_vulkan.graph import Graph
from onnx_vulkan.program.ir import Instr, Program, Value
from onnx_vulkan.program.operations import operations

__all__ = ["ASSUMED_EXTENT", "Machine", "Rates", "assumed_numbers", "machine", "not_worth_it"]

ASSUMED_EXTENT = 256
"""The number of a symbolic dim that nobody declares."""

CPU_TYPES = frozenset({DType.F32, DType.F16, DType.I32, DType.I64, DType.BOOL})
"""Element types for which ONNX Runtime's CPU EP is sure to have kernels, or to insert casts."""


@dataclass(frozen=True, slots=True)
class Rates:
    """One side: arithmetic operations and bytes of memory a second, seconds for each dispatch or node."""

    operations: float
    memory: float
    call: float


@dataclass(frozen=True, slots=True)
class Machine:
    """Both sides and the way between them: bytes a second over the link, seconds to enter and leave a block."""

    device: Rates
    cpu: Rates
    link: float
    crossing: float


_DISCRETE = (Rates(10e12, 500e9, 3e-6), 10e9, 60e-6)
_INTEGRATED = (Rates(1e12, 50e9, 5e-6), 20e9, 80e-6)
_KINDS = {"discrete": _DISCRETE, "virtual": _DISCRETE, "cpu": _DISCRETE}


def machine(kind: str = "discrete", cores: int | None = None) -> Machine:
    """What is assumed of a device of this kind (``DeviceInfo.kind``) beside so many cores (None: those of this process)."""
    if cores is None:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    device, link, crossing = _KINDS.get(kind, _INTEGRATED)
    cpu = Rates(50e9 * cores, min(8e9 * cores, 60e9), 3e-6)
    return Machine(device, cpu, link, crossing)


class _Numbers(dict[str, int]):
    """The number of every symbol."""

    def __missing__(self, name: str) -> int:
        return 1 if "batch" in name.lower() else ASSUMED_EXTENT


def assumed_numbers(graph: Graph, declared: Mapping[str, int] | None = None) -> Mapping[str, int]:
    """The number that each symbolic dim counts as."""
    numbers = _Numbers()
    for name in graph.inputs:
        shape = graph.types[name].shape if name in graph.types else None
        if shape is not None and len(shape) > 1 and isinstance(shape[0], Dim):
            numbers[str(shape[0])] = 1
    numbers.update(declared or {})
    return numbers


def not_worth_it(
    graph: Graph, program: Program, node_of: Callable[[Instr], int | None], numbers: Mapping[str, int], rates: Machine
) -> str | None:
    """Why the block *graph* should be left to the CPU, as a sentence, or None.

    *program* is its lowering, *node_of* tells which node an instruction comes from. A block with an operator or an element type
    that the CPU may not have is kept.
    """
    values = {*program.inputs, *program.outputs, *(o for i in program.instrs for o in i.outputs)}
    if any(node.domain for node in graph.nodes) or not {v.dtype for v in values} <= CPU_TYPES:
        return None

    def size(v: Value) -> int:
        return max(0, evaluate(product(v.shape), numbers)) * v.dtype.size

    inside = {i for i, node in enumerate(graph.nodes) if any(bodies_of(node))}
    calls = len(graph.nodes) + sum(node_of(i) in inside and i.op not in VIEW_OPS for i in program.instrs)
    work, kernels = _work(program, node_of, numbers, size)
    copies = sum(map(size, program.inputs)) + sum(size(v) for v in dict.fromkeys(program.outputs))
    on_device = _seconds(work.values(), rates.device) + max(1, kernels) * rates.device.call
    ours = rates.crossing + copies / rates.link + on_device
    theirs = calls * rates.cpu.call + _seconds(work.values(), rates.cpu)
    if ours < theirs:
        return None
    nodes = "this node" if len(graph.nodes) == 1 else f"these {len(graph.nodes)} nodes"
    return (
        f"{nodes} would be a block of about {_text(ours)} ({_text(rates.crossing)} to enter and leave it, "
        f"{_text(copies / rates.link)} of copies, {_text(on_device)} on the device), and the CPU takes about {_text(theirs)}; "
        "the option island=keep claims it all the same."
    )


def _work(
    program: Program, node_of: Callable[[Instr], int | None], numbers: Mapping[str, int], size: Callable[[Value], int]
) -> tuple[dict[int | None, tuple[int, int]], int]:
    """Operations and bytes of each node, and how many kernels there are at least."""
    made_by = {o: node_of(i) for i in program.instrs for o in i.outputs}
    crossing: dict[int | None, dict[Value, None]] = defaultdict(dict)
    arithmetic: dict[int | None, int] = defaultdict(int)
    anchors: set[object] = set()
    for instr in program.instrs:
        node = node_of(instr)
        arithmetic[node] += max(0, operations(instr, numbers))
        for v in instr.inputs:
            if v not in made_by or made_by[v] != node:
                crossing[node][v] = None
                crossing[made_by.get(v)][v] = None
        if instr.op not in INLINE_OPS:
            anchors.add(node if instr.op == "reduce" else instr)
    for v in program.outputs:
        crossing[made_by.get(v)][v] = None
    nodes = {n for n in (*arithmetic, *crossing) if n is not None}
    return {n: (arithmetic[n], sum(map(size, crossing[n]))) for n in nodes}, len(anchors)


def _seconds(work: Collection[tuple[int, int]], rates: Rates) -> float:
    return sum(max(ops / rates.operations, moved / rates.memory) for ops, moved in work)


def _text(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.0f} us"
