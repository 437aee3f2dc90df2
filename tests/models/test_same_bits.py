"""The two doors make the same plan of a model: with ONNX Runtime's graph optimization off, both give the same bits."""

from __future__ import annotations

import os

import onnx_vulkan
import onnxruntime
import pytest
from catalog import MODELS, Model
from onnx_vulkan.engine.options import Options
from sweep import through_ort

THOROUGH = os.environ.get("ONNX_VULKAN_THOROUGH") == "1"
QUICK = "ppocrv5_cls silero_vad_16k_op15 vit_b16_fp16_tiny".split()


@pytest.mark.parametrize("model", [m for m in MODELS if THOROUGH or m.name in QUICK], ids=lambda model: model.name)
def test_both_doors_give_the_same_bits(model: Model, request: pytest.FixtureRequest) -> None:
    if not model.whole or (model.heavy and not request.config.getoption("--heavy")):
        pytest.skip("not whole, or too slow for a software driver (--heavy runs it)")
    level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    run = through_ort(model.path(), level, "VulkanEP", alone=True)
    with onnx_vulkan.Session.load(model.path(), options=Options()) as session:
        for case in range(len(model.tests) if THOROUGH else 1):
            feeds = model.feeds(case)
            standalone, ep = session.run(feeds), run(feeds)
            assert list(standalone) == list(ep)
            for name, array in standalone.items():
                same = (array.dtype, array.shape, array.tobytes()) == (ep[name].dtype, ep[name].shape, ep[name].tobytes())
                assert same, f"case {case}: {name} has other bits"
