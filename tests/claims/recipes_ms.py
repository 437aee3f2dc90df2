"""Forms of ONNX Runtime's own operators (``com.microsoft``), and of ONNX's that go with them (regions, caches)."""

from __future__ import annotations

from typing import Any

import numpy as np
from forms import BYTES, Draw, Form, Given, Operator, Recipe, raw, scale_of
from onnx_vulkan.dtypes import NUMERIC, DType
from recipes_basic import range_
from recipes_moves import gather_nd, pad, trilu
from recipes_nn import HALVES, conv
from recipes_signal import grid_sample

__all__ = ["CONTRIB"]

F32 = frozenset({DType.F32})


# ----------------------------------------------------------------------------------------------------------- attention
def attention(d: Draw, op: Operator) -> Form:
    t = d.dtype(op.dtypes() & HALVES)
    heads, size = d.pick([1, 2, 4]), d.pick([4, 8])
    batch, steps, width = d.extent(1, 3), d.extent(1, 8), d.pick([4, 8, 6])
    hidden = heads * size
    inputs: list[Given | None] = [
        d.like(t, (batch, steps, width)),
        d.like(t, (width, 3 * hidden), -1, 1),
        d.maybe(lambda: d.like(t, (3 * hidden,)), 70),
    ]
    kind = d.int(0, 3)
    lengths = d.rng.integers(1, steps + 1, batch)
    if kind == 1:
        inputs.append(Given(lengths.astype(np.int32)))
    elif kind == 2:
        inputs.append(Given((np.arange(steps) < lengths[:, None]).astype(np.int32)))
    else:
        inputs.append(None)
    inputs.append(None)
    lead = d.pick([(batch, heads), (1, heads), (batch, 1), (1, 1)])
    inputs.append(d.maybe(lambda: d.like(t, (*lead, steps, steps)), 30))
    return Form(inputs, {"num_heads": heads} | d.some(unidirectional=(0, 1), scale=(0.3,)), (True, d.chance(20)))


