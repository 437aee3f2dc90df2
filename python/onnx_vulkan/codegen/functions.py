"""The GLSL of each elementwise function (``program.ir.MAP_FNS``) for each compute type.

Anything longer than an expression lives in ``shaders/math.glsl``; a function here may name it, and only named ones are pasted
into a kernel. GLSL's own ``min``/``max``/``isnan`` may lose NaN on some drivers; its ``sin``, ``tanh``, ``pow``, ``asin`` are
too loose for fp32: those are ours.
"""

from __future__ import annotations

import re
from functools import cache
from importlib import resources

from onnx_vulkan.codegen.types import GLSL_TYPES, wrap
from onnx_vulkan.dtypes import FLOATS, DType

__all__ = ["bits", "call", "cast", "has_function", "snippet"]

_FLOAT = {
    "neg": "(-{0})",
    "abs": "abs({0})",
    "sign": "({0} > T(0) ? T(1) : ({0} < T(0) ? T(-1) : {0}))",
    "floor": "floor({0})",
    "ceil": "ceil({0})",
    "round": "roundEven({0})",
    "sqrt": "sqrt({0})",
    "rsqrt": "(T(1) / sqrt({0}))",
    "reciprocal": "(T(1) / {0})",
    "exp": "ov_exp({0})",
    "log": "ov_log({0})",
    "log1p": "ov_log1p({0})",
    "sin": "ov_sin({0})",
    "cos": "ov_cos({0})",
    "tan": "ov_tan({0})",
    "asin": "ov_asin({0})",
    "acos": "ov_acos({0})",
    "atan": "ov_atan({0})",
    "sinh": "ov_sinh({0})",
    "cosh": "ov_cosh({0})",
    "tanh": "ov_tanh({0})",
    "asinh": "ov_asinh({0})",
    "acosh": "ov_acosh({0})",
    "atanh": "ov_atanh({0})",
    "erf": "ov_erf({0})",
    "isnan": "ov_isnan({0})",
    "isposinf": "({0} == ov_inf({0}))",
    "isneginf": "({0} == -ov_inf({0}))",
    "add": "({0} + {1})",
    "sub": "({0} - {1})",
    "mul": "({0} * {1})",
    "div": "ov_div({0}, {1})",
    "div_rn": "ov_div_rn({0}, {1})",
    "pow": "ov_pow({0}, {1})",
    "min": "(ov_isnan({0}) || {0} < {1} ? {0} : {1})",
    "max": "(ov_isnan({0}) || {0} > {1} ? {0} : {1})",
    "mod": "ov_mod({0}, {1})",
    "fmod": "ov_fmod({0}, {1})",
}
_COARSE = {
    "exp": "ov_exp_coarse({0})",
    "div": "ov_div_coarse({0}, {1})",
    "erf": "ov_erf_coarse({0})",
    "tanh": "ov_tanh_coarse({0})",
}
"""Where fewer bits than float32's are kept of a result (``program/coarse.py``)."""
_INT = {
    "neg": "(-{0})",
    "abs": "({0} < T(0) ? -({0}) : {0})",
    "sign": "({0} > T(0) ? T(1) : ({0} < T(0) ? T(-1) : T(0)))",
    "floor": "{0}",
    "ceil": "{0}",
    "round": "{0}",
    "bit_not": "(~{0})",
    "isnan": "false",
    "isposinf": "false",
    "isneginf": "false",
    "add": "({0} + {1})",
    "sub": "({0} - {1})",
    "mul": "({0} * {1})",
    "div": "ov_idiv({0}, {1})",
    "pow": "ov_ipow({0}, {1})",
    "min": "({0} < {1} ? {0} : {1})",
    "max": "({0} > {1} ? {0} : {1})",
    "mod": "ov_imod({0}, {1})",
    "fmod": "ov_ifmod({0}, {1})",
    "bit_and": "({0} & {1})",
    "bit_or": "({0} | {1})",
    "bit_xor": "({0} ^ {1})",
    "shift_left": "({1} < T(0) || {1} >= T(WIDTH) ? T(0) : {0} << {1})",
    "shift_right": "({0} >> ({1} < T(0) || {1} >= T(WIDTH) ? T(WIDTH - 1u) : {1}))",
}
_UNSIGNED = {
    "neg": "(~{0} + T(1))",
    "abs": "{0}",
    "sign": "({0} > T(0) ? T(1) : T(0))",
    "div": "({1} == T(0) ? T(0) : {0} / {1})",
    "mod": "({1} == T(0) ? T(0) : {0} % {1})",
    "fmod": "({1} == T(0) ? T(0) : {0} % {1})",
    "shift_left": "({1} >= T(WIDTH) ? T(0) : {0} << {1})",
    "shift_right": "({1} >= T(WIDTH) ? T(0) : {0} >> {1})",
}
_BOOL = {
    "not": "(!{0})",
    "and": "({0} && {1})",
    "or": "({0} || {1})",
    "xor": "({0} != {1})",
    "eq": "({0} == {1})",
    "ne": "({0} != {1})",
    "min": "({0} && {1})",
    "max": "({0} || {1})",
}
_COMPARE = {
    "eq": "({0} == {1})",
    "ne": "({0} != {1})",
    "lt": "({0} < {1})",
    "le": "({0} <= {1})",
    "gt": "({0} > {1})",
    "ge": "({0} >= {1})",
}
# Integer results that can leave an 8- or 16-bit type.
_WRAPS = frozenset(["neg", "abs", "add", "sub", "mul", "div", "pow", "bit_not", "shift_left"])


