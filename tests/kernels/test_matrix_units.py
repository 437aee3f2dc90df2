"""Products on matrix units, as far as it goes without them; ``test_matrix_units_emulated`` and ``_run`` run them."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx_vulkan.kernels.product as products
import pytest
from onnx_vulkan.codegen.kernel import At, Launch, Limits, Step
from onnx_vulkan.device.compile import needed_features, spirv
from onnx_vulkan.dims import Extent, evaluate, symbol
from onnx_vulkan.dtypes import DType
from onnx_vulkan.graph import Array
from onnx_vulkan.kernels import build, families
from onnx_vulkan.kernels.contract import ContractStep
from onnx_vulkan.kernels.matrix_units import (
    HALVES,
    IN_PARTS,
    MOST_SUMS,
    ROUNDED,
    SIGNED,
    UNIT_TILES,
    UNITS,
    UNSIGNED,
    Unit,
    UnitChoice,
    UnitTile,
    choose_unit_tile,
    unit_of,
)
from onnx_vulkan.kernels.prepack import prepack
from onnx_vulkan.program.builder import Builder
from onnx_vulkan.program.interp import interpret
from onnx_vulkan.program.ir import Instr, Program, Value
from run_step import group_of, run_step

UNIT_FEATURES = frozenset({"coop_f16", "coop_s8", "coop_u8"})
OPERANDS = {HALVES: DType.F16, ROUNDED: DType.F32, IN_PARTS: DType.F32, SIGNED: DType.I8, UNSIGNED: DType.U8}
PRECISION = {ROUNDED: "fast", IN_PARTS: "fp32_split"}
every_unit = pytest.mark.parametrize("unit", UNITS.values(), ids=lambda unit: unit.name)


def limits(precision: str = "strict", **changed: Any) -> Any:
    """The limits of a device with matrix units of every kind."""
    facts = {"subgroup_size": 32, "max_workgroup_invocations": 1024, "max_shared_memory": 48 << 10, "features": UNIT_FEATURES}
    return SimpleNamespace(**{**facts, "precision": precision, **changed})


def limits_for(unit: Unit, **changed: Any) -> Any:
    """Limits under which products of the unit's operands run on it."""
    return limits(PRECISION.get(unit, "strict"), **changed)


def sums_of(dtype: DType) -> DType:
    return DType.F32 if dtype.is_float else DType.I32


def contract(builder: Builder, x: Value, w: Value) -> Value:
    acc = sums_of(x.dtype)
    return builder.contract(x, w, dtype=acc if x.dtype.is_int else x.dtype, acc=acc)


def anchor(program: Program) -> Instr:
    (found,) = [i for i in program.instrs if i.op in ("contract", "window")]
    return found


def small(rng: np.random.Generator, shape: tuple[int, ...], dtype: DType) -> Array:
    """Small integers, whose products every precision computes exactly."""
    return rng.integers(-3 if dtype.is_signed else 0, 4, shape).astype(dtype.numpy)


# ------------------------------------------------------------------------------------------------ prepacked weights
def same_meaning(program: Program, packed: Program, feeds: dict[str, Array]) -> None:
    for before, after in zip(interpret(program, feeds), interpret(packed, feeds), strict=True):
        assert before.dtype == after.dtype
        np.testing.assert_array_equal(before, after)


def conv(builder: Builder, x: Value, w: Value, *, kind: str = "conv", groups: int = 1, out_channels: int | None = None) -> Value:
    """A convolution of 3 x 3 with a border, or a transposed one of stride 2."""
    stride = 2 if kind == "conv_transpose" else 1
    spatial = [e * stride for e in x.shape[1:-1]]
    (y,) = builder.window(
        kind, x, w, out_channels=out_channels or w.shape[-1], out_spatial=spatial, kernel=(3, 3), strides=(stride, stride),
        dilations=(1, 1), pads_begin=(1, 1), pads_end=(1, 1), groups=groups, acc=sums_of(x.dtype),
        dtype=sums_of(x.dtype) if x.dtype.is_int else x.dtype,
    )  # fmt: skip
    return y


