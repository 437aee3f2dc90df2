"""What a model takes at given sizes, without a device: arithmetic, bytes that kernels move, memory, and what could be tuned.

Arithmetic and bytes are floors (:mod:`onnx_vulkan.inspect.work`). Memory is that of one run context: weights as kernels read
them, the arena of intermediates, inputs and outputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from onnx_vulkan.claims import Claims, extract
from onnx_vulkan.codegen.kernel import Step
from onnx_vulkan.dims import Scope, evaluate
from onnx_vulkan.engine.limits import TYPICAL, DeviceLimits
from onnx_vulkan.errors import OnnxVulkanError
from onnx_vulkan.graph import Array, Graph, TensorType
from onnx_vulkan.inputs import bound_dims, check_dims, make_inputs, unbound_dims
from onnx_vulkan.inspect.decoder import Decoder, example_dims
from onnx_vulkan.inspect.dry import DryPlan, dry_plan
from onnx_vulkan.inspect.work import Work, WorkModel
from onnx_vulkan.lower.driver import HOST_INPUT_LIMIT
from onnx_vulkan.tune.workloads import tunables

__all__ = ["Estimate", "Part", "estimate", "estimate_at", "shaped_feeds"]


@dataclass(frozen=True, slots=True)
class Part:
    """A block's plan, and the work of each of its steps."""

    plan: DryPlan
    works: Mapping[Step, Work]

    def workloads(self) -> list[dict[str, Any]]:
        """What of the block could be tuned, with the ONNX nodes that it stands for."""
        steps = self.plan.structure.steps
        with Scope(None):
            found = tunables(self.plan.structure, self.plan.numbers, self.plan.limits)
        return [
            {
                "family": t.workload.family,
                "sizes": dict(t.workload.sizes),
                "dtypes": list(t.workload.dtypes),
                "variants": len(t.legal),
                "steps": len(t.steps),
                "nodes": list(dict.fromkeys(n for s in t.steps if steps[s] in self.works for n in self.works[steps[s]].nodes)),
            }
            for t in found
        ]


@dataclass(frozen=True, slots=True)
class Estimate:
    """``parts`` are the blocks that could be planned; ``missing`` has, by block, a sentence on why another could not."""

    parts: Sequence[Part]
    missing: Mapping[int, str]

    @property
    def memory(self) -> dict[str, int]:
        """Bytes on the device by what they are for, and their sum (``peak``)."""
        weights = {v: v.data.nbytes for part in self.parts for v in part.plan.constants() if v.data is not None}
        sizes = [part.plan.draft.segment_sizes for part in self.parts]
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
        works = [w for part in self.parts for w in part.works.values()]
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
            "dispatches": sum(len(part.plan.draft.launches) for part in self.parts),
            "families": sorted(families.values(), key=lambda row: (-row["operations"], -row["bytes"])),
            "workloads": [w for part in self.parts for w in part.workloads()],
            "blocks_not_estimated": [{"block": n, "reason": reason} for n, reason in self.missing.items()],
        }


def estimate(
    graph: Graph,
    claims: Claims,
    feeds: Mapping[str, Array],
    limits: DeviceLimits = TYPICAL,
    direct: tuple[bool, bool] = (False, False),
) -> Estimate:
    """Plan every block that *claims* found, for inputs like *feeds*. Only their shapes matter, and the values of small ones.

    *limits* and *direct* are those of :func:`~onnx_vulkan.inspect.dry.dry_plan`.
    """
    whole = len(claims.blocks) == 1 and len(claims.blocks[0]) == len(graph.nodes)
    numbers = bound_dims(graph, feeds)
    parts: list[Part] = []
    missing: dict[int, str] = {}
    for n, nodes in enumerate(claims.blocks):
        block = graph if whole else extract(graph, nodes)
        try:
            known = {name: feeds[name] if name in feeds else _unknown(block, name, numbers) for name in block.inputs}
            plan = dry_plan(block, known, limits, direct)
            guessed = sorted(set(plan.structure.host_values) - set(feeds) - set(graph.defaults))
            if guessed:
                raise _NotKnown(f"its shapes hang on the values of {guessed[0]!r}, which the CPU computes during a run.")
        except (OnnxVulkanError, _NotKnown) as e:
            missing[n] = str(e)
            continue
        model = WorkModel(plan.structure.program, plan.numbers)
        parts.append(Part(plan, {step: model.of(step) for step in plan.steps()}))
    return Estimate(parts, missing)


def shaped_feeds(graph: Graph, dims: Mapping[str, int]) -> dict[str, Array]:
    """Arrays of the shapes that the inputs have at *dims*, which take no memory; inputs that are no tensors of numbers, or of
    unknown rank, are left out. Raises InvalidInput for a dim that the model lacks or that is left out."""
    check_dims(graph, dims)
    types = {name: graph.types.get(name, TensorType(None, None)) for name in graph.inputs}
    part = replace(graph, inputs=[name for name, t in types.items() if t.dtype is not None and t.shape is not None])
    known = unbound_dims(part)
    return make_inputs(part, {name: n for name, n in dims.items() if name in known}, valued=HOST_INPUT_LIMIT)


def estimate_at(
    graph: Graph,
    claims: Claims,
    decoder: Decoder | None,
    dims: Mapping[str, int],
    limits: DeviceLimits = TYPICAL,
    direct: tuple[bool, bool] = (False, False),
) -> tuple[dict[str, Any] | None, dict[str, int], str]:
    """The estimate as JSON has it, an example of numbers for all dims that need one, and why there is no estimate.

    Where no *dims* are given, it is made at the first example that the model takes. Raises InvalidInput for *dims* that do not
    fit the model.
    """
    examples = list(example_dims(graph, decoder))
    lacks = ""
    for numbers in [dict(dims)] if dims else examples:
        found = estimate(graph, claims, shaped_feeds(graph, numbers), limits, direct)
        if found.parts or not claims.blocks:
            data = {"dims": numbers, "given": bool(dims), **found.data}
            return data, examples[0] if dims else numbers, ""
        lacks = lacks or next(iter(found.missing.values()))
    return None, examples[0], lacks


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
