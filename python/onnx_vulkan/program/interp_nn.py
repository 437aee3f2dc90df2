"""The numpy meaning of ``window``, ``scan``, ``sort`` and the composite instructions. The rest is in :mod:`interp`.

``EVALUATORS[op]`` is ``(evaluator, instr, *arrays) -> array or tuple of arrays``; half floats arrive as float32 and results are
rounded by the caller. Written to be read against :mod:`onnx_vulkan.program.ir`, not to be fast.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from onnx_vulkan.program.ir import Instr

if TYPE_CHECKING:
    from onnx_vulkan.program.interp import Evaluator

__all__ = ["EVALUATORS"]

Tensor = NDArray[Any]


def product_of(x: Tensor, w: Tensor) -> Tensor:
    """``x @ w``; integers through float64 where that is exact, since numpy has no fast integer product."""
    if x.dtype.kind in "iu" and x.size and w.size:
        bound = float(np.abs(x.astype(np.float64)).max()) * float(np.abs(w.astype(np.float64)).max()) * x.shape[-1]
        if bound < 2**53:
            exact = x.astype(np.float64) @ w.astype(np.float64)
            return exact.astype(np.int64).astype(x.dtype)
    result: Tensor = x @ w
    return result


class _Places:
    """The cells that a window reads, tap by tap, as strided views of the padded input."""

    def __init__(self, instr: Instr, x: Tensor, kernel: Sequence[int], fill: Any, ev: Evaluator):
        a = instr.attrs
        self.kernel = tuple(kernel)
        self.strides, self.dilations = a["strides"], a["dilations"]
        self.begin, self.end = ev.shape(a["pads_begin"]), ev.shape(a["pads_end"])
        self.out = ev.shape(a["out_spatial"])
        self.extents = x.shape[1:-1]
        self.low = [max(p, 0) for p in self.begin]
        high = [
            max(0, (o - 1) * s - p + (k - 1) * d - e + 1)
            for o, s, p, k, d, e in zip(
                self.out, self.strides, self.begin, self.kernel, self.dilations, self.extents, strict=True
            )
        ]
        width = [(0, 0), *zip(self.low, high, strict=True), (0, 0)]
        self.padded = np.pad(x, width, constant_values=fill)

    def taps(self) -> Iterator[tuple[int, ...]]:
        return itertools.product(*(range(k) for k in self.kernel))

    def view(self, tap: Sequence[int]) -> Tensor:
        """The cell that each window reads at *tap*: ``[N, *out, C]``."""
        cut = [slice(None)]
        for t, d, low, p, s, o in zip(tap, self.dilations, self.low, self.begin, self.strides, self.out, strict=True):
            start = low - p + t * d
            cut.append(slice(start, start + max(o - 1, 0) * s + 1, s) if o else slice(0, 0))
        return self.padded[tuple(cut)]

    def coordinates(self, tap: Sequence[int]) -> list[Tensor]:
        """By axis, the input coordinate read at *tap*, broadcast against ``[*out]``."""
        grids = []
        for i, (t, d, p, s, o) in enumerate(zip(tap, self.dilations, self.begin, self.strides, self.out, strict=True)):
            shape = [1] * len(self.out)
            shape[i] = o
            grids.append((np.arange(o) * s - p + t * d).reshape(shape))
        return grids

    def inside(self, tap: Sequence[int], *, padding: bool = False) -> Tensor:
        """Which windows read a cell of the input (or, with *padding*, of the input and its pads) at *tap*: ``[*out]``."""
        result: Tensor = np.ones(self.out, bool)
        for at, e, p, q in zip(self.coordinates(tap), self.extents, self.begin, self.end, strict=True):
            low, high = (-p, e + q) if padding else (0, e)
            result = result & (at >= low) & (at < high)
        return result


def _conv(ev: Evaluator, instr: Instr, x: Tensor, w: Tensor) -> Tensor:
    acc = ev.compute(instr.attrs["acc"])
    groups = instr.attrs["groups"]
    x, w = x.astype(acc), w.astype(acc)
    places = _Places(instr, x, instr.attrs["kernel"], 0, ev)
    per_group, m = w.shape[-2:]
    shape = (x.shape[0], *places.out)
    total = np.zeros((*shape, m), acc)
    for tap in places.taps():
        cells = places.view(tap)
        if groups == 1:
            total += product_of(cells, w[tap])
        elif per_group == 1:
            spread = np.repeat(cells, m // groups, axis=-1)
            total += spread * w[tap][0]
        else:
            by_group = np.moveaxis(cells.reshape(*shape, groups, per_group), -2, 0).reshape(groups, math.prod(shape), per_group)
            weights = np.moveaxis(w[tap].reshape(per_group, groups, m // groups), 1, 0)
            part = product_of(by_group, weights).reshape(groups, *shape, m // groups)
            total += np.moveaxis(part, 0, -2).reshape(*shape, m)
    return total


def _conv_transpose(ev: Evaluator, instr: Instr, x: Tensor, w: Tensor) -> Tensor:
    a = instr.attrs
    acc = ev.compute(a["acc"])
    groups, kernel = a["groups"], a["kernel"]
    x, w = x.astype(acc), w.astype(acc)
    n, *extents, c = x.shape
    per_group = w.shape[-1]
    begin, out = ev.shape(a["pads_begin"]), ev.shape(a["out_spatial"])
    whole = [(e - 1) * s + (k - 1) * d + 1 for e, s, k, d in zip(extents, a["strides"], kernel, a["dilations"], strict=True)]
    total = np.zeros((n, *(max(f, 0) for f in whole), groups * per_group), acc)
    for tap in itertools.product(*(range(k) for k in kernel)):
        by_group = np.moveaxis(x.reshape(n, *extents, groups, c // groups), -2, 0)
        part = product_of(
            by_group.reshape(groups, n * math.prod(extents), c // groups), w[tap].reshape(groups, c // groups, per_group)
        )
        part = np.moveaxis(part.reshape(groups, n, *extents, per_group), 0, -2).reshape(n, *extents, groups * per_group)
        cut = [
            slice(t * d, t * d + (e - 1) * s + 1, s)
            for t, d, e, s in zip(tap, a["dilations"], extents, a["strides"], strict=True)
        ]
        total[(slice(None), *cut)] += part
    result = np.zeros((n, *out, groups * per_group), acc)
    source, target = [], []
    for p, o, f in zip(begin, out, whole, strict=True):
        first, last = max(p, 0), max(min(p + o, f), max(p, 0))
        source.append(slice(first, last))
        target.append(slice(first - p, last - p))
    result[(slice(None), *target)] = total[(slice(None), *source)]
    return result


def _lowest(dtype: np.dtype[Any]) -> Any:
    if dtype.kind in "iu":
        return np.iinfo(dtype).min
    return -np.inf


def _max(ev: Evaluator, instr: Instr, x: Tensor) -> tuple[Tensor, ...]:
    places = _Places(instr, x, instr.attrs["kernel"], _lowest(x.dtype), ev)
    shape = (x.shape[0], *places.out, x.shape[-1])
    best = np.full(shape, _lowest(x.dtype), x.dtype)
    index = np.full(shape, -1, np.int64)
    for tap in places.taps():
        cells = places.view(tap)
        inside = places.inside(tap)[None, ..., None]
        better = inside & ((index < 0) | (cells > best) | ((cells != cells) & (best == best)))
        flat: Tensor = np.zeros((), np.int64)
        for at, e in zip(places.coordinates(tap), places.extents, strict=True):
            flat = flat * e + at
        best = np.where(better, cells, best)
        index = np.where(better, flat[None, ..., None], index)
    return (best, np.maximum(index, 0)) if len(instr.outputs) == 2 else (best,)


def _avg(ev: Evaluator, instr: Instr, x: Tensor) -> Tensor:
    acc = ev.compute(instr.attrs["acc"])
    places = _Places(instr, x.astype(acc), instr.attrs["kernel"], 0, ev)
    total = np.zeros((x.shape[0], *places.out, x.shape[-1]), acc)
    count = np.zeros(places.out, np.int64)
    for tap in places.taps():
        total += places.view(tap)
        count += places.inside(tap, padding=instr.attrs["count_include_pad"])
    result: Tensor = total / np.maximum(count, 1)[None, ..., None].astype(acc)
    return result


def _lp(ev: Evaluator, instr: Instr, x: Tensor) -> Tensor:
    acc, p = ev.compute(instr.attrs["acc"]), instr.attrs["p"]
    places = _Places(instr, x.astype(acc), instr.attrs["kernel"], 0, ev)
    total = np.zeros((x.shape[0], *places.out, x.shape[-1]), acc)
    for tap in places.taps():
        total += np.abs(places.view(tap)) ** acc.type(p)
    result: Tensor = total ** acc.type(1 / p)
    return result


def _window(ev: Evaluator, instr: Instr, *xs: Tensor) -> Any:
    kinds: dict[str, Callable[..., Any]] = {"conv": _conv, "conv_transpose": _conv_transpose, "max": _max, "avg": _avg, "lp": _lp}
    return kinds[instr.attrs["kind"]](ev, instr, *xs)


def _scan(ev: Evaluator, instr: Instr, x: Tensor) -> Tensor:
    axis = instr.attrs["axis"]
    work = np.flip(x, axis) if instr.attrs["reverse"] else x
    run = np.cumsum if instr.attrs["fn"] == "sum" else np.cumprod
    total: Tensor = run(work, axis=axis, dtype=work.dtype)
    if instr.attrs["exclusive"] and x.shape[axis]:
        first = np.full_like(np.take(total, [0], axis), 0 if instr.attrs["fn"] == "sum" else 1)
        total = np.concatenate([first, np.take(total, range(x.shape[axis] - 1), axis)], axis)
    return np.flip(total, axis) if instr.attrs["reverse"] else total


def _sort(ev: Evaluator, instr: Instr, x: Tensor) -> tuple[Tensor, ...]:
    axis = instr.attrs["axis"]
    k = ev.number(instr.outputs[0].shape[axis])
    ranks = np.unique(x, return_inverse=True)[1].reshape(x.shape)  # NaN is one value, the last
    order = np.argsort(-ranks if instr.attrs["largest"] else ranks, axis=axis, kind="stable")
    order = np.take(order, range(k), axis)
    return np.take_along_axis(x, order, axis), order.astype(np.int64)


# ------------------------------------------------------------------------------------------------------------ rnn


def _sigmoid(x: Tensor) -> Tensor:
    with np.errstate(over="ignore"):
        result: Tensor = 1 / (1 + np.exp(-x))
        return result


_ACTIVATIONS: dict[str, Callable[[Tensor, float, float], Any]] = {
    "affine": lambda x, a, b: a * x + b,
    "elu": lambda x, a, b: np.where(x < 0, a * np.expm1(np.minimum(x, 0)), x),
    "hardsigmoid": lambda x, a, b: np.clip(a * x + b, 0, 1),
    "leakyrelu": lambda x, a, b: np.where(x < 0, a * x, x),
    "relu": lambda x, a, b: np.maximum(x, 0),
    "scaledtanh": lambda x, a, b: a * np.tanh(b * x),
    "sigmoid": lambda x, a, b: _sigmoid(x),
    "softplus": lambda x, a, b: np.logaddexp(x, 0),
    "softsign": lambda x, a, b: x / (1 + np.abs(x)),
    "tanh": lambda x, a, b: np.tanh(x),
    "thresholdedrelu": lambda x, a, b: np.where(x > a, x, 0),
}


def _rnn(ev: Evaluator, instr: Instr, *inputs: Tensor) -> tuple[Tensor, ...]:
    a = instr.attrs
    kind, clip = a["kind"], a["clip"]
    given = dict(zip(a["present"], inputs[2:], strict=True))
    xw, r = inputs[:2]
    acc = xw.dtype
    steps, batch, _ = xw.shape
    hidden = a["hidden"]
    directions = 2 if a["direction"] == "bidirectional" else 1
    gates, functions = {"lstm": (4, 3), "gru": (3, 2), "rnn": (1, 1)}[kind]
    lens = given.get("lens", np.full(batch, steps)).astype(np.int64)
    y = np.zeros((steps, directions, batch, hidden), acc)
    zeros = np.zeros((directions, batch, hidden), acc)
    h_all, c_all = given.get("h0", zeros).astype(acc), given.get("c0", zeros).astype(acc)  # copies
    xw = xw.reshape(steps, batch, directions, gates, hidden)

    for d in range(directions):
        acts = a["activations"][d * functions : (d + 1) * functions]
        weights = [r[d, :, g * hidden : (g + 1) * hidden] for g in range(gates)]
        p = given["p"].astype(acc).reshape(directions, 3, hidden)[d] if "p" in given else np.zeros((3, hidden), acc)
        rb = given["rb"].astype(acc)[d] if "rb" in given else np.zeros(hidden, acc)

        def apply(n: int, x: Tensor, acts: Any = acts, limit: bool = True) -> Tensor:
            name, alpha, beta = acts[n]
            x = np.clip(x, -clip, clip) if clip is not None and limit else x
            result: Tensor = np.asarray(_ACTIVATIONS[name](x, acc.type(alpha), acc.type(beta)), acc)
            return result

        h, c = h_all[d], c_all[d]
        reverse = a["direction"] == "reverse" or d == 1
        for t in reversed(range(steps)) if reverse else range(steps):
            x = xw[t, :, d]
            cell = c
            if kind == "rnn":
                new = apply(0, x[:, 0] + h @ weights[0])
            elif kind == "gru":
                z, q = apply(0, x[:, 0] + h @ weights[0]), apply(0, x[:, 1] + h @ weights[1])
                if a["linear_before_reset"]:
                    n = apply(1, x[:, 2] + q * (h @ weights[2] + rb))
                else:
                    n = apply(1, x[:, 2] + (q * h) @ weights[2])
                new = (1 - z) * n + z * h
            else:
                i = apply(0, x[:, 0] + h @ weights[0] + p[0] * c)
                f = 1 - i if a["input_forget"] else apply(0, x[:, 2] + h @ weights[2] + p[2] * c)
                cell = f * c + i * apply(1, x[:, 3] + h @ weights[3])
                o = apply(0, x[:, 1] + h @ weights[1] + p[1] * cell)
                new = o * apply(2, cell, limit=False)
            live = (t < lens)[:, None]
            y[t, d] = np.where(live, new, 0)
            h, c = np.where(live, new, h), np.where(live, cell, c)
        h_all[d], c_all[d] = h, c
    return (y, h_all, c_all) if kind == "lstm" else (y, h_all)


# ----------------------------------------------------------------------------------------- weights quantized in blocks


def _fields(x: Tensor, bits: int, count: int) -> Tensor:
    """The first *count* fields of *bits* bits along the last axis of a uint8 array."""
    fields = x[..., None] >> np.arange(0, 8, bits, dtype=np.uint8) & np.uint8((1 << bits) - 1)
    return fields.reshape(*x.shape[:-1], -1)[..., :count]


def _contract_blocks(ev: Evaluator, instr: Instr, x: Tensor, packed: Tensor, scales: Tensor, *rest: Tensor) -> Tensor:
    a = instr.attrs
    given = dict(zip(a["present"], rest, strict=True))
    depth = x.shape[-1]

    def spread(v: Tensor) -> Tensor:
        return np.repeat(v, a["block"] or depth, axis=-1)[..., :depth].astype(scales.dtype)

    if a["table"] is not None:
        swapped = packed >> np.uint8(4) | packed << np.uint8(4)
        w = np.array(a["table"], scales.dtype)[_fields(swapped, 4, depth)]
    else:
        zero = given.get("zero_points", np.full_like(scales, 1 << (a["bits"] - 1)))
        if zero.dtype == np.uint8:
            zero = _fields(zero, a["bits"], scales.shape[-1])
        w = _fields(packed, a["bits"], depth).astype(scales.dtype) - spread(zero)
    w = w * spread(scales)
    return product_of(x, np.swapaxes(w[given["index"]] if "index" in given else w, -1, -2))


EVALUATORS: dict[str, Callable[..., Any]] = {
    "window": _window,
    "scan": _scan,
    "sort": _sort,
    "rnn": _rnn,
    "contract_blocks": _contract_blocks,
}
