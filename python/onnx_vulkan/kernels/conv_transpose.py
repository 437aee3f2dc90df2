"""The ``window:conv_transpose`` family, gathering: each output sums the taps that reach it.

With stride s only every s-th tap reaches a given output. So outputs are sorted into phases, ``(o + pad) mod s`` along each axis,
and each phase is a convolution of stride 1 over the taps of its own: no tap is multiplied in vain but those that fill up a phase
with fewer taps than the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd, prod

from onnx_vulkan.codegen.kernel import At, Step, is_multiple
from onnx_vulkan.codegen.params import Params
from onnx_vulkan.dims import Extent, ceil_div, product
from onnx_vulkan.kernels import Group, family
from onnx_vulkan.kernels.conv import MAX_SPATIAL
from onnx_vulkan.kernels.depthwise import direct_kernel, is_narrow
from onnx_vulkan.kernels.indexing import split_index
from onnx_vulkan.kernels.matrix_units import Unit
from onnx_vulkan.kernels.operand import reader
from onnx_vulkan.kernels.product import Destination, Sizes, TiledStep, refusal
from onnx_vulkan.kernels.taps import Axis, depth_of, image_functions, image_mode
from onnx_vulkan.program.ir import Instr

__all__ = ["conv_transpose_step"]


@dataclass(frozen=True, slots=True)
class _Phases:
    """One axis of stride s and dilation d, g their greatest common divisor. Phase p takes the taps k with k * d = p (mod s): from
    ``first(p)`` on every ``s / g``-th, each ``d / g`` elements of the input before the one before it.

    ``o = f + s * j`` with ``f = (p - pad) mod s`` are the outputs of phase p, and tap ``first + t * s / g`` of output j reads
    input ``j + (f + pad - first * d) / s - t * d / g``.
    """

    stride: int
    dilation: int
    kernel: int
    pad: Extent
    extent: Extent
    out: Extent

    @property
    def shared(self) -> int:
        return gcd(self.stride, self.dilation)

    @property
    def step(self) -> int:
        """From one tap of a phase to the next."""
        return self.stride // self.shared

    @property
    def places(self) -> Extent:
        return ceil_div(self.out, self.stride)

    @property
    def taps(self) -> int:
        return -(-self.kernel // self.step)

    def first(self, p: int) -> int:
        """The first tap of phase p; the kernel's size where there is none."""
        return next((k for k in range(self.step) if k * self.dilation % self.stride == p), self.kernel)

    def begin(self, params: Params, d: int) -> list[str]:
        """Statements that set, from p{d}, f{d} (the first output), first{d} and lead{d} (output 0 and tap 0's input)."""
        s = self.stride
        pad, whole = params.word(self.pad % s), params.word(self.pad // s)
        lines = [f"f{d} = p{d} - {pad} + (p{d} < {pad} ? {s} : 0);"]
        if self.dilation % s == 1 % s:  # the usual case: first(p) = p, whatever the sizes
            lines.append(f"first{d} = p{d};")
            turns = f" - p{d} * {self.dilation // s}" if self.dilation // s and s > 1 else ""
        else:
            table = [self.first(p) for p in range(s)]
            lines.append(f"first{d} = int[]({', '.join(map(str, table))})[p{d}];")
            turns = f" - (first{d} * {self.dilation} - p{d}) / {s}"
        lines.append(f"lead{d} = {whole} + (p{d} < {pad} ? 1 : 0){turns};")
        return lines


def _supports(instr: Instr) -> str | None:
    spatial = instr.inputs[0].rank - 2
    if not 1 <= spatial <= MAX_SPATIAL:
        return f"a transposed convolution over {spatial} spatial axes is not supported, 1 to {MAX_SPATIAL} are"
    return refusal(instr)


@family("window:conv_transpose", _supports, epilogue=True)
def conv_transpose_step(group: Group) -> Step:
    """The step of a transposed convolution: x ``[N, *spatial, C]``, w ``[*kernel, C, M / groups]``."""
    instr = group.anchor
    x, w = instr.inputs
    attrs, out, rank = instr.attrs, instr.out, x.rank
    groups, channels, out_group = attrs["groups"], x.shape[-1], w.shape[-1]
    per_group = channels // groups
    if is_narrow(groups, per_group, out_group):
        return direct_kernel(group)
    axes = [
        _Phases(s, d, k, pad, e, o)
        for s, d, k, pad, e, o in zip(
            attrs["strides"],
            attrs["dilations"],
            attrs["kernel"],
            attrs["pads_begin"],
            x.shape[1:-1],
            out.shape[1:-1],
            strict=True,
        )
    ]
    spatial = range(len(axes))
    rows = product([x.shape[0], *(a.places for a in axes)])
    sizes = Sizes(groups * prod(a.stride for a in axes), rows, out_group, depth_of(x, [a.taps for a in axes], per_group))

    def operands(params: Params) -> str:
        image = [
            Axis(
                a.extent,
                a.places,
                a.taps,
                f"{{o}} + lead{d}",
                f"-({{t}} * {params.word(a.dilation // a.shared)})",
                f"first{d} + {{t}} * {params.word(a.step)} < {params.word(a.kernel)}",
            )
            for d, a in enumerate(axes)
        ]
        phases = split_index(params, "z", [("g", groups), *((f"p{d}", a.stride) for d, a in enumerate(axes))])
        lines = [*phases, *(line for d, a in enumerate(axes) for line in a.begin(params, d))]
        lines += [f"x_base = g * {params.word(per_group)};", "w_group = g;"]
        names = [f"{n}{d}" for n in ("f", "first", "lead") for d in spatial]
        place = "0"
        for d, a in enumerate(axes):
            place = f"({place}) * {params.word(a.kernel)} + first{d} + tap.t{d} * {params.word(a.step)}"
        body = "\n    ".join(lines)
        return f"""int {", ".join(names)}, w_group;
{image_functions(params, x, image, x.shape[0], per_group)}
{reader(params, "w", w)}
void begin(int z) {{
    {body}
}}
T4 b_quad(int n, int k, int k_end) {{
    int channel = step_channel + k - step_k;
    Tap tap = step_tap;
    if (TAP_STEP == 0) tap = tap_of(k, channel);
    bool inside = k < k_end && tap.i0 != NOWHERE;
    int at = inside ? (({place}) * {params.word(channels)} + x_base + channel) * {params.word(out_group)} : 0;
    T4 q;
    if (B_VECTOR) q = w_quad_at(at + min(n, SIZE_N - 4));
    else [[unroll]] for (int c = 0; c < 4; c++) q[c] = w_at(at + min(n + c, SIZE_N - 1));
    return inside ? q : T4(0);
}}
"""

    def modes(at: At, bk: int, unit: Unit | None) -> tuple[int, int, int]:
        wide = is_multiple(at, out_group, 4)
        return image_mode(at, x, per_group, unit), 1 | int(wide) << 1, int(is_multiple(at, per_group, bk))

    return TiledStep(group, sizes, _destination(axes, groups, out_group, x.shape[0], rank), (x, w), operands, modes)


def _destination(axes: Sequence[_Phases], groups: int, out_group: Extent, batch: Extent, rank: int) -> Destination:
    def lines(params: Params) -> list[str]:
        text = split_index(params, "m", [("b", batch), *((f"j{d}", a.places) for d, a in enumerate(axes))])
        for d, a in enumerate(axes):
            text.append(f"int o{d} = f{d} + j{d} * {params.word(a.stride)};")
            text.append(f"if (o{d} >= {params.word(a.out)}) return;")
        if groups > 1:
            text.append(f"int channel = w_group * {params.word(out_group)} + n;")
        return text

    last = "n" if groups == 1 else "channel"
    return Destination([("b", (0,)), *((f"o{d}", (d + 1,)) for d in range(rank - 2)), (last, (rank - 1,))], lines)
