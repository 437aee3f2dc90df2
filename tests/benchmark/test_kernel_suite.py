"""The kernel suite of ``scripts/bench`` at sizes for a software driver: every family runs and is right."""

from __future__ import annotations

import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path

import numpy as np
import pytest
from onnx_vulkan.kernels import tiles

sys.path.append(str(Path(__file__).resolve().parents[2] / "scripts"))

from benchmark.kernels import suite
from benchmark.kernels.families import FAMILIES
from benchmark.kernels.table import NEIGHBOURS, ROWS, rows_named
from benchmark.kernels.work import worst_error

SMALL = (
    "matmul:m=5,k=70,n=65,weights=0,batch=3",
    "matmul:m=33,k=70,n=65,dtype=int8",
    "skinny:m=3,k=64,layers=2,dtype=fp16",
    "softmax:rows=30,columns=105",
    "layer_norm:rows=300,columns=1025",
    "transpose:rows=50,columns=71,batch=2",
    "elementwise:elements=3001",
    "softmaxes:count=4,size=16",
    "attention:heads=2,length=30,form=microsoft,batch=2",
    "attention:heads=2,length=30,form=ops,past=3",
    "conv:size=9,channels=8,stride=2,out=5,batch=2",
    "conv:size=9,channels=8,groups=0",
)


def test_every_family_runs_and_is_right() -> None:
    """Small work of each family, one short turn."""
    results = list(suite.measure(rows_named(SMALL), 1, 0.0, False, lambda text: None, warm=0.0))
    assert [r["work"] for r in results] == list(SMALL)
    for r in results:
        assert "failed" not in r and r["right"], r
        assert r["gpu_ms"] > 0 and r["kernels"]
        assert len(suite.cells(r)) == len(suite.HEAD)


def test_what_cannot_run_is_told() -> None:
    """A failure is a cell of the table, and the other rows go on."""
    rows = rows_named(["matmul:m=3,k=4,n=5,precision=none", "softmax:rows=3,columns=5"])
    failed, good = suite.measure(rows, 1, 0.0, False, lambda text: None, warm=0.0)
    assert "failed" in failed and "failed" not in good
    assert len(suite.cells(failed)) == len(suite.HEAD)


def test_names_and_errors() -> None:
    """A family alone means its rows; a wrong name or number is a sentence."""
    assert rows_named(["softmax"]) == [row for row in ROWS if row.family == "softmax"]
    assert rows_named(["matmul:dtype=fp16"])[0].bar == 220
    for wrong in ("matmull", "matmul:x=3", "matmul:m=three"):
        with pytest.raises(ValueError):
            rows_named([wrong])
    assert worst_error(np.array([np.nan]), np.array([1.0])) == float("inf")


def test_cliffs_are_found() -> None:
    """A neighbour at less than half of its group's best rate is named."""
    groups = suite.neighbour_groups(FAMILIES)
    assert len(groups) == len(NEIGHBOURS) and all(
        row.family == "conv" for group in suite.neighbour_groups(["conv"]) for row in group
    )
    rows = [row for group in groups for row in group]
    assert len({row.label for row in rows}) == len(rows)
    results = [{"work": row.label, "rate": 1.0} for row in rows]
    assert not suite.cliffs(groups, results)
    results[1]["rate"] = 0.4
    (sentence,) = suite.cliffs(groups, results)
    assert sentence.startswith(rows[1].label)


def test_the_tile_sweep_times_every_tile(capsys: pytest.CaptureFixture[str]) -> None:
    """``scripts/sweep_tiles`` on a size that no tile divides; its rule's own choice comes first."""
    path = Path(__file__).resolve().parents[2] / "scripts" / "sweep_tiles"
    loader = SourceFileLoader("sweep_tiles", str(path))
    sweep = module_from_spec(spec_from_loader("sweep_tiles", loader))  # type: ignore[arg-type]
    loader.exec_module(sweep)
    assert sweep.main(["33x20x35", "--seconds", "0"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].startswith("| as chosen |")
    assert len([line for line in lines if line.startswith("| ")]) == 3 + len(tiles.TILES)
