"""Direct convolution and transposed convolution (``conv_direct.glsl``) for groups too narrow to be matrix products."""

from __future__ import annotations

from onnx_vulkan.codegen.choices import pick
from onnx_vulkan.codegen.kernel import At, Kernel, Limits, Variant, grid_of, workgroups
from onnx_vulkan.codegen.params import Params
from onnx_vulkan.dims import Extent, ceil_div, product
from onnx_vulkan.kernels import Group, key_of
from onnx_vulkan.kernels.indexing import split_index
from onnx_vulkan.kernels.operand import accumulator, reader
from onnx_vulkan.kernels.product import Destination, store
from onnx_vulkan.kernels.taps import depth_of
from onnx_vulkan.kernels.tiles import power_of_two

__all__ = ["direct_kernel", "is_narrow"]

NARROW = 16
FEW_CHANNELS = 2
WIDTHS = (3, 5, 7)
"""Kernel widths that a thread's registers are laid out for, at strides 1 and 2 (together at most 6 variants)."""
MANY_OUTPUTS = 1 << 22


def is_narrow(groups: int, per_group: Extent, out_group: Extent) -> bool:
    """Whether a group's matrix is so narrow that a tile of 32 columns would stay half empty: depthwise convolution above all.

    A whole convolution is narrow only with a handful of output channels (the last layer of a segmentation head: one): its inputs
    are read once for each of them.
    """
    if not isinstance(out_group, int) or not isinstance(per_group, int):
        return False
    if groups == 1:
        return out_group <= FEW_CHANNELS and per_group <= 4 * NARROW
    return out_group < NARROW and per_group <= 2 * NARROW


def direct_kernel(group: Group) -> Kernel:
    """The kernel of a ``conv`` or ``conv_transpose`` window."""
    instr, params = group.anchor, Params()
    x, w = instr.inputs
    attrs, out, rank = instr.attrs, instr.out, x.rank
    transposed, groups = attrs["kind"] == "conv_transpose", attrs["groups"]
    kernel, channels, columns = w.shape[:-2], x.shape[-1], out.shape[-1]
    per_group, out_group = channels // groups, columns // groups
    last = rank - 3

    def coordinate(d: int, o: str, t: str) -> str:
        stride, pad, dilation = (params.word(attrs[a][d]) for a in ("strides", "pads_begin", "dilations"))
        if transposed:
            return f"exact({o} + {pad} - {t} * {dilation}, {stride})"
        return f"{o} * {stride} - {pad} + {t} * {dilation}"

    outer = range(last)
    places = split_index(params, "row", [("n", x.shape[0]), *((f"o{d}", out.shape[d + 1]) for d in outer)])
    taps = split_index(params, "tap", [(f"t{d}", kernel[d]) for d in outer])
    globals_ = " ".join(f"int g{d};" for d in outer)
    kept = " ".join(f"g{d} = o{d};" for d in outer)
    at, checks = "g_n", []
    for d in outer:
        checks.append(f"int i{d} = {coordinate(d, f'g{d}', f't{d}')};")
        checks.append(f"if (uint(i{d}) >= uint({params.word(x.shape[d + 1])})) return false;")
        at = f"({at}) * {params.word(x.shape[d + 1])} + i{d}"
    # weights: conv [*kernel, C / groups, M], transposed [*kernel, C, M / groups]
    if transposed:
        w_base = f"(g * {params.word(per_group)}) * {params.word(out_group)} + channel - g * {params.word(out_group)}"
        w_tap, w_channel = channels * out_group, out_group
    else:
        w_base, w_tap, w_channel = "channel", per_group * columns, columns
    to = Destination([("row", range(rank - 2)), ("x", (rank - 2,)), ("channel", (rank - 1,))])
    text, reads = store(group, params, to, None, "int row, int x, int channel")
    lines = "\n    "
    body = f"""{accumulator(params, attrs["acc"])}#define ROWS {params.word(product(out.shape[: rank - 2]))}
#define SIZE_X {params.word(out.shape[rank - 2])}
#define SIZE_C {params.word(columns)}
#define DIVIDE_C(i) divide(i, {params.divisor(columns)})
#define TAPS {params.word(depth_of(x, kernel[:last], 1))}
#define TAPS_X {params.word(kernel[last])}
#define PER_GROUP {params.word(per_group)}
#define CHANNELS {params.word(channels)}
#define EXTENT_X {params.word(x.shape[rank - 2])}
#define W_TAP {params.word(w_tap)}
#define W_CHANNEL {params.word(w_channel)}
#include "conv_direct_variant.glsl"
{reader(params, "x", x)}{reader(params, "w", w)}
int x_base, w_base, g_n;
{globals_}
// v / s where s divides it, else -1
int exact(int v, int s) {{ return v >= 0 && uint(v) % uint(s) == 0u ? int(uint(v) / uint(s)) : -1; }}
void begin(int row, int channel) {{
    {lines.join(places)}
    g_n = n; {kept}
    int g = divide(channel, {params.divisor(out_group)});
    x_base = g * {params.word(per_group)};
    w_base = {w_base};
}}
bool source(int tap, out int at) {{
    at = 0;
    {lines.join([*taps, *checks])}
    at = ({at}) * EXTENT_X * CHANNELS;
    return true;
}}
int column(int x, int tap) {{ return {coordinate(last, "x", "tap")}; }}
{text}#include "conv_direct.glsl"
"""

    def choose(at: At, limits: Limits) -> Variant:
        width, stride = at(kernel[last]), attrs["strides"][last]
        fixed = not transposed and at(per_group) == 1 and attrs["dilations"][last] == 1 and width in WIDTHS and stride in (1, 2)
        # Measured on an H200: 4 outputs a thread are best down to 7 x 7 images, 8 only pay where there are very many.
        count = at(product(out.shape))
        most = 8 if stride == 1 and count >= MANY_OUTPUTS else 4
        across = power_of_two(at(out.shape[rank - 2]))
        each, size = pick(
            key_of(instr),
            lambda: made,
            {"outputs": count, "across": at(out.shape[rank - 2]), "channels": at(columns)},
            at,
            limits,
            (min(most if fixed else 2, across), min(128, limits.max_workgroup_invocations)),
            lambda: [
                (each, size)
                for each in (1, 2, 4, 8)
                if each <= across
                for size in (64, 128, 256)
                if size <= limits.max_workgroup_invocations
            ],
            lambda c: f"direct, {c[0]} outputs a thread, {c[1]} threads",
        )
        threads = product(out.shape[: rank - 2]) * ceil_div(out.shape[rank - 2], each) * columns
        return Variant((size, each, width if fixed else 0, stride if fixed else 1), grid_of(workgroups(threads, size)))

    reads = tuple(dict.fromkeys((x, w, *reads)))
    made = Kernel(group.label, params, body, reads, group.outputs, choose)
    return made
