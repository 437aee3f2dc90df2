"""Forms of quantized operators, ONNX's and ONNX Runtime's."""

from __future__ import annotations

from typing import Any

import numpy as np
from forms import BYTES, Draw, Form, Given, Operator, Recipe, raw, scale_of
from onnx_vulkan.dtypes import REAL, DType
from recipes_nn import window

__all__ = ["QUANTIZED"]


def quantize(d: Draw, op: Operator) -> Form:
    x = d.tensor(op.dtypes() & REAL, (1, 4), low=1, high=12)
    x = Given((x.array.astype(np.float64) * 5).astype(x.array.dtype)) if x.dtype.is_float and not x.name else x
    slot = op.outputs[0].dtypes & REAL
    y = d.dtype(slot)
    scale_type = x.dtype if x.dtype.is_float else DType.F32
    shape, attributes = _granularity(d, op, x)
    zero = d.maybe(lambda: raw(d, y, shape) if y is not DType.I32 else Given(np.zeros(shape, np.int32)), 75)
    if zero is None and y is not DType.U8 and "output_dtype" in op.attributes:
        attributes["output_dtype"] = y.value
    return Form([x, scale_of(d, shape, scale_type), zero], attributes)


def dequantize(d: Draw, op: Operator) -> Form:
    t = d.dtype(op.dtypes() & REAL)
    x = Given(raw(d, t, d.shape(d.int(1, 4), 1, 12)).array)
    if t is DType.I32:
        x.array = x.array % 1000
    shape, attributes = _granularity(d, op, x)
    scale_type = d.dtype(op.dtypes(1) & frozenset({DType.F32, DType.F16, DType.BF16}))
    zero = d.maybe(lambda: raw(d, t, shape) if t is not DType.I32 else Given(np.zeros(shape, np.int32)), 60)
    return Form([x, scale_of(d, shape, scale_type), zero], attributes)


def _granularity(d: Draw, op: Operator, x: Given) -> tuple[tuple[int, ...], dict[str, Any]]:
    """The shape of a scale, and the attributes that go with it."""
    way = d.int(0, 2)
    if way == 0 or (op.version < 13 and op.domain == ""):
        return d.pick([(), (1,)]) if op.version >= 13 else (), {}
    axis = d.axis(x.rank)
    if way == 1 or "block_size" not in op.attributes:
        return (x.shape[axis],), {"axis": axis}
    block = d.int(1, 3)
    return tuple(-(-e // block) if i == axis % x.rank else e for i, e in enumerate(x.shape)), {"axis": axis, "block_size": block}


def q_mat_mul(d: Draw, op: Operator) -> Form:
    t = d.pick(BYTES)
    m, k, n = d.extent(1, 17), d.extent(1, 40), d.extent(1, 17)
    lead = d.shape(d.int(0, 2), 1, 3)
    x, y = raw(d, t, (*lead, m, k)), raw(d, t, (*lead, k, n))
    s = [Given(np.array(v, np.float32)) for v in (0.03, 0.07, 1.1 + d.rng.random())]
    z = [raw(d, t, ()) for _ in range(3)]
    return Form([x, s[0], z[0], y, s[1], z[1], s[2], z[2]])


def q_binary(d: Draw, op: Operator) -> Form:
    t = d.pick(BYTES)
    x = raw(d, t, d.shape(d.int(1, 4), 1, 12))
    y = raw(d, t, d.partner(x, grow=False).shape)
    s, z = [scale_of(d) for _ in range(3)], [raw(d, t, ()) for _ in range(3)]
    return Form([x, s[0], z[0], y, s[1], z[1], s[2], z[2]])


def q_unary(d: Draw, op: Operator) -> Form:
    t = d.pick(BYTES)
    x = raw(d, t, d.shape(d.int(1, 4), 1, 12))
    out = Given(np.array(1 / 256, np.float32)) if op.name == "QLinearSigmoid" else scale_of(d)
    return Form([x, scale_of(d), raw(d, t, ()), out, raw(d, t, ())], d.only(op, {"alpha": 0.1}))


def q_pool(d: Draw, op: Operator) -> Form:
    t = d.pick(BYTES)
    last = d.chance(30)
    n, c, h, w = d.extent(1, 3), d.extent(1, 6), d.extent(3, 9), d.extent(3, 9)
    x = raw(d, t, (n, h, w, c) if last else (n, c, h, w))
    attributes: dict[str, Any] = {"channels_last": int(last)}
    if op.name == "QLinearAveragePool":
        kernel = [d.int(1, 3), d.int(1, 3)]
        attributes |= window(d, op, 2, (h, w), kernel) | {"kernel_shape": kernel} | d.some(count_include_pad=(0, 1))
    return Form([x, scale_of(d), raw(d, t, ()), scale_of(d), raw(d, t, ())], attributes)


def q_concat(d: Draw, op: Operator) -> Form:
    t = d.pick(BYTES)
    shape = d.shape(d.int(1, 4), 1, 6)
    axis = d.axis(len(shape))
    parts: list[Given | None] = [scale_of(d), raw(d, t, ())]
    for _ in range(d.int(1, 3)):
        size = [d.extent(1, 5) if i == axis % len(shape) else e for i, e in enumerate(shape)]
        parts += [raw(d, t, size), scale_of(d), raw(d, t, ())]
    return Form(parts, {"axis": axis})


def q_gemm(d: Draw, op: Operator) -> Form:
    t = d.pick(BYTES)
    m, k, n = d.extent(1, 17), d.extent(1, 40), d.extent(1, 17)
    attributes = d.some(transA=(0, 1), transB=(0, 1))
    x = raw(d, t, (k, m) if attributes.get("transA") else (m, k))
    y = raw(d, t, (n, k) if attributes.get("transB") else (k, n))
    c = d.maybe(lambda: Given(d.rng.integers(-500, 500, (n,)).astype(np.int32)))
    inputs: list[Given | None] = [x, Given(np.array(0.03, np.float32)), raw(d, t, ()), y, Given(np.array(0.07, np.float32))]
    inputs += [raw(d, t, ()), c]
    if d.chance(70):
        inputs += [Given(np.array(1.1 + d.rng.random(), np.float32)), raw(d, t, ())]
    return Form(inputs, attributes)


QUANTIZED: dict[str, Recipe] = {
    "QuantizeLinear": quantize, "com.microsoft::QuantizeLinear": quantize, "DequantizeLinear": dequantize,
    "com.microsoft::DequantizeLinear": dequantize, "QLinearMatMul": q_mat_mul, "com.microsoft::QLinearAdd": q_binary,
    "com.microsoft::QLinearMul": q_binary, "com.microsoft::QLinearLeakyRelu": q_unary,
    "com.microsoft::QLinearSigmoid": q_unary, "com.microsoft::QLinearAveragePool": q_pool,
    "com.microsoft::QLinearGlobalAveragePool": q_pool, "com.microsoft::QLinearConcat": q_concat,
    "com.microsoft::QGemm": q_gemm,
}  # fmt: skip
