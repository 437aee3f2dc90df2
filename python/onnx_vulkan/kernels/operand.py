"""GLSL that reads a kernel's operands, widened to the accumulator's type: strided in memory, or computed on the way."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from onnx_vulkan.codegen.index import ZERO, Lin
from onnx_vulkan.codegen.kernel import At, is_multiple
from onnx_vulkan.codegen.params import Params
from onnx_vulkan.codegen.render import Renderer
from onnx_vulkan.codegen.types import GLSL_TYPES, unpack, wrap
from onnx_vulkan.dims import Extent, product
from onnx_vulkan.dtypes import FLOATS, DType
from onnx_vulkan.kernels.indexing import offset_text
from onnx_vulkan.kernels.matrix_units import Unit
from onnx_vulkan.program.ir import Instr, Value

__all__ = [
    "Computed",
    "Matrix",
    "Operand",
    "accumulator",
    "chunk_reader",
    "merge_runs",
    "narrow",
    "no_octets",
    "quad_type",
    "reader",
]

_QUADS = {
    "float": "vec4",
    "double": "dvec4",
    "int": "ivec4",
    "uint": "uvec4",
    "int64_t": "i64vec4",
    "uint64_t": "u64vec4",
    "float16_t": "f16vec4",
    "int8_t": "i8vec4",
    "uint8_t": "u8vec4",
    "int16_t": "i16vec4",
    "uint16_t": "u16vec4",
}


def quad_type(scalar: str) -> str:
    """The vector of four of a GLSL scalar type."""
    return _QUADS[scalar]


def accumulator(params: Params, acc: DType) -> str:
    """Defines ``T``, ``T4`` and ``MAD`` for sums in *acc*."""
    params.use(acc)
    t = GLSL_TYPES[acc].compute
    mad = "fma(a, b, c)" if acc in FLOATS else "((a) * (b) + (c))"
    return f"#define T {t}\n#define T4 {quad_type(t)}\n#define MAD(a, b, c) {mad}\n"


def narrow(acc: DType, out: DType, text: str) -> str:
    """An accumulated sum as the compute-type expression of the result's dtype."""
    t, c = GLSL_TYPES[acc].compute, GLSL_TYPES[out].compute
    return wrap(out, text if t == c else f"{c}({text})")


def reader(params: Params, name: str, value: Value) -> str:
    """Functions ``T {name}_at(int i)`` and ``T4 {name}_quad_at(int i)``: elements i and i .. i+3 of a materialised value.

    A quad's offset must be a multiple of 4: it is one load of up to 16 bytes (values lie on 16-byte boundaries).
    """
    pointer = params.read(value)
    dtype, storage = value.dtype, GLSL_TYPES[value.dtype].storage
    align = min(16, 4 * dtype.size)
    quad = f"{name}_Quads({pointer}).v[i >> 2]"
    wide = f"uintBitsToFloat(uvec4({quad}) << 16)" if dtype is DType.BF16 else quad
    return f"""layout(buffer_reference, scalar, buffer_reference_align = {align}) readonly restrict buffer {name}_Quads {{
    {quad_type(storage)} v[];
}};
T {name}_at(int i) {{ return T({unpack(dtype, f"{pointer}.v[i]")}); }}
T4 {name}_quad_at(int i) {{ return T4({wide}); }}
"""


def no_octets(name: str) -> str:
    """The GLSL of an octet function that is never called."""
    return f"""uvec4 {name}_octet_bits(int row, int k, int k_end) {{ return uvec4(0); }}
T4[2] {name}_octet_values(uvec4 x) {{ return T4[2](T4(0), T4(0)); }}
T4[2] {name}_octet(int row, int k, int k_end) {{ return T4[2](T4(0), T4(0)); }}
"""


