"""Every lowering's signature against ONNX's own schema of the versions that it says it was read against."""

from __future__ import annotations

import inspect
from collections import defaultdict
from typing import Any

import pytest
from onnx import defs, helper
from onnx_vulkan.lower import LOWERINGS
from onnx_vulkan.lower.registry import MAX_OPSET, Lowering

OPTIONAL = defs.OpSchema.FormalParameterOption.Optional
VARIADIC = defs.OpSchema.FormalParameterOption.Variadic

NOT_ONNX = {("LayerNormalization", 1)}
"""What ONNX Runtime writes under ONNX's domain."""

MISSPELT = {("GRU", 1, "direction")}
"""Whose default is no value of the attribute."""


def default_of(attribute: defs.OpSchema.Attribute) -> Any:
    """The default of a schema's attribute, None where it has none."""
    if not attribute.default_value.type:
        return None
    value = helper.get_attribute_value(attribute.default_value)
    if isinstance(value, list):
        return tuple(value)
    return value.decode() if isinstance(value, bytes) else value


SCHEMAS: dict[tuple[str, str], dict[int, defs.OpSchema]] = defaultdict(dict)
for _schema in defs.get_all_schemas_with_history():
    SCHEMAS[_schema.domain, _schema.name][_schema.since_version] = _schema

ENTRIES = [e for key, entries in sorted(LOWERINGS.items()) for e in entries if key in SCHEMAS]


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda e: f"{e.op_type}-{min(e.versions)}")
def test_signature_is_the_schema(entry: Lowering) -> None:
    for version in entry.versions:
        if (entry.op_type, version) in NOT_ONNX:
            continue
        schema = SCHEMAS[entry.domain, entry.op_type][version]
        assert set(schema.attributes) <= entry.attributes
        assert entry.required_attributes <= set(schema.attributes)
        parameters = inspect.signature(entry.function).parameters
        for name, attribute in schema.attributes.items():
            ours, wanted = parameters[name].default, default_of(attribute)
            if wanted is not None and ours is not None and (entry.op_type, version, name) not in MISSPELT:
                assert ours == (pytest.approx(wanted) if isinstance(wanted, float) else wanted), name
        assert len(entry.parameters) >= len(schema.inputs)
        assert all(p.optional for p in entry.parameters[len(schema.inputs) :])
        for parameter, formal in zip(entry.parameters, schema.inputs, strict=False):
            assert parameter.variadic == (formal.option == VARIADIC)
            assert parameter.optional or formal.option != OPTIONAL


def test_every_version_was_read() -> None:
    assert defs.onnx_opset_version() >= MAX_OPSET
    for name in {e.op_type for e in ENTRIES if e.domain == ""}:
        lowered = {v for e in LOWERINGS["", name] for v in e.versions}
        missing = {v for v in SCHEMAS["", name] if v <= MAX_OPSET} - lowered
        assert not missing, f"{name} lacks {missing}"
