"""Turns steps and numbers into a plan: which variants, where each value lies, which barriers, which words.

Nothing here touches Vulkan: pipelines and weights come in as numbers by two callbacks, and the result is
:class:`~onnx_vulkan.plan.table.PlanTables`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from onnx_vulkan.codegen.kernel import Kernel, Launch, Limits, Step
from onnx_vulkan.codegen.loop import loop_step
from onnx_vulkan.dims import Dim, Extent, Guard, evaluate, product, substitute, symbols_of
from onnx_vulkan.dtypes import DType
from onnx_vulkan.errors import OutOfDeviceMemory, ShapeMismatch, Unsupported
from onnx_vulkan.plan import guard
from onnx_vulkan.plan.arena import ALIGNMENT, place
from onnx_vulkan.plan.table import (
    COMMAND,
    GUARD,
    IO,
    KEY,
    PATCH,
    RELOC,
    Encoder,
    Op,
    PatchKind,
    PlanTables,
    Segment,
    divisor_words,
)
from onnx_vulkan.program.ir import Instr, Value

__all__ = ["PlanDraft", "PlanInput", "PlanOutput", "PlanRequest", "Range", "build_plan", "draft_plan"]

MAX_ELEMENTS = (1 << 31) - (1 << 27)
"""Kernels index elements with 32-bit integers, and the last workgroups of a grid reach past the end."""

IO_UNUSED, IO_HOST_KNOWN = 1, 2

DIRECT_BYTES = 16 * 1024
"""Outputs up to this size are written straight to memory that the host reads, however far that is: a copy would cost more."""


def _copy(source: Value, target: Value, label: str) -> Step:
    """The step that copies one value to another of equal type and shape."""
    instr = Instr("reshape", (source,), (target,), {"shape": target.shape})
    return loop_step(label, [target], {target: instr}, lambda v: v is source, tunable=False)  # it is the plan's, not the model's


@dataclass(frozen=True, eq=False)
class PlanInput:
    """An input of the block: the value that its bytes are, the shape and the bits of an element that the caller sees (a packed
    input is a flat value of bytes), and its bytes when they are part of the key."""

    value: Value
    shape: tuple[Extent, ...]
    bits: int
    host_bytes: bytes | None = None

    @cached_property
    def copied(self) -> tuple[Value, Step]:
        """What stands for the input in host memory, and the step that brings it to the device as ``value``."""
        source = Value(self.value.dtype, self.value.shape, self.value.name)
        return source, _copy(source, self.value, "input")


@dataclass(frozen=True, eq=False)
class PlanOutput:
    """An output of the block: the stored value that holds its bytes (written by a step, no two outputs the same), and the
    shape and the bits of an element that the caller sees."""

    value: Value
    shape: tuple[Extent, ...]
    bits: int

    @cached_property
    def copied(self) -> tuple[Value, Step]:
        """A copy of the value and the step that makes it."""
        copy = Value(self.value.dtype, self.value.shape, self.value.name)
        return copy, _copy(self.value, copy, "output")


@dataclass(frozen=True)
class PlanRequest:
    """All that a plan is made from. ``numbers`` gives every symbol its number; those in ``runtime`` may change from run to run
    up to the capacity given there."""

    steps: Sequence[Step]
    aliases: Mapping[Value, Value]
    inputs: Sequence[PlanInput]
    outputs: Sequence[PlanOutput]
    guards: Sequence[Guard]
    numbers: Mapping[str, int]
    runtime: Mapping[str, int]
    limits: Limits
    pipelines: Callable[[Sequence[tuple[Kernel, tuple[int, ...], bool]]], Sequence[int]]
    """Pipeline handles for (kernel, specialization constants, parameters in the record)."""
    weight: Callable[[Value], int]
    """The device address of a constant."""
    chosen_at: Mapping[str, int] | None = None
    """Choose variants as for a plan whose symbols vary up to these numbers: they are right here too, if not the fastest, and may
    exist already."""
    direct_input: bool = True
    direct_output: bool = True
    external: bool = False
    """Inputs and outputs are reached through the addresses of each run (device-memory mode)."""
    barrier_everywhere: bool = False
    guard_zones: bool = False
    counted: Mapping[Extent, str] = field(default_factory=dict)
    """Numbers that kernels count to although no tensor in memory has so many elements, and the node of each."""
    max_allocation: int = 1 << 62
    """The most bytes that the device gives in one piece."""
    max_allocation_name: str = "maxMemoryAllocationSize"


@dataclass(frozen=True, slots=True)
class Range:
    """Bytes ``start`` to ``end`` of a segment."""

    segment: int
    start: int
    end: int

    def overlaps(self, other: Range) -> bool:
        return self.segment == other.segment and self.start < other.end and other.start < self.end


@dataclass
class _Tables:
    commands: list[tuple[int, ...]] = field(default_factory=list)
    push: bytearray = field(default_factory=bytearray)
    record: bytearray = field(default_factory=bytearray)
    relocs: list[tuple[int, ...]] = field(default_factory=list)
    patches: list[tuple[int, ...]] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)
    hazards: list[tuple[list[Range], list[Range]]] = field(default_factory=list)
    weights: list[tuple[int, int, Value]] = field(default_factory=list)


class _Numbers:
    """The number that an extent is in this plan, run-time symbols at their capacity (``codegen.kernel.At``)."""

    def __init__(self, values: Mapping[str, int], runtime: frozenset[str]):
        self.values = values
        self.runtime = runtime
        self.cache: dict[Extent, int] = {}

    def __call__(self, e: Extent) -> int:
        if not isinstance(e, Dim):
            return e
        n = self.cache.get(e)
        if n is None:
            n = self.cache[e] = evaluate(e, self.values)
        return n

    def varies(self, e: Extent) -> bool:
        """Whether an extent depends on a run-time symbol: it has then any value up to the number that a call gives."""
        return bool(self.runtime) and isinstance(e, Dim) and not symbols_of(e).isdisjoint(self.runtime)


class PlanDraft:
    """A plan whose variants and places are chosen. ``wanted`` are its pipelines; :meth:`finish` makes them and the tables.

    ``dispatched`` are then the launches in the order of the plan's dispatches; ``step_of`` tells whose a kernel is (copies of
    inputs and outputs are the plan's own).
    """

    def __init__(self, request: PlanRequest):
        self.q = request
        self.symbols = {name: n for n, name in enumerate(request.runtime)}
        self.at = _Numbers({**request.numbers, **request.runtime}, frozenset(request.runtime))
        self.choice = self.at
        if request.chosen_at is not None:
            self.choice = _Numbers({**self.at.values, **request.chosen_at}, frozenset(request.numbers))
        self.t = _Tables()
        self.where: dict[Value, tuple[int, int]] = {}
        self.sources = [i.value for i in request.inputs]
        self.input_of: dict[Value, int] = {}
        self.output_of: dict[Value, int] = {}
        self.results: list[Value] = []
        self.launches: list[Launch] = []
        self.step_of: dict[Kernel, Step] = {}
        self.dispatched: list[Launch] = []
        self.encoder = Encoder(self.symbols)
        self.bound: dict[Extent, Extent] = {}
        for e, node in request.counted.items():
            n = self.at(e)
            if n < 0:
                raise ShapeMismatch(f"{node or 'a node'} would have an axis of {n} elements")
            self.check_count(n, f"{node or 'a node'} has {{}} elements or places to count")
        self.schedule()
        self.segment_sizes = self.place()
        self.check_sizes()
        self.wanted: dict[tuple[Kernel, tuple[int, ...], bool], int] = {}
        for launch in self.launches:
            self.wanted.setdefault((launch.kernel, launch.variant.spec, self.needs_record(launch)), len(self.wanted))

    # ------------------------------------------------------------------------------------------------ numbers
    def varies(self, e: Extent) -> bool:
        """Whether an extent depends on a run-time symbol."""
        return self.at.varies(e)

    def bytes_of(self, v: Value) -> int:
        n = self.at(product(v.shape))
        if n > MAX_ELEMENTS:
            self.check_count(n, f"{self.told(v)} has {{}} elements")
        return n * v.dtype.size

    def told(self, v: Value) -> str:
        """A tensor for a message."""
        maker = next((step.label for step in self.q.steps if v in step.writes), "")
        what = f"tensor {v.name!r}" if v.name else f"the result of {maker!r}" if maker else "a tensor"
        return f"{what} ({v.dtype.onnx_name} {[self.at(e) for e in v.shape]})"

    def check_count(self, n: int, what: str) -> None:
        """Raises Unsupported where kernels cannot count to *n*."""
        if n > MAX_ELEMENTS:
            raise Unsupported(
                f"{what.format(n)}, more than the {MAX_ELEMENTS} that kernels can index; use a smaller batch or input size"
            )

    def check_sizes(self) -> None:
        """Raises OutOfDeviceMemory where the device does not give so much memory in one piece."""
        most = self.q.max_allocation
        sizes = dict(zip((Segment.ARENA, Segment.INPUT, Segment.OUTPUT), self.segment_sizes, strict=True))
        names = {Segment.ARENA: "working memory", Segment.INPUT: "inputs", Segment.OUTPUT: "outputs"}
        for segment, size in sizes.items():
            if size <= most or (self.q.external and segment is not Segment.ARENA):
                continue
            v = max((v for v, (s, _) in self.where.items() if s == segment and v.name != "arena"), key=self.bytes_of)
            raise OutOfDeviceMemory(
                f"The {names[segment]} of these input sizes take {size} bytes, and the device gives at most {most} bytes in one "
                f"piece ({self.q.max_allocation_name}). The largest of them, {self.told(v)}, has {self.bytes_of(v)} bytes. Use a "
                f"smaller batch or input size."
            )

    def expression(self, e: Extent) -> int:
        """Where the expression of an extent starts in the plan's code."""
        bound = self.bound.get(e)
        if bound is None:
            bound = self.bound[e] = _bind(e, self.q.numbers, self.symbols)
        return self.encoder.encode(bound)

    # ------------------------------------------------------------------------------------------------ places
    def schedule(self) -> None:
        for step in self.q.steps:
            if all(self.bytes_of(v) == 0 for v in step.writes):
                continue
            launches = step.launches(self.choice, self.q.limits)
            self.launches.extend(launches)
            self.step_of.update((launch.kernel, step) for launch in launches)
        read = {self.base(v) for launch in self.launches for v in launch.kernel.reads}
        for n, i in enumerate(self.q.inputs):
            if self.comes_by_copy(i.value) and i.value in read:
                self.sources[n], step = i.copied
                self.launches[:0] = step.launches(self.at, self.q.limits)
        self.results = [o.value for o in self.q.outputs]
        for n, o in enumerate(self.q.outputs):
            if self.leaves_by_copy(o.value, read):
                self.results[n], step = o.copied
                self.launches.extend(step.launches(self.at, self.q.limits))

    def comes_by_copy(self, v: Value) -> bool:
        """Whether an input is copied to the arena first: kernels would read host memory again and again."""
        return not self.q.external and not self.q.direct_input and self.bytes_of(v) > DIRECT_BYTES

    def leaves_by_copy(self, v: Value, read: Set[Value]) -> bool:
        """Whether an output is made in the arena and copied out at the end.

        It is where memory that the host reads is far away: kernels read outputs again, and write them in an order of their own.
        A store that is not part of a full line then crosses the bus alone (1.1 ms for 2 MB of a detector's map).
        """
        q = self.q
        if q.guard_zones:
            return True
        if q.external or q.direct_output or self.bytes_of(v) == 0:
            return False
        return v in read or self.varies(product(v.shape)) or self.bytes_of(v) > DIRECT_BYTES

    def place(self) -> tuple[int, int, int]:
        """Give every value its place; returns the sizes of the arena, input and output segments."""
        q = self.q
        first: dict[Value, int] = {}
        last: dict[Value, int] = {}
        for n, launch in enumerate(self.launches):
            for v in map(self.base, (*launch.kernel.reads, *launch.kernel.writes)):
                if v.is_const:
                    self.bytes_of(v)  # that it can be indexed
                else:
                    first.setdefault(v, n)
                    last[v] = n
        input_size = 0
        for n, v in enumerate(self.sources):
            self.input_of[v] = n
            self.where[v] = (Segment.INPUT, input_size)
            input_size += -(-max(self.bytes_of(v), 1) // ALIGNMENT) * ALIGNMENT
        output_size = 0
        self.output_offsets: list[int] = []
        for n, v in enumerate(self.results):
            self.output_offsets.append(output_size)
            self.output_of[v] = n
            self.where[v] = (Segment.OUTPUT, output_size)
            output_size += -(-max(self.bytes_of(v), 1) // ALIGNMENT) * ALIGNMENT
        inner = [v for v in first if v not in self.where]
        written = {v for launch in self.launches for v in launch.kernel.writes}
        for v in inner:
            if v not in written and self.bytes_of(v):
                raise AssertionError(f"{v!r} is read by a kernel, but no step writes it")
        if q.guard_zones:
            return self.place_apart(inner), input_size, output_size
        offsets, arena_size = place([(self.bytes_of(v), first[v], last[v]) for v in inner])
        for v, offset in zip(inner, offsets, strict=True):
            self.where[v] = (Segment.ARENA, offset)
        return arena_size, input_size, output_size

    def place_apart(self, inner: Sequence[Value]) -> int:
        """The arena in the guard-zone mode; adds the kernels that poison and check."""
        offsets, zones, size = guard.place_apart([self.bytes_of(v) for v in inner])
        for v, offset in zip(inner, offsets, strict=True):
            self.where[v] = (Segment.ARENA, offset)
        arena = Value(DType.U32, (size // 4,), "arena")
        self.where[arena] = (Segment.ARENA, 0)
        table = guard.zone_table(zones)
        makers = {v: launch.kernel.label for launch in self.launches for v in launch.kernel.writes}
        self.t.labels["guard zone before the first tensor"] = 0
        for n, v in enumerate(inner, 1):
            self.t.labels[f"guard zone after tensor {n - 1}, written by {makers.get(v, 'nobody')}"] = n
        poison, check = guard.poison_kernel(arena, table), guard.check_kernel(arena, table, 1)
        self.launches[:0] = poison.launches(self.at, self.q.limits)
        self.launches += check.launches(self.at, self.q.limits)
        return size

    def base(self, v: Value) -> Value:
        """The value whose bytes *v* has."""
        return self.q.aliases.get(v, v)

    def range_of(self, v: Value) -> Range | None:
        v = self.base(v)
        if v.is_const:
            return None
        segment, offset = self.where[v]
        return Range(int(segment), offset, offset + max(self.bytes_of(v), 1))

    def is_external(self, v: Value) -> bool:
        v = self.base(v)
        if not self.q.external or v.is_const:
            return False
        return v in self.input_of or self.where[v][0] == Segment.OUTPUT

    # ------------------------------------------------------------------------------------------------ commands
    def command(self, op: Op, **fields: int) -> None:
        row = dict.fromkeys(COMMAND.names or (), 0)
        row.update(fields, op=int(op))
        self.t.commands.append(tuple(row.values()))

    def emit(self) -> list[int]:
        """Commands for all launches; returns the pipelines."""
        wanted = self.wanted
        pipelines = list(self.q.pipelines(list(wanted)))
        pending_reads: list[Range] = []
        pending_writes: list[Range] = []
        for launch in self.launches:
            kernel, record = launch.kernel, self.needs_record(launch)
            reads = [r for r in map(self.range_of, kernel.reads) if r is not None]
            writes = [r for r in map(self.range_of, kernel.writes) if r is not None]
            grid = launch.variant.grid
            if any(not self.varies(g) and self.at(g) == 0 for g in grid):
                continue
            if self.q.barrier_everywhere or _conflict(reads, writes, pending_reads, pending_writes):
                self.command(Op.BARRIER)
                pending_reads.clear()
                pending_writes.clear()
            pending_reads += reads
            pending_writes += writes
            self.t.hazards.append((reads, writes))
            self.dispatch(launch, wanted[kernel, launch.variant.spec, record], record)
        return pipelines

    def needs_record(self, launch: Launch) -> bool:
        params = launch.kernel.params
        if params.size > 128:
            return True
        for p in params.entries:
            if p.value is not None:
                if self.is_external(p.value):
                    return True
            elif self.varies(p.extent):
                return True
        return False

    def dispatch(self, launch: Launch, pipeline: int, record: bool) -> None:
        t = self.t
        self.dispatched.append(launch)
        label = t.labels.setdefault(launch.kernel.label, len(t.labels))
        if record:
            t.record += bytes(-len(t.record) % 8)
            base, blob, which = len(t.record), t.record, 1
        else:
            base, blob, which = len(t.push), t.push, 0
        self.write_params(launch.kernel, blob, which)
        push_offset, push_size = base, len(blob) - base
        if record:
            push_offset, push_size = len(t.push), 8
            t.push += bytes(8)
            t.relocs.append((0, push_offset, int(Segment.RECORD), 0, base))
        grid = launch.variant.grid
        if any(map(self.varies, grid)):
            at = len(t.record)
            for g in grid:
                t.patches.append((int(PatchKind.U32), len(t.record), self.expression(g), 0))
                t.record += struct.pack("<I", self.at(g))
            self.command(Op.DISPATCH_INDIRECT, pipeline=pipeline, push_offset=push_offset, push_size=push_size, label=label, a=at)
            return
        x, y, z = map(self.at, grid)
        self.command(Op.DISPATCH, pipeline=pipeline, push_offset=push_offset, push_size=push_size, label=label, x=x, y=y, z=z)

    def write_params(self, kernel: Kernel, blob: bytearray, which: int) -> None:
        t = self.t
        for p in kernel.params.layout():
            at = len(blob)
            if p.kind in ("read", "write"):
                assert p.value is not None
                blob += struct.pack("<Q", self.pointer(p.value, at, which))
            elif p.kind == "error":
                t.relocs.append((which, at, int(Segment.ERROR), 0, 0))
                blob += bytes(8)
            elif p.kind == "label":
                name = p.data.decode() or kernel.label
                blob += struct.pack("<I", t.labels.setdefault(name, len(t.labels)) + 1)
            elif p.kind == "literal":
                blob += p.data
            else:
                self.write_number(p.kind, p.extent, at, blob)

    def pointer(self, v: Value, at: int, which: int) -> int:
        v = self.base(v)
        if v.is_const:
            self.t.weights.append((which, at, v))
            return self.q.weight(v)
        segment, offset = self.where[v]
        if self.is_external(v):
            if v in self.input_of:
                kind, index = PatchKind.EXTERNAL_IN, self.input_of[v]
            else:
                kind, index = PatchKind.EXTERNAL_OUT, self.output_of[v]
            self.t.patches.append((int(kind), at, self.expression(0), index))
            return 0
        self.t.relocs.append((which, at, int(segment), 0, offset))
        return 0

    def write_number(self, kind: str, e: Extent, at: int, blob: bytearray) -> None:
        n = self.at(e)
        if kind == "divisor":
            blob += struct.pack("<III", *divisor_words(n))
        elif kind == "long":
            blob += struct.pack("<q", n)
        else:
            if not -(1 << 31) <= n < 1 << 31:
                raise Unsupported(f"a stride or size of {n} does not fit the kernels' 32-bit indices")
            blob += struct.pack("<i", n)
        if self.varies(e):
            patch = {"divisor": PatchKind.DIVISOR, "long": PatchKind.U64}.get(kind, PatchKind.U32)
            self.t.patches.append((int(patch), at, self.expression(e), 0))

    # ------------------------------------------------------------------------------------------------ edges
    def constants(self) -> dict[Value, None]:
        """The constants that the plan's kernels read."""
        read = (self.base(v) for launch in self.launches for v in launch.kernel.reads)
        return {v: None for v in read if v.is_const}

    @property
    def weight_places(self) -> list[tuple[int, int, Value]]:
        """Where the finished tables hold the address of a constant: 0 for the push blob or 1 for the record, the byte, which."""
        return self.t.weights

    def finish(self) -> tuple[PlanTables, list[tuple[list[Range], list[Range]]]]:
        """The plan, and what each of its dispatches reads and writes (for :mod:`onnx_vulkan.plan.verify`)."""
        return self.tables(), self.t.hazards

    def tables(self) -> PlanTables:
        q, t = self.q, self.t
        arena_size, input_size, output_size = self.segment_sizes
        pipelines = self.emit()
        used = {self.base(v) for launch in self.launches for v in launch.kernel.reads}
        keys: list[tuple[int, int, int]] = []
        inputs: list[tuple[int, ...]] = []
        host = b""
        for i, source in zip(q.inputs, self.sources, strict=True):
            flags = (0 if source in used else IO_UNUSED) | (IO_HOST_KNOWN if i.host_bytes is not None else 0)
            inputs.append((len(i.shape), i.bits, len(keys), flags, self.where[source][1], self.bytes_of(source)))
            host += i.host_bytes or b""
            for e in i.shape:
                keys.append(self.key_row(e))
        outputs: list[tuple[int, ...]] = []
        output_dims: list[int] = []
        for n, o in enumerate(q.outputs):
            outputs.append((len(o.shape), o.bits, len(output_dims), 0, self.output_offsets[n], self.bytes_of(o.value)))
            output_dims += [self.expression(e) for e in o.shape]
        guards = [(self.expression(g.expr), int(g.kind == "nonneg"), int(g.answer), 0) for g in q.guards if self.varies(g.expr)]
        return PlanTables(
            commands=np.array(t.commands, COMMAND),
            keys=np.array(keys, KEY),
            inputs=np.array(inputs, IO),
            outputs=np.array(outputs, IO),
            output_dims=output_dims,
            code=self.encoder.code,
            derived=self.encoder.derived,
            push=bytes(t.push),
            record=bytes(t.record),
            host_keys=host,
            relocs=np.array(t.relocs, RELOC),
            patches=np.array(sorted(t.patches, key=lambda row: row[2]), PATCH),
            guards=np.array(guards, GUARD),
            pipelines=pipelines,
            labels=list(t.labels),
            arena_size=arena_size,
            input_size=input_size,
            output_size=output_size,
            n_symbols=len(self.symbols),
        )

    def key_row(self, e: Extent) -> tuple[int, int, int]:
        if self.varies(e):
            (name,) = symbols_of(e)
            return self.symbols[name], 0, self.q.runtime[name]
        return -1, 0, self.at(e)


def _bind(e: Extent, numbers: Mapping[str, int], runtime: Mapping[str, int]) -> Extent:
    """*e* with every symbol that is not run-time replaced by its number."""
    symbols = symbols_of(e)
    if symbols.isdisjoint(runtime):
        return evaluate(e, numbers)
    return substitute(e, {name: numbers[name] for name in symbols if name not in runtime})


def _conflict(reads: Sequence[Range], writes: Sequence[Range], before_r: Sequence[Range], before_w: Sequence[Range]) -> bool:
    """Whether a launch must wait: it reads or writes what was written, or writes what was read, since the last barrier."""
    return any(a.overlaps(b) for b in before_w for a in (*reads, *writes)) or any(a.overlaps(b) for b in before_r for a in writes)


def draft_plan(request: PlanRequest) -> PlanDraft:
    """The choices of a plan, before any pipeline is asked for.

    Raises Unsupported where a tensor is too large for the kernels' indices, OutOfDeviceMemory where memory is asked for in larger
    pieces than the device has.
    """
    return PlanDraft(request)


def build_plan(request: PlanRequest) -> tuple[PlanTables, list[tuple[list[Range], list[Range]]]]:
    """The plan of a request, see :meth:`PlanDraft.finish`."""
    return draft_plan(request).finish()
