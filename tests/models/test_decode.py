"""Greedy decoding: mask and cache grow by one a step, a few plans serve all lengths, tokens and scores are the CPU EP's."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

import numpy as np
import onnx_vulkan
import onnxruntime
import onnxruntime_ep_vulkan  # noqa: F401  (registers the provider)
import pytest
from catalog import Array, made_skeleton
from counting import counted
from onnx_vulkan.tolerance import FP32_MODEL, tolerance_ratio
from reference import quiet_options

STEPS = 64 if os.environ.get("ONNX_VULKAN_THOROUGH") == "1" else 40
MOST_PLANS = 4
PROMPT = (17, 230, 5, 911, 42)
MODELS = ("gpt2_tiny", "smollm_135m_tiny", "smollm_135m_opset23_tiny", "whisper_small_decoder_with_past_tiny")

Run = Callable[[Mapping[str, Array]], Mapping[str, Array]]


def decode(inputs: Mapping[str, tuple[int, ...]], run: Run) -> tuple[list[int], list[Array]]:
    """The tokens that follow PROMPT, none of them twice, and the scores of each step.

    *inputs* are the model's inputs with -1 for a dynamic extent. One that the model does not have is left out; a cache that
    has a fixed length (what a speech decoder reads of its encoder) stays as it is; without a mask, tokens come one by one.
    """
    cache = {n: _cache(n, shape) for n, shape in inputs.items() if n.startswith("past_key_values")}
    tokens, scores = list(PROMPT), []
    fresh = tokens if "attention_mask" in inputs else tokens[:1]
    done = 0
    for _ in range(STEPS):
        end = done + len(fresh)
        feeds = {
            "input_ids": np.array([fresh], np.int64),
            "attention_mask": np.ones((1, end), np.int64),
            "position_ids": np.arange(done, end, dtype=np.int64)[None],
            **cache,
        }
        outputs = run({name: array for name, array in feeds.items() if name in inputs})
        cache |= {n.replace("present", "past_key_values"): a for n, a in outputs.items() if n.startswith("present")}
        cache = {n: a for n, a in cache.items() if n in inputs}
        done = end
        scores.append(outputs["logits"][0, -1])
        if done == len(tokens):
            again = scores[-1].copy()
            again[[t for t in tokens if t < len(again)]] = -np.inf  # random weights would repeat one token for ever
            tokens.append(int(again.argmax()))
        fresh = tokens[done : done + 1]
    return tokens, scores


def _cache(name: str, shape: tuple[int, ...]) -> Array:
    """Nothing yet where the length grows, else what the encoder would have given."""
    if shape[2] < 0:
        return np.zeros((1, shape[1], 0, shape[3]), np.float32)
    return np.random.default_rng(len(name)).standard_normal((1, *shape[1:]), dtype=np.float32)


def _through_ort(path: str, provider: str) -> Run:
    session = onnxruntime.InferenceSession(path, quiet_options(), providers=[provider], enable_fallback=0)
    names = [output.name for output in session.get_outputs()]
    return lambda feeds: dict(zip(names, session.run(None, dict(feeds)), strict=True))


@pytest.mark.parametrize("name", MODELS)
def test_decoding_makes_few_plans_and_the_same_tokens(name: str) -> None:
    path = made_skeleton(name)
    session = onnx_vulkan.Session.load(path)
    inputs = {i.name: tuple(n if isinstance(n, int) else -1 for n in i.shape or ()) for i in session.inputs}
    tokens, scores = decode(inputs, _through_ort(str(path), "CPUExecutionProvider"))
    for run in session.run, _through_ort(str(path), "VulkanEP"):
        got: list[tuple[list[int], list[Array]]] = []
        plans = counted(lambda: got.append(decode(inputs, run)))["plans_made"]  # noqa: B023  (called at once)
        assert got[0][0] == tokens
        assert max(tolerance_ratio(a, b, FP32_MODEL) for a, b in zip(got[0][1], scores, strict=True)) <= 1
        assert plans <= MOST_PLANS
