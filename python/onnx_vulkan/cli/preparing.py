"""``onnx-vulkan prepare``: writes a bundle with what ONNX Runtime's CPU EP gives today."""

from __future__ import annotations

import importlib.metadata
import platform
from pathlib import Path
from typing import Any

from onnx_vulkan import frontend
from onnx_vulkan.bundle import Bundle, write_bundle
from onnx_vulkan.cli.inspection import plural
from onnx_vulkan.cli.judging import model_tolerance, tolerance_data
from onnx_vulkan.cli.running import Request, read_inputs
from onnx_vulkan.cli.sides import cpu_side
from onnx_vulkan.errors import InvalidInput
from onnx_vulkan.inputs import bound_dims, make_inputs

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
    bundle = write_bundle(
        Bundle(
            original=request.model,
            model=request.model,
            inputs=feeds,
            reference=side.outputs,
            tolerance=model_tolerance(graph, request.atol, request.rtol),
            strict=request.atol is not None or request.rtol is not None,
            generated=tuple(n for n in feeds if n not in request.inputs),
            dims=bound_dims(graph, feeds),
            versions=versions(),
        ),
        output,
    )
    files = sorted(p for p in output.rglob("*") if p.is_file())
    data = {
        "bundle": str(output),
        "model": str(request.model),
        "inputs": [{"name": n, "dtype": str(a.dtype), "shape": list(a.shape)} for n, a in feeds.items()],
        "generated": list(bundle.generated),
        "outputs": [{"name": n, "dtype": str(a.dtype), "shape": list(a.shape)} for n, a in side.outputs.items()],
        "tolerance": tolerance_data(bundle.tolerance),
        "files": [p.relative_to(output).as_posix() for p in files],
        "bytes": sum({(s.st_dev, s.st_ino): s.st_size for s in (p.stat() for p in files)}.values()),
    }
    holds = f"{plural(len(feeds), 'input')} and {plural(len(side.outputs), 'reference output')}"
    text = f"{request.model.name}: bundle with {holds} in {output}"
    return data, f"{text}; try it with: onnx-vulkan run {output}"
