"""Products with few rows or few columns: the other operand is streamed once (``gemm_skinny.glsl``)."""

from __future__ import annotations

from collections.abc import Callable

from onnx_vulkan.codegen.kernel import At, Kernel, Launch, Limits, Variant, grid_of, is_multiple
from onnx_vulkan.codegen.params import Params
from onnx_vulkan.dims import ceil_div
from onnx_vulkan.kernels import Group
from onnx_vulkan.kernels.operand import Operand, accumulator
from onnx_vulkan.kernels.product import Destination, Sizes, chosen_by_step, store
from onnx_vulkan.kernels.tiles import CORES, MAX_SPLITS, SCRATCH_ELEMENTS, power_of_two
from onnx_vulkan.program.ir import Value

__all__ = ["SKINNY", "is_skinny", "skinny_kernel", "skinny_launch"]

SKINNY = 16
"""At most this many rows: 16 x 4 sums and a 4 x 4 block of the wide operand fill a thread's registers."""


def is_skinny(rows: int, columns: int, limits: Limits) -> bool:
    """Whether a product has so few rows or columns that it is bound by reading the other operand.

    On a CPU (narrow subgroups) the limit is 4: beyond, its compiler takes 3 to 40 s for these kernels.
    """
    return min(rows, columns) <= (SKINNY if limits.subgroup_size >= 16 else 4)


def skinny_kernel(
    group: Group, sizes: Sizes, a: Operand, b: Operand, to: Destination, scratch: Value | None, *, few_rows: bool
) -> Kernel:
    """The kernel where ``a`` has few rows (*few_rows*) or ``b`` few columns."""
    params = Params()
    few, wide = (a, b) if few_rows else (b, a)
    text, reads = store(group, params, to, scratch, "int z, int m, int n" if few_rows else "int z, int n, int m")
    body = f"""{accumulator(params, group.anchor.attrs["acc"])}#define SIZE_Z {params.word(sizes.z)}
#define SIZE_R {params.word(few.rows)}
#define SIZE_W {params.word(wide.rows)}
#define SIZE_K {params.word(sizes.k)}
#include "gemm_skinny_variant.glsl"
{few.functions(params, "f")}{few.octet_function(params, "f")}{wide.functions(params, "w")}{wide.octet_function(params, "w")}
{wide.runs(params)}
void begin(int z) {{
    f_begin(z);
    w_begin(z);
}}
{text}#include "gemm_skinny.glsl"
"""
    reads = tuple(dict.fromkeys((*a.leaves, *b.leaves, *reads)))
    writes = group.outputs if scratch is None else (scratch,)
    return Kernel(group.label, params, body, reads, writes, chosen_by_step)


def skinny_launch(
    kernel: Callable[[bool], Kernel], sizes: Sizes, few: Operand, wide: Operand, at: At, limits: Limits, item: int
) -> tuple[Launch, int]:
    """The launch and its number of splits; ``kernel(split)`` gives the kernel.

    More lanes along K make narrower column tiles and so more workgroups: four a core keep enough loads on their way (H200, 1 to 4
    rows). At 4 column lanes, 64 bytes of fp32 a row where the columns are contiguous, memory is still read in whole sectors. Only
    where that is not enough K is split, since adding the parts costs a second launch.
    """
    rows, columns, depth, batch = at(few.rows), at(wide.rows), at(sizes.k), at(sizes.z)
    threads = min(128 if item > 4 or rows >= 8 else 256, limits.max_workgroup_invocations)
    mode = wide.mode(at) | wide.octets(at) << 2
    along_k = not mode & 1
    # elements along K, and columns, of a thread's block
    grain, width = wide.grain, 4
    if mode & 4:
        grain, width = (8, 4) if along_k else (4, 8)
    lanes = min(power_of_two(-(-depth // grain)), 16) if along_k else 8
    # every lane has at least two blocks of K
    while lanes < threads // 4 and depth >= 4 * grain * lanes and batch * -(-columns // (threads // lanes * width)) < 4 * CORES:
        lanes *= 2
    groups = batch * -(-columns // (threads // lanes * width))
    splits = 1
    while (
        splits < MAX_SPLITS
        and groups * splits < CORES
        and depth >= 64 * lanes * splits
        and 2 * splits * batch * rows * columns <= SCRATCH_ELEMENTS
    ):
        splits *= 2
    few_mode = few.mode(at) | few.octets(at) << 2
    if few_mode & 1 and (rows < 4 or wide.grain > 4):
        few_mode = 0  # too few rows for a quad of them
    whole = is_multiple(at, sizes.k, grain * lanes * splits)
    spec = (threads, threads, power_of_two(rows), lanes, splits, mode, few_mode, 1, 0, int(whole))
    grid = ceil_div(wide.rows, threads // lanes * width) * sizes.z * splits
    return Launch(kernel(splits > 1), Variant(spec, grid_of(grid))), splits
