"""ONNX's own test cases through both doors: what is claimed runs and is right, what is not says why.

Every case with ``ONNX_VULKAN_THOROUGH=1`` (minutes); else one in ``STRIDE``, and those that once went wrong.
"""

from __future__ import annotations

import os
import re

import pytest
from doors import DOORS, Verdict, attempt
from onnx_cases import Case, all_cases

STRIDE = 16
ONCE_WRONG = re.compile("fmod_0_signed_zero|^test_if$|resize_upsample_scales_cubic$|upsample_nearest$|cast_FLOAT_to_BFLOAT16$")
THOROUGH = os.environ.get("ONNX_VULKAN_THOROUGH") == "1"

CASES = [c for i, c in enumerate(all_cases()) if THOROUGH or i % STRIDE == 0 or ONCE_WRONG.search(c.name)]


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.kind}-{case.name}")
def test_case(case: Case, door: str) -> None:
    outcome = attempt(case, door)
    if outcome.verdict in (Verdict.REFUSED, Verdict.UNREADABLE):
        assert "internal error" not in outcome.text
        pytest.skip(f"{outcome.verdict.value}: {outcome.text[:500]}")
    assert outcome.verdict is Verdict.PASSED, outcome.text
