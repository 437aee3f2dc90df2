"""OrtGraph -> :class:`onnx_vulkan.graph.Graph`. Handles and constant bytes are ORT's and live as long as the callback does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from onnx_vulkan._shim import ffi, lib
from onnx_vulkan.dims import Extent, symbol
from onnx_vulkan.dtypes import DType
from onnx_vulkan.graph import Array, Attribute, Graph, Node, TensorType

from onnxruntime_ep_vulkan import abi
from onnxruntime_ep_vulkan.abi import Handle

__all__ = ["ReadGraph", "read_graph", "tensor_of", "value_names"]

EP_NAME = "VulkanEP"

# Element types that onnx_vulkan has no DType for: ONNX's number -> (name, numpy dtype of the unpacked array or None, bits).
_OTHER_TYPES: dict[int, tuple[str, Any, int]] = {
    8: ("string", None, 0),
    14: ("complex64", np.complex64, 64),
    15: ("complex128", np.complex128, 128),
    17: ("float8e4m3fn", ml_dtypes.float8_e4m3fn, 8),
    18: ("float8e4m3fnuz", ml_dtypes.float8_e4m3fnuz, 8),
    19: ("float8e5m2", ml_dtypes.float8_e5m2, 8),
    20: ("float8e5m2fnuz", ml_dtypes.float8_e5m2fnuz, 8),
    21: ("uint4", ml_dtypes.uint4, 4),
    22: ("int4", ml_dtypes.int4, 4),
    23: ("float4e2m1", ml_dtypes.float4_e2m1fn, 4),
    24: ("uint2", ml_dtypes.uint2, 2),
    25: ("int2", ml_dtypes.int2, 2),
    26: ("float8e8m0", ml_dtypes.float8_e8m0fnu, 8),
}
_ONNX_TYPES = {
    lib.ONNX_TYPE_SEQUENCE: "sequence",
    lib.ONNX_TYPE_MAP: "map",
    lib.ONNX_TYPE_OPAQUE: "opaque",
    lib.ONNX_TYPE_SPARSETENSOR: "sparse_tensor",
    lib.ONNX_TYPE_OPTIONAL: "optional",
}


@dataclass(slots=True)
class ReadGraph:
    """A graph and what leads back to ORT: ``handles[i]`` is the OrtNode of ``graph.nodes[i]``, ``owners[i]`` the EP that has
    it already ("" while it is free)."""

    graph: Graph
    handles: list[Handle]
    owners: list[str]


def read_graph(handle: Handle, *, inputs: list[str] | None = None) -> ReadGraph:
    """Read an OrtGraph with its bodies.

    ``inputs`` fixes the order of the graph's inputs (a fused node's); otherwise they are the graph's own, constants left out.
    """
    return _Reader().read(handle, inputs)


def value_names(count_slot: int, list_slot: int, handle: Handle) -> list[str]:
    """The names of a list of OrtValueInfo, "" for one that is left out (NULL)."""
    infos = abi.handles(count_slot, list_slot, handle)
    return ["" if i == ffi.NULL else abi.text(lib.OrtApi_GetValueInfoName, i) for i in infos]


class _Reader:
    """One graph's reading: the values met so far, by the address of their OrtValueInfo."""

    def __init__(self) -> None:
        self.names: dict[int, str] = {}
        self.types: dict[str, TensorType] = {}
        self.constants: dict[str, Array] = {}
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
        bodies = _bodies(handle)
        for name in self.values(lib.OrtApi_Node_GetNumImplicitInputs, lib.OrtApi_Node_GetImplicitInputs, handle):
            assert name  # captured values are met here so that their constants and types are known at this level too
        attributes: dict[str, Attribute] = {}
        for attribute in abi.handles(lib.OrtApi_Node_GetNumAttributes, lib.OrtApi_Node_GetAttributes, handle):
            name = abi.text(lib.OrtApi_OpAttr_GetName, attribute)
            attributes[name] = bodies[name] if name in bodies else _attribute(name, attribute)
        attributes.update({name: body for name, body in bodies.items() if name not in attributes})
        return Node(
            name=abi.text(lib.OrtApi_Node_GetName, handle),
            op_type=abi.text(lib.OrtApi_Node_GetOperatorType, handle),
            domain=_domain(abi.text(lib.OrtApi_Node_GetDomain, handle)),
            since_version=int(abi.get(lib.OrtApi_Node_GetSinceVersion, handle, "int")),
            inputs=tuple(_trim(self.values(lib.OrtApi_Node_GetNumInputs, lib.OrtApi_Node_GetInputs, handle))),
            outputs=tuple(_trim(self.values(lib.OrtApi_Node_GetNumOutputs, lib.OrtApi_Node_GetOutputs, handle))),
            attributes=attributes,
        )

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
            (self.constants if constant else self.defaults)[name] = tensor_of(held)
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


