"""Pooling windows (``window`` kinds max, avg, lp) on channels-last data: one thread an output element, channels across lanes.

Along each axis the taps that fall on the input are a range, so the loops have no test inside. Kernel sizes, strides, dilations
and pads are parameters: one text serves every pooling of a rank and kind.
"""

from __future__ import annotations

import numpy as np

from onnx_vulkan.codegen import functions
from onnx_vulkan.codegen.hole import fill_hole
from onnx_vulkan.codegen.kernel import Kernel
from onnx_vulkan.codegen.params import Params
from onnx_vulkan.codegen.types import GLSL_TYPES
from onnx_vulkan.dims import product
from onnx_vulkan.dtypes import FLOATS, REAL, DType
from onnx_vulkan.kernels import Group, family
from onnx_vulkan.kernels.indexing import FLAT_GROUP, flat_grid, load, offset_text, split_index
from onnx_vulkan.program.ir import Instr, Value

__all__ = ["pool_kernel"]

MAX_SPATIAL = 3

_RANGE = """// The taps k in 0 .. kernel-1 with low <= base + k * dilation < high: first and one past the last.
ivec2 tap_range(int base, int low, int high, int dilation, int kernel) {
    int first = base < low ? (low - base + dilation - 1) / dilation : 0;
    int last = base < high ? min((high - base + dilation - 1) / dilation, kernel) : 0;
    return ivec2(first, max(first, last));
}
"""


def _supports(instr: Instr) -> str | None:
    kind, dtype = instr.attrs["kind"], instr.inputs[0].dtype
    if len(instr.attrs["kernel"]) > MAX_SPATIAL:
        return f"pooling over {len(instr.attrs['kernel'])} spatial axes is not supported, at most {MAX_SPATIAL} are"
    if dtype not in (REAL if kind == "max" else FLOATS):
        return f"{kind} pooling of {dtype.onnx_name} is not supported"
    if kind != "max" and instr.attrs["acc"] is not (DType.F64 if dtype is DType.F64 else DType.F32):
        return f"{kind} pooling of {dtype.onnx_name} cannot accumulate in {instr.attrs['acc'].onnx_name}"
    if kind == "lp" and instr.attrs["p"] not in (1, 2) and not functions.has_function("pow", dtype):
        return f"lp pooling of {dtype.onnx_name} with exponent {instr.attrs['p']} is not supported"
    return None


def _lowest(dtype: DType) -> str:
    """The GLSL of the least value of a type's compute type."""
    compute = GLSL_TYPES[dtype].compute
    if dtype in FLOATS:
        return f"-ov_inf({compute}(0))"
    if not dtype.is_signed:
        return f"{compute}(0)"
    least = -(1 << (8 * dtype.size - 1))
    return f"{compute}({least + 1}{'l' if dtype is DType.I64 else ''}) - {compute}(1)"


@family("window:max", _supports, views=frozenset({0}), epilogue=True)
@family("window:avg", _supports, views=frozenset({0}), epilogue=True)
@family("window:lp", _supports, views=frozenset({0}), epilogue=True)
def pool_kernel(group: Group) -> Kernel:
    """The kernel of one pooling window and its epilogue."""
    instr, params = group.anchor, Params()
    a, x, view = instr.attrs, instr.inputs[0], group.view(0)
    kind, out = a["kind"], instr.outputs[0]
    spatial = range(len(a["kernel"]))
    total = product(out.shape)
    params.use(out.dtype)

    names = ["n", *(f"o{i}" for i in spatial), "c"]
    lines = [f"if (i >= {params.word(total)}) return;", *split_index(params, "i", list(zip(names, out.shape, strict=True)))]
    for i in spatial:
        extent, dilation = params.word(x.shape[1 + i]), params.word(a["dilations"][i])
        kernel, pad = params.word(a["kernel"][i]), params.word(a["pads_begin"][i])
        lines.append(f"int base{i} = o{i} * {params.word(a['strides'][i])} - {pad};")
        lines.append(f"ivec2 taps{i} = tap_range(base{i}, 0, {extent}, {dilation}, {kernel});")
    at = [f"(base{i} + k{i} * {params.word(a['dilations'][i])})" for i in spatial]
    loops = [f"for (int k{i} = taps{i}.x; k{i} < taps{i}.y; k{i}++) {{" for i in spatial]
    cell = load(params, view, offset_text(params, ["n", *at, "c"], view.strides, view.offset))
    before, inside, after, given = _ACCUMULATE[kind](params, instr, cell, at)
    lines += [*before, *loops, *inside, "}" * len(spatial), *after]

    axes = [(name, [axis]) for axis, name in enumerate(names)]
    hole = fill_hole(params, out.shape, axes, group.outputs, group.producers, group.is_leaf, given)
    text = "\n".join(f"    {line}" for line in lines)
    body = f"""layout(local_size_x_id = 0) in;

{_RANGE}
void main() {{
    int i = int({FLAT_GROUP} * gl_WorkGroupSize.x + gl_LocalInvocationID.x);
{text}
{hole.text()}
}}
"""
    reads = tuple(dict.fromkeys([view.leaf, *hole.reads]))
    return Kernel(group.label, params, body, reads, group.outputs, flat_grid(total))


