"""GroupQueryAttention against ONNX Runtime's CPU EP: caches, ragged batches, rotary embedding, windows, sinks, scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from one_node import DRAWS, RNG, Array, check, model_of, normal, on_cpu
from onnx_vulkan.errors import ModelError, ShapeMismatch
from run_case import assert_close, graph_of, refusals, run

H, G, D = 4, 2, 16
HEADS = {"num_heads": H, "kv_num_heads": G}
FORM: dict[str, Any] = {"domain": "com.microsoft", "dynamic": True, "fixed_last": True}


def operands(
    batch: int,
    steps: int,
    past: int,
    *,
    capacity: int | None = None,
    last: Sequence[int] | None = None,
    total: int | None = None,
    packed: bool = False,
    cached: bool = True,
    rope: int = 0,
    positions: Any = None,
    bias: Sequence[int] | None = None,
    sink: bool = False,
    new: Sequence[int] | None = None,
    dtype: Any = np.float32,
) -> dict[str, Array | None]:
    """Inputs of *batch* sequences of *past* cached and *steps* new rows; *last* are seqlens_k, *new* query_seqlens."""

    def floats(*shape: int) -> Array:
        return normal(*shape).astype(dtype)

    rows = past if capacity is None else capacity
    return {
        "q": floats(batch, steps, (H + 2 * G if packed else H) * D),
        "k": None if packed else floats(batch, steps, G * D),
        "v": None if packed else floats(batch, steps, G * D),
        "pk": floats(batch, G, rows, D) if cached else None,
        "pv": floats(batch, G, rows, D) if cached else None,
        "last": np.array(last or [past + steps - 1] * batch, np.int32),
        "total": np.array(total or past + steps, np.int32),
        "cos": floats(16, rope // 2) if rope else None,
        "sin": floats(16, rope // 2) if rope else None,
        "ids": None if positions is None else np.array(positions, np.int64),
        "bias": floats(*bias) if bias else None,
        "sink": floats(H) if sink else None,
        **dict.fromkeys(("ks", "vs", "qn", "kn")),
        "new": None if new is None else np.array(new, np.int32),
    }


def plain(given: Mapping[str, Array | None]) -> dict[str, Array | None]:
    """*given* without the inputs of newer versions."""
    return {k: v for k, v in given.items() if k not in ("ks", "vs", "qn", "kn", "new")}


def fed(given: Mapping[str, Array | None]) -> dict[str, Array]:
    """What *given* has."""
    return {k: v for k, v in given.items() if v is not None}


def interpreted(given: Mapping[str, Array | None], attributes: Mapping[str, Any]) -> list[Array]:
    """The interpreter's results."""
    graph = graph_of(model_of("GroupQueryAttention", 17, given, attributes, outputs=3, **FORM))
    assert not refusals(graph)
    return run(graph, fed(given))


def agrees(given: Mapping[str, Array | None], attributes: Mapping[str, Any], outputs: int = 3, **tolerance: float) -> None:
    """As on the CPU EP, but for rows behind a sequence's end."""
    q, last, total, new = (np.asarray(given[n]) for n in ("q", "last", "total", "new"))
    steps = q.shape[1]
    ends = last.astype(int) + 1
    rows = new if given["new"] is not None else ends if steps == total else [steps] * len(ends)
    if given["pk"] is not None:
        for name in ("pk", "pv"):
            for sequence, n, count in zip(np.asarray(given[name]), ends, rows, strict=True):
                sequence[:, max(n - count, 0) :] = np.nan  # rows that nothing may read

    def specified(i: int, y: Array) -> Array:
        parts = zip(y, rows, ends, strict=True)
        taken = [x[:n] if i == 0 else x[:, :end] if i < 3 else x[:, :n, :end] for x, n, end in parts]
        return np.concatenate([x.reshape(-1) for x in taken])

    whole = {**HEADS, "do_rotary": int(given["cos"] is not None), **attributes}
    used = given if given["new"] is not None else plain(given)
    check("GroupQueryAttention", 17, used, whole, outputs=outputs, specified=specified, **FORM, **tolerance)


