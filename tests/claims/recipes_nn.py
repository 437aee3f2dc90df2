"""Forms of contractions, convolutions, pools, normalizations, attention and recurrent operators."""

from __future__ import annotations

from typing import Any

import numpy as np
from forms import BYTES, Draw, Form, Given, Operator, Recipe, Skip, raw, scale_of
from onnx_vulkan.dtypes import REAL, DType

__all__ = ["HALVES", "NN", "conv", "window"]

SMALL = {"low": -1.5, "high": 1.5}
HALVES = frozenset({DType.F32, DType.F16, DType.BF16})


# -------------------------------------------------------------------------------------------------------- contractions
def mat_mul(d: Draw, op: Operator) -> Form:
    x = d.tensor(op.dtypes() & REAL, (1, 5))
    n = d.extent(1, 33)
    k = x.shape[-1]
    if d.chance(15):
        y = d.like(x.dtype, (k,))
    else:
        lead = [1 if d.chance(30) else e for e in x.shape[:-2]]
        y = d.like(x.dtype, [*lead[d.int(0, len(lead)) :], k, n])
    attributes: dict[str, Any] = {}
    if op.name == "FusedMatMul":
        attributes = d.some(alpha=(0.5, 2.0))
        if y.rank >= 2 and d.chance(50):
            y = Given(np.ascontiguousarray(y.array.swapaxes(-1, -2)))
            attributes["transB"] = 1
        if x.rank >= 2 and d.chance(40):
            x = Given(np.ascontiguousarray(x.array.swapaxes(-1, -2)))
            attributes["transA"] = 1
    return Form([x, y], attributes)


def gemm(d: Draw, op: Operator) -> Form:
    t = d.dtype(op.dtypes() & REAL)
    m, k, n = (d.extent(0 if d.chance(10) else 1, 40) for _ in range(3))
    attributes = d.some(transA=(0, 1), transB=(0, 1), alpha=(0.5, 2.0), beta=(0.5, 0.0))
    if t.is_int:
        attributes = {k_: v for k_, v in attributes.items() if k_.startswith("trans")}
    a = d.like(t, (k, m) if attributes.get("transA") else (m, k))
    b = d.like(t, (n, k) if attributes.get("transB") else (k, n))
    shapes = [(m, n), (n,), (1, n), (m, 1), (1,), ()]
    if op.version < 7 and op.domain == "":
        c: Given | None = d.like(t, (m, n))
    else:
        c = d.like(t, d.pick(shapes)) if d.chance(70) or (op.version < 11 and op.domain == "") else None
    if op.name == "FusedGemm":
        attributes |= d.some(activation=("Relu", "Tanh", "Sigmoid", "LeakyRelu"))
        if attributes.get("activation") == "LeakyRelu":
            attributes["activation_alpha"] = 0.1
    return Form([a, b, c], attributes)


def mat_mul_integer(d: Draw, op: Operator) -> Form:
    t, u = d.pick(BYTES), d.pick(BYTES)
    m, k, n = d.extent(1, 17), d.extent(1, 40), d.extent(1, 17)
    lead = d.shape(d.int(0, 2), 1, 3)
    x, y = raw(d, t, (*lead, m, k)), raw(d, u, (*lead[d.int(0, len(lead)) :], k, n))
    zero = d.maybe(lambda: raw(d, t, d.pick([(), (1,)])), 60)
    per_column = raw(d, u, d.pick([(), (1,), (n,)]))
    return Form([x, y, zero, per_column if d.chance(60) else None])


