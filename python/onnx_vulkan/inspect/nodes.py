"""The nodes of a model one by one: what each reads and makes, where it runs, who is around it."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from typing import Any

import numpy as np

from onnx_vulkan.claims import Claims, bodies_of
from onnx_vulkan.dims import Dim, Scope, evaluate, symbols_of
from onnx_vulkan.dtypes import DType
from onnx_vulkan.errors import InvalidInput, Refusal
from onnx_vulkan.graph import Graph, Node, TensorType
from onnx_vulkan.inputs import check_dims
from onnx_vulkan.lower import lower_graph

__all__ = ["Model", "type_data"]

_LONGEST = 60
"""Characters of an attribute's value, and elements of an array, that are shown."""


class Model:
    """A graph with what was decided about its nodes, and who makes and reads each value.

    Shapes are in terms of the inputs' dims, with the numbers of *dims*. Raises InvalidInput for a dim that the model lacks.
    """

    def __init__(self, graph: Graph, claims: Claims, dims: Mapping[str, int] | None = None):
        self.dims = dict(dims or {})
        check_dims(graph, self.dims)
        self.graph = graph
        with Scope(None):
            # ONNX's inference would make up a name for each dim that it cannot tell.
            found = lower_graph(graph, strict=False).shapes
        self.shapes = {
            name: tuple(evaluate(e, self.dims) if symbols_of(e) <= self.dims.keys() else e for e in shape)
            for name, shape in found.items()
        }
        self.maker = {name: i for i, node in enumerate(graph.nodes) for name in node.outputs if name}
        self.readers: dict[str, list[int]] = {}
        for i, node in enumerate(graph.nodes):
            for name in dict.fromkeys(reads(node)):
                self.readers.setdefault(name, []).append(i)
        self.block_of = {i: n for n, block in enumerate(claims.blocks) for i in block}
        refused = iter(claims.refusals)
        self.claims = claims
        self.given_back = claims.given_back
        self.refusal: dict[int, Refusal] = dict(claims.given_back)
        # Refusals are those of the nodes that are in no block and not given back, in the graph's order.
        for i in range(len(graph.nodes)):
            if i not in self.block_of and i not in self.refusal:
                self.refusal[i] = next(refused)

    # ------------------------------------------------------------------------------------------------ which node
    def find(self, name: str) -> int:
        """The node of a name, of a value that it makes, or of ``@N``. Raises InvalidInput, saying what there is."""
        nodes = self.graph.nodes
        if name[:1] == "@" and name[1:].isdecimal():
            if int(name[1:]) < len(nodes):
                return int(name[1:])
            raise InvalidInput(f"there is no node {name}: the model has {len(nodes)}, from @0 on.")
        found = [i for i, node in enumerate(nodes) if node.name == name]
        if len(found) > 1:
            raise InvalidInput(f"{len(found)} nodes are named {name!r}: give one by its number, e.g. @{found[0]}.")
        if found:
            return found[0]
        if name in self.maker:
            return self.maker[name]
        if name in self.readers:
            first = self.readers[name][0]
            raise InvalidInput(f"{name!r} is made by no node; the first that reads it is {nodes[first].name!r} (@{first}).")
        for i, node in enumerate(nodes):
            if any(name == inner.name for _, body in bodies_of(node) for inner in _all_nodes(body)):
                raise InvalidInput(f"{name!r} is in a body of the node {node.name!r} (@{i}): inspect that one.")
        near = get_close_matches(name, [node.name for node in nodes], n=1, cutoff=0.4)
        hint = f"did you mean {near[0]!r}?" if near else "inspect nodes MODEL lists them."
        raise InvalidInput(f"the model has no node and no value {name!r}; {hint}")

    def of_type(self, op_types: Sequence[str]) -> list[int]:
        """The nodes of some operators (``Conv``, ``com.microsoft::Gelu``). Raises InvalidInput for one that the model lacks."""
        there = {n for node in self.graph.nodes for n in (node.op_type, node.label)}
        for wanted in op_types:
            if wanted not in there:
                near = get_close_matches(wanted, sorted(there), n=1, cutoff=0.4)
                known = ", ".join(sorted({node.label for node in self.graph.nodes}))
                hint = f"did you mean {near[0]}?" if near else f"it has {known}."
                raise InvalidInput(f"the model has no node of the operator {wanted}; {hint}")
        return [i for i, node in enumerate(self.graph.nodes) if {node.op_type, node.label} & set(op_types)]

    # ------------------------------------------------------------------------------------------------ what JSON has
    def node_data(self, i: int) -> dict[str, Any]:
        """Everything about a node."""
        node = self.graph.nodes[i]
        return {
            **self.short_data(i),
            "since_version": node.since_version,
            "inputs": [{**self.value_data(name), "from": self.origin(name)} for name in node.inputs],
            "captured": [{**self.value_data(name), "from": self.origin(name)} for name in _captured(node)],
            "outputs": [{**self.value_data(name), "to": self._to(name)} for name in node.outputs],
            "attributes": {name: attribute_text(value) for name, value in node.attributes.items()},
            "bodies": [{"name": name, "nodes": len(body.nodes)} for name, body in bodies_of(node)],
        }

    def short_data(self, i: int) -> dict[str, Any]:
        """Which node it is and where it runs."""
        node, refusal = self.graph.nodes[i], self.refusal.get(i)
        return {
            "index": i,
            "name": node.name,
            "op_type": node.op_type,
            "domain": node.domain,
            "block": self.block_of.get(i),
            "check": refusal.check if refusal else "",
            "reason": refusal.reason if refusal else "",
        }

    def row_data(self, i: int) -> dict[str, Any]:
        """The same with types of what it reads and makes, constants left out."""
        node = self.graph.nodes[i]
        varying = [name for name in node.inputs if name and name not in self.graph.initializers]
        return {
            **self.short_data(i),
            "inputs": [self.value_data(name) for name in varying],
            "outputs": [self.value_data(name) for name in node.outputs if name],
        }

    def value_data(self, name: str) -> dict[str, Any]:
        """Name, element type and shape of a value; an input that is left out has an empty name."""
        constant = self.graph.initializers.get(name)
        if constant is not None and name not in self.graph.types:
            return {"name": name, "dtype": DType.of(constant.dtype).onnx_name, "shape": list(constant.shape)}
        t = self.graph.types.get(name)
        if t is not None and name in self.shapes:
            t = replace(t, shape=self.shapes[name])
        return {"name": name, **type_data(t)}

    def origin(self, name: str) -> str:
        """Who makes a value: a node by its name, ``input``, ``constant``, ``outside`` of a body, or nobody."""
        if name in self.maker:
            return f"node {self.graph.nodes[self.maker[name]].name}"
        if name in self.graph.initializers:
            return "constant"
        if name in self.graph.inputs:
            return "input"
        return "outside" if name else ""

    def _to(self, name: str) -> list[str]:
        nodes = [f"node {self.graph.nodes[i].name}" for i in self.readers.get(name, ())]
        return [*nodes, *(["output"] if name in self.graph.outputs else [])]

    # ------------------------------------------------------------------------------------------------ neighbours
    def neighbourhood(self, i: int, depth: int) -> dict[int, int]:
        """The nodes at most *depth* values away, upward (less than 0) or downward, with the distance; *i* itself has 0."""
        distance = {i: 0}
        for sign in (-1, 1):
            todo = deque([(i, 0)])
            while todo:
                at, steps = todo.popleft()
                if steps == depth:
                    continue
                for other in self.before(at) if sign < 0 else self.after(at):
                    if other not in distance:
                        distance[other] = sign * (steps + 1)
                        todo.append((other, steps + 1))
        return dict(sorted(distance.items()))

    def before(self, i: int) -> list[int]:
        """The nodes whose values a node reads."""
        return list(dict.fromkeys(self.maker[name] for name in reads(self.graph.nodes[i]) if name in self.maker))

    def after(self, i: int) -> list[int]:
        """The nodes that read a node's values."""
        return list(dict.fromkeys(r for name in self.graph.nodes[i].outputs for r in self.readers.get(name, ())))

    def edges(self, nodes: Collection[int]) -> list[tuple[str, int | None, int | None]]:
        """The values that nodes of a set read and make: (name, maker, reader), None for one outside of it. No constants."""
        inside = set(nodes)
        out: dict[tuple[str, int | None, int | None], None] = {}
        for i in sorted(inside):
            node = self.graph.nodes[i]
            for name in dict.fromkeys(reads(node)):
                if name not in self.graph.initializers:
                    maker = self.maker.get(name)
                    out[name, maker if maker in inside else None, i] = None
            for name in node.outputs:
                if name in self.graph.outputs or any(r not in inside for r in self.readers.get(name, ())):
                    out[name, i, None] = None
        return list(out)


