"""FlexAttention with symbolic extents, bodies that read the graph around them, and what its bodies must not do."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import onnx_vulkan
import pytest
from one_node import Array, graph_of, normal, refusals
from onnx import TensorProto, helper
from run_case import run


def body(name: str, nodes: Sequence[onnx.NodeProto], result: Sequence[int | str | None] = (None,) * 4) -> onnx.GraphProto:
    """A body from ``s`` to ``t``."""
    given = helper.make_tensor_value_info("s", TensorProto.FLOAT, [None] * 4)
    return helper.make_graph(list(nodes), name, [given], [helper.make_tensor_value_info("t", TensorProto.FLOAT, result)])


def model_of(**bodies: onnx.GraphProto) -> onnx.ModelProto:
    """FlexAttention on inputs of unknown extents; ``bias`` is for the bodies."""
    types = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, dims)
        for n, dims in (
            ("q", ["b", 4, "s", 8]),
            ("k", ["b", 2, "t", 8]),
            ("v", ["b", 2, "t", 6]),
            ("bias", [4, 1, "t"]),
        )
    ]
    node = helper.make_node("FlexAttention", ["q", "k", "v"], ["y"], "node", domain="ai.onnx.preview", **bodies)
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["b", 4, "s", 6])
    imports = [helper.make_opsetid("", 23), helper.make_opsetid("ai.onnx.preview", 1)]
    return helper.make_model(helper.make_graph([node], "flex", types, [result]), opset_imports=imports, ir_version=10)


BIASED = body("biased", [helper.make_node("Add", ["s", "bias"], ["t"])])
HALVED = body("halved", [helper.make_node("Add", ["s", "s"], ["d"]), helper.make_node("Sub", ["d", "bias"], ["t"])])


def expected(q: Array, k: Array, v: Array, bias: Array, *, probabilities: bool) -> Array:
    """The formula in float64; with *probabilities* their body too."""
    keys, values = (x.astype(np.float64).repeat(2, axis=1) for x in (k, v))
    scores = q @ keys.transpose(0, 1, 3, 2) / np.sqrt(8) + bias
    e = np.exp(scores - scores.max(-1, keepdims=True))
    p = e / e.sum(-1, keepdims=True)
    out: Array = (2 * p - bias if probabilities else p) @ values
    return out


@pytest.mark.parametrize("probabilities", [False, True])
def test_bodies_on_symbolic_extents(probabilities: bool) -> None:
    bodies = {"score_mod": BIASED, **({"prob_mod": HALVED} if probabilities else {})}
    model = model_of(**bodies)
    graph = graph_of(model)
    assert not refusals(graph), [str(r) for r in refusals(graph)]
    with onnx_vulkan.Session.load(model.SerializeToString()) as session:
        for batch, steps, total in ((2, 3, 5), (1, 1, 9)):
            feeds = {
                "q": normal(batch, 4, steps, 8),
                "k": normal(batch, 2, total, 8),
                "v": normal(batch, 2, total, 6),
                "bias": normal(4, 1, total),
            }
            want = expected(**feeds, probabilities=probabilities)
            for (y,) in (run(graph, feeds), session.run(feeds).values()):
                np.testing.assert_allclose(y, want, rtol=1e-4, atol=1e-5)


def test_a_body_that_changes_the_rank_is_refused() -> None:
    flat = body("flat", [helper.make_node("ReduceSum", ["s"], ["t"], keepdims=0)], ())
    assert "does not give one tensor" in str(refusals(graph_of(model_of(score_mod=flat)))[0])
