"""The row kernel: reductions over the same axes of one index space, and everything elementwise around them.

The *space* is the shape of the reduced values; its reduced axes are the columns, the others the rows. A softmax is one row
kernel: a pass for the maximum, one for the sum of exponentials, one that stores. ``LANES`` invocations share a row and meet in
shared memory; whether neighbours in the workgroup walk columns or rows follows from which of them is contiguous in memory.
A plain reduction of few long rows is split over workgroups: each reduces a piece of the columns, a second launch the pieces.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from onnx_vulkan.codegen.functions import call
from onnx_vulkan.codegen.hole import merge_axes
from onnx_vulkan.codegen.index import ZERO, Lin, linearize
from onnx_vulkan.codegen.kernel import At, Kernel, Launch, Limits, Step, Variant, grid_of, workgroups
from onnx_vulkan.codegen.params import Params
from onnx_vulkan.codegen.render import Renderer
from onnx_vulkan.codegen.types import GLSL_TYPES, pack, wrap
from onnx_vulkan.dims import Extent, ceil_div, product
from onnx_vulkan.dtypes import FLOATS, DType
from onnx_vulkan.program.ir import Instr, Value

__all__ = ["RowGroup", "row_step"]

PIECES = 64
"""Into how many pieces the columns of a split reduction are cut."""

UNROLL = 4
"""Columns that an invocation loads before it combines them: hides the latency of memory."""

SMALL_GRID = 256 * 1024
"""Invocations below which a device of our size is not full; rows then get more lanes."""


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

    def __init__(
        self, group: RowGroup, params: Params, runs: tuple[list[list[int]], list[list[int]]] | None, pieces: bool = False
    ):
        self.group = group
        self.pieces = pieces
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
        """Run *inner* for the columns of this lane."""
        emit = self.r.emit
        first, end = ("piece_first + lane", "piece_end") if self.pieces else ("lane", self.cols())
        condition = f"{guard}first_col < {end}"
        emit(f"for (int first_col = {first}; {condition}; first_col += int(LANES) * {UNROLL}) {{", 0)
        emit(f"    [[unroll]] for (int n = 0; n < {UNROLL}; n++) {{", 0)
        emit("        int col = first_col + n * int(LANES);", 0)
        emit(f"        if (col < {end}) {{", 0)
        for line in inner:
            emit("            " + line, 0)
        for closing in ("        }", "    }", "}"):
            emit(closing, 0)

    def cols(self) -> str:
        """The number of columns."""
        return self.params.word(product(self.group.space[i] for i in self.group.axes))

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
            result = f"ov_long({at})"
        else:
            result = wrap(t, acc)
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

    def store_piece(self, pieces: Value) -> None:
        """Store the first reduction's result as one piece."""
        (reduce,) = self.group.reduces
        r = self.r
        text = r.value(reduce.out, self._row_coords(reduce.out))
        rows = self.params.word(product(reduce.out.shape))
        cell = f"{self.params.write(pieces)}.v[int(gl_WorkGroupID.z) * {rows} + row]"
        r.emit(f"if (live && lane == 0) {cell} = {pack(pieces.dtype, text)};", 0)

    def run(self) -> None:
        for instr in self.group.reduces:
            self.reduce(instr)
        self.store()


def row_step(group: RowGroup) -> Step:
    """The step of a row group: one kernel, or a reduction in pieces where a plan's rows are few and long."""
    whole = _row_kernel(group)
    (first, *more), space = group.reduces, group.space
    plain = not more and first.attrs["fn"] in ("sum", "prod", "max", "min") and all(v.shape != space for v in group.outputs)
    return _SplitStep(group, whole) if plain else whole


