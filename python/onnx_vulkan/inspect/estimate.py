"""What a model takes at given sizes, without a device: arithmetic, bytes that kernels move, memory, and what could be tuned.

Arithmetic and bytes are floors (:mod:`onnx_vulkan.inspect.work`). Memory is that of one run context: weights as kernels read
them, the arena of intermediates, inputs and outputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from onnx_vulkan.claims import Claims, extract
from onnx_vulkan.dims import evaluate
from onnx_vulkan.engine.limits import TYPICAL, DeviceLimits
from onnx_vulkan.errors import OnnxVulkanError
from onnx_vulkan.graph import Array, Graph
from onnx_vulkan.inputs import bound_dims
from onnx_vulkan.inspect.dry import DryPlan, dry_plan
from onnx_vulkan.inspect.work import Work, WorkModel

__all__ = ["Estimate", "estimate"]


@dataclass(frozen=True, slots=True)
class Estimate:
    """``plans`` of the blocks that could be planned, each with the work of its steps; ``missing`` has, by block, a sentence on
    why it could not."""

    plans: Sequence[tuple[DryPlan, Sequence[Work]]]
    missing: Mapping[int, str]

    @property
    def memory(self) -> dict[str, int]:
        """Bytes on the device by what they are for, and their sum (``peak``)."""
        weights = {v: v.data.nbytes for plan, _ in self.plans for v in plan.constants() if v.data is not None}
        sizes = [plan.draft.segment_sizes for plan, _ in self.plans]
        parts = {
            "weights": sum(weights.values()),
            "intermediates": sum(arena for arena, _, _ in sizes),
            "inputs": sum(inputs for _, inputs, _ in sizes),
            "outputs": sum(outputs for _, _, outputs in sizes),
        }
        return {**parts, "peak": sum(parts.values())}

    @property
    def data(self) -> dict[str, Any]:
        """What JSON has."""
        works = [w for _, works in self.plans for w in works]
        families: dict[str, dict[str, Any]] = {}
        for w in works:
            row = families.setdefault(w.family, {"family": w.family, "kernels": 0, "operations": 0, "bytes": 0})
            row["kernels"] += 1
            row["operations"] += w.operations
            row["bytes"] += w.bytes
        return {
            "operations": sum(w.operations for w in works),
            "bytes_moved": sum(w.bytes for w in works),
            "memory_bytes": self.memory,
            "kernels": len(works),
            "dispatches": sum(len(plan.draft.launches) for plan, _ in self.plans),
            "families": sorted(families.values(), key=lambda row: (-row["operations"], -row["bytes"])),
            "blocks_not_estimated": [{"block": n, "reason": reason} for n, reason in self.missing.items()],
        }


def estimate(graph: Graph, claims: Claims, feeds: Mapping[str, Array], limits: DeviceLimits = TYPICAL) -> Estimate:
    """Plan every block that *claims* found, for inputs like *feeds*. Only their shapes matter, and the values of small ones."""
    whole = len(claims.blocks) == 1 and len(claims.blocks[0]) == len(graph.nodes)
    numbers = bound_dims(graph, feeds)
    plans: list[tuple[DryPlan, Sequence[Work]]] = []
    missing: dict[int, str] = {}
    for n, nodes in enumerate(claims.blocks):
        block = graph if whole else extract(graph, nodes)
        try:
            known = {name: feeds[name] if name in feeds else _unknown(block, name, numbers) for name in block.inputs}
            plan = dry_plan(block, known, limits)
            guessed = sorted(set(plan.structure.host_values) - set(feeds) - set(graph.defaults))
            if guessed:
                raise _NotKnown(f"its shapes hang on the values of {guessed[0]!r}, which the CPU computes during a run.")
        except (OnnxVulkanError, _NotKnown) as e:
            missing[n] = str(e)
            continue
        model = WorkModel(plan.structure.program, plan.numbers)
        plans.append((plan, [model.of(step) for step in plan.steps()]))
    return Estimate(plans, missing)


class _NotKnown(Exception):
    """A shape that only a run shows."""


def _unknown(block: Graph, name: str, numbers: Mapping[str, int]) -> Array:
    """What stands for a value that another block or the CPU makes: an array of its shape that takes no memory."""
    if name in block.defaults:
        return block.defaults[name]
    t = block.types.get(name)
    try:
        if t is None or t.dtype is None or t.shape is None:
            raise KeyError(name)
        shape = [evaluate(e, numbers) for e in t.shape]
    except KeyError:
        raise _NotKnown(f"the shape of its input {name!r} is not known before a run.") from None
    array: Array = np.broadcast_to(np.zeros((), t.dtype.numpy), shape)
    return array
