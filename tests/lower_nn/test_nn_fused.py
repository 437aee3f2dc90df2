"""Fused operators of ONNX Runtime around norms and activations: against its CPU EP, or the formula where that has none."""

from __future__ import annotations

from collections.abc import Sequence
from math import erf
from typing import Any

import numpy as np
import onnx
import pytest
from one_node import DRAWS, RNG, Array, check, check_formula, model_of, normal, on_cpu
from onnx_vulkan.errors import ModelError
from run_case import assert_close, graph_of, refusals, run

MS: dict[str, Any] = {"domain": "com.microsoft", "dynamic": True}


def against_cpu(
    op: str, inputs: dict[str, Array | None], attributes: dict[str, Any], elements: Sequence[int], **form: Any
) -> None:
    """As check, for an operator whose outputs' types ONNX Runtime wants to be told; 0 leaves an output out."""
    model = model_of(op, 17, inputs, attributes, outputs=len(elements), **MS, **form)
    outputs = list(model.graph.output)
    del model.graph.output[:]
    for i, (output, element) in enumerate(zip(outputs, elements, strict=True)):
        output.type.tensor_type.elem_type = element
        if element:
            model.graph.output.append(output)
        else:
            model.graph.node[0].output[i] = ""
    graph = graph_of(model)
    assert not refusals(graph), [str(r) for r in refusals(graph)]
    feeds = {name: np.asarray(inputs[name]) for name in graph.inputs}
    half = any(x.dtype == np.float16 for x in feeds.values())
    for got, want in zip(run(graph, feeds), on_cpu(model, feeds), strict=True):
        assert_close(got, want, 1e-3 if half else 1e-4, 1e-3 if half else 1e-5)


# ------------------------------------------------------------------------------------------------- skip normalization

FLOAT, HALF = onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16


def residual(
    op: str, shape: Sequence[int], skip: Sequence[int], dtype: Any = np.float32, **given: bool
) -> dict[str, Array | None]:
    width = shape[-1]
    inputs: dict[str, Array | None] = {"x": normal(*shape), "skip": normal(*skip), "gamma": normal(width)}
    if op == "SkipLayerNormalization":
        inputs["beta"] = normal(width) if given.get("beta", True) else None
    inputs["bias"] = normal(width) if given.get("bias", True) else None
    return {name: None if x is None else x.astype(dtype) for name, x in inputs.items()}


SKIPS: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "alike": ((2, 3, 7), (2, 3, 7)),
    "one for all": ((2, 3, 7), (1, 3, 7)),
    "of rank 2": ((2, 3, 7), (3, 7)),
    "both of rank 2": ((6, 7), (6, 7)),
}


@pytest.mark.parametrize("op", ["SkipLayerNormalization", "SkipSimplifiedLayerNormalization"])
@pytest.mark.parametrize("form", SKIPS)
def test_skip_normalization(op: str, form: str) -> None:
    against_cpu(op, residual(op, *SKIPS[form]), {}, [FLOAT])
    against_cpu(op, residual(op, *SKIPS[form], beta=False, bias=False), {"epsilon": 1e-2}, [FLOAT, 0, 0, FLOAT])


@pytest.mark.parametrize("op", ["SkipLayerNormalization", "SkipSimplifiedLayerNormalization"])
def test_skip_normalization_of_half_floats_sums_in_float32(op: str) -> None:
    against_cpu(op, residual(op, (2, 3, 64), (3, 64), np.float16), {}, [HALF, 0, 0, HALF])


def test_statistics_of_skip_layer_normalization() -> None:
    op = "SkipLayerNormalization"
    against_cpu(op, residual(op, (2, 3, 7), (2, 3, 7)), {}, [FLOAT] * 4)
    inputs = residual("", (2, 3, 7), (2, 3, 7))
    x, skip, _, bias = (np.asarray(v).astype(np.float64) for v in inputs.values())
    inverse = (1 / np.sqrt(((x + skip + bias) ** 2).mean(-1, keepdims=True) + 1e-12)).astype(np.float32)
    graph = graph_of(model_of("SkipSimplifiedLayerNormalization", 17, inputs, outputs=3, **MS))
    assert "output 1" in refusals(graph)[0].reason  # RMS normalization has no mean
    model = model_of("SkipSimplifiedLayerNormalization", 17, inputs, outputs=3, **MS)
    model.graph.node[0].output[1] = ""
    del model.graph.output[1]
    got = run(graph_of(model), {k: np.asarray(v) for k, v in inputs.items()})
    assert_close(got[1], inverse, 1e-4, 1e-5)