def _bodies(node: Handle) -> dict[str, Attribute]:
    count = abi.get(lib.OrtApi_Node_GetNumSubgraphs, node, "size_t")
    if not count:
        return {}
    graphs, names = ffi.new("void *[]", count), ffi.new("char *[]", count)
    abi.call(lib.OrtApi_Node_GetSubgraphs, "void *(*)(const void *, void **, size_t, char **)", node, graphs, count, names)
    return {ffi.string(names[i]).decode(): _Reader().read(graphs[i], None).graph for i in range(count)}


# ---------------------------------------------------------------------------------------------------------------- types


def _element(number: int) -> tuple[DType | None, str]:
    try:
        return DType(number), ""
    except ValueError:
        return None, f"tensor({_OTHER_TYPES.get(number, ('undefined', None, 0))[0]})"


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
    dtype, type_name = _element(int(abi.get(lib.OrtApi_GetTensorElementType, tensor, "int")))
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


# ---------------------------------------------------------------------------------------------------------------- tensors


def tensor_of(value: Handle) -> Array:
    """An OrtValue tensor as an array: a read-only view of ORT's memory, except for strings and types below a byte."""
    info = abi.get(lib.OrtApi_GetTensorTypeAndShape, value)
    try:
        number = int(abi.get(lib.OrtApi_GetTensorElementType, info, "int"))
        rank = int(abi.get(lib.OrtApi_GetDimensionsCount, info, "size_t"))
        sizes = ffi.new("int64_t[]", rank)
        abi.call(lib.OrtApi_GetDimensions, "void *(*)(const void *, int64_t *, size_t)", info, sizes, rank)
        elements = int(abi.get(lib.OrtApi_GetTensorShapeElementCount, info, "size_t"))
    finally:
        abi.function(lib.OrtApi_ReleaseTensorTypeAndShapeInfo, "void (*)(void *)")(info)
    shape = tuple(int(s) for s in sizes)
    if number == 8:
        return _strings(value, elements).reshape(shape)
    if number in _OTHER_TYPES:
        _, dtype, bits = _OTHER_TYPES[number]
    else:
        dtype, bits = DType(number).numpy, DType(number).size * 8
    size = (elements * bits + 7) // 8
    if not size:
        return np.empty(shape, dtype)
    data = abi.get(lib.OrtApi_GetTensorData, value)
    raw = np.frombuffer(ffi.buffer(data, size), np.uint8)
    raw.flags.writeable = False
    if bits >= 8:
        whole: Array = raw.view(dtype).reshape(shape)
        return whole
    per_byte = 8 // bits
    spread = (raw[:, None] >> (np.arange(per_byte, dtype=np.uint8) * bits)) & ((1 << bits) - 1)
    return _narrow(spread.reshape(-1)[:elements].astype(np.uint8), dtype, bits).reshape(shape)


def _narrow(codes: Array, dtype: Any, bits: int) -> Array:
    """Codes of *bits* bits (one a byte) as an ml_dtypes array, which keeps one element a byte too."""
    if np.dtype(dtype).name.startswith("int"):
        signed = codes.astype(np.int8)
        return np.where(signed >= 1 << (bits - 1), signed - (1 << bits), signed).astype(np.int8).astype(dtype)
    return codes.view(dtype) if np.dtype(dtype).name.startswith("float") else codes.astype(dtype)


def _strings(value: Handle, elements: int) -> Array:
    total = int(abi.get(lib.OrtApi_GetStringTensorDataLength, value, "size_t"))
    data, starts = ffi.new("char[]", total + 1), ffi.new("size_t[]", elements + 1)
    abi.call(
        lib.OrtApi_GetStringTensorContent,
        "void *(*)(const void *, void *, size_t, size_t *, size_t)",
        value,
        data,
        total,
        starts,
        elements,
    )
    raw, ends = bytes(ffi.buffer(data, total)), [*list(starts)[1:elements], total]
    return np.array([raw[starts[i] : ends[i]].decode(errors="surrogateescape") for i in range(elements)], dtype=object)


# ---------------------------------------------------------------------------------------------------------------- attributes


def _attribute(name: str, handle: Handle) -> Attribute:
    kind = int(abi.get(lib.OrtApi_OpAttr_GetType, handle, "int"))
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
