"""The ``contract_blocks`` family: products with weights quantized in blocks, on the two kernels of ``contract``.

The weights are read packed, and no dequantized copy exists. The tile's loader takes a quad along K out of a 32-bit word; the
skinny kernel, which is bound by what it has on its way from memory, takes up to 16 bytes of a block at once and scales its sum.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from onnx_vulkan.codegen.kernel import At
from onnx_vulkan.codegen.params import Params
from onnx_vulkan.codegen.types import unpack
from onnx_vulkan.dims import Extent
from onnx_vulkan.dtypes import FLOATS, DType
from onnx_vulkan.kernels import Group, family
from onnx_vulkan.kernels.contract import ContractStep
from onnx_vulkan.kernels.operand import Matrix
from onnx_vulkan.kernels.product import Destination, Sizes
from onnx_vulkan.program.ir import Instr, Value

__all__ = ["PackedMatrix", "contract_blocks_step"]


@dataclass(frozen=True, slots=True)
class PackedMatrix:
    """The right-hand side ``rows x depth`` of a ``contract_blocks``, an operand like :class:`Matrix`.

    A row is ``blocks`` blocks of ``block`` elements of ``bits`` bits. Words of 32 bits are whole quads, since a block is at least
    4 bytes.
    """

    packed: Value
    scales: Value
    zero_points: Value | None
    rows: Extent
    blocks: Extent
    block: int
    bits: int
    table: tuple[float, ...] | None

    @property
    def leaves(self) -> tuple[Value, ...]:
        return (self.packed, self.scales, *((self.zero_points,) if self.zero_points is not None else ()))

    @property
    def grain(self) -> int:
        return min(self.block, 32, 128 // self.bits)

    def mode(self, at: At) -> int:
        """Quads run along K."""
        return 0

    def _values(self) -> str:
        """A T4 of the lowest four elements of ``word``, before the scale; ``zero`` is their zero point."""
        if self.table is not None:
            return f"T4({', '.join(f'W_TABLE[(word >> {i}) & 15u]' for i in (4, 0, 12, 8))})"
        mask = (1 << self.bits) - 1
        fields = ", ".join(f"(word >> {i * self.bits}) & {mask}u" if i else f"word & {mask}u" for i in range(4))
        return f"T4(uvec4({fields})) - zero"

    def _table(self) -> str:
        """The declaration of ``W_TABLE``, where the elements stand for numbers of a table."""
        if self.table is None:
            return ""
        return f"const T W_TABLE[16] = T[16]({', '.join(repr(float(np.float32(v))) for v in self.table)});\n"

    def runs(self, params: Params) -> str:
        bits, grain = self.bits, self.grain
        words = grain * bits // 32
        vector = f"uvec{words}" if words > 1 else "uint"
        blocks, shift = params.word(self.blocks), params.word(self.block.bit_length() - 1)
        part = f"w.bits[j * {4 * bits} >> 5]" if words > 1 else "w.bits"
        return f"""#define W_RUN {grain // 4}
layout(buffer_reference, scalar, buffer_reference_align = {4 * words}) readonly restrict buffer w_Runs {{
    {vector} v[];
}};
struct W_BLOCK {{
    {vector} bits;
    T zero;
    T scale;
}};
W_BLOCK w_block(int row, int k, int k_end) {{
    row = min(row, {params.word(self.rows)} - 1);
    int at = min(k, {params.word(self.blocks * self.block)} - {grain});
    int block = at >> {shift};
    W_BLOCK w;
    w.bits = w_Runs({params.read(self.packed)}).v[row * {params.word(self.blocks * (self.block // grain))} + at / {grain}];
    w.zero = {self._zero(params, blocks)};
    w.scale = k < k_end ? {self._scale(params, blocks)} : T(0);
    return w;
}}
T4 w_values(W_BLOCK w, int j) {{
    uint word = {part} >> (j * {4 * bits} & 31);
    T zero = w.zero;
    return {self._values()};
}}
"""

    def _scale(self, params: Params, blocks: str) -> str:
        """The scale of ``block`` of ``row``."""
        return "T(" + unpack(self.scales.dtype, f"{params.read(self.scales)}.v[row * {blocks} + block]") + ")"

    def functions(self, params: Params, name: str) -> str:
        """``{name}_begin(int z)`` and ``T4 {name}_quad(int row, int k, int k_end)``, as :meth:`Matrix.functions` gives them."""
        bits, pointer = self.bits, params.read(self.packed)
        blocks, words = params.word(self.blocks), params.word(self.blocks * (self.block * bits // 32))
        shift = params.word(self.block.bit_length() - 1)
        return f"""{self._table()}
layout(buffer_reference, scalar, buffer_reference_align = 4) readonly restrict buffer {name}_Words {{
    uint v[];
}};
void {name}_begin(int z) {{}}
T4 {name}_quad(int row, int k, int k_end) {{
    row = min(row, {params.word(self.rows)} - 1);
    int at = min(k, {params.word(self.blocks * self.block)} - 4);
    int block = at >> {shift};
    uint word = {name}_Words({pointer}).v[row * {words} + (at * {bits} >> 5)] >> (at * {bits} & 31);
    T zero = {self._zero(params, blocks)};
    T4 q = ({self._values()}) * {self._scale(params, blocks)};
    return mix(T4(0), q, lessThan(ivec4(k, k + 1, k + 2, k + 3), ivec4(k_end)));
}}
"""

    def _zero(self, params: Params, blocks: str) -> str:
        """The zero point of ``block`` of ``row``."""
        v, bits = self.zero_points, self.bits
        if self.table is not None:
            return "T(0)"
        if v is None:
            return f"T({1 << (bits - 1)})"
        pointer = params.read(v)
        if v.dtype is not DType.U8:
            return "T(" + unpack(v.dtype, f"{pointer}.v[row * {blocks} + block]") + ")"
        row = params.word(v.shape[1])
        return f"T((uint({pointer}.v[row * {row} + (block * {bits} >> 3)]) >> (block * {bits} & 7)) & {(1 << bits) - 1}u)"


def refusal(instr: Instr) -> str | None:
    """Why a product of these dtypes cannot be run, or None."""
    x, _, scales, *zero = instr.inputs
    floats = FLOATS - {DType.F64}
    bad = [v for v in (x, scales, instr.out) if v.dtype not in floats] + [v for v in zero if v.dtype not in floats | {DType.U8}]
    return f"a product of {bad[0].dtype.onnx_name} with weights in blocks is not supported" if bad else None


@family("contract_blocks", refusal, views=frozenset({0}), epilogue=True)
def contract_blocks_step(group: Group) -> ContractStep:
    """The step of a product ``[M, K] x [N, K]`` with packed weights."""
    x, packed, scales, *zero = group.anchor.inputs
    a, out, attrs = group.view(0), group.anchor.out, group.anchor.attrs
    rows, columns = out.shape
    weights = PackedMatrix(
        packed, scales, zero[0] if zero else None, columns, scales.shape[1], attrs["block"], attrs["bits"], attrs["table"]
    )
    left = Matrix(a.leaf, a.offset, (), rows, a.strides[0], x.shape[1], a.strides[1])
    return ContractStep(group, Sizes(1, rows, columns, x.shape[1]), left, weights, Destination([("m", (0,)), ("n", (1,))]))