def group_query(d: Draw, op: Operator) -> Form:
    t = d.dtype(op.dtypes() & HALVES)
    kv_heads, groups, size = d.pick([1, 2]), d.pick([1, 2, 3]), d.pick([8, 16])
    heads = kv_heads * groups
    batch = d.extent(1, 3)
    past = d.number(0, 6) if d.chance(60) else 0
    steps = 1 if past else d.extent(1, 7)
    q, k, v = (d.like(t, (batch, steps, n * size)) for n in (heads, kv_heads, kv_heads))
    inputs: list[Given | None] = [q, k, v]
    if d.chance(25):
        packed = np.concatenate([q.array, k.array, v.array], -1)
        inputs = [Given(packed), None, None]
    inputs += [d.like(t, (batch, kv_heads, past, size)) for _ in range(2)]
    total = past + steps
    inputs.append(Given(np.full(batch, total - 1, np.int32)))
    inputs.append(Given(np.array(total, np.int32), host=True))
    attributes = {"num_heads": heads, "kv_num_heads": kv_heads} | d.some(
        scale=(0.3,), softcap=(2.0,), local_window_size=(2, 4), smooth_softmax=(0, 1)
    )
    if d.chance(50):
        attributes |= {"do_rotary": 1} | d.some(rotary_interleaved=(0, 1))
        inputs += [d.like(t, (16, size // 2), -1, 1) for _ in range(2)]
    return Form(inputs, attributes, (True, True, True))


def embed_norm(d: Draw, op: Operator) -> Form:
    t = d.dtype(op.dtypes(2) & HALVES)
    batch, steps, width = d.extent(1, 3), d.extent(1, 8), d.pick([4, 8])
    with_segments = d.chance(60)
    ids = Given(d.rng.integers(0, 9, (batch, steps)).astype(np.int32))
    segments = Given(d.rng.integers(0, 2, (batch, steps)).astype(np.int32)) if with_segments else None
    tables = [d.like(t, (n, width)) for n in (9, 33)]
    inputs: list[Given | None] = [ids, segments, *tables, d.like(t, (2, width)) if with_segments else None]
    inputs += [d.like(t, (width,)) for _ in range(2)]
    mask = None
    if d.chance(50):
        mask = Given((np.arange(steps) < d.rng.integers(1, steps + 1, (batch, 1))).astype(np.int32))
    return Form([*inputs, mask], d.some(epsilon=(1e-5, 1e-3)), (True, mask is not None, d.chance(30)))


def position_bias(d: Draw, op: Operator) -> Form:
    t = d.dtype(op.dtypes() & HALVES)
    n = d.number(1, 8)
    lengths = [Given(np.array([n], np.int64), host=True) for _ in range(2)]
    return Form([d.like(t, (8, d.pick([1, 2, 4]))), *lengths], {"max_distance": 16} | d.some(is_bidirectional=(0, 1)))


# ------------------------------------------------------------------------------------------------- quantized products
def mat_mul_n_bits(d: Draw, op: Operator) -> Form:
    t = d.dtype(op.dtypes() & HALVES)
    bits, block = d.pick([4, 4, 8, 2]), d.pick([16, 32])
    k, n = d.pick([16, 32, 48, 40, 100]), d.extent(1, 17)
    blocks = -(-k // block)
    a = d.like(t, (*d.shape(d.int(1, 2), 1, 5), k))
    inputs: list[Given | None] = [a, raw(d, DType.U8, (n, blocks, block * bits // 8))]
    inputs.append(Given(d.rng.uniform(0.01, 0.1, (n, blocks)).astype(t.numpy)))
    zero = d.maybe(lambda: raw(d, DType.U8, (n, -(-blocks * bits // 8))))
    bias = d.maybe(lambda: d.like(t, (n,)), 30)
    return Form([*inputs, zero, None, bias], {"K": k, "N": n, "bits": bits, "block_size": block})


def gather_block_quantized(d: Draw, op: Operator) -> Form:
    rows, width, block = d.extent(1, 9), d.pick([16, 32, 64]), 16
    bits = d.pick([4, 8])
    data = raw(d, DType.U8, (rows, width * bits // 8))
    i = Given(d.rng.integers(0, rows, d.shape(d.int(0, 2), 1, 4)).astype(np.int64))
    blocks = width // block
    scales = Given(d.rng.uniform(0.01, 0.1, (rows, blocks)).astype(np.float32))
    zero = d.maybe(lambda: raw(d, DType.U8, (rows, -(-blocks * bits // 8))))
    return Form([data, i, scales, zero], {"gather_axis": 0, "quantize_axis": 1, "block_size": block, "bits": bits})


def dynamic_quantize_mat_mul(d: Draw, op: Operator) -> Form:
    t = d.pick(BYTES)
    m, k, n = d.extent(1, 9), d.extent(1, 33), d.extent(1, 17)
    columns = d.pick([(1,), (n,)])
    zero = d.maybe(lambda: raw(d, t, columns))
    return Form(
        [d.like(DType.F32, (m, k)), raw(d, t, (k, n)), scale_of(d, columns), zero, d.maybe(lambda: d.like(DType.F32, (n,)))]
    )


def integer_to_float(d: Draw, op: Operator) -> Form:
    t, u = d.pick(BYTES), d.pick(BYTES)
    m, k, n = d.extent(1, 9), d.extent(1, 33), d.extent(1, 17)
    columns = d.pick([(1,), (n,)])
    zeros = [d.maybe(lambda: raw(d, t, (1,))), d.maybe(lambda: raw(d, u, columns))]
    scales = [scale_of(d, (1,)), scale_of(d, columns)]
    return Form([raw(d, t, (m, k)), raw(d, u, (k, n)), *scales, *zeros, d.maybe(lambda: d.like(DType.F32, (n,)))])


def q_attention(d: Draw, op: Operator) -> Form:
    t, u = DType.U8, d.pick(BYTES)
    heads, size, width = d.pick([1, 2]), 4, 8
    batch, steps = d.extent(1, 3), d.extent(1, 6)
    hidden = heads * size
    inputs: list[Given | None] = [raw(d, t, (batch, steps, width)), raw(d, u, (width, 3 * hidden))]
    inputs += [d.like(DType.F32, (3 * hidden,)), Given(np.array(0.02, np.float32)), Given(np.array(0.01, np.float32))]
    lengths = d.rng.integers(1, steps + 1, batch)
    inputs.append(Given((np.arange(steps) < lengths[:, None]).astype(np.int32)) if d.chance(50) else None)
    inputs += [raw(d, t, ()), raw(d, u, ())]
    return Form(inputs, {"num_heads": heads} | d.some(unidirectional=(0, 1)))


def q_softmax(d: Draw, op: Operator) -> Form:
    t = d.pick(BYTES)
    x = raw(d, t, d.shape(d.int(1, 4), 1, 9))
    zero = np.array(0 if t is DType.U8 else -128, t.numpy)
    scales = [Given(np.array(0.05, np.float32)), Given(np.array(1 / 256, np.float32))]
    attributes = {"axis": d.axis(x.rank), "opset": d.pick([11, 13])}
    return Form([x, scales[0], raw(d, t, ()), scales[1], Given(zero)], attributes)


def q_where(d: Draw, op: Operator) -> Form:
    t = d.pick(BYTES)
    x = raw(d, t, d.shape(d.int(1, 4), 1, 9))
    parts: list[Given | None] = [d.partner(x, DType.BOOL, grow=False), x, scale_of(d), raw(d, t, ())]
    return Form([*parts, raw(d, t, d.partner(x, grow=False).shape), scale_of(d), raw(d, t, ()), scale_of(d), raw(d, t, ())])


def q_mean(d: Draw, op: Operator) -> Form:
    t = d.pick(BYTES)
    x = raw(d, t, d.shape(d.int(1, 4), 1, 9))
    return Form([x, scale_of(d), raw(d, t, ()), scale_of(d), raw(d, t, ())], {"axes": d.axes(x.rank, 1), "keepdims": d.int(0, 1)})


def q_lstm(d: Draw, op: Operator) -> Form:
    steps, batch, width, hidden = d.extent(1, 5), d.extent(1, 3), d.extent(1, 6), d.pick([2, 4])
    t = d.pick(BYTES)
    inputs: list[Given | None] = [d.like(DType.F32, (steps, batch, width)), raw(d, t, (1, width, 4 * hidden))]
    inputs += [raw(d, t, (1, hidden, 4 * hidden)), d.maybe(lambda: d.like(DType.F32, (1, 8 * hidden)))]
    inputs += [None] * 4
    for _ in range(2):
        inputs += [Given(np.array([0.01], np.float32)), raw(d, t, (1,))]
    return Form(inputs, {"hidden_size": hidden}, (True, True, True))


# ------------------------------------------------------------------------------------------------- images and regions
def channels_last(d: Draw, op: Operator) -> Form:
    """Conv with channels last."""
    form = conv(d, op)
    x, *rest = form.inputs
    assert x is not None
    form.inputs = [Given(np.ascontiguousarray(np.moveaxis(x.array, 1, -1))), *rest]
    return form


def group_norm(d: Draw, op: Operator) -> Form:
    t = d.dtype(op.dtypes() & HALVES)
    groups, per = d.int(1, 3), d.int(1, 4)
    n, c, h, w = d.extent(1, 3), groups * per, d.extent(1, 6), d.extent(1, 6)
    last = d.chance(50)
    shape = (n, h, w, c) if last else (n, c, h, w)
    inputs: list[Given | None] = [d.like(t, shape), d.like(DType.F32, (c,)), d.like(DType.F32, (c,))]
    attributes = {"groups": groups, "activation": d.int(0, 1), "channels_last": int(last)} | d.some(epsilon=(1e-5, 1e-3))
    if op.name == "GroupNorm":
        return Form(inputs, attributes)
    skip = d.pick([shape, (n, c)])
    return Form([*inputs, d.like(t, skip), d.maybe(lambda: d.like(t, (c,)))], attributes, (True, d.chance(50)))


def regions(d: Draw, op: Operator) -> Form:
    """RoiAlign, MaxRoiPool, CropAndResize."""
    t = d.dtype(op.dtypes() & F32)
    n, c, h, w = d.extent(1, 3), d.extent(1, 3), d.extent(2, 9), d.extent(2, 9)
    x, count = d.like(t, (n, c, h, w)), d.extent(1, 4)
    batch = d.rng.integers(0, n, count)
    low = d.rng.uniform(0, 0.5, (count, 2))
    boxes = np.concatenate([low, low + d.rng.uniform(0.1, 0.5, (count, 2))], 1)
    if op.name == "CropAndResize":
        crop = d.numbers([d.extent(1, 5), d.extent(1, 5)], DType.I32)
        rest = d.some(mode=("bilinear", "nearest"), extrapolation_value=(0.5,))
        return Form([x, Given(boxes.astype(np.float32)), Given(batch.astype(np.int32)), crop], rest)
    corners = boxes * np.array([w, h, w, h])
    if op.name == "MaxRoiPool":
        rois = np.concatenate([batch[:, None], np.round(corners)], 1)
        return Form(
            [x, Given(rois.astype(np.float32))], {"pooled_shape": [d.int(1, 3), d.int(1, 3)]} | d.some(spatial_scale=(0.5,))
        )
    attributes = d.some(
        coordinate_transformation_mode=("half_pixel", "output_half_pixel"),
        mode=("avg", "max"), output_height=(1, 3), output_width=(1, 2), sampling_ratio=(0, 2), spatial_scale=(1.0, 0.5),
    )  # fmt: skip
    return Form([x, Given(corners.astype(t.numpy)), Given(batch.astype(np.int64))], d.only(op, attributes))


def deform_conv(d: Draw, op: Operator) -> Form:
    t = d.dtype(op.dtypes() & (HALVES | {DType.F64}))
    group, per, out_per, groups = d.pick([1, 2]), d.int(1, 2), d.int(1, 2), d.pick([1, 2])
    kh, kw, h, w = d.int(1, 3), d.int(1, 3), d.extent(3, 7), d.extent(3, 7)
    n, c = d.extent(1, 2), group * per * groups
    stride, pad_ = d.int(1, 2), d.int(0, 1)
    oh, ow = (h + 2 * pad_ - kh) // stride + 1, (w + 2 * pad_ - kw) // stride + 1
    x, weight = d.like(t, (n, c, h, w)), d.like(t, (group * out_per, c // group, kh, kw))
    offset = d.like(t, (n, groups * kh * kw * 2, oh, ow))
    bias, mask = d.maybe(lambda: d.like(t, (group * out_per,))), d.maybe(lambda: d.like(t, (n, groups * kh * kw, oh, ow)))
    attributes = {"group": group, "offset_group": groups, "strides": [stride] * 2, "pads": [pad_] * 4, "kernel_shape": [kh, kw]}
    return Form([x, weight, offset, bias, mask], attributes)


def tensor_scatter(d: Draw, op: Operator) -> Form:
    t = d.dtype(op.dtypes() & NUMERIC)
    batch, heads, length, width = d.extent(1, 3), d.extent(1, 3), d.extent(3, 9), d.extent(1, 4)
    steps = d.number(1, min(3, length))
    mode = d.pick(["linear", "circular"])
    most = length - steps if mode == "linear" else length - 1
    at = d.maybe(lambda: Given(d.rng.integers(0, most + 1, batch).astype(np.int64)), 80)
    shape = (batch, heads, length, width)
    return Form([d.like(t, shape), d.like(t, (batch, heads, steps, width)), at], {"mode": mode} | d.some(axis=(-2, 2)))


# --------------------------------------------------------------------------------------------------------------- other
def spectrum(d: Draw, op: Operator) -> Form:
    """Rfft and Irfft of one axis."""
    n = d.pick([4, 8, 6, 5])
    lead = d.shape(d.int(1, 2), 1, 4)
    shape = (*lead, n) if op.name == "Rfft" else (*lead, n // 2 + 1, 2)
    return Form([d.like(DType.F32, shape)], {"signal_ndim": 1, "onesided": 1, "normalized": 0})


def square(d: Draw, op: Operator) -> Form:
    t = d.dtype(op.dtypes() & (HALVES | {DType.F64}))
    n = d.extent(1, 6)
    a = d.data(t, (*d.shape(d.int(0, 2), 1, 4), n, n))
    return Form([Given((a + 8 * np.eye(n)).astype(t.numpy))])


def c_dist(d: Draw, op: Operator) -> Form:
    t = d.dtype(op.dtypes())
    k = d.extent(1, 9)
    return Form(
        [d.like(t, (d.extent(1, 9), k)), d.like(t, (d.extent(1, 9), k))], {"metric": d.pick(["sqeuclidean", "euclidean"])}
    )


def bias_add(d: Draw, op: Operator) -> Form:
    t = d.dtype(op.dtypes())
    n, s, c = d.extent(1, 3), d.extent(1, 6), d.pick([320, 640])
    return Form([d.like(t, (n, s, c)), d.like(t, (c,)), d.like(t, (n, s, c))])


def bias_dropout(d: Draw, op: Operator) -> Form:
    x = d.tensor(op.dtypes() & (HALVES | {DType.F64}), (1, 4), low=1)
    return Form([x, d.like(x.dtype, x.shape[-1:]), d.maybe(lambda: d.like(x.dtype, x.shape))])


def unfold(d: Draw, op: Operator) -> Form:
    x = d.tensor(op.dtypes() & NUMERIC, (1, 4), low=3)
    return Form([x], {"dim": d.axis(x.rank), "size": d.int(1, 3), "step": d.int(1, 3)})


def reduce_sum_integer(d: Draw, op: Operator) -> Form:
    x = raw(d, d.pick(BYTES), d.shape(d.int(1, 4), 1, 9))
    return Form([x], {"axes": sorted(a % x.rank for a in d.axes(x.rank, 1)), "keepdims": d.int(0, 1)})


def matrix_product(d: Draw, op: Operator) -> Form:
    """FusedMatMulActivation, TransposeMatMul."""
    t = d.dtype(op.dtypes() & (HALVES | {DType.F64}))
    lead = d.shape(d.int(0, 2), 1, 4)
    m, k, n = d.extent(1, 9), d.extent(1, 33), d.extent(1, 9)
    attributes: dict[str, Any] = d.some(transA=(0, 1), transB=(0, 1), alpha=(0.5, 2.0))
    if "activation" in op.attributes:
        attributes["activation"] = d.pick(["Relu", "Tanh", "Sigmoid"])
    a = d.like(t, (*lead, k, m) if attributes.get("transA") else (*lead, m, k))
    return Form([a, d.like(t, (*lead, n, k) if attributes.get("transB") else (*lead, k, n))], attributes)


def expand_dims(d: Draw, op: Operator) -> Form:
    x = d.tensor(op.dtypes() & NUMERIC, (0, 4))
    return Form([x, d.host(d.axis(x.rank + 1), DType.I32)])


CONTRIB: dict[str, Recipe] = {
    "com.microsoft::Attention": attention, "com.microsoft::GroupQueryAttention": group_query,
    "com.microsoft::EmbedLayerNormalization": embed_norm, "com.microsoft::RelativePositionBias": position_bias,
    "com.microsoft::MatMulNBits": mat_mul_n_bits, "com.microsoft::GatherBlockQuantized": gather_block_quantized,
    "com.microsoft::DynamicQuantizeMatMul": dynamic_quantize_mat_mul, "com.microsoft::MatMulIntegerToFloat": integer_to_float,
    "com.microsoft::QAttention": q_attention, "com.microsoft::QLinearSoftmax": q_softmax, "com.microsoft::QLinearWhere": q_where,
    "com.microsoft::QLinearReduceMean": q_mean, "com.microsoft::DynamicQuantizeLSTM": q_lstm,
    "com.microsoft::NhwcConv": channels_last, "com.microsoft::NhwcFusedConv": channels_last,
    "com.microsoft::QLinearConv": conv, "com.microsoft::GroupNorm": group_norm, "com.microsoft::SkipGroupNorm": group_norm,
    "RoiAlign": regions, "MaxRoiPool": regions, "com.microsoft::CropAndResize": regions, "DeformConv": deform_conv,
    "TensorScatter": tensor_scatter, "com.microsoft::Rfft": spectrum, "com.microsoft::Irfft": spectrum,
    "com.microsoft::Inverse": square, "Det": square, "com.microsoft::CDist": c_dist, "com.microsoft::BiasAdd": bias_add,
    "com.microsoft::BiasDropout": bias_dropout, "com.microsoft::UnfoldTensor": unfold,
    "com.microsoft::ReduceSumInteger": reduce_sum_integer, "com.microsoft::FusedMatMulActivation": matrix_product,
    "com.microsoft::TransposeMatMul": matrix_product, "com.microsoft::ExpandDims": expand_dims,
    "com.microsoft::GatherND": gather_nd, "com.microsoft::Pad": pad, "com.microsoft::Range": range_,
    "com.microsoft::Trilu": trilu, "com.microsoft::GridSample": grid_sample,
}  # fmt: skip