@every_unit
@pytest.mark.parametrize("window", [False, True])
def test_prepacking_keeps_the_meaning(unit: Unit, window: bool) -> None:
    rng, builder, dtype = np.random.default_rng(0), Builder(), OPERANDS[unit]
    x = builder.input("x", dtype, (1, 5, 4, 6) if window else (5, 6))
    w = builder.const(small(rng, (3, 3, 6, 7) if window else (6, 7), dtype), "w")
    program = builder.finish([conv(builder, x, w) if window else contract(builder, x, w)])
    packed = prepack(program, {}, limits_for(unit))
    same_meaning(program, packed, {"x": small(rng, tuple(map(int, x.shape)), dtype)})  # type: ignore[arg-type]
    weights = anchor(packed).inputs[1]
    if unit is ROUNDED:
        assert weights.dtype is DType.F16
    elif unit in (SIGNED, UNSIGNED) and not window:
        turned = packed.producers()[weights]
        assert turned.op == "transpose" and turned.inputs[0].shape == (7, 6)
    else:
        assert weights is w


def test_weights_are_rounded() -> None:
    """To the nearest, ties to even, and to an infinity beyond the range of fp16."""
    w = np.array([[1 + 2**-11, 1 + 3 * 2**-11, 65519.0, 65520.0, -1e30, 2**-25, np.nan]], np.float32)
    builder = Builder()
    x = builder.input("x", DType.F32, (1, 1))
    program = builder.finish([contract(builder, x, builder.const(w, "w"))])
    packed = prepack(program, {}, limits("fast"))
    (got,) = interpret(packed, {"x": np.ones((1, 1), np.float32)})
    np.testing.assert_array_equal(got, [[1, 1 + 2**-9, 65504, np.inf, -np.inf, 0, np.nan]])


@pytest.mark.parametrize("dtype", [DType.F32, DType.U8])
def test_shared_weights_are_made_once(dtype: DType) -> None:
    rng, known = np.random.default_rng(0), dict[str, Value]()

    def made() -> list[Value]:
        builder = Builder()
        x, w = builder.input("x", dtype, (5, 6)), builder.const(small(np.random.default_rng(1), (6, 7), dtype), "w")
        program = builder.finish([contract(builder, x, w), contract(builder, x, w)])
        packed = prepack(program, known, limits("fast"))
        same_meaning(program, packed, {"x": small(rng, (5, 6), dtype)})
        return [v for i in packed.instrs for v in i.inputs if v.is_const]

    first, second = set(made()), set(made())
    assert len(first) == len(known) == 1 and first == second, "and a second structure of the model finds them"


@pytest.mark.parametrize(
    ("dtype", "given"),
    [
        (DType.F32, limits()),
        (DType.F32, limits("fp32_split")),
        (DType.F32, limits("fast", features=frozenset())),
        (DType.I8, limits(features=frozenset({"coop_f16", "coop_u8"}))),
        (DType.F64, limits("fast")),
    ],
)
def test_weights_that_stay(dtype: DType, given: Any) -> None:
    builder = Builder()
    x, w = builder.input("x", dtype, (5, 6)), builder.const(np.ones((6, 7), dtype.numpy), "w")
    acc = dtype if dtype is DType.F64 else sums_of(dtype)
    y = builder.contract(x, w, dtype=acc, acc=acc)
    assert anchor(prepack(builder.finish([y]), {}, given)).inputs[1] is w


def test_operands_that_are_no_weights_stay() -> None:
    """A product of two inputs, a batch of matrices of bytes, and weights that are packed already."""
    builder = Builder()
    x, y = builder.input("x", DType.F32, (5, 6)), builder.input("y", DType.F32, (6, 7))
    bytes_, matrices = builder.input("b", DType.I8, (2, 5, 6)), builder.const(np.ones((2, 6, 7), np.int8), "matrices")
    packed = builder.const(np.ones((6, 7), np.float32), "packed")
    packed.packed = True
    program = builder.finish([contract(builder, x, y), contract(builder, bytes_, matrices), contract(builder, x, packed)])
    after = prepack(program, {}, limits("fast"))
    assert [i.inputs for i in after.instrs] == [i.inputs for i in program.instrs]


