"""What random nodes are made of: operators and their schemas, decisions, tensors and the form of one node. No test lives here.

Decisions have two sources. *Structure* (which operator, attributes, ranks, element types, which inputs are there) comes from the
caller: hypothesis or a seed. *Extents and data* come from a generator of numbers, so that the same structure can be made again at
other sizes and then serve the same session.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Protocol, TypeVar

import numpy as np
import onnx
from onnx_vulkan.dtypes import NUMERIC, DType
from onnx_vulkan.graph import Array
from onnx_vulkan.lower.registry import LOWERINGS, MAX_OPSET
from onnxruntime.capi import _pybind_state

__all__ = [
    "BYTES",
    "Choices",
    "Draw",
    "Form",
    "Given",
    "Operator",
    "Recipe",
    "Skip",
    "Slot",
    "operators",
    "raw",
    "scale_of",
]

T = TypeVar("T")

MAX_ELEMENTS = 4000

BYTES = (DType.U8, DType.I8)


class Skip(Exception):
    """These decisions lead to no node."""


class Choices(Protocol):
    """Where structure comes from."""

    def integer(self, low: int, high: int) -> int: ...


@dataclass(frozen=True)
class Slot:
    """One formal input or output: its name, the element types that it may have, and the variable that names them."""

    name: str
    dtypes: frozenset[DType]
    variable: str
    optional: bool
    variadic: bool


@dataclass(frozen=True, eq=False)
class Operator:
    """An operator of one version, with what its schema says.

    ``newest`` is the last opset that has this version. ``attributes``: name -> (kind, whether it is required).
    """

    domain: str
    name: str
    version: int
    newest: int
    inputs: tuple[Slot, ...]
    outputs: tuple[Slot, ...]
    attributes: dict[str, tuple[str, bool]]

    @property
    def label(self) -> str:
        return f"{self.domain}::{self.name}" if self.domain else self.name

    def dtypes(self, i: int = 0) -> frozenset[DType]:
        """What input *i* may be, by the schema."""
        return self.inputs[i].dtypes


_NAMES = {f"tensor({t.onnx_name.replace('float32', 'float').replace('float64', 'double')})": t for t in NUMERIC}


def _slots(formals: Any, constraints: Any, type_of: str) -> tuple[Slot, ...]:
    allowed = {c.type_param_str: c.allowed_type_strs for c in constraints}
    out = []
    for f in formals:
        variable = getattr(f, type_of)
        dtypes = frozenset(_NAMES[t] for t in allowed.get(variable, [variable]) if t in _NAMES)
        option = str(f.option).rsplit(".", 1)[-1]
        out.append(Slot(f.name, dtypes, variable, option == "Optional", option == "Variadic"))
    return tuple(out)


@lru_cache
def operators() -> dict[str, list[Operator]]:
    """Every operator of the registry by its label, with each version that a schema describes, oldest first."""
    schemas: dict[tuple[str, str], dict[int, tuple[Any, str]]] = {}
    for s in _pybind_state.get_all_operator_schema():
        schemas.setdefault((s.domain, s.name), {})[s.since_version] = (s, "typeStr")
    for s in onnx.defs.get_all_schemas_with_history():
        schemas.setdefault((s.domain, s.name), {})[s.since_version] = (s, "type_str")
    found: dict[str, list[Operator]] = {}
    for (domain, name), entries in sorted(LOWERINGS.items()):
        known = schemas.get((domain, name), {})
        starts = sorted(known)
        read = sorted({v for e in entries for v in e.versions})
        if domain not in ("", "com.microsoft"):
            continue
        for version in read:
            if version not in known:
                continue
            schema, type_of = known[version]
            later = [v for v in starts if v > version]
            newest = min(later[0] - 1 if later else MAX_OPSET, MAX_OPSET) if domain == "" else version
            made = Operator(
                domain,
                name,
                version,
                newest,
                _slots(schema.inputs, schema.type_constraints, type_of),
                _slots(schema.outputs, schema.type_constraints, type_of),
                {k: (str(a.type).rsplit(".", 1)[-1], bool(a.required)) for k, a in schema.attributes.items()},
            )
            found.setdefault(made.label, []).append(made)
    return found


@dataclass
class Given:
    """One input of a node: its array, and how it comes: a run's input or a constant (``host``: needed before the run).

    ``name``: a value that an earlier node makes.
    """

    array: Array
    host: bool = False
    name: str = ""
    exact: bool = True

    @property
    def dtype(self) -> DType:
        return DType.of(self.array.dtype)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    @property
    def rank(self) -> int:
        return self.array.ndim


@dataclass
class Form:
    """One node: inputs in the schema's order (None: left out), attributes, and which outputs are named."""

    inputs: list[Given | None]
    attributes: dict[str, Any] = field(default_factory=dict)
    outputs: tuple[bool, ...] = (True,)


