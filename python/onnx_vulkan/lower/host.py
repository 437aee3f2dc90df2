"""Host evaluation, element by element: arithmetic, comparisons and casts on numbers, Dims and what only a run can tell.

Plain numbers follow the interpreter, so that host and device agree. A Dim stays symbolic where the result is an integer
polynomial; a question about it goes through :mod:`onnx_vulkan.dims` and is recorded as a guard. A result that is no integer (half
of a width, a square root) *pins* the Dim to this run's number, which is done only when the result is demanded on the host.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from onnx_vulkan.dims import Dim, Extent, at_least, current_scope, evaluate, is_zero, maximum, minimum, same, symbol
from onnx_vulkan.dtypes import SMALL, DType
from onnx_vulkan.lower.registry import Host, LowerContext, NotHost, Unknown, evaluates
from onnx_vulkan.program.interp import MAPS

__all__ = ["HOST_LIMIT", "array_of", "convert", "elementwise", "host_of", "is_plain", "objects", "truth"]

HOST_LIMIT = 4096
"""The most elements of a tensor that is computed on the host; larger ones are the device's."""

_fresh = itertools.count()


def objects(items: Sequence[Any], shape: Sequence[int]) -> Any:
    """An object array of *shape* holding *items* in row-major order."""
    data = np.empty(len(items), object)
    data[:] = items
    return data.reshape(tuple(shape))


def is_plain(x: Host) -> bool:
    """Whether every element is a number."""
    return not any(isinstance(v, (Dim, Unknown)) for v in x.data.flat)


def array_of(x: Host) -> Any:
    """The elements as a numpy array of the tensor's dtype; NotHost when one is symbolic."""
    if not is_plain(x):
        raise NotHost
    return np.array(x.items(), object).astype(x.dtype.numpy).reshape(x.shape)


def host_of(array: Any, dtype: DType) -> Host:
    """A numpy array as a Host."""
    flat = np.asarray(array).astype(dtype.numpy).reshape(-1)
    items = [float(v) for v in flat] if dtype is DType.BF16 else flat.tolist()
    return Host(dtype, objects(items, np.shape(array)))


# --------------------------------------------------------------------------------------------------------------- elements


def pin(ctx: LowerContext, v: Any) -> float | Unknown:
    """A float element as a number: a Dim is pinned to this run's value. Declines unless the result is demanded."""
    if isinstance(v, Unknown) or not isinstance(v, Dim):
        return v if isinstance(v, Unknown) else float(v)
    if not ctx.demanded:
        raise NotHost
    values = current_scope().values
    if values is None:
        return Unknown()
    number = evaluate(v, values)
    same(v, number)
    return float(number)


def _nonnegative(e: Extent) -> bool:
    """Whether *e* cannot be negative, whatever the run."""
    if not isinstance(e, Dim):
        return e >= 0
    for monomial, c in e.terms:
        if c < 0:
            return False
        for atom, _ in monomial:
            if atom[0] == "sym":
                if str(atom[1]).startswith(("host:", "unknown:")):
                    return False
            elif not (_nonnegative(atom[1]) and _nonnegative(atom[2])):  # type: ignore[arg-type]
                return False
    return True


def truth(kind: str, a: Any, b: Any) -> bool | Unknown:
    """``a == b`` (kind eq) or ``a >= b`` (ge) of elements, decided in this run; Unknown where only a run can tell."""
    if isinstance(a, Unknown) or isinstance(b, Unknown):
        return Unknown()
    if not isinstance(a, Dim) and not isinstance(b, Dim):
        return bool(a == b) if kind == "eq" else bool(a >= b)
    if isinstance(a, float) or isinstance(b, float):
        if any(isinstance(v, float) and not v.is_integer() for v in (a, b)):
            return _fractional(kind, a, b)
        a, b = (int(v) if isinstance(v, float) else v for v in (a, b))
    difference = a - b
    answer = is_zero(difference) if kind == "eq" else at_least(difference, 0)
    scope = current_scope()
    if not isinstance(difference, Dim) or scope.values is not None:
        return answer
    question = ("zero" if kind == "eq" else "nonneg", difference)
    if question in scope.assumed:
        return answer
    if _nonnegative(difference):
        return True if kind == "ge" else (False if _nonnegative(difference - 1) else Unknown(False, question))
    if _nonnegative(-1 - difference):
        return False
    return Unknown(answer, question)


