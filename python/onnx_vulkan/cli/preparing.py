"""``onnx-vulkan prepare``: writes a bundle with what ONNX Runtime's CPU EP gives today."""

from __future__ import annotations

import importlib.metadata
import platform
from pathlib import Path
from typing import Any

from onnx_vulkan import frontend
from onnx_vulkan.bundle import write_bundle
from onnx_vulkan.cli.inspection import plural
from onnx_vulkan.cli.running import Request, model_tolerance, read_inputs
from onnx_vulkan.cli.sides import cpu_side
from onnx_vulkan.errors import InvalidInput
from onnx_vulkan.inputs import make_inputs

__all__ = ["prepare", "versions"]


def versions() -> dict[str, str]:
    """Versions of what the numbers of a bundle depend on."""
    names = ("onnx-vulkan", "onnx", "onnxruntime", "numpy")
    return {"python": platform.python_version()} | {n: importlib.metadata.version(n) for n in names}


def prepare(request: Request, output: Path) -> tuple[dict[str, Any], str]:
    """Write the bundle of *request* to the folder *output*; gives the JSON and the verdict."""
    graph = frontend.load(request.model)
    feeds = make_inputs(graph, request.dims, read_inputs(request.inputs))
    side = cpu_side(request.model, graph, feeds)
    side.step()
    odd = [name for name, a in side.outputs.items() if not hasattr(a, "dtype") or a.dtype == object]
    if odd:
        raise InvalidInput(f"output {odd[0]!r} is no tensor of numbers, so its values cannot be kept in a bundle.")
    tolerance = model_tolerance(graph, request.atol, request.rtol)
    folder = write_bundle(request.model, output, feeds, side.outputs, tolerance, versions())
    files = sorted(p for p in folder.rglob("*") if p.is_file())
    data = {
        "bundle": str(folder),
        "model": str(request.model),
        "inputs": [{"name": n, "dtype": str(a.dtype), "shape": list(a.shape)} for n, a in feeds.items()],
        "outputs": [{"name": n, "dtype": str(a.dtype), "shape": list(a.shape)} for n, a in side.outputs.items()],
        "tolerance": {"atol": tolerance.atol, "rtol": tolerance.rtol, "of_max": tolerance.of_max},
        "files": [p.relative_to(folder).as_posix() for p in files],
        "bytes": sum(p.stat().st_size for p in files),
    }
    holds = f"{plural(len(feeds), 'input')} and {plural(len(side.outputs), 'reference output')}"
    text = f"{request.model.name}: bundle with {holds} in {folder}"
    return data, f"{text}; try it with: onnx-vulkan run {folder}"
