"""Runs a Program in numpy: the meaning of every primitive (see :mod:`onnx_vulkan.program.ir`). Slow, plain and right.

float16 and bfloat16 are computed in float32 and rounded once an instruction; integers wrap. With ``float64`` every float is held
and computed in float64: the reference for disputes about accuracy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnx_vulkan.dims import Dim, Extent, evaluate
from onnx_vulkan.dtypes import DType
from onnx_vulkan.errors import InvalidInput, ModelError, ShapeMismatch
from onnx_vulkan.graph import Array
from onnx_vulkan.program import interp_nn
from onnx_vulkan.program.ir import Instr, Program, Value

__all__ = ["MAPS", "Evaluator", "Primitive", "interpret", "symbol_values"]


def symbol_values(program: Program, feeds: Mapping[str, Array]) -> dict[str, int]:
    """The numbers of the symbols that are a whole dim of an input, read off the arrays' shapes."""
    values: dict[str, int] = {}
    for v in program.inputs:
        if v.name not in feeds:
            raise InvalidInput(f"input {v.name!r} is missing")
        shape = np.shape(feeds[v.name])
        if len(shape) != len(v.shape):
            raise InvalidInput(f"input {v.name!r} has rank {len(shape)}, the model wants {len(v.shape)}")
        for e, n in zip(v.shape, shape, strict=True):
            if isinstance(e, Dim) and len(e.terms) == 1:
                ((monomial, c),) = e.terms
                if c == 1 and len(monomial) == 1 and monomial[0][1] == 1 and monomial[0][0][0] == "sym":
                    values.setdefault(str(monomial[0][0][1]), int(n))
    return values


def interpret(
    program: Program,
    feeds: Mapping[str, Array],
    values: Mapping[str, int] | None = None,
    *,
    float64: bool = False,
) -> list[Array]:
    """Run *program* on named inputs; gives the outputs in order.

    ``values`` are the numbers of symbols that the input shapes do not tell. Raises InvalidInput for missing inputs and wrong
    shapes, ModelError for an index outside its tensor. With *float64* float outputs are float64.
    """
    numbers = {**symbol_values(program, feeds), **(values or {})}
    machine = Evaluator(numbers, float64)
    env: dict[Value, Array] = {}
    for v in program.inputs:
        array = np.asarray(feeds[v.name])
        if array.dtype != v.dtype.numpy:
            raise InvalidInput(f"input {v.name!r} is {array.dtype}, the model wants {v.dtype.onnx_name}")
        if array.shape != machine.shape(v.shape):
            raise InvalidInput(f"input {v.name!r} has shape {array.shape}, the model wants {machine.shape(v.shape)}")
        env[v] = machine.enter(array, v.dtype)
    last = {v: n for n, instr in enumerate(program.instrs) for v in instr.inputs}
    last.update(dict.fromkeys(program.outputs, len(program.instrs)))
    with np.errstate(all="ignore"):
        for n, instr in enumerate(program.instrs):
            for v, array in zip(instr.outputs, machine.run(instr, [machine.read(env, v) for v in instr.inputs]), strict=True):
                env[v] = array
            for v in {*instr.inputs, *instr.outputs}:
                if last.get(v, n) == n:
                    env.pop(v, None)
    return [machine.read(env, v) for v in program.outputs]


class Evaluator:
    """Evaluates instructions at given numbers of the symbols."""

    def __init__(self, values: Mapping[str, int], float64: bool = False):
        self.values = values
        self.float64 = float64

    def number(self, e: Extent) -> int:
        """The number that an extent is."""
        return evaluate(e, self.values)

    def shape(self, extents: Sequence[Extent]) -> tuple[int, ...]:
        """The numbers that a shape is."""
        return tuple(evaluate(e, self.values) for e in extents)

    def hold(self, dtype: DType) -> np.dtype[Any]:
        """The numpy dtype that values of *dtype* are kept in."""
        return np.dtype(np.float64) if self.float64 and dtype.is_float else dtype.numpy

    def compute(self, dtype: DType) -> np.dtype[Any]:
        """The numpy dtype that values of *dtype* are computed in."""
        if dtype in (DType.F16, DType.BF16) and not self.float64:
            return np.dtype(np.float32)
        return self.hold(dtype)

    def enter(self, array: Array, dtype: DType) -> Array:
        """An input or constant in the dtype it is kept in."""
        return array.astype(self.hold(dtype), copy=False)

    def read(self, env: Mapping[Value, Array], v: Value) -> Array:
        """The array of a value or constant."""
        return env[v] if v.data is None else self.enter(np.asarray(v.data), v.dtype)

    def run(self, instr: Instr, xs: Sequence[Array]) -> list[Array]:
        """The outputs of one instruction, in the dtypes that they are kept in. Checks their shapes."""
        evaluate_op = PRIMITIVES.get(instr.op) or interp_nn.EVALUATORS.get(instr.op)
        if evaluate_op is None:
            raise NotImplementedError(f"the interpreter has no primitive or composite {instr.op!r}")
        widened = [x.astype(self.compute(v.dtype), copy=False) for x, v in zip(xs, instr.inputs, strict=True)]
        try:
            result = evaluate_op(self, instr, *widened)
        except IndexError as e:
            raise ModelError(f"{instr.source or instr.op}: {e}") from e
        arrays = []
        for v, array in zip(instr.outputs, result if isinstance(result, tuple) else (result,), strict=True):
            if np.shape(array) != self.shape(v.shape):
                raise ShapeMismatch(f"{instr.source}: {instr.op} gave {np.shape(array)} for {v!r} = {self.shape(v.shape)}")
            arrays.append(np.asarray(array).astype(self.hold(v.dtype), copy=False))
        return arrays


