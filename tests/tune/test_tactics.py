"""The tactics artifact, and what sessions make of it."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx_vulkan
import pytest
import small_model
from onnx_vulkan.codegen.choices import Workload
from onnx_vulkan.device import Device
from onnx_vulkan.engine.block import DeviceLimits
from onnx_vulkan.errors import InvalidInput, ModelError
from onnx_vulkan.frontend import load
from onnx_vulkan.tune.tactics import Lookup, Place, Tactic, add_tactics, read_tactics, write_tactics
from onnx_vulkan.tune.workloads import Tunable, inventory, structure_at, tunables

PLACE = Place("00ff", "driver 1 (0x1)", "abcd", "a GPU")


def tactic(n: int = 0, choice: str = "fast", place: Place = PLACE) -> Tactic:
    workload = Workload("contract", (("m", n), ("k", 4)), ("FLOAT",), "strict", f"{n:032x}")
    return Tactic(workload, place, choice, "usual", 1.0, 2.0)


def test_a_file_gives_back_what_was_written(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "tactics.json"
    add_tactics(path, [tactic(1), tactic(2)])
    add_tactics(path, [tactic(2, "faster"), tactic(3)])
    found = read_tactics(path)
    assert [found[tactic(n).key].choice for n in (1, 2, 3)] == ["fast", "faster", "fast"]
    assert list(found) == sorted(found)
    assert found[tactic(1).key] == tactic(1)


def _add(path: Path, first: int) -> None:
    for n in range(first, first + 10):
        add_tactics(path, [tactic(n)])


def test_two_writers_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "tactics.json"
    with ThreadPoolExecutor(2) as both:  # each locks a descriptor of its own, as processes do
        list(both.map(lambda first: _add(path, first), (0, 100)))
    assert len(read_tactics(path)) == 20
    assert not list(tmp_path.glob("*.partial"))


@pytest.mark.parametrize("damage", ["no json", "{}", '{"schema": "onnx-vulkan/tactics/9", "tactics": {}}', "other workload"])
def test_damage_is_told(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "tactics.json"
    write_tactics(path, [tactic(1)])
    if damage == "other workload":
        data = json.loads(path.read_text())
        next(iter(data["tactics"].values()))["workload"]["digest"] = "0" * 32
        damage = json.dumps(data)
    path.write_text(damage)
    with pytest.raises(ModelError, match=r"tactics\.json"):
        read_tactics(path)
    with pytest.raises(InvalidInput, match="there is no tactics file"):
        read_tactics(tmp_path / "other.json")


def test_another_place_is_a_miss() -> None:
    """Another device, driver or source; a choice that is not legal is not used either."""
    t = tactic(1)
    for place in (replace(PLACE, device="00fe"), replace(PLACE, driver="2"), replace(PLACE, source="abce")):
        lookup = Lookup({t.key: t}, place)
        assert lookup.choice(t.workload, "usual", ["usual", "fast"]) == "usual" and lookup.missing
    lookup = Lookup({t.key: t}, PLACE)
    assert lookup.choice(t.workload, "usual", ["usual", "fast"]) == "fast" and not lookup.missing
    assert lookup.choice(t.workload, "usual", ["usual", "slow"]) == "usual"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return small_model.save(tmp_path)


def workloads(model: Path) -> list[Tunable]:
    device = Device.get()
    limits = DeviceLimits.of(device)
    structure, numbers = structure_at(load(model), small_model.feeds(), limits)
    return tunables(structure, numbers, limits)


def test_an_inventory_needs_no_device(model: Path) -> None:
    found = inventory(load(model), small_model.feeds())
    assert [(t["family"], t["sizes"]) for t in found if t["family"] == "contract"] == [
        ("contract", {"z": 1, "m": 33, "n": 48, "k": 64}),
        ("contract", {"z": 1, "m": 33, "n": 40, "k": 48}),
    ]
    assert all(t["variants"] > 1 for t in found) and "rows" in {t["family"] for t in found}


def test_sessions_use_tactics(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = workloads(model)
    place = Place.of(Device.get().info)
    others = {t.workload.digest: next(c for c in t.legal if c != t.default) for t in found}
    path = tmp_path / "tactics.json"
    made = [Tactic(t.workload, place, others[t.workload.digest], t.default, 1.0, 2.0) for t in found]

    def specs(**options: str) -> list[tuple[int, ...]]:
        session = onnx_vulkan.Session.load(model, options=options)
        got = session.run(small_model.feeds())["y"]
        np.testing.assert_allclose(got, expected, atol=1e-5, rtol=1e-4)
        planned = session.block.planned
        assert planned is not None
        return [launch.variant.spec for launch, _ in planned.dispatches]

    expected = onnx_vulkan.Session.load(model).run(small_model.feeds())["y"]
    usual = specs()
    write_tactics(path, made[:-1])
    with pytest.raises(InvalidInput, match="1 workloads have no tactic") as failure:
        specs(tactics="require-cache", tactics_file=str(path))
    assert made[-1].key in str(failure.value) and made[-1].workload.told in str(failure.value)
    assert specs(tactics="cache-only", tactics_file=str(path)) != usual
    write_tactics(path, made)
    tuned = specs(tactics="require-cache", tactics_file=str(path))
    assert tuned != usual and specs(tactics="off", tactics_file=str(path)) == usual
    monkeypatch.setenv("ONNX_VULKAN_TACTICS", "cache-only")
    monkeypatch.setenv("ONNX_VULKAN_TACTICS_FILE", str(path))
    assert specs() == tuned
    monkeypatch.setenv("ONNX_VULKAN_TACTICS", "always")
    with pytest.raises(InvalidInput, match="ONNX_VULKAN_TACTICS is 'always'"):
        specs()
