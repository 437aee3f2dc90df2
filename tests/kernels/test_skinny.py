"""Workgroups of skinny products against the limits of devices."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import pytest
import run_step
from onnx_vulkan.dims import evaluate
from onnx_vulkan.dtypes import DType
from onnx_vulkan.kernels import build, families
from onnx_vulkan.kernels.contract import ContractStep
from onnx_vulkan.program.builder import Builder

families()  # registers them


def memory(spec: tuple[int, ...]) -> int:
    """The shared memory of a variant of gemm_skinny.glsl with fp32 sums, in bytes."""
    threads, _, rows, lanes, _, mode, _, unrolled, staged, *_ = spec
    width, grain = (2, 4) if mode & 5 == 5 else (1, 8) if mode & 4 else (1, 4)
    stage = min(rows * width, 4)
    totals = stage * threads // lanes * 4
    few = 2 * rows * lanes * grain * unrolled // 4 if staged else 0
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
