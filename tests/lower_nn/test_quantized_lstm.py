"""DynamicQuantizeLSTM against ONNX Runtime's CPU EP."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from one_node import Array, check, model_of
from run_case import graph_of, refusals

CONTRIB: dict[str, Any] = {"domain": "com.microsoft"}
WEIGHTS = ("w", "r", "b", "p", "w_scale", "w_zero", "r_scale", "r_zero")


def made(dtype: Any, directions: int, by_column: bool, *, steps: int = 5, bare: bool = False) -> dict[str, Array | None]:
    """The inputs: 3 sequences of 7 numbers, 6 hidden units. *bare* leaves out all that may be."""
    rng = np.random.default_rng(2)
    info = np.iinfo(dtype)

    def normal(*shape: int) -> Array:
        return rng.standard_normal(shape).astype(np.float32)

    def q(*shape: int) -> Array:
        return rng.integers(info.min, info.max + 1, shape).astype(dtype)

    d, one = directions, (directions, 24) if by_column else (directions,)
    scales = {f"{n}_scale": rng.uniform(0.002, 0.006, one).astype(np.float32) for n in "wr"}
    zeros = {f"{n}_zero": np.zeros(one, dtype) if by_column else q(*one) for n in "wr"}
    return {
        "x": normal(steps, 3, 7), "w": q(d, 7, 24), "r": q(d, 6, 24), "b": None if bare else 0.3 * normal(d, 48), "lens": None,
        "h": None if bare else normal(d, 3, 6), "c": None if bare else normal(d, 3, 6),
        "p": None if bare else 0.3 * normal(d, 18),
        "w_scale": scales["w_scale"], "w_zero": zeros["w_zero"], "r_scale": scales["r_scale"], "r_zero": zeros["r_zero"],
    }  # fmt: skip


@pytest.mark.parametrize("bare", [False, True])
@pytest.mark.parametrize("by_column", [False, True])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_forms(dtype: Any, direction: str, by_column: bool, bare: bool) -> None:
    given = made(dtype, 2 if direction == "bidirectional" else 1, by_column, bare=bare)
    attributes = {"hidden_size": 6, "direction": direction}
    check("DynamicQuantizeLSTM", 13, given, attributes, outputs=3, constants=WEIGHTS, **CONTRIB)


@pytest.mark.parametrize(
    "attributes", [{"clip": 0.5}, {"input_forget": 1}, {"activations": ["Sigmoid", "Relu", "Softsign"]}], ids=str
)
def test_attributes(attributes: dict[str, Any]) -> None:
    given = made(np.int8, 1, False)
    check("DynamicQuantizeLSTM", 13, given, {"hidden_size": 6, **attributes}, outputs=3, constants=WEIGHTS, **CONTRIB)


def test_device() -> None:
    """The last bit of a state decides how it is quantized, so a device may be a quantum of the next state off."""
    given = made(np.int8, 1, False, steps=2)
    check("DynamicQuantizeLSTM", 13, given, {"hidden_size": 6}, outputs=3, constants=WEIGHTS, atol=5e-3, device=True, **CONTRIB)


def test_refused() -> None:
    given = made(np.int8, 1, False) | {"lens": np.array([1, 2, 3], np.int32)}
    (refusal,) = refusals(graph_of(model_of("DynamicQuantizeLSTM", 13, given, {"hidden_size": 6}, outputs=3, **CONTRIB)))
    assert "sequence_lens" in refusal.reason
    given = made(np.int8, 1, False, steps=33)
    (refusal,) = refusals(graph_of(model_of("DynamicQuantizeLSTM", 13, given, {"hidden_size": 6}, outputs=3, **CONTRIB)))
    assert "33 steps" in refusal.reason
