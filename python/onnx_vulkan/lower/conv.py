"""Convolutions: Conv, ConvTranspose and ConvInteger, on the ``window`` primitive in channels-last order.

Also the window arithmetic (padding, output extents) that pooling shares. Quantized convolution is in ``quantize``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from onnx_vulkan.dims import Extent, at_least, current_scope, evaluate, maximum, minimum, require_same
from onnx_vulkan.dtypes import FLOATS, DType
from onnx_vulkan.errors import ShapeMismatch, Unsupported
from onnx_vulkan.lower.registry import Host, LowerContext, lowers
from onnx_vulkan.program.builder import Builder
from onnx_vulkan.program.ir import Value

__all__ = ["Window", "channels_first", "channels_last", "convolve", "kernel_extents", "plan_window"]

BYTES = (DType.I8, DType.U8)


def channels_last(b: Builder, x: Value) -> Value:
    """``[N, C, *spatial]`` to ``[N, *spatial, C]``."""
    return b.transpose(x, (0, *range(2, x.rank), 1))


def channels_first(b: Builder, x: Value) -> Value:
    """``[N, *spatial, C]`` to ``[N, C, *spatial]``."""
    return b.transpose(x, (0, x.rank - 1, *range(1, x.rank - 1)))


@dataclass(frozen=True, slots=True)
class Window:
    """Where a sliding window lies on its input, an entry a spatial axis, and how many places it takes."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads_begin: tuple[Extent, ...]
    pads_end: tuple[Extent, ...]
    out: tuple[Extent, ...]


def per_axis(name: str, given: Sequence[int] | None, rank: int, default: int) -> tuple[int, ...]:
    """An attribute with one number a spatial axis, checked."""
    values = tuple(given) if given else (default,) * rank
    if len(values) != rank:
        raise Unsupported(f"{name} has {len(values)} entries for {rank} spatial axes")
    if default == 1 and any(v < 1 for v in values):
        raise Unsupported(f"{name} {list(values)} has an entry below 1")
    return values


