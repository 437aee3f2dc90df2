"""Attention and rotary embeddings against ONNX Runtime's CPU EP. ONNX's own node cases are in test_nn_node_cases."""

from __future__ import annotations

from typing import Any

import pytest
from one_node import Array, check, normal

B, S, T, N, D = 2, 3, 5, 4, 8
MS = {"domain": "com.microsoft"}


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
