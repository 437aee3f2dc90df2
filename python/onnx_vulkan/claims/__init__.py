"""Decides what runs on Vulkan: judges each node by three checks, then cuts the graph into convex blocks.

``judge`` holds the checks, ``blocks`` the graph work, ``cost`` what a block costs on either side. Claim and execution are one
predicate: the kernel check is the lowering itself, on symbolic shapes. Wrong is worse than refused; refused is worse than
claimed.

Environment: ``ONNX_VULKAN_OPS`` (a comma list of operators and node names) restricts what may be claimed, for bisecting;
``ONNX_VULKAN_CLAIM_LOG`` names a file to which one JSON line a node is appended.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field

from onnx_vulkan.claims.blocks import BODIES_LEFT_ALONE, bodies_of, convex_blocks, extract, settle, with_outer
from onnx_vulkan.claims.cost import Machine, assumed_numbers, machine, not_worth_it
from onnx_vulkan.claims.judge import Judgement, judge
from onnx_vulkan.errors import InvalidInput, Refusal
from onnx_vulkan.graph import Graph, Node

__all__ = [
    "BODIES_LEFT_ALONE",
    "Claims",
    "Machine",
    "bodies_of",
    "convex_blocks",
    "extract",
    "judge",
    "machine",
    "partition",
    "with_outer",
]


@dataclass(frozen=True, slots=True)
class Claims:
    """What :func:`partition` decided.

    ``blocks`` are convex sets of node indices, each sorted, in an order in which they can run. ``refusals`` has one entry a
    refused node, in the graph's order. ``host_inputs`` are the block inputs whose values decide shapes. ``given_back`` has, by
    number, the nodes that could run but in a block not worth the crossing, with a refusal whose check is ``cost``.
    """

    blocks: tuple[tuple[int, ...], ...]
    refusals: tuple[Refusal, ...]
    host_inputs: tuple[str, ...]
    given_back: dict[int, Refusal] = field(default_factory=dict)

    @property
    def claimed(self) -> int:
        """How many nodes are in blocks."""
        return sum(map(len, self.blocks))


def partition(
    graph: Graph,
    options: object | None = None,
    features: frozenset[str] | None = None,
    *,
    rates: Machine | None = None,
    body: bool = False,
) -> Claims:
    """Claim what can run of *graph*, as far as it is worth the crossing.

    *features* are the device's (``DeviceInfo.features``); without them only the model is judged. *options* may have ``island``
    (``keep``: give no block back) and ``runtime_dims``. *rates*: what the blocks are weighed by (None: a discrete GPU beside the
    cores of this process). *body*: the graph is that of a Loop, Scan or If, and not all of a model.
    """
    only = _only()
    first = judge(graph, features, only)
    refused = dict(first.refused)
    judged: dict[tuple[int, ...], Judgement] = {}
    weighed = rates or machine()
    # Who restricts the operators wants to see just these on Vulkan, whatever it costs.
    keep = getattr(options, "island", "auto") == "keep" or only is not None

    def judged_alone(block: tuple[int, ...]) -> Judgement:
        if block not in judged:
            judged[block] = judge(extract(graph, block), features)
        return judged[block]

    def alone(block: tuple[int, ...]) -> list[int]:
        found = {block[i]: r for i, r in judged_alone(block).refused.items()}
        refused.update(found)
        return list(found)

    def worth(block: tuple[int, ...]) -> str | None:
        if keep:
            return None
        own, found = extract(graph, block), judged_alone(block)
        numbers = assumed_numbers(graph, getattr(options, "runtime_dims", None))
        return not_worth_it(own, found.program, lambda instr: found.index_of.get(instr.source), numbers, weighed)

    blocks, reasons = settle(graph, first.refused, alone, worth, body=body)
    if len(blocks) == 1 and len(blocks[0]) == len(graph.nodes):
        hosts = first.host_inputs
    else:
        hosts = tuple(dict.fromkeys(name for b in blocks for name in judged[b].host_inputs))
    back = {i: _given_back(graph.nodes[i], reason) for i, reason in sorted(reasons.items())}
    claims = Claims(tuple(blocks), tuple(refused[i] for i in sorted(refused)), hosts, back)
    log = os.environ.get("ONNX_VULKAN_CLAIM_LOG")
    if log:
        _write_log(log, graph, claims, refused | back)
    return claims


def _given_back(node: Node, reason: str) -> Refusal:
    return Refusal(node.name, node.op_type, node.domain, node.since_version, "cost", reason)


def _only() -> frozenset[str] | None:
    text = os.environ.get("ONNX_VULKAN_OPS", "")
    return None if not text.strip() else frozenset(filter(None, (part.strip() for part in text.split(","))))


def _write_log(path: str, graph: Graph, claims: Claims, refused: dict[int, Refusal]) -> None:
    """Append a JSON line a node, in one write, so that several processes may share the file."""
    block_of = {i: n for n, block in enumerate(claims.blocks) for i in block}
    lines = []
    for i, node in enumerate(graph.nodes):
        refusal = refused.get(i)
        check, reason = (refusal.check, refusal.reason) if refusal else ("", "")
        entry = {
            "name": node.name,
            "op_type": node.op_type,
            "domain": node.domain,
            "since_version": node.since_version,
            "claimed": i in block_of,
            "check": check,
            "reason": reason,
            "block": block_of.get(i),
        }
        lines.append(json.dumps(entry))
    try:
        with open(path, "a", encoding="utf-8") as f:
            f.write("".join(line + "\n" for line in lines))
    except OSError as e:
        raise InvalidInput(f"ONNX_VULKAN_CLAIM_LOG names {path}, which cannot be written: {e.strerror}.") from None
