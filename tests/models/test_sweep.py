"""The sweep over models, ways and shapes (``sweep.py``): two quick models here, all with ``ONNX_VULKAN_THOROUGH=1``."""

from __future__ import annotations

import os

import pytest
from sweep import WAYS, names, subjects, sweep

THOROUGH = os.environ.get("ONNX_VULKAN_THOROUGH") == "1"
NAMES = names() if THOROUGH else ["gpt2_tiny", "silero_vad_16k_op15"]


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", NAMES)
def test_every_way_gives_the_cpu_eps_answers(name: str) -> None:
    (subject,) = subjects([name])
    wrong = {way: text for way, text, _ in sweep(subject, list(WAYS), rounds=1, shapes=3) if text.startswith("WRONG")}
    assert not wrong
