"""Normalizations and softmaxes, by the builder functions of composites."""

from __future__ import annotations

from collections.abc import Sequence

from onnx_vulkan.dims import Extent, axis_of, product, require_same
from onnx_vulkan.dtypes import FLOATS, DType
from onnx_vulkan.errors import Unsupported
from onnx_vulkan.lower.pool import lp_norm
from onnx_vulkan.lower.registry import LowerContext, lowers
from onnx_vulkan.program import composites
from onnx_vulkan.program.builder import Builder
from onnx_vulkan.program.ir import Value

__all__ = ["normalize_groups"]


def _per_channel(b: Builder, v: Value, rank: int) -> Value:
    """A vector of one number a channel, to broadcast against ``[N, C, *spatial]``."""
    return b.reshape(v, (v.shape[0], *(1,) * (rank - 2)))


def _scale_shift(b: Builder, y: Value, scale: Value | None, bias: Value | None) -> Value:
    if scale is not None:
        y = b.map("mul", y, b.cast(scale, y.dtype))
    return b.map("add", y, b.cast(bias, y.dtype)) if bias is not None else y


# ---------------------------------------------------------------------------------------------------- batch, instance


def _batch_norm(
    b: Builder, x: Value, scale: Value, bias: Value, mean: Value, var: Value, epsilon: float, spatial: int = 1
) -> Value:
    """``x * s + (bias - mean * s)`` with ``s = scale / sqrt(var + epsilon)``: what folds into a convolution.

    The statistics are one number a channel or, not *spatial* (before version 9), one for each activation ``[C, *spatial]``.
    """
    y = composites.wide(b, x)
    scale, bias, mean, var = (b.cast(v, y.dtype) for v in (scale, bias, mean, var))
    factor = b.map("div", scale, b.map("sqrt", b.map("add", var, composites.number(b, epsilon, var))))
    shift = b.map("sub", bias, b.map("mul", mean, factor))
    if spatial:
        factor, shift = (_per_channel(b, v, max(x.rank, 2)) for v in (factor, shift))
    return b.cast(b.map("add", b.map("mul", y, factor), shift), x.dtype)


_ONE_OUTPUT = "the training form of BatchNormalization is not supported"


def _inference_only(b: LowerContext, training: bool) -> None:
    if training or any(b.wants(i) for i in range(1, b.n_outputs)):
        raise Unsupported(_ONE_OUTPUT)


@lowers("BatchNormalization", versions=[1, 6], dtypes={"x": FLOATS}, note="inference form")
def batch_norm_1(
    b: LowerContext,
    x: Value,
    scale: Value,
    bias: Value,
    mean: Value,
    var: Value,
    *,
    consumed_inputs: list[int] | None = None,
    epsilon: float = 1e-5,
    is_test: int = 0,
    momentum: float = 0.9,
    spatial: int = 1,
) -> Value:
    """BatchNormalization before 7: inference needs ``is_test``."""
    _inference_only(b, not is_test)
    return _batch_norm(b, x, scale, bias, mean, var, epsilon, spatial)


@lowers("BatchNormalization", versions=[7, 9], dtypes={"x": FLOATS}, note="inference form")
def batch_norm_7(
    b: LowerContext,
    x: Value,
    scale: Value,
    bias: Value,
    mean: Value,
    var: Value,
    *,
    epsilon: float = 1e-5,
    momentum: float = 0.9,
    spatial: int = 1,
) -> Value:
    """BatchNormalization-7 and -9: with one output it is inference."""
    _inference_only(b, False)
    return _batch_norm(b, x, scale, bias, mean, var, epsilon, spatial)


