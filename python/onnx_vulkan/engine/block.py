"""A block: one graph that runs wholly on the device, with its structures, plans and weights."""

from __future__ import annotations

import math
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from onnx_vulkan.codegen.kernel import Kernel, Launch, Step
from onnx_vulkan.collector import collector_paused
from onnx_vulkan.device import Cancel, Device, Memory, ReplayBlock, Request, Shader
from onnx_vulkan.dims import Scope, evaluate, symbols_of
from onnx_vulkan.dtypes import SMALL
from onnx_vulkan.engine import ahead
from onnx_vulkan.engine.limits import DeviceLimits
from onnx_vulkan.engine.options import Options
from onnx_vulkan.engine.promotion import Promotion
from onnx_vulkan.engine.structure import Structure, build_structure, name_dims
from onnx_vulkan.errors import InvalidInput, ModelError, OutOfDeviceMemory, Unsupported
from onnx_vulkan.graph import Graph
from onnx_vulkan.lower.driver import HOST_INPUT_LIMIT, lower_graph
from onnx_vulkan.plan.build import PlanDraft, PlanRequest, draft_plan
from onnx_vulkan.plan.table import PlanTables
from onnx_vulkan.plan.verify import verify_plan
from onnx_vulkan.program.fold import constant_name
from onnx_vulkan.program.ir import Value
from onnx_vulkan.tune.tactics import lookup_for

if TYPE_CHECKING:
    from onnx_vulkan.engine.shadow import Checked

__all__ = ["Block", "DeviceLimits", "Planned"]

FEW = 2
"""A plan is at hand when no more pipelines than these are missing (its copies of inputs and outputs, say: small kernels)."""
ROOM = 4
"""Until its best variants exist, a new size runs on variants that serve up to so many times it, so that others find them."""
AHEAD = 16
"""Variants are compiled ahead for inputs of up to so many times the size of the first."""
PIECE = 4
"""Pipelines that the background thread compiles at a time."""
PAUSE = 0.001
"""Seconds between two shaders compiled in the background, for threads that wait for the interpreter's lock."""
PARALLEL_BYTES = 1 << 22
"""Weights of so many bytes together are uploaded by several threads."""
PLANS_KEPT = 64
"""Plans that a compiled model holds at most: as many as a block keeps."""
PROMOTION_SHARE = 0.25
"""The most of the device's memory that the arena of a plan with run-time dims may take on our own initiative."""


@dataclass(frozen=True, slots=True)
class Planned:
    """What the dispatches of a plan are, for profiles: in order, each with the step that it is of (None: a copy of an input or
    output). ``request`` is what the plan was made from."""

    request: PlanRequest
    dispatches: tuple[tuple[Launch, Step | None], ...]


class Stored(Protocol):
    """Plans that a block has from the start (``engine.compiled``)."""

    def tables(self, block: Block) -> Sequence[PlanTables]:
        """The plans with pipelines and weights of the block's device."""
        ...

    def check(self) -> None:
        """Check the graph's constants before they are planned with; raises ModelError."""
        ...


