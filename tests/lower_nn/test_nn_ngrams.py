"""TfIdfVectorizer against ONNX Runtime's CPU EP."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from one_node import RNG, check, graph_of, model_of, refusals

POOL = [2, 0, 3, 1, 1, 2, 0, 0, 3, 1, 2, 1]  # 2 0 3, then 1-1 2-0 0-3, then 1-2-1
COUNTS, COLUMNS = [0, 3, 9], [4, 0, 6, 2, 3, 1, 5]


def form(**changes: Any) -> dict[str, Any]:
    """The attributes, with changes."""
    same = {"mode": "TF", "min_gram_length": 1, "max_gram_length": 3, "max_skip_count": 0, "pool_int64s": POOL}
    return {**same, "ngram_counts": COUNTS, "ngram_indexes": COLUMNS, **changes}


@pytest.mark.parametrize("mode", ["TF", "IDF", "TFIDF"])
@pytest.mark.parametrize("shortest,longest", [(1, 1), (1, 3), (2, 3), (3, 3)])
@pytest.mark.parametrize("skip", [0, 2])
def test_counts(skip: int, shortest: int, longest: int, mode: str) -> None:
    attributes = form(mode=mode, min_gram_length=shortest, max_gram_length=longest, max_skip_count=skip)
    if mode != "TF":
        attributes["weights"] = [0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5]
    x = RNG.integers(0, 4, (3, 20)).astype(np.int32)
    check("TfIdfVectorizer", 9, {"x": x}, attributes, dynamic=True)


@pytest.mark.parametrize("length", [1, 2, 5])
def test_a_row_shorter_than_an_n_gram(length: int) -> None:
    x = np.array([1, 2, 1, 0, 3][:length])
    check("TfIdfVectorizer", 9, {"x": x}, form(max_skip_count=3), dynamic=True, device=True)


@pytest.mark.parametrize(
    "changes,reason", [({"pool_int64s": [2, 2, *POOL[2:]]}, "twice"), ({"ngram_counts": [0, 3, 8]}, "not whole")]
)
def test_refused(changes: dict[str, Any], reason: str) -> None:
    assert reason in str(refusals(graph_of(model_of("TfIdfVectorizer", 9, {"x": np.array([[1, 2]])}, form(**changes))))[0])
