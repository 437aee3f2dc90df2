"""Renders the value of an instruction at given coordinates as GLSL: the heart of generated kernels and of template holes.

A :class:`Renderer` walks the producers of a value down to *leaves* (inputs, constants, values that another kernel has
materialised). Movement instructions only change coordinates, elementwise ones emit one assignment. Statements go to the
outermost scope in which all their index variables exist, so what does not depend on an inner loop leaves it by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from onnx_vulkan.codegen import functions, vector
from onnx_vulkan.codegen.elements import Elements
from onnx_vulkan.codegen.index import ZERO, Lin, linearize, reshape_groups
from onnx_vulkan.codegen.params import Params
from onnx_vulkan.codegen.types import GLSL_TYPES, pack, unpack
from onnx_vulkan.dims import Dim, Extent
from onnx_vulkan.dtypes import DType
from onnx_vulkan.program.ir import Instr, Value

__all__ = ["INLINE_OPS", "Renderer"]

INLINE_OPS = frozenset(
    [
        "map",
        "cast",
        "iota",
        "dims",
        "reshape",
        "transpose",
        "broadcast",
        "slice",
        "pad",
        "concat",
        "gather",
        "gather_elements",
        "gather_nd",
        "bits",
    ]
)
"""The primitives that a Renderer can compute at a coordinate."""


@dataclass
class _Scope:
    lines: list[str] = field(default_factory=list)
    memo: dict[object, str] = field(default_factory=dict)


class Renderer:
    """Emits GLSL for values of one kernel.

    ``producers`` gives the instruction of each value to be computed here; a value without one (or for which ``is_leaf`` says so)
    is loaded. ``loads`` collects the offset of every load and ``opaque`` the variables used in any other way: from both, a
    kernel sees which loop axes may be merged. ``staged`` are accesses that lie elsewhere already: their expressions, which are
    stored elements in their compute type. ``rooms`` are arrays of shared memory in which values lie that are not in memory, see
    :mod:`onnx_vulkan.codegen.chain`.
    """

    def __init__(self, params: Params, producers: Mapping[Value, Instr], is_leaf: Callable[[Value], bool]):
        self.params = params
        self.producers = producers
        self.is_leaf = is_leaf
        self.scopes: list[_Scope] = [_Scope()]
        self.levels: dict[str, int] = {}
        self.alias: dict[str, str | None] = {}
        self.loads: list[tuple[Value, Lin]] = []
        self.opaque: set[str] = set()
        self.reads: dict[Value, None] = {}
        self.elements: Elements | None = None
        self.staged: dict[tuple[Value, Lin], str] = {}
        self.rooms: dict[Value, str] = {}
        self._branches = 0
        self._narrow_branches = 0
        self._names = 0

    # ------------------------------------------------------------------------------------------------ statements
    def fresh(self, prefix: str = "v") -> str:
        """A new GLSL name."""
        self._names += 1
        return f"{prefix}{self._names}"

    def level(self, coords: Sequence[Lin]) -> int:
        """The innermost scope that the variables of *coords* belong to."""
        if not self.levels:
            return 0
        return max((self.levels.get(n, 0) for c in coords for n, _ in c.terms), default=0)

    def emit(self, line: str, level: int | None = None) -> None:
        """Append a statement to a scope (the current one by default)."""
        self.scopes[len(self.scopes) - 1 if level is None else level].lines.append(line)

    def variable(self, text: str, level: int, prefix: str = "i") -> Lin:
        """A new int variable holding *text*."""
        name = self.fresh(prefix)
        self.levels[name] = level
        self.emit(f"int {name} = {text};", level)
        return Lin.var(name)

    @contextmanager
    def scope(self, memo: dict[object, str] | None = None) -> Iterator[_Scope]:
        """A nested block: its statements are in the yielded scope's ``lines`` for the caller to place.

        *memo* holds the values that it finds and leaves, for blocks that see the same ones.
        """
        inner = _Scope(memo={} if memo is None else memo)
        self.scopes.append(inner)
        try:
            yield inner
        finally:
            self.scopes.pop()

    def _remember(self, key: object, level: int, text: str) -> str:
        self.scopes[level].memo[key] = text
        return text

    def define(self, value: Value, coords: Sequence[Lin], text: str) -> None:
        """State that *value* at *coords* is the expression *text* (an accumulator, a reduced row)."""
        self.scopes[-1].memo[value, tuple(coords)] = text

    # ------------------------------------------------------------------------------------------------ indices
    def text(self, e: Lin, *, opaque: bool = True) -> str:
        """The GLSL of an index expression."""
        if opaque:
            self.opaque |= e.variables
        parts = []
        for name, c in e.terms:
            alias = self.alias.get(name, name)
            if alias is None:
                continue
            parts.append(alias if c == 1 else f"{alias} * {self.params.word(c)}")
        if e.const != 0 or not parts:
            parts.append(self.params.word(e.const))
        return " + ".join(parts)

    def load(self, leaf: Value, offset: Lin) -> str:
        """The compute-type expression of element *offset* of a leaf."""
        self.loads.append((leaf, offset))
        if leaf in self.rooms:
            return f"{self.rooms[leaf]}[room_at({self.text(offset, opaque=False)})]"
        self.reads.setdefault(leaf)
        if self.staged:
            there = self.staged.get((leaf, offset.without("k")))
            if there is not None:
                return there
        pointer = self.params.read(leaf)
        e = self.elements
        if e is not None and e.width > 1 and self.level([offset]) >= e.inner:
            words = self._vector(e, leaf, pointer, offset)
            if words is not None:
                return vector.get(leaf.dtype, words)
            e.scattered = True
        return unpack(leaf.dtype, f"{pointer}.v[{self.text(offset, opaque=False)}]")

    def _vector(self, e: Elements, leaf: Value, pointer: str, offset: Lin) -> str | None:
        """The words of the vector that has element *offset* of a leaf, None where its elements are no aligned neighbours."""
        if self._narrow_branches or (offset.coefficient("k") != 1 if e.dense is None else offset != e.dense):
            return None
        first = self.first_of(offset)
        if self.level([first]) > e.level:
            return None
        key = ("vector", leaf, first)
        for scope in self.scopes[: e.level + 1]:
            if key in scope.memo:
                return scope.memo[key]
        name = self.fresh("x")
        for line in vector.load(name, leaf.dtype, e.width, pointer, self.text(first, opaque=False)):
            self.emit(line, e.level)
        return self._remember(key, e.level, name)

    def first_of(self, offset: Lin) -> Lin:
        """Where the vector with element *offset* begins; notes what must be a multiple of the width for it to be aligned."""
        assert self.elements is not None
        if self.elements.dense is not None:
            return Lin.var(self.elements.variable)
        first = offset.without("k")
        multiples = self.elements.multiples
        parts = [c for n, c in first.terms if n not in multiples and self.alias.get(n, n) is not None]
        self.elements.aligned.update(dict.fromkeys([*parts, first.const]))
        return first

    def _vectors_at(self, coords: Sequence[Lin], bounds: Mapping[int, Sequence[Extent]]) -> bool:
        """Whether vectors with elements at *coords* lie on one side of all *bounds* (by axis); notes what must be aligned."""
        e = self.elements
        if e is None or e.width == 1 or self._narrow_branches or self.level(coords) != e.inner:
            return False
        if any(self.level([c.without("k")]) > e.level for c in coords):
            return False
        crossed = [i for i in bounds if coords[i].coefficient("k") != 0]
        if any(coords[i].coefficient("k") != 1 for i in crossed):
            return False
        for i in crossed:
            self.first_of(coords[i])
            e.aligned.update(dict.fromkeys(bounds[i]))
        return True

    def _inside(self, c: Lin, depth: int) -> Lin:
        """The coordinate *c* in a branch, as a variable there."""
        v = self.variable(self.text(c.without("k")), depth)
        if c.coefficient("k") == 0:
            return v
        if self.elements is not None and c.coefficient("k") == 1:
            self.elements.multiples |= v.variables
        return v + Lin((("k", c.coefficient("k")),))

    def _divide(self, e: Lin, by: Extent, level: int) -> tuple[Lin, Lin]:
        """Quotient and remainder of a non-negative index."""
        n = e if len(e.terms) == 1 and e.terms[0][1] == 1 and e.const == 0 else self.variable(self.text(e), level)
        n_text = self.text(n)
        d = self.params.divisor(by)
        q = self.variable(f"divide({n_text}, {d})", level)
        r = self.variable(f"{n_text} - {self.text(q)} * int({d}.d)", level)
        return q, r

    def delinearize(self, e: Lin, shape: Sequence[Extent], level: int) -> list[Lin]:
        """The coordinates of row-major offset *e* in *shape*."""
        coords: list[Lin] = [ZERO] * len(shape)
        axes = [i for i, x in enumerate(shape) if x != 1]
        for i in reversed(axes[1:]):
            e, coords[i] = self._divide(e, shape[i], level)
        if axes:
            coords[axes[0]] = e
        return coords

    def _regroup(self, coords: Sequence[Lin], shape: Sequence[Extent], to: Sequence[Extent]) -> list[Lin]:
        """Where the element at *coords* of a dense *shape* lies in the dense shape *to* of equal size."""
        out: list[Lin] = [ZERO] * len(to)
        for a, b in reshape_groups(shape, to):
            source = [i for i in a if shape[i] != 1]
            target = [j for j in b if to[j] != 1]
            if not target:
                continue
            if len(source) == 1 and len(target) == 1:
                out[target[0]] = coords[source[0]]
                continue
            flat = linearize([coords[i] for i in source], [shape[i] for i in source])
            if len(target) == 1:
                out[target[0]] = flat
                continue
            parts = self.delinearize(flat, [to[j] for j in target], self.level([flat]))
            for j, c in zip(target, parts, strict=True):
                out[j] = c
        return out

    # ------------------------------------------------------------------------------------------------ values
    def value(self, value: Value, coords: Sequence[Lin]) -> str:
        """An expression (a name or literal) of *value* at *coords*, emitting the statements that it needs."""
        coords = tuple([ZERO if isinstance(e, int) and e == 1 else c for c, e in zip(coords, value.shape, strict=True)])
        key = (value, coords)
        for scope in reversed(self.scopes):
            if key in scope.memo:
                return scope.memo[key]
        level = self.level(coords)
        if value.data is not None and value.data.size == 1:
            self.params.use(value.dtype)
            scalar = value if value.rank == 0 else Value(value.dtype, (), "", value.data.reshape(()))
            return self.params.literal(scalar)
        instr = self.producers.get(value)
        if instr is None or self.is_leaf(value):
            return self._assign(key, value.dtype, self.load(value, linearize(coords, value.shape)), level)
        if instr.op not in INLINE_OPS:
            raise TypeError(f"{instr.op} cannot be computed inside another kernel")
        text: str = getattr(self, f"_{instr.op}")(instr, coords, level)
        if instr.op in ("reshape", "transpose", "broadcast", "slice"):
            return self._remember(key, level, text)
        return self._assign(key, value.dtype, text, level)

    def _assign(self, key: object, dtype: DType, text: str, level: int) -> str:
        name = self.fresh()
        self.params.use(dtype)
        e = self.elements
        if e is not None and e.kept and level == e.inner and not self._branches:
            self.emit(f"{GLSL_TYPES[dtype].compute} {name}[ITEMS{f' * {e.width}' if e.width > 1 else ''}];", 0)
            self.emit(f"{name}[{e.slot}] = {text};", level)
            return self._remember(key, level, f"{name}[{e.slot}]")
        self.emit(f"{GLSL_TYPES[dtype].compute} {name} = {text};", level)
        return self._remember(key, level, name)

    def _map(self, instr: Instr, coords: Sequence[Lin], level: int) -> str:
        args = [self.value(x, coords) for x in instr.inputs]
        return functions.call(instr.attrs["fn"], instr.inputs[-1].dtype, args, coarse="coarse" in instr.attrs)

    def _cast(self, instr: Instr, coords: Sequence[Lin], level: int) -> str:
        (x,) = instr.inputs
        self.params.use(instr.out.dtype)
        return functions.cast(x.dtype, instr.out.dtype, self.value(x, coords), saturate=instr.attrs["saturate"])

    def _bits(self, instr: Instr, coords: Sequence[Lin], level: int) -> str:
        (x,) = instr.inputs
        self.params.use(instr.out.dtype)
        return functions.bits(x.dtype, instr.out.dtype, self.value(x, coords))

    def _iota(self, instr: Instr, coords: Sequence[Lin], level: int) -> str:
        c = coords[instr.attrs["axis"]] if coords else ZERO
        index = c.scale(instr.attrs["step"])
        dtype = instr.out.dtype
        start = instr.attrs["start"]
        compute = GLSL_TYPES[dtype].compute
        if compute in ("int64_t", "uint64_t"):
            step = self.params.long(instr.attrs["step"])
            return f"{compute}({self.params.long(start)} + {step} * int64_t({self.text(c)}))"
        return functions.cast(DType.I32, dtype, f"({self.text(index.shift(start))})", saturate=False)

    def _dims(self, instr: Instr, coords: Sequence[Lin], level: int) -> str:
        values = [self.params.long(v) for v in instr.attrs["values"]]
        if len(values) == 1:
            return values[0]
        at = self.text(linearize(coords, instr.out.shape))
        text = values[-1]
        for i in range(len(values) - 2, -1, -1):
            text = f"(({at}) == {i} ? {values[i]} : {text})"
        return text

    def _transpose(self, instr: Instr, coords: Sequence[Lin], level: int) -> str:
        inner = [ZERO] * len(coords)
        for c, p in zip(coords, instr.attrs["perm"], strict=True):
            inner[p] = c
        return self.value(instr.inputs[0], inner)

    def _broadcast(self, instr: Instr, coords: Sequence[Lin], level: int) -> str:
        (x,) = instr.inputs
        return self.value(x, coords[len(coords) - x.rank :])

    def _slice(self, instr: Instr, coords: Sequence[Lin], level: int) -> str:
        a = instr.attrs
        inner = [c.scale(step).shift(s) for c, s, step in zip(coords, a["starts"], a["steps"], strict=True)]
        return self.value(instr.inputs[0], inner)

    def _reshape(self, instr: Instr, coords: Sequence[Lin], level: int) -> str:
        (x,), shape = instr.inputs, instr.out.shape
        if (x not in self.producers or self.is_leaf(x)) and not (x.data is not None and x.data.size == 1):
            known = self._defined(x, shape, coords)
            if known is not None:
                return known
            # a leaf is dense: the offset is the same in either shape, and stays linear
            offset = linearize(coords, shape)
            return self._assign(("flat", x, offset), x.dtype, self.load(x, offset), level)
        return self.value(x, self._regroup(coords, shape, x.shape))

    def _defined(self, x: Value, shape: Sequence[Extent], coords: Sequence[Lin]) -> str | None:
        """A defined value (an accumulator) behind a reshape that only adds or drops axes of extent 1."""
        if [e for e in shape if e != 1] != [e for e in x.shape if e != 1]:
            return None
        kept = iter([c for c, e in zip(coords, shape, strict=True) if e != 1])
        inner = tuple(ZERO if e == 1 else next(kept) for e in x.shape)
        for scope in reversed(self.scopes):
            if (x, inner) in scope.memo:
                return scope.memo[x, inner]
        return None

    def _pad(self, instr: Instr, coords: Sequence[Lin], level: int) -> str:
        x = instr.inputs[0]
        mode, before, after = instr.attrs["mode"], instr.attrs["before"], instr.attrs["after"]
        axes = [i for i in range(x.rank) if before[i] != 0 or after[i] != 0]
        if mode != "constant":
            inner = list(coords)
            for i in axes:
                inner[i] = self._mirror(coords[i].shift(-before[i]), x.shape[i], mode, self.level([coords[i]]))
            return self.value(x, inner)
        return self._guarded_pad(instr, coords, axes, level)

    def _mirror(self, c: Lin, extent: Extent, mode: str, level: int) -> Lin:
        n, t = self.params.word(extent), self.text(c)
        if mode == "edge":
            return self.variable(f"clamp({t}, 0, {n} - 1)", level)
        i = self.text(self.variable(t, level))
        if mode == "wrap":
            # by magnitudes, since the sign of a remainder differs from driver to driver
            m = self.text(self.variable(f"int(uint({i} < 0 ? ~({i}) : {i}) % uint({n}))", level))
            return self.variable(f"{i} < 0 ? {n} - 1 - {m} : {m}", level)
        # reflect: fold into [0, 2(n-1)), then mirror the upper half
        period = self.text(self.variable(f"max(2 * ({n} - 1), 1)", level))
        m = self.text(self.variable(f"int(uint({i} < 0 ? -({i}) : {i}) % uint({period}))", level))
        return self.variable(f"{m} < {n} ? {m} : {period} - {m}", level)

    def _guarded_pad(self, instr: Instr, coords: Sequence[Lin], axes: Sequence[int], level: int) -> str:
        x, fill = instr.inputs
        before = instr.attrs["before"]
        fill_text = self.value(fill, ())
        conditions: list[str] = []
        vectors = self._vectors_at(coords, {i: (before[i], x.shape[i]) for i in axes})
        result = self._result(instr.out, level, vectors, fill_text)
        inner = list(coords)
        with self._branch(level, vectors) as (depth, body):
            for i in axes:
                c = coords[i].shift(-before[i])
                inner[i] = self._inside(c, depth)
                conditions.append(f"uint({self.text(c.without('k') if vectors else c)}) < uint({self.params.word(x.shape[i])})")
            self.emit(f"{result} = {self.value(x, inner)};")
        self._place(level - vectors, [f"if ({' && '.join(conditions)}) {{", *body, "}"])
        return result

    def _result(self, out: Value, level: int, vectors: bool, start: str = "") -> str:
        """Declare what the branches of a value assign."""
        name, compute = self.fresh(), GLSL_TYPES[out.dtype].compute
        if not vectors:
            self.emit(f"{compute} {name}{f' = {start}' if start else ''};", level)
            return name
        assert self.elements is not None
        self.emit(f"{compute} {name}[{self.elements.width}];", level - 1)
        if start:
            self.emit(f"[[unroll]] for (int k = 0; k < {self.elements.width}; k++) {name}[k] = {start};", level - 1)
        return f"{name}[k]"

    @contextmanager
    def _branch(self, level: int, vectors: bool) -> Iterator[tuple[int, list[str]]]:
        """A conditional block opened at *level*: scopes deeper than it are set aside while its body is rendered.

        Gives the level in the block and the list that its statements go to. With *vectors* the block is that of whole vectors
        at *level*, and one level outside of their elements.
        """
        e = self.elements
        if vectors:
            assert e is not None
            level -= 1
            e.level += 1
            self.levels["k"] += 1
        deeper = self.scopes[level + 1 :]
        del self.scopes[level + 1 :]
        block, element = _Scope(), _Scope()
        self.scopes += [block, element] if vectors else [block]
        self._branches += 1
        self._narrow_branches += not vectors
        body: list[str] = []
        try:
            yield level + 1, body
        finally:
            self._branches -= 1
            self._narrow_branches -= not vectors
            del self.scopes[level + 1 :]
            self.scopes.extend(deeper)
            body += block.lines
            if vectors and e is not None:
                body += [f"[[unroll]] for (int k = 0; k < {e.width}; k++) {{", *element.lines, "}"]
                e.level -= 1
                self.levels["k"] -= 1

    def _place(self, level: int, lines: Sequence[str]) -> None:
        self.scopes[level].lines.extend(lines)

    def _concat(self, instr: Instr, coords: Sequence[Lin], level: int) -> str:
        axis = instr.attrs["axis"]
        parts = [x for x in instr.inputs if x.shape[axis] != 0]
        if not parts:  # nobody reads it, but what is around it must compile
            return f"{GLSL_TYPES[instr.out.dtype].compute}(0)"
        starts: list[Extent] = [0]
        for x in parts:
            starts.append(starts[-1] + x.shape[axis])
        vectors = self._vectors_at(coords, {axis: starts})
        at = self.text(coords[axis].without("k") if vectors else coords[axis])
        result = self._result(instr.out, level, vectors)
        bodies = []
        for x, start in zip(parts, starts, strict=False):
            with self._branch(level, vectors) as (depth, body):
                inner = list(coords)
                inner[axis] = self._inside(coords[axis].shift(-start), depth)
                self.emit(f"{result} = {self.value(x, inner)};")
            bodies.append(body)

        def chosen(first: int, last: int) -> list[str]:
            # halved, since drivers lose count of branches that are nested deeper than a few dozen
            if last - first == 1:
                return ["{", *bodies[first], "}"]
            middle = (first + last) // 2
            test = f"if ({at} < {self.params.word(starts[middle])})"
            return [test + " {", *chosen(first, middle), "} else {", *chosen(middle, last), "}"]

        self._place(level - vectors, chosen(0, len(parts)))
        return result

    def _index(self, instr: Instr, coords: Sequence[Lin], extent: Extent, level: int) -> Lin:
        """An index read from the second operand: wrapped when negative, reported when outside."""
        indices = instr.inputs[1]
        text = self.value(indices, coords)
        if indices.dtype is DType.U64:
            text = f"int64_t({text})"
        elif indices.dtype is DType.I64:
            self.params.use(DType.I64)
        elif indices.dtype is not DType.I32:
            text = f"int({text})"
        error, label = self.params.error(), self.params.label(instr.source)
        check = "checked_index" if instr.attrs.get("wrap", True) else "checked_place"
        return self.variable(f"{check}({text}, {self.params.word(extent)}, {error}, {label})", level)

    def _gather(self, instr: Instr, coords: Sequence[Lin], level: int) -> str:
        x, indices = instr.inputs
        axis = instr.attrs["axis"]
        at = coords[axis : axis + indices.rank]
        i = self._index(instr, at, x.shape[axis], self.level(at))
        return self.value(x, [*coords[:axis], i, *coords[axis + indices.rank :]])

    def _gather_elements(self, instr: Instr, coords: Sequence[Lin], level: int) -> str:
        x, axis = instr.inputs[0], instr.attrs["axis"]
        inner = list(coords)
        inner[axis] = self._index(instr, coords, x.shape[axis], level)
        return self.value(x, inner)

    def _gather_nd(self, instr: Instr, coords: Sequence[Lin], level: int) -> str:
        x, indices = instr.inputs
        batch, depth = instr.attrs["batch_dims"], indices.shape[-1]
        assert not isinstance(depth, Dim)
        lead = coords[: indices.rank - 1]
        inner = list(coords[:batch])
        for k in range(depth):
            inner.append(self._index(instr, [*lead, Lin((), k)], x.shape[batch + k], self.level(lead)))
        return self.value(x, [*inner, *coords[indices.rank - 1 :]])

    # ------------------------------------------------------------------------------------------------ results
    def store(self, value: Value, coords: Sequence[Lin], text: str) -> None:
        """Write *text* to *value* at *coords*, in the current scope."""
        pointer = self.params.write(value)
        offset = self.text(linearize(coords, value.shape), opaque=False)
        self.emit(f"{pointer}.v[{offset}] = {pack(value.dtype, text)};")
