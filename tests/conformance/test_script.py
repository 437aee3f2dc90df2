"""The script that runs ONNX's cases: its table, its JSON, and that a case which ends its process costs that case only."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from onnx_cases import all_cases
from workers import run_all

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "conformance"


def test_the_script(tmp_path: Path) -> None:
    out = tmp_path / "report" / "simple.json"
    command = [sys.executable, str(SCRIPT), "--kind", "simple", "--door", "interp", "--jobs", "1", "--json", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    report = json.loads(out.read_text())["interp"]
    verdicts = {case["name"]: case for case in report["cases"]}
    assert report["passed"] >= 8 and report["wrong"] == 0
    assert report["passed"] + report["refused"] == len(verdicts) == len(all_cases(["simple"]))
    assert verdicts["test_single_relu_model"] == {
        "name": "test_single_relu_model", "kind": "simple", "ops": ["Relu"], "verdict": "passed", "check": "", "reason": "",
    }  # fmt: skip
    refused = verdicts["test_sequence_model1"]
    assert (refused["verdict"], refused["check"]) == ("refused", "kernel") and "sequences" in refused["reason"]
    assert f"total {report['passed']} / {report['refused']} / 0" in " ".join(done.stdout.split())


def test_a_case_that_ends_its_process() -> None:
    (case,) = (c for c in all_cases(["simple"]) if c.name == "test_single_relu_model")
    results = dict(run_all([(case, "no such door"), (case, "interp")], jobs=1))
    assert results == {0: ("wrong", "", "its process died with exit code 1"), 1: ("passed", "", "")}
