"""Packed weights on matrix units, on devices without them: subgroups of 32 are parts of the workgroup, invocations hold the
components that the feature ``coop_rows`` says, and products go through shared memory."""

from __future__ import annotations

import os
import re

import numpy as np
import onnx_vulkan.kernels.gemv as gemv
import pytest
import run_step
from onnx_vulkan.codegen.kernel import At, Limits
from onnx_vulkan.dtypes import DType
from onnx_vulkan.graph import Array
from onnx_vulkan.kernels import families
from onnx_vulkan.kernels.gemv import Skinny, UnitSpread
from onnx_vulkan.kernels.matrix_units import Unit
from onnx_vulkan.program.blocks import contract_blocks
from onnx_vulkan.program.builder import Builder

families()  # registers them
thorough = pytest.mark.skipif(os.environ.get("ONNX_VULKAN_THOROUGH") != "1", reason="ONNX_VULKAN_THOROUGH=1 runs it")
LIMITS = {"subgroup_size": 32, "features": frozenset({"coop_f16", "coop_rows"})}

EMULATION = """
struct Matrix { float v[8]; };
int at_(int e) { return (lane / 4 + (e & 4) * 2) * 16 + lane % 4 * 2 + (e & 1) + (e & 2) * 4; }
shared float left_[THREADS * 8];
shared float right_[THREADS * 8];
void multiply_(Matrix a, Matrix b, inout Matrix c) {
    int start = int(gl_LocalInvocationID.x) / 32 * 256;
    for (int e = 0; e < 8; e++) {
        left_[start + at_(e)] = a.v[e];
        right_[start + at_(e) % 16 * 16 + at_(e) / 16] = b.v[e];
    }
    barrier();
    for (int e = 0; e < 8; e++) {
        for (int k = 0; k < 16; k++) c.v[e] += left_[start + at_(e) / 16 * 16 + k] * right_[start + k * 16 + at_(e) % 16];
    }
    barrier();
}
#define LOAD_(m, from, pitch) for (int e_ = 0, i_; e_ < 8; e_++) { \\
    i_ = (from) * 8 + at_(e_) / 16 * (pitch) * 8 + at_(e_) % 16; m.v[e_] = unpackFloat2x16(pool[i_ / 8][i_ % 8 / 2])[i_ % 2]; }
#define STORE_(m, to, pitch) for (int e_ = 0, i_; e_ < 8; e_++) { \\
    i_ = (to) * 4 + at_(e_) % 16 * (pitch) * 4 + at_(e_) / 16; pool[i_ / 4][i_ % 4] = floatBitsToUint(m.v[e_]); }
"""
REWRITES = (
    (r"coopmat<[^>]*>\(0.0\)", "Matrix(float[8](0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0))"),
    (r"coopmat<[^>]*>", "Matrix"),
    (r"(acc\[[^\]]*\]) = coopMatMulAdd\((\w+), (\w+\[\w\]), \1\)", r"multiply_(\2, \3, \1)"),
    (r"coopMatLoad\((\w+\[\w\]), pool, (.*), (\w+), \w+\)", r"LOAD_(\1, \2, \3)"),
    (r"coopMatStore\((\w+\[.*\]), pool, (.*), (COLUMNS / 4), \w+\)", r"STORE_(\1, \2, \3)"),
    (r"\b(a|b\[i\])\[([^=]*)\] = ", r"\1.v[\2] = "),
    (r"\[\[unroll\]\] ", ""),
    (r"subgroupBarrier\(\)", "barrier()"),
    (r"gl_SubgroupInvocationID", "gl_LocalInvocationID.x % 32"),
    (r"gl_SubgroupID", "(gl_LocalInvocationID.x / 32)"),
)


def emulated(text: str) -> str:
    """gemm_blocks_matrix.glsl without matrices and subgroups."""
    for pattern, instead in REWRITES:
        text = re.sub(pattern, instead, text)
    return text.replace("int lane;\n", "int lane;\n" + EMULATION)


def product(
    monkeypatch: pytest.MonkeyPatch, spread: UnitSpread, m: int, n: int, k: int, *, block: int = 32, zero: bool = False
) -> None:
    """A product run in a given way, which has to be a legal one, with one step on its way (more take minutes to compile)."""
    shader, legal = run_step._shader, list[bool]()

    def rule(self: Skinny, at: At, limits: Limits, unit: Unit) -> UnitSpread:
        legal.append((spread.subgroups, spread.columns) in self._unit_shapes(at, limits, unit))
        return spread

    monkeypatch.setattr(
        run_step, "_shader", lambda name: emulated(shader(name)) if name == "gemm_blocks_matrix.glsl" else shader(name)
    )
    monkeypatch.setattr(gemv, "EXTENSIONS", ())
    monkeypatch.setattr(gemv, "AHEAD", 1)
    monkeypatch.setattr(Skinny, "unit_rule", rule)
    rng, b, blocks = np.random.default_rng(n), Builder(), -(-k // block)
    feeds: dict[str, Array] = {
        "x": rng.standard_normal((m, k)).astype(np.float16),
        "q": rng.integers(0, 256, (n, blocks * block // 2)).astype(np.uint8),
        "scales": rng.uniform(0.01, 0.1, (n, blocks)).astype(np.float16),
    }
    if zero:
        feeds["zero"] = rng.integers(0, 256, (n, -(-blocks // 2))).astype(np.uint8)
    x, q, scales, *rest = (b.input(name, DType.of(v.dtype), v.shape) for name, v in feeds.items())
    y = contract_blocks(b, x, q, scales, rest[0] if rest else None, bits=4, block=block)
    run_step.check_program(b, [b.max(y, b.scalar(-1, DType.F16))], feeds, atol=0.02, rtol=1e-2, limits=LIMITS)
    assert legal == [True]


def test_a_product(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last columns are no whole unit."""
    product(monkeypatch, UnitSpread(1, 16, 1), 3, 20, 160, zero=True)


@thorough
@pytest.mark.parametrize("spread", [UnitSpread(2, 16, 1), UnitSpread(1, 32, 1)], ids=lambda s: s.name)
@pytest.mark.parametrize(("m", "n", "k", "block"), [(1, 70, 1184, 32), (16, 16, 128, 64), (9, 50, 32, 32), (20, 33, 640, 128)])
@pytest.mark.parametrize("zero", [False, True])
def test_products(monkeypatch: pytest.MonkeyPatch, spread: UnitSpread, m: int, n: int, k: int, block: int, zero: bool) -> None:
    product(monkeypatch, spread, m, n, k, block=block, zero=zero)
