"""Random models from seeds, as many as one likes: ``python tests/claims/campaign.py 0 20000 [--op NAME] [--door standalone]``.

Every fourth seed makes a graph of a few nodes, the others one node. Prints each failure with its seed, which gives the same
model again (with the same options), and at the end the counts. The status is 1 when something is wrong.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections import Counter
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), *(str(HERE.parent / room) for room in ("conformance", "engine", "lower"))]

from forms import Skip, operators  # noqa: E402
from onnx_vulkan.lower.registry import LOWERINGS  # noqa: E402
from random_model import make_sizes  # noqa: E402
from random_values import SeededChoices  # noqa: E402
from verdict import Judged, Verdict, judge, on_cpu  # noqa: E402


def run_seed(seed: int, labels: list[str], nodes: int, door: str) -> tuple[str, Judged]:
    """The label and verdict of a seed. Raises Skip where it gives no model."""
    cases = make_sizes(SeededChoices(seed), labels, nodes, on_cpu)
    return cases[0].label, judge(cases, door)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("first", type=int)
    parser.add_argument("last", type=int)
    parser.add_argument("--op", default="", help="only operators whose label matches this regular expression")
    parser.add_argument("--door", default="standalone", choices=["standalone", "ep", "interpreter"])
    parser.add_argument("--nodes", type=int, default=0, help="nodes of a model (0: one, and every fourth time two to six)")
    parser.add_argument("--table", action="store_true", help="counts by operator")
    parser.add_argument("--reasons", action="store_true", help="what was refused, and why, with counts")
    args = parser.parse_args()
    labels = [n for n in operators() if re.fullmatch(args.op or ".*", n)]
    counts: Counter[str] = Counter()
    table: dict[str, Counter[str]] = {}
    reasons: Counter[str] = Counter()
    begun = time.perf_counter()
    for seed in range(args.first, args.last):
        nodes = args.nodes or (2 + seed % 5 if seed % 4 == 3 else 1)
        try:
            label, judged = run_seed(seed, labels, nodes, args.door)
        except Skip:
            counts["skipped"] += 1
            continue
        word = judged.verdict.value
        counts[word] += 1
        if judged.verdict is Verdict.AGREES:
            counts[f"agrees with {judged.text}"] += 1
        if nodes == 1:
            table.setdefault(label.split("-")[0], Counter())[word] += 1
        if judged.verdict is Verdict.REFUSED:
            reasons[judged.text] += 1
        if judged.verdict is Verdict.WRONG:
            print(f"seed {seed} ({nodes} nodes): {label}\n  {judged.text.rstrip()}\n", flush=True)
    if args.table:
        for name in sorted(table):
            print(f"{name:44} " + ", ".join(f"{v} {k}" for k, v in sorted(table[name].items())))
        never = sorted(f"{d}::{n}" if d else n for d, n in LOWERINGS if (f"{d}::{n}" if d else n) not in table)
        print("never met:", ", ".join(never))
    if args.reasons:
        for text, n in reasons.most_common():
            print(f"{n:6} {text[:300]}")
    print(f"{dict(sorted(counts.items()))} in {time.perf_counter() - begun:.0f} s")
    return 1 if counts["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
