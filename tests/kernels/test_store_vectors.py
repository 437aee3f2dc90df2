"""Sums of products leave in vectors, with what follows them, where rows of every output are whole vectors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_vulkan.kernels.conv  # noqa: F401  (registers the families)
import onnx_vulkan.kernels.product as products
import pytest
from onnx_vulkan.dims import Extent, evaluate, symbol
from onnx_vulkan.dtypes import DType
from onnx_vulkan.kernels import build, tiles
from onnx_vulkan.kernels.matrix_units import HALVES, UNIT_TILES, UnitChoice
from onnx_vulkan.program.builder import Builder
from onnx_vulkan.program.ir import Value
from run_step import check_program, device, group_of

After = Callable[[Builder, Value], Value]


def bias_and_residual(b: Builder, y: Value) -> Value:
    wide = b.cast(y, DType.F32)
    return b.add(b.add(wide, b.input("row", DType.F32, y.shape[-1:])), b.input("all", DType.F32, y.shape))


def columns(b: Builder, y: Value) -> Value:
    """A factor of each row, which is one element a vector."""
    return b.mul(y, b.input("column", y.dtype, (*y.shape[:-1], 1)))


def halves(b: Builder, y: Value) -> Value:
    return b.cast(columns(b, y), DType.F16)


def numbers_in_16_bits(b: Builder, y: Value) -> Value:
    return b.cast(b.add(y, b.input("row", y.dtype, y.shape[-1:])), DType.BF16)


def signs(b: Builder, y: Value) -> Value:
    return b.lt(y, b.input("row", y.dtype, y.shape[-1:]))


def wide_integers(b: Builder, y: Value) -> Value:
    return b.add(b.cast(y, DType.I64), b.input("all", DType.I64, y.shape))


def turned(b: Builder, y: Value) -> Value:
    return b.transpose(y, [*range(y.rank - 2), y.rank - 1, y.rank - 2])


def an_odd_slice(b: Builder, y: Value) -> Value:
    n = y.shape[-1]
    x = b.input("odd", y.dtype, (*y.shape[:-1], n + 3))
    return b.add(y, b.slice(x, [0] * (y.rank - 1) + [3], [*y.shape], [1] * y.rank))


def an_even_slice(b: Builder, y: Value) -> Value:
    n = y.shape[-1]
    x = b.input("even", y.dtype, (*y.shape[:-1], n + 8))
    return b.add(y, b.slice(x, [0] * (y.rank - 1) + [8], [*y.shape], [1] * y.rank))


def turned_residual(b: Builder, y: Value) -> Value:
    """Neighbours of the result that are none in what is added: read one by one."""
    return b.add(y, turned(b, b.input("turned", y.dtype, (*y.shape[:-2], y.shape[-1], y.shape[-2]))))


CASES: list[tuple[After, int, bool]] = [
    (bias_and_residual, 40, True),
    (bias_and_residual, 38, False),
    (halves, 40, True),
    (halves, 41, False),
    (numbers_in_16_bits, 40, True),
    (signs, 24, True),
    (wide_integers, 40, True),
    (turned, 40, False),
    (an_odd_slice, 40, False),
    (an_even_slice, 40, True),
    (turned_residual, 40, True),
    (lambda b, y: y, 1, False),
]


def check(after: After, n: int, dtype: DType) -> None:
    rng, builder = np.random.default_rng(n), Builder()
    x, w = builder.input("x", dtype, (2, 37, 35)), builder.input("w", dtype, (2, 35, n))
    y = builder.contract(x, w)
    outputs = [after(builder, y)] if after is not bias_and_residual else [y, after(builder, y)]
    program = builder.finish(outputs)
    feeds: dict[str, Any] = {}
    for v in program.inputs:
        shape = tuple(map(int, v.shape))  # type: ignore[arg-type]
        feeds[v.name] = (3 * rng.standard_normal(shape)).astype(v.dtype.numpy)
    loose = dtype is DType.F16 or outputs[-1].dtype in (DType.F16, DType.BF16)
    check_program(builder, outputs, feeds, atol=0.1 if loose else 1e-4, rtol=1e-2 if loose else 1e-4)


@pytest.mark.parametrize(("after", "n", "vectors"), CASES)
def test_tiles_of_registers(monkeypatch: pytest.MonkeyPatch, after: After, n: int, vectors: bool) -> None:
    took: list[int] = []
    launch = products.tile_launch

    def noted(kernel: Any, sizes: Any, tile: Any, splits: int, modes: Any) -> Any:
        took.append(modes[0])
        return launch(kernel, sizes, tile, splits, modes)

    monkeypatch.setattr(products, "tile_launch", noted)
    monkeypatch.setattr(products, "choose_tile", lambda *_: tiles.Choice(tiles.TILES[-1], 1))
    monkeypatch.setattr("onnx_vulkan.kernels.contract.is_skinny", lambda *_: False)
    check(after, n, DType.F32)
    assert took == [int(vectors)]


def test_a_run_time_extent_that_may_be_odd() -> None:
    """Its capacity is a multiple of the width, it is not."""
    builder, n = Builder(), symbol("n")
    x, w = builder.input("x", DType.F32, (200, 35)), builder.input("w", DType.F32, (35, n))
    step = build(group_of(builder.finish([builder.contract(x, w)])))

    class Capacity:
        def __call__(self, e: Extent) -> int:
            return evaluate(e, {"n": 400})

        def varies(self, e: Extent) -> bool:
            return not isinstance(e, int)

    (launch,) = step.launches(Capacity(), device().limits)
    assert launch.variant.spec[7] == 0
    (launch,) = step.launches(lambda e: evaluate(e, {"n": 400}), device().limits)
    assert launch.variant.spec[7] == 1


def test_a_group_that_is_no_whole_vectors() -> None:
    """All groups together are."""
    rng, builder = np.random.default_rng(0), Builder()
    x, w = builder.input("x", DType.F32, (1, 6, 6, 32)), builder.input("w", DType.F32, (1, 1, 16, 36))
    (y,) = builder.window(
        "conv", x, w, out_channels=36, out_spatial=(6, 6), kernel=(1, 1), strides=(1, 1), dilations=(1, 1), pads_begin=(0, 0),
        pads_end=(0, 0), groups=2,
    )  # fmt: skip
    feeds = {v.name: rng.standard_normal(tuple(map(int, v.shape))).astype(np.float32) for v in (x, w)}  # type: ignore[arg-type]
    check_program(builder, [y], feeds, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(("after", "n"), [(bias_and_residual, 40), (turned, 40)])
def test_tiles_of_matrix_units(monkeypatch: pytest.MonkeyPatch, after: After, n: int) -> None:
    monkeypatch.setattr(products, "choose_unit_tile", lambda *a: UnitChoice(UNIT_TILES[-1], 1))
    monkeypatch.setattr(products, "unit_of", lambda *a: HALVES)
    check(after, n, DType.F16)
