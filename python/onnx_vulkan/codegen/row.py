"""The row kernel: reductions over the same axes of one index space, and everything elementwise around them.

The *space* is the shape of the reduced values; its reduced axes are the columns, the others the rows. A softmax is one row
kernel: a pass for the maximum, one for the sum of exponentials, one that stores. ``LANES`` invocations share a row; whether
neighbours in the workgroup walk columns or rows follows from which of them is contiguous in memory. What a lane has of a row
stays in its registers from pass to pass, so memory is read once; rows too long for that are read in every pass. Lanes combine
their parts by shuffles in a subgroup and in shared memory beyond it (:mod:`onnx_vulkan.codegen.meet`), in an order that follows
from the variant alone.
A plain reduction of few long rows is split over workgroups: each reduces a piece of the columns, a second launch the pieces.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from onnx_vulkan.codegen.choices import pick
from onnx_vulkan.codegen.hole import merge_axes
from onnx_vulkan.codegen.index import ZERO, Lin, linearize
from onnx_vulkan.codegen.kernel import At, Kernel, Launch, Limits, Step, Variant, chosen_by_step, grid_of, workgroups
from onnx_vulkan.codegen.meet import Meeting, combine, initial, replaces
from onnx_vulkan.codegen.params import Params
from onnx_vulkan.codegen.render import Renderer
from onnx_vulkan.codegen.types import GLSL_TYPES, pack, wrap
from onnx_vulkan.codegen.vector import VECTOR_COUNT, vector_width
from onnx_vulkan.codegen.walk import Walk, place_runs
from onnx_vulkan.dims import Extent, ceil_div, product
from onnx_vulkan.dtypes import DType
from onnx_vulkan.program.ir import Instr, Value

__all__ = ["SHUFFLES", "Form", "RowGroup", "RowRenderer", "RowStep", "few", "row_step"]

PIECES = 64
"""Into how many pieces the columns of a split reduction are cut."""

KEPT_ELEMENTS = 32
"""The most elements of a row that an invocation keeps in registers."""

LOADED_ELEMENTS = 8
"""Elements that an invocation loads before it combines them, where it does not keep them: hides the latency of memory."""

SMALL_GRID = 256 * 1024
"""Invocations below which a device of our size is not full; rows then get more lanes."""

LINE_BYTES = 128
"""What a workgroup walks of neighbouring rows where columns are strided: whole lines of memory."""

LOCAL = "gl_LocalInvocationID.x"
SHUFFLES = ("GL_KHR_shader_subgroup_basic", "GL_KHR_shader_subgroup_shuffle")

Runs = list[list[int]]
"""Axes that are walked as one index, see ``hole.merge_axes``."""


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


@dataclass(frozen=True)
class Form:
    """What a row kernel's text depends on beside its group.

    ``kept``: rows are held in registers. ``width``: elements of a vector. ``pieces``: each workgroup along z reduces one piece of
    the columns into that value.
    """

    kept: bool
    width: int = 1
    subgroups: bool = False
    pieces: Value | None = None


class RowRenderer:
    """Renders the passes of one group. Without *runs* it only finds out what they access."""

    def __init__(
        self,
        group: RowGroup,
        params: Params,
        form: Form,
        runs: tuple[Runs, Runs] | None,
        row_fast: bool = False,
        rooms: Mapping[Value, str] | None = None,
    ):
        self.group, self.params, self.form, self.row_fast = group, params, form, row_fast
        self.r = Renderer(params, group.producers, group.is_leaf)
        self.r.rooms.update(rooms or {})
        self.names = [f"c{i}" for i in range(len(group.space))]
        self.coords = [Lin.var(n) if e != 1 else ZERO for n, e in zip(self.names, group.space, strict=True)]
        self.outer = [i for i in range(len(group.space)) if i not in group.axes]
        self.rows = params.word(product(group.space[i] for i in self.outer))
        self.cols = params.word(product(group.space[i] for i in group.axes))
        self.meeting = Meeting(form.subgroups and not row_fast)
        self.walk = self._walk(runs[1] if runs else [[i] for i in group.axes])
        self.coords = self.walk.point(self.coords)
        if runs is not None:
            place_runs(self.r, self.names, group.space, runs[0], "row", 0)

    def _walk(self, runs: Runs) -> Walk:
        form, end = self.form, self.end
        item = f"n * int(LANES){f' * {form.width}' if form.width > 1 else ''}"
        lane = f"lane * {form.width}" if form.width > 1 else "lane"
        start = lane if form.kept else f"first_col + {lane}"
        head = [
            f"int col_at = {start} + {item};",
            f"bool there = col_at < {end};",
            f"int col = min(col_at, {end} - {form.width});",
        ]
        return Walk(self.r, self.names, self.group.space, runs, "col", head, width=form.width, kept=form.kept)

    @property
    def end(self) -> str:
        """Where the columns of this workgroup end."""
        return "piece_end" if self.form.pieces is not None else self.cols

    @property
    def around(self) -> tuple[str, str]:
        """The lines around a walk over the columns."""
        if self.form.kept:
            return f"if (0 < {self.cols}) {{", "}"
        first = "piece_first" if self.form.pieces is not None else "0"
        step = f"int(LANES * ITEMS){f' * {self.form.width}' if self.form.width > 1 else ''}"
        return f"for (int first_col = {first}; first_col < {self.end}; first_col += {step}) {{", "}"

    def _row_coords(self, value: Value) -> list[Lin]:
        kept = iter([self.coords[i] for i in self.outer if self.group.space[i] != 1])
        return [ZERO if e == 1 else next(kept) for e in value.shape]

    def reduce(self, instr: Instr) -> None:
        r, fn = self.r, instr.attrs["fn"]
        (x,) = instr.inputs
        t = x.dtype
        self.params.use(t)
        arg = fn in ("argmax", "argmin")
        acc, at = r.fresh("acc"), r.fresh("at")
        r.emit(f"{GLSL_TYPES[t].compute} {acc} = {initial(fn, t)};", 0)
        if arg:
            r.emit(f"int {at} = -1;", 0)
        with self.walk.loop(self.around):
            v = r.value(x, self.coords)
            if arg:
                column = "col + k" if self.form.width > 1 else "col"
                better = replaces(fn, t, v, column, acc, at, last=instr.attrs["last"])
                r.emit(f"if (there && ({at} < 0 || {better})) {{ {acc} = {v}; {at} = {column}; }}")
            else:
                # past the end a row's last elements come again, which changes no maximum
                whole = combine(fn, t, acc, v)
                r.emit(f"{acc} = {whole if fn in ('max', 'min') else f'there ? {whole} : {acc}'};")
        for line in self.meeting.lines(fn, t, acc, at if arg else None, last=instr.attrs["last"]):
            r.emit(line, 0)
        if arg:
            self.params.use(DType.I64)
        r.define(instr.out, self._row_coords(instr.out), f"ov_long({at})" if arg else wrap(t, acc))

    def store(self) -> None:
        r, group = self.r, self.group
        for v in group.outputs:
            if v.shape == group.space:
                continue
            coords = self._row_coords(v)
            text = r.value(v, coords)
            with r.scope() as scope:
                if v in r.rooms:
                    r.emit(f"{r.rooms[v]}[room_at({r.text(linearize(coords, v.shape), opaque=False)})] = {text};")
                else:
                    r.store(v, coords, text)
            r.emit(f"if (live && lane == 0) {{ {' '.join(scope.lines)} }}", 0)
        full = [(v, self.coords, linearize(self.coords, v.shape)) for v in group.outputs if v.shape == group.space]
        if full:
            self.walk.store(full, " && live", self.around)

    def store_piece(self, pieces: Value) -> None:
        """Store the first reduction's result as one piece."""
        (reduce,) = self.group.reduces
        r = self.r
        text = r.value(reduce.out, self._row_coords(reduce.out))
        cell = f"{self.params.write(pieces)}.v[int(gl_WorkGroupID.z) * {self.rows} + row]"
        r.emit(f"if (live && lane == 0) {cell} = {pack(pieces.dtype, text)};", 0)

    def places(self) -> list[str]:
        """Statements that give an invocation its lane and its row among those of the workgroup."""
        subgroups, row_fast = self.meeting.subgroups, self.row_fast
        return [
            "const uint ROWS = gl_WorkGroupSize.x / LANES;",
            f"const uint LANE_STEP = {'ROWS' if row_fast else '1u'};",
            # the order of invocations in subgroups is the device's affair
            f"uint slot = {'gl_SubgroupID * gl_SubgroupSize + gl_SubgroupInvocationID' if subgroups else LOCAL};",
            f"int lane = int({'slot / ROWS' if row_fast else 'slot % LANES'});",
            f"uint row_here = {'slot % ROWS' if row_fast else 'slot / LANES'};",
        ]

    def rows_at(self, group: str) -> list[str]:
        """Statements that give an invocation its row, of the workgroup's turn *group*.

        Invocations past the last row go on with it, so that all of them meet at the barriers, but store nothing.
        """
        return [
            f"int row = int({group} * ROWS + row_here);",
            f"bool live = row < {self.rows};",
            f"row = min(row, {self.rows} - 1);",
        ]

    def run(self) -> None:
        """All passes."""
        for instr in self.group.reduces:
            self.reduce(instr)
        if self.form.pieces is None:
            self.store()
        else:
            self.store_piece(self.form.pieces)


