"""The loop kernel: any set of elementwise and movement instructions, computed at each index of one or more outputs.

Outputs of one kernel have the same shape.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from onnx_vulkan.codegen.hole import fill_hole
from onnx_vulkan.codegen.kernel import At, Kernel, Limits, Variant, grid_of, workgroups
from onnx_vulkan.codegen.params import Params
from onnx_vulkan.dims import product
from onnx_vulkan.program.ir import Instr, Value

__all__ = ["loop_kernel"]


def loop_kernel(
    label: str, outputs: Sequence[Value], producers: Mapping[Value, Instr], is_leaf: Callable[[Value], bool]
) -> Kernel:
    """Render a loop kernel. *producers* holds the instructions computed inside, *is_leaf* what is loaded from memory."""
    shape = outputs[0].shape
    params = Params()
    hole = fill_hole(params, shape, [("i", range(len(shape)))], outputs, producers, is_leaf)
    total = product(shape)
    body = f"""layout(local_size_x_id = 0) in;
layout(constant_id = 1) const uint ITEMS = 1u;

void main() {{
    uint group = gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x;
    int first = int(group * gl_WorkGroupSize.x * ITEMS + gl_LocalInvocationID.x);
    [[unroll]] for (uint item = 0u; item < ITEMS; item++) {{
        int i = first + int(item * gl_WorkGroupSize.x);
        if (i >= {params.word(total)}) return;
{hole.text(8)}
    }}
}}
"""

    def choose(at: At, limits: Limits) -> Variant:
        count = at(total)
        size = min(64 if count < 64 * 1024 else 256, limits.max_workgroup_invocations)
        items = 4 if count >= 1 << 20 else 1
        return Variant((size, items), grid_of(workgroups(total, size * items)))

    return Kernel(label, params, body, hole.reads, tuple(outputs), choose)
