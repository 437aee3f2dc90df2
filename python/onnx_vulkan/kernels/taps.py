"""Implicit GEMM: GLSL that reads a channels-last image as a matrix whose rows are places and whose K axis is (tap, channel).

A place and a tap each contribute to the input coordinate along every spatial axis, and the two add up (:class:`Axis`). So
convolution (``o * stride - pad`` and ``t * dilation``) and transposed convolution (a phase of it at a time) are the same code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from onnx_vulkan.codegen.kernel import At, is_multiple
from onnx_vulkan.codegen.params import Params
from onnx_vulkan.dims import Extent, minimum, product
from onnx_vulkan.kernels.indexing import split_index
from onnx_vulkan.kernels.matrix_units import Unit
from onnx_vulkan.kernels.operand import chunk_reader, reader
from onnx_vulkan.program.ir import Value

__all__ = ["Axis", "depth_of", "image_functions", "image_mode"]


@dataclass(frozen=True, slots=True)
class Axis:
    """One spatial axis. ``place`` is the coordinate's part of a place ``o`` and ``tap`` that of a tap ``t``, as GLSL; of places
    there are ``places``, of taps ``taps``, and ``extent`` elements of the input. ``valid``: a condition on the tap, or empty."""

    extent: Extent
    places: Extent
    taps: Extent
    place: str
    tap: str
    valid: str = ""


def depth_of(x: Value, taps: Sequence[Extent], per_group: Extent) -> Extent:
    """The extent of the K axis: taps times channels, and 0 for an empty image, which only padding can be read from."""
    return product([*taps, per_group, minimum(product(x.shape), 1)])


def image_mode(at: At, x: Value, per_group: Extent, unit: Unit | None) -> int:
    """The MODE bits (``operand.Operand.mode``) of image *x*: a quad, or chunk, of channels is one vector where it lies in one tap
    and starts on a multiple of its length in memory."""

    def vectors(length: int) -> bool:
        return is_multiple(at, per_group, length) and is_multiple(at, x.shape[-1], length)

    chunks = unit is not None and unit.holds(x.dtype) and vectors(unit.chunk)
    return int(vectors(4)) << 1 | int(chunks) << 2


def image_functions(params: Params, x: Value, axes: Sequence[Axis], batch: Extent, per_group: Extent) -> str:
    """``A_ROW``, ``a_row``, ``k_step`` and ``a_quad`` of ``gemm_tile.glsl`` for image *x* ``[batch, *extents, C]``, *per_group*
    channels from ``x_base`` on (which ``begin`` sets); ``Tap tap_of(int k, out int channel)`` for an operand of weights.

    With TAP_STEP every step of K lies in one tap, so that its place is worked out once a step; with A_VECTOR every quad does.
    Loads stand under no condition (see ``operand.Matrix``): what is outside reads the first element, so an empty image must come
    with an empty K axis (:func:`depth_of`).
    """
    rank = len(axes)
    names = [f"i{d}" for d in range(rank)]
    fields = " ".join(f"int {n};" for n in names)
    channels = x.shape[-1]

    def offset(of: str, lead: str) -> str:
        """Row-major offset of a place's or a tap's coordinates."""
        text = lead
        for d, n in enumerate(names):
            text = f"({text}) * {params.word(axes[d].extent)} + {of}.{n}" if text else f"{of}.{n}"
        return f"({text}) * {params.word(channels)}"

    places = split_index(params, "m", [("n", batch), *((f"o{d}", a.places) for d, a in enumerate(axes))])
    taps = split_index(params, "t", [(f"t{d}", a.taps) for d, a in enumerate(axes)])
    inside = " && ".join(f"uint(row.{n} + tap.{n}) < uint({params.word(a.extent)})" for n, a in zip(names, axes, strict=True))
    single = product(a.taps for a in axes) == 1
    channel_of = (
        "int t = 0; channel = k;"
        if single
        else f"int t = divide(k, {params.divisor(per_group)}); channel = k - t * {params.word(per_group)};"
    )
    place_lines, tap_lines = "\n    ".join(places), "\n    ".join(taps)
    row = "\n    ".join(f"row.i{d} = {a.place.format(o=f'o{d}')};" for d, a in enumerate(axes))
    tap = "\n    ".join(f"tap.i{d} = {a.tap.format(t=f't{d}')};" for d, a in enumerate(axes))
    checks = "".join(f"\n    if (!({a.valid.format(t=f't{d}')})) tap.i0 = NOWHERE;" for d, a in enumerate(axes) if a.valid)
    weights = "\n    ".join(f"tap.t{d} = t{d};" for d in range(rank)) if checks else ""
    weight_fields = " " + " ".join(f"int t{d};" for d in range(rank)) if checks else ""
    return f"""{reader(params, "x", x)}
int x_base;

struct Row {{ int at; {fields} }};
struct Tap {{ int at; {fields}{weight_fields} }};
const int NOWHERE = -0x40000000;

#define A_ROW Row
#define A_ROW_AT(row, d) row
Row a_row(int m) {{
    m = min(m, SIZE_M - 1);
    {place_lines}
    Row row;
    {row}
    row.at = x_base + {offset("row", "n")};
    return row;
}}

Tap tap_of(int k, out int channel) {{
    {channel_of}
    {tap_lines}
    Tap tap;
    {tap}
    tap.at = {offset("tap", "")};
    {weights}{checks}
    return tap;
}}

Tap step_tap;
int step_channel;
int step_k;
void k_step(int k) {{
    step_k = k;
    if (TAP_STEP != 0) step_tap = tap_of(k, step_channel);
}}

bool is_inside(Row row, Tap tap) {{ return {inside}; }}

T4 a_quad(Row row, int k, int k_end) {{
    T4 q;
    if (A_VECTOR) {{
        int channel = step_channel + k - step_k;
        Tap tap = step_tap;
        if (TAP_STEP == 0) tap = tap_of(k, channel);
        bool inside = (K_WHOLE || k < k_end) && is_inside(row, tap);
        q = x_quad_at(inside ? row.at + tap.at + channel : 0);
        q = inside ? q : T4(0);
    }} else {{
        [[unroll]] for (int c = 0; c < 4; c++) {{
            int channel = step_channel + k + c - step_k;
            Tap tap = step_tap;
            if (TAP_STEP == 0) tap = tap_of(k + c, channel);
            bool inside = (K_WHOLE || k + c < k_end) && is_inside(row, tap);
            T x = x_at(inside ? row.at + tap.at + channel : 0);
            q[c] = inside ? x : T(0);
        }}
    }}
    return q;
}}
#ifdef CHUNK
#define A_CHUNK a_chunk
{chunk_reader(params, "x", x)}
uvec4 a_chunk(Row row, int k, int k_end) {{
    int channel = step_channel + k - step_k;
    Tap tap = step_tap;
    if (TAP_STEP == 0) tap = tap_of(k, channel);
    bool inside = (K_WHOLE || k < k_end) && is_inside(row, tap);
    uvec4 chunk = x_chunk_at(inside ? row.at + tap.at + channel : 0);
    return inside ? chunk : uvec4(0);
}}
#endif
"""
