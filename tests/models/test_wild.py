"""Models as users make them, with the optimizers and quantizers of ONNX Runtime (``wild.py``), through both doors.

Float models are compared with the CPU EP on the same file; quantized ones as well, but cut at their quantized tensors, each of
which may be off by one step in few elements. A few here, every recipe on every model with ``ONNX_VULKAN_THOROUGH=1``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import onnx
import onnx_vulkan
import onnxruntime
import pytest
from catalog import Array
from onnx_vulkan.tolerance import FP16_MODEL, FP32_MODEL, Tolerance, compare, no_worse_than
from reference import interpret_file
from sweep import Subject, subjects, through_ort
from wild import RECIPES, TRANSFORMERS, cut, half_feeds, make, ort_graph

Call = Callable[[dict[str, Array]], dict[str, Array]]

THOROUGH = os.environ.get("ONNX_VULKAN_THOROUGH") == "1"

QUANTIZED = ("dynamic", "qdq", "qoperator")
"""How the names of the recipes begin whose activations are rounded."""

QUICK = [
    "roberta_base_tiny+transformers_half",
    "whisper_small_decoder_with_past_tiny+ort_all",
    "gpt2_tiny+nbits_4_gather",
    "resnet50_tiny+qoperator_per_channel",
    "silero_vad_16k_op15+qdq_per_channel",
]

SOURCES = [
    "roberta_base_tiny", "gpt2_tiny", "vit_b16_tiny", "resnet50_tiny", "mobilenetv2_tiny", "ppocrv5_det", "ppocrv5_rec", "magika",
    "basic_pitch", "silero_vad_16k_op15", "silero_vad_half", "whisper_small_encoder_tiny", "whisper_small_decoder_with_past_tiny",
    "sam_vit_b_encoder_tiny", "smollm_135m_tiny",
]  # fmt: skip

EVERY = [f"{source}+{recipe}" for source in SOURCES for recipe in (*RECIPES, *TRANSFORMERS.get(source, ()))]

LEVEL = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL


def made(name: str, folder: Path) -> tuple[Subject, Path]:
    """The model *name* ("source+recipe"). Skips what the tool does not make, or so that no CPU EP loads it."""
    source, recipe = name.split("+")
    (subject,) = subjects([source])
    table = {**RECIPES, **TRANSFORMERS.get(source, {})}
    try:
        path = make(table[recipe], subject, folder)
        through_ort(path, LEVEL, "CPUExecutionProvider")
    except Exception as error:
        if name in QUICK:
            raise
        pytest.skip(f"ONNX Runtime's tool does not make a valid model of it: {type(error).__name__}: {error}")
    return subject, path


DOORS: Mapping[str, Callable[[Path], Call]] = {
    "standalone": lambda path: onnx_vulkan.Session.load(path).run,
    "ep": lambda path: through_ort(path, LEVEL, "VulkanEP", alone=True),
}
"""The two ways to run a model whole on Vulkan."""


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", [n for n in (EVERY if THOROUGH else QUICK) if not n.split("+")[1].startswith(QUANTIZED)])
def test_made_model(name: str, tmp_path: Path) -> None:
    """Within the tolerance of the CPU EP, or no further from the float64 result than the CPU EP is; at two shapes."""
    subject, path = made(name, tmp_path)
    half = any(part in name for part in ("fp16", "half"))
    tolerance = FP16_MODEL if half else subject.tolerance
    reference = through_ort(path, LEVEL, "CPUExecutionProvider")
    for door, load in DOORS.items():
        call = load(path)
        for given in subject.feeds[:2]:
            feeds = half_feeds(path, given)
            got, want = call(feeds), reference(feeds)
            far = [n for n, array in want.items() if compare(got[n], array, tolerance).ratio > 1]
            if far:
                exact = interpret_file(path, feeds, float64=True)
                assert no_worse_than(list(got.values()), list(want.values()), exact, tolerance), f"{door}: {far}"


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", [n for n in (EVERY if THOROUGH else QUICK) if n.split("+")[1].startswith(QUANTIZED)])
def test_quantized_model(name: str, tmp_path: Path) -> None:
    """Every quantized tensor is the CPU EP's, but for steps of one in at most 1 % of its elements.

    The whole model, at two shapes, is no further from the CPU EP than quantization has moved it from the float model.
    """
    subject, path = made(name, tmp_path)
    parts = tmp_path / "parts.onnx"
    feeds, want = cut(path, subject.feeds[-1], parts)
    for door in DOORS if THOROUGH else ["standalone"]:
        got = DOORS[door](parts)(feeds)
        wrong = {n: says for n, array in want.items() if (says := _difference(got[n], array))}
        assert not wrong, f"{door}: {wrong}"
    plain = through_ort(subject.path, LEVEL, "CPUExecutionProvider")
    reference = through_ort(path, onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL, "CPUExecutionProvider")
    for door in DOORS if THOROUGH else ["ep"]:
        call = DOORS[door](path)
        for given in subject.feeds[:2]:
            got, want, before = call(given), reference(given), plain(given)
            for n, array in want.items():
                moved = float(np.abs(array - before[n]).max(initial=0))
                assert compare(got[n], array, Tolerance(max(moved, FP32_MODEL.atol), FP32_MODEL.rtol)).ratio <= 1, (door, n)


def _difference(got: Array, want: Array) -> str:
    """What is wrong with a quantized tensor, or with a float one; nothing where it is right."""
    if want.dtype.kind not in "iu" or got.dtype != want.dtype or got.shape != want.shape:
        ratio = compare(got, want, FP32_MODEL).ratio
        return f"{ratio:.3g} of the tolerance" if not ratio <= 1 else ""
    steps = np.abs(got.astype(np.int64) - want.astype(np.int64))
    if steps.max(initial=0) > 1 or np.count_nonzero(steps) > max(1, steps.size // 100):
        return f"{np.count_nonzero(steps)} of {steps.size} elements are off, by up to {steps.max()}"
    return ""


def test_layout_of_one_cpu_is_refused_with_advice(tmp_path: Path) -> None:
    """What ONNX Runtime saves at its highest level may hold operators of the CPU that saved it."""
    (subject,) = subjects(["resnet50_tiny"])
    path = make(ort_graph("ALL", off=()), subject, tmp_path)
    if all(node.domain != "com.microsoft.nchwc" for node in onnx.load(path).graph.node):
        pytest.skip("ONNX Runtime has no blocked layout on this CPU")
    with pytest.raises(onnx_vulkan.errors.RefusedError, match="ORT_ENABLE_EXTENDED"):
        onnx_vulkan.Session.load(path)
