"""Scatter (ScatterND, ScatterElements): a copy of the data, then the updates in the result's memory. Always deterministic.

An update is a *row*: one element, or for ``nd`` the slice that an index names. How colliding rows are ordered:

- no two rows can collide (one row, constant distinct indices, an axis of one index): rows are written at once;
- ``none``: the last row of the spec's loop wins. A pass over the rows leaves, by atomic maximum, the last one of each destination
  in a scratch tensor (four bytes a destination: a fill and a pass more), then only winners write;
- ``add``, ``max``, ``min`` of 32-bit integers: atomics, since their order does not show;
- every other reduction: the rows are sorted by destination (stably, :class:`~onnx_vulkan.kernels.sort.PairSort`), then one thread
  applies the rows of a destination in the spec's order. Costs a sort of the rows; many rows of one destination run one after
  the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from onnx_vulkan.codegen import functions
from onnx_vulkan.codegen.index import row_major
from onnx_vulkan.codegen.kernel import At, Kernel, Launch, Limits, Step
from onnx_vulkan.codegen.loop import loop_step
from onnx_vulkan.codegen.params import Params
from onnx_vulkan.codegen.types import GLSL_TYPES, pack, unpack
from onnx_vulkan.dims import Dim, Extent, product
from onnx_vulkan.dtypes import DType
from onnx_vulkan.kernels import Group, family
from onnx_vulkan.kernels.indexing import FLAT_GROUP, flat_grid, split_index
from onnx_vulkan.kernels.sort import PairSort, Text
from onnx_vulkan.program.ir import Instr, Value

__all__ = ["ScatterStep", "distinct_rows"]

_ATOMIC = {"add": "atomicAdd", "max": "atomicMax", "min": "atomicMin"}


def _supports(instr: Instr) -> str | None:
    a, (data, indices, _) = instr.attrs, instr.inputs
    if indices.dtype not in (DType.I32, DType.I64):
        return f"scatter by {indices.dtype.onnx_name} indices is not supported"
    if a["kind"] == "nd" and (isinstance(indices.shape[-1], Dim) or indices.shape[-1] < 1):
        return f"scatter by index tuples of {indices.shape[-1]} numbers is not supported"
    fn = a["reduction"]
    if fn != "none" and not functions.has_function(fn, data.dtype):
        return f"scatter of {data.dtype.onnx_name} with reduction {fn} is not supported"
    return None


@dataclass(frozen=True, eq=False)
class _Scatter:
    """What the kernels of one scatter share."""

    instr: Instr

    @property
    def out(self) -> Value:
        return self.instr.out

    @property
    def depth(self) -> int:
        """How many leading axes an index tuple names (``nd``)."""
        depth = self.instr.inputs[1].shape[-1]
        assert isinstance(depth, int)
        return depth

    @property
    def is_nd(self) -> bool:
        return bool(self.instr.attrs["kind"] == "nd")

    @property
    def rows(self) -> Extent:
        """How many updates there are."""
        shape = self.instr.inputs[1].shape
        return product(shape[:-1] if self.is_nd else shape)

    @property
    def width(self) -> Extent:
        """Elements of an update."""
        return product(self.out.shape[self.depth :]) if self.is_nd else 1

    @property
    def targets(self) -> Extent:
        """How many destinations there are."""
        return product(self.out.shape[: self.depth] if self.is_nd else self.out.shape)

    def somewhere(self, params: Params) -> list[str]:
        """Ends the thread where there is no destination at all: the index was reported, and 0 is none either."""
        targets = self.targets
        return [] if isinstance(targets, int) and targets > 0 else [f"if ({params.word(targets)} == 0) return;"]

    def target(self, params: Params, row: str) -> list[str]:
        """Statements that declare ``target``, the destination of update *row*."""
        indices, shape = self.instr.inputs[1], self.out.shape
        params.use(indices.dtype)

        def checked(at: str, extent: Extent) -> str:
            text = f"{params.read(indices)}.v[{at}]"
            return f"checked_index({text}, {params.word(extent)}, {params.error()}, {params.label()})"

        if self.is_nd:
            lines = ["int target = 0;"]
            for k in range(self.depth):
                at = f"{row} * {self.depth} + {k}" if self.depth > 1 else row
                lines.append(f"target = target * {params.word(shape[k])} + {checked(at, shape[k])};")
            return lines
        names = [f"c{i}" for i in range(len(shape))]
        axis = self.instr.attrs["axis"]
        lines = split_index(params, row, list(zip(names, indices.shape, strict=True)))
        terms = [
            f"{checked(row, e) if i == axis else name}" + ("" if s == 1 else f" * {params.word(s)}")
            for i, (name, s, e) in enumerate(zip(names, row_major(shape), shape, strict=True))
        ]
        return [*lines, f"int target = {' + '.join(terms)};"]

    def update(self, params: Params, at: str) -> str:
        """The compute-type expression of element *at* of the updates."""
        updates = self.instr.inputs[2]
        return unpack(updates.dtype, f"{params.read(updates)}.v[{at}]")

    # ---------------------------------------------------------------------------------------------- kernels
    def kernel(self, label: str, params: Params, items: Extent, lines: Sequence[str], writes: Sequence[Value]) -> Kernel:
        """A kernel of one thread an item (``i``), its parameters already asked for but the count."""
        text = "\n".join(f"    {line}" for line in lines)
        body = f"""layout(local_size_x_id = 0) in;

