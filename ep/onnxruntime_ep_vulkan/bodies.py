"""Gives the body of a Loop or Scan back what was fused in it.

ORT offers bodies before the graph around them, so that by the time a Loop itself is judged, its body's nodes are fused nodes of
ours. What they stand for is known here: with it the body is whole again, and the Loop can be claimed like any other node.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from onnx_vulkan.graph import Attribute, Graph, Node

__all__ = ["unfold"]

Find = Callable[[Node], Graph | None]
"""The graph that a fused node of ours stands for; None for any other node."""


def unfold(graph: Graph, find: Find) -> Graph:
    """*graph* with the fused nodes inside its nodes' bodies replaced by their nodes. Its own fused nodes stay."""
    return replace(graph, nodes=[_node(node, find) for node in graph.nodes])


def _node(node: Node, find: Find) -> Node:
    attributes = {name: _attribute(value, find) for name, value in node.attributes.items()}
    return replace(node, attributes=attributes)


def _attribute(value: Attribute, find: Find) -> Attribute:
    if isinstance(value, Graph):
        return _body(value, find)
    if isinstance(value, list) and value and isinstance(value[0], Graph):
        return [_body(g, find) for g in value if isinstance(g, Graph)]
    return value


def _body(body: Graph, find: Find) -> Graph:
    nodes: list[Node] = []
    types, constants, opsets = dict(body.types), dict(body.initializers), dict(body.opsets)
    for node in body.nodes:
        block = find(node)
        # A function that was inlined since then has values of other names.
        if block is None or block.inputs != list(node.inputs) or block.outputs != list(node.outputs):
            nodes.append(_node(node, find))
            continue
        nodes += block.nodes
        types = block.types | types
        constants |= block.initializers
        opsets |= block.opsets
    return replace(body, nodes=nodes, types=types, initializers=constants, opsets=opsets)