Numbers = NDArray[Any]

Primitive = Callable[..., Any]
"""``(evaluator, instr, *arrays) -> array or tuple of arrays``; float16 and bfloat16 operands arrive as float32."""

# ------------------------------------------------------------------------------------------------------------ elementwise

_erf = np.frompyfunc(math.erf, 1, 1)


def _trunc_div(a: Numbers, b: Numbers) -> Numbers:
    if a.dtype.kind == "f":
        return np.true_divide(a, b)
    q = np.floor_divide(a, b)
    return q + ((q < 0) & (q * b != a) & (b != 0)).astype(a.dtype) if a.dtype.kind == "i" else q


def _power(a: Numbers, b: Numbers) -> Numbers:
    if a.dtype.kind == "f":
        return np.power(a, b)
    positive = np.power(a, np.where(b < 0, 0, b).astype(b.dtype))
    inverse = np.where(a == 1, 1, np.where((a.astype(np.int64) == -1), np.where(b % 2 == 0, 1, -1), 0)).astype(a.dtype)
    return np.where(b < 0, inverse, positive)


MAPS: dict[str, Callable[..., Numbers]] = {
    "neg": np.negative,
    "abs": np.abs,
    "sign": np.sign,
    "floor": lambda x: np.floor(x) if x.dtype.kind == "f" else x,
    "ceil": lambda x: np.ceil(x) if x.dtype.kind == "f" else x,
    "round": lambda x: np.rint(x) if x.dtype.kind == "f" else x,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "reciprocal": lambda x: _trunc_div(np.ones_like(x), x),
    "exp": np.exp,
    "log": np.log,
    "log1p": np.log1p,
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "tanh": np.tanh,
    "asinh": np.arcsinh,
    "acosh": np.arccosh,
    "atanh": np.arctanh,
    "erf": lambda x: np.asarray(_erf(x)).astype(x.dtype),
    "not": np.logical_not,
    "bit_not": np.invert,
    "isnan": np.isnan,
    "isposinf": np.isposinf,
    "isneginf": np.isneginf,
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": _trunc_div,
    "div_rn": np.true_divide,
    "pow": _power,
    "min": np.minimum,
    "max": np.maximum,
    "mod": np.mod,
    "fmod": np.fmod,
    "and": np.logical_and,
    "or": np.logical_or,
    "xor": np.logical_xor,
    "bit_and": np.bitwise_and,
    "bit_or": np.bitwise_or,
    "bit_xor": np.bitwise_xor,
    "shift_left": np.left_shift,
    "shift_right": np.right_shift,
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "select": np.where,
}
"""The elementwise functions on arrays of one dtype (and shapes that broadcast)."""


def _map(ev: Evaluator, instr: Instr, *xs: Numbers) -> Numbers:
    fn = instr.attrs["fn"]
    return np.asarray(MAPS[fn](*xs))


def _to_int(x: Numbers, dtype: DType, saturate: bool) -> Numbers:
    if x.dtype.kind != "f":
        if not saturate:
            return x.astype(dtype.numpy)
        info = np.iinfo(dtype.numpy)
        wide = x.astype(object) if dtype.size == 8 or x.dtype.itemsize == 8 else x.astype(np.int64)
        return np.asarray(np.clip(wide, info.min, info.max)).astype(dtype.numpy)
    x = np.nan_to_num(np.trunc(x.astype(np.float64)), nan=0.0, posinf=math.inf, neginf=-math.inf)
    if saturate:
        info = np.iinfo(dtype.numpy)
        # 2**63 is a float64, the largest int64 is not: test against the first value that is out of range
        low, beyond = float(info.min), float(int(info.max) + 1)
        inside = np.where((x >= low) & (x < beyond), x, 0).astype(dtype.numpy)
        return np.where(x < low, info.min, np.where(x >= beyond, info.max, inside)).astype(dtype.numpy)
    x = np.where(np.isfinite(x), np.fmod(x, 2.0**64), 0)
    magnitude = np.abs(x).astype(np.uint64)
    return np.where(x < 0, np.uint64(0) - magnitude, magnitude).astype(dtype.numpy)


