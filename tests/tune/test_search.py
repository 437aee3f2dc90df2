"""The search without a device: a child that answers from a table, and the journal that a search goes on from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from onnx_vulkan.codegen.choices import Workload
from onnx_vulkan.errors import InvalidInput
from onnx_vulkan.tune.children import Failed, Hung
from onnx_vulkan.tune.journal import Journal, read_journal
from onnx_vulkan.tune.pairs import Pairs
from onnx_vulkan.tune.samplers import SAMPLERS, sampler_for
from onnx_vulkan.tune.search import Budget, Search, Target, Watcher
from onnx_vulkan.tune.tactics import Place

PLACE = Place("00", "1", "ab", "a GPU")
NAMES = [f"tile {m}x{n}, {s} splits" for m in (16, 32, 64) for n in (16, 32) for s in (1, 2)] + ["whole"]


def target(n: int, us: float) -> Target:
    workload = Workload("contract", (("m", n),), ("float32",), "strict", f"{n:032x}")
    return Target(workload, NAMES[0], tuple(NAMES), ("node",), us)


class Table:
    """A child whose variants take so long; 0: wrong; negative: the process dies when it is timed; None: it hangs in the check."""

    def __init__(self, **special: float | None):
        self.us: dict[str, float | None] = {name: 100.0 + n for n, name in enumerate(NAMES)}
        self.us.update({NAMES[int(n[1:])]: us for n, us in special.items()})
        self.asked: list[str] = []

    def ask(self, seconds: float, do: str, *, digest: str, **fields: Any) -> dict[str, Any]:
        if do == "compile":
            return {}
        if do == "check":
            self.asked.append(fields["choice"])
            us = self.us[fields["choice"]]
            if us is None:
                raise Hung("no answer")
            return {"wrong": "it is off" if us == 0 else None}
        times = [self.us[some.get(digest, NAMES[0])] for some in fields["choices"]]
        if any(us is None or us < 0 for us in times):
            raise Failed("the process ended by SIGSEGV")
        return {"timings": [{"us": us} for us in times]}


def search(child: Table, path: Path, kind: str = "exhaustive", trials: int = 100, resume: bool = False) -> Search:
    journal = Journal(path, {"sampler": kind}, resume=resume)
    try:
        made = Search(child, journal, PLACE, Budget(trials, 60.0), kind, 0, Watcher())  # type: ignore[arg-type]
        made.run([target(1, 10.0), target(2, 90.0)])
        return made
    finally:
        journal.close()


@pytest.mark.parametrize("kind", SAMPLERS)
def test_the_fastest_that_is_right_wins(tmp_path: Path, kind: str) -> None:
    child = Table(n3=50.0, n5=0.0, n7=-1.0, n8=None, n9=70.0)
    found = search(child, tmp_path / "j", kind)
    assert {t.choice for t in found.winners.values()} == {NAMES[3]}
    states = {t.choice: t.state for t in found.trials}
    assert len(found.trials) == 2 * (len(NAMES) - 1) and NAMES[0] not in states
    assert {n: s for n, s in states.items() if s != "timed"} == {NAMES[5]: "wrong", NAMES[7]: "crashed", NAMES[8]: "hung"}


def test_the_rule_stays_where_nothing_is_faster(tmp_path: Path) -> None:
    found = search(Table(n3=99.0), tmp_path / "j")
    assert {(t.choice, t.choice_us == t.default_us) for t in found.winners.values()} == {(NAMES[0], True)}


def test_a_wrong_rule_is_told(tmp_path: Path) -> None:
    """Where the rule's own choice is wrong, the workload has no winner, and nothing else of it is tried."""
    found = search(Table(n0=0.0), tmp_path / "j")
    assert [(t.choice, t.state) for t in found.trials] == [(NAMES[0], "wrong")] * 2 and not found.winners


