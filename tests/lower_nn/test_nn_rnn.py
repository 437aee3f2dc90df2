"""LSTM, GRU and RNN against ONNX Runtime's CPU EP; the composite's decomposition against its numpy meaning."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from one_node import Array, check, normal
from onnx_vulkan.dtypes import DType
from onnx_vulkan.program import composites
from onnx_vulkan.program.builder import Builder
from onnx_vulkan.program.interp import interpret

S, B, I, H = 5, 3, 4, 6  # noqa: E741
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}

EXTRAS: dict[str, list[dict[str, Any]]] = {
    "LSTM": [
        {},
        {"clip": 0.5, "input_forget": 1},
        {"activations": ["HardSigmoid", "ScaledTanh", "Affine"], "activation_alpha": [0.3, 0.9, 0.8],
         "activation_beta": [0.4, 0.7, 0.1]},
    ],
    "GRU": [
        {},
        {"clip": 0.5, "linear_before_reset": 1},
        {"activations": ["HardSigmoid", "LeakyRelu"], "activation_alpha": [0.3, 0.1], "activation_beta": [0.4]},
    ],
    "RNN": [{}, {"clip": 0.4, "activations": ["Relu"]}, {"activations": ["Softsign"]}],
}  # fmt: skip


def operands(kind: str, directions: int, given: int) -> dict[str, Array | None]:
    """Inputs; *given* 0 only what must be, 1 biases and initial states, 2 lengths too, 3 peepholes too."""
    g = GATES[kind] * H
    inputs: dict[str, Array | None] = {
        "x": normal(S, B, I),
        "w": normal(directions, g, I) / 2,
        "r": normal(directions, g, H) / 2,
        "b": normal(directions, 2 * g) / 2 if given else None,
        "lens": np.array([5, 2, 3], np.int32) if given >= 2 else None,
        "h0": normal(directions, B, H) if given else None,
    }
    if kind == "LSTM":
        inputs["c0"] = normal(directions, B, H) if given else None
        inputs["p"] = normal(directions, 3 * H) if given >= 3 else None
    while list(inputs.values())[-1] is None:
        inputs.popitem()
    return inputs


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_against_onnx_runtime(kind: str, direction: str) -> None:
    directions = 2 if direction == "bidirectional" else 1
    for given in range(4 if kind == "LSTM" else 3):
        for extra in EXTRAS[kind]:
            repeated = {k: v * directions if isinstance(v, list) else v for k, v in extra.items()}
            attributes = {"hidden_size": H, "direction": direction, **repeated}
            outputs = 3 if kind == "LSTM" else 2
            for version in (7, 14):
                check(
                    kind, version, operands(kind, directions, given), attributes,
                    outputs=outputs, constants=("w", "r", "b", "p"), dynamic=bool(given),
                )  # fmt: skip


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("kind", ["lstm", "gru", "rnn"])
@pytest.mark.parametrize("full", [False, True])
def test_decomposition(kind: str, direction: str, full: bool) -> None:
    d = 2 if direction == "bidirectional" else 1
    g = GATES[kind.upper()]
    feeds: dict[str, Array] = {"xw": normal(S, B, d * g * H), "r": normal(d, H, g * H) / 2}
    if full:
        feeds |= {"h0": normal(d, B, H), "lens": np.array([5, 0, 3], np.int32)}
        if kind == "lstm":
            feeds |= {"c0": normal(d, B, H), "p": normal(d, 3 * H)}
        if kind == "gru":
            feeds["rb"] = normal(d, H)
    default = {"lstm": ("sigmoid", "tanh", "tanh"), "gru": ("sigmoid", "tanh"), "rnn": ("tanh",)}[kind] * d
    b = Builder()
    values = {name: b.input(name, DType.of(a.dtype), a.shape) for name, a in feeds.items()}
    xw, r = values.pop("xw"), values.pop("r")
    outputs = composites.rnn(
        b, kind, xw, r, direction=direction, hidden=H, activations=[(n, 0.0, 0.0) for n in default],
        clip=0.7 if full else None, linear_before_reset=full and kind == "gru", input_forget=full and kind == "lstm", **values,
    )  # fmt: skip
    whole = b.finish(outputs)
    parts = composites.DECOMPOSITIONS["rnn"](b, whole.instrs[-1])
    assert parts is not None
    decomposed = b.finish(parts)
    decomposed.instrs = [i for i in decomposed.instrs if i.op != "rnn"]
    for got, want in zip(interpret(decomposed, feeds), interpret(whole, feeds), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