# ------------------------------------------------------------------------------------------------ scales of rows
class Scales:
    """The launches of a product that find the scales of its operands' rows, as a step of their own."""

    def __init__(self, step: ContractStep):
        self.step, self.label = step, "scales"
        self.reads = (*step.a.leaves, *step.b.leaves)
        self.writes = step.scales.values

    def launches(self, at: At, limits: Limits) -> list[Launch]:
        return self.step.scales.launches(at)


def power_of_two(rows: Array) -> Array:
    """What brings the largest finite element of each row to [2^14, 2^15); at most 2^126."""
    top = np.where(np.isfinite(rows), np.abs(rows), 0).max(-1, initial=0).astype(np.float64)
    return np.where(top > 0, np.exp2(np.minimum(15.0 - np.frexp(top)[1], 126)), 0)


def odd_rows(a: Array) -> Array:
    """Rows of zeros, of subnormals, with NaN and infinities, of the largest and the smallest numbers."""
    a *= np.exp2(np.linspace(-100, 100, a.shape[-2], dtype=np.float32))[:, None]
    a[..., 0, :] = 0
    a[..., 1, :] = np.float32(1e-42)
    a[..., 2, 1::2], a[..., 2, 0] = np.nan, np.inf
    a[..., 3, :] = np.inf
    a[..., 4, -1] = np.finfo(np.float32).max
    a[..., 5, :] = np.finfo(np.float32).tiny
    return a


@pytest.mark.parametrize("batch", [(), (3,)])
@pytest.mark.parametrize(("m", "k", "n"), [(13, 64, 32), (33, 21, 45), (6, 1, 7), (40, 700, 36), (8, 0, 8)])
@pytest.mark.parametrize("turned", [False, True])
def test_scales(batch: tuple[int, ...], m: int, k: int, n: int, turned: bool) -> None:
    rng, builder = np.random.default_rng(m), Builder()
    a, b = (rng.standard_normal((*batch, rows, k)).astype(np.float32) for rows in (m, n))
    if k:
        a, b = odd_rows(a), odd_rows(b)
    shapes = [(*batch, k, m), (*batch, n, k)] if turned else [(*batch, m, k), (*batch, k, n)]
    x, y = (builder.input(name, DType.F32, shape) for name, shape in zip("xy", shapes, strict=True))
    swap = [*range(len(batch)), len(batch) + 1, len(batch)]
    left, right = (builder.transpose(v, swap) if turned else v for v in (x, y))
    step = build(group_of(builder.finish([builder.contract(left, right)])))
    assert isinstance(step, ContractStep)
    feeds = {x: np.swapaxes(a, -1, -2) if turned else a, y: b if turned else np.swapaxes(b, -1, -2)}
    got = run_step(Scales(step), {v: np.ascontiguousarray(data) for v, data in feeds.items()})
    for scale, rows in zip(step.scales.values, (a, b), strict=True):
        mantissa, _ = np.frexp(got[scale])
        assert (mantissa == 0.5).all(), "every scale is a power of two, that of a row of zeros too"
        if k:  # else both sides may be one row repeated
            want = power_of_two(rows).ravel()
            sure = want > 0
            np.testing.assert_array_equal(got[scale][sure], want[sure])


def test_scales_where_a_side_is_empty() -> None:
    builder = Builder()
    x, y = builder.input("x", DType.F32, (0, 8)), builder.input("y", DType.F32, (8, 5))
    step = build(group_of(builder.finish([builder.contract(x, y)])))
    assert isinstance(step, ContractStep)
    got = run_step(Scales(step), {x: np.ones((0, 8), np.float32), y: np.ones((8, 5), np.float32)})
    assert [got[v].tolist() for v in step.scales.values] == [[], [2.0**14] * 5]


# ------------------------------------------------------------------------------------------------ texts
def turned(builder: Builder, x: Value) -> Value:
    return builder.transpose(x, [*range(x.rank - 2), x.rank - 1, x.rank - 2])


def plain(b: Builder, t: DType) -> Value:
    return contract(b, b.input("x", t, (640, 1024)), b.input("w", t, (1024, 640)))


def both_turned(b: Builder, t: DType) -> Value:
    return contract(b, turned(b, b.input("x", t, (1024, 640))), turned(b, b.input("w", t, (640, 1024))))


def batched(b: Builder, t: DType) -> Value:
    return contract(b, b.input("x", t, (2, 3, 401, 777)), turned(b, b.input("w", t, (3, 403, 777))))


def run_time(b: Builder, t: DType) -> Value:
    return contract(b, b.input("x", t, (symbol("m"), 1024)), b.input("w", t, (1024, 640)))


def with_epilogue(b: Builder, t: DType) -> Value:
    y = plain(b, t)
    return b.max(b.add(y, b.input("bias", y.dtype, (640,))), b.scalar(0, y.dtype))


def computed(b: Builder, t: DType) -> Value:
    """A right-hand side that is made where it is read."""
    w = b.mul(b.cast(b.input("w", DType.U8, (1024, 640)), t), b.input("scale", t, (640,)))
    return contract(b, b.input("x", t, (640, 1024)), w)


def image(b: Builder, t: DType) -> Value:
    return conv(b, b.input("x", t, (2, 40, 40, 48)), b.input("w", t, (3, 3, 48, 80)))


def odd_image(b: Builder, t: DType) -> Value:
    return conv(b, b.input("x", t, (2, 40, 40, 3)), b.input("w", t, (3, 3, 3, 33)))


def grouped_image(b: Builder, t: DType) -> Value:
    return conv(b, b.input("x", t, (2, 40, 40, 64)), b.input("w", t, (3, 3, 32, 80)), groups=2)


def upsampled(b: Builder, t: DType) -> Value:
    return conv(b, b.input("x", t, (2, 40, 40, 48)), b.input("w", t, (3, 3, 48, 80)), kind="conv_transpose")


def grouped_upsampled(b: Builder, t: DType) -> Value:
    x, w = b.input("x", t, (2, 40, 40, 64)), b.input("w", t, (3, 3, 64, 40))
    return conv(b, x, w, kind="conv_transpose", groups=2, out_channels=80)


FORMS = (
    plain,
    both_turned,
    batched,
    run_time,
    with_epilogue,
    computed,
    image,
    odd_image,
    grouped_image,
    upsampled,
    grouped_upsampled,
)


def launches(step: Step, given: Any) -> list[Launch]:
    return step.launches(lambda e: evaluate(e, {"m": 640}), given)


@every_unit
@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
def test_texts_compile(unit: Unit, form: Callable[[Builder, DType], Value], monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole and with K split, and each needs what a device with such units has."""
    families()
    builder, dtype = Builder(), OPERANDS[unit]
    step = build(group_of(builder.finish([form(builder, dtype)])))
    given = limits_for(unit)
    if unit is IN_PARTS and not isinstance(step, ContractStep):
        assert len(launches(step, given)) == 1, "convolutions in parts are strict"
        return
    monkeypatch.setattr(products, "WORTH_SCALES", 0)
    features = {"coop_matrix", "subgroup_basic"} | ({"f16"} if unit.feature == "coop_f16" else {"i8"})
    types = {"f16", "storage16", "i8", "storage8"}
    for splits in (1, 2):
        monkeypatch.setattr(products, "choose_unit_tile", lambda *a, n=splits: UnitChoice(UNIT_TILES[0], n))
        made = launches(step, given)
        assert len(made) == splits + (2 if unit is IN_PARTS else 0)
        for launch in made:
            is_product = launch.kernel.fixed_subgroups
            for in_record in (False, True):
                needed = needed_features(spirv(launch.kernel.source(in_record=in_record)))
                assert needed <= features | types if is_product else needed <= types
                assert features <= needed or not is_product


# ------------------------------------------------------------------------------------------------ choices
SHAPES = [
    (4096, 4096, 4096, 1),
    (1, 1, 1, 1),
    (33, 20, 70, 5),
    (64, 64, 100000, 1),
    (0, 20, 5, 1),
    (20, 20, 0, 1),
    (197, 768, 768, 32),
]


@every_unit
@pytest.mark.parametrize("subgroup", [8, 16, 32, 64])
@pytest.mark.parametrize(("invocations", "shared"), [(1024, 48 << 10), (256, 32 << 10), (128, 16 << 10), (1024, 100)])
def test_choices_respect_the_limits(unit: Unit, subgroup: int, invocations: int, shared: int) -> None:
    given = limits(subgroup_size=subgroup, max_workgroup_invocations=invocations, max_shared_memory=shared)

    def fits(tile: UnitTile) -> bool:
        threads, step = tile.subgroups * subgroup, tile.depth(unit)
        # what gemm_matrix.glsl divides: a thread's chunks of either operand, units of a subgroup, units of a step
        whole = tile.bm * step // unit.chunk % threads == tile.bn * step // unit.chunk % threads == 0
        whole &= tile.wm % 16 == tile.wn % 16 == tile.bm % tile.wm == tile.bn % tile.wn == step % unit.depth == 0
        return whole and threads <= invocations and tile.shared_memory(unit) <= shared

    for rows, columns, depth, batch in SHAPES:
        choice = choose_unit_tile(rows, columns, depth, batch, unit, given)
        if choice is None:
            assert not [t for t in UNIT_TILES if fits(t) and t.wm * t.wn * unit.parts <= MOST_SUMS]
            continue
        assert fits(choice.tile)
        assert choice.splits * rows * columns * batch <= products.SCRATCH_ELEMENTS or choice.splits == 1


def test_large_products_take_large_tiles_and_deep_ones_split() -> None:
    assert choose_unit_tile(4096, 4096, 4096, 1, HALVES, limits()) == UnitChoice(UNIT_TILES[0], 1)
    deep = choose_unit_tile(64, 64, 100000, 1, HALVES, limits())
    assert deep is not None and deep.splits > 1


@pytest.mark.parametrize(
    ("dtypes", "acc", "precision", "unit"),
    [
        ((DType.F16, DType.F16), DType.F32, "strict", HALVES),
        ((DType.F16, DType.F16), DType.F32, "fast", HALVES),
        ((DType.F32, DType.F32), DType.F32, "strict", None),
        ((DType.F32, DType.F32), DType.F32, "fast", ROUNDED),
        ((DType.F32, DType.F16), DType.F32, "fast", ROUNDED),
        ((DType.F32, DType.F16), DType.F32, "strict", None),
        ((DType.F32, DType.F32), DType.F32, "fp32_split", IN_PARTS),
        ((DType.F64, DType.F64), DType.F64, "fast", None),
        ((DType.BF16, DType.BF16), DType.F32, "fast", None),
        ((DType.I8, DType.I8), DType.I32, "strict", SIGNED),
        ((DType.U8, DType.U8), DType.I32, "strict", UNSIGNED),
        ((DType.U8, DType.I8), DType.I32, "fast", None),
        ((DType.I8, DType.I8), DType.I8, "strict", None),
        ((DType.I32, DType.I32), DType.I32, "fast", None),
    ],
    ids=str,
)
def test_units_of_operands(dtypes: tuple[DType, DType], acc: DType, precision: str, unit: Unit | None) -> None:
    builder = Builder()
    x, w = (builder.input(name, t, (32, 32)) for name, t in zip("xw", dtypes, strict=True))
    instr = anchor(builder.finish([builder.contract(x, w, dtype=acc, acc=acc)]))
    assert unit_of(instr, limits(precision)) is unit
    assert unit_of(instr, limits(precision, features=frozenset())) is None


def test_convolutions_are_never_in_parts() -> None:
    builder = Builder()
    instr = anchor(builder.finish([image(builder, DType.F32)]))
    assert unit_of(instr, limits("fp32_split")) is None and unit_of(instr, limits("fast")) is ROUNDED


def test_small_products_in_parts_find_no_scales() -> None:
    """Those launches would take longer than the product; a device without units has none either."""

    def kinds(size: Extent, given: Any) -> list[str]:
        builder = Builder()
        x, w = builder.input("x", DType.F32, (size, 512)), builder.input("w", DType.F32, (512, 512))
        step = build(group_of(builder.finish([builder.contract(x, w)])))
        return [launch.kernel.label for launch in launches(step, given)]

    assert len([k for k in kinds(1024, limits("fp32_split")) if "scales" in k]) == 2
    assert not [k for k in kinds(500, limits("fp32_split")) if "scales" in k]
    assert not [k for k in kinds(1024, limits("fp32_split", features=frozenset())) if "scales" in k]
    assert not [k for k in kinds(1024, limits("strict")) if "scales" in k]