class Draw:
    """Decisions for one node, and tensors to go with them.

    ``pool`` are values of earlier nodes that :meth:`tensor` may take up.
    """

    EXTENTS = (2, 3, 1, 4, 5, 7, 8, 6, 16, 17, 0, 33)

    def __init__(self, choices: Choices, seed: int, pool: Sequence[Given] = ()):
        self.choices = choices
        self.rng = np.random.default_rng(seed)
        self.pool = pool
        self.exact_only = False
        self.special = False

    # ---------------------------------------------------------------------------------------------------- structure
    def int(self, low: int, high: int) -> int:
        return self.choices.integer(low, high)

    def pick(self, xs: Sequence[T]) -> T:
        return xs[self.int(0, len(xs) - 1)]

    def chance(self, percent: int) -> bool:
        return self.int(0, 99) < percent

    def some(self, **values: Sequence[Any]) -> dict[str, Any]:
        """Some of these attributes (three in five), each with one of its values; None leaves it out."""
        chosen = {k: self.pick(v) for k, v in values.items() if self.chance(60)}
        return {k: v for k, v in chosen.items() if v is not None}

    def only(self, op: Operator, attributes: dict[str, Any]) -> dict[str, Any]:
        """Those of *attributes* that this version of the operator has."""
        return {k: v for k, v in attributes.items() if k in op.attributes}

    def axis(self, rank: int, one_more: bool = False) -> int:
        """An axis, counted from either end."""
        if rank == 0 and not one_more:
            raise Skip
        return self.int(-rank, rank - (0 if one_more else 1))

    def axes(self, rank: int, least: int = 0) -> list[int]:
        """Different axes in any order."""
        chosen = [i for i in range(rank) if self.chance(40)]
        while len(chosen) < min(least, rank):
            chosen = sorted({*chosen, self.int(0, rank - 1)})
        for i in range(len(chosen) - 1):
            j = self.int(i, len(chosen) - 1)
            chosen[i], chosen[j] = chosen[j], chosen[i]
        return [i - rank if self.chance(30) else i for i in chosen]

    def dtype(self, allowed: frozenset[DType]) -> DType:
        """One of *allowed*; float32 half of the time where it is."""
        if not allowed:
            raise Skip
        if DType.F32 in allowed and self.chance(50):
            return DType.F32
        return self.pick(sorted(allowed, key=lambda t: t.value))

    # ---------------------------------------------------------------------------------------------- extents and data
    def extent(self, low: int = 0, high: int = 40) -> int:
        """A size; zero is rare."""
        fit = [e for e in self.EXTENTS if low <= e <= high] or [low]
        weights = np.array([0.4 if e == 0 else 1.0 / (1 + 0.3 * i) for i, e in enumerate(fit)])
        return int(self.rng.choice(fit, p=weights / weights.sum()))

    def number(self, low: int, high: int) -> int:
        """A number that follows the extents and not the structure."""
        return int(self.rng.integers(low, high + 1))

    def shape(self, rank: int, low: int = 0, high: int = 40) -> tuple[int, ...]:
        """A shape of at most MAX_ELEMENTS elements."""
        shape: list[int] = []
        for _ in range(rank):
            room = MAX_ELEMENTS // max(int(np.prod([max(e, 1) for e in shape])), 1)
            shape.append(self.extent(low, min(high, max(room, max(low, 1)))))
        return tuple(int(e) for e in self.rng.permutation(shape))

    def data(self, dtype: DType, shape: Sequence[int], low: float = -3, high: float = 3) -> Array:
        """Elements that fit the type: floats are multiples of 1/64 with few exceptions, integers small or, at times, any."""
        shape = tuple(shape)
        if dtype is DType.BOOL:
            return self.rng.integers(0, 2, shape).astype(bool)
        if dtype.is_int:
            info = np.iinfo(dtype.numpy)
            if self.special:
                a = self.rng.integers(info.min, info.max, shape, dtype.numpy, endpoint=True)
                edges = np.array([info.min, info.max, 0, 1], dtype.numpy)
                return np.where(self.rng.random(shape) < 0.2, self.rng.choice(edges, shape), a).astype(dtype.numpy)
            return self.rng.integers(max(-9, info.min), 10, shape).astype(dtype.numpy)
        a = np.round(self.rng.uniform(low, high, shape) * 64) / 64
        if self.special:
            edges = np.array([np.nan, np.inf, -np.inf, -0.0, 0.0, 1e30, -1e-30])
            with np.errstate(over="ignore"):
                a = np.where(self.rng.random(shape) < 0.15, self.rng.choice(edges, shape), a)
                return a.astype(dtype.numpy)
        return np.asarray(a).astype(dtype.numpy)

    def tensor(
        self,
        allowed: frozenset[DType] | DType,
        rank: int | tuple[int, int] = (0, 6),
        low: int = 0,
        high: int = 40,
        span: tuple[float, float] = (-3, 3),
    ) -> Given:
        """A tensor: a new one, or one that an earlier node made. *low*, *high*: its extents; *span*: its floats."""
        if isinstance(allowed, DType):
            allowed = frozenset({allowed})
        ranks = (rank, rank) if isinstance(rank, int) else rank
        if self.pool:
            fit = [
                g
                for g in self.pool
                if g.dtype in allowed
                and ranks[0] <= g.rank <= ranks[1]
                and min(g.shape, default=low) >= low
                and (g.exact or not (self.exact_only or g.dtype.size == 2))  # errors of halves grow too fast
                and (span[0] <= -3 or g.name == "")
            ]
            if fit and self.chance(80):
                return self.pick(fit)
        dtype = self.dtype(allowed)
        # ranks about 3 are the most usual
        n = min(max(self.pick([3, 2, 4, 1, 3, 2, 0, 5, 6]), ranks[0]), ranks[1])
        return Given(self.data(dtype, self.shape(n, low, high), *span))

    def like(self, dtype: DType, shape: Sequence[int], low: float = -3, high: float = 3) -> Given:
        """A tensor of a known shape: a new one, or at times one that an earlier node made."""
        if self.pool:
            fit = [g for g in self.pool if g.dtype is dtype and g.shape == tuple(shape) and (g.exact or not self.exact_only)]
            if fit and low <= -3 and self.chance(50):
                return self.pick(fit)
        return Given(self.data(dtype, shape, low, high))

    def partner(self, x: Given, dtype: DType | None = None, grow: bool = True, **span: float) -> Given:
        """A tensor that broadcasts with *x*: extents of 1, fewer axes, and with *grow* more axes or larger extents."""
        shape = [1 if self.chance(25) else e for e in x.shape]
        way = self.int(0, 5)
        if way == 0 and shape:
            shape = shape[self.int(1, len(shape)) :]
        elif way == 1:
            shape = list(x.shape)
        elif way == 2 and grow:
            shape = [self.extent(1, 5) if e == 1 and x.array.size < 800 else e for e in shape]
        elif way == 3 and grow and len(shape) < 6 and x.array.size < 1000:
            shape = [self.extent(1, 4), *shape]
        return self.like(dtype or x.dtype, shape, **span)

    def numbers(self, values: Sequence[int], dtype: DType = DType.I64) -> Given:
        """Integers that a lowering has to know before the run."""
        return Given(np.array(values, dtype.numpy), host=True)

    def host(self, value: Any, dtype: DType) -> Given:
        """A tensor that a lowering has to know before the run."""
        return Given(np.asarray(value).astype(dtype.numpy), host=True)

    def maybe(self, make: Callable[[], Given], percent: int = 50) -> Given | None:
        """An optional input."""
        return make() if self.chance(percent) else None


def raw(d: Draw, t: DType, shape: Any) -> Given:
    """Any integers of the type."""
    info = np.iinfo(t.numpy)
    return Given(d.rng.integers(info.min, info.max, tuple(shape), t.numpy, endpoint=True))


def scale_of(d: Draw, shape: Any = (), t: DType = DType.F32) -> Given:
    return Given(d.rng.uniform(0.01, 0.3, tuple(shape)).astype(t.numpy), host=d.chance(50))


Recipe = Callable[[Draw, Operator], Form]
