"""Products and convolutions of ONNX Runtime that take an activation, transposes or the channels last with them."""

from __future__ import annotations

from collections.abc import Sequence

from onnx_vulkan.dtypes import FLOATS
from onnx_vulkan.errors import Unsupported
from onnx_vulkan.lower.conv import channels_first, channels_last, check_ranks, convolve, kernel_extents, plan_window
from onnx_vulkan.lower.linear import gemm, matmul, scaled
from onnx_vulkan.lower.registry import LowerContext, lowers
from onnx_vulkan.program import composites
from onnx_vulkan.program.builder import Builder
from onnx_vulkan.program.ir import Value

__all__: list[str] = []

_ACTIVATIONS: dict[str, tuple[str, ...]] = {
    "": (),
    "Clip": ("min", "max"),
    "Elu": ("alpha",),
    "HardSigmoid": ("alpha", "beta"),
    "LeakyRelu": ("alpha",),
    "Relu": (),
    "Selu": ("alpha", "gamma"),
    "Sigmoid": (),
    "Softplus": (),
    "Softsign": (),
    "Tanh": (),
    "ThresholdedRelu": ("alpha",),
}
"""What each activation takes, in order."""


def _activated(b: Builder, y: Value, name: str, given: Sequence[float]) -> Value:
    """*y* through an activation. Raises Unsupported for a name that is not known or numbers that are missing."""
    if name not in _ACTIVATIONS:
        raise Unsupported(f"activation {name!r} is not supported")
    if len(given) < len(_ACTIVATIONS[name]):
        raise Unsupported(f"activation {name} needs {' and '.join(_ACTIVATIONS[name])}")
    if not name:
        return y
    if name == "Clip":
        return composites.clamp(b, y, given[0], given[1])
    if name == "Selu":
        return scaled(b, composites.activation(b, "elu", y, given[0], 0.0), given[1])
    alpha, beta = [*given, 0.0, 0.0][:2]
    return composites.activation(b, name.lower(), y, alpha, beta)


def _numbers(name: str, **given: float | None) -> list[float]:
    """The numbers of an activation from attributes of their own, as far as they are given."""
    return [v for n in _ACTIVATIONS.get(name, ()) if (v := given.get(n)) is not None]


def _fused_conv(
    b: LowerContext,
    x: Value,
    w: Value,
    bias: Value | None,
    z: Value | None,
    last: bool,
    *,
    activation: str = "",
    activation_params: Sequence[float] | None = None,
    auto_pad: str,
    dilations: Sequence[int] | None,
    group: int,
    kernel_shape: Sequence[int] | None,
    pads: Sequence[int] | None,
    strides: Sequence[int] | None,
) -> Value:
    """``activation(conv(x, w) + bias + z)``; with *last* x, z and the result are ``[N, *spatial, C]``."""
    check_ranks(x, w)
    x = channels_first(b, x) if last else x
    window = plan_window(
        x.shape[2:], kernel_extents(w, kernel_shape), auto_pad=auto_pad, dilations=dilations, pads=pads, strides=strides
    )
    y = convolve(b, x, w, window, group)
    if bias is not None:
        y = b.map("add", y, bias)
    if z is not None:
        y = b.map("add", y, z if last else channels_last(b, z))
    y = _activated(b, y, activation, activation_params or ())
    return y if last else channels_first(b, y)


_CONV_TYPES = {"x": FLOATS, "w": FLOATS}


@lowers("FusedConv", versions=[1], dtypes=_CONV_TYPES, domain="com.microsoft", note="1 to 3 spatial axes")
def fused_conv(
    b: LowerContext,
    x: Value,
    w: Value,
    bias: Value | None = None,
    z: Value | None = None,
    *,
    activation: str = "",
    activation_params: list[float] | None = None,
    auto_pad: str = "NOTSET",
    dilations: list[int] | None = None,
    group: int = 1,
    kernel_shape: list[int] | None = None,
    pads: list[int] | None = None,
    strides: list[int] | None = None,
) -> Value:
    """FusedConv of ONNX Runtime: ``activation(conv(x, w) + bias + z)``."""
    return _fused_conv(
        b, x, w, bias, z, False, activation=activation, activation_params=activation_params, auto_pad=auto_pad,
        dilations=dilations, group=group, kernel_shape=kernel_shape, pads=pads, strides=strides,
    )  # fmt: skip


