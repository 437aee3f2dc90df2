"""Elementwise operators: arithmetic, functions of one operand, comparisons, logic, bits, casts.

The first versions of the binary operators broadcast by the attributes ``broadcast`` and ``axis``; later ones by numpy's rule.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from onnx_vulkan.dims import axis_of
from onnx_vulkan.dtypes import ALL, FLOATS, INTS, NUMERIC, REAL, DType
from onnx_vulkan.errors import Unsupported
from onnx_vulkan.lower.registry import Host, LowerContext, Operand, lowers
from onnx_vulkan.lower.small import convert, recode
from onnx_vulkan.program.composites import wide
from onnx_vulkan.program.ir import Value

__all__ = ["GPU_FLOATS"]

GPU_FLOATS = FLOATS - {DType.F64}
"""The floats of operators that are computed in float32."""

BOOLS = frozenset({DType.BOOL})


def _rounded(fn: str, x: Value) -> str:
    """Of floats a quotient is rounded right: a graph may round it to an integer next."""
    return "div_rn" if fn == "div" and x.dtype.is_float else fn


def _aligned(b: LowerContext, x: Value, y: Value, axis: int | None, broadcast: int | None) -> Value:
    """*y* with trailing ones so that its first axis falls on *axis* of *x* (broadcasting before version 7)."""
    if not broadcast or axis is None or y.rank == 0:
        return y
    axis = axis_of(axis, x.rank)
    return b.reshape(y, (*y.shape, *[1] * (x.rank - axis - y.rank)))


# --------------------------------------------------------------------------------------------------- tables of operators


def _register_unary(op: str, fn: str, versions: list[int], dtypes: Collection[DType]) -> None:
    def lowering(b: LowerContext, x: Value, *, consumed_inputs: list[int] | None = None) -> Value:
        return b.map(fn, x)

    lowers(op, versions, {"x": dtypes})(lowering)


_UNARY: dict[str, tuple[str, list[int], Collection[DType]]] = {
    "Neg": ("neg", [1, 6, 13], REAL),
    "Abs": ("abs", [1, 6, 13], REAL),
    "Sign": ("sign", [9, 13], REAL),
    "Floor": ("floor", [1, 6, 13], FLOATS),
    "Ceil": ("ceil", [1, 6, 13], FLOATS),
    "Round": ("round", [11, 22], FLOATS),
    "Sqrt": ("sqrt", [1, 6, 13], FLOATS),
    "Reciprocal": ("reciprocal", [1, 6, 13], FLOATS),
    "Exp": ("exp", [1, 6, 13], FLOATS),
    "Log": ("log", [1, 6, 13], FLOATS),
    "Sin": ("sin", [7, 22], FLOATS),
    "Cos": ("cos", [7, 22], FLOATS),
    "Tan": ("tan", [7, 22], FLOATS),
    "Asin": ("asin", [7, 22], FLOATS),
    "Acos": ("acos", [7, 22], FLOATS),
    "Atan": ("atan", [7, 22], FLOATS),
    "Sinh": ("sinh", [9, 22], FLOATS),
    "Cosh": ("cosh", [9, 22], FLOATS),
    "Tanh": ("tanh", [1, 6, 13], FLOATS),
    "Asinh": ("asinh", [9, 22], FLOATS),
    "Acosh": ("acosh", [9, 22], FLOATS),
    "Atanh": ("atanh", [9, 22], FLOATS),
    "Erf": ("erf", [9, 13], FLOATS),
    "Not": ("not", [1], BOOLS),
    "BitwiseNot": ("bit_not", [18], INTS),
    "IsNaN": ("isnan", [9, 13, 20], FLOATS),
}
for _op, _entry in _UNARY.items():
    _register_unary(_op, *_entry)


def _register_binary(op: str, fn: str, versions: list[int], dtypes: Collection[DType]) -> None:
    first = [v for v in versions if v < 7]
    later = [v for v in versions if v >= 7]

    def legacy(
        b: LowerContext,
        x: Value,
        y: Value,
        *,
        axis: int | None = None,
        broadcast: int = 0,
        consumed_inputs: list[int] | None = None,
    ) -> Value:
        return b.map(_rounded(fn, x), x, _aligned(b, x, y, axis, broadcast))

    def lowering(b: LowerContext, x: Value, y: Value) -> Value:
        return b.map(_rounded(fn, x), x, y)

    if first:
        lowers(op, first, {"x": dtypes, "y": dtypes})(legacy)
    lowers(op, later, {"x": dtypes, "y": dtypes})(lowering)


_BINARY: dict[str, tuple[str, list[int], Collection[DType]]] = {
    "Add": ("add", [1, 6, 7, 13, 14], REAL),
    "Sub": ("sub", [1, 6, 7, 13, 14], REAL),
    "Mul": ("mul", [1, 6, 7, 13, 14], REAL),
    "Div": ("div", [1, 6, 7, 13, 14], REAL),
    "And": ("and", [1, 7], BOOLS),
    "Or": ("or", [1, 7], BOOLS),
    "Xor": ("xor", [1, 7], BOOLS),
    "Equal": ("eq", [1, 7, 11, 13, 19], NUMERIC),
    "Less": ("lt", [1, 7, 9, 13], REAL),
    "Greater": ("gt", [1, 7, 9, 13], REAL),
    "LessOrEqual": ("le", [12, 16], REAL),
    "GreaterOrEqual": ("ge", [12, 16], REAL),
    "BitwiseAnd": ("bit_and", [18], INTS),
    "BitwiseOr": ("bit_or", [18], INTS),
    "BitwiseXor": ("bit_xor", [18], INTS),
}
for _op, _entry in _BINARY.items():
    _register_binary(_op, *_entry)


def _register_variadic(op: str, fn: str, dtypes: Collection[DType], versions: list[int]) -> None:
    def lowering(b: LowerContext, *xs: Value, consumed_inputs: list[int] | None = None) -> Value:
        total = xs[0]
        for x in xs[1:]:
            total = b.map(fn, total, x)
        return total

    lowers(op, versions, {"xs": dtypes})(lowering)


_register_variadic("Min", "min", REAL, [1, 6, 8, 12, 13])
_register_variadic("Max", "max", REAL, [1, 6, 8, 12, 13])
_register_variadic("Sum", "add", FLOATS, [1, 6, 8, 13])


@lowers("Mean", [1, 6, 8, 13], {"xs": FLOATS})
def mean(b: LowerContext, *xs: Value, consumed_inputs: list[int] | None = None) -> Value:
    total = wide(b, xs[0])
    for x in xs[1:]:
        total = b.map("add", total, wide(b, x))
    return b.cast(b.map("div", total, b.scalar(len(xs), total.dtype)), xs[0].dtype)


# ------------------------------------------------------------------------------------------------------ single operators


@lowers("Pow", [1], {"x": FLOATS})
def pow_1(b: LowerContext, x: Value, y: Value, *, axis: int | None = None, broadcast: int = 0) -> Value:
    return b.map("pow", x, _aligned(b, x, y, axis, broadcast))


def _integer_power(b: LowerContext, x: Value, y: Value) -> Value:
    """An integer base to a float exponent: what float64 gives, cut off; whole exponents and roots are exact.

    Only an exponent that is a multiple of 1/32 can have a whole root that 64 bits hold. With others a power within two units of
    float64's last place of a whole number may be cut off on either side of it.
    """
    integer = DType.U64 if x.dtype is DType.U64 else DType.I64
    exponent, zero = b.cast(y, DType.F64), b.scalar(0, DType.F64)

    def is_whole(v: Value) -> Value:
        return b.map("eq", b.map("floor", v), v)

    counted = b.map("and", is_whole(exponent), b.map("ge", exponent, zero))
    count = b.map("min", b.map("select", counted, exponent, zero), b.scalar(2.0**62, DType.F64))
    product = b.map("pow", b.cast(x, integer), b.cast(count, integer))
    power = b.map("pow", b.cast(x, DType.F64), exponent)
    nearest = b.map("round", power)
    error = b.map("abs", b.map("sub", power, nearest))
    close = b.map("le", error, b.map("mul", b.map("abs", power), b.scalar(2.0**-51, DType.F64)))
    exact = b.map("and", close, is_whole(b.map("mul", exponent, b.scalar(32, DType.F64))))
    root = b.cast(b.map("select", exact, nearest, power), x.dtype, saturate=True)
    return b.map("select", counted, b.cast(product, x.dtype), root)


def _signed_power(b: LowerContext, x: Value, y: Value) -> Value:
    """A float base to an integer that its type may round: whether that is odd, which the sign hangs on, is asked before."""
    zero, one = b.scalar(0, x.dtype), b.scalar(1, x.dtype)
    negative = b.map("or", b.map("lt", x, zero), b.map("lt", b.map("div", one, x), zero))  # -0.0 too
    odd = b.map("ne", b.map("bit_and", y, b.scalar(1, y.dtype)), b.scalar(0, y.dtype))
    power = b.map("pow", b.map("abs", x), b.cast(y, x.dtype))
    return b.map("select", b.map("and", negative, odd), b.map("neg", power), power)


@lowers("Pow", [7, 12, 13, 15], {"x": (FLOATS | INTS), "y": REAL})
def pow_7(b: LowerContext, x: Value, y: Value) -> Value:
    if y.data is not None and y.data.size == 1 and y.rank <= x.rank:
        exponent = float(y.data.reshape(-1)[0])
        if exponent in (1.0, 2.0, 3.0):
            power = x
            for _ in range(int(exponent) - 1):
                power = b.map("mul", power, x)
            return power
    if x.dtype.is_int and y.dtype.is_float:
        return _integer_power(b, x, y)
    if x.dtype.is_int or y.dtype is x.dtype:
        return b.map("pow", x, b.cast(y, x.dtype))
    # an exponent that is rounded to the base's type would give another power
    double = y.dtype is DType.F64 and not (y.data is not None and (y.data == y.data.astype(np.float32)).all())
    base = b.cast(x, DType.F64) if double else wide(b, x)
    if y.dtype.is_int and base.dtype is DType.F32 and y.dtype.size >= 4 and (y.data is None or (np.abs(y.data) > 2.0**24).any()):
        return b.cast(_signed_power(b, base, y), x.dtype)
    return b.cast(b.map("pow", base, b.cast(y, base.dtype)), x.dtype)


@lowers("Mod", [10, 13, 28], {"x": REAL, "y": REAL}, note="before version 28 floats need fmod=1")
def mod(b: LowerContext, x: Value, y: Value, *, fmod: int = 0) -> Value:
    if x.dtype.is_float and not fmod and b.version < 28:
        raise Unsupported(f"Mod-{b.version} of floats needs fmod=1")
    return b.map("fmod" if fmod else "mod", x, y)


@lowers("BitShift", [11, 28], {"x": INTS, "y": INTS})
def bit_shift(b: LowerContext, x: Value, y: Value, *, direction: str) -> Value:
    """Amounts outside 0 .. bits-1 leave the sign bit's extension alone: -1 or 0."""
    left, bits = direction == "LEFT", 8 * x.dtype.size
    inside = b.map("lt", y, b.scalar(bits, y.dtype))
    if x.dtype.is_signed:
        inside = b.map("and", inside, b.map("ge", y, b.scalar(0, y.dtype)))
    amount = b.map("select", inside, y, b.scalar(bits - 1, y.dtype))
    shifted = b.map("shift_left" if left else "shift_right", x, amount)
    if x.dtype.is_signed and not left:
        return shifted
    return b.map("select", inside, shifted, b.scalar(0, x.dtype))


