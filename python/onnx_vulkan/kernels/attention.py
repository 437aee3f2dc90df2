"""The ``attention`` family: both products and the softmax between them in one kernel, or as three kernels.

One kernel on matrix units never stores the scores; it pays where they would be many. ``attention_rows.glsl`` keeps them in
registers, which takes a device whose map of matrices is known (feature ``coop_rows``); ``attention_units.glsl`` passes them
through shared memory. Otherwise the decomposition runs, with the scores in scratch memory. :func:`choose` says which, from sizes
and device limits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from onnx_vulkan.codegen.choices import pick
from onnx_vulkan.codegen.hole import Axes
from onnx_vulkan.codegen.kernel import At, Kernel, Launch, Limits, Step, Variant, grid_of
from onnx_vulkan.codegen.params import Params
from onnx_vulkan.codegen.render import INLINE_OPS
from onnx_vulkan.codegen.row import RowGroup, row_step
from onnx_vulkan.dims import Extent, ceil_div, product
from onnx_vulkan.dtypes import DType
from onnx_vulkan.kernels import Group, family, matrix_units
from onnx_vulkan.kernels.attention_score import Scores
from onnx_vulkan.kernels.contract import contract_step
from onnx_vulkan.kernels.operand import Matrix, accumulator
from onnx_vulkan.kernels.product import Destination, chosen_by_step, store
from onnx_vulkan.kernels.tiles import CORES
from onnx_vulkan.program import attention as composite
from onnx_vulkan.program.builder import Builder
from onnx_vulkan.program.coarse import mark_coarse
from onnx_vulkan.program.ir import Instr, Program, Value

__all__ = ["MATRIX_UNITS", "UNITS", "AttentionStep", "Units", "attention_step", "choose"]

# Microseconds on an H200; what counts is how they compare.
LAUNCH = 4.0
SCORE_MEMORY = 2.9e-6
"""Of the softmax of a score."""
SCORE_PRODUCT = 5.1e-8
"""Of a score and an element of a head."""


@dataclass(frozen=True, slots=True)
class Units:
    """A workgroup of ``threads`` in subgroups of 32 with ``row_units`` times 16 rows each; ``bn`` keys a step.

    ``rows``: scores stay in registers (``attention_rows.glsl``). ``step`` and ``start``: microseconds of a core for a step and
    for all else, heads of 64. ``largest``: the largest head, beyond which others or three kernels are faster.
    """

    threads: int
    row_units: int
    bn: int
    rows: bool = False
    step: float = 1.0
    start: float = 1.0
    largest: int = 128

    @property
    def bm(self) -> int:
        """Rows of a workgroup."""
        return self.threads // 32 * self.row_units * 16

    def shared_memory(self, depth: int, width: int) -> int:
        """Bytes of shared memory for padded head sizes."""
        tiles = self.bn * (depth // 8 + width // 8 + 2)
        if self.rows:
            return 16 * max(tiles, self.threads // 2 * (depth // 8 + 1))
        row = max(self.bn // 4, depth // 8) + 1
        return 16 * (tiles + self.bm * row)

    def padded(self, size: int) -> int:
        """A head size as the kernel takes it."""
        return rounded(size, 16 if self.rows else 32)

    def suits(self, depth: int, width: int, limits: Limits) -> bool:
        """Whether heads are small enough, are loaded in whole turns when padded (where the kernel wants that), and fit."""
        if max(depth, width) > self.largest:
            return False
        depth, width = self.padded(depth), self.padded(width)
        whole = self.rows or all(self.bn * size // 8 % self.threads == 0 for size in (depth, width))
        return whole and self.shared_memory(depth, width) <= limits.max_shared_memory


MATRIX_UNITS = frozenset({"coop_f16", "subgroup_vote", "subgroup_shuffle"})
"""The features that ``attention_units.glsl`` takes, besides subgroups of 32."""
EXTENSIONS = (*matrix_units.EXTENSIONS, "GL_KHR_shader_subgroup_shuffle", "GL_KHR_shader_subgroup_vote")
UNITS = (Units(128, 1, 64, False, 2.6, 3.0, 64), Units(128, 1, 32, False, 1.3, 3.0, 64))
ROWS = (
    Units(128, 1, 32, True, 0.35, 1.5),
    Units(128, 2, 64, True, 1.1, 4.3, 64),
    Units(256, 1, 64, True, 1.2, 4.4),
)


def one_kernel(units: Units, rows: int, keys: int, depth: int, width: int, batch: int) -> float:
    """Microseconds that one kernel takes about on a large GPU."""
    turns = -(-batch * -(-rows // units.bm) // CORES)
    heads = (units.padded(depth) + units.padded(width)) / 128
    return LAUNCH + turns * (-(-keys // units.bn) * units.step + units.start) * heads


def three_kernels(rows: int, keys: int, size: int, batch: int) -> float:
    """The same for two products and the softmax between them, which write and read the scores."""
    scores = batch * rows * keys
    return 3 * LAUNCH + scores * (SCORE_MEMORY + size * SCORE_PRODUCT)


def space(rows: int, keys: int, depth: int, width: int, batch: int, limits: Limits, *, halves: bool) -> list[Units | None]:
    """The legal variants: three kernels (None), and the ways of one kernel."""
    if not depth or not rows or not keys or not width or not batch:
        return [None]
    if not halves or not limits.features >= MATRIX_UNITS or limits.subgroup_size != 32:
        return [None]
    return [None, *(u for u in (ROWS if "coop_rows" in limits.features else UNITS) if u.suits(depth, width, limits))]


def choose(rows: int, keys: int, depth: int, width: int, batch: int, limits: Limits, *, halves: bool) -> Units | None:
    """How ``batch`` attentions of ``rows`` queries over ``keys`` run in one kernel, None for three kernels.

    *halves*: the operands are such that matrix units take them.
    """
    ways = [u for u in space(rows, keys, depth, width, batch, limits, halves=halves) if u is not None]
    if not ways:
        return None
    units = min(ways, key=lambda u: one_kernel(u, rows, keys, depth, width, batch))
    one, three = one_kernel(units, rows, keys, depth, width, batch), three_kernels(rows, keys, depth + width, batch)
    return units if one <= three else None


def rounded(n: int, to: int) -> int:
    """The multiple of *to* that is not below *n*."""
    return -(-n // to) * to


def _weights(empty: str) -> str:
    """The GLSL of how weights are made, and ``inverse``, the factor of sums whose weights add up to ``total``."""
    clean = "#define CLEAN\n" if empty == "clean" else ""
    nothing = "SIZE_T <= 0" if empty == "nan" else "total == T(0)"
    return f"""{clean}#include "attention_weight.glsl"