CACHES = {
    "first prompt": {"batch": 2, "steps": 7, "past": 0},
    "ragged prompt": {"batch": 2, "steps": 7, "past": 0, "last": [3, 6]},
    "prompt without a cache": {"batch": 2, "steps": 7, "past": 0, "cached": False, "last": [2, 6]},
    "prompt into a buffer": {"batch": 2, "steps": 7, "past": 0, "capacity": 12},
    "step": {"batch": 2, "steps": 1, "past": 5},
    "ragged step": {"batch": 2, "steps": 1, "past": 5, "last": [3, 5]},
    "ragged step in a buffer": {"batch": 2, "steps": 1, "past": 5, "capacity": 12, "last": [3, 5]},
    "last step of a buffer": {"batch": 2, "steps": 1, "past": 5, "capacity": 6, "last": [0, 5]},
    "more steps": {"batch": 1, "steps": 3, "past": 5},
    "more steps in a buffer": {"batch": 1, "steps": 3, "past": 5, "capacity": 20},
    "padded chunk": {"batch": 2, "steps": 4, "past": 3, "last": [6, 4], "new": [4, 2], "total": 7},
    "padded chunk in a buffer": {"batch": 2, "steps": 4, "past": 3, "capacity": 12, "last": [5, 2], "new": [4, 0], "total": 9},
    "idle step": {"batch": 2, "steps": 1, "past": 3, "capacity": 12, "last": [3, 2], "new": [1, 0], "total": 9},
}


@pytest.mark.parametrize("packed", [False, True], ids=["separate", "packed"])
@pytest.mark.parametrize("form", CACHES)
def test_caches(form: str, packed: bool) -> None:
    agrees(operands(**CACHES[form], packed=packed, rope=16), {"rotary_interleaved": int(packed)})


@pytest.mark.parametrize("steps", [1, 2, 7])
@pytest.mark.parametrize("past", [0, 1, 3, 4, 5])
def test_window(past: int, steps: int) -> None:
    """One key more or less shows only where the window is exactly full."""
    agrees(operands(1, steps, past, rope=16), {"local_window_size": 4})


@pytest.mark.parametrize("attributes", [{"softcap": 2.0}, {"smooth_softmax": 1}, {"scale": 0.3}], ids=str)
@pytest.mark.parametrize("steps,past", [(5, 0), (1, 5)])
def test_scores(steps: int, past: int, attributes: dict[str, Any]) -> None:
    agrees(operands(2, steps, past), attributes)
    agrees(operands(2, steps, past, sink=True, bias=(1, H, steps, steps + past)), attributes)


@pytest.mark.parametrize("shape", [(2, H, 1, 6), (1, 1, 1, 6)], ids=str)
def test_attention_bias_of_a_buffer_is_as_long_as_the_keys(shape: tuple[int, ...]) -> None:
    agrees(operands(2, 1, 5, capacity=9, bias=shape), {"softcap": 1.5})


@pytest.mark.parametrize("kind", [1, 2])
def test_scores_as_an_output(kind: int) -> None:
    agrees(operands(2, 3, 0), {"qk_output": kind}, 4)
    agrees(operands(1, 2, 3, capacity=8, sink=True), {"qk_output": kind, "local_window_size": 2}, 4)


def test_both_directions() -> None:
    agrees(operands(2, 3, 0, last=[1, 2]), {"causal": 0})
    agrees(operands(1, 3, 2), {"causal": 0})


@pytest.mark.parametrize("interleaved", [0, 1])
def test_position_ids(interleaved: int) -> None:
    """A first prompt reads only the first of them, for all sequences."""
    for given in (
        operands(2, 1, 4, rope=16, positions=[[7], [2]]),
        operands(1, 3, 4, rope=16, positions=[[7, 1, 0]]),
        operands(2, 3, 0, rope=16, positions=[[3, 9, 1], [5, 2, 2]]),
    ):
        agrees(given, {"rotary_interleaved": interleaved})


