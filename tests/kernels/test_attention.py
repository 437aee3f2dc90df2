"""Attention against the interpreter: shapes, strides, masks, empty rows, dtypes; when one kernel runs it, and its text."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx_vulkan.kernels.attention as family
import pytest
from onnx_vulkan.device.compile import needed_features, spirv
from onnx_vulkan.dtypes import DType
from onnx_vulkan.graph import Array
from onnx_vulkan.program.attention import SCORE, attention
from onnx_vulkan.program.builder import Builder
from onnx_vulkan.program.ir import Value
from run_step import check_program, group_of

TOLERANCE = {DType.F32: (1e-5, 1e-4), DType.F16: (1e-2, 1e-2), DType.BF16: (2e-2, 2e-2)}
THOROUGH = os.environ.get("ONNX_VULKAN_THOROUGH") == "1"
Shape = tuple[int, ...]


def random(shape: Shape, dtype: DType, seed: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32).astype(dtype.numpy)


def check(
    q: Shape,
    k: Shape,
    v: Shape,
    dtype: DType = DType.F32,
    masks: Sequence[Array] = (),
    score: Sequence[tuple[str, tuple[int, ...]]] = (),
    empty: str = "nan",
    after: Callable[[Builder, Value], Value] = lambda b, x: x,
    change: Callable[[dict[str, Array]], None] = lambda feeds: None,
    **options: Any,
) -> Array:
    """An attention of ``[*b, S, D]``, ``[*b, T, D]`` and ``[*b, T, E]`` on the device and in the interpreter."""
    b = Builder()
    feeds = {name: random(shape, dtype, n) for n, (name, shape) in enumerate({"q": q, "k": k, "v": v}.items())}
    x, y, z = (b.input(name, dtype, array.shape) for name, array in feeds.items())
    others = []
    for n, mask in enumerate(masks):
        others.append(b.input(f"mask{n}", DType.of(mask.dtype), mask.shape))
        feeds[f"mask{n}"] = mask
    change(feeds)
    y = b.transpose(y, (*range(y.rank - 2), y.rank - 1, y.rank - 2))
    out = after(b, attention(b, x, y, z, others, score, empty))
    atol, rtol = TOLERANCE[dtype]
    return check_program(b, [out], feeds, atol=atol, rtol=rtol, **options)[0]


SCALE = np.float32(0.125)


@pytest.mark.parametrize(
    ("q", "k", "v"),
    [
        ((2, 3, 17, 20), (2, 3, 45, 20), (2, 3, 45, 28)),
        ((0, 4, 8), (0, 4, 8), (0, 4, 8)),
        ((2, 0, 8), (2, 4, 8), (2, 4, 8)),
        ((2, 5, 8), (2, 0, 8), (2, 0, 8)),
        ((2, 5, 8), (2, 4, 8), (2, 4, 0)),
        *(
            [
                ((16, 32), (32, 32), (32, 32)),
                ((3, 5, 7), (3, 70, 7), (3, 70, 5)),
                ((2, 33, 80), (2, 33, 80), (2, 33, 80)),
                ((1, 1), (1, 1), (1, 1)),
                ((2, 1, 64), (2, 100, 64), (2, 100, 64)),
                ((2, 40, 256), (2, 70, 256), (2, 70, 256)),
            ]
            if THOROUGH
            else []
        ),
    ],
    ids=str,
)
def test_shapes(q: Shape, k: Shape, v: Shape) -> None:
    check(q, k, v, masks=[SCALE], score=[("mul", (SCORE, 3))])


@pytest.mark.parametrize("dtype", [DType.F16, DType.BF16] if THOROUGH else [DType.F16])
def test_half_floats_epilogue_and_record(dtype: DType) -> None:
    def after(b: Builder, x: Value) -> Value:
        return b.transpose(b.map("mul", x, b.scalar(3, x.dtype)), (0, 2, 1, 3))

    check((2, 3, 20, 40), (2, 3, 50, 40), (2, 3, 50, 24), dtype, after=after, in_record=True)


LOW = np.float32(-np.inf)


@pytest.mark.parametrize("empty", ["nan", "zero", "clean"])
def test_masks_and_rows_that_see_nothing(empty: str) -> None:
    bias = random((3, 1, 70), DType.F32, 7)
    mask = np.tril(np.ones((20, 70), bool), 50)
    mask[3], mask[5, :40], mask[6, 40:] = False, False, False
    steps = [("mul", (SCORE, 3)), ("add", (4, SCORE)), ("tanh", (SCORE,)), ("select", (5, SCORE, 6))]

    def change(feeds: dict[str, Array]) -> None:
        feeds["q"][1, 2, 8] = np.nan
        feeds["v"][0, 1, 3, 2], feeds["v"][1, 0, 4, 1] = np.nan, np.inf

    y = check(
        (2, 3, 20, 16), (2, 3, 70, 16), (2, 3, 70, 16), masks=[SCALE, bias, mask, LOW], score=steps, empty=empty, change=change
    )
    assert np.isnan(y[1, 1, 3]).all() == (empty == "nan")
    assert np.isnan(y[1, 2, 8]).all() == (empty != "clean")


@pytest.mark.skipif(not THOROUGH, reason="takes minutes: ONNX_VULKAN_THOROUGH=1 runs it")
def test_large_and_infinite_scores() -> None:
    def change(feeds: dict[str, Array]) -> None:
        for name in ("q", "k"):  # sums of whole numbers are exact
            feeds[name] = np.rint(feeds[name] * 20)
        feeds["q"][1, 9, 0] = np.inf

    check((2, 20, 16), (2, 100, 16), (2, 100, 16), change=change)


def test_heads_that_share_keys() -> None:
    b = Builder()
    x, y, z = (b.input(n, DType.F32, s) for n, s in {"q": (2, 1, 6, 8), "k": (2, 300, 2, 8), "v": (2, 2, 300, 8)}.items())
    q = b.reshape(b.transpose(x, (0, 2, 1, 3)), (2, 2, 3, 1, 8))
    k = b.broadcast(b.reshape(b.transpose(y, (0, 2, 3, 1)), (2, 2, 1, 8, 300)), (2, 2, 3, 8, 300))
    v = b.broadcast(b.reshape(z, (2, 2, 1, 300, 8)), (2, 2, 3, 300, 8))
    bias = b.input("bias", DType.F32, (2, 2, 3, 1, 300))
    out = b.map("mul", attention(b, q, k, v, [bias], [("add", (SCORE, 3))]), b.scalar(2, DType.F32))
    feeds = {v.name: random(v.shape, DType.F32, n) for n, v in enumerate(b.inputs)}  # type: ignore[arg-type]
    check_program(b, [out], feeds, atol=1e-5, rtol=1e-4)


def unit_limits(**changed: Any) -> Any:
    """The limits of a device with matrix units."""
    facts = {"subgroup_size": 32, "max_workgroup_invocations": 1024, "max_shared_memory": 48 << 10}
    return SimpleNamespace(**{**facts, "features": family.MATRIX_UNITS, "precision": "strict", **changed})


@pytest.mark.parametrize(("empty", "rows"), [("nan", 70), ("clean", 70), ("nan", 1)])
def test_the_text_for_matrix_units_compiles(empty: str, rows: int) -> None:
    b = Builder()
    q, k, v = (b.input(n, DType.F16, s) for n, s in {"q": (2, rows, 40), "k": (2, 40, 90), "v": (2, 90, 24)}.items())
    others = [b.input("bias", DType.F32, (rows, 90)), b.input("seen", DType.BOOL, (rows, 90)), b.scalar(-np.inf, DType.F32)]
    steps = [("add", (SCORE, 3)), ("select", (4, SCORE, 5))]
    y = attention(b, q, k, v, others, steps, empty, causal=3 if rows == 1 else None)
    step = family.attention_step(group_of(b.finish([y])))
    for kernel in (step.in_shared_memory, step.in_registers):
        assert kernel.fixed_subgroups
        for in_record in (False, True):
            assert "coop_matrix" in needed_features(spirv(kernel.source(in_record=in_record)))


def test_matrix_units_are_chosen_where_they_fit_and_pay() -> None:
    def chosen(rows: int, keys: int, head: int, batch: int, halves: bool = True, **changed: Any) -> family.Units | None:
        return family.choose(rows, keys, head, head, batch, unit_limits(**changed), halves=halves)

    for head in (16, 40, 64):
        units = chosen(2048, 2048, head, 16)
        assert units is not None
        assert units.suits(head, head, unit_limits())
    assert chosen(2048, 2048, 64, 16, max_shared_memory=32 << 10) is not None
    assert chosen(197, 197, 64, 96) is not None
    lacking: list[dict[str, Any]] = [
        {"subgroup_size": 64},
        {"features": frozenset()},
        {"max_shared_memory": 8 << 10},
        {"halves": False},
    ]
    for changed in lacking:
        assert chosen(2048, 2048, 64, 16, **changed) is None
    assert chosen(2048, 2048, 128, 16) is None
    assert chosen(1, 4096, 64, 32) is None, "few queries"
    known = {"features": family.MATRIX_UNITS | {"coop_rows"}}
    for head in (64, 72, 128):
        units = chosen(2048, 2048, head, 16, **known)
        assert units is not None and units.rows
    assert chosen(197, 197, 64, 12, **known) is not None
    assert chosen(2048, 2048, 136, 16, **known) is None
    assert chosen(1, 4096, 64, 32, **known) is None, "few queries"
    measured = [(2048, 64, 16, 128), (4096, 64, 12, 128), (197, 64, 96, 64), (196, 64, 300, 64), (1500, 64, 12, 64)]
    for length, head, batch, rows in measured:  # the rows of the fastest workgroup on an H200
        units = chosen(length, length, head, batch, **known)
        assert units is not None and units.bm == rows, (length, head, batch)
    units = chosen(2048, 2048, 128, 16, **known)
    assert units is not None and units.threads == 256
