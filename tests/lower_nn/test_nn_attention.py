"""Attention and rotary embeddings against ONNX Runtime's CPU EP. ONNX's own node cases are in test_nn_node_cases."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from one_node import RNG, Array, check, normal

B, S, T, N, D = 2, 3, 5, 4, 8
MS = {"domain": "com.microsoft"}


@pytest.mark.parametrize("interleaved", [0, 1])
def test_rotary_embedding_of_onnx_runtime(interleaved: int) -> None:
    cos, sin = normal(10, D // 2), normal(10, D // 2)
    caches = {"c": cos, "s": sin}
    ids = RNG.integers(0, 10, (B, S))
    form: dict[str, Any] = {"constants": ("c", "s"), **MS}
    check("RotaryEmbedding", 17, {"x": normal(B, S, N * D), "p": ids, **caches}, {"interleaved": interleaved}, **form)
    first = np.array([2], np.int64)
    check("RotaryEmbedding", 17, {"x": normal(B, N, S, D), "p": first, **caches}, {"interleaved": interleaved}, **form)
    part = {"interleaved": interleaved, "num_heads": N, "rotary_embedding_dim": D}
    check("RotaryEmbedding", 17, {"x": normal(B, S, N * 16), "p": ids, **caches}, part, **form)


@pytest.mark.parametrize("attributes", [{}, {"is_causal": 1}, {"softcap": 2.0}, {"scale": 0.2}], ids=str)
def test_attention_with_shared_keys_and_a_cache(attributes: dict[str, Any]) -> None:
    given: dict[str, Array | None] = {
        "q": normal(B, 6, S, D),
        "k": normal(B, 2, S, D),
        "v": normal(B, 2, S, D),
        "m": normal(S, T + S),
        "pk": normal(B, 2, T, D),
        "pv": normal(B, 2, T, D),
    }
    check("Attention", 23, given, attributes, outputs=3)
    check("Attention", 23, {k: given[k] for k in "qkv"}, attributes)
