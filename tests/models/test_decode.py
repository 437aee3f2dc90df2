"""Greedy decoding with GPT-2 (tiny): mask and cache grow, one recording serves many lengths, tokens equal the CPU EP's."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import onnx_vulkan
import onnxruntime
import onnxruntime_ep_vulkan  # noqa: F401  (registers the provider)
import pytest
from catalog import Array, by_name
from counting import counted
from reference import cpu_session, quiet_options

STEPS = 64
MOST_PLANS = 4
LAYERS, HEADS, WIDTH = 2, 4, 32
PROMPT = (17, 230, 5, 911, 42)

Run = Callable[[Mapping[str, Array]], Mapping[str, Array]]


def decode(run: Run) -> list[int]:
    """The tokens that follow PROMPT: greedy, none of them twice."""
    cache = {
        f"past_key_values.{i}.{kv}": np.zeros((1, HEADS, 0, WIDTH), np.float32) for i in range(LAYERS) for kv in ("key", "value")
    }
    tokens = list(PROMPT)
    fresh = tokens
    for _ in range(STEPS):
        past = len(tokens) - len(fresh)
        outputs = run(
            {
                "input_ids": np.array([fresh], np.int64),
                "attention_mask": np.ones((1, len(tokens)), np.int64),
                "position_ids": np.arange(past, len(tokens), dtype=np.int64)[None],
                **cache,
            }
        )
        cache = {name.replace("present", "past_key_values"): array for name, array in outputs.items() if name != "logits"}
        scores = outputs["logits"][0, -1].copy()
        scores[tokens] = -np.inf  # random weights would repeat one token for ever
        fresh = [int(scores.argmax())]
        tokens += fresh
    return tokens[len(PROMPT) :]


def _through_ort(session: onnxruntime.InferenceSession) -> Run:
    names = [output.name for output in session.get_outputs()]
    return lambda feeds: dict(zip(names, session.run(None, dict(feeds)), strict=True))


def _standalone() -> Run:
    return onnx_vulkan.Session.load(by_name("gpt2_tiny").path()).run


def _ep() -> Run:
    path = str(by_name("gpt2_tiny").path())
    return _through_ort(onnxruntime.InferenceSession(path, quiet_options(), providers=["VulkanEP"], enable_fallback=0))


@pytest.mark.parametrize("door", [_standalone, _ep])
def test_decoding_makes_few_plans_and_the_same_tokens(door: Callable[[], Run]) -> None:
    run = door()
    tokens: list[int] = []
    plans = counted(lambda: tokens.extend(decode(run)))["plans_made"]
    assert tokens == decode(_through_ort(cpu_session(by_name("gpt2_tiny"))))
    assert plans <= MOST_PLANS