@lowers("BitCast", [26], {"x": ALL})
def bit_cast(b: LowerContext, x: Value, *, to: int) -> Value:
    return recode(b, x, element_type(to))


@lowers("IsInf", [10, 20], {"x": FLOATS})
def is_inf(b: LowerContext, x: Value, *, detect_negative: int = 1, detect_positive: int = 1) -> Value:
    if detect_negative and detect_positive:
        return b.map("or", b.map("isneginf", x), b.map("isposinf", x))
    if detect_negative or detect_positive:
        return b.map("isneginf" if detect_negative else "isposinf", x)
    return b.full(x.shape, False, DType.BOOL)


@lowers("Where", [9, 16], {"condition": BOOLS, "x": NUMERIC, "y": NUMERIC})
def where(b: LowerContext, condition: Value, x: Value, y: Value) -> Value:
    return b.map("select", condition, x, y)


_CASTS = [6, 9, 13, 19, 21, 23, 24, 25, 28]


def element_type(number: int) -> DType:
    """An element type by ONNX's number."""
    try:
        return DType(number)
    except ValueError:
        name = {8: "string", 14: "complex64", 15: "complex128", 27: "float6e2m3", 28: "float6e3m2"}.get(number, number)
        raise Unsupported(f"the element type {name} is not supported") from None


