"""Attention and MultiHeadAttention of ONNX Runtime in all their forms, against its CPU EP."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from one_node import DRAWS, RNG, Array, check, model_of, normal, on_cpu
from onnx_vulkan.errors import ShapeMismatch
from run_case import assert_close, graph_of, refusals, run

B, S, L, N, D = 2, 3, 5, 4, 8
FORM: dict[str, Any] = {"domain": "com.microsoft", "dynamic": True, "fixed_last": True}
LOWEST = float(np.finfo(np.float32).min)


def i32(*numbers: Any) -> Array:
    return np.array(numbers, np.int32)


def bits(*shape: int) -> Array:
    return RNG.integers(0, 2, shape).astype(np.int32)


def operands(
    steps: int = S,
    keys: int = L,
    past: int | None = None,
    *,
    value: int = D,
    bias: bool = False,
    mask: Array | None = None,
    added: Sequence[int] | None = None,
    cached: bool = False,
) -> dict[str, Array | None]:
    """Inputs of MultiHeadAttention; *cached* keys and values come as ``[B, N, L, D]``."""
    return {
        "q": normal(B, steps, N * D),
        "k": normal(B, N, keys, D) if cached else normal(B, keys, N * D),
        "v": normal(B, N, keys, value) if cached else normal(B, keys, N * value),
        "b": normal(2 * N * D + N * value) if bias else None,
        "m": mask,
        "ab": normal(*added) if added else None,
        "pk": None if past is None else normal(B, N, past, D),
        "pv": None if past is None else normal(B, N, past, D),
    }


UNI = {"unidirectional": 1}
FORMS: dict[str, tuple[dict[str, Any], dict[str, Any], int]] = {
    "plain": ({}, {}, 1),
    "bias, scale, other value size": ({"value": 6, "bias": True}, {"scale": 0.3}, 1),
    "lengths": ({"mask": i32(3, 5)}, {}, 1),
    "lengths, own filter": ({"mask": i32(0, 5)}, {"mask_filter_value": -3.0}, 1),
    "lengths and offsets": ({"mask": i32(3, 5, 0, 3, 8, 0, 5, 10)}, {}, 1),
    "mask of numbers": ({"mask": i32([1, 1, 0, 1, 0], [0, 0, 1, 2, -1])}, {}, 1),
    "mask a query": ({"mask": bits(B, S, L)}, {}, 1),
    "added": ({"added": (B, N, S, L)}, {}, 1),
    "added a head": ({"added": (1, N, S, L), "mask": i32(3, 5)}, {}, 1),
    "added a sequence": ({"added": (B, 1, S, L)}, {}, 1),
    "unidirectional": ({"steps": L, "mask": i32([0, 0, 1, 1, 1], [1] * 5)}, UNI, 1),
    "unidirectional, lowest filter": (
        {"steps": L, "mask": i32([0, 0, 1, 1, 1], [1] * 5)},
        {**UNI, "mask_filter_value": LOWEST},
        1,
    ),
    "unidirectional, more keys": ({}, UNI, 1),
    "unidirectional, more queries": ({"steps": 7}, UNI, 1),
    "unidirectional, one query": ({"steps": 1}, UNI, 1),
    "present": ({}, {}, 3),
    "past": ({"keys": S, "past": 4, "bias": True}, UNI, 3),
    "past of nothing": ({"keys": S, "past": 0}, UNI, 3),
    "past and a mask": ({"keys": S, "past": 4, "mask": bits(B, 7)}, UNI, 3),
    "one step": ({"steps": 1, "keys": 1, "past": 4, "added": (1, 1, 1, 5)}, UNI, 3),
    "cached": ({"cached": True}, {}, 3),
    "cached, bias of the query": ({"cached": True, "bias": True, "mask": i32(3, 5)}, {}, 1),
}


@pytest.mark.parametrize("form", FORMS)
def test_multi_head_attention(form: str) -> None:
    given, attributes, outputs = FORMS[form]
    check("MultiHeadAttention", 17, operands(**given), {"num_heads": N, **attributes}, outputs=outputs, **FORM)


@pytest.mark.parametrize("past", [None, 4])
def test_scores_as_an_output(past: int | None) -> None:
    inputs = operands(S, S, past, added=(1, 1, S, S + (past or 0)))
    model = model_of("MultiHeadAttention", 17, inputs, {"num_heads": N, **UNI}, outputs=4, domain="com.microsoft")
    for output in model.graph.output:
        output.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    feeds = {k: v for k, v in inputs.items() if v is not None}
    for got, want in zip(run(graph_of(model), feeds), on_cpu(model, feeds), strict=True):
        assert_close(got, want, 1e-4, 1e-5)


@pytest.mark.parametrize("packed", ["query, key and value", "key and value"])
def test_packed_operands(packed: str) -> None:
    """Forms that the CPU EP lacks are those of separate operands."""
    given = operands(S, S, bias=True)
    q, k, v = (np.asarray(given[n]).reshape(B, S, N, D) for n in "qkv")
    separate = {**given, "b": None} if packed == "key and value" else given
    names: dict[str, Array | None] = {**separate, "v": None}
    if packed == "key and value":
        names["k"] = np.stack([k, v], 3)
    else:
        names.update(q=np.stack([q, k, v], 3), k=None)
    graph = graph_of(model_of("MultiHeadAttention", 17, names, {"num_heads": N, **UNI}, domain="com.microsoft"))
    assert not refusals(graph)
    (got,) = run(graph, {n: x for n, x in names.items() if x is not None})
    cpu = model_of("MultiHeadAttention", 17, separate, {"num_heads": N, **UNI}, domain="com.microsoft")
    (want,) = on_cpu(cpu, {n: x for n, x in separate.items() if x is not None})
    assert_close(got, want, 1e-4, 1e-5)


ORIGINS = RNG.integers(0, 2, (1, 2, 9)).astype(np.int32)
SHARED: dict[str, tuple[int, dict[str, Any], Array | None, dict[str, Any]]] = {
    "steps": (3, {"bias": True}, None, UNI),
    "first steps": (3, {}, None, UNI),
    "mask": (1, {"mask": bits(B, 5), "added": (B, N, 1, 5)}, None, {}),
    "beams": (1, {"mask": bits(B, 5), "added": (1, N, 1, 5)}, ORIGINS, {}),
}


def shared(form: str) -> dict[str, Array | None]:
    steps, given, origins, _ = SHARED[form]
    rows = {"past": i32(0 if form == "first steps" else 4), "origins": origins}
    return {**operands(steps, steps, 9, **given), **rows}


@pytest.mark.parametrize("form", SHARED)
def test_a_shared_buffer(form: str) -> None:
    attributes = {"num_heads": N, **SHARED[form][3]}
    given = shared(form)
    for name in ("pk", "pv"):
        np.asarray(given[name])[:, :, int(np.asarray(given["past"])[0]) :] = np.nan  # rows that nothing may read
    check("MultiHeadAttention", 17, given, attributes, outputs=3, domain="com.microsoft")


def test_beams_are_refused_where_the_cpu_means_something_else() -> None:
    for change in ({"m": i32(5, 4)}, {"ab": normal(B, N, 1, 5)}):
        given = {**shared("beams"), **change}
        model = model_of("MultiHeadAttention", 17, given, {"num_heads": N}, outputs=3, domain="com.microsoft")
        assert refusals(graph_of(model))


@pytest.mark.parametrize("past", [-1, 9])
def test_rows_outside_a_shared_buffer_are_an_error(past: int) -> None:
    given = {**shared("mask"), "past": i32(past), "m": None, "ab": None}
    model = model_of("MultiHeadAttention", 17, given, {"num_heads": N}, outputs=3, domain="com.microsoft")
    with pytest.raises(ShapeMismatch, match="past_sequence_length"):
        run(graph_of(model), {k: v for k, v in given.items() if v is not None})


def test_a_mask_of_another_length_is_an_error() -> None:
    given = operands(S, S, 4, mask=bits(B, S))
    model = model_of("MultiHeadAttention", 17, given, {"num_heads": N}, outputs=3, **FORM)
    with pytest.raises(ShapeMismatch, match="not as long as the keys"):
        run(graph_of(model), {k: v for k, v in given.items() if v is not None})


# ----------------------------------------------------------------------------------------------------------- Attention


def projected(
    steps: int = S,
    past: int | None = None,
    *,
    sizes: Sequence[int] = (N * D,) * 3,
    bias: bool = True,
    mask: Array | None = None,
    added: Sequence[int] | None = None,
) -> dict[str, Array | None]:
    """Inputs of Attention."""
    return {
        "x": normal(B, steps, 10),
        "w": normal(10, sum(sizes)) * np.float32(0.3),
        "b": normal(sum(sizes)) if bias else None,
        "m": mask,
        "p": None if past is None else normal(2, B, N, past, D),
        "ab": normal(*added) if added else None,
    }


ATTENTION: dict[str, tuple[dict[str, Any], dict[str, Any], int]] = {
    "plain": ({"bias": False}, {}, 1),
    "scale": ({}, {"scale": 0.2}, 1),
    "other value size": ({"sizes": (16, 16, 32)}, {"qkv_hidden_sizes": [16, 16, 32]}, 1),
    "lengths": ({"mask": i32(2, 3)}, {}, 1),
    "ends and starts": ({"mask": i32(9, 3, 1, 2)}, UNI, 1),
    "lengths and offsets": ({"mask": i32(2, 3, 0, 2, 5, 0, 2, 5)}, {}, 1),
    "mask": ({"mask": i32([0, 0, 1], [0, 1, 1])}, {**UNI, "mask_filter_value": LOWEST}, 1),
    "mask of one column is none": ({"mask": i32([0], [0])}, {}, 1),
    "mask a query": ({"mask": bits(B, S, S)}, {}, 1),
    "present": ({}, {}, 2),
    "past": ({"past": 4, "mask": bits(B, 7)}, UNI, 2),
    "past of nothing": ({"past": 0}, UNI, 2),
    "past, lengths": ({"past": 4, "mask": i32(5, 7)}, {}, 2),
    "past, mask a query": ({"past": 4, "mask": bits(B, S, 7)}, {}, 2),
    "one step": ({"steps": 1, "past": 4, "mask": bits(B, 5)}, UNI, 2),
    "added": ({"added": (1, 1, S, S), "mask": bits(B, S)}, UNI, 1),
}


@pytest.mark.parametrize("form", ATTENTION)
def test_attention(form: str) -> None:
    given, attributes, outputs = ATTENTION[form]
    inputs = projected(**given)
    check("Attention", 17, inputs, {"num_heads": N, **attributes}, outputs=outputs, constants=("w", "b"), **FORM)


def test_attention_with_a_shared_buffer_is_refused() -> None:
    given = {**projected(past=4), "length": i32(2)}
    attributes = {"num_heads": N, "past_present_share_buffer": 1}
    (refusal,) = refusals(graph_of(model_of("Attention", 17, given, attributes, outputs=2, **FORM)))
    assert "past_present_share_buffer" in refusal.reason


def test_random_forms() -> None:
    def coin() -> bool:
        return bool(RNG.integers(2))

    def mask_of(steps: int, total: int) -> Array | None:
        ends = RNG.integers(1, total + 1, B).astype(np.int32)
        starts = np.array([RNG.integers(0, n) for n in ends], np.int32)
        return [None, ends, np.concatenate([ends, starts]), bits(B, total), bits(B, steps, total)][RNG.integers(5)]

    for _ in range(DRAWS):
        steps, keys = (int(n) for n in RNG.integers(1, 9, 2))
        past = int(RNG.integers(0, 6)) if coin() else None
        shape = (int(RNG.integers(1, B + 1)), N if coin() else 1, steps)
        attributes = {
            "num_heads": N,
            "unidirectional": int(RNG.integers(2)),
            "mask_filter_value": [-10000.0, LOWEST][RNG.integers(2)],
        }
        if coin():
            total = keys + (past or 0)
            mask = mask_of(steps, total)
            if mask is not None and mask.shape == (2 * B,):
                mask = mask[:B]  # starts are Attention's alone
            given = operands(
                steps, keys, past, value=D if past is not None else int(RNG.integers(1, 9)), bias=coin(), mask=mask,
                added=(*shape, total) if coin() else None,
            )  # fmt: skip
            check("MultiHeadAttention", 17, given, attributes, outputs=3, **FORM)
        else:
            total = steps + (past or 0)
            added = (*shape, total) if coin() and past is None else None  # the CPU EP has not both
            given = projected(steps, past, bias=coin(), mask=mask_of(steps, total), added=added)
            check("Attention", 17, given, attributes, outputs=2, constants=("w", "b"), **FORM)