def test_budget_goes_by_share(tmp_path: Path) -> None:
    found = search(Table(), tmp_path / "j", "random", trials=12)
    counts = [sum(t.digest == f"{n:032x}" for t in found.trials) for n in (1, 2)]
    assert counts[1] == 11 and counts[0] <= 4


@pytest.mark.parametrize("kind", SAMPLERS)
def test_a_search_goes_on_from_its_journal(tmp_path: Path, kind: str) -> None:
    """Wherever the process was killed: nothing is tried twice, and the winners are the same."""
    path = tmp_path / "j"
    whole = search(Table(n3=50.0), path, kind)
    lines = path.read_bytes().splitlines(keepends=True)
    for cut in (5,) if kind == "tpe" else (1, 5, len(lines) - 1):
        path.write_bytes(b"".join(lines[:cut]) + b'{"trial": {"digest"')
        known = [json.loads(line)["trial"]["choice"] for line in lines[1:cut] if b'"trial"' in line]
        child = Table(n3=50.0)
        again = search(child, path, kind, resume=True)
        assert len(again.trials) == len(whole.trials) == len({(t.digest, t.choice) for t in again.trials})
        assert again.winners.keys() == whole.winners.keys()
        assert len([name for name in child.asked if name != NAMES[0]]) == len(whole.trials) - len(known)
        _, entries = read_journal(path)
        assert sum("trial" in e for e in entries) == len(whole.trials)


def test_journals_of_other_searches(tmp_path: Path) -> None:
    path = tmp_path / "j"
    with pytest.raises(InvalidInput, match="no journal"):
        Journal(path, {"seed": 1}, resume=True)
    first = Journal(path, {"seed": 1})
    with pytest.raises(InvalidInput, match="another process"):
        Journal(path, {"seed": 1})
    first.close()
    with pytest.raises(InvalidInput, match="its seed is 1, not 2"):
        Journal(path, {"seed": 2}, resume=True)
    path.write_text("nonsense\n")
    with pytest.raises(InvalidInput, match="no journal of a search"):
        Journal(path, {"seed": 1}, resume=True)


def test_samplers() -> None:
    with pytest.raises(InvalidInput, match="no sampler 'best'"):
        sampler_for("best", NAMES)
    assert sampler_for("exhaustive", NAMES).ask(100) == NAMES
    assert sampler_for("random", NAMES, 1).ask(100) != sampler_for("random", NAMES, 2).ask(100)
    tpe = sampler_for("tpe", [f"tile {m}x{n}" for m in range(16) for n in range(16)])
    tried = []
    for _ in range(12):
        for name in tpe.ask(4):
            m, n = map(int, name.removeprefix("tile ").split("x"))
            tried.append(1 + (m - 12) ** 2 + (n - 3) ** 2)
            tpe.tell(name, float(tried[-1]))
    assert min(tried) < 6 and sum(tried[24:]) < sum(tried[:24])


def pairs(*gains: float) -> Pairs:
    found = [(100.0, 100.0 * (1 - g)) for g in gains]
    return Pairs(found, list(found))


def test_what_is_promoted() -> None:
    assert pairs(0.2, 0.21, 0.2, 0.19).faster and "beyond two standard" in pairs(0.2, 0.21, 0.2, 0.19).verdict
    assert not pairs(0.2, 0.21, 0.2).verdict and not pairs(0.2, 0.21, 0.2).faster
    assert not pairs(0.05, 0.06, 0.05, 0.05).faster and "do not make 10%" in pairs(0.05, 0.06, 0.05, 0.05).verdict
    assert not pairs(0.9, -0.7, 0.9, -0.5).faster and not pairs(0.9, -0.7, 0.9, -0.5).verdict
    slower = pairs(0.2, 0.21, 0.2, 0.19)
    slower.wall = [(100.0, 101.0 + n) for n in range(4)]
    assert not slower.faster and "wall time" in slower.verdict
    slower.wall = [(100.0, 95.0), (100.0, 95.1), (100.0, 95.0), (100.0, 94.9)]
    assert not slower.faster and "of wall time do not make 10%" in slower.verdict