# ------------------------------------------------------------------------------------------------- convolutions, pools
def window(d: Draw, op: Operator, spatial: int, extents: tuple[int, ...], kernel: list[int]) -> dict[str, Any]:
    """strides, dilations, pads or auto_pad that leave something of an image."""
    out: dict[str, Any] = {}
    if d.chance(50):
        out["strides"] = [d.int(1, 3) for _ in range(spatial)]
    if "dilations" in op.attributes and d.chance(30):
        out["dilations"] = [d.int(1, 2) for _ in range(spatial)]
    way = d.int(0, 5)
    if way <= 2:
        out["pads"] = [min(d.int(0, 2), k - 1) for k in kernel * 2]
    elif way == 3:
        out["auto_pad"] = d.pick(["SAME_UPPER", "SAME_LOWER", "VALID"])
    full = [(k - 1) * e + 1 for k, e in zip(kernel, out.get("dilations", [1] * spatial), strict=True)]
    pads = out.get("pads", [0] * 2 * spatial)
    if "auto_pad" not in out or out["auto_pad"] == "VALID":
        for i, (n, f) in enumerate(zip(extents, full, strict=True)):
            if n + pads[i] + pads[i + spatial] < f:
                raise Skip
    return out


def conv(d: Draw, op: Operator) -> Form:
    spatial = 2 if op.name.startswith("Nhwc") else d.pick([2, 2, 1, 3])
    t = d.dtype(op.dtypes() & REAL)
    group = d.pick([1, 1, 1, 2, 3])
    per, out_per = d.int(1, 4), d.int(1, 4)
    if d.chance(25):
        group, per, out_per = d.int(2, 6), 1, d.int(1, 2)
    kernel = [d.int(1, 4) for _ in range(spatial)]
    size = d.shape(spatial, 3, 17 if spatial < 3 else 7)
    attributes = window(d, op, spatial, size, kernel)
    if group > 1:
        attributes["group"] = group
    if d.chance(50):
        attributes["kernel_shape"] = kernel
    n = d.extent(1, 3)
    x_shape, w_shape = (n, group * per, *size), (group * out_per, per, *kernel)
    if op.name == "ConvInteger":
        u = d.pick(BYTES)
        zeros = [d.maybe(lambda t=t: raw(d, t, ())) for t in (t, u)]  # type: ignore[misc]
        return Form([raw(d, t, x_shape), raw(d, u, w_shape), *zeros], attributes)
    if op.name == "QLinearConv":
        u = d.pick(BYTES)
        y = d.pick(BYTES) if d.chance(10) else t
        per_channel = (group * out_per,) if d.chance(50) else ()
        w_zero = Given(np.zeros(per_channel, u.numpy)) if u is DType.I8 or per_channel else raw(d, u, per_channel)
        bias = d.maybe(lambda: Given(d.rng.integers(-500, 500, group * out_per).astype(np.int32)))
        parts = [raw(d, t, x_shape), scale_of(d), raw(d, t, ()), raw(d, u, w_shape), scale_of(d, per_channel), w_zero]
        return Form([*parts, Given(np.array(1.7 + d.rng.random(), np.float32)), raw(d, y, ()), bias], attributes)
    x, w = d.like(t, x_shape), d.like(t, w_shape)
    inputs: list[Given | None] = [x, w, d.maybe(lambda: d.like(t, (group * out_per,)))]
    if op.name.endswith("FusedConv"):
        attributes |= d.some(activation=("Relu", "Tanh", "Sigmoid", "LeakyRelu", "Clip", "HardSigmoid"))
        activation = attributes.get("activation")
        if activation in ("LeakyRelu", "Clip", "HardSigmoid"):
            attributes["activation_params"] = [0.1] if activation == "LeakyRelu" else [0.2, 0.8]
    return Form(inputs, attributes)


