"""Decides what runs on Vulkan: judges each node by three checks, then cuts the graph into convex blocks.

``judge`` holds the checks, ``blocks`` the graph work. Claim and execution are one predicate: the kernel check is the lowering
itself, on symbolic shapes. Wrong is worse than refused; refused is worse than claimed.

Environment: ``ONNX_VULKAN_OPS`` (a comma list of operators and node names) restricts what may be claimed, for bisecting;
``ONNX_VULKAN_CLAIM_LOG`` names a file to which one JSON line a node is appended.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field

from onnx_vulkan.claims.blocks import BODIES_LEFT_ALONE, bodies_of, convex_blocks, extract, settle, with_outer
from onnx_vulkan.claims.judge import Judgement, judge
from onnx_vulkan.errors import InvalidInput, Refusal
from onnx_vulkan.graph import Graph

__all__ = ["BODIES_LEFT_ALONE", "Claims", "bodies_of", "convex_blocks", "extract", "judge", "partition", "with_outer"]


@dataclass(frozen=True, slots=True)
class Claims:
    """What :func:`partition` decided.

    ``blocks`` are convex sets of node indices, each sorted, in an order in which they can run. ``refusals`` has one entry a
    refused node, in the graph's order. ``host_inputs`` are the block inputs whose values decide shapes. ``given_back`` says
    for each node that could run, but in a block not worth the crossing, why it is left to the CPU.
    """

    blocks: tuple[tuple[int, ...], ...]
    refusals: tuple[Refusal, ...]
    host_inputs: tuple[str, ...]
    given_back: dict[int, str] = field(default_factory=dict)

    @property
    def claimed(self) -> int:
        """How many nodes are in blocks."""
        return sum(map(len, self.blocks))


def partition(graph: Graph, options: object | None = None, features: frozenset[str] | None = None) -> Claims:
    """Claim what can run of *graph*.

    *features* are the device's (``DeviceInfo.features``); without them only the model is judged. *options* may have
    ``keep_islands`` (bool): keep also the blocks that the cost model would give back.
    """
    only = _only()
    first = judge(graph, features, only)
    refused = dict(first.refused)
    judged: dict[tuple[int, ...], Judgement] = {}

    def alone(block: tuple[int, ...]) -> list[int]:
        if block not in judged:
            judged[block] = judge(extract(graph, block), features)
        found = {block[i]: r for i, r in judged[block].refused.items()}
        refused.update(found)
        return list(found)

    # Who restricts the operators wants to see just these on Vulkan, whatever it costs.
    keep = bool(getattr(options, "keep_islands", False)) or only is not None
    blocks, back = settle(graph, first.refused, alone, keep)
    if len(blocks) == 1 and len(blocks[0]) == len(graph.nodes):
        hosts = first.host_inputs
    else:
        hosts = tuple(dict.fromkeys(name for b in blocks for name in judged[b].host_inputs))
    claims = Claims(tuple(blocks), tuple(refused[i] for i in sorted(refused)), hosts, back)
    log = os.environ.get("ONNX_VULKAN_CLAIM_LOG")
    if log:
        _write_log(log, graph, claims, refused)
    return claims


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
        if i in claims.given_back:
            check, reason = "cost", claims.given_back[i]
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