Accumulate = tuple[list[str], list[str], list[str], dict[Value, str]]
"""Statements before, inside and after the loops over the taps, and what is known of the outputs then."""


def _max(params: Params, instr: Instr, cell: str, at: list[str]) -> Accumulate:
    """The first largest cell; a NaN counts as larger than anything, so the first NaN stays."""
    dtype, compute = instr.inputs[0].dtype, GLSL_TYPES[instr.inputs[0].dtype].compute
    better = "x > best || (ov_isnan(x) && !ov_isnan(best))" if dtype in FLOATS else "x > best"
    before = [f"{compute} best = {_lowest(dtype)};"]
    given = {instr.outputs[0]: "best"}
    if len(instr.outputs) == 1:
        return before, [f"{compute} x = {cell};", f"if ({better}) best = x;"], [], given
    params.use(DType.I64)
    flat = at[0]
    for i, text in enumerate(at[1:], 1):
        flat = f"({flat} * {params.word(instr.inputs[0].shape[1 + i])} + {text})"
    inside = [f"{compute} x = {cell};", f"if (index < 0 || {better}) {{", "    best = x;", f"    index = {flat};", "}"]
    given[instr.outputs[1]] = "ov_long(max(index, 0))"
    return [*before, "int index = -1;"], inside, [], given


def _avg(params: Params, instr: Instr, cell: str, at: list[str]) -> Accumulate:
    """The sum of the cells over how many there are, or how many of the window lie inside the pads."""
    a, compute = instr.attrs, GLSL_TYPES[instr.attrs["acc"]].compute
    before, ranges = [f"{compute} sum = {compute}(0);"], [f"taps{i}" for i in range(len(at))]
    if a["count_include_pad"]:
        for i in range(len(at)):
            low, high = params.word(-a["pads_begin"][i]), params.word(instr.inputs[0].shape[1 + i] + a["pads_end"][i])
            dilation, kernel = params.word(a["dilations"][i]), params.word(a["kernel"][i])
            before.append(f"ivec2 counted{i} = tap_range(base{i}, {low}, {high}, {dilation}, {kernel});")
        ranges = [f"counted{i}" for i in range(len(at))]
    count = " * ".join(f"({r}.y - {r}.x)" for r in ranges)
    after = [f"sum = sum / {compute}(max({count}, 1));"]
    return before, [f"sum += {compute}({cell});"], after, {instr.outputs[0]: "sum"}


def _lp(params: Params, instr: Instr, cell: str, at: list[str]) -> Accumulate:
    """The p-th root of the sum of the p-th powers of magnitudes."""
    acc, p = instr.attrs["acc"], instr.attrs["p"]
    compute = GLSL_TYPES[acc].compute
    before = [f"{compute} sum = {compute}(0);"]
    if p == 1:
        return before, [f"sum += abs({cell});"], [], {instr.outputs[0]: "sum"}
    if p == 2:
        return before, [f"{compute} x = {cell};", "sum += x * x;"], ["sum = sqrt(sum);"], {instr.outputs[0]: "sum"}
    power, root = (params.literal(Value(acc, (), "", np.asarray(e, acc.numpy).reshape(()))) for e in (float(p), 1.0 / float(p)))
    inside = [f"sum += {functions.call('pow', acc, [f'abs({cell})', power])};"]
    after = [f"sum = {functions.call('pow', acc, ['sum', root])};"]
    return before, inside, after, {instr.outputs[0]: "sum"}


_ACCUMULATE = {"max": _max, "avg": _avg, "lp": _lp}
