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
from onnx_vulkan.engine.limits import TYPICAL, DeviceLimits
from onnx_vulkan.engine.options import Options, parse_options
from onnx_vulkan.errors import Refusal
from onnx_vulkan.graph import Graph
from onnx_vulkan.inputs import unbound_dims
from onnx_vulkan.inspect.decoder import as_options, find_decoder
from onnx_vulkan.inspect.estimate import estimate_at
from onnx_vulkan.inspect.folding import fold, numbers_text
from onnx_vulkan.inspect.nodes import type_data

if TYPE_CHECKING:
    from onnx_vulkan.device import Device

__all__ = ["bodies", "describe", "describe_values", "inspect", "refusal_text", "show", "verdict"]


def inspect(
    model: Path,
    device: Device | None = None,
    options: Mapping[str, str] | None = None,
    dims: Mapping[str, int] | None = None,
) -> dict[str, Any]:
    """Read and judge *model*, for a device where one is given; gives what the command prints as JSON.

    Raises InvalidInput where *dims* names a dim that the model does not have, or leaves one out.
    """
    graph = frontend.load(model)
    chosen = parse_options(options or {}, Options)
    how: dict[str, Any] = {"options": chosen}
    limits, direct = replace(TYPICAL, precision=chosen.precision), (False, False)
    if device is not None:
        how |= {"features": device.info.features, "rates": machine(device.info.kind)}
        limits = DeviceLimits.of(device, chosen.precision)
        direct = device.direct_input, device.info.kind in ("cpu", "integrated")
    claims = partition(graph, **how)
    decoder = find_decoder(graph)
    found, example, why_not = estimate_at(graph, claims, decoder, dims or {}, limits, direct)
    return {
        **describe(model, graph, claims),
        "bodies": list(bodies(graph, claims, **how)),
        "folded": {"inputs": _folded(graph, graph.inputs), "outputs": _folded(graph, graph.outputs)},
        "decoder": None if decoder is None else decoder.data,
        "dims_example": as_options(example),
        "estimate": found,
        "estimate_lacks": why_not,
    }


def _folded(graph: Graph, names: Sequence[str]) -> list[dict[str, Any]]:
    """Values whose names differ in one number, as one."""
    values = describe_values(graph, names)
    return [
        {"name": f.name, "numbers": list(f.numbers), "dtype": f.facts[0], "shape": f.facts[1], "count": len(f.members)}
        for f in fold((v["name"], (v["dtype"], shape_text(v["shape"]))) for v in values)
    ]


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
    return [{"name": name, **type_data(graph.types.get(name))} for name in names]


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


def plural(n: int, noun: str, many: str = "") -> str:
    """``1 block``, ``2 blocks``; *many* where an s is not enough."""
    return f"{n} {noun if n == 1 else many or noun + 's'}"


def show(data: dict[str, Any]) -> None:
    """The same for a person."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    opsets = ", ".join(f"{domain} {version}" for domain, version in data["opsets"].items())
    console.print(f"{plural(data['nodes'], 'node')}, opsets {opsets}, {data['weight_bytes'] / 2**20:.1f} MiB of weights")
    values = Table("", "name", "dtype", "shape", box=None, header_style="bold")
    for kind in ("inputs", "outputs"):
        for v in data["folded"][kind]:
            numbers = f"  ({numbers_text(v['numbers'])})" if v["numbers"] else ""
            values.add_row(kind[:-1], v["name"] + numbers, v["dtype"], v["shape"])
    console.print(values, markup=False)
    if data["decoder"] is not None:
        d = data["decoder"]
        console.print(f"a decoder with {plural(len(d['caches']), 'cache')}: {d['relation']}", markup=False, soft_wrap=True)
    if data["unbound_dims"]:
        console.print(f"dims to give with --dim: {', '.join(data['unbound_dims'])}", markup=False)
        console.print(f"for example: {data['dims_example']}", markup=False, soft_wrap=True)
    if data["estimate"] is not None:
        _show_estimate(console, data["estimate"])
    if data["estimate_lacks"]:
        console.print(f"no estimate: {data['estimate_lacks']}", markup=False, soft_wrap=True)
    if data["refused"] or data["given_back"]:
        refused = Table("refused node", "operator", "check", "reason", box=None, header_style="bold")
        for r in (*data["refused"], *data["given_back"], *(r for b in data["bodies"] for r in b["given_back"])):
            refused.add_row(r["name"], f"{r['op_type']}-{r['since_version']}", r["check"], r["reason"])
        console.print(refused, markup=False)


def _show_estimate(console: Any, e: dict[str, Any]) -> None:
    from rich.table import Table

    at = ", ".join(f"{name} = {n}" for name, n in e["dims"].items())
    memory = {name: f"{n / 2**20:.1f}" for name, n in e["memory_bytes"].items()}
    console.print(
        f"{'at ' + at if at else 'estimated'}: {e['operations'] / 1e9:.4g} Gop, {e['bytes_moved'] / 1e6:.4g} MB moved, "
        f"{plural(e['dispatches'], 'dispatch', 'dispatches')}; {memory['peak']} MiB on the device ({memory['weights']} weights, "
        f"{memory['intermediates']} intermediates, {memory['inputs']} inputs, {memory['outputs']} outputs)",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )
    families = Table("family", "kernels", "Gop", "MB", box=None, header_style="bold")
    workloads = Counter(w["family"] for w in e["workloads"])
    for row in e["families"]:
        families.add_row(row["family"], str(row["kernels"]), f"{row['operations'] / 1e9:.4g}", f"{row['bytes'] / 1e6:.4g}")
    console.print(families, markup=False)
    told = ", ".join(f"{n} {family}" for family, n in workloads.most_common())
    steps = sum(w["steps"] for w in e["workloads"])
    text = f"{plural(len(e['workloads']), 'tunable workload')} in {plural(steps, 'step')}"
    console.print(text + (f": {told}" if told else ""), markup=False)
    for b in e["blocks_not_estimated"]:
        console.print(f"block {b['block']} is not in the estimate: {b['reason']}", markup=False, soft_wrap=True)
