"""Claims that hold: of random nodes and graphs, what is claimed runs and agrees, what is refused has a reason.

``campaign.py`` does the same with as many seeds as one likes, through every door.
"""

from __future__ import annotations

import os

import pytest
from disagreements import KNOWN
from forms import Skip, operators
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from random_model import make_sizes
from random_values import SeededChoices
from verdict import Verdict, compare_doors, judge, on_cpu

THOROUGH = os.environ.get("ONNX_VULKAN_THOROUGH") == "1"
EXAMPLES = 3000 if THOROUGH else 150


class Drawn:
    """Decisions that hypothesis makes."""

    def __init__(self, data: st.DataObject):
        self.data = data

    def integer(self, low: int, high: int) -> int:
        return self.data.draw(st.integers(low, high))


@settings(
    max_examples=EXAMPLES,
    phases=[Phase.generate],
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
@given(st.data(), st.sampled_from([1, 1, 1, 2, 4]))
def test_claimed_implies_runs_and_agrees(data: st.DataObject, nodes: int) -> None:
    try:
        cases = make_sizes(Drawn(data), list(operators()), nodes, on_cpu)
    except Skip:
        return
    judged = judge(cases)
    assert judged.verdict is not Verdict.WRONG, f"{cases[0].label}\n{judged.text}"


@pytest.mark.parametrize("label", operators())
def test_operator(label: str) -> None:
    """A few nodes of each operator through the interpreter, which costs milliseconds."""
    for seed in range(40 if THOROUGH else 4):
        try:
            cases = make_sizes(SeededChoices(seed), [label], 1, on_cpu)
        except Skip:
            continue
        judged = judge(cases, "interpreter")
        assert judged.verdict is not Verdict.WRONG, f"seed {seed}: {cases[0].label}\n{judged.text}"


def test_both_doors_give_the_same_bits() -> None:
    compared = 0
    for seed in range(400 if THOROUGH else 16):
        try:
            cases = make_sizes(SeededChoices(seed), list(operators()), 3, on_cpu)
        except Skip:
            continue
        found = compare_doors(cases)
        assert not found, f"seed {seed}: {cases[0].label}\n{found}"
        compared += found is not None
    assert compared >= 6


def test_disagreements_are_told_once() -> None:
    patterns = [(known.judge, known.pattern) for known in KNOWN]
    assert len(set(patterns)) == len(patterns)
    assert all(known.judge in ("cpu", "reference") and len(known.reason.split()) > 2 for known in KNOWN)
