"""Variants that families call legal give the same numbers: every one with ``ONNX_VULKAN_THOROUGH=1``, else a few of each."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import run_step
from onnx_vulkan.codegen.choices import Workload
from onnx_vulkan.dims import evaluate, symbol
from onnx_vulkan.dtypes import DType
from onnx_vulkan.fuse import fuse
from onnx_vulkan.kernels.contract import ContractStep
from onnx_vulkan.kernels.gemv import Spread
from onnx_vulkan.plan.build import PlanInput
from onnx_vulkan.program.builder import Builder
from onnx_vulkan.program.interp import interpret
from onnx_vulkan.program.ir import Value
from test_skinny import memory

TRIED = 1000 if os.environ.get("ONNX_VULKAN_THOROUGH") == "1" else 4


class Nth:
    """Tactics that name the n-th legal variant of every workload, and remember what they were asked."""

    def __init__(self, n: int | str = 0):
        self.n = n
        self.asked: list[tuple[Workload, str, list[str]]] = []

    def choice(self, workload: Workload, default: str, legal: Sequence[str]) -> str:
        self.asked.append((workload, default, list(legal)))
        return self.n if isinstance(self.n, str) else legal[self.n % len(legal)]


def matmul(m: int, k: int, n: int, dtype: DType = DType.F32) -> tuple[Builder, Any]:
    b = Builder()
    x, y = b.input("x", dtype, (m, k)), b.input("y", dtype, (k, n))
    return b, b.max(b.contract(x, y), b.scalar(0, dtype))


def conv(channels: int, groups: int, size: int) -> tuple[Builder, Any]:
    b = Builder()
    x = b.input("x", DType.F32, (1, size, size, channels))
    w = b.input("w", DType.F32, (3, 3, channels // groups, channels))
    (out,) = b.window(
        "conv", x, w, out_channels=channels, out_spatial=[size, size], kernel=[3, 3], strides=[1, 1], dilations=[1, 1],
        pads_begin=[1, 1], pads_end=[1, 1], groups=groups, acc=DType.F32,
    )  # fmt: skip
    return b, out


def softmax(rows: int, columns: int) -> tuple[Builder, Any]:
    b = Builder()
    x = b.input("x", DType.F32, (rows, columns))
    e = b.exp(b.sub(x, b.reduce("max", x, [1], keepdims=True)))
    return b, b.div(e, b.reduce("sum", e, [1], keepdims=True))


def loop(*shape: int) -> tuple[Builder, Any]:
    b = Builder()
    x, y = b.input("x", DType.F32, shape), b.input("y", DType.F32, shape[-1:])
    return b, b.add(b.mul(x, y), x)


CASES = {
    "product": lambda: matmul(37, 130, 70),
    "product, split": lambda: matmul(33, 515, 20),
    "few rows": lambda: matmul(3, 300, 65),
    "few columns": lambda: matmul(65, 260, 2),
    "one row": lambda: matmul(1, 1000, 96),
    "conv": lambda: conv(20, 1, 9),
    "direct": lambda: conv(6, 6, 11),
    "softmax": lambda: softmax(5, 77),
    "long rows": lambda: softmax(3, 4099),
    "loop": lambda: loop(7, 33),
    "vectors": lambda: loop(3, 1024, 64),
}


@pytest.mark.parametrize("name", CASES)
def test_every_legal_variant_is_right(name: str) -> None:
    b, out = CASES[name]()
    program = b.finish([out])
    rng = np.random.default_rng(7)
    feeds = {v.name: rng.standard_normal([int(e) for e in v.shape]).astype(v.dtype.numpy) for v in program.inputs}
    (expected,) = interpret(program, feeds)
    (step,) = fuse(program).steps
    first = Nth()
    arrays = {v: feeds[v.name] for v in program.inputs}
    run_step.run_step(step, arrays, limits={"tactics": first})
    ((_, default, legal),) = first.asked
    assert default in legal and len(legal) > 3
    specs = set()
    for n in range(0, len(legal), -(-len(legal) // TRIED)):
        tactics = Nth(legal[n])
        got = run_step.run_step(step, arrays, limits={"tactics": tactics})[out]
        np.testing.assert_allclose(got, expected, atol=2e-5, rtol=1e-4, err_msg=legal[n])
        facts: Any = SimpleNamespace(**{**vars(run_step.device().limits), "tactics": tactics})
        launches = step.launches(lambda e: evaluate(e, {}), facts)
        specs.add(tuple((launch.variant.spec, launch.kernel.body) for launch in launches))
    assert len(specs) > 1


def test_an_illegal_choice_is_not_used() -> None:
    b, out = matmul(37, 130, 70)
    (step,) = fuse(b.finish([out])).steps
    usual, wrong = (
        step.launches(
            lambda e: evaluate(e, {}),
            SimpleNamespace(**{**vars(run_step.device().limits), "tactics": tactics}),  # type: ignore[arg-type]
        )
        for tactics in (None, Nth("tile 1x1x1, 1x1 a thread, 1 splits"))
    )
    assert [launch.variant for launch in wrong] == [launch.variant for launch in usual]


def test_what_a_digest_is_of() -> None:
    """Of the sizes, of the types and of what is fused, not of the values' names."""

    def digest(made: tuple[Builder, Any]) -> str:
        tactics = Nth()
        (step,) = fuse(made[0].finish([made[1]])).steps
        facts: Any = SimpleNamespace(**{**vars(run_step.device().limits), "tactics": tactics})
        step.launches(lambda e: evaluate(e, {}), facts)
        return tactics.asked[0][0].digest

    def plain() -> tuple[Builder, Any]:
        b = Builder()
        x, y = b.input("a", DType.F32, (37, 130)), b.input("b", DType.F32, (130, 70))
        return b, b.contract(x, y)

    made = [digest(m) for m in (matmul(37, 130, 70), matmul(37, 130, 71), matmul(37, 130, 70, DType.F16), plain())]
    assert len(set(made)) == 4 and digest(matmul(37, 130, 70)) == made[0]


