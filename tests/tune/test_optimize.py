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
from onnx_vulkan.errors import InvalidInput
from onnx_vulkan.tolerance import FP32_MODEL
from onnx_vulkan.tune.optimize import FASTER, NO_GAIN, Job, journal_of, optimize
from onnx_vulkan.tune.search import Budget
from onnx_vulkan.tune.tactics import read_tactics


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
