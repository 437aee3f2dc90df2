"""``onnx-vulkan inspect``: what of a model runs on Vulkan, without a GPU and without ONNX Runtime."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onnx_vulkan import frontend
from onnx_vulkan.claims import BODIES_LEFT_ALONE, Claims, bodies_of, machine, partition, with_outer
from onnx_vulkan.cli.report import shape_text
from onnx_vulkan.dims import Extent
from onnx_vulkan.engine.options import Options, parse_options
from onnx_vulkan.errors import Refusal
from onnx_vulkan.graph import Graph
from onnx_vulkan.inputs import unbound_dims

if TYPE_CHECKING:
    from onnx_vulkan.device import DeviceInfo

__all__ = ["bodies", "describe", "describe_values", "inspect", "refusal_text", "show", "verdict"]


def inspect(model: Path, device: DeviceInfo | None = None, options: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Read and judge *model*, for a device where one is given; gives what the command prints as JSON."""
    graph = frontend.load(model)
    how: dict[str, Any] = {"options": parse_options(options or {}, Options)}
    if device is not None:
        how |= {"features": device.features, "rates": machine(device.kind)}
    claims = partition(graph, **how)
    return {**describe(model, graph, claims), "bodies": list(bodies(graph, claims, **how))}


def bodies(graph: Graph, claims: Claims, **how: Any) -> Iterator[dict[str, Any]]:
    """What ONNX Runtime would get of the bodies of refused nodes (If, Loop, Scan): it offers each one as a graph of its own.

    *how* goes to :func:`onnx_vulkan.claims.partition`.
    """
    inside = {i for block in claims.blocks for i in block}
    for i, node in enumerate(graph.nodes):
        if i in inside:
            continue
        for name, body in bodies_of(node):
            alone = with_outer(graph, body)
            found = partition(alone, body=True, **how)
            # Bodies inside one that is left alone are offered again.
            offered = node.domain or node.op_type not in BODIES_LEFT_ALONE
            yield {
                "node": node.name,
                "body": name,
                "nodes": len(body.nodes),
                "claimed": found.claimed if offered else 0,
                "blocks": len(found.blocks) if offered else 0,
                "refused": [_refusal(r) for r in found.refusals],
                "given_back": [_refusal(r) for r in found.given_back.values()] if offered else [],
            }
            yield from bodies(alone, found if offered else replace(found, blocks=()), **how)


def describe(model: Path, graph: Graph, claims: Claims) -> dict[str, Any]:
    """The part of the command's JSON that is about the model's own graph.

    ``supported`` counts the nodes that no check refuses. ``blocks`` is how many fused nodes ONNX Runtime would get;
    ``given_back`` the nodes that would be left to the CPU because their block is not worth the crossing.
    """
    return {
        "model": str(model),
        "opsets": {domain or "ai.onnx": version for domain, version in sorted(graph.opsets.items())},
        "nodes": len(graph.nodes),
        "supported": len(graph.nodes) - len(claims.refusals),
        "blocks": len(claims.blocks),
        "compatible": not claims.refusals,
        "refused": [_refusal(r) for r in claims.refusals],
        "given_back": [_refusal(r) for r in claims.given_back.values()],
        "inputs": describe_values(graph, graph.inputs),
        "outputs": describe_values(graph, graph.outputs),
        "unbound_dims": unbound_dims(graph),
        "host_inputs": list(claims.host_inputs),
        "weight_bytes": sum(a.nbytes for g in _all_graphs(graph) for a in (*g.initializers.values(), *g.defaults.values())),
        "operators": dict(sorted(Counter(node.label for g in _all_graphs(graph) for node in g.nodes).items())),
    }


def _refusal(r: Refusal) -> dict[str, Any]:
    return {
        "name": r.name,
        "op_type": r.op_type,
        "domain": r.domain,
        "since_version": r.since_version,
        "check": r.check,
        "reason": r.reason,
    }


def _all_graphs(graph: Graph) -> Iterator[Graph]:
    yield graph
    for body in graph.subgraphs():
        yield from _all_graphs(body)


def describe_values(graph: Graph, names: Sequence[str]) -> list[dict[str, Any]]:
    """Name, dtype and shape of values; named dims are strings, an unknown rank is null."""
    out = []
    for name in names:
        t = graph.types.get(name)
        dtype = (t.dtype.onnx_name if t.dtype else t.type_name) if t else ""
        shape = None if t is None or t.shape is None else [_dim(e) for e in t.shape]
        out.append({"name": name, "dtype": dtype, "shape": shape})
    return out


def _dim(e: Extent) -> int | str:
    return e if isinstance(e, int) else str(e)


def refusal_text(refused: Sequence[dict[str, Any]]) -> str:
    """Which operators are refused, the most frequent first: ``6 Resize (kernel), 2 TopK (kernel) and others``."""
    counts = Counter((f"{r['domain']}::{r['op_type']}" if r["domain"] else r["op_type"], r["check"]) for r in refused)
    parts = [f"{n} {op} ({check})" for (op, check), n in counts.most_common(4)]
    return ", ".join(parts) + (" and others" if len(counts) > 4 else "")


def verdict(data: dict[str, Any]) -> str:
    """The one line."""
    claimed = data["supported"] - len(data["given_back"])
    blocks = plural(data["blocks"], "block")
    parts = [f"{Path(data['model']).name}: {claimed}/{data['nodes']} nodes on Vulkan in {blocks}"]
    if data["given_back"]:
        parts.append(f"{len(data['given_back'])} left to the CPU (not worth the crossing)")
    if data["bodies"]:
        claimed, nodes, blocks_ = (sum(b[k] for b in data["bodies"]) for k in ("claimed", "nodes", "blocks"))
        parts.append(f"{claimed}/{nodes} in {plural(blocks_, 'block')} inside the bodies of other nodes")
    if not data["compatible"]:
        parts.append(f"refused: {refusal_text(data['refused'])}")
    return "; ".join(parts)


def plural(n: int, noun: str) -> str:
    """``1 block``, ``2 blocks``."""
    return f"{n} {noun}" + ("" if n == 1 else "s")


def show(data: dict[str, Any]) -> None:
    """The same for a person."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    opsets = ", ".join(f"{domain} {version}" for domain, version in data["opsets"].items())
    console.print(f"{plural(data['nodes'], 'node')}, opsets {opsets}, {data['weight_bytes'] / 2**20:.1f} MiB of weights")
    values = Table("", "name", "dtype", "shape", box=None, header_style="bold")
    for kind in ("inputs", "outputs"):
        for v in data[kind]:
            values.add_row(kind[:-1], v["name"], v["dtype"], shape_text(v["shape"]))
    console.print(values, markup=False)
    if data["unbound_dims"]:
        console.print(f"dims to give with --dim: {', '.join(data['unbound_dims'])}", markup=False)
    if data["refused"] or data["given_back"]:
        refused = Table("refused node", "operator", "check", "reason", box=None, header_style="bold")
        for r in (*data["refused"], *data["given_back"], *(r for b in data["bodies"] for r in b["given_back"])):
            refused.add_row(r["name"], f"{r['op_type']}-{r['since_version']}", r["check"], r["reason"])
        console.print(refused, markup=False)
