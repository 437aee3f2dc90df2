"""Attention of few queries (``attention_few.glsl``): keys and values are streamed once, many of them by several workgroups.

Query heads that share keys and values are rows of one workgroup.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from onnx_vulkan.codegen.hole import Axes
from onnx_vulkan.codegen.kernel import At, Kernel, Launch, Limits, Variant, grid_of, workgroups
from onnx_vulkan.codegen.params import Params
from onnx_vulkan.codegen.types import unpack
from onnx_vulkan.codegen.view import View
from onnx_vulkan.dims import Extent, minimum, product
from onnx_vulkan.dtypes import DType
from onnx_vulkan.kernels import Group
from onnx_vulkan.kernels.indexing import offset_text, split_index
from onnx_vulkan.kernels.operand import Matrix, accumulator, merge_runs
from onnx_vulkan.kernels.product import Destination, chosen_by_step, store
from onnx_vulkan.kernels.tiles import CORES, MAX_SPLITS, SCRATCH_ELEMENTS, power_of_two
from onnx_vulkan.program.ir import Value

__all__ = ["MAX_ROWS", "FewQueries"]

MAX_ROWS = 8
"""Queries of a workgroup: a thread keeps 8 scores and 4 sums of each."""
MAX_HEAD = 256
"""The largest head size."""
THREADS = 128

Hole = Callable[[Params, Axes], tuple[str, tuple[Value, ...]]]
"""Gives a GLSL function for index variables that stand for axes, and the values that it reads."""


@dataclass(frozen=True, eq=False)
class FewQueries:
    """The kernels for one attention. ``q``, ``k`` and ``v`` are its operands, ``score`` renders a score's steps,
    ``weights`` is the GLSL of how weights are made and of ``inverse``."""

    group: Group
    q: View
    k: View
    v: View
    score: Hole
    weights: str

    @cached_property
    def lead(self) -> int:
        """The batch axes before those along which keys and values stay the same."""
        n = len(self.group.anchor.out.shape) - 2
        while n and self.k.strides[n - 1] == 0 and self.v.strides[n - 1] == 0:
            n -= 1
        return n

    @property
    def batch(self) -> Extent:
        """How many workgroups have keys of their own."""
        return product(self.group.anchor.out.shape[: self.lead])

    @property
    def rows(self) -> Extent:
        """The queries that share them."""
        return product(self.group.anchor.out.shape[self.lead : -1])

    def _matrix(self, operand: int, view: View) -> Matrix:
        axes = tuple(zip(self.group.anchor.out.shape[: self.lead], view.strides, strict=False))
        depth, rows = self.group.anchor.inputs[operand].shape[-2:]
        return Matrix(view.leaf, view.offset, axes, rows, view.strides[-1], depth, view.strides[-2])

    @cached_property
    def keys(self) -> Matrix:
        """The keys as rows, the head as depth."""
        return self._matrix(1, self.k)

    @cached_property
    def values(self) -> Matrix:
        """The head of the values as rows, the keys as depth."""
        return self._matrix(2, self.v)

    @cached_property
    def scratch(self) -> Value:
        """The sums of each split and row, behind them the highest score and the total of the weights."""
        rows = product(self.group.anchor.out.shape[:-1])
        size = rows * (self.group.anchor.out.shape[-1] + 2)
        return Value(DType.F32, (minimum(size * MAX_SPLITS, SCRATCH_ELEMENTS),), "partial sums")

    def _query(self, params: Params) -> str:
        out = self.group.anchor.out
        shape, last = (*out.shape[:-1],), out.rank - 2
        lead = Matrix(self.q.leaf, self.q.offset, tuple(zip(shape[: self.lead], self.q.strides, strict=False)), 1, 0, 1, 0)
        runs = merge_runs(list(zip(shape[self.lead :], self.q.strides[self.lead : last + 1], strict=True)))
        names = [f"m{n}" for n in range(len(runs))]
        lines = split_index(params, "m", [(n, e) for n, (e, _) in zip(names, runs, strict=True)])
        place = offset_text(params, ["q_base", *names, "d"], [1, *(s for _, s in runs), self.q.strides[-1]])
        element = unpack(self.q.leaf.dtype, f"{params.read(self.q.leaf)}.v[{place}]")
        body = "".join(f"    {line}\n" for line in lines)
        return f"{lead.begin(params, 'q')}T query(int z, int m, int d) {{\n{body}    return T({element});\n}}\n"

    @property
    def axes(self) -> Axes:
        rank = self.group.anchor.out.rank
        return [("z", range(self.lead)), ("m", range(self.lead, rank - 1)), ("n", (rank - 1,))]

    def _head(self, params: Params) -> str:
        return f"""{accumulator(params, DType.F32)}#define SIZE_N {params.word(self.group.anchor.out.shape[-1])}
