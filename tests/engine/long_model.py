"""A model of many small dispatches, each of which needs the one before it."""

from __future__ import annotations

import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper


def turned(products: int, size: int) -> bytes:
    """x times a matrix that turns it by one place, again and again: one block of that many dispatches."""
    turn = np.roll(np.eye(size, dtype=np.float32), 1, 0)
    nodes = [helper.make_node("MatMul", [f"x{i}" if i else "x", "w"], [f"x{i + 1}"]) for i in range(products)]
    graph = helper.make_graph(
        nodes,
        "products",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", size])],
        [helper.make_tensor_value_info(f"x{products}", TensorProto.FLOAT, ["n", size])],
        [numpy_helper.from_array(turn, "w")],
    )
    return ModelProto.SerializeToString(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9))
