"""The families of work: each function makes one from its sizes. All names that a user may give are its parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import prod
from typing import Any

import numpy as np
from onnx import helper

from benchmark.kernels.work import DTYPES, LIMITS, Array, Read, Work, make_model, random_array, worst_error

__all__ = ["FAMILIES"]

F64 = np.float64


def _options(precision: str) -> dict[str, str]:
    return {} if precision == "strict" else {"precision": precision}


def _limit(dtype: str, precision: str = "strict") -> float:
    return LIMITS[dtype if precision == "strict" or dtype != "fp32" else precision]


def _some(count: int, most: int = 6) -> list[int]:
    """A few indices below *count*: both ends and some between."""
    return sorted({int(i) for i in np.linspace(0, count - 1, most)}) if count else []


def _rows(read: Read, rows: Iterable[int], width: int) -> Array:
    return np.stack([read(row * width, width) for row in rows])


def matmul(
    m: int = 4096, k: int = 4096, n: int = 4096, dtype: str = "fp32", precision: str = "strict", weights: int = 1, batch: int = 1
) -> Work:
    """[m, k] times [k, n]; *weights* 0: both are inputs. int8 is MatMulInteger, with int32 sums."""
    integer = dtype == "int8"
    lead = (batch,) if batch > 1 else ()
    scale = 1 if integer else k**-0.5
    a, b = random_array(dtype, (*lead, m, k)), random_array(dtype, (k, n) if weights else (*lead, k, n), 1, scale)
    op, out = ("MatMulInteger", "int32") if integer else ("MatMul", dtype)

    def check(read: Read) -> float:
        rows = _some(batch * m)
        flat, right = a.reshape(-1, k), b.reshape(-1, k, n)
        expected = [flat[r].astype(F64) @ right[r // m if len(right) > 1 else 0].astype(F64) for r in rows]
        return worst_error(_rows(read, rows, n), np.stack(expected))

    def torch(t: Any) -> Callable[[], Any]:
        x, y = t.from_numpy(np.ascontiguousarray(a)).cuda(), t.from_numpy(np.ascontiguousarray(b)).cuda()
        if integer:
            y = y.t().contiguous().t()  # the layout that it wants
            return lambda: t._int_mm(x, y)
        return lambda: t.matmul(x, y)

    inputs = {"a": a} if weights else {"a": a, "b": b}
    node = helper.make_node(op, ["a", "b"], ["y"])
    return Work(
        make_model([node], inputs, ("y", out, (*lead, m, n)), {"b": b} if weights else {}),
        inputs,
        2 * batch * m * k * n / 1e12,
        "TOP/s" if integer else "TFLOP/s",
        check,
        _limit(dtype, precision),
        _options(precision),
        torch if not (integer and m <= 16) else None,
        precision == "fast",
    )


def skinny(m: int = 1, k: int = 4096, dtype: str = "fp32", precision: str = "strict", layers: int = 0) -> Work:
    """[m, k] times one [k, k] after the other: *layers* weights (0: 512 MB of them, more than a cache holds)."""
    layers = layers or max(1, (512 << 20) // (k * k * DTYPES[dtype].itemsize))
    x = random_array(dtype, (m, k))
    weights = {f"w{i}": random_array(dtype, (k, k), i + 1, k**-0.5) for i in range(layers)}
    names = ["x", *(f"h{i}" for i in range(1, layers)), "y"]
    nodes = [helper.make_node("MatMul", [names[i], f"w{i}"], [names[i + 1]]) for i in range(layers)]

    def check(read: Read) -> float:
        expected = x.astype(F64)
        for w in weights.values():
            expected = expected @ w.astype(F64)
        return worst_error(read(0, m * k).reshape(m, k), expected)

    def torch(t: Any) -> Callable[[], Any]:
        first, rest = t.from_numpy(x.copy()).cuda(), [t.from_numpy(w.copy()).cuda() for w in weights.values()]

        def run() -> Any:
            h = first
            for w in rest:
                h = h @ w
            return h

        return run

    return Work(
        make_model(nodes, {"x": x}, ("y", dtype, (m, k)), weights),
        {"x": x},
        layers * (k * k + 2 * m * k) * DTYPES[dtype].itemsize / 1e12,
        "TB/s",
        check,
        4 * _limit(dtype, precision),
        _options(precision),
        torch,
        precision == "fast",
    )


def _streaming(
    node: list[Any],
    x: Array,
    shape: tuple[int, ...],
    check: Callable[[Read], float],
    torch: Callable[[Any, Any], Callable[[], Any]],
    weights: dict[str, Array] | None = None,
) -> Work:
    """Work that reads x once and writes y once."""
    dtype = "fp16" if x.dtype == np.float16 else "fp32"

    def run(t: Any) -> Callable[[], Any]:
        return torch(t, t.from_numpy(np.ascontiguousarray(x)).cuda())

    model = make_model(node, {"x": x}, ("y", dtype, shape), weights)
    return Work(model, {"x": x}, 2 * x.nbytes / 1e12, "TB/s", check, LIMITS[dtype], torch=run)


def softmax(rows: int = 16384, columns: int = 4096, dtype: str = "fp32") -> Work:
    """Softmax over the last axis."""
    x = random_array(dtype, (rows, columns))

    def check(read: Read) -> float:
        some = _some(rows)
        e = np.exp(x[some].astype(F64))
        return worst_error(_rows(read, some, columns), e / e.sum(-1, keepdims=True))

    node = helper.make_node("Softmax", ["x"], ["y"], axis=-1)
    return _streaming([node], x, x.shape, check, lambda t, v: lambda: t.softmax(v, -1))


def layer_norm(rows: int = 16384, columns: int = 4096, dtype: str = "fp32") -> Work:
    """LayerNormalization over the last axis, with scale and bias."""
    x = random_array(dtype, (rows, columns))
    weights = {"s": random_array(dtype, (columns,), 1), "b": random_array(dtype, (columns,), 2)}

    def check(read: Read) -> float:
        some = _some(rows)
        v = x[some].astype(F64)
        v = (v - v.mean(-1, keepdims=True)) / np.sqrt(v.var(-1, keepdims=True) + 1e-5)
        return worst_error(_rows(read, some, columns), v * weights["s"].astype(F64) + weights["b"].astype(F64))

    def torch(t: Any, v: Any) -> Callable[[], Any]:
        s, b = (t.from_numpy(w.copy()).cuda() for w in weights.values())
        return lambda: t.nn.functional.layer_norm(v, (columns,), s, b)

    node = helper.make_node("LayerNormalization", ["x", "s", "b"], ["y"], axis=-1, epsilon=1e-5)
    return _streaming([node], x, x.shape, check, torch, weights)


def transpose(rows: int = 8192, columns: int = 8192, dtype: str = "fp32", batch: int = 1) -> Work:
    """The last two axes exchanged."""
    x = random_array(dtype, (batch, rows, columns))

    def check(read: Read) -> float:
        some = _some(batch * columns)
        return worst_error(_rows(read, some, rows), np.stack([x[i // columns, :, i % columns] for i in some]))

    node = helper.make_node("Transpose", ["x"], ["y"], perm=[0, 2, 1])
    return _streaming([node], x, (batch, columns, rows), check, lambda t, v: lambda: v.transpose(1, 2).contiguous())


def elementwise(elements: int = 1 << 26, dtype: str = "fp32") -> Work:
    """Eight elementwise operators one after the other: one read, one write."""
    x = random_array(dtype, (elements,))
    scale, bias = (np.asarray(v, x.dtype) for v in (0.75, 0.5))
    steps = [
        ("Mul", ["x", "s"], "a"),
        ("Add", ["a", "b"], "c"),
        ("Sigmoid", ["c"], "d"),
        ("Mul", ["c", "d"], "e"),
        ("Sub", ["e", "x"], "f"),
        ("Abs", ["f"], "g"),
        ("Max", ["g", "x"], "h"),
        ("Mul", ["h", "s"], "y"),
    ]
    nodes = [helper.make_node(op, names, [out]) for op, names, out in steps]

    def formula(v: Any, sigmoid: Any, maximum: Any) -> Any:
        c = v * 0.75 + 0.5
        return maximum(abs(c * sigmoid(c) - v), v) * 0.75

    def check(read: Read) -> float:
        count = min(elements, 4096)
        starts = [s for s in (0, elements // 3, elements - count) if s + count <= elements]
        v = np.stack([x[s : s + count] for s in starts]).astype(F64)
        expected = formula(v, lambda c: 1 / (1 + np.exp(-c)), np.maximum)
        return worst_error(np.stack([read(s, count) for s in starts]), expected)

    def torch(t: Any, v: Any) -> Callable[[], Any]:
        return lambda: formula(v, t.sigmoid, t.maximum)

    return _streaming(nodes, x, x.shape, check, torch, {"s": scale, "b": bias})


def softmaxes(count: int = 200, size: int = 64) -> Work:
    """*count* Softmaxes of [size, size], each of the last one's result, over alternating axes."""
    x = random_array("fp32", (size, size))
    names = ["x", *(f"h{i}" for i in range(1, count)), "y"]
    nodes = [helper.make_node("Softmax", [names[i]], [names[i + 1]], axis=i % 2) for i in range(count)]

    def check(read: Read) -> float:
        v = x.astype(F64)
        for i in range(count):
            e = np.exp(v - v.max(i % 2, keepdims=True))
            v = e / e.sum(i % 2, keepdims=True)
        return worst_error(read(0, size * size).reshape(size, size), v)

    def torch(t: Any) -> Callable[[], Any]:
        first = t.from_numpy(x.copy()).cuda()

        def run() -> Any:
            v = first
            for i in range(count):
                v = t.softmax(v, i % 2)
            return v

        return run

    model = make_model(nodes, {"x": x}, ("y", "fp32", (size, size)))
    return Work(model, {"x": x}, 0.0, "ms", check, LIMITS["fp32"], torch=torch)


