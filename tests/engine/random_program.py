"""Random Programs: operations that fit what is there, and inputs for them.

Functions with jumps (comparisons, casts to integers, argmax, sorting) are only put on values without error, so that a difference
is always a defect.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from onnx_vulkan.dims import Dim, Extent, at_least, current_scope, product, same, symbol
from onnx_vulkan.dtypes import DType
from onnx_vulkan.graph import Array
from onnx_vulkan.kernels import supports
from onnx_vulkan.program.ir import Program, Value
from random_reductions import Reductions
from random_values import BIG, DTYPES, EPS, Choices, Facts, Feed, SeededChoices, Skip, fill

__all__ = ["Maker", "RandomProgram", "SeededChoices", "make_program"]


@dataclass
class RandomProgram:
    """The program, what is known of its outputs, and a maker of its inputs."""

    program: Program
    facts: list[Facts]
    feeds: list[Feed]
    numbers: dict[str, int]
    guards: list[Any] = field(default_factory=list)

    def arrays(self, numbers: Mapping[str, int], seed: int = 0) -> dict[str, Array]:
        """Inputs at these sizes."""
        rng = np.random.default_rng(seed)
        return {f.value.name: fill(rng, f, numbers) for f in self.feeds}

    def tolerances(self) -> list[float]:
        """How far each output may be from the interpreter's."""
        return [8 * f.err for f in self.facts]


