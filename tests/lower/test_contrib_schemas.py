"""Every lowering of ``com.microsoft`` against the schema that the installed ONNX Runtime has of the operator.

ONNX Runtime writes the defaults of a schema into the nodes that it offers to an execution provider, so a default of ours that
differs would give two answers by two doors.
"""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import onnx
import pytest
from onnx_vulkan.lower import LOWERINGS
from onnx_vulkan.lower.registry import Lowering
from onnxruntime.capi import onnxruntime_pybind11_state as ort

SCHEMAS = {s.name: s for s in ort.get_all_operator_schema() if s.domain == "com.microsoft"}
ENTRIES = [e for (domain, name), entries in sorted(LOWERINGS.items()) for e in entries if domain == "com.microsoft"]
NOT_THERE = {"SimplifiedLayerNormalization"}
"""What ONNX Runtime has under ONNX's domain; some exporters write it under its own."""


def default_of(attribute: Any) -> Any:
    """The default of a schema's attribute, None where it has none."""
    if not attribute._default_value:
        return None
    proto = onnx.AttributeProto.FromString(attribute._default_value)
    value = onnx.helper.get_attribute_value(proto) if proto.type else None
    return value.decode() if isinstance(value, bytes) else value


@pytest.mark.parametrize("entry", [e for e in ENTRIES if e.op_type not in NOT_THERE], ids=lambda e: e.op_type)
def test_signature_is_the_schema(entry: Lowering) -> None:
    schema = SCHEMAS[entry.op_type]
    parameters = inspect.signature(entry.function).parameters
    assert set(schema.attributes) <= entry.attributes
    for name, attribute in schema.attributes.items():
        wanted, ours = default_of(attribute), parameters[name].default
        assert (ours is inspect.Parameter.empty) == attribute.required, name
        if wanted is not None:
            assert np.float32(ours) == np.float32(wanted) if isinstance(wanted, float) else ours == wanted, name
    optional = type(schema.inputs[0].option).Optional
    assert len(entry.parameters) >= len(schema.inputs)
    for parameter, formal in zip(entry.parameters, schema.inputs, strict=False):
        assert parameter.optional or parameter.variadic or formal.option != optional, parameter.name
