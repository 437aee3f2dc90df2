"""Cuts a graph into convex blocks of claimed nodes, less those that are to be given back. Pure graph work."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import replace

from onnx_vulkan.graph import Graph, Node

__all__ = ["BODIES_LEFT_ALONE", "bodies_of", "convex_blocks", "extract", "settle", "with_outer"]

BODIES_LEFT_ALONE = frozenset({"If", "SequenceMap", "FlexAttention"})
"""Inside the bodies of these the plug-in claims nothing: an If is claimed whole or not at all, functions are inlined by ORT."""


def _reads(node: Node) -> Iterator[str]:
    """What a node reads, what its bodies capture included."""
    yield from (name for name in node.inputs if name)
    for _, body in bodies_of(node):
        yield from body.outer


def bodies_of(node: Node) -> Iterator[tuple[str, Graph]]:
    """The bodies of an If, Loop or Scan, each with its attribute's name."""
    for name, value in node.attributes.items():
        for body in value if isinstance(value, list) else (value,):
            if isinstance(body, Graph):
                yield name, body


def with_outer(graph: Graph, body: Graph) -> Graph:
    """A body as a graph that can be judged alone: what it captures of *graph* becomes constants and inputs."""
    captured = {name: graph.initializers[name] for name in body.outer if name in graph.initializers}
    inputs = [*body.inputs, *(name for name in body.outer if name not in captured)]
    types = {name: graph.types[name] for name in body.outer if name in graph.types}
    return replace(body, inputs=inputs, initializers=captured | body.initializers, types=types | body.types, outer=[])


def _neighbours(graph: Graph) -> tuple[list[set[int]], list[set[int]]]:
    """For each node, the nodes before and after it."""
    made_by = {out: i for i, node in enumerate(graph.nodes) for out in node.outputs if out}
    before = [{made_by[name] for name in _reads(node) if name in made_by} for node in graph.nodes]
    after: list[set[int]] = [set() for _ in graph.nodes]
    for i, producers in enumerate(before):
        for p in producers:
            after[p].add(i)
    return before, after


def convex_blocks(graph: Graph, claimed: Collection[int]) -> list[tuple[int, ...]]:
    """The claimed nodes in as few convex blocks as there can be, in an order in which they can run.

    A node's level is the greatest number of block -> CPU crossings on any path to it. Levels never fall along an edge and rise
    where a claimed node feeds an unclaimed one, so no path leaves the claimed nodes of one level and comes back: each level is
    a convex block. A path with n such crossings needs n + 1 blocks whatever one does, so there are none too many.
    """
    before, after = _neighbours(graph)
    inside = set(claimed)
    level = [0] * len(graph.nodes)
    for i, producers in enumerate(before):
        level[i] = max((level[p] + (p in inside and i not in inside) for p in producers), default=0)
    # A node that only later blocks read, and that nothing in its own block feeds, moves down to where it is read: a shape
    # computation does not make a block of its own.
    outputs = set(graph.outputs)
    for i in reversed(range(len(graph.nodes))):
        if i not in inside or not after[i] or not after[i] <= inside or outputs & set(graph.nodes[i].outputs):
            continue
        if not any(p in inside for p in before[i]):
            level[i] = min(level[j] for j in after[i])
    members: dict[int, list[int]] = {}
    for i in sorted(inside):
        members.setdefault(level[i], []).append(i)
    return [tuple(members[k]) for k in sorted(members)]


def extract(graph: Graph, nodes: Collection[int]) -> Graph:
    """The block of these nodes as a graph of its own.

    Its inputs are what the nodes read and do not make, in the order of first use; its outputs what is read outside or is an
    output of the graph, in the order in which it is made. Constants come along.
    """
    chosen = [graph.nodes[i] for i in sorted(nodes)]
    made = {out for node in chosen for out in node.outputs if out}
    inputs: dict[str, None] = {}
    constants = {}
    for node in chosen:
        for name in _reads(node):
            if name in graph.initializers:
                constants[name] = graph.initializers[name]
            elif name not in made:
                inputs.setdefault(name)
    inside = set(nodes)
    outside = {name for i, node in enumerate(graph.nodes) if i not in inside for name in _reads(node)} | set(graph.outputs)
    outputs = [out for node in chosen for out in node.outputs if out in outside]
    known = {*inputs, *constants, *made}
    return Graph(
        name=graph.name,
        inputs=list(inputs),
        outputs=outputs,
        nodes=chosen,
        types={name: t for name, t in graph.types.items() if name in known},
        initializers=constants,
        opsets=dict(graph.opsets),
        defaults={name: a for name, a in graph.defaults.items() if name in inputs},
        outer=[name for name in graph.outer if name in inputs],
    )


def settle(
    graph: Graph,
    refused: Collection[int],
    alone: Callable[[tuple[int, ...]], Collection[int]],
    not_worth_it: Callable[[tuple[int, ...]], str | None],
    *,
    body: bool,
) -> tuple[list[tuple[int, ...]], dict[int, str]]:
    """The final blocks, and the reason for each node that is given back. Grows nothing, so it ends.

    *alone* tells which nodes of a block cannot run once the block is on its own (a value that decided a shape may now come from
    outside it), *not_worth_it* why a block should be left to the CPU. That is not asked of a graph that is one block: who asks
    for a provider wants the model there. The *body* of a node is never all of a model.
    """
    out = set(refused)
    back: dict[int, str] = {}
    while True:
        claimed = [i for i in range(len(graph.nodes)) if i not in out and i not in back]
        blocks = convex_blocks(graph, claimed)
        whole = len(claimed) == len(graph.nodes)
        if whole and not body:
            return blocks, back
        lost = set() if whole else {i for block in blocks for i in alone(block)}
        out |= lost
        if not lost:
            for block in blocks:
                reason = not_worth_it(block)
                if reason is not None:
                    back.update(dict.fromkeys(block, reason))
                    lost |= set(block)
        if not lost:
            return blocks, back
