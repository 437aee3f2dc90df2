"""``onnx-vulkan inspect dot`` and ``html``: the graph of a model, or of its kernels, as DOT, SVG or a page."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from onnx_vulkan.cli import inspection
from onnx_vulkan.cli.inspecting_nodes import read
from onnx_vulkan.errors import InvalidInput, OnnxVulkanError
from onnx_vulkan.inspect.decoder import example_dims, find_decoder
from onnx_vulkan.inspect.estimate import Estimate, estimate, shaped_feeds
from onnx_vulkan.inspect.nodes import Model
from onnx_vulkan.inspect.page import check_tools, page
from onnx_vulkan.inspect.picture import as_svg, check_program, picture_of_nodes, picture_of_program

__all__ = ["dot", "html", "plan"]


def dot(path: Path, model: Model, output: Path, *, program: bool, around: str | None, depth: int) -> dict[str, Any]:
    """Draw to *output*, whose ending says how; gives the JSON. Raises InvalidInput for another ending, or without Graphviz."""
    kind = {".dot": "dot", ".gv": "dot", ".svg": "svg"}.get(output.suffix.lower())
    if kind is None:
        raise InvalidInput(f"{output.name} ends neither in .dot (or .gv) nor in .svg, so what to write is not clear.")
    if program and around is not None:
        raise InvalidInput("--around is about ONNX nodes: leave it out with --program.")
    if kind == "svg":
        check_program()
    used: Mapping[str, int] = {}
    if program:
        found, used = plan(model)
        text, drawn = picture_of_program(found.parts), sum(len(p.works) for p in found.parts)
    else:
        nodes = range(len(model.graph.nodes)) if around is None else model.neighbourhood(model.find(around), depth)
        text, drawn = picture_of_nodes(model, nodes), len(nodes)
    output.write_text(as_svg([text])[0] if kind == "svg" else text, encoding="utf-8")
    return {
        "model": str(path),
        "output": str(output),
        "format": kind,
        "program": program,
        "dims": dict(used),
        "nodes": drawn,
        "bytes": output.stat().st_size,
    }


def html(path: Path, output: Path, options: Mapping[str, str], dims: Mapping[str, int]) -> tuple[dict[str, Any], str]:
    """Write the page of a model; gives the JSON and the verdict. Raises InvalidInput where what makes it is not installed."""
    check_tools()
    data = inspection.inspect(path, None, options, dims)
    verdict = inspection.verdict(data)
    model = read(path, options, dims)
    output.write_text(page(model, data, verdict), encoding="utf-8")
    nodes = len(model.graph.nodes)
    return {"model": str(path), "output": str(output), "nodes": nodes, "bytes": output.stat().st_size}, verdict


def plan(model: Model) -> tuple[Estimate, dict[str, int]]:
    """The kernels at the model's dims, or at the first example that the model takes; and these numbers."""
    graph, lacks = model.graph, ""
    for numbers in [model.dims] if model.dims else example_dims(graph, find_decoder(graph)):
        found = estimate(graph, model.claims, shaped_feeds(graph, numbers))
        if found.parts:
            return found, numbers
        lacks = lacks or next(iter(found.missing.values()), "no node of it runs on Vulkan.")
    raise OnnxVulkanError(f"there are no kernels to draw: {lacks}")
