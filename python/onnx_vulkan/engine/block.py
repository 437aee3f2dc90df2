"""A block: one graph that runs wholly on the device, with its structures, plans and weights."""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from onnx_vulkan.codegen.kernel import Kernel
from onnx_vulkan.device import Device, Memory, ReplayBlock, Request, Shader
from onnx_vulkan.dims import Dim
from onnx_vulkan.engine import ahead
from onnx_vulkan.engine.options import Options
from onnx_vulkan.engine.promotion import Promotion
from onnx_vulkan.engine.structure import Structure, build_structure, name_dims
from onnx_vulkan.errors import InvalidInput, ModelError
from onnx_vulkan.graph import Graph
from onnx_vulkan.lower.driver import HOST_INPUT_LIMIT
from onnx_vulkan.plan.build import PlanInput, PlanRequest, build_plan, wanted_pipelines
from onnx_vulkan.plan.table import PlanTables
from onnx_vulkan.plan.verify import verify_plan
from onnx_vulkan.program.fold import constant_name
from onnx_vulkan.program.ir import Value

__all__ = ["Block", "DeviceLimits"]

SCALES = (2.0, 0.5, 4.0, 0.25)
"""Relative sizes whose variants are compiled ahead."""
PIECE = 4
"""Pipelines that the background thread compiles at a time."""
PROMOTION_SHARE = 0.25
"""The most of the device's memory that the arena of a plan with run-time dims may take on our own initiative."""


@dataclass(frozen=True, slots=True)
class DeviceLimits:
    """What kernels may know of a device (``codegen.kernel.Limits``)."""

    subgroup_size: int
    max_workgroup_invocations: int
    max_shared_memory: int
    features: frozenset[str]

    @staticmethod
    def of(device: Device) -> DeviceLimits:
        """The limits of an opened device."""
        limits = device.info.limits
        return DeviceLimits(limits.subgroup_size, limits.workgroup_invocations, limits.shared_memory, device.info.features)


