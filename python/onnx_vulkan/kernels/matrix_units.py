"""Products on the device's matrix units (VK_KHR_cooperative_matrix): which operands they take, which tile, and the text.

16-bit floats and bytes go in as they are, with sums in fp32 or 32 bits. fp32 operands go in only where the session's
``precision`` allows it: rounded to fp16 (``fast``), or in two fp16 parts each (``fp32_split``).
"""

from __future__ import annotations

from dataclasses import dataclass

from onnx_vulkan.codegen.kernel import Limits
from onnx_vulkan.codegen.types import GLSL_TYPES
from onnx_vulkan.dtypes import DType
from onnx_vulkan.kernels.tiles import cheapest_split
from onnx_vulkan.program.ir import Instr

__all__ = [
    "EXTENSIONS",
    "HALVES",
    "IN_PARTS",
    "PREFETCH",
    "ROUNDED",
    "SIGNED",
    "UNITS",
    "UNIT_TILES",
    "UNSIGNED",
    "Unit",
    "UnitChoice",
    "UnitTile",
    "choose_unit_tile",
    "legal_unit_tiles",
    "unit_of",
]

EXTENSIONS = ("GL_KHR_cooperative_matrix", "GL_KHR_memory_scope_semantics", "GL_KHR_shader_subgroup_basic")


@dataclass(frozen=True, slots=True)
class Unit:
    """A way to use a kind of matrix unit: 16 x 16 x ``depth`` elements of the GLSL type ``element``, sums in ``sum``.

    Operands are read as ``read`` (``quad``: four of them) and become ``parts`` of ``element`` each. ``rate``: multiply-adds a
    core and cycle.
    """

    name: str
    feature: str
    element: str
    read: str
    quad: str
    depth: int
    sum: str
    rate: int
    parts: int = 1

    @property
    def item(self) -> int:
        """Bytes of an element."""
        return 32 // self.depth

    @property
    def chunk(self) -> int:
        """Elements in 16 bytes."""
        return self.depth // 2

    def holds(self, dtype: DType) -> bool:
        """Whether tensors of *dtype* lie in memory as the unit takes them."""
        return self.parts == 1 and self.element == GLSL_TYPES[dtype].storage

    def stored(self, acc: DType, text: str) -> str:
        """*text* (the function ``store``), in which T is the type of sums in *acc*."""
        return f"#undef T\n#define T {GLSL_TYPES[acc].compute}\n{text}#undef T\n#define T {self.read}\n"

    def definitions(self, acc: DType) -> str:
        """What ``gemm_matrix.glsl`` wants to know of the unit, for a product with sums in *acc*."""
        if self.item == 2:
            words = ", ".join(f"packFloat2x16(f16vec2(q[{j}].{half}))" for j in range(2) for half in ("xy", "zw"))
        else:
            words = ", ".join(f"uint(pack32(q[{j}]))" for j in range(4))
        bits = "uintBitsToFloat(x)" if self.sum == "float" else f"{self.sum}(x)"
        return f"""#define E {self.element}
#define UNIT_K {self.depth}
#define CHUNK {self.chunk}
#define SUM {self.sum}
#define SUM_OF_BITS(x) {bits}
#define STORED_TYPE {GLSL_TYPES[acc].compute}
#define PARTS {self.parts}
#define T {self.read}
#define T4 {self.quad}
uvec4 pack_quads(T4 q[CHUNK / 4]) {{ return uvec4({words}); }}
#include "chunks.glsl"
"""


