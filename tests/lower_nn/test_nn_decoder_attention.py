"""DecoderMaskedMultiHeadAttention against ONNX Runtime's CPU EP: cross attention, a cache of fixed capacity, beams."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from one_node import RNG, Array, model_of, normal, on_cpu
from onnx_vulkan.errors import ModelError, ShapeMismatch
from run_case import assert_close, graph_of, refusals, run

N, D, CAPACITY = 4, 8, 9
MASK = np.array([[1, 1, 0, 0, 1], [0, 1, 1, 1, 1]], np.int32)
SHARED = {"past_present_share_buffer": 1}


def step(
    *,
    batch: int = 2,
    encoder: int = 0,
    past: int = 4,
    packed: bool = False,
    mask: Array | None = None,
    added: Any = None,
    bias: bool = False,
    beams: int = 0,
    origins: Array | None = None,
) -> dict[str, Array | None]:
    """Inputs: a cross attention over *encoder* keys, or a step after *past* rows of the cache."""
    width = 3 * N * D if packed else N * D
    keys = (batch, N, encoder, D) if encoder else (batch, 1, N * D)
    cache = None if encoder else (batch, N, CAPACITY, D)
    return {
        "q": normal(batch, 1, width),
        "k": None if packed else normal(*keys),
        "v": None if packed else normal(*keys),
        "m": mask,
        "ab": normal(*added) if added else None,
        "pk": normal(*cache) if cache else None,
        "pv": normal(*cache) if cache else None,
        "at": np.array([past], np.int32) if cache else None,
        "beams": np.array([beams], np.int32) if beams else None,
        "origins": origins,
        "b": normal(3 * N * D) if bias else None,
    }


def model(given: dict[str, Array | None], attributes: dict[str, Any], outputs: int) -> onnx.ModelProto:
    made = model_of(
        "DecoderMaskedMultiHeadAttention", 17, given, {"num_heads": N, **attributes}, outputs=outputs, domain="com.microsoft"
    )
    for output in made.graph.output:
        output.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    return made


ORIGINS = RNG.integers(0, 2, (2, 2, CAPACITY)).astype(np.int32)
FORMS: dict[str, tuple[dict[str, Any], dict[str, Any], int]] = {
    "cross": ({"encoder": 5, "bias": True}, {}, 1),
    "cross, mask": ({"encoder": 5, "mask": MASK}, {"mask_filter_value": -2.0, "scale": 0.3}, 1),
    "self": ({"bias": True}, SHARED, 3),
    "self, mask and bias": ({"mask": MASK, "added": (2, N, 1, 5)}, SHARED, 3),
    "first row": ({"past": 0}, SHARED, 3),
    "last row": ({"past": CAPACITY - 1}, SHARED, 3),
    "scores": ({"mask": MASK}, {**SHARED, "output_qk": 1}, 4),
    "one beam": ({"beams": 1, "origins": np.zeros((2, 1, CAPACITY), np.int32)}, SHARED, 3),
    "beams": (
        {"batch": 4, "beams": 2, "origins": ORIGINS, "mask": np.tile(MASK, (2, 1)), "added": (1, N, 1, 5), "bias": True},
        {**SHARED, "output_qk": 1},
        4,
    ),
    "beams, first row": ({"batch": 4, "beams": 2, "origins": ORIGINS, "past": 0}, SHARED, 3),
}


@pytest.mark.parametrize("form", FORMS)
def test_like_the_cpu(form: str) -> None:
    inputs, attributes, outputs = FORMS[form]
    given = step(**inputs)
    made = model(given, attributes, outputs)
    graph = graph_of(made)
    assert not refusals(graph), [str(r) for r in refusals(graph)]
    feeds = {name: x for name, x in given.items() if x is not None}
    for name in feeds.keys() & {"pk", "pv"}:
        feeds[name][:, :, int(feeds["at"][0]) :] = np.nan  # rows that nothing may read
    for got, want in zip(run(graph, feeds), on_cpu(made, feeds), strict=True):
        assert_close(got, want, 1e-4, 1e-5)


@pytest.mark.parametrize("bias", [False, True])
def test_packed_operands(bias: bool) -> None:
    """The CPU EP lacks them."""
    whole = step(packed=True, bias=bias)
    q, k, v = np.split(np.asarray(whole["q"]), 3, -1)
    apart = {**whole, "q": q, "k": k, "v": v}
    (got, *caches) = run(graph_of(model(whole, SHARED, 3)), {n: x for n, x in whole.items() if x is not None})
    (want, *kept) = on_cpu(model(apart, SHARED, 3), {n: x for n, x in apart.items() if x is not None})
    for a, b in zip((got, *caches), (want, *kept), strict=True):
        assert_close(a, b, 1e-4, 1e-5)


def test_rows_and_beams_outside_the_cache_are_errors() -> None:
    for past in (-1, CAPACITY):
        given = step(past=past)
        with pytest.raises(ShapeMismatch, match="past_sequence_length"):
            run(graph_of(model(given, SHARED, 3)), {n: x for n, x in given.items() if x is not None})
    for shift in (1, -1):
        given = step(batch=4, beams=2, origins=ORIGINS + np.int32(shift))
        with pytest.raises(ModelError, match="outside"):
            run(graph_of(model(given, SHARED, 3)), {n: x for n, x in given.items() if x is not None})


@pytest.mark.parametrize(
    "inputs,reason",
    [
        ({}, "past_present_share_buffer"),
        ({"origins": ORIGINS, "batch": 4}, "go together"),
        ({"encoder": 5}, "no present output"),
    ],
    ids=["growing", "beams", "cross"],
)
def test_refused_forms(inputs: dict[str, Any], reason: str) -> None:
    (refusal,) = refusals(graph_of(model(step(**inputs), SHARED if inputs else {}, 3)))
    assert reason in refusal.reason
