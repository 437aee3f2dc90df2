"""``onnx-vulkan tactics`` and the edges of ``optimize``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from onnx_vulkan.cli import app, tuning
from onnx_vulkan.codegen.choices import Workload
from onnx_vulkan.errors import InvalidInput, ModelError
from onnx_vulkan.profile.page import document
from onnx_vulkan.tune.search import Target, Trial
from onnx_vulkan.tune.tactics import Place, Tactic, read_tactics, write_tactics
from typer.testing import CliRunner


def tactic(n: int, choice: str = "fast", us: float = 1.0, source: str = "abcd") -> Tactic:
    workload = Workload("contract", (("m", n),), ("float32",), "strict", f"{n:032x}")
    return Tactic(workload, Place("00ff", "driver 1", source, "a GPU"), choice, "usual", us, 2.0)


def call(*args: str | Path) -> Any:
    result = CliRunner().invoke(app, ["tactics", *map(str, args)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return {**json.loads(result.stdout), "exit": result.exit_code}


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    a, b = tmp_path / "a.json", tmp_path / "b.json"
    write_tactics(a, [tactic(1), tactic(2)])
    write_tactics(b, [tactic(2, "faster", 0.5), tactic(3)])
    return a, b


def test_looking_at_files(files: tuple[Path, Path], tmp_path: Path) -> None:
    a, b = files
    assert {t["key"] for t in call("list", a)["tactics"]} == {tactic(1).key, tactic(2).key}
    assert call("show", a, tactic(1).key[:10])["tactic"]["choice"] == "fast"
    with pytest.raises(InvalidInput, match="there are 0 tactics whose key begins with 'zz'"):
        call("show", a, "zz")
    found = call("diff", a, b)
    assert found["only_first"] == [tactic(1).key] and found["only_second"] == [tactic(3).key]
    assert [c["second"] for c in found["changed"]] == ["faster"]
    for order in ((a, b), (b, a)):
        assert call("merge", *order, "-o", tmp_path / "c.json")["conflicts"] == 1
        assert read_tactics(tmp_path / "c.json")[tactic(2).key].choice == "faster"
    with pytest.raises(InvalidInput, match="no tactics file"):
        call("list", tmp_path / "none.json")


def test_validate(files: tuple[Path, Path]) -> None:
    found = call("validate", files[0])
    assert found["valid"] and found["exit"] == 0 and found["stale"] == sorted([tactic(1).key, tactic(2).key])
    files[0].write_text(files[0].read_text().replace('"m": 1', '"m": 1,'))
    found = call("validate", files[0])
    assert not found["valid"] and found["exit"] == 1 and "damaged" in found["error"]


def test_optimize_stops_with_130(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(job: Any, watcher: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(tuning, "optimize", stopped)
    result = CliRunner().invoke(app, ["optimize", str(tmp_path), "-o", str(tmp_path / "out")])
    assert result.exit_code == 130 and "--resume" in result.stderr and "out.journal.jsonl" in result.stderr


def test_the_picture_of_a_search() -> None:
    """The best so far starts anew with each workload, and what was rejected has its reason."""
    targets = [Target(tactic(n).workload, "usual", ("usual", "fast"), ("node",), 1.0) for n in (1, 2)]
    trials = [
        (
            t,
            Trial(t.workload.digest, f"v{n}", "timed", us=us, default_us=2.0)
            if us
            else Trial("", f"v{n}", "wrong", "off <by> far"),
        )
        for t in targets
        for n, us in enumerate((1.8, 0.0, 1.0, 1.6))
    ]
    figure = tuning.search_figure(trials)
    timed, rejected, best = figure["data"]
    assert len(timed["x"]) == 6 and rejected["x"] == [1, 5] and "off <by> far" in rejected["text"][0]
    assert best["y"] == [0.9, 0.5, 0.5, None, 0.9, 0.5, 0.5]
    data = {"rejected": [{"workload": "w", "choice": "v1", "state": "wrong", "reason": "off"}]}
    assert "rejected as" in document("search", "verdict", [(figure, "1px"), (tuning.rejected_table(data), "1px")])


def test_optimize_takes_a_bundle(tmp_path: Path) -> None:
    for arguments, error in (([], ModelError), (["--trials", "0"], InvalidInput)):
        result = CliRunner().invoke(app, ["optimize", str(tmp_path), "-o", str(tmp_path / "out"), *arguments])
        assert isinstance(result.exception, error)
