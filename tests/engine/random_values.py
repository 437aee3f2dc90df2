"""The values of random Programs: what is decided about them, what is known of them, and data that make sense for them.

Every value carries what is known of it: the largest finite magnitude, an estimate of how far the device may be from the
interpreter (0: the same number), and whether NaN or infinities occur.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from onnx_vulkan.dims import Extent, at_least, evaluate, product, symbol
from onnx_vulkan.dtypes import DType
from onnx_vulkan.graph import Array
from onnx_vulkan.program.builder import Builder
from onnx_vulkan.program.ir import Value

__all__ = ["BIG", "DTYPES", "EPS", "MAX_ELEMENTS", "Choices", "Facts", "Feed", "SeededChoices", "Skip", "Values", "fill"]

EPS = {DType.F32: 2.0**-22, DType.F64: 2.0**-49, DType.F16: 2.0**-10, DType.BF16: 2.0**-7}
DTYPES = [
    DType.F32, DType.F32, DType.F32, DType.F32, DType.I64, DType.I32, DType.F16, DType.BF16, DType.F64, DType.I8, DType.U8,
    DType.I16, DType.U16, DType.U32, DType.U64, DType.BOOL,
]  # fmt: skip
EXTENTS = [1, 2, 3, 5, 7, 4, 16, 17, 32, 64, 0, 8, 13]
BIG_EXTENTS = [1, 3, 16, 31, 32, 33, 64, 65, 100, 128, 130, 256, 4, 2, 513]
MAX_ELEMENTS = 6000
BIG_ELEMENTS = 300_000
BIG = 1e4


class Choices(Protocol):
    """Where decisions come from."""

    def integer(self, low: int, high: int) -> int: ...


class SeededChoices:
    """Decisions from a seed, for long campaigns."""

    def __init__(self, seed: int):
        self.rng = np.random.default_rng(seed)

    def integer(self, low: int, high: int) -> int:
        return int(self.rng.integers(low, high + 1))


@dataclass
class Facts:
    """What is known of a value: magnitude, error estimate, whether it is special (NaN, inf), whether -0.0 is sure to be kept."""

    bound: float = 1.0
    err: float = 0.0
    special: bool = False
    raw: bool = False

    @property
    def exact(self) -> bool:
        return self.err == 0


@dataclass
class Feed:
    """How an input is filled: ``kind`` one of ints, floats, special, index (with the Extent to stay below)."""

    value: Value
    kind: str
    bound: Extent = 0


def fill(rng: np.random.Generator, feed: Feed, numbers: Mapping[str, int]) -> Array:
    v = feed.value
    shape = tuple(evaluate(e, numbers) for e in v.shape)
    if feed.kind == "index":
        n = max(evaluate(feed.bound, numbers), 1)
        return rng.integers(-n, n, shape).astype(v.dtype.numpy)
    if v.dtype is DType.BOOL:
        return rng.integers(0, 2, shape).astype(bool)
    if v.dtype.is_int:
        info = np.iinfo(v.dtype.numpy)
        if feed.kind == "special":
            return rng.integers(info.min, info.max, shape, v.dtype.numpy, endpoint=True)
        return rng.integers(max(-9, info.min), 10, shape).astype(v.dtype.numpy)
    if feed.kind == "floats":
        return (rng.uniform(-2, 2, shape)).astype(v.dtype.numpy)
    a = np.asarray(rng.integers(-8, 9, shape) / 2)
    if feed.kind == "special":
        specials = np.array([np.nan, np.inf, -np.inf, -0.0, 0.0])
        a = np.where(rng.random(shape) < 0.2, specials[rng.integers(0, 5, shape)], a)
    return np.asarray(a).astype(v.dtype.numpy)


class Skip(Exception):
    """This operation does not fit here."""


class Values:
    """The values of a growing random program, and the decisions about them."""

    def __init__(self, choices: Choices, symbols: Mapping[str, int] | None = None, *, big: bool = False):
        self.c = choices
        self.extents = BIG_EXTENTS if big else EXTENTS
        self.most = BIG_ELEMENTS if big else MAX_ELEMENTS
        self.b = Builder()
        self.symbols = dict(symbols or {})
        self.facts: dict[Value, Facts] = {}
        self.feeds: list[Feed] = []
        self.rng = np.random.default_rng(choices.integer(0, 1 << 16))

    # ------------------------------------------------------------------------------------------------ choices
    def pick(self, items: Sequence[Any]) -> Any:
        if not items:
            raise Skip
        return items[self.c.integer(0, len(items) - 1)]

    def chance(self, percent: int) -> bool:
        return self.c.integer(0, 99) < percent

    def n(self, e: Extent) -> int:
        return evaluate(e, self.symbols)

    def size(self, shape: Sequence[Extent]) -> int:
        return self.n(product(shape))

    def need(self, ok: bool) -> None:
        if not ok:
            raise Skip

    def some(self, test: Callable[[Value, Facts], bool] = lambda v, f: True) -> Value:
        """A value of the pool, the newest more likely."""
        found = [v for v, f in self.facts.items() if test(v, f)]
        if not found:
            raise Skip
        return found[-1] if self.chance(50) else self.pick(found)

    def extent(self) -> Extent:
        if self.symbols and self.chance(45):
            return symbol(self.pick(sorted(self.symbols)))
        return self.pick(self.extents)

    def shape(self, most: int = 6) -> list[Extent]:
        rank = self.pick([2, 3, 1, 4, 0, 5, 6])
        rank = min(rank, most)
        out: list[Extent] = []
        for _ in range(rank):
            e = self.extent()
            if self.size([*out, e]) <= self.most // 3:
                out.append(e)
            else:
                out.append(self.pick([1, 2, 3]))
        self.need(self.size(out) <= self.most)
        return out

    # ------------------------------------------------------------------------------------------------ values
    def note(self, v: Value, bound: float, err: float = 0.0, special: bool = False, raw: bool = False) -> Value:
        if v.dtype.is_float and v.dtype is not DType.F64:
            # halves overflow between fused instructions in the interpreter only; at other sizes sums are larger
            most = (600 if self.symbols else 6e4) if v.dtype is DType.F16 else 1e30
            self.need(bound < most)
        if self.size(v.shape) > self.most:
            raise Skip
        if v not in self.facts:
            self.facts[v] = Facts(bound, err, special, raw)
        return v

    def like(self, v: Value, f: Facts) -> Value:
        return self.note(v, f.bound, f.err, f.special, f.raw)

    def input(self) -> Value:
        dtype, shape = self.pick(DTYPES), self.shape()
        kind = self.pick(["ints", "floats", "special", "ints"])
        v = self.b.input(f"x{len(self.feeds)}", dtype, shape)
        self.feeds.append(Feed(v, kind))
        self.facts[v] = self._facts_of_feed(dtype, kind)
        return v

    def _facts_of_feed(self, dtype: DType, kind: str) -> Facts:
        if dtype is DType.BOOL:
            return Facts(1, raw=True)
        if dtype.is_int:
            info = np.iinfo(dtype.numpy)
            return Facts(float(max(-info.min, info.max)) if kind == "special" else 9.0, raw=True)
        return Facts(2.0 if kind == "floats" else 4.0, 0.0, kind == "special", raw=True)

    def constant(self, dtype: DType, shape: Sequence[int], kind: str = "ints") -> Value:
        v = Value(dtype, tuple(shape), "const")
        data = fill(self.rng, Feed(v, kind), {})
        c = self.b.const(data)
        self.facts.setdefault(c, self._facts_of_feed(dtype, kind))
        return c

    def indices(self, shape: Sequence[Extent], below: Extent, dtype: DType = DType.I64) -> Value:
        """Indices into an axis of extent *below*, some negative."""
        self.need(at_least(below, 1))
        if self.chance(50) and all(isinstance(e, int) for e in shape) and isinstance(below, int):
            v = Value(dtype, tuple(shape))
            return self.b.const(fill(self.rng, Feed(v, "index", below), {}))
        plain = [symbol(name) for name in self.symbols]
        if self.chance(60) and all(isinstance(e, int) or e in plain for e in shape):
            v = self.b.input(f"x{len(self.feeds)}", dtype, shape)
            self.feeds.append(Feed(v, "index", below))
            return v
        rank = len(shape)
        line = self.b.iota(shape, self.c.integer(0, max(rank - 1, 0)), DType.I64, self.c.integer(0, 3), self.c.integer(1, 3))
        i = self.b.map("mod", line, self.b.dims([below], ()))
        if self.chance(40):
            i = self.b.map("sub", i, self.b.dims([below], ()))
        return self.b.cast(i, dtype)
