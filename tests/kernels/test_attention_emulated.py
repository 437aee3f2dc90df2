"""The kernels for matrix units on devices without them: an invocation holds the eight components of a matrix that the feature
``coop_rows`` says, products go through shared memory, subgroups of 32 are parts of the workgroup.

``attention_rows.glsl`` always runs, ``attention_units.glsl`` (minutes) with ``ONNX_VULKAN_THOROUGH=1``.
"""

from __future__ import annotations

import os
import re
from typing import Any

import numpy as np
import onnx_vulkan.kernels.attention as family
import pytest
import run_step
from onnx_vulkan.dtypes import DType
from onnx_vulkan.graph import Array
from onnx_vulkan.program.attention import SCORE, attention
from onnx_vulkan.program.builder import Builder

EMULATION = """
struct Matrix { float v[8]; };
Matrix zeros() {
    Matrix m;
    for (int e = 0; e < 8; e++) m.v[e] = 0.0;
    return m;
}
int lane_() { return int(gl_LocalInvocationID.x) % 32; }
int row_(int e) { return lane_() / 4 + (e & 4) * 2; }
int column_(int e) { return lane_() % 4 * 2 + (e & 1) + (e & 2) * 4; }
shared float left_[THREADS * 8];
shared float right_[THREADS * 8];
Matrix coopMatMulAdd(Matrix a, Matrix b, Matrix c) {
    int start = int(gl_LocalInvocationID.x) / 32 * 256;
    for (int e = 0; e < 8; e++) {
        left_[start + row_(e) * 16 + column_(e)] = a.v[e];
        right_[start + row_(e) * 16 + column_(e)] = b.v[e];
    }
    barrier();
    for (int e = 0; e < 8; e++) {
        for (int k = 0; k < 16; k++) c.v[e] += left_[start + row_(e) * 16 + k] * right_[start + k * 16 + column_(e)];
    }
    barrier();
    return c;
}
#define EACH for (int e_ = 0, r_ = row_(0), c_ = column_(0); e_ < 8; e_++, r_ = row_(e_), c_ = column_(e_))
#define coopMatLoad(m, from, at, pitch, turned) \\
    EACH (m).v[e_] = turned ? unpackFloat2x16(from[(at) + c_ * (pitch) + r_ / 8][r_ % 8 / 2])[r_ % 2] \\
        : unpackFloat2x16(from[(at) + r_ * (pitch) + c_ / 8][c_ % 8 / 2])[c_ % 2]
#define coopMatLoadSums(m, from, at, pitch, turned) EACH (m).v[e_] = uintBitsToFloat(from[(at) + r_ * (pitch) + c_ / 4][c_ % 4])
#define coopMatStore(m, to, at, pitch, turned) EACH to[(at) + r_ * (pitch) + c_ / 4][c_ % 4] = floatBitsToUint((m).v[e_])
shared float exchanged[THREADS];
float shuffle_xor(float x, uint mask) {
    exchanged[gl_LocalInvocationID.x] = x;
    barrier();
    float y = exchanged[gl_LocalInvocationID.x ^ mask];
    barrier();
    return y;
}
bool any_of(bool x) {
    float sum = 0.0;
    exchanged[gl_LocalInvocationID.x] = float(x);
    barrier();
    for (int i = 0; i < 32; i++) sum += exchanged[int(gl_LocalInvocationID.x) / 32 * 32 + i];
    barrier();
    return sum > 0.0;
}
"""
WORDS = {
    "[[unroll]] ": "",
    "coopMatLoad(factor,": "coopMatLoadSums(factor,",
    "SUMS(0)": "zeros()",
    "][e]": "].v[e]",
    "][i % 2 * 4 + k]": "].v[i % 2 * 4 + k]",
    "factor[e]": "factor.v[e]",
    "factor.length()": "8",
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
    """The text of a kernel without matrices and subgroups."""
    text = re.sub(r"^#define (LEFT|RIGHT|SUMS) .*$", "", text, flags=re.M)
    for word, instead in WORDS.items():
        text = text.replace(word, instead)
    return re.sub(r"\b(LEFT|RIGHT|SUMS)\b", "Matrix", text)


def attend(
    monkeypatch: pytest.MonkeyPatch, units: family.Units, sizes: tuple[int, ...], empty: str = "nan", mask: str = "added"
) -> Array:
    """An attention of ``sizes`` (batch, rows, keys, depth, width) under a mask.

    It is ``added``, says which scores are ``chosen``, or is ``causal``: query m sees keys up to m + 1. Unless it is, a query sees
    nothing, and another one nothing but the last keys.
    """
    shader = run_step._shader
    kernels = ("attention_units.glsl", "attention_rows.glsl")
    monkeypatch.setattr(run_step, "_shader", lambda name: emulated(shader(name)) if name in kernels else shader(name))
    monkeypatch.setattr(family, "EXTENSIONS", ())
    monkeypatch.setattr(family, "choose", lambda *a, **k: units)
    batch, rows, keys, depth, width = sizes
    rng, b = np.random.default_rng(1), Builder()
    shapes = {"q": (batch, rows, depth), "k": (batch, keys, depth), "v": (batch, keys, width)}
    q, k, v = (b.input(n, DType.F16, s) for n, s in shapes.items())
    feeds = {n: rng.standard_normal(s).astype(np.float16) for n, s in shapes.items()}
    feeds["q"][:, 1 % rows] *= 30
    seen = rng.random((rows, keys)) < 0.7
    seen[3 % rows], seen[5 % rows, : keys * 4 // 5] = False, False
    steps: list[Any] = [("mul", (SCORE, 3))]
    others = [b.scalar(0.3, DType.F32)]
    if mask == "causal":
        others += [b.le(b.iota((1, keys), 1, DType.I64), b.iota((rows, 1), 0, DType.I64, 1)), b.scalar(-np.inf, DType.F32)]
        steps.append(("select", (4, SCORE, 5)))
    elif mask == "chosen":
        feeds["mask"] = seen
        others += [b.input("mask", DType.BOOL, seen.shape), b.scalar(-np.inf, DType.F32)]
        steps.append(("select", (4, SCORE, 5)))
    else:
        feeds["mask"] = np.where(seen, rng.standard_normal(seen.shape), -np.inf).astype(np.float32)
        others.append(b.input("mask", DType.F32, seen.shape))
        steps.append(("add", (SCORE, 4)))
    if empty != "nan":
        feeds["q"][0, 7, 1] = np.nan
    y = attention(b, q, b.transpose(k, (0, 2, 1)), v, others, steps, empty, causal=1 if mask == "causal" else None)
    return run_step.check_program(b, [y], feeds, atol=5e-3, rtol=1e-2)[0]


@pytest.mark.parametrize(
    ("units", "sizes", "empty", "mask"),
    [
        (family.Units(32, 1, 32, rows=True), (1, 20, 72, 12, 13), "clean", "added"),
        (family.Units(64, 1, 16, rows=True), (2, 70, 60, 16, 16), "zero", "causal"),
    ],
    ids=str,
)
def test_rows(monkeypatch: pytest.MonkeyPatch, units: family.Units, sizes: tuple[int, ...], empty: str, mask: str) -> None:
    attend(monkeypatch, units, sizes, empty, mask)


@pytest.mark.skipif(
    os.environ.get("ONNX_VULKAN_THOROUGH") != "1", reason="takes minutes to compile: ONNX_VULKAN_THOROUGH=1 runs it"
)
@pytest.mark.parametrize("mask", ["added", "chosen", "causal"])
@pytest.mark.parametrize(
    ("units", "sizes"),
    [
        (family.Units(64, 2, 16, rows=True), (2, 70, 39, 16, 16)),
        (family.Units(32, 2, 64), (2, 50, 70, 40, 24)),
        (family.Units(64, 1, 32), (1, 40, 50, 16, 17)),
        (family.Units(128, 1, 32, rows=True), (2, 70, 152, 64, 64)),
        (family.Units(32, 1, 32, rows=True), (1, 20, 100, 80, 48)),
        (family.Units(32, 1, 64, rows=True), (1, 9, 0, 16, 16)),
        (family.Units(32, 1, 64, rows=True), (1, 1, 3, 16, 16)),
    ],
    ids=str,
)
def test_matrix_units(monkeypatch: pytest.MonkeyPatch, units: family.Units, sizes: tuple[int, ...], mask: str) -> None:
    attend(monkeypatch, units, sizes, mask=mask)
