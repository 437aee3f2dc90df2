"""Small models through ORT and the real engine, compared with the CPU EP."""

from __future__ import annotations

import gc
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnxruntime as ort
import onnxruntime_ep_vulkan
import pytest
from ep_stub import ORT_MINOR, chain, device_memory, ep_devices, loop, make_model, vulkan_session
from onnx import TensorProto, helper, numpy_helper
from onnx_vulkan import claims
from onnx_vulkan._shim import lib
from onnx_vulkan.claims import cost
from onnx_vulkan.device import Device
from test_reader import branches

Feeds = dict[str, np.ndarray[Any, Any]]
RANDOM = np.random.default_rng(7)


def floats(*shape: int) -> np.ndarray[Any, Any]:
    return RANDOM.standard_normal(shape).astype(np.float32)


def agree(session: ort.InferenceSession, model: bytes, feeds: Feeds) -> None:
    """The session's outputs equal the CPU EP's within the tolerance of single operators."""
    expected = ort.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, feeds)
    for ours, theirs in zip(session.run(None, feeds), expected, strict=True):
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


def in_blocks(session: ort.InferenceSession, blocks: int, claimed: int | None = None) -> None:
    """The session runs in so many blocks that cover so many nodes (default: all that were offered)."""
    if ORT_MINOR >= 24:
        stats = onnxruntime_ep_vulkan.assert_on_vulkan(session)
        assert (stats.blocks, stats.claimed_nodes) == (blocks, stats.offered_nodes if claimed is None else claimed)


def norm() -> bytes:
    """y = w * (x - mean) / sqrt(var + eps) + b over the last axis, with the inner value z as a second output."""
    nodes = [
        helper.make_node("ReduceMean", ["x", "last"], ["m"]),
        helper.make_node("Sub", ["x", "m"], ["d"]),
        helper.make_node("Mul", ["d", "d"], ["q"]),
        helper.make_node("ReduceMean", ["q", "last"], ["v"]),
        helper.make_node("Add", ["v", "eps"], ["ve"]),
        helper.make_node("Sqrt", ["ve"], ["s"]),
        helper.make_node("Div", ["d", "s"], ["z"]),
        helper.make_node("Mul", ["z", "w"], ["zw"]),
        helper.make_node("Add", ["zw", "b"], ["y"]),
    ]
    constants = {"last": np.array([-1]), "eps": np.array(1e-5, np.float32), "w": floats(8), "b": floats(8)}
    return make_model(nodes, {"x": ["n", "t", 8]}, {"y": ["n", "t", 8], "z": ["n", "t", 8]}, constants)


def shape_arithmetic() -> bytes:
    """[b, t, 6] -> [b, t * 2, 3] through Shape, Gather, Mul, Concat, Reshape."""
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Gather", ["s", "i0"], ["b"], axis=0),
        helper.make_node("Gather", ["s", "i1"], ["t"], axis=0),
        helper.make_node("Mul", ["t", "two"], ["t2"]),
        helper.make_node("Concat", ["b", "t2", "three"], ["target"], axis=0),
        helper.make_node("Reshape", ["x", "target"], ["r"]),
        helper.make_node("Softmax", ["r"], ["y"], axis=-1),
    ]
    constants = {"i0": np.array([0]), "i1": np.array([1]), "two": np.array([2]), "three": np.array([3])}
    return make_model(nodes, {"x": ["b", "t", 6]}, {"y": ["b", "t2", 3]}, constants)


@pytest.mark.parametrize(
    ("make", "shapes"),
    [(chain, [(2, 3), (5, 3), (0, 3), (2, 3)]), (norm, [(1, 2, 8), (3, 5, 8)]), (shape_arithmetic, [(1, 4, 6), (2, 3, 6)])],
)
def test_dynamic_shapes(make: Callable[[], bytes], shapes: list[tuple[int, ...]]) -> None:
    model = make()
    session = vulkan_session(model)
    for shape in shapes:
        agree(session, model, {"x": floats(*shape)})
    in_blocks(session, 1)


def test_fixed_shapes_are_planned_at_creation() -> None:
    model = make_model([helper.make_node("Softmax", ["x"], ["y"])], {"x": [3, 5]}, {"y": [3, 5]})
    session = vulkan_session(model)
    if ORT_MINOR >= 24:
        assert onnxruntime_ep_vulkan.session_stats(session).plans == 1
    agree(session, model, {"x": floats(3, 5)})


