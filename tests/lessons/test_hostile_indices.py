"""Indices, lengths and axes that come from data, with values that no sane caller gives, in guard zones and through both doors.

With device addresses nothing but our own checks keeps a kernel inside its tensors. Where ONNX Runtime's CPU EP fails, the run
fails with a sentence that names the node; where it gives a result, so do we, or we refuse by a sentence (``STRICTER``). The run
after that is right again. Through ONNX Runtime every fourth case runs, with ``ONNX_VULKAN_THOROUGH=1`` all do.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx_vulkan
import onnxruntime
import onnxruntime_ep_vulkan  # noqa: F401  (registers the provider)
import pytest
from onnx import TensorProto, helper
from onnx_vulkan.engine.options import Options
from onnx_vulkan.errors import InvalidInput, OnnxVulkanError

THOROUGH = os.environ.get("ONNX_VULKAN_THOROUGH") == "1"
Array = np.ndarray[Any, Any]
Feeds = Mapping[str, Array]

VALUES = [*range(-6, 7), -(2**63), 2**63 - 1, 2**40, -(2**40), 2**31, 2**31 - 1, -(2**31), 2**32, 2**62]
RNG = np.random.default_rng(3)
MS = "com.microsoft"


def f32(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


def i64(*values: int) -> Array:
    return np.array(values, np.int64)


X, CUBE, KV = f32(3, 4), f32(2, 3, 4), f32(2, 1, 3, 4)
ROTARY = {"c": f32(5, 2), "s": f32(5, 2)}
LSTM = {"x": f32(3, 2, 4), "w": f32(1, 8, 4), "r": f32(1, 8, 2), "b": None}
GRU = {**LSTM, "w": f32(1, 6, 4), "r": f32(1, 6, 2)}
RNN = {**LSTM, "w": f32(1, 2, 4), "r": f32(1, 2, 2)}
QUERY = {"q": f32(2, 1, 8), "k": f32(2, 1, 8), "v": f32(2, 1, 8), "pk": f32(2, 1, 4, 8), "pv": f32(2, 1, 4, 8)}
LENGTHS = np.array([3, 2], np.int32)

# name: operator, what is hostile, inputs, attributes (outputs, opset and domain among them)
CASES: dict[str, tuple[str, str, dict[str, Array | None], dict[str, Any]]] = {
    "gather": ("Gather", "i", {"x": X, "i": i64(0, 1, 2)}, {"axis": 0}),
    "gather one": ("Gather", "i", {"x": X, "i": i64(0)}, {"axis": 1}),
    "gather int32": ("Gather", "i", {"x": X, "i": np.array([0, 1], np.int32)}, {"axis": 1}),
    "gather elements": ("GatherElements", "i", {"x": X, "i": i64(0, 1, 2, 0).reshape(1, 4)}, {"axis": 0}),
    "gather nd": ("GatherND", "i", {"x": CUBE, "i": i64(0, 1, 1, 2).reshape(2, 2)}, {}),
    "gather nd batch": ("GatherND", "i", {"x": CUBE, "i": i64(0, 1).reshape(2, 1)}, {"batch_dims": 1}),
    "scatter": ("ScatterElements", "i", {"x": X, "i": i64(0, 1, 2, 0).reshape(1, 4), "u": f32(1, 4)}, {"axis": 0}),
    "scatter add": (
        "ScatterElements", "i", {"x": X, "i": i64(0, 1, 2, 0).reshape(2, 2), "u": f32(2, 2)}, {"axis": 1, "reduction": "add"},
    ),
    "scatter int": (
        "ScatterElements", "i", {"x": X.astype(np.int32), "i": i64(0, 1).reshape(1, 2), "u": np.ones((1, 2), np.int32)},
        {"axis": 1, "reduction": "add"},
    ),
    "scatter nd": ("ScatterND", "i", {"x": X, "i": i64(0, 1, 2, 2).reshape(2, 2), "u": f32(2)}, {}),
    "scatter nd mul": ("ScatterND", "i", {"x": X, "i": i64(0, 1).reshape(2, 1), "u": f32(2, 4)}, {"reduction": "mul"}),
    "scatter one": ("ScatterND", "i", {"x": X, "i": i64(0).reshape(1, 1), "u": f32(1, 4)}, {}),
    "one hot": ("OneHot", "i", {"i": i64(0, 1, 2), "d": i64(3), "v": f32(2)}, {}),
    "one hot depth": ("OneHot", "d", {"i": i64(0, 1, 2), "d": i64(3), "v": f32(2)}, {}),
    "reverse": ("ReverseSequence", "n", {"x": X, "n": i64(1, 2, 3)}, {"batch_axis": 0, "time_axis": 1}),
    "cumsum": ("CumSum", "a", {"x": X, "a": np.array(1, np.int64)}, {}),
    "topk": ("TopK", "k", {"x": X, "k": i64(2)}, {"outputs": 2}),
    "slice start": ("Slice", "s", {"x": X, "s": i64(1), "e": i64(3), "a": i64(1), "t": i64(1)}, {}),
    "slice end": ("Slice", "e", {"x": X, "s": i64(1), "e": i64(3), "a": i64(1), "t": i64(1)}, {}),
    "slice axis": ("Slice", "a", {"x": X, "s": i64(1), "e": i64(3), "a": i64(1), "t": i64(1)}, {}),
    "slice step": ("Slice", "t", {"x": X, "s": i64(1), "e": i64(3), "a": i64(1), "t": i64(1)}, {}),
    "split": ("Split", "n", {"x": X, "n": i64(1, 3)}, {"axis": 1, "outputs": 2}),
    "tile": ("Tile", "n", {"x": X, "n": i64(1, 2)}, {}),
    "reshape": ("Reshape", "n", {"x": X, "n": i64(4, 3)}, {}),
    "pad": ("Pad", "p", {"x": X, "p": i64(0, 1, 0, 1)}, {}),
    "pad reflect": ("Pad", "p", {"x": X, "p": i64(0, 1, 0, 1)}, {"mode": "reflect"}),
    "pad axes": ("Pad", "a", {"x": X, "p": i64(1, 1), "v": None, "a": i64(1)}, {}),
    "unsqueeze": ("Unsqueeze", "a", {"x": X, "a": i64(1)}, {}),
    "reduce": ("ReduceSum", "a", {"x": X, "a": i64(1)}, {}),
    "trilu": ("Trilu", "k", {"x": X, "k": np.array(1, np.int64)}, {}),
    "lstm": ("LSTM", "n", {**LSTM, "n": LENGTHS}, {"hidden_size": 2, "outputs": 3}),
    "gru": ("GRU", "n", {**GRU, "n": LENGTHS}, {"hidden_size": 2, "direction": "reverse", "outputs": 2}),
    "rnn": ("RNN", "n", {**RNN, "n": LENGTHS}, {"hidden_size": 2, "outputs": 2}),
    "attention": (
        "Attention", "n", {"q": KV, "k": KV, "v": KV, "m": None, "pk": None, "pv": None, "n": i64(3, 2)},
        {"is_causal": 1, "opset": 24},
    ),
    "rotary": ("RotaryEmbedding", "p", {"x": f32(1, 1, 3, 4), **ROTARY, "p": i64(0, 1, 2).reshape(1, 3)}, {"opset": 23}),
    "rotary offset": ("RotaryEmbedding", "p", {"x": f32(1, 1, 3, 4), "p": i64(1), **ROTARY}, {"domain": MS}),
    "cache": ("TensorScatter", "w", {"x": f32(2, 1, 5, 4), "u": f32(2, 1, 2, 4), "w": i64(0, 1)}, {"opset": 24}),
    "ring": (
        "TensorScatter", "w", {"x": f32(2, 1, 5, 4), "u": f32(2, 1, 2, 4), "w": i64(0, 1)}, {"opset": 24, "mode": "circular"},
    ),
    "roi align": (
        "RoiAlign", "b", {"x": f32(2, 1, 4, 4), "r": np.array([[0, 0, 3, 3]], np.float32), "b": i64(1)},
        {"output_height": 2, "output_width": 2, "sampling_ratio": 2},
    ),
    "unpool": (
        "MaxUnpool", "i", {"x": f32(1, 1, 3, 4), "i": i64(*range(0, 24, 2)).reshape(1, 1, 3, 4)},
        {"kernel_shape": [2, 2], "strides": [2, 2]},
    ),
    "loss": ("NegativeLogLikelihoodLoss", "t", {"x": X, "t": i64(0, 1, 3)}, {}),
    "loss ignoring": ("SoftmaxCrossEntropyLoss", "t", {"x": X, "t": i64(0, 1, 3)}, {"ignore_index": -1}),
    "grouped query": (
        "GroupQueryAttention", "n", {**QUERY, "n": np.array([4, 3], np.int32), "t": np.array(5, np.int32)},
        {"num_heads": 1, "kv_num_heads": 1, "domain": MS, "outputs": 3},
    ),
}  # fmt: skip
STRICTER = {
    "topk": "the CPU EP takes a k beyond 32 bits for another one",
    "pad reflect": "negative reflecting pads are refused",
}
HUGE = {"one hot depth", "tile", "pad", "pad reflect"}
"""Large values ask for large results there: only what fits is tried."""


def model(case: str) -> bytes:
    """The case as a model of one node, its shapes fixed."""
    op, _, inputs, attributes = CASES[case]
    attributes = dict(attributes)
    outputs, opset, domain = (attributes.pop(k, d) for k, d in (("outputs", 1), ("opset", 21), ("domain", "")))
    names = [f"y{i}" for i in range(outputs)]
    node = helper.make_node(
        op, [n if a is not None else "" for n, a in inputs.items()], names, "victim", domain=domain, **attributes
    )
    ends = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in inputs.items()
        if a is not None
    ]
    made = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, None) if domain else helper.make_empty_tensor_value_info(n)
        for n in names
    ]
    graph = helper.make_graph([node], "g", ends, made)
    imports = [helper.make_opsetid("", opset)] + ([helper.make_opsetid(domain, 1)] if domain else [])
    return helper.make_model(graph, opset_imports=imports, ir_version=10).SerializeToString()


def hostile(case: str) -> dict[int, Feeds]:
    """The case's inputs, the first element of the hostile one replaced."""
    _, name, inputs, _ = CASES[case]
    given = {n: a for n, a in inputs.items() if a is not None}
    found = {}
    for value in VALUES:
        limits = np.iinfo(given[name].dtype)
        if limits.min <= value <= limits.max and not (case in HUGE and value > 1000):
            spoiled = given[name].copy()
            spoiled.reshape(-1)[0] = value
            found[value] = {**given, name: spoiled}
    return found


