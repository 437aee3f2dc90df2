"""Operators without a lowering that ONNX defines as functions: lowered through their bodies, and judged as one node."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
from onnx.reference import ReferenceEvaluator
from onnx_vulkan.claims import partition
from onnx_vulkan.lower.registry import LOWERINGS
from run_case import graph_of, refusals, run

RNG = np.random.default_rng(5)


def written(text: str, opset: int) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": {opset}]>\n{text}')


def test_a_loss_runs_through_its_body() -> None:
    """The body hangs on what is given: with weights and without, and on the rank."""
    assert ("", "NegativeLogLikelihoodLoss") not in LOWERINGS
    for inputs in ("float[n, c, d] x, int64[n, d] t", "float[n, c, d] x, int64[n, d] t, float[c] w"):
        names = ", ".join(part.split()[-1] for part in inputs.replace(", d]", ";d]").replace(", c;", ";c;").split(", "))
        model = written(
            f"g ({inputs}) => (float loss) {{ loss = NegativeLogLikelihoodLoss<ignore_index: int = 1>({names}) }}", 22
        )
        graph = graph_of(model)
        assert not refusals(graph)
        shapes = {"x": (2, 5, 3), "w": (5,)}
        feeds = {n: RNG.standard_normal(shapes[n]).astype(np.float32) for n in graph.inputs if n in shapes}
        feeds["t"] = RNG.integers(0, 5, (2, 3))
        (got,) = run(graph, feeds)
        (want,) = ReferenceEvaluator(model).run(None, feeds)
        np.testing.assert_allclose(got, want, rtol=1e-5)


def test_a_body_that_is_refused_is_a_refusal_of_the_node() -> None:
    text = "g (float[n] x) => (float[n] y) { y = Bernoulli(x) }"
    (refusal,) = partition(graph_of(written(text, 22))).refusals
    assert refusal.op_type == "Bernoulli" and "RandomUniformLike is not supported: it draws random numbers" in refusal.reason


def test_the_kernel_check_sees_a_body_as_its_node() -> None:
    """Without float16 on the device the node is refused, though only its body's instructions use it."""
    text = "g (float16[n] x, float16[n] z) => (float16[n] y) { y = SwiGLU(x, z) }"
    graph = graph_of(written(text, 28))
    assert not partition(graph, features=frozenset({"f16", "storage16", "i64", "storage8"})).refusals
    (refusal,) = partition(graph, features=frozenset({"i64", "storage8"})).refusals
    assert (refusal.op_type, refusal.check) == ("SwiGLU", "dtype")