def has_function(fn: str, dtype: DType) -> bool:
    """Whether *fn* can be computed on operands of *dtype* (of ``select``: on its two values)."""
    if fn == "select":
        return True
    if dtype is DType.BOOL:
        return fn in _BOOL
    if fn in _COMPARE:
        return True
    if dtype in FLOATS:
        return fn in _FLOAT and (dtype is not DType.F64 or _has_double(_FLOAT[fn]))
    return fn in _UNSIGNED or fn in _INT if not dtype.is_signed else fn in _INT


def _has_double(text: str) -> bool:
    """Whether every function of ``math.glsl`` that an expression calls exists for doubles."""
    return all(name in ("ov_isnan", "ov_inf") or name + "64" in _snippets() for name in re.findall(r"\bov_\w+", text))


def call(fn: str, dtype: DType, args: list[str], *, coarse: bool = False) -> str:
    """The expression of ``fn(*args)`` on operands of *dtype*; the result is of the compute type (or bool).

    Functions of half floats are always computed *coarse*, but for their quotients: those may be whole numbers.
    """
    if fn == "select":
        return f"({args[0]} ? {args[1]} : {args[2]})"
    coarse = fn in _COARSE and (coarse or (dtype in FLOATS and dtype.size == 2 and fn != "div"))
    out = (_COARSE[fn] if coarse else _template(fn, dtype)).format(*args)
    return wrap(dtype, out) if fn in _WRAPS else out


@cache
def _template(fn: str, dtype: DType) -> str:
    """The expression with places for the operands."""
    if dtype is DType.BOOL:
        text = _BOOL[fn]
    elif fn in _COMPARE:
        text = _COMPARE[fn]
    elif dtype in FLOATS:
        text = _FLOAT[fn]
    else:
        text = _INT[fn] if dtype.is_signed or fn not in _UNSIGNED else _UNSIGNED[fn]
    text = re.sub(r"\bT\(", f"{GLSL_TYPES[dtype].compute}(", text).replace("WIDTH", f"{dtype.size * 8}u")
    if dtype.size == 8:
        text = re.sub(r"\bov_\w+", lambda m: m[0] + "64" if m[0] + "64" in _snippets() else m[0], text)
    return text


def cast(source: DType, target: DType, x: str, *, saturate: bool) -> str:
    """The expression that converts *x* (a name or literal) of *source* to *target* (``cast`` of program.ir)."""
    s, t = GLSL_TYPES[source].compute, GLSL_TYPES[target].compute
    if target is DType.BOOL:
        return x if source is DType.BOOL else (f"ov_nonzero({x})" if s == "float" else f"({x} != {s}(0))")
    if source is DType.BOOL:
        return f"({x} ? {t}(1) : {t}(0))"
    if target in FLOATS:
        return _to_float(source, target, x)
    if source in FLOATS:
        return _saturated(source, target, x) if saturate else _wrapped(source, target, x)
    if saturate:
        low, high = max(_range(source)[0], _range(target)[0]), min(_range(source)[1], _range(target)[1])
        x = f"clamp({x}, {_integer(source, low)}, {_integer(source, high)})"
    if s == "int" and t == "int64_t":
        return f"ov_long({x})"
    return wrap(target, x if s == t else f"{t}({x})")


