"""Forms of elementwise, reducing and constant operators, and of any operator without a recipe of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from forms import Draw, Form, Given, Operator, Recipe, Skip
from onnx import TensorProto, numpy_helper
from onnx_vulkan.dtypes import NUMERIC, REAL, DType

__all__ = ["BASIC", "generic"]

SPANS = {
    "Acos": (-1, 1), "Asin": (-1, 1), "Atanh": (-0.98, 0.98), "Acosh": (1, 6), "Log": (0.02, 9), "Sqrt": (0, 9),
    "Tan": (-1.4, 1.4), "Reciprocal": (0.2, 5), "ReduceLogSum": (0.1, 3),
}  # fmt: skip
FLOAT_VALUES = (0.5, 1.0, 0.1, -0.5, 2.0, 0.0)
VALUES: dict[str, Sequence[Any]] = {
    "axis": (0, 1, -1, 2, -2, -3),
    "axes": ([0], [1], [-1], [0, 1], [1, -1], [-2, -1], []),
    "keepdims": (0, 1),
    "epsilon": (1e-5, 1e-3, 1e-12),
    "approximate": ("none", "tanh"),
    "detect_negative": (0, 1),
    "detect_positive": (0, 1),
    "direction": ("LEFT", "RIGHT"),
    "num_heads": (1, 2, 4),
    "interleaved": (0, 1),
    "activation": ("Relu", "Tanh", "Sigmoid"),
    "mode": ("linear", "nearest", "constant"),
    "num_groups": (1, 2, 4),
}
"""What attributes of these names may be, for operators without a recipe."""

PYTHON = {"FLOAT": float, "INT": int, "STRING": str, "INTS": list, "FLOATS": list}


def generic(d: Draw, op: Operator) -> Form:
    """Any operator: one shape, and for every further input that shape, one that broadcasts with it, a row or a scalar."""
    d.special = d.chance(15)
    main: Given | None = None
    chosen: dict[str, DType] = {}
    inputs: list[Given | None] = []
    span = SPANS.get(op.name, (-3, 3))
    for slot in op.inputs:
        if slot.optional and d.chance(50):
            inputs.append(None)
            continue
        for _ in range(d.int(1, 4) if slot.variadic else 1):
            dtype = chosen.get(slot.variable)
            if main is None:
                made = d.tensor(frozenset({dtype}) if dtype else slot.dtypes, span=span)
                main = made
            else:
                dtype = dtype or d.dtype(slot.dtypes)
                way = d.int(0, 9)
                if way < 6:
                    made = d.partner(main, dtype)
                elif way < 8:
                    made = d.like(dtype, main.shape[-1:])
                else:
                    made = d.like(dtype, (1,) if way == 8 else ())
            chosen[slot.variable] = made.dtype
            inputs.append(made)
    attributes = {}
    for name, (kind, required) in op.attributes.items():
        if not (required or d.chance(50)):
            continue
        fit = [v for v in VALUES.get(name, ()) if isinstance(v, PYTHON[kind])] if kind in PYTHON else []
        if fit:
            attributes[name] = d.pick(fit)
        elif kind == "FLOAT":
            attributes[name] = d.pick(FLOAT_VALUES)
        elif kind == "INT":
            attributes[name] = d.pick((0, 1, 2, -1))
        elif required:
            raise Skip
    outputs = tuple(not (slot.optional and d.chance(60)) for slot in op.outputs if not slot.variadic) or (True,)
    return Form(inputs, attributes, outputs)


def unary(d: Draw, op: Operator) -> Form:
    """One input; alpha, beta and their like."""
    d.special = d.chance(20)
    x = d.tensor(op.dtypes(), span=SPANS.get(op.name, (-3, 3)))
    values = {k: VALUES.get(k, FLOAT_VALUES if kind == "FLOAT" else ()) for k, (kind, _) in op.attributes.items()}
    if op.name == "Celu":  # it divides by alpha
        values["alpha"] = (0.5, 1.0, 2.0)
    return Form([x], d.some(**{k: v for k, v in values.items() if v}))


def binary(d: Draw, op: Operator) -> Form:
    """Two operands that broadcast. Before version 7 the second one fits an axis of the first, where an attribute says so."""
    d.special = d.chance(20)
    x = d.tensor(op.dtypes())
    if "broadcast" in op.attributes:
        start = d.int(0, x.rank)
        end = d.int(start, x.rank)
        attributes = {"broadcast": 1, "axis": start} if end < x.rank or d.chance(50) else {"broadcast": 1}
        start = start if "axis" in attributes else x.rank - (end - start)
        y = d.like(x.dtype, x.shape[start : start + (end - start if "axis" in attributes else x.rank)])
        if d.chance(40):
            return Form([x, d.like(x.dtype, x.shape)], {})
        return Form([x, y], attributes)
    y = d.partner(x)
    if op.name in ("Div", "Mod", "BitShift", "Pow"):
        y = d.partner(x, None, True, low=0.25)
        a = y.array
        if op.name != "Pow" and x.dtype.is_int and op.name != "BitShift":
            a = np.where(a == 0, a.dtype.type(3), a)
            a = np.where(a == -1, a.dtype.type(2), a) if x.dtype.is_signed else a
        if op.name == "BitShift" or (op.name == "Pow" and x.dtype.is_int):
            a = np.abs(a) % (x.dtype.size * 8 if op.name == "BitShift" else 5)
        y = Given(np.asarray(a, x.array.dtype))
    if op.name == "Pow" and op.version >= 12 and d.chance(50):
        other = d.dtype(op.dtypes(1))
        y = Given(np.round(d.rng.uniform(0, 4, y.shape)).astype(other.numpy))
    if d.chance(30) and op.name not in ("Div", "Mod", "BitShift", "Pow"):
        x, y = y, x
    attributes = d.some(direction=("LEFT", "RIGHT")) if op.name == "BitShift" else {}
    if op.name == "BitShift":
        attributes.setdefault("direction", "LEFT")
    if op.name == "Mod":
        attributes = {"fmod": 1} if x.dtype.is_float or d.chance(40) else {}
    return Form([x, y], attributes)


def variadic(d: Draw, op: Operator) -> Form:
    d.special = d.chance(20)
    x = d.tensor(op.dtypes())
    more = [d.partner(x, grow=op.version >= 8) if op.version >= 8 else d.like(x.dtype, x.shape) for _ in range(d.int(0, 3))]
    return Form([x, *more])


def where(d: Draw, op: Operator) -> Form:
    d.special = d.chance(20)
    x = d.tensor(op.dtypes(1))
    return Form([d.partner(x, DType.BOOL), x, d.partner(x)])


def clip(d: Draw, op: Operator) -> Form:
    x = d.tensor(op.dtypes())
    low, high = d.number(-3, 0), d.number(0, 3)
    if op.version < 11:
        return Form([x], d.some(min=[-1.0, -0.5, 0.0], max=[1.0, 0.5, 2.0]))
    if not x.dtype.is_signed:
        low = 1
    bounds = [d.maybe(lambda v=v: Given(np.array(v, x.array.dtype), host=d.chance(70)), 60) for v in (low, high)]  # type: ignore[misc]
    return Form([x, *bounds])


def prelu(d: Draw, op: Operator) -> Form:
    x = d.tensor(op.dtypes())
    if op.version < 7:
        return Form([x, d.like(x.dtype, x.shape[1:2] if x.rank > 1 and d.chance(50) else (1,))])
    return Form([x, d.partner(x, grow=False)])


def cast(d: Draw, op: Operator) -> Form:
    x = d.tensor(op.dtypes() & NUMERIC)
    to = d.pick(sorted(op.outputs[0].dtypes & NUMERIC, key=lambda t: t.value))
    d.special = x.dtype.is_int and d.chance(30)
    if d.special and not x.name:
        x = d.like(x.dtype, x.shape)
    if not to.is_signed and to is not DType.BOOL and x.dtype.is_float and not x.name:
        x.array = np.abs(x.array)
    if op.version == 1:
        return Form([x], {"to": TensorProto.DataType.Name(to.value)})
    return Form([x], {"to": to.value} | d.only(op, d.some(saturate=(0, 1))))


def cast_like(d: Draw, op: Operator) -> Form:
    x = d.tensor(op.dtypes() & NUMERIC)
    to = d.dtype(op.dtypes(1) & NUMERIC)
    if not to.is_signed and to is not DType.BOOL and x.dtype.is_float and not x.name:
        x.array = np.abs(x.array)
    return Form([x, d.like(to, d.shape(d.int(0, 2)))])


def bit_cast(d: Draw, op: Operator) -> Form:
    x = d.tensor(op.dtypes() & REAL)
    to = d.pick([t for t in sorted(op.outputs[0].dtypes & REAL, key=lambda t: t.value) if t.size == x.dtype.size])
    if to.is_float:
        x.array = np.asarray(x.array % 1000, x.array.dtype) if x.dtype.is_int else x.array
    return Form([x], {"to": to.value})


# ----------------------------------------------------------------------------------------------------------- reduction
def reduce(d: Draw, op: Operator) -> Form:
    span = SPANS.get(op.name, (-1.5, 1.5) if op.name == "ReduceProd" else (-3, 3))
    x = d.tensor(op.dtypes() & NUMERIC, (0, 5), span=span)
    axes = d.axes(x.rank)
    attributes = d.some(keepdims=(0, 1))
    if "axes" not in op.attributes:
        attributes |= d.some(noop_with_empty_axes=(0, 1))
        return Form([x, d.numbers(axes) if axes or d.chance(30) else None], attributes)
    if op.version < 11:
        axes = [a % x.rank for a in axes]
    return Form([x], attributes | ({"axes": axes} if axes else {}))


def arg(d: Draw, op: Operator) -> Form:
    x = d.tensor(op.dtypes(), (1, 5), low=1)
    if not x.name and x.dtype.is_float and d.chance(50):
        x.array = np.round(x.array)
    axis = d.axis(x.rank) if op.version >= 11 else d.int(0, x.rank - 1)
    return Form([x], {"axis": axis} | d.some(keepdims=(0, 1)) | d.only(op, d.some(select_last_index=(0, 1))))


def softmax(d: Draw, op: Operator) -> Form:
    x = d.tensor(op.dtypes(), (1, 5))
    return Form([x], {"axis": d.axis(x.rank) if op.version >= 11 else d.int(0, x.rank - 1)} if d.chance(80) else {})


def scan(d: Draw, op: Operator) -> Form:
    """CumSum, CumProd."""
    x = d.tensor(op.dtypes(), (1, 4), span=(-1.2, 1.2))
    axis = d.host(d.axis(x.rank), d.pick([DType.I64, DType.I32]))
    return Form([x, axis], d.some(exclusive=(0, 1), reverse=(0, 1)))


def einsum(d: Draw, op: Operator) -> Form:
    equation = d.pick(
        "ij,jk->ik|bij,bjk->bik|bhqd,bhkd->bhqk|...ij,...jk->...ik|ij->ji|ii->i|ij->|i,j->ij|bij->bj|ij,ij->ij|ijk,k|ij,jk,kl->il"
        "|bn,anm,bm->ba|i,i->|...i->...|ij,kj->ik|abc,cd->abd|ii|b...i,i...->b...|xyz,zyx->x| b i j , b j k -> b i k".split("|")
    )
    t = d.dtype(op.dtypes() & REAL)
    extents: dict[str, int] = {}  # none is 0: that takes ONNX Runtime's process down
    dots = d.shape(d.int(0, 2), 1, 3)
    xs: list[Given | None] = []
    for term in equation.replace(" ", "").split("->")[0].split(","):
        left, dotted, right = term.partition("...")
        ends = [[extents.setdefault(c, d.extent(1, 8)) for c in part] for part in (left, right)]
        xs.append(d.like(t, [*ends[0], *(dots if dotted else ()), *ends[1]]))
    return Form(xs, {"equation": equation})


# ----------------------------------------------------------------------------------------------------------- constants
def constant(d: Draw, op: Operator) -> Form:
    ways: dict[str, Any] = {"value": numpy_helper.from_array(d.tensor(op.outputs[0].dtypes & NUMERIC, (0, 3)).array)}
    if op.version >= 12:
        ways |= {"value_int": 3, "value_ints": [1, -2, 5], "value_float": 0.5, "value_floats": [0.25, -1.0]}
    name = d.pick(sorted(ways))
    return Form([], {name: ways[name]})


def constant_of_shape(d: Draw, op: Operator) -> Form:
    t = d.dtype(op.outputs[0].dtypes & NUMERIC)
    value = {"value": numpy_helper.from_array(d.data(t, (1,)))} if d.chance(70) else {}
    return Form([d.numbers(d.shape(d.int(0, 4), 0, 8))], value)


def range_(d: Draw, op: Operator) -> Form:
    t = d.dtype(op.dtypes())
    start, delta = d.number(0, 9), d.pick([1, 2, 3, -1, -2])
    if not t.is_signed:
        delta = abs(delta)
    return Form([d.host(v, t) for v in (start, start + delta * d.number(-1 if t.is_signed else 0, 9), delta)])


def eye_like(d: Draw, op: Operator) -> Form:
    x = d.tensor(op.dtypes() & NUMERIC, 2)
    types = sorted(t.value for t in op.outputs[0].dtypes & NUMERIC)
    return Form([x], d.some(k=(-2, -1, 0, 1, 3), dtype=types))


def window(d: Draw, op: Operator) -> Form:
    size = d.host(d.number(1, 20), d.pick([DType.I64, DType.I32]))
    return Form([size], d.some(periodic=(0, 1), output_datatype=(1, 11, 10)))


def mel_weights(d: Draw, op: Operator) -> Form:
    t = d.pick([DType.I64, DType.I32])
    values = [d.host(v, t) for v in (d.number(2, 8), d.pick([16, 32, 64]), 8192)]
    return Form([*values, *(d.host(v, DType.F32) for v in (0.0, 4096.0))])


def dropout(d: Draw, op: Operator) -> Form:
    x = d.tensor(op.dtypes())
    outputs = (True, d.chance(30))
    if op.version < 7:
        return Form([x], {"is_test": 1}, outputs)
    if op.version < 12:
        return Form([x], d.some(ratio=(0.1, 0.5)), outputs)
    ratio = d.maybe(lambda: d.host(0.3, DType.F32))
    return Form([x, ratio, d.maybe(lambda: d.host(False, DType.BOOL), 30)], {}, outputs)


BASIC: dict[str, Recipe] = {
    "Where": where, "Clip": clip, "PRelu": prelu, "Cast": cast, "CastLike": cast_like, "BitCast": bit_cast, "ArgMax": arg,
    "ArgMin": arg, "Softmax": softmax, "LogSoftmax": softmax, "Hardmax": softmax, "CumSum": scan, "CumProd": scan,
    "Einsum": einsum, "Constant": constant, "ConstantOfShape": constant_of_shape, "Range": range_, "EyeLike": eye_like,
    "BlackmanWindow": window, "HammingWindow": window, "HannWindow": window, "MelWeightMatrix": mel_weights,
    "Dropout": dropout,
}  # fmt: skip
for _name in """Add Sub Mul Div Pow Mod Equal Less LessOrEqual Greater GreaterOrEqual And Or Xor BitShift BitwiseAnd BitwiseOr
    BitwiseXor""".split():
    BASIC[_name] = binary
for _name in "Max Min Mean Sum".split():
    BASIC[_name] = variadic
for _name in "L1 L2 LogSum LogSumExp Max Mean Min Prod Sum SumSquare".split():
    BASIC[f"Reduce{_name}"] = reduce
for _name in """Abs Acos Acosh Asin Asinh Atan Atanh Ceil Celu Cos Cosh Elu Erf Exp Floor Gelu HardSigmoid HardSwish IsInf IsNaN
    LeakyRelu Log Mish Neg Not BitwiseNot Reciprocal Relu Round Selu Shrink Sigmoid Sign Sin Sinh Softplus Softsign Sqrt Swish Tan
    Tanh ThresholdedRelu com.microsoft::Gelu com.microsoft::QuickGelu""".split():
    BASIC[_name] = unary
