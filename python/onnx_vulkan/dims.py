"""Tensor extents as integer polynomials over named symbols, and the scope that decides questions about them.

A dimension is a plain ``int`` or a :class:`Dim`. Arithmetic gives back an ``int`` whenever the result is a number, so code
that handles only numbers never meets a Dim. ``==`` on Dims is structural; a *decision* ("is this extent 1?") goes through
:func:`same`, :func:`at_least` or :func:`require_same`, which ask the active :class:`Scope`:

- bound to numbers (a run's input shapes), the scope evaluates the question and records a :class:`Guard`: the structure that
  was built on the answer may serve another shape exactly when all its guards hold there;
- unbound (claiming a model before any shape is known), a decision gets the generic answer (extents are distinct and larger
  than one) and a requirement is taken to hold.

Nothing here knows about ONNX or Vulkan.
"""

from __future__ import annotations

import math
import threading
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Union

from onnx_vulkan.errors import ShapeMismatch, Unsupported

__all__ = [
    "Dim",
    "Extent",
    "Guard",
    "Scope",
    "at_least",
    "axis_of",
    "broadcast_extents",
    "broadcast_shapes",
    "ceil_div",
    "current_scope",
    "evaluate",
    "is_one",
    "is_zero",
    "maximum",
    "minimum",
    "product",
    "require_at_least",
    "require_same",
    "same",
    "substitute",
    "symbol",
    "symbols_of",
]

Extent = Union[int, "Dim"]
"""One dimension of a shape: a number, or a polynomial over symbols."""

# An atom is ("sym", name) or (kind, a, b) with kind in div/min/max and a, b extents. A monomial is a sorted tuple of
# (atom, power). Both are hashable; sorting uses their repr, which is deterministic.
Atom = tuple[object, ...]
Monomial = tuple[tuple[Atom, int], ...]
Terms = tuple[tuple[Monomial, int], ...]


def _key(monomial: Monomial) -> tuple[int, str]:
    return (-sum(p for _, p in monomial), repr(monomial))


