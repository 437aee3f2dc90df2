"""A long run of random programs from seeds: ``python tests/engine/campaign.py FIRST LAST [--symbols]``. Prints what fails."""

from __future__ import annotations

import argparse
import sys
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from onnx_vulkan.dims import Scope
from onnx_vulkan.program.interp import interpret
from random_program import SeededChoices, make_program
from run_program import ProgramRun, check_close


def one(seed: int, symbols: bool, steps: int, guard: bool) -> str:
    """Run one seed; gives what happened in a word."""
    choices = SeededChoices(seed)
    numbers = {"n": choices.integer(1, 9), "m": choices.integer(0, 40)} if symbols else {}
    with Scope(numbers):
        p = make_program(choices, numbers, steps)
    feeds = p.arrays(numbers)
    want = interpret(p.program, feeds, numbers)
    with ProgramRun(p.program, numbers, p.guards, guard_zones=guard) as run:
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


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("first", type=int)
    parser.add_argument("last", type=int)
    parser.add_argument("--symbols", action="store_true")
    parser.add_argument("--guard", action="store_true")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--lines", type=int, default=2)
    a = parser.parse_args()
    bad = 0
    for seed in range(a.first, a.last):
        try:
            one(seed, a.symbols, a.steps, a.guard)
        except Exception:
            bad += 1
            if bad > 12:
                break
            lines = traceback.format_exc().strip().splitlines()
            print(f"seed {seed}:", "\n   ".join(lines[-a.lines :])[:3000], flush=True)
    print(f"{a.last - a.first} programs, {bad} bad")


main()
