"""The opset and dtype checks of a node against its registered lowering. Claims and the driver ask the same functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx

from onnx_vulkan.dtypes import NUMERIC, DType
from onnx_vulkan.graph import Node
from onnx_vulkan.lower.registry import LOWERINGS, MAX_OPSET, Lowering, find_lowering

__all__ = ["check_dtypes", "check_opset"]


def check_opset(node: Node, opset: int = 0) -> str | None:
    """Why the opset check refuses *node*, as a sentence, or None: version, attributes, arity.

    *opset* is the model's ``ai.onnx`` opset (0: not checked). An operator without any lowering is the kernel check's matter.
    """
    entries = LOWERINGS.get((node.domain, node.op_type))
    if not entries:
        return None
    if node.domain == "" and opset > MAX_OPSET:
        return f"the model's opset {opset} is newer than {MAX_OPSET}, the newest that was read."
    entry = find_lowering(node)
    if entry is None:
        known = sorted(v for e in entries for v in e.versions)
        return f"{node.label} version {node.since_version} is not supported; versions {', '.join(map(str, known))} are."
    unknown = sorted(set(node.attributes) - entry.attributes)
    if unknown:
        foreign = _foreign(node, unknown)
        if foreign:
            return f"the model is not valid: {node.label} has no attribute {', '.join(foreign)} in version {node.since_version}."
        return f"attribute {', '.join(unknown)} of {node.label} is not supported."
    missing = sorted(entry.required_attributes - set(node.attributes))
    if missing:
        return f"{node.label} needs the attribute {', '.join(missing)}."
    return _check_arity(node, entry)


def _foreign(node: Node, names: Sequence[str]) -> list[str]:
    """Those of the attributes *names* that the operator's schema does not have; none where there is no schema."""
    try:
        schema: Any = onnx.defs.get_schema(node.op_type, node.since_version, node.domain)
    except onnx.defs.SchemaError:
        return []
    return [name for name in names if name not in schema.attributes]


def _check_arity(node: Node, entry: Lowering) -> str | None:
    variadic = any(p.variadic for p in entry.parameters)
    if len(node.inputs) > len(entry.parameters) and not variadic:
        return f"{node.label} takes at most {len(entry.parameters)} inputs, this node has {len(node.inputs)}."
    for i, p in enumerate(entry.parameters):
        if p.variadic and not any(node.inputs[i:]):
            return f"{node.label} needs at least one input {p.name}."
        if not p.optional and not p.variadic and not (i < len(node.inputs) and node.inputs[i]):
            return f"{node.label} needs its input {p.name}."
    return None


def check_dtypes(node: Node, dtypes: Sequence[DType | None], type_names: Sequence[str] = ()) -> str | None:
    """Why the dtype check refuses *node* with inputs of these element types, as a sentence, or None.

    A None is an input left out, or (where the node names the input) of a type this engine does not have, which
    *type_names* tells in ONNX's words.
    """
    entry = find_lowering(node)
    if entry is None:
        return None
    for i, (name, dtype) in enumerate(zip(node.inputs, dtypes, strict=True)):
        if not name:
            continue
        parameter = entry.parameters[min(i, len(entry.parameters) - 1)]
        if dtype is None:
            what = type_names[i] if i < len(type_names) and type_names[i] else "an unsupported type"
            return f"input {parameter.name} of {node.label} ({name!r}) is of {what}, which does not run on Vulkan here."
        allowed = entry.dtypes.get(parameter.name, NUMERIC)
        if dtype not in allowed:
            names = ", ".join(t.onnx_name for t in DType if t in allowed)
            return f"input {parameter.name} of {node.label} is {dtype.onnx_name}; supported are {names}."
    return None
