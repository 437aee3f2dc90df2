"""Reductions over axes, ArgMax/ArgMin, running sums. Half floats are summed in float32 and rounded once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from onnx_vulkan.dims import axis_of
from onnx_vulkan.dtypes import FLOATS, INTS, NUMERIC, REAL, DType
from onnx_vulkan.errors import Unsupported
from onnx_vulkan.lower.registry import Host, LowerContext, lowers
from onnx_vulkan.program.composites import wide
from onnx_vulkan.program.ir import Value

__all__ = ["host_axes"]

Formula = Callable[[LowerContext, Value, Sequence[int]], Value]
"""``(b, x, axes)`` gives the reduction over *axes*, kept as 1."""


def host_axes(axes: Host | None) -> list[int] | None:
    """Axes given as an input: plain integers. Raises Unsupported when they depend on the run's shapes."""
    if axes is None:
        return None
    given = [a for a in axes.ints() if isinstance(a, int)]
    if len(given) != len(axes.items()):
        raise Unsupported("axes that depend on the shapes of a run are not supported")
    return given


def _sum(b: LowerContext, x: Value, axes: Sequence[int]) -> Value:
    return b.reduce("sum", x, axes, keepdims=True)


def _extreme(fn: str) -> Formula:
    def formula(b: LowerContext, x: Value, axes: Sequence[int]) -> Value:
        if x.dtype is DType.BOOL:  # max is "any", min is "all"; of nothing, the lowest and the highest integer
            return b.map("gt", b.reduce(fn, b.cast(x, DType.I32), axes, keepdims=True), b.scalar(0, DType.I32))
        return b.reduce(fn, x, axes, keepdims=True)

    return formula


def _log_sum_exp(b: LowerContext, x: Value, axes: Sequence[int]) -> Value:
    """``m + log(sum(exp(x - m)))``, m being the maximum where it is finite, else 0."""
    m = b.reduce("max", x, axes, keepdims=True)
    infinite = b.map("or", b.map("isposinf", m), b.map("isneginf", m))
    m = b.map("select", infinite, b.scalar(0, x.dtype), m)
    return b.map("add", b.map("log", _sum(b, b.map("exp", b.map("sub", x, m)), axes)), m)


def _in_floats(formula: Formula) -> Formula:
    """*formula* of integers: computed in float64 and cut off, as ONNX Runtime does."""

    def wider(b: LowerContext, x: Value, axes: Sequence[int]) -> Value:
        if not x.dtype.is_int:
            return formula(b, x, axes)
        return b.cast(formula(b, b.cast(x, DType.F64), axes), x.dtype, saturate=True)

    return wider


def _squares(b: LowerContext, x: Value, axes: Sequence[int]) -> Value:
    return _sum(b, b.map("mul", x, x), axes)


def _reduce(b: LowerContext, formula: Formula, x: Value, axes: Sequence[int] | None, keepdims: int, noop: int = 0) -> Value:
    axes = list(axes or ([] if noop else range(x.rank)))
    y = b.cast(formula(b, wide(b, x), axes), x.dtype)
    if keepdims:
        return y
    gone = {axis_of(a, x.rank) for a in axes} if x.rank else set()
    return b.reshape(y, [e for i, e in enumerate(x.shape) if i not in gone])


def _register(op: str, formula: Formula, dtypes: Collection[DType], by_attribute: list[int], by_input: list[int]) -> None:
    def attribute_form(b: LowerContext, x: Value, *, axes: list[int] | None = None, keepdims: int = 1) -> Value:
        return _reduce(b, formula, x, axes, keepdims)

    def input_form(b: LowerContext, x: Value, axes: Host | None, *, keepdims: int = 1, noop_with_empty_axes: int = 0) -> Value:
        return _reduce(b, formula, x, host_axes(axes), keepdims, noop_with_empty_axes)

    lowers(op, by_attribute, {"x": dtypes})(attribute_form)
    lowers(op, by_input, {"x": dtypes})(input_form)


_register("ReduceSum", _sum, REAL, [1, 11], [13])
_register("ReduceMean", lambda b, x, axes: b.mean(x, axes, keepdims=True), REAL, [1, 11, 13], [18])
_register("ReduceMax", _extreme("max"), NUMERIC, [1, 11, 12, 13], [18, 20])
_register("ReduceMin", _extreme("min"), NUMERIC, [1, 11, 12, 13], [18, 20])
_register("ReduceProd", lambda b, x, axes: b.reduce("prod", x, axes, keepdims=True), REAL, [1, 11, 13], [18])
_register("ReduceL1", lambda b, x, axes: _sum(b, b.map("abs", x), axes), REAL, [1, 11, 13], [18])
_WORDS = FLOATS | {DType.I32, DType.U32, DType.I64, DType.U64}
_register("ReduceL2", _in_floats(lambda b, x, axes: b.map("sqrt", _squares(b, x, axes))), _WORDS, [1, 11, 13], [18])
_register("ReduceLogSum", _in_floats(lambda b, x, axes: b.map("log", _sum(b, x, axes))), _WORDS, [1, 11, 13], [18, 28])
_register("ReduceLogSumExp", _in_floats(_log_sum_exp), _WORDS, [1, 11, 13], [18, 28])
_register("ReduceSumSquare", _squares, REAL, [1, 11, 13], [18])


def _register_arg(op: str, fn: str) -> None:
    @lowers(op, [1, 11, 12, 13], {"x": FLOATS | INTS})
    def lowering(b: LowerContext, x: Value, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> Value:
        return b.reduce(fn, x, [axis], keepdims=bool(keepdims), last=bool(select_last_index))


_register_arg("ArgMax", "argmax")
_register_arg("ArgMin", "argmin")


def _register_scan(op: str, fn: str, versions: list[int]) -> None:
    @lowers(op, versions, {"x": REAL})
    def lowering(b: LowerContext, x: Value, axis: Host, *, exclusive: int = 0, reverse: int = 0) -> Value:
        (along,) = host_axes(axis) or [0]
        y = b.scan(fn, wide(b, x), along, exclusive=bool(exclusive), reverse=bool(reverse))
        return b.cast(y, x.dtype)


_register_scan("CumSum", "sum", [11, 14])
_register_scan("CumProd", "prod", [26])