void main() {{
    int i = int({FLAT_GROUP} * gl_WorkGroupSize.x + gl_LocalInvocationID.x);
    if (i >= {params.word(items)}) return;
{text}
}}
"""
        reads = tuple(p.value for p in params.entries if p.kind == "read" and p.value is not None)
        return Kernel(label, params, body, reads, tuple(writes), flat_grid(items))

    def row_and_lane(self, params: Params) -> list[str]:
        """Statements that split item ``i`` into the update ``row`` and the element ``lane`` in it."""
        return split_index(params, "i", [("row", self.rows), ("lane", self.width)])

    def write(self, label: str, last: Value | None) -> Kernel:
        """Writes the updates; with *last*, only those which it names."""
        params, out = Params(), self.out
        params.use(out.dtype)
        lines = [*self.row_and_lane(params), *self.target(params, "row"), *self.somewhere(params)]
        if last is not None:
            lines.append(f"if ({params.read(last)}.v[target] != row) return;")
        pointer, width = params.write(out), params.word(self.width)
        updates = params.read(self.instr.inputs[2])
        lines.append(f"{pointer}.v[target * {width} + lane] = {updates}.v[i];")
        return self.kernel(label, params, self.rows * self.width, lines, [out])

    def combine(self, label: str) -> Kernel:
        """Applies the reduction to destinations that no two updates share."""
        params, out = Params(), self.out
        params.use(out.dtype)
        compute, pointer = GLSL_TYPES[out.dtype].compute, params.write(out)
        at = f"{pointer}.v[target * {params.word(self.width)} + lane]"
        result = functions.call(self.instr.attrs["reduction"], out.dtype, ["x", "u"])
        lines = [
            *self.row_and_lane(params),
            *self.target(params, "row"),
            *self.somewhere(params),
            f"{compute} x = {unpack(out.dtype, at)}, u = {self.update(params, 'i')};",
            f"{at} = {pack(out.dtype, result)};",
        ]
        return self.kernel(label, params, self.rows * self.width, lines, [out])

    def atomics(self, label: str) -> Kernel:
        """Applies a reduction of 32-bit integers whose order does not show."""
        params, out = Params(), self.out
        params.use(out.dtype)
        at = f"{params.write(out)}.v[target * {params.word(self.width)} + lane]"
        call = f"{_ATOMIC[self.instr.attrs['reduction']]}({at}, {self.update(params, 'i')});"
        lines = [*self.row_and_lane(params), *self.target(params, "row"), *self.somewhere(params), call]
        return self.kernel(label, params, self.rows * self.width, lines, [out])

    def fill(self, label: str, last: Value) -> Kernel:
        """No destination has an update yet."""
        params = Params()
        return self.kernel(label, params, self.targets, [f"{params.write(last)}.v[i] = -1;"], [last])

    def claim(self, label: str, last: Value) -> Kernel:
        """Leaves the last update of each destination in *last*."""
        params = Params()
        lines = [*self.target(params, "i"), *self.somewhere(params), f"atomicMax({params.write(last)}.v[target], i);"]
        return self.kernel(label, params, self.rows, lines, [last])

    def in_order(self, label: str, targets: Value, order: Value) -> Kernel:
        """Applies the updates, sorted by destination, one after the other; a thread a destination and element."""
        params, out = Params(), self.out
        params.use(out.dtype)
        compute, pointer, width = GLSL_TYPES[out.dtype].compute, params.write(out), params.word(self.width)
        t, o, rows = params.read(targets), params.read(order), params.word(self.rows)
        result = functions.call(self.instr.attrs["reduction"], out.dtype, ["x", "u"])
        lines = [
            *self.row_and_lane(params),
            *self.somewhere(params),
            f"uint target = {t}.v[row];",
            f"if (row > 0 && {t}.v[max(row, 1) - 1] == target) return;",
            f"int at = int(target) * {width} + lane;",
            f"{compute} x = {unpack(out.dtype, f'{pointer}.v[at]')};",
            f"for (int n = row; n < {rows} && {t}.v[n] == target; n++) {{",
            f"    {compute} u = {self.update(params, f'{o}.v[n] * {width} + lane')};",
            f"    x = {result};",
            "}",
            f"{pointer}.v[at] = {pack(out.dtype, 'x')};",
        ]
        return self.kernel(label, params, self.rows * self.width, lines, [out])

    def sort(self, label: str, targets: Value, order: Value) -> PairSort:
        """The updates sorted by destination: *targets* in order and which update each is."""

        def key(params: Params) -> Text:
            lines = [*self.target(params, "position"), "key = uint(target);"]
            return Text(lines, (self.instr.inputs[1],))

        def store(params: Params) -> Text:
            lines = [f"{params.write(targets)}.v[place] = key;", f"{params.write(order)}.v[place] = index;"]
            return Text(lines, writes=(targets, order))

        return PairSort(label, 1, self.rows, self.rows, False, key, store)


def distinct_rows(instr: Instr) -> bool:
    """Whether no two updates of a scatter can have one destination, for all that is known before a run."""
    indices, shape = instr.inputs[1], instr.inputs[1].shape
    if instr.attrs["kind"] == "elements":
        axis = instr.attrs["axis"]
        if shape[axis] == 1:
            return True
        if indices.data is None or isinstance(instr.out.shape[axis], Dim):
            return False
        wrapped = np.sort(indices.data % max(instr.out.shape[axis], 1), axis=axis)
        return not bool((np.diff(wrapped, axis=axis) == 0).any())
    if product(shape[:-1]) == 1:
        return True
    depth = shape[-1]
    if indices.data is None or isinstance(depth, Dim):
        return False
    extents = instr.out.shape[:depth]
    if any(isinstance(e, Dim) for e in extents):
        return False
    flat = indices.data.reshape(-1, len(extents)) % np.maximum(np.array(extents, np.int64), 1)
    return len(np.unique(flat, axis=0)) == len(flat)


@dataclass(eq=False)
class ScatterStep:
    """The step of one scatter: steps that run one after the other."""

    label: str
    reads: tuple[Value, ...]
    writes: tuple[Value, ...]
    parts: tuple[Step | PairSort, ...]

    def launches(self, at: At, limits: Limits) -> list[Launch]:
        """The copy, then what the updates need."""
        return [launch for part in self.parts for launch in part.launches(at, limits)]


@family("scatter", _supports, views=frozenset({0}))
def scatter_step(group: Group) -> Step:
    """The step of a ``scatter`` primitive."""
    instr, label = group.anchor, group.label
    data, indices, updates = instr.inputs
    scatter, out, fn = _Scatter(instr), instr.out, instr.attrs["reduction"]
    same = Instr("reshape", (data,), (out,), {"shape": out.shape})
    copy = loop_step(label, [out], {**group.producers, out: same}, lambda v: v is not out and group.is_leaf(v))
    parts: list[Step | PairSort] = [copy]
    if distinct_rows(instr):
        parts.append(scatter.write(label, None) if fn == "none" else scatter.combine(label))
    elif fn == "none":
        last = Value(DType.I32, (scatter.targets,), "last update")
        parts += [scatter.fill(label, last), scatter.claim(label, last), scatter.write(label, last)]
    elif fn in _ATOMIC and out.dtype in (DType.I32, DType.U32):
        parts.append(scatter.atomics(label))
    else:
        targets, order = Value(DType.U32, (scatter.rows,), "targets"), Value(DType.I32, (scatter.rows,), "order")
        parts += [scatter.sort(label, targets, order), scatter.in_order(label, targets, order)]
    reads = tuple(dict.fromkeys([*copy.reads, indices, updates]))
    return ScatterStep(label, reads, (out,), tuple(parts))
