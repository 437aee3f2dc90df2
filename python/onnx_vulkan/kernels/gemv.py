"""Products with few rows or few columns: the other operand is streamed once (``gemm_skinny.glsl``)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from onnx_vulkan.codegen.kernel import At, Kernel, Limits, Variant, grid_of, is_multiple
from onnx_vulkan.codegen.params import Params
from onnx_vulkan.dims import ceil_div
from onnx_vulkan.kernels import Group
from onnx_vulkan.kernels.operand import Operand, accumulator
from onnx_vulkan.kernels.product import Destination, Sizes, chosen_by_step, store
from onnx_vulkan.kernels.tiles import CORES, MAX_SPLITS, SCRATCH_ELEMENTS, legal_splits, power_of_two
from onnx_vulkan.program.ir import Value

__all__ = ["SKINNY", "Skinny", "Spread", "is_skinny"]

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

    def kernel(self, scratch: Value | None) -> Kernel:
        """The kernel that runs the epilogue, or writes partial sums into *scratch*."""
        params, few, wide = Params(), self.few, self.wide
        readers = [m.functions(params, name) + m.octet_function(params, name) for m, name in ((few, "f"), (wide, "w"))]
        readers.append(wide.runs(params))
        arguments = "int z, int m, int n" if self.few_rows else "int z, int n, int m"
        text, reads = store(self.group, params, self.to, scratch, arguments)
        body = f"""{accumulator(params, self.group.anchor.attrs["acc"])}#define SIZE_Z {params.word(self.sizes.z)}
#define SIZE_R {params.word(few.rows)}
#define SIZE_W {params.word(wide.rows)}
#define SIZE_K {params.word(self.sizes.k)}
#include "gemm_skinny_variant.glsl"
{"".join(readers)}
void begin(int z) {{
    f_begin(z);
    w_begin(z);
}}
{text}#include "gemm_skinny.glsl"
"""
        reads = tuple(dict.fromkeys((*self.a.leaves, *self.b.leaves, *reads)))
        writes = self.group.outputs if scratch is None else (scratch,)
        return Kernel(self.group.label, params, body, reads, writes, chosen_by_step)

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
    octets, along_k, vector = bool(mode & 4), not mode & 1, bool(mode & 2)
    threads, column_lanes, staged = 256, 4, False
    if item > 4 or (run > 4 and rows >= 8):
        threads = 128
    elif run > 4:
        pass
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
    most = min(limits.max_workgroup_invocations, 512 if limits.subgroup_size >= 16 else 256)
    # room for sums in shared memory, and at least two blocks of K a lane
    while threads > 128 and (
        threads > most or threads * (sums + item) > limits.max_shared_memory or depth < 2 * grain * threads // column_lanes
    ):
        threads //= 2
    lanes = threads // column_lanes
    while lanes > 8 and depth < grain * lanes:
        lanes //= 2
    unrolled = 2 if octets and limits.subgroup_size >= 16 else 1
    return _Shape(threads, lanes, grain, width, unrolled, staged)
