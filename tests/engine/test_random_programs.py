"""Random programs through the whole trip: passes, fusion, kernels, plan and replay against the interpreter.

The programs come from ``random_program.py``; ``campaign.py`` runs as many of them from seeds as one likes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from onnx_vulkan.dims import Scope
from onnx_vulkan.engine.structure import optimize
from onnx_vulkan.plan import build as plan_build
from onnx_vulkan.plan.table import Op
from onnx_vulkan.plan.verify import find_hazards
from onnx_vulkan.program.fold import fold_constants
from onnx_vulkan.program.interp import interpret
from onnx_vulkan.program.simplify import simplify
from random_program import RandomProgram, make_program
from run_program import ProgramRun, check_close

SIZES = [(2, 3), (5, 17), (1, 1), (3, 0), (0, 7), (9, 33)]


class Drawn:
    """Decisions that hypothesis makes, so that a failure can be replayed and shrunk."""

    def __init__(self, data: st.DataObject):
        self.data = data

    def integer(self, low: int, high: int) -> int:
        return self.data.draw(st.integers(low, high))


def programs(examples: int) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """So many examples, always the same ones. A failing one is reported as drawn: shrinking it would take minutes."""
    checks = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example, HealthCheck.filter_too_much]
    return lambda test: settings(
        max_examples=examples,
        phases=[Phase.generate],
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=checks,
    )(given(st.data())(test))


def drawn(data: st.DataObject, steps: int = 10, symbols: bool = False) -> RandomProgram:
    choices = Drawn(data)
    numbers = {"n": choices.integer(1, 9), "m": choices.integer(0, 40)} if symbols else {}
    with Scope(numbers):
        return make_program(choices, numbers, steps)


def expected(p: RandomProgram, numbers: dict[str, int]) -> tuple[dict[str, Any], list[Any]]:
    feeds = p.arrays(numbers)
    return feeds, interpret(p.program, feeds, numbers)


@programs(150)
def test_passes_keep_the_meaning(data: st.DataObject) -> None:
    p = drawn(data, symbols=data.draw(st.booleans()))
    feeds, want = expected(p, p.numbers)
    with Scope(p.numbers) as scope:
        once = simplify(p.program)
        folded = fold_constants(once, {})
        best = optimize(p.program, {})
    for program in (once, folded, best):
        check_close(p, interpret(program, feeds, p.numbers), want)
        assert [v.shape for v in program.outputs] == [v.shape for v in p.program.outputs]
    # what the passes decided holds where their guards do
    for n, m in SIZES:
        other = {name: dict(n=n, m=m)[name] for name in p.numbers}
        if other and all(g.holds(other) for g in [*p.guards, *scope.guards]):
            feeds, want = expected(p, other)
            check_close(p, interpret(best, feeds, other), want)


@programs(70)
def test_the_device_computes_what_the_interpreter_does(data: st.DataObject) -> None:
    p = drawn(data, 14)
    feeds, want = expected(p, {})
    with ProgramRun(p.program, {}, p.guards) as run:
        check_close(p, run.run(feeds), want)


@programs(20)
def test_far_from_host_memory_too(data: st.DataObject) -> None:
    p = drawn(data)
    feeds, want = expected(p, {})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan_build, "DIRECT_BYTES", 0)  # everything comes and leaves by copies
        with ProgramRun(p.program, {}, p.guards, direct_input=False, direct_output=False) as run:
            check_close(p, run.run(feeds), want)


@programs(40)
def test_one_structure_serves_all_sizes_at_which_its_guards_hold(data: st.DataObject) -> None:
    p = drawn(data, symbols=True)
    larger = data.draw(st.sampled_from([0, 0, 2]))
    with ProgramRun(p.program, p.numbers, p.guards, larger=larger) as run:
        for numbers in [p.numbers, *({"n": n, "m": m} for n, m in SIZES)]:
            if run.holds(numbers):
                feeds, want = expected(p, numbers)
                check_close(p, run.run(feeds), want)


@programs(40)
def test_one_plan_serves_all_values_of_run_time_dims(data: st.DataObject) -> None:
    p = drawn(data, symbols=True)
    capacity = {"n": 10, "m": 40}
    with ProgramRun(p.program, p.numbers, p.guards, runtime=capacity) as run:
        for numbers in [p.numbers, *({"n": n, "m": m} for n, m in [*SIZES, (0, 0), (10, 40)])]:
            if run.holds(numbers):
                feeds, want = expected(p, numbers)
                check_close(p, run.run(feeds), want)
        assert len(run.plans) == 1


@programs(20)
def test_no_kernel_writes_past_its_tensors(data: st.DataObject) -> None:
    p = drawn(data, symbols=data.draw(st.booleans()))
    feeds, want = expected(p, p.numbers)
    with ProgramRun(p.program, p.numbers, p.guards, guard_zones=True) as run:
        check_close(p, run.run(feeds), want)


@programs(20)
def test_every_barrier_is_needed_and_seen_to_be(data: st.DataObject) -> None:
    p = drawn(data, 14)
    feeds, want = expected(p, {})
    with ProgramRun(p.program, {}, p.guards) as run:
        got = run.run(feeds)
        for tables, accesses in run.plans:
            for at in np.flatnonzero(tables.commands["op"] == Op.BARRIER):
                without = np.delete(tables.commands, at)
                assert find_hazards(without, accesses), f"the barrier at command {at} is for nothing"
    with ProgramRun(p.program, {}, p.guards, barrier_everywhere=True) as run:
        for a, b, w in zip(got, run.run(feeds), want, strict=True):
            assert a.tobytes() == b.tobytes() and a.shape == w.shape