@pytest.mark.parametrize("axis", [-1, 1])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_simplified_layer_normalization(axis: int, dtype: Any) -> None:
    """ONNX Runtime keeps it in ONNX's domain."""
    x = normal(2, 3, 7).astype(dtype)
    given = {"x": x, "scale": normal(*x.shape[axis:]).astype(dtype)}
    rtol = 1e-4 if dtype is np.float32 else 2e-3
    check("SimplifiedLayerNormalization", 17, given, {"axis": axis, "epsilon": 1e-3}, dynamic=True, rtol=rtol, atol=rtol / 10)


# ------------------------------------------------------------------------------------------------ embeddings

IDS = np.array([[1, 2, 3], [4, 10, 6]], np.int32)


def embeddings(
    ids: Array = IDS, segments: Any = None, mask: Any = None, positions: Any = None
) -> tuple[dict[str, Array | None], tuple[str, ...]]:
    """Inputs of EmbedLayerNormalization and the names of its constants."""

    def integers(x: Any) -> Array | None:
        return None if x is None else np.array(x, np.int32)

    tables = {"word": normal(11, 8), "place": normal(7, 8), "segment": None if segments is None else normal(2, 8)}
    last = {"gamma": normal(8), "beta": normal(8), "mask": integers(mask), "p": integers(positions)}
    given = {"ids": ids, "s": integers(segments), **tables, **last}
    return given, tuple(n for n in ("word", "place", "segment", "gamma", "beta") if given[n] is not None)


EMBEDDINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "segments and a mask": {"segments": [[0, 1, 0], [1, 1, 0]], "mask": [[1, 1, 0], [1, 2, 0]]},
    "positions for all": {"positions": [[3, 2, 6]]},
    "positions": {"positions": [[3, 2, 6], [0, 0, 1]], "mask": [[0, 1, 1], [0, 0, 0]]},
}


@pytest.mark.parametrize("form", EMBEDDINGS)
def test_embed_layer_normalization(form: str) -> None:
    given, constants = embeddings(**EMBEDDINGS[form])
    against_cpu("EmbedLayerNormalization", given, {"epsilon": 1e-3}, [FLOAT, onnx.TensorProto.INT32, FLOAT], constants=constants)


@pytest.mark.parametrize(
    "form", [{"ids": IDS - 2}, {"ids": IDS + 1}, {"segments": [[0, 1, 2]] * 2}, {"positions": [[3, -1, 0]]}], ids=str
)
def test_ids_outside_their_table_are_errors(form: dict[str, Any]) -> None:
    given, constants = embeddings(**form)
    graph = graph_of(model_of("EmbedLayerNormalization", 17, given, outputs=2, constants=constants, **MS))
    with pytest.raises(ModelError, match="outside"):
        run(graph, {name: np.asarray(given[name]) for name in graph.inputs})


# ------------------------------------------------------------------------------------------------------- group norms


