"""A long run of random programs from seeds: ``python tests/engine/campaign.py FIRST LAST [--symbols]``. Prints what fails."""

from __future__ import annotations

import argparse
import sys
import traceback
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from onnx_vulkan.dims import Scope
from onnx_vulkan.plan import build
from onnx_vulkan.program.interp import interpret
from random_program import SeededChoices, make_program
from run_program import ProgramRun, check_close

BIG = False


def one(seed: int, symbols: bool, steps: int, options: dict[str, Any]) -> str:
    """Run one seed; gives what happened in a word."""
    choices = SeededChoices(seed)
    numbers = {"n": choices.integer(1, 9), "m": choices.integer(0, 40)} if symbols else {}
    with Scope(numbers):
        p = make_program(choices, numbers, steps, big=BIG)
    feeds = p.arrays(numbers)
    want = interpret(p.program, feeds, numbers)
    with ProgramRun(p.program, numbers, p.guards, **options) as run:
        check_close(p, run.run(feeds), want)
        if symbols:
            served = 0
            for other in [{"n": a, "m": b} for a, b in ((2, 3), (5, 17), (8, 8), (1, 1), (3, 0), (9, 33), (7, 12))]:
                if run.holds(other):
                    served += 1
                    feeds = p.arrays(other)
                    check_close(p, run.run(feeds), interpret(p.program, feeds, other))
            return f"served {served}"
    return "good"


def runtime(seed: int, steps: int, options: dict[str, Any]) -> str:
    """One plan for all values of the symbols at which the guards hold."""
    choices = SeededChoices(seed)
    numbers = {"n": choices.integer(1, 9), "m": choices.integer(0, 40)}
    with Scope(numbers):
        p = make_program(choices, numbers, steps, big=BIG)
    capacity = {"n": 11, "m": 40}
    if seed % 3 == 0:
        capacity.popitem()
    with ProgramRun(p.program, numbers, p.guards, runtime=capacity, **options) as run:
        served: set[int] = set()
        for a, b in ((numbers["n"], numbers["m"]), (0, 0), (11, 40), (2, 3), (5, 17), (8, 8), (1, 1), (3, 0), (0, 7), (7, 12)):
            other = {"n": a, "m": b}
            if run.holds(other):
                served.add(b)
                feeds = p.arrays(other)
                check_close(p, run.run(feeds), interpret(p.program, feeds, other))
        assert len(run.plans) == (1 if "m" in capacity else len(served)), (len(run.plans), served)
    return "good"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("first", type=int)
    parser.add_argument("last", type=int)
    parser.add_argument("--symbols", action="store_true")
    parser.add_argument("--runtime", action="store_true")
    parser.add_argument("--big", action="store_true")
    parser.add_argument("--larger", type=int, default=0)
    parser.add_argument("--far", action="store_true")
    parser.add_argument("--guard", action="store_true")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--lines", type=int, default=2)
    a = parser.parse_args()
    global BIG
    BIG = a.big
    options: dict[str, Any] = {"guard_zones": a.guard}
    if a.larger:
        options["larger"] = a.larger
    if a.far:
        build.DIRECT_BYTES = 0
        options.update(direct_input=False, direct_output=False)
    bad = 0
    for seed in range(a.first, a.last):
        try:
            if a.runtime:
                runtime(seed, a.steps, options)
            else:
                one(seed, a.symbols, a.steps, options)
        except Exception:
            bad += 1
            if bad > 12:
                break
            lines = traceback.format_exc().strip().splitlines()
            print(f"seed {seed}:", "\n   ".join(lines[-a.lines :])[:3000], flush=True)
    print(f"{a.last - a.first} programs, {bad} bad")


main()
