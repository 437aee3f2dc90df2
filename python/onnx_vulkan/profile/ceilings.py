"""What a device can do at most: bytes a second by a kernel that copies, operations a second by ones that multiply and add.

Measured on the spot, for the clock that the GPU has now; the best of several dispatches counts. Arithmetic comes in kinds, which
:func:`arithmetic_of` reads off a kernel: ``f32``, ``f64``, and products of matrix units such as ``matrix f16->f32``.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from onnx_vulkan.device import Device, Shader
from onnx_vulkan.device.compile import resolve, spirv
from onnx_vulkan.device.info import CoopMatrix
from onnx_vulkan.dtypes import DType

__all__ = ["LAUNCH", "MEMORY", "Ceilings", "arithmetic_of", "measure"]

MEMORY = "memory"
"""The name of the ceiling of memory: bytes a second, read and written together."""
LAUNCH = "launch"
"""The name of the ceiling of dispatches: how many empty ones a second, one after the other."""

TRIES = 8
TARGET_NS = 2e6
"""A dispatch that is timed takes about so long."""
WARM_SECONDS = 0.5
"""An idle GPU runs at a fraction of its clock; half a second of work brings it up."""
COPY_BYTES, CPU_COPY_BYTES = 256 << 20, 4 << 20
"""The size of the array that is copied: far more than caches hold, but a software driver is slow."""
GROUP = 256


@dataclass(frozen=True, slots=True)
class Ceilings:
    """Rates a second by name: :data:`MEMORY` in bytes, kinds of arithmetic in operations, :data:`LAUNCH` in dispatches."""

    rates: Mapping[str, float]

    def floor_ns(self, kind: str, operations: int, moved: int) -> float:
        """The time that the work takes at least. A kind without a ceiling is bound by memory alone."""
        times = [moved / self.rates[MEMORY]] if self.rates.get(MEMORY) else [0.0]
        if self.rates.get(kind):
            times.append(operations / self.rates[kind])
        return 1e9 * max(times)

    def bound(self, kind: str, operations: int, moved: int) -> str:
        """What takes longest at these rates: ``memory``, ``arithmetic`` or ``launch``."""
        seconds = {
            "memory": moved / self.rates[MEMORY] if self.rates.get(MEMORY) else 0.0,
            "arithmetic": operations / self.rates[kind] if self.rates.get(kind) else 0.0,
            "launch": 1 / self.rates[LAUNCH] if self.rates.get(LAUNCH) else 0.0,
        }
        return max(seconds, key=lambda name: seconds[name])


def measure(device: Device, kinds: Iterable[str], given: Mapping[str, float]) -> Ceilings:
    """The ceilings of a device for some kinds of arithmetic; those in *given* are taken as they are."""
    rates = dict(given)
    wanted = [k for k in dict.fromkeys((MEMORY, *kinds, LAUNCH)) if k not in rates]
    if wanted and device.info.kind != "cpu":
        _warm(device)
    for kind in wanted:
        rate = (
            _copy_rate(device) if kind == MEMORY else _launch_rate(device) if kind == LAUNCH else _arithmetic_rate(device, kind)
        )
        if rate:
            rates[kind] = rate
    return Ceilings(rates)


# ------------------------------------------------------------------------------------------------------------ kernels

_HEAD = """#version 460
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_scalar_block_layout : require
#extension GL_EXT_control_flow_attributes : require
"""

_COPY = (
    _HEAD
    + f"""layout(local_size_x = {GROUP}) in;
layout(constant_id = 0) const uint ITEMS = 1u;
layout(buffer_reference, scalar, buffer_reference_align = 16) buffer Words {{ uvec4 v[]; }};
layout(push_constant, scalar) uniform P {{ Words from; Words to; uint count; }};

void main() {{
    uint group = gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x;
    uint first = group * {GROUP}u * ITEMS + gl_LocalInvocationID.x;
    [[unroll]] for (uint item = 0u; item < ITEMS; item++) {{
        uint i = first + item * {GROUP}u;
        if (i < count) to.v[i] = from.v[i];
    }}
}}
"""
)

CHAINS, UNROLL = 16, 8
"""Independent sums of an invocation: enough to hide the latency of an addition."""


def _fma_source(glsl: str) -> str:
    extension = "#extension GL_EXT_shader_explicit_arithmetic_types_float64 : require\n" if glsl == "double" else ""
    return f"""{_HEAD}{extension}layout(local_size_x = {GROUP}) in;
