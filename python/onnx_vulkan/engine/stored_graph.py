"""A :class:`~onnx_vulkan.graph.Graph` as JSON, its arrays as blobs: what a compiled model plans further sizes from."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np

from onnx_vulkan.dims import Dim, Extent, maximum, minimum, symbol
from onnx_vulkan.dtypes import DType
from onnx_vulkan.engine.container import Reader, Writer
from onnx_vulkan.errors import ModelError, Unsupported
from onnx_vulkan.graph import Array, Attribute, Graph, Node, TensorType
from onnx_vulkan.packing import Packed

__all__ = ["graph_as_json", "graph_from_json"]

Json = Any


def graph_as_json(graph: Graph, out: Writer) -> Json:
    """A graph with its bodies; arrays go into *out*. Raises Unsupported for an attribute or constant that has no form here."""
    return {
        "name": graph.name,
        "inputs": graph.inputs,
        "outputs": graph.outputs,
        "nodes": [[n.name, n.op_type, n.domain, n.since_version, n.inputs, n.outputs, _attributes(n, out)] for n in graph.nodes],
        "types": {name: [_dtype(t.dtype), _shape(t.shape), t.type_name] for name, t in graph.types.items()},
        "initializers": {name: _constant(c, out) for name, c in graph.initializers.items()},
        "opsets": graph.opsets,
        "defaults": {name: _constant(c, out) for name, c in graph.defaults.items()},
        "outer": graph.outer,
    }


def graph_from_json(data: Json, source: Reader) -> Graph:
    """The graph that was written. Its arrays are views of *source*, whose blobs are not checked yet."""
    return Graph(
        name=data["name"],
        inputs=data["inputs"],
        outputs=data["outputs"],
        nodes=[
            Node(name, op, domain, since, tuple(inputs), tuple(outputs), {k: _read(v, source) for k, v in attributes.items()})
            for name, op, domain, since, inputs, outputs, attributes in data["nodes"]
        ],
        types={
            name: TensorType(DType(dtype) if dtype else None, _read_shape(shape), type_name)
            for name, (dtype, shape, type_name) in data["types"].items()
        },
        initializers={name: _read_constant(c, source) for name, c in data["initializers"].items()},
        opsets=data["opsets"],
        defaults={name: np.asarray(_read_constant(c, source)) for name, c in data["defaults"].items()},
        outer=data["outer"],
    )


# ---------------------------------------------------------------------------------------------------------------- constants


def _dtype(dtype: DType | None) -> int:
    return int(dtype.value) if dtype is not None else 0


def _constant(constant: Array | Packed, out: Writer) -> Json:
    if isinstance(constant, Packed):
        return {"packed": _dtype(DType.of(constant.dtype)), "shape": constant.shape, "blob": out.add(constant.data)}
    if constant.dtype == object:
        return {"strings": [_scalar(s) for s in constant.reshape(-1).tolist()], "shape": constant.shape}
    try:
        return {"dtype": _dtype(DType.of(constant.dtype)), "shape": constant.shape, "blob": out.add(constant)}
    except KeyError:  # a complex number, say, that no kernel has
        return {"numpy": constant.dtype.str, "shape": constant.shape, "blob": out.add(constant)}


def _read_constant(data: Json, source: Reader) -> Array | Packed:
    shape = tuple(data["shape"])
    if "strings" in data:
        strings = np.empty(len(data["strings"]), object)
        strings[:] = [_read(s, source) for s in data["strings"]]
        return strings.reshape(shape)
    raw = source.blob(data["blob"], check=False)
    if "packed" in data:
        return Packed(DType(data["packed"]).numpy, shape, raw)
    found: Array = raw.view(DType(data["dtype"]).numpy if "dtype" in data else np.dtype(data["numpy"])).reshape(shape)
    return found


# ---------------------------------------------------------------------------------------------------------------- attributes


def _attributes(node: Node, out: Writer) -> Json:
    return {name: _attribute(value, node, name, out) for name, value in node.attributes.items()}


def _attribute(value: Attribute, node: Node, name: str, out: Writer) -> Json:
    if isinstance(value, Graph):
        return {"graph": graph_as_json(value, out)}
    if isinstance(value, (np.ndarray, Packed)):
        return {"array": _constant(value, out)}
    if isinstance(value, list):
        return [_attribute(v, node, name, out) for v in value]
    if isinstance(value, (bool, int, float, str, bytes)):
        return _scalar(value)
    raise Unsupported(f"the attribute {name!r} of node {node.name!r} ({node.label}) cannot be stored in a compiled model")


def _scalar(value: int | float | str | bytes) -> Json:
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            return {"bytes": base64.b64encode(value.encode(errors="surrogateescape")).decode(), "text": True}
        return value
    return {"bytes": base64.b64encode(value).decode()} if isinstance(value, bytes) else value


def _read(value: Json, source: Reader) -> Any:
    if isinstance(value, list):
        return [_read(v, source) for v in value]
    if not isinstance(value, dict):
        return value
    if "graph" in value:
        return graph_from_json(value["graph"], source)
    if "array" in value:
        return _read_constant(value["array"], source)
    raw = base64.b64decode(value["bytes"])
    return raw.decode(errors="surrogateescape") if value.get("text") else raw


# ---------------------------------------------------------------------------------------------------------------- dims


def _shape(shape: tuple[Extent, ...] | None) -> Json:
    return None if shape is None else [_extent(e) for e in shape]


def _extent(e: Extent) -> Json:
    if not isinstance(e, Dim):
        return int(e)
    return [[c, [[_atom(a), power] for a, power in monomial]] for monomial, c in e.terms]


def _atom(atom: Any) -> Json:
    return atom[1] if atom[0] == "sym" else [atom[0], _extent(atom[1]), _extent(atom[2])]


def _read_shape(shape: Json) -> tuple[Extent, ...] | None:
    return None if shape is None else tuple(_read_extent(e) for e in shape)


def _read_extent(data: Json) -> Extent:
    if isinstance(data, int):
        return data
    total: Extent = 0
    for c, monomial in data:
        term: Extent = c
        for atom, power in monomial:
            factor = _read_atom(atom)
            for _ in range(power):
                term = term * factor
        total = total + term
    return total


def _read_atom(data: Json) -> Extent:
    if isinstance(data, str):
        return symbol(data)
    kind, a, b = data[0], _read_extent(data[1]), _read_extent(data[2])
    if kind == "div":
        return a // b
    if kind not in ("min", "max"):
        raise ModelError(f"the compiled model has a dim of the kind {kind!r}, which this version does not know.")
    return minimum(a, b) if kind == "min" else maximum(a, b)
