"""``onnx-vulkan run``: a model on Vulkan through ONNX Runtime and standalone, timed and compared with ORT's CPU EP."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnx_vulkan import frontend
from onnx_vulkan.bundle import Bundle, is_bundle, read_bundle
from onnx_vulkan.claims import partition
from onnx_vulkan.cli.bisection import bisect
from onnx_vulkan.cli.inspection import bodies, describe, plural, refusal_text
from onnx_vulkan.cli.judging import Case, judge, model_tolerance, quality_text, tolerance_data
from onnx_vulkan.cli.report import CANNOT_RUN, FAILED, GOOD
from onnx_vulkan.cli.sides import Side, cpu_side, gpu_side, take_turns
from onnx_vulkan.engine.options import Options, parse_options
from onnx_vulkan.errors import InvalidInput, RefusedError
from onnx_vulkan.inputs import make_inputs

__all__ = [
    "Request",
    "read_dims",
    "read_inputs",
    "read_pairs",
    "refused_text",
    "run",
    "show",
]

Array = NDArray[Any]
Feeds = Mapping[str, Array]


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
    bisect: bool = False
    shadow: bool = False
    trace: Path | None = None
    html: Path | None = None


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


def read_case(request: Request, precision: str) -> tuple[Path, Case, Bundle | None]:
    """The model file of a request, what to compare, and the bundle, if it is one (else the reference is still to be computed)."""
    given = request.atol is not None or request.rtol is not None
    if not is_bundle(request.model):
        graph = frontend.load(request.model)
        feeds = make_inputs(graph, request.dims, read_inputs(request.inputs))
        allowed = model_tolerance(graph, request.atol, request.rtol, precision)
        return request.model, Case(graph, feeds, {}, allowed, given, set(feeds) > set(request.inputs)), None
    if request.dims or request.inputs:
        raise InvalidInput("a bundle has its own inputs: leave out --dim and --input.")
    bundle = read_bundle(request.model)
    graph = frontend.load(bundle.model)
    allowed, strict = bundle.tolerance, bundle.strict
    if given or (precision == "fast" and not strict):
        allowed, strict = model_tolerance(graph, request.atol, request.rtol, precision), given
    return bundle.model, Case(graph, bundle.inputs, bundle.reference, allowed, strict, bool(bundle.generated)), bundle


def _tactics(bundle: Bundle | None) -> dict[str, str]:
    """The options with which a bundle's own tactics are used, where it has some."""
    file = None if bundle is None else bundle.tactics
    return {"tactics": "cache-only", "tactics_file": str(file)} if file is not None else {}


def run(request: Request) -> tuple[dict[str, Any], int, str]:
    """Run the model; gives the JSON, the exit code and the verdict. Raises OnnxVulkanError where that stops short."""
    if request.html is not None:
        from onnx_vulkan.profile.page import check_library

        check_library()
    chosen = parse_options(request.options, Options)
    path, case, bundle = read_case(request, chosen.precision)
    claims = partition(case.graph, chosen)
    inspected = describe(path, case.graph, claims)
    data: dict[str, Any] = {
        "model": str(request.model),
        "device": "",
        "backends": {},
        "within_tolerance": False,
        "tolerance": tolerance_data(case.allowed),
        "reference": "bundle" if bundle is not None else "onnxruntime CPU",
        "inputs": [{"name": n, "dtype": str(a.dtype), "shape": list(a.shape)} for n, a in case.feeds.items()],
        "generated": case.generated,
        "refused": inspected["refused"],
    }
    name = request.model.name
    backend = request.backend or ("both" if inspected["compatible"] else "ep")
    # A graph of which nothing is claimed may hold loops whose bodies are.
    partly = backend == "ep" and (claims.blocks or any(b["blocks"] for b in bodies(case.graph, claims, options=chosen)))
    if not inspected["compatible"] and not partly:
        text = f"{name}: cannot run on Vulkan from end to end; refused: {refusal_text(inspected['refused'])}"
        return data, CANNOT_RUN, text

    options = {**_tactics(bundle), **request.options, **({"device": request.device} if request.device else {})}
    doors = ("ep", "standalone") if backend == "both" else (backend,)
    sides = {"cpu": cpu_side(path, case.graph, case.feeds)}
    for door in doors:
        sides[door] = gpu_side(door, path, case.graph, case.feeds, options | ({"shadow": "on"} if request.shadow else {}))
    take_turns(list(sides.values()), request.runs)
    if bundle is None:
        case = replace(case, reference=sides["cpu"].outputs)
    elif not case.strict and not replace(case, strict=True).verify(sides["cpu"].outputs)[1]:
        case = replace(case, strict=True)  # a reference that this machine's CPU does not confirm excuses nothing
    data["device"] = next((sides[d].device for d in doors if sides[d].device), "")
    data["backends"], good, verdict = judge(case, sides)
    data["within_tolerance"] = good
    extra = [f"when it was prepared: {quality_text(bundle)}"] if bundle is not None and bundle.quality is not None else []
    if request.shadow:
        data["shadow"] = {door: _shadowed(door, sides[door], extra) for door in doors}
        good &= all(found["kernels"] for found in data["shadow"].values())
    if request.bisect:
        data["bisect"] = {}
        for door in doors:
            if not case.verify(sides[door].outputs)[1]:
                data["bisect"][door], text = bisect(path, case, door, options)
                extra.append(text)
        if not data["bisect"]:
            extra.append("nothing to bisect")
    if data["refused"]:
        extra.append(f"{plural(len(data['refused']), 'node')} on the CPU: {refusal_text(data['refused'])}")
    text = "; ".join([f"{name} on {data['device']}: {verdict}", *extra])
    if request.trace is not None:
        from onnx_vulkan.profile import profile
        from onnx_vulkan.profile.report import trace

        made = profile(sides[doors[-1]].run, sides[doors[-1]].blocks, runs=1)
        request.trace.write_text(json.dumps(trace(made)) + "\n", encoding="utf-8")
    if request.html is not None:
        from onnx_vulkan.cli.running_page import page

        request.html.write_text(page(text, case, {door: sides[door].outputs for door in doors}, data), encoding="utf-8")
    return data, GOOD if good else FAILED, text


def _shadowed(door: str, side: Side, notes: list[str]) -> dict[str, Any]:
    """What the shadow run of a side has checked. A kernel that is wrong has ended the run with an error before this."""
    checked = [c for block in side.blocks() for c in block.checked]
    worst = max(checked, key=lambda c: c.ratio, default=None)
    if worst is None:
        notes.append(f"{door}: the shadow run has checked nothing")
        return {"kernels": 0, "max_tolerance_ratio": 0.0, "worst_kernel": None}
    notes.append(f"{door}: the interpreter agrees with {plural(len(checked), 'kernel')}, the worst element at {worst.ratio:.1%}")
    return {"kernels": len(checked), "max_tolerance_ratio": worst.ratio, "worst_kernel": worst.label}


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