HALVES = Unit("halves", "coop_f16", "float16_t", "float16_t", "f16vec4", 16, "float", 2048)
ROUNDED = Unit("rounded", "coop_f16", "float16_t", "float", "vec4", 16, "float", 2048)
IN_PARTS = Unit("in parts", "coop_f16", "float16_t", "float", "vec4", 16, "float", 2048 // 3, parts=2)
SIGNED = Unit("signed bytes", "coop_s8", "int8_t", "int8_t", "i8vec4", 32, "int", 4096)
UNSIGNED = Unit("bytes", "coop_u8", "uint8_t", "uint8_t", "u8vec4", 32, "uint", 4096)
UNITS = {unit.name: unit for unit in (HALVES, ROUNDED, IN_PARTS, SIGNED, UNSIGNED)}


def unit_of(instr: Instr, limits: Limits) -> Unit | None:
    """How the product *instr* uses a device's matrix units, or None."""
    dtypes = {x.dtype for x in instr.inputs[:2]}
    acc = instr.attrs["acc"]
    unit: Unit | None = None
    if acc is DType.F32 and dtypes == {DType.F16}:
        unit = HALVES
    elif acc is DType.F32 and dtypes <= {DType.F16, DType.F32}:
        unit = {"fast": ROUNDED, "fp32_split": IN_PARTS if instr.op == "contract" else None}.get(limits.precision)
    elif acc in (DType.I32, DType.U32) and dtypes == {DType.I8}:
        unit = SIGNED
    elif acc in (DType.I32, DType.U32) and dtypes == {DType.U8}:
        unit = UNSIGNED
    return unit if unit is not None and unit.feature in limits.features else None


@dataclass(frozen=True, slots=True)
class UnitTile:
    """``bm x bn`` results a workgroup in steps of ``bytes`` along K, ``wm x wn`` a subgroup (multiples of 16).

    ``efficiency`` is the share of its rate that a full core keeps, ``resident`` how many workgroups a core holds.
    """

    bm: int
    bn: int
    bytes: int
    wm: int
    wn: int
    efficiency: float
    resident: int

    @property
    def subgroups(self) -> int:
        """Subgroups of a workgroup."""
        return (self.bm // self.wm) * (self.bn // self.wn)

    def depth(self, unit: Unit) -> int:
        """Elements of a step along K."""
        return self.bytes // unit.item

    def is_whole(self, subgroup_size: int) -> bool:
        """Whether the invocations of a workgroup load equal numbers of chunks of 16 bytes of either operand."""
        threads = self.subgroups * subgroup_size
        return all(b * self.bytes // 16 % threads == 0 for b in (self.bm, self.bn))

    def shared_memory(self, unit: Unit) -> int:
        """Bytes of shared memory (``POOL`` of gemm_matrix.glsl), at most: the layout that needs more."""

        def tile(b: int) -> int:
            k = self.depth(unit)
            return max(b * (k // unit.chunk + 1), k * (b // unit.chunk + 1))

        return 16 * max(2 * unit.parts * (tile(self.bm) + tile(self.bn)), self.subgroups * 16 * (self.wn // 4 + 2))


UNIT_TILES = (
    UnitTile(128, 256, 32, 64, 64, 0.33, 1),
    UnitTile(128, 128, 32, 64, 64, 0.236, 2),
    UnitTile(128, 128, 32, 64, 32, 0.223, 2),
    UnitTile(128, 128, 32, 32, 64, 0.16, 2),
    UnitTile(128, 64, 32, 64, 32, 0.148, 3),
    UnitTile(64, 128, 32, 32, 64, 0.16, 3),
    UnitTile(64, 64, 32, 32, 32, 0.147, 4),
    UnitTile(64, 64, 64, 32, 32, 0.146, 4),
    UnitTile(64, 32, 64, 32, 16, 0.1, 6),
    UnitTile(32, 32, 64, 16, 16, 0.075, 8),
)
"""Efficiencies were measured on an H200: products of 4096 x 4096 x 4096 in fp16 in one tile each. That of the first counts the
multiply-adds alone: no other workgroup fills its waiting, which :func:`cycles` adds."""

PREFETCH = 2
"""Steps along K that are on their way from memory while one is multiplied (gemm_matrix.glsl)."""
MOST_SUMS = 4096
"""Sums that a subgroup keeps in registers at most (128 a lane of 32)."""
WAIT = 250
"""Cycles of a step that pass in waiting and that only other workgroups of the core can fill (two steps are on their way)."""


@dataclass(frozen=True, slots=True)
class UnitChoice:
    """A tile and the number of splits of K."""

    tile: UnitTile
    splits: int

    @property
    def name(self) -> str:
        t = self.tile
        return f"units {t.bm}x{t.bn}, {t.bytes} bytes deep, {t.wm}x{t.wn} a subgroup, {self.splits} splits"


def legal_unit_tiles(unit: Unit, limits: Limits) -> list[UnitTile]:
    """The tiles that a device can run on its matrix units."""
    return [
        tile
        for tile in UNIT_TILES
        if tile.subgroups * limits.subgroup_size <= limits.max_workgroup_invocations
        and tile.is_whole(limits.subgroup_size)
        and tile.shared_memory(unit) <= limits.max_shared_memory
        and tile.wm * tile.wn * unit.parts <= MOST_SUMS
    ]


def choose_unit_tile(rows: int, columns: int, depth: int, batch: int, unit: Unit, limits: Limits) -> UnitChoice | None:
    """The cheapest tile and split for ``batch`` products of ``rows x depth`` by ``depth x columns``, or None."""
    best: tuple[float, UnitChoice] | None = None
    for tile in legal_unit_tiles(unit, limits):
        step = tile.depth(unit)
        work = tile.bm * tile.bn * step / unit.rate / tile.efficiency
        cost, splits = cheapest_split(tile, step, work, WAIT, (rows, columns, depth, batch), 4)
        if best is None or cost < best[0]:
            best = cost, UnitChoice(tile, splits)
    return best[1] if best else None
