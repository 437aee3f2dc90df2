"""Products with few rows or few columns: the other operand is streamed once (``gemm_skinny.glsl``; on matrix units
``gemm_skinny_matrix.glsl`` and, for packed weights, ``gemm_blocks_matrix.glsl``)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from onnx_vulkan.codegen.kernel import At, Kernel, Launch, Limits, Variant, grid_of, is_multiple
from onnx_vulkan.codegen.params import Params
from onnx_vulkan.dims import ceil_div
from onnx_vulkan.kernels import Group
from onnx_vulkan.kernels.matrix_units import EXTENSIONS, Unit
from onnx_vulkan.kernels.operand import Operand, accumulator
from onnx_vulkan.kernels.product import Destination, Sizes, chosen_by_step, store
from onnx_vulkan.kernels.tiles import CORES, MAX_SPLITS, SCRATCH_ELEMENTS, legal_splits, power_of_two
from onnx_vulkan.program.ir import Value

__all__ = ["SKINNY", "Skinny", "Spread", "UnitSpread", "is_skinny"]

SKINNY = 16
"""At most this many rows: 16 x 4 sums and a 4 x 4 block of the wide operand fill a thread's registers."""


def is_skinny(rows: int, columns: int, limits: Limits) -> bool:
    """Whether a product has so few rows or columns that it is bound by reading the other operand.

    On a CPU (narrow subgroups) the limit is 4: beyond, its compiler takes 3 to 40 s for these kernels.
    """
    return min(rows, columns) <= (SKINNY if limits.subgroup_size >= 16 else 4)


@dataclass(frozen=True, slots=True)
class Spread:
    """A variant: *threads* a workgroup, *lanes* of them along K, K in *splits*."""

    threads: int
    lanes: int
    splits: int

    @property
    def name(self) -> str:
        return f"stream, {self.threads} threads, {self.lanes} along k, {self.splits} splits"


UNIT_ROWS = 64
"""At most this many rows on matrix units: four units of sums for each unit of columns."""
AHEAD = 4
"""The steps of a subgroup that are on their way on matrix units; two where a step takes more registers."""
PAYS = range(5, 33)
"""The numbers of rows at which they pay, from measurements on an H200 with K and N of 4096: fewer rows are streamed as fast
without, and more are as fast in tiles."""
PAYS_PACKED = range(3, 33)
"""The same for packed weights."""


@dataclass(frozen=True, slots=True)
class UnitSpread:
    """A variant on matrix units: *subgroups* a workgroup share out K for *columns* (a multiple of 16), K in *splits*."""

    subgroups: int
    columns: int
    splits: int

    @property
    def name(self) -> str:
        return f"stream on units, {self.subgroups} subgroups, {self.columns} columns, {self.splits} splits"


