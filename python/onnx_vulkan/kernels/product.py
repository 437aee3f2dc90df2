"""What matrix-product kernels share: where a sum goes (epilogue, or scratch of a split K), tiled launches, the adding launch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from onnx_vulkan.codegen import vector
from onnx_vulkan.codegen.choices import pick
from onnx_vulkan.codegen.hole import Axes, fill_hole, fill_vectors
from onnx_vulkan.codegen.kernel import At, Kernel, Launch, Limits, Variant, chosen_by_step, grid_of, is_multiple, workgroups
from onnx_vulkan.codegen.params import Params
from onnx_vulkan.codegen.types import GLSL_TYPES
from onnx_vulkan.dims import Extent, ceil_div, minimum, product
from onnx_vulkan.dtypes import FLOATS, DType
from onnx_vulkan.kernels import Group, key_of
from onnx_vulkan.kernels.indexing import offset_text
from onnx_vulkan.kernels.matrix_units import (
    EXTENSIONS,
    PREFETCH,
    UNITS,
    Unit,
    UnitChoice,
    choose_unit_tile,
    legal_unit_tiles,
    unit_of,
)
from onnx_vulkan.kernels.operand import accumulator, narrow, reader
from onnx_vulkan.kernels.row_scales import RowScales
from onnx_vulkan.kernels.tiles import (
    MAX_SPLITS,
    SCRATCH_ELEMENTS,
    Choice,
    Tile,
    choose_tile,
    legal_splits,
    legal_tiles,
)
from onnx_vulkan.program.ir import Instr, Value

__all__ = ["Destination", "Sizes", "TiledStep", "chosen_by_step", "refusal", "register_dtype", "store"]

WORTH_SCALES = 1 << 28
"""Multiply-adds from which on a product in parts is worth the launches that find its scales."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """``z`` independent products of ``m x k`` by ``k x n``."""

    z: Extent
    m: Extent
    n: Extent
    k: Extent


@dataclass(frozen=True, slots=True)
class Destination:
    """How ``z, m, n`` become a place in the output: ``lines(params)`` are statements that define the variables of ``axes``; a
    ``return`` in them drops a row that is none of the output's."""

    axes: Axes
    lines: Callable[[Params], Sequence[str]] = lambda params: ()


def register_dtype(acc: DType) -> DType:
    """The dtype that keeps sums in *acc* as they are in registers (8- and 16-bit integers are summed in 32 bits)."""
    t = GLSL_TYPES[acc].compute
    return {"float": DType.F32, "double": DType.F64, "int": DType.I32, "uint": DType.U32}.get(t, acc)


def scratch_of(out: Value, acc: DType) -> Value:
    """Room for the partial sums of a split K: every split has a whole output."""
    return Value(register_dtype(acc), (minimum(product(out.shape) * MAX_SPLITS, SCRATCH_ELEMENTS),), "partial sums")


def _linear(params: Params, axes: Axes, shape: Sequence[Extent]) -> str:
    """The row-major offset in *shape* of the point that *axes* names."""
    kept = [(variable, over) for variable, over in axes if any(shape[i] != 1 for i in over)]
    return offset_text(params, [v for v, _ in kept], [product(shape[max(over) + 1 :]) for _, over in kept])


def store(
    group: Group, params: Params, to: Destination, scratch: Value | None, arguments: str = "int z, int m, int n"
) -> tuple[str, tuple[Value, ...]]:
    """The function ``store(<arguments>, int split, T acc)`` and the values that it reads."""
    out, acc = group.anchor.out, group.anchor.attrs["acc"]
    lines = list(to.lines(params))
    reads: tuple[Value, ...] = ()
    if scratch is None:
        given = {out: narrow(acc, out.dtype, "acc")}
        hole = fill_hole(params, out.shape, to.axes, group.outputs, group.producers, group.is_leaf, given)
        lines += hole.lines
        reads = hole.reads
    else:
        lines.append(f"{params.write(scratch)}.v[{_partial_place(params, to, out)}] = acc;")
    body = "\n".join("    " + line for line in lines)
    return f"void store({arguments}, int split, T acc) {{\n{body}\n}}\n", reads


