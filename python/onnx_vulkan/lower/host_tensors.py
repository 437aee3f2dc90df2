"""Host evaluation of what moves, makes and reduces small tensors of numbers and Dims: the rest of shape arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from onnx_vulkan.dims import Dim
from onnx_vulkan.dtypes import SMALL, DType
from onnx_vulkan.lower.host import HOST_LIMIT, array_of, convert, elementwise, host_of, is_plain, objects
from onnx_vulkan.lower.registry import Host, LowerContext, NotHost, Unknown, evaluates


def numbers(x: Host) -> list[int]:
    """The elements as ints; declines when one is symbolic."""
    if not is_plain(x):
        raise NotHost
    return [int(v) for v in x.items()]


def _axes(attribute: Sequence[int] | None, inputs: Sequence[Host | None], rank: int) -> list[int] | None:
    """The axes, from the attribute (older versions) or the input, non-negative; None when neither is given."""
    if attribute is None and inputs and inputs[0] is not None:
        attribute = numbers(inputs[0])
    return None if attribute is None else [a % rank if rank else 0 for a in attribute]


def _limited(shape: Sequence[int]) -> tuple[int, ...]:
    if int(np.prod(shape, dtype=np.int64)) > HOST_LIMIT:
        raise NotHost
    return tuple(shape)


# ---------------------------------------------------------------------------------------------------------------- movement


@evaluates("Gather")
def _gather(ctx: LowerContext, x: Host, indices: Host, *, axis: int = 0) -> Host:
    _limited([*indices.shape, *(n for i, n in enumerate(x.shape) if i != axis % x.data.ndim)])
    return Host(x.dtype, np.asarray(np.take(x.data, np.array(numbers(indices), np.int64).reshape(indices.shape), axis), object))


@evaluates("GatherElements")
def _gather_elements(ctx: LowerContext, x: Host, indices: Host, *, axis: int = 0) -> Host:
    where = np.array(numbers(indices), np.int64).reshape(indices.shape)
    # numpy would broadcast an axis of one index, ONNX reads the first elements
    part = tuple(slice(None) if i == axis % len(x.shape) else slice(n) for i, n in enumerate(indices.shape))
    return Host(x.dtype, np.take_along_axis(x.data[part], where, axis))


@evaluates("GatherND")
def _gather_nd(ctx: LowerContext, x: Host, indices: Host, *, batch_dims: int = 0) -> Host:
    if batch_dims:
        raise NotHost
    where = np.array(numbers(indices), np.int64).reshape(indices.shape)
    return Host(x.dtype, np.asarray(x.data[tuple(np.moveaxis(where, -1, 0))], object))


@evaluates("Slice")
def _slice(
    ctx: LowerContext,
    x: Host,
    *inputs: Host | None,
    starts: Sequence[int] | None = None,
    ends: Sequence[int] | None = None,
    axes: Sequence[int] | None = None,
) -> Host:
    given: list[Sequence[int] | None] = [starts, ends, axes, None]
    for i, h in enumerate(inputs):
        given[i] = numbers(h) if h is not None else None
    first, last, along, steps = given
    if first is None or last is None:
        raise NotHost
    data = x.data
    for i, axis in enumerate(along if along is not None else range(len(first))):
        data = np.take(data, _clamped_range(x.shape[axis], first[i], last[i], steps[i] if steps is not None else 1), axis)
    return Host(x.dtype, np.asarray(data, object))


def _clamped_range(n: int, start: int, end: int, step: int) -> list[int]:
    """The indices that ONNX Slice takes of an axis of *n*."""
    start, end = (v + n if v < 0 else v for v in (start, end))
    if step > 0:
        return list(range(min(max(start, 0), n), min(max(end, 0), n), step))
    return list(range(min(max(start, 0), n - 1), min(max(end, -1), n - 1), step)) if n else []


@evaluates("Concat")
def _concat(ctx: LowerContext, *xs: Host, axis: int = 1) -> Host:
    _limited([sum(x.data.size for x in xs)])
    return Host(xs[0].dtype, np.concatenate([x.data for x in xs], axis))


@evaluates("Squeeze")
def _squeeze(ctx: LowerContext, x: Host, *inputs: Host | None, axes: Sequence[int] | None = None) -> Host:
    along = _axes(axes, inputs, x.data.ndim)
    gone = along if along is not None else [i for i, n in enumerate(x.shape) if n == 1]
    return Host(x.dtype, x.data.reshape([n for i, n in enumerate(x.shape) if i not in gone]))


@evaluates("Unsqueeze")
def _unsqueeze(ctx: LowerContext, x: Host, *inputs: Host | None, axes: Sequence[int] | None = None) -> Host:
    count = len(axes) if axes is not None else (inputs[0].data.size if inputs and inputs[0] is not None else 0)
    along = _axes(axes, inputs, x.data.ndim + count) or []
    rest = iter(x.shape)
    return Host(x.dtype, x.data.reshape([1 if i in along else next(rest) for i in range(x.data.ndim + count)]))


@evaluates("Reshape")
def _reshape(ctx: LowerContext, x: Host, *inputs: Host | None, shape: Sequence[int] | None = None, allowzero: int = 0) -> Host:
    target = list(shape) if shape is not None else numbers(inputs[0]) if inputs and inputs[0] is not None else []
    if not allowzero:
        target = [x.shape[i] if n == 0 else n for i, n in enumerate(target)]
    return Host(x.dtype, x.data.reshape(target))


@evaluates("Flatten")
def _flatten(ctx: LowerContext, x: Host, *, axis: int = 1) -> Host:
    axis = axis % x.data.ndim if axis < 0 else axis
    return Host(x.dtype, x.data.reshape(int(np.prod(x.shape[:axis])), int(np.prod(x.shape[axis:]))))


@evaluates("Transpose")
def _transpose(ctx: LowerContext, x: Host, *, perm: Sequence[int] | None = None) -> Host:
    return Host(x.dtype, np.transpose(x.data, perm))


@evaluates("Expand")
def _expand(ctx: LowerContext, x: Host, shape: Host) -> Host:
    return Host(x.dtype, np.broadcast_to(x.data, _limited(np.broadcast_shapes(x.shape, tuple(numbers(shape))))))


@evaluates("Tile")
def _tile(ctx: LowerContext, x: Host, repeats: Host, *older: Host) -> Host:
    if older:
        raise NotHost
    times = numbers(repeats)
    _limited([n * t for n, t in zip(x.shape, times, strict=True)])
    return Host(x.dtype, np.tile(x.data, times))


@evaluates("Split")
def _split(
    ctx: LowerContext,
    x: Host,
    *inputs: Host | None,
    axis: int = 0,
    split: Sequence[int] | None = None,
    num_outputs: int | None = None,
) -> tuple[Host, ...]:
    sizes = split if split is not None else numbers(inputs[0]) if inputs and inputs[0] is not None else None
    if sizes is None:
        count = num_outputs or ctx.n_outputs
        chunk = -(-x.shape[axis] // count)
        sizes = [min(chunk, x.shape[axis] - i * chunk) for i in range(count)]
    edges = np.cumsum(sizes)[:-1]
    return tuple(Host(x.dtype, part) for part in np.split(x.data, edges, axis))


@evaluates("Pad")
def _pad(
    ctx: LowerContext,
    x: Host,
    pads: Host | None = None,
    fill: Host | None = None,
    axes: Host | None = None,
    *,
    mode: str = "constant",
    **legacy: Any,
) -> Host:
    if legacy or pads is None:  # before version 11 they are attributes
        raise NotHost
    if mode != "constant" or axes is not None or any(n < 0 for n in numbers(pads)):
        raise NotHost
    widths = np.array(numbers(pads)).reshape(2, -1).T
    _limited([n + a + b for n, (a, b) in zip(x.shape, widths, strict=True)])
    zero: Any = False if x.dtype is DType.BOOL else 0.0 if x.dtype.is_float else 0
    return Host(x.dtype, np.pad(x.data, widths, constant_values=fill.items()[0] if fill is not None else zero))


@evaluates("ScatterElements")
def _scatter_elements(
    ctx: LowerContext, x: Host, indices: Host, updates: Host, *, axis: int = 0, reduction: str = "none"
) -> Host:
    if reduction != "none":
        raise NotHost
    out = x.data.copy()
    np.put_along_axis(out, np.array(numbers(indices), np.int64).reshape(indices.shape), updates.data, axis)
    return Host(x.dtype, out)


@evaluates("ScatterND")
def _scatter_nd(ctx: LowerContext, x: Host, indices: Host, updates: Host, *, reduction: str = "none") -> Host:
    if reduction != "none":
        raise NotHost
    out, where = x.data.copy(), np.array(numbers(indices), np.int64).reshape(indices.shape)
    out[tuple(np.moveaxis(where, -1, 0))] = updates.data
    return Host(x.dtype, out)


# ----------------------------------------------------------------------------------------------------------------- sources


@evaluates("ConstantOfShape")
def _constant_of_shape(ctx: LowerContext, shape: Host, *, value: Any = None) -> Host:
    fill = np.zeros(1, np.float32) if value is None else np.asarray(value)
    dtype = DType.of(fill.dtype)
    if dtype in SMALL:
        raise NotHost
    return host_of(np.full(_limited(numbers(shape)), fill.reshape(-1)[0]), dtype)


@evaluates("Range")
def _range(ctx: LowerContext, start: Host, limit: Host, delta: Host, **_: Any) -> Host:
    a, b, step = (h.items()[0] for h in (start, limit, delta))
    if start.dtype.is_float or isinstance(step, (Dim, Unknown)) or isinstance(a, Unknown) or isinstance(b, Unknown):
        return host_of(np.arange(*(array_of(h)[()] for h in (start, limit, delta))), start.dtype)
    count = -((a - b) // step)
    if isinstance(count, Dim):
        raise NotHost
    return Host(start.dtype, objects([a + step * i for i in range(*_limited([max(count, 0)]))], [max(count, 0)]))


# -------------------------------------------------------------------------------------------------------------- reductions


def _reduction(fn: str) -> Callable[..., Host]:
    def evaluation(
        ctx: LowerContext,
        x: Host,
        *inputs: Host | None,
        axes: Sequence[int] | None = None,
        keepdims: int = 1,
        noop_with_empty_axes: int = 0,
    ) -> Host:
        along = _axes(axes, inputs, x.data.ndim)
        if not along and noop_with_empty_axes:
            return x
        gone = along or list(range(x.data.ndim))
        kept = [i for i in range(x.data.ndim) if i not in gone]
        rows = np.transpose(x.data, [*kept, *gone]).reshape([x.shape[i] for i in kept] + [-1])
        if rows.shape[-1] == 0:
            raise NotHost
        total = Host(x.dtype, np.asarray(rows[..., 0], object))
        for i in range(1, rows.shape[-1]):
            total = elementwise(ctx, fn, total, Host(x.dtype, np.asarray(rows[..., i], object)))
        return Host(
            x.dtype, total.data.reshape([1 if i in gone else n for i, n in enumerate(x.shape) if keepdims or i not in gone])
        )

    return evaluation


for _op, _fn in {"ReduceSum": "add", "ReduceProd": "mul", "ReduceMax": "max", "ReduceMin": "min"}.items():
    evaluates(_op)(_reduction(_fn))


@evaluates("CumSum")
def _cumsum(ctx: LowerContext, x: Host, axis: Host, *, exclusive: int = 0, reverse: int = 0) -> Host:
    if exclusive or reverse or x.data.ndim != 1:
        raise NotHost
    items: list[Any] = []
    for v in x.items():
        one = Host(x.dtype, objects([v], (1,)))
        items.append(elementwise(ctx, "add", items[-1], one) if items else one)
    return Host(x.dtype, objects([h.items()[0] for h in items], x.shape))


@evaluates("ArgMax")
def _argmax(ctx: LowerContext, x: Host, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> Host:
    if select_last_index:
        raise NotHost
    return host_of(np.argmax(array_of(x), axis, keepdims=bool(keepdims)), DType.I64)


@evaluates("NonZero")
def _nonzero(ctx: LowerContext, x: Host) -> Host:
    flags = convert(ctx, x, DType.BOOL)
    if not is_plain(flags):
        raise NotHost
    return host_of(np.stack(np.nonzero(np.atleast_1d(array_of(flags)))), DType.I64)
