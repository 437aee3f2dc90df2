"""ONNX's own test cases through the three doors: what is claimed runs and is right, and no more is refused than is listed.

``refused.json`` lists what each door refuses, by the operators of the case: a refusal that is new fails, and so does one that is
gone (``--update-gates`` writes the list anew from a thorough run). The interpreter refuses what the standalone engine does, as
the tests' device lacks nothing. Every case runs with ``ONNX_VULKAN_THOROUGH=1`` (minutes); else one in ``STRIDE``, and those that
once went wrong.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from doors import DOORS, Verdict, attempt
from onnx_cases import KINDS, Case, all_cases

STRIDE = 16
ONCE_WRONG = re.compile(
    "fmod_0_signed_zero|^test_if$|resize_upsample_scales_cubic$|upsample_nearest$|cast_FLOAT_to_BFLOAT16$|training_dropout$|"
    "reduce_max_keepdims_example$|sce_mean$|swiglu$|bitshift_right_int8$|simple_rnn_defaults$|range_float_type_positive_delta$"
)
THOROUGH = os.environ.get("ONNX_VULKAN_THOROUGH") == "1"
LIST = Path(__file__).with_name("refused.json")
# The light models are run by the model tests, with better weights.
ALL = all_cases(KINDS[:4])
CASES = [c for i, c in enumerate(ALL) if THOROUGH or i % STRIDE == 0 or ONCE_WRONG.search(c.name)]

# The list that holds for a door.
LISTS = {"interp": "standalone", "standalone": "standalone", "ep": "ep"}

Refused = dict[str, dict[str, list[str]]]


@pytest.fixture(scope="module")
def refused(request: pytest.FixtureRequest) -> Iterator[Refused]:
    """By door: operators -> names of refused cases. Written back with ``--update-gates``."""
    listed: Refused = json.loads(LIST.read_text())
    update = THOROUGH and request.config.getoption("--update-gates")
    found: Refused = {door: {} for door in LISTS.values()} if update else listed
    yield found
    if update:
        rows = [
            f' "{door}": {{\n' + ",\n".join(f'  "{k}": {json.dumps(sorted(v))}' for k, v in sorted(found[door].items())) + "\n }"
            for door in found
        ]
        LIST.write_text("{\n" + ",\n".join(rows) + "\n}\n")


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.kind}-{case.name}")
def test_case(case: Case, door: str, refused: Refused, request: pytest.FixtureRequest) -> None:
    outcome = attempt(case, door)
    operators = " ".join(case.operators)
    names = refused[LISTS[door]].get(operators, [])
    if outcome.verdict is Verdict.REFUSED:
        assert outcome.check in ("opset", "dtype", "kernel", "onnxruntime")
        assert outcome.reason and "internal error" not in outcome.reason
        if THOROUGH and request.config.getoption("--update-gates"):
            if door == LISTS[door]:
                refused[door].setdefault(operators, []).append(case.name)
            return
        assert case.name in names, f"a new refusal: {outcome.reason}"
        return
    assert outcome.verdict is Verdict.PASSED, outcome.reason
    assert case.name not in names, "it is no longer refused: take it off the list"
