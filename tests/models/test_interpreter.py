"""Every model through lowering and the numpy interpreter (the meaning of a Program), against ONNX Runtime's CPU EP."""

from __future__ import annotations

import pytest
from catalog import MODELS, Model
from onnx_vulkan.tolerance import tolerance_ratio
from reference import cpu_outputs, interpreted

CASES = [
    pytest.param(model, case, id=f"{model.name}-{case}")
    for model in MODELS
    if model.interpret and model.whole
    for case in range(len(model.tests))
]


@pytest.mark.parametrize(("model", "case"), CASES)
def test_interpreter_agrees_with_the_cpu_ep(model: Model, case: int) -> None:
    got = interpreted(model, case)
    for i, (array, reference) in enumerate(zip(got, cpu_outputs(model, case), strict=True)):
        assert tolerance_ratio(array, reference, model.tolerance) <= 1, f"output {i}"
