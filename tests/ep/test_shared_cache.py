"""Caches that are read and written in one place of device memory, as a decoder's caller binds them."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from ep_stub import device_memory
from onnx import TensorProto, helper
from onnx_vulkan._shim import lib
from test_engine import device_session

RNG = np.random.default_rng(3)
H, G, D, ROWS = 4, 2, 16, 24


def model(**attributes: Any) -> bytes:
    """One GroupQueryAttention, packed and with rotary embedding."""
    names = ["qkv", "", "", "past_k", "past_v", "last", "total", "cos", "sin"]
    heads = {"num_heads": H, "kv_num_heads": G, "do_rotary": 1}
    node = helper.make_node(
        "GroupQueryAttention", names, ["y", "present_k", "present_v"], domain="com.microsoft", **heads, **attributes
    )
    floats, ints, cache = TensorProto.FLOAT, TensorProto.INT32, ["batch", G, "rows", D]
    types = {
        "qkv": (floats, ["batch", "steps", (H + 2 * G) * D]), "past_k": (floats, cache), "past_v": (floats, cache),
        "last": (ints, ["batch"]), "total": (ints, [1]), "cos": (floats, [ROWS, D // 2]), "sin": (floats, [ROWS, D // 2]),
    }  # fmt: skip
    inputs = [helper.make_tensor_value_info(n, *t) for n, t in types.items()]
    outputs = [helper.make_tensor_value_info(n, floats, None) for n in node.output]
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph([node], "cache", inputs, outputs)
    return onnx.ModelProto.SerializeToString(helper.make_model(graph, opset_imports=imports, ir_version=9))


def knows_windows() -> bool:
    schemas = ort.capi.onnxruntime_pybind11_state.get_all_operator_schema()
    return any(s.name == "GroupQueryAttention" and "sliding_window_cache" in s.attributes for s in schemas)


windows = pytest.mark.skipif(not knows_windows(), reason="this ONNX Runtime has no sliding_window_cache")


@device_memory
@pytest.mark.parametrize("window", [0, pytest.param(6, marks=windows)])
def test_a_cache_in_place(window: int) -> None:
    """With *window* the caches hold no more than it: every step moves their rows."""
    capacity = window or 16
    data = model(**({"local_window_size": window, "sliding_window_cache": 1} if window else {}))
    session = device_session(data)
    cpu = ort.InferenceSession(data, providers=["CPUExecutionProvider"])
    angles = RNG.uniform(0, 6, (ROWS, D // 2))
    feeds = {"cos": np.cos(angles).astype(np.float32), "sin": np.sin(angles).astype(np.float32)}
    caches = {n: np.zeros((1, G, capacity, D), np.float32) for n in "kv"}
    places = {n: ort.OrtValue.ortvalue_from_numpy(x, "gpu", 0, lib.OV_ORT_VENDOR_ID) for n, x in caches.items()}
    length = 0
    for steps in (5, 1, 1, 1, 1, 1):
        length += steps
        feeds["qkv"] = RNG.standard_normal((1, steps, (H + 2 * G) * D)).astype(np.float32)
        feeds["last"], feeds["total"] = np.array([length - 1], np.int32), np.array([length], np.int32)
        want = cpu.run(None, {**feeds, "past_k": caches["k"], "past_v": caches["v"]})
        binding = session.io_binding()
        for name, x in feeds.items():
            binding.bind_cpu_input(name, x)
        for n, place in places.items():
            binding.bind_ortvalue_input(f"past_{n}", place)
            binding.bind_ortvalue_output(f"present_{n}", place)
        binding.bind_output("y", "cpu")
        session.run_with_iobinding(binding)
        (y,) = (a for a in binding.copy_outputs_to_cpu() if a.ndim == 3)
        np.testing.assert_allclose(y, want[0], rtol=1e-4, atol=1e-5)
        held = min(length, capacity)
        for place, wanted in zip(places.values(), want[1:], strict=True):
            np.testing.assert_allclose(place.numpy()[:, :, :held], wanted[:, :, :held], rtol=1e-4, atol=1e-5)
        caches = {"k": want[1], "v": want[2]}
