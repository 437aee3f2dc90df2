"""Hand-made plans of small kernels."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
from onnx_vulkan.device import Device, ReplayBlock, Request, Shader
from onnx_vulkan.plan.table import COMMAND, END, IO, KEY, PATCH, PUSH, RELOC, SYM, Op, PatchKind, PlanTables, Segment

HEAD = """#version 460
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_scalar_block_layout : require
#extension GL_EXT_shader_explicit_arithmetic_types_int64 : require
layout(local_size_x_id = 0) in;
layout(buffer_reference, scalar) buffer Floats { float v[]; };
"""

# y[i] = x[i] * scale, for n floats; parameters in push constants.
SCALE = Shader(
    HEAD
    + """
layout(push_constant, scalar) uniform P { Floats x, y; uint n; float scale; };
void main() {
    uint i = gl_GlobalInvocationID.x;
    if (i < n) y.v[i] = x.v[i] * scale;
}
""",
    spec=(64,),
    push_size=24,
    label="scale",
)

# The same with its parameters in the record: x, y, n, 1 / n as a divisor; y[i] = x[i] + i / (n / 2).
RECORDED = Shader(
    HEAD
    + """
layout(buffer_reference, scalar) readonly buffer Record { Floats x, y; uint n; uvec3 half_n; };
layout(push_constant, scalar) uniform P { Record p; };
uint divide(uint n, uvec3 d) {
    uint high, low;
    umulExtended(n, d.y, high, low);
    return (high + n) >> d.z;
}
void main() {
    uint i = gl_GlobalInvocationID.x;
    if (i < p.n) p.y.v[i] = p.x.v[i] + float(divide(i, p.half_n));
}
""",
    spec=(64,),
    push_size=8,
    label="recorded",
)

# y[i] = x[index[i]] for n floats, checking against count.
GATHER = Shader(
    HEAD
    + """
layout(buffer_reference, scalar) buffer Indices { int64_t v[]; };
layout(buffer_reference, scalar) buffer Error { uint count; uint label; int64_t value; };
layout(push_constant, scalar) uniform P { Floats x; Indices index; Floats y; Error error; uint n; uint count; };
void main() {
    uint i = gl_GlobalInvocationID.x;
    if (i >= n) return;
    int64_t at = index.v[i];
    if (at < 0 || at >= int64_t(count)) {
        if (atomicAdd(error.count, 1) == 0) { error.label = 1; error.value = at; }
        return;
    }
    y.v[i] = x.v[uint(at)];
}
""",
    spec=(64,),
    push_size=40,
    label="gather",
)


def rows(dtype: np.dtype[np.void], *values: dict[str, Any]) -> Any:
    """A structured array from dicts; what is left out is zero."""
    out = np.zeros(len(values), dtype)
    for row, value in zip(out, values, strict=True):
        for name, v in value.items():
            row[name] = v
    return out


def scale_plan(
    device: Device, n: int, scale: float = 2.0, middle: tuple[dict[str, Any], ...] = ({"op": Op.BARRIER},)
) -> PlanTables:
    """A plan for one input of n floats and one output: two kernels through the arena with *middle* between them."""
    (pipeline,) = device.pipelines([SCALE])
    grid = {"pipeline": 0, "x": (n + 63) // 64, "y": 1, "z": 1, "push_size": 24}
    commands: tuple[dict[str, Any], ...] = (
        {"op": Op.DISPATCH, "push_offset": 0, **grid},
        *middle,
        {"op": Op.DISPATCH, "push_offset": 24, "label": 1, **grid},
    )
    return PlanTables(
        commands=rows(COMMAND, *(commands if n else ())),
        push=struct.pack("<QQIf", 0, 0, n, scale) + struct.pack("<QQIf", 0, 0, n, 1.0),
        relocs=rows(
            RELOC,
            {"offset": 0, "segment": Segment.INPUT},
            {"offset": 8, "segment": Segment.ARENA},
            {"offset": 24, "segment": Segment.ARENA},
            {"offset": 32, "segment": Segment.OUTPUT},
        ),
        keys=rows(KEY, {"symbol": -1, "value": n}),
        inputs=rows(IO, {"rank": 1, "bits": 32, "capacity": 4 * n}),
        outputs=rows(IO, {"rank": 1, "bits": 32, "capacity": 4 * n}),
        output_dims=(0,),
        code=(PUSH, n, END),
        pipelines=(pipeline,),
        labels=("scale", "copy"),
        arena_size=4 * n,
        input_size=4 * n,
        output_size=4 * n,
    )


def scale_block(device: Device, scale: float = 2.0, **options: Any) -> ReplayBlock:
    """A block of that plan, for any length."""

    def plan(request: Request) -> PlanTables:
        return scale_plan(device, request.inputs[0].shape[0], scale)

    return ReplayBlock(device, 1, [np.float32], plan, **options)


def run_time_plan(device: Device, capacity: int, guards: Any = ()) -> PlanTables:
    """x + i // (n // 2) for every even n up to *capacity*: addresses, size, divisor and grid are patches of the record.

    Record: 0 grid (3 x u32), 16 x, 24 y, 32 n, 36 divisor. Expressions: 0 n, 3 zero, 6 n // 2, 12 (n + 63) // 64.
    """
    (pipeline,) = device.pipelines([RECORDED])
    floordiv, add = 5, 3
    code = (SYM, 0, END, PUSH, 0, END, SYM, 0, PUSH, 2, floordiv, END, SYM, 0, PUSH, 63, add, PUSH, 64, floordiv, END)
    return PlanTables(
        commands=rows(COMMAND, {"op": Op.DISPATCH_INDIRECT, "push_size": 8, "a": 0}),
        push=bytes(8),
        record=struct.pack("<III", 0, 1, 1) + bytes(36),
        relocs=rows(RELOC, {"offset": 0, "segment": Segment.RECORD, "addend": 16}),
        patches=rows(
            PATCH,
            {"kind": PatchKind.U32, "offset": 0, "expr": 12},
            {"kind": PatchKind.EXTERNAL_IN, "offset": 16, "expr": 3},
            {"kind": PatchKind.EXTERNAL_OUT, "offset": 24, "expr": 3},
            {"kind": PatchKind.U32, "offset": 32, "expr": 0},
            {"kind": PatchKind.DIVISOR, "offset": 36, "expr": 6},
        ),
        keys=rows(KEY, {"symbol": 0, "value": capacity}),
        inputs=rows(IO, {"rank": 1, "bits": 32, "capacity": 4 * capacity}),
        outputs=rows(IO, {"rank": 1, "bits": 32, "capacity": 4 * capacity}),
        output_dims=(0,),
        code=code,
        pipelines=(pipeline,),
        labels=("recorded",),
        input_size=4 * capacity,
        output_size=4 * capacity,
        n_symbols=1,
        **({"guards": guards} if len(guards) else {}),
    )
