"""Index expressions of kernels: sums of ``variable * extent``, so that an access through any chain of views stays a strided one.

A :class:`Lin` is ``const + sum(coefficient * variable)``; variables are names of GLSL ints, coefficients and the constant are
Extents. What is not of that form (a division, a gathered index) becomes a new variable.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from onnx_vulkan.dims import Extent, product

__all__ = ["ZERO", "Lin", "linearize", "reshape_groups", "row_major"]


class Lin:
    """A linear index expression. Terms are sorted by variable and have no zero coefficients. Immutable."""

    __slots__ = ("_hash", "const", "terms")

    def __init__(self, terms: tuple[tuple[str, Extent], ...] = (), const: Extent = 0):
        self.terms = terms
        self.const = const
        self._hash = hash((terms, const))  # coordinates are keys wherever a kernel is rendered

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Lin) and self.terms == other.terms and self.const == other.const)

    def __repr__(self) -> str:
        return " + ".join([*(f"{n}*{c}" for n, c in self.terms), str(self.const)])

    @staticmethod
    def var(name: str) -> Lin:
        """The variable itself."""
        return Lin(((name, 1),))

    def __add__(self, other: Lin) -> Lin:
        terms = dict(self.terms)
        for name, c in other.terms:
            terms[name] = terms.get(name, 0) + c
        return Lin(tuple(sorted((n, c) for n, c in terms.items() if c != 0)), self.const + other.const)

    def shift(self, e: Extent) -> Lin:
        """Plus a constant."""
        return Lin(self.terms, self.const + e) if e != 0 else self

    def scale(self, e: Extent) -> Lin:
        """Times a constant."""
        if e == 1:
            return self
        if e == 0:
            return ZERO
        return Lin(tuple((n, c * e) for n, c in self.terms), self.const * e)

    def without(self, name: str) -> Lin:
        """Less the term of a variable."""
        terms = tuple(t for t in self.terms if t[0] != name)
        return self if len(terms) == len(self.terms) else Lin(terms, self.const)

    def coefficient(self, name: str) -> Extent:
        """The factor of a variable (0 when absent)."""
        return dict(self.terms).get(name, 0)

    @property
    def variables(self) -> frozenset[str]:
        return frozenset(n for n, _ in self.terms)


ZERO = Lin()


def row_major(shape: Sequence[Extent]) -> list[Extent]:
    """The strides of a dense tensor, in elements."""
    strides: list[Extent] = [1] * len(shape)
    for i in range(len(shape) - 2, -1, -1):
        strides[i] = strides[i + 1] * shape[i + 1]
    return strides


def linearize(coords: Sequence[Lin], shape: Sequence[Extent]) -> Lin:
    """The row-major offset of *coords* in a dense tensor of *shape*."""
    total = ZERO
    for c, s, e in zip(coords, row_major(shape), shape, strict=True):
        if e != 1:
            total = total + c.scale(s)
    return total


def reshape_groups(a: Sequence[Extent], b: Sequence[Extent]) -> list[tuple[range, range]]:
    """Split two shapes of equal element count into runs of axes whose products are equal, as fine as can be seen.

    Gives ``[(axes of a, axes of b), ...]``; axes of extent 1 belong to the run before them. Empty shapes are one run: the
    products of their axes say nothing.
    """
    return list(_reshape_groups(tuple(a), tuple(b)))


@lru_cache(maxsize=1 << 13)
def _reshape_groups(a: tuple[Extent, ...], b: tuple[Extent, ...]) -> list[tuple[range, range]]:
    if 0 in a or 0 in b:
        return [(range(len(a)), range(len(b)))]
    groups: list[tuple[range, range]] = []
    i = j = 0
    while i < len(a) or j < len(b):
        # the shortest pair of runs from here whose products agree
        best: tuple[int, int] | None = None
        prefix = {product(a[i:p]): p for p in range(len(a), i, -1)}
        for q in range(j + 1, len(b) + 1):
            p = prefix.get(product(b[j:q]))
            if p is not None:
                best = (p, q)
                break
        if best is None:
            best = (len(a), len(b))
        while best[0] < len(a) and a[best[0]] == 1:
            best = (best[0] + 1, best[1])
        while best[1] < len(b) and b[best[1]] == 1:
            best = (best[0], best[1] + 1)
        groups.append((range(i, best[0]), range(j, best[1])))
        i, j = best
    return groups
