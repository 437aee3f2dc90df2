"""``onnx-vulkan run``: a model on Vulkan through ONNX Runtime and standalone, timed and compared with ORT's CPU EP."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnx_vulkan import frontend
from onnx_vulkan.bundle import is_bundle, read_bundle
from onnx_vulkan.claims import partition
from onnx_vulkan.cli.inspection import bodies, describe, plural, refusal_text
from onnx_vulkan.cli.report import CANNOT_RUN, FAILED, GOOD
from onnx_vulkan.cli.sides import Side, cpu_side, ep_side, standalone_side, take_turns
from onnx_vulkan.dtypes import DType
from onnx_vulkan.engine.options import Options, parse_options
from onnx_vulkan.errors import InvalidInput, OnnxVulkanError, RefusedError
from onnx_vulkan.graph import Graph
from onnx_vulkan.inputs import bound_dims, make_inputs
from onnx_vulkan.tolerance import Tolerance, allowance, compare, no_worse_than, tolerance_of

__all__ = [
    "Request",
    "exact_outputs",
    "model_tolerance",
    "read_dims",
    "read_inputs",
    "read_pairs",
    "refused_text",
    "run",
    "show",
    "tolerance_data",
]

Array = NDArray[Any]
Feeds = Mapping[str, Array]

NOT_COMPARABLE = 1e30
"""What JSON, which has no infinity, says for a difference that is none: other shape or dtype, NaN elsewhere, unequal integers."""

_EXACT_LIMIT = 256 << 20
"""Models with more bytes of weights are not run in float64 by the interpreter."""


@dataclass(frozen=True, slots=True)
class Request:
    """What the command line asks for. ``backend`` is ep, standalone, both, or None (both where the model can)."""

    model: Path
    dims: Mapping[str, int] = field(default_factory=dict)
    inputs: Mapping[str, Path] = field(default_factory=dict)
    backend: str | None = None
    atol: float | None = None
    rtol: float | None = None
    runs: int = 10
    device: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)


def read_pairs(option: str, texts: Sequence[str]) -> dict[str, str]:
    """``NAME=VALUE`` options; a name may hold ``=`` itself. Raises InvalidInput."""
    out = {}
    for text in texts:
        name, _, value = text.rpartition("=")
        if not name or not value:
            raise InvalidInput(f"{option} {text} is not of the form NAME=VALUE.")
        out[name] = value
    return out


def read_dims(texts: Sequence[str]) -> dict[str, int]:
    """The numbers of ``--dim NAME=N``. Raises InvalidInput."""
    pairs = read_pairs("--dim", texts)
    for name, value in pairs.items():
        if not value.strip().isdecimal():
            raise InvalidInput(f"--dim {name}={value}: {value!r} is no number; give one, e.g. --dim {name}=1")
    return {name: int(value) for name, value in pairs.items()}


def read_inputs(files: Mapping[str, Path]) -> dict[str, Array]:
    """The arrays of ``--input NAME=FILE.npy``."""
    out = {}
    for name, path in files.items():
        try:
            out[name] = np.load(path, allow_pickle=False)
        except (OSError, ValueError) as e:
            raise InvalidInput(f"the file {path} for input {name!r} cannot be read: {e}.") from None
        if not isinstance(out[name], np.ndarray):
            raise InvalidInput(f"the file {path} for input {name!r} holds several arrays; give a .npy file.")
    return out


def model_tolerance(graph: Graph, atol: float | None, rtol: float | None, precision: str = "strict") -> Tolerance:
    """The tolerance of a whole model: of half precision where any of its values is, or where products are rounded to it."""
    dtypes = {t.dtype for t in graph.types.values() if t.dtype is not None}
    return allowance(tolerance_of(dtypes | {DType.F16} if precision == "fast" else dtypes), atol, rtol)


def tolerance_data(t: Tolerance) -> dict[str, float]:
    """A tolerance for JSON."""
    return {"atol": t.atol, "rtol": t.rtol, "of_max": t.of_max}


def run(request: Request) -> tuple[dict[str, Any], int, str]:
    """Run the model; gives the JSON, the exit code and the verdict. Raises OnnxVulkanError where that stops short."""
    reference: Mapping[str, Array] | None = None
    path = request.model
    chosen = parse_options(request.options, Options)
    if is_bundle(path):
        if request.dims or request.inputs:
            raise InvalidInput("a bundle has its own inputs: leave out --dim and --input.")
        bundle = read_bundle(path)
        path, feeds, reference, allowed = bundle.model, bundle.inputs, bundle.reference, bundle.tolerance
        graph = frontend.load(path)
        if request.atol is not None or request.rtol is not None or chosen.precision == "fast":
            allowed = model_tolerance(graph, request.atol, request.rtol, chosen.precision)
    else:
        graph = frontend.load(path)
        feeds = make_inputs(graph, request.dims, read_inputs(request.inputs))
        allowed = model_tolerance(graph, request.atol, request.rtol, chosen.precision)
    claims = partition(graph, chosen)
    inspected = describe(path, graph, claims)
    data: dict[str, Any] = {
        "model": str(request.model),
        "device": "",
        "backends": {},
        "within_tolerance": False,
        "tolerance": tolerance_data(allowed),
        "reference": "bundle" if reference is not None else "onnxruntime CPU",
        "inputs": [{"name": n, "dtype": str(a.dtype), "shape": list(a.shape)} for n, a in feeds.items()],
        "refused": inspected["refused"],
    }
    name = request.model.name
    backend = request.backend or ("both" if inspected["compatible"] else "ep")
    # A graph of which nothing is claimed may hold loops whose bodies are.
    partly = backend == "ep" and (claims.blocks or any(b["blocks"] for b in bodies(graph, claims, options=chosen)))
    if not inspected["compatible"] and not partly:
        text = f"{name}: cannot run on Vulkan from end to end; refused: {refusal_text(inspected['refused'])}"
        return data, CANNOT_RUN, text

    options = {**request.options, **({"device": request.device} if request.device else {})}
    sides = {"cpu": cpu_side(path, graph, feeds)}
    if backend in ("ep", "both"):
        sides["ep"] = ep_side(path, graph, feeds, options)
    if backend in ("standalone", "both"):
        sides["standalone"] = standalone_side(path, feeds, options, len(graph.nodes))
    take_turns(list(sides.values()), request.runs)
    if reference is None:
        reference = sides["cpu"].outputs
    return _judge(data, sides, graph, feeds, reference, allowed, name, request.atol is not None or request.rtol is not None)


def _judge(
    data: dict[str, Any],
    sides: Mapping[str, Side],
    graph: Graph,
    feeds: Feeds,
    reference: Mapping[str, Array],
    allowed: Tolerance,
    name: str,
    strict: bool,
) -> tuple[dict[str, Any], int, str]:
    # A tolerance that the user gave is meant as it stands; the table's gives way where the CPU is further from the truth.
    cpu_ms = statistics.median(sides["cpu"].times) * 1e3
    good = True
    notes: list[str] = []
    exact: Sequence[Array] | None = None
    for key, side in sides.items():
        if key == "cpu":
            continue
        data["device"] = side.device or data["device"]
        outputs: list[dict[str, Any]] = []
        for output, want in reference.items():
            found = compare(np.asarray(side.outputs[output]), np.asarray(want), allowed)
            numbers = {
                "max_abs_diff": min(found.max_abs, NOT_COMPARABLE),
                "max_tolerance_ratio": min(found.ratio, NOT_COMPARABLE),
            }
            outputs.append({"name": output, **numbers})
        worst = max((o["max_tolerance_ratio"] for o in outputs), default=0.0)
        entry = {
            "median_ms": statistics.median(side.times) * 1e3,
            "runs": len(side.times),
            **side.facts(),
            "max_abs_diff": max((o["max_abs_diff"] for o in outputs), default=0.0),
            "max_tolerance_ratio": worst,
            "outputs": outputs,
        }
        if worst > 1.0:
            exact = exact if exact is not None or strict else exact_outputs(graph, feeds)
            entry["no_worse_than_cpu"] = exact is not None and no_worse_than(
                [side.outputs[o] for o in graph.outputs], [reference[o] for o in graph.outputs], exact, allowed
            )
            good &= bool(entry["no_worse_than_cpu"])
        if not entry["dispatches"] and graph.nodes:
            notes.append(f"{key} dispatched nothing")
        data["backends"][key] = entry
    data["backends"]["cpu"] = {"median_ms": cpu_ms, "runs": len(sides["cpu"].times)}
    data["within_tolerance"] = good
    times = ", ".join(f"{k} {b['median_ms']:.2f} ms" for k, b in data["backends"].items())
    share = max(b.get("max_tolerance_ratio", 0.0) for b in data["backends"].values())
    furthest = max(b.get("max_abs_diff", 0.0) for b in data["backends"].values())
    text = f"{name} on {data['device']}: {times}; {_share_text(share, furthest, good)}"
    if data["refused"]:
        text += f"; {plural(len(data['refused']), 'node')} on the CPU: {refusal_text(data['refused'])}"
    if notes:
        text += f"; {' and '.join(notes)}, so this shows nothing about the device"
    return data, GOOD if good and not notes else FAILED, text


def _share_text(share: float, furthest: float, good: bool) -> str:
    if share <= 1.0:
        return f"worst difference {share:.1%} of the tolerance"
    if furthest >= NOT_COMPARABLE:
        size = "not comparable (shape, dtype or NaN differ)"
    elif share >= NOT_COMPARABLE:
        size = f"{furthest:.3g} where none is allowed"
    else:
        size = f"{share:.3g} times the tolerance"
    if good:
        return f"worst difference {size}, but no further from the float64 result than ONNX Runtime's CPU EP"
    return f"BEYOND TOLERANCE: worst difference {size}"


def exact_outputs(graph: Graph, feeds: Feeds) -> list[Array] | None:
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


def show(data: dict[str, Any]) -> None:
    """The result for a person."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    for v in data["inputs"]:
        console.print(f"input {v['name']}: {v['dtype']} {v['shape']}", markup=False)
    table = Table("backend", "median ms", "blocks", "claimed", "dispatches", "worst abs diff", "of tolerance", box=None)
    for key, b in data["backends"].items():
        ratio = b.get("max_tolerance_ratio")
        table.add_row(
            key,
            f"{b['median_ms']:.3f}",
            *(str(b.get(k, "")) for k in ("blocks", "claimed", "dispatches")),
            "" if ratio is None else f"{b['max_abs_diff']:.3g}",
            "" if ratio is None else f"{ratio:.1%}",
        )
    console.print(table, markup=False)
    if data["refused"]:
        console.print(f"{plural(len(data['refused']), 'node')} on the CPU: {refusal_text(data['refused'])}", markup=False)


def refused_text(error: RefusedError, name: str) -> str:
    """The verdict for an engine that refused the model at load."""
    refused = [{"domain": r.domain, "op_type": r.op_type, "check": r.check} for r in error.refusals]
    return f"{name}: cannot run on Vulkan from end to end; refused: {refusal_text(refused)}"
