"""The loop kernel: any set of elementwise and movement instructions, computed at each index of one or more outputs.

Outputs of one kernel have the same shape. Loop axes that every access walks in the same way are merged first, so an all-dense
chain has a single index and no divisions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from onnx_vulkan.codegen.index import ZERO, Lin, row_major
from onnx_vulkan.codegen.kernel import At, Kernel, Limits, Variant, grid_of, workgroups
from onnx_vulkan.codegen.params import Params
from onnx_vulkan.codegen.render import Renderer
from onnx_vulkan.codegen.types import pack
from onnx_vulkan.dims import Extent, product
from onnx_vulkan.program.ir import Instr, Value

__all__ = ["loop_kernel", "merge_axes"]


def merge_axes(names: Sequence[str], shape: Sequence[Extent], accesses: Sequence[Lin], opaque: set[str]) -> list[list[int]]:
    """Runs of adjacent axes that can be walked as one.

    Axis *i* joins *i + 1* when in every access its coefficient is the next one's times the next extent, and neither is used
    in another way. Axes of extent 1 are dropped.
    """
    runs: list[list[int]] = []
    previous = -1
    for i in [i for i, e in enumerate(shape) if e != 1]:
        joins = (
            previous >= 0
            and names[i] not in opaque
            and names[previous] not in opaque
            and all(a.coefficient(names[previous]) == a.coefficient(names[i]) * shape[i] for a in accesses)
        )
        if joins:
            runs[-1].append(i)
        else:
            runs.append([i])
        previous = i
    return runs


def _render(
    outputs: Sequence[Value],
    producers: Mapping[Value, Instr],
    is_leaf: Callable[[Value], bool],
    runs: Sequence[Sequence[int]] | None,
) -> tuple[Renderer, Params, list[str]]:
    shape = outputs[0].shape
    params = Params()
    r = Renderer(params, producers, is_leaf)
    names = [f"c{i}" for i in range(len(shape))]
    coords = [Lin.var(n) if e != 1 else ZERO for n, e in zip(names, shape, strict=True)]
    if runs is not None:
        for run in runs:
            for i in run:
                r.alias[names[i]] = None
            r.alias[names[run[-1]]] = names[run[-1]]
        extents = [product(shape[i] for i in run) for run in runs]
        index = Lin.var("i")
        for run, c in zip(runs, r.delinearize(index, extents, 0), strict=True):
            r.emit(f"int {names[run[-1]]} = {r.text(c)};")
    for out in outputs:
        text = r.value(out, coords)
        if runs is None:
            params.write(out)
        else:
            r.emit(f"{params.write(out)}.v[i] = {pack(out.dtype, text)};")
    return r, params, names


def loop_kernel(
    label: str, outputs: Sequence[Value], producers: Mapping[Value, Instr], is_leaf: Callable[[Value], bool]
) -> Kernel:
    """Render a loop kernel. *producers* holds the instructions computed inside, *is_leaf* what is loaded from memory."""
    shape = outputs[0].shape
    probe, _, names = _render(outputs, producers, is_leaf, None)
    accesses = [offset for _, offset in probe.loads]
    strides = row_major(shape)
    accesses.append(Lin(tuple(sorted((n, s) for n, s, e in zip(names, strides, shape, strict=True) if e != 1))))
    runs = merge_axes(names, shape, accesses, probe.opaque)
    r, params, _ = _render(outputs, producers, is_leaf, runs)
    total = product(shape)
    n = params.int(total)
    lines = "\n".join("        " + line for line in r.scopes[0].lines)
    body = f"""layout(local_size_x_id = 0) in;
layout(constant_id = 1) const uint ITEMS = 1u;

void main() {{
    uint group = gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x;
    int first = int(group * gl_WorkGroupSize.x * ITEMS + gl_LocalInvocationID.x);
    [[unroll]] for (uint item = 0u; item < ITEMS; item++) {{
        int i = first + int(item * gl_WorkGroupSize.x);
        if (i >= {n}) return;
{lines}
    }}
}}
"""

    def choose(at: At, limits: Limits) -> Variant:
        count = at(total)
        size = 64 if count < 64 * 1024 else 256
        size = min(size, limits.max_workgroup_invocations)
        items = 4 if count >= 1 << 20 else 1
        return Variant((size, items), grid_of(workgroups(total, size * items)))

    return Kernel(label, params, body, tuple(r.reads), tuple(outputs), choose)
