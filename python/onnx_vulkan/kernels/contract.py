"""The ``contract`` family: batched matrix products of strided operands. Sums of 16-bit floats are fp32.

Two kernels: tiles in shared memory (``gemm_tile.glsl``), and for at most ``SKINNY`` rows or columns one that streams the other
operand once (``gemm_skinny.glsl``). Either may divide K among workgroups; a second launch then adds the partial sums.
"""

from __future__ import annotations

from collections.abc import Sequence

from onnx_vulkan.codegen.kernel import At, Kernel, Launch, Limits
from onnx_vulkan.codegen.params import Params
from onnx_vulkan.dims import Extent, product
from onnx_vulkan.dtypes import FLOATS, INTS, DType
from onnx_vulkan.kernels import Group, family
from onnx_vulkan.kernels.gemv import SKINNY, skinny_kernel, skinny_launch
from onnx_vulkan.kernels.operand import Matrix, accumulator
from onnx_vulkan.kernels.product import (
    Destination,
    Sizes,
    chosen_by_step,
    register_dtype,
    scratch_of,
    split_sum,
    split_sum_launch,
    store,
    tile_launch,
)
from onnx_vulkan.kernels.tiles import choose_tile
from onnx_vulkan.program.ir import Instr, Value

__all__ = ["ContractStep", "contract_step"]


def _supports(instr: Instr) -> str | None:
    acc, dtypes = instr.attrs["acc"], {x.dtype for x in instr.inputs} | {instr.out.dtype}
    if DType.BOOL in dtypes | {acc}:
        return "a matrix product of bools is not supported"
    floats = {d in FLOATS for d in dtypes | {acc}}
    if len(floats) > 1:
        return f"a matrix product of {instr.inputs[0].dtype.onnx_name} cannot be summed in {acc.onnx_name}"
    if acc in (DType.F16, DType.BF16):
        return f"sums in {acc.onnx_name} are not supported"
    if acc in INTS and register_dtype(acc).size < max(d.size for d in dtypes):
        return f"a matrix product of {instr.inputs[0].dtype.onnx_name} cannot be summed in {acc.onnx_name}"
    return None


class ContractStep:
    """A matrix product: ``a`` is z x m x k, ``b`` is z x k x n, each a strided view, ``to`` says where a sum goes."""

    def __init__(self, group: Group, sizes: Sizes, a: Matrix, b: Matrix, to: Destination):
        self.group = group
        self.label = group.label
        self.writes = group.outputs
        self.sizes, self.a, self.b, self.to = sizes, a, b, to
        self._kernels: dict[tuple[str, bool], Kernel] = {}
        self._scratch = scratch_of(group.anchor.out, group.anchor.attrs["acc"])

    @property
    def reads(self) -> tuple[Value, ...]:
        return self._kernel("tile", split=False).reads

    def _kernel(self, kind: str, *, split: bool) -> Kernel:
        """The kernel of a kind (``tile``, ``few rows``, ``few columns``, ``sum``), rendered when it is first needed."""
        key = kind, split
        if key not in self._kernels:
            scratch = self._scratch if split else None
            if kind == "tile":
                made = self._tile_kernel(scratch)
            elif kind == "sum":
                made = split_sum(self.group, self._scratch)
            else:
                made = skinny_kernel(self.group, self.sizes, self.a, self.b, self.to, scratch, few_rows=kind == "few rows")
            self._kernels[key] = made
        return self._kernels[key]

    def _tile_kernel(self, scratch: Value | None) -> Kernel:
        params, sizes = Params(), self.sizes
        text, reads = store(self.group, params, self.to, scratch)
        body = f"""{accumulator(params, self.group.anchor.attrs["acc"])}#define SIZE_Z {params.word(sizes.z)}
#define SIZE_M {params.word(sizes.m)}
#define SIZE_N {params.word(sizes.n)}
#define SIZE_K {params.word(sizes.k)}
#include "gemm_variant.glsl"
{self.a.functions(params, "a")}{self.b.functions(params, "b")}
#define A_ROW int
int a_row(int m) {{ return m; }}
void k_step(int k) {{}}
void begin(int z) {{
    a_begin(z);
    b_begin(z);
}}
{text}#include "gemm_tile.glsl"
"""
        reads = tuple(dict.fromkeys((self.a.leaf, self.b.leaf, *reads)))
        writes = self.writes if scratch is None else (scratch,)
        return Kernel(self.label, params, body, reads, writes, chosen_by_step)

    def launches(self, at: At, limits: Limits) -> list[Launch]:
        """One launch, or two where K is split."""
        sizes = self.sizes
        m, n, k, z = (at(e) for e in (sizes.m, sizes.n, sizes.k, sizes.z))
        item = register_dtype(self.group.anchor.attrs["acc"]).size
        if min(m, n) <= SKINNY:
            # Few rows: a tile of 32 would mostly multiply rows that are not there, and the product is bound by reading the
            # wide operand anyway.
            few_rows = m <= n
            wide = self.b if few_rows else self.a
            few = self.a if few_rows else self.b
            launch, splits = skinny_launch(
                lambda split: self._kernel("few rows" if few_rows else "few columns", split=split),
                sizes,
                few,
                wide,
                at,
                limits,
                item,
            )
        else:
            choice = choose_tile(m, n, k, z, item, limits)
            splits = choice.splits
            modes = (self.a.mode(at), self.b.mode(at))
            launch = tile_launch(self._kernel("tile", split=splits > 1), sizes, choice.tile, splits, modes)
        if splits == 1:
            return [launch]
        return [launch, split_sum_launch(self._kernel("sum", split=True), self.group.anchor.out, splits, limits)]


@family("contract", _supports, views=frozenset({0, 1}), epilogue=True)
def contract_step(group: Group) -> ContractStep:
    """The step of a batched matrix product ``[*b, M, K] x [*b, K, N]``."""
    out = group.anchor.out
    a, b = group.view(0), group.view(1)
    batch = out.shape[:-2]
    depth = group.anchor.inputs[0].shape[-1]
    # Trailing batch axes in which b stays the same and a goes on like its rows are rows: one large product instead of many.
    rows, row_stride, folded = out.shape[-2], a.strides[-2], len(batch)
    while folded and b.strides[folded - 1] == 0:
        stride, extent = a.strides[folded - 1], batch[folded - 1]
        if extent != 1:
            if rows != 1 and stride != row_stride * rows:
                break
            if rows == 1:
                row_stride = stride
            rows = rows * extent
        folded -= 1
    lead = range(folded)
    sizes = Sizes(product(batch[:folded]), rows, out.shape[-1], depth)
    return ContractStep(
        group,
        sizes,
        Matrix(a.leaf, a.offset, _axes(batch, a.strides, lead), rows, row_stride, depth, a.strides[-1]),
        Matrix(b.leaf, b.offset, _axes(batch, b.strides, lead), out.shape[-1], b.strides[-1], depth, b.strides[-2]),
        Destination([("z", lead), ("m", range(folded, out.rank - 1)), ("n", (out.rank - 1,))]),
    )


def _axes(shape: Sequence[Extent], strides: Sequence[Extent], axes: range) -> tuple[tuple[Extent, Extent], ...]:
    return tuple((shape[i], strides[i]) for i in axes)
