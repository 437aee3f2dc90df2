"""Hand-made plans of one small kernel."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
from onnx_vulkan.device import Device, ReplayBlock, Request, Shader
from onnx_vulkan.plan.table import COMMAND, IO, KEY, RELOC, Op, PlanTables, Segment

# y[i] = x[i] * scale, for n floats; parameters in push constants.
SCALE = Shader(
    """#version 460
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_scalar_block_layout : require
layout(local_size_x_id = 0) in;
layout(buffer_reference, scalar) buffer Floats { float v[]; };
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


def rows(dtype: np.dtype[np.void], *values: dict[str, Any]) -> Any:
    """A structured array from dicts; what is left out is zero."""
    out = np.zeros(len(values), dtype)
    for row, value in zip(out, values, strict=True):
        for name, v in value.items():
            row[name] = v
    return out


def scale_plan(device: Device, n: int, scale: float = 2.0, label: str = "scale") -> PlanTables:
    """A plan for one input of n floats and one output: two kernels with a barrier between them, through the arena."""
    (pipeline,) = device.pipelines([SCALE])
    push = struct.pack("<QQIf", 0, 0, n, scale) + struct.pack("<QQIf", 0, 0, n, 1.0)
    grid = {"pipeline": 0, "x": (n + 63) // 64, "y": 1, "z": 1, "push_size": 24}
    return PlanTables(
        commands=rows(
            COMMAND,
            {"op": Op.DISPATCH, "push_offset": 0, **grid},
            {"op": Op.BARRIER},
            {"op": Op.DISPATCH, "push_offset": 24, "label": 1, **grid},
        ),
        push=push,
        relocs=rows(
            RELOC,
            {"offset": 0, "segment": Segment.INPUT},
            {"offset": 8, "segment": Segment.ARENA},
            {"offset": 24, "segment": Segment.ARENA},
            {"offset": 32, "segment": Segment.OUTPUT},
        ),
        keys=rows(KEY, {"symbol": -1, "value": n}),
        inputs=rows(IO, {"rank": 1, "itemsize": 4, "capacity": 4 * n}),
        outputs=rows(IO, {"rank": 1, "itemsize": 4, "capacity": 4 * n}),
        output_dims=(0,),
        code=(1, n, 0),
        pipelines=(pipeline,),
        labels=(label, "copy"),
        arena_size=4 * n,
        input_size=4 * n,
        output_size=4 * n,
    )


def scale_block(device: Device, scale: float = 2.0, **options: Any) -> ReplayBlock:
    """A block of that plan, for any length."""

    def plan(request: Request) -> PlanTables:
        return scale_plan(device, request.inputs[0].shape[0], scale)

    return ReplayBlock(device, 1, [np.float32], plan, **options)