def test_sizes_that_change_have_no_tactics() -> None:
    b = Builder()
    n = symbol("n")
    x, y = b.input("x", DType.F32, (n, 130)), b.input("y", DType.F32, (130, 70))
    (step,) = fuse(b.finish([b.contract(x, y)])).steps

    class At:
        def __call__(self, e: Any) -> int:
            return evaluate(e, {"n": 37})

        def varies(self, e: Any) -> bool:
            return not isinstance(e, int)

    tactics = Nth()
    step.launches(At(), SimpleNamespace(**{**vars(run_step.device().limits), "tactics": tactics}))  # type: ignore[arg-type]
    assert not tactics.asked


def test_copies_of_inputs_have_no_tactics() -> None:
    """They are the plan's own, and a tuner does not see them: nobody could ever give what require-cache asks for."""
    x = Value(DType.F32, (64, 64), "x")
    tactics = Nth()
    _, step = PlanInput(x, x.shape, 32).copied
    step.launches(lambda e: evaluate(e, {}), SimpleNamespace(**{**vars(run_step.device().limits), "tactics": tactics}))  # type: ignore[arg-type]
    assert not tactics.asked


def test_skinny_variants_fit() -> None:
    for m, k, n in itertools.product((1, 4, 16), (64, 4096), (16, 1000)):
        b, out = matmul(m, k, n)
        step = run_step.build(run_step.group_of(b.finish([out])))
        assert isinstance(step, ContractStep)
        for invocations, shared in itertools.product((128, 1024), (16 << 10, 48 << 10)):
            facts: Any = SimpleNamespace(
                subgroup_size=32, max_workgroup_invocations=invocations, max_shared_memory=shared, features=frozenset()
            )
            few = step.skinny["few rows"]
            for spread in few.space(lambda e: evaluate(e, {}), facts, 4):
                assert isinstance(spread, Spread)
                variant, splits = few.variant(lambda e: evaluate(e, {}), facts, 4, spread)
                assert variant.spec[0] == spread.threads <= invocations and splits == spread.splits
                assert memory(variant.spec) <= shared, (m, k, n, spread)
