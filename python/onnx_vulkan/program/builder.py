"""Builds Programs: one method a primitive, with shape inference, checks and the obvious simplifications.

Lowerings and decompositions call these; nobody makes an Instr by hand. Binary methods broadcast their operands by numpy's
rule (writing the ``broadcast`` out) and want equal dtypes. A shape that cannot be is a ShapeMismatch (or Unsupported while
claiming); wrong dtypes are a bug of the caller and raise TypeError.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from onnx_vulkan.dims import (
    Dim,
    Extent,
    at_least,
    axis_of,
    broadcast_shapes,
    current_scope,
    is_one,
    product,
    require_at_least,
    require_same,
    same,
)
from onnx_vulkan.dtypes import SMALL, DType
from onnx_vulkan.errors import ShapeMismatch
from onnx_vulkan.graph import Array
from onnx_vulkan.packing import pack
from onnx_vulkan.program.ir import COMPARE, MAP_FNS, Instr, Program, Value

__all__ = ["Builder"]

_MOVES = frozenset("reshape transpose broadcast slice pad concat gather gather_elements gather_nd scatter bits".split())
"""What may be done with a value of a small type (:data:`~onnx_vulkan.dtypes.SMALL`)."""
_BOOL_RESULT = COMPARE | {"isnan", "isposinf", "isneginf"}


class Builder:
    """Grows a Program. ``source`` and ``merged`` are stamped on every new instruction."""

    def __init__(self) -> None:
        self.instrs: list[Instr] = []
        self.inputs: list[Value] = []
        self.source = ""
        self.merged: tuple[str, ...] = ()
        self._scalars: dict[tuple[DType, bytes], Value] = {}
        self._made: dict[Value, Instr] = {}

    # ------------------------------------------------------------------------------------------------ values
    def input(self, name: str, dtype: DType, shape: Sequence[Extent]) -> Value:
        """Declare a program input."""
        v = Value(dtype, tuple(shape), name)
        self.inputs.append(v)
        return v

    def const(self, data: Array, name: str = "") -> Value:
        """A constant. The array is kept, not copied (but packed); scalars of equal bytes are shared."""
        dtype = DType.of(data.dtype)
        if dtype.bits < 8:
            return Value(dtype, tuple(int(d) for d in data.shape), name, pack(data))
        if data.ndim == 0:
            key = (dtype, data.tobytes())
            if key not in self._scalars:
                self._scalars[key] = Value(dtype, (), name, data)
            return self._scalars[key]
        return Value(dtype, tuple(int(d) for d in data.shape), name, data)

    def scalar(self, value: Any, dtype: DType) -> Value:
        """A rank-0 constant of *dtype*."""
        return self.const(np.asarray(value).astype(dtype.numpy)[()].reshape(()))

    def finish(self, outputs: Sequence[Value]) -> Program:
        """The Program so far, with these outputs."""
        return Program(list(self.inputs), list(outputs), list(self.instrs))

    def emit(
        self, op: str, inputs: Sequence[Value], outputs: Sequence[tuple[DType, Sequence[Extent]]], /, **attrs: Any
    ) -> tuple[Value, ...]:
        """Append an instruction (primitive or composite) with the given output types; gives back its outputs."""
        if op not in _MOVES or attrs.get("reduction", "none") != "none":
            for dtype in (*[v.dtype for v in inputs], *[t for t, _ in outputs]):
                if dtype in SMALL:
                    raise TypeError(f"{op} of {dtype.onnx_name}")
        outs = tuple([Value(dtype, tuple(shape)) for dtype, shape in outputs])
        for o in outs:
            for e in o.shape:
                if isinstance(e, int) and e < 0:
                    raise ShapeMismatch(f"its result would have the shape {outs[0].shape}")
        return self.append(Instr(op, tuple(inputs), outs, attrs, self.source, self.merged))

    def append(self, instr: Instr) -> tuple[Value, ...]:
        """Append a made instruction; gives back its outputs."""
        self.instrs.append(instr)
        for o in instr.outputs:
            self._made[o] = instr
        return instr.outputs

    def _one(self, op: str, inputs: Sequence[Value], dtype: DType, shape: Sequence[Extent], /, **attrs: Any) -> Value:
        return self.emit(op, inputs, [(dtype, shape)], **attrs)[0]

    # ------------------------------------------------------------------------------------------------ elementwise
    def map(self, fn: str, *xs: Value) -> Value:
        """Elementwise *fn*; operands are broadcast to their common shape."""
        if fn not in MAP_FNS:
            raise TypeError(f"{fn} is not an elementwise function of the program")
        data = xs[1:] if fn == "select" else xs
        if any(x.dtype is not data[0].dtype for x in data) or (fn == "select" and xs[0].dtype is not DType.BOOL):
            raise TypeError(f"{fn} got operands of {[x.dtype.onnx_name for x in xs]}")
        shape = broadcast_shapes(*(x.shape for x in xs))
        dtype = DType.BOOL if fn in _BOOL_RESULT else data[0].dtype
        return self._one("map", [self.broadcast(x, shape) for x in xs], dtype, shape, fn=fn)

    def __getattr__(self, fn: str) -> Any:
        # b.add(x, y), b.exp(x), ...: every elementwise function is a method (names that are Python keywords
        # take a trailing underscore: b.not_, b.and_, b.or_).
        name = fn.rstrip("_")
        if name in MAP_FNS and not fn.startswith("_"):
            return lambda *xs: self.map(name, *xs)
        raise AttributeError(fn)

    def cast(self, x: Value, dtype: DType, *, saturate: bool = False) -> Value:
        """Convert to *dtype*; nothing happens when it already is."""
        if x.dtype is dtype:
            return x
        return self._one("cast", [x], dtype, x.shape, saturate=saturate)

    def bits(self, x: Value, dtype: DType) -> Value:
        """Reinterpret the bytes as another dtype of the same size."""
        if dtype.size != x.dtype.size:
            raise TypeError(f"cannot reinterpret {x.dtype.onnx_name} as {dtype.onnx_name}: sizes differ")
        return x if dtype is x.dtype else self._one("bits", [x], dtype, x.shape)

    # ------------------------------------------------------------------------------------------------ sources
    def iota(self, shape: Sequence[Extent], axis: int, dtype: DType, start: Extent = 0, step: Extent = 1) -> Value:
        """``start + step * index`` along *axis*."""
        return self._one("iota", [], dtype, shape, shape=tuple(shape), axis=axis % max(len(shape), 1), start=start, step=step)

    def dims(self, values: Sequence[Extent], shape: Sequence[int]) -> Value:
        """An int64 tensor of run-known integers; a constant where all are numbers."""
        if not any(isinstance(v, Dim) for v in values):
            numbers = [v for v in values if not isinstance(v, Dim)]
            return self.const(np.array(numbers, np.int64).reshape(tuple(shape)))
        return self._one("dims", [], DType.I64, shape, values=tuple(values), shape=tuple(shape))

    def full(self, shape: Sequence[Extent], value: Any, dtype: DType) -> Value:
        """A tensor of one value."""
        return self.broadcast(self.scalar(value, dtype), shape)

    # ------------------------------------------------------------------------------------------------ movement
    def reshape(self, x: Value, shape: Sequence[Extent]) -> Value:
        """Row-major reshape; the element counts must be equal."""
        shape = tuple(shape)
        if shape == x.shape:
            return x
        require_same(product(x.shape), product(shape), f"cannot reshape {x.shape} to {shape}: element counts differ")
        numbers = tuple(e for e in shape if not isinstance(e, Dim))
        if x.data is not None and len(numbers) == len(shape):
            if x.dtype.bits < 8:
                return Value(x.dtype, numbers, x.name, x.data)
            constant = self.const(x.data.reshape(numbers), x.name and f"{x.name}:{list(numbers)}")
            constant.packed = x.packed
            return constant
        made = self._made.get(x)
        if made is not None and made.op == "reshape":
            return self.reshape(made.inputs[0], shape)
        return self._one("reshape", [x], x.dtype, shape, shape=shape)

    def transpose(self, x: Value, perm: Sequence[int]) -> Value:
        """Axis *i* of the result is axis ``perm[i]`` of *x*."""
        rank = x.rank
        perm = tuple([p % rank for p in perm]) if rank else ()
        if perm == tuple(range(rank)):
            return x
        shape = [x.shape[p] for p in perm]
        moved = [p for p, e in zip(perm, shape, strict=True) if not (isinstance(e, int) and e == 1)]
        if moved == sorted(moved):
            # only axes of extent 1 change places: the bytes stay as they are
            return self.reshape(x, shape)
        made = self._made.get(x)
        if made is not None and made.op == "transpose":
            inner = made.attrs["perm"]
            return self.transpose(made.inputs[0], [inner[p] for p in perm])
        if made is not None and made.op == "broadcast":
            spread = self.reshape(made.inputs[0], (*([1] * (x.rank - made.inputs[0].rank)), *made.inputs[0].shape))
            return self.broadcast(self.transpose(spread, perm), shape)
        return self._one("transpose", [x], x.dtype, [x.shape[p] for p in perm], perm=perm)

    def broadcast(self, x: Value, shape: Sequence[Extent]) -> Value:
        """numpy.broadcast_to."""
        shape = tuple(shape)
        if shape == x.shape:
            return x
        if x.rank > len(shape):
            raise ShapeMismatch(f"cannot broadcast {x.shape} to {shape}")
        spreads = x.rank < len(shape)
        for a, b in zip(x.shape, shape[len(shape) - x.rank :], strict=True):
            if a == b:
                continue
            # an extent fixed to 1 may always be spread; asking whether the other is 1 as well would only add a guard
            if (isinstance(a, int) and a == 1) or (not same(a, b) and is_one(a)):
                spreads = True
            else:
                require_same(a, b, f"cannot broadcast {x.shape} to {shape}")
        if not spreads:
            return self.reshape(x, shape)
        made = self._made.get(x)
        if made is not None and made.op == "broadcast":
            return self.broadcast(made.inputs[0], shape)
        # Which axes are spread is decided here and written down: a symbol becomes 1, or the extent that it equals in this run.
        own = shape[len(shape) - x.rank :]
        x = self.reshape(x, tuple(a if a == b else 1 if is_one(a) else b for a, b in zip(x.shape, own, strict=True)))
        return self._one("broadcast", [x], x.dtype, shape, shape=shape)

    def slice(self, x: Value, starts: Sequence[Extent], sizes: Sequence[Extent], steps: Sequence[int] | None = None) -> Value:
        """``size`` elements an axis from ``start`` by ``step``; that they lie inside is checked."""
        steps = tuple(steps) if steps is not None else (1,) * x.rank
        starts, sizes = tuple(starts), tuple(sizes)
        for start, size, step, e in zip(starts, sizes, steps, x.shape, strict=True):
            if (isinstance(size, int) and size == 0) or (size == e and isinstance(start, int) and start == 0 and step == 1):
                continue
            last = start + (size - 1) * step
            low, high = (start, last) if step > 0 else (last, start)
            known = current_scope().values is not None or not any(isinstance(n, Dim) for n in (low, high, e))
            if known and not (at_least(low, 0) and at_least(e - 1, high)):  # no element may lie anywhere
                require_at_least(0, size, f"a slice of {size} elements from {start} leaves an axis of {x.shape}")
        if sizes == x.shape and all(s == 0 for s in starts) and all(s == 1 for s in steps):
            return x
        return self._one("slice", [x], x.dtype, sizes, starts=starts, sizes=sizes, steps=steps)

    def pad(
        self, x: Value, before: Sequence[Extent], after: Sequence[Extent], mode: str = "constant", fill: Value | None = None
    ) -> Value:
        """Grow each axis by ``before`` and ``after`` (non-negative); *fill* is a rank-0 value, 0 by default."""
        before, after = tuple(before), tuple(after)
        if all(isinstance(p, int) and p == 0 for p in (*before, *after)):
            return x
        shape = [b + e + a for b, e, a in zip(before, x.shape, after, strict=True)]
        inputs = [x]
        if mode == "constant":
            inputs.append(fill if fill is not None else self.scalar(0, x.dtype))
        return self._one("pad", inputs, x.dtype, shape, before=before, after=after, mode=mode)

    def concat(self, xs: Sequence[Value], axis: int) -> Value:
        """Join along *axis*; the other extents must agree."""
        if len(xs) == 1:
            return xs[0]
        axis = axis_of(axis, xs[0].rank)
        shape = list(xs[0].shape)
        for x in xs[1:]:
            for i, e in enumerate(x.shape):
                if i == axis:
                    shape[i] = shape[i] + e
                else:
                    shape[i] = require_same(shape[i], e, f"concat operands disagree on axis {i}")
        return self._one("concat", list(xs), xs[0].dtype, shape, axis=axis)

    def _nothing(self, extents: Sequence[Extent], indices: Value) -> bool:
        """Whether *indices* name places along an axis that has none: there must be no index then."""
        if all(at_least(e, 1) for e in extents):
            return False
        require_same(product(indices.shape), 0, "an axis without elements is indexed: the number of indices has to be 0")
        return True

    def gather(self, x: Value, indices: Value, axis: int, *, wrap: bool = True) -> Value:
        """numpy.take along *axis*; int32 or int64 indices. Without *wrap* an index below 0 is outside."""
        axis = axis_of(axis, x.rank)
        shape = (*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :])
        if self._nothing([x.shape[axis]], indices):
            return self.full(shape, 0, x.dtype)
        return self._one("gather", [x, indices], x.dtype, shape, axis=axis, wrap=wrap)

    def bounded(self, x: Value, extent: Extent) -> Value:
        """*x* (int32 or int64), of which the run fails for an element that is not from 0 on and less than *extent*."""
        return self.gather(self.iota((extent,), 0, x.dtype), x, 0, wrap=False)

    def gather_elements(self, x: Value, indices: Value, axis: int) -> Value:
        """numpy.take_along_axis, other axes may be shorter than x's."""
        axis = axis_of(axis, x.rank)
        self._along(x, indices, axis)
        if self._nothing([x.shape[axis]], indices):
            return self.full(indices.shape, 0, x.dtype)
        return self._one("gather_elements", [x, indices], x.dtype, indices.shape, axis=axis)

    def _along(self, x: Value, indices: Value, axis: int) -> None:
        """Demand that *indices* have no more elements than *x* along the other axes."""
        require_same(x.rank, indices.rank, "data and indices are of different ranks")
        for i, (e, n) in enumerate(zip(x.shape, indices.shape, strict=True)):
            if i != axis:
                require_at_least(e, n, f"the indices {indices.shape} go beyond axis {i} of {x.shape}")

    def gather_nd(self, x: Value, indices: Value, batch_dims: int = 0) -> Value:
        """ONNX GatherND."""
        depth = indices.shape[-1]
        if isinstance(depth, Dim):
            raise TypeError("gather_nd needs a known index depth")
        if batch_dims + depth > x.rank:
            raise ShapeMismatch(f"indices of {depth} numbers after {batch_dims} batch axes, and the data have rank {x.rank}")
        for i in range(batch_dims):
            require_same(x.shape[i], indices.shape[i], f"data and indices disagree on batch axis {i}")
        shape = (*indices.shape[:-1], *x.shape[batch_dims + depth :])
        if self._nothing(x.shape[batch_dims : batch_dims + depth], indices):
            return self.full(shape, 0, x.dtype)
        return self._one("gather_nd", [x, indices], x.dtype, shape, batch_dims=batch_dims)

    def scatter(self, x: Value, indices: Value, updates: Value, *, kind: str, axis: int = 0, reduction: str = "none") -> Value:
        """ONNX ScatterND (kind ``nd``) or ScatterElements (kind ``elements``)."""
        if kind == "elements":
            axis = axis_of(axis, x.rank)
            self._along(x, indices, axis)
            rows: tuple[Extent, ...] = indices.shape
            indexed: Sequence[Extent] = [x.shape[axis]]
        else:
            depth = indices.shape[-1]
            if isinstance(depth, Dim):
                raise TypeError("scatter needs a known index depth")
            if depth > x.rank:
                raise ShapeMismatch(f"indices of {depth} numbers, and the data have rank {x.rank}")
            rows, indexed = (*indices.shape[:-1], *x.shape[depth:]), x.shape[:depth]
        if self._nothing(indexed, indices):
            return x
        require_same(len(rows), updates.rank, "the updates are not of the rank that the indices ask for")
        for e, n in zip(rows, updates.shape, strict=True):
            require_same(e, n, f"the updates {updates.shape} are not of the shape that the indices ask for")
        return self._one("scatter", [x, indices, updates], x.dtype, x.shape, kind=kind, axis=axis, reduction=reduction)

    # ------------------------------------------------------------------------------------------------ reductions
    def reduce(self, fn: str, x: Value, axes: Sequence[int], *, keepdims: bool = False, last: bool = False) -> Value:
        """sum prod max min argmax argmin over *axes*; with *keepdims* the axes come back as 1."""
        axes = tuple(sorted({axis_of(a, x.rank) for a in axes})) if x.rank else ()
        if not axes and fn not in ("argmax", "argmin"):
            return x
        shape = [e for i, e in enumerate(x.shape) if i not in axes]
        dtype = DType.I64 if fn in ("argmax", "argmin") else x.dtype
        y = self._one("reduce", [x], dtype, shape, fn=fn, axes=axes, last=last)
        if keepdims:
            y = self.reshape(y, [1 if i in axes else e for i, e in enumerate(x.shape)])
        return y

    def count(self, x: Value, axes: Sequence[int], dtype: DType) -> Value:
        """How many elements a reduction over *axes* takes in, as a rank-0 value of *dtype*."""
        n = product(x.shape[a % x.rank] for a in axes)
        return self.scalar(n, dtype) if isinstance(n, int) else self.cast(self.dims([n], ()), dtype)

    def mean(self, x: Value, axes: Sequence[int], *, keepdims: bool = False) -> Value:
        """Sum over *axes* divided by the count."""
        total = self.reduce("sum", x, axes, keepdims=keepdims)
        return self.map("div", total, self.count(x, axes, x.dtype)) if axes else x

    def scan(self, fn: str, x: Value, axis: int, *, exclusive: bool = False, reverse: bool = False) -> Value:
        """Running sum or product."""
        return self._one("scan", [x], x.dtype, x.shape, fn=fn, axis=axis_of(axis, x.rank), exclusive=exclusive, reverse=reverse)

    def sort(self, x: Value, k: Extent, axis: int, *, largest: bool) -> tuple[Value, Value]:
        """The first *k* of a stable sort along *axis*: values and int64 indices."""
        axis = axis_of(axis, x.rank)
        shape = [k if i == axis else e for i, e in enumerate(x.shape)]
        values, indices = self.emit("sort", [x], [(x.dtype, shape), (DType.I64, shape)], axis=axis, largest=largest)
        return values, indices

    # ------------------------------------------------------------------------------------------------ contractions
    def contract(self, a: Value, b: Value, *, dtype: DType | None = None, acc: DType | None = None) -> Value:
        """``a @ b`` for rank >= 2 operands; batch dims broadcast. *acc* is the accumulation dtype."""
        batch = broadcast_shapes(a.shape[:-2], b.shape[:-2])
        require_same(a.shape[-1], b.shape[-2], f"matrix product of {a.shape} and {b.shape}: inner extents differ")
        a = self.broadcast(a, (*batch, *a.shape[-2:]))
        b = self.broadcast(b, (*batch, *b.shape[-2:]))
        dtype = dtype or a.dtype
        acc = acc or (DType.F32 if dtype in (DType.F16, DType.BF16) else dtype)
        return self._one("contract", [a, b], dtype, (*batch, a.shape[-2], b.shape[-1]), acc=acc)

    def window(
        self,
        kind: str,
        x: Value,
        w: Value | None,
        *,
        out_channels: Extent,
        out_spatial: Sequence[Extent],
        kernel: Sequence[int],
        strides: Sequence[int],
        dilations: Sequence[int],
        pads_begin: Sequence[Extent],
        pads_end: Sequence[Extent],
        dtype: DType | None = None,
        acc: DType | None = None,
        indices: bool = False,
        **attrs: Any,
    ) -> tuple[Value, ...]:
        """The ``window`` primitive (see :mod:`onnx_vulkan.program.ir`); gives one output, two for max with *indices*."""
        dtype = dtype or x.dtype
        acc = acc or (DType.F32 if dtype in (DType.F16, DType.BF16) else dtype)
        shape = (x.shape[0], *out_spatial, out_channels)
        outputs = [(dtype, shape)] + ([(DType.I64, shape)] if indices else [])
        return self.emit(
            "window",
            [x] if w is None else [x, w],
            outputs,
            kind=kind,
            kernel=tuple(kernel),
            strides=tuple(strides),
            dilations=tuple(dilations),
            pads_begin=tuple(pads_begin),
            pads_end=tuple(pads_end),
            out_spatial=tuple(out_spatial),
            acc=acc,
            **attrs,
        )