def store_vector(
    group: Group, params: Params, to: Destination, scratch: Value | None, width: int
) -> tuple[str, tuple[Extent, ...] | None]:
    """The function ``store_vector(int z, int m, int n, int split, T acc[STORE_WIDTH])`` for *width* neighbours along n, and what
    has to be a multiple of *width* for them; nothing where they are no neighbours in memory."""
    out, acc = group.anchor.out, group.anchor.attrs["acc"]
    lines = list(to.lines(params))
    multiples: tuple[Extent, ...] = ()
    if scratch is None:
        given = {out: narrow(acc, out.dtype, "acc[k]")}
        hole = fill_vectors(params, out.shape, to.axes, group.outputs, group.producers, group.is_leaf, given, width)
        if hole is None:
            return "", None
        lines += hole.lines
        multiples = hole.multiples
    else:
        place = _partial_place(params, to, out)
        lines += vector.store("acc", register_dtype(acc), width, params.write(scratch), place)
    body = "\n".join("    " + line for line in lines)
    text = f"#define STORE_WIDTH {width}\nvoid store_vector(int z, int m, int n, int split, T acc[{width}]) {{\n{body}\n}}\n"
    return text, multiples


def _partial_place(params: Params, to: Destination, out: Value) -> str:
    """Where a split's sum lies in the scratch."""
    return f"split * {params.word(product(out.shape))} + {_linear(params, to.axes, out.shape)}"


def split_sum(group: Group, scratch: Value) -> Kernel:
    """The kernel that adds the splits' partial sums and runs the epilogue."""
    params = Params()
    out, acc = group.anchor.out, group.anchor.attrs["acc"]
    given = {out: narrow(acc, out.dtype, "acc")}
    axes = [("i", range(out.rank))]
    hole = fill_hole(params, out.shape, axes, group.outputs, group.producers, group.is_leaf, given)
    total = product(out.shape)
    body = f"""{accumulator(params, acc)}#define SIZE {params.word(total)}
{reader(params, "partial", scratch)}T partial(int i) {{ return partial_at(i); }}
void store(int i, T acc) {{
{hole.text()}
}}
#include "split_sum.glsl"
"""
    return Kernel(f"{group.label} (sum of splits)", params, body, (scratch, *hole.reads), group.outputs, chosen_by_step)


def split_sum_launch(kernel: Kernel, out: Value, splits: int, limits: Limits) -> Launch:
    """The second launch of a product in *splits*."""
    size = min(128, limits.max_workgroup_invocations)
    return Launch(kernel, Variant((size, splits), grid_of(workgroups(product(out.shape), size))))


def tile_launch(kernel: Kernel, sizes: Sizes, tile: Tile, splits: int, modes: Sequence[int]) -> Launch:
    """A launch of a ``gemm_tile.glsl`` kernel; *modes* are the specialization constants from 7 on."""
    spec = (tile.threads, tile.bm, tile.bn, tile.bk, tile.tm, tile.tn, splits, *modes)
    groups = ceil_div(sizes.m, tile.bm) * ceil_div(sizes.n, tile.bn) * sizes.z * splits
    return Launch(kernel, Variant(spec, grid_of(groups)))


def unit_launch(
    kernel: Kernel, sizes: Sizes, choice: UnitChoice, unit: Unit, modes: Sequence[int], at: At, limits: Limits
) -> Launch:
    """A launch of a ``gemm_matrix.glsl`` kernel; *modes* are the specialization constants from 9 on."""
    t, size = choice.tile, limits.subgroup_size
    # in parts the masks cost nothing: 60 TFLOP/s with them and 58 without on an H200
    whole = unit.parts == 1 and is_multiple(at, sizes.k, choice.splits * PREFETCH * t.depth(unit))
    spec = (t.subgroups * size, t.bm, t.bn, t.depth(unit), t.wm, t.wn, choice.splits, size, int(whole), *modes)
    groups = ceil_div(sizes.m, t.bm) * ceil_div(sizes.n, t.bn) * sizes.z * choice.splits
    return Launch(kernel, Variant(spec, grid_of(groups)))


