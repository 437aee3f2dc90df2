"""OrtGraph -> :class:`onnx_vulkan.graph.Graph`. Handles and constant bytes are ORT's and live as long as the callback does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from onnx_vulkan._shim import ffi, lib
from onnx_vulkan.dims import Extent, symbol
from onnx_vulkan.graph import Array, Attribute, Graph, Node, TensorType
from onnx_vulkan.packing import Packed, unpacked
from onnx_vulkan.versions import registered_version

from onnxruntime_ep_vulkan import abi
from onnxruntime_ep_vulkan.abi import Handle
from onnxruntime_ep_vulkan.tensors import constant_of, element_type, mapped_constant, tensor_of

__all__ = ["ReadGraph", "read_graph", "value_names"]

EP_NAME = "VulkanEP"

_ONNX_TYPES = {
    lib.ONNX_TYPE_SEQUENCE: "sequence",
    lib.ONNX_TYPE_MAP: "map",
    lib.ONNX_TYPE_OPAQUE: "opaque",
    lib.ONNX_TYPE_SPARSETENSOR: "sparse_tensor",
    lib.ONNX_TYPE_OPTIONAL: "optional",
}


Copy = Callable[[Array], Array]
"""Copies an array."""


@dataclass(slots=True)
class ReadGraph:
    """A graph and what leads back to ORT: ``handles[i]`` is the OrtNode of ``graph.nodes[i]``, ``owners[i]`` the EP that has
    it already ("" while it is free)."""

    graph: Graph
    handles: list[Handle]
    owners: list[str]


def read_graph(handle: Handle, *, inputs: list[str] | None = None, lasting: Copy | None = None) -> ReadGraph:
    """Read an OrtGraph with its bodies.

    ``inputs`` fixes the order of the graph's inputs (a fused node's); otherwise they are the graph's own, constants left out.
    With ``lasting`` the constants do not end with ORT's memory: external data is mapped once more, the rest is copied by it.
    """
    return _Reader(abi.text(lib.OrtApi_Graph_GetModelPath, handle), lasting).read(handle, inputs)


def value_names(count_slot: int, list_slot: int, handle: Handle) -> list[str]:
    """The names of a list of OrtValueInfo, "" for one that is left out (NULL)."""
    infos = abi.handles(count_slot, list_slot, handle)
    return ["" if i == ffi.NULL else abi.text(lib.OrtApi_GetValueInfoName, i) for i in infos]


class _Reader:
    """One graph's reading: the values met so far, by the address of their OrtValueInfo."""

    def __init__(self, model_path: str, lasting: Copy | None) -> None:
        self.model_path = model_path
        self.lasting = lasting
        self.names: dict[int, str] = {}
        self.types: dict[str, TensorType] = {}
        self.constants: dict[str, Array | Packed] = {}
        self.defaults: dict[str, Array] = {}
        self.outer: dict[str, None] = {}

    def read(self, graph: Handle, inputs: list[str] | None) -> ReadGraph:
        given = self.values(lib.OrtApi_Graph_GetNumInputs, lib.OrtApi_Graph_GetInputs, graph)
        nodes, owners = [], []
        found = abi.handles(lib.OrtApi_Graph_GetNumNodes, lib.OrtApi_Graph_GetNodes, graph)
        for handle in found:
            nodes.append(self.node(handle))
            # A node that stands for one of our blocks has our name as its domain; before 1.24 it has no owner yet.
            owner = abi.text(lib.OrtApi_Node_GetEpName, handle)
            owners.append(owner or (EP_NAME if nodes[-1].domain == EP_NAME else ""))
        outputs = self.values(lib.OrtApi_Graph_GetNumOutputs, lib.OrtApi_Graph_GetOutputs, graph)
        # A constant that is listed as an input is one that ORT holds for us; an initializer that a caller may override is not
        # constant, and stays.
        names = [n for n in (given if inputs is None else inputs) if n not in self.constants]
        made = {o for n in nodes for o in n.outputs}
        return ReadGraph(
            Graph(
                name=abi.text(lib.OrtApi_Graph_GetName, graph),
                inputs=names,
                outputs=outputs,
                nodes=nodes,
                types=self.types,
                initializers=self.constants,
                opsets=_opsets(graph, {"", *(n.domain for n in nodes)}),
                defaults={n: a for n, a in self.defaults.items() if n in names},
                outer=[n for n in self.outer if n not in names and n not in made],
            ),
            found,
            owners,
        )

    # ------------------------------------------------------------------------------------------------ nodes
    def node(self, handle: Handle) -> Node:
        bodies = self.bodies(handle)
        for name in self.values(lib.OrtApi_Node_GetNumImplicitInputs, lib.OrtApi_Node_GetImplicitInputs, handle):
            assert name  # captured values are met here so that their constants and types are known at this level too
        attributes: dict[str, Attribute] = {}
        for attribute in abi.handles(lib.OrtApi_Node_GetNumAttributes, lib.OrtApi_Node_GetAttributes, handle):
            name = abi.text(lib.OrtApi_OpAttr_GetName, attribute)
            attributes[name] = bodies[name] if name in bodies else _attribute(name, attribute)
        attributes.update({name: body for name, body in bodies.items() if name not in attributes})
        outputs = tuple(_trim(self.values(lib.OrtApi_Node_GetNumOutputs, lib.OrtApi_Node_GetOutputs, handle)))
        op_type = abi.text(lib.OrtApi_Node_GetOperatorType, handle)
        domain = _domain(abi.text(lib.OrtApi_Node_GetDomain, handle))
        since = int(abi.get(lib.OrtApi_Node_GetSinceVersion, handle, "int"))
        return Node(
            # A node without a name is called by its first output, as where a file is read without ONNX Runtime.
            name=abi.text(lib.OrtApi_Node_GetName, handle) or (outputs[0] if outputs else ""),
            op_type=op_type,
            domain=domain,
            since_version=registered_version(domain, op_type, since) or since,
            inputs=tuple(_trim(self.values(lib.OrtApi_Node_GetNumInputs, lib.OrtApi_Node_GetInputs, handle))),
            outputs=outputs,
            attributes=attributes,
        )

    def bodies(self, node: Handle) -> dict[str, Attribute]:
        count = abi.get(lib.OrtApi_Node_GetNumSubgraphs, node, "size_t")
        if not count:
            return {}
        graphs, names = ffi.new("void *[]", count), ffi.new("char *[]", count)
        abi.call(lib.OrtApi_Node_GetSubgraphs, "void *(*)(const void *, void **, size_t, char **)", node, graphs, count, names)
        return {
            ffi.string(names[i]).decode(): _Reader(self.model_path, self.lasting).read(graphs[i], None).graph
            for i in range(count)
        }

    # ------------------------------------------------------------------------------------------------ values
    def values(self, count_slot: int, list_slot: int, owner: Handle) -> list[str]:
        return [self.value(info) for info in abi.handles(count_slot, list_slot, owner)]

    def value(self, info: Handle) -> str:
        if info == ffi.NULL:
            return ""
        address = int(ffi.cast("intptr_t", info))
        name = self.names.get(address)
        if name is not None:
            return name
        name = self.names[address] = abi.text(lib.OrtApi_GetValueInfoName, info)
        if name and name not in self.types:
            known = _type(name, info)
            if known is not None:
                self.types[name] = known
        if name in self.constants or name in self.defaults:
            return name
        held = abi.get(lib.OrtApi_ValueInfo_GetInitializerValue, info)
        if held != ffi.NULL:
            constant = abi.flag(lib.OrtApi_ValueInfo_IsConstantInitializer, info)
            mapped = mapped_constant(info, held, self.model_path) if self.lasting else None
            found = mapped if mapped is not None else constant_of(held)
            if self.lasting and mapped is None:
                copy = self.lasting
                found = Packed(found.dtype, found.shape, copy(found.data)) if isinstance(found, Packed) else copy(found)
            if constant:
                self.constants[name] = found
            else:
                self.defaults[name] = unpacked(found)
        elif abi.flag(lib.OrtApi_ValueInfo_IsFromOuterScope, info):
            self.outer[name] = None
        return name