def ort(data: bytes, provider: Any) -> Callable[[Feeds], list[Array]]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    if provider != "CPUExecutionProvider":
        options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    session = onnxruntime.InferenceSession(data, options, providers=[provider], enable_fallback=0)
    return lambda feeds: [np.asarray(a) for a in session.run(None, dict(feeds))]


def assert_equal(got: list[Array], want: list[Array], what: object) -> None:
    for a, b in zip(got, want, strict=True):
        assert a.shape == b.shape and a.dtype == b.dtype, what
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4, err_msg=str(what))


@pytest.mark.parametrize("case", CASES)
def test_standalone(case: str) -> None:
    data = model(case)
    cpu = ort(data, "CPUExecutionProvider")
    session = onnx_vulkan.Session.load(data, options=Options(guard_zones=True))
    good = {n: a for n, a in CASES[case][2].items() if a is not None}
    expected = cpu(good)
    refused = 0
    for value, feeds in hostile(case).items():
        try:
            want = cpu(feeds)
        except Exception:
            with pytest.raises(OnnxVulkanError, match="victim"):
                session.run(feeds)
            refused += 1
            continue
        try:
            got = list(session.run(feeds).values())
        except OnnxVulkanError as error:
            assert case in STRICTER, (value, error)
            assert "victim" in str(error)
        else:
            assert_equal(got, want, value)
    assert_equal(list(session.run(good).values()), expected, "the run after")
    assert refused or case in ("one hot", "slice start", "slice end", "trilu", "pad reflect"), "no value was hostile"