def _cast(ev: Evaluator, instr: Instr, x: Numbers) -> Numbers:
    dtype = instr.out.dtype
    if dtype is DType.BOOL:
        return np.asarray(x != 0)
    if dtype.is_float:
        return x.astype(ev.hold(dtype))
    return _to_int(x, dtype, bool(instr.attrs.get("saturate"))) if x.dtype.kind != "b" else x.astype(dtype.numpy)


def _bits(ev: Evaluator, instr: Instr, x: Numbers) -> Numbers:
    return x.astype(instr.inputs[0].dtype.numpy).view(instr.out.dtype.numpy).astype(ev.hold(instr.out.dtype))


# ------------------------------------------------------------------------------------------------------ sources, movement


def _iota(ev: Evaluator, instr: Instr) -> Numbers:
    shape, axis = ev.shape(instr.attrs["shape"]), instr.attrs["axis"]
    n = shape[axis] if shape else 1
    line = ev.number(instr.attrs["start"]) + ev.number(instr.attrs["step"]) * np.arange(n, dtype=np.int64)
    line = line.astype(ev.hold(instr.out.dtype))
    return np.broadcast_to(line.reshape([n if i == axis else 1 for i in range(len(shape))]), shape)


def _dims(ev: Evaluator, instr: Instr) -> Numbers:
    return np.array([ev.number(e) for e in instr.attrs["values"]], np.int64).reshape(ev.shape(instr.attrs["shape"]))


def _slice(ev: Evaluator, instr: Instr, x: Numbers) -> Numbers:
    index = []
    axes = zip(x.shape, ev.shape(instr.attrs["starts"]), ev.shape(instr.attrs["sizes"]), instr.attrs["steps"], strict=True)
    for n, start, size, step in axes:
        last = start + step * (size - 1)
        if size > 0 and not (0 <= start < n and 0 <= last < n):
            raise IndexError(f"slice from {start} to {last} is outside an axis of {n}")
        stop = last + (1 if step > 0 else -1)
        index.append(slice(0, 0) if size <= 0 else slice(start, None if stop < 0 else stop, step))
    return x[tuple(index)]


def _pad(ev: Evaluator, instr: Instr, x: Numbers, fill: Numbers | None = None) -> Numbers:
    widths = list(zip(ev.shape(instr.attrs["before"]), ev.shape(instr.attrs["after"]), strict=True))
    mode = instr.attrs["mode"]
    if mode == "constant":
        return np.pad(x, widths, constant_values=fill if fill is not None else 0) if widths else x
    return np.pad(x, widths, mode=mode) if widths else x


def _in_range(indices: Numbers, n: int, what: str, *, wrap: bool = True) -> Numbers:
    bad = (indices < (-n if wrap else 0)) | (indices >= n)
    if bad.any():
        raise IndexError(f"{what} index {indices[bad].reshape(-1)[0]} is outside an axis of {n}")
    return np.where(indices < 0, indices + n, indices).astype(np.int64)


def _gather(ev: Evaluator, instr: Instr, x: Numbers, indices: Numbers) -> Numbers:
    axis = instr.attrs["axis"]
    return np.take(x, _in_range(indices, x.shape[axis], "gather", wrap=instr.attrs["wrap"]), axis)


def _grid(shape: Sequence[int], axis: int, index: Numbers) -> tuple[Numbers, ...]:
    """Indices of every element of *shape*, with *index* along *axis*."""
    return tuple(index if i == axis else g for i, g in enumerate(np.ogrid[tuple(slice(n) for n in shape)]))


def _gather_elements(ev: Evaluator, instr: Instr, x: Numbers, indices: Numbers) -> Numbers:
    axis = instr.attrs["axis"]
    return x[_grid(indices.shape, axis, _in_range(indices, x.shape[axis], "gather_elements"))]


