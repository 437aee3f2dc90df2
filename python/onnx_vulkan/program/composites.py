"""Larger operations written in primitives, once: softmax, norms, activations; and the composite instructions.

Two kinds live here. *Builder functions* (``softmax(b, x, axes)``) write primitives in one canonical shape - reductions over the
last axes with ``keepdims``, operands broadcast back, two-pass variance, sums of half floats in float32 - which the fuser
regroups into row kernels. *Composite instructions* are single instructions that a backend may run by a kernel of its own;
``DECOMPOSITIONS`` gives each one's meaning in primitives where its shape allows, and :mod:`onnx_vulkan.program.interp_nn` its
meaning in numpy. Nothing here knows ONNX nodes.

Composite ``rnn``
-----------------
The sequential part of an LSTM, GRU or plain RNN over ``D`` directions (1 or 2), ``S`` steps, ``B`` sequences, ``H`` hidden units
and ``G`` gates (lstm 4, gru 3, rnn 1). The input projection is done before, by one ``contract`` over all steps.

Attrs: ``kind`` ``lstm`` | ``gru`` | ``rnn``; ``direction`` ``forward`` | ``reverse`` | ``bidirectional``; ``hidden`` (int, H);
``activations``: a tuple of ``(name, alpha, beta)``, per direction lstm 3 (f, g, h), gru 2 (f, g), rnn 1 (f), the names in lower
case (:data:`RNN_ACTIVATIONS`); ``clip`` float or None; ``linear_before_reset`` bool (gru); ``input_forget`` bool (lstm);
``present``: names of the inputs that follow, in order.

Inputs by name (``xw`` and ``r`` always, the others only when listed in ``present``; all of one float dtype except ``lens``):

====== ================= ==================================================================================================
xw     ``[S, B, D*G*H]`` ``x[t] @ W^T`` plus every bias that adds to it before the recurrence (Wb and Rb, but for a gru with
                         ``linear_before_reset`` Rb's h part stays out). Column ``(d*G + g)*H + j`` is unit j of gate g of
                         direction d. Gate order is ONNX's: lstm i o f c, gru z r h. In original time order, also for
                         reverse directions
r      ``[D, H, G*H]``   recurrence weights, columns as above; a step uses ``h @ r[d]`` (ONNX's R transposed: neighbouring units
                         are neighbours in memory)
rb     ``[D, H]``        gru with ``linear_before_reset``: Rb's h part
h0     ``[D, B, H]``     initial hidden state (0 when absent)
c0     ``[D, B, H]``     lstm: initial cell state (0 when absent)
p      ``[D, 3*H]``      lstm: peepholes in the order i o f (0 when absent)
lens   ``[B]`` int32     valid steps of each sequence, 0..S (S when absent)
====== ================= ==================================================================================================

Outputs: ``y [S, D, B, H]`` (hidden state after each step, at the step's original time index; 0 at steps ``t >= lens[b]``),
``h [D, B, H]`` (after the last valid step; h0 when there is none), for lstm also ``c [D, B, H]``.

A direction visits sequence b at t = 0 .. lens[b]-1, or lens[b]-1 .. 0 in reverse (direction 1 of ``bidirectional``, or
``reverse``). With ``clip``, a gate's value before its activation is clamped to [-clip, clip]. One step, ``xw`` meaning row t:

- rnn: ``h = f(xw + h r)``
- gru: ``z = f(xw_z + h r_z)``, ``q = f(xw_r + h r_r)``; without linear_before_reset ``n = g(xw_h + (q*h) r_h)``, with it
  ``n = g(xw_h + q * (h r_h + rb))``; ``h = (1 - z) * n + z * h``
- lstm: ``i = f(xw_i + h r_i + p_i*c)``, ``F = f(xw_f + h r_f + p_f*c)`` or ``1 - i`` with input_forget,
  ``n = g(xw_c + h r_c)``, ``c' = F*c + i*n``, ``o = f(xw_o + h r_o + p_o*c')``, ``h = o * hact(c')``, ``c = c'``

Half floats: states are kept and products summed in float32; y, h, c are rounded when stored.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from onnx_vulkan.dims import Extent
from onnx_vulkan.dtypes import DType
from onnx_vulkan.program.builder import Builder
from onnx_vulkan.program.ir import Instr, Value

__all__ = [
    "DECOMPOSITIONS",
    "RNN_ACTIVATIONS",
    "activation",
    "affine",
    "clamp",
    "expm1",
    "gelu",
    "hard_sigmoid",
    "inverse_deviation",
    "layer_norm",
    "leaky_relu",
    "log_softmax",
    "lstm_cell",
    "masked_softmax",
    "moments",
    "moved_last",
    "normalize",
    "quick_gelu",
    "relu",
    "rms_norm",
    "rnn",
    "sigmoid",
    "softmax",
    "softplus",
    "tanh_gelu",
    "wide",
]

HALF = (DType.F16, DType.BF16)


def wide(b: Builder, x: Value) -> Value:
    """*x* in the dtype that sums are taken in: float32 for half floats, else its own."""
    return b.cast(x, DType.F32) if x.dtype in HALF else x


def number(b: Builder, value: float, like: Value) -> Value:
    """A rank-0 constant of the dtype of *like*."""
    return b.scalar(value, like.dtype)


# -------------------------------------------------------------------------------------------------------- activations


def sigmoid(b: Builder, x: Value) -> Value:
    """``1 / (1 + exp(-x))``."""
    one = number(b, 1, x)
    return b.map("div", one, b.map("add", one, b.map("exp", b.map("neg", x))))


def relu(b: Builder, x: Value) -> Value:
    """``max(x, 0)``; NaN stays NaN."""
    return b.map("max", x, number(b, 0, x))


def leaky_relu(b: Builder, x: Value, alpha: float) -> Value:
    """x where it is not negative, ``alpha * x`` elsewhere."""
    return b.map("select", b.map("lt", x, number(b, 0, x)), b.map("mul", x, number(b, alpha, x)), x)


def clamp(b: Builder, x: Value, low: float, high: float) -> Value:
    """x limited to [low, high]."""
    return b.map("min", b.map("max", x, number(b, low, x)), number(b, high, x))


def hard_sigmoid(b: Builder, x: Value, alpha: float, beta: float) -> Value:
    """``max(0, min(1, alpha * x + beta))``."""
    return clamp(b, affine(b, x, alpha, beta), 0.0, 1.0)


def expm1(b: Builder, x: Value) -> Value:
    """``exp(x) - 1`` without loss near 0: ``tanh(x / 2) * (exp(x) + 1)``."""
    half = b.map("tanh", b.map("mul", x, number(b, 0.5, x)))
    return b.map("mul", half, b.map("add", b.map("exp", x), number(b, 1, x)))


def softplus(b: Builder, x: Value) -> Value:
    """``log(1 + exp(x))``, written so that it does not overflow: ``max(x, 0) + log(1 + exp(-|x|))``."""
    tail = b.map("log1p", b.map("exp", b.map("neg", b.map("abs", x))))
    return b.map("add", relu(b, x), tail)


def affine(b: Builder, x: Value, alpha: float, beta: float) -> Value:
    """``alpha * x + beta``."""
    if alpha != 1.0:
        x = b.map("mul", x, number(b, alpha, x))
    return b.map("add", x, number(b, beta, x)) if beta != 0.0 else x


def gelu(b: Builder, x: Value) -> Value:
    """``0.5 * x * (1 + erf(x / sqrt(2)))``, in float32 for half floats."""
    y = wide(b, x)
    inner = b.map("erf", b.map("mul", y, number(b, 0.7071067811865476, y)))
    y = b.map("mul", b.map("mul", y, number(b, 0.5, y)), b.map("add", inner, number(b, 1, y)))
    return b.cast(y, x.dtype)


def tanh_gelu(b: Builder, x: Value) -> Value:
    """``0.5 * x * (1 + tanh(sqrt(2/pi) * (x + 0.044715 x^3)))``, in float32 for half floats."""
    y = wide(b, x)
    cube = b.map("mul", b.map("mul", y, y), y)
    inner = b.map("mul", b.map("add", y, b.map("mul", cube, number(b, 0.044715, y))), number(b, 0.7978845608028654, y))
    y = b.map("mul", b.map("mul", y, number(b, 0.5, y)), b.map("add", b.map("tanh", inner), number(b, 1, y)))
    return b.cast(y, x.dtype)


def quick_gelu(b: Builder, x: Value, alpha: float = 1.702) -> Value:
    """``x * sigmoid(alpha * x)``; alpha 1 is SiLU."""
    y = wide(b, x)
    return b.cast(b.map("mul", y, sigmoid(b, affine(b, y, alpha, 0.0))), x.dtype)


def _elu(b: Builder, x: Value, alpha: float) -> Value:
    grown = b.map("mul", number(b, alpha, x), expm1(b, x))
    return b.map("select", b.map("lt", x, number(b, 0, x)), grown, x)


def _thresholded(b: Builder, x: Value, alpha: float) -> Value:
    return b.map("select", b.map("gt", x, number(b, alpha, x)), x, number(b, 0, x))


_ACTIVATIONS: dict[str, tuple[float, float, Callable[[Builder, Value, float, float], Value]]] = {
    "affine": (1.0, 0.0, affine),
    "elu": (1.0, 0.0, lambda b, x, a, _: _elu(b, x, a)),
    "hardsigmoid": (0.2, 0.5, hard_sigmoid),
    "leakyrelu": (0.01, 0.0, lambda b, x, a, _: leaky_relu(b, x, a)),
    "relu": (0.0, 0.0, lambda b, x, *_: relu(b, x)),
    "scaledtanh": (1.0, 1.0, lambda b, x, a, c: b.map("mul", number(b, a, x), b.map("tanh", affine(b, x, c, 0.0)))),
    "sigmoid": (0.0, 0.0, lambda b, x, *_: sigmoid(b, x)),
    "softplus": (0.0, 0.0, lambda b, x, *_: softplus(b, x)),
    "softsign": (0.0, 0.0, lambda b, x, *_: b.map("div", x, b.map("add", number(b, 1, x), b.map("abs", x)))),
    "tanh": (0.0, 0.0, lambda b, x, *_: b.map("tanh", x)),
    "thresholdedrelu": (1.0, 0.0, lambda b, x, a, _: _thresholded(b, x, a)),
}

RNN_ACTIVATIONS = {name: (alpha, beta) for name, (alpha, beta, _) in _ACTIVATIONS.items()}
"""The activations of recurrent cells with their default alpha and beta."""


def activation(b: Builder, name: str, x: Value, alpha: float, beta: float) -> Value:
    """Apply one of :data:`RNN_ACTIVATIONS`."""
    return _ACTIVATIONS[name][2](b, x, alpha, beta)


# ------------------------------------------------------------------------------------------------------------ rows


def moved_last(b: Builder, x: Value, axes: Sequence[int]) -> tuple[Value, tuple[int, ...]]:
    """*x* with *axes* (in order) moved to the end, and the permutation that takes the result back."""
    axes = [a % x.rank for a in axes]
    perm = [i for i in range(x.rank) if i not in axes] + axes
    back = sorted(range(x.rank), key=perm.__getitem__)
    return b.transpose(x, perm), tuple(back)


def _exponentials(b: Builder, x: Value, axes: Sequence[int]) -> tuple[Value, Value, Value]:
    shifted = b.map("sub", x, b.reduce("max", x, axes, keepdims=True))
    e = b.map("exp", shifted)
    return shifted, e, b.reduce("sum", e, axes, keepdims=True)


def softmax(b: Builder, x: Value, axes: Sequence[int] = (-1,)) -> Value:
    """``exp(x - max) / sum(exp(x - max))`` over the last axes, in float32 for half floats."""
    _, e, total = _exponentials(b, wide(b, x), axes)
    return b.cast(b.map("div", e, total), x.dtype)


def log_softmax(b: Builder, x: Value, axes: Sequence[int] = (-1,)) -> Value:
    """``x - max - log(sum(exp(x - max)))`` over the last axes, in float32 for half floats."""
    shifted, _, total = _exponentials(b, wide(b, x), axes)
    return b.cast(b.map("sub", shifted, b.map("log", total)), x.dtype)


def masked_softmax(b: Builder, x: Value) -> Value:
    """Softmax over the last axis where a row of nothing but -inf gives zeros instead of NaN. Stays in the dtype of *x*."""
    zero = number(b, 0, x)
    highest = b.reduce("max", x, (-1,), keepdims=True)
    highest = b.map("select", b.map("isneginf", highest), zero, highest)
    e = b.map("exp", b.map("sub", x, highest))
    total = b.reduce("sum", e, (-1,), keepdims=True)
    return b.map("div", e, b.map("select", b.map("eq", total, zero), number(b, 1, x), total))


def sink_softmax(b: Builder, x: Value, sink: Value) -> Value:
    """Softmax over the last axis with one more score, *sink* (broadcast to x), that only counts in the sum."""
    highest = b.map("max", b.reduce("max", x, (-1,), keepdims=True), sink)
    e = b.map("exp", b.map("sub", x, highest))
    total = b.map("add", b.reduce("sum", e, (-1,), keepdims=True), b.map("exp", b.map("sub", sink, highest)))
    return b.map("div", e, total)


def moments(b: Builder, x: Value, axes: Sequence[int]) -> tuple[Value, Value, Value]:
    """``(x - mean, mean, variance)`` over *axes* with keepdims: two passes, the variance from the differences."""
    mean = b.mean(x, axes, keepdims=True)
    centred = b.map("sub", x, mean)
    return centred, mean, b.mean(b.map("mul", centred, centred), axes, keepdims=True)


def inverse_deviation(b: Builder, variance: Value, epsilon: float) -> Value:
    """``1 / sqrt(variance + epsilon)``."""
    return b.map("rsqrt", b.map("add", variance, number(b, epsilon, variance)))


def normalize(b: Builder, x: Value, axes: Sequence[int], epsilon: float) -> tuple[Value, Value, Value]:
    """``(x - mean) / sqrt(var + epsilon)`` over *axes*; also the mean and 1/sqrt (keepdims). In the dtype of *x*."""
    centred, mean, variance = moments(b, x, axes)
    inverse = inverse_deviation(b, variance, epsilon)
    return b.map("mul", centred, inverse), mean, inverse


def layer_norm(
    b: Builder, x: Value, axes: Sequence[int], scale: Value | None, bias: Value | None, epsilon: float
) -> tuple[Value, Value, Value]:
    """Layer normalization over the last *axes*: the result in the dtype of *x*, mean and inverse deviation in float32
    (float64 for float64). *scale* and *bias* broadcast to x. All in float32 for half floats, rounded once."""
    y, mean, inverse = normalize(b, wide(b, x), axes, epsilon)
    if scale is not None:
        y = b.map("mul", y, b.cast(scale, y.dtype))
    if bias is not None:
        y = b.map("add", y, b.cast(bias, y.dtype))
    return b.cast(y, x.dtype), mean, inverse


def rms_norm(b: Builder, x: Value, axes: Sequence[int], scale: Value | None, epsilon: float) -> tuple[Value, Value]:
    """``x / sqrt(mean(x^2) + epsilon) * scale`` over the last *axes*, and 1/sqrt (keepdims, not rounded to halves)."""
    y = wide(b, x)
    inverse = inverse_deviation(b, b.mean(b.map("mul", y, y), axes, keepdims=True), epsilon)
    y = b.map("mul", y, inverse)
    if scale is not None:
        y = b.map("mul", y, b.cast(scale, y.dtype))
    return b.cast(y, x.dtype), inverse


# -------------------------------------------------------------------------------------------------- composite: rnn


def rnn(
    b: Builder,
    kind: str,
    xw: Value,
    r: Value,
    *,
    direction: str,
    hidden: int,
    activations: Sequence[tuple[str, float, float]],
    clip: float | None = None,
    linear_before_reset: bool = False,
    input_forget: bool = False,
    rb: Value | None = None,
    h0: Value | None = None,
    c0: Value | None = None,
    p: Value | None = None,
    lens: Value | None = None,
) -> tuple[Value, ...]:
    """The ``rnn`` composite described above; gives y, h and for lstm c."""
    steps, batch = xw.shape[:2]
    directions = 2 if direction == "bidirectional" else 1
    given = {"rb": rb, "h0": h0, "c0": c0, "p": p, "lens": lens}
    present = {name: v for name, v in given.items() if v is not None}
    state = (directions, batch, hidden)
    outputs: list[tuple[DType, Sequence[Extent]]] = [(xw.dtype, (steps, *state[:1], *state[1:])), (xw.dtype, state)]
    if kind == "lstm":
        outputs.append((xw.dtype, state))
    return b.emit(
        "rnn",
        [xw, r, *present.values()],
        outputs,
        kind=kind,
        direction=direction,
        hidden=hidden,
        activations=tuple(activations),
        clip=clip,
        linear_before_reset=linear_before_reset,
        input_forget=input_forget,
        present=tuple(present),
    )


def _gate(b: Builder, attrs: dict[str, Any], act: tuple[str, float, float], x: Value) -> Value:
    if attrs["clip"] is not None:
        x = clamp(b, x, -attrs["clip"], attrs["clip"])
    return activation(b, act[0], x, act[1], act[2])


def _cell(
    b: Builder, attrs: dict[str, Any], acts: Sequence[tuple[str, float, float]], x: Sequence[Value], h: Value, c: Value | None,
    r: Sequence[Value], rb: Value | None, p: Sequence[Value] | None,
) -> tuple[Value, Value | None]:  # fmt: skip
    """One step: *x* and *r* by gate ([B, H] and [H, H]), float32 or wider."""
    if attrs["kind"] == "rnn":
        return _gate(b, attrs, acts[0], b.map("add", x[0], b.contract(h, r[0]))), None
    if attrs["kind"] == "gru":
        z = _gate(b, attrs, acts[0], b.map("add", x[0], b.contract(h, r[0])))
        q = _gate(b, attrs, acts[0], b.map("add", x[1], b.contract(h, r[1])))
        if attrs["linear_before_reset"]:
            recurrent = b.contract(h, r[2])
            if rb is not None:
                recurrent = b.map("add", recurrent, rb)
            inner = b.map("mul", q, recurrent)
        else:
            inner = b.contract(b.map("mul", q, h), r[2])
        n = _gate(b, attrs, acts[1], b.map("add", x[2], inner))
        keep = b.map("sub", number(b, 1, z), z)
        return b.map("add", b.map("mul", keep, n), b.map("mul", z, h)), None
    assert c is not None
    return lstm_cell(b, attrs, acts, [b.map("add", x[g], b.contract(h, r[g])) for g in range(4)], c, p)


def lstm_cell(
    b: Builder, attrs: dict[str, Any], acts: Sequence[tuple[str, float, float]], pre: Sequence[Value], c: Value,
    p: Sequence[Value] | None,
) -> tuple[Value, Value]:  # fmt: skip
    """The new h and c of an LSTM from what each gate (i o f c) sums before its peephole. *attrs*: ``clip``, ``input_forget``."""

    def peep(g: int, cell: Value) -> Value:
        return pre[g] if p is None else b.map("add", pre[g], b.map("mul", p[g], cell))

    i = _gate(b, attrs, acts[0], peep(0, c))
    f = b.map("sub", number(b, 1, i), i) if attrs["input_forget"] else _gate(b, attrs, acts[0], peep(2, c))
    n = _gate(b, attrs, acts[1], pre[3])
    c = b.map("add", b.map("mul", f, c), b.map("mul", i, n))
    o = _gate(b, attrs, acts[0], peep(1, c))
    return b.map("mul", o, activation(b, acts[2][0], c, acts[2][1], acts[2][2])), c


def _part(b: Builder, x: Value, axis: int, start: int, size: int) -> Value:
    starts = [start if a == axis else 0 for a in range(x.rank)]
    return b.slice(x, starts, [size if a == axis else e for a, e in enumerate(x.shape)])


def _decompose_rnn(b: Builder, instr: Instr) -> tuple[Value, ...] | None:
    """Unrolled over the steps; None where S is not a number, or so large that unrolling makes no sense."""
    attrs, (xw, r, *rest) = instr.attrs, instr.inputs
    steps = xw.shape[0]
    if not isinstance(steps, int) or not 0 < steps <= 32:
        return None
    given: dict[str, Value] = dict(zip(attrs["present"], rest, strict=True))
    lstm = attrs["kind"] == "lstm"
    hidden, batch, dtype = attrs["hidden"], xw.shape[1], xw.dtype
    gates = {"lstm": 4, "gru": 3, "rnn": 1}[attrs["kind"]]
    per_direction = {"lstm": 3, "gru": 2, "rnn": 1}[attrs["kind"]]
    directions = 2 if attrs["direction"] == "bidirectional" else 1
    xw, r = wide(b, xw), wide(b, r)

    def state(name: str, d: int) -> Value:
        if name not in given:
            return b.full((batch, hidden), 0, xw.dtype)
        return b.reshape(_part(b, wide(b, given[name]), 0, d, 1), (batch, hidden))

    ys: list[list[Value]] = []
    hs: list[Value] = []
    cs: list[Value] = []
    for d in range(directions):
        acts = attrs["activations"][d * per_direction : (d + 1) * per_direction]
        weights = b.reshape(_part(b, r, 0, d, 1), (hidden, gates * hidden))
        by_gate = [_part(b, weights, 1, g * hidden, hidden) for g in range(gates)]
        rb = b.reshape(_part(b, wide(b, given["rb"]), 0, d, 1), (1, hidden)) if "rb" in given else None
        p = None
        if "p" in given:
            whole = b.reshape(_part(b, wide(b, given["p"]), 0, d, 1), (3, hidden))
            p = [_part(b, whole, 0, g, 1) for g in range(3)]
        h = state("h0", d)
        c = state("c0", d) if lstm else None
        outs: list[Value | None] = [None] * steps
        reverse = attrs["direction"] == "reverse" or d == 1
        for t in reversed(range(steps)) if reverse else range(steps):
            row = b.reshape(_part(b, xw, 0, t, 1), (batch, xw.shape[2]))
            x = [_part(b, row, 1, (d * gates + g) * hidden, hidden) for g in range(gates)]
            new_h, new_c = _cell(b, attrs, acts, x, h, c, by_gate, rb, p)
            out = new_h
            if "lens" in given:
                lens = b.reshape(given["lens"], (batch, 1))
                live = b.map("lt", b.scalar(t, lens.dtype), lens)
                out = b.map("select", live, new_h, number(b, 0, new_h))
                new_h = b.map("select", live, new_h, h)
                new_c = b.map("select", live, new_c, c) if new_c is not None and c is not None else None
            h, c, outs[t] = new_h, new_c, out
        ys.append([b.reshape(o, (1, 1, batch, hidden)) for o in outs if o is not None])
        hs.append(b.reshape(h, (1, batch, hidden)))
        if c is not None:
            cs.append(b.reshape(c, (1, batch, hidden)))
    y = b.concat([b.concat(steps_of, 0) for steps_of in ys], 1)
    results = [y, b.concat(hs, 0)] + ([b.concat(cs, 0)] if lstm else [])
    return tuple(b.cast(v, dtype) for v in results)


DECOMPOSITIONS: dict[str, Callable[[Builder, Instr], tuple[Value, ...] | None]] = {"rnn": _decompose_rnn}
"""By composite instruction: a function that writes its primitives and gives back its outputs, or None where it cannot."""
