"""Tensors that are too large, for one allocation of the device or for the kernels' 32-bit indices: refused, the limit named."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import onnx_vulkan
import onnxruntime
import onnxruntime_ep_vulkan  # noqa: F401  (registers the provider)
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx_vulkan.codegen.loop import loop_step
from onnx_vulkan.device import Device
from onnx_vulkan.dtypes import DType
from onnx_vulkan.engine.block import DeviceLimits
from onnx_vulkan.errors import OutOfDeviceMemory, Unsupported
from onnx_vulkan.plan.build import MAX_ELEMENTS, PlanInput, PlanOutput, PlanRequest, draft_plan
from onnx_vulkan.program.builder import Builder
from onnx_vulkan.program.ir import Value

Run = Callable[[Mapping[str, Any]], list[Any]]
MIB = 1 << 20


def standalone(model: bytes) -> Run:
    session = onnx_vulkan.Session.load(model)
    return lambda feeds: list(session.run(feeds).values())


def ep(model: bytes) -> Run:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    session = onnxruntime.InferenceSession(model, options, providers=["VulkanEP"], enable_fallback=0)
    return lambda feeds: session.run(None, dict(feeds))


@pytest.fixture(params=[standalone, ep])
def door(request: pytest.FixtureRequest) -> Callable[[bytes], Run]:
    """Opens a model and gives back how to run it."""
    found: Callable[[bytes], Run] = request.param
    return found


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """The device gives at most 4 MiB in one piece."""
    device = Device.get()
    limits = replace(device.info.limits, max_allocation=4 * MIB)
    monkeypatch.setattr(device, "info", replace(device.info, limits=limits))


def model(nodes: list[Any], x: list[Any], y: list[Any], constants: Mapping[str, np.ndarray[Any, Any]] | None = None) -> bytes:
    """A float32 model from ``x`` to ``y``."""
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", x), ("y", y))]
    made = [numpy_helper.from_array(a, n) for n, a in (constants or {}).items()]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], made)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8).SerializeToString()


def outer(*after: Any) -> bytes:
    """``x[:, None] * x[None, :]``, and what follows it."""
    axes = {"zero": np.array([0]), "one": np.array([1]), "all": np.array([-1])}
    nodes = [
        helper.make_node("Unsqueeze", ["x", "one"], ["a"]),
        helper.make_node("Unsqueeze", ["x", "zero"], ["b"]),
        helper.make_node("Mul", ["a", "b"], ["p" if after else "y"], name="outer"),
        *after,
    ]
    return model(nodes, ["n"], [None] * (1 if after else 2), axes)


@pytest.mark.usefixtures("small_pieces")
def test_a_weight_larger_than_one_allocation_is_refused_at_load(door: Callable[[bytes], Run]) -> None:
    table = np.ones((1500, 1024), np.float32)
    nodes = [helper.make_node("MatMul", ["x", "table"], ["y"], name="product")]
    with pytest.raises(Exception, match=r"(?s)table.* has 6144000 bytes.*4194304 bytes.*maxMemoryAllocationSize"):
        door(model(nodes, [2, 1500], [2, 1024], {"table": table}))
    small = door(model(nodes, [2, 15], [2, 1024], {"table": table[:15]}))
    np.testing.assert_array_equal(small({"x": np.ones((2, 15), np.float32)})[0], np.full((2, 1024), 15, np.float32))


@pytest.mark.usefixtures("small_pieces")
def test_a_run_larger_than_one_allocation_is_refused_and_the_next_one_works(door: Callable[[bytes], Run]) -> None:
    run = door(outer())
    with pytest.raises(
        Exception,
        match=r"(outputs|working memory) .*maxMemoryAllocationSize.* The largest of them, .*\[1100, 1100\].* 4840000 bytes",
    ):
        run({"x": np.ones(1100, np.float32)})
    np.testing.assert_array_equal(run({"x": np.arange(3, dtype=np.float32)})[0], [[0, 0, 0], [0, 1, 2], [0, 2, 4]])


@pytest.mark.usefixtures("small_pieces")
def test_working_memory_is_named(door: Callable[[bytes], Run]) -> None:
    softmax = helper.make_node("Softmax", ["p"], ["s"], name="softmax")
    total = helper.make_node("MatMul", ["s", "s"], ["t"], name="square")
    run = door(outer(softmax, total, helper.make_node("ReduceMax", ["t"], ["y"], keepdims=0)))
    with pytest.raises(Exception, match=r"working memory .* 4194304 bytes .*maxMemoryAllocationSize.*\[1100, 1100\]"):
        run({"x": np.ones(1100, np.float32)})
    np.testing.assert_allclose(run({"x": np.ones(4, np.float32)})[0], 0.25, rtol=1e-5)


def test_the_shims_own_check_names_the_limit() -> None:
    most = Device.get().info.limits.largest_piece
    with pytest.raises(OutOfDeviceMemory, match=Device.get().info.limits.largest_piece_name):
        Device.get().alloc(most + 1)


COUNTED = {
    "output": (outer(), r"outer.*\[70000, 70000\].* has 4900000000 elements"),
    "reduction": (outer(helper.make_node("ReduceSum", ["p"], ["y"], name="sum", keepdims=0)), "sum has 4900000000 elements"),
    "reshape": (
        outer(
            helper.make_node("Reshape", ["p", "all"], ["f"], name="flat"),
            helper.make_node("ReduceMax", ["f"], ["y"], keepdims=0),
        ),
        "4900000000 elements",
    ),
}


@pytest.mark.parametrize("kind", COUNTED)
def test_more_elements_than_indices_count_are_refused_and_the_next_run_works(kind: str, door: Callable[[bytes], Run]) -> None:
    data, sentence = COUNTED[kind]
    run = door(data)
    small = np.array([1, 2, 3], np.float32)
    expected = run({"x": small})
    with pytest.raises(Exception, match=rf"{sentence}.* more than the {MAX_ELEMENTS} that kernels can index"):
        run({"x": np.ones(70000, np.float32)})
    for got, want in zip(run({"x": small}), expected, strict=True):
        np.testing.assert_array_equal(got, want)


def _request(kernel: Any, x: Value, y: Value) -> PlanRequest:
    return PlanRequest(
        steps=[kernel],
        aliases={},
        inputs=[PlanInput(x, x.shape, x.dtype.bits)],
        outputs=[PlanOutput(y, y.shape, y.dtype.bits)],
        guards=[],
        numbers={},
        runtime={},
        limits=DeviceLimits.of(Device.get()),
        pipelines=lambda wanted: [0] * len(wanted),
        weight=lambda v: 0,
    )


@pytest.mark.parametrize(("rows", "fits"), [(MAX_ELEMENTS // 65536, True), (MAX_ELEMENTS // 65536 + 1, False)])
def test_a_table_with_more_elements_than_indices_count_is_refused(rows: int, fits: bool) -> None:
    """2 GB of bytes that are all one byte of memory."""
    b = Builder()
    ids = b.input("ids", DType.I32, (4,))
    table = Value(DType.I8, (rows, 65536), "table", np.broadcast_to(np.int8(1), (rows, 65536)))
    y = b.gather(table, ids, 0)
    producers = b.finish([y]).producers()
    kernel = loop_step("embedding", [y], producers, lambda v: v not in producers)
    if fits:
        assert draft_plan(_request(kernel, ids, y)).segment_sizes
        return
    with pytest.raises(Unsupported, match=rf"tensor 'table' \(int8 \[{rows}, 65536\]\) has {rows * 65536} elements"):
        draft_plan(_request(kernel, ids, y))