def test_many_shapes_and_no_work_for_a_known_one() -> None:
    model = norm()
    session = vulkan_session(model)
    x = floats(2, 3, 8)
    for n in range(1, 20):
        agree(session, model, {"x": floats(n % 4 + 1, n, 8)})
    session.run(None, {"x": x})
    before = Device.get().counters()
    for _ in range(10):
        session.run(None, {"x": x})
    after = Device.get().counters()
    assert after["runs"] == before["runs"] + 10
    for name in ("plans_made", "recordings", "allocations", "glsl_compiles", "pipelines_created"):
        assert after[name] == before[name], name


def test_overridable_initializer() -> None:
    model = make_model(
        [helper.make_node("Add", ["x", "w"], ["a"]), helper.make_node("Sigmoid", ["a"], ["y"])],
        {"x": ["n", 3], "w": [3]},
        {"y": ["n", 3]},
        {"w": floats(3)},
    )
    session = vulkan_session(model)
    agree(session, model, {"x": floats(4, 3)})
    agree(session, model, {"x": floats(4, 3), "w": floats(3)})
    in_blocks(session, 1)


def test_inputs_changed_in_place_are_seen() -> None:
    model = chain()
    session = vulkan_session(model)
    x = floats(4, 3)
    first = session.run(None, {"x": x})[0].copy()
    x += 1
    agree(session, model, {"x": x})
    assert not np.array_equal(first, session.run(None, {"x": x})[0])


@pytest.mark.parametrize("condition", [True, False])
def test_if_on_an_input(condition: bool) -> None:
    model = branches()
    session = vulkan_session(model)
    for n in (3, 4):
        agree(session, model, {"c": np.array(condition), "x": floats(n)})


@pytest.mark.skipif(ORT_MINOR < 24, reason="1.23 gives two bodies' blocks one name")
def test_inside_a_loop() -> None:
    nodes = [helper.make_node("MatMul", ["v", "w"], ["m"]), helper.make_node("Tanh", ["m"], ["next"])]
    model = loop(nodes, {"w": floats(16, 16)}, ["n", 16])
    session = vulkan_session(model)
    for n, trips in ((4, 3), (2, 5), (4, 0)):
        agree(session, model, {"x": floats(n, 16), "trips": np.array(trips)})
    in_blocks(session, 1, 3)


def test_a_loop_of_known_length_runs_in_one_block() -> None:
    """ORT offers the body first: what is claimed inside of it is taken back when the Loop itself is claimed."""
    nodes = [helper.make_node("MatMul", ["v", "w"], ["m"]), helper.make_node("Tanh", ["m"], ["next"])]
    model = loop(nodes, {"w": floats(16, 16)}, ["n", 16], trips=3)
    session = vulkan_session(model)
    for n in (4, 2):
        agree(session, model, {"x": floats(n, 16)})
    in_blocks(session, 1, 1)


def test_a_scan_in_a_loop_runs_in_one_block() -> None:
    """Bodies in bodies, a constant from outside and a node of the body that only the CPU could have left alone."""
    row = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in ("s", "r", "t", "o")]
    inner = helper.make_graph(
        [
            helper.make_node("Mul", ["r", "w"], ["rw"]),
            helper.make_node("Add", ["s", "rw"], ["t"]),
            helper.make_node("Tanh", ["t"], ["o"]),
        ],
        "rows",
        row[:2],
        row[2:],
    )
    nodes = [
        helper.make_node("Scan", ["zero", "v"], ["last", "next0"], body=inner, num_scan_inputs=1),
        helper.make_node("Add", ["next0", "last"], ["next"]),
    ]
    model = loop(nodes, {"w": floats(4), "zero": np.zeros(4, np.float32)}, [3, 4], trips=2)
    session = vulkan_session(model)
    agree(session, model, {"x": floats(3, 4)})
    in_blocks(session, 1, 1)