def _trim(names: list[str]) -> list[str]:
    while names and not names[-1]:
        names.pop()
    return names


def _domain(name: str) -> str:
    return "" if name == "ai.onnx" else name


def _opsets(graph: Handle, used: set[str]) -> dict[str, int]:
    # ORT lists all of its own domains, whether the model uses them or not.
    count = abi.get(lib.OrtApi_Graph_GetNumOperatorSets, graph, "size_t")
    domains, versions = ffi.new("char *[]", count), ffi.new("int64_t[]", count)
    abi.call(
        lib.OrtApi_Graph_GetOperatorSets,
        "void *(*)(const void *, char **, int64_t *, size_t)",
        graph,
        domains,
        versions,
        count,
    )
    found = {_domain(ffi.string(domains[i]).decode()): int(versions[i]) for i in range(count)}
    return {domain: version for domain, version in found.items() if domain in used}


# ---------------------------------------------------------------------------------------------------------------- types


def _type(name: str, info: Handle) -> TensorType | None:
    held = abi.get(lib.OrtApi_GetValueInfoTypeInfo, info)
    if held == ffi.NULL:
        return None
    kind = int(abi.get(lib.OrtApi_GetOnnxTypeFromTypeInfo, held, "int"))
    if kind != lib.ONNX_TYPE_TENSOR:
        return TensorType(None, None, _ONNX_TYPES[kind]) if kind in _ONNX_TYPES else None
    tensor = abi.get(lib.OrtApi_CastTypeInfoToTensorInfo, held)
    if tensor == ffi.NULL:
        return None
    dtype, type_name = element_type(int(abi.get(lib.OrtApi_GetTensorElementType, tensor, "int")))
    return TensorType(dtype, _shape(name, tensor), type_name)


