"""The bodies of operators that ONNX defines as functions: they are lowered through those where they have no lowering here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from onnx_vulkan.frontend import load
from onnx_vulkan.graph import Attribute, Graph, Node
from onnx_vulkan.lower.registry import Operand

__all__ = ["function_body"]


def function_body(node: Node, operands: Sequence[Operand | None], opsets: Mapping[str, int]) -> Graph | None:
    """The body of *node* as a graph, where its schema has one.

    The graph's inputs are the operands that are there, in order; its outputs those that the node names. Some bodies hang on the
    operands' element types. None for an operator that is no function, or one that takes graphs as attributes.
    """
    try:
        schema: Any = onnx.defs.get_schema(node.op_type, node.since_version, node.domain)
    except onnx.defs.SchemaError:
        return None
    if not (schema.has_function or schema.has_context_dependent_function):
        return None
    call = onnx.NodeProto(op_type=node.op_type, domain=node.domain)
    call.input.extend("" if x is None else f"x{i}" for i, x in enumerate(operands))
    call.output.extend(name and f"y{i}" for i, name in enumerate(node.outputs))
    for name, value in node.attributes.items():
        made = _attribute(name, value, schema)
        if made is None:
            return None
        call.attribute.append(made)
    types = [_type(x) for x in operands]
    text = _function(schema, call, types, opsets.get(node.domain, 0))
    if not text:
        return None
    function = onnx.FunctionProto.FromString(text)
    function.domain, function.name = node.domain, node.op_type
    inputs = [onnx.ValueInfoProto(name=n, type=t) for n, t in zip(call.input, types, strict=True) if n]
    outputs = [onnx.ValueInfoProto(name=n) for n in call.output if n]
    graph = helper.make_graph([call], node.op_type, inputs, outputs)
    imports = [helper.make_opsetid(d, v) for d, v in opsets.items()]
    return load(helper.make_model(graph, opset_imports=imports, functions=[function]).SerializeToString())


def _function(schema: Any, call: onnx.NodeProto, types: Sequence[onnx.TypeProto], opset: int) -> bytes:
    """The newest body that was written for *opset* or an older one; empty where there is none."""
    if schema.has_function:
        fit = [v for v in schema.function_opset_versions if v <= opset]
        return bytes(schema.get_function_with_opset_version(max(fit))) if fit else b""
    fit = [v for v in schema.context_dependent_function_opset_versions if v <= opset]
    if not fit:
        return b""
    kinds = [t.SerializeToString() for t in types]
    return bytes(schema.get_context_dependent_function_with_opset_version(max(fit), call.SerializeToString(), kinds))


def _type(x: Operand | None) -> onnx.TypeProto:
    if x is None:
        return onnx.TypeProto()
    shape = [e if isinstance(e, int) else None for e in x.shape]
    return helper.make_tensor_type_proto(x.dtype.value, shape)


def _attribute(name: str, value: Attribute, schema: Any) -> onnx.AttributeProto | None:
    if isinstance(value, Graph) or (isinstance(value, list) and value and isinstance(value[0], Graph)):
        return None
    if isinstance(value, np.ndarray):
        return helper.make_attribute(name, numpy_helper.from_array(value, name))
    known = schema.attributes.get(name)
    return helper.make_attribute(name, value, attr_type=known and known.type.value)