def bits(source: DType, target: DType, x: str) -> str:
    """The expression that reinterprets the bytes of a compute-type *x* of *source* as *target*, of the same size."""
    s, t = GLSL_TYPES[source].compute, GLSL_TYPES[target].compute
    if source.size == 8:
        word = f"doubleBitsToUint64({x})" if s == "double" else f"uint64_t({x})"
        return f"uint64BitsToDouble({word})" if t == "double" else f"{t}({word})"
    word = {"float": f"floatBitsToUint({x})"}.get(s, f"uint({x})")
    if source is DType.BF16:
        word = f"({word} >> 16)"
    elif source is DType.F16:
        word = f"uint(uint16_t(float16BitsToUint16(float16_t({x}))))"
    if target is DType.BF16:
        return f"uintBitsToFloat({word} << 16)"
    if target is DType.F16:
        return f"float(float16_t(uint16BitsToFloat16(uint16_t({word}))))"
    if t == "float":
        return f"uintBitsToFloat({word})"
    return f"({word} != 0u)" if target is DType.BOOL else wrap(target, f"{t}({word})")


def _to_float(source: DType, target: DType, x: str) -> str:
    """Rounding to the narrower float is part of the cast's meaning even when the result stays in a register."""
    s, t = GLSL_TYPES[source].compute, GLSL_TYPES[target].compute
    wide = x if s == t else f"{t}({x})"
    if target is DType.F16 and source is DType.F64:
        wide = f"ov_odd({x})"
    if target is DType.F16 and source is not DType.F16:
        return f"float(float16_t({wide}))"
    if target is DType.BF16 and source is not DType.BF16:
        return f"uintBitsToFloat(uint(bf16_bits({wide})) << 16)"
    return wide


def _range(dtype: DType) -> tuple[int, int]:
    """The least and greatest integer of a type."""
    bits = dtype.size * 8
    return (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if dtype.is_signed else (0, (1 << bits) - 1)


def _integer(dtype: DType, value: int) -> str:
    """An integer literal of a compute type."""
    match GLSL_TYPES[dtype].compute:
        case "uint":
            return f"{value}u"
        case "uint64_t":
            return f"{value}ul"
        case "int64_t":
            return f"{value}l" if value != -(1 << 63) else "(-9223372036854775807l - 1l)"
    return str(value) if value != -(1 << 31) else "(-2147483647 - 1)"


def _wrapped(source: DType, target: DType, x: str) -> str:
    """Truncate towards zero and wrap: GLSL leaves conversions of out-of-range floats undefined."""
    if source is DType.F64:
        text = f"ov_wrap_double({x})"
    else:
        text = f"ov_wrap_long({x})" if target.size == 8 else f"ov_wrap({x})"
    return wrap(target, f"{GLSL_TYPES[target].compute}({text})")


def _saturated(source: DType, target: DType, x: str) -> str:
    """Truncate towards zero and clamp; NaN gives 0. Compared with the first values out of range, which are exact in any float."""
    s, t = GLSL_TYPES[source].compute, GLSL_TYPES[target].compute
    low, high = _range(target)
    suffix = "LF" if s == "double" else ""
    below, beyond = f"{float(low)!r}{suffix}", f"{float(high + 1)!r}{suffix}"
    inside = f"{t}({x})"
    least, greatest = _integer(target, low), _integer(target, high)
    return f"(ov_isnan({x}) ? {t}(0) : ({x} >= {beyond} ? {greatest} : ({x} < {below} ? {least} : {inside})))"


@cache
def _snippets() -> dict[str, str]:
    table: dict[str, str] = {}
    for file in "math.glsl", "math64.glsl":
        text = resources.files("onnx_vulkan.shaders").joinpath(file).read_text(encoding="utf-8")
        parts = re.split(r"^// ---- (\w+)\n", text, flags=re.M)
        table.update(zip(parts[1::2], parts[2::2], strict=True))
    return table


def snippet(body: str) -> str:
    """The pieces of ``math.glsl`` and ``math64.glsl`` that *body* calls, those that they call included, in the file's order."""
    table = _snippets()
    wanted: set[str] = set()
    todo = [body]
    while todo:
        for name in re.findall(r"\b(ov_\w+|bf16_bits)\b", todo.pop()):
            if name in table and name not in wanted:
                wanted.add(name)
                todo.append(table[name])
    return "".join(text for name, text in table.items() if name in wanted)
