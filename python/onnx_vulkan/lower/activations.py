"""Activation functions. Half floats are computed in float32 and rounded once."""

from __future__ import annotations

import math
from collections.abc import Callable

from onnx_vulkan.dims import is_one
from onnx_vulkan.dtypes import FLOATS, INTS, REAL, DType
from onnx_vulkan.errors import Unsupported
from onnx_vulkan.lower.registry import LowerContext, lowers
from onnx_vulkan.program import composites
from onnx_vulkan.program.ir import Value

__all__: list[str] = []


def _widely(b: LowerContext, x: Value, formula: Callable[[Value], Value]) -> Value:
    return b.cast(formula(composites.wide(b, x)), x.dtype)


def _number(b: LowerContext, value: float, like: Value) -> Value:
    return b.scalar(value, like.dtype)


def _negative(b: LowerContext, x: Value) -> Value:
    return b.map("lt", x, _number(b, 0, x))


@lowers("Relu", [1, 6, 13, 14], {"x": FLOATS | INTS})
def relu(b: LowerContext, x: Value, *, consumed_inputs: list[int] | None = None) -> Value:
    return composites.relu(b, x)


@lowers("LeakyRelu", [1, 6, 16], {"x": FLOATS})
def leaky_relu(b: LowerContext, x: Value, *, alpha: float = 0.01, consumed_inputs: list[int] | None = None) -> Value:
    return _widely(b, x, lambda v: composites.leaky_relu(b, v, alpha))


@lowers("PRelu", [1, 6], {"x": FLOATS})
def prelu_1(b: LowerContext, x: Value, slope: Value, *, consumed_inputs: list[int] | None = None) -> Value:
    """A slope of one axis is by channel."""
    if slope.rank == 1 and not is_one(slope.shape[0]) and x.rank > 1:
        slope = b.reshape(slope, (*slope.shape, *[1] * (x.rank - 2)))
    return b.map("select", _negative(b, x), b.map("mul", x, slope), x)


@lowers("PRelu", [7, 9, 16], {"x": FLOATS | INTS})
def prelu_7(b: LowerContext, x: Value, slope: Value) -> Value:
    return b.map("select", _negative(b, x), b.map("mul", x, slope), x)


@lowers("Elu", [1, 6, 22], {"x": FLOATS})
def elu(b: LowerContext, x: Value, *, alpha: float = 1.0, consumed_inputs: list[int] | None = None) -> Value:
    return _widely(b, x, lambda v: composites.activation(b, "elu", v, alpha, 0.0))


@lowers("Celu", [12, 28], {"x": FLOATS})
def celu(b: LowerContext, x: Value, *, alpha: float = 1.0) -> Value:
    """``max(0, x) + min(0, alpha * (exp(x / alpha) - 1))``."""

    def formula(v: Value) -> Value:
        grown = b.map("mul", _number(b, alpha, v), composites.expm1(b, b.map("div", v, _number(b, alpha, v))))
        return b.map("add", composites.relu(b, v), b.map("min", grown, _number(b, 0, v)))

    return _widely(b, x, formula)


def _selu(b: LowerContext, x: Value, alpha: float, gamma: float) -> Value:
    """``gamma * (x if x > 0 else alpha * exp(x) - alpha)``."""

    def formula(v: Value) -> Value:
        grown = b.map("mul", composites.expm1(b, v), _number(b, alpha, v))
        return b.map("mul", b.map("select", b.map("gt", v, _number(b, 0, v)), v, grown), _number(b, gamma, v))

    return _widely(b, x, formula)


@lowers("Selu", [1], {"x": FLOATS})
def selu_1(
    b: LowerContext, x: Value, *, alpha: float = 1.6732, gamma: float = 1.0507, consumed_inputs: list[int] | None = None
) -> Value:
    return _selu(b, x, alpha, gamma)


@lowers("Selu", [6, 22], {"x": FLOATS})
def selu(
    b: LowerContext, x: Value, *, alpha: float = 1.67326319217681884765625, gamma: float = 1.05070102214813232421875
) -> Value:
    return _selu(b, x, alpha, gamma)


