"""Runs a Program on the device by the same trip as a block (simplify, fold, fuse, plan, replay), and checks it on the way."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from onnx_vulkan.device import Device, Memory, ReplayBlock, Request, Shader
from onnx_vulkan.dims import Dim, Guard, Scope
from onnx_vulkan.engine.block import DeviceLimits
from onnx_vulkan.engine.structure import _own_outputs, optimize
from onnx_vulkan.fuse import fuse
from onnx_vulkan.graph import Array
from onnx_vulkan.plan.build import PlanInput, PlanOutput, PlanRequest, Range, build_plan
from onnx_vulkan.plan.table import PlanTables
from onnx_vulkan.plan.verify import find_hazards
from onnx_vulkan.program.builder import Builder
from onnx_vulkan.program.fold import constant_name
from onnx_vulkan.program.interp import symbol_values
from onnx_vulkan.program.ir import Program, Value

__all__ = ["ProgramRun", "build", "check_close", "run_once", "source_of"]


def build(make: Callable[[Builder], Sequence[Value]], numbers: Mapping[str, int] | None = None) -> tuple[Program, list[Guard]]:
    """The program that *make* builds at these numbers, and the guards that it hangs on."""
    builder = Builder()
    with Scope(dict(numbers or {})) as scope:
        outputs = make(builder)
    return builder.finish(outputs), list(scope.guards)


class ProgramRun:
    """A Program made ready for the device at ``numbers``, with a block of its own that replays it.

    ``guards`` are those of the program's making; what the passes decide is added. ``plans`` holds the tables of every plan made,
    each with what its dispatches touch, all proved free of hazards. A run at sizes where a guard does not hold is a ValueError.
    With *larger*, variants are chosen as for so many times the sizes. *options* go to the PlanRequest.
    """

    def __init__(
        self,
        program: Program,
        numbers: Mapping[str, int] | None = None,
        guards: Sequence[Guard] = (),
        *,
        runtime: Mapping[str, int] | None = None,
        larger: int = 0,
        device: Device | None = None,
        **options: Any,
    ):
        self.device = device or Device.get()
        self.limits = DeviceLimits.of(self.device)
        self.original = program
        self.runtime = dict(runtime or {})
        self.larger = larger
        self.options = options
        self.weights: dict[str, Memory] = {}
        self.plans: list[tuple[PlanTables, list[tuple[list[Range], list[Range]]]]] = []
        with Scope(dict(numbers or {})) as scope:
            self.program = optimize(program, {})
            stored, copies = _own_outputs(self.program)
            producers = self.program.producers()
            made = [v for v in dict.fromkeys([*stored, *(v for c in copies for v in c.reads)]) if v in producers]
            self.fused = fuse(Program(self.program.inputs, made, self.program.instrs))
        self.steps = [*self.fused.steps, *copies]
        self.guards = list(dict.fromkeys([*guards, *scope.guards]))
        self.outputs = [PlanOutput(v, o.shape, o.dtype.bits) for v, o in zip(stored, program.outputs, strict=True)]
        dtypes = [o.dtype.numpy for o in program.outputs]
        self.block = ReplayBlock(self.device, len(program.inputs), dtypes, self.plan_for, plan_cap=8)

    def holds(self, numbers: Mapping[str, int]) -> bool:
        """Whether the structure serves these sizes."""
        return all(g.holds(numbers) for g in self.guards)

    def numbers_of(self, shapes: Sequence[Sequence[int]]) -> dict[str, int]:
        arrays = {v.name: np.broadcast_to(np.int8(0), s) for v, s in zip(self.original.inputs, shapes, strict=True)}
        return symbol_values(self.original, arrays)

    def plan_for(self, request: Request) -> PlanTables:
        """Called by the block for input shapes without a plan."""
        numbers = self.numbers_of([i.shape for i in request.inputs])
        if not self.holds(numbers):
            raise ValueError(f"the structure does not serve {numbers}")
        return self.plan(numbers)[0]

    def plan(self, numbers: Mapping[str, int]) -> tuple[PlanTables, list[tuple[list[Range], list[Range]]]]:
        """A plan at these sizes; a hazard in it is an AssertionError."""
        made = build_plan(
            PlanRequest(
                steps=self.steps,
                aliases=self.fused.aliases,
                inputs=[PlanInput(v, v.shape, v.dtype.bits) for v in self.program.inputs],
                outputs=self.outputs,
                guards=self.guards,
                numbers=numbers,
                runtime=self.runtime,
                limits=self.limits,
                pipelines=self.pipelines,
                weight=self.weight,
                chosen_at={s: self.larger * n + 1 for s, n in numbers.items() if s not in self.runtime} if self.larger else None,
                **self.options,
            )
        )
        hazards = find_hazards(made[0].commands, made[1])
        assert not hazards, "\n".join(map(str, hazards))
        self.plans.append(made)
        return made

    def pipelines(self, wanted: Any) -> list[int]:
        nan = [bits for bits in (32, 64) if f"nan_preserve_f{bits}" in self.limits.features]
        return self.device.pipelines(
            [
                Shader(
                    k.source(in_record=record, nan_preserve=nan),
                    spec,
                    8 if record else k.params.size,
                    k.label,
                    full_subgroups=k.full_subgroups,
                )
                for k, spec, record in wanted
            ]
        )

    def weight(self, v: Value) -> int:
        name = constant_name(v)
        if name not in self.weights:
            assert v.data is not None
            self.weights[name] = self.device.weights(np.ascontiguousarray(v.data))
        return self.weights[name].address

    def run(self, feeds: Mapping[str, Array]) -> list[Array]:
        """The outputs for named inputs."""
        return self.block.run([np.asarray(feeds[v.name], order="C") for v in self.program.inputs])

    def close(self) -> None:
        self.block.close()
        for memory in self.weights.values():
            memory.free()
        self.weights.clear()

    def __enter__(self) -> ProgramRun:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def run_once(program: Program, feeds: Mapping[str, Array], **options: Any) -> list[Array]:
    """The outputs of one run of *program*, from a block that is closed again."""
    numbers = symbol_values(program, feeds) if any(isinstance(e, Dim) for v in program.inputs for e in v.shape) else {}
    with ProgramRun(program, numbers, **options) as run:
        return run.run(feeds)


def check_close(p: Any, got: Sequence[Array], want: Sequence[Array]) -> None:
    """Compare the outputs of a ``RandomProgram`` with the interpreter's: equal, or within what is known of their errors."""
    for n, (v, g, w, tolerance) in enumerate(zip(p.program.outputs, got, want, p.tolerances(), strict=True)):
        assert g.shape == w.shape and g.dtype == w.dtype, f"output {n} {v!r}: {g.dtype}{g.shape} for {w.dtype}{w.shape}"
        if not v.dtype.is_float:
            np.testing.assert_array_equal(g, w, err_msg=f"output {n} {v!r}")
            continue
        wide = w.astype(np.float64)
        if tolerance:
            largest = float(np.max(np.abs(wide), initial=0, where=np.isfinite(wide)))
            tolerance += 1e-6 * largest  # the estimate was made at other sizes
        np.testing.assert_allclose(
            g.astype(np.float64), wide, rtol=0, atol=tolerance, equal_nan=True, err_msg=f"output {n} {v!r}"
        )


def source_of(run: ProgramRun) -> str:
    """The GLSL of all kernels, for messages."""
    kernels = [
        launch.kernel for step in run.steps for launch in step.launches(lambda e: e if isinstance(e, int) else 7, run.limits)
    ]
    return "\n\n".join(f"// {k.label}\n{k.source(in_record=False)}" for k in kernels)