layout(buffer_reference, scalar, buffer_reference_align = 8) buffer Out {{ {glsl} v[]; }};
layout(push_constant, scalar) uniform P {{ Out to; uint rounds; float factor; }};

void main() {{
    {glsl} x[{CHAINS}], f = {glsl}(factor);
    [[unroll]] for (int i = 0; i < {CHAINS}; i++) x[i] = {glsl}(int(gl_LocalInvocationID.x) + i);
    for (uint r = 0u; r < rounds; r++)
        [[unroll]] for (int u = 0; u < {UNROLL}; u++)
            [[unroll]] for (int i = 0; i < {CHAINS}; i++) x[i] = fma(x[i], f, f);
    {glsl} sum = {glsl}(0);
    [[unroll]] for (int i = 0; i < {CHAINS}; i++) sum += x[i];
    if (sum == {glsl}(-1)) to.v[gl_LocalInvocationID.x] = sum; // never, but the compiler does not know
}}
"""


_GLSL = {"f16": "float16_t", "bf16": "bfloat16_t", "f32": "float", "s8": "int8_t", "u8": "uint8_t"}
_GLSL |= {"s32": "int32_t", "u32": "uint32_t"}
_MATRIX_EXTENSIONS = {
    "f16": "GL_EXT_shader_explicit_arithmetic_types_float16",
    "bf16": "GL_EXT_bfloat16",
    "s8": "GL_EXT_shader_explicit_arithmetic_types_int8",
    "u8": "GL_EXT_shader_explicit_arithmetic_types_int8",
    "s32": "GL_EXT_shader_explicit_arithmetic_types_int32",
    "u32": "GL_EXT_shader_explicit_arithmetic_types_int32",
}
TILES = 8
"""Independent accumulators of a subgroup."""


def _matrix_source(m: CoopMatrix) -> str:
    names = ["GL_KHR_cooperative_matrix", "GL_KHR_memory_scope_semantics"]
    names += [_MATRIX_EXTENSIONS[t] for t in (m.a, m.result) if t in _MATRIX_EXTENSIONS]
    extensions = "".join(f"#extension {e} : require\n" for e in dict.fromkeys(names))
    a, c = _GLSL[m.a], _GLSL[m.result]
    return f"""{_HEAD}{extensions}layout(local_size_x = {GROUP}) in;
layout(buffer_reference, scalar, buffer_reference_align = 16) buffer Out {{ {c} v[]; }};
layout(push_constant, scalar) uniform P {{ Out to; uint rounds; float factor; }};
#define LEFT coopmat<{a}, gl_ScopeSubgroup, {m.m}, {m.k}, gl_MatrixUseA>
#define RIGHT coopmat<{a}, gl_ScopeSubgroup, {m.k}, {m.n}, gl_MatrixUseB>
#define TILE coopmat<{c}, gl_ScopeSubgroup, {m.m}, {m.n}, gl_MatrixUseAccumulator>

