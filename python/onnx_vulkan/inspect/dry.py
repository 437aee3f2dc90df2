"""A plan without a device: kernels, variants and places for given inputs, of which nothing is compiled or uploaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from onnx_vulkan.codegen.kernel import Step
from onnx_vulkan.engine.limits import TYPICAL, DeviceLimits
from onnx_vulkan.engine.structure import Structure
from onnx_vulkan.graph import Array, Graph
from onnx_vulkan.plan.build import PlanDraft, PlanRequest, draft_plan
from onnx_vulkan.program.ir import Value
from onnx_vulkan.tune.workloads import structure_at

__all__ = ["DryPlan", "dry_plan"]


@dataclass(frozen=True, slots=True)
class DryPlan:
    """A graph's structure, its plan at the numbers of its symbols, the limits that it was made for, the names of its outputs."""

    structure: Structure
    draft: PlanDraft
    limits: DeviceLimits
    outputs: Sequence[str]

    @property
    def numbers(self) -> Mapping[str, int]:
        """The number of each symbol."""
        return self.draft.q.numbers

    def steps(self) -> Sequence[Step]:
        """The steps that compute something at these numbers, in order; copies of inputs and outputs are not among them."""
        return list(dict.fromkeys(s for launch in self.draft.launches if (s := self.draft.step_of.get(launch.kernel))))

    def constants(self) -> Sequence[Value]:
        """The constants that kernels read."""
        return list(self.draft.constants())


def dry_plan(
    graph: Graph, feeds: Mapping[str, Array], limits: DeviceLimits = TYPICAL, direct: tuple[bool, bool] = (False, False)
) -> DryPlan:
    """Plan *graph* for these inputs; of arrays with more than a few elements only the shape matters.

    *direct*: whether kernels read inputs, and whether they write outputs, where the host has them; else copies are made.

    Raises RefusedError when a node cannot run, ShapeMismatch when the shapes break a constraint of the model, Unsupported when
    a tensor has more elements than kernels can index.
    """
    full = {name: feeds[name] if name in feeds else graph.defaults[name] for name in graph.inputs}
    structure, numbers = structure_at(graph, full, limits)
    request = PlanRequest(
        steps=structure.steps,
        aliases=structure.aliases,
        inputs=structure.inputs,
        outputs=structure.outputs,
        guards=structure.guards,
        numbers=numbers,
        runtime={},
        limits=limits,
        pipelines=lambda wanted: [0] * len(wanted),
        weight=lambda v: 0,
        direct_input=direct[0],
        direct_output=direct[1],
        counted=structure.counted,
    )
    return DryPlan(structure, draft_plan(request), limits, graph.outputs)