def row_step(group: RowGroup) -> Step:
    """The step of a row group: one launch, or a reduction in pieces where a plan's rows are few and long."""
    whole = RowStep(group)
    (first, *more), space = group.reduces, group.space
    plain = not more and first.attrs["fn"] in ("sum", "prod", "max", "min") and all(v.shape != space for v in group.outputs)
    return _SplitStep(group, whole) if plain else whole


class _SplitStep:
    """A reduction that is one launch or two, by its sizes."""

    def __init__(self, group: RowGroup, whole: RowStep):
        self.group, self.whole = group, whole
        self.label, self.reads, self.writes = whole.label, whole.reads, whole.writes
        self._split: tuple[RowStep, RowStep] | None = None

    def launches(self, at: At, limits: Limits) -> list[Launch]:
        """Two launches for few long rows."""
        rows, cols = at(self.whole.rows), at(self.whole.cols)
        invocations = rows * (8 if self.whole.row_fast else 32)
        if cols < 16 * PIECES or rows * cols < 64 * 1024 or invocations > SMALL_GRID // 4:
            return self.whole.launches(at, limits)
        if self._split is None:
            self._split = self._steps()
        return [launch for step in self._split for launch in step.launches(at, limits)]

    def _steps(self) -> tuple[RowStep, RowStep]:
        group = self.group
        (reduce,) = group.reduces
        out = reduce.out
        # sums of half floats stay in float32 between the launches
        dtype = DType.F32 if out.dtype in (DType.F16, DType.BF16) else out.dtype
        pieces = Value(dtype, (PIECES, *out.shape), "pieces")
        first = RowStep(replace(group, outputs=(pieces,)), pieces)
        again = Instr("reduce", (pieces,), (out,), {**reduce.attrs, "axes": (0,)}, reduce.source)
        is_leaf = group.is_leaf
        last = RowStep(
            replace(group, space=pieces.shape, axes=(0,), reduces=(again,), is_leaf=lambda v: v is pieces or is_leaf(v))
        )
        return first, last