def _fractional(kind: str, a: Any, b: Any) -> bool | Unknown:
    """A Dim against a float that is no integer."""
    if kind == "eq":
        return False
    if isinstance(a, Dim):
        return truth("ge", a, int(np.ceil(b))) if np.isfinite(b) else bool(b < 0)
    return truth("ge", int(np.floor(a)), b) if np.isfinite(a) else bool(a > 0)


def _not(v: bool | Unknown) -> bool | Unknown:
    if isinstance(v, Unknown):
        return Unknown(None if v.generic is None else not v.generic, v.question)
    return not v


def _exact(ctx: LowerContext, v: Extent, dtype: DType) -> Any:
    """A Dim that is a float's value: kept while the dtype can hold it exactly, else pinned."""
    limit = {DType.F64: 2**53, DType.F32: 2**24, DType.F16: 2**11, DType.BF16: 2**8}[dtype]
    if not isinstance(v, Dim) or current_scope().values is None or at_least(limit, v):
        return v
    return _round(pin(ctx, v), dtype)


def _round(v: Any, dtype: DType) -> Any:
    if isinstance(v, (Unknown, Dim)) or not dtype.is_float:
        return v
    return float(np.asarray(v, np.float64).astype(dtype.numpy))


def _integral(v: Any) -> bool:
    return isinstance(v, (int, Dim)) or (isinstance(v, float) and v.is_integer())


def _divide(a: Extent, b: Extent) -> Extent:
    """Integer division that truncates; 0 for a zero divisor."""
    if is_zero(b):
        return 0
    low_a, low_b = at_least(a, 0), at_least(b, 0)
    q = (a if low_a else -a) // (b if low_b else -b)
    return q if low_a == low_b else -q


def _arithmetic(ctx: LowerContext, fn: str, dtype: DType, *vs: Any) -> Any:
    """One element of ``map fn`` where an operand is symbolic."""
    if any(isinstance(v, Unknown) for v in vs):
        return symbol(f"unknown:{next(_fresh)}") if dtype.is_int else Unknown()
    if fn in ("floor", "ceil", "round") and isinstance(vs[0], Dim):
        return vs[0]
    if dtype.is_float:
        if fn in ("add", "sub", "mul", "neg", "abs", "min", "max") and all(_integral(v) for v in vs):
            vs = tuple(int(v) if isinstance(v, float) else v for v in vs)
            return _exact(ctx, _polynomial(fn, vs), dtype)
        if fn == "div" and _integral(vs[1]) and isinstance(vs[0], Dim) and not (isinstance(vs[1], float) and vs[1] == 0):
            divisor = int(vs[1]) if isinstance(vs[1], float) else vs[1]
            quotient = vs[0] // divisor
            if quotient * divisor == vs[0]:
                return _exact(ctx, quotient, dtype)
        pinned = [pin(ctx, v) for v in vs]
        if any(isinstance(v, Unknown) for v in pinned):
            return Unknown()
        arrays = [np.asarray(v, np.float64).astype(np.float64 if dtype is DType.F64 else np.float32) for v in pinned]
        with np.errstate(all="ignore"):
            return _round(MAPS[fn](*arrays), dtype)
    if fn == "pow":
        if isinstance(vs[1], Dim) or not 0 <= vs[1] <= 8:
            raise NotHost
        result: Extent = 1
        for _ in range(vs[1]):
            result = result * vs[0]
        return result
    if fn not in ("add", "sub", "mul", "neg", "abs", "sign", "min", "max", "div", "mod", "fmod"):
        raise NotHost
    return _polynomial(fn, vs)


