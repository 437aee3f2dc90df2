"""Profiles runs: when each kernel ran on the device, what it had to do, and where the host's time went.

Timestamps round every dispatch cost time, so how long a run takes comes from runs without them.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from onnx_vulkan.claims import bodies_of
from onnx_vulkan.device import Device, ProfileEntry
from onnx_vulkan.device.native import lib
from onnx_vulkan.dims import evaluate
from onnx_vulkan.engine.block import Block, Planned
from onnx_vulkan.errors import DeviceError, InvalidInput
from onnx_vulkan.graph import Graph, Node
from onnx_vulkan.inspect.work import Work, WorkModel
from onnx_vulkan.profile import ceilings
from onnx_vulkan.profile.ceilings import Ceilings

__all__ = ["PHASES", "Kernel", "Phase", "Profile", "Span", "after_barriers", "lanes", "profile"]

PHASES = ("plan", "record", "copy_in", "submit", "outputs", "wait", "copy_out")
"""What the host does in a run of a block, in this order (see ``ov_run_times``)."""

WARM_SECONDS = 0.5
PATIENCE_SECONDS = 30.0
"""Runs are not repeated past this: a software driver may need seconds for one."""


@dataclass(frozen=True, slots=True)
class Span:
    """One dispatch of the run that is shown: ``kernel`` is its index in the profile, ``start_ns`` since the start of the run."""

    kernel: int
    label: str
    variant: tuple[int, ...]
    grid: tuple[int, ...]
    start_ns: float
    ns: float

    @property
    def end_ns(self) -> float:
        return self.start_ns + self.ns


@dataclass(frozen=True, slots=True)
class Phase:
    """What the host did for a block, on the time line of the dispatches."""

    name: str
    block: int
    start_ns: float
    ns: float


@dataclass(frozen=True, slots=True)
class Kernel:
    """One step of a block: usually one dispatch, two where the second adds partial sums.

    ``ns`` is the median over the profiled runs; ``floor_ns`` the time that its work takes at the device's ceilings; ``bound``
    what bounds it there: memory, arithmetic or launch.
    """

    block: int
    label: str
    dispatches: int
    work: Work
    arithmetic: str
    ns: float
    floor_ns: float
    bound: str

    @property
    def share_of_roofline(self) -> float:
        """How near to the ceilings the kernel comes. What caches hold is read faster than memory gives it: more than 1."""
        return self.floor_ns / self.ns if self.ns else 0.0


@dataclass(frozen=True, slots=True)
class Profile:
    """The result. ``first_ns`` and ``first_phases`` are of the first run, which makes the plans that loading did not make, with
    their shaders. Times of the host are those of the unprofiled run of median wall time: ``wall_ns`` is the sum of the ``phases``
    and of ``outside_ns``: Python, and ONNX Runtime where it runs the session. ``spans`` and ``shown_phases`` are of
    the profiled run whose time on the device is the median, on one time line; ``device_ns`` is that time, of which kernels run
    ``busy_ns``. ``block_runs``: how often each block runs in one run of the model (a loop's body more than once; what is shown is
    its last). ``node_types``: operators by node name; ``idle_nodes``: the nodes that are in no kernel."""

    device: Device
    kernels: tuple[Kernel, ...]
    spans: tuple[Span, ...]
    shown_phases: tuple[Phase, ...]
    ceilings: Ceilings
    first_ns: float
    first_phases: Mapping[str, float]
    wall_ns: float
    phases: Mapping[str, float]
    outside_ns: float
    device_ns: float
    busy_ns: float
    runs: int
    profiled_runs: int
    block_runs: tuple[int, ...]
    node_types: Mapping[str, str]
    idle_nodes: tuple[str, ...]


def profile(
    run: Callable[[], Any], blocks: Callable[[], Sequence[Block]], runs: int = 10, given: Mapping[str, float] | None = None
) -> Profile:
    """Profile *run*, which runs each of *blocks* (asked for after the first run). *given*: ceilings that are known.

    Raises DeviceError where the device has no timestamps, InvalidInput where nothing runs on it.
    """
    start = time.perf_counter_ns()
    run()
    first = float(time.perf_counter_ns() - start)
    made = [b for b in blocks() if b.planned is not None and b.planned.dispatches]
    if not made:
        raise InvalidInput("nothing of this model is dispatched to the device, so there is nothing to profile.")
    device = made[0].device
    first_phases = _total([b.replay.times() for b in made])
    if not device.info.timestamp_bits:
        raise DeviceError(f"{device.info.name} has no timestamps on its compute queue, so its kernels cannot be timed.")
    patience = time.monotonic() + PATIENCE_SECONDS
    _warm_up(run, device)
    before = [b.replay.info()["runs"] for b in made]
    unprofiled = [_timed(run, made) for _ in _repeat(runs, patience)]
    block_runs = tuple((b.replay.info()["runs"] - n) // len(unprofiled) for b, n in zip(made, before, strict=True))
    wall, phases = sorted(unprofiled, key=lambda t: t[0])[len(unprofiled) // 2]
    shown = _profiled(run, made, runs, time.monotonic() + PATIENCE_SECONDS)
    kernels, limits, owner = _kernels(made, [s[0] for s in shown], given or {})
    entries, times = sorted(shown, key=lambda s: sum(_span_of(e) for e in s[0]))[len(shown) // 2]
    spans, shown_phases = _time_line(made, entries, times, owner)
    totals = _total(phases)
    return Profile(
        device=device,
        kernels=kernels,
        spans=spans,
        shown_phases=shown_phases,
        ceilings=limits,
        first_ns=first,
        first_phases=first_phases,
        wall_ns=wall,
        phases=totals,
        outside_ns=wall - sum(totals.values()),
        device_ns=sum(_span_of(e) for e in entries),
        busy_ns=_covered(spans),
        runs=len(unprofiled),
        profiled_runs=len(shown),
        block_runs=block_runs,
        node_types={node.name: node.label for b in made for node in _all_nodes(b.graph) if node.name},
        idle_nodes=_idle_nodes(made, kernels),
    )


# ------------------------------------------------------------------------------------------------------------ runs


def _repeat(count: int, until: float) -> Iterator[int]:
    """Once at least, then up to *count* times while there is time."""
    for n in range(count):
        if n and time.monotonic() > until:
            return
        yield n


def _warm_up(run: Callable[[], Any], device: Device) -> None:
    """Keep a GPU busy until its clock is up; a software device has none."""
    until = time.monotonic() + (WARM_SECONDS if device.info.kind != "cpu" else 0.0)
    while True:
        run()
        if time.monotonic() >= until:
            return


def _timed(run: Callable[[], Any], blocks: Sequence[Block]) -> tuple[float, list[dict[str, int]]]:
    """The wall time of one run, and the phases of each block's."""
    start = time.perf_counter_ns()
    run()
    wall = time.perf_counter_ns() - start
    return float(wall), [b.replay.times() for b in blocks]