void main() {{
    LEFT a = LEFT({a}(factor));
    RIGHT b = RIGHT({a}(factor));
    TILE x[{TILES}];
    [[unroll]] for (int i = 0; i < {TILES}; i++) x[i] = TILE({c}(i));
    for (uint r = 0u; r < rounds; r++)
        [[unroll]] for (int i = 0; i < {TILES}; i++) x[i] = coopMatMulAdd(a, b, x[i]);
    TILE sum = x[0];
    [[unroll]] for (int i = 1; i < {TILES}; i++) sum += x[i];
    coopMatStore(sum, to.v, 0, {m.n}, gl_CooperativeMatrixLayoutRowMajor);
}}
"""


# ------------------------------------------------------------------------------------------------------------ rates


def _best(device: Device, shader: Shader, push: bytes, grid: tuple[int, int, int]) -> float:
    """The shortest time of several dispatches, in seconds."""
    return min(device.run_once(shader, push, grid) for _ in range(2 if device.info.kind == "cpu" else TRIES)) / 1e9


def _warm(device: Device) -> None:
    memory = device.alloc(8 * GROUP)
    shader = Shader(_fma_source("float"), (), 16)
    until = time.perf_counter() + WARM_SECONDS
    while time.perf_counter() < until:
        device.run_once(shader, struct.pack("<QIf", memory.address, 1000, 0.5), (1024, 1, 1))
    memory.free()


def _copy_rate(device: Device) -> float:
    budget, _ = device.heap()
    wanted = CPU_COPY_BYTES if device.info.kind == "cpu" else COPY_BYTES
    size = min(wanted, budget // 8, device.info.limits.largest_piece) // 4096 * 4096
    source, target = device.alloc(size), device.alloc(size)
    push = struct.pack("<QQI", source.address, target.address, size // 16)
    rates = []
    for items in (1, 2, 4):
        groups = -(-size // (16 * GROUP * items))
        grid = (min(groups, 32768), -(-groups // 32768), 1)
        rates.append(2 * size / _best(device, Shader(_COPY, (items,), len(push)), push, grid))
    source.free()
    target.free()
    return max(rates)


def _launch_rate(device: Device) -> float:
    return 1 / max(_best(device, Shader(_HEAD + "layout(local_size_x = 32) in;\nvoid main() {}\n"), b"", (1, 1, 1)), 1e-9)


def _arithmetic_rate(device: Device, kind: str) -> float:
    """Operations a second, 0 where the device has no such arithmetic or we no kernel to measure it."""
    if kind in ("f32", "f64"):
        per_round = 2 * CHAINS * UNROLL * GROUP
        return _rounds_rate(device, _fma_source({"f32": "float", "f64": "double"}[kind]), per_round)
    rates = [0.0]
    for m in _matrices(device, kind):
        subgroups = GROUP // device.info.limits.subgroup_size
        rates.append(_rounds_rate(device, _matrix_source(m), 2 * m.m * m.n * m.k * TILES * subgroups))
    return max(rates)


def _matrices(device: Device, kind: str) -> Iterator[CoopMatrix]:
    """The shapes that the device multiplies in this kind."""
    for m in device.info.coop_matrices:
        known = m.a == m.b and m.c == m.result and m.a in _GLSL and m.result in _GLSL and not m.saturating
        if known and kind == f"matrix {m.a}->{m.result}":
            yield m


def _rounds_rate(device: Device, source: str, per_group_and_round: int) -> float:
    """Operations a second of a kernel that repeats its work a given number of rounds."""
    memory = device.alloc(1 << 16)
    groups, rounds = (64 if device.info.kind == "cpu" else 4096), 1
    shader = Shader(source, (), 16)

    def push() -> bytes:
        return struct.pack("<QIf", memory.address, rounds, 0.5)

    while rounds < 1 << 16 and device.run_once(shader, push(), (groups, 1, 1)) < TARGET_NS:
        rounds *= 2
    seconds = _best(device, shader, push(), (groups, 1, 1))
    memory.free()
    return per_group_and_round * groups * rounds / seconds


# ------------------------------------------------------------------------------------------------------------ kinds

_FLOAT, _INT, _MATRIX = 22, 21, 4456  # OpTypeFloat, OpTypeInt, OpTypeCooperativeMatrixKHR


def arithmetic_of(source: str, dtype: DType | None) -> str:
    """The kind of arithmetic that a kernel's products are done in: by matrix units where its text has matrices; else in the type
    that it computes *dtype* in. "" where there is no arithmetic."""
    if dtype is None:
        return ""
    if "coopmat" in resolve(source):
        return _matrix_kind(spirv(source))
    return "f64" if dtype is DType.F64 else "f32"


def _matrix_kind(code: bytes) -> str:
    """The narrowest and the widest element type of the matrices in a SPIR-V module."""
    words = memoryview(code).cast("I")
    types: dict[int, tuple[int, str]] = {}  # by id: bits and name
    matrices: list[tuple[int, str]] = []
    at = 5
    while at < len(words):
        size, op = words[at] >> 16, words[at] & 0xFFFF
        if op == _FLOAT:
            brain = size > 3 and words[at + 3] == 0
            types[words[at + 1]] = words[at + 2], f"{'bf' if brain else 'f'}{words[at + 2]}"
        elif op == _INT:
            types[words[at + 1]] = words[at + 2], f"{'s' if words[at + 3] else 'u'}{words[at + 2]}"
        elif op == _MATRIX and words[at + 2] in types:
            matrices.append(types[words[at + 2]])
        at += max(size, 1)
    return f"matrix {min(matrices)[1]}->{max(matrices)[1]}" if matrices else "f32"
