"""MatMulNBits and GatherBlockQuantized against ONNX Runtime's CPU EP, and their weights on the device."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from one_node import RNG, Array, check, model_of, normal, on_cpu
from onnx import TensorProto, helper
from onnx_vulkan import Session
from run_case import graph_of, refusals

CONTRIB: dict[str, Any] = {"domain": "com.microsoft"}


def packed(*shape: int) -> Array:
    return RNG.integers(0, 256, shape).astype(np.uint8)


def nbits(
    bits: int, block: int, k: int, n: int, rows: tuple[int, ...], zero: str = "", dtype: Any = np.float32, bias: bool = False
) -> tuple[dict[str, Array | None], dict[str, int]]:
    """The inputs and attributes of a MatMulNBits."""
    blocks = -(-k // block)
    given: dict[str, Array | None] = {
        "a": normal(*rows, k).astype(dtype),
        "b": packed(n, blocks, block * bits // 8),
        "scales": RNG.uniform(0.01, 0.1, (n, blocks)).astype(dtype),
        "zero_points": None,
        "g_idx": None,
        "bias": normal(n).astype(dtype) if bias else None,
    }
    if zero == "packed":
        given["zero_points"] = packed(n, -(-blocks * bits // 8))
    elif zero == "float":
        given["zero_points"] = RNG.uniform(0, 1 << bits, (n, blocks)).astype(dtype)
    return given, {"K": k, "N": n, "bits": bits, "block_size": block}


WEIGHTS = ("b", "scales", "zero_points", "g_idx", "bias")


@pytest.mark.parametrize("zero", ["", "packed", "float"])
@pytest.mark.parametrize("block", [16, 32, 64, 128, 256])
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_matmul_nbits(bits: int, block: int, zero: str) -> None:
    if bits == 8 and zero == "float":
        return  # ONNX Runtime's CPU EP refuses it
    given, attributes = nbits(bits, block, 200, 9, (2, 3), zero, bias=block == 32)
    check("MatMulNBits", 21, given, attributes, constants=WEIGHTS, atol=1e-3, dynamic=True, **CONTRIB)


@pytest.mark.parametrize("zero", ["", "packed", "float"])
def test_matmul_nbits_halves(zero: str) -> None:
    given, attributes = nbits(4, 32, 96, 10, (4,), zero, np.float16, bias=True)
    check("MatMulNBits", 21, given, attributes, constants=WEIGHTS, rtol=1e-2, atol=2e-2, device=True, **CONTRIB)


@pytest.mark.parametrize("zero", ["", "float"])
def test_matmul_nbits_by_groups(zero: str) -> None:
    given, attributes = nbits(4, 32, 96, 10, (4,), zero)
    given["g_idx"] = RNG.permutation(np.arange(96, dtype=np.int32) // 32)
    check("MatMulNBits", 21, given, attributes, constants=WEIGHTS, atol=1e-3, **CONTRIB)


def test_matmul_nbits_without_weights() -> None:
    given, attributes = nbits(4, 32, 96, 10, (4,), bias=True)
    given["b"] = packed(0, 3, 16)
    check("MatMulNBits", 21, given, attributes, constants=WEIGHTS, **CONTRIB)


@pytest.mark.parametrize(
    ("change", "says"),
    [({"bits": 3}, "3 bits"), ({"block_size": 48}, "block_size 48"), ({"weight_prepacked": 1}, "weight_prepacked 1")],
)
def test_matmul_nbits_refused(change: dict[str, int], says: str) -> None:
    given, attributes = nbits(4, 32, 96, 10, (4,))
    (refusal,) = refusals(graph_of(model_of("MatMulNBits", 21, given, attributes | change, constants=WEIGHTS, **CONTRIB)))
    assert says in refusal.reason


@pytest.mark.parametrize("rows", [1, 20])
def test_weights_stay_packed_on_the_device(rows: int) -> None:
    """The session's weights are the file's bytes, and no intermediate holds the dequantized ones."""
    k, n = 2048, 64
    given, attributes = nbits(4, 32, k, n, (rows,), "packed")
    model = model_of("MatMulNBits", 21, given, attributes, constants=WEIGHTS, **CONTRIB)
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("y0", TensorProto.FLOAT, [rows, n]))
    x = given["a"]
    assert x is not None
    with Session.load(model.SerializeToString()) as session:
        np.testing.assert_allclose(session.run({"a": x})["y0"], on_cpu(model, {"a": x})[0], rtol=1e-4, atol=5e-3)
        held = sum(memory.size for memory in session.block.weights.values())
        assert held == sum(v.nbytes for name, v in given.items() if v is not None and name != "a")
        assert session.stats()["segment_bytes"] < 4 * k * n


@pytest.mark.parametrize("quant_type", [0, 1])
@pytest.mark.parametrize(("k", "n", "block"), [(64, 9, 32), (24, 5, 16), (7, 3, 16)])
def test_matmul_bnb4(k: int, n: int, block: int, quant_type: int) -> None:
    """Blocks within rows, and blocks that go on from row to row."""
    given = {
        "a": normal(2, 3, k),
        "b": packed(-(-n * k // 2)),
        "absmax": RNG.uniform(0.1, 2, -(-n * k // block)).astype(np.float32),
    }
    attributes = {"K": k, "N": n, "block_size": block, "quant_type": quant_type}
    check("MatMulBnb4", 21, given, attributes, constants=("b", "absmax"), dynamic=True, device=k == 64, **CONTRIB)


# ------------------------------------------------------------------------------------------- GatherBlockQuantized


@pytest.mark.parametrize("zero", [False, True])
@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize(("shape", "axis", "block"), [((7, 64), 1, 16), ((7, 48), -1, 32), ((5, 3, 32), 2, 16)])
def test_gather_block_quantized(shape: tuple[int, ...], axis: int, block: int, bits: int, zero: bool) -> None:
    scales = [-(-e // block) if i == axis % len(shape) else e for i, e in enumerate(shape)]
    given = {
        "data": packed(*shape[:-1], shape[-1] * bits // 8),
        "indices": np.array([[0, 3, -1], [4, 4, -shape[0]]], np.int64),
        "scales": RNG.uniform(0.01, 0.1, scales).astype(np.float32),
        "zero_points": packed(*scales[:-1], -(-scales[-1] * bits // 8)) if zero else None,
    }
    attributes = {"bits": bits, "block_size": block, "gather_axis": 0, "quantize_axis": axis}
    constants = ("data", "scales", "zero_points")
    check(
        "GatherBlockQuantized",
        21,
        given,
        attributes,
        constants=constants,
        dynamic=True,
        rtol=1e-6,
        atol=0,
        device=zero,
        **CONTRIB,
    )


def test_gather_block_quantized_outside_and_halves() -> None:
    given = {
        "data": packed(6, 16),
        "indices": np.array([6, 5, -7, -6], np.int32),
        "scales": RNG.uniform(0.01, 0.1, (6, 2)).astype(np.float16),
    }
    constants = ("data", "scales")
    check("GatherBlockQuantized", 21, given, {"block_size": 16}, constants=constants, rtol=0, atol=0, **CONTRIB)


@pytest.mark.parametrize("dtype", [ml_dtypes.int4, ml_dtypes.uint4])
@pytest.mark.parametrize(("gather", "quantize"), [(0, 1), (1, 0), (1, 1), (0, -1), (2, 1)])
def test_gather_block_quantized_small_integers(gather: int, quantize: int, dtype: Any) -> None:
    shape = (20, 34, 6)
    groups = [-(-e // 16) if i == quantize % 3 else e for i, e in enumerate(shape)]
    low = -8 if dtype is ml_dtypes.int4 else 0
    given = {
        "data": RNG.integers(low, low + 16, shape).astype(dtype),
        "indices": np.array([[0, 3, -1], [4, 40, -shape[gather]]], np.int64),
        "scales": RNG.uniform(0.01, 0.1, groups).astype(np.float32),
        "zero_points": RNG.integers(low, low + 16, groups).astype(dtype) if gather else None,
    }
    attributes = {"block_size": 16, "gather_axis": gather, "quantize_axis": quantize}
    constants = ("data", "scales", "zero_points")
    check("GatherBlockQuantized", 21, given, attributes, constants=constants, rtol=1e-6, atol=0, device=gather == 1, **CONTRIB)


@pytest.mark.parametrize("dtype", [ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.float4_e2m1fn])
@pytest.mark.parametrize(("block", "scales"), [(16, (7, 2)), (0, (7, 1)), (16, (1, 2)), (0, (1, 1))])
def test_gather_block_quantized_small_floats(block: int, scales: tuple[int, ...], dtype: Any) -> None:
    given = {
        "data": normal(7, 32).astype(dtype),
        "indices": np.array([3, -1, 9], np.int32),
        "scales": RNG.uniform(0.01, 0.1, scales).astype(np.float32),
    }
    constants = ("data", "scales")
    check("GatherBlockQuantized", 21, given, {"block_size": block}, constants=constants, rtol=1e-6, atol=0, **CONTRIB)