@lowers("Cast", _CASTS, {"x": ALL})
def cast(b: LowerContext, x: Value, *, to: int, saturate: int = 1, round_mode: str = "up") -> Value:
    """``saturate`` and ``round_mode`` concern 8-bit floats only."""
    return convert(b, x, element_type(to), saturate=bool(saturate), round_mode=round_mode)


@lowers("Cast", [1], {"x": NUMERIC})
def cast_1(b: LowerContext, x: Value, *, to: str) -> Value:
    named = {t.onnx_name.upper(): t for t in NUMERIC} | {"FLOAT": DType.F32, "DOUBLE": DType.F64}
    if to.upper() not in named:
        raise Unsupported(f"a cast to {to} is not supported")
    return b.cast(x, named[to.upper()])


@lowers("CastLike", [15, 19, 21, 23, 24, 25], {"x": ALL, "like": ALL})
def cast_like(b: LowerContext, x: Value, like: Value, *, saturate: int = 1, round_mode: str = "up") -> Value:
    return convert(b, x, like.dtype, saturate=bool(saturate), round_mode=round_mode)


@lowers("Identity", [1, 13, 14, 16, 19, 21, 23, 24, 25], {"x": ALL})
def identity(b: LowerContext, x: Operand) -> Operand:
    return x


@lowers("Dropout", [7, 10], {"x": FLOATS})
def dropout_7(b: LowerContext, x: Value, *, ratio: float = 0.5) -> tuple[Value, Value | None]:
    return x, b.full(x.shape, True, DType.BOOL) if b.wants(1) and b.version >= 10 else None


