"""The option ``shadow``: what it checks, and that a wrong kernel ends the run. See also tests/cli/test_wrong_kernel.py."""

from __future__ import annotations

import numpy as np
import onnx_vulkan
import pytest
from onnx import TensorProto as T
from onnx import helper, numpy_helper
from onnx_vulkan.codegen import functions
from onnx_vulkan.errors import ShadowMismatch

F = np.float32


def _session(nodes: list, inputs: dict, outputs: dict, constants: dict | None = None) -> onnx_vulkan.Session:
    edges = [[helper.make_tensor_value_info(n, *t) for n, t in part.items()] for part in (inputs, outputs)]
    weights = [numpy_helper.from_array(np.asarray(a), n) for n, a in (constants or {}).items()]
    graph = helper.make_graph(nodes, "g", *edges, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    return onnx_vulkan.Session.load(model.SerializeToString(), options={"shadow": "on", "compile_ahead": "on"})


def test_edges_of_a_model() -> None:
    """Outputs that are inputs, constants, reshapes and scalars; several types; no elements; run twice, checked once a plan."""
    nodes = [
        helper.make_node("Identity", ["x"], ["same"]),
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Constant", [], ["fixed"], value_float=2.5),
        helper.make_node("ReduceSum", ["x"], ["sum"], keepdims=0),
        helper.make_node("Reshape", ["x", "flat"], ["row"]),
        helper.make_node("ArgMax", ["x"], ["most"], axis=1),
        helper.make_node("Cast", ["most"], ["half"], to=T.FLOAT16),
        helper.make_node("Greater", ["x", "fixed"], ["larger"]),
    ]
    outputs = {"same": (1, ["n", 3]), "shape": (7, [2]), "fixed": (1, []), "sum": (1, []), "row": (1, [None])}
    outputs |= {"most": (7, ["n", 1]), "half": (10, ["n", 1]), "larger": (9, ["n", 3])}
    session = _session(nodes, {"x": (1, ["n", 3])}, outputs, {"flat": np.array([-1])})
    for n in (2, 2, 0):
        x = np.arange(3 * n, dtype=F).reshape(n, 3)
        got = session.run({"x": x})
        np.testing.assert_array_equal(got["row"], x.reshape(-1))
        assert got["sum"] == x.sum() and got["fixed"] == F(2.5)
    assert session.stats()["plans_made"] == 2, "a plan that was made ahead would not have been checked"
    session.close()
    labels = [c.label for c in session.block.checked]
    assert labels and len(labels) % 2 == 0, "two plans"
    assert all(c.ratio <= 1 for c in session.block.checked)


QUANTIZED = [
    helper.make_node("MatMul", ["x", "w"], ["m"], name="product"),
    helper.make_node("Tanh", ["m"], ["t"], name="tanh"),
    helper.make_node("QuantizeLinear", ["t", "scale", "zero"], ["q"], name="quantize"),
    helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["y"], name="dequantize"),
]


def _quantized() -> tuple[onnx_vulkan.Session, np.ndarray]:
    rng = np.random.default_rng(0)
    constants = {"w": rng.standard_normal((64, 512)).astype(F), "scale": F(1 / 127), "zero": np.int8(0)}
    session = _session(QUANTIZED, {"x": (1, [32, 64])}, {"y": (1, [32, 512])}, constants)
    return session, rng.standard_normal((32, 64)).astype(F) / 8


def test_a_sum_that_is_rounded_to_the_other_side(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last digits differ from the interpreter's (as on another device): some results come to lie a whole step away."""
    for size, right in (("1.000004", True), ("1.01", False)):
        monkeypatch.setitem(functions._FLOAT, "tanh", f"(ov_tanh({{0}}) * T({size}))")
        for f in vars(functions).values():
            if hasattr(f, "cache_clear"):
                f.cache_clear()
        session, x = _quantized()
        if right:
            session.run({"x": x})
            assert max(c.ratio for c in session.block.checked) == 1.0, (
                "no element came to lie on the other side: try another seed"
            )
        else:
            with pytest.raises(ShadowMismatch, match=r"'tanh'.* is wrong: element"):
                session.run({"x": x})
        session.close()
    monkeypatch.undo()
    for f in vars(functions).values():
        if hasattr(f, "cache_clear"):
            f.cache_clear()