def attention(
    heads: int = 16, length: int = 2048, width: int = 64, dtype: str = "fp16", form: str = "onnx", batch: int = 1, past: int = 0
) -> Work:
    """softmax(q k' / sqrt(width)) v. *form*: ``onnx`` (Attention), ``microsoft`` (MultiHeadAttention) or ``ops`` (MatMul, Mul,
    Softmax, MatMul); *past*: as many more keys than queries."""
    keys = length + past
    shapes = {"q": (batch, heads, length, width), "k": (batch, heads, keys, width), "v": (batch, heads, keys, width)}
    packed = form == "microsoft"  # [batch, length, heads * width]
    if packed:
        shapes = {name: (b, s, h, w) for name, (b, h, s, w) in shapes.items()}
    given = {name: random_array(dtype, shape, i) for i, (name, shape) in enumerate(shapes.items())}
    order = (0, 2, 1, 3) if packed else (0, 1, 2, 3)
    weights: dict[str, Array] = {}
    if form == "onnx":
        nodes = [helper.make_node("Attention", ["q", "k", "v"], ["y"])]
    elif packed:
        nodes = [helper.make_node("MultiHeadAttention", ["q", "k", "v"], ["y"], domain="com.microsoft", num_heads=heads)]
    else:
        weights = {"s": np.asarray(width**-0.5, DTYPES[dtype])}
        nodes = [
            helper.make_node("Transpose", ["k"], ["t"], perm=[0, 1, 3, 2]),
            helper.make_node("MatMul", ["q", "t"], ["qk"]),
            helper.make_node("Mul", ["qk", "s"], ["scores"]),
            helper.make_node("Softmax", ["scores"], ["p"], axis=-1),
            helper.make_node("MatMul", ["p", "v"], ["y"]),
        ]

    def check(read: Read) -> float:
        got, expected = [], []
        for row in _some(batch * heads * length, 12):
            b, h, s = row // (heads * length), row // length % heads, row % length
            q, k, v = (array.transpose(order)[b, h].astype(F64) for array in given.values())
            e = np.exp(k @ q[s] * width**-0.5)
            expected.append(e @ v / e.sum())
            got.append(read(((b * length + s) * heads + h if packed else row) * width, width))
        return worst_error(np.stack(got), np.stack(expected))

    def torch(t: Any) -> Callable[[], Any]:
        q, k, v = (t.from_numpy(np.ascontiguousarray(a.transpose(order))).cuda() for a in given.values())
        return lambda: t.nn.functional.scaled_dot_product_attention(q, k, v)

    feeds = {name: a.reshape(batch, a.shape[1], -1) for name, a in given.items()} if packed else given
    shape = (batch, length, heads * width) if packed else (batch, heads, length, width)
    return Work(
        make_model(nodes, feeds, ("y", dtype, shape), weights, opset=23),
        feeds,
        4 * batch * heads * length * keys * width / 1e12,
        "TFLOP/s",
        check,
        LIMITS[dtype],
        torch=torch,
    )


