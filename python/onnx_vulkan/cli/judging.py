"""The verdict of ``onnx-vulkan run``: every element of every output against the reference, and the sentence that says so."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnx_vulkan.bundle import Bundle
from onnx_vulkan.cli.sides import Side
from onnx_vulkan.dtypes import DType
from onnx_vulkan.errors import OnnxVulkanError
from onnx_vulkan.graph import Graph
from onnx_vulkan.inputs import bound_dims
from onnx_vulkan.tolerance import Tolerance, allowance, compare, no_worse_than, tolerance_of

__all__ = [
    "NOT_COMPARABLE",
    "Case",
    "compared",
    "element",
    "exact_outputs",
    "judge",
    "model_tolerance",
    "quality_text",
    "share_text",
    "tolerance_data",
    "wrong_text",
]

Array = NDArray[Any]

NOT_COMPARABLE = 1e30
"""What JSON, which has no infinity, says for a difference that is none: other shape or dtype, NaN elsewhere, unequal integers."""

_EXACT_LIMIT = 256 << 20
"""Models with more bytes of weights are not run in float64 by the interpreter."""


@dataclass(frozen=True, slots=True)
class Case:
    """What is compared: inputs, the reference outputs and what is allowed.

    A tolerance that a user gave is meant as it stands (``strict``); the table's gives way where the reference itself is further
    from the truth. ``generated``: inputs were made up.
    """

    graph: Graph
    feeds: Mapping[str, Array]
    reference: Mapping[str, Array]
    allowed: Tolerance
    strict: bool
    generated: bool

    def verify(self, outputs: Mapping[str, Array]) -> tuple[list[dict[str, Any]], bool, bool]:
        """The comparison of each output for JSON, whether the outputs are right, and whether they are within the tolerance."""
        found = [
            compared(name, np.asarray(outputs[name]), np.asarray(want), self.allowed) for name, want in self.reference.items()
        ]
        within = all(o["max_tolerance_ratio"] <= 1.0 for o in found)
        if within or self.strict:
            return found, within, within
        exact = exact_outputs(self.graph, self.feeds)
        names = self.graph.outputs
        good = exact is not None and no_worse_than(
            [outputs[o] for o in names], [self.reference[o] for o in names], exact, self.allowed
        )
        return found, good, False


def model_tolerance(graph: Graph, atol: float | None, rtol: float | None, precision: str = "strict") -> Tolerance:
    """The tolerance of a whole model: of half precision where any of its values is, or where products are rounded to it."""
    dtypes = {t.dtype for t in graph.types.values() if t.dtype is not None}
    return allowance(tolerance_of(dtypes | {DType.F16} if precision == "fast" else dtypes), atol, rtol)


def tolerance_data(t: Tolerance) -> dict[str, float]:
    """A tolerance for JSON."""
    return {"atol": t.atol, "rtol": t.rtol, "of_max": t.of_max}


def judge(case: Case, sides: Mapping[str, Side]) -> tuple[dict[str, Any], bool, str]:
    """Compare the last outputs of each side (all but ``cpu``) with the reference.

    Gives the JSON of the sides by name, whether all is right, and the verdict.
    """
    found: dict[str, Any] = {}
    wrong: list[str] = []
    notes: list[str] = []
    excused = False
    for key, side in sides.items():
        if key == "cpu":
            continue
        outputs, good, within = case.verify(side.outputs)
        worst = max((o["max_tolerance_ratio"] for o in outputs), default=0.0)
        found[key] = {
            "median_ms": statistics.median(side.times) * 1e3,
            "runs": len(side.times),
            **side.facts(),
            "max_abs_diff": max((o["max_abs_diff"] for o in outputs), default=0.0),
            "max_tolerance_ratio": worst,
            "outputs": outputs,
        }
        if not within and not case.strict:
            found[key]["no_worse_than_cpu"] = good
        excused |= good and not within
        if not good:
            beyond = max(outputs, key=lambda o: o["max_tolerance_ratio"])
            wrong.append(f"{key}: {wrong_text(beyond)}")
        if not found[key]["dispatches"] and case.graph.nodes:
            notes.append(f"{key} dispatched nothing")
    if "cpu" in sides:
        found["cpu"] = {"median_ms": statistics.median(sides["cpu"].times) * 1e3, "runs": len(sides["cpu"].times)}
    share = max((b.get("max_tolerance_ratio", 0.0) for b in found.values()), default=0.0)
    if wrong:
        text = f"BEYOND TOLERANCE on {'; '.join(wrong)}"
    elif excused:
        text = f"the worst element at {share_text(share)}, but no further from the float64 result than ONNX Runtime's CPU EP"
    else:
        text = f"every element within tolerance, the worst at {share_text(share)}"
    times = ", ".join(f"{k} {b['median_ms']:.2f} ms" for k, b in found.items())
    text += f"; validation timings, no benchmark: {times}"
    if case.generated:
        text += "; the inputs were generated, which proves agreement with the CPU, not the model's quality"
    if notes:
        text += f"; {' and '.join(notes)}, so this shows nothing about the device"
    return found, not wrong and not notes, text


def compared(name: str, got: Array, want: Array, allowed: Tolerance) -> dict[str, Any]:
    """The comparison of one output, for JSON."""
    found = compare(got, want, allowed)
    return {
        "name": name,
        "max_abs_diff": min(found.max_abs, NOT_COMPARABLE),
        "max_tolerance_ratio": min(found.ratio, NOT_COMPARABLE),
        "worst": None if found.at is None else element(got, want, found.at),
    }


def element(got: Array, want: Array, at: tuple[int, ...]) -> dict[str, Any]:
    """An element for JSON, which knows no NaN and no infinity: those are words."""
    return {"index": list(at), "value": _number(got[at]), "reference": _number(want[at])}


def _number(x: Any) -> float | int | bool | str:
    if isinstance(x, (bool, np.bool_)):
        return bool(x)
    value = float(x)
    return str(value) if not math.isfinite(value) else int(x) if float(x).is_integer() and DType.of(x.dtype).is_int else value


def wrong_text(o: Mapping[str, Any], what: str = "output") -> str:
    """What is wrong with an output (as :meth:`Case.verify` describes it), in words."""
    worst, share = o["worst"], o["max_tolerance_ratio"]
    if worst is None:
        return f"{what} {o['name']!r} is not comparable (its shape or dtype is another)"
    size = f"{share:.3g} times its allowance" if share < NOT_COMPARABLE else "where no difference is allowed"
    return f"element {worst['index']} of {what} {o['name']!r} is {worst['value']} for {worst['reference']}, {size}"


def quality_text(bundle: Bundle) -> str:
    """The quality figure of a converted model, in words."""
    assert bundle.quality is not None and bundle.conversion is not None
    samples = bundle.quality["samples"]
    on = f"{samples} sample{'s' * (samples != 1)}" if samples else "the bundle's inputs"
    configuration = bundle.conversion.get("configuration", {})
    if configuration.get("mode") == "static" and not configuration["calibration"]:
        on += " that it was calibrated on, which flatters it"
    if not samples and bundle.generated:
        on += " (generated, which says little of its quality)"
    figure = f"{bundle.quality['metric']} {bundle.quality['value']:.6g}"
    return f"{bundle.conversion['kind']} against the original: {figure} on {on}"


def share_text(share: float) -> str:
    """A share of the tolerance, in words."""
    return f"{share:.1%} of its allowance" if share <= 1.0 else f"{share:.3g} times its allowance"


def exact_outputs(graph: Graph, feeds: Mapping[str, Array]) -> Sequence[Array] | None:
    """The outputs computed in float64 by the interpreter; None for a model that is too large for it, or has nodes it lacks."""
    from onnx_vulkan.dims import Scope, evaluate
    from onnx_vulkan.lower import lower_graph
    from onnx_vulkan.packing import from_storage, to_storage
    from onnx_vulkan.program.interp import interpret

    if sum(a.nbytes for a in graph.initializers.values()) > _EXACT_LIMIT:
        return None
    full = {name: feeds.get(name, graph.defaults.get(name)) for name in graph.inputs}
    arrays = {name: a for name, a in full.items() if a is not None}
    try:
        numbers = bound_dims(graph, arrays)
        with Scope(numbers):
            lowered = lower_graph(graph, host_values=arrays)
            fed = {name: to_storage(a) for name, a in arrays.items()}
            made = interpret(lowered.program, fed, numbers, float64=True)
    except OnnxVulkanError:
        return None
    return [
        from_storage(a, t.dtype, [evaluate(e, numbers) for e in t.shape or ()]) if t.dtype else a
        for a, t in zip(made, lowered.outputs, strict=True)
    ]
