"""ONNX's node cases with one axis of one input longer or shorter by one, every dim free: kernels read nothing beyond it.

Where ONNX Runtime's CPU EP fails, so does the run, by a sentence; where both run they agree. An operand that is shorter than
the kernels believe would be read past its end. One case in ``STRIDE`` runs, all with ``ONNX_VULKAN_THOROUGH=1`` (minutes).
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np
import onnx
import onnx_vulkan
import onnxruntime
import pytest
from onnx_cases import Array, Case, all_cases
from onnx_vulkan.errors import InvalidInput, OnnxVulkanError, RefusedError, Unsupported

STRIDE = 1 if os.environ.get("ONNX_VULKAN_THOROUGH") == "1" else 24
LENIENT = {
    "ConvTranspose": "output_shape may ask for more than the kernel reaches: the rest is the bias",
    "QLinearMatMul": "a zero point a row is taken as ONNX says",
    "RMSNormalization": "a scale is broadcast, as ONNX says",
    "MaxPool": "no channels give none",
    "AveragePool": "no channels give none",
}
NARROW = ("BFLOAT16", "FLOAT8", "FLOAT4", "INT4", "INT2", "bfloat16")


def _free(model: bytes) -> bytes:
    """The model with a symbol for every dim of its inputs."""
    made = onnx.ModelProto.FromString(model)
    for value in (*made.graph.input, *made.graph.output):
        for i, dim in enumerate(value.type.tensor_type.shape.dim):
            dim.dim_param = f"{value.name}_{i}"
    del made.graph.value_info[:]
    return made.SerializeToString()


def _changed(case: Case, rng: np.random.Generator) -> Iterator[dict[str, Array]]:
    feeds, _ = case.data[0]
    for name, array in feeds.items():
        if array.ndim and min(array.shape) > 1 and array.dtype.kind != "O":
            axis = int(rng.integers(array.ndim))
            length = array.shape[axis] + int(rng.choice([-1, 1]))
            yield {**feeds, name: np.take(array, np.arange(length) % array.shape[axis], axis)}


CASES = [
    c
    for c in all_cases()
    if c.kind == "node" and c.tensors and c.data and not any(part in c.name for part in NARROW) and b"String" not in c.model
][::STRIDE]


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_one_axis_longer_or_shorter(case: Case) -> None:
    model = _free(case.model)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    try:
        cpu = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        session = onnx_vulkan.Session.load(model)
    except Exception:  # one of the two cannot run the form: nothing to compare
        return
    operators = {n.op_type for n in onnx.ModelProto.FromString(model).graph.node}
    for feeds in _changed(case, np.random.default_rng(len(case.name))):
        given = {n: a for n, a in feeds.items() if n in session.graph.inputs}
        try:
            want = [np.asarray(a) for a in cpu.run(None, feeds)]
        except Exception:
            if operators & LENIENT.keys():
                continue
            with pytest.raises(OnnxVulkanError):
                session.run(given)
            continue
        try:
            got = list(session.run(given).values())
        except (InvalidInput, RefusedError, Unsupported):
            continue  # stricter than the CPU EP, and said so
        for a, b in zip(got, want, strict=True):
            assert a.shape == b.shape, {n: x.shape for n, x in feeds.items()}
            np.testing.assert_allclose(a.astype(np.float64), b.astype(np.float64), rtol=1e-2, atol=1e-3)
