"""Rare forms that random nodes once found wrong: each against ONNX Runtime's CPU EP, or what the specification says."""

from __future__ import annotations

import numpy as np
import onnx_vulkan
import pytest
from one_node import check, model_of, normal
from run_case import graph_of, refusals, run


@pytest.mark.parametrize("version", [21, 23])
def test_quotient_of_quantize_linear_has_the_scales_precision_since_23(version: int) -> None:
    x = (20 * normal(2000)).astype(np.float16)
    check("QuantizeLinear", version, {"x": x, "scale": np.float16([0.3])[0].reshape(()), "zero": np.array(3, np.int8)})


def test_blocks_of_a_vector() -> None:
    x = np.arange(-2, 3).astype(np.int8)
    inputs = {"x": x, "scale": np.array([0.5, 2, 3], np.float32), "zero": np.array([1, 0, -1], np.int8)}
    check("DequantizeLinear", 21, inputs, {"axis": 0, "block_size": 2}, dynamic=True)


@pytest.mark.parametrize("dynamic", [False, True])
def test_pad_that_wraps_more_than_once(dynamic: bool) -> None:
    pads = np.array([5, 1, 7, 0])
    check("Pad", 19, {"x": normal(2, 3), "pads": pads}, {"mode": "wrap"}, constants=["pads"], dynamic=dynamic)


def test_affine_grid_of_one_row() -> None:
    size = np.array([1, 2, 1, 3])
    check("AffineGrid", 20, {"theta": normal(1, 2, 3), "size": size}, {"align_corners": 1}, constants=["size"])


def test_gather_elements_of_constants_does_not_broadcast() -> None:
    inputs = {"x": np.arange(12, dtype=np.int32).reshape(3, 4), "i": np.array([[-4, 0, -2]])}
    check("GatherElements", 13, inputs, {"axis": 1}, constants=["x", "i"])


@pytest.mark.parametrize("scales", [[1, 1, 2, 0.5], [1, 1, 0.6, 1.5]])
def test_first_resize_rounds_each_axis_by_its_own_scale(scales: list[float]) -> None:
    check("Resize", 10, {"x": normal(1, 1, 7, 8), "scales": np.array(scales, np.float32)}, constants=["scales"])


def test_constants_beyond_int64_keep_their_bits() -> None:
    x = np.array([2**64 - 1, 2**53 + 1, 3], np.uint64)
    (got,) = run(graph_of(model_of("Identity", 13, {"x": x}, constants=["x"])), {})
    np.testing.assert_array_equal(got, x)


def test_float_attributes_are_float32_also_by_default() -> None:
    x = normal(5).astype(np.float64)
    (default,) = run(graph_of(model_of("HardSigmoid", 22, {"x": x})), {"x": x})
    (given,) = run(graph_of(model_of("HardSigmoid", 22, {"x": x}, {"alpha": 0.2, "beta": 0.5})), {"x": x})
    np.testing.assert_array_equal(default, given)


def test_symmetric_window_of_one_element_is_nan() -> None:
    size = np.array(1)
    check("HannWindow", 17, {"size": size}, {"periodic": 0}, constants=["size"])
    integers = model_of("HannWindow", 17, {"size": size}, {"periodic": 0, "output_datatype": 6}, constants=["size"])
    assert "NaN" in refusals(graph_of(integers))[0].reason


def test_largest_index_along_nothing() -> None:
    check("Hardmax", 13, {"x": np.zeros((0, 3), np.float32)}, {"axis": 0}, dynamic=True)


@pytest.mark.parametrize("count", [3, 128])
def test_concat_of_many_inputs_on_the_device(count: int) -> None:
    """A chain of as many branches is more than some drivers can nest."""
    xs: dict[str, np.ndarray | None] = {f"x{i}": np.full((i % 3, 3), i, np.uint8) for i in range(count)}  # type: ignore[type-arg]
    model = model_of("Concat", 13, xs, {"axis": 0})
    model.graph.output[0].type.tensor_type.elem_type = 2
    with onnx_vulkan.Session.load(model.SerializeToString()) as session:
        (got,) = session.run(xs).values()
    np.testing.assert_array_equal(got, np.concatenate(list(xs.values())))  # type: ignore[arg-type]


def test_shrink_of_integers_is_exact() -> None:
    x = np.array([179227381603040, -9977130, 2, -2, 0, 1], np.int64)
    (got,) = run(graph_of(model_of("Shrink", 9, {"x": x}, {"bias": 0.08, "lambd": 1.5})), {"x": x})
    np.testing.assert_array_equal(got, [179227381603039, -9977129, 1, -1, 0, 0])
    (got,) = run(graph_of(model_of("Shrink", 9, {"x": x}, {"bias": -2.5, "lambd": 0.0})), {"x": x})
    np.testing.assert_array_equal(got, [179227381603042, -9977132, 4, -4, 0, 3])
    edges = np.array([32767, -32768, 1, -1], np.int16)
    (got,) = run(graph_of(model_of("Shrink", 9, {"x": edges}, {"bias": -0.5, "lambd": 0.0})), {"x": edges})
    np.testing.assert_array_equal(got, edges)


def test_power_of_an_odd_number_beyond_float32() -> None:
    x = np.array([-1, -1, -0.0, 2, -np.inf], np.float32)
    y = np.array([709870297, 709870296, -16777217, 5, 16777217], np.int64)
    check("Pow", 15, {"x": x, "y": y})


def test_elu_near_nothing() -> None:
    x = np.array([-1e-5, -1e-7, -0.5, -30, -np.inf, -0.0, 2], np.float32)
    for op, scale in {"Elu": 1.0, "Celu": 1.0, "Selu": 1.0507010221481323 * 1.6732631921768188}.items():
        model = model_of(op, 12 if op == "Celu" else 6, {"x": x})
        model.opset_import[0].version = 13
        model.graph.output[0].type.tensor_type.elem_type = 1
        with onnx_vulkan.Session.load(model.SerializeToString()) as session:
            (got,) = session.run({"x": x}).values()
        np.testing.assert_allclose(got[:5], scale * np.expm1(x[:5].astype(np.float64)), rtol=1e-6)
