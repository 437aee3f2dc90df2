"""Walks: loops over the elements that one invocation of a generated kernel computes.

An invocation has ``ITEMS`` items, ``n``, each an element or a vector of neighbours, ``k`` (see ``elements.Elements``). The loops
are unrolled and have no branches around loads, so that the loads of all items are under way before the first is waited for: an
item past the end loads again what the last one does, and only stores ask whether it is there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from onnx_vulkan.codegen import vector
from onnx_vulkan.codegen.elements import Elements
from onnx_vulkan.codegen.index import Lin, linearize
from onnx_vulkan.codegen.kernel import At, is_multiple
from onnx_vulkan.codegen.render import Renderer
from onnx_vulkan.codegen.types import GLSL_TYPES, pack
from onnx_vulkan.dims import Extent, product
from onnx_vulkan.dtypes import DType
from onnx_vulkan.program.ir import Value

__all__ = ["Walk", "place_runs", "reads_as_written"]

UNROLLED_STATEMENTS = 512
"""Statements of elements in an unrolled text: bounds what a driver needs to compile it."""


def place_runs(
    r: Renderer, names: Sequence[str], shape: Sequence[Extent], runs: Sequence[Sequence[int]], variable: str, level: int
) -> None:
    """Give the axes of *runs* (see ``hole.merge_axes``) their places: *variable* is the row-major index of all of them."""
    for run in runs:
        for i in run:
            r.alias[names[i]] = None
    if len(runs) == 1:
        r.alias[names[runs[0][-1]]] = variable
    elif runs:
        extents = [product(shape[i] for i in run) for run in runs]
        for run, c in zip(runs, r.delinearize(Lin.var(variable), extents, level), strict=True):
            r.alias[names[run[-1]]] = r.text(c)


def reads_as_written(names: Sequence[str], coords: Sequence[Lin], shape: Sequence[Extent], loads: Iterable[Lin]) -> bool:
    """Whether the tensors of a whole *shape* that are read are read where they lie in it, and the others by its axes alone."""
    dense = linearize(coords, shape)
    return all(o == dense or (o.variables < dense.variables and o.variables <= set(names)) for o in loads)


class Walk:
    """The walks over the same elements of one kernel.

    ``head`` are the statements that begin an item: they define the bool ``there`` and the int ``variable``, which is the
    row-major index of the axes of ``runs`` and for vectors a multiple of their width. ``dense``: see ``elements.Elements``; the
    last vector may then reach beyond ``end``, the number of elements: what is loaded there is not used (tensors lie in memory in
    whole vectors).
    """

    def __init__(
        self,
        r: Renderer,
        names: Sequence[str],
        shape: Sequence[Extent],
        runs: Sequence[Sequence[int]],
        variable: str,
        head: Sequence[str],
        *,
        width: int,
        kept: bool,
        dense: Lin | None = None,
        end: str = "",
    ):
        self.r = r
        self.names, self.shape, self.runs = names, shape, runs
        self.variable = variable
        self.head = head
        self.memo: dict[object, str] = {}
        self.statements = 0
        inner = runs[-1] if runs else ()
        self.elements = Elements(names[inner[-1]] if inner else "", variable, width, 1, kept, dense=dense)
        self.end = end
        self.length = product(shape[i] for i in inner)
        r.elements = self.elements
        r.levels.update(dict.fromkeys([variable, *(names[i] for run in runs for i in run)], 1))
        r.levels["k"] = self.elements.inner
        if dense is not None:
            r.levels.update(dict.fromkeys([names[i] for run in runs for i in run], self.elements.inner))

    def point(self, coords: Sequence[Lin]) -> list[Lin]:
        """*coords* of an element, whose number in its vector is added."""
        e = self.elements
        if e.width == 1 or e.dense is not None:
            return list(coords)
        return [c + Lin.var("k") if c.coefficient(e.axis) == 1 else c for c in coords]

    @contextmanager
    def loop(self, around: tuple[str, str] = ("{", "}")) -> Iterator[list[str]]:
        """Run the statements that are rendered meanwhile for every element, between the lines *around*.

        What is added to the yielded list runs after that for every item.
        """
        r, e = self.r, self.elements
        then: list[str] = []
        with r.scope(self.memo if e.width == 1 else None) as item:
            if e.dense is None:
                place_runs(r, self.names, self.shape, self.runs, self.variable, e.level)
            if e.width > 1:
                with r.scope(self.memo) as element:
                    if e.dense is not None:
                        r.emit(f"int place = min({self.variable} + k, {self.end} - 1);")
                        place_runs(r, self.names, self.shape, self.runs, "place", e.inner)
                    yield then
                self.statements += len(element.lines)
                item.lines += [f"[[unroll]] for (int k = 0; k < {e.width}; k++) {{", *element.lines, "}"]
            else:
                yield then
                self.statements += len(item.lines)
        for line in (around[0], *self._items(item.lines), *self._items(then), around[1]):
            r.emit(line, 0)
        slot = f"[{e.slot}]"
        kept = {key: text for key, text in self.memo.items() if e.kept and text.endswith(slot)}
        self.memo.clear()
        self.memo.update(kept)

    def _items(self, lines: Sequence[str]) -> list[str]:
        return ["[[unroll]] for (int n = 0; n < int(ITEMS); n++) {", *self.head, *lines, "}"] if lines else []

    def store(self, outputs: Sequence[tuple[Value, Sequence[Lin], Lin]], condition: str, around: tuple[str, str]) -> None:
        """Store values at coordinates of an element and the offset there, where ``there`` and *condition* hold.

        All are computed before the first is stored: behind a store a compiler may not move loads forward.
        """
        r, e = self.r, self.elements
        with self.loop(around) as then:
            stores: list[str] = []
            for out, coords, offset in outputs:
                text = r.value(self._unrounded(out), coords)
                name = r.fresh("y")
                at = self._offset(r.first_of(offset) if e.width > 1 else offset)
                if out in r.rooms:
                    r.emit(f"{GLSL_TYPES[out.dtype].compute} {name}[ITEMS];", 0)
                    r.emit(f"{name}[n] = {text};")
                    stores.append(f"{r.rooms[out]}[room_at({at})] = {name}[n];")
                    continue
                pointer = r.params.write(out)
                if e.width == 1:
                    r.emit(f"{GLSL_TYPES[out.dtype].storage} {name}[ITEMS];", 0)
                    r.emit(f"{name}[n] = {pack(out.dtype, text)};")
                    stores.append(f"{pointer}.v[{at}] = {name}[n];")
                    continue
                e.scattered |= offset.coefficient("k") != 1
                r.emit(f"{GLSL_TYPES[out.dtype].compute} {name}[ITEMS][{e.width}];", 0)
                r.emit(f"{name}[n][k] = {text};")
                whole = vector.store(f"{name}[n]", out.dtype, e.width, pointer, at)
                stores += (
                    whole
                    if e.dense is None
                    else self._partly(whole, f"{pointer}.v[{at} + k] = {pack(out.dtype, f'{name}[n][k]')};")
                )
            then += [f"if (there{condition}) {{", *stores, "}"]

    def _partly(self, whole: Sequence[str], one: str) -> list[str]:
        """The lines *whole* where all elements of a vector exist, else *one* for each that does."""
        first, end, width = self.variable, self.end, self.elements.width
        some = f"[[unroll]] for (int k = 0; k < {width}; k++) if ({first} + k < {end}) {one}"
        return [f"if ({first} <= {end} - {width}) {{", *whole, "} else {", some, "}"]

    def _unrounded(self, out: Value) -> Value:
        """What *out* is rounded from by storing it, where that is all that makes it."""
        made = self.r.producers.get(out)
        if made is None or made.op != "cast" or out.dtype not in (DType.F16, DType.BF16) or self.r.is_leaf(out):
            return out
        return made.inputs[0] if made.inputs[0].dtype is DType.F32 else out

    def _offset(self, offset: Lin) -> str:
        """An expression for *offset* that holds in a later loop."""
        text = self.r.text(offset, opaque=False)
        if len(self.runs) < 2 or offset.variables <= {self.variable}:
            return text
        name = self.r.fresh("o")
        self.r.emit(f"int {name}[ITEMS];", 0)
        self.r.emit(f"{name}[n] = {text};", self.elements.level)
        return f"{name}[n]"

    def most(self, elements: int) -> int:
        """How many of *elements* an invocation may have for its unrolled text to stay short."""
        return max(min(elements, UNROLLED_STATEMENTS // max(self.statements, 1)), 1)

    def suits(self, at: At) -> bool:
        """Whether the vectors are whole and aligned at a plan's sizes."""
        e = self.elements
        return e.dense is not None or (not e.scattered and all(is_multiple(at, x, e.width) for x in (self.length, *e.aligned)))
