"""One step of an optimizer: Adagrad, Adam and Momentum of ``ai.onnx.preview.training``.

Each takes the learning rate, the update count and then, for n tensors, their n values, n gradients and n of each state; it gives
the new values and states in the same order. All of a tensor's operands have its shape.
"""

from __future__ import annotations

from collections.abc import Sequence

from onnx_vulkan.dtypes import DType
from onnx_vulkan.errors import Unsupported
from onnx_vulkan.lower.registry import LowerContext, lowers
from onnx_vulkan.program import composites
from onnx_vulkan.program.builder import Builder
from onnx_vulkan.program.ir import Value

__all__: list[str] = []

_DOMAIN = "ai.onnx.preview.training"
_TYPES = {"rate": (DType.F32, DType.F64), "count": (DType.I64,), "tensors": (DType.F32, DType.F64)}


def _groups(tensors: Sequence[Value], size: int) -> list[tuple[Value, ...]]:
    """The operands of each optimized tensor: the value, its gradient and its states."""
    n, rest = divmod(len(tensors), size)
    if rest:
        raise Unsupported(f"{len(tensors)} tensors are no multiple of {size}")
    return [tuple(tensors[i::n]) for i in range(n)]


def _regularized(b: Builder, x: Value, gradient: Value, coefficient: float) -> Value:
    """The gradient with that of ``coefficient / 2 * |x|^2``."""
    return b.map("add", composites.affine(b, x, coefficient, 0.0), gradient) if coefficient else gradient


def _scalar(b: Builder, v: Value, like: Value) -> Value:
    return b.cast(b.reshape(v, ()), like.dtype)


def _ordered(results: Sequence[tuple[Value, ...]]) -> tuple[Value, ...]:
    return tuple(v for column in zip(*results, strict=True) for v in column)


@lowers("Adagrad", versions=[1], dtypes=_TYPES, domain=_DOMAIN)
def adagrad(
    b: LowerContext,
    rate: Value,
    count: Value,
    *tensors: Value,
    decay_factor: float = 0.0,
    epsilon: float = 1e-6,
    norm_coefficient: float = 0.0,
) -> tuple[Value, ...]:
    """Adagrad: the state is the sum of squared gradients."""
    results = []
    for x, gradient, squares in _groups(tensors, 3):
        decay = composites.affine(b, _scalar(b, count, x), decay_factor, 1.0)
        step = b.map("div", _scalar(b, rate, x), decay)
        gradient = _regularized(b, x, gradient, norm_coefficient)
        squares = b.map("add", squares, b.map("mul", gradient, gradient))
        scale = composites.affine(b, b.map("sqrt", squares), 1.0, epsilon)
        results.append((b.map("sub", x, b.map("div", b.map("mul", step, gradient), scale)), squares))
    return _ordered(results)


@lowers("Adam", versions=[1], dtypes=_TYPES, domain=_DOMAIN)
def adam(
    b: LowerContext,
    rate: Value,
    count: Value,
    *tensors: Value,
    alpha: float = 0.9,
    beta: float = 0.999,
    epsilon: float = 1e-6,
    norm_coefficient: float = 0.0,
    norm_coefficient_post: float = 0.0,
) -> tuple[Value, ...]:
    """Adam: the states are the running means of the gradients and of their squares. The rate is adjusted from update 1 on."""
    results = []
    for x, gradient, mean, squares in _groups(tensors, 4):
        one = b.scalar(1, x.dtype)
        step = _scalar(b, rate, x)
        powers = [b.map("pow", b.scalar(v, x.dtype), _scalar(b, count, x)) for v in (alpha, beta)]
        adjusted = b.map("mul", step, b.map("sqrt", b.map("sub", one, powers[1])))
        adjusted = b.map("div", adjusted, b.map("sub", one, powers[0]))
        later = b.map("gt", b.reshape(count, ()), b.scalar(0, DType.I64))
        step = b.map("select", later, adjusted, step)
        gradient = _regularized(b, x, gradient, norm_coefficient)
        mean = b.map("add", composites.affine(b, mean, alpha, 0.0), composites.affine(b, gradient, 1 - alpha, 0.0))
        square = b.map("mul", gradient, gradient)
        squares = b.map("add", composites.affine(b, squares, beta, 0.0), composites.affine(b, square, 1 - beta, 0.0))
        scale = composites.affine(b, b.map("sqrt", squares), 1.0, epsilon)
        x = b.map("sub", x, b.map("div", b.map("mul", step, mean), scale))
        results.append((composites.affine(b, x, 1 - norm_coefficient_post, 0.0), mean, squares))
    return _ordered(results)


@lowers("Momentum", versions=[1], dtypes=_TYPES, domain=_DOMAIN)
def momentum(
    b: LowerContext,
    rate: Value,
    count: Value,
    *tensors: Value,
    alpha: float,
    beta: float,
    mode: str,
    norm_coefficient: float,
) -> tuple[Value, ...]:
    """Momentum, ``standard`` or ``nesterov``: the state is the running direction; update 0 takes the whole gradient."""
    if mode not in ("standard", "nesterov"):
        raise Unsupported(f"mode {mode!r} is not known")
    results = []
    for x, gradient, direction in _groups(tensors, 3):
        later = b.map("gt", b.reshape(count, ()), b.scalar(0, DType.I64))
        share = b.map("select", later, b.scalar(beta, x.dtype), b.scalar(1, x.dtype))
        gradient = _regularized(b, x, gradient, norm_coefficient)
        direction = b.map("add", composites.affine(b, direction, alpha, 0.0), b.map("mul", share, gradient))
        way = direction
        if mode == "nesterov":
            way = b.map("add", gradient, composites.affine(b, direction, alpha, 0.0))
        results.append((b.map("sub", x, b.map("mul", _scalar(b, rate, x), way)), direction))
    return _ordered(results)
