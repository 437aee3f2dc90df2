"""Values of small element types between ONNX Runtime and blocks: packed as ONNX Runtime keeps them, in and out."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import onnxruntime as ort
import onnxruntime_ep_vulkan
import pytest
from ep_stub import ORT_MINOR, device_memory, ep_devices, vulkan_session
from onnx import TensorProto, helper, numpy_helper
from onnx_vulkan.dtypes import DType
from onnx_vulkan.packing import pack, unpack

Array = np.ndarray[Any, Any]
TYPES = [DType.I4, DType.U4, DType.F8E4M3FN, DType.F8E4M3FNUZ, DType.F8E5M2, DType.F8E5M2FNUZ]
TYPES += [DType.I2, DType.U2] if ORT_MINOR >= 32 else []
NAME = {"ids": lambda t: t.onnx_name}
RNG = np.random.default_rng(4)


def model(t: DType) -> bytes:
    """Quantizes f, dequantizes x and a weight, and transposes x, all at shapes that a run tells."""
    small, floats = t.value, TensorProto.FLOAT
    zero = np.zeros((), np.uint8).view(t.numpy)
    nodes = [
        helper.make_node("QuantizeLinear", ["f", "s", "zero"], ["q"]),
        helper.make_node("DequantizeLinear", ["x", "s", "zero"], ["d"]),
        helper.make_node("DequantizeLinear", ["w", "s", "zero"], ["wf"]),
        helper.make_node("Add", ["d", "wf"], ["y"]),
        helper.make_node("Transpose", ["x"], ["t"]),
    ]
    weights = [
        numpy_helper.from_array(np.float32(0.5), "s"),
        numpy_helper.from_array(zero, "zero"),
        numpy_helper.from_array(codes(t, (1, 3)), "w"),
    ]
    graph = helper.make_graph(
        nodes,
        "packed",
        [helper.make_tensor_value_info("f", floats, ["n", 3]), helper.make_tensor_value_info("x", small, ["n", 3])],
        [
            helper.make_tensor_value_info("q", small, ["n", 3]),
            helper.make_tensor_value_info("y", floats, ["n", 3]),
            helper.make_tensor_value_info("t", small, [3, "n"]),
        ],
        weights,
    )
    opset = 25 if t in (DType.I2, DType.U2) else 21
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    return bytes(made.SerializeToString())


def codes(t: DType, shape: tuple[int, ...]) -> Array:
    """Numbers that the type has, without NaN."""
    return RNG.integers(0, min(1 << t.bits, 0x70), shape).astype(np.uint8).view(t.numpy)


def value_of(array: Array) -> ort.OrtValue:
    t = DType.of(array.dtype)
    if t is DType.F32:
        return ort.OrtValue.ortvalue_from_numpy(array)
    value = ort.OrtValue.ortvalue_from_shape_and_type(list(array.shape), t.value)
    data = pack(array)
    ctypes.memmove(value.data_ptr(), data.ctypes.data, data.size)
    return value


def codes_of(value: ort.OrtValue, t: DType) -> list[int]:
    """The bits of every element; those after the last one are anybody's."""
    count = int(np.prod(value.shape()))
    data = np.frombuffer(ctypes.string_at(value.data_ptr(), (count * t.bits + 7) // 8), np.uint8)
    return unpack(data, t, (count,)).view(np.uint8).tolist()


def compare(session: ort.InferenceSession, data: bytes, t: DType) -> None:
    """Equal to the CPU EP to the bit, at odd and even sizes."""
    quiet = ort.SessionOptions()
    quiet.log_severity_level = 4
    cpu = ort.InferenceSession(data, quiet, providers=["CPUExecutionProvider"])
    for n in (1, 2, 3, 5, 8):
        f = (RNG.standard_normal((n, 3)) * 3).astype(np.float32)
        feeds = {"f": value_of(f), "x": value_of(codes(t, (n, 3)))}
        ours, theirs = session.run_with_ort_values(None, feeds), cpu.run_with_ort_values(None, feeds)
        for dtype, a, b in zip((t, DType.F32, t), ours, theirs, strict=True):
            assert (a.data_type(), a.shape()) == (b.data_type(), b.shape())
            assert codes_of(a, dtype) == codes_of(b, dtype), n


@pytest.mark.parametrize("t", TYPES, **NAME)
def test_packed_in_and_out(t: DType) -> None:
    data = model(t)
    session = vulkan_session(data)
    compare(session, data, t)
    if ORT_MINOR >= 24:
        stats = onnxruntime_ep_vulkan.assert_on_vulkan(session)
        assert stats.claimed_nodes == stats.offered_nodes


@pytest.mark.parametrize("t", TYPES[:2], **NAME)
def test_packed_across_a_border(t: DType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Quantized here, moved and dequantized by the CPU EP, and the other way round."""
    monkeypatch.setenv("ONNX_VULKAN_OPS", "QuantizeLinear,Transpose")
    data = model(t)
    session = vulkan_session(data)
    compare(session, data, t)
    assert onnxruntime_ep_vulkan.session_stats(session).claimed_nodes == 2


@device_memory
@pytest.mark.parametrize("t", TYPES[:3], **NAME)
def test_packed_in_the_device_memory_mode(t: DType) -> None:
    data = model(t)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.add_provider_for_devices([d for d in ep_devices() if d.ep_metadata.get("memory") == "device"][:1], {})
    compare(ort.InferenceSession(data, options, enable_fallback=0), data, t)
