"""What of a model can be tuned: its workloads at given shapes, with the variants that each may run in. Needs no GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from onnx_vulkan.codegen.choices import Workload
from onnx_vulkan.codegen.kernel import At
from onnx_vulkan.dims import Dim, Extent, Scope, evaluate
from onnx_vulkan.dtypes import DType
from onnx_vulkan.engine.limits import TYPICAL, DeviceLimits
from onnx_vulkan.engine.structure import Structure, build_structure, name_dims
from onnx_vulkan.graph import Array, Graph
from onnx_vulkan.lower.driver import HOST_INPUT_LIMIT

__all__ = ["Pinned", "Tunable", "inventory", "structure_at", "tunables"]


@dataclass(frozen=True, slots=True)
class Tunable:
    """A workload of a model: the rule's choice and all legal ones by name, and which steps of the structure it is of."""

    workload: Workload
    default: str
    legal: tuple[str, ...]
    steps: tuple[int, ...]
    labels: tuple[str, ...]


class Pinned:
    """Tactics that name a variant for some workloads, by digest (``codegen.choices.Tactics``); ``seen`` are all that asked."""

    def __init__(self, choices: Mapping[str, str] | None = None):
        self.choices = dict(choices or {})
        self.seen: dict[str, tuple[Workload, str, tuple[str, ...]]] = {}

    def choice(self, workload: Workload, default: str, legal: Sequence[str]) -> str:
        """The pinned variant, else *default*."""
        self.seen[workload.digest] = workload, default, tuple(legal)
        return self.choices.get(workload.digest, default)


def structure_at(graph: Graph, feeds: Mapping[str, Array], limits: DeviceLimits) -> tuple[Structure, dict[str, int]]:
    """What fusion makes of a graph for inputs like *feeds*, and the numbers of its symbols.

    Raises RefusedError when a node cannot be lowered, ShapeMismatch when the shapes break a constraint of the model.
    """
    symbolic, numbers = name_dims(graph, {name: feeds[name].shape for name in graph.inputs})
    host = {n: a for n in graph.inputs if (a := feeds[n]).size <= HOST_INPUT_LIMIT and DType.of(a.dtype).bits >= 8}
    return build_structure(graph, symbolic, numbers, host, {}, limits), numbers


def tunables(structure: Structure, numbers: Mapping[str, int], limits: DeviceLimits) -> list[Tunable]:
    """The workloads of a structure at these numbers, in the order of their first steps."""
    known: dict[Extent, int] = {}

    def number(e: Extent) -> int:
        if not isinstance(e, Dim):
            return e
        if e not in known:
            known[e] = evaluate(e, numbers)
        return known[e]

    found: dict[str, Tunable] = {}
    at: At = number
    for n, step in enumerate(structure.steps):
        recorder = Pinned()
        step.launches(at, replace(limits, tactics=recorder))
        for digest, (workload, default, legal) in recorder.seen.items():
            before = found.get(digest)
            steps = (*(before.steps if before else ()), n)
            labels = tuple(dict.fromkeys((*(before.labels if before else ()), step.label)))
            found[digest] = Tunable(workload, default, legal, steps, labels)
    return list(found.values())


def inventory(graph: Graph, feeds: Mapping[str, Array], limits: DeviceLimits = TYPICAL) -> list[dict[str, Any]]:
    """The tunable workloads of a model for inputs like *feeds*, for people and JSON: ``family``, ``sizes``, ``dtypes``,
    ``digest``, ``steps`` (how many), ``labels``, ``default``, ``variants`` (how many). Raises like :func:`structure_at`."""
    structure, numbers = structure_at(graph, feeds, limits)
    with Scope(None):
        found = tunables(structure, numbers, limits)
    return [
        {
            "family": t.workload.family,
            "sizes": dict(t.workload.sizes),
            "dtypes": list(t.workload.dtypes),
            "digest": t.workload.digest,
            "steps": len(t.steps),
            "labels": list(t.labels),
            "default": t.default,
            "variants": len(t.legal),
        }
        for t in found
    ]
