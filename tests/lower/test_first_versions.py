"""Forms of ONNX's first opsets, which ONNX Runtime no longer runs or that hold a body."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_vulkan
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from run_case import Array, graph_of, refusals, run

RNG = np.random.default_rng(17)


def normal(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


def one(op: str, opset: int, x: Array, constants: list[Array], **attributes: Any) -> onnx.ModelProto:
    """A model of one node on *x* and constants."""
    names = [f"c{i}" for i in range(len(constants))]
    node = helper.make_node(op, ["x", *names], ["y"], "node", **attributes)
    info = helper.make_tensor_value_info("x", TensorProto.FLOAT, [f"d{i}" for i in range(x.ndim)])
    initializers = [numpy_helper.from_array(c, n) for n, c in zip(names, constants, strict=True)]
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, [None] * x.ndim)
    graph = helper.make_graph([node], "one", [info], [result], initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=4)


def both(model: onnx.ModelProto, feeds: dict[str, Array]) -> list[Array]:
    """The engine's outputs, which are those of the interpreter."""
    graph = graph_of(model)
    assert not refusals(graph), [str(r) for r in refusals(graph)]
    interpreted = run(graph, feeds)
    with onnx_vulkan.Session.load(model.SerializeToString()) as session:
        outputs = list(session.run(feeds).values())
    for a, b in zip(outputs, interpreted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    return outputs


@pytest.mark.parametrize("axis", [0, 2])
def test_tile_1(axis: int) -> None:
    x = normal(2, 3, 4)
    (got,) = both(one("Tile", 1, x, [np.array(3, np.float32), np.array(axis, np.float32)]), {"x": x})
    np.testing.assert_array_equal(got, np.concatenate([x] * 3, axis))


def test_upsample_1() -> None:
    x = normal(1, 2, 3, 4)
    (got,) = both(one("Upsample", 1, x, [], height_scale=2.0, width_scale=3.0), {"x": x})
    np.testing.assert_array_equal(got, x.repeat(2, 2).repeat(3, 3))


def test_upsample_1_bilinear() -> None:
    x = normal(1, 2, 3, 4)
    (got,) = both(one("Upsample", 1, x, [], height_scale=2.0, width_scale=2.0, mode="bilinear"), {"x": x})
    later = one("Upsample", 7, x, [], scales=[1.0, 1.0, 2.0, 2.0], mode="linear")
    session = onnxruntime.InferenceSession(later.SerializeToString(), providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(got, session.run(None, {"x": x})[0], rtol=1e-5)


def running_sums(lens: bool) -> onnx.ModelProto:
    """Scan-8 that sums the rows of x from the end on: the state is the sum, and each step gives the state and its negation."""
    nodes = [
        helper.make_node("Add", ["s", "r"], ["t"]),
        helper.make_node("Identity", ["t"], ["u"]),
        helper.make_node("Neg", ["t"], ["v"]),
    ]
    row = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [3]) for n in "srtuv"]
    body = helper.make_graph(nodes, "body", row[:2], row[2:])
    inputs = ["n" if lens else "", "s0", "x"]
    node = helper.make_node("Scan", inputs, ["s1", "u", "v"], "scan", body=body, num_scan_inputs=1, directions=[1])
    types = [
        helper.make_tensor_value_info("s0", TensorProto.FLOAT, [2, 3]),
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 5, 3]),
    ]
    if lens:
        types.append(helper.make_tensor_value_info("n", TensorProto.INT64, [2]))
    outputs = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("s1", [2, 3]), ("u", [2, 5, 3]), ("v", [2, 5, 3]))
    ]
    graph = helper.make_graph([node], "sums", types, outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 8)], ir_version=4)


def test_scan_8() -> None:
    model = running_sums(False)
    feeds = {"s0": normal(2, 3), "x": normal(2, 5, 3)}
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for got, want in zip(both(model, feeds), session.run(None, feeds), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_scan_8_with_lengths_is_refused() -> None:
    assert "sequence_lens" in str(refusals(graph_of(running_sums(True)))[0])