@pytest.mark.parametrize("case", list(CASES)[:: 1 if THOROUGH else 4])
def test_ep(case: str) -> None:
    data = model(case)
    cpu, ours = ort(data, "CPUExecutionProvider"), ort(data, ("VulkanEP", {"guard_zones": "1"}))
    good = {n: a for n, a in CASES[case][2].items() if a is not None}
    for value, feeds in hostile(case).items():
        if value not in (-6, -1, 6, -(2**63), 2**40, 2**31 - 1):
            continue
        try:
            want = cpu(feeds)
        except Exception:
            with pytest.raises(Exception, match="victim"):
                ours(feeds)
            continue
        try:
            got = ours(feeds)
        except Exception as error:
            assert case in STRICTER and "victim" in str(error), (value, error)
        else:
            assert_equal(got, want, value)
    assert_equal(ours(good), cpu(good), "the run after")


def test_the_sentence_names_the_node_and_the_index() -> None:
    session = onnx_vulkan.Session.load(model("gather"))
    for value in (-(2**63), -4, 3, 2**40, 2**63 - 1):
        with pytest.raises(InvalidInput, match=rf"victim met the index {value}, which lies outside"):
            session.run({"x": X, "i": i64(0, value, 1)})


SHAPES: dict[str, tuple[str, dict[str, Array], dict[str, Any]]] = {
    "indices beyond another axis": ("GatherElements", {"x": X, "i": np.zeros((1, 5), np.int64)}, {"axis": 0}),
    "scattered beyond another axis": (
        "ScatterElements", {"x": X, "i": np.zeros((1, 5), np.int64), "u": f32(1, 5)}, {"axis": 0},
    ),
    "too few updates": ("ScatterElements", {"x": X, "i": np.zeros((1, 4), np.int64), "u": f32(1, 3)}, {"axis": 0}),
    "an axis of nothing": ("Gather", {"x": X[:0], "i": i64(0)}, {"axis": 0}),
    "elements of nothing": ("GatherElements", {"x": X[:0], "i": np.zeros((1, 2), np.int64)}, {"axis": 0}),
    "too few lengths": ("ReverseSequence", {"x": X, "n": i64(1, 2)}, {"batch_axis": 0, "time_axis": 1}),
    "too few sequence lengths": ("LSTM", {**LSTM, "b": f32(1, 16), "n": LENGTHS[:1]}, {"hidden_size": 2}),
    "a short bias": ("LSTM", {**LSTM, "b": f32(1, 15)}, {"hidden_size": 2}),
    "a short state": ("GRU", {**GRU, "b": f32(1, 12), "n": LENGTHS, "h": f32(1, 1, 2)}, {"hidden_size": 2}),
}  # fmt: skip


@pytest.mark.parametrize("case", SHAPES)
@pytest.mark.parametrize("fixed", [True, False])
def test_shapes_that_would_lead_outside_are_sentences(case: str, fixed: bool) -> None:
    op, inputs, attributes = SHAPES[case]
    node = helper.make_node(op, list(inputs), ["y"], "victim", **attributes)
    ends = [
        helper.make_tensor_value_info(
            n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape if fixed else [f"{n}{i}" for i in range(a.ndim)]
        )
        for n, a in inputs.items()
    ]
    graph = helper.make_graph([node], "g", ends, [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)])
    data = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10).SerializeToString()
    with pytest.raises(OnnxVulkanError, match="victim"):
        onnx_vulkan.Session.load(data).run(inputs)