def split_pads(pads: Sequence[int] | None, rank: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """ONNX's ``pads`` (all begins, then all ends)."""
    values = per_axis("pads", pads, 2 * rank, 0)
    if any(v < 0 for v in values):
        raise Unsupported(f"pads {list(values)} has a negative entry")
    return values[:rank], values[rank:]


def kernel_extents(w: Value, kernel_shape: Sequence[int] | None) -> tuple[int, ...]:
    """The kernel's extents, from the attribute or the weight's shape. They have to be known."""
    given = tuple(kernel_shape) if kernel_shape else w.shape[2:]
    if len(given) != w.rank - 2:
        raise Unsupported(f"kernel_shape has {len(given)} entries for {w.rank - 2} spatial axes")
    kernel = []
    for have, want in zip(w.shape[2:], given, strict=True):
        if not isinstance(want, int):
            raise Unsupported("the kernel's extents are not known before the run")
        require_same(have, want, "kernel_shape does not fit the weights")
        kernel.append(want)
    return tuple(kernel)


def checked_extents(extents: Sequence[Extent], what: str) -> tuple[Extent, ...]:
    """*extents*, none of them negative."""
    for e in extents:
        if not at_least(e, 0):
            shown = evaluate(e, current_scope().values or {})
            raise ShapeMismatch(f"{what}: the window does not fit, an output extent would be {shown}")
    return tuple(extents)


def plan_window(
    spatial: Sequence[Extent],
    kernel: Sequence[int],
    *,
    auto_pad: str,
    dilations: Sequence[int] | None,
    pads: Sequence[int] | None,
    strides: Sequence[int] | None,
    ceil_mode: int = 0,
) -> Window:
    """Padding and output extents by the formulas of Conv-11 and MaxPool-12.

    With ``ceil_mode`` a last window that would start in the padding at the end is left out (AveragePool-19, MaxPool-22; what
    ONNX Runtime does for every version).
    """
    rank = len(spatial)
    step, dil = per_axis("strides", strides, rank, 1), per_axis("dilations", dilations, rank, 1)
    begin: Sequence[Extent]
    end: Sequence[Extent]
    begin, end = split_pads(pads, rank)
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dil, strict=True)]
    if auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        out: list[Extent] = [-((-e) // s) for e, s in zip(spatial, step, strict=True)]
        total = [maximum((o - 1) * s + k - e, 0) for o, s, k, e in zip(out, step, reach, spatial, strict=True)]
        small, large = [t // 2 for t in total], [t - t // 2 for t in total]
        begin, end = (small, large) if auto_pad == "SAME_UPPER" else (large, small)
        return Window(tuple(kernel), step, dil, tuple(begin), tuple(end), tuple(out))
    if auto_pad == "VALID":
        begin, end = (0,) * rank, (0,) * rank
    elif auto_pad not in ("NOTSET", ""):
        raise Unsupported(f"auto_pad {auto_pad!r} is unknown")
    out = []
    for e, s, k, p, q in zip(spatial, step, reach, begin, end, strict=True):
        free = e + p + q - k
        if not ceil_mode:
            out.append(free // s + 1)
        elif isinstance(q, int) and q + s <= k:
            out.append(-((-free) // s) + 1)  # the last window always starts inside
        else:
            out.append(minimum(-((-free) // s), (e + p - 1) // s) + 1)
    return Window(tuple(kernel), step, dil, tuple(begin), tuple(end), checked_extents(out, "window"))


def convolve(
    b: Builder, x: Value, w: Value, window: Window, group: int, *, dtype: DType | None = None, acc: DType | None = None
) -> Value:
    """Convolution of ONNX-ordered *x* and *w*; the result stays channels-last."""
    require_same(x.shape[1], w.shape[1] * group, "input channels are not weight channels times group")
    (y,) = b.window(
        "conv",
        channels_last(b, x),
        b.transpose(w, (*range(2, w.rank), 1, 0)),
        out_channels=w.shape[0],
        out_spatial=window.out,
        kernel=window.kernel,
        strides=window.strides,
        dilations=window.dilations,
        pads_begin=window.pads_begin,
        pads_end=window.pads_end,
        dtype=dtype,
        acc=acc,
        groups=group,
    )
    return y


def check_ranks(x: Value, w: Value) -> None:
    """Convolutions take 1 to 3 spatial axes."""
    if x.rank != w.rank:
        raise ShapeMismatch(f"input of rank {x.rank} and weights of rank {w.rank}")
    if not 3 <= x.rank <= 5:
        raise Unsupported(f"an input of rank {x.rank}: 1 to 3 spatial axes are supported")


@lowers("Conv", versions=[1, 11, 22], dtypes={"x": FLOATS, "w": FLOATS, "bias": FLOATS}, note="1 to 3 spatial axes")
def conv(
    b: LowerContext,
    x: Value,
    w: Value,
    bias: Value | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: list[int] | None = None,
    group: int = 1,
    kernel_shape: list[int] | None = None,
    pads: list[int] | None = None,
    strides: list[int] | None = None,
) -> Value:
    """Conv."""
    check_ranks(x, w)
    window = plan_window(
        x.shape[2:], kernel_extents(w, kernel_shape), auto_pad=auto_pad, dilations=dilations, pads=pads, strides=strides
    )
    y = convolve(b, x, w, window, group)
    if bias is not None:
        y = b.map("add", y, bias)
    return channels_first(b, y)


@lowers("ConvInteger", versions=[10], dtypes={"x": BYTES, "w": BYTES}, note="1 to 3 spatial axes")
def conv_integer(
    b: LowerContext,
    x: Value,
    w: Value,
    x_zero_point: Value | None = None,
    w_zero_point: Value | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: list[int] | None = None,
    group: int = 1,
    kernel_shape: list[int] | None = None,
    pads: list[int] | None = None,
    strides: list[int] | None = None,
) -> Value:
    """ConvInteger: int32 sums of ``(x - x_zero_point) * (w - w_zero_point)``; padding stands for the zero point."""
    check_ranks(x, w)
    window = plan_window(
        x.shape[2:], kernel_extents(w, kernel_shape), auto_pad=auto_pad, dilations=dilations, pads=pads, strides=strides
    )
    x, w = centred(b, x, x_zero_point), centred(b, w, filter_zero_point(b, w, w_zero_point))
    return channels_first(b, convolve(b, x, w, window, group))


def centred(b: Builder, x: Value, zero_point: Value | None) -> Value:
    """``x - zero_point`` in int32. A zero point of one element applies to all."""
    wide = b.cast(x, DType.I32)
    if zero_point is None:
        return wide
    if zero_point.rank == 1 and zero_point.shape == (1,):
        zero_point = b.reshape(zero_point, ())
    return b.map("sub", wide, b.cast(zero_point, DType.I32))


def filter_zero_point(b: Builder, w: Value, zero_point: Value | None) -> Value | None:
    """A zero point for each output channel lies along the weights' axis 0."""
    if zero_point is None or zero_point.rank == 0 or zero_point.shape == (1,):
        return zero_point
    return b.reshape(zero_point, (zero_point.shape[0], *(1,) * (w.rank - 1)))


@lowers(
    "ConvTransposeWithDynamicPads",
    versions=[1],
    dtypes={"x": FLOATS, "w": FLOATS, "bias": FLOATS},
    domain="com.microsoft",
    note="1 to 3 spatial axes; pads must be known before the run",
)
def conv_transpose_with_pads(
    b: LowerContext,
    x: Value,
    w: Value,
    pads: Host | None = None,
    bias: Value | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: list[int] | None = None,
    group: int = 1,
    kernel_shape: list[int] | None = None,
    output_padding: list[int] | None = None,
    strides: list[int] | None = None,
) -> Value:
    """ConvTransposeWithDynamicPads of ONNX Runtime: ConvTranspose whose pads are an input."""
    known = [p for p in pads.ints() if isinstance(p, int)] if pads is not None else None
    if pads is not None and known is not None and len(known) != len(pads.items()):
        raise Unsupported("pads that depend on the run's shapes are not supported")
    y: Value = conv_transpose(
        b, x, w, bias, auto_pad=auto_pad, dilations=dilations, group=group, kernel_shape=kernel_shape,
        output_padding=output_padding, pads=known, strides=strides,
    )  # fmt: skip
    return y


@lowers("ConvTranspose", versions=[1, 11, 22], dtypes={"x": FLOATS, "w": FLOATS, "bias": FLOATS}, note="1 to 3 spatial axes")
def conv_transpose(
    b: LowerContext,
    x: Value,
    w: Value,
    bias: Value | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: list[int] | None = None,
    group: int = 1,
    kernel_shape: list[int] | None = None,
    output_padding: list[int] | None = None,
    output_shape: list[int] | None = None,
    pads: list[int] | None = None,
    strides: list[int] | None = None,
) -> Value:
    """ConvTranspose; the padding of ``output_shape`` and ``SAME_*`` by the formulas of ConvTranspose-11."""
    check_ranks(x, w)
    rank = x.rank - 2
    kernel = kernel_extents(w, kernel_shape)
    step, dil = per_axis("strides", strides, rank, 1), per_axis("dilations", dilations, rank, 1)
    extra = per_axis("output_padding", output_padding, rank, 0)
    begin: Sequence[Extent]
    end: Sequence[Extent]
    begin, end = split_pads(pads, rank)
    full: list[Extent] = [
        s * (e - 1) + a + (k - 1) * d + 1 for s, e, a, k, d in zip(step, x.shape[2:], extra, kernel, dil, strict=True)
    ]
    wanted: Sequence[Extent] | None = None
    if output_shape:
        wanted = output_shape[-rank:]
    elif auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        wanted = [e * s for e, s in zip(x.shape[2:], step, strict=True)]
    elif auto_pad == "VALID":
        begin, end = (0,) * rank, (0,) * rank
    elif auto_pad not in ("NOTSET", ""):
        raise Unsupported(f"auto_pad {auto_pad!r} is unknown")
    if wanted is not None:
        total = [maximum(f - o, 0) for f, o in zip(full, wanted, strict=True)]
        small, large = [t // 2 for t in total], [t - t // 2 for t in total]
        begin, end = (small, large) if auto_pad == "SAME_UPPER" else (large, small)
        out = tuple(wanted)
    else:
        out = checked_extents([f - p - q for f, p, q in zip(full, begin, end, strict=True)], "ConvTranspose")
    require_same(x.shape[1], w.shape[0], "input channels are not the weights' channels")
    (y,) = b.window(
        "conv_transpose",
        channels_last(b, x),
        b.transpose(w, (*range(2, w.rank), 0, 1)),
        out_channels=w.shape[1] * group,
        out_spatial=out,
        kernel=kernel,
        strides=step,
        dilations=dil,
        pads_begin=begin,
        pads_end=end,
        groups=group,
    )
    if bias is not None:
        y = b.map("add", y, bias)
    return channels_first(b, y)