Shown = tuple[list[list[ProfileEntry]], list[dict[str, int]]]


def _total(times: Sequence[Mapping[str, int]]) -> dict[str, float]:
    """The phases of all blocks together."""
    return {name: float(sum(t[f"{name}_ns"] for t in times)) for name in PHASES}


def _profiled(run: Callable[[], Any], blocks: Sequence[Block], runs: int, patience: float) -> list[Shown]:
    """The dispatches and the phases of each block, by profiled run. The first one, which records anew, is left out."""
    for b in blocks:
        b.replay.set_profile(True)
    try:
        run()
        shown: list[Shown] = []
        for _ in _repeat(runs, patience):
            run()
            shown.append(([after_barriers(b.replay.profile()) for b in blocks], [b.replay.times() for b in blocks]))
        return shown
    finally:
        for b in blocks:
            b.replay.set_profile(False)


def after_barriers(entries: Sequence[ProfileEntry]) -> list[ProfileEntry]:
    """The dispatches with starts that are not before the end of those that a barrier makes them wait for: a device may take the
    first timestamp while it still waits. Commands between dispatches are barriers."""
    out: list[ProfileEntry] = []
    done = latest = 0.0
    for n, e in enumerate(entries):
        if n and e.command != entries[n - 1].command + 1:
            done = latest
        start = min(max(e.start_ns, done), e.start_ns + e.ns)
        latest = max(latest, e.start_ns + e.ns)
        out.append(ProfileEntry(e.command, e.label, start, e.start_ns + e.ns - start))
    return out


def _span_of(entries: Sequence[ProfileEntry]) -> float:
    """From a block's first dispatch to the end of its last."""
    return max(e.start_ns + e.ns for e in entries) - min(e.start_ns for e in entries)


# ------------------------------------------------------------------------------------------------------------ kernels

Owner = list[list[int]]
"""By block and dispatch: the index of its kernel."""