class Maker(Reductions):
    """Adds random operations to a builder."""

    # ------------------------------------------------------------------------------------------------ elementwise
    def partner(self, x: Value) -> Value:
        """Another operand of x's dtype that broadcasts with it."""
        numbers = [self.n(e) for e in x.shape]

        def fits(v: Value, f: Facts) -> bool:
            if v.dtype is not x.dtype or v.rank > x.rank:
                return False
            tail = numbers[x.rank - v.rank :]
            return all(self.n(a) in (1, b) for a, b in zip(v.shape, tail, strict=True))

        if self.chance(50):
            return self.some(fits)
        if self.chance(30):
            return self.constant(x.dtype, ())
        if x.rank and self.chance(60):
            axes = [i for i in range(x.rank) if self.chance(40)]
            for i in axes:
                self.need(at_least(x.shape[i], 1))
            y = self.b.slice(x, [0] * x.rank, [1 if i in axes else e for i, e in enumerate(x.shape)])
            return self.like(y, self.facts[x])
        tail = [e if isinstance(e, int) else 1 for e in x.shape]
        return self.constant(x.dtype, tail[self.c.integer(0, len(tail)) :])

    def emit(self, fn: str, *xs: Value) -> Value:
        y = self.b.map(fn, *xs)
        reason = supports(self.b.instrs[-1])
        if reason is not None:
            raise Skip
        return y

    def unary(self) -> Value:
        x = self.some(lambda v, f: v.dtype is not DType.BOOL)
        f, t = self.facts[x], x.dtype
        if t.is_int:
            fn = self.pick(["neg", "abs", "sign", "bit_not", "floor"])
            self.need(fn != "neg" or t.is_signed)
            top = float(np.iinfo(t.numpy).max) + 1
            return self.note(self.emit(fn, x), f.bound + 1 if t.is_signed and f.bound < top / 2 else top)
        if f.exact and self.chance(40):
            fn = self.pick(["neg", "abs", "sign", "floor", "ceil", "round", "isnan", "isposinf", "isneginf"])
            y = self.emit(fn, x)
            return self.note(y, f.bound, 0, f.special and y.dtype is not DType.BOOL)
        fn = self.pick(["neg", "abs", "sin", "cos", "tanh", "atan", "erf", "asinh", "exp", "sqrt", "reciprocal", "log", "rsqrt"])
        eps = EPS[t]
        if fn in ("neg", "abs"):
            return self.note(self.emit(fn, x), f.bound, f.err, f.special)
        if fn == "exp":
            self.need(f.bound <= 4)
            return self.note(self.emit(fn, x), math.exp(f.bound), math.exp(f.bound) * (f.err + eps), f.special)
        if fn in ("sqrt", "reciprocal", "log", "rsqrt"):
            one = self.b.scalar(1, t)
            y = self.emit(fn, self.b.add(self.b.abs(x), one))
            top = f.bound + 1
            bound = {"sqrt": math.sqrt(top), "log": math.log(top) + 1}.get(fn, 1.0)
            return self.note(y, bound, f.err + eps * (bound + f.bound + 1), f.special)
        self.need(f.bound < 100)
        bound = 1.6 if fn == "atan" else (f.bound if fn == "asinh" else 1.0)
        return self.note(self.emit(fn, x), bound, 1.2 * f.err + 4 * eps * (1 + bound), f.special)

    def binary(self) -> Value:
        x = self.some()
        y = self.partner(x)
        f, g, t = self.facts[x], self.facts[y], x.dtype
        if self.chance(25):
            x, y, f, g = y, x, g, f
        if t is DType.BOOL:
            return self.note(self.emit(self.pick(["and", "or", "xor", "eq", "ne", "min", "max"]), x, y), 1)
        special = f.special or g.special
        both = f.exact and g.exact
        if both and self.chance(20):
            return self.note(self.emit(self.pick(["eq", "ne", "lt", "le", "gt", "ge"]), x, y), 1)
        if t.is_int:
            return self._binary_int(x, y, f, g)
        fn = self.pick(["add", "sub", "mul", "min", "max", "div"])
        if fn == "div":
            y = self.b.add(self.b.abs(y), self.b.scalar(1, t))
            err = f.err + f.bound * g.err + 2 * EPS[t] * (f.bound + 1)
            return self.note(self.emit("div", x, y), f.bound, err, special)
        if fn in ("min", "max"):
            return self.note(self.emit(fn, x, y), max(f.bound, g.bound), f.err + g.err, special)
        bound = f.bound * g.bound if fn == "mul" else f.bound + g.bound
        self.need(bound < BIG)
        err = f.err + g.err if fn != "mul" else f.err * g.bound + g.err * f.bound + f.err * g.err
        # halves of small integers stay exact
        return self.note(self.emit(fn, x, y), bound, err + EPS[t] * bound, special)

    def _binary_int(self, x: Value, y: Value, f: Facts, g: Facts) -> Value:
        t = x.dtype
        info = np.iinfo(t.numpy)
        top = float(info.max) + 1
        fn = self.pick("add sub mul div mod fmod min max bit_and bit_or bit_xor shift_left shift_right pow".split())
        if fn in ("shift_left", "shift_right"):
            self.need(not t.is_signed)
            y = self.emit("bit_and", y, self.b.scalar(7, t))
        if fn in ("mod", "fmod", "div"):
            # a divisor of 0 or -1 (with the least integer) is the host's trap
            y = self.emit("max", self.emit("abs", y) if t.is_signed else y, self.b.scalar(1, t))
            y = self.emit("bit_and", y, self.b.scalar(info.max, t))
            y = self.emit("max", y, self.b.scalar(1, t))
        if fn == "pow":
            y = self.emit("bit_and", y, self.b.scalar(3, t))
        small = max(f.bound, g.bound)
        bound = {"add": 2 * small, "sub": 2 * small, "mul": small * small, "div": small, "min": small, "max": small}.get(fn, top)
        if not t.is_signed and fn == "sub":
            bound = top
        return self.note(self.emit(fn, x, y), min(bound, top))

    def select(self) -> Value:
        c = self.some(lambda v, f: v.dtype is DType.BOOL)
        shape = [self.n(e) for e in c.shape]
        a = self.some(lambda v, f: [self.n(e) for e in v.shape] == shape)
        for p, q in zip(a.shape, c.shape, strict=True):
            self.need(same(p, q))
        y = self.partner(a)
        f, g = self.facts[a], self.facts[y]
        v = self.emit("select", c, a, y)
        return self.note(v, max(f.bound, g.bound), max(f.err, g.err), f.special or g.special)

    def cast(self) -> Value:
        x = self.some()
        f, s, t = self.facts[x], x.dtype, self.pick(DTYPES)
        self.need(t is not s)
        if t is DType.BOOL:
            self.need(f.exact)
            return self.note(self.b.cast(x, t), 1)
        if t.is_int:
            self.need(f.exact)
            saturate = self.chance(50)
            if s.is_float:
                self.need(f.bound < 2**62 and (saturate or not f.special))
            info = np.iinfo(t.numpy)
            top = float(info.max) + 1
            least = 0 if f.bound == 0 else (-f.bound if s.is_signed else 0)
            inside = least >= info.min and f.bound <= info.max and not f.special
            return self.note(self.b.cast(x, t, saturate=saturate), f.bound if inside else top)
        if s is DType.BOOL:
            return self.note(self.b.cast(x, t), 1)
        self.need(t is not DType.F16 or f.bound < 6e4)
        small = f.exact and f.bound <= 8 and s is not DType.F64
        keeps = f.exact and (
            (s in (DType.F16, DType.BF16) and t in (DType.F32, DType.F64)) or (s is DType.F32 and t is DType.F64)
        )
        err = f.err if keeps or (small and s.is_int) else f.err + f.bound * EPS[t]
        return self.note(self.b.cast(x, t), f.bound, err, f.special)

    def bits(self) -> Value:
        x = self.some(lambda v, f: f.exact and f.raw and not f.special and v.dtype is not DType.BOOL)
        t = self.pick([d for d in DTYPES if d.size == x.dtype.size and d.is_int])
        return self.note(self.b.bits(x, t), float(np.iinfo(t.numpy).max) + 1)

    # ------------------------------------------------------------------------------------------------ movement
    def reshape(self) -> Value:
        x = self.some()
        way = self.c.integer(0, 3)
        shape = list(x.shape)
        if way == 0:
            return self.like(self.b.reshape(x, [product(shape)]), self.facts[x])
        if way == 1 and len(shape) > 1:
            i = self.c.integer(0, len(shape) - 2)
            shape[i : i + 2] = [shape[i] * shape[i + 1]]
            return self.like(self.b.reshape(x, shape), self.facts[x])
        if way == 2 and len(shape) < 6:
            at = self.c.integer(0, len(shape))
            return self.like(self.b.reshape(x, [*shape[:at], 1, *shape[at:]]), self.facts[x])
        if all(isinstance(e, int) for e in shape) and self.size(shape):
            return self.like(self.b.reshape(x, self.factors(self.size(shape))), self.facts[x])
        for i, e in enumerate(shape):
            if isinstance(e, int) and e > 3 and e % 2 == 0 and len(shape) < 6:
                return self.like(self.b.reshape(x, [*shape[:i], 2, e // 2, *shape[i + 1 :]]), self.facts[x])
        if len(shape) == 1 and isinstance(shape[0], Dim) and len(shape[0].terms) == 1:
            # n*m back into n, m
            ((monomial, c),) = shape[0].terms
            parts: list[Extent] = [symbol(str(a[1])) for a, p in monomial for _ in range(p) if a[0] == "sym"]
            self.need(len(parts) == sum(p for _, p in monomial))
            return self.like(self.b.reshape(x, [*parts, c]), self.facts[x])
        raise Skip

    def factors(self, n: int) -> list[int]:
        out: list[int] = []
        while n > 1 and len(out) < 5:
            divisors = [d for d in range(1, n + 1) if n % d == 0][:12]
            d = self.pick(divisors)
            out.append(d)
            n //= d
        return [*out, n]

    def transpose(self) -> Value:
        x = self.some(lambda v, f: v.rank >= 2)
        perm = list(range(x.rank))
        for i in range(x.rank - 1):
            j = self.c.integer(i, x.rank - 1)
            perm[i], perm[j] = perm[j], perm[i]
        return self.like(self.b.transpose(x, perm), self.facts[x])

    def broadcast(self) -> Value:
        x = self.some(lambda v, f: self.size(v.shape) < 500)
        shape: list[Extent] = [self.pick([2, 3, 5]) if e == 1 and self.chance(60) else e for e in x.shape]
        if x.rank < 5 and self.chance(50):
            shape = [self.extent() if self.symbols else self.pick([2, 1, 3, 4]), *shape]
        return self.like(self.b.broadcast(x, shape), self.facts[x])

    def slice(self) -> Value:
        x = self.some(lambda v, f: v.rank > 0)
        starts: list[Extent] = []
        sizes: list[Extent] = []
        steps: list[int] = []
        for e in x.shape:
            way = self.c.integer(0, 5)
            start, size, step = 0, e, 1
            if way == 1:
                self.need(at_least(e, 1))
                start, size = 1, e - 1
            elif way == 2:
                self.need(at_least(e, 1))
                start, size, step = e - 1, e, -1
            elif way == 3:
                size, step = (e + 1) // 2, 2
            elif way == 4 and isinstance(e, int):
                step = self.pick([1, -1, 2, -2, 3, -3])
                self.need(e > 0)
                start = self.c.integer(0, e - 1)
                most = (e - 1 - start) // step + 1 if step > 0 else start // -step + 1
                size = self.c.integer(0, most)
            elif way == 4:
                self.need(at_least(e, 3))
                start, size, step = e - 1, e // 3, -3
            starts.append(start)
            sizes.append(size)
            steps.append(step)
        return self.like(self.b.slice(x, starts, sizes, steps), self.facts[x])

    def pad(self) -> Value:
        x = self.some(lambda v, f: v.rank > 0)
        mode = self.pick(["constant", "edge", "reflect", "wrap"])
        before: list[Extent] = [self.pick([0, 0, 1, 2, 3]) for _ in x.shape]
        after: list[Extent] = [self.pick([0, 0, 1, 2, 5]) for _ in x.shape]
        if mode != "constant":
            # numpy wants something to repeat wherever it pads, and something in the axes beside
            for e, p, q in zip(x.shape, before, after, strict=True):
                self.need((p == 0 and q == 0) or at_least(e, 1))
        elif self.symbols and self.chance(50):
            i = self.c.integer(0, x.rank - 1)
            after[i] = symbol(self.pick(sorted(self.symbols)))
        fill = self.constant(x.dtype, ()) if mode == "constant" and self.chance(60) else None
        y = self.b.pad(x, before, after, mode, fill)
        f = self.facts[x]
        return self.note(y, max(f.bound, 9.0), f.err, f.special)

    def concat(self) -> Value:
        x = self.some(lambda v, f: v.rank > 0)
        axis = self.c.integer(0, x.rank - 1)
        parts = [x]
        numbers = [self.n(e) for e in x.shape]

        def fits(v: Value, f: Facts) -> bool:
            if v.dtype is not x.dtype or v.rank != x.rank:
                return False
            return all(i == axis or self.n(e) == numbers[i] for i, e in enumerate(v.shape))

        for _ in range(self.c.integer(1, 3)):
            parts.insert(self.c.integer(0, len(parts)), self.some(fits))
        fs = [self.facts[p] for p in parts]
        y = self.b.concat(parts, axis)
        return self.note(y, max(f.bound for f in fs), max(f.err for f in fs), any(f.special for f in fs), all(f.raw for f in fs))

    def gather(self) -> Value:
        x = self.some(lambda v, f: v.rank > 0)
        axis = self.c.integer(0, x.rank - 1)
        dtype = self.pick([DType.I64, DType.I32])
        way = self.c.integer(0, 2)
        if way == 0:
            i = self.indices(self.shape(2), x.shape[axis], dtype)
            return self.like(self.b.gather(x, i, axis), self.facts[x])
        if way == 1:
            shape = [self.pick([1, 3, 5]) if k == axis else e for k, e in enumerate(x.shape)]
            i = self.indices(shape, x.shape[axis], dtype)
            return self.like(self.b.gather_elements(x, i, axis), self.facts[x])
        batch = self.c.integer(0, x.rank - 1)
        depth = self.c.integer(1, min(2, x.rank - batch))
        lead = [*x.shape[:batch], *([self.pick([2, 5, 1])] if self.chance(70) else [])]
        columns = [self.indices([*lead, 1], x.shape[batch + k], dtype) for k in range(depth)]
        return self.like(self.b.gather_nd(x, self.b.concat(columns, -1), batch), self.facts[x])

    def scatter(self) -> Value:
        x = self.some(lambda v, f: v.rank > 0)
        axis = self.c.integer(0, x.rank - 1)
        f = self.facts[x]
        reduction = self.pick(["none", "none", "add", "mul", "max", "min"])
        if self.chance(50):
            self.need(x.dtype is not DType.BOOL or reduction == "none")
            _, order = self.b.sort(self.b.iota(x.shape, axis, DType.I32), x.shape[axis], axis, largest=self.chance(50))
            updates = self.partner(x)
            updates = self.b.broadcast(updates, x.shape)
            y = self.b.scatter(x, order, updates, kind="elements", axis=axis, reduction=reduction)
        else:
            n = self.n(x.shape[0])
            self.need(n > 0 and isinstance(x.shape[0], int) and x.dtype is not DType.BOOL)
            count = self.c.integer(1, min(n, 6))
            rows = self.rng.permutation(n)[:count] if reduction == "none" else self.rng.integers(-n, n, count)
            i = self.b.const(rows.astype(np.int64).reshape(count, 1))
            updates = self.b.gather(x, self.b.const((np.arange(count) % n).astype(np.int64)), 0)
            y = self.b.scatter(x, i, updates, kind="nd", reduction=reduction)
        g = self.facts.get(updates, f)
        instr = self.b.instrs[-1]
        self.need(supports(instr) is None)
        if x.dtype.is_int:
            return self.note(y, float(np.iinfo(x.dtype.numpy).max) + 1)
        if x.dtype is DType.BOOL:
            return self.note(y, 1)
        bound = f.bound + 6 * g.bound if reduction != "mul" else f.bound * max(g.bound, 1) ** 6
        self.need(bound < BIG or reduction in ("none", "max", "min"))
        err = (f.err + g.err) * (1 if reduction in ("none", "max", "min") else max(bound, 6))
        if reduction in ("add", "mul"):
            err += 8 * EPS[x.dtype] * bound
        return self.note(y, bound, err, f.special or g.special)

    OPERATIONS = (
        "binary unary binary select cast reshape transpose broadcast slice pad concat gather scatter reduce reduce softmax norm "
        "scan sort contract siblings window iota dims bits binary unary transpose reshape contract"
    ).split()

    def step(self) -> None:
        """One more operation, the first that fits of a few."""
        for _ in range(4):
            if self.attempt(self.pick(self.OPERATIONS)):
                return

    def attempt(self, name: str) -> bool:
        """Add an operation; one that does not fit leaves no trace but inputs."""
        before = len(self.b.instrs)
        known = set(self.facts)
        try:
            getattr(self, name)()
        except Skip:
            # inputs that it asked for stay, everything else goes
            del self.b.instrs[before:]
            made = set(self.b.inputs) | {o for i in self.b.instrs for o in i.outputs}
            self.facts = {v: f for v, f in self.facts.items() if v in known or v in made}
            return False
        return True

    def outputs(self) -> list[Value]:
        """The newest value, some that nobody reads, and any others (inputs, constants, duplicates)."""
        values = list(self.facts)
        read = {v for i in self.b.instrs for v in i.inputs}
        unread = [v for v in values if v not in read and v not in self.b.inputs] or values
        return [values[-1], *(self.pick(unread if self.chance(70) else values) for _ in range(self.c.integer(0, 3)))]


def make_program(
    choices: Choices, symbols: Mapping[str, int] | None = None, steps: int = 8, *, big: bool = False
) -> RandomProgram:
    """A random program; must run in a Scope that holds *symbols*."""
    m = Maker(choices, symbols, big=big)
    if symbols:  # every symbol is a whole dim of an input
        v = m.b.input("x0", DType.F32, [symbol(s) for s in symbols])
        m.feeds.append(Feed(v, "ints"))
        m.facts[v] = Facts(4.0, raw=True)
    for _ in range(choices.integer(1, 3)):
        try:
            m.input()
        except Skip:
            continue
    if not m.facts:
        v = m.b.input(f"x{len(m.feeds)}", DType.F32, [3, 5])
        m.feeds.append(Feed(v, "floats"))
        m.facts[v] = Facts(2.0)
    for _ in range(choices.integer(2, steps)):
        m.step()
    outputs = m.outputs()
    scope = current_scope()
    return RandomProgram(m.b.finish(outputs), [m.facts[v] for v in outputs], m.feeds, m.symbols, list(scope.guards))