def test_half_floats() -> None:
    agrees(operands(2, 1, 5, rope=16, dtype=np.float16), {}, rtol=2e-3, atol=2e-3)
    agrees(operands(2, 5, 0, rope=16, dtype=np.float16), {}, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("interleaved", [0, 1])
def test_partly_turned_heads(interleaved: int) -> None:
    """The CPU EP wants a width that is a multiple of 16; turning the rest by cosine 1 and sine 0 is the same."""
    given = plain(operands(1, 3, 4, rope=8))
    order = np.array([*range(D)] if interleaved else [0, 4, 1, 5, 2, 6, 3, 7, *range(8, D)])  # pairs side by side
    cpu = {**given, "pk": np.asarray(given["pk"])[..., order]}
    for name, fill in (("cos", np.ones), ("sin", np.zeros)):
        cpu[name] = np.concatenate([np.asarray(given[name]), fill((16, 4), np.float32)], 1)
    for name, heads in (("q", H), ("k", G)):
        x = np.asarray(given[name])
        cpu[name] = x.reshape(1, 3, heads, D)[..., order].reshape(x.shape)
    turned = {**HEADS, "do_rotary": 1}
    got = interpreted(given, {**turned, "rotary_interleaved": interleaved})
    model = model_of("GroupQueryAttention", 17, cpu, {**turned, "rotary_interleaved": 1}, outputs=3, domain="com.microsoft")
    want = on_cpu(model, fed(cpu))
    assert_close(got[0], want[0], 1e-4, 1e-5)
    assert_close(got[1][..., order], want[1], 1e-4, 1e-5)


def test_normalized_heads() -> None:
    """q_norm_weight and k_norm_weight, which the CPU EP lacks: each head normalized before."""
    given = operands(2, 3, 0, rope=16)
    q_weight, k_weight = normal(D), normal(D)
    attributes = {**HEADS, "do_rotary": 1}
    with_weights = {**{k: v for k, v in given.items() if k != "new"}, "qn": q_weight, "kn": k_weight}
    got = interpreted(with_weights, {**attributes, "qk_norm_epsilon": 0.1, "k_norm_epsilon": 0.2})

    def normed(name: str, heads: int, weight: Array, epsilon: float) -> Array:
        x = np.asarray(given[name]).reshape(2, 3, heads, D)
        return (x / np.sqrt((x * x).mean(-1, keepdims=True) + epsilon) * weight).reshape(2, 3, heads * D)

    before = plain({**given, "q": normed("q", H, q_weight, 0.1), "k": normed("k", G, k_weight, 0.2)})
    model = model_of("GroupQueryAttention", 17, before, attributes, outputs=3, domain="com.microsoft")
    for a, b in zip(got, on_cpu(model, fed(before)), strict=True):
        assert_close(a, b, 1e-4, 1e-5)


def test_wrong_lengths_are_errors() -> None:
    for last in ([3, 9], [-1, 5]):
        with pytest.raises(ModelError, match="outside"):
            interpreted(plain(operands(2, 1, 5, last=last)), HEADS)
    with pytest.raises(ModelError, match="outside"):  # the position is behind the end of the cosine cache
        interpreted(plain(operands(1, 1, 16, rope=16)), {**HEADS, "do_rotary": 1})
    with pytest.raises(ShapeMismatch, match="total_sequence_length"):
        interpreted(plain(operands(1, 3, 5, total=9)), HEADS)


@pytest.mark.parametrize(
    "attributes,reason",
    [
        ({"sliding_window_cache": 1}, "without local_window_size"),
        ({"k_quant_type": "PER_TENSOR"}, "quantized"),
        ({"causal": 0, "local_window_size": 4}, "local_window_size"),
    ],
    ids=["sliding", "quantized", "window"],
)
def test_refused_forms(attributes: dict[str, Any], reason: str) -> None:
    model = model_of("GroupQueryAttention", 17, plain(operands(1, 1, 5)), {**HEADS, **attributes}, outputs=3, **FORM)
    (refusal,) = refusals(graph_of(model))
    assert reason in refusal.reason


def resident(tokens: int, capacity: int, window: int) -> int:
    """How many rows a window's cache holds, by the operator's text."""
    group = capacity - window + 1
    return tokens if tokens <= capacity else tokens - group * -(-(tokens - capacity) // group)


def slides(given: Mapping[str, Array | None], window: int, **attributes: Any) -> None:
    """A step with a window's cache is as on the CPU EP."""
    q, last, past, new = (np.asarray(given[n]) for n in ("q", "last", "pk", "new"))
    ends = last.astype(int) + 1
    rows = new if given["new"] is not None else [q.shape[1]] * len(ends)
    held = [resident(n, past.shape[2], window) for n in ends]
    for name in ("pk", "pv"):
        for sequence, n, count in zip(np.asarray(given[name]), ends, rows, strict=True):
            sequence[:, resident(max(n - count, 0), past.shape[2], window) :] = np.nan  # what is not specified

    def specified(i: int, y: Array) -> Array:
        taken = [x[:n] if i == 0 else x[:, :kept] for x, n, kept in zip(y, rows, held, strict=True)]
        return np.concatenate([x.reshape(-1) for x in taken])

    turned = int(given["cos"] is not None)
    whole = {**HEADS, "do_rotary": turned, "local_window_size": window, "sliding_window_cache": 1, **attributes}
    used = given if given["new"] is not None else plain(given)
    check("GroupQueryAttention", 17, used, whole, outputs=3, specified=specified, **FORM)


@pytest.mark.parametrize("steps", [1, 2, 7])
@pytest.mark.parametrize("window,capacity", [(4, 4), (4, 5), (4, 7), (1, 1), (1, 3)])
def test_a_cache_of_a_window(window: int, capacity: int, steps: int) -> None:
    for past in (0, 1, 3, 4, 5, 9):
        slides(operands(1, steps, past, capacity=capacity, rope=16 if past % 2 else 0), window)


def test_a_cache_of_a_window_for_many_sequences() -> None:
    slides(operands(3, 1, 8, capacity=5, last=[2, 8, 5], rope=16, packed=True, sink=True), 4, softcap=2.0)
    slides(operands(3, 4, 0, capacity=5, last=[2, 8, 5], new=[3, 4, 0], total=9, rope=16), 4)
    slides(operands(3, 1, 0, capacity=5, last=[2, 8, 5], new=[1, 0, 1], total=30), 4)


def test_a_cache_smaller_than_its_window_is_an_error() -> None:
    with pytest.raises(ShapeMismatch, match="smaller than local_window_size"):
        interpreted(plain(operands(1, 1, 5, capacity=3)), {**HEADS, "local_window_size": 4, "sliding_window_cache": 1})


def test_random_forms() -> None:
    def coin() -> bool:
        return bool(RNG.integers(2))

    for _ in range(DRAWS):
        batch, steps, past = int(RNG.integers(1, 4)), int(RNG.integers(1, 9)), int(RNG.integers(0, 7))
        if coin():
            steps = 1
        ragged = steps == 1 or past == 0
        batch = batch if ragged else 1
        total = past + steps
        # the sequences' lengths differ, the longest has all: a step appends to any cache, a prompt may be of any length
        last = [total - 1, *(int(n) for n in RNG.integers(0, total, batch - 1))] if ragged else None
        bias = (int(RNG.integers(1, 3)) if batch == 2 else 1, H if coin() else 1, steps, total) if coin() else None
        given = operands(
            batch, steps, past, capacity=[None, total, total + 3][RNG.integers(3)], last=last, packed=coin(), sink=coin(),
            rope=16 if coin() and total <= 16 else 0, bias=bias,
        )  # fmt: skip
        attributes = {
            "local_window_size": int(RNG.integers(1, 9)) if coin() else -1,
            "softcap": 3.0 if coin() else 0.0,
            "smooth_softmax": int(RNG.integers(-1, 2)),
            "rotary_interleaved": int(RNG.integers(2)),
        }
        agrees(given, attributes)