@lowers("ThresholdedRelu", [10, 22], {"x": FLOATS})
def thresholded_relu(b: LowerContext, x: Value, *, alpha: float = 1.0) -> Value:
    return b.map("select", b.map("gt", x, _number(b, alpha, x)), x, _number(b, 0, x))


@lowers("Sigmoid", [1, 6, 13], {"x": FLOATS})
def sigmoid(b: LowerContext, x: Value, *, consumed_inputs: list[int] | None = None) -> Value:
    return _widely(b, x, lambda v: composites.sigmoid(b, v))


@lowers("HardSigmoid", [1, 6, 22], {"x": FLOATS})
def hard_sigmoid(
    b: LowerContext, x: Value, *, alpha: float = 0.2, beta: float = 0.5, consumed_inputs: list[int] | None = None
) -> Value:
    return _widely(b, x, lambda v: composites.hard_sigmoid(b, v, alpha, beta))


@lowers("HardSwish", [14, 22], {"x": FLOATS})
def hard_swish(b: LowerContext, x: Value) -> Value:
    return _widely(b, x, lambda v: b.map("mul", v, composites.hard_sigmoid(b, v, 1 / 6, 0.5)))


@lowers("Softplus", [1, 22], {"x": FLOATS})
def softplus(b: LowerContext, x: Value) -> Value:
    return _widely(b, x, lambda v: composites.softplus(b, v))


@lowers("Softsign", [1, 22], {"x": FLOATS})
def softsign(b: LowerContext, x: Value) -> Value:
    return _widely(b, x, lambda v: composites.activation(b, "softsign", v, 0.0, 0.0))


@lowers("Mish", [18, 22], {"x": FLOATS})
def mish(b: LowerContext, x: Value) -> Value:
    return _widely(b, x, lambda v: b.map("mul", v, b.map("tanh", composites.softplus(b, v))))


@lowers("Gelu", [20], {"x": FLOATS})
def gelu(b: LowerContext, x: Value, *, approximate: str = "none") -> Value:
    if approximate not in ("none", "tanh"):
        raise Unsupported(f"approximate={approximate!r} is not known")
    return composites.gelu(b, x) if approximate == "none" else composites.tanh_gelu(b, x)


@lowers("Swish", [24], {"x": FLOATS})
def swish(b: LowerContext, x: Value, *, alpha: float = 1.0) -> Value:
    return composites.quick_gelu(b, x, alpha)


def _shrink_integers(b: LowerContext, x: Value, bias: float, lambd: float) -> Value:
    """The whole part of the bias moves x; a rest of it turns what is left back towards zero, by one, where it points there."""
    whole, zero, one = math.trunc(bias), b.scalar(0, x.dtype), b.scalar(1, x.dtype)

    def moved(by: int, rest: float) -> Value:
        y = b.map("add" if by >= 0 else "sub", x, b.scalar(abs(by), x.dtype))
        if rest < 0:
            return b.map("select", b.map("gt", y, zero), b.map("sub", y, one), y)
        return b.map("select", b.map("lt", y, zero), b.map("add", y, one), y) if rest > 0 else y

    y = b.map("select", b.map("gt", x, b.scalar(math.floor(lambd), x.dtype)), moved(-whole, whole - bias), zero)
    if not x.dtype.is_signed:
        return y
    return b.map("select", b.map("lt", x, b.scalar(math.ceil(-lambd), x.dtype)), moved(whole, bias - whole), y)


@lowers("Shrink", [9], {"x": REAL})
def shrink(b: LowerContext, x: Value, *, bias: float = 0.0, lambd: float = 0.5) -> Value:
    """``x + bias`` below -lambd, ``x - bias`` above lambd, else 0; of integers what that gives exactly, cut off."""
    if x.dtype.is_int:
        top = 2 ** (8 * x.dtype.size - 2)
        if abs(bias) < top and 0 <= lambd < top:
            return _shrink_integers(b, x, bias, lambd)
        return b.cast(shrink(b, b.cast(x, DType.F32), bias=bias, lambd=lambd), x.dtype)
    low = b.map("lt", x, _number(b, -lambd, x))
    high = b.map("gt", x, _number(b, lambd, x))
    shifted = b.map("select", high, b.map("sub", x, _number(b, bias, x)), _number(b, 0, x))
    return b.map("select", low, b.map("add", x, _number(b, bias, x)), shifted)
