"""QAttention and QEmbedLayerNormalization against ONNX Runtime's CPU EP."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from one_node import Array, check

RNG = np.random.default_rng(5)
CONTRIB: dict[str, Any] = {"domain": "com.microsoft", "dynamic": True}


def q(dtype: Any, *shape: int) -> Array:
    info = np.iinfo(dtype)
    return RNG.integers(info.min, info.max + 1, shape).astype(dtype)


def scale(*shape: int) -> Array:
    return np.asarray(RNG.uniform(0.001, 0.01, shape), np.float32)


def mask_of(kind: str, batch: int, steps: int, total: int) -> Array | None:
    made = {
        "": lambda: None,
        "lengths": lambda: np.array([3, total], np.int32),
        "ends and starts": lambda: np.array([3, total, 1, 0], np.int32),
        "keys": lambda: RNG.integers(0, 2, (batch, total)).astype(np.int32),
        "scores": lambda: RNG.integers(0, 2, (batch, steps, total)).astype(np.int32),
    }
    return made[kind]()


@pytest.mark.parametrize("past", [0, 3])
@pytest.mark.parametrize("mask", ["", "lengths", "ends and starts", "keys", "scores"])
@pytest.mark.parametrize(("weights", "columns"), [(np.int8, False), (np.uint8, True)])
def test_attention(weights: Any, columns: bool, mask: str, past: int) -> None:
    batch, steps, heads, hidden = 2, 5, 2, 8
    n = (3 * hidden,) if columns else ()
    given = {
        "x": q(np.uint8, batch, steps, 12), "w": q(weights, 12, 3 * hidden),
        "bias": RNG.standard_normal(3 * hidden).astype(np.float32), "x_scale": scale(), "w_scale": scale(*n),
        "mask": mask_of(mask, batch, steps, steps + past), "x_zero": q(np.uint8), "w_zero": q(weights, *n),
        "past": RNG.standard_normal((2, batch, heads, past, hidden // heads)).astype(np.float32) if past else None,
    }  # fmt: skip
    constants = ("w", "bias", "x_scale", "w_scale", "x_zero", "w_zero")
    attributes = {"num_heads": heads, "unidirectional": int(columns)}
    outputs = 2 if past else 1
    check("QAttention", 13, given, attributes, outputs=outputs, constants=constants, device=mask == "keys", **CONTRIB)


@pytest.mark.parametrize("mask", [False, True])
@pytest.mark.parametrize("segments", [False, True])
@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_embed_layer_normalization(dtype: Any, segments: bool, mask: bool) -> None:
    tables = {
        "word": q(dtype, 11, 8), "place": q(dtype, 7, 8), "segment": q(dtype, 2, 8) if segments else None,
        "gamma": q(dtype, 8), "beta": q(dtype, 8),
    }  # fmt: skip
    given = {
        "ids": RNG.integers(0, 11, (2, 3)).astype(np.int32),
        "segments": RNG.integers(0, 2, (2, 3)).astype(np.int32) if segments else None,
        **tables,
        "mask": np.array([[1, 1, 0], [1, 2, 0]], np.int32) if mask else None,
        **{f"{k}_scale": None if v is None else scale() for k, v in tables.items()},
        **{f"{k}_zero": None if v is None else q(dtype) for k, v in tables.items()},
    }
    constants = tuple(k for k in given if k not in ("ids", "segments", "mask"))
    check("QEmbedLayerNormalization", 13, given, {"epsilon": 1e-3}, outputs=2, constants=constants, device=mask, **CONTRIB)