def conv(
    batch: int = 1,
    channels: int = 64,
    size: int = 56,
    out: int = 0,
    kernel: int = 3,
    stride: int = 1,
    groups: int = 1,
    dtype: str = "fp32",
    precision: str = "strict",
) -> Work:
    """A convolution with padding and bias on channels-last data (the model's transposes are not done), *out* 0: as many channels
    out as in; *groups* 0: depthwise."""
    out, groups = out or channels, groups or channels
    pad, result = kernel // 2, (size + 2 * (kernel // 2) - kernel) // stride + 1
    x = random_array(dtype, (batch, size, size, channels))
    fan_in = channels // groups * kernel * kernel
    w = random_array(dtype, (out, channels // groups, kernel, kernel), 1, fan_in**-0.5)
    bias = random_array(dtype, (out,), 2)
    nodes = [
        helper.make_node("Transpose", ["x"], ["first"], perm=[0, 3, 1, 2]),
        helper.make_node("Conv", ["first", "w", "b"], ["c"], strides=[stride] * 2, pads=[pad] * 4, group=groups),
        helper.make_node("Transpose", ["c"], ["y"], perm=[0, 2, 3, 1]),
    ]
    shape = (batch, result, result, out)

    def check(read: Read) -> float:
        places, got, expected = prod(shape[:3]), [], []
        w64 = w.astype(F64).reshape(groups, out // groups, channels // groups, kernel, kernel)
        for place in _some(places, 16):
            n, top, left = place // result**2, place // result % result * stride - pad, place % result * stride - pad
            patch = np.zeros((kernel, kernel, channels))
            rows, columns = slice(max(top, 0), top + kernel), slice(max(left, 0), left + kernel)
            piece = x[n, rows, columns]
            at = rows.start - top, columns.start - left
            patch[at[0] : at[0] + piece.shape[0], at[1] : at[1] + piece.shape[1]] = piece
            grouped = patch.reshape(kernel, kernel, groups, channels // groups)
            expected.append(np.einsum("yxgc,gocyx->go", grouped, w64).reshape(-1) + bias)
            got.append(read(place * out, out))
        return worst_error(np.stack(got), np.stack(expected))

    def torch(t: Any) -> Callable[[], Any]:
        first = t.from_numpy(x.copy()).cuda().permute(0, 3, 1, 2)
        weight, b = t.from_numpy(w.copy()).cuda().to(memory_format=t.channels_last), t.from_numpy(bias.copy()).cuda()
        return lambda: t.nn.functional.conv2d(first, weight, b, stride, pad, 1, groups)

    return Work(
        make_model(nodes, {"x": x}, ("y", dtype, shape), {"w": w, "b": bias}),
        {"x": x},
        2 * prod(shape) * fan_in / 1e12,
        "TFLOP/s",
        check,
        _limit(dtype, precision),
        _options(precision),
        torch,
        precision == "fast",
    )


FAMILIES: dict[str, Callable[..., Work]] = {
    f.__name__: f for f in (matmul, skinny, softmax, layer_norm, transpose, elementwise, softmaxes, attention, conv)
}
