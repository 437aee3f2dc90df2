"""ONNX model -> :class:`~onnx_vulkan.graph.Graph`: checks that the graph is well formed, orders it, collects its constants."""

from __future__ import annotations

import heapq
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from onnx_vulkan.dtypes import DType
from onnx_vulkan.errors import ModelError
from onnx_vulkan.frontend.functions import imported_version, inline_functions
from onnx_vulkan.frontend.tensors import ExternalData, array_of, constant_of, sparse_array_of
from onnx_vulkan.frontend.types import infer, since_version, tensor_type, type_name_of
from onnx_vulkan.frontend.wire import cut_weights
from onnx_vulkan.graph import Array, Attribute, Graph, Node, TensorType
from onnx_vulkan.packing import Packed, unpacked

__all__ = ["external_files", "load"]

_A = onnx.AttributeProto


def load(model: str | os.PathLike[str] | bytes, base_dir: str | os.PathLike[str] | None = None) -> Graph:
    """Read a model from a file or from its bytes.

    *base_dir* is where external data lies; by default the folder of the file (bytes have none). Weights are views of the
    mapped file, so a model larger than memory loads. Raises ModelError with one sentence for whatever is wrong with the file.
    """
    path: Path | None = None
    if isinstance(model, (bytes, bytearray, memoryview)):
        buf, label = memoryview(model).cast("B"), "the given model"
    else:
        path = Path(model)
        buf, label = _map(path), str(path)
        base_dir = base_dir if base_dir is not None else path.parent
    proto, weights = _parse(buf, label)
    try:
        return _Reader(proto, weights, ExternalData(base_dir, path)).graph()
    except RecursionError:
        raise ModelError(f"{label} nests its graphs too deeply to be read.") from None


def external_files(model: str | os.PathLike[str]) -> list[str]:
    """The locations of a model file's external data, as the file names them (relative to its folder). Raises ModelError."""
    proto, _ = _parse(_map(Path(model)), str(model))
    found: dict[str, None] = {}
    for tensor in _tensors(proto):
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            found.update((e.value, None) for e in tensor.external_data if e.key == "location")
    return list(found)


def _tensors(message: Any) -> Iterable[onnx.TensorProto]:
    """Every tensor anywhere in a message."""
    if isinstance(message, onnx.TensorProto):
        yield message
        return
    for field, value in message.ListFields():
        if field.type == field.TYPE_MESSAGE:
            for v in (value,) if hasattr(value, "ListFields") else value:
                yield from _tensors(v)


def _map(path: Path) -> memoryview:
    try:
        if path.is_dir():
            raise ModelError(f"{path} is a folder; give the .onnx file in it.")
        if path.stat().st_size == 0:
            raise ModelError(f"{path} is empty.")
        # numpy's mapping knows its file name, which is how origin() finds where a weight lies
        mapped: Any = np.memmap(path, dtype=np.uint8, mode="r")
        return memoryview(mapped)
    except FileNotFoundError:
        raise ModelError(f"there is no file {path}.") from None
    except (OSError, ValueError) as e:
        raise ModelError(f"{path} cannot be read: {e}.") from None


def _parse(buf: memoryview, label: str) -> tuple[onnx.ModelProto, dict[int, memoryview]]:
    wrong = f"{label} is no ONNX model, or is cut short or damaged"
    try:
        rest, weights = cut_weights(buf)
        proto = onnx.ModelProto.FromString(rest)
    except (ValueError, DecodeError, UnicodeDecodeError) as e:
        raise ModelError(f"{wrong}: {e}.") from None
    if not proto.HasField("graph"):
        raise ModelError(f"{wrong}: it holds no graph.")
    damaged = _not_text(proto)
    if damaged:
        raise ModelError(f"{wrong}: a {damaged} is not UTF-8 text.")
    return proto, weights


def _not_text(message: Any) -> str:
    """The field of *message* that should be text and is not; protobuf hands such a one over as bytes, unchecked."""
    for field, value in message.ListFields():
        if field.type == field.TYPE_STRING:
            values = (value,) if isinstance(value, (str, bytes)) else value
            if any(isinstance(v, bytes) for v in values):
                return str(field.full_name)
        elif field.type == field.TYPE_MESSAGE:
            for v in (value,) if hasattr(value, "ListFields") else value:
                found = _not_text(v)
                if found:
                    return found
    return ""


def _domain(name: str) -> str:
    return "" if name == "ai.onnx" else name