def normalized(x: Array, groups: int, gamma: Array, beta: Array, epsilon: float, silu: int) -> Array:
    """GroupNorm of channels-last *x*."""
    n, h, w, c = x.shape
    parts = x.astype(np.float64).reshape(n, h, w, groups, c // groups)
    mean = parts.mean((1, 2, 4), keepdims=True)
    variance = ((parts - mean) ** 2).mean((1, 2, 4), keepdims=True)
    y = ((parts - mean) / np.sqrt(variance + epsilon)).reshape(x.shape) * gamma + beta
    return y / (1 + np.exp(-y)) if silu else y


@pytest.mark.parametrize("silu", [0, 1])
@pytest.mark.parametrize("channels_last", [0, 1])
def test_group_norm(channels_last: int, silu: int) -> None:
    x, gamma, beta = normal(2, 3, 5, 6), normal(6), normal(6)
    want = normalized(x, 3, gamma, beta, 1e-3, silu).astype(np.float32)
    given = {"x": x, "gamma": gamma, "beta": beta}
    if not channels_last:
        given["x"], want = x.transpose(0, 3, 1, 2), want.transpose(0, 3, 1, 2)
    attributes = {"groups": 3, "activation": silu, "channels_last": channels_last, "epsilon": 1e-3}
    check_formula("GroupNorm", given, attributes, [want], dynamic=True)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("shape", [(2, 3, 5, 6), (2, 1, 1, 6), (2, 6)], ids=str)
@pytest.mark.parametrize("bias", [False, True])
def test_skip_group_norm(shape: tuple[int, ...], bias: bool, dtype: Any) -> None:
    x, skip, vector = normal(2, 3, 5, 6).astype(dtype), normal(*shape).astype(dtype), normal(6).astype(dtype)
    gamma, beta = normal(6), normal(6)
    total = x.astype(np.float64) + (skip.reshape(2, 1, 1, 6) if skip.ndim == 2 else skip) + (vector if bias else 0)
    wants = [normalized(total, 2, gamma, beta, 1e-5, 1).astype(dtype), total.astype(dtype)]
    given = {"x": x, "gamma": gamma, "beta": beta, "skip": skip, "bias": vector if bias else None}
    tolerance = {} if dtype is np.float32 else {"rtol": 2e-3, "atol": 2e-3}
    check_formula("SkipGroupNorm", given, {"groups": 2, "activation": 1}, wants, **tolerance)


# --------------------------------------------------------------------------------------------------------- activations


def gelu(x: Array) -> Array:
    return 0.5 * x * (1 + np.vectorize(erf)(x / np.sqrt(2)))


@pytest.mark.parametrize("op", ["Gelu", "BiasGelu", "FastGelu", "QuickGelu"])
def test_gelus(op: str) -> None:
    x = np.concatenate([3 * normal(2, 5), [[0, -30, 30, 1e-4, -6]]]).astype(np.float32)
    given: dict[str, Array | None] = {"x": x}
    if op in ("BiasGelu", "FastGelu"):
        given["b"] = normal(5)
    check(op, 17, given, {"alpha": 1.5} if op == "QuickGelu" else {}, **MS)
    if op in ("FastGelu", "QuickGelu"):
        check(op, 17, {"x": x}, **MS)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_sums_with_a_bias(dtype: Any) -> None:
    x, bias, skip = (v.astype(dtype) for v in (normal(2, 3, 8), normal(8), normal(2, 3, 8)))
    wide, wide_bias, wide_skip = (v.astype(np.float64) for v in (x, bias, skip))
    tolerance: dict[str, Any] = {"dynamic": True, **({} if dtype is np.float32 else {"rtol": 1e-3, "atol": 1e-3})}
    left, right = np.split(wide + wide_bias, 2, -1)
    check_formula("BiasSplitGelu", {"x": x, "b": bias}, {}, [(left * gelu(right)).astype(dtype)], **tolerance)
    total = (wide + wide_bias + wide_skip).astype(dtype)
    check_formula("BiasAdd", {"x": x, "b": bias, "skip": skip}, {}, [total], **tolerance)
    check_formula("BiasDropout", {"x": x, "b": bias, "skip": skip}, {}, [total, np.ones(x.shape, bool)], **tolerance)
    whole = {"x": x, "b": skip, "skip": None, "ratio": np.array(0.3, np.float32), "training": np.array(False)}
    form = {**tolerance, "constants": ("ratio", "training")}
    check_formula("BiasDropout", whole, {}, [(wide + wide_skip).astype(dtype)], **form)


def test_dropping_out_is_refused() -> None:
    given = {"x": normal(2, 8), "b": normal(8), "skip": None, "ratio": None, "training": np.array(True)}
    (refusal,) = refusals(graph_of(model_of("BiasDropout", 17, given, constants=("training",), **MS)))
    assert "training_mode" in refusal.reason


def test_random_shapes() -> None:
    for _ in range(DRAWS):
        batch, steps, width = (int(n) for n in RNG.integers(1, 9, 3))
        op = ["SkipLayerNormalization", "SkipSimplifiedLayerNormalization"][RNG.integers(2)]
        shape = (batch, steps, width + 1)
        skip = [shape, (1, *shape[1:]), shape[1:]][RNG.integers(3)]
        given = {"beta": bool(RNG.integers(2)), "bias": bool(RNG.integers(2))}
        against_cpu(op, residual(op, shape, skip, **given), {"epsilon": 1e-5}, [FLOAT, 0, 0, FLOAT])
