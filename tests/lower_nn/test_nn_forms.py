"""Forms of the neural-network operators (versions, attributes, left-out inputs, symbols) against ONNX Runtime's CPU EP."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from one_node import RNG, Array, check, graph_of, model_of, normal, refusals

WINDOWS: list[dict[str, Any]] = [
    {},
    {"strides": [2, 3], "pads": [1, 0, 2, 1]},
    {"dilations": [2, 1], "pads": [2, 1, 2, 1]},
    {"auto_pad": "SAME_UPPER", "strides": [2, 2]},
    {"auto_pad": "SAME_LOWER", "strides": [2, 3]},
    {"auto_pad": "VALID", "strides": [2, 1]},
]
CEILED: list[dict[str, Any]] = [
    {"strides": [2, 2], "ceil_mode": 1},
    {"strides": [3, 2], "pads": [1, 1, 1, 1], "ceil_mode": 1},
    {"strides": [3, 3], "pads": [0, 1, 2, 1], "ceil_mode": 1},
]


def u8(*shape: int) -> Array:
    return RNG.integers(0, 256, shape).astype(np.uint8)


def s8(*shape: int) -> Array:
    return RNG.integers(-128, 128, shape).astype(np.int8)


# ------------------------------------------------------------------------------------------------------ convolution


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_conv(window: dict[str, Any], dynamic: bool) -> None:
    given = {"x": normal(2, 4, 9, 11), "w": normal(6, 2, 3, 2), "b": normal(6)}
    check("Conv", 11, given, {"group": 2, **window}, constants=("w", "b"), dynamic=dynamic)


@pytest.mark.parametrize("version", [1, 11, 22])
@pytest.mark.parametrize("shape,w", [((1, 3, 10), (4, 3, 3)), ((1, 4, 6, 5), (8, 1, 3, 3)), ((2, 2, 4, 5, 6), (4, 2, 2, 3, 1))])
def test_conv_ranks(version: int, shape: tuple[int, ...], w: tuple[int, ...]) -> None:
    check("Conv", version, {"x": normal(*shape), "w": normal(*w)}, {"group": shape[1] // w[1]}, constants=("w",))


TRANSPOSED: list[dict[str, Any]] = [
    {},
    {"strides": [2, 3], "pads": [1, 0, 0, 1], "output_padding": [1, 2]},
    {"dilations": [2, 1], "strides": [1, 2]},
    {"strides": [2, 2], "output_shape": [12, 8]},
    {"strides": [2, 2], "output_shape": [10, 9], "auto_pad": "SAME_UPPER"},
    {"strides": [3, 2], "auto_pad": "SAME_UPPER"},
    {"strides": [3, 2], "auto_pad": "SAME_LOWER"},
    {"strides": [2, 2], "auto_pad": "VALID"},
]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("form", TRANSPOSED, ids=str)
def test_conv_transpose(form: dict[str, Any], dynamic: bool) -> None:
    given = {"x": normal(2, 4, 5, 4), "w": normal(4, 3, 3, 3), "b": normal(6)}
    check("ConvTranspose", 11, given, {"group": 2, **form}, constants=("w", "b"), dynamic=dynamic)


@pytest.mark.parametrize("zero_point", [None, np.array(7, np.uint8)])
def test_conv_integer(zero_point: Array | None) -> None:
    given = {"x": u8(1, 2, 5, 6), "w": s8(4, 2, 3, 3), "x_zp": zero_point, "w_zp": np.array(3, np.int8)}
    check("ConvInteger", 10, given, {"pads": [1, 1, 1, 1]}, constants=("w", "w_zp"), dynamic=True)


@pytest.mark.parametrize("activation,params", [("Relu", []), ("LeakyRelu", [0.2]), ("Clip", [-0.5, 0.5]), ("Sigmoid", [])])
def test_fused_conv(activation: str, params: list[float]) -> None:
    attributes: dict[str, Any] = {"activation": activation, "activation_params": params, "pads": [1, 1, 1, 1]}
    if not params:
        attributes.pop("activation_params")
    given = {"x": normal(1, 3, 6, 5), "w": normal(4, 3, 3, 3), "b": normal(4)}
    check("FusedConv", 13, given, attributes, domain="com.microsoft", constants=("w", "b"))


# ----------------------------------------------------------------------------------------------------------- pooling


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("window", WINDOWS + CEILED, ids=str)
def test_max_pool(window: dict[str, Any], dynamic: bool) -> None:
    check("MaxPool", 12, {"x": normal(2, 3, 9, 11)}, {"kernel_shape": [3, 2], **window}, outputs=2, dynamic=dynamic)


@pytest.mark.parametrize("storage_order", [0, 1])
@pytest.mark.parametrize("shape", [(2, 3, 7), (2, 2, 5, 6), (1, 2, 4, 5, 3)])
def test_max_pool_indices(shape: tuple[int, ...], storage_order: int) -> None:
    kernel = [2] * (len(shape) - 2)
    attributes = {"kernel_shape": kernel, "storage_order": storage_order}
    check("MaxPool", 8, {"x": normal(*shape)}, attributes, outputs=2, dynamic=True)


@pytest.mark.parametrize("version", [7, 10, 11, 19])
@pytest.mark.parametrize("include", [0, 1])
@pytest.mark.parametrize("window", [w for w in WINDOWS + CEILED if "dilations" not in w], ids=str)
def test_average_pool(window: dict[str, Any], include: int, version: int) -> None:
    if version < 10 and "ceil_mode" in window:
        return
    attributes = {"kernel_shape": [3, 2], "count_include_pad": include, **window}
    check("AveragePool", version, {"x": normal(2, 3, 9, 11)}, attributes, dynamic=bool(include))


@pytest.mark.parametrize("p", [1, 2, 3])
@pytest.mark.parametrize("window", WINDOWS[:2], ids=str)
def test_lp_pool(window: dict[str, Any], p: int) -> None:
    check("LpPool", 18, {"x": normal(2, 3, 9, 11)}, {"kernel_shape": [3, 2], "p": p, **window}, dynamic=True)


@pytest.mark.parametrize("op", ["GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"])
@pytest.mark.parametrize("shape", [(2, 3, 7), (1, 4, 5, 6), (1, 2, 3, 4, 5)])
def test_global_pool(op: str, shape: tuple[int, ...]) -> None:
    check(op, 13, {"x": normal(*shape)}, dynamic=True)


# ---------------------------------------------------------------------------------------------------- matrix products


@pytest.mark.parametrize(
    "a,b",
    [((4,), (4,)), ((4,), (4, 3)), ((2, 4), (4,)), ((2, 3, 4), (4,)), ((4,), (2, 4, 3)), ((2, 3, 4), (4, 5)), ((3, 4), (2, 4, 5)),
     ((2, 1, 3, 4), (5, 4, 2))],
)  # fmt: skip
def test_matmul(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    check("MatMul", 13, {"a": normal(*a), "b": normal(*b)})
    check("MatMul", 9, {"a": normal(*a), "b": normal(*b)}, constants=("b",), dynamic=True)


@pytest.mark.parametrize("version", [7, 9, 11, 13])
@pytest.mark.parametrize("c", [(), (1,), (3,), (2, 1), (2, 3)])
def test_gemm(version: int, c: tuple[int, ...]) -> None:
    attributes = {"alpha": 0.5, "beta": 2.0, "transA": 1, "transB": 1}
    check("Gemm", version, {"a": normal(4, 2), "b": normal(3, 4), "c": normal(*c)}, attributes, dynamic=version == 13)


def test_gemm_without_c() -> None:
    check("Gemm", 11, {"a": normal(2, 4), "b": normal(4, 3)})


def test_fused_matmul() -> None:
    attributes = {"alpha": 0.3, "transA": 1, "transB": 1}
    given = {"a": normal(2, 4, 3), "b": normal(2, 5, 4)}
    check("FusedMatMul", 13, given, attributes, domain="com.microsoft", dynamic=False)


def test_integer_products() -> None:
    given = {"a": u8(2, 3, 4), "b": s8(4, 5), "a_zp": np.array(9, np.uint8), "b_zp": s8(5)}
    check("MatMulInteger", 10, given, constants=("b", "b_zp"), dynamic=True)
    scales = {"a": np.float32(0.02), "b": np.float32(0.03), "y": np.float32(0.9)}
    given = {
        "a": u8(3, 40), "as": np.array(scales["a"]), "az": np.array(120, np.uint8),
        "b": u8(40, 5), "bs": np.array(scales["b"]), "bz": np.array(130, np.uint8),
        "ys": np.array(scales["y"]), "yz": np.array(100, np.uint8),
    }  # fmt: skip
    check("QLinearMatMul", 10, given, constants=("b", "bs", "bz", "as", "az", "ys", "yz"), dynamic=True)


@pytest.mark.parametrize(
    "equation,shapes",
    [
        ("ij,jk->ik", [(2, 3), (3, 4)]),
        ("bij,bjk", [(2, 3, 4), (2, 4, 5)]),
        ("...ij,...jk->...ik", [(2, 1, 3, 4), (2, 5, 4, 2)]),
        ("ii->i", [(4, 4)]),
        ("bii->b", [(2, 4, 4)]),
        ("ij->", [(3, 4)]),
        ("i,j->ij", [(3,), (4,)]),
        ("bhqd,bhkd->bhqk", [(2, 3, 4, 5), (2, 3, 6, 5)]),
        ("ij,kj,lk->il", [(2, 3), (4, 3), (5, 4)]),
        ("...i->i...", [(2, 3, 4)]),
        ("ab,b", [(3, 4), (4,)]),
    ],
)
@pytest.mark.parametrize("dynamic", [False, True])
def test_einsum(equation: str, shapes: list[tuple[int, ...]], dynamic: bool) -> None:
    given = {f"x{i}": normal(*shape) for i, shape in enumerate(shapes)}
    check("Einsum", 12, given, {"equation": equation}, dynamic=dynamic)


@pytest.mark.parametrize("shape", [(1, 1), (2, 2), (3, 5, 5), (2, 2, 9, 9)])
def test_det(shape: tuple[int, ...]) -> None:
    x = normal(*shape)
    if len(shape) == 3:
        x[0, 0, 0] = x[1, :, 3] = x[2, 1] = 0  # a first pivot elsewhere, columns and rows of zeros
    check("Det", 11, {"x": x}, device=True)


def test_det_of_matrices_of_unknown_size() -> None:
    assert "known sizes" in str(refusals(graph_of(model_of("Det", 11, {"x": normal(4, 4)}, dynamic=True)))[0])


# ------------------------------------------------------------------------------------------------------------- norms


@pytest.mark.parametrize("version", [7, 9, 14, 15])
@pytest.mark.parametrize("shape", [(2, 3), (2, 3, 5), (2, 3, 4, 5)])
def test_batch_norm(version: int, shape: tuple[int, ...]) -> None:
    given = {"x": normal(*shape), "s": normal(3), "b": normal(3), "m": normal(3), "v": np.abs(normal(3)) + 0.1}
    check("BatchNormalization", version, given, {"epsilon": 1e-3}, constants=("s", "b", "m", "v"), dynamic=True)


@pytest.mark.parametrize("shape", [(4, 3), (2, 3, 4, 5)])
def test_batch_norm_of_activations(shape: tuple[int, ...]) -> None:
    given = {"x": normal(*shape), **{k: normal(*shape[1:]) for k in "sbm"}, "v": np.abs(normal(*shape[1:]))}
    check("BatchNormalization", 7, given, {"spatial": 0}, constants=("s", "b", "m", "v"), dynamic=True)


@pytest.mark.parametrize("version", [14, 15])
@pytest.mark.parametrize("shape", [(4, 3), (2, 3, 4, 5)])
def test_batch_norm_in_training(version: int, shape: tuple[int, ...]) -> None:
    given: dict[str, Array | None] = {
        "x": 3 + normal(*shape),
        "s": normal(3),
        "b": normal(3),
        "m": normal(3),
        "v": np.abs(normal(3)),
    }
    check("BatchNormalization", version, given, {"training_mode": 1, "momentum": 0.8}, outputs=3, dynamic=True, device=True)


def test_layer_norm_at_a_large_mean() -> None:
    x = (1e4 + normal(3, 64)).astype(np.float32)
    check("LayerNormalization", 17, {"x": x, "s": normal(64)}, rtol=1e-2, atol=2e-3)


@pytest.mark.parametrize("axis", [-1, 1, 0])
def test_layer_norm(axis: int) -> None:
    shape = (2, 3, 4)
    given = {"x": normal(*shape), "s": normal(*shape[axis:]), "b": normal(*shape[axis:])}
    check("LayerNormalization", 17, given, {"axis": axis}, outputs=3, dynamic=True)


def test_other_norms() -> None:
    x = normal(2, 6, 4, 5)
    check("InstanceNormalization", 6, {"x": x, "s": normal(6), "b": normal(6)}, constants=("s", "b"), dynamic=True)
    check("LpNormalization", 1, {"x": x}, {"axis": 1, "p": 1}, dynamic=True)
    check("LpNormalization", 1, {"x": x}, {"p": 2}, dynamic=True)
    check("MeanVarianceNormalization", 9, {"x": x}, dynamic=True)
    check("LRN", 13, {"x": x}, {"size": 5, "alpha": 0.3, "bias": 2.0}, dynamic=True)
    for version, scale in ((18, 3), (21, 6)):
        given = {"x": x, "s": normal(scale), "b": normal(scale)}
        check("GroupNormalization", version, given, {"num_groups": 3}, constants=("s", "b"), dynamic=True)


@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax", "Hardmax"])
@pytest.mark.parametrize("version", [1, 11, 13])
@pytest.mark.parametrize("axis", [0, 1, 2, None])
def test_softmax_changed_its_meaning_in_13(op: str, version: int, axis: int | None) -> None:
    check(op, version, {"x": normal(2, 3, 4)}, {} if axis is None else {"axis": axis}, dynamic=True)


# ------------------------------------------------------------------------------------------------------ quantization


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize("axis", [None, 0, 1, -1])
def test_quantize(dtype: Any, axis: int | None) -> None:
    x = np.concatenate([normal(40), [0.5, 1.5, 2.5, -0.5, -1.5, 1e9, -1e9, 3.0]]).astype(np.float32).reshape(2, 4, 6)
    n = 1 if axis is None else x.shape[axis]
    scale = np.full(n, 0.5, np.float32) * np.arange(1, n + 1, dtype=np.float32)
    zero = np.arange(3, 3 + n).astype(dtype)
    if axis is None:
        scale, zero = scale.reshape(()), zero.reshape(())
    attributes = {} if axis is None else {"axis": axis}
    q = RNG.integers(0, 100, x.shape).astype(dtype)
    for version in (10, 13, 19) if axis is None else (13, 19, 21):
        check("QuantizeLinear", version, {"x": x, "s": scale, "z": zero}, attributes, constants=("s", "z"), dynamic=True)
        check("DequantizeLinear", version, {"x": q, "s": scale, "z": zero}, attributes, constants=("s", "z"), dynamic=True)


@pytest.mark.parametrize("per_channel", [False, True])
def test_qlinear_conv(per_channel: bool) -> None:
    n = 4 if per_channel else 1
    w_scale = (np.arange(1, n + 1) * 0.01).astype(np.float32)
    given = {
        "x": u8(1, 2, 6, 5), "xs": np.array(0.02, np.float32), "xz": np.array(120, np.uint8),
        "w": s8(4, 2, 3, 3), "ws": w_scale if per_channel else w_scale[0],
        "wz": np.zeros((n,) if per_channel else (), np.int8),
        "ys": np.array(0.04, np.float32), "yz": np.array(110, np.uint8), "b": RNG.integers(-500, 500, 4).astype(np.int32),
    }  # fmt: skip
    check("QLinearConv", 10, given, {"pads": [1, 1, 1, 1]}, constants=tuple(k for k in given if k != "x"), dynamic=True)


def test_dynamic_quantize() -> None:
    check("DynamicQuantizeLinear", 11, {"x": normal(3, 50)}, outputs=3, dynamic=True)
    check("DynamicQuantizeLinear", 11, {"x": np.zeros((2, 3), np.float32)}, outputs=3)


@pytest.mark.parametrize("op", ["QLinearAdd", "QLinearMul"])
def test_qlinear_binary(op: str) -> None:
    f = np.float32
    given = {
        "a": u8(2, 30), "as": np.array(0.02, f), "az": np.array(120, np.uint8),
        "b": u8(30), "bs": np.array(0.03, f), "bz": np.array(100, np.uint8),
        "ys": np.array(0.0517, f), "yz": np.array(110, np.uint8),
    }  # fmt: skip
    check(op, 13, given, domain="com.microsoft", constants=tuple(k for k in given if k not in "ab"))


# ------------------------------------------------------------------------------------------------------------ sorting


@pytest.mark.parametrize("largest", [0, 1])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_top_k(axis: int, largest: int) -> None:
    x = RNG.integers(0, 5, (4, 5, 6))  # many equal values
    k = np.array([3], np.int64)
    for dtype in (np.float32, np.int64, np.int32):
        given = {"x": x.astype(dtype), "k": k}
        check("TopK", 11, given, {"axis": axis, "largest": largest}, outputs=2, constants=("k",), dynamic=True)


def test_top_k_before_11() -> None:
    check("TopK", 1, {"x": normal(3, 7)}, {"k": 4}, outputs=2)
    check("TopK", 10, {"x": normal(3, 7), "k": np.array([4], np.int64)}, outputs=2, constants=("k",))
