"""Every lowering's signature against ONNX's own schema of the versions that it says it was read against."""

from __future__ import annotations

from collections import defaultdict

import pytest
from onnx import defs
from onnx_vulkan.lower import LOWERINGS
from onnx_vulkan.lower.registry import MAX_OPSET, Lowering

OPTIONAL = defs.OpSchema.FormalParameterOption.Optional
VARIADIC = defs.OpSchema.FormalParameterOption.Variadic

NOT_ONNX = {("LayerNormalization", 1)}
"""What ONNX Runtime writes under ONNX's domain."""

SCHEMAS: dict[str, dict[int, defs.OpSchema]] = defaultdict(dict)
for _schema in defs.get_all_schemas_with_history():
    if _schema.domain == "":
        SCHEMAS[_schema.name][_schema.since_version] = _schema

ENTRIES = [e for (domain, name), entries in sorted(LOWERINGS.items()) for e in entries if domain == "" and name in SCHEMAS]


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda e: f"{e.op_type}-{min(e.versions)}")
def test_signature_is_the_schema(entry: Lowering) -> None:
    for version in entry.versions:
        if (entry.op_type, version) in NOT_ONNX:
            continue
        schema = SCHEMAS[entry.op_type][version]
        assert set(schema.attributes) <= entry.attributes
        assert entry.required_attributes <= set(schema.attributes)
        assert len(entry.parameters) >= len(schema.inputs)
        assert all(p.optional for p in entry.parameters[len(schema.inputs) :])
        for parameter, formal in zip(entry.parameters, schema.inputs, strict=False):
            assert parameter.variadic == (formal.option == VARIADIC)
            assert parameter.optional or formal.option != OPTIONAL


def test_every_version_was_read() -> None:
    assert defs.onnx_opset_version() >= MAX_OPSET
    for name in {e.op_type for e in ENTRIES}:
        lowered = {v for e in LOWERINGS["", name] for v in e.versions}
        missing = {v for v in SCHEMAS[name] if v <= MAX_OPSET} - lowered
        assert not missing, f"{name} lacks {missing}"