@lowers("NhwcFusedConv", versions=[1], dtypes=_CONV_TYPES, domain="com.microsoft", note="1 to 3 spatial axes")
def nhwc_fused_conv(
    b: LowerContext,
    x: Value,
    w: Value,
    bias: Value | None = None,
    z: Value | None = None,
    *,
    activation: str = "",
    activation_params: list[float] | None = None,
    auto_pad: str = "NOTSET",
    dilations: list[int] | None = None,
    group: int = 1,
    kernel_shape: list[int] | None = None,
    pads: list[int] | None = None,
    strides: list[int] | None = None,
) -> Value:
    """NhwcFusedConv of ONNX Runtime: FusedConv with the channels of x, z and y last; the weights keep ONNX's order."""
    return _fused_conv(
        b, x, w, bias, z, True, activation=activation, activation_params=activation_params, auto_pad=auto_pad,
        dilations=dilations, group=group, kernel_shape=kernel_shape, pads=pads, strides=strides,
    )  # fmt: skip


@lowers("NhwcConv", versions=[1], dtypes=_CONV_TYPES, domain="com.microsoft", note="1 to 3 spatial axes")
def nhwc_conv(
    b: LowerContext,
    x: Value,
    w: Value,
    bias: Value | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: list[int] | None = None,
    group: int = 1,
    kernel_shape: list[int] | None = None,
    pads: list[int] | None = None,
    strides: list[int] | None = None,
) -> Value:
    """NhwcConv of ONNX Runtime: Conv with the channels of x and y last; the weights keep ONNX's order."""
    return _fused_conv(
        b, x, w, bias, None, True, auto_pad=auto_pad, dilations=dilations, group=group, kernel_shape=kernel_shape,
        pads=pads, strides=strides,
    )  # fmt: skip


@lowers("FusedGemm", versions=[1], dtypes={"a": FLOATS, "b_": FLOATS, "c": FLOATS}, domain="com.microsoft")
def fused_gemm(
    b: LowerContext,
    a: Value,
    b_: Value,
    c: Value | None = None,
    *,
    activation: str = "",
    activation_alpha: float | None = None,
    activation_beta: float | None = None,
    activation_gamma: float | None = None,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: int = 0,
    transB: int = 0,
) -> Value:
    """FusedGemm of ONNX Runtime: Gemm, then an activation."""
    y = gemm(b, a, b_, c, alpha, beta, transA, transB)
    numbers = _numbers(activation, alpha=activation_alpha, beta=activation_beta, gamma=activation_gamma)
    return _activated(b, y, activation, numbers)


def _transposed(b: Builder, v: Value, batch: int, matrix: int) -> Value:
    """An operand of FusedMatMul: *batch* has its rows on axis 0, *matrix* swaps the last two axes after that. Vectors stay."""
    if batch and v.rank > 2:
        v = b.transpose(v, (*range(1, v.rank - 1), 0, v.rank - 1))
    return b.transpose(v, (*range(v.rank - 2), v.rank - 1, v.rank - 2)) if matrix and v.rank >= 2 else v


_PRODUCT_TYPES = {"x": FLOATS, "y": FLOATS}


@lowers("TransposeMatMul", versions=[1], dtypes=_PRODUCT_TYPES, domain="com.microsoft")
def transpose_matmul(b: LowerContext, x: Value, y: Value, *, alpha: float = 1.0, transA: int = 0, transB: int = 0) -> Value:
    """TransposeMatMul of ONNX Runtime: the older name of FusedMatMul."""
    return scaled(b, matmul(b, _transposed(b, x, 0, transA), _transposed(b, y, 0, transB)), alpha)


@lowers("FusedMatMul", versions=[1], dtypes=_PRODUCT_TYPES, domain="com.microsoft")
def fused_matmul(
    b: LowerContext,
    x: Value,
    y: Value,
    *,
    alpha: float = 1.0,
    transA: int = 0,
    transB: int = 0,
    transBatchA: int = 0,
    transBatchB: int = 0,
) -> Value:
    """FusedMatMul of ONNX Runtime: ``alpha * x' @ y'`` where the last two axes, or the first and the batch, may be swapped."""
    return scaled(b, matmul(b, _transposed(b, x, transBatchA, transA), _transposed(b, y, transBatchB, transB)), alpha)


@lowers("FusedMatMulActivation", versions=[1], dtypes=_PRODUCT_TYPES, domain="com.microsoft")
def fused_matmul_activation(
    b: LowerContext,
    x: Value,
    y: Value,
    *,
    activation: str,
    activation_alpha: float | None = None,
    activation_axis: int | None = None,
    activation_beta: float | None = None,
    activation_gamma: float | None = None,
    alpha: float = 1.0,
    transA: int = 0,
    transB: int = 0,
    transBatchA: int = 0,
    transBatchB: int = 0,
) -> Value:
    """FusedMatMulActivation of ONNX Runtime: FusedMatMul, then an elementwise activation (one along an axis is refused)."""
    z = scaled(b, matmul(b, _transposed(b, x, transBatchA, transA), _transposed(b, y, transBatchB, transB)), alpha)
    numbers = _numbers(activation, alpha=activation_alpha, beta=activation_beta, gamma=activation_gamma)
    return _activated(b, z, activation, numbers)