@lowers("Dropout", [12, 13, 22], {"x": FLOATS}, note="inference, or training with a constant ratio of 0")
def dropout_12(
    b: LowerContext, x: Value, ratio: Operand | None, training_mode: Host | None, *, seed: int = 0
) -> tuple[Value, Value | None]:
    kept = isinstance(ratio, Value) and ratio.data is not None and not ratio.data.any()
    kept = kept or (isinstance(ratio, Host) and all(isinstance(v, float) and v == 0 for v in ratio.items()))
    if not kept and training_mode is not None and any(v is not False for v in training_mode.items()):
        raise Unsupported("training mode is not supported")
    return x, b.full(x.shape, True, DType.BOOL) if b.wants(1) else None


@lowers("Dropout", [1, 6], {"x": FLOATS}, note="inference only: is_test=1")
def dropout_1(
    b: LowerContext, x: Value, *, consumed_inputs: list[int] | None = None, is_test: int = 0, ratio: float = 0.5
) -> tuple[Value, Value | None]:
    if not is_test:
        raise Unsupported("training mode is not supported: is_test is 0")
    return x, None


# ------------------------------------------------------------------------------------------------------------------ clip

_FLT_MAX = 3.4028234663852886e38


@lowers("Clip", [1, 6], {"x": FLOATS})
def clip_6(
    b: LowerContext, x: Value, *, consumed_inputs: list[int] | None = None, min: float = -_FLT_MAX, max: float = _FLT_MAX
) -> Value:
    return b.map("min", b.map("max", x, b.scalar(min, x.dtype)), b.scalar(max, x.dtype))


@lowers("Clip", [11, 12, 13], {"x": REAL, "low": REAL, "high": REAL})
def clip_11(b: LowerContext, x: Value, low: Value | None, high: Value | None) -> Value:
    """``minimum(maximum(x, low), high)``: NaN stays, and high wins over a larger low."""
    if low is not None:
        x = b.map("max", x, b.reshape(low, ()))
    return b.map("min", x, b.reshape(high, ())) if high is not None else x