class Block:
    """A graph that runs wholly on one device.

    Construction plans it at once when its input shapes are fixed; otherwise the first run of each shape does. ``native`` is
    the shim's ``ov_block *``. Raises RefusedError when a node cannot run.
    """

    def __init__(self, graph: Graph, device: Device, options: Options | None = None, *, external: bool = False):
        self.graph = graph
        self.device = device
        self.options = options or Options()
        self.external = external
        self.limits = DeviceLimits.of(device)
        self.structures: list[Structure] = []
        self.folded: dict[str, Value] = {}
        self.weights: dict[str, Memory] = {}
        self.promotion = Promotion(self.options)
        ahead_of_need = self.options.compile_ahead
        self.compile_ahead = device.info.kind != "cpu" if ahead_of_need is None else ahead_of_need
        self._planned_ahead: set[object] = set()
        self.warm: deque[tuple[Structure, dict[str, int]]] = deque(maxlen=64)
        self._lock = threading.RLock()
        if self.options.memory_limit_bytes:
            device.set_memory_limit(self.options.memory_limit_bytes)
        dtypes = [self._dtype(name) for name in graph.outputs]
        self.replay = ReplayBlock(
            device,
            len(graph.inputs),
            dtypes,
            self.plan_for,
            contexts=self.options.contexts,
            release_after_run=self.options.release_arena,
        )
        fixed = self._fixed_shapes()
        if fixed is not None:
            self.replay.add_plan(self.plan(fixed, {}))

    @property
    def native(self) -> Any:
        """The shim's ``ov_block *``."""
        return self.replay.native

    def _dtype(self, name: str) -> np.dtype[Any]:
        known = self.graph.types.get(name)
        if known is None or known.dtype is None:
            raise ModelError(f"the element type of output {name!r} is not known")
        return known.dtype.numpy

    def _fixed_shapes(self) -> dict[str, tuple[int, ...]] | None:
        """The input shapes when the graph fixes them all and no input's values are needed to plan."""
        shapes: dict[str, tuple[int, ...]] = {}
        for name in self.graph.inputs:
            t = self.graph.types.get(name)
            if t is None or t.shape is None or any(isinstance(e, Dim) for e in t.shape):
                return None
            if (
                t.dtype is not None
                and t.dtype.is_int
                and int(np.prod([int(e) for e in t.shape if not isinstance(e, Dim)])) <= HOST_INPUT_LIMIT
            ):
                return None
            shapes[name] = tuple(int(e) for e in t.shape if not isinstance(e, Dim))
        return shapes

    # ------------------------------------------------------------------------------------------------ plans
    def plan_for(self, request: Request) -> PlanTables:
        """The plan of a run whose shapes no plan serves yet (called from C, one thread at a time)."""
        shapes = {name: i.shape for name, i in zip(self.graph.inputs, request.inputs, strict=True)}
        host: dict[str, np.ndarray[Any, Any]] = {}
        for name, given in zip(self.graph.inputs, request.inputs, strict=True):
            known = self.graph.types.get(name)
            dtype = known.dtype if known is not None else None
            if dtype is not None and int(np.prod(given.shape)) <= HOST_INPUT_LIMIT and given.data:
                host[name] = given.array(dtype.numpy)
        return self.plan(shapes, host)

    def plan(self, shapes: Mapping[str, tuple[int, ...]], host: Mapping[str, np.ndarray[Any, Any]]) -> PlanTables:
        """Plan for these input shapes and values of small inputs."""
        with self._lock:
            symbolic, numbers = name_dims(self.graph, shapes)
            host_bytes = {name: array.tobytes() for name, array in host.items()}
            structure = next((s for s in self.structures if s.serves(symbolic, numbers, host_bytes)), None)
            if structure is None:
                structure = build_structure(self.graph, symbolic, numbers, host, self.folded)
                self.structures.insert(0, structure)
                if self.compile_ahead and numbers:
                    self.later("sizes", self._compile_sizes, structure, numbers)
            runtime = self.promotion.runtime(symbolic, numbers)
            chosen = runtime.all
            if self.compile_ahead and runtime.all != runtime.at_once:
                chosen = runtime.at_once
                self.later(f"run-time {sorted(runtime.all.items())}", self._promote, structure, numbers, runtime.all)
            request = self.request(structure, numbers, chosen)
            if self.compile_ahead and not self.ready(request):
                request = self.at_hand(structure, request)
            tables = self.tables(request)
            self.warm.append((structure, dict(numbers)))
            return tables

    def at_hand(self, structure: Structure, request: PlanRequest) -> PlanRequest:
        """A request whose pipelines exist already, with variants that were chosen for larger sizes, and the better plan made
        later; *request* itself where there are none."""
        numbers = request.numbers
        larger = [n for s, n in self.warm if s is structure and all(n[name] >= numbers[name] for name in numbers)]
        for other in sorted(larger, key=lambda n: sum(n.values()))[:3]:
            quick = replace(request, chosen_at=other)
            if self.ready(quick):
                what = f"better {sorted(numbers.items())} {sorted(request.runtime.items())}"
                self.later(what, self._improve, structure, numbers, request.runtime)
                return quick
        return request

    def ready(self, request: PlanRequest) -> bool:
        """Whether all pipelines of a request exist."""
        return self.device.pipelines_ready(self.shaders(wanted_pipelines(request)))

    def tables(self, request: PlanRequest) -> PlanTables:
        """The plan of a request, its barriers proved when ``ONNX_VULKAN_VERIFY_PLANS=1`` (the tests run so)."""
        tables, accesses = build_plan(request)
        if os.environ.get("ONNX_VULKAN_VERIFY_PLANS") == "1":
            verify_plan(tables.commands, accesses)
        return tables

    def request(self, structure: Structure, numbers: Mapping[str, int], runtime: Mapping[str, int]) -> PlanRequest:
        """What the plan of *structure* at these numbers is made from."""
        return PlanRequest(
            steps=structure.steps,
            aliases=structure.aliases,
            inputs=[PlanInput(v, structure.host_values.get(v.name)) for v in structure.inputs],
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
        )

    # ------------------------------------------------------------------------------------------------ ahead of need
    def later(self, what: str, job: Callable[..., Iterator[None]], structure: Structure, *arguments: Any) -> None:
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

        ahead.submit(steps)

    def _compile_sizes(self, structure: Structure, numbers: Mapping[str, int]) -> Iterator[None]:
        """Compile the variants that smaller and larger inputs will choose."""
        for scale in SCALES:
            other = {name: max(round(n * scale), 1) for name, n in numbers.items()}
            if all(g.holds(other) for g in structure.guards):
                yield from self._compile(self.request(structure, other, {}))
                self.warm.append((structure, other))

    def _promote(self, structure: Structure, numbers: Mapping[str, int], runtime: Mapping[str, int]) -> Iterator[None]:
        """Make a plan with run-time dims, and have it serve from now on."""
        request = self.request(structure, numbers, runtime)
        yield from self._compile(request)
        with self._lock:
            if self.replay.native is None:
                return
            tables = self.tables(request)
            budget, _ = self.device.heap()
            if tables.arena_size <= budget * PROMOTION_SHARE:
                self.replay.add_plan(tables)

    def _improve(self, structure: Structure, numbers: Mapping[str, int], runtime: Mapping[str, int]) -> Iterator[None]:
        """Make the plan of sizes that were served by variants at hand."""
        request = self.request(structure, numbers, runtime)
        yield from self._compile(request)
        with self._lock:
            if self.replay.native is not None:
                self.replay.add_plan(self.tables(request))

    def _compile(self, request: PlanRequest) -> Iterator[None]:
        with self._lock:
            wanted = wanted_pipelines(request)
        for n in range(0, len(wanted), PIECE):
            yield
            if self.replay.native is None:
                return
            self.pipelines(wanted[n : n + PIECE])

    def pipelines(self, wanted: Sequence[tuple[Kernel, tuple[int, ...], bool]]) -> list[int]:
        """Pipeline handles for kernels in given variants."""
        return self.device.pipelines(self.shaders(wanted))

    def shaders(self, wanted: Sequence[tuple[Kernel, tuple[int, ...], bool]]) -> list[Shader]:
        """Kernels in given variants as the device knows them."""
        nan = "nan_preserve_f32" in self.limits.features
        return [
            Shader(
                kernel.source(in_record=in_record, nan_preserve=nan),
                spec,
                8 if in_record else kernel.params.size,
                kernel.label,
            )
            for kernel, spec, in_record in wanted
        ]

    def weight(self, v: Value) -> int:
        """The device address of a constant, uploaded on first use and shared in the process."""
        name = constant_name(v)
        memory = self.weights.get(name)
        if memory is None:
            assert v.data is not None
            memory = self.weights[name] = self.device.weights(np.ascontiguousarray(v.data))
        return memory.address

    # ------------------------------------------------------------------------------------------------ runs
    def run(self, feeds: Sequence[Any]) -> list[np.ndarray[Any, Any]]:
        """Run on arrays in the order of the graph's inputs; gives the outputs in order."""
        if len(feeds) != len(self.graph.inputs):
            raise InvalidInput(f"{len(feeds)} inputs were given, the model has {len(self.graph.inputs)}")
        return self.replay.run(feeds)

    def stats(self) -> dict[str, int]:
        """Counters of this block: runs, plans, dispatches, memory, structures."""
        return {**self.replay.info(), "structures": len(self.structures)}

    def close(self) -> None:
        """Give plans, contexts and weights back."""
        self.replay.close()
        self.structures.clear()
        self.folded.clear()
        for memory in self.weights.values():
            memory.free()
        self.weights.clear()