class _Reader:
    """Builds the Graph of one model; ``graph()`` may be called once."""

    def __init__(self, model: onnx.ModelProto, weights: dict[int, memoryview], external: ExternalData):
        self.model = model
        self.external = external
        # functions never own initializers of the main graph: names are the stable way to say which weight is which
        self.weights = {model.graph.initializer[i].name: raw for i, raw in weights.items()}
        self.opsets: dict[str, int] = {}
        for i in model.opset_import:
            domain = _domain(i.domain)
            self.opsets[domain] = max(i.version, self.opsets.get(domain, 0))
        if not model.opset_import and model.ir_version < 3:
            self.opsets[""] = 1

    def graph(self) -> Graph:
        inline_functions(self.model)
        self.model.graph.CopyFrom(infer(self.model))
        made = self._graph(self.model.graph, set(), "the graph")
        return made

    # ------------------------------------------------------------------------------------------------------- graphs
    def _graph(self, proto: onnx.GraphProto, outside: set[str], where: str) -> Graph:
        """*outside* holds the names that a body may capture; empty for the model's own graph."""
        main = not outside and proto is self.model.graph
        inputs = [v.name for v in proto.input]
        constants = self._constants(proto, main, where)
        # Before IR 4 every initializer had to be listed as an input too; from then on, being listed means "may be overridden".
        overridable = {n for n in inputs if n in constants} if self.model.ir_version >= 4 or not main else set()
        formal = [n for n in inputs if n not in constants or n in overridable]
        types: dict[str, TensorType] = {}
        for v in [*proto.input, *proto.output, *proto.value_info]:
            known = tensor_type(v.name, v.type)
            if known is not None and (v.name not in types or types[v.name].shape is None):
                types[v.name] = known
        graph = Graph(proto.name, formal, [v.name for v in proto.output], [], types, constants, dict(self.opsets))
        graph.defaults = {n: unpacked(constants.pop(n)) for n in overridable}
        self._check_unique(proto, formal, constants, where)
        kept = [n for n in proto.node if not self._is_constant(n)]
        self._order(graph, kept, outside, where)
        for name, array in [*constants.items(), *graph.defaults.items()]:
            if name in constants or name not in types:
                types[name] = _type_of(array)
        return graph

    def _constants(self, proto: onnx.GraphProto, main: bool, where: str) -> dict[str, Array | Packed]:
        out: dict[str, Array | Packed] = {}

        def add(name: str, array: Array | Packed) -> None:
            if not name:
                raise ModelError(f"{where} has an initializer without a name.")
            if name in out:
                raise ModelError(f"{where} defines the constant {name!r} twice.")
            out[name] = array

        for t in proto.initializer:
            add(t.name, constant_of(t, self.external, raw=self.weights.get(t.name) if main else None))
        for s in proto.sparse_initializer:
            add(s.values.name, sparse_array_of(s, self.external))
        for node in proto.node:
            if self._is_constant(node):
                add(node.output[0], self._constant_value(node))
        return out

    def _is_constant(self, node: onnx.NodeProto) -> bool:
        return node.op_type == "Constant" and _domain(node.domain) == "" and not node.input and len(node.output) == 1

    def _constant_value(self, node: onnx.NodeProto) -> Array | Packed:
        """The tensor of a Constant node (every ``value*`` attribute of ONNX Constant-1 to -25)."""
        label = node.output[0]
        if len(node.attribute) != 1:
            raise ModelError(f"the Constant that makes {label!r} has {len(node.attribute)} attributes; it must have one.")
        (a,) = node.attribute
        if a.name == "value" and a.HasField("t"):
            return constant_of(a.t, self.external, label)
        if a.name == "sparse_value" and a.HasField("sparse_tensor"):
            return sparse_array_of(a.sparse_tensor, self.external)
        if a.name in ("value_float", "value_floats"):
            return np.array(a.f if a.name == "value_float" else list(a.floats), np.float32)
        if a.name in ("value_int", "value_ints"):
            return np.array(a.i if a.name == "value_int" else list(a.ints), np.int64)
        if a.name in ("value_string", "value_strings"):
            strings = np.empty(() if a.name == "value_string" else (len(a.strings),), object)
            strings[...] = _string(a.s) if a.name == "value_string" else [_string(s) for s in a.strings]
            return strings
        raise ModelError(f"the Constant that makes {label!r} has the attribute {a.name!r}, which no version of it knows.")

    def _check_unique(self, proto: onnx.GraphProto, inputs: Sequence[str], constants: Iterable[str], where: str) -> None:
        seen: dict[str, str] = dict.fromkeys(constants, "a constant")
        for name in inputs:
            if not name:
                raise ModelError(f"{where} has an input without a name.")
            if name in seen:
                raise ModelError(f"{where} has the input {name!r} twice.")
            seen[name] = "an input"
        for node in proto.node:
            if self._is_constant(node):
                continue
            for name in node.output:
                if name and name in seen:
                    raise ModelError(f"{where} defines the value {name!r} twice: as {seen[name]} and by node {_label(node)!r}.")
                seen[name] = f"an output of node {_label(node)!r}"

    # -------------------------------------------------------------------------------------------------------- nodes
    def _order(self, graph: Graph, protos: list[onnx.NodeProto], outside: set[str], where: str) -> None:
        """Fill in nodes (topologically, otherwise in the file's order) and what they capture."""
        made_by = {name: i for i, p in enumerate(protos) for name in p.output if name}
        known = {*graph.inputs, *graph.initializers, *graph.defaults}
        visible = outside | known | set(made_by)
        captured: dict[str, None] = {}
        nodes = [self._node(p, visible) for p in protos]
        waits: list[set[int]] = []
        for node in nodes:
            reads = [n for n in node.inputs if n]
            for body in _bodies(node):
                reads += body.outer
            before: set[int] = set()
            for name in reads:
                if name in made_by:
                    before.add(made_by[name])
                elif name in known:
                    continue
                elif name in outside:
                    captured.setdefault(name)
                else:
                    raise ModelError(
                        f"node {node.name!r} ({node.label}) reads {name!r}, which no node, input or initializer makes."
                    )
            waits.append(before)
        for name in graph.outputs:
            if name in made_by or name in known:
                continue
            if name not in outside:
                raise ModelError(f"{where} has the output {name!r}, which no node, input or initializer makes.")
            captured.setdefault(name)
        graph.nodes = [nodes[i] for i in _topological(waits, nodes)]
        graph.outer = list(captured)

    def _node(self, proto: onnx.NodeProto, visible: set[str]) -> Node:
        domain = _domain(proto.domain)
        opset = imported_version(proto) or self.opsets.get(domain, 0)
        label = _label(proto)
        if not proto.op_type:
            raise ModelError(f"node {label!r} names no operator.")
        attributes: dict[str, Attribute] = {}
        for a in proto.attribute:
            if a.name in attributes:
                raise ModelError(f"node {label!r} has the attribute {a.name!r} twice.")
            attributes[a.name] = self._attribute(a, label, visible)
        return Node(
            label,
            proto.op_type,
            domain,
            since_version(domain, proto.op_type, opset),
            tuple(proto.input),
            tuple(proto.output),
            attributes,
        )

    def _attribute(self, a: onnx.AttributeProto, label: str, visible: set[str]) -> Attribute:
        if a.ref_attr_name:
            raise ModelError(f"node {label!r} refers to a function's attribute {a.ref_attr_name!r} outside a function.")
        where = f"the body {a.name!r} of node {label!r}"
        plain: dict[int, Any] = {
            _A.FLOAT: lambda: float(a.f),
            _A.INT: lambda: int(a.i),
            _A.STRING: lambda: _string(a.s),
            _A.TENSOR: lambda: array_of(a.t, self.external, a.t.name or f"{label}.{a.name}"),
            _A.GRAPH: lambda: self._graph(a.g, visible, where),
            _A.SPARSE_TENSOR: lambda: sparse_array_of(a.sparse_tensor, self.external),
            _A.TYPE_PROTO: lambda: type_name_of(a.tp),
            _A.FLOATS: lambda: [float(v) for v in a.floats],
            _A.INTS: lambda: [int(v) for v in a.ints],
            _A.STRINGS: lambda: [_string(v) for v in a.strings],
            _A.TENSORS: lambda: [array_of(t, self.external, t.name or f"{label}.{a.name}") for t in a.tensors],
            _A.GRAPHS: lambda: [self._graph(g, visible, where) for g in a.graphs],
            _A.TYPE_PROTOS: lambda: [type_name_of(t) for t in a.type_protos],
        }
        if a.type not in plain:
            raise ModelError(f"node {label!r} has the attribute {a.name!r} of a kind that cannot be read (type {a.type}).")
        made: Attribute = plain[a.type]()
        return made