@pytest.mark.parametrize("made_by", ["p = Exp(x)", "t = Cast<to: int = 8>(x) p = Cast<to: int = 1>(t)"], ids=["us", "the CPU"])
def test_a_loop_reads_what_is_made_outside(made_by: str) -> None:
    """A value of the same block or of the CPU's, an input and a constant; and a scan output."""
    model = onnx.parser.parse_model(f"""<ir_version: 9, opset_import: ["": 18]>
        g (float[n] x, float[n] z) => (float[n] y, float[3, n] s) <int64 trips = {{3}}, float[1] w = {{2.0}}> {{
            {made_by}
            y, s = Loop(trips, , x) <body = b (int64 i, bool c, float[n] v) => (bool go, float[n] next, float[n] o) {{
                go = Identity(c) a = Mul(v, p) d = Add(a, z) e = Sub(d, w) next = Tanh(e) o = Add(next, p) }}> }}""")
    data = bytes(model.SerializeToString())
    session = vulkan_session(data)
    agree(session, data, {"x": floats(5), "z": floats(5)})
    if ORT_MINOR >= 27:  # before that the loop stays on the CPU, its body with us
        in_blocks(session, 1, 2 if "Exp" in made_by else 1)


def test_the_body_of_a_function_is_left_alone() -> None:
    """SequenceMap is inlined by ORT after its body was offered: a claim inside would be lost on the way."""
    body = helper.make_graph(
        [helper.make_node("Exp", ["e"], ["f"])],
        "each",
        [helper.make_tensor_value_info("e", TensorProto.FLOAT, ["n"])],
        [helper.make_tensor_value_info("f", TensorProto.FLOAT, ["n"])],
    )
    nodes = [
        helper.make_node("SplitToSequence", ["x"], ["parts"], axis=0),
        helper.make_node("SequenceMap", ["parts"], ["mapped"], body=body),
        helper.make_node("ConcatFromSequence", ["mapped"], ["y"], axis=0),
    ]
    model = make_model(nodes, {"x": [6, 2]}, {"y": [6, 2]}, {})
    agree(vulkan_session(model), model, {"x": floats(6, 2)})


def test_an_attribute_that_is_a_type_is_no_trouble() -> None:
    kind = helper.make_tensor_type_proto(TensorProto.FLOAT, [2])
    nodes = [
        helper.make_node("Optional", [], ["nothing"], type=kind),
        helper.make_node("OptionalHasElement", ["nothing"], ["has"]),
        helper.make_node("Cast", ["has"], ["zero"], to=TensorProto.FLOAT),
        helper.make_node("Add", ["x", "zero"], ["y"]),
    ]
    model = make_model(nodes, {"x": [2]}, {"y": [2]}, {})
    agree(vulkan_session(model), model, {"x": floats(2)})