class TiledStep:
    """A product in tiles: one launch, or two where K is split. Texts are rendered when they are first needed.

    ``operands(params)`` gives the GLSL of what ``gemm_tile.glsl`` wants of A and B (``begin`` to ``b_quad``), ``leaves`` the
    values that it reads, ``modes(at, bk, unit)`` the last specialization constants, for steps of ``bk`` along K.
    """

    def __init__(
        self,
        group: Group,
        sizes: Sizes,
        to: Destination,
        leaves: Sequence[Value],
        operands: Callable[[Params], str],
        modes: Callable[[At, int, Unit | None], Sequence[int]],
    ):
        self.group = group
        self.label = group.label
        self.writes = group.outputs
        self.sizes, self.to = sizes, to
        self._leaves, self._operands, self._modes = tuple(leaves), operands, modes
        self._kernels: dict[tuple[str, bool], Kernel] = {}
        self._multiples: dict[Kernel, tuple[Extent, ...] | None] = {}
        self.scales: RowScales | None = None  # only contractions run on units that take operands in parts
        self._scratch = scratch_of(group.anchor.out, group.anchor.attrs["acc"])

    @property
    def reads(self) -> tuple[Value, ...]:
        return self.kernel("tile", split=False).reads

    @property
    def item(self) -> int:
        """Bytes of an element in registers and shared memory."""
        return register_dtype(self.group.anchor.attrs["acc"]).size

    def kernel(self, kind: str, *, split: bool) -> Kernel:
        """The kernel of a kind (``tile``, ``sum`` of splits), rendered when it is first asked for."""
        key = kind, split
        if key not in self._kernels:
            self._kernels[key] = self._render(kind, self._scratch if split else None)
        return self._kernels[key]

    def _render(self, kind: str, scratch: Value | None) -> Kernel:
        if kind == "sum":
            return split_sum(self.group, self._scratch)
        params, sizes = Params(), self.sizes
        acc = self.group.anchor.attrs["acc"]
        unit = UNITS.get(kind)
        text, reads = store(self.group, params, self.to, scratch)
        vectors, multiples = store_vector(self.group, params, self.to, scratch, self._width(unit))
        text += vectors
        start = unit.definitions(acc) if unit else accumulator(params, acc)
        name = "gemm_matrix" if unit else "gemm"
        template = name if unit else "gemm_tile"
        scales = self.scales if unit and unit.parts > 1 else None
        scaling = scales.functions(params) if scales else ""
        body = f"""{start}#define SIZE_Z {params.word(sizes.z)}
#define SIZE_M {params.word(sizes.m)}
#define SIZE_N {params.word(sizes.n)}
#define SIZE_K {params.word(sizes.k)}
#include "{name}_variant.glsl"
{self._operands(params)}
{scaling}{unit.stored(acc, text) if unit else text}#include "{template}.glsl"
"""
        reads = tuple(dict.fromkeys((*self._leaves, *reads, *(scales.values if scales else ()))))
        writes = self.writes if scratch is None else (scratch,)
        kernel = Kernel(self.label, params, body, reads, writes, chosen_by_step)
        if unit:
            kernel.extensions, kernel.fixed_subgroups = EXTENSIONS, True
        self._multiples[kernel] = multiples
        return kernel

    def launches(self, at: At, limits: Limits) -> list[Launch]:
        """One launch, or two where K is split."""
        m, n, k, z = self.numbers(at)
        choice = pick(
            key_of(self.group.anchor),
            lambda: self.kernel("tile", split=False),
            {"z": z, "m": m, "n": n, "k": k},
            at,
            limits,
            self.rule(at, limits),
            lambda: self.space(at, limits),
            lambda c: c.name,
        )
        return self.launches_of(choice, at, limits)

    def numbers(self, at: At) -> tuple[int, int, int, int]:
        """The sizes m, n, k, z."""
        return at(self.sizes.m), at(self.sizes.n), at(self.sizes.k), at(self.sizes.z)

    def unit(self, at: At, limits: Limits) -> Unit | None:
        """The matrix units that may be used."""
        m, n, k, z = self.numbers(at)
        unit = unit_of(self.group.anchor, limits)
        return None if unit and unit.parts > 1 and z * m * n * k < WORTH_SCALES else unit

    def rule(self, at: At, limits: Limits) -> Any:
        """The variant that sizes and limits alone say: an object with a ``name`` that :meth:`launches_of` takes."""
        unit = self.unit(at, limits)
        on_units = choose_unit_tile(*self.numbers(at), unit, limits) if unit else None
        return on_units or choose_tile(*self.numbers(at), self.item, limits)

    def space(self, at: At, limits: Limits) -> list[Any]:
        """The legal variants."""
        sizes, unit = self.numbers(at), self.unit(at, limits)
        found: list[Any] = []
        for t in legal_unit_tiles(unit, limits) if unit else ():
            assert unit is not None
            found += [UnitChoice(t, splits) for splits in legal_splits(t.depth(unit), sizes)]
        for tile in legal_tiles(self.item, limits):
            found += [Choice(tile, splits) for splits in legal_splits(tile.bk, sizes)]
        return found

    def launches_of(self, choice: Any, at: At, limits: Limits) -> list[Launch]:
        """The launches of a variant."""
        if isinstance(choice, UnitChoice):
            unit = self.unit(at, limits)
            assert unit is not None
            kernel = self.kernel(unit.name, split=choice.splits > 1)
            modes = self._stores_vectors(kernel, unit, at), *self._modes(at, choice.tile.depth(unit), unit)
            launch = unit_launch(kernel, self.sizes, choice, unit, modes, at, limits)
            scales = self.scales.launches(at) if self.scales and unit.parts > 1 else []
            return [*scales, *self.with_sum(launch, choice.splits, limits)]
        kernel = self.kernel("tile", split=choice.splits > 1)
        modes = self._stores_vectors(kernel, None, at), *self._modes(at, choice.tile.bk, None)
        launch = tile_launch(kernel, self.sizes, choice.tile, choice.splits, modes)
        return self.with_sum(launch, choice.splits, limits)

    def _width(self, unit: Unit | None) -> int:
        """The neighbours that an invocation stores at once: 16 bytes of each output, but no more than 8."""
        return min(vector.vector_width(v.dtype for v in self.writes), 8) if unit else 4

    def _stores_vectors(self, kernel: Kernel, unit: Unit | None, at: At) -> int:
        """Whether rows of its outputs are whole vectors."""
        multiples = self._multiples[kernel]
        return int(multiples is not None and all(is_multiple(at, e, self._width(unit)) for e in (self.sizes.n, *multiples)))

    def with_sum(self, launch: Launch, splits: int, limits: Limits) -> list[Launch]:
        """*launch*, and the one that adds its partial sums where there are any."""
        if splits == 1:
            return [launch]
        return [launch, split_sum_launch(self.kernel("sum", split=True), self.group.anchor.out, splits, limits)]


def refusal(instr: Instr) -> str | None:
    """Why products of these dtypes cannot be run, or None."""
    acc, dtypes = instr.attrs["acc"], {x.dtype for x in instr.inputs} | {instr.out.dtype}
    names = " and ".join(x.dtype.onnx_name for x in instr.inputs)
    if DType.BOOL in dtypes | {acc}:
        return f"a product of {names} is not supported"
    if len({d in FLOATS for d in dtypes | {acc}}) > 1:
        return f"a product of {names} to {instr.out.dtype.onnx_name} cannot be summed in {acc.onnx_name}"
    if acc in (DType.F16, DType.BF16):
        return f"sums in {acc.onnx_name} are not supported"
    if register_dtype(acc).size < max(d.size for d in dtypes):
        return f"a product of {names} to {instr.out.dtype.onnx_name} cannot be summed in {acc.onnx_name}"
    return None
