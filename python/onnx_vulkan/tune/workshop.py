"""A model on a device, with any of its workloads in any variant: checks a variant against the interpreter, and times it.

A variant is timed inside of the model, where caches hold what they will hold later, in turns with the others; it is checked
alone, on data of its own.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from onnx_vulkan.codegen.kernel import Step
from onnx_vulkan.device import Device, ProfileEntry, ReplayBlock, Request
from onnx_vulkan.dtypes import DType
from onnx_vulkan.engine.block import Block
from onnx_vulkan.engine.options import Options
from onnx_vulkan.engine.structure import name_dims
from onnx_vulkan.errors import DeviceError, InvalidInput
from onnx_vulkan.graph import Array, Graph
from onnx_vulkan.lower.driver import HOST_INPUT_LIMIT
from onnx_vulkan.plan.build import PlanDraft, PlanInput, PlanOutput, PlanRequest, draft_plan
from onnx_vulkan.plan.table import PlanTables
from onnx_vulkan.profile.measure import after_barriers
from onnx_vulkan.program.interp import Evaluator
from onnx_vulkan.program.ir import Instr, Value
from onnx_vulkan.tolerance import FP16_MODEL, Tolerance, compare
from onnx_vulkan.tune.workloads import Pinned, Tunable, tunables

__all__ = ["WARM_SECONDS", "Timing", "Workshop", "warm_up"]

WARM_SECONDS = 0.5
"""A GPU that idles has a low clock; it is kept busy so long before anything is timed."""
ROUNDS = 30
"""So many interleaved runs are enough, or what fits ``SECONDS``."""
SECONDS = 0.4
ROOM = 0.3
"""The share of the device's memory that the plans which are timed together may take."""

FP32_KERNEL = Tolerance(1e-5, 1e-4, of_max=1e-5)
"""The tolerance of a single operator; of a long sum whose terms cancel, the largest result says how exact it can be."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Medians over ``rounds`` runs: ``us`` of the workload's kernels together, ``total_us`` of the model on the GPU."""

    us: float
    total_us: float
    rounds: int


@dataclass(frozen=True)
class _Ready:
    """A plan that can run, and where its dispatches come from."""

    replay: ReplayBlock
    draft: PlanDraft

    def times(self) -> tuple[dict[Step, float], float]:
        """The last profiled run: microseconds of each step from its first kernel's start to its last one's end, and of all."""
        entries = after_barriers(self.replay.profile())
        parts: dict[Step, list[ProfileEntry]] = {}
        for e, launch in zip(entries, self.draft.dispatched, strict=True):
            step = self.draft.step_of.get(launch.kernel)
            if step is not None:
                parts.setdefault(step, []).append(e)
        return {step: _span(found) for step, found in parts.items()}, _span(entries)


def _span(entries: Sequence[ProfileEntry]) -> float:
    return (max(e.start_ns + e.ns for e in entries) - min(e.start_ns for e in entries)) / 1e3 if entries else 0.0


def warm_up(run: Any, device: Device) -> None:
    """Keep a GPU busy until its clock is up; a software device has none."""
    until = time.monotonic() + (WARM_SECONDS if device.info.kind != "cpu" else 0.0)
    while time.monotonic() < until:
        run()