@lowers("BatchNormalization", versions=[14, 15], dtypes={"x": FLOATS})
def batch_norm(
    b: LowerContext,
    x: Value,
    scale: Value,
    bias: Value,
    mean: Value,
    var: Value,
    *,
    epsilon: float = 1e-5,
    momentum: float = 0.9,
    training_mode: int = 0,
) -> tuple[Value, Value | None, Value | None]:
    """BatchNormalization. Training mode uses the batch's mean and (population) variance, which the running ones follow."""
    if not training_mode:
        return _batch_norm(b, x, scale, bias, mean, var, epsilon), None, None
    if x.rank < 2:
        raise Unsupported(f"an input of rank {x.rank} has no channels")
    y = composites.wide(b, x)
    centred, batch_mean, variance = composites.moments(b, y, [a for a in range(x.rank) if a != 1])
    y = b.map("mul", centred, composites.inverse_deviation(b, variance, epsilon))
    y = _scale_shift(b, y, _per_channel(b, scale, x.rank), _per_channel(b, bias, x.rank))

    def running(old: Value, new: Value) -> Value:
        kept = composites.affine(b, b.cast(old, new.dtype), momentum, 0.0)
        return b.cast(b.map("add", kept, composites.affine(b, b.reshape(new, old.shape), 1 - momentum, 0.0)), old.dtype)

    return b.cast(y, x.dtype), running(mean, batch_mean), running(var, variance)


@lowers("InstanceNormalization", versions=[1, 6, 22], dtypes={"x": FLOATS})
def instance_norm(
    b: LowerContext,
    x: Value,
    scale: Value,
    bias: Value,
    *,
    consumed_inputs: list[int] | None = None,
    epsilon: float = 1e-5,
) -> Value:
    """InstanceNormalization: statistics over each plane."""
    if x.rank < 3:
        raise Unsupported(f"an input of rank {x.rank} has no spatial axes")
    for v in (scale, bias):
        require_same(v.shape[0], x.shape[1], "there is not one scale and bias for each channel")
    y, _, _ = composites.normalize(b, composites.wide(b, x), range(2, x.rank), epsilon)
    y = _scale_shift(b, y, _per_channel(b, scale, x.rank), _per_channel(b, bias, x.rank))
    return b.cast(y, x.dtype)