def conv_transpose(d: Draw, op: Operator) -> Form:
    spatial = d.pick([2, 2, 1, 3])
    t = d.dtype(op.dtypes())
    group, per, out_per = d.pick([1, 1, 2, 3]), d.int(1, 4), d.int(1, 4)
    kernel = [d.int(1, 4) for _ in range(spatial)]
    size = d.shape(spatial, 1, 9 if spatial < 3 else 5)
    attributes: dict[str, Any] = {"group": group} if group > 1 else {}
    strides = [d.int(1, 3) for _ in range(spatial)] if d.chance(60) else [1] * spatial
    if strides != [1] * spatial:
        attributes["strides"] = strides
    dilations = [d.int(1, 2) for _ in range(spatial)] if d.chance(30) else [1] * spatial
    attributes["dilations"] = dilations
    way = d.int(0, 5)
    if way <= 2:
        attributes["pads"] = [min(d.int(0, 2), k - 1) for k in kernel * 2]
    elif way == 3:
        attributes["auto_pad"] = d.pick(["SAME_UPPER", "SAME_LOWER", "VALID"])
    elif way == 4 and spatial == len(size):
        attributes["output_shape"] = [n * s for n, s in zip(size, strides, strict=True)]
    if d.chance(30):
        attributes["output_padding"] = [d.int(0, max(s - 1, 0)) for s in strides]
    if d.chance(50):
        attributes["kernel_shape"] = kernel
    x, w = d.like(t, (d.extent(1, 3), group * per, *size)), d.like(t, (group * per, out_per, *kernel))
    return Form([x, w, d.maybe(lambda: d.like(t, (group * out_per,)))], attributes)


def pool(d: Draw, op: Operator) -> Form:
    spatial = d.pick([2, 2, 1, 3])
    t = d.dtype(op.dtypes())
    kernel = [d.int(1, 4) for _ in range(spatial)]
    size = d.shape(spatial, 3, 17 if spatial < 3 else 7)
    attributes = window(d, op, spatial, size, kernel) | {"kernel_shape": kernel}
    attributes |= d.only(op, d.some(ceil_mode=(0, 1), count_include_pad=(0, 1), p=(1, 2, 3)))
    x = d.like(t, (d.extent(1, 3), d.extent(1, 5), *size))
    indices = op.name == "MaxPool" and op.version >= 8 and d.chance(30)
    if indices:
        attributes |= d.some(storage_order=(0, 1))
    return Form([x], attributes, (True, indices))


def global_pool(d: Draw, op: Operator) -> Form:
    x = d.tensor(op.dtypes(), (3, 5), low=1)
    return Form([x], {"p": d.pick([1, 2, 3])} if "p" in op.attributes and op.version > 1 else {})


def max_unpool(d: Draw, op: Operator) -> Form:
    t = d.dtype(op.dtypes())
    n, c, h, w = d.shape(4, 1, 5)
    spread = np.argsort(d.rng.random((n, c, 4 * h * w)), -1)[..., : h * w].reshape(n, c, h, w)
    flat = spread + (np.arange(n * c) * 4 * h * w).reshape(n, c, 1, 1)
    x = d.like(t, (n, c, h, w))
    return Form([x, Given(flat.astype(np.int64))], {"kernel_shape": [2, 2], "strides": [2, 2]})


def lrn(d: Draw, op: Operator) -> Form:
    x = d.tensor(op.dtypes(), (2, 5), low=1)
    return Form([x], {"size": d.pick([1, 3, 5])} | d.some(alpha=(1e-4, 0.1), beta=(0.75, 0.5), bias=(1.0, 2.0)))


# ------------------------------------------------------------------------------------------------------ normalizations
def batch_norm(d: Draw, op: Operator) -> Form:
    x = d.tensor(op.dtypes(), (2, 5), low=1)
    c = (x.shape[1],)
    t, u = (d.dtype(op.dtypes(i)) if d.chance(20) else x.dtype for i in (1, 3)) if op.version >= 14 else (x.dtype, x.dtype)
    if op.version == 15:
        t, u = (d.dtype(op.dtypes(i)) if d.chance(20) else x.dtype for i in (1, 3))
    else:
        t = u = x.dtype
    inputs: list[Given | None] = [x, d.like(t, c), d.like(t, c), d.like(u, c), d.like(u, c, 0.2, 2.0)]
    attributes = d.some(epsilon=(1e-5, 1e-3))
    if op.version < 7:
        attributes["is_test"] = 1
    return Form(inputs, attributes)


