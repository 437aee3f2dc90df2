"""Hazard barriers are enough: a model gives the same bits with them and with a barrier before every dispatch, run after run.

Twice over the quick models; with ``ONNX_VULKAN_THOROUGH=1`` a hundred times over all that this machine can run, which is what
a GPU is for: a software driver overlaps nothing.
"""

from __future__ import annotations

import os
from typing import Any

import onnx_vulkan
import pytest
from catalog import MODELS, Model
from onnx_vulkan.engine.options import Options

THOROUGH = os.environ.get("ONNX_VULKAN_THOROUGH") == "1"
RUNS = 100 if THOROUGH else 2
# A plan that is replaced by a better one sums in another order.
FIXED: dict[str, Any] = {"compile_ahead": "off", "auto_runtime_dims": False}
QUICK = ("silero_vad_16k_op15", "mobilenetv2_tiny", "gpt2_tiny")


@pytest.mark.parametrize("model", [m for m in MODELS if THOROUGH or m.name in QUICK], ids=lambda model: model.name)
def test_barriers_from_hazards_give_the_same_bits_as_barriers_everywhere(model: Model, request: pytest.FixtureRequest) -> None:
    if not model.whole or (model.heavy and not request.config.getoption("--heavy")):
        pytest.skip("not whole, or too slow for a software driver (--heavy runs it)")
    with (
        onnx_vulkan.Session.load(model.path(), options=Options(barrier_everywhere=True, **FIXED)) as careful,
        onnx_vulkan.Session.load(model.path(), options=Options(**FIXED)) as session,
    ):
        for case in range(len(model.tests)):
            feeds = model.feeds(case)
            expected = careful.run(feeds)
            assert all(a.size for a in expected.values())
            for run in range(RUNS):
                for name, array in session.run(feeds).items():
                    assert array.tobytes() == expected[name].tobytes(), f"run {run} of case {case}: {name} has other bits"