def reads(node: Node) -> list[str]:
    """What a node reads, what its bodies capture included."""
    return [*(name for name in node.inputs if name), *_captured(node)]


def _captured(node: Node) -> list[str]:
    return list(dict.fromkeys(name for _, body in bodies_of(node) for name in body.outer))


def _all_nodes(graph: Graph) -> list[Node]:
    return [inner for node in graph.nodes for inner in (node, *(n for _, body in bodies_of(node) for n in _all_nodes(body)))]


def type_data(t: TensorType | None) -> dict[str, Any]:
    """Element type and shape as JSON has them: named dims are strings, an unknown rank is null."""
    dtype = (t.dtype.onnx_name if t.dtype else t.type_name) if t else ""
    shape = None if t is None or t.shape is None else [str(e) if isinstance(e, Dim) else e for e in t.shape]
    return {"dtype": dtype, "shape": shape}


def attribute_text(value: object) -> str:
    """An attribute's value in a few words."""
    if isinstance(value, Graph):
        return f"a body of {len(value.nodes)} nodes"
    if isinstance(value, list) and value and isinstance(value[0], Graph):
        return f"{len(value)} bodies"
    if isinstance(value, np.ndarray):
        held = np.array2string(value.reshape(-1)[:8], separator=", ", threshold=8).replace("\n", "")
        return f"{value.dtype} {list(value.shape)} {held[:-1] + ', ...]' if value.size > 8 else held}"
    text = value.decode(errors="replace") if isinstance(value, bytes) else str(value)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."