def layer_norm(d: Draw, op: Operator) -> Form:
    x = d.tensor(op.dtypes(), (1, 4), low=1)
    axis = d.axis(x.rank) if op.domain == "" and d.chance(60) else -1
    shape = x.shape[axis % x.rank :]
    scale = d.like(x.dtype, shape)
    inputs: list[Given | None] = [x, scale]
    if op.name == "LayerNormalization":
        inputs.append(d.maybe(lambda: d.like(x.dtype, shape)))
    return Form(inputs, {"axis": axis} | d.some(epsilon=(1e-5, 1e-3)))


def skip_norm(d: Draw, op: Operator) -> Form:
    x = d.tensor(op.dtypes(), 3 if d.chance(70) else 2, low=1)
    width = x.shape[-1:]
    skip = d.like(x.dtype, (1, *x.shape[1:]) if x.rank == 3 and d.chance(20) else x.shape)
    rest = [d.like(x.dtype, width)]
    optional = [d.maybe(lambda: d.like(x.dtype, width)) for _ in range(len(op.inputs) - 3)]
    return Form([x, skip, *rest, *optional], d.some(epsilon=(1e-5, 1e-3)), (True, False, False, d.chance(40)))


def instance_norm(d: Draw, op: Operator) -> Form:
    x = d.tensor(op.dtypes(), (3, 5), low=1)
    return Form([x, *(d.like(x.dtype, x.shape[1:2]) for _ in range(2))], d.some(epsilon=(1e-5, 1e-3)))


def group_norm(d: Draw, op: Operator) -> Form:
    groups, per = d.int(1, 3), d.int(1, 4)
    t = d.dtype(op.dtypes())
    x = d.like(t, (d.extent(1, 3), groups * per, *d.shape(d.int(1, 3), 1, 6)))
    width = (groups,) if op.version == 18 else (groups * per,)
    return Form([x, d.like(t, width), d.like(t, width)], {"num_groups": groups} | d.some(epsilon=(1e-5, 1e-3)))


def lp_norm(d: Draw, op: Operator) -> Form:
    x = d.tensor(op.dtypes(), (1, 5))
    return Form([x], d.some(p=(1, 2)) | {"axis": d.axis(x.rank)})


def mean_variance(d: Draw, op: Operator) -> Form:
    x = d.tensor(op.dtypes(), (3, 5), low=2)
    return Form([x], {"axes": d.axes(x.rank, 1)} if d.chance(60) or x.rank != 4 else {})


# ----------------------------------------------------------------------------------------------------------- attention
def attention(d: Draw, op: Operator) -> Form:
    t = d.dtype(op.dtypes() & HALVES)
    heads, groups = d.pick([1, 2, 3]), d.pick([1, 1, 2])
    batch, q_len, k_len, past = d.extent(1, 3), d.extent(1, 8), d.extent(1, 9), d.extent(1, 5)
    size, v_size = d.pick([4, 8, 3]), d.pick([4, 8, 5])
    q_heads = heads * groups
    flat = d.chance(30)
    attributes = d.some(is_causal=(0, 1), scale=(0.3, 0.7), softcap=(2.0, 0.0))
    outputs = (True,)

    def made(h: int, n: int, e: int) -> Given:
        return d.like(t, (batch, n, h * e) if flat else (batch, h, n, e))

    inputs: list[Given | None] = [made(q_heads, q_len, size), made(heads, k_len, size), made(heads, k_len, v_size)]
    if flat:
        attributes |= {"q_num_heads": q_heads, "kv_num_heads": heads}
    cached = d.chance(35)
    total = k_len + (past if cached else 0)
    if d.chance(50):
        lead = d.pick([(batch, q_heads), (1, q_heads), (batch, 1), (1, 1), ()])
        mask_type = d.pick([DType.BOOL, t])
        mask = d.data(mask_type, (*lead, q_len, total))
        if mask_type is DType.BOOL:
            mask[..., 0] = True
        inputs.append(Given(mask))
    else:
        inputs.append(None)
    if cached:
        inputs += [d.like(t, (batch, heads, past, e)) for e in (size, v_size)]
        outputs = (True, True, True)
    elif op.version >= 24 and d.chance(20) and not flat:
        inputs += [None, None, Given(d.rng.integers(1, k_len + 1, batch).astype(np.int64))]
    if d.chance(15):
        attributes["qk_matmul_output_mode"] = d.int(0, 3)
        outputs = (True, cached, cached, True)
    return Form(inputs, attributes, outputs)


