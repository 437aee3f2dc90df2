"""Products of few rows on matrix units, on devices without them: each invocation computes the matrices by itself."""

from __future__ import annotations

import itertools
import re
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import run_step
from onnx_vulkan.dims import evaluate
from onnx_vulkan.dtypes import DType
from onnx_vulkan.kernels import build, families
from onnx_vulkan.kernels.contract import ContractStep
from onnx_vulkan.kernels.gemv import Skinny
from onnx_vulkan.program.builder import Builder
from onnx_vulkan.program.ir import Value

F16 = DType.F16
families()  # registers them
EMULATION = """
// A factor is where it lies in shared memory; of sums each invocation has its share.
struct Matrix { int at; int pitch; bool by_columns; float sums[64]; };
Matrix no_sums() {
    Matrix m;
    [[unroll]] for (int i = 0; i < 64; i++) m.sums[i] = 0.0;
    return m;
}
float factor(Matrix m, int row, int column) {
    int line = m.by_columns ? column : row, i = m.by_columns ? row : column;
    return unpackHalf2x16(pool[m.at + line * m.pitch + i / 8][i % 8 / 2])[i % 2];
}
Matrix coopMatMulAdd(Matrix a, Matrix b, Matrix c) {
    [[unroll]] for (int i = 0; i < 256 / SUBGROUP; i++) {
        int e = lane * (256 / SUBGROUP) + i;
        [[dont_unroll]] for (int k = 0; k < 16; k++) c.sums[i] += factor(a, e / 16, k) * factor(b, k, e % 16);
    }
    return c;
}
void load(out Matrix m, int at, int pitch, bool by_columns) {
    m.at = at;
    m.pitch = pitch;
    m.by_columns = by_columns;
}
#define load_by_rows(m, from, at, pitch) load(m, at, pitch, false)
#define load_by_columns(m, from, at, pitch) load(m, at, pitch, true)
#define store_by_rows(m, to, at, pitch) \\
    [[unroll]] for (int i = 0; i < 256 / SUBGROUP; i++) { \\
        int e = lane * (256 / SUBGROUP) + i; \\
        to[(at) + e / 16 * (pitch) + e % 16 / 4][e % 4] = floatBitsToUint(m.sums[i]); \\
    }
"""


def emulated(text: str) -> str:
    """gemm_skinny_matrix.glsl without cooperative matrices."""
    text = re.sub(r"coopmat<[^>]*>\(0\)", "no_sums()", text)
    text = re.sub(r"coopmat<[^>]*>", "Matrix", text)
    for layout in ("Row", "Column"):
        text = re.sub(rf"coopMat(Load|Store)(\(.*), gl_CooperativeMatrixLayout{layout}Major\)", rf"\1_by_{layout}s\2)", text)
    text = re.sub(r"(Load|Store)_by_(Row|Column)s", lambda m: m[0].lower(), text)
    assert "coopMatLoad" not in text and "coopMatStore" not in text
    return text.replace("int lane;\n", "int lane;\n" + EMULATION)


