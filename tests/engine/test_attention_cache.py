"""GroupQueryAttention over the steps of one session on the device, through both doors, against ONNX Runtime's CPU EP."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import onnxruntime
import onnxruntime_ep_vulkan
import pytest
from onnx import TensorProto, helper
from onnx_vulkan import Session

H, G, D, ROWS = 4, 2, 16, 32
RNG = np.random.default_rng(5)


def model() -> bytes:
    """One node with a window, rotary embedding and packed query, key and value."""
    names = ["qkv", "", "", "past_k", "past_v", "last", "total", "cos", "sin"]
    node = helper.make_node(
        "GroupQueryAttention", names, ["y", "present_k", "present_v"], domain="com.microsoft",
        num_heads=H, kv_num_heads=G, do_rotary=1, local_window_size=6,
    )  # fmt: skip
    cache = ["batch", G, "cached", D]
    floats, ints = TensorProto.FLOAT, TensorProto.INT32
    types = {
        "qkv": (floats, ["batch", "steps", (H + 2 * G) * D]), "past_k": (floats, cache), "past_v": (floats, cache),
        "last": (ints, ["batch"]), "total": (ints, []), "cos": (floats, [ROWS, D // 2]), "sin": (floats, [ROWS, D // 2]),
    }  # fmt: skip
    inputs = [helper.make_tensor_value_info(n, *t) for n, t in types.items()]
    outputs = [helper.make_tensor_value_info(n, floats, None) for n in node.output]
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph([node], "cache", inputs, outputs)
    return helper.make_model(graph, opset_imports=imports, ir_version=9).SerializeToString()


Run = Callable[[dict[str, Any]], list[Any]]


@contextmanager
def opened(data: bytes, door: str) -> Iterator[Run]:
    """Runs the model standalone, in ONNX Runtime with this execution provider and no other, or on its CPU EP."""
    if door == "standalone":
        with Session.load(data) as session:
            yield lambda feeds: list(session.run(feeds).values())
        return
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    if door == "cpu":
        runtime = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    else:
        onnxruntime_ep_vulkan.register()
        options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
        runtime = onnxruntime.InferenceSession(data, options, providers=["VulkanEP"])
    yield lambda feeds: list(runtime.run(None, feeds))


@pytest.mark.parametrize("door", ["standalone", "ep"])
@pytest.mark.parametrize("capacity", [0, 24], ids=["growing", "buffer"])
def test_a_prompt_and_its_steps(capacity: int, door: str) -> None:
    data = model()
    angles = RNG.uniform(0, 6, (ROWS, D // 2))
    feeds = {"cos": np.cos(angles).astype(np.float32), "sin": np.sin(angles).astype(np.float32)}
    lengths = np.zeros(2, np.int32)
    feeds["past_k"] = feeds["past_v"] = np.zeros((2, G, capacity, D), np.float32)
    with opened(data, "cpu") as cpu, opened(data, door) as ours:
        for steps in (5, 1, 1, 1, 1):
            feeds["qkv"] = RNG.standard_normal((2, steps, (H + 2 * G) * D)).astype(np.float32)
            lengths = lengths + (np.array([3, 5]) if steps > 1 else 1)
            feeds["last"] = (lengths - 1).astype(np.int32)
            feeds["total"] = np.array(lengths.max(), np.int32)
            want = cpu(feeds)
            got = ours(feeds)
            for a, b in zip(got, want, strict=True):
                assert a.shape == b.shape
            for n, sequence in zip(lengths, range(2), strict=True):
                np.testing.assert_allclose(got[0][sequence, :n], want[0][sequence, :n], rtol=1e-4, atol=1e-5)
                for a, b in zip(got[1:], want[1:], strict=True):
                    np.testing.assert_allclose(a[sequence, :, :n], b[sequence, :, :n], rtol=1e-4, atol=1e-5)
            feeds["past_k"], feeds["past_v"] = want[1], want[2]
