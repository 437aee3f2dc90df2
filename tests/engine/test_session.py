"""The standalone session's front: options as a dict, life after close, and sentences for wrong use."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper
from onnx_vulkan import Session
from onnx_vulkan.errors import InvalidInput, OutOfDeviceMemory

X = np.float32([[1, -2, 3]])


def _model() -> bytes:
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", 3]) for n in "xy")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "relu", [x], [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()


def test_options_may_be_a_dict() -> None:
    with Session.load(_model(), options={"contexts": "1", "auto_runtime_dims": "off", "runtime_dims": {"n": 4}}) as session:
        assert (session.run({"x": X})["y"] == np.maximum(X, 0)).all()
    with pytest.raises(InvalidInput, match=r"no option 'context'.*contexts"):
        Session.load(_model(), options={"context": 1})


@pytest.mark.parametrize("use", [lambda s: s.run({"x": X}), lambda s: s.stats()])
def test_a_closed_session_says_so(use: Callable[[Session], Any]) -> None:
    session = Session.load(_model())
    session.close()
    session.close()
    with pytest.raises(InvalidInput, match="session was closed"):
        use(session)


@pytest.mark.parametrize(
    ("feeds", "says"),
    [
        (None, "one mapping of input names"),
        ([X], "one mapping of input names.*'x'"),
        ({}, "'x' is missing"),
        ({"x": X, "z": X}, "no input 'z'; it has 'x'"),
        ({"x": X[0]}, r"rank 1, the model wants 2 dims: \[n, 3\]"),
        ({"x": X[:, :2]}, "is 2, the model wants 3"),
        ({"x": X.astype(np.float64)}, "float64, the model wants float32"),
    ],
)
def test_wrong_feeds(feeds: Any, says: str) -> None:
    with Session.load(_model()) as session:
        with pytest.raises(InvalidInput, match=says):
            session.run(feeds)
        assert session.run({"x": X})["y"].shape == (1, 3)  # an error leaves the session usable


def test_a_memory_limit_ends_with_its_session() -> None:
    big = np.zeros((1 << 20, 3), np.float32)
    limited = Session.load(_model(), options={"memory_limit_bytes": 1000})
    with pytest.raises(OutOfDeviceMemory, match="limit of 1000 bytes"):
        limited.run({"x": big})
    del limited
    gc.collect()
    assert Session.load(_model()).run({"x": big})["y"].shape == big.shape