def chunk_reader(params: Params, name: str, value: Value) -> str:
    """The function ``uvec4 {name}_chunk_at(int i)``: the elements of the 16 aligned bytes with element i."""
    shift = (16 // value.dtype.size).bit_length() - 1
    return f"""layout(buffer_reference, scalar, buffer_reference_align = 16) readonly restrict buffer {name}_Chunks {{
    uvec4 v[];
}};
uvec4 {name}_chunk_at(int i) {{ return {name}_Chunks({params.read(value)}).v[i >> {shift}]; }}"""


class Operand(Protocol):
    """What the product kernels ask of an operand."""

    @property
    def rows(self) -> Extent:
        """Its extent along its own axis (rows of the left-hand side, columns of the right-hand side)."""

    @property
    def leaves(self) -> tuple[Value, ...]:
        """The values that its reader loads from memory."""

    @property
    def grain(self) -> int:
        """The elements along K that the skinny kernel takes of a row at a time: a quad, or a run of them (``W_RUN``)."""

    def mode(self, at: At, unit: Unit | None = None) -> int:
        """The MODE bits of the kernels: bit 0 when quads run along its own axis instead of K, bit 1 when they are vectors.

        For a matrix *unit* also bit 2, when chunks of 16 bytes are vectors, or bit 3, when they lie in one piece across two.
        """

    def octets(self, at: At) -> bool:
        """Whether eight elements of it along the axis of its quads are one load of 16 bytes."""

    def functions(self, params: Params, name: str) -> str:
        """The GLSL of ``{name}_begin(int z)`` and ``T4 {name}_quad(int row, int k, int k_end)``."""

    def octet_function(self, params: Params, name: str) -> str:
        """The GLSL of ``T4[2] {name}_octet(int row, int k, int k_end)``, for after that of :meth:`functions`."""

    def runs(self, params: Params) -> str:
        """The GLSL of ``W_RUN`` and what ``gemm_skinny.glsl`` wants with it; nothing where the grain is a quad."""

    @property
    def unit_template(self) -> str:
        """The skinny kernel on matrix units that takes it as its wide operand."""

    def unit_functions(self, params: Params, name: str) -> str:
        """The GLSL of ``{name}_begin`` and of what that kernel reads it by."""


@dataclass(frozen=True, slots=True)
class Matrix:
    """A strided operand of a product, ``rows x depth`` or (for the right-hand side) ``columns x depth``, batched by ``z``.

    ``batch`` holds (extent, stride) of the batch axes, outermost first; ``row`` and ``k`` are the strides along its own axis and
    along K; all in elements of ``leaf`` from ``offset`` on.
    """

    leaf: Value
    offset: Extent
    batch: tuple[tuple[Extent, Extent], ...]
    rows: Extent
    row: Extent
    depth: Extent
    k: Extent

    @property
    def leaves(self) -> tuple[Value, ...]:
        return (self.leaf,)

    @property
    def grain(self) -> int:
        return 4

    def runs(self, params: Params) -> str:
        return ""

    @property
    def unit_template(self) -> str:
        return "gemm_skinny_matrix"

    def unit_functions(self, params: Params, name: str) -> str:
        return self.functions(params, name)

    def mode(self, at: At, unit: Unit | None = None) -> int:
        """How quads of it are loaded (the MODE bits of the kernels): along which axis, and whether as one vector.

        Along the axis whose elements lie closest together, so that neighbouring lanes load neighbouring addresses. A vector
        needs every quad that is inside to be whole and aligned.
        """
        row, k = abs(at(self.row)), abs(at(self.k))
        along_rows = (row < k and k != 1) or (row == k and at(self.depth) == 1)
        vector = self._whole(at, 4, along_rows=along_rows)
        chunks = shifted = False
        if unit is not None and unit.holds(self.leaf.dtype):
            chunks = self._whole(at, unit.chunk, along_rows=along_rows)
            shifted = not chunks and (self.row if along_rows else self.k) == 1
        return int(along_rows) | int(vector) << 1 | int(chunks) << 2 | int(shifted) << 3

    def octets(self, at: At) -> bool:
        """For 16-bit floats, as for the vectors of :meth:`mode`."""
        return self.leaf.dtype in (DType.F16, DType.BF16) and self._whole(at, 8, along_rows=bool(self.mode(at) & 1))

    def _whole(self, at: At, width: int, *, along_rows: bool) -> bool:
        """Whether all runs of *width* elements along an axis are aligned and whole."""
        step, length, other = (self.row, self.rows, self.k) if along_rows else (self.k, self.depth, self.row)
        parts = [length, other, self.offset, *(s for _, s in self.batch)]
        return step == 1 and at(length) >= width and all(is_multiple(at, e, width) for e in parts)

    def functions(self, params: Params, name: str) -> str:
        """``{name}_begin(int z)`` and ``T4 {name}_quad(int row, int k, int k_end)``.

        Loads stand under no condition: behind a branch, a GPU's compiler waits for each before it starts the next. So what lies
        outside reads the last element inside; along K it then becomes 0, along the rows its sums are not stored.
        """
        upper, rows, depth = name.upper(), params.word(self.rows), params.word(self.depth)

        def element(row: str, k: str) -> str:
            return self._element(params, name, row, k)

        return f"""{reader(params, name, self.leaf)}
{self.begin(params, name)}T4 {name}_quad(int row, int k, int k_end) {{
    T4 q;
    if ({upper}_ALONG_K) {{
        row = min(row, {rows} - 1);
        if ({upper}_VECTOR) {{
            q = {name}_quad_at({element("row", f"(K_WHOLE ? k : min(k, {depth} - 4))")});
        }} else {{
            [[unroll]] for (int c = 0; c < 4; c++) {{
                T x = {name}_at({element("row", f"(K_WHOLE ? k + c : min(k + c, {depth} - 1))")});
                q[c] = K_WHOLE || k + c < k_end ? x : T(0);
            }}
            return q;
        }}
    }} else {{
        int inside = K_WHOLE ? k : min(k, {depth} - 1);
        if ({upper}_VECTOR) {{
            q = {name}_quad_at({element(f"min(row, {rows} - 4)", "inside")});
        }} else {{
            [[unroll]] for (int c = 0; c < 4; c++) q[c] = {name}_at({element(f"min(row + c, {rows} - 1)", "inside")});
        }}
    }}
    return K_WHOLE || k < k_end ? q : T4(0);
}}
{self._chunk_function(params, name)}"""

    def _chunk_function(self, params: Params, name: str) -> str:
        """The GLSL of ``uvec4 {name}_chunk(int row, int k, int k_end)``, the elements of 16 bytes, where they may be a chunk."""
        if self.leaf.dtype.size > 2:
            return ""
        upper, rows, depth, length = name.upper(), params.word(self.rows), params.word(self.depth), 16 // self.leaf.dtype.size
        last = f"{params.word(product(self.leaf.shape))} - 1"
        return f"""{chunk_reader(params, name, self.leaf)}
#ifdef CHUNK
#define {upper}_CHUNK {name}_chunk
uvec4 {name}_shifted(int row, int k, int k_end) {{
    int first = {self._element(params, name, f"min(row, {rows} - 1)", f"min(k, {depth} - 1)")};
    uvec4 x = shifted({name}_chunk_at(min(first, {last})), {name}_chunk_at(min(first + CHUNK, {last})), first % CHUNK);
    return K_WHOLE ? x : first_of(x, {upper}_ALONG_K ? k_end - k : k < k_end ? CHUNK : 0);
}}
#endif
uvec4 {name}_chunk(int row, int k, int k_end) {{
#ifdef CHUNK
    if ({upper}_SHIFTED) return {name}_shifted(row, k, k_end);
#endif
    int first_row = min(row, {rows} - ({upper}_ALONG_K ? 1 : {length}));
    int first_k = K_WHOLE ? k : min(k, {depth} - ({upper}_ALONG_K ? {length} : 1));
    uvec4 x = {name}_chunk_at({self._element(params, name, "first_row", "first_k")});
    return K_WHOLE || k < k_end ? x : uvec4(0);
}}
"""

    def octet_function(self, params: Params, name: str) -> str:
        if self.leaf.dtype not in (DType.F16, DType.BF16):
            return no_octets(name)
        pair = "vec2(unpackFloat2x16(x))" if self.leaf.dtype is DType.F16 else "uintBitsToFloat(uvec2(x << 16, x & 0xFFFF0000u))"
        return f"""uvec4 {name}_octet_bits(int row, int k, int k_end) {{ return {name}_chunk(row, k, k_end); }}
vec2 {name}_pair(uint x) {{ return {pair}; }}
T4[2] {name}_octet_values(uvec4 x) {{
    return T4[2](T4({name}_pair(x[0]), {name}_pair(x[1])), T4({name}_pair(x[2]), {name}_pair(x[3])));
}}
T4[2] {name}_octet(int row, int k, int k_end) {{ return {name}_octet_values({name}_octet_bits(row, k, k_end)); }}
"""

    def _element(self, params: Params, name: str, row: str, k: str) -> str:
        """The index of an element in memory, after ``{name}_begin``."""
        return offset_text(params, [f"{name}_base", row, k], [1, self.row, self.k])

    def begin(self, params: Params, name: str) -> str:
        """``int {name}_base``, the offset of matrix ``z``, which ``{name}_begin(int z)`` sets."""
        return f"""int {name}_base;
void {name}_begin(int z) {{
    {name}_base = {self._batch_offset(params)};
}}
"""

    def _batch_offset(self, params: Params) -> str:
        runs = merge_runs(self.batch)
        terms: list[tuple[str, Extent]] = []
        rest = "z"
        for i, (extent, stride) in reversed(list(enumerate(runs))):
            if i == 0:
                terms.append((rest, stride))
                break
            d = params.divisor(extent)
            quotient = f"divide({rest}, {d})"
            terms.append((f"({rest} - {quotient} * int({d}.d))", stride))
            rest = quotient
        return offset_text(params, [index for index, _ in terms], [stride for _, stride in terms], self.offset)


@dataclass(frozen=True, slots=True, eq=False)
class Computed:
    """A right-hand side ``[depth, rows]`` that is computed where it is read, by the elementwise instructions that make it.

    ``along_k``: neighbours along K lie next to each other in what it is made from.
    """

    value: Value
    producers: Mapping[Value, Instr]
    is_leaf: Callable[[Value], bool]
    along_k: bool

    @property
    def rows(self) -> Extent:
        return self.value.shape[1]

    @property
    def leaves(self) -> tuple[Value, ...]:
        r = Renderer(Params(), self.producers, self.is_leaf)
        r.value(self.value, self._point())
        return tuple(r.reads)

    @property
    def grain(self) -> int:
        return 4

    def runs(self, params: Params) -> str:
        return ""

    @property
    def unit_template(self) -> str:
        return "gemm_skinny_matrix"

    def unit_functions(self, params: Params, name: str) -> str:
        return self.functions(params, name)

    def mode(self, at: At, unit: Unit | None = None) -> int:
        return 0 if self.along_k else 1

    def octets(self, at: At) -> bool:
        return False

    def octet_function(self, params: Params, name: str) -> str:
        return no_octets(name)

    def _point(self) -> list[Lin]:
        return [Lin.var(n) if e != 1 else ZERO for n, e in zip(("k", "row"), self.value.shape, strict=True)]

    def functions(self, params: Params, name: str) -> str:
        """``{name}_begin(int z)`` and ``T4 {name}_quad(int row, int k, int k_end)``, as :meth:`Matrix.functions` gives them."""
        upper, rows, depth = name.upper(), params.word(self.rows), params.word(self.value.shape[0])
        r = Renderer(params, self.producers, self.is_leaf)
        text = r.value(self.value, self._point())
        lines = "\n".join("    " + line for line in r.scopes[0].lines)
        return f"""void {name}_begin(int z) {{}}
T {name}_at(int row, int k) {{
{lines}
    return T({text});
}}
T4 {name}_quad(int row, int k, int k_end) {{
    T4 q;
    if ({upper}_ALONG_K) {{
        row = min(row, {rows} - 1);
        [[unroll]] for (int c = 0; c < 4; c++) {{
            T x = {name}_at(row, min(k + c, {depth} - 1));
            q[c] = k + c < k_end ? x : T(0);
        }}
        return q;
    }}
    int inside = min(k, {depth} - 1);
    [[unroll]] for (int c = 0; c < 4; c++) q[c] = {name}_at(min(row + c, {rows} - 1), inside);
    return k < k_end ? q : T4(0);
}}
"""


def merge_runs(axes: Sequence[tuple[Extent, Extent]]) -> list[tuple[Extent, Extent]]:
    """(extent, stride) of axes, with neighbours joined where one index walks both; extents of 1 dropped."""
    runs: list[tuple[Extent, Extent]] = []
    for extent, stride in axes:
        if extent == 1:
            continue
        if runs and runs[-1][1] == stride * extent:
            runs[-1] = runs[-1][0] * extent, stride
        else:
            runs.append((extent, stride))
    return runs
