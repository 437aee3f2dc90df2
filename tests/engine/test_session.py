"""The standalone session's front: options as a dict, life after close, and sentences for wrong use."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx_vulkan import Session
from onnx_vulkan.collector import collector_paused
from onnx_vulkan.device import Device
from onnx_vulkan.errors import InvalidInput, ModelError, OutOfDeviceMemory, ShapeMismatch

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


def test_runtime_dims_have_to_be_dims_of_the_model() -> None:
    with pytest.raises(InvalidInput, match="names 'm', but the dims of the model's inputs are 'n'"):
        Session.load(_model(), options={"runtime_dims": "m=8"})


def test_an_output_without_a_declared_type() -> None:
    """ONNX infers no types for operators of other domains; the lowering knows them."""
    node = helper.make_node("QuickGelu", ["x"], ["y"], domain="com.microsoft")
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT16, ["n", 3])
    graph = helper.make_graph([node], "g", [x], [helper.make_empty_tensor_value_info("y")])
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    with Session.load(model.SerializeToString()) as session:
        (y,) = session.outputs
        assert (y.name, y.dtype, y.shape) == ("y", "float16", ("n", 3))
        assert session.run({"x": np.zeros((2, 3), np.float16)})["y"].dtype == np.float16


def test_bytes_with_external_data(tmp_path: Path) -> None:
    model = onnx.load_model_from_string(_model())
    model.graph.node[0].op_type = "Add"
    model.graph.node[0].input.append("w")
    model.graph.initializer.append(numpy_helper.from_array(np.float32([1, 2, 3]), "w"))
    onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    data = (tmp_path / "m.onnx").read_bytes()
    with pytest.raises(ModelError, match="pass base_dir"):
        Session.load(data)
    assert (Session.load(data, base_dir=tmp_path).run({"x": X})["y"] == X + np.float32([1, 2, 3])).all()


@pytest.mark.parametrize("use", [lambda s: s.run({"x": X}), lambda s: s.stats()])
def test_a_closed_session_says_so(use: Callable[[Session], Any]) -> None:
    session = Session.load(_model())
    session.close()
    session.close()
    with pytest.raises(InvalidInput, match="session was closed"):
        use(session)


def test_pipelines_of_closed_sessions_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onnx_vulkan.device.pipelines.IDLE_KEPT", 0)

    def alive() -> int:
        return Device.get().counters()["live_pipelines"]

    gc.collect()
    first, second = Session.load(_model()), Session.load(_model())
    start = alive()
    for session in (first, second):
        session.run({"x": X})
    assert alive() > start
    first.close()
    assert (second.run({"x": np.ones((7, 3), np.float32)})["y"] == 1).all()
    second.close()
    assert alive() <= start
    with Session.load(_model()) as again:
        assert (again.run({"x": X})["y"] == np.maximum(X, 0)).all()


def test_planning_leaves_the_collector_as_it_was() -> None:
    """Meanwhile no collection begins, whatever thread plans."""
    assert gc.isenabled()
    with collector_paused(), collector_paused():
        assert not gc.isenabled()
    assert gc.isenabled()
    gc.disable()
    try:
        with collector_paused():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


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


@pytest.mark.parametrize(
    ("op", "feeds", "bad", "says"),
    [
        ("TopK", {"x": np.float32([3, 1, 2]), "k": np.int64([2])}, {"k": np.int64([4])}, "k of 4 is more than the 3 elements"),
        ("Range", {"a": np.int64(0), "b": np.int64(5), "d": np.int64(2)}, {"d": np.int64(0)}, "its delta is 0"),
        ("ConstantOfShape", {"s": np.int64([2, 3])}, {"s": np.int64([-1, 3])}, "has a negative size"),
        ("Pad", {"x": np.float32([3, 1, 2]), "p": np.int64([2, 0])}, {"p": np.int64([3, 0])}, "axis 0 has 3"),
    ],
)
def test_numbers_that_only_a_run_tells(op: str, feeds: dict[str, Any], bad: dict[str, Any], says: str) -> None:
    """Small inputs that decide shapes: assumed to fit when the model is claimed, and named when they do not."""
    kind = helper.np_dtype_to_tensor_dtype
    inputs = [helper.make_tensor_value_info(n, kind(a.dtype), a.shape) for n, a in feeds.items()]
    first = kind(np.dtype(np.int64 if op == "Range" else np.float32))
    outputs = [helper.make_tensor_value_info("y", first, None)]
    if op == "TopK":
        outputs.append(helper.make_tensor_value_info("i", TensorProto.INT64, None))
    attributes = {"mode": "reflect"} if op == "Pad" else {}
    node = helper.make_node(op, list(feeds), [o.name for o in outputs], **attributes)
    model = helper.make_model(
        helper.make_graph([node], "g", inputs, outputs), opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    )
    with Session.load(model.SerializeToString()) as session:
        want = ReferenceEvaluator(model).run(None, feeds)[0]
        assert (session.run(feeds)["y"] == want).all()
        with pytest.raises(ShapeMismatch, match=says):
            session.run({**feeds, **bad})
        assert (session.run(feeds)["y"] == want).all()