class Workshop:
    """The model of *graph* for inputs like *feeds*. Raises DeviceError where the device has no timestamps, and what planning
    raises."""

    def __init__(self, graph: Graph, device: Device, options: Options, feeds: Mapping[str, Array]):
        if not device.info.timestamp_bits:
            raise DeviceError(f"{device.info.name} has no timestamps on its compute queue, so nothing can be timed on it.")
        if options.runtime_dims:
            raise InvalidInput("tactics are for sizes that are known: leave out the option runtime_dims.")
        self.device = device
        self.feeds = [np.ascontiguousarray(feeds[name]) for name in graph.inputs]
        shapes = {name: feeds[name].shape for name in graph.inputs}
        fixed = replace(options, tactics="off", compile_ahead="off", auto_runtime_dims=False, contexts=1)
        self.block = Block(graph, device, fixed)
        host = {n: a for n in graph.inputs if (a := feeds[n]).size <= HOST_INPUT_LIMIT and DType.of(a.dtype).bits >= 8}
        self.block.plan(shapes, host)
        self.structure = self.block.structures[0]
        self.numbers = name_dims(graph, shapes)[1]
        self.producers = self.structure.program.producers()
        self.found: dict[str, Tunable] = {t.workload.digest: t for t in tunables(self.structure, self.numbers, self.block.limits)}
        self._expected: dict[str, tuple[list[list[Array]], list[Array], list[Value]]] = {}

    # ------------------------------------------------------------------------------------------------ plans
    def _request(self, choices: Mapping[str, str]) -> PlanRequest:
        request = self.block.request(self.structure, self.numbers, {})
        return replace(request, limits=replace(self.block.limits, tactics=Pinned(choices)))

    def _ready(self, request: PlanRequest, outputs: Sequence[Any]) -> _Ready:
        draft = draft_plan(request)
        self.block.upload_weights(draft.constants())
        tables, _ = draft.finish()
        replay = ReplayBlock(self.device, len(request.inputs), outputs, _no_other_plan, contexts=1)
        replay.add_plan(tables)
        return _Ready(replay, draft)

    def _model(self, choices: Mapping[str, str]) -> _Ready:
        return self._ready(self._request(choices), self.block.replay.output_dtypes)

    # ------------------------------------------------------------------------------------------------ times
    def shares(self) -> tuple[dict[str, float], float]:
        """Microseconds of each workload's steps under the rule, by digest, and of the model."""
        ready = self._model({})
        try:
            ready.replay.set_profile(True)
            ready.replay.run(self.feeds)
            warm_up(lambda: ready.replay.run(self.feeds), self.device)
            runs: list[tuple[dict[Step, float], float]] = []
            until = time.monotonic() + SECONDS
            while not runs or (len(runs) < ROUNDS and time.monotonic() < until):
                ready.replay.run(self.feeds)
                runs.append(ready.times())
        finally:
            ready.replay.close()
        steps = self.structure.steps
        shares = {
            digest: statistics.median(sum(times.get(steps[n], 0.0) for n in t.steps) for times, _ in runs)
            for digest, t in self.found.items()
        }
        return shares, statistics.median(total for _, total in runs)

    def compile(self, digest: str, choices: Sequence[str]) -> None:
        """Make the pipelines of some variants, in parallel."""
        alone, _, _ = self._alone(self.structure.steps[self.found[digest].steps[0]])
        wanted: dict[Any, None] = {}
        for choice in choices:
            limits = replace(self.block.limits, tactics=Pinned({digest: choice}))
            wanted.update(dict.fromkeys(draft_plan(replace(alone, limits=limits)).wanted))
        self.block.pipelines(list(wanted))

    def time(self, digest: str, choices: Sequence[Mapping[str, str]]) -> list[Timing]:
        """Time the model under several sets of choices (variant by digest), in turns; *digest* is the workload that is asked for.

        The GPU is warmed up first.
        """
        timed: list[Timing] = []
        ready: list[_Ready] = []
        try:
            for some in choices:
                ready.append(self._model(some))
            steps = [self.structure.steps[n] for n in self.found[digest].steps]
            for r in ready:
                r.replay.set_profile(True)
                r.replay.run(self.feeds)
            warm_up(lambda: ready[0].replay.run(self.feeds), self.device)
            runs: list[list[tuple[float, float]]] = [[] for _ in ready]
            until = time.monotonic() + SECONDS * len(ready) / 2
            while not runs[0] or (len(runs[0]) < ROUNDS and time.monotonic() < until):
                for r, times in zip(ready, runs, strict=True):
                    r.replay.run(self.feeds)
                    of_steps, total = r.times()
                    times.append((sum(of_steps.get(s, 0.0) for s in steps), total))
            for times in runs:
                us, total = (statistics.median(column) for column in zip(*times, strict=True))
                timed.append(Timing(us, total, len(times)))
            return timed
        finally:
            for r in ready:
                r.replay.close()

    def together(self) -> int:
        """How many plans can be timed in turns without taking much of the device's memory."""
        draft = draft_plan(self._request({}))
        budget, used = self.device.heap()
        return max(1, min(17, int(ROOM * max(budget - used, 0)) // max(sum(draft.segment_sizes), 1)))

    # ------------------------------------------------------------------------------------------------ checks
    def check(self, digest: str, choice: str, seed: int = 0) -> str | None:
        """Run a workload alone in a variant on random data; why it is wrong, or None.

        Results lie in poisoned memory, and another run on other data comes first: what it leaves is wrong for this one.
        """
        step = self.structure.steps[self.found[digest].steps[0]]
        request, reads, writes = self._alone(step)
        if digest not in self._expected:
            rng = np.random.default_rng([seed, int(digest[:8], 16)])
            first, data = ([self._random(v, rng) for v in reads] for _ in range(2))
            self._expected[digest] = [first, data], self._meaning(step, dict(zip(reads, data, strict=True))), writes
        (first, data), expected, writes = self._expected[digest]
        limits = replace(self.block.limits, tactics=Pinned({digest: choice}))
        ready = self._ready(replace(request, limits=limits), [v.dtype.numpy for v in writes])
        try:
            ready.replay.run(first)
            got = [np.full(e.nbytes, 0xA5, np.uint8).view(e.dtype).reshape(e.shape) for e in expected]
            ready.replay.run(data, got)
        finally:
            ready.replay.close()
        # what is computed in half precision on the way counts, whatever type the results have
        met = {v.dtype for i in self._behind(step.writes, dict.fromkeys(reads)) for v in (*i.inputs, *i.outputs)}
        half = bool(met & {DType.F16, DType.BF16}) or self.block.options.precision == "fast"
        for a, e in zip(got, expected, strict=True):
            difference = compare(a, e, FP16_MODEL if half else FP32_KERNEL)
            if difference.ratio > 1:
                return f"its result is off by {difference.max_abs:.3g}, {difference.ratio:.3g} times what is allowed"
        return None

    def _alone(self, step: Step) -> tuple[PlanRequest, list[Value], list[Value]]:
        """The request of a plan of one step, the values that it is fed with and those that it gives."""
        request = self._request({})
        constants = {v: base for v, base in request.aliases.items() if base.is_const}
        reads = [v for v in dict.fromkeys(step.reads) if not constants.get(v, v).is_const]
        writes = list(dict.fromkeys(step.writes))
        alone = replace(
            request,
            steps=[step],
            aliases=constants,
            inputs=[PlanInput(v, v.shape, 8 * v.dtype.size) for v in reads],
            outputs=[PlanOutput(v, v.shape, 8 * v.dtype.size) for v in writes],
            guards=[],
            counted={},
        )
        return alone, reads, writes

    def _random(self, v: Value, rng: np.random.Generator) -> Array:
        """Random data of a value. Integers of 32 bits and more are 0 or 1: they may be indices."""
        shape = Evaluator(self.numbers).shape(v.shape)
        if v.dtype.is_float:
            return rng.standard_normal(shape).astype(np.float32).astype(v.dtype.numpy)
        if v.dtype.size > 1 or v.dtype is DType.BOOL:
            return rng.integers(0, 2, shape).astype(v.dtype.numpy)
        return rng.integers(0, 256, shape).astype(np.uint8).view(v.dtype.numpy)

    def _meaning(self, step: Step, data: Mapping[Value, Array]) -> list[Array]:
        """What a step has to give, by the interpreter."""
        machine = Evaluator(self.numbers)
        env = {v: machine.enter(a, v.dtype) for v, a in data.items()}
        with np.errstate(all="ignore"):
            for instr in self._behind(step.writes, env):
                xs = [machine.read(env, v) for v in instr.inputs]
                env.update(zip(instr.outputs, machine.run(instr, xs), strict=True))
        only = next(iter(data.values()), None)
        # a step whose result the program does not know copies what it reads
        return [env[v] if v in env else np.asarray(only).reshape(machine.shape(v.shape)) for v in step.writes]

    def _behind(self, writes: Sequence[Value], known: Mapping[Value, Any]) -> list[Instr]:
        """The instructions between *known* values and *writes*, in order."""
        needed: set[Instr] = set()
        waiting = list(writes)
        while waiting:
            v = waiting.pop()
            made = self.producers.get(v)
            if v not in known and made is not None and made not in needed:
                needed.add(made)
                waiting += made.inputs
        return [i for i in self.structure.program.instrs if i in needed]

    def close(self) -> None:
        """Give the device's memory back."""
        self.block.close()


def _no_other_plan(request: Request) -> PlanTables:
    raise AssertionError(f"a plan for other sizes was asked for: {request.inputs}")