def through_strings(width: int) -> bytes:
    """Two products, and between them nodes that only the CPU has, on strings."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Cast", ["a"], ["t"], to=TensorProto.STRING),
        helper.make_node("Cast", ["t"], ["d"], to=TensorProto.FLOAT),
        helper.make_node("Add", ["a", "d"], ["s"]),
        helper.make_node("MatMul", ["s", "w"], ["y"]),
    ]
    return make_model(nodes, {"x": [1, width]}, {"y": [1, width]}, {"w": floats(width, width) / width})


def test_nodes_that_are_refused_stay_on_the_cpu() -> None:
    model = through_strings(8)
    session = vulkan_session(model)
    agree(session, model, {"x": floats(1, 8)})
    if ORT_MINOR >= 24:
        refusals = onnxruntime_ep_vulkan.session_stats(session).refusals
        assert {r.check for r in refusals} <= {"dtype", "kernel"} and any(r.op_type == "Cast" for r in refusals)


@pytest.mark.parametrize(("width", "blocks"), [(8, 0), (2048, 2)])
def test_a_block_between_nodes_of_the_cpu_has_to_pay(width: int, blocks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "machine", lambda kind: cost.machine(kind, 2))
    model = through_strings(width)
    session = vulkan_session(model, {"island": "auto"})
    agree(session, model, {"x": floats(1, width)})
    if ORT_MINOR >= 24:
        stats = onnxruntime_ep_vulkan.session_stats(session)
        assert stats.blocks == blocks
        given_back = [r for r in stats.refusals if r.check == "cost"]
        assert [r.op_type for r in given_back] == ([] if blocks else ["MatMul", "Add", "MatMul"])
        assert all("island=keep" in r.reason for r in given_back)


@pytest.mark.parametrize("mode", ["host", pytest.param("device", marks=device_memory)])
def test_weights_last_as_long_as_the_session(mode: str) -> None:
    weight = floats(256, 256)
    model = make_model([helper.make_node("MatMul", ["x", "w"], ["y"])], {"x": ["n", 256]}, {"y": ["n", 256]}, {"w": weight})
    session = vulkan_session(model) if mode == "host" else device_session(model)
    scratch = [floats(256, 256) for _ in range(50)]  # whatever ORT gave back is written over
    for n in (1, 17):
        agree(session, model, {"x": floats(n, 256)})
    assert len(scratch) == 50


def test_claim_log_and_restriction(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    log = tmp_path / "claims.jsonl"
    monkeypatch.setenv("ONNX_VULKAN_CLAIM_LOG", str(log))
    monkeypatch.setenv("ONNX_VULKAN_OPS", "Sin")
    session = vulkan_session(chain())
    agree(session, chain(), {"x": floats(2, 3)})
    in_blocks(session, 1, 1)
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert {(e["op_type"], e["claimed"]) for e in lines} == {("Add", False), ("Sin", True), ("LeakyRelu", False)}


def test_broken_shape_is_an_invalid_argument() -> None:
    model = make_model([helper.make_node("Add", ["x", "z"], ["y"])], {"x": ["n"], "z": ["m"]}, {"y": None})
    session = vulkan_session(model)
    with pytest.raises(Exception, match="do not broadcast") as caught:
        session.run(None, {"x": floats(3), "z": floats(4)})
    assert type(caught.value).__name__ == "InvalidArgument"
    agree(session, model, {"x": floats(3), "z": floats(1)})


def test_memory_limit_is_a_sentence() -> None:
    model = make_model([helper.make_node("Softmax", ["x"], ["y"])], {"x": ["n"]}, {"y": ["n"]})
    session = vulkan_session(model, {"memory_limit_bytes": 32 << 20})
    with pytest.raises(Exception, match="memory limit"):
        session.run(None, {"x": floats(20 << 20)})
    agree(session, model, {"x": floats(10)})


def test_a_memory_limit_ends_with_its_session() -> None:
    model = make_model([helper.make_node("Softmax", ["x"], ["y"])], {"x": ["n"]}, {"y": ["n"]})
    session = vulkan_session(model, {"memory_limit_bytes": 1000})
    with pytest.raises(Exception, match=r"memory limit of 1000 bytes"):
        session.run(None, {"x": floats(1 << 20)})
    del session
    gc.collect()
    agree(vulkan_session(model), model, {"x": floats(1 << 20)})


def test_threads_on_one_session() -> None:
    model = norm()
    session = vulkan_session(model)
    reference = ort.InferenceSession(model, providers=["CPUExecutionProvider"])
    failures: list[BaseException] = []

    def work(seed: int) -> None:
        random = np.random.default_rng(seed)
        try:
            for _ in range(10):
                x = random.standard_normal((int(random.integers(1, 4)), int(random.integers(1, 4)), 8)).astype(np.float32)
                for ours, theirs in zip(session.run(None, {"x": x}), reference.run(None, {"x": x}), strict=True):
                    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failures


def test_sessions_give_their_memory_back() -> None:
    model = norm()
    device = Device.get()

    def once() -> None:
        vulkan_session(model).run(None, {"x": floats(2, 3, 8)})

    once()
    gc.collect()
    before = device.counters()
    for _ in range(10):
        once()
    gc.collect()
    after = device.counters()
    for name in ("live_bytes", "live_blocks", "live_plans", "live_allocations", "shared_weights"):
        assert after[name] == before[name], name


# ---------------------------------------------------------------------------------------------------------------- device memory


def device_session(model: bytes) -> ort.InferenceSession:
    settings = ort.SessionOptions()
    settings.log_severity_level = 4
    settings.add_provider_for_devices([d for d in ep_devices() if d.ep_metadata["memory"] == "device"], {})
    return ort.InferenceSession(model, settings, enable_fallback=0)


@device_memory
def test_device_mode_with_numpy() -> None:
    for make in (norm, shape_arithmetic):
        model = make()
        session = device_session(model)
        width = 8 if make is norm else 6
        for n in (2, 5):
            agree(session, model, {"x": floats(n, 3, width)})


@device_memory
def test_device_mode_binding_copies_nothing() -> None:
    model = norm()
    session = device_session(model)
    x = floats(40, 50, 8)
    value = ort.OrtValue.ortvalue_from_numpy(x, "gpu", 0, lib.OV_ORT_VENDOR_ID)
    results = [ort.OrtValue.ortvalue_from_numpy(np.zeros_like(x), "gpu", 0, lib.OV_ORT_VENDOR_ID) for _ in range(4)]

    def run(y: ort.OrtValue, z: ort.OrtValue) -> None:
        binding = session.io_binding()
        binding.bind_ortvalue_input("x", value)
        binding.bind_ortvalue_output("y", y)
        binding.bind_ortvalue_output("z", z)
        session.run_with_iobinding(binding)

    run(results[0], results[1])
    before = Device.get().counters()
    run(results[0], results[1])
    run(results[2], results[3])  # other addresses, the same recording
    after = Device.get().counters()
    for name in ("uploaded_bytes", "downloaded_bytes", "allocations", "recordings", "plans_made"):
        assert after[name] == before[name], name
    expected = ort.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, {"x": x})
    for got, want in zip([results[2].numpy(), results[3].numpy()], expected, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


@device_memory
def test_device_mode_next_to_cpu_nodes() -> None:
    """The value that comes from a CPU node reaches the block in host memory, shape-like inputs included."""
    nodes = [
        helper.make_node("Det", ["m"], ["d"]),
        helper.make_node("Mul", ["x", "d"], ["a"]),
        helper.make_node("Reshape", ["a", "target"], ["r"]),
        helper.make_node("Softmax", ["r"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "test",
        [
            helper.make_tensor_value_info("m", TensorProto.FLOAT, [2, 2]),
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 6]),
            helper.make_tensor_value_info("target", TensorProto.INT64, [2]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.array([1], np.int64), "unused")],
    )
    opset = [helper.make_opsetid("", 18)]
    model = onnx.ModelProto.SerializeToString(helper.make_model(graph, opset_imports=opset, ir_version=9))
    session = device_session(model)
    for target in ([3, 8], [8, 3], [2, 12]):
        agree(session, model, {"m": floats(2, 2), "x": floats(4, 6), "target": np.array(target)})


def test_extents_that_happen_to_be_equal_or_one() -> None:
    """Names say nothing about which extents are equal: each run decides what is spread."""
    nodes = [helper.make_node("Add", ["x", "z"], ["a"]), helper.make_node("MatMul", ["a", "x"], ["y"])]
    model = make_model(nodes, {"x": ["n", "n2"], "z": ["m", "k"]}, {"y": None})
    session = vulkan_session(model)
    for m, k in ((3, 1), (1, 3), (3, 3), (1, 1), (3, 1)):
        agree(session, model, {"x": floats(3, 3), "z": floats(m, k)})


@device_memory
def test_device_cache_that_grows() -> None:
    """A decoder's cache stays on the device: each step appends a row, few plans serve all lengths, only the result comes down."""
    nodes = [
        helper.make_node("Concat", ["past", "x"], ["present"], axis=0),
        helper.make_node("ReduceSum", ["present", "first"], ["y"], keepdims=0),
    ]
    model = make_model(
        nodes, {"past": ["p", 8], "x": [1, 8]}, {"present": ["p + 1", 8], "y": [8]}, {"first": np.array([0])}, opset=18
    )
    session = device_session(model)
    cache = ort.OrtValue.ortvalue_from_numpy(np.zeros((0, 8), np.float32), "gpu", 0, lib.OV_ORT_VENDOR_ID)
    total = np.zeros(8, np.float32)
    start = Device.get().counters()["plans_made"]
    for step in range(40):
        row = floats(1, 8)
        total += row[0]
        grown = ort.OrtValue.ortvalue_from_shape_and_type([step + 1, 8], np.float32, "gpu", 0, lib.OV_ORT_VENDOR_ID)
        binding = session.io_binding()
        binding.bind_ortvalue_input("past", cache)
        binding.bind_cpu_input("x", row)
        binding.bind_ortvalue_output("present", grown)
        binding.bind_output("y", "cpu")
        before = Device.get().counters()["downloaded_bytes"]
        session.run_with_iobinding(binding)
        assert Device.get().counters()["downloaded_bytes"] - before == row.nbytes
        y = next(a for a in binding.copy_outputs_to_cpu() if a.ndim == 1)
        np.testing.assert_allclose(y, total, rtol=1e-4, atol=1e-5)
        cache = grown
    assert cache.numpy().shape == (40, 8)
    assert Device.get().counters()["plans_made"] - start <= 4