def multi_head(d: Draw, op: Operator) -> Form:
    t = d.dtype(op.dtypes() & HALVES)
    heads, size, v_size = d.pick([1, 2, 4]), d.pick([4, 8]), d.pick([4, 8])
    batch, q_len, k_len, past = d.extent(1, 3), d.extent(1, 8), d.extent(1, 9), d.extent(1, 5)
    cached = d.chance(30)
    total = k_len + (past if cached else 0)
    inputs: list[Given | None] = [
        d.like(t, (batch, q_len, heads * size)),
        d.like(t, (batch, k_len, heads * size)),
        d.like(t, (batch, k_len, heads * v_size)),
    ]
    inputs.append(d.maybe(lambda: d.like(t, (heads * (2 * size + v_size),)), 40))
    padding = None
    if d.chance(30) and not cached:
        padding = Given((np.arange(k_len) < d.rng.integers(1, k_len + 1, (batch, 1))).astype(np.int32))
    inputs.append(padding)
    lead = d.pick([(batch, heads), (1, heads), (batch, 1), (1, 1)])
    inputs.append(d.maybe(lambda: d.like(t, (*lead, q_len, total)), 40))
    outputs = (True,)
    if cached:
        inputs += [d.like(t, (batch, heads, past, e)) for e in (size, v_size)]
        outputs = (True, True, True)
    return Form(inputs, {"num_heads": heads} | d.some(scale=(0.3,), unidirectional=(0, 1)), outputs)


def rotary(d: Draw, op: Operator) -> Form:
    t = d.dtype(op.dtypes() & HALVES)
    batch, n, heads, size = d.extent(1, 3), d.extent(1, 7), d.pick([1, 2, 3]), d.pick([4, 8])
    part = d.pick([0, 0, 4]) if size > 4 else 0
    half = (part or size) // 2
    flat = d.chance(50)
    x = d.like(t, (batch, n, heads * size) if flat else (batch, heads, n, size))
    attributes = d.some(interleaved=(0, 1))
    if part:
        attributes["rotary_embedding_dim"] = part
    if flat or part:
        attributes["num_heads"] = heads
    if op.domain:
        caches = [d.like(t, (12, half), -1, 1) for _ in range(2)]
        positions = Given(np.array([d.number(0, 12 - n)], np.int64)) if d.chance(40) else None
        return Form([x, positions or Given(d.rng.integers(0, 12, (batch, n)).astype(np.int64)), *caches], attributes)
    if d.chance(60):
        caches = [d.like(t, (12, half), -1, 1) for _ in range(2)]
        return Form([x, *caches, Given(d.rng.integers(0, 12, (batch, n)).astype(np.int64))], attributes)
    return Form([x, *(d.like(t, (batch, n, half), -1, 1) for _ in range(2))], attributes)


def bias_gelu(d: Draw, op: Operator) -> Form:
    x = d.tensor(op.dtypes(), (1, 4))
    bias = d.like(x.dtype, x.shape[-1:])
    return Form([x, bias if op.name == "BiasGelu" or d.chance(50) else None])