def _polynomial(fn: str, vs: Sequence[Extent]) -> Extent:
    a, b = vs[0], vs[-1]
    if fn == "add":
        return a + b
    if fn == "sub":
        return a - b
    if fn == "mul":
        return a * b
    if fn == "neg":
        return -a
    if fn == "abs":
        return a if at_least(a, 0) else -a
    if fn == "sign":
        return 0 if is_zero(a) else 1 if at_least(a, 0) else -1
    if fn == "min":
        return minimum(a, b)
    if fn == "max":
        return maximum(a, b)
    if fn == "mod":
        return 0 if is_zero(b) else a % b
    quotient = _divide(a, b)
    return quotient if fn == "div" else a - b * quotient


def _compare(fn: str, a: Any, b: Any) -> bool | Unknown:
    if fn in ("eq", "ne"):
        answer = truth("eq", a, b)
        return answer if fn == "eq" else _not(answer)
    if fn in ("ge", "lt"):
        answer = truth("ge", a, b)
        return answer if fn == "ge" else _not(answer)
    answer = truth("ge", b, a)
    return answer if fn == "le" else _not(answer)


def _logic(fn: str, *vs: Any) -> bool | Unknown:
    if fn == "not":
        return _not(vs[0])
    a, b = vs
    if fn == "and" and (a is False or b is False):
        return False
    if fn == "or" and (a is True or b is True):
        return True
    guesses = [v.generic if isinstance(v, Unknown) else v for v in vs]
    return Unknown(None if None in guesses else bool(MAPS[fn](*guesses)))


def _select(c: Any, a: Any, b: Any) -> Any:
    if isinstance(c, Unknown):
        if type(a) is type(b) and a == b:
            return a
        c = bool(c.generic)
    return a if c else b


def elementwise(ctx: LowerContext, fn: str, *xs: Host) -> Host:
    """``map fn`` of host tensors, broadcast by numpy's rule. Declines (NotHost) what would make more than a small tensor."""
    dtype = DType.BOOL if fn in _COMPARISONS else xs[-1].dtype
    shape = np.broadcast_shapes(*(x.shape for x in xs))
    if int(np.prod(shape)) > HOST_LIMIT:
        raise NotHost
    if all(is_plain(x) for x in xs):
        arrays = [array_of(x) for x in xs]
        if dtype in (DType.F16, DType.BF16) or xs[0].dtype in (DType.F16, DType.BF16):
            arrays = [a.astype(np.float32) if a.dtype.kind != "b" else a for a in arrays]
        with np.errstate(all="ignore"):
            return host_of(np.broadcast_to(MAPS[fn](*arrays), shape), dtype)
    columns = [np.broadcast_to(x.data, shape).reshape(-1) for x in xs]
    items: list[Any] = []
    for vs in zip(*columns, strict=True):
        if not any(isinstance(v, (Dim, Unknown)) for v in vs) and fn != "select":
            one = elementwise(ctx, fn, *(Host(x.dtype, objects([v], ())) for x, v in zip(xs, vs, strict=True)))
            items.append(one.data[()])
        elif fn in _COMPARISONS:
            items.append(_compare(fn, *vs))
        elif fn in ("and", "or", "xor", "not"):
            items.append(_logic(fn, *vs))
        elif fn == "select":
            items.append(_select(*vs))
        else:
            items.append(_arithmetic(ctx, fn, dtype, *vs))
    return Host(dtype, objects(items, shape))


_COMPARISONS = frozenset({"eq", "ne", "lt", "le", "gt", "ge"})