#define SIZE_T {params.word(self.keys.rows)}
"""

    def _kernel(self, scratch: Value | None) -> Kernel:
        params, out = Params(), self.group.anchor.out
        score, reads = self.score(params, self.axes)
        if scratch is None:
            text, more = store(self.group, params, Destination(self.axes), None)
            text += """void part(int z, int m, int n, int split, T4 sums, T highest, T total) {
    T4 y = sums * inverse(total);
    for (int c = 0; c < min(4, SIZE_N - n); c++) store(z, m, n + c, 0, y[c]);
}
"""
        else:
            more, to = (), params.write(scratch)
            text = f"""void part(int z, int m, int n, int split, T4 sums, T highest, T total) {{
    int at = (split * {params.word(product(out.shape[:-1]))} + z * SIZE_M + m) * (SIZE_N + 2);
    for (int c = 0; c < min(4, SIZE_N - n); c++) {to}.v[at + n + c] = sums[c];
    if (n == 0) {{
        {to}.v[at + SIZE_N] = highest;
        {to}.v[at + SIZE_N + 1] = total;
    }}
}}
"""
        body = f"""#include "attention_few_variant.glsl"
{self._head(params)}#define SIZE_Z {params.word(self.batch)}
#define SIZE_M {params.word(self.rows)}
#define SIZE_D {params.word(self.keys.depth)}
{self._query(params)}{self.keys.functions(params, "k")}{self.values.functions(params, "v")}void begin(int z) {{
    q_begin(z);
    k_begin(z);
    v_begin(z);
}}
{score}{self.weights}{text}#include "attention_few.glsl"
"""
        reads = tuple(dict.fromkeys((self.q.leaf, self.k.leaf, self.v.leaf, *reads, *more)))
        writes = self.group.outputs if scratch is None else (scratch,)
        return Kernel(self.group.label, params, body, reads, writes, chosen_by_step)

    @cached_property
    def whole(self) -> Kernel:
        """The kernel where no keys are split."""
        return self._kernel(None)

    @cached_property
    def part(self) -> Kernel:
        """The kernel of one split."""
        return self._kernel(self.scratch)

    @cached_property
    def merge(self) -> Kernel:
        """The kernel that puts splits together."""
        params, out = Params(), self.group.anchor.out
        axes: Axes = [("row", range(out.rank - 1)), ("n", (out.rank - 1,))]
        text, reads = store(self.group, params, Destination(axes), None, "int row, int n")
        place = f"{params.read(self.scratch)}.v[(split * {params.word(product(out.shape[:-1]))} + row) * (SIZE_N + 2)"
        body = f"""{self._head(params)}#define SIZE {params.word(product(out.shape))}
T sums(int split, int row, int n) {{ return {place} + n]; }}
T highest(int split, int row) {{ return {place} + SIZE_N]; }}
T total(int split, int row) {{ return {place} + SIZE_N + 1]; }}
{self.weights}{text}#include "attention_merge.glsl"
"""
        return Kernel(f"{self.group.label} (splits)", params, body, (self.scratch, *reads), self.group.outputs, chosen_by_step)

    def suits(self, at: At) -> bool:
        """Whether there are so few queries, and neighbours lie side by side."""
        small = 0 < at(self.rows) <= MAX_ROWS and at(self.keys.rows) > 0
        heads = 0 < at(self.keys.depth) <= MAX_HEAD and 0 < at(self.values.rows) <= MAX_HEAD
        return small and heads and not self.keys.mode(at) & 1 and self.values.mode(at) & 1 == 1

    def launches(self, at: At, limits: Limits) -> list[Launch]:
        """One launch, or two where the keys are split."""
        keys, depth, width, batch = (at(e) for e in (self.keys.rows, self.keys.depth, self.values.rows, self.batch))
        threads = min(THREADS, limits.max_workgroup_invocations)
        size = batch * at(self.rows) * (width + 2)
        splits = 1
        while (
            batch * splits < CORES
            and keys >= 4 * threads * splits
            and 2 * splits * size <= SCRATCH_ELEMENTS
            and splits < MAX_SPLITS
        ):
            splits *= 2
        spec = (
            threads,
            power_of_two(at(self.rows)),
            -(-depth // 32) * 32,
            power_of_two(max(width, 32)),
            splits,
            self.keys.mode(at),
            self.values.mode(at),
        )
        kernel = self.whole if splits == 1 else self.part
        launches = [Launch(kernel, Variant(spec, grid_of(self.batch * splits)))]
        if splits > 1:
            grid = grid_of(workgroups(product(self.group.anchor.out.shape), threads))
            launches.append(Launch(self.merge, Variant((threads, splits), grid)))
        return launches