class Block:
    """A graph that runs wholly on one device.

    Construction plans it at once when its input shapes are fixed; otherwise the first run of each shape does. With *stored*
    plans it has those from the start. ``native`` is the shim's ``ov_block *``. Raises RefusedError when a node cannot run.
    """

    def __init__(
        self,
        graph: Graph,
        device: Device,
        options: Options | None = None,
        *,
        external: bool = False,
        stored: Stored | None = None,
    ):
        self.graph = graph
        self.device = device
        self.options = options or Options()
        self.external = external
        self.tactics = lookup_for(self.options.tactics, self.options.tactics_file, device.info)
        self.limits = DeviceLimits.of(device, self.options.precision, self.tactics)
        self.structures: list[Structure] = []
        self.folded: dict[str, Value] = {}
        self.weights: dict[str, Memory] = {}
        self.lease = device.lease_pipelines()
        self.promotion = Promotion(self.options)
        choice = self.options.compile_ahead
        wanted = choice == "on" or (choice == "auto" and device.info.kind != "cpu")
        self.compile_ahead = wanted and not self.options.shadow  # no plan shall run that was not checked
        self.planned: Planned | None = None  # the plan that was made last
        self.checked: list[Checked] = []  # the kernels that a shadow run has found right
        self._made: dict[object, PlanRequest] = {}  # by structure and numbers, the one made last at the end
        self._planned_ahead: set[object] = set()
        self.warm: deque[tuple[Structure, dict[str, int]]] = deque(maxlen=64)
        self._lock = threading.RLock()
        limit = self.options.memory_limit_bytes
        self._limit = device.limit_memory(limit) if limit else None
        self.replay = ReplayBlock(
            device,
            len(graph.inputs),
            self._output_dtypes(),
            self.plan_for,
            contexts=self.options.contexts,
            release_after_run=self.options.release_arena,
        )
        self.plans_loaded = 0
        self._stored = stored
        if stored is not None:
            for tables in stored.tables(self):
                self.replay.add_plan(tables)
                self.plans_loaded += 1
        elif not self.options.shadow and (fixed := self._fixed_shapes()) is not None:  # a shadow run wants the values of a run
            self.replay.add_plan(self.plan(fixed, {}))

    @property
    def native(self) -> Any:
        """The shim's ``ov_block *``."""
        return self.replay.native

    def _output_dtypes(self) -> list[np.dtype[Any]]:
        """Element types of the outputs. What is not declared, and ONNX does not infer (operators of other domains), the lowering
        tells, and the graph is completed with it."""
        types, outputs = self.graph.types, self.graph.outputs
        if any(name not in types or types[name].dtype is None for name in outputs):
            with Scope(None):
                lowered = lower_graph(self.graph, strict=False).outputs
            types.update({n: t for n, t in zip(outputs, lowered, strict=True) if n not in types or types[n].dtype is None})
        dtypes = []
        for name in outputs:
            dtype = types[name].dtype
            if dtype is None:
                raise ModelError(f"the element type of output {name!r} is not known")
            dtypes.append(dtype.numpy)
        return dtypes

    def _fixed_shapes(self) -> dict[str, tuple[int, ...]] | None:
        """The input shapes when the graph and the option ``plan_dims`` fix them all and no input's values are needed to plan."""
        given: Mapping[str, int] = {}
        if self.options.plan_dims:
            given = {**self.options.runtime_dims, **self.options.plan_dims}
        shapes: dict[str, tuple[int, ...]] = {}
        for name in self.graph.inputs:
            t = self.graph.types.get(name)
            if t is None or t.shape is None or not {s for e in t.shape for s in symbols_of(e)} <= given.keys():
                return None
            shapes[name] = tuple(evaluate(e, given) for e in t.shape)
        if any(math.prod(shape) <= HOST_INPUT_LIMIT for shape in shapes.values()):
            with Scope(None):
                if lower_graph(self.graph, strict=False).host_inputs:
                    return None
        return shapes

    # ------------------------------------------------------------------------------------------------ plans
    def plan_for(self, request: Request) -> PlanTables:
        """The plan of a run whose shapes no plan serves yet (called from C, one thread at a time)."""
        shapes = {name: i.shape for name, i in zip(self.graph.inputs, request.inputs, strict=True)}
        host: dict[str, np.ndarray[Any, Any]] = {}
        for name, given in zip(self.graph.inputs, request.inputs, strict=True):
            known = self.graph.types.get(name)
            dtype = known.dtype if known is not None else None
            if dtype is not None and dtype not in SMALL and int(np.prod(given.shape)) <= HOST_INPUT_LIMIT and given.data:
                host[name] = given.array(dtype.numpy)
        with ahead.foreground():
            tables = self.plan(shapes, host)
            if self.options.shadow:
                from onnx_vulkan.engine.shadow import shadow

                self.checked += shadow(self, request)
            return tables

    def plan(self, shapes: Mapping[str, tuple[int, ...]], host: Mapping[str, np.ndarray[Any, Any]]) -> PlanTables:
        """Plan for these input shapes and values of small inputs."""
        with self._lock, collector_paused():
            symbolic, numbers = name_dims(self.graph, shapes)
            host_bytes = {name: array.tobytes() for name, array in host.items()}
            structure = next((s for s in self.structures if s.serves(symbolic, numbers, host_bytes)), None)
            if structure is None:
                if self._stored is not None:
                    self._stored.check()
                structure = build_structure(self.graph, symbolic, numbers, host, self.folded, self.limits)
                self.structures.insert(0, structure)
            runtime = self.promotion.runtime(symbolic, numbers)
            chosen = runtime.all
            if self.compile_ahead and runtime.all != runtime.at_once:
                chosen = runtime.at_once
                what = f"run-time {sorted(runtime.all.items())}"
                self.later(what, self._promote, structure, numbers, runtime.all, urgent=True)
            draft = self.draft(structure, numbers, chosen)
            if self.compile_ahead and numbers and self.missing(draft):
                draft = self.at_hand(structure, draft, improve=chosen is runtime.all)
            if self.compile_ahead and numbers:
                self.later("sizes", self._compile_sizes, structure, numbers)
            return self.finish(draft)

    def draft(self, structure: Structure, numbers: Mapping[str, int], runtime: Mapping[str, int]) -> PlanDraft:
        """The draft of a plan; one for just these sizes where the capacities of run-time dims are too much for the device."""
        try:
            draft = draft_plan(self.request(structure, numbers, runtime))
        except (Unsupported, OutOfDeviceMemory):
            if not runtime:
                raise
            draft = draft_plan(self.request(structure, numbers, {}))
        if self.tactics is not None:
            self.tactics.check()
        return draft

    def at_hand(self, structure: Structure, best: PlanDraft, *, improve: bool) -> PlanDraft:
        """A plan of the same sizes on variants that serve all sizes up to some larger ones: pipelines that exist already
        where there are such, else those of ``ROOM`` times the sizes, which the next larger input will find.

        With *improve* the best plan is made on the background thread.
        """
        request = best.q
        numbers, bound = request.numbers, request.numbers.keys() - request.runtime.keys()
        if improve:
            what = f"better {sorted(numbers.items())} {sorted(request.runtime.items())}"
            first = not any(s is structure for s, _ in self.warm)  # who runs one size gets its plan before those of others
            self.later(what, self._improve, structure, numbers, request.runtime, urgent=first)
        larger = [n for s, n in self.warm if s is structure and all(n.get(name, -1) >= numbers[name] for name in bound)]
        for other in sorted(larger, key=lambda n: sum(n.values()))[:2]:
            quick = draft_plan(replace(request, chosen_at={name: other[name] for name in bound}))
            if self.missing(quick) <= FEW:
                return quick
        larger_ones = {name: ROOM * numbers[name] for name in bound}
        self.warm.append((structure, larger_ones))
        return draft_plan(replace(request, chosen_at=larger_ones))

    def missing(self, draft: PlanDraft) -> int:
        """How many pipelines of a plan do not exist yet."""
        return len(self.device.pipelines_missing(self.shaders(list(draft.wanted))))

    def finish(self, draft: PlanDraft) -> PlanTables:
        """The tables of a plan that runs will use."""
        tables = self.tables(draft)
        self.planned = Planned(draft.q, tuple((launch, draft.step_of.get(launch.kernel)) for launch in draft.dispatched))
        key = (id(draft.q.inputs), *sorted(draft.q.numbers.items()), *sorted(draft.q.runtime.items()))
        self._made.pop(key, None)
        self._made[key] = draft.q
        while len(self._made) > PLANS_KEPT:
            del self._made[next(iter(self._made))]
        return tables

    def tables(self, draft: PlanDraft) -> PlanTables:
        """The tables of a plan, its barriers proved when ``ONNX_VULKAN_VERIFY_PLANS=1`` (the tests run so)."""
        self.upload_weights(draft.constants())
        tables, accesses = draft.finish()
        if os.environ.get("ONNX_VULKAN_VERIFY_PLANS") == "1":
            verify_plan(tables.commands, accesses)
        return tables

    def made(self) -> list[PlanRequest]:
        """What the plans that were made so far were made from, the last one at the end."""
        with self._lock:
            return list(self._made.values())

    def final_draft(self, request: PlanRequest) -> PlanDraft:
        """The draft of the best plan for a request, its weights on the device."""
        with self._lock:
            draft = draft_plan(replace(request, chosen_at=None))
            self.upload_weights(draft.constants())
            return draft

    def request(self, structure: Structure, numbers: Mapping[str, int], runtime: Mapping[str, int]) -> PlanRequest:
        """What the plan of *structure* at these numbers is made from."""
        return PlanRequest(
            steps=structure.steps,
            aliases=structure.aliases,
            inputs=structure.inputs,
            outputs=structure.outputs,
            guards=structure.guards,
            numbers=numbers,
            runtime=runtime,
            limits=self.limits,
            pipelines=self.pipelines,
            weight=self.weight,
            direct_input=self.device.direct_input,
            direct_output=self.device.info.kind in ("cpu", "integrated"),
            external=self.external,
            barrier_everywhere=self.options.barrier_everywhere,
            guard_zones=self.options.guard_zones,
            counted=structure.counted,
            max_allocation=self.device.info.limits.largest_piece,
            max_allocation_name=self.device.info.limits.largest_piece_name,
        )

    # ------------------------------------------------------------------------------------------------ ahead of need
    def later(
        self, what: str, job: Callable[..., Iterator[None]], structure: Structure, *arguments: Any, urgent: bool = False
    ) -> None:
        """Run a job of this block on the background thread, once for each structure, unless the block is gone by then."""
        key = (what, id(structure))
        if key in self._planned_ahead:
            return
        self._planned_ahead.add(key)
        method = weakref.WeakMethod(job)

        def steps() -> Iterator[None]:
            bound = method()
            if bound is not None:
                yield from bound(structure, *arguments)

        ahead.submit(steps, urgent=urgent)

    def _compile_sizes(self, structure: Structure, numbers: Mapping[str, int]) -> Iterator[None]:
        """Compile the variants that serve all sizes up to several times these."""
        other = {name: AHEAD * n for name, n in numbers.items()}
        if all(g.holds(other) for g in structure.guards):
            yield from self._compile(replace(self.request(structure, numbers, {}), chosen_at=other))
            self.warm.append((structure, other))

    def _promote(self, structure: Structure, numbers: Mapping[str, int], runtime: Mapping[str, int]) -> Iterator[None]:
        """Make a plan with run-time dims, and have it serve from now on unless it takes too much memory."""
        budget, _ = self.device.heap()
        yield from self._add(self.request(structure, numbers, runtime), int(budget * PROMOTION_SHARE))

    def _improve(self, structure: Structure, numbers: Mapping[str, int], runtime: Mapping[str, int]) -> Iterator[None]:
        """Make the best plan of sizes that variants at hand have served so far."""
        yield from self._add(self.request(structure, numbers, runtime), 1 << 62)

    def _add(self, request: PlanRequest, most_bytes: int) -> Iterator[None]:
        yield from self._compile(request)
        with self._lock:
            if self.replay.native is None:
                return
            tables = self.finish(draft_plan(request))
            if tables.arena_size <= most_bytes:
                self.replay.add_plan(tables)

    def _compile(self, request: PlanRequest) -> Iterator[None]:
        with self._lock:
            wanted = list(draft_plan(request).wanted)
        shaders = self.shaders(wanted)
        for shader in self.device.pipelines_missing(shaders):
            yield
            self.device.compile_glsl(shader)
            time.sleep(PAUSE)
        for n in range(0, len(shaders), PIECE):
            yield
            if self.replay.native is None:
                return
            self.lease.get(shaders[n : n + PIECE])

    def pipelines(self, wanted: Sequence[tuple[Kernel, tuple[int, ...], bool]]) -> list[int]:
        """Pipeline handles for kernels in given variants."""
        return self.lease.get(self.shaders(wanted))

    def shaders(self, wanted: Sequence[tuple[Kernel, tuple[int, ...], bool]]) -> list[Shader]:
        """Kernels in given variants as the device knows them."""
        nan = [bits for bits in (32, 64) if f"nan_preserve_f{bits}" in self.limits.features]
        controlled = self.limits.features >= {"full_subgroups", "subgroup_size_control"}
        return [
            Shader(
                kernel.source(in_record=in_record, nan_preserve=nan),
                spec,
                8 if in_record else kernel.params.size,
                kernel.label,
                subgroup_size=self.limits.subgroup_size if kernel.fixed_subgroups and controlled else 0,
                full_subgroups=kernel.full_subgroups or (kernel.fixed_subgroups and controlled),
            )
            for kernel, spec, in_record in wanted
        ]

    def upload_weights(self, constants: Iterable[Value]) -> None:
        """Have these constants on the device. Bringing them in order, hashing and copying them runs in several threads."""
        new = {name: v for v in constants if (name := constant_name(v)) not in self.weights}
        if sum(v.data.nbytes for v in new.values() if v.data is not None) < PARALLEL_BYTES:
            return  # not worth the threads: each is uploaded when its address is asked for
        with ThreadPoolExecutor(min(8, os.cpu_count() or 1), "onnx-vulkan-weights") as pool:
            list(pool.map(self.weight, new.values()))

    def weight(self, v: Value) -> int:
        """The device address of a constant, uploaded on first use and shared in the process."""
        name = constant_name(v)
        memory = self.weights.get(name)
        if memory is None:
            assert v.data is not None
            limits = self.device.info.limits
            if v.data.nbytes > limits.largest_piece:
                raise OutOfDeviceMemory(
                    f"The weight {name!r} ({v.dtype.onnx_name} {list(v.data.shape)}) has {v.data.nbytes} bytes, and the device "
                    f"gives at most {limits.largest_piece} bytes in one piece ({limits.largest_piece_name})."
                )
            memory = self.weights[name] = self.device.weights(np.ascontiguousarray(v.data))
        return memory.address

    # ------------------------------------------------------------------------------------------------ runs
    def run(self, feeds: Sequence[Any], cancel: Cancel | None = None) -> list[np.ndarray[Any, Any]]:
        """Run on arrays in the order of the graph's inputs; gives the outputs in order. *cancel*: see ``ReplayBlock.run``."""
        if len(feeds) != len(self.graph.inputs):
            raise InvalidInput(f"{len(feeds)} inputs were given, the model has {len(self.graph.inputs)}")
        return self.replay.run(feeds, cancel=cancel)

    def stats(self) -> dict[str, int]:
        """Counters of this block: runs, plans, dispatches, memory, structures. ``plans_made`` counts without ``plans_loaded``,
        those that came with a compiled model."""
        info = self.replay.info()
        made = info["plans_made"] - self.plans_loaded
        return {**info, "plans_made": made, "plans_loaded": self.plans_loaded, "structures": len(self.structures)}

    def close(self) -> None:
        """Give plans, contexts and weights back."""
        self.replay.close()
        with self._lock:  # the background thread may be planning
            self.structures.clear()
            self.folded.clear()
            for memory in self.weights.values():
                memory.free()
            self.weights.clear()
            self.lease.release()
        if self._limit is not None:
            self._limit.release()
