"""The kernel for matrix units on devices without them: every invocation computes whole matrices, subgroups of 32 are parts of the
workgroup. With ``ONNX_VULKAN_THOROUGH=1`` (minutes)."""

from __future__ import annotations

import os
import re

import numpy as np
import onnx_vulkan.kernels.attention as family
import pytest
import run_step
from onnx_vulkan.dtypes import DType
from onnx_vulkan.program.attention import SCORE, attention
from onnx_vulkan.program.builder import Builder

EACH = "for (int r_ = 0; r_ < 16; r_++) for (int c_ = 0; c_ < 16; c_++)"
EMULATION = f"""
struct Matrix {{ float e[256]; }};
Matrix zeros() {{
    Matrix m;
    for (int i = 0; i < 256; i++) m.e[i] = 0.0;
    return m;
}}
Matrix coopMatMulAdd(Matrix a, Matrix b, Matrix c) {{
    {EACH} for (int k = 0; k < 16; k++) c.e[r_ * 16 + c_] += a.e[r_ * 16 + k] * b.e[k * 16 + c_];
    return c;
}}
#define coopMatLoad(m, from, at, pitch, turned) \\
    {EACH} (m).e[turned ? c_ * 16 + r_ : r_ * 16 + c_] = unpackFloat2x16(from[(at) + r_ * (pitch) + c_ / 8][c_ % 8 / 2])[c_ % 2]
#define coopMatLoadSums(m, from, at, pitch, turned) \\
    {EACH} (m).e[r_ * 16 + c_] = uintBitsToFloat(from[(at) + r_ * (pitch) + c_ / 4][c_ % 4])
#define coopMatStore(m, to, at, pitch, turned) \\
    {EACH} to[(at) + r_ * (pitch) + c_ / 4][c_ % 4] = floatBitsToUint((m).e[r_ * 16 + c_])
shared float exchanged[THREADS];
float shuffle_xor(float x, uint mask) {{
    exchanged[gl_LocalInvocationID.x] = x;
    barrier();
    float y = exchanged[gl_LocalInvocationID.x ^ mask];
    barrier();
    return y;
}}
bool any_of(bool x) {{
    float sum = 0.0;
    exchanged[gl_LocalInvocationID.x] = float(x);
    barrier();
    for (int i = 0; i < 32; i++) sum += exchanged[int(gl_LocalInvocationID.x) / 32 * 32 + i];
    barrier();
    return sum > 0.0;
}}
"""
WORDS = {
    "[[unroll]] ": "",
    "coopMatLoad(factor,": "coopMatLoadSums(factor,",
    "SUMS(0)": "zeros()",
    "[e] *= factor[e]": ".e[e] *= factor.e[e]",
    "factor.length()": "256",
    "subgroupBarrier()": "barrier()",
    "subgroupShuffleXor(": "shuffle_xor(",
    "subgroupAny(": "any_of(",
    "gl_SubgroupInvocationID": "(gl_LocalInvocationID.x % 32u)",
    "gl_SubgroupID": "(gl_LocalInvocationID.x / 32u)",
    "gl_CooperativeMatrixLayoutRowMajor": "false",
    "gl_CooperativeMatrixLayoutColumnMajor": "true",
    "const int UNIT = 16;": "const int UNIT = 16;" + EMULATION,
}


def emulated(text: str) -> str:
    """The text of attention_units.glsl without matrices and subgroups."""
    text = re.sub(r"^#define (LEFT|RIGHT|SUMS) .*$", "", text, flags=re.M)
    for word, instead in WORDS.items():
        assert word in text, word
        text = text.replace(word, instead)
    return re.sub(r"\b(LEFT|RIGHT|SUMS)\b", "Matrix", text)


@pytest.mark.skipif(
    os.environ.get("ONNX_VULKAN_THOROUGH") != "1", reason="takes minutes to compile: ONNX_VULKAN_THOROUGH=1 runs it"
)
@pytest.mark.parametrize(
    ("units", "sizes"), [(family.Units(32, 2, 64), (2, 50, 70, 40, 24)), (family.Units(64, 1, 32), (1, 40, 50, 16, 17))], ids=str
)
def test_matrix_units(monkeypatch: pytest.MonkeyPatch, units: family.Units, sizes: tuple[int, ...]) -> None:
    shader = run_step._shader
    monkeypatch.setattr(
        run_step, "_shader", lambda name: emulated(shader(name)) if name == "attention_units.glsl" else shader(name)
    )
    monkeypatch.setattr(family, "EXTENSIONS", ())
    monkeypatch.setattr(family, "choose", lambda *a, **k: units)
    batch, rows, keys, depth, width = sizes
    rng, b = np.random.default_rng(1), Builder()
    shapes = {"q": (batch, rows, depth), "k": (batch, keys, depth), "v": (batch, keys, width)}
    q, k, v = (b.input(n, DType.F16, s) for n, s in shapes.items())
    feeds = {n: rng.standard_normal(s).astype(np.float16) for n, s in shapes.items()}
    mask = np.where(rng.random((rows, keys)) < 0.7, 0, -np.inf).astype(np.float32)
    mask[3], mask[5, :40] = -np.inf, -np.inf
    y = attention(b, q, b.transpose(k, (0, 2, 1)), v, [b.input("mask", DType.F32, mask.shape)], [("add", (SCORE, 3))])
    run_step.check_program(b, [y], {**feeds, "mask": mask}, atol=5e-3, rtol=1e-2)