class RowStep:
    """The kernel of a row group in its texts, which are rendered when they are first needed."""

    def __init__(self, group: RowGroup, pieces: Value | None = None):
        self.group, self.pieces = group, pieces
        space, axes = group.space, group.axes
        outer = [i for i in range(len(space)) if i not in axes]
        self.rows, self.cols = product(space[i] for i in outer), product(space[i] for i in axes)
        probe = RowRenderer(group, Params(), Form(False, pieces=pieces), None)
        probe.run()
        accesses = [offset for _, offset in probe.r.loads]
        if pieces is None and any(v.shape == space for v in group.outputs):
            accesses.append(linearize(probe.coords, space))
        walked = accesses
        if pieces is not None or any(v.shape != space for v in group.outputs):
            accesses = [*accesses, linearize([probe.coords[i] for i in outer], [space[i] for i in outer])]
        self.runs = (
            merge_axes(probe.names, space, outer, accesses, probe.r.opaque),
            merge_axes(probe.names, space, axes, walked, probe.r.opaque),
        )
        # Neighbours walk rows when the columns are strided in what is read (a reduction over leading or middle axes).
        steps = [a.coefficient(probe.names[i]) for a in walked for i in [i for i in axes if space[i] != 1][-1:]]
        self.row_fast = bool(self.runs[1]) and 1 not in [c for c in steps if c != 0]
        self.label, self.reads, self.writes = group.label, tuple(probe.r.reads), group.outputs
        self.moved = (*self.reads, *(v for v in group.outputs if v.shape == space))
        self.vector = vector_width(v.dtype for v in self.moved) if self.runs[1] and not self.row_fast and self.moved else 1
        self.cell_bytes = probe.meeting.bytes
        self._texts: dict[Form, tuple[Kernel, Walk]] = {}

    def text(self, form: Form) -> tuple[Kernel, Walk]:
        """The kernel in one form, and how it walks the columns."""
        if form not in self._texts:
            self._texts[form] = self._render(form)
        return self._texts[form]

    def _render(self, form: Form) -> tuple[Kernel, Walk]:
        params = Params()
        made = RowRenderer(self.group, params, form, self.runs, self.row_fast)
        made.run()
        subgroups = made.meeting.subgroups
        piece = params.word(ceil_div(ceil_div(self.cols, form.width), PIECES) * form.width) if form.pieces is not None else ""
        body = "\n".join(
            [
                "layout(local_size_x_id = 0) in;",
                "layout(constant_id = 1) const uint LANES = 32u;",
                "layout(constant_id = 2) const uint ITEMS = 1u;",
                *made.meeting.shared,
                "",
                "void main() {",
                *("    " + line for line in made.places()),
                "    uint group = gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x;",
                *("    " + line for line in made.rows_at("group")),
                *(
                    [
                        f"    int piece_first = int(gl_WorkGroupID.z) * {piece};",
                        f"    int piece_end = min(piece_first + {piece}, {made.cols});",
                    ]
                    if piece
                    else []
                ),
                *("    " + line for line in made.r.scopes[0].lines),
                "}",
            ]
        )
        extensions = SHUFFLES if subgroups else ()
        kernel = Kernel(
            self.label, params, body, tuple(made.r.reads), self.writes, chosen_by_step, extensions, full_subgroups=subgroups
        )
        return kernel, made.walk

    def launches(self, at: At, limits: Limits) -> list[Launch]:
        """One launch."""
        rows, cols = at(self.rows), at(self.cols)
        if self.pieces is not None:
            cols = -(-cols // PIECES)
        form = self._form(at, rows, cols, limits)
        width = form.width
        size, lanes = pick(
            "rows" if self.pieces is None else "pieces",
            lambda: self.text(Form(False, pieces=self.pieces))[0],
            {"rows": rows, "columns": cols},
            at,
            limits,
            self._shape(at, rows, cols, width, limits),
            lambda: self._space(limits),
            lambda c: f"{c[0]} threads, {c[1]} a row",
        )
        items = few(-(-cols // (width * lanes)))
        kernel, walk = self.text(form)
        if not form.kept or items * width > walk.most(KEPT_ELEMENTS):
            kernel, walk = self.text(replace(form, kept=False))
            most = max(walk.most(LOADED_ELEMENTS) // width, 1)
            items = items if items <= min(2, most) else most
        x, y, _ = grid_of(workgroups(self.rows, size // lanes))
        return [Launch(kernel, Variant((size, lanes, items), (x, y, 1 if self.pieces is None else PIECES)))]

    def _space(self, limits: Limits) -> list[tuple[int, int]]:
        """The legal numbers of invocations of a workgroup and of those that share a row."""
        most = min(limits.max_workgroup_invocations, limits.max_shared_memory // self.cell_bytes)
        return [
            (size, lanes)
            for size in (64, 128, 256, 512, 1024)
            if limits.subgroup_size <= size <= most
            for lanes in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
            if lanes <= size
        ]

    def _form(self, at: At, rows: int, cols: int, limits: Limits) -> Form:
        """The form of rows that fit registers."""
        again = len(self.group.reduces) > 1 or any(v.shape == self.group.space for v in self.group.outputs)
        subgroups = {"subgroup_shuffle", "full_subgroups"} <= limits.features and not self.row_fast
        form = Form(self.pieces is None and again, self.vector, subgroups, self.pieces)
        # few elements hide the memory's latency better with more invocations
        least = self.vector if rows * cols >= VECTOR_COUNT else 8 * self.vector
        if self.vector > 1 and (cols < least or not self.text(form)[1].suits(at)):
            return replace(form, width=1)
        return form

    def _shape(self, at: At, rows: int, cols: int, width: int, limits: Limits) -> tuple[int, int]:
        """Invocations of a workgroup, and how many of them share a row."""
        fit = limits.max_shared_memory // self.cell_bytes
        most = min(limits.max_workgroup_invocations, 1 << fit.bit_length() - 1)
        usual = min(256, most)
        lanes = 1
        if self.row_fast:
            # neighbouring rows, as many as make a whole line
            line = LINE_BYTES // max((v.dtype.size for v in self.moved), default=4)
            inner = at(product(self.group.space[i] for i in self.runs[0][-1])) if self.runs[0] else 1
            together = min(line, 1 << max(inner - 1, 0).bit_length(), usual)
            while lanes * 4 < cols and together * lanes < usual and (rows * lanes < SMALL_GRID // 4 or lanes * 16 < cols):
                lanes *= 2
            while lanes * KEPT_ELEMENTS < cols <= most // together * KEPT_ELEMENTS:
                lanes *= 2
            return max(together * lanes, min(64, most)), lanes
        if cols > usual * KEPT_ELEMENTS or (cols >= 4096 and rows * usual < SMALL_GRID):
            usual = min(1024, most)
        many = rows * cols >= 16 * SMALL_GRID
        while lanes < usual:
            if lanes * self._least(lanes, width, many, limits) >= cols:
                break
            lanes *= 2
        return max(lanes, min(256, most), limits.subgroup_size), lanes

    def _least(self, lanes: int, width: int, many: bool, limits: Limits) -> int:
        """How many elements each of *lanes* has before a row gets more of them. *many*: there is work for a large device."""
        if lanes >= limits.subgroup_size:  # beyond, lanes meet at a barrier
            return max(16 if many else 8, width)
        if not many:
            return max(2, width)
        return 2 * width if width > 1 else 4 if lanes < 8 else 8


def few(n: int) -> int:
    """*n* or a little more, out of few numbers: each is a variant."""
    step = max((1 << max(n - 1, 0).bit_length()) // 16, 1)
    return max(-(-n // step) * step, 1)