class _SplitStep:
    """A reduction that is one launch or two, by its sizes."""

    def __init__(self, group: RowGroup, whole: Kernel):
        self.group, self.whole = group, whole
        self.label, self.reads, self.writes = whole.label, whole.reads, whole.writes
        self._split: tuple[Kernel, Kernel] | None = None

    def launches(self, at: At, limits: Limits) -> list[Launch]:
        """Two launches for few long rows."""
        space, axes = self.group.space, self.group.axes
        rows = at(product(e for i, e in enumerate(space) if i not in axes))
        cols = at(product(space[i] for i in axes))
        if cols < 16 * PIECES or rows * cols < 64 * 1024 or rows * 32 > SMALL_GRID // 4:
            return self.whole.launches(at, limits)
        if self._split is None:
            self._split = self._kernels()
        return [launch for kernel in self._split for launch in kernel.launches(at, limits)]

    def _kernels(self) -> tuple[Kernel, Kernel]:
        group = self.group
        (reduce,) = group.reduces
        out = reduce.out
        # sums of half floats stay in float32 between the launches
        dtype = DType.F32 if out.dtype in (DType.F16, DType.BF16) else out.dtype
        pieces = Value(dtype, (PIECES, *out.shape), "pieces")
        first = _row_kernel(replace(group, outputs=(pieces,)), pieces=pieces)
        again = Instr("reduce", (pieces,), (out,), {**reduce.attrs, "axes": (0,)}, reduce.source)
        is_leaf = group.is_leaf
        last = _row_kernel(
            replace(group, space=pieces.shape, axes=(0,), reduces=(again,), is_leaf=lambda v: v is pieces or is_leaf(v))
        )
        return first, last


def _row_kernel(group: RowGroup, pieces: Value | None = None) -> Kernel:
    """Render the kernel of a row group. With *pieces*, each workgroup along z reduces one piece of the columns into it."""
    space, axes = group.space, group.axes
    outer = [i for i in range(len(space)) if i not in axes]
    probe = _RowRenderer(group, Params(), None)
    if pieces is None:
        probe.run()
    else:
        probe.reduce(group.reduces[0])
    accesses = [offset for _, offset in probe.r.loads]
    dense = linearize(probe.coords, space)
    if pieces is None and any(v.shape == space for v in group.outputs):
        accesses.append(dense)
    walked = accesses
    if pieces is not None or any(v.shape != space for v in group.outputs):
        accesses = [*accesses, linearize([probe.coords[i] for i in outer], [space[i] for i in outer])]
    runs = (
        merge_axes(probe.names, space, outer, accesses, probe.r.opaque),
        merge_axes(probe.names, space, axes, walked, probe.r.opaque),
    )
    params = Params()
    made = _RowRenderer(group, params, runs, pieces is not None)
    if pieces is None:
        made.run()
    else:
        made.reduce(group.reduces[0])
        made.store_piece(pieces)
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
            *(
                [
                    f"    int piece_first = int(gl_WorkGroupID.z) * {params.word(ceil_div(cols, PIECES))};",
                    f"    int piece_end = min(piece_first + {params.word(ceil_div(cols, PIECES))}, {params.word(cols)});",
                ]
                if pieces is not None
                else []
            ),
            *("    " + line for line in made.r.scopes[0].lines),
            "}",
        ]
    )

    def choose(at: At, limits: Limits) -> Variant:
        n_rows, n_cols = at(rows), at(cols)
        if pieces is not None:
            n_cols = -(-n_cols // PIECES)
        most = min(256, limits.max_workgroup_invocations)
        if row_fast:
            # 32 neighbouring rows make full memory transactions; more lanes only while there are few rows
            lanes = 1
            while lanes * 32 < most and lanes * 4 < n_cols and n_rows * lanes < 64 * 1024:
                lanes *= 2
            return Variant((32 * lanes, lanes), in_pieces(grid_of(workgroups(rows, 32))))
        if n_rows * 256 < SMALL_GRID and n_cols >= 4096:
            most = min(1024, limits.max_workgroup_invocations)
        lanes = 1
        while lanes < most and lanes * 4 < n_cols:
            lanes *= 2
        size = max(lanes, min(64, limits.max_workgroup_invocations))
        return Variant((size, lanes), in_pieces(grid_of(workgroups(rows, size // lanes))))

    def in_pieces(grid: tuple[Extent, Extent, Extent]) -> tuple[Extent, Extent, Extent]:
        return grid if pieces is None else (grid[0], grid[1], PIECES)

    return Kernel(group.label, params, body, tuple(made.r.reads), group.outputs, choose)
