"""LSTM, GRU and RNN: one input projection over all steps, then the ``rnn`` composite (see composites for its meaning)."""

from __future__ import annotations

from collections.abc import Sequence

from onnx_vulkan.dims import Extent, require_same
from onnx_vulkan.dtypes import FLOATS
from onnx_vulkan.errors import Unsupported
from onnx_vulkan.lower.linear import matmul
from onnx_vulkan.lower.registry import LowerContext, lowers
from onnx_vulkan.program import composites
from onnx_vulkan.program.builder import Builder
from onnx_vulkan.program.ir import Value

__all__ = ["cell_activations"]

_GATES = {"lstm": 4, "gru": 3, "rnn": 1}
_DEFAULTS = {"lstm": ("Sigmoid", "Tanh", "Tanh"), "gru": ("Sigmoid", "Tanh"), "rnn": ("Tanh",)}
_TAKES_ALPHA = {"affine", "elu", "hardsigmoid", "leakyrelu", "scaledtanh", "thresholdedrelu"}
_TAKES_BETA = {"affine", "hardsigmoid", "scaledtanh"}
_TYPES = {"x": FLOATS}


def cell_activations(
    kind: str, names: Sequence[str] | None, alphas: Sequence[float] | None, betas: Sequence[float] | None, directions: int
) -> tuple[tuple[str, float, float], ...]:
    """Names with alpha and beta; each list of numbers is eaten in order by the activations that take one."""
    default = _DEFAULTS[kind] * directions
    names = [n.lower() for n in (names or default)]
    if kind == "rnn" and len(names) == 2:
        names = names[:directions]  # the schema's default is for two directions, and ONNX Runtime hands it over as given
    if len(names) != len(default):
        raise Unsupported(f"{len(names)} activations where {len(default)} are needed")
    left_alpha, left_beta = list(alphas or ()), list(betas or ())
    result = []
    for name in names:
        if name not in composites.RNN_ACTIVATIONS:
            raise Unsupported(f"activation {name!r} is not supported")
        alpha, beta = composites.RNN_ACTIVATIONS[name]
        if name in _TAKES_ALPHA and left_alpha:
            alpha = left_alpha.pop(0)
        if name in _TAKES_BETA and left_beta:
            beta = left_beta.pop(0)
        result.append((name, alpha, beta))
    return tuple(result)


def _require_shape(operand: Value, shape: Sequence[Extent], name: str) -> None:
    require_same(operand.rank, len(shape), f"the rank of {name} does not fit")
    for e, n in zip(operand.shape, shape, strict=True):
        require_same(e, n, f"{name} of shape {operand.shape} where {tuple(shape)} is needed")


def _slice_last(b: Builder, x: Value, start: int, size: int) -> Value:
    return b.slice(x, [*(0,) * (x.rank - 1), start], [*x.shape[:-1], size])


