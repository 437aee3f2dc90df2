"""The ``contract_blocks`` family: products with weights quantized in blocks, on the two kernels of ``contract``.

The weights are read packed, and no dequantized copy exists. The tile's loader takes a quad along K out of a 32-bit word; the
skinny kernel, which is bound by what it has on its way from memory, takes up to 16 bytes of a block at once and scales its sum.
From a few rows of float16 on, matrix units multiply them: weights become float16 in the units' own registers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from onnx_vulkan.codegen.kernel import At, Limits, is_multiple
from onnx_vulkan.codegen.params import Params
from onnx_vulkan.codegen.types import unpack
from onnx_vulkan.dims import Extent
from onnx_vulkan.dtypes import FLOATS, DType
from onnx_vulkan.kernels import Group, family
from onnx_vulkan.kernels.contract import ContractStep
from onnx_vulkan.kernels.matrix_units import HALVES, Unit
from onnx_vulkan.kernels.operand import Matrix, no_octets
from onnx_vulkan.kernels.product import Destination, Sizes
from onnx_vulkan.program.ir import Instr, Value

__all__ = ["PackedMatrix", "contract_blocks_step"]


@dataclass(frozen=True, slots=True)
class PackedMatrix:
    """The right-hand side of a ``contract_blocks``, an operand like :class:`Matrix`: ``rows x depth``, or ``matrices`` of them.

    A row is ``blocks`` blocks of ``block`` elements of ``bits`` bits, or one of ``depth`` elements where ``block`` is 0. Rows are
    whole 32-bit words, and those whole quads. Product z reads matrix z, or the one that ``index`` names.
    """

    packed: Value
    scales: Value
    zero_points: Value | None
    index: Value | None
    matrices: Extent
    rows: Extent
    depth: Extent
    block: int
    bits: int
    table: tuple[float, ...] | None

    @property
    def blocks(self) -> Extent:
        return self.scales.shape[-1]

    @property
    def length(self) -> Extent:
        """Elements of a row, with what fills its last block."""
        return self.blocks * self.block if self.block else self.depth

    @property
    def shift(self) -> int:
        """The number of the element k's block is ``k >> shift``."""
        return self.block.bit_length() - 1 if self.block else 31

    @property
    def leaves(self) -> tuple[Value, ...]:
        return (self.packed, self.scales, *(v for v in (self.zero_points, self.index) if v is not None))

    @property
    def grain(self) -> int:
        most = min(self.block or 32, 32, 128 // self.bits)
        return most if self.block else math.gcd(most, self.depth) if isinstance(self.depth, int) else 32 // self.bits

    def mode(self, at: At, unit: Unit | None = None) -> int:
        """Quads run along K. Matrix units take runs of 32 elements of 4 bits with whole zero points."""
        whole = self.zero_points is None or self.zero_points.dtype is DType.U8
        fits = self.bits == 4 and self.grain == 32 and self.table is None and whole and is_multiple(at, self.depth, 32)
        return 4 if unit is not None and fits else 0

    def octets(self, at: At) -> bool:
        return False

    def octet_function(self, params: Params, name: str) -> str:
        return no_octets(name)

    def _values(self) -> str:
        """A T4 of the lowest four elements of ``word``, before the scale; ``zero`` is their zero point.

        An element among the low bits of a float of 2^23 stands for itself times its place. So one operation takes it out of the
        word, and an exact fma makes it a number and subtracts a whole zero point.
        """
        if self.table is not None:
            return f"T4({', '.join(f'W_TABLE[(word >> {i}) & 15u]' for i in (4, 0, 12, 8))})"
        bits = [i * self.bits for i in range(4)]
        mask = (1 << self.bits) - 1
        fields = ", ".join(f"{'word >> 16' if bit & 16 else 'word'} & {mask << (bit & 15)}u" for bit in bits)
        units = ", ".join(repr(0.5 ** (bit & 15)) for bit in bits)
        ones = ", ".join(repr(2.0 ** (23 - (bit & 15))) for bit in bits)
        whole = self.zero_points is None or self.zero_points.dtype is DType.U8
        number = f"fma(uintBitsToFloat(uvec4({fields}) | 0x4B000000u), T4({units}), -T4({ones}){' - zero' if whole else ''})"
        return number if whole else f"{number} - zero"

    def _table(self) -> str:
        """The declaration of ``W_TABLE``, where the elements stand for numbers of a table."""
        if self.table is None:
            return ""
        return f"const T W_TABLE[16] = T[16]({', '.join(repr(float(np.float32(v))) for v in self.table)});\n"

    def runs(self, params: Params) -> str:
        bits, words = self.bits, self.grain * self.bits // 32
        part = f"w.bits[j * {4 * bits} >> 5]" if words > 1 else "w.bits"
        advanced = {1: "w.bits", 2: "w.bits.yx", 4: "w.bits.yzwx"}[words]
        return f"""#define W_RUN {self.grain // 4}
#define W_WORD {8 // bits}
{self._blocks(params)}T4 w_values(W_BLOCK w, int j) {{
    uint word = {part} >> (j * {4 * bits} & 31);
    T zero = w.zero;
    return {self._values()};
}}
void w_advance(inout W_BLOCK w) {{ w.bits = {advanced}; }}
"""

    @property
    def unit_template(self) -> str:
        return "gemm_blocks_matrix"

    def unit_functions(self, params: Params, name: str) -> str:
        return self._begin(params, name) + self._blocks(params)

    def _blocks(self, params: Params) -> str:
        """The GLSL of ``W_BLOCK`` and ``w_block``, a load of the ``grain`` elements of a row from k on."""
        grain, words = self.grain, self.grain * self.bits // 32
        vector = f"uvec{words}" if words > 1 else "uint"
        blocks, shift = params.word(self.blocks), params.word(self.shift)
        return f"""layout(buffer_reference, scalar, buffer_reference_align = {4 * words}) readonly restrict buffer w_Runs {{
    {vector} v[];
}};
struct W_BLOCK {{
    {vector} bits;
    T zero;
    T scale;
}};
W_BLOCK w_block(int row, int k, int k_end) {{
    row = w_first + min(row, {params.word(self.rows)} - 1);
    int at = min(k, {params.word(self.length)} - {grain});
    int block = at >> {shift};
    W_BLOCK w;
    w.bits = w_Runs({params.read(self.packed)}).v[row * {params.word(self.length // grain)} + at / {grain}];
    w.zero = {self._zero(params, blocks)};
    w.scale = k < k_end ? {self._scale(params, blocks)} : T(0);
    return w;
}}
"""

    def _scale(self, params: Params, blocks: str) -> str:
        """The scale of ``block`` of ``row``."""
        return "T(" + unpack(self.scales.dtype, f"{params.read(self.scales)}.v[row * {blocks} + block]") + ")"

    def functions(self, params: Params, name: str) -> str:
        """``{name}_begin(int z)`` and ``T4 {name}_quad(int row, int k, int k_end)``, as :meth:`Matrix.functions` gives them."""
        bits, pointer = self.bits, params.read(self.packed)
        blocks, words, shift = params.word(self.blocks), params.word(self.length * bits // 32), params.word(self.shift)
        return f"""{self._table()}
layout(buffer_reference, scalar, buffer_reference_align = 4) readonly restrict buffer {name}_Words {{
    uint v[];
}};
{self._begin(params, name)}T4 {name}_quad(int row, int k, int k_end) {{
    row = {name}_first + min(row, {params.word(self.rows)} - 1);
    int at = min(k, {params.word(self.length)} - 4);
    int block = at >> {shift};
    uint word = {name}_Words({pointer}).v[row * {words} + (at * {bits} >> 5)] >> (at * {bits} & 31);
    T zero = {self._zero(params, blocks)};
    T4 q = ({self._values()}) * {self._scale(params, blocks)};
    return mix(T4(0), q, lessThan(ivec4(k, k + 1, k + 2, k + 3), ivec4(k_end)));
}}
"""

    def _begin(self, params: Params, name: str) -> str:
        """``int {name}_first``, the first row of product z, which ``{name}_begin(int z)`` sets."""
        return f"int {name}_first;\nvoid {name}_begin(int z) {{ {name}_first = {self._first(params)}; }}\n"

    def _first(self, params: Params) -> str:
        """The first row of product ``z``. An index is the maker's to keep inside; here it stays inside whatever it is."""
        if self.matrices == 1 and self.index is None:
            return "0"
        z = (
            "z"
            if self.index is None
            else f"int(min(uint({params.read(self.index)}.v[z]), uint({params.word(self.matrices)} - 1)))"
        )
        return f"{z} * {params.word(self.rows)}"

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
        row = params.word(v.shape[-1])
        return f"T((uint({pointer}.v[row * {row} + (block * {bits} >> 3)]) >> (block * {bits} & 7)) & {(1 << bits) - 1}u)"


def refusal(instr: Instr) -> str | None:
    """Why a product of these dtypes and sizes cannot be run, or None."""
    x, _, scales, *rest = instr.inputs
    given: dict[str, Value] = dict(zip(instr.attrs["present"], rest, strict=True))
    floats = FLOATS - {DType.F64}
    bad = [v for v in (x, scales, instr.out) if v.dtype not in floats]
    if (zero := given.get("zero_points")) is not None and zero.dtype not in floats | {DType.U8}:
        bad.append(zero)
    if bad:
        return f"a product of {bad[0].dtype.onnx_name} with weights in blocks is not supported"
    depth = x.shape[-1]
    if not instr.attrs["block"] and (not isinstance(depth, int) or depth * instr.attrs["bits"] % 32):
        return f"rows of {depth} packed elements are no whole words"
    return None


class ContractBlocksStep(ContractStep):
    """A product with packed weights. On matrix units it runs where the device's are such that what is unpacked in registers can
    stay there (``coop_rows``)."""

    def stream_unit(self, at: At, limits: Limits) -> Unit | None:
        x, _, scales, *_ = self.group.anchor.inputs
        fits = x.dtype is scales.dtype is DType.F16 and self.kind(at) == "few rows"
        return HALVES if fits and limits.features >= {HALVES.feature, "coop_rows"} else None


@family("contract_blocks", refusal, views=frozenset({0}), epilogue=True)
def contract_blocks_step(group: Group) -> ContractBlocksStep:
    """The step of a product ``[M, K] x [N, K]`` with packed weights, or a batch of them."""
    x, packed, scales, *rest = group.anchor.inputs
    a, out, attrs = group.view(0), group.anchor.out, group.anchor.attrs
    given: dict[str, Value] = dict(zip(attrs["present"], rest, strict=True))
    rows, columns, depth = x.shape[-2], out.shape[-1], x.shape[-1]
    batched = x.rank == 3
    weights = PackedMatrix(
        packed, scales, given.get("zero_points"), given.get("index"), packed.shape[0] if batched else 1, columns, depth,
        attrs["block"], attrs["bits"], attrs["table"],
    )  # fmt: skip
    batch = ((x.shape[0], a.strides[0]),) if batched else ()
    left = Matrix(a.leaf, a.offset, batch, rows, a.strides[-2], depth, a.strides[-1])
    sizes = Sizes(x.shape[0] if batched else 1, rows, columns, depth)
    axes = [("m", (out.rank - 2,)), ("n", (out.rank - 1,))]
    return ContractBlocksStep(group, sizes, left, weights, Destination([("z", (0,)), *axes] if batched else axes))