def convert(ctx: LowerContext, x: Host, dtype: DType, saturate: bool = False) -> Host:
    """``cast`` of a host tensor. An Unknown that becomes an integer gets a symbol of its own."""

    if dtype in SMALL:
        raise NotHost

    def one(v: Any) -> Any:
        if isinstance(v, Unknown):
            return symbol(f"unknown:{next(_fresh)}") if dtype.is_int else v
        if isinstance(v, Dim):
            if dtype is DType.BOOL:
                return _not(truth("eq", v, 0))
            return _exact(ctx, v, dtype) if dtype.is_float else v
        if dtype is DType.BOOL:
            return bool(v != 0)
        if dtype.is_float:
            return _round(v, dtype)
        if isinstance(v, float) and not np.isfinite(v):
            raise NotHost
        bits = 8 * dtype.size
        wrapped = int(v) % (1 << bits)
        return wrapped - (1 << bits) if dtype.is_signed and wrapped >= 1 << (bits - 1) else wrapped

    return Host(dtype, objects([one(v) for v in x.items()], x.shape))


# --------------------------------------------------------------------------------------------------------------- operators

_Evaluation = Callable[..., Host]


def _folded(fn: str) -> _Evaluation:
    def evaluation(ctx: LowerContext, *xs: Host) -> Host:
        result = xs[0]
        for x in xs[1:]:
            result = elementwise(ctx, fn, result, x)
        return result

    return evaluation


def _plain(fn: str, negated: bool = False) -> _Evaluation:
    def evaluation(ctx: LowerContext, *xs: Host, **legacy: Any) -> Host:
        if legacy:  # axis/broadcast of the first versions: left to the lowering
            raise NotHost
        return elementwise(ctx, fn, *xs)

    return evaluation


_OPERATORS = {
    "Neg": "neg", "Abs": "abs", "Sign": "sign", "Floor": "floor", "Ceil": "ceil", "Round": "round", "Sqrt": "sqrt",
    "Reciprocal": "reciprocal", "Not": "not", "And": "and", "Or": "or", "Xor": "xor", "Add": "add", "Sub": "sub", "Mul": "mul",
    "Div": "div", "Equal": "eq", "Less": "lt", "Greater": "gt", "LessOrEqual": "le", "GreaterOrEqual": "ge", "Where": "select",
    "Exp": "exp", "Log": "log",
}  # fmt: skip

for _op, _fn in _OPERATORS.items():
    evaluates(_op)(_plain(_fn))
for _op, _fn in {"Min": "min", "Max": "max", "Sum": "add"}.items():
    evaluates(_op)(_folded(_fn))


@evaluates("Relu")
def _relu(ctx: LowerContext, x: Host, **_: Any) -> Host:
    return elementwise(ctx, "max", x, convert(ctx, Host(DType.I64, objects([0], ())), x.dtype))


@evaluates("Mod")
def _mod(ctx: LowerContext, x: Host, y: Host, *, fmod: int = 0) -> Host:
    return elementwise(ctx, "fmod" if fmod else "mod", x, y)


@evaluates("Pow")
def _pow(ctx: LowerContext, x: Host, y: Host, **legacy: Any) -> Host:
    if legacy or not is_plain(y):
        raise NotHost
    if x.dtype.is_int and not y.dtype.is_int and not all(float(v).is_integer() for v in y.items()):
        raise NotHost
    return elementwise(ctx, "pow", x, convert(ctx, y, x.dtype))


@evaluates("Cast")
def _cast(ctx: LowerContext, x: Host, *, to: int, saturate: int = 1, round_mode: str = "up") -> Host:
    try:
        return convert(ctx, x, DType(to))
    except ValueError:
        raise NotHost from None


@evaluates("CastLike")
def _cast_like(ctx: LowerContext, x: Host, like: Host, *, saturate: int = 1, round_mode: str = "up") -> Host:
    return convert(ctx, x, like.dtype)


@evaluates("Identity")
def _identity(ctx: LowerContext, x: Host) -> Host:
    return x


@evaluates("Clip")
def _clip(ctx: LowerContext, x: Host, low: Host | None = None, high: Host | None = None, **legacy: Any) -> Host:
    if legacy:
        raise NotHost
    x = elementwise(ctx, "max", x, low) if low is not None else x
    return elementwise(ctx, "min", x, high) if high is not None else x