def _lower(
    b: LowerContext,
    kind: str,
    x: Value,
    w: Value,
    r: Value,
    bias: Value | None,
    lens: Value | None,
    h0: Value | None,
    c0: Value | None,
    p: Value | None,
    *,
    activations: Sequence[str] | None,
    activation_alpha: Sequence[float] | None,
    activation_beta: Sequence[float] | None,
    clip: float | None,
    direction: str,
    hidden_size: int | None,
    layout: int,
    input_forget: int = 0,
    linear_before_reset: int = 0,
) -> tuple[Value, ...]:
    if direction not in ("forward", "reverse", "bidirectional"):
        raise Unsupported(f"direction {direction!r} is unknown")
    directions = 2 if direction == "bidirectional" else 1
    gates = _GATES[kind]
    hidden = hidden_size if hidden_size is not None else r.shape[-1]
    if not isinstance(hidden, int):
        raise Unsupported("the hidden size is not known before the run")
    if x.rank != 3:
        raise Unsupported(f"an input of rank {x.rank}")
    steps, batch = (x.shape[1], x.shape[0]) if layout else (x.shape[0], x.shape[1])
    state = (batch, directions, hidden) if layout else (directions, batch, hidden)
    operands = {
        "weights": (w, (directions, gates * hidden, x.shape[2])),
        "recurrence weights": (r, (directions, gates * hidden, hidden)),
        "bias": (bias, (directions, 2 * gates * hidden)),
        "sequence_lens": (lens, (batch,)),
        "initial_h": (h0, state),
        "initial_c": (c0, state),
        "peephole weights": (p, (directions, 3 * hidden)),
    }
    for name, (operand, shape) in operands.items():
        if operand is not None:
            _require_shape(operand, shape, name)
    if layout:
        x = b.transpose(x, (1, 0, 2))
        h0 = b.transpose(h0, (1, 0, 2)) if h0 is not None else None
        c0 = b.transpose(c0, (1, 0, 2)) if c0 is not None else None
    projection = b.transpose(b.reshape(w, (directions * gates * hidden, w.shape[2])), (1, 0))
    xw = matmul(b, x, projection)
    rb = None
    if bias is not None:
        wb, recurrent = _slice_last(b, bias, 0, gates * hidden), _slice_last(b, bias, gates * hidden, gates * hidden)
        if kind == "gru" and linear_before_reset:
            rb = _slice_last(b, recurrent, 2 * hidden, hidden)
            first = _slice_last(b, recurrent, 0, 2 * hidden)
            recurrent = b.concat([first, b.full((directions, hidden), 0, x.dtype)], 1)
        xw = b.map("add", xw, b.reshape(b.map("add", wb, recurrent), (directions * gates * hidden,)))
    if lens is not None:
        lens = b.bounded(lens, steps + 1)
    outputs = composites.rnn(
        b,
        kind,
        xw,
        b.transpose(r, (0, 2, 1)),
        direction=direction,
        hidden=hidden,
        activations=cell_activations(kind, activations, activation_alpha, activation_beta, directions),
        clip=clip if clip else None,
        linear_before_reset=bool(linear_before_reset),
        input_forget=bool(input_forget),
        rb=rb,
        h0=h0,
        c0=c0,
        p=p,
        lens=lens,
    )
    if layout:  # [S, D, B, H] -> [B, S, D, H], states [D, B, H] -> [B, D, H]
        y, *states = outputs
        outputs = (b.transpose(y, (2, 0, 1, 3)), *(b.transpose(s, (1, 0, 2)) for s in states))
    return outputs


def _first_version(output_sequence: int, outputs: tuple[Value, ...]) -> tuple[Value | None, ...]:
    """Version 1 gives Y only when ``output_sequence`` asks for it."""
    return outputs if output_sequence else (None, *outputs[1:])


@lowers("LSTM", versions=[1], dtypes=_TYPES)
def lstm_1(
    b: LowerContext,
    x: Value,
    w: Value,
    r: Value,
    bias: Value | None = None,
    sequence_lens: Value | None = None,
    initial_h: Value | None = None,
    initial_c: Value | None = None,
    p: Value | None = None,
    *,
    activation_alpha: list[float] | None = None,
    activation_beta: list[float] | None = None,
    activations: list[str] | None = None,
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    input_forget: int = 0,
    output_sequence: int = 0,
) -> tuple[Value | None, ...]:
    """LSTM-1."""
    outputs = _lower(
        b, "lstm", x, w, r, bias, sequence_lens, initial_h, initial_c, p,
        activations=activations, activation_alpha=activation_alpha, activation_beta=activation_beta, clip=clip,
        direction=direction, hidden_size=hidden_size, layout=0, input_forget=input_forget,
    )  # fmt: skip
    return _first_version(output_sequence, outputs)


@lowers("LSTM", versions=[7, 14, 22], dtypes=_TYPES)
def lstm(
    b: LowerContext,
    x: Value,
    w: Value,
    r: Value,
    bias: Value | None = None,
    sequence_lens: Value | None = None,
    initial_h: Value | None = None,
    initial_c: Value | None = None,
    p: Value | None = None,
    *,
    activation_alpha: list[float] | None = None,
    activation_beta: list[float] | None = None,
    activations: list[str] | None = None,
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    input_forget: int = 0,
    layout: int = 0,
) -> tuple[Value | None, ...]:
    """LSTM (``layout`` from 14 on)."""
    return _lower(
        b, "lstm", x, w, r, bias, sequence_lens, initial_h, initial_c, p,
        activations=activations, activation_alpha=activation_alpha, activation_beta=activation_beta, clip=clip,
        direction=direction, hidden_size=hidden_size, layout=layout, input_forget=input_forget,
    )  # fmt: skip


