"""The quantized operators of ONNX Runtime against its CPU EP, to the last bit: random scales, zero points and forms."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from one_node import Array, check, model_of
from run_case import graph_of, refusals, run

BYTES = (np.uint8, np.int8)
CONTRIB: dict[str, Any] = {"domain": "com.microsoft", "dynamic": True}
Given = dict[str, Array | None]


class Maker:
    """Random quantized tensors."""

    def __init__(self, seed: int):
        self.rng = np.random.default_rng(seed)

    def q(self, dtype: Any, *shape: int) -> Array:
        info = np.iinfo(dtype)
        return self.rng.integers(info.min, info.max + 1, shape).astype(dtype)

    def scale(self, *shape: int, low: float = 0.005, high: float = 0.1) -> Array:
        return np.asarray(self.rng.uniform(low, high, shape), np.float32)

    def triple(self, name: str, dtype: Any, *shape: int) -> Given:
        """A tensor with its scale and zero point."""
        return {name: self.q(dtype, *shape), f"{name}_scale": self.scale(), f"{name}_zero": self.q(dtype)}

    def end(self, dtype: Any, low: float = 0.01, high: float = 0.3) -> Given:
        """The scale and zero point of a result."""
        return {"z_scale": self.scale(low=low, high=high), "z_zero": self.q(dtype)}


def exactly(op: str, given: Given, attributes: dict[str, Any] | None = None, runtime: str = "xy", device: bool = False) -> None:
    constants = [k for k in given if k not in runtime]
    check(op, 13, given, attributes, constants=constants, rtol=1e-6, atol=1e-6, device=device, **CONTRIB)


@pytest.mark.parametrize("dtype", BYTES)
@pytest.mark.parametrize("op", ["QLinearAdd", "QLinearMul"])
def test_binary(op: str, dtype: Any) -> None:
    make = Maker(1)
    exactly(op, make.triple("x", dtype, 2, 300) | make.triple("y", dtype, 300) | make.end(dtype))


@pytest.mark.parametrize("dtype", BYTES)
@pytest.mark.parametrize("zero", [3, 4])
@pytest.mark.parametrize("op", ["QLinearAdd", "QLinearMul", "QLinearAveragePool", "QLinearConcat"])
def test_halves(op: str, zero: int, dtype: Any) -> None:
    """Half of the sums, products and averages lie halfway: whether the zero point is odd decides where a half goes."""
    make = Maker(7)
    one, point = np.float32(1), dtype(zero)
    x = {"x": make.q(dtype, 1, 4, 12, 16), "x_scale": one, "x_zero": point}
    y = {"y": make.q(dtype, 1, 4, 12, 16), "y_scale": one, "y_zero": point}
    end = {"z_scale": np.float32(2), "z_zero": point}
    if op == "QLinearAveragePool":
        exactly(op, x | end, {"kernel_shape": [2, 2], "strides": [2, 2]}, device=True)
    elif op == "QLinearConcat":
        exactly(op, end | x | y, {"axis": 1}, device=True)
    else:
        exactly(op, x | y | end, device=True)


@pytest.mark.parametrize("dtype", BYTES)
@pytest.mark.parametrize(
    ("op", "shape", "attributes"),
    [
        ("QLinearSigmoid", (2, 300), {}),
        ("QLinearLeakyRelu", (2, 300), {"alpha": 0.1}),
        ("QLinearGlobalAveragePool", (2, 5, 7, 6), {}),
        ("QLinearGlobalAveragePool", (2, 5, 7, 6), {"channels_last": 1}),
        ("QLinearAveragePool", (2, 3, 9, 8), {"kernel_shape": [3, 2], "pads": [1, 0, 1, 1], "strides": [2, 1]}),
        ("QLinearAveragePool", (2, 9, 8, 3), {"kernel_shape": [3, 2], "pads": [1, 0, 1, 1], "channels_last": 1}),
        ("QLinearAveragePool", (2, 9, 8, 3), {"kernel_shape": [3, 3], "count_include_pad": 1, "channels_last": 1}),
        ("QLinearSoftmax", (3, 40), {"opset": 13}),
        ("QLinearSoftmax", (3, 4, 10), {"opset": 13, "axis": 1}),
        ("QLinearSoftmax", (3, 4, 10), {"opset": 11, "axis": 1}),
    ],
    ids=str,
)
def test_one_tensor(op: str, shape: tuple[int, ...], attributes: dict[str, Any], dtype: Any) -> None:
    make = Maker(2)
    for n in range(3):
        exactly(
            op, make.triple("x", dtype, *shape) | make.end(dtype, 0.003, 0.1), attributes, device=n == 0 and dtype is np.uint8
        )


@pytest.mark.parametrize("dtype", BYTES)
def test_where_and_concat(dtype: Any) -> None:
    make = Maker(3)
    c = make.rng.integers(0, 2, (4, 30)).astype(bool)
    sides = make.triple("x", dtype, 4, 30) | make.triple("y", dtype, 30)
    exactly("QLinearWhere", {"c": c} | sides | make.end(dtype), runtime="cxy", device=True)
    exactly("QLinearConcat", make.end(dtype) | make.triple("x", dtype, 2, 30) | make.triple("y", dtype, 2, 20), {"axis": 1})


@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("axes", [[0, 1, 2], [1], [0, -1]])
def test_reduce_mean(axes: list[int], keepdims: int) -> None:
    """By its text: ONNX Runtime's CPU EP has no kernel."""
    make = Maker(4)
    given = make.triple("x", np.uint8, 3, 4, 5) | make.end(np.uint8)
    graph = graph_of(model_of("QLinearReduceMean", 13, given, {"axes": axes, "keepdims": keepdims}, **CONTRIB))
    assert not refusals(graph)
    x, scale, zero, z_scale, z_zero = (np.asarray(v) for v in given.values())
    mean = (x.astype(np.float64) - zero).mean(tuple(axes), keepdims=bool(keepdims)) * scale / z_scale
    (got,) = run(graph, {k: np.asarray(v) for k, v in given.items()})
    np.testing.assert_array_equal(got, np.clip(np.rint(mean) + z_zero, 0, 255).astype(np.uint8))