# ----------------------------------------------------------------------------------------------------------- recurrent
def recurrent(d: Draw, op: Operator) -> Form:
    gates = {"RNN": 1, "GRU": 3, "LSTM": 4}[op.name]
    t = d.dtype(op.dtypes())
    steps, batch, width, hidden = d.extent(1, 7), d.extent(1, 4), d.extent(1, 6), d.pick([1, 3, 4, 8])
    direction = d.pick(["forward", "reverse", "bidirectional"])
    ways = 2 if direction == "bidirectional" else 1
    layout = d.chance(20) and "layout" in op.attributes
    attributes: dict[str, Any] = {"hidden_size": hidden}
    if direction != "forward" or d.chance(30):
        attributes["direction"] = direction
    if layout:
        attributes["layout"] = 1
    lead = (batch, ways) if layout else (ways, batch)
    inputs: list[Given | None] = [
        d.like(t, (batch, steps, width) if layout else (steps, batch, width)),
        d.like(t, (ways, gates * hidden, width), **SMALL),
        d.like(t, (ways, gates * hidden, hidden), **SMALL),
        d.maybe(lambda: d.like(t, (ways, 2 * gates * hidden), **SMALL), 60),
        d.maybe(lambda: Given(d.rng.integers(1, steps + 1, batch).astype(np.int32)), 30),
        d.maybe(lambda: d.like(t, (*lead, hidden), **SMALL), 40),
    ]
    if op.name == "LSTM":
        inputs.append(d.maybe(lambda: d.like(t, (*lead, hidden), **SMALL), 40))
        inputs.append(d.maybe(lambda: d.like(t, (ways, 3 * hidden), **SMALL), 30))
        if d.chance(15):
            attributes["input_forget"] = 1
    if op.name == "GRU" and op.version >= 3:
        attributes |= d.some(linear_before_reset=(0, 1))
    if d.chance(20):
        attributes["clip"] = 0.8
    if d.chance(30):
        names = {"RNN": 1, "GRU": 2, "LSTM": 3}[op.name] * ways
        attributes["activations"] = [d.pick(["Tanh", "Sigmoid", "Relu", "HardSigmoid", "Softsign"]) for _ in range(names)]
    flags = tuple(d.chance(70) for _ in range(3 if op.name == "LSTM" else 2))
    return Form(inputs, attributes, flags if any(flags) else (True,))


NN: dict[str, Recipe] = {
    "MatMul": mat_mul, "com.microsoft::FusedMatMul": mat_mul, "Gemm": gemm, "com.microsoft::FusedGemm": gemm,
    "MatMulInteger": mat_mul_integer, "Conv": conv, "ConvInteger": conv, "QLinearConv": conv,
    "com.microsoft::FusedConv": conv, "ConvTranspose": conv_transpose, "AveragePool": pool, "MaxPool": pool, "LpPool": pool,
    "GlobalAveragePool": global_pool, "GlobalMaxPool": global_pool, "GlobalLpPool": global_pool, "MaxUnpool": max_unpool,
    "LRN": lrn, "BatchNormalization": batch_norm, "LayerNormalization": layer_norm, "RMSNormalization": layer_norm,
    "SimplifiedLayerNormalization": layer_norm, "com.microsoft::SimplifiedLayerNormalization": layer_norm,
    "com.microsoft::SkipLayerNormalization": skip_norm, "com.microsoft::SkipSimplifiedLayerNormalization": skip_norm,
    "InstanceNormalization": instance_norm, "GroupNormalization": group_norm, "LpNormalization": lp_norm,
    "MeanVarianceNormalization": mean_variance, "Attention": attention, "com.microsoft::MultiHeadAttention": multi_head,
    "RotaryEmbedding": rotary, "com.microsoft::RotaryEmbedding": rotary, "com.microsoft::BiasGelu": bias_gelu,
    "com.microsoft::FastGelu": bias_gelu, "RNN": recurrent, "GRU": recurrent, "LSTM": recurrent,
}  # fmt: skip
