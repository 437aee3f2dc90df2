"""Weights of DequantizeLinear: they stay packed in device memory, and the product that reads them computes them."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from onnx_vulkan import Session
from onnx_vulkan.graph import Array

K, N = 1024, 512
LIMITS: dict[Any, tuple[int, int]] = {ml_dtypes.int4: (-8, 8), ml_dtypes.uint4: (0, 16), np.int8: (-128, 128)}


def made(dtype: Any, block: int, transposed: bool) -> tuple[onnx.ModelProto, Array, int]:
    """A model ``x @ dequantized``, the matrix in float64, and how many bytes its parts are in a file."""
    rng = np.random.default_rng(1)
    low, high = LIMITS[dtype]
    shape, axis = ((N, K), 1) if transposed else ((K, N), 0)
    groups = [e // block if i == axis else e for i, e in enumerate(shape)] if block else [N]
    q, zero = (rng.integers(low, high, s).astype(dtype) for s in (shape, groups))
    scale = rng.uniform(0.001, 0.01, groups).astype(np.float32)
    attributes = {"axis": axis, "block_size": block} if block else {"axis": 1 - axis}
    nodes = [helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["w"], **attributes)]
    if transposed:
        nodes.append(helper.make_node("Transpose", ["w"], ["t"], perm=[1, 0]))
    nodes.append(helper.make_node("MatMul", ["x", "t" if transposed else "w"], ["y"]))
    x, y = (helper.make_tensor_value_info(name, 1, ["m", extent]) for name, extent in (("x", K), ("y", N)))
    weights = [numpy_helper.from_array(v, name) for name, v in (("q", q), ("scale", scale), ("zero", zero))]
    graph = helper.make_graph(nodes, "packed", [x], [y], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)

    def spread(v: Array) -> Array:
        wide = v.astype(np.float64)
        return np.repeat(wide, block, axis) if block else wide.reshape((N, 1) if transposed else (1, N))

    w = (q.astype(np.float64) - spread(zero)) * spread(scale)
    per_byte = 1 if dtype is np.int8 else 2
    return model, w.T if transposed else w, q.size // per_byte + zero.size // per_byte + scale.nbytes


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(("dtype", "block"), [(ml_dtypes.int4, 32), (ml_dtypes.uint4, 0), (np.int8, 64)])
def test_weights_stay_packed(dtype: Any, block: int, transposed: bool) -> None:
    """One row and more than a tile of them, in one plan's memory that has no room for the matrix."""
    model, w, size = made(dtype, block, transposed)
    with Session.load(model.SerializeToString()) as session:
        for rows in (1, 20):
            x = np.random.default_rng(2).standard_normal((rows, K)).astype(np.float32)
            np.testing.assert_allclose(session.run({"x": x})["y"], x @ w, rtol=1e-4, atol=1e-3)
            assert session.stats()["segment_bytes"] < 4 * w.size
        held = sum(memory.size for memory in session.block.weights.values())
        assert size <= held <= size + 4096  # a few zero points may be unpacked for good


def test_a_matrix_that_others_read_is_computed_once() -> None:
    """The dequantized weights are an output too: then they are in memory, and the product reads them there."""
    model, w, _ = made(np.int8, 64, False)
    model.graph.output.append(helper.make_tensor_value_info("w", 1, [K, N]))
    x = np.random.default_rng(2).standard_normal((3, K)).astype(np.float32)
    with Session.load(model.SerializeToString()) as session:
        y = session.run({"x": x})
    np.testing.assert_allclose(y["y"], x @ w, rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(y["w"], w, rtol=1e-6, atol=1e-7)