def _kernels(
    blocks: Sequence[Block], shown: Sequence[Sequence[Sequence[ProfileEntry]]], given: Mapping[str, float]
) -> tuple[tuple[Kernel, ...], Ceilings, Owner]:
    made: list[tuple[int, str, Work, str, list[int]]] = []
    owner: Owner = []
    for n, block in enumerate(blocks):
        planned = block.planned
        assert planned is not None
        labels = [_kept(launch.kernel.label) for launch, _ in planned.dispatches]
        if any([e.label for e in entries[n]] != labels for entries in shown):
            raise AssertionError("another plan than the one that was made last has run")
        model = _model(block, planned)
        index: dict[int, int] = {}
        owner.append([])
        for at, (launch, step) in enumerate(planned.dispatches):
            key = id(step if step is not None else launch)
            if key not in index:
                index[key] = len(made)
                work = model.copy(launch.kernel) if step is None else model.of(step)
                (shader,) = block.shaders([(launch.kernel, launch.variant.spec, False)])
                kind = ceilings.arithmetic_of(shader.source, work.dtype)
                made.append((n, launch.kernel.label if step is None else step.label, work, kind, []))
            made[index[key]][-1].append(at)
            owner[-1].append(index[key])
    limits = ceilings.measure(blocks[0].device, sorted({kind for _, _, _, kind, _ in made if kind}), given)
    kernels = []
    for n, label, work, kind, places in made:
        ns = statistics.median(sum(entries[n][at].ns for at in places) for entries in shown)
        floor = limits.floor_ns(kind, work.operations, work.bytes)
        bound = limits.bound(kind, work.operations, work.bytes)
        kernels.append(Kernel(n, label, len(places), work, kind, ns, floor, bound))
    return tuple(kernels), limits, owner


def _kept(label: str) -> str:
    """As much of a label as a profile entry has room for."""
    return label.encode()[: lib.OV_PROFILE_LABEL - 1].decode(errors="replace")


def _model(block: Block, planned: Planned) -> WorkModel:
    structure = next(s for s in block.structures if s.steps is planned.request.steps)
    return WorkModel(structure.program, planned.request.numbers)


def _all_nodes(graph: Graph) -> Iterator[Node]:
    """The nodes of a graph and of the bodies in it."""
    yield from graph.nodes
    for body in graph.subgraphs():
        yield from _all_nodes(body)


def _idle_nodes(blocks: Sequence[Block], kernels: Sequence[Kernel]) -> tuple[str, ...]:
    """Nodes that are in no kernel, and nothing of their bodies: folded into constants or into other nodes, arithmetic on shapes,
    views."""
    idle = []
    for n, block in enumerate(blocks):
        busy = {name for k in kernels if k.block == n for name in k.work.nodes}
        for node in block.graph.nodes:
            inner = (i for _, body in bodies_of(node) for i in _all_nodes(body))
            if busy.isdisjoint(i.name or i.op_type for i in (node, *inner)):
                idle.append(node.name or node.op_type)
    return tuple(idle)


# ------------------------------------------------------------------------------------------------------------ time line


def _time_line(
    blocks: Sequence[Block], entries: Sequence[Sequence[ProfileEntry]], times: Sequence[Mapping[str, int]], owner: Owner
) -> tuple[tuple[Span, ...], tuple[Phase, ...]]:
    """Dispatches and the host's phases of one run. The two clocks are not one: a block's last dispatch is taken to have ended
    when the host had waited for it."""
    origin = min(t["start_ns"] for t in times)
    spans: list[Span] = []
    phases: list[Phase] = []
    for n, (block, found, t) in enumerate(zip(blocks, entries, times, strict=True)):
        at = float(t["start_ns"] - origin)
        waited = at
        for name in PHASES:
            ns = float(t[f"{name}_ns"])
            phases.append(Phase(name, n, at, ns))
            at += ns
            if name == "wait":
                waited = at
        shift = waited - max(e.start_ns + e.ns for e in found)
        planned = block.planned
        assert planned is not None
        for e, (launch, _), kernel in zip(found, planned.dispatches, owner[n], strict=True):
            grid = tuple(evaluate(g, planned.request.numbers) for g in launch.variant.grid)
            spans.append(Span(kernel, e.label, launch.variant.spec, grid, e.start_ns + shift, e.ns))
    return tuple(sorted(spans, key=lambda s: s.start_ns)), tuple(phases)


def _covered(spans: Sequence[Span]) -> float:
    """How long at least one of them ran."""
    covered, end = 0.0, float("-inf")
    for s in sorted(spans, key=lambda s: s.start_ns):
        covered += max(0.0, s.end_ns - max(s.start_ns, end))
        end = max(end, s.end_ns)
    return covered


def lanes(spans: Sequence[Span]) -> list[list[Span]]:
    """The spans in rows in which none overlaps the one before it."""
    rows: list[list[Span]] = []
    for s in sorted(spans, key=lambda s: s.start_ns):
        row = next((r for r in rows if r[-1].end_ns <= s.start_ns + 1e-3), None)
        if row is None:
            rows.append([s])
        else:
            row.append(s)
    return rows
