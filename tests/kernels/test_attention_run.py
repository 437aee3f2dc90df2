"""Attention on a device's matrix units against float64, on fresh random data. Devices without such units skip this file."""

from __future__ import annotations

import secrets
from typing import Any

import numpy as np
import onnx_vulkan.kernels.attention as family
import pytest
from onnx import TensorProto, helper
from onnx_vulkan import Session
from onnx_vulkan.device import Device


def model(heads: int, rows: int, keys: int, depth: int, width: int, causal: int) -> bytes:
    """One Attention, causal or with a mask that is added."""
    shapes = {"q": [1, heads, rows, depth], "k": [1, heads, keys, depth], "v": [1, heads, keys, width], "mask": [rows, keys]}
    inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT16, s) for n, s in shapes.items()]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT16, [1, heads, rows, width])
    node = helper.make_node("Attention", list(shapes)[: 3 if causal else 4], ["y"], is_causal=causal)
    graph = helper.make_graph([node], "attention", inputs, [output])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10).SerializeToString()


@pytest.mark.parametrize(
    "units", [*family.UNITS, family.Units(64, 2, 64), *family.ROWS, family.Units(64, 2, 32, rows=True)], ids=str
)
@pytest.mark.parametrize(
    "sizes",
    [(3, 70, 150, 80, 72), (2, 33, 77, 31, 17), (1, 1, 300, 64, 64), (5, 197, 197, 64, 64), (2, 70, 100, 128, 112)],
    ids=str,
)
@pytest.mark.parametrize("causal", [0, 1])
def test_matrix_units(causal: int, sizes: tuple[int, ...], units: family.Units, monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device.get().info
    if not device.features >= family.MATRIX_UNITS:
        pytest.skip("the device lacks matrix units")
    if units.rows and "coop_rows" not in device.features:
        pytest.skip("the device holds matrices in another way")
    if units.shared_memory(units.padded(sizes[3]), units.padded(sizes[4])) > device.limits.shared_memory:
        pytest.skip("the device has not so much shared memory")
    monkeypatch.setattr(family, "choose", lambda *a, **k: units)
    seed = secrets.randbits(32)
    rng, (heads, rows, keys, depth, width) = np.random.default_rng(seed), sizes
    shapes = {"q": (1, heads, rows, depth), "k": (1, heads, keys, depth), "v": (1, heads, keys, width)}
    feeds: dict[str, Any] = {n: rng.standard_normal(s).astype(np.float16) for n, s in shapes.items()}
    seen = np.tri(rows, keys, dtype=bool) if causal else rng.random((rows, keys)) < 0.7
    if not causal:
        seen[0] = False  # a query that sees nothing gives zeros
    feeds["mask"] = np.where(seen, 0, -np.inf).astype(np.float16)
    with Session.load(model(*sizes, causal)) as session:
        got = session.run(feeds)["y"]
    q, k, v, mask = (feeds[n].astype(np.float64) for n in ("q", "k", "v", "mask"))
    x = q @ np.swapaxes(k, -1, -2) / np.sqrt(depth) + mask
    e = np.exp(x - np.maximum(x.max(-1, keepdims=True), -1e30))
    want = e / np.maximum(e.sum(-1, keepdims=True), 1e-30) @ v
    np.testing.assert_allclose(got.astype(np.float64), want, atol=5e-3, rtol=1e-2, err_msg=f"seed {seed}")