@lowers("GRU", versions=[1, 3], dtypes=_TYPES)
def gru_1(
    b: LowerContext,
    x: Value,
    w: Value,
    r: Value,
    bias: Value | None = None,
    sequence_lens: Value | None = None,
    initial_h: Value | None = None,
    *,
    activation_alpha: list[float] | None = None,
    activation_beta: list[float] | None = None,
    activations: list[str] | None = None,
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    linear_before_reset: int = 0,
    output_sequence: int = 0,
) -> tuple[Value | None, ...]:
    """GRU-1 and -3 (``linear_before_reset`` from 3 on)."""
    outputs = _lower(
        b, "gru", x, w, r, bias, sequence_lens, initial_h, None, None,
        activations=activations, activation_alpha=activation_alpha, activation_beta=activation_beta, clip=clip,
        direction=direction, hidden_size=hidden_size, layout=0, linear_before_reset=linear_before_reset,
    )  # fmt: skip
    return _first_version(output_sequence, outputs)


@lowers("GRU", versions=[7, 14, 22], dtypes=_TYPES)
def gru(
    b: LowerContext,
    x: Value,
    w: Value,
    r: Value,
    bias: Value | None = None,
    sequence_lens: Value | None = None,
    initial_h: Value | None = None,
    *,
    activation_alpha: list[float] | None = None,
    activation_beta: list[float] | None = None,
    activations: list[str] | None = None,
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    layout: int = 0,
    linear_before_reset: int = 0,
) -> tuple[Value | None, ...]:
    """GRU (``layout`` from 14 on)."""
    return _lower(
        b, "gru", x, w, r, bias, sequence_lens, initial_h, None, None,
        activations=activations, activation_alpha=activation_alpha, activation_beta=activation_beta, clip=clip,
        direction=direction, hidden_size=hidden_size, layout=layout, linear_before_reset=linear_before_reset,
    )  # fmt: skip


@lowers("RNN", versions=[1], dtypes=_TYPES)
def rnn_1(
    b: LowerContext,
    x: Value,
    w: Value,
    r: Value,
    bias: Value | None = None,
    sequence_lens: Value | None = None,
    initial_h: Value | None = None,
    *,
    activation_alpha: list[float] | None = None,
    activation_beta: list[float] | None = None,
    activations: list[str] | None = None,
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    output_sequence: int = 0,
) -> tuple[Value | None, ...]:
    """RNN-1."""
    outputs = _lower(
        b, "rnn", x, w, r, bias, sequence_lens, initial_h, None, None,
        activations=activations, activation_alpha=activation_alpha, activation_beta=activation_beta, clip=clip,
        direction=direction, hidden_size=hidden_size, layout=0,
    )  # fmt: skip
    return _first_version(output_sequence, outputs)


@lowers("RNN", versions=[7, 14, 22], dtypes=_TYPES)
def rnn(
    b: LowerContext,
    x: Value,
    w: Value,
    r: Value,
    bias: Value | None = None,
    sequence_lens: Value | None = None,
    initial_h: Value | None = None,
    *,
    activation_alpha: list[float] | None = None,
    activation_beta: list[float] | None = None,
    activations: list[str] | None = None,
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    layout: int = 0,
) -> tuple[Value | None, ...]:
    """RNN (``layout`` from 14 on)."""
    return _lower(
        b, "rnn", x, w, r, bias, sequence_lens, initial_h, None, None,
        activations=activations, activation_alpha=activation_alpha, activation_beta=activation_beta, clip=clip,
        direction=direction, hidden_size=hidden_size, layout=layout,
    )  # fmt: skip
