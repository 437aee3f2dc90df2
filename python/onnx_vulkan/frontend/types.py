"""What is known about values before a run: TypeProto -> TensorType, schema versions, shape inference. No tensor data here."""

from __future__ import annotations

import functools
from collections.abc import Collection

import onnx
import onnx.shape_inference

from onnx_vulkan.dims import Extent, symbol
from onnx_vulkan.dtypes import DType
from onnx_vulkan.frontend.tensors import type_text
from onnx_vulkan.graph import TensorType
from onnx_vulkan.versions import registered_version

__all__ = ["infer", "newest_known", "since_version", "tensor_type", "type_name_of"]

_DTYPES = {t.value: t for t in DType}

# What exporters write into dim_param when they mean "unknown": two of these are not one dimension.
_NAMELESS = frozenset({"", "?", "*", "-1", "None", "none", "unk", "unknown", "dynamic"})

# Operators that ONNX Runtime itself puts into the ONNX domain, in one version (its contrib_defs.cc).
_ORT_OWN = frozenset({"SimplifiedLayerNormalization", "LayerNormalization"})


@functools.cache
def newest_known(domain: str) -> int:
    """The newest version of *domain* whose operators the installed ``onnx`` package has, 0 for a domain it lacks."""
    if domain == "":
        return onnx.defs.onnx_opset_version()
    return max((s.since_version for s in onnx.defs.get_all_schemas_with_history() if s.domain == domain), default=0)


@functools.cache
def since_version(domain: str, op_type: str, opset: int) -> int:
    """The operator's schema version that *opset* of its domain selects, 0 where no schema is known.

    ORT's contrib domain has one version of everything. An opset newer than the installed ``onnx`` package gives 0: the
    operator may have changed in it.
    """
    if registered := registered_version(domain, op_type, opset):
        return registered
    if domain == "com.microsoft":
        return 1
    if not 0 < opset <= max(newest_known(domain), 1):
        return 0
    try:
        return int(onnx.defs.get_schema(op_type, opset, domain).since_version)
    except onnx.defs.SchemaError:
        return int(domain == "" and op_type in _ORT_OWN)


def type_name_of(proto: onnx.TypeProto) -> str:
    """The type in ONNX's words, e.g. ``tensor(string)``, ``seq(tensor(float))``; ``""`` when nothing is said."""
    kind = proto.WhichOneof("value")
    if kind == "tensor_type":
        return f"tensor({type_text(proto.tensor_type.elem_type)})"
    if kind == "sparse_tensor_type":
        return f"sparse_tensor({type_text(proto.sparse_tensor_type.elem_type)})"
    if kind == "sequence_type":
        return f"seq({type_name_of(proto.sequence_type.elem_type)})"
    if kind == "optional_type":
        return f"optional({type_name_of(proto.optional_type.elem_type)})"
    if kind == "map_type":
        return f"map({type_text(proto.map_type.key_type)},{type_name_of(proto.map_type.value_type)})"
    return f"opaque({proto.opaque_type.name})" if kind == "opaque_type" else ""


def tensor_type(name: str, proto: onnx.TypeProto) -> TensorType | None:
    """The type of value *name*; None when the model does not say it. Nameless dims become the symbol ``{name}.{axis}``."""
    kind = proto.WhichOneof("value")
    if kind is None:
        return None
    if kind != "tensor_type":
        return TensorType(None, None, type_name_of(proto))
    tensor = proto.tensor_type
    if tensor.elem_type == 0:
        return None
    dtype = _DTYPES.get(tensor.elem_type)
    shape: tuple[Extent, ...] | None = None
    if tensor.HasField("shape"):
        shape = tuple(_extent(name, axis, d) for axis, d in enumerate(tensor.shape.dim))
    return TensorType(dtype, shape, "" if dtype else type_name_of(proto))


def _extent(name: str, axis: int, dim: onnx.TensorShapeProto.Dimension) -> Extent:
    # Old exporters write -1 for "unknown".
    if dim.HasField("dim_value") and dim.dim_value >= 0:
        return int(dim.dim_value)
    return symbol(f"{name}.{axis}" if dim.dim_param in _NAMELESS else dim.dim_param)


def _keep_names(inferred: onnx.TypeProto.Tensor, said: onnx.TypeProto.Tensor) -> None:
    """Complete the inferred type of an output by what the model says of it, where the two do not contradict each other."""
    if not said.HasField("shape"):
        return
    if not inferred.HasField("shape"):
        inferred.shape.CopyFrom(said.shape)
    elif len(inferred.shape.dim) == len(said.shape.dim):
        for ours, theirs in zip(inferred.shape.dim, said.shape.dim, strict=True):
            if not ours.HasField("dim_value") and (theirs.dim_param or theirs.HasField("dim_value")):
                ours.CopyFrom(theirs)


_FRAGILE = {"EyeLike", "LabelEncoder", "DictVectorizer", "RegexFullMatch"}
"""Operators whose inference reads the type of an input that may have none, which ends the process."""


def _is_fragile(node: onnx.NodeProto, typed: Collection[str]) -> bool:
    """Whether inference must not see *node*; *typed* are the values that are sure to have a type."""
    if node.op_type in _FRAGILE and not set(node.input) <= set(typed):
        return True
    return any(_is_fragile(inner, ()) for a in node.attribute if a.HasField("g") for inner in a.g.node)


def infer(model: onnx.ModelProto) -> onnx.GraphProto:
    """*model*'s graph with the types of inner values filled in as far as ONNX's shape inference gets.

    What the file says about inner values and outputs is only believed where inference has nothing (operators without a
    schema): stale types are common. A failure of the inference is no failure of the model; the graph comes back as it is.
    Data propagation stays off: a damaged constant makes it allocate without bounds, and it typed nothing more in 50 models.
    """
    graph = model.graph
    declared = {v.name: v for v in graph.value_info}
    opsets = {i.domain: i.version for i in model.opset_import}
    unknown = {
        name
        for node in graph.node
        if not since_version(node.domain, node.op_type, opsets.get(node.domain, 0)) or node.domain == "com.microsoft"
        for name in node.output
    }
    trimmed = onnx.ModelProto()
    trimmed.CopyFrom(model)
    typed = {v.name for v in graph.input if v.type.HasField("tensor_type")} | {t.name for t in graph.initializer}
    fragile = [n for n in trimmed.graph.node if _is_fragile(n, typed)]
    for node in fragile:
        unknown.update(node.output)
        trimmed.graph.node.remove(node)
    del trimmed.graph.value_info[:]
    trimmed.graph.value_info.extend(v for name, v in declared.items() if name in unknown)
    for output in trimmed.graph.output:
        if output.name not in unknown and output.type.HasField("tensor_type"):
            output.type.tensor_type.ClearField("shape")
    try:
        inferred = onnx.shape_inference.infer_shapes(trimmed).graph
    except Exception:  # inference raises half a dozen unrelated classes
        return graph
    for output, said in zip(inferred.output, graph.output, strict=True):
        _keep_names(output.type.tensor_type, said.type.tensor_type)
    if fragile:
        del inferred.node[:]
        inferred.node.extend(graph.node)
    found = {v.name for v in inferred.value_info}
    inferred.value_info.extend(v for name, v in declared.items() if name not in found)
    return inferred
