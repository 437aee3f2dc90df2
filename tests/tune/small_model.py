"""A small model with several kinds of workloads: two products, a softmax, something elementwise."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

__all__ = ["feeds", "save"]


def save(folder: Path, rows: int = 33, inner: int = 64, columns: int = 48) -> Path:
    """Write the model, with a first product of these sizes; gives its path."""
    rng = np.random.default_rng(3)
    weights = {"w": rng.standard_normal((inner, columns)) / 8, "v": rng.standard_normal((columns, 40)) / 8}
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], name="first"),
        helper.make_node("Relu", ["a"], ["b"], name="relu"),
        helper.make_node("MatMul", ["b", "v"], ["c"], name="second"),
        helper.make_node("Softmax", ["c"], ["d"], axis=1, name="softmax"),
        helper.make_node("Mul", ["d", "d"], ["y"], name="square"),
    ]
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [rows, inner])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [rows, 40])],
        [numpy_helper.from_array(w.astype(np.float32), n) for n, w in weights.items()],
    )
    path = folder / "small.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def feeds() -> dict[str, NDArray[np.float32]]:
    """An input for it."""
    return {"x": np.random.default_rng(4).standard_normal((33, 64)).astype(np.float32)}
