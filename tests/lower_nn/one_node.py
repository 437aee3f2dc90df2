"""One operator as a model, run by the interpreter and by ONNX Runtime's CPU EP."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_vulkan
import onnxruntime
from onnx import helper, numpy_helper
from run_case import Array, assert_close, graph_of, refusals, run

RNG = np.random.default_rng(11)
DRAWS = 400 if os.environ.get("ONNX_VULKAN_THOROUGH") == "1" else 10
"""How many random cases a sweep draws."""


def normal(*shape: int) -> Array:
    """A float32 tensor."""
    return RNG.standard_normal(shape).astype(np.float32)


def model_of(
    op: str,
    opset: int,
    inputs: Mapping[str, Array | None],
    attributes: Mapping[str, Any] | None = None,
    *,
    outputs: int = 1,
    constants: Sequence[str] = (),
    domain: str = "",
    dynamic: bool = False,
    fixed_last: bool = False,
) -> onnx.ModelProto:
    """A model of one node. ``constants`` name the inputs that are initializers; with *dynamic* every other dim is a symbol,
    but with *fixed_last* the last one of matrices and larger tensors.
    """
    given = {k: v for k, v in inputs.items() if v is not None}
    names = [k if v is not None else "" for k, v in inputs.items()]

    def dims(k: str, v: Array) -> list[int | str]:
        numbers = set(range(v.ndim)) if not dynamic else {v.ndim - 1} if fixed_last and v.ndim > 1 else set()
        return [v.shape[i] if i in numbers else f"{k}_{i}" for i in range(v.ndim)]

    node = helper.make_node(op, names, [f"y{i}" for i in range(outputs)], "node", domain=domain, **(attributes or {}))
    types = [
        helper.make_tensor_value_info(k, helper.np_dtype_to_tensor_dtype(v.dtype), dims(k, v))
        for k, v in given.items()
        if k not in constants
    ]
    initializers = [numpy_helper.from_array(v, k) for k, v in given.items() if k in constants]
    graph = helper.make_graph([node], "one", types, [helper.make_empty_tensor_value_info(o) for o in node.output], initializers)
    imports = [helper.make_opsetid("", opset)] + ([helper.make_opsetid(domain, 1)] if domain else [])
    return helper.make_model(graph, opset_imports=imports, ir_version=9)


def on_cpu(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> list[Array]:
    """What ONNX Runtime's CPU EP gives."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return list(session.run(None, dict(feeds)))


def check(
    op: str,
    opset: int,
    inputs: Mapping[str, Array | None],
    attributes: Mapping[str, Any] | None = None,
    *,
    rtol: float = 1e-4,
    atol: float = 1e-5,
    specified: Callable[[int, Array], Array] = lambda _, y: y,
    device: bool = False,
    **form: Any,
) -> None:
    """The interpreter, with *device* also the engine, agrees with the CPU EP; claiming (at no known shape) refuses nothing.

    *specified* takes from an output, by its number, the elements that the operator's text says anything about.
    """
    model = model_of(op, opset, inputs, attributes, **form)
    graph = graph_of(model)
    assert not refusals(graph), [str(r) for r in refusals(graph)]
    feeds = {name: np.asarray(inputs[name]) for name in graph.inputs}
    wanted = on_cpu(model, feeds)
    results = [run(graph, feeds)]
    if device:
        for output, array in zip(model.graph.output, wanted, strict=True):  # ONNX infers none for a contrib operator
            dims = [f"{output.name}_{i}" for i in range(array.ndim)]
            output.CopyFrom(helper.make_tensor_value_info(output.name, helper.np_dtype_to_tensor_dtype(array.dtype), dims))
        with onnx_vulkan.Session.load(model.SerializeToString()) as session:
            results.append(list(session.run(feeds).values()))
    for outputs in results:
        for i, (got, want) in enumerate(zip(outputs, wanted, strict=True)):
            assert got.shape == want.shape
            assert_close(specified(i, got), specified(i, want), rtol, atol)


def check_formula(
    op: str,
    inputs: Mapping[str, Array | None],
    attributes: Mapping[str, Any],
    wants: Sequence[Array],
    *,
    rtol: float = 1e-4,
    atol: float = 1e-5,
    **form: Any,
) -> None:
    """As :func:`check` for an operator of ``com.microsoft`` that the CPU EP lacks: the results are given."""
    graph = graph_of(model_of(op, 17, inputs, attributes, outputs=len(wants), domain="com.microsoft", **form))
    assert not refusals(graph), [str(r) for r in refusals(graph)]
    for got, want in zip(run(graph, {name: np.asarray(inputs[name]) for name in graph.inputs}), wants, strict=True):
        assert_close(got, want, rtol, atol)
