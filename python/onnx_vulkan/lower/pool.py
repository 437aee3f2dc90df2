"""Pooling: MaxPool, AveragePool, LpPool on the ``window`` primitive, the global pools as reductions."""

from __future__ import annotations

from collections.abc import Sequence

from onnx_vulkan.dims import Extent, product
from onnx_vulkan.dtypes import FLOATS, DType
from onnx_vulkan.errors import Unsupported
from onnx_vulkan.lower.conv import Window, channels_first, channels_last, plan_window
from onnx_vulkan.lower.registry import LowerContext, lowers
from onnx_vulkan.program import composites
from onnx_vulkan.program.builder import Builder
from onnx_vulkan.program.ir import Value

__all__ = ["average", "lp_norm"]


def _check_rank(x: Value) -> None:
    if not 3 <= x.rank <= 5:
        raise Unsupported(f"an input of rank {x.rank}: 1 to 3 spatial axes are supported")


def _pool(b: Builder, kind: str, x: Value, window: Window, **attrs: object) -> tuple[Value, ...]:
    return b.window(
        kind,
        channels_last(b, x),
        None,
        out_channels=x.shape[1],
        out_spatial=window.out,
        kernel=window.kernel,
        strides=window.strides,
        dilations=window.dilations,
        pads_begin=window.pads_begin,
        pads_end=window.pads_end,
        **attrs,  # type: ignore[arg-type]
    )


def _extent(b: Builder, e: Extent) -> Value:
    return b.dims([e], ())


def _onnx_indices(b: Builder, local: Value, x: Value, storage_order: int) -> Value:
    """Flat indices into the whole NCHW tensor from indices into the spatial plane.

    ``local`` is channels-first already. ``storage_order`` 1 counts the plane's first axis fastest (column-major).
    """
    spatial = x.shape[2:]
    if storage_order:
        rest, plane, stride = local, b.scalar(0, DType.I64), product(spatial)
        for e in reversed(spatial):  # the last axis is the slowest in column-major order
            stride = stride // e
            here = b.map("mod", rest, _extent(b, e))
            rest = b.map("div", rest, _extent(b, e))
            plane = b.map("add", plane, b.map("mul", here, _extent(b, stride)))
        local = plane
    size = product(spatial)
    channel = b.iota((1, x.shape[1], *(1,) * len(spatial)), 1, DType.I64, 0, size)
    batch = b.iota((x.shape[0], 1, *(1,) * len(spatial)), 0, DType.I64, 0, size * x.shape[1])
    return b.map("add", b.map("add", local, channel), batch)


_MAX_TYPES = FLOATS | {DType.I8, DType.U8}


def _max_pool(b: LowerContext, x: Value, window: Window, storage_order: int) -> Value | tuple[Value, Value]:
    if not b.wants(1):
        (y,) = _pool(b, "max", x, window)
        return channels_first(b, y)
    y, local = _pool(b, "max", x, window, indices=True)
    return channels_first(b, y), _onnx_indices(b, channels_first(b, local), x, storage_order)


@lowers("MaxPool", versions=[1, 8], dtypes={"x": FLOATS}, note="1 to 3 spatial axes")
def max_pool_1(
    b: LowerContext,
    x: Value,
    *,
    auto_pad: str = "NOTSET",
    kernel_shape: list[int],
    pads: list[int] | None = None,
    storage_order: int = 0,
    strides: list[int] | None = None,
) -> Value | tuple[Value, Value]:
    """MaxPool before ceil_mode and dilations."""
    _check_rank(x)
    window = plan_window(x.shape[2:], kernel_shape, auto_pad=auto_pad, dilations=None, pads=pads, strides=strides)
    return _max_pool(b, x, window, storage_order)


@lowers("MaxPool", versions=[10, 11, 12, 22], dtypes={"x": _MAX_TYPES}, note="1 to 3 spatial axes")
def max_pool(
    b: LowerContext,
    x: Value,
    *,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    dilations: list[int] | None = None,
    kernel_shape: list[int],
    pads: list[int] | None = None,
    storage_order: int = 0,
    strides: list[int] | None = None,
) -> Value | tuple[Value, Value]:
    """MaxPool."""
    _check_rank(x)
    window = plan_window(
        x.shape[2:], kernel_shape, auto_pad=auto_pad, dilations=dilations, pads=pads, strides=strides, ceil_mode=ceil_mode
    )
    return _max_pool(b, x, window, storage_order)


