"""Random reductions, products, windows and sources of a random Program."""

from __future__ import annotations

import math

import numpy as np
from onnx_vulkan.dims import Extent, at_least, symbol
from onnx_vulkan.dtypes import FLOATS, DType
from onnx_vulkan.kernels import supports
from onnx_vulkan.program.ir import Value
from random_values import EPS, MAX_ELEMENTS, Facts, Values

__all__ = ["Reductions"]


class Reductions(Values):
    """Operations that are kernels of their own, but for scatters."""

    # ------------------------------------------------------------------------------------------------ reductions
    def reduce(self) -> Value:
        x = self.some(lambda v, f: v.rank > 0)
        f, t = self.facts[x], x.dtype
        fn = self.pick(["sum", "max", "min", "prod", "argmax", "argmin", "sum"])
        if t is DType.BOOL:
            fn = self.pick(["max", "min", "argmax", "argmin"])
        axes = [i for i in range(x.rank) if self.chance(45)] or [self.c.integer(0, x.rank - 1)]
        keepdims = self.chance(50)
        count = self.size([x.shape[i] for i in axes])
        if fn in ("argmax", "argmin"):
            self.need(f.exact and at_least(x.shape[axes[0]], 1))
            return self.note(
                self.b.reduce(fn, x, axes[:1], keepdims=keepdims, last=self.chance(50)), float(self.n(x.shape[axes[0]]))
            )
        y = self.b.reduce(fn, x, axes, keepdims=keepdims)
        self.need(supports(next(i for i in reversed(self.b.instrs) if i.op == "reduce")) is None)
        if t.is_int:
            return self.note(y, float(np.iinfo(t.numpy).max) + 1)
        if fn in ("max", "min"):
            # over nothing it is the neutral element
            return self.note(y, f.bound, f.err, f.special or t.is_float)
        spare = 4 * count + 64
        if fn == "sum":
            return self.note(y, f.bound * max(count, 1), f.err * spare + spare * f.bound * EPS[t], f.special)
        self.need(f.bound <= 1.0 or count <= 4)
        bound = max(f.bound, 1.0) ** max(count, 1)
        return self.note(y, bound, bound * (f.err * spare + spare * EPS[t]), f.special)

    def softmax(self) -> Value:
        x = self.some(lambda v, f: v.rank > 0 and v.dtype.is_float and not f.special)
        f, t, b = self.facts[x], x.dtype, self.b
        self.need(f.bound < 30 and t is not DType.F64)
        axis = self.pick([x.rank - 1, x.rank - 1, self.c.integer(0, x.rank - 1)])
        self.need(at_least(x.shape[axis], 1))
        e = b.exp(b.sub(x, b.reduce("max", x, [axis], keepdims=True)))
        y = b.div(e, b.reduce("sum", e, [axis], keepdims=True))
        return self.note(y, 1.0, 4 * f.err + 64 * EPS[t] * (1 + f.bound))

    def norm(self) -> Value:
        x = self.some(lambda v, f: v.rank > 0 and v.dtype.is_float and not f.special)
        f, t, b = self.facts[x], x.dtype, self.b
        self.need(f.bound < 100)
        axes = [i for i in range(x.rank) if i == x.rank - 1 or self.chance(20)]
        for i in axes:
            self.need(at_least(x.shape[i], 1))
        d = b.sub(x, b.mean(x, axes, keepdims=True))
        var = b.mean(b.mul(d, d), axes, keepdims=True)
        y = b.mul(d, b.rsqrt(b.add(var, b.scalar(1, t))))
        self.need(supports(b.instrs[-2]) is None)
        scale = (1 + f.bound) ** 3
        return self.note(y, 2 * f.bound, scale * (4 * f.err + 64 * EPS[t]))

    def scan(self) -> Value:
        x = self.some(lambda v, f: v.rank > 0 and v.dtype is not DType.BOOL)
        f, t = self.facts[x], x.dtype
        axis = self.c.integer(0, x.rank - 1)
        fn = self.pick(["sum", "sum", "prod"])
        self.need(not f.special)
        count = self.n(x.shape[axis])
        y = self.b.scan(fn, x, axis, exclusive=self.chance(40), reverse=self.chance(40))
        if t.is_int:
            return self.note(y, float(np.iinfo(t.numpy).max) + 1)
        self.need(fn == "sum" or f.bound <= 1 or count <= 4)
        bound = f.bound * max(count, 1) if fn == "sum" else max(f.bound, 1) ** max(count, 1)
        spare = 4 * count + 64
        return self.note(y, bound, spare * (f.err + EPS[t]) * max(bound, 1))

    def sort(self) -> Value:
        x = self.some(lambda v, f: v.rank > 0 and f.exact and v.dtype is not DType.BOOL)
        f = self.facts[x]
        axis = self.c.integer(0, x.rank - 1)
        e = x.shape[axis]
        k = self.pick([e, (e + 1) // 2])
        values, order = self.b.sort(x, k, axis, largest=self.chance(50))
        self.note(order, float(self.n(e)))
        return self.like(values, f)

    # ------------------------------------------------------------------------------------------------ contractions
    def contract(self) -> Value:
        a = self.some(lambda v, f: v.rank >= 2 and v.dtype is not DType.BOOL and not f.special and f.bound < 1000)
        f, t = self.facts[a], a.dtype
        inner = a.shape[-1]

        def fits(v: Value, g: Facts) -> bool:
            if v.dtype is not t or v.rank < 2 or v.rank > a.rank or g.special or g.bound > 1000:
                return False
            lead = a.shape[a.rank - v.rank : -2]
            return v.shape[-2] == inner and all(self.n(p) in (1, self.n(q)) for p, q in zip(v.shape[:-2], lead, strict=True))

        way = self.c.integer(0, 2)
        if way == 0:
            b = self.some(fits)
        elif way == 1:
            b = self.b.transpose(a, [*range(a.rank - 2), a.rank - 1, a.rank - 2])
            self.facts.setdefault(b, f)
        else:
            self.need(isinstance(inner, int))
            assert isinstance(inner, int)
            columns = self.pick([1, 3, 16, 17, 64, 96] if self.most > MAX_ELEMENTS else [1, 3, 16, 17])
            b = self.constant(t, [inner, columns])
            if self.chance(30):
                b = self.b.transpose(self.constant(t, [columns, inner]), [1, 0])
                self.facts.setdefault(b, self._facts_of_feed(t, "ints"))
        y = self.b.contract(a, b)
        self.need(supports(self.b.instrs[-1]) is None and self.n(inner) * self.size(y.shape) < 40 * self.most)
        if t.is_int:
            return self.note(y, float(np.iinfo(t.numpy).max) + 1)
        g, n = self.facts[b], self.n(inner)
        bound = f.bound * g.bound * max(n, 1)
        spare = 4 * n + 64
        return self.note(y, bound, spare * (f.err * g.bound + g.err * f.bound + EPS[t] * f.bound * g.bound))

    def siblings(self) -> Value:
        """Products of one matrix with constants, each with a bias or a scale or neither, joined again."""
        x = self.some(lambda v, f: v.rank == 2 and v.dtype is not DType.BOOL and not f.special and f.bound < 100)
        f, t, inner = self.facts[x], x.dtype, x.shape[1]
        self.need(isinstance(inner, int))
        assert isinstance(inner, int)
        n, eps = max(inner, 1), 0.0 if t.is_int else EPS[t]
        parts = []
        for _ in range(self.c.integer(2, 4)):
            columns = self.pick([1, 3, 8, 16, 17])
            w = self.constant(t, [inner, columns])
            y = self.b.contract(x, w)
            self.need(supports(self.b.instrs[-1]) is None and inner * self.size(y.shape) < 10 * self.most)
            bound, g = f.bound * self.facts[w].bound * n, self.facts[w]
            err = (4 * n + 64) * (f.err * g.bound + eps * f.bound * g.bound)
            for fn in ("add", "mul"):
                if self.chance(60):
                    c = self.constant(t, self.pick([(), (1,), (columns,), (1, columns)]))
                    y = self.emit(fn, *([y, c] if self.chance(70) else [c, y]))
                    k = self.facts[c].bound
                    bound, err = (bound + k, err) if fn == "add" else (bound * k, err * k)
                    err += eps * bound
            if t.is_int:
                bound, err = float(np.iinfo(t.numpy).max) + 1, 0.0
            parts.append(self.note(y, bound, err))
        worst = [self.facts[p] for p in parts]
        return self.note(self.b.concat(parts[::-1], 1), max(w.bound for w in worst), max(w.err for w in worst))

    def window(self) -> Value:
        x = self.some(lambda v, f: 3 <= v.rank <= 5 and v.dtype is not DType.BOOL)
        f, t = self.facts[x], x.dtype
        kind = self.pick(["max", "avg", "conv", "conv"])
        spatial = x.shape[1:-1]
        kernel = [self.pick([1, 2, 3]) for _ in spatial]
        strides = [self.pick([1, 1, 2, 3]) for _ in spatial]
        dilations = [self.pick([1, 1, 2]) for _ in spatial]
        begin = [self.c.integer(0, k - 1) for k in kernel]
        end = [self.c.integer(0, k - 1) for k in kernel]
        out: list[Extent] = []
        for e, k, s, d, p, q in zip(spatial, kernel, strides, dilations, begin, end, strict=True):
            self.need(at_least(e + p + q, (k - 1) * d + 1))
            out.append((e + p + q - (k - 1) * d - 1) // s + 1)
        common = dict(out_spatial=out, kernel=kernel, strides=strides, dilations=dilations, pads_begin=begin, pads_end=end)
        if kind == "max":
            y = self.b.window("max", x, None, out_channels=x.shape[-1], **common)[0]
            self.need(supports(self.b.instrs[-1]) is None)
            return self.note(y, f.bound, f.err, f.special or t.is_float)
        self.need(not f.special and t in FLOATS)
        if kind == "avg":
            self.need(not any(begin) and not any(end))
            y = self.b.window("avg", x, None, out_channels=x.shape[-1], count_include_pad=self.chance(50), **common)[0]
            self.need(supports(self.b.instrs[-1]) is None)
            return self.note(y, f.bound, f.err + 32 * EPS[t] * f.bound)
        channels = x.shape[-1]
        self.need(isinstance(channels, int) and channels > 0)
        assert isinstance(channels, int)
        groups = self.pick([g for g in (1, 1, 2, channels) if channels % g == 0])
        m = groups * self.pick([1, 2, 4, 16] if self.most > MAX_ELEMENTS else [1, 2, 4])
        w = self.constant(t, [*kernel, channels // groups, m])
        y = self.b.window("conv", x, w, out_channels=m, groups=groups, **common)[0]
        self.need(supports(self.b.instrs[-1]) is None)
        n = math.prod(kernel) * (channels // groups)
        return self.note(y, f.bound * 4 * n, (f.err + EPS[t] * f.bound) * 16 * (n + 16))

    def iota(self) -> Value:
        t = self.pick([DType.I64, DType.I32, DType.F32, DType.U8, DType.I16])
        shape = self.shape()
        self.need(bool(shape))
        axis = self.c.integer(0, len(shape) - 1)
        top = self.n(shape[axis]) * 3 + 5
        self.need(top < 250)
        start = self.pick([0, 1, symbol(self.pick(sorted(self.symbols)))]) if self.symbols else self.pick([0, 2])
        step = self.pick([1, 2])
        return self.note(self.b.iota(shape, axis, t, start, step), float(top + self.n(start)))

    def dims(self) -> Value:
        values = [self.extent() for _ in range(self.c.integer(1, 4))]
        return self.note(self.b.dims(values, (len(values),)), 100.0)