T inverse(T total) {{ return {nothing} ? T(0) : T(1) / total; }}
"""


class AttentionStep:
    """An attention in one kernel or three, see :func:`choose`."""

    def __init__(self, group: Group):
        self.group, self.instr = group, group.anchor
        self.label = group.label
        self.writes = group.outputs
        out = self.instr.out
        self.rank = out.rank
        q, k, v = (group.view(n) for n in range(3))
        depth, keys = self.instr.inputs[1].shape[-2:]
        batch = out.shape[:-2]
        self.z, self.m, self.n, self.d, self.t = product(batch), out.shape[-2], out.shape[-1], depth, keys

        def axes(strides: Sequence[Extent]) -> tuple[tuple[Extent, Extent], ...]:
            return tuple(zip(batch, strides, strict=False))

        self.weights = _weights(self.instr.attrs["empty"])
        self.q = Matrix(q.leaf, q.offset, axes(q.strides), self.m, q.strides[-2], depth, q.strides[-1])
        self.k = Matrix(k.leaf, k.offset, axes(k.strides), keys, k.strides[-1], depth, k.strides[-2])
        self.v = Matrix(v.leaf, v.offset, axes(v.strides), self.n, v.strides[-1], keys, v.strides[-2])
        self.operands = {"q": self.q, "k": self.k, "v": self.v}
        self.axes: Axes = [("z", range(self.rank - 2)), ("m", (self.rank - 2,)), ("n", (self.rank - 1,))]
        self.scores = Scores(group, self.t, self.axes)

    @cached_property
    def reads(self) -> tuple[Value, ...]:
        """What every choice of kernels reads."""
        params = Params()
        hole = store(self.group, params, Destination(self.axes), None)
        leaves = (m.leaf for m in self.operands.values())
        return tuple(dict.fromkeys((*leaves, *self.scores.reads, *hole[1])))

    # ------------------------------------------------------------------------------------------------ one kernel
    @cached_property
    def in_shared_memory(self) -> Kernel:
        """The kernel of ``attention_units.glsl``."""
        return self._fused("attention_units")

    @cached_property
    def in_registers(self) -> Kernel:
        """The kernel of ``attention_rows.glsl``."""
        return self._fused("attention_rows")

    def _fused(self, template: str) -> Kernel:
        params = Params()
        readers = "".join(m.functions(params, name) for name, m in self.operands.items())
        sums = accumulator(params, DType.F32)
        score = self.scores.function(params)
        if template == "attention_rows":
            score += self.scores.quad_function(params)
        text, more = store(self.group, params, Destination(self.axes), None)
        body = f"""#define SIZE_Z {params.word(self.z)}
