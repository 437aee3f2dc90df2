"""DynamicQuantizeLSTM of ONNX Runtime: 8-bit weights, and inputs and states that are quantized on the way."""

from __future__ import annotations

from onnx_vulkan.dims import require_same
from onnx_vulkan.dtypes import DType
from onnx_vulkan.errors import Unsupported
from onnx_vulkan.lower.conv import BYTES
from onnx_vulkan.lower.microsoft.integer import scaled_product
from onnx_vulkan.lower.movement import slice_axis
from onnx_vulkan.lower.quantize import dynamic_range, quantize
from onnx_vulkan.lower.registry import LowerContext, lowers
from onnx_vulkan.lower.rnn import cell_activations
from onnx_vulkan.program import composites
from onnx_vulkan.program.builder import Builder
from onnx_vulkan.program.ir import Value

__all__: list[str] = []

MAX_STEPS = 32
"""The longest sequence that is unrolled."""


def _quantized_product(b: Builder, x: Value, w: Value, scale: Value, zero_point: Value) -> Value:
    """``x @ w`` with x quantized to uint8 by its own range."""
    x_scale, x_zero_point = dynamic_range(b, x)
    q = quantize(b, x, x_scale, x_zero_point, DType.U8)
    return scaled_product(b, q, x_scale, x_zero_point, w, scale, zero_point, None)


def _of(b: LowerContext, v: Value, d: int) -> Value:
    """Direction *d* of a tensor whose first axis is the directions."""
    return b.reshape(slice_axis(b, v, 0, d, 1), v.shape[1:])


@lowers(
    "DynamicQuantizeLSTM",
    versions=[1],
    dtypes={"x": (DType.F32,), "w": BYTES, "r": BYTES},
    domain="com.microsoft",
    note=f"a known number of steps, at most {MAX_STEPS}; no sequence_lens",
)
def dynamic_quantize_lstm(
    b: LowerContext,
    x: Value,
    w: Value,
    r: Value,
    bias: Value | None,
    sequence_lens: Value | None,
    initial_h: Value | None,
    initial_c: Value | None,
    p: Value | None,
    w_scale: Value,
    w_zero_point: Value,
    r_scale: Value,
    r_zero_point: Value,
    *,
    activation_alpha: list[float] | None = None,
    activation_beta: list[float] | None = None,
    activations: list[str] | None = None,
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    input_forget: int = 0,
) -> tuple[Value, Value, Value]:
    """DynamicQuantizeLSTM of ONNX Runtime: LSTM where x, and the hidden state of each step, become uint8 by their own range.

    x ``[S, B, I]``, w ``[D, I, 4H]``, r ``[D, H, 4H]`` (gates i o f c), their scales and zero points ``[D]`` or ``[D, 4H]``.
    Gives y ``[S, D, B, H]``, h and c ``[D, B, H]``. The range of a state is taken over the whole batch, as ONNX Runtime does on
    one thread.
    """
    if sequence_lens is not None:
        raise Unsupported("sequence_lens is not supported")
    if direction not in ("forward", "reverse", "bidirectional"):
        raise Unsupported(f"direction {direction!r} is unknown")
    steps, batch, _ = x.shape
    hidden = hidden_size if hidden_size is not None else r.shape[1]
    if not isinstance(steps, int) or not 0 < steps <= MAX_STEPS:
        raise Unsupported(f"{steps} steps: known numbers up to {MAX_STEPS} are supported")
    if not isinstance(hidden, int):
        raise Unsupported("the hidden size is not known before the run")
    directions = 2 if direction == "bidirectional" else 1
    require_same(w.shape[0], directions, "weights do not fit the direction")
    require_same(r.shape[2], 4 * hidden, "recurrence weights do not fit hidden_size")
    acts = cell_activations("lstm", activations, activation_alpha, activation_beta, directions)
    attrs = {"clip": clip if clip else None, "input_forget": bool(input_forget)}
    state = (batch, hidden)
    ys, hs, cs = [], [], []
    for d in range(directions):
        projected = _quantized_product(b, x, _of(b, w, d), _of(b, w_scale, d), _of(b, w_zero_point, d))
        if bias is not None:
            both = _of(b, bias, d)
            halves = (b.slice(both, (n * 4 * hidden,), (4 * hidden,)) for n in (0, 1))
            projected = b.map("add", projected, b.map("add", *halves))
        h, c = (_of(b, v, d) if v is not None else b.full(state, 0, DType.F32) for v in (initial_h, initial_c))
        peepholes = [b.slice(_of(b, p, d), (g * hidden,), (hidden,)) for g in range(3)] if p is not None else None
        weights, scale, zero_point = _of(b, r, d), _of(b, r_scale, d), _of(b, r_zero_point, d)
        made: list[Value | None] = [None] * steps
        for t in reversed(range(steps)) if direction == "reverse" or d == 1 else range(steps):
            row = b.reshape(slice_axis(b, projected, 0, t, 1), (batch, 4 * hidden))
            summed = b.map("add", row, _quantized_product(b, h, weights, scale, zero_point))
            gates = [b.slice(summed, (0, g * hidden), state) for g in range(4)]
            h, c = composites.lstm_cell(b, attrs, acts[3 * d : 3 * d + 3], gates, c, peepholes)
            made[t] = b.reshape(h, (1, 1, *state))
        ys.append(b.concat([y for y in made if y is not None], 0))
        hs.append(b.reshape(h, (1, *state)))
        cs.append(b.reshape(c, (1, *state)))
    return b.concat(ys, 1), b.concat(hs, 0), b.concat(cs, 0)