def _shape(name: str, tensor: Handle) -> tuple[Extent, ...] | None:
    rank = int(abi.get(lib.OrtApi_GetDimensionsCount, tensor, "size_t"))
    if not rank:
        # Before 1.24 ORT cannot tell a scalar from a value of unknown rank: not known is the safe reading.
        if abi.api_version() < 24:
            return None
        return () if abi.function(lib.OrtApi_TensorTypeAndShape_HasShape, "bool (*)(const void *)")(tensor) else None
    sizes, symbols = ffi.new("int64_t[]", rank), ffi.new("char *[]", rank)
    abi.call(lib.OrtApi_GetDimensions, "void *(*)(const void *, int64_t *, size_t)", tensor, sizes, rank)
    abi.call(lib.OrtApi_GetSymbolicDimensions, "void *(*)(const void *, char **, size_t)", tensor, symbols, rank)
    shape: list[Extent] = []
    for axis in range(rank):
        if sizes[axis] >= 0:
            shape.append(int(sizes[axis]))
            continue
        given = "" if symbols[axis] == ffi.NULL else ffi.string(symbols[axis]).decode(errors="replace")
        shape.append(symbol(given or f"{name}.{axis}"))
    return tuple(shape)


# ---------------------------------------------------------------------------------------------------------------- attributes


def _attribute(name: str, handle: Handle) -> Attribute:
    try:
        kind = int(abi.get(lib.OrtApi_OpAttr_GetType, handle, "int"))
    except abi.OrtError:  # a type, as Optional has: no lowering has an attribute of that kind, and so the node is refused
        return b""
    if kind == lib.ORT_OP_ATTR_TENSOR:
        held = abi.get(lib.OrtApi_OpAttr_GetTensorAttributeAsOrtValue, handle)
        try:
            return tensor_of(held).copy()
        finally:
            abi.function(lib.OrtApi_ReleaseValue, "void (*)(void *)")(held)
    raw = _raw_attribute(handle, kind)
    if kind == lib.ORT_OP_ATTR_INT:
        return int(np.frombuffer(raw, np.int64)[0])
    if kind == lib.ORT_OP_ATTR_INTS:
        return [int(v) for v in np.frombuffer(raw, np.int64)]
    if kind == lib.ORT_OP_ATTR_FLOAT:
        return float(np.frombuffer(raw, np.float32)[0])
    if kind == lib.ORT_OP_ATTR_FLOATS:
        return [float(v) for v in np.frombuffer(raw, np.float32)]
    if kind == lib.ORT_OP_ATTR_STRING:
        return _decode(raw)
    if kind == lib.ORT_OP_ATTR_STRINGS:
        texts = [_decode(part) for part in raw.split(b"\0")[:-1]]
        return texts if all(isinstance(t, str) for t in texts) else raw.split(b"\0")[:-1]  # type: ignore[return-value]
    raise ValueError(f"attribute {name!r} has a type that ONNX Runtime does not hand out ({kind})")


def _raw_attribute(handle: Handle, kind: int) -> bytes:
    read = abi.function(lib.OrtApi_ReadOpAttr, "void *(*)(const void *, int, void *, size_t, size_t *)")
    size = ffi.new("size_t *")
    status = read(handle, kind, ffi.NULL, 0, size)
    if status != ffi.NULL:  # the size comes with an error status; an empty attribute comes without one
        abi.function(lib.OrtApi_ReleaseStatus, "void (*)(void *)")(status)
    if not size[0]:
        return b""
    data = ffi.new("char[]", size[0])
    abi.check(read(handle, kind, data, size[0], size))
    return bytes(ffi.buffer(data, size[0]))


def _decode(raw: bytes) -> str | bytes:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw
