"""The kernels of matrix units against the interpreter, with the matrices emulated (``emulated_units``): all lines but the units'.

A variant takes a CPU two seconds to compile: a few run always, all with ONNX_VULKAN_THOROUGH=1.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import onnx_vulkan.kernels.contract
import onnx_vulkan.kernels.conv_transpose  # noqa: F401  (registers the families)
import onnx_vulkan.kernels.product as products
import pytest
from onnx_vulkan.dtypes import DType
from onnx_vulkan.graph import Array
from onnx_vulkan.kernels.matrix_units import (
    HALVES,
    IN_PARTS,
    MOST_SUMS,
    ROUNDED,
    SIGNED,
    UNIT_TILES,
    UNSIGNED,
    Unit,
    UnitChoice,
    UnitTile,
)
from onnx_vulkan.program.builder import Builder
from onnx_vulkan.program.ir import Value
from run_step import check_program

DTYPES = {HALVES: DType.F16, ROUNDED: DType.F32, IN_PARTS: DType.F32, SIGNED: DType.I8, UNSIGNED: DType.U8}
PRECISION = {ROUNDED: "fast", IN_PARTS: "fp32_split"}
SMALLEST = UNIT_TILES[-1]
every_unit = pytest.mark.parametrize("unit", DTYPES, ids=lambda unit: unit.name)
thorough = pytest.mark.skipif(os.environ.get("ONNX_VULKAN_THOROUGH") != "1", reason="ONNX_VULKAN_THOROUGH=1 runs it")
Shape = tuple[int, ...]


def numbers(rng: np.random.Generator, shape: Shape, unit: Unit) -> Array:
    dtype = DTYPES[unit]
    if dtype.is_int:
        limits = np.iinfo(dtype.numpy)
        return rng.integers(limits.min, limits.max + 1, shape).astype(dtype.numpy)
    normal = rng.standard_normal(shape).astype(np.float32)
    return (normal.astype(np.float16) if unit is ROUNDED else normal).astype(dtype.numpy)


def check(
    monkeypatch: pytest.MonkeyPatch,
    unit: Unit,
    builder: Builder,
    y: Value,
    feeds: dict[str, Array],
    depth: int,
    *,
    tile: UnitTile = SMALLEST,
    splits: int = 1,
) -> Array:
    """Run *y*, a product of *depth* along K with what follows it, in a tile."""
    chosen = []

    def choose(*a: Any) -> UnitChoice:
        chosen.append(unit)
        return UnitChoice(tile, splits)

    monkeypatch.setattr(products, "choose_unit_tile", choose)
    monkeypatch.setattr(products, "WORTH_SCALES", 0)
    monkeypatch.setattr("onnx_vulkan.kernels.gemv.PAYS", range(0))
    limits = {"features": frozenset({unit.feature}), "precision": PRECISION.get(unit, "strict")}
    atol, rtol = {DType.F32: (1e-5, 1e-4), DType.F16: (1e-2, 1e-2)}.get(DTYPES[unit], (0.0, 0.0))
    (got,) = check_program(builder, [y], feeds, atol=atol * max(depth, 1) ** 0.5, rtol=rtol, limits=limits)
    assert chosen == [unit]
    return got


def turned(builder: Builder, x: Value) -> Value:
    return builder.transpose(x, [*range(x.rank - 2), x.rank - 1, x.rank - 2])


def types(unit: Unit) -> dict[str, DType]:
    dtype = DTYPES[unit]
    return {"acc": DType.F32, "dtype": dtype} if dtype.is_float else {"acc": DType.I32, "dtype": DType.I32}


def product(
    monkeypatch: pytest.MonkeyPatch, unit: Unit, a: Shape, b: Shape, *, turn: bool = False, bias: bool = False, **how: Any
) -> Array:
    rng, builder = np.random.default_rng(a[-1]), Builder()
    x, w = numbers(rng, a, unit), numbers(rng, b, unit)
    feeds = {"x": x.swapaxes(-1, -2) if turn else x, "w": w.swapaxes(-1, -2) if turn else w}
    feeds = {name: np.ascontiguousarray(v) for name, v in feeds.items()}
    left, right = (builder.input(name, DTYPES[unit], v.shape) for name, v in feeds.items())
    if turn:
        left, right = turned(builder, left), turned(builder, right)
    y = builder.contract(left, right, **types(unit))
    if bias:
        feeds["c"] = numbers(rng, (b[-1],), unit).astype(y.dtype.numpy)
        y = builder.max(builder.add(y, builder.input("c", y.dtype, (b[-1],))), builder.scalar(0, y.dtype))
    return check(monkeypatch, unit, builder, y, feeds, a[-1], **how)


def conv(
    monkeypatch: pytest.MonkeyPatch,
    unit: Unit,
    x: Shape,
    kernel: int,
    channels: int,
    *,
    groups: int = 1,
    stride: int = 1,
    dilation: int = 1,
    pad: int = 0,
    transpose: bool = False,
    **how: Any,
) -> Array:
    """A convolution of a channels-last image, square in everything."""
    rng, builder, c = np.random.default_rng(x[-1]), Builder(), x[-1]
    reach = (kernel - 1) * dilation + 1
    out = [(e - 1) * stride + reach - 2 * pad if transpose else (e + 2 * pad - reach) // stride + 1 for e in x[1:-1]]
    shape = (kernel, kernel, c, channels // groups) if transpose else (kernel, kernel, c // groups, channels)
    (y,) = builder.window(
        "conv_transpose" if transpose else "conv", builder.input("x", DTYPES[unit], x), builder.input("w", DTYPES[unit], shape),
        out_channels=channels, out_spatial=out, kernel=(kernel,) * 2, strides=(stride,) * 2, dilations=(dilation,) * 2,
        pads_begin=(pad,) * 2, pads_end=(pad,) * 2, groups=groups, **types(unit),
    )  # fmt: skip
    feeds = {"x": numbers(rng, x, unit), "w": numbers(rng, shape, unit)}
    return check(monkeypatch, unit, builder, y, feeds, kernel**2 * c // groups, **how)


# ------------------------------------------------------------------------------------------------ in every run
def test_halves_by_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    product(monkeypatch, HALVES, (70, 160), (160, 48), splits=2, bias=True, tile=UNIT_TILES[5])


def test_halves_across_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    product(monkeypatch, HALVES, (37, 69), (69, 43))


def test_parts_off_the_tile(monkeypatch: pytest.MonkeyPatch) -> None:
    product(monkeypatch, IN_PARTS, (37, 301), (301, 43))


def test_bytes_along_k(monkeypatch: pytest.MonkeyPatch) -> None:
    product(monkeypatch, SIGNED, (2, 33, 131), (131, 35), turn=True)


def test_a_convolution_of_rounded_floats(monkeypatch: pytest.MonkeyPatch) -> None:
    conv(monkeypatch, ROUNDED, (1, 8, 9, 6), 3, 21, pad=1)


# ------------------------------------------------------------------------------------------------ all of it
@thorough
@every_unit
@pytest.mark.parametrize("turn", [False, True])
@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize(
    ("a", "b"),
    [((40, 160), (160, 48)), ((37, 301), (301, 43)), ((33, 1), (1, 40)), ((2, 18, 36), (2, 36, 24)), ((20, 0), (0, 30))],
    ids=str,
)
def test_products(monkeypatch: pytest.MonkeyPatch, unit: Unit, a: Shape, b: Shape, turn: bool, splits: int) -> None:
    product(monkeypatch, unit, a, b, turn=turn, splits=splits, bias=True)


@thorough
@pytest.mark.parametrize(
    ("unit", "tile"),
    [(u, t) for u in (HALVES, IN_PARTS, SIGNED) for t in UNIT_TILES if t.wm * t.wn * u.parts <= MOST_SUMS],
    ids=str,
)
def test_tiles(monkeypatch: pytest.MonkeyPatch, unit: Unit, tile: UnitTile) -> None:
    depth = 3 * tile.depth(unit) + 1
    product(monkeypatch, unit, (tile.bm + 5, depth), (depth, 2 * tile.bn + 3), tile=tile)


@thorough
@pytest.mark.parametrize("unit", [HALVES, ROUNDED, SIGNED, UNSIGNED], ids=lambda unit: unit.name)
@pytest.mark.parametrize(
    "case",
    [
        dict(x=(1, 8, 9, 32), kernel=3, channels=24, pad=1),
        dict(x=(1, 15, 14, 3), kernel=7, channels=33, pad=3, stride=2),
        dict(x=(1, 9, 9, 16), kernel=3, channels=20, dilation=2, pad=2),
        dict(x=(1, 6, 6, 32), kernel=3, channels=40, groups=2, pad=1),
        dict(x=(2, 7, 7, 16), kernel=1, channels=40),
        dict(x=(1, 7, 7, 16), kernel=1, channels=18, stride=2),
        dict(x=(1, 5, 5, 0), kernel=3, channels=20),
        dict(x=(1, 5, 6, 32), kernel=3, channels=24, stride=2, pad=1, transpose=True),
        dict(x=(1, 5, 6, 32), kernel=4, channels=36, stride=2, groups=2, transpose=True),
    ],
    ids=str,
)
def test_convolutions(monkeypatch: pytest.MonkeyPatch, unit: Unit, case: dict[str, Any]) -> None:
    for splits in (1, 2):
        conv(monkeypatch, unit, splits=splits, **case)


@thorough
@pytest.mark.parametrize("unit", [HALVES, ROUNDED, IN_PARTS], ids=lambda unit: unit.name)
def test_a_computed_right_hand_side(monkeypatch: pytest.MonkeyPatch, unit: Unit) -> None:
    rng, builder, dtype = np.random.default_rng(0), Builder(), DTYPES[unit]
    x, w, scale = builder.input("x", dtype, (40, 70)), builder.input("w", DType.U8, (70, 50)), builder.input("s", dtype, (50,))
    y = builder.contract(x, builder.mul(builder.cast(w, dtype), scale), **types(unit))
    feeds = {"x": numbers(rng, (40, 70), unit), "w": rng.integers(0, 4, (70, 50)).astype(np.uint8), "s": np.ones(50, dtype.numpy)}
    check(monkeypatch, unit, builder, y, feeds, 70)


@thorough
@pytest.mark.parametrize("unit", [HALVES, ROUNDED, IN_PARTS], ids=lambda unit: unit.name)
def test_nan_and_infinities(monkeypatch: pytest.MonkeyPatch, unit: Unit) -> None:
    rng, builder, dtype = np.random.default_rng(0), Builder(), DTYPES[unit]
    x, w = numbers(rng, (40, 70), unit), numbers(rng, (70, 50), unit)
    x[3, 5], w[1, 9], x[20, :], w[:, 30] = np.nan, np.nan, 0, 0
    if unit is not IN_PARTS:
        x[7, 7], w[2, 40] = np.inf, -np.inf
    y = builder.contract(builder.input("x", dtype, (40, 70)), builder.input("w", dtype, (70, 50)), **types(unit))
    check(monkeypatch, unit, builder, y, {"x": x, "w": w}, 70)


@thorough
@pytest.mark.parametrize(("left", "right"), [(1e30, 1e-25), (1e37, 1e-3), (1e-30, 1e25), (1e-33, 1e37), (1e-20, 1e-18)])
def test_parts_have_the_range_of_float32(monkeypatch: pytest.MonkeyPatch, left: float, right: float) -> None:
    rng, builder = np.random.default_rng(0), Builder()
    x, w = (numbers(rng, s, IN_PARTS) * np.float32(f) for s, f in (((40, 70), left), ((70, 50), right)))
    one = builder.scalar(float(1 / (left * right)), DType.F32)
    y = builder.contract(builder.input("x", DType.F32, (40, 70)), builder.input("w", DType.F32, (70, 50)))
    check(monkeypatch, IN_PARTS, builder, builder.mul(y, one), {"x": x, "w": w}, 70)


@thorough
def test_parts_are_no_worse_than_plain_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    """Against float32 sums of one product after the other; the units' own rounding is not emulated."""
    depth = 512
    got = product(monkeypatch, IN_PARTS, (64, depth), (depth, 64))
    rng = np.random.default_rng(depth)
    x, w = numbers(rng, (64, depth), IN_PARTS), numbers(rng, (depth, 64), IN_PARTS)
    exact, plain = x.astype(np.float64) @ w.astype(np.float64), np.zeros((64, 64), np.float32)
    for k in range(depth):
        plain += x[:, k : k + 1] * w[k : k + 1]
    ours, theirs = np.abs(got - exact), np.abs(plain - exact)
    assert np.mean(ours**2) <= np.mean(theirs**2) and ours.max() <= theirs.max()
