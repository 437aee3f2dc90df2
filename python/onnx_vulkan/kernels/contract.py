"""The ``contract`` family: batched matrix products of strided operands. Sums of 16-bit floats are fp32.

Two kinds of kernels: tiles in shared memory (``gemm_tile.glsl``, ``gemm_matrix.glsl``), and for few rows or columns those that
stream the other operand once (``gemv``). Each may divide K among workgroups; a second launch then adds the partial sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onnx_vulkan.codegen.kernel import At, Kernel, Launch, Limits
from onnx_vulkan.codegen.params import Params
from onnx_vulkan.codegen.view import View
from onnx_vulkan.dims import Extent, product
from onnx_vulkan.kernels import Group, family
from onnx_vulkan.kernels.gemv import Skinny, Spread, UnitSpread, is_skinny
from onnx_vulkan.kernels.matrix_units import UNITS, Unit
from onnx_vulkan.kernels.operand import Computed, Matrix, Operand
from onnx_vulkan.kernels.product import Destination, Sizes, TiledStep, refusal
from onnx_vulkan.kernels.row_scales import RowScales
from onnx_vulkan.program.ir import Value

__all__ = ["ContractStep", "contract_step"]


class ContractStep(TiledStep):
    """A matrix product: ``a`` is z x m x k, ``b`` is z x k x n (each mostly a strided view), ``to`` says where a sum goes."""

    def __init__(self, group: Group, sizes: Sizes, a: Operand, b: Operand, to: Destination):
        super().__init__(
            group, sizes, to, (*a.leaves, *b.leaves), self._readers, lambda at, bk, unit: (a.mode(at, unit), b.mode(at, unit))
        )
        self.a, self.b = a, b
        self.skinny = {
            "few rows": Skinny(group, sizes, a, b, to, few_rows=True),
            "few columns": Skinny(group, sizes, a, b, to, few_rows=False),
        }
        self.scales = RowScales(group.label, sizes.z, sizes.k, (("a", a, sizes.m), ("b", b, sizes.n)))

    def _readers(self, params: Params) -> str:
        return f"""{self.a.functions(params, "a")}{self.b.functions(params, "b")}
#define A_ROW int
#define A_ROW_AT(row, d) (row + d)
int a_row(int m) {{ return m; }}
void k_step(int k) {{}}
void begin(int z) {{
    a_begin(z);
    b_begin(z);
}}
"""

    def _render(self, kind: str, scratch: Value | None) -> Kernel:
        name, _, unit = kind.partition(" on ")
        skinny = self.skinny.get(name)
        if skinny is None:
            return super()._render(kind, scratch)
        return skinny.kernel(scratch, UNITS.get(unit))

    def kind(self, at: At) -> str:
        """Which skinny kernel suits the product, if any."""
        return "few rows" if at(self.sizes.m) <= at(self.sizes.n) else "few columns"

    def stream_unit(self, at: At, limits: Limits) -> Unit | None:
        """The matrix units that a skinny kernel may use."""
        return self.unit(at, limits)

    def rule(self, at: At, limits: Limits) -> Any:
        """In tiles, or by a skinny kernel: with few rows most of a tile would multiply rows that are not there, and the product
        is bound by reading the wide operand anyway."""
        skinny, unit = self.skinny[self.kind(at)], self.stream_unit(at, limits)
        on_units = skinny.unit_rule(at, limits, unit) if unit else None
        if on_units:
            return on_units
        if is_skinny(at(self.sizes.m), at(self.sizes.n), limits):
            return skinny.rule(at, limits, self.item)
        return super().rule(at, limits)

    def space(self, at: At, limits: Limits) -> list[Any]:
        """The legal variants."""
        skinny, unit = self.skinny[self.kind(at)], self.stream_unit(at, limits)
        found: list[Any] = list(skinny.unit_space(at, limits, unit)) if unit else []
        if is_skinny(at(self.sizes.m), at(self.sizes.n), limits):
            found += skinny.space(at, limits, self.item)
        return found + super().space(at, limits)

    def launches_of(self, choice: Any, at: At, limits: Limits) -> list[Launch]:
        """The launches of a variant."""
        kind, unit = self.kind(at), self.stream_unit(at, limits)
        if isinstance(choice, UnitSpread):
            assert unit is not None
            kernel = self.kernel(f"{kind} on {unit.name}", split=choice.splits > 1)
            return self.with_sum(self.skinny[kind].unit_launch(kernel, choice, at, limits, unit), choice.splits, limits)
        if isinstance(choice, Spread):
            variant, splits = self.skinny[kind].variant(at, limits, self.item, choice)
            return self.with_sum(Launch(self.kernel(kind, split=splits > 1), variant), splits, limits)
        return super().launches_of(choice, at, limits)


@family("contract", refusal, views=frozenset({0, 1}), computed=frozenset({1}), epilogue=True)
def contract_step(group: Group) -> ContractStep:
    """The step of a batched matrix product ``[*b, M, K] x [*b, K, N]``."""
    out = group.anchor.out
    a, b = group.view(0), group.view_or_none(1)
    batch = out.shape[:-2]
    depth = group.anchor.inputs[0].shape[-1]
    if b is None:
        return _computed_step(group, a, depth)
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


def _computed_step(group: Group, a: View, depth: Extent) -> ContractStep:
    """The step of a product ``[M, K] x [K, N]`` whose right-hand side is computed where it is read."""
    weights, (rows, columns) = group.anchor.inputs[1], group.anchor.out.shape
    return ContractStep(
        group,
        Sizes(1, rows, columns, depth),
        Matrix(a.leaf, a.offset, (), rows, a.strides[0], depth, a.strides[1]),
        Computed(weights, group.producers, group.is_leaf, _lies_transposed(group, weights)),
        Destination([("m", (0,)), ("n", (1,))]),
    )


def _lies_transposed(group: Group, v: Value) -> bool:
    """Whether neighbours along the first axis of *v* are neighbours in the largest tensor that it is made from."""
    turned = False
    while (made := group.producers.get(v)) is not None and not group.is_leaf(v) and made.inputs:
        if made.op == "transpose":
            turned = turned != (made.attrs["perm"][-1] != v.rank - 1)
        v = max(made.inputs, key=lambda x: (x.rank > 0, _largest(group, x)))
    return turned


def _largest(group: Group, v: Value) -> int:
    """The elements of the largest constant that *v* is made from."""
    made = group.producers.get(v)
    if made is None or group.is_leaf(v):
        return v.data.size if v.data is not None else 0
    return max((_largest(group, x) for x in made.inputs), default=0)


def _axes(shape: Sequence[Extent], strides: Sequence[Extent], axes: range) -> tuple[tuple[Extent, Extent], ...]:
    return tuple((shape[i], strides[i]) for i in axes)
