"""Tactics measured again, and failing workloads made small, with the variants of ``faulty_worker`` that are wrong or crash."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import faulty_worker
import numpy as np
import onnx
import pytest
import small_model
from onnx_vulkan.device import Device
from onnx_vulkan.engine.block import DeviceLimits
from onnx_vulkan.frontend import load
from onnx_vulkan.tune.replay import reduce, replay
from onnx_vulkan.tune.tactics import Place, Tactic
from onnx_vulkan.tune.workloads import Tunable, inventory, structure_at, tunables

COMMAND = (sys.executable, faulty_worker.__file__)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_model.save(tmp_path_factory.mktemp("replay"))


@pytest.fixture(scope="module")
def product(model: Path) -> Tunable:
    limits = DeviceLimits.of(Device.get())
    return tunables(*structure_at(load(model), small_model.feeds(), limits), limits)[0]


def test_replay(model: Path, product: Tunable) -> None:
    place = Place.of(Device.get().info)
    usual = Tactic(product.workload, replace(place, device="another"), product.default, product.default, 1.0, 1.0)
    gone = replace(usual, workload=replace(product.workload, digest="0" * 32))
    illegal = replace(usual, choice="tile 1x1x1")
    wrong = replace(usual, choice=faulty_worker.WRONG)
    crashing = replace(usual, choice=faulty_worker.CRASHING)
    found = replay([usual, gone, illegal, wrong, crashing], model, {}, None, COMMAND)
    assert [f["state"] for f in found] == ["timed", "absent", "failed", "wrong", "crashed"]
    assert found[0]["now"]["choice_us"] > 0 and found[0]["recorded"] == {"choice_us": 1.0, "default_us": 1.0}


def test_reduce(tmp_path: Path) -> None:
    """The last tile is left out: that fails at almost any size."""
    model = small_model.save(tmp_path, 2, 6, 2)
    digest = inventory(load(model), {"x": np.zeros((2, 6), np.float32)})[0]["digest"]
    out = tmp_path / "least.onnx"
    found = reduce(model, {}, digest[:12], faulty_worker.WRONG, None, out, COMMAND)
    assert found["fails"] and found["alone"] and found["state"] == "wrong" and found["node"] == "first"
    sizes = found["sizes"]
    assert sizes["m"] * sizes["n"] * sizes["k"] < 2 * 6 * 2 / 3
    assert [d.dim_value for d in onnx.load(out).graph.input[0].type.tensor_type.shape.dim] == found["shapes"]["x"]
