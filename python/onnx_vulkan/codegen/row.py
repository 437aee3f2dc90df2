"""The row kernel: reductions over the same axes of one index space, and everything elementwise around them.

The *space* is the shape of the reduced values; its reduced axes are the columns, the others the rows. A softmax is one row
kernel: a pass for the maximum, one for the sum of exponentials, one that stores. ``LANES`` invocations share a row and meet in
shared memory; whether neighbours in the workgroup walk columns or rows follows from which of them is contiguous in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from onnx_vulkan.codegen.functions import call
from onnx_vulkan.codegen.hole import merge_axes
from onnx_vulkan.codegen.index import ZERO, Lin, linearize
from onnx_vulkan.codegen.kernel import At, Kernel, Limits, Variant, grid_of, workgroups
from onnx_vulkan.codegen.params import Params
from onnx_vulkan.codegen.render import Renderer
from onnx_vulkan.codegen.types import GLSL_TYPES, wrap
from onnx_vulkan.dims import Extent, product
from onnx_vulkan.dtypes import FLOATS, DType
from onnx_vulkan.program.ir import Instr, Value

__all__ = ["RowGroup", "row_kernel"]


@dataclass(frozen=True, eq=False)
class RowGroup:
    """What one row kernel computes.

    ``reduces`` share the input shape ``space`` and the axes ``axes``, in an order in which each depends only on earlier
    ones. ``outputs`` have the shape of the space, or that of a reduced row (axes of extent 1 aside). ``producers`` are the
    instructions computed inside, the reductions excluded.
    """

    label: str
    space: tuple[Extent, ...]
    axes: tuple[int, ...]
    reduces: tuple[Instr, ...]
    outputs: tuple[Value, ...]
    producers: Mapping[Value, Instr]
    is_leaf: Callable[[Value], bool]


_INIT: dict[str, Callable[[DType], str]] = {
    "sum": lambda t: f"{GLSL_TYPES[t].compute}(0)",
    "prod": lambda t: f"{GLSL_TYPES[t].compute}(1)",
    "max": lambda t: _lowest(t),
    "min": lambda t: _highest(t),
}


def _lowest(t: DType) -> str:
    if t is DType.BOOL:
        return "false"
    if t in FLOATS:
        return f"(-ov_inf({GLSL_TYPES[t].compute}(0)))"
    if not t.is_signed:
        return f"{GLSL_TYPES[t].compute}(0)"
    bits = t.size * 8
    return f"(-{GLSL_TYPES[t].compute}({(1 << (bits - 1)) - 1}{'l' if bits == 64 else ''}) - {GLSL_TYPES[t].compute}(1))"


def _highest(t: DType) -> str:
    if t is DType.BOOL:
        return "true"
    if t in FLOATS:
        return f"ov_inf({GLSL_TYPES[t].compute}(0))"
    bits = t.size * 8
    if not t.is_signed:
        return f"{GLSL_TYPES[t].compute}({(1 << bits) - 1}{'ul' if bits == 64 else 'u'})"
    return f"{GLSL_TYPES[t].compute}({(1 << (bits - 1)) - 1}{'l' if bits == 64 else ''})"


def _combine(fn: str, t: DType, a: str, b: str) -> str:
    if fn in ("sum", "prod") and t.is_int:
        return f"({a} {'+' if fn == 'sum' else '*'} {b})"
    return call({"sum": "add", "prod": "mul"}.get(fn, fn), t, [a, b])


def _better(fn: str, t: DType, v: str, i: str, best: str, at: str, *, last: bool) -> str:
    """Whether (v, i) replaces (best, at): NaN wins, of equals the first (or last) index."""
    compare = ">" if fn == "argmax" else "<"
    tie = f"{i} > {at}" if last else f"{i} < {at}"
    if t is DType.BOOL:
        v, best = f"int({v})", f"int({best})"
    wins = f"{v} {compare} {best}"
    equal = f"{v} == {best}"
    if t in FLOATS:
        wins = f"({wins} || (ov_isnan({v}) && !ov_isnan({best})))"
        equal = f"({equal} || (ov_isnan({v}) && ov_isnan({best})))"
    return f"{wins} || ({equal} && {tie})"


class _RowRenderer:
    """Renders the passes of one group into a Renderer."""

    def __init__(self, group: RowGroup, params: Params, runs: tuple[list[list[int]], list[list[int]]] | None):
        self.group = group
        self.params = params
        self.r = Renderer(params, group.producers, group.is_leaf)
        self.names = [f"c{i}" for i in range(len(group.space))]
        self.coords = [Lin.var(n) if e != 1 else ZERO for n, e in zip(self.names, group.space, strict=True)]
        self.outer = [i for i in range(len(group.space)) if i not in group.axes]
        self.runs = runs
        self.shared: dict[str, None] = {}
        for i in group.axes:
            self.r.levels[self.names[i]] = 1
        self.r.levels["col"] = 1
        if runs is not None:
            self._place("row", runs[0], 0)

    def _place(self, variable: str, runs: Sequence[Sequence[int]], level: int) -> None:
        space = self.group.space
        for run in runs:
            for i in run:
                self.r.alias[self.names[i]] = None
        if len(runs) == 1:
            self.r.alias[self.names[runs[0][-1]]] = variable
        elif runs:
            extents = [product(space[i] for i in run) for run in runs]
            for run, c in zip(runs, self.r.delinearize(Lin.var(variable), extents, level), strict=True):
                self.r.alias[self.names[run[-1]]] = self.r.text(c)

    def _row_coords(self, value: Value) -> list[Lin]:
        kept = iter([self.coords[i] for i in self.outer if self.group.space[i] != 1])
        return [ZERO if e == 1 else next(kept) for e in value.shape]

    def _loop(self, inner: Sequence[str], *, guard: str = "") -> None:
        cols = self.params.word(product(self.group.space[i] for i in self.group.axes))
        condition = f"{guard}col < {cols}"
        self.r.emit(f"for (int col = lane; {condition}; col += int(LANES)) {{", 0)
        for line in inner:
            self.r.emit("    " + line, 0)
        self.r.emit("}", 0)

    def reduce(self, instr: Instr) -> None:
        r, fn = self.r, instr.attrs["fn"]
        (x,) = instr.inputs
        t = x.dtype
        compute = GLSL_TYPES[t].compute
        self.params.use(t)
        arg = fn in ("argmax", "argmin")
        acc, at = r.fresh("acc"), r.fresh("at")
        init = _INIT["max" if fn == "argmax" else "min" if fn == "argmin" else fn](t)
        with r.scope() as scope:
            if self.runs is not None:
                self._place("col", self.runs[1], 1)
            v = r.value(x, self.coords)
            if arg:
                better = _better(fn, t, v, "col", acc, at, last=instr.attrs["last"])
                r.emit(f"if ({at} < 0 || {better}) {{ {acc} = {v}; {at} = col; }}")
            else:
                r.emit(f"{acc} = {_combine(fn, t, acc, v)};")
        r.emit(f"{compute} {acc} = {init};", 0)
        if arg:
            r.emit(f"int {at} = -1;", 0)
        self._loop(scope.lines)
        self._meet(fn, t, compute, acc, at if arg else None, last=instr.attrs["last"])
        if arg:
            self.params.use(DType.I64)
            result = f"int64_t({at})"
        else:
            result = wrap(t, acc) if t.is_int else acc
            if t in (DType.F16,) and fn in ("sum", "prod"):
                result = acc
        r.define(instr.out, self._row_coords(instr.out), result)

    def _meet(self, fn: str, t: DType, compute: str, acc: str, at: str | None, *, last: bool) -> None:
        """Combine the lanes of a row in shared memory; every lane leaves with the result."""
        emit = self.r.emit
        cells = f"cells_{compute}"
        self.shared.setdefault(f"shared {compute} {cells}[gl_WorkGroupSize.x];")
        emit("if (LANES > 1u) {", 0)
        emit(f"    {cells}[slot] = {acc};", 0)
        if at is not None:
            self.shared.setdefault("shared int cells_at[gl_WorkGroupSize.x];")
            emit(f"    cells_at[slot] = {at};", 0)
        emit("    barrier();", 0)
        emit("    for (uint half_lanes = LANES / 2u; half_lanes > 0u; half_lanes >>= 1) {", 0)
        other = "slot + half_lanes * LANE_STEP"
        emit("        if (uint(lane) < half_lanes) {", 0)
        if at is None:
            emit(f"            {cells}[slot] = {_combine(fn, t, f'{cells}[slot]', f'{cells}[{other}]')};", 0)
        else:
            emit(f"            {compute} theirs = {cells}[{other}];", 0)
            emit(f"            int theirs_at = cells_at[{other}];", 0)
            better = _better(fn, t, "theirs", "theirs_at", f"{cells}[slot]", "cells_at[slot]", last=last)
            emit(f"            if (theirs_at >= 0 && (cells_at[slot] < 0 || {better})) {{", 0)
            emit(f"                {cells}[slot] = theirs;", 0)
            emit("                cells_at[slot] = theirs_at;", 0)
            emit("            }", 0)
        emit("        }", 0)
        emit("        barrier();", 0)
        emit("    }", 0)
        emit(f"    {acc} = {cells}[slot - uint(lane) * LANE_STEP];", 0)
        if at is not None:
            emit(f"    {at} = cells_at[slot - uint(lane) * LANE_STEP];", 0)
        emit("    barrier();", 0)
        emit("}", 0)

    def store(self) -> None:
        r, group = self.r, self.group
        space = group.space
        full = [v for v in group.outputs if v.shape == space]
        rows = [v for v in group.outputs if v.shape != space]
        for v in rows:
            coords = self._row_coords(v)
            text = r.value(v, coords)
            with r.scope() as scope:
                r.store(v, coords, text)
            r.emit(f"if (live && lane == 0) {{ {' '.join(scope.lines)} }}", 0)
        if full:
            with r.scope() as scope:
                if self.runs is not None:
                    self._place("col", self.runs[1], 1)
                texts = [(v, r.value(v, self.coords)) for v in full]
                for v, text in texts:
                    r.store(v, self.coords, text)
            self._loop(scope.lines, guard="live && ")

    def run(self) -> None:
        for instr in self.group.reduces:
            self.reduce(instr)
        self.store()


def row_kernel(group: RowGroup) -> Kernel:
    """Render the kernel of a row group."""
    space, axes = group.space, group.axes
    outer = [i for i in range(len(space)) if i not in axes]
    probe = _RowRenderer(group, Params(), None)
    probe.run()
    accesses = [offset for _, offset in probe.r.loads]
    dense = linearize(probe.coords, space)
    if any(v.shape == space for v in group.outputs):
        accesses.append(dense)
    walked = accesses
    if any(v.shape != space for v in group.outputs):
        accesses = [*accesses, linearize([probe.coords[i] for i in outer], [space[i] for i in outer])]
    runs = (
        merge_axes(probe.names, space, outer, accesses, probe.r.opaque),
        merge_axes(probe.names, space, axes, walked, probe.r.opaque),
    )
    params = Params()
    made = _RowRenderer(group, params, runs)
    made.run()
    rows, cols = product(space[i] for i in outer), product(space[i] for i in axes)
    col_names = [probe.names[i] for i in axes if space[i] != 1]
    # Neighbours walk rows when the columns are strided in what is read (a reduction over leading or middle axes).
    row_fast = bool(col_names) and not any(a.coefficient(col_names[-1]) == 1 for a in walked if a.coefficient(col_names[-1]) != 0)
    body = "\n".join(
        [
            "layout(local_size_x_id = 0) in;",
            "layout(constant_id = 1) const uint LANES = 32u;",
            *made.shared,
            "",
            "void main() {",
            "    const uint ROWS = gl_WorkGroupSize.x / LANES;",
            f"    const uint LANE_STEP = {'ROWS' if row_fast else '1u'};",
            "    uint slot = gl_LocalInvocationID.x;",
            f"    int lane = int({'slot / ROWS' if row_fast else 'slot % LANES'});",
            f"    uint row_here = {'slot % ROWS' if row_fast else 'slot / LANES'};",
            "    uint group = gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x;",
            "    int row = int(group * ROWS + row_here);",
            # invocations past the last row go on with it, so that all of them meet at the barriers, but store nothing
            f"    bool live = row < {params.word(rows)};",
            f"    row = min(row, {params.word(rows)} - 1);",
            *("    " + line for line in made.r.scopes[0].lines),
            "}",
        ]
    )

    def choose(at: At, limits: Limits) -> Variant:
        n_rows, n_cols = at(rows), at(cols)
        most = min(256, limits.max_workgroup_invocations)
        if row_fast:
            # 32 neighbouring rows make full memory transactions; more lanes only while there are few rows
            lanes = 1
            while lanes * 32 < most and lanes * 4 < n_cols and n_rows * lanes < 64 * 1024:
                lanes *= 2
            return Variant((32 * lanes, lanes), grid_of(workgroups(rows, 32)))
        if n_rows < 64:
            most = min(1024, limits.max_workgroup_invocations)
        lanes = 1
        while lanes < most and lanes * 4 < n_cols:
            lanes *= 2
        size = max(lanes, min(64, limits.max_workgroup_invocations))
        return Variant((size, lanes), grid_of(workgroups(rows, size // lanes)))

    return Kernel(group.label, params, body, tuple(made.r.reads), group.outputs, choose)
