"""Runs random programs from seeds, as many as one likes: ``python tests/engine/campaign.py 0 1000 --steps 20 --symbols``.

Prints what fails; a seed and its options give the same program again (``--show`` prints it, with the kernels).
"""

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
from run_program import ProgramRun, check_close, source_of

CAPACITY = {"n": 11, "m": 40}
SIZES = [(0, 0), (11, 40), (2, 3), (5, 17), (8, 8), (1, 1), (3, 0), (0, 7), (7, 12), (9, 33)]


def run_seed(seed: int, args: argparse.Namespace, options: dict[str, Any]) -> None:
    """Make the program of a seed and run it at all sizes that it serves."""
    choices = SeededChoices(seed)
    symbols = args.symbols or args.runtime
    numbers = {"n": choices.integer(1, 9), "m": choices.integer(0, 40)} if symbols else {}
    with Scope(numbers):
        p = make_program(choices, numbers, args.steps, big=args.big)
    runtime = {}
    if args.runtime:
        runtime = CAPACITY if seed % 3 else {"n": CAPACITY["n"]}  # also one bound beside one run-time symbol
    with ProgramRun(p.program, numbers, p.guards, runtime=runtime, **options) as run:
        if args.show:
            print(
                p.program,
                "",
                run.program,
                "",
                *(f"{s.label}: {s.reads} -> {s.writes}" for s in run.steps),
                source_of(run),
                sep="\n",
            )
        for sizes in [numbers, *({"n": n, "m": m} for n, m in SIZES if symbols)]:
            if run.holds(sizes):
                feeds = p.arrays(sizes)
                check_close(p, run.run(feeds), interpret(p.program, feeds, sizes))
        if len(runtime) == 2:
            assert len(run.plans) == 1, f"{len(run.plans)} plans for run-time symbols"


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("first", type=int)
    parser.add_argument("last", type=int)
    parser.add_argument("--steps", type=int, default=12, help="at most so many operations")
    parser.add_argument("--symbols", action="store_true", help="symbolic shapes, run at several sizes")
    parser.add_argument("--runtime", action="store_true", help="run-time symbols: one plan for all sizes")
    parser.add_argument("--larger", type=int, default=0, help="variants chosen as for so many times the sizes")
    parser.add_argument("--big", action="store_true", help="larger tensors")
    parser.add_argument("--far", action="store_true", help="inputs and outputs by copies")
    parser.add_argument("--guard", action="store_true", help="guard zones")
    parser.add_argument("--show", action="store_true", help="print programs and kernels")
    parser.add_argument("--lines", type=int, default=4, help="lines of a failure's traceback")
    args = parser.parse_args()
    options: dict[str, Any] = {"guard_zones": args.guard, "larger": args.larger}
    if args.far:
        build.DIRECT_BYTES = 0
        options.update(direct_input=False, direct_output=False)
    bad = 0
    for seed in range(args.first, args.last):
        try:
            run_seed(seed, args, options)
        except Exception:
            bad += 1
            lines = traceback.format_exc().strip().splitlines()
            print(f"seed {seed}:", "\n   ".join(lines[-args.lines :])[:3000], flush=True)
            if bad > 12:
                break
    print(f"{bad} of {seed + 1 - args.first} programs failed")
    sys.exit(bad > 0)


if __name__ == "__main__":
    main()