@pytest.mark.parametrize("channels_last", [0, 1])
@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize("dtype", BYTES)
def test_conv(dtype: Any, group: int, channels_last: int) -> None:
    make = Maker(5)
    n = 6 if group == 2 else 1
    w: Given = {"w": make.q(np.int8, 6, 4 // group, 3, 2), "w_scale": make.scale(n), "w_zero": np.zeros(n, np.int8)}
    x = make.triple("x", dtype, *((2, 9, 8, 4) if channels_last else (2, 4, 9, 8)))
    bias: Given = {"b": make.rng.integers(-500, 500, 6).astype(np.int32)}
    attributes = {"group": group, "channels_last": channels_last, "pads": [1, 0, 1, 1], "strides": [2, 1]}
    exactly("QLinearConv", x | w | make.end(dtype, 1, 10) | bias, attributes, device=group == 2 and dtype is np.uint8)


# --------------------------------------------------------------------------------------------------- matrix products


@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize(("left", "right"), [(np.uint8, np.uint8), (np.uint8, np.int8), (np.int8, np.int8)])
def test_matmul_to_float(left: Any, right: Any, columns: bool) -> None:
    make = Maker(6)
    n = (9,) if columns else ()
    given: Given = {
        "x": make.q(left, 2, 5, 33), "y": make.q(right, 33, 9), "x_scale": make.scale(), "y_scale": make.scale(*n),
        "x_zero": make.q(left), "y_zero": make.q(right, *n), "bias": make.scale(9) if columns else None,
    }  # fmt: skip
    exactly("MatMulIntegerToFloat", given, device=left is not right)


@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("right", BYTES)
def test_dynamic_quantize_matmul(right: Any, columns: bool) -> None:
    make = Maker(7)
    n = (9,) if columns else ()
    x = make.rng.standard_normal((2, 5, 33)).astype(np.float32)
    given: Given = {"x": x, "y": make.q(right, 33, 9), "y_scale": make.scale(*n), "y_zero": make.q(right, *n)}
    exactly("DynamicQuantizeMatMul", given | ({"bias": make.scale(9)} if columns else {}), device=columns)


@pytest.mark.parametrize("to_float", [False, True])
@pytest.mark.parametrize("transposed", [0, 1])
@pytest.mark.parametrize("columns", [False, True])
def test_gemm(columns: bool, transposed: int, to_float: bool) -> None:
    make = Maker(8)
    n = (9,) if columns else ()
    y = make.q(np.int8, *((9, 33) if transposed else (33, 9)))
    given = make.triple("x", np.uint8, *((33, 5) if transposed else (5, 33)))
    given |= {"y": y, "y_scale": make.scale(*n), "y_zero": make.q(np.int8, *n)}
    given |= {"c": make.rng.integers(-5000, 5000, (1, 9) if columns else (5, 1)).astype(np.int32)}
    given |= {} if to_float else make.end(np.uint8, 1, 30)
    exactly("QGemm", given, {"transA": transposed, "transB": transposed, "alpha": 1.5 if transposed else 1.0})


def test_wider_integers() -> None:
    make = Maker(9)
    short = make.rng.integers(-1000, 1000, (2, 3, 4, 5)).astype(np.int16)
    exactly("MatMulInteger16", {"x": short[0], "y": short[1].swapaxes(-1, -2)})
    given: Given = {"x": make.q(np.uint8, 3, 4), "x_zero": make.q(np.uint8), "y": make.q(np.int8, 4), "y_zero": make.q(np.int8)}
    feeds = {k: np.asarray(v) for k, v in given.items()}
    x, x_zero, y, y_zero = (v.astype(np.int32) for v in feeds.values())
    (got,) = run(graph_of(model_of("MulInteger", 13, given, domain="com.microsoft")), feeds)
    np.testing.assert_array_equal(got, (x - x_zero) * (y - y_zero))
    model = model_of("ReduceSumInteger", 13, {"x": feeds["x"]}, {"axes": [1], "keepdims": 0}, domain="com.microsoft")
    (got,) = run(graph_of(model), {"x": feeds["x"]})
    np.testing.assert_array_equal(got, x.sum(1).astype(np.uint32), strict=True)
