"""The whole of ``onnx-vulkan optimize`` on a small model, with a variant that is wrong."""

from __future__ import annotations

import sys
from pathlib import Path

import faulty_worker
import numpy as np
import onnx_vulkan
import pytest
import small_model
from onnx_vulkan.bundle import Bundle, read_bundle, write_bundle
from onnx_vulkan.codegen.choices import Workload
from onnx_vulkan.errors import InvalidInput
from onnx_vulkan.tolerance import FP32_MODEL
from onnx_vulkan.tune.children import Failed
from onnx_vulkan.tune.optimize import FASTER, NO_GAIN, Job, journal_of, optimize, right_winners
from onnx_vulkan.tune.search import Budget
from onnx_vulkan.tune.tactics import Place, Tactic, read_tactics


@pytest.fixture(autouse=True)
def _own_tactics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onnx_vulkan.tune.optimize.default_file", lambda: tmp_path / "cache" / "tactics.json")


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    model, feeds = small_model.save(tmp_path), small_model.feeds()
    reference = onnx_vulkan.Session.load(model).run(feeds)
    write_bundle(Bundle(model, model, feeds, reference, FP32_MODEL), tmp_path / "in")
    return tmp_path / "in"


def test_a_search(bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong variant is told and not used; what is promoted is right (here whatever it gains)."""
    monkeypatch.setattr("onnx_vulkan.tune.pairs.Pairs.faster", True)
    command = (sys.executable, faulty_worker.__file__)
    out = tmp_path / "out"
    job = Job(bundle, out, Budget(2, 60.0), "exhaustive", pairs=1, command=command)
    data = optimize(job)
    assert {(r["choice"], r["state"]) for r in data["rejected"]} == {(faulty_worker.WRONG, "wrong")}
    assert data["trials"]["timed"] > 0
    made = read_bundle(out)
    chosen = {t["choice"] for t in data["tactics"]}
    assert faulty_worker.WRONG not in chosen
    if data["workloads"]["changed"]:
        assert data["verdict"] == FASTER and made.tactics is not None
        assert read_tactics(made.tactics).keys() == read_tactics(tmp_path / "cache" / "tactics.json").keys()
        with onnx_vulkan.Session.load(made.model, options={"tactics": data["mode"], "tactics_file": made.tactics}) as session:
            got = session.run(dict(made.inputs))
        np.testing.assert_allclose(got["y"], made.reference["y"], atol=1e-4, rtol=1e-3)
    else:
        assert data["verdict"] == NO_GAIN and made.tactics is None
    assert made.records["optimize"]["verdict"] == data["verdict"]
    assert journal_of(out).read_bytes().count(b'"trial"') == data["trials"]["all"]


def test_the_output_is_another_folder(bundle: Path) -> None:
    with pytest.raises(InvalidInput, match="is the bundle itself"):
        optimize(Job(bundle, bundle))


class Judge:
    """A child whose samples are beyond the tolerance by the tactics in their file."""

    def __init__(self, ratios: dict[str, float]):
        self.ratios = ratios

    def ask(self, seconds: float, do: str, tactics_file: str) -> dict[str, float]:
        found = [self.ratios[t.choice] for t in read_tactics(tactics_file).values()]
        if float("inf") in found:
            raise Failed("the process ended by SIGSEGV")
        return {"ratio": sum(found) or self.ratios["nothing"]}

    def close(self) -> None:
        pass


@pytest.mark.parametrize(
    ("ratios", "kept", "dropped"),
    [
        ({"a": 0.2, "b": 0.3}, "ab", ""),
        ({"a": 0.2, "b": 1.5}, "a", "b"),
        ({"a": 0.2, "b": float("inf")}, "a", "b"),
        ({"a": 0.7, "b": 0.6}, "", "ab"),  # each is within the tolerance, both together are not
        ({"a": 1.1, "b": 5.0, "nothing": 1.2}, "a", "b"),  # the model itself is beyond it
    ],
)
def test_tactics_that_leave_the_tolerance_are_dropped(tmp_path: Path, ratios: dict[str, float], kept: str, dropped: str) -> None:
    place = Place("00", "1", "ab", "a GPU")
    winners = [Tactic(Workload("contract", (), (), "strict", name * 32), place, name, "usual", 1.0, 2.0) for name in ("a", "b")]
    judge = Judge({"nothing": 0.1, **ratios})
    found, gone = right_winners(winners, tmp_path / "t.json", lambda steps: judge, Job(tmp_path, tmp_path))
    assert "".join(t.choice for t in found) == kept and "".join(t.choice for t, _ in gone) == dropped
