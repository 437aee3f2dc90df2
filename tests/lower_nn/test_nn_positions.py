"""Rotary embedding and relative position biases of ONNX Runtime: against its CPU EP, or the formula where that has none."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from one_node import RNG, Array, check, check_formula, model_of, normal
from onnx_vulkan.errors import ModelError
from run_case import graph_of, refusals, run

B, S, N, D = 2, 3, 4, 8
FORM: dict[str, Any] = {"domain": "com.microsoft", "dynamic": True, "fixed_last": True}
IDS = RNG.integers(0, 10, (B, S))
PART = {"num_heads": N, "rotary_embedding_dim": D}

ROTARY: dict[str, tuple[tuple[int, ...], Array, dict[str, Any]]] = {
    "ids": ((B, S, N * D), IDS, {}),
    "offset": ((B, S, N * D), np.array([4]), {}),
    "heads": ((B, S, N * D), IDS, {"num_heads": N}),
    "part of each head": ((B, S, N * 16), IDS, PART),
    "rank 4": ((B, N, S, D), IDS, {}),
    "rank 4, offset": ((B, N, S, D), np.array([7]), {}),
    "rank 4, part of each head": ((B, N, S, 16), IDS, PART),
    "packed batching": ((B, S, N * D), IDS, {"is_packed_batching": 1}),
}


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("form", ROTARY)
def test_rotary_embedding(form: str, interleaved: int) -> None:
    shape, ids, attributes = ROTARY[form]
    given = {"x": normal(*shape), "p": ids, "c": normal(10, D // 2), "s": normal(10, D // 2)}
    check("RotaryEmbedding", 17, given, {"interleaved": interleaved, **attributes}, constants=("c", "s"), **FORM)


def test_rotary_embedding_of_half_floats() -> None:
    caches = {name: normal(10, D // 2).astype(np.float16) for name in "cs"}
    given = {"x": normal(B, S, N * D).astype(np.float16), "p": IDS, **caches}
    check("RotaryEmbedding", 17, given, rtol=2e-3, atol=2e-3, **FORM)


@pytest.mark.parametrize("ids", [[[-1, 2, 3]], [[0, 10, 1]], [8]], ids=str)
def test_positions_outside_the_caches_are_errors(ids: Any) -> None:
    given = {"x": normal(1, S, N * D), "p": np.array(ids), "c": normal(10, D // 2), "s": normal(10, D // 2)}
    with pytest.raises(ModelError, match="outside"):
        run(graph_of(model_of("RotaryEmbedding", 17, given, **FORM)), given)


def test_a_scale_is_refused() -> None:
    given = {"x": normal(1, S, N * D), "p": IDS[:1], "c": normal(10, D // 2), "s": normal(10, D // 2)}
    (refusal,) = refusals(graph_of(model_of("RotaryEmbedding", 17, given, {"scale": 0.5}, **FORM)))
    assert "scale" in refusal.reason


# ------------------------------------------------------------------------------------------------------------- biases


def bucket_of(offset: int, buckets: int, longest: int, bidirectional: bool) -> int:
    """T5's bucket of the offset between key and query."""
    bucket = 0
    if bidirectional:
        buckets //= 2
        bucket = buckets if offset > 0 else 0
    exact, distance = buckets // 2, abs(offset)
    if distance < exact:
        return bucket + distance
    far = exact + int(round(math.log(distance / exact) / math.log(longest / exact) * (buckets - exact), 9))
    return bucket + min(far, buckets - 1)


@pytest.mark.parametrize("bidirectional", [0, 1])
@pytest.mark.parametrize("buckets,longest,steps", [(32, 128, 7), (32, 128, 300), (8, 12, 40)])
def test_relative_position_bias(buckets: int, longest: int, steps: int, bidirectional: int) -> None:
    table = normal(buckets, 3)
    length = np.array([steps])
    columns = table.reshape(3, buckets)  # the declared shape is the other way round
    wanted = [[bucket_of(k - q, buckets, longest, bool(bidirectional)) for k in range(steps)] for q in range(steps)]
    attributes = {"is_bidirectional": bidirectional, "max_distance": longest}
    given = {"t": table, "q": length, "k": length}
    want = columns[:, np.array(wanted)][None]
    check_formula("RelativePositionBias", given, attributes, [want], constants=("t",), rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_gated_relative_position_bias(dtype: Any) -> None:
    query, query_bias, rel_pos = normal(B, S, N * D), normal(N * D), normal(1, N, S, S)
    weight, bias, eco = normal(D, 6), normal(6), normal(1, N, 1, 1)
    arrays = (query, query_bias, rel_pos, weight, bias, eco)
    given: dict[str, Array | None] = {name: x.astype(dtype) for name, x in zip("qcrwbe", arrays, strict=True)}
    query, query_bias, rel_pos, weight, bias, eco = (np.asarray(x).astype(np.float64) for x in given.values())
    heads = (query + query_bias).reshape(B, S, N, D).transpose(0, 2, 1, 3)
    gates = 1 / (1 + np.exp(-(heads @ weight + bias).reshape(B, N, S, 2, 3).sum(-1)))
    want = (gates[..., :1] * (gates[..., 1:] * eco - 1) + 2) * rel_pos
    tolerance = {} if dtype is np.float32 else {"rtol": 2e-3, "atol": 2e-3}
    check_formula(
        "GatedRelativePositionBias", given, {"num_heads": N}, [want.astype(dtype)], dynamic=True, fixed_last=True, **tolerance
    )


# --------------------------------------------------------------------------------------- rotary embedding of other models

STREAMS = RNG.integers(0, 10, (3, B, S))


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("layout", [0, 1])
@pytest.mark.parametrize(
    "shape,section", [((B, S, N * 16), (2, 3, 3)), ((B, N, S, 16), (4, 2, 2)), ((B, S, N * 16), (2, 1, 1))], ids=str
)
def test_multimodal_rotary_embedding(shape: tuple[int, ...], section: tuple[int, ...], layout: int, interleaved: int) -> None:
    half = sum(section)
    given = {"x": normal(*shape), "p": STREAMS, "c": normal(10, half), "s": normal(10, half)}
    part = {"rotary_embedding_dim": 2 * half} if half < 8 else {}
    attributes = {"mrope_section": section, "mrope_layout": layout, "interleaved": interleaved, "num_heads": N, **part}
    check("MRotaryEmbedding", 17, given, attributes, constants=("c", "s"), **FORM)


def test_multimodal_positions_outside_the_caches_are_errors() -> None:
    for shift in (5, -5):
        given = {"x": normal(B, S, N * 16), "p": STREAMS + shift, "c": normal(10, 8), "s": normal(10, 8)}
        model = model_of("MRotaryEmbedding", 17, given, {"mrope_section": [2, 3, 3], "num_heads": N}, **FORM)
        with pytest.raises(ModelError, match="outside"):
            run(graph_of(model), given)


def test_gemma_rotary_embedding() -> None:
    angles = normal(B, S, D)
    parts = [normal(B, N, S, D).astype(np.float16) for _ in range(4)]
    cos, sin = (f(angles)[:, None].astype(np.float16).astype(np.float64) for f in (np.cos, np.sin))
    q, q_turned, k, k_turned = (x.astype(np.float64) for x in parts)
    wants = [(x * cos + turned * sin).astype(np.float16) for x, turned in ((q, q_turned), (k, k_turned))]
    given = {"emb": angles, **dict(zip(("q", "qr", "k", "kr"), parts, strict=True))}
    check_formula("GemmaRotaryEmbedding", given, {}, wants, dynamic=True, rtol=2e-3, atol=4e-3)