def _nd_index(shape: Sequence[int], indices: Numbers, batch_dims: int, what: str) -> tuple[Numbers, ...]:
    depth = indices.shape[-1]
    leading = np.ogrid[tuple(slice(n) for n in indices.shape[:batch_dims])] if batch_dims else []
    rest = indices.ndim - 1 - batch_dims
    batch = [g.reshape(*g.shape, *[1] * rest) for g in leading]
    return (*batch, *(_in_range(indices[..., i], shape[batch_dims + i], what) for i in range(depth)))


def _gather_nd(ev: Evaluator, instr: Instr, x: Numbers, indices: Numbers) -> Numbers:
    return x[_nd_index(x.shape, indices, instr.attrs["batch_dims"], "gather_nd")]


_UPDATES: dict[str, Any] = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


def _scatter(ev: Evaluator, instr: Instr, x: Numbers, indices: Numbers, updates: Numbers) -> Numbers:
    out, reduction = x.copy(), instr.attrs["reduction"]
    if instr.attrs["kind"] == "nd":
        where = _nd_index(x.shape, indices, 0, "scatter")
    else:
        axis = instr.attrs["axis"]
        where = _grid(indices.shape, axis, _in_range(indices, x.shape[axis], "scatter"))
    if not where:
        raise IndexError("scatter needs an index of depth 1 or more")
    if reduction == "none":
        out[where] = updates
    else:
        _UPDATES[reduction].at(out, where, updates)
    return out


# ------------------------------------------------------------------------------------------------ reductions, contraction


def _extreme(x: Numbers, axes: tuple[int, ...], largest: bool) -> Numbers:
    if x.dtype.kind == "f":
        initial: Any = -math.inf if largest else math.inf
    elif x.dtype.kind == "b":
        initial = not largest
    else:
        initial = np.iinfo(x.dtype).min if largest else np.iinfo(x.dtype).max
    return np.asarray((np.max if largest else np.min)(x, axis=axes, initial=initial))


def _reduce(ev: Evaluator, instr: Instr, x: Numbers) -> Numbers:
    fn, axes = instr.attrs["fn"], instr.attrs["axes"]
    if fn in ("sum", "prod"):
        return np.asarray((np.sum if fn == "sum" else np.prod)(x, axis=axes, dtype=x.dtype))
    if fn in ("max", "min"):
        return np.asarray(_extreme(x, axes, fn == "max"))
    (axis,) = axes
    if x.shape[axis] == 0:  # what it holds is never read
        return np.zeros(tuple(np.delete(x.shape, axis)), np.int64)
    find = np.argmax if fn == "argmax" else np.argmin
    if instr.attrs.get("last"):
        return np.asarray(x.shape[axis] - 1 - find(np.flip(x, axis), axis=axis))
    return np.asarray(find(x, axis=axis))


def _contract(ev: Evaluator, instr: Instr, a: Numbers, b: Numbers) -> Numbers:
    acc = ev.compute(instr.attrs["acc"])
    return np.asarray(np.matmul(a.astype(acc, copy=False), b.astype(acc, copy=False)))


def _attention(ev: Evaluator, instr: Instr, q: Numbers, k: Numbers, v: Numbers, *others: Numbers) -> Numbers:
    operands = (q, k, v, *others)
    x = _contract(ev, instr, q, k)
    for fn, arguments in instr.attrs["score"]:
        x = np.asarray(MAPS[fn](*(x if n < 0 else operands[n] for n in arguments)))
    empty = instr.attrs["empty"]
    highest = x.max(-1, keepdims=True, initial=-math.inf)
    if empty == "zero":
        highest = np.where(np.isneginf(highest), 0, highest)
    e = np.exp(x - highest)
    total = e.sum(-1, keepdims=True)
    p = e / (np.where(total == 0, 1, total) if empty == "zero" else total)
    p = np.where(np.isnan(p), 0, p) if empty == "clean" else p
    return _contract(ev, instr, p.astype(ev.hold(instr.inputs[2].dtype)), v)


PRIMITIVES: dict[str, Primitive] = {
    "attention": _attention,
    "map": _map,
    "cast": _cast,
    "bits": _bits,
    "iota": _iota,
    "dims": _dims,
    "reduce": _reduce,
    "contract": _contract,
    "reshape": lambda ev, instr, x: x.reshape(ev.shape(instr.attrs["shape"])),
    "transpose": lambda ev, instr, x: np.transpose(x, instr.attrs["perm"]),
    "broadcast": lambda ev, instr, x: np.broadcast_to(x, ev.shape(instr.attrs["shape"])),
    "slice": _slice,
    "pad": _pad,
    "concat": lambda ev, instr, *xs: np.concatenate(xs, instr.attrs["axis"]),
    "gather": _gather,
    "gather_elements": _gather_elements,
    "gather_nd": _gather_nd,
    "scatter": _scatter,
}