#define SIZE_M {params.word(self.m)}
#define SIZE_N {params.word(self.n)}
#define SIZE_D {params.word(self.d)}
#define SIZE_T {params.word(self.t)}
#include "attention_units_variant.glsl"
#define T float16_t
#define T4 f16vec4
{readers}#undef T
#undef T4
{sums}void begin(int z) {{
    q_begin(z);
    k_begin(z);
    v_begin(z);
}}
{score}{self.weights}{text}#include "{template}.glsl"
"""
        reads = tuple(dict.fromkeys((*(m.leaf for m in self.operands.values()), *self.scores.loaded, *more)))
        kernel = Kernel(self.label, params, body, reads, self.writes, chosen_by_step)
        kernel.extensions, kernel.fixed_subgroups = EXTENSIONS, True
        return kernel

    def are_halves(self, at: At, limits: Limits) -> bool:
        """Whether all operands are float16 with neighbours side by side, and masks are none or read fast.

        ``attention_units.glsl`` reads them an element at a time, a row by each invocation: on an H200 that made it take 3.5 times
        as long.
        """
        if self.scores.masks and "coop_rows" not in limits.features:
            return False
        together = at(self.q.k) == at(self.k.k) == at(self.v.row) == 1
        return together and all(m.leaf.dtype is DType.F16 for m in self.operands.values())

    # ------------------------------------------------------------------------------------------------ three kernels
    @cached_property
    def parts(self) -> tuple[Step, ...]:
        """The decomposition: a product to the scores, their softmax, a product."""
        group, instr = self.group, self.instr
        b = Builder()
        b.source = instr.source
        x = composite.scores(b, instr)
        p = composite.probabilities(b, instr, x)
        instrs = mark_coarse(Program([], [p], b.instrs)).instrs
        own = {v: i for i in instrs for v in i.outputs}
        producers = {**group.producers, **{v: i for v, i in own.items() if i.op in INLINE_OPS}}

        def leaf_or(stored: Value | None) -> Callable[[Value], bool]:
            return lambda v: v is stored or (v not in own and group.is_leaf(v))

        first = next(i for i in instrs if i.op == "contract")
        second = Instr("contract", (p, instr.inputs[2]), (instr.out,), {"acc": instr.attrs["acc"]}, instr.source)
        reduces = tuple(i for i in instrs if i.op == "reduce")
        return (
            contract_step(Group(first, (x,), producers, leaf_or(None))),
            row_step(RowGroup(self.label, x.shape, (x.rank - 1,), reduces, (p,), producers, leaf_or(x))),
            contract_step(Group(second, group.outputs, producers, leaf_or(p))),
        )

    def launches(self, at: At, limits: Limits) -> list[Launch]:
        """One launch, or those of three kernels."""
        depth, width = at(self.d), at(self.n)
        sizes, halves = (at(self.m), at(self.t), depth, width, at(self.z)), self.are_halves(at, limits)
        how = pick(
            "attention",
            lambda: self.in_registers if "coop_rows" in limits.features else self.in_shared_memory,
            dict(zip(("rows", "keys", "depth", "width", "batch"), sizes, strict=True)),
            at,
            limits,
            choose(*sizes, limits, halves=halves),
            lambda: space(*sizes, limits, halves=halves),
            lambda u: "three kernels" if u is None else f"units {u.bm}x{u.bn}, {u.threads} threads",
        )
        if how is None:
            return [launch for step in self.parts for launch in step.launches(at, limits)]
        grid = grid_of(ceil_div(self.m, how.bm) * self.z)
        sides = tuple(enumerate(((self.q, 0), (self.k, 0), (self.v, 1))))
        modes = sum(
            (m.mode(at) == along | 2) << n | (m.mode(at) & 1 == along and m.octets(at)) << n + 3 for n, (m, along) in sides
        )
        kernel = self.in_registers if how.rows else self.in_shared_memory
        modes |= (how.rows and self.scores.quads(at)) << 6
        units = (how.threads, how.threads, how.row_units, how.bn, how.padded(depth), how.padded(width), modes)
        return [Launch(kernel, Variant(units, grid))]


def _supports(instr: Instr) -> str | None:
    return None


@family("attention", _supports, views=frozenset({0, 1, 2}), epilogue=True)
def attention_step(group: Group) -> AttentionStep:
    """The step of an ``attention`` composite."""
    return AttentionStep(group)