@pytest.fixture(autouse=True)
def splits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The splits of each product that runs on the emulated units."""
    original, choose = run_step._shader, Skinny.matrix_variant
    found: list[int] = []

    def variant(self: Skinny, *args: Any) -> Any:
        chosen = choose(self, *args)
        found.append(chosen[1])
        return chosen

    def shader(name: str) -> str:
        text = original(name)
        return emulated(text) if name == "gemm_skinny_matrix.glsl" else text

    monkeypatch.setattr(run_step, "_shader", shader)
    monkeypatch.setattr(Skinny, "matrix_variant", variant)
    return found


def check(builder: Builder, out: Value, feeds: dict[str, Any]) -> None:
    features = frozenset({"coop_f16", "full_subgroups", "subgroup_basic"})
    run_step.check_program(builder, [out], feeds, atol=1e-2, rtol=1e-2, limits={"features": features})


def transposed(builder: Builder, x: Value) -> Value:
    return builder.transpose(x, (1, 0))


@pytest.mark.parametrize(
    ("m", "k", "n", "few_turned", "wide_turned"),
    [
        (16, 64, 40, False, False),
        (16, 64, 40, False, True),
        (16, 64, 40, True, False),
        (9, 37, 21, False, False),
        (24, 24, 35, True, True),
        (37, 40, 12, False, False),
    ],
)
def test_layouts(m: int, k: int, n: int, few_turned: bool, wide_turned: bool, splits: list[int]) -> None:
    """Whole chunks and odd sizes, K that is no whole steps, both layouts of both operands, few rows and few columns."""
    rng = np.random.default_rng(0)
    builder = Builder()
    a_turned, b_turned = (few_turned, wide_turned) if m < n else (wide_turned, few_turned)
    feeds = {
        "a": rng.standard_normal((k, m) if a_turned else (m, k)).astype(np.float16),
        "b": rng.standard_normal((n, k) if b_turned else (k, n)).astype(np.float16),
    }
    a, b = (builder.input(name, F16, x.shape) for name, x in feeds.items())
    a, b = transposed(builder, a) if a_turned else a, transposed(builder, b) if b_turned else b
    check(builder, builder.contract(a, b), feeds)
    assert splits == [1]


def test_a_batch_and_an_epilogue(splits: list[int]) -> None:
    rng = np.random.default_rng(1)
    builder = Builder()
    feeds = {name: rng.standard_normal(s).astype(np.float16) for name, s in (("a", (2, 10, 40)), ("b", (2, 40, 24)))}
    a, b = (builder.input(name, F16, x.shape) for name, x in feeds.items())
    out = builder.contract(a, b)
    check(builder, builder.map("max", out, builder.broadcast(builder.scalar(0, F16), out.shape)), feeds)
    assert splits == [1]


def test_splits(splits: list[int]) -> None:
    """K is divided among workgroups, and further among their subgroups."""
    rng = np.random.default_rng(2)
    builder = Builder()
    feeds = {name: rng.standard_normal(s).astype(np.float16) / 8 for name, s in (("a", (9, 800)), ("b", (800, 10)))}
    a, b = (builder.input(name, F16, x.shape) for name, x in feeds.items())
    check(builder, builder.contract(a, b), feeds)
    assert splits[0] > 1


def memory(spec: tuple[int, ...]) -> int:
    """The shared memory of a variant of gemm_skinny.glsl with fp32 sums, in bytes."""
    threads, _, rows, lanes, _, mode, _, unrolled, pipeline, *_ = spec
    width, grain = (2, 4) if mode & 5 == 5 else (1, 8) if mode & 4 else (1, 4)
    stage = min(rows * width, 4)
    totals = stage * threads // lanes * 4
    few = 2 * rows * lanes * grain * unrolled // 4 if pipeline & 2 else 0
    return max(few, threads * stage) * 16 + totals * max(1, min(threads // totals, 8, lanes)) * 4


@pytest.mark.parametrize("dtype", [DType.F32, F16])
@pytest.mark.parametrize("turned", [False, True])
def test_workgroups_fit(dtype: DType, turned: bool) -> None:
    """Without matrix units: within any device's limits, with threads in whole columns of lanes."""
    for m, k, n in itertools.product((1, 2, 4, 7, 16), (1, 31, 64, 768, 4096, 4097), (16, 64, 1000, 4096)):
        builder = Builder()
        a, b = builder.input("a", dtype, (m, k)), builder.input("b", dtype, (n, k) if turned else (k, n))
        step = build(run_step.group_of(builder.finish([builder.contract(a, transposed(builder, b) if turned else b)])))
        assert isinstance(step, ContractStep)
        for invocations, shared, subgroup in itertools.product((128, 256, 1024), (16 << 10, 32 << 10, 48 << 10), (8, 32, 64)):
            limits: Any = SimpleNamespace(
                subgroup_size=subgroup, max_workgroup_invocations=invocations, max_shared_memory=shared, features=frozenset()
            )
            variant, _ = step.skinny["few rows"].variant(lambda e: evaluate(e, {}), limits, 4)
            threads, _, _, lanes, *_ = variant.spec
            assert threads <= invocations and threads % lanes == 0 and memory(variant.spec) <= shared, (m, k, n, limits)