def _label(node: onnx.NodeProto) -> str:
    """The node's name, or what identifies it as well: its first output."""
    return node.name or next((o for o in node.output if o), node.op_type)


def _string(s: bytes) -> Any:
    try:
        return s.decode()
    except UnicodeDecodeError:
        return s


def _bodies(node: Node) -> Iterable[Graph]:
    for value in node.attributes.values():
        if isinstance(value, Graph):
            yield value
        elif isinstance(value, list):
            yield from (v for v in value if isinstance(v, Graph))


def _type_of(array: Array | Packed) -> TensorType:
    shape = tuple(int(d) for d in array.shape)
    try:
        return TensorType(DType.of(array.dtype), shape)
    except KeyError:
        return TensorType(None, shape, "tensor(string)" if array.dtype == object else f"tensor({array.dtype.name})")


def _topological(waits: list[set[int]], nodes: Sequence[Node]) -> list[int]:
    """Kahn's order, the lowest index first, so that a sorted graph stays as it is. Raises ModelError for a cycle."""
    followers: list[list[int]] = [[] for _ in waits]
    for i, before in enumerate(waits):
        for j in before:
            followers[j].append(i)
    left = [len(before) for before in waits]
    ready = [i for i, n in enumerate(left) if n == 0]
    order: list[int] = []
    while ready:
        i = heapq.heappop(ready)
        order.append(i)
        for j in followers[i]:
            left[j] -= 1
            if left[j] == 0:
                heapq.heappush(ready, j)
    if len(order) < len(waits):
        stuck = next(nodes[i] for i, n in enumerate(left) if n)
        raise ModelError(f"the graph has a cycle: node {stuck.name!r} ({stuck.label}) needs its own result.")
    return order
