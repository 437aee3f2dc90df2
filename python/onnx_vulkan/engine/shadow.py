"""Shadow runs: every kernel of a plan is run by itself on the device and compared with the interpreter, on the values of a run.

The operands of a kernel are the interpreter's, so an error is seen in the kernel in which it arises and in no other. It is the
kernels of the plan that are tried, in the variants that its sizes choose: what is fused stays fused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from onnx_vulkan.codegen.kernel import Step
from onnx_vulkan.device import ReplayBlock
from onnx_vulkan.device.replay import Request
from onnx_vulkan.engine.structure import Structure
from onnx_vulkan.errors import InvalidInput, OnnxVulkanError, ShadowMismatch
from onnx_vulkan.graph import Array
from onnx_vulkan.inspect.work import WorkModel
from onnx_vulkan.plan.build import PlanInput, PlanOutput, PlanRequest, draft_plan
from onnx_vulkan.program.interp import Evaluator
from onnx_vulkan.program.ir import Instr, Value
from onnx_vulkan.tolerance import FP16_MODEL, FP32_MODEL, Tolerance, compare, no_worse_than, shares

if TYPE_CHECKING:
    from onnx_vulkan.engine.block import Block

__all__ = ["Checked", "shadow"]

NOISE = (1e-6, 4e-6, 1.6e-5)
"""Relative errors that float32 arithmetic may make before it rounds to steps, and how much of it is tried."""
TRIALS = 16
"""How often each is tried."""


@dataclass(frozen=True, slots=True)
class Checked:
    """One kernel that was compared: its label, the ONNX nodes that it computes, and the worst element's share of the tolerance
    (of the interpreter in float32, or at most 1 where the kernel is as near to float64 as that is)."""

    label: str
    nodes: tuple[str, ...]
    ratio: float


def shadow(block: Block, request: Request) -> list[Checked]:
    """Check every kernel of the plan that *block* made last, on the inputs of *request*.

    Raises ShadowMismatch at the first kernel whose result leaves the tolerance, InvalidInput where inputs lie in memory that
    the host cannot see.
    """
    planned = block.planned
    assert planned is not None
    structure = next(s for s in block.structures if s.steps is planned.request.steps)
    return _Shadow(block, structure, planned.request).check(request)


class _Shadow:
    def __init__(self, block: Block, structure: Structure, planned: PlanRequest):
        self.block, self.structure, self.planned = block, structure, planned
        self.machine = Evaluator(planned.numbers)
        self.work = WorkModel(structure.program, planned.numbers)
        self.values: dict[Value, Array] = {}
        self.outputs = {o.value: v for o, v in zip(structure.outputs, structure.program.outputs, strict=True)}

    def check(self, request: Request) -> list[Checked]:
        for given, known in zip(request.inputs, self.structure.inputs, strict=True):
            shape = self.machine.shape(known.value.shape)
            if not given.data and np.prod(shape):
                raise InvalidInput(
                    "a shadow run reads its inputs, but one lies in memory that the host cannot see: give it in host memory."
                )
            self.values[known.value] = replace(given, shape=shape).array(known.value.dtype.numpy)
        steps = list(self.structure.steps)
        last = {self._stored(v): n for n, step in enumerate(steps) for v in step.reads}
        done = []
        for n, step in enumerate(steps):
            done.append(self._step(step))
            for v in {self._stored(v) for v in step.reads} | set(step.writes):
                if last.get(v, n) <= n:
                    self.values.pop(v, None)
        return done

    def _step(self, step: Step) -> Checked:
        """Compare one kernel; keeps the interpreter's values of what it writes."""
        reads = {v: self._read(v) for v in step.reads if v.data is None}
        made = [v for v in step.writes if v in self.work.producers]
        inside = self.work.instructions(reads, made)
        want = self._evaluate(self.machine, reads, inside, step)
        nodes = self.work.of(step).nodes
        try:
            got = self._run(step, reads)
        except OnnxVulkanError as e:
            raise ShadowMismatch(f"the kernel of {_named(step, nodes)} failed: {e}") from e
        allowed = self._tolerance(step, inside)
        found = [compare(g, w, allowed) for g, w in zip(got, want, strict=True)]
        if any(f.ratio > 1 for f in found):
            exact = self._evaluate(Evaluator(self.planned.numbers, float64=True), reads, inside, step)
            if not no_worse_than(got, want, exact, allowed) and not self._excused(got, want, reads, inside, step, allowed):
                n = next(n for n, f in enumerate(found) if f.ratio > 1)
                raise ShadowMismatch(
                    f"the kernel of {_named(step, nodes)} is wrong: {_worst(got[n], want[n])}, says the interpreter of the same "
                    f"operands."
                )
        worst = max((min(f.ratio, 1.0) for f in found), default=0.0)
        self.values.update(zip(step.writes, want, strict=True))
        return Checked(step.label, nodes, worst)

    def _stored(self, v: Value) -> Value:
        return self.structure.aliases.get(v, v)

    def _read(self, v: Value) -> Array:
        """What a kernel finds in memory for *v*: its own value, or that of which it is a reshape."""
        return self.values[self._stored(v)].reshape(self.machine.shape(v.shape))

    def _excused(
        self,
        got: Sequence[Array],
        want: Sequence[Array],
        reads: Mapping[Value, Array],
        inside: Sequence[Instr],
        step: Step,
        allowed: Tolerance,
    ) -> bool:
        """Whether each element that is off is what the interpreter gives with other last digits somewhere on the way.

        A sum in another order may come to lie on the other side of a half, where it is rounded to a step, or of a threshold.
        """
        left = [g.shape == w.shape and shares(g, w, allowed) > 1 for g, w in zip(got, want, strict=True)]
        for trial in range(TRIALS * len(NOISE)):
            if not any(np.any(off) for off in left):
                return True
            noise = np.random.default_rng(trial), NOISE[trial % len(NOISE)]
            other = self._evaluate(self.machine, reads, inside, step, noise)
            left = [off & (shares(g, w, allowed) > 1) for off, g, w in zip(left, got, other, strict=True)]
        return not any(np.any(off) for off in left)

    def _evaluate(
        self,
        machine: Evaluator,
        reads: Mapping[Value, Array],
        inside: Sequence[Instr],
        step: Step,
        noise: tuple[np.random.Generator, float] | None = None,
    ) -> list[Array]:
        """The interpreter's values of what *step* writes.

        *noise*: a source of random numbers and the relative error that every result of float arithmetic gets; whole numbers are
        left as they are.
        """
        env = {v: machine.enter(a, v.dtype) for v, a in reads.items()}
        with np.errstate(all="ignore"):
            for instr in inside:
                made = machine.run(instr, [machine.read(env, v) for v in instr.inputs])
                if noise is not None:
                    made = [_disturbed(a, *noise) for a in made]
                env.update(zip(instr.outputs, made, strict=True))
        return [env[v] if v in env else self._copied(machine, env, v) for v in step.writes]

    def _copied(self, machine: Evaluator, env: Mapping[Value, Array], v: Value) -> Array:
        """What a copy at the block's edge holds: an output of the program under its reshapes, or a constant."""
        source = self.outputs[v]
        while source not in env and not source.is_const:
            source = self.work.producers[source].inputs[0]
        return machine.read(env, source).reshape(machine.shape(v.shape))

    def _run(self, step: Step, reads: Mapping[Value, Array]) -> list[Array]:
        """The step alone on the device."""
        shapes = {v: self.machine.shape(v.shape) for v in (*reads, *step.writes)}
        request = replace(
            self.planned,
            steps=[step],
            aliases={},
            inputs=[PlanInput(v, shapes[v], v.dtype.bits) for v in reads],
            outputs=[PlanOutput(v, shapes[v], v.dtype.bits) for v in step.writes],
            guards=[],
            runtime={},
            external=False,
        )
        alone = ReplayBlock(self.block.device, len(reads), [v.dtype.numpy for v in step.writes], _no_plan, contexts=1)
        try:
            alone.add_plan(self.block.tables(draft_plan(request)))
            return alone.run([np.asarray(a, order="C") for a in reads.values()])
        finally:
            alone.close()

    def _tolerance(self, step: Step, inside: Sequence[Instr]) -> Tolerance:
        touched = {*step.reads, *step.writes, *(v for i in inside for v in i.outputs)}
        halves = self.block.options.precision == "fast" or any(v.dtype.is_float and v.dtype.size < 4 for v in touched)
        return FP16_MODEL if halves else FP32_MODEL


def _disturbed(array: Array, rng: np.random.Generator, size: float) -> Array:
    if array.dtype.kind != "f" or np.array_equal(array, np.rint(array)):
        return array
    factor: Any = 1 + size * rng.standard_normal(array.shape)
    return np.asarray(array * factor, array.dtype)


def _no_plan(request: Request) -> Any:
    raise AssertionError("the plan of a kernel of a shadow run does not serve its own shapes")


def _named(step: Step, nodes: Sequence[str]) -> str:
    return ", ".join(map(repr, nodes[:6])) + (f" and {len(nodes) - 6} more nodes" if len(nodes) > 6 else "") or repr(step.label)


def _worst(got: Array, want: Array) -> str:
    """The element that is furthest off, in words."""
    if got.shape != want.shape or not got.size:
        return f"its shape is {list(got.shape)} and should be {list(want.shape)}"
    a, b = got.astype(np.float64), want.astype(np.float64)
    with np.errstate(all="ignore"):
        distance = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, np.nan_to_num(np.abs(a - b), nan=np.inf, posinf=np.inf))
    at = np.unravel_index(int(distance.argmax()), got.shape)
    return f"element {[int(i) for i in at]} is {got[at]} and should be {want[at]}"