@lowers("NhwcMaxPool", versions=[1], dtypes={"x": {DType.I8, DType.U8}}, domain="com.microsoft", note="1 to 3 spatial axes")
def nhwc_max_pool(
    b: LowerContext,
    x: Value,
    *,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    dilations: list[int] | None = None,
    kernel_shape: list[int],
    pads: list[int] | None = None,
    strides: list[int] | None = None,
) -> Value:
    """NhwcMaxPool of ONNX Runtime: MaxPool of 8-bit ``[N, *spatial, C]``."""
    _check_rank(x)
    window = plan_window(
        x.shape[1:-1], kernel_shape, auto_pad=auto_pad, dilations=dilations, pads=pads, strides=strides, ceil_mode=ceil_mode
    )
    (y,) = _pool(b, "max", channels_first(b, x), window)
    return y


def average(b: Builder, x: Value, window: Window, count_include_pad: bool) -> Value:
    """The average of each window of ONNX-ordered *x*."""
    (y,) = _pool(b, "avg", x, window, count_include_pad=count_include_pad)
    return channels_first(b, y)


@lowers("AveragePool", versions=[1, 7, 10, 11, 19, 22], dtypes={"x": FLOATS}, note="1 to 3 spatial axes")
def average_pool(
    b: LowerContext,
    x: Value,
    *,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    count_include_pad: int = 0,
    dilations: list[int] | None = None,
    kernel_shape: list[int],
    pads: list[int] | None = None,
    strides: list[int] | None = None,
) -> Value:
    """AveragePool; padding cells count in the divisor only with ``count_include_pad``."""
    _check_rank(x)
    window = plan_window(
        x.shape[2:], kernel_shape, auto_pad=auto_pad, dilations=dilations, pads=pads, strides=strides, ceil_mode=ceil_mode
    )
    return average(b, x, window, bool(count_include_pad))


@lowers("LpPool", versions=[1, 2, 11, 18, 22], dtypes={"x": FLOATS}, note="1 to 3 spatial axes")
def lp_pool(
    b: LowerContext,
    x: Value,
    *,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    dilations: list[int] | None = None,
    kernel_shape: list[int],
    p: float = 2,
    pads: list[int] | None = None,
    strides: list[int] | None = None,
) -> Value:
    """LpPool: ``sum(|x|^p)^(1/p)`` over the window (version 1 has a float p)."""
    _check_rank(x)
    window = plan_window(
        x.shape[2:], kernel_shape, auto_pad=auto_pad, dilations=dilations, pads=pads, strides=strides, ceil_mode=ceil_mode
    )
    (y,) = _pool(b, "lp", x, window, p=p)
    return channels_first(b, y)


def _plane(x: Value) -> Sequence[int]:
    if x.rank < 3:
        raise Unsupported(f"an input of rank {x.rank} has no spatial axes to pool")
    return range(2, x.rank)


@lowers("GlobalAveragePool", versions=[1, 22], dtypes={"x": FLOATS})
def global_average_pool(b: LowerContext, x: Value) -> Value:
    """GlobalAveragePool: the mean of each plane."""
    return b.cast(b.mean(composites.wide(b, x), _plane(x), keepdims=True), x.dtype)


@lowers("GlobalMaxPool", versions=[1, 22], dtypes={"x": FLOATS})
def global_max_pool(b: LowerContext, x: Value) -> Value:
    """GlobalMaxPool: the maximum of each plane."""
    return b.reduce("max", x, _plane(x), keepdims=True)


def lp_norm(b: Builder, x: Value, axes: Sequence[int], p: float) -> Value:
    """``sum(|x|^p)^(1/p)`` over *axes* with keepdims, in float32 for half floats (the result keeps that dtype)."""
    y = b.map("abs", composites.wide(b, x))
    if p == 1:
        return b.reduce("sum", y, axes, keepdims=True)
    if p == 2:
        return b.map("sqrt", b.reduce("sum", b.map("mul", y, y), axes, keepdims=True))
    total = b.reduce("sum", b.map("pow", y, composites.number(b, p, y)), axes, keepdims=True)
    return b.map("pow", total, composites.number(b, 1 / p, y))


@lowers("GlobalLpPool", versions=[1, 2, 22], dtypes={"x": FLOATS})
def global_lp_pool(b: LowerContext, x: Value, *, p: float = 2) -> Value:
    """GlobalLpPool (version 1 has a float p)."""
    return b.cast(lp_norm(b, x, _plane(x), p), x.dtype)
