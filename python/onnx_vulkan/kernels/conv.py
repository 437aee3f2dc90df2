"""The ``window:conv`` family on channels-last data: 1x1 as a contraction, implicit GEMM, narrow groups by a direct kernel."""

from __future__ import annotations

from onnx_vulkan.codegen.kernel import At, Step, is_multiple
from onnx_vulkan.codegen.params import Params
from onnx_vulkan.dims import Extent, product
from onnx_vulkan.kernels import Group, family
from onnx_vulkan.kernels.contract import ContractStep
from onnx_vulkan.kernels.depthwise import direct_kernel, is_narrow
from onnx_vulkan.kernels.matrix_units import Unit
from onnx_vulkan.kernels.operand import Matrix
from onnx_vulkan.kernels.product import Destination, Sizes, TiledStep, refusal
from onnx_vulkan.kernels.taps import Axis, depth_of, image_functions, image_mode
from onnx_vulkan.program.ir import Instr

__all__ = ["MAX_SPATIAL", "conv_step", "output_places"]

MAX_SPATIAL = 3


def _supports(instr: Instr) -> str | None:
    spatial = instr.inputs[0].rank - 2
    if not 1 <= spatial <= MAX_SPATIAL:
        return f"a convolution over {spatial} spatial axes is not supported, 1 to {MAX_SPATIAL} are"
    return refusal(instr)


def output_places(rank: int, groups: int, per_group: Extent) -> Destination:
    """Row ``m`` is a place of the output, column ``n`` of product ``z`` a channel of group ``z``."""
    places = ("m", range(rank - 1))
    if groups == 1:
        return Destination([places, ("n", (rank - 1,))])
    return Destination([places, ("channel", (rank - 1,))], lambda params: [f"int channel = z * {params.word(per_group)} + n;"])


@family("window:conv", _supports, epilogue=True)
def conv_step(group: Group) -> Step:
    """The step of a convolution: x ``[N, *spatial, C]``, w ``[*kernel, C / groups, M]``."""
    instr = group.anchor
    x, w = instr.inputs
    attrs, out = instr.attrs, instr.out
    groups, rank = attrs["groups"], x.rank
    kernel, (per_group, columns) = w.shape[:-2], w.shape[-2:]
    out_group = columns // groups
    rows = product(out.shape[:-1])
    to = output_places(rank, groups, out_group)
    depth = depth_of(x, kernel, per_group)
    weights = Matrix(w, 0, ((groups, out_group),), out_group, 1, depth, columns)
    sizes = Sizes(groups, rows, out_group, depth)
    if is_narrow(groups, per_group, out_group):
        return direct_kernel(group)
    pointwise = all(e == 1 for e in kernel) and all(s == 1 for s in attrs["strides"]) and all(p == 0 for p in attrs["pads_begin"])
    if pointwise and x.shape[1:-1] == out.shape[1:-1]:
        image = Matrix(x, 0, ((groups, per_group),), rows, x.shape[-1], per_group, 1)
        return ContractStep(group, sizes, image, weights, to)

    def operands(params: Params) -> str:
        axes = [
            Axis(
                x.shape[d + 1],
                out.shape[d + 1],
                kernel[d],
                f"{{o}} * {params.word(attrs['strides'][d])} - {params.word(attrs['pads_begin'][d])}",
                f"{{t}} * {params.word(attrs['dilations'][d])}",
            )
            for d in range(rank - 2)
        ]
        return f"""{image_functions(params, x, axes, x.shape[0], per_group)}
{weights.functions(params, "b")}
void begin(int z) {{
    x_base = z * {params.word(per_group)};
    b_begin(z);
}}
"""

    def modes(at: At, bk: int, unit: Unit | None) -> tuple[int, int, int]:
        return image_mode(at, x, per_group, unit), weights.mode(at, unit), int(is_multiple(at, per_group, bk))

    return TiledStep(group, sizes, to, (x, w), operands, modes)