def normalize_groups(b: Builder, x: Value, num_groups: int, epsilon: float) -> Value:
    """x normalized over each group of channels, in float32 for half floats."""
    if x.rank < 2:
        raise Unsupported(f"an input of rank {x.rank} has no channels")
    n, c, *spatial = x.shape
    require_same(c % num_groups, 0, "the channels do not divide into num_groups")
    grouped = b.reshape(composites.wide(b, x), (n, num_groups, (c // num_groups) * product(spatial)))
    y, _, _ = composites.normalize(b, grouped, (2,), epsilon)
    return b.reshape(y, x.shape)


@lowers("GroupNormalization", versions=[18], dtypes={"x": FLOATS})
def group_norm_18(b: LowerContext, x: Value, scale: Value, bias: Value, *, epsilon: float = 1e-5, num_groups: int) -> Value:
    """GroupNormalization-18: scale and bias a group."""
    y = normalize_groups(b, x, num_groups, epsilon)
    c, *spatial = x.shape[1:]
    split = (x.shape[0], num_groups, c // num_groups, *spatial)
    groups = (num_groups, *(1,) * (len(split) - 2))
    y = _scale_shift(b, b.reshape(y, split), b.reshape(scale, groups), b.reshape(bias, groups))
    return b.cast(b.reshape(y, x.shape), x.dtype)


@lowers("GroupNormalization", versions=[21], dtypes={"x": FLOATS})
def group_norm(
    b: LowerContext, x: Value, scale: Value, bias: Value, *, epsilon: float = 1e-5, num_groups: int, stash_type: int = 1
) -> Value:
    """GroupNormalization-21: scale and bias a channel. Half floats are normalized in float32 whatever stash_type says."""
    y = normalize_groups(b, x, num_groups, epsilon)
    return b.cast(_scale_shift(b, y, _per_channel(b, scale, x.rank), _per_channel(b, bias, x.rank)), x.dtype)


# -------------------------------------------------------------------------------------------------------------- layers


def _last_axes(axis: int, rank: int) -> range:
    return range(axis_of(axis, rank), rank)


def _layer_norm(
    b: LowerContext, x: Value, scale: Value | None, bias: Value | None, axis: int, epsilon: float
) -> tuple[Value, Value, Value]:
    return composites.layer_norm(b, x, _last_axes(axis, x.rank), scale, bias, epsilon)


@lowers("LayerNormalization", versions=[1, 17], dtypes={"x": FLOATS})
def layer_norm(
    b: LowerContext,
    x: Value,
    scale: Value,
    bias: Value | None = None,
    *,
    axis: int = -1,
    epsilon: float = 1e-5,
    stash_type: int = 1,
) -> tuple[Value, Value, Value]:
    """LayerNormalization (version 1 is ONNX Runtime's own of before 17). Mean and InvStdDev are float32."""
    if stash_type != 1:
        raise Unsupported(f"stash_type {stash_type} is not supported")
    y, mean, inverse = _layer_norm(b, x, scale, bias, axis, epsilon)
    return y, b.cast(mean, DType.F32), b.cast(inverse, DType.F32)


@lowers("RMSNormalization", versions=[23], dtypes={"x": FLOATS})
def rms_norm(b: LowerContext, x: Value, scale: Value, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1) -> Value:
    """RMSNormalization."""
    if stash_type != 1:
        raise Unsupported(f"stash_type {stash_type} is not supported")
    return composites.rms_norm(b, x, _last_axes(axis, x.rank), scale, epsilon)[0]


@lowers("SimplifiedLayerNormalization", versions=[1], dtypes={"x": FLOATS})
@lowers("SimplifiedLayerNormalization", versions=[1], dtypes={"x": FLOATS}, domain="com.microsoft")
def simplified_layer_norm(
    b: LowerContext, x: Value, scale: Value, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1
) -> tuple[Value, Value]:
    """SimplifiedLayerNormalization of ONNX Runtime (it puts it in domain "" as well): RMSNormalization and 1/rms."""
    if stash_type != 1:
        raise Unsupported(f"stash_type {stash_type} is not supported")
    return composites.rms_norm(b, x, _last_axes(axis, x.rank), scale, epsilon)


# --------------------------------------------------------------------------------------------------------------- others


@lowers("LpNormalization", versions=[1, 22], dtypes={"x": FLOATS})
def lp_normalization(b: LowerContext, x: Value, *, axis: int = -1, p: int = 2) -> Value:
    """LpNormalization: x / ||x||_p along the axis; 0 where the norm is 0, as ONNX Runtime does."""
    if p not in (1, 2):
        raise Unsupported(f"p {p}: ONNX has 1 and 2")
    moved, back = composites.moved_last(b, x, (axis_of(axis, x.rank),))
    y = composites.wide(b, moved)
    norm = lp_norm(b, y, (-1,), p)
    zero = composites.number(b, 0, y)
    y = b.map("select", b.map("eq", norm, zero), zero, b.map("div", y, norm))
    return b.transpose(b.cast(y, x.dtype), back)


@lowers("MeanVarianceNormalization", versions=[9, 13], dtypes={"x": FLOATS})
def mean_variance_normalization(b: LowerContext, x: Value, *, axes: Sequence[int] = (0, 2, 3)) -> Value:
    """MeanVarianceNormalization: ``(x - mean) / (sqrt(var) + 1e-9)`` over *axes* (the function body of version 13)."""
    moved, back = composites.moved_last(b, x, sorted(axis_of(a, x.rank) for a in axes))
    y = composites.wide(b, moved)
    centred, _, variance = composites.moments(b, y, range(x.rank - len(axes), x.rank))
    deviation = b.map("add", b.map("sqrt", variance), composites.number(b, 1e-9, y))
    return b.transpose(b.cast(b.map("div", centred, deviation), x.dtype), back)


@lowers("LRN", versions=[1, 13], dtypes={"x": FLOATS})
def lrn(b: LowerContext, x: Value, *, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0, size: int) -> Value:
    """LRN: the sum of squares over *size* neighbouring channels, as an average window along the channels."""
    if x.rank < 2:
        raise Unsupported(f"an input of rank {x.rank} has no channels")
    y = composites.wide(b, x)
    n, c, *spatial = x.shape
    plane: Extent = product(spatial)
    squares = b.reshape(b.map("mul", y, y), (n, c, plane))
    before, after = (size - 1) // 2, size - 1 - (size - 1) // 2
    (mean,) = b.window(
        "avg",
        squares,
        None,
        out_channels=plane,
        out_spatial=(c,),
        kernel=(size,),
        strides=(1,),
        dilations=(1,),
        pads_begin=(before,),
        pads_end=(after,),
        count_include_pad=True,
    )
    base = composites.affine(b, b.reshape(mean, x.shape), alpha, bias)
    y = b.map("div", y, b.map("pow", base, composites.number(b, beta, y)))
    return b.cast(y, x.dtype)


# ------------------------------------------------------------------------------------------------------------- softmax


def _rows(b: Builder, x: Value, axis: int) -> Value:
    """Before version 13: x as a matrix, the axes from *axis* on in its rows."""
    axis = axis_of(axis, x.rank) if axis != x.rank else axis
    return b.reshape(x, (product(x.shape[:axis]), product(x.shape[axis:])))


@lowers("Softmax", versions=[1, 11], dtypes={"x": FLOATS})
def softmax_1(b: LowerContext, x: Value, *, axis: int = 1) -> Value:
    """Softmax before 13: over all axes from *axis* on."""
    return b.reshape(composites.softmax(b, _rows(b, x, axis)), x.shape)


@lowers("LogSoftmax", versions=[1, 11], dtypes={"x": FLOATS})
def log_softmax_1(b: LowerContext, x: Value, *, axis: int = 1) -> Value:
    """LogSoftmax before 13: over all axes from *axis* on."""
    return b.reshape(composites.log_softmax(b, _rows(b, x, axis)), x.shape)


@lowers("Hardmax", versions=[1, 11], dtypes={"x": FLOATS})
def hardmax_1(b: LowerContext, x: Value, *, axis: int = 1) -> Value:
    """Hardmax before 13: over all axes from *axis* on."""
    return b.reshape(_hardmax(b, _rows(b, x, axis)), x.shape)


def _hardmax(b: Builder, x: Value) -> Value:
    """1 at the first largest element of the last axis, 0 elsewhere."""
    best = b.reduce("argmax", x, (-1,), keepdims=True)
    position = b.iota((*(1,) * (x.rank - 1), x.shape[-1]), -1, DType.I64)
    return b.cast(b.map("eq", b.broadcast(position, x.shape), b.broadcast(best, x.shape)), x.dtype)


@lowers("Softmax", versions=[13], dtypes={"x": FLOATS})
def softmax(b: LowerContext, x: Value, *, axis: int = -1) -> Value:
    """Softmax along one axis."""
    moved, back = composites.moved_last(b, x, (axis_of(axis, x.rank),))
    return b.transpose(composites.softmax(b, moved), back)


@lowers("LogSoftmax", versions=[13], dtypes={"x": FLOATS})
def log_softmax(b: LowerContext, x: Value, *, axis: int = -1) -> Value:
    """LogSoftmax along one axis."""
    moved, back = composites.moved_last(b, x, (axis_of(axis, x.rank),))
    return b.transpose(composites.log_softmax(b, moved), back)


@lowers("Hardmax", versions=[13], dtypes={"x": FLOATS})
def hardmax(b: LowerContext, x: Value, *, axis: int = -1) -> Value:
    """Hardmax along one axis."""
    moved, back = composites.moved_last(b, x, (axis_of(axis, x.rank),))
    return b.transpose(_hardmax(b, moved), back)