class Dim:
    """An integer polynomial with at least one symbol. Immutable; equal ones are one object. Build with :func:`symbol` and
    operators.

    ``//`` is floor division and ``%`` its remainder (Python's signs). ``bool()``, ``int()``, ``<`` and friends are errors
    on purpose: ask :func:`same`, :func:`at_least` or :func:`evaluate`.
    """

    # Equality and hash are those of the object, at the interpreter's own speed: a compiler of shapes compares and looks up little
    # else.
    __slots__ = ("__weakref__", "_symbols", "_text", "terms")

    _alive: ClassVar[weakref.WeakValueDictionary[Terms, Dim]] = weakref.WeakValueDictionary()
    _lock: ClassVar[threading.Lock] = threading.Lock()

    terms: Terms
    _text: str
    _symbols: frozenset[str] | None

    def __new__(cls, terms: Terms) -> Dim:
        made = cls._alive.get(terms)
        if made is None:
            with cls._lock:
                made = cls._alive.get(terms)
                if made is None:
                    made = super().__new__(cls)
                    made.terms, made._text, made._symbols = terms, "", None
                    cls._alive[terms] = made
        return made

    def __repr__(self) -> str:
        if not self._text:  # messages and sort keys ask often: half of a lowering's time without this
            self._text = self._spell()
        return self._text

    def _spell(self) -> str:
        out = []
        for monomial, c in self.terms:
            factors = [_atom_text(a) + (f"^{p}" if p > 1 else "") for a, p in monomial]
            if c != 1 or not factors:
                factors.insert(0, str(c))
            out.append("*".join(factors))
        return "+".join(out).replace("+-", "-")

    def __bool__(self) -> bool:
        raise TypeError(f"the truth of the symbolic extent {self!r} is a decision: use is_zero() or same()")

    # -- arithmetic
    def __add__(self, other: Extent) -> Extent:
        if not isinstance(other, (int, Dim)):
            return NotImplemented
        return _sum(self, other)

    __radd__ = __add__

    def __neg__(self) -> Extent:
        return _make({m: -c for m, c in self.terms})

    def __sub__(self, other: Extent) -> Extent:
        if not isinstance(other, (int, Dim)):
            return NotImplemented
        return self + (-other)

    def __rsub__(self, other: Extent) -> Extent:
        return (-self) + other

    def __mul__(self, other: Extent) -> Extent:
        if not isinstance(other, (int, Dim)):
            return NotImplemented
        return _product(self, other)

    __rmul__ = __mul__

    def __floordiv__(self, other: Extent) -> Extent:
        return _floordiv(self, other)

    def __rfloordiv__(self, other: Extent) -> Extent:
        return _floordiv(other, self)

    def __mod__(self, other: Extent) -> Extent:
        return self - other * (self // other)

    def __rmod__(self, other: Extent) -> Extent:
        return other - self * (other // self)


# Planning asks for the same sums and products at every new shape; without a memory they are half of its time.
@lru_cache(maxsize=1 << 16)
def _sum(a: Dim, b: Extent) -> Extent:
    terms = dict(a.terms)
    for m, c in _terms(b):
        terms[m] = terms.get(m, 0) + c
    return _make(terms)


@lru_cache(maxsize=1 << 16)
def _product(a: Dim, b: Extent) -> Extent:
    terms: dict[Monomial, int] = {}
    for ma, ca in a.terms:
        for mb, cb in _terms(b):
            m = _times(ma, mb)
            terms[m] = terms.get(m, 0) + ca * cb
    return _make(terms)


def _atom_text(atom: Atom) -> str:
    if atom[0] == "sym":
        return str(atom[1])
    if atom[0] == "div":
        return f"({atom[1]!r})//({atom[2]!r})"
    return f"{atom[0]}({atom[1]!r},{atom[2]!r})"


def _terms(e: Extent) -> Terms:
    return e.terms if isinstance(e, Dim) else (((), int(e)),)


def _make(terms: Mapping[Monomial, int]) -> Extent:
    kept = {m: c for m, c in terms.items() if c}
    if not kept:
        return 0
    if len(kept) == 1 and () in kept:
        return kept[()]
    return Dim(tuple(sorted(kept.items(), key=lambda t: _key(t[0]))))


def _times(a: Monomial, b: Monomial) -> Monomial:
    if not a:
        return b
    if not b:
        return a
    powers: dict[Atom, int] = dict(a)
    for atom, p in b:
        powers[atom] = powers.get(atom, 0) + p
    return tuple(sorted(powers.items(), key=lambda t: repr(t[0])))


def _monomial_quotient(a: Monomial, b: Monomial) -> Monomial | None:
    powers = dict(a)
    for atom, p in b:
        left = powers.get(atom, 0) - p
        if left < 0:
            return None
        if left:
            powers[atom] = left
        else:
            powers.pop(atom, None)
    return tuple(sorted(powers.items(), key=lambda t: repr(t[0])))


def _exact_quotient(a: Extent, b: Extent) -> Extent | None:
    """a / b by polynomial long division, or None where it leaves a remainder."""
    quotient: Extent = 0
    lead_m, lead_c = _terms(b)[0]
    for _ in range(64):
        if isinstance(a, int) and a == 0:
            return quotient
        m, c = _terms(a)[0]
        q = _monomial_quotient(m, lead_m)
        if q is None or c % lead_c:
            return None
        step = _make({q: c // lead_c})
        quotient = quotient + step
        a = a - step * b
    return None


@lru_cache(maxsize=1 << 16)
def _floordiv(a: Extent, b: Extent) -> Extent:
    if isinstance(a, int) and isinstance(b, int):
        return a // b
    exact = _exact_quotient(a, b)
    if exact is not None:
        return exact
    if isinstance(b, int):
        # floor((b*p + q) / b) = p + floor(q / b) for integer p.
        whole = _make({m: c // b for m, c in _terms(a) if c % b == 0})
        rest = _make({m: c for m, c in _terms(a) if c % b})
        if isinstance(rest, int):
            return whole + rest // b
        # bring the constant's multiples of b out too, so that equal values get equal forms
        const = dict(rest.terms).get((), 0)
        whole, rest = whole + const // b, rest - (const - const % b)
        return whole + _atom("div", rest, b)
    return _atom("div", a, b)


def _atom(kind: str, a: Extent, b: Extent) -> Extent:
    return _make({(((kind, a, b), 1),): 1})


@lru_cache(maxsize=1 << 10)
def symbol(name: str) -> Dim:
    """The extent that a run's input shapes will give the name *name*."""
    made = _make({((("sym", name), 1),): 1})
    assert isinstance(made, Dim)
    return made


def symbols_of(e: Extent) -> frozenset[str]:
    """The names that *e* depends on."""
    if isinstance(e, int):
        return frozenset()
    if e._symbols is None:  # a plan asks for each word of its kernels
        names: set[str] = set()
        for monomial, _ in e.terms:
            for atom, _ in monomial:
                if atom[0] == "sym":
                    names.add(str(atom[1]))
                else:
                    names |= symbols_of(atom[1]) | symbols_of(atom[2])  # type: ignore[arg-type]
        e._symbols = frozenset(names)
    return e._symbols


def _evaluate_atom(atom: Atom, values: Mapping[str, int]) -> int:
    if atom[0] == "sym":
        return values[str(atom[1])]
    a, b = evaluate(atom[1], values), evaluate(atom[2], values)  # type: ignore[arg-type]
    if atom[0] == "div":
        return a // b
    return min(a, b) if atom[0] == "min" else max(a, b)


def evaluate(e: Extent, values: Mapping[str, int]) -> int:
    """The number that *e* is at *values*. Raises KeyError for a symbol without a value."""
    if not isinstance(e, Dim):
        return e
    total = 0
    for monomial, c in e.terms:
        for atom, p in monomial:
            c *= _evaluate_atom(atom, values) ** p
        total += c
    return total


def substitute(e: Extent, values: Mapping[str, Extent]) -> Extent:
    """*e* with some symbols replaced."""
    if not isinstance(e, Dim) or symbols_of(e).isdisjoint(values):
        return e
    total: Extent = 0
    for monomial, c in e.terms:
        term: Extent = c
        for atom, p in monomial:
            if atom[0] == "sym":
                name = str(atom[1])
                factor: Extent = values[name] if name in values else symbol(name)
            else:
                a, b = substitute(atom[1], values), substitute(atom[2], values)  # type: ignore[arg-type]
                factor = a // b if atom[0] == "div" else (minimum(a, b) if atom[0] == "min" else maximum(a, b))
            for _ in range(p):
                term = term * factor
        total = total + term
    return total


def _primitive_part(e: Dim, signed: bool) -> Dim:
    """*e* divided by the common factor of its coefficients, so that one question has one form; its sign too unless *signed*."""
    factor = math.gcd(*(c for _, c in e.terms))
    if not signed and e.terms[0][1] < 0:
        factor = -factor
    return e if factor == 1 else Dim(tuple((m, c // factor) for m, c in e.terms))


# ---------------------------------------------------------------------------------------------------------------- decisions


@dataclass(frozen=True, slots=True)
class Guard:
    """A question that was decided: ``expr == 0`` (kind ``zero``) or ``expr >= 0`` (kind ``nonneg``), and the answer."""

    kind: str
    expr: Dim
    answer: bool

    def holds(self, values: Mapping[str, int]) -> bool:
        """Whether the same question gets the same answer at *values*."""
        v = evaluate(self.expr, values)
        return (v == 0 if self.kind == "zero" else v >= 0) == self.answer


_local = threading.local()


class Scope:
    """Answers decisions about Dims while it is active (``with Scope(values): ...``); one a thread, they nest.

    ``values`` maps every symbol to its number, or is None while claiming. ``guards`` collects what was decided. While
    claiming, ``assumed`` holds answers that are taken instead of the generic ones, by kind and expression.
    """

    def __init__(self, values: Mapping[str, int] | None = None):
        self.values = values
        self.guards: dict[Guard, None] = {}
        self.assumed: dict[tuple[str, Dim], bool] = {}
        self._generic: dict[str, int] = {}
        self._outer: Scope | None = None

    def __enter__(self) -> Scope:
        self._outer = getattr(_local, "scope", None)
        _local.scope = self
        return self

    def __exit__(self, *exc: object) -> None:
        _local.scope = self._outer

    def decide(self, kind: str, e: Extent) -> bool:
        """The answer to ``e == 0`` or ``e >= 0``, recorded when it depends on the run's shapes."""
        if not isinstance(e, Dim):
            return e == 0 if kind == "zero" else e >= 0
        if self.values is None:
            if (kind, e) in self.assumed:
                return self.assumed[kind, e]
            if kind == "zero":
                return False
            for name in sorted(symbols_of(e)):  # a set's order changes from process to process
                self._generic.setdefault(name, 1024 + 64 * len(self._generic))
            return evaluate(e, self._generic) >= 0
        v = evaluate(e, self.values)
        answer = v == 0 if kind == "zero" else v >= 0
        self.guards.setdefault(Guard(kind, _primitive_part(e, signed=kind == "nonneg"), answer))
        return answer


_UNBOUND = Scope(None)


def current_scope() -> Scope:
    """The active scope; outside any, decisions get the generic answers of claiming."""
    scope = getattr(_local, "scope", None)
    return scope if scope is not None else _UNBOUND


def same(a: Extent, b: Extent) -> bool:
    """Decide whether two extents are equal in this run (recorded as a guard where it depends on the shapes)."""
    return a == b or current_scope().decide("zero", a - b)


def is_zero(e: Extent) -> bool:
    """Decide whether an extent is 0."""
    return current_scope().decide("zero", e)


def is_one(e: Extent) -> bool:
    """Decide whether an extent is 1."""
    return same(e, 1)


def at_least(a: Extent, b: Extent) -> bool:
    """Decide whether ``a >= b``."""
    return current_scope().decide("nonneg", a - b)


def require_same(a: Extent, b: Extent, message: str) -> Extent:
    """Demand that two extents are equal; gives back the plainer of the two. Raises ShapeMismatch with *message*."""
    if a == b:
        return b
    scope = current_scope()
    difference = a - b
    if isinstance(difference, Dim) and scope.values is None:
        return b if isinstance(b, int) else a
    if not scope.decide("zero", difference):
        shown = [evaluate(e, scope.values or {}) if isinstance(e, int) or scope.values else e for e in (a, b)]
        raise ShapeMismatch(f"{message} ({shown[0]} against {shown[1]})")
    return b if isinstance(b, int) else a


def require_at_least(a: Extent, b: Extent, message: str) -> None:
    """Demand ``a >= b``; assumed while claiming where a run has to tell. Raises ShapeMismatch with *message*."""
    difference, scope = a - b, current_scope()
    if isinstance(difference, Dim) and scope.values is None:
        return
    if not scope.decide("nonneg", difference):
        raise ShapeMismatch(message)


def axis_of(axis: int, rank: int) -> int:
    """An axis counted from 0, where a negative one counts from the end. Raises Unsupported for one that is not there."""
    if not -rank <= axis < rank:
        raise Unsupported(f"there is no axis {axis} in a tensor of rank {rank}")
    return axis % rank


def minimum(a: Extent, b: Extent) -> Extent:
    """The smaller of two extents, as a number or polynomial where their difference is a number."""
    d = a - b
    if isinstance(d, int):
        return a if d <= 0 else b
    return _atom("min", a, b)


def maximum(a: Extent, b: Extent) -> Extent:
    """The larger of two extents, as a number or polynomial where their difference is a number."""
    d = a - b
    if isinstance(d, int):
        return a if d >= 0 else b
    return _atom("max", a, b)


def ceil_div(a: Extent, b: Extent) -> Extent:
    """``a / b`` rounded up."""
    return (a + (b - 1)) // b


def product(extents: Iterable[Extent]) -> Extent:
    """The number of elements of a shape (1 for rank 0)."""
    return _product_of(tuple(extents))


@lru_cache(maxsize=1 << 14)
def _product_of(extents: tuple[Extent, ...]) -> Extent:
    total: Extent = 1
    for e in extents:
        total = total * e
    return total


def broadcast_extents(a: Extent, b: Extent, message: str) -> Extent:
    """Numpy's rule for one axis: equal, or one of them is 1. Raises ShapeMismatch (Unsupported while claiming)."""
    if a == b:
        return a
    if isinstance(a, int) and a == 1:
        return b
    if isinstance(b, int) and b == 1:
        return a
    scope = current_scope()
    if scope.values is None:
        if isinstance(a, int) and isinstance(b, int):
            raise Unsupported(f"{message} ({a} against {b})")
        return a if isinstance(a, int) else b
    if same(a, b):
        return b if isinstance(b, int) else a
    if is_one(a):
        return b
    if is_one(b):
        return a
    raise ShapeMismatch(f"{message} ({evaluate(a, scope.values)} against {evaluate(b, scope.values)})")


def broadcast_shapes(*shapes: Sequence[Extent]) -> tuple[Extent, ...]:
    """The common shape of operands by numpy's rule (ONNX multidirectional broadcasting)."""
    rank = max((len(s) for s in shapes), default=0)
    out: list[Extent] = [1] * rank
    for shape in shapes:
        offset = rank - len(shape)
        for i, e in enumerate(shape, offset):
            if isinstance(out[i], int) and out[i] == 1:
                out[i] = e
            elif out[i] != e and not (isinstance(e, int) and e == 1):
                message = f"shapes {' and '.join(map(str, map(tuple, shapes)))} do not broadcast"
                out[i] = broadcast_extents(out[i], e, message)
    return tuple(out)