@dataclass(frozen=True, slots=True)
class Skinny:
    """A product where ``a`` has few rows, or else (not *few_rows*) ``b`` few columns."""

    group: Group
    sizes: Sizes
    a: Operand
    b: Operand
    to: Destination
    few_rows: bool

    @property
    def few(self) -> Operand:
        """The operand with few rows."""
        return self.a if self.few_rows else self.b

    @property
    def wide(self) -> Operand:
        """The other one."""
        return self.b if self.few_rows else self.a

    def kernel(self, scratch: Value | None, unit: Unit | None = None) -> Kernel:
        """The kernel that runs the epilogue, or writes partial sums into *scratch*; on matrix units where a *unit* is given."""
        params, few, wide, acc = Params(), self.few, self.wide, self.group.anchor.attrs["acc"]
        if unit is None:
            readers = [m.functions(params, name) + m.octet_function(params, name) for m, name in ((few, "f"), (wide, "w"))]
            readers.append(wide.runs(params))
        else:
            readers = [few.functions(params, "f"), wide.unit_functions(params, "w")]
        template = wide.unit_template if unit else "gemm_skinny"
        arguments = "int z, int m, int n" if self.few_rows else "int z, int n, int m"
        text, reads = store(self.group, params, self.to, scratch, arguments)
        body = f"""{unit.definitions(acc) if unit else accumulator(params, acc)}#define SIZE_Z {params.word(self.sizes.z)}
#define SIZE_R {params.word(few.rows)}
#define SIZE_W {params.word(wide.rows)}
#define SIZE_K {params.word(self.sizes.k)}
#include "{"gemm_skinny_matrix" if unit else template}_variant.glsl"
{"".join(readers)}
void begin(int z) {{
    f_begin(z);
    w_begin(z);
}}
{unit.stored(acc, text) if unit else text}#include "{template}.glsl"
"""
        reads = tuple(dict.fromkeys((*self.a.leaves, *self.b.leaves, *reads)))
        writes = self.group.outputs if scratch is None else (scratch,)
        kernel = Kernel(self.group.label, params, body, reads, writes, chosen_by_step)
        if unit:
            kernel.extensions, kernel.fixed_subgroups = EXTENSIONS, True
        return kernel

    def unit_rule(self, at: At, limits: Limits, unit: Unit) -> UnitSpread | None:
        """What sizes and limits alone say of matrix units, None where others do better."""
        columns, depth, batch = at(self.wide.rows), at(self.sizes.k), at(self.sizes.z)
        pays = PAYS if self.wide.grain == 4 else PAYS_PACKED
        shapes = self._unit_shapes(at, limits, unit) if at(self.few.rows) in pays else []
        # narrower tiles of columns where there would be fewer workgroups than cores
        width = 32 if batch * -(-columns // 32) >= CORES * 3 // 4 else 16
        subgroups = max((s for s, w in shapes if w == width and depth >= s * self._step(unit)), default=0)
        if not subgroups:
            return None
        groups, splits = batch * -(-columns // width), 1
        while (
            splits < MAX_SPLITS
            and groups * splits < CORES // 2
            and depth >= 8 * self._step(unit) * subgroups * splits
            and 2 * splits * batch * at(self.few.rows) * columns <= SCRATCH_ELEMENTS
        ):
            splits *= 2
        return UnitSpread(subgroups, width, splits)

    def unit_space(self, at: At, limits: Limits, unit: Unit) -> list[UnitSpread]:
        """The legal variants on matrix units."""
        sizes = at(self.few.rows), at(self.wide.rows), at(self.sizes.k), at(self.sizes.z)
        return [
            UnitSpread(subgroups, columns, splits)
            for subgroups, columns in self._unit_shapes(at, limits, unit)
            for splits in legal_splits(2 * subgroups * self._step(unit), sizes)
        ]

    def _unit_shapes(self, at: At, limits: Limits, unit: Unit) -> list[tuple[int, int]]:
        """The workgroups that a device can run, in subgroups and columns: where operands lie as the units take them."""
        rows, mode, few_mode = at(self.few.rows), self.wide.mode(at, unit), self.few.mode(at, unit)
        if unit.parts > 1 or not mode & 4 or rows > UNIT_ROWS or not at(self.sizes.k):
            return []
        row_units = power_of_two(-(-rows // 16))
        packed = self.wide.grain > 4
        if packed and (few_mode & 5 != 4 or limits.subgroup_size != 32):
            return []

        def chunks(width: int, along_own: int) -> int:
            return unit.depth * (width // unit.chunk + 1) if along_own else width * (unit.depth // unit.chunk + 1)

        def memory(columns: int) -> int:
            step = chunks(16 * row_units, few_mode & 1) + chunks(columns, mode & 1)
            return 16 * max(16 * row_units * (self._step(unit) // 8 + 1) if packed else step, 4 * columns)

        return [
            (subgroups, columns)
            for columns in (16, 32, 64)
            if columns * row_units <= 128
            for subgroups in (1, 2, 4, 8, 16)
            if subgroups * limits.subgroup_size <= min(limits.max_workgroup_invocations, 512)
            and subgroups * memory(columns) <= limits.max_shared_memory
        ]

    def _step(self, unit: Unit) -> int:
        """The elements along K that a subgroup takes at a time on matrix units."""
        return unit.depth if self.wide.grain == 4 else 4 * self.wide.grain

    def unit_launch(self, kernel: Kernel, spread: UnitSpread, at: At, limits: Limits, unit: Unit) -> Launch:
        """The launch of a variant on matrix units."""
        rows, size = power_of_two(at(self.few.rows)), limits.subgroup_size
        row_units = max(rows // 16, 1)
        ahead = AHEAD if row_units == 1 and self.wide.grain == 4 else min(AHEAD, 2)
        modes = self.wide.mode(at, unit), self.few.mode(at, unit)
        threads = spread.subgroups * size
        spec = (threads, spread.subgroups, size, row_units, spread.columns // 16, spread.splits, *modes, ahead, rows)
        return Launch(kernel, Variant(spec, grid_of(ceil_div(self.wide.rows, spread.columns) * self.sizes.z * spread.splits)))

    def rule(self, at: At, limits: Limits, item: int) -> Spread:
        """What sizes and limits alone say."""
        variant, splits = self.variant(at, limits, item)
        return Spread(variant.spec[0], variant.spec[3], splits)

    def space(self, at: At, limits: Limits, item: int) -> list[Spread]:
        """The legal variants."""
        rows, columns, depth, batch = at(self.few.rows), at(self.wide.rows), at(self.sizes.k), at(self.sizes.z)
        usual = self.rule(at, limits, item)
        most = min(limits.max_workgroup_invocations, 512 if limits.subgroup_size >= 16 else 256)
        sums = min(power_of_two(rows), 4) * 4 * item
        along = self.wide.mode(at) & 1
        return [
            Spread(threads, lanes, splits)
            for threads in (128, 256, 512)
            if threads == usual.threads or (threads <= most and threads * (2 * sums + item) <= limits.max_shared_memory)
            for lanes in (8, 16, 32, 64, 128, 256, 512)
            if lanes <= threads // (4 if along else 1)
            for splits in legal_splits(4 * self.wide.grain * lanes, (rows, columns, depth, batch))
        ]

    def variant(self, at: At, limits: Limits, item: int, wanted: Spread | None = None) -> tuple[Variant, int]:
        """The variant (*wanted*, else the rule's), and its number of splits. Sums are of *item* bytes."""
        few, wide = self.few, self.wide
        rows, columns, depth, batch = at(few.rows), at(wide.rows), at(self.sizes.k), at(self.sizes.z)
        mode = wide.mode(at) | wide.octets(at) << 2
        shape = _shape(power_of_two(rows), mode, wide.grain, item, depth, limits)
        threads, lanes = shape.threads, shape.lanes
        if wide.grain > 4 and rows == 1:
            # wider ones where columns are many, such that as few lanes as can be have no block
            wider = [
                n for n in (lanes // 2, lanes // 4, lanes // 8) if n >= 8 and batch * columns >= 4 * CORES * shape.columns(n)
            ]
            lanes = min(wider, key=lambda n: (-(-depth // (shape.grain * n)) * n, -n), default=lanes)
        # narrower tiles of columns where there would be fewer workgroups than cores
        while (
            lanes < threads // (4 if mode & 1 else 1)
            and depth >= 2 * shape.grain * lanes
            and batch * -(-columns // shape.columns(lanes)) < CORES
        ):
            lanes *= 2
        if wanted is not None:
            shape, lanes = replace(shape, threads=wanted.threads), wanted.lanes
        threads = shape.threads
        width = shape.columns(lanes)
        groups = batch * -(-columns // width)
        splits = 1
        while wanted is None and (
            splits < MAX_SPLITS
            and groups * splits < CORES // 2
            and depth >= 16 * shape.grain * lanes * splits
            and 2 * splits * batch * rows * columns <= SCRATCH_ELEMENTS
        ):
            splits *= 2
        splits = splits if wanted is None else wanted.splits
        unrolled = shape.unrolled if depth >= shape.unrolled * shape.grain * lanes * splits else 1
        step = shape.grain * lanes * unrolled
        quads = shape.grain // 4
        pool = 2 * power_of_two(rows) * quads * (lanes * unrolled + (quads > 1)) * 4
        # two steps of the few rows, and what adds up the sums
        staged = shape.staged and (pool + threads) * item <= limits.max_shared_memory
        few_mode = few.mode(at) | few.octets(at) << 2
        if few_mode & 1 and (rows < 4 or (wide.grain > 4 and not staged)):
            few_mode = 0  # too few rows for a quad of them
        whole = is_multiple(at, self.sizes.k, step * splits)
        modes = mode, few_mode, unrolled, int(staged), int(whole), int(shape.ahead)
        spec = (threads, threads, power_of_two(rows), lanes, splits, *modes)
        return Variant(spec, grid_of(ceil_div(wide.rows, width) * self.sizes.z * splits)), splits


@dataclass(frozen=True, slots=True)
class _Shape:
    """How the threads of a workgroup lie (``gemm_skinny.glsl``): a block of *grain* elements along K and *width* columns each."""

    threads: int
    lanes: int
    grain: int
    width: int
    unrolled: int = 1
    staged: bool = False
    ahead: bool = False

    def columns(self, lanes: int) -> int:
        """The columns of a workgroup with so many lanes along K."""
        return self.threads // lanes * self.width


def _shape(rows: int, mode: int, run: int, item: int, depth: int, limits: Limits) -> _Shape:
    """The workgroup for a power of two of *rows*, from measurements on an H200 with K and N of 4096.

    At 4 column lanes, 64 bytes a row of W where columns are contiguous, memory is still read in whole sectors. *run* is the
    operand's grain, more than 4 where it is packed.
    """
    octets, along_k, vector, on_gpu = bool(mode & 4), not mode & 1, bool(mode & 2), limits.subgroup_size >= 16
    threads, column_lanes, staged = 256, 4, False
    if item > 4 or (run > 4 and rows >= 8):
        threads = 128
    elif run > 4:
        staged = rows == 1 and on_gpu
    elif not vector:
        threads, column_lanes = 512, 4 if along_k and rows == 1 else 8
    elif rows > 8 and not octets:
        threads, column_lanes, staged = 512, 8, True
    elif rows == 1 or (octets and not along_k and rows <= 4):
        threads = 512
    grain, width = run, 4
    if octets:
        grain, width = (8, 4) if along_k else (4, 8)
    sums = min(rows * width // 4, 4) * 4 * item
    most = min(limits.max_workgroup_invocations, 512 if on_gpu else 256)
    # room for sums in shared memory, and at least two blocks of K a lane
    while threads > 128 and (
        threads > most or threads * (sums + item) > limits.max_shared_memory or depth < 2 * grain * threads // column_lanes
    ):
        threads //= 2
    lanes = threads // column_lanes
    while lanes > 8 and depth < grain * lanes:
        lanes //= 2
    few = octets and not along_k and 1 < rows <= 4
    unrolled = 2 if octets and on_gpu and not few else 1
    return _Shape(threads, lanes, grain, width, unrolled, staged, ahead=on_gpu and (few or (staged and run == 4)))
