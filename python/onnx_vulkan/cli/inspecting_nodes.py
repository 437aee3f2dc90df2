"""``onnx-vulkan inspect node | nodes | trace``: the nodes of a model as JSON and as tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from onnx_vulkan import frontend
from onnx_vulkan.claims import partition
from onnx_vulkan.cli.inspection import plural
from onnx_vulkan.cli.report import shape_text
from onnx_vulkan.engine.options import Options, parse_options
from onnx_vulkan.inspect.nodes import Model

__all__ = ["node", "node_verdict", "nodes", "nodes_verdict", "read", "show_node", "show_nodes", "show_trace", "trace"]


def read(path: Path, options: Mapping[str, str], dims: Mapping[str, int] | None = None) -> Model:
    """Read and judge a model; shapes have the numbers of *dims*."""
    graph = frontend.load(path)
    return Model(graph, partition(graph, parse_options(options, Options)), dims)


# ------------------------------------------------------------------------------------------------------------ one node
def node(path: Path, model: Model, name: str) -> dict[str, Any]:
    """Everything about a node."""
    return {"model": str(path), **model.node_data(model.find(name))}


def place(n: Mapping[str, Any]) -> str:
    """Where a node runs: ``in block 0``, or who refuses it."""
    return f"in block {n['block']}" if n["block"] is not None else f"not on Vulkan ({n['check']})"


def node_verdict(data: Mapping[str, Any]) -> str:
    """The one line."""
    reason = f": {data['reason']}" if data["reason"] else ""
    return f"{data['name']}: {data['op_type']}-{data['since_version']}, {place(data)}{reason}"


def show_node(data: Mapping[str, Any]) -> None:
    """A node for a person."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    operator = f"{data['domain']}::{data['op_type']}" if data["domain"] else data["op_type"]
    console.print(f"node @{data['index']} {data['name']}: {operator}-{data['since_version']}, {place(data)}", markup=False)
    if data["reason"]:
        console.print(data["reason"], markup=False)
    values = Table("", "name", "dtype", "shape", "from or to", box=None, header_style="bold")
    for kind in ("inputs", "captured", "outputs"):
        for v in data[kind]:
            other = v["from"] if "from" in v else ", ".join(v["to"])
            values.add_row(kind.removesuffix("s"), v["name"] or "(left out)", v["dtype"], shape_text(v["shape"]), other)
    console.print(values, markup=False)
    for name, text in data["attributes"].items():
        console.print(f"{name} = {text}", markup=False)


# ------------------------------------------------------------------------------------------------------------ a list
def nodes(path: Path, model: Model, op_types: Sequence[str], *, refused: bool) -> dict[str, Any]:
    """The nodes of some operators (of all where none is named), with *refused* only those that do not run on Vulkan."""
    found = model.of_type(op_types) if op_types else list(range(len(model.graph.nodes)))
    chosen = [i for i in found if not refused or i in model.refusal]
    return {"model": str(path), "of": len(model.graph.nodes), "nodes": [model.row_data(i) for i in chosen]}


def nodes_verdict(data: Mapping[str, Any]) -> str:
    """The one line."""
    outside = sum(n["block"] is None for n in data["nodes"])
    text = f"{Path(data['model']).name}: {len(data['nodes'])} of {plural(data['of'], 'node')}"
    return text + (f", {outside} of them not on Vulkan" if outside else "")


def show_nodes(data: Mapping[str, Any]) -> None:
    """A list of nodes for a person."""
    from rich.console import Console

    Console().print(_table(data["nodes"]), markup=False)


def _table(found: Sequence[Mapping[str, Any]], first: str = "") -> Any:
    from rich.table import Table

    table = Table(*([first] if first else []), "", "node", "operator", "reads", "makes", "where", box=None, header_style="bold")
    for n in found:
        shapes = (", ".join(f"{v['dtype']} {shape_text(v['shape'])}" for v in n[kind]) for kind in ("inputs", "outputs"))
        where = str(n["block"]) if n["block"] is not None else f"{n['check']}: {n['reason']}"
        head = [f"{n['distance']:+d}" if n["distance"] else "0"] if first else []
        table.add_row(*head, f"@{n['index']}", n["name"], n["op_type"], *shapes, where)
    return table


# ------------------------------------------------------------------------------------------------------------ neighbours
def trace(path: Path, model: Model, name: str, depth: int) -> dict[str, Any]:
    """A node's neighbourhood: the nodes at most *depth* values away, and the values between them."""
    start = model.find(name)
    near = model.neighbourhood(start, depth)
    rows = model.graph.nodes

    def end(i: int | None) -> str | None:
        return None if i is None else rows[i].name

    edges = [{**model.value_data(v), "from": end(a), "to": end(b)} for v, a, b in model.edges(near)]
    return {
        "model": str(path),
        "node": rows[start].name,
        "depth": depth,
        "nodes": [{**model.row_data(i), "distance": distance} for i, distance in near.items()],
        "edges": edges,
    }


def show_trace(data: Mapping[str, Any]) -> None:
    """A neighbourhood for a person, from the farthest node before to the farthest after."""
    from rich.console import Console

    ordered = sorted(data["nodes"], key=lambda n: (n["distance"], n["index"]))
    Console().print(_table(ordered, "distance"), markup=False)
