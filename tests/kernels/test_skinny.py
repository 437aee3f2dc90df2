"""Skinny products: workgroups against the limits of devices, loads that run ahead, and matrix units (emulated)."""

from __future__ import annotations

import itertools
import os
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import run_step
from onnx_vulkan.dims import evaluate
from onnx_vulkan.dtypes import DType
from onnx_vulkan.graph import Array
from onnx_vulkan.kernels import build, families, gemv
from onnx_vulkan.kernels.contract import ContractStep
from onnx_vulkan.kernels.gemv import Skinny, UnitSpread
from onnx_vulkan.program.builder import Builder

families()  # registers them
thorough = pytest.mark.skipif(os.environ.get("ONNX_VULKAN_THOROUGH") != "1", reason="ONNX_VULKAN_THOROUGH=1 runs it")


def memory(spec: tuple[int, ...]) -> int:
    """The shared memory of a variant of gemm_skinny.glsl with fp32 sums, in bytes."""
    threads, _, rows, lanes, _, mode, _, unrolled, staged, *_ = spec
    width, quads = (2, 1) if mode & 5 == 5 else (1, 2) if mode & 4 else (1, 1)
    stage = min(rows * width, 4)
    totals = stage * threads // lanes * 4
    few = 2 * rows * quads * (lanes * unrolled + (quads > 1)) if staged else 0
    return max(few, threads * stage) * 16 + totals * max(1, min(threads // totals, 8, lanes)) * 4


@pytest.mark.parametrize("dtype", [DType.F32, DType.F16])
@pytest.mark.parametrize("turned", [False, True])
def test_workgroups_fit(dtype: DType, turned: bool) -> None:
    """Within any device's limits, with threads in whole columns of lanes."""
    for m, k, n in itertools.product((1, 2, 4, 7, 16), (1, 31, 64, 768, 4096, 4097), (16, 64, 1000, 4096)):
        builder = Builder()
        a, b = builder.input("a", dtype, (m, k)), builder.input("b", dtype, (n, k) if turned else (k, n))
        step = build(run_step.group_of(builder.finish([builder.contract(a, builder.transpose(b, (1, 0)) if turned else b)])))
        assert isinstance(step, ContractStep)
        for invocations, shared, subgroup in itertools.product((128, 256, 1024), (16 << 10, 32 << 10, 48 << 10), (8, 32, 64)):
            limits: Any = SimpleNamespace(
                subgroup_size=subgroup, max_workgroup_invocations=invocations, max_shared_memory=shared, features=frozenset()
            )
            variant, _ = step.skinny["few rows"].variant(lambda e: evaluate(e, {}), limits, 4)
            threads, _, _, lanes, *_ = variant.spec
            assert threads <= invocations and threads % lanes == 0 and memory(variant.spec) <= shared, (m, k, n, limits)


def numbers(rng: np.random.Generator, dtype: DType, shape: tuple[int, ...]) -> Array:
    if dtype.is_int:
        return rng.integers(-128 if dtype is DType.I8 else 0, 128, shape).astype(dtype.numpy)
    return rng.standard_normal(shape).astype(np.float32).astype(dtype.numpy)


def product(
    m: int, k: int, n: int, dtype: DType, features: frozenset[str], *, turned: bool = False, columns: bool = False
) -> None:
    """An [m, k] by [k, n], of which *turned* ones lie the other way round; with *columns* n is what is few."""
    rng, b = np.random.default_rng(k), Builder()
    few, wide = numbers(rng, dtype, (k, m) if columns else (m, k)), numbers(rng, dtype, (n, k) if turned else (k, n))
    x, w = b.input("few", dtype, few.shape), b.input("wide", dtype, wide.shape)
    types = {"dtype": DType.I32, "acc": DType.I32} if dtype.is_int else {"acc": DType.F32, "dtype": dtype}
    if columns:
        y = b.contract(w if turned else b.transpose(w, (1, 0)), x, **types)
    else:
        y = b.contract(x, b.transpose(w, (1, 0)) if turned else w, **types)
    if not dtype.is_int:
        y = b.max(y, b.scalar(-1, dtype))
    atol, rtol = {DType.F32: (1e-3, 1e-4), DType.F16: (0.05, 1e-2)}.get(dtype, (0.0, 0.0))
    # emulated units work with the subgroups that the device has
    limits = {"features": features, "subgroup_size": run_step.device().limits.subgroup_size if features else 32}
    run_step.check_program(b, [y], {"few": few, "wide": wide}, atol=atol, rtol=rtol, limits=limits)


UNITS = {DType.F16: frozenset({"coop_f16"}), DType.I8: frozenset({"coop_s8"}), DType.U8: frozenset({"coop_u8"})}


def on_units(monkeypatch: pytest.MonkeyPatch, spread: UnitSpread, *case: Any, **how: Any) -> None:
    """A product on matrix units in a given way, which has to be a legal one."""
    legal: list[bool] = []

    def rule(self: Skinny, at: Any, limits: Any, unit: Any) -> UnitSpread:
        legal.append(spread in self.unit_space(at, limits, unit))
        return spread

    monkeypatch.setattr(Skinny, "unit_rule", rule)
    product(*case, UNITS[case[-1]], **how)
    assert legal == [True]


def test_halves_on_units(monkeypatch: pytest.MonkeyPatch) -> None:
    """K is no whole steps, the last columns no whole unit, and K is split."""
    on_units(monkeypatch, UnitSpread(2, 16, 2), 5, 200, 24, DType.F16)


def test_bytes_on_units_for_few_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    on_units(monkeypatch, UnitSpread(2, 16, 1), 3, 80, 40, DType.I8, turned=True, columns=True)


@thorough
@pytest.mark.parametrize("dtype", UNITS)
@pytest.mark.parametrize("spread", [UnitSpread(4, 32, 1), UnitSpread(1, 64, 1), UnitSpread(2, 16, 2)], ids=lambda s: s.name)
@pytest.mark.parametrize(("m", "k", "n"), [(1, 16, 16), (16, 208, 112), (3, 256, 48), (17, 96, 32)])
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("columns", [False, True])
def test_on_units(
    monkeypatch: pytest.MonkeyPatch, dtype: DType, spread: UnitSpread, m: int, k: int, n: int, turned: bool, columns: bool
) -> None:
    if m > 16 and spread.columns == 64:
        spread = UnitSpread(1, 32, 1)  # within the software driver's loops
    if spread.splits > 1 and (k < 208 or dtype.is_int):
        spread = UnitSpread(4, 16, 1)
    on_units(monkeypatch, spread, m, k, n, dtype, turned=turned, columns=columns)


AHEAD = {"threads": 64, "lanes": 8, "ahead": True}
STAGED = {"threads": 64, "lanes": 8, "staged": True, "ahead": True, "unrolled": 2}


@pytest.mark.parametrize(
    ("m", "k", "n", "dtype", "turned", "columns", "shape"),
    [
        (1, 520, 40, DType.F16, False, False, AHEAD),
        (3, 1024, 40, DType.F16, True, True, STAGED),
        (3, 300, 33, DType.F32, False, False, STAGED),
        pytest.param(1, 520, 40, DType.F32, True, False, AHEAD, marks=thorough),
        pytest.param(1, 520, 40, DType.F16, True, True, AHEAD, marks=thorough),
        pytest.param(3, 512, 40, DType.F32, False, True, STAGED, marks=thorough),
        pytest.param(5, 300, 33, DType.F16, True, False, STAGED, marks=thorough),
        pytest.param(5, 1024, 40, DType.F16, False, False, STAGED, marks=thorough),
    ],
)
def test_loads_ahead_and_few_rows_in_shared_memory(
    monkeypatch: pytest.MonkeyPatch, m: int, k: int, n: int, dtype: DType, turned: bool, columns: bool, shape: dict[str, Any]
) -> None:
    usual = gemv._shape
    monkeypatch.setattr(gemv, "_shape", lambda *a: replace(usual(*a), **shape))
    product(m, k, n, dtype, frozenset(), turned=turned, columns=columns)
