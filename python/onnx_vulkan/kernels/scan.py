"""Running sums and products (primitive ``scan``): a workgroup a line, or a thread a line where they are many or short."""

from __future__ import annotations

from onnx_vulkan.codegen.index import row_major
from onnx_vulkan.codegen.kernel import At, Kernel, Limits, Variant, grid_of, workgroups
from onnx_vulkan.codegen.params import Params
from onnx_vulkan.codegen.types import GLSL_TYPES, pack
from onnx_vulkan.dtypes import REAL
from onnx_vulkan.kernels import Group, family
from onnx_vulkan.kernels.indexing import FLAT_GROUP, load, rows_of
from onnx_vulkan.program.ir import Instr

__all__ = ["scan_kernel"]

ITEMS = 4
"""Elements that a thread of a workgroup adds up by itself before the workgroup combines."""


def _supports(instr: Instr) -> str | None:
    dtype = instr.inputs[0].dtype
    return None if dtype in REAL else f"a running {instr.attrs['fn']} of {dtype.onnx_name} is not supported"


@family("scan", _supports, views=frozenset({0}))
def scan_kernel(group: Group) -> Kernel:
    """The kernel of one scan. Half floats are summed in float32; integers wrap to their width when they are stored."""
    instr, params, view = group.anchor, Params(), group.view(0)
    a, out = instr.attrs, instr.out
    compute = GLSL_TYPES[out.dtype].compute
    params.use(out.dtype)
    rows = rows_of(params, out.shape, a["axis"], [(view.strides, view.offset), (row_major(out.shape), 0)])
    identity, sign = (f"{compute}(0)", "+") if a["fn"] == "sum" else (f"{compute}(1)", "*")
    length, count = params.word(rows.length), params.word(rows.count)
    place = f"{length} - 1 - i" if a["reverse"] else "i"
    x = load(params, view, rows.at(0, "p"))
    target = f"{params.write(out)}.v[{rows.at(1, 'p')}]"
    split = "\n    ".join(rows.split("row"))
    thread_store = f"{target} = {pack(out.dtype, 'sum')};"
    shared_store = f"if (i < {length}) {target} = {pack(out.dtype, 'sum')};"
    add, exclusive = f"sum = sum {sign} x[q];", a["exclusive"]
    thread_body = [thread_store, f"sum = sum {sign} x;"] if exclusive else [f"sum = sum {sign} x;", thread_store]
    shared_body = [shared_store, add] if exclusive else [add, shared_store]
    newline = "\n            "
    body = f"""layout(local_size_x_id = 0) in;
layout(constant_id = 1) const bool SHARED = false;  // a workgroup a line
layout(constant_id = 2) const uint THREADS = 1u;    // the workgroup's size where SHARED

shared {compute} totals[THREADS];

void main() {{
    uint group = {FLAT_GROUP};
    int row = SHARED ? int(group) : int(group * gl_WorkGroupSize.x + gl_LocalInvocationID.x);
    if (row >= {count}) return;
    {split}
    if (!SHARED) {{
        {compute} sum = {identity};
        for (int i = 0; i < {length}; i++) {{
            int p = {place};
            {compute} x = {x};
            {newline.join(thread_body)}
        }}
        return;
    }}
    uint me = gl_LocalInvocationID.x;
    {compute} carry = {identity};
    for (int first = 0; first < {length}; first += int(THREADS) * {ITEMS}) {{
        {compute} x[{ITEMS}];
        {compute} total = {identity};
        [[unroll]] for (int q = 0; q < {ITEMS}; q++) {{
            int i = first + int(me) * {ITEMS} + q;
            int p = {place};
            x[q] = {identity};
            if (i < {length}) x[q] = {x};
            total = total {sign} x[q];
        }}
        totals[me] = total;
        barrier();
        for (uint step = 1u; step < THREADS; step <<= 1) {{
            {compute} before = me >= step ? totals[me - step] : {identity};
            barrier();
            totals[me] = before {sign} totals[me];
            barrier();
        }}
        {compute} sum = me > 0u ? carry {sign} totals[me - 1u] : carry;
        [[unroll]] for (int q = 0; q < {ITEMS}; q++) {{
            int i = first + int(me) * {ITEMS} + q;
            int p = {place};
            {newline.join(shared_body)}
        }}
        carry = carry {sign} totals[THREADS - 1u];
        barrier();
    }}
}}
"""

    def choose(at: At, limits: Limits) -> Variant:
        lines, n = at(rows.count), at(rows.length)
        if n <= 16 or lines >= 16384:
            size = min(64, limits.max_workgroup_invocations)
            return Variant((size, 0, 1), grid_of(workgroups(rows.count, size)))
        size = 256 if n > 512 else 64
        return Variant((size, 1, size), grid_of(rows.count))

    return Kernel(group.label, params, body, (view.leaf,), (out,), choose)
