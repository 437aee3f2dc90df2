"""``onnx-vulkan inspect`` and its sub-commands."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from calling import call
from catalog import made_skeleton
from onnx_vulkan.cli import inspection
from onnx_vulkan.errors import InvalidInput


def test_a_decoder() -> None:
    code, data, err = call("inspect", made_skeleton("gpt2_tiny"))
    assert code == 0 and err.endswith("129/129 nodes on Vulkan in 1 block\n")
    assert data["decoder"]["relation"] == "total_sequence = past_sequence + sequence, each at least 1"
    assert data["dims_example"] == "--dim batch=1 --dim sequence=1 --dim total_sequence=17 --dim past_sequence=16"
    estimate = data["estimate"]
    assert not estimate["given"] and estimate["operations"] > 0 and estimate["workloads"]
    given = ("batch=1", "sequence=8", "total_sequence=12", "past_sequence=4")
    code, more, _ = call("inspect", made_skeleton("gpt2_tiny"), *(a for d in given for a in ("--dim", d)))
    assert more["estimate"]["given"] and more["estimate"]["operations"] > 5 * estimate["operations"]


def test_dims_that_are_wrong(good: Path) -> None:
    with pytest.raises(InvalidInput, match="no dim 'width'; its dims without a number are batch"):
        call("inspect", good, "--dim", "width=3")


def test_a_model_in_part(partial: Path, loop: Path) -> None:
    """What of a model can be planned is in the estimate, and what not is said."""
    code, data, _ = call("inspect", partial, "--option", "island=keep")
    assert code == 2 and data["estimate"]["kernels"] == 1 and data["estimate"]["blocks_not_estimated"] == []
    code, data, _ = call("inspect", loop)
    assert code == 2 and data["estimate"]["kernels"] == 0 and data["estimate_lacks"] == ""


def test_a_device(good: Path) -> None:
    code, data, _ = call("inspect", good, "--device", "0", "--dim", "batch=4")
    assert code == 0 and data["estimate"]["memory_bytes"]["inputs"] == 256


def test_the_table(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "150")
    inspection.show(inspection.inspect(made_skeleton("gpt2_tiny")))
    out = capsys.readouterr().out
    assert "a decoder with 4 caches: total_sequence = past_sequence + sequence" in out
    assert "for example: --dim batch=1" in out and "tunable workloads in" in out and "MiB on the device" in out


def test_a_file_named_like_a_sub_command(good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(good, "model")
    code, out, err = command("inspect", "model")
    assert (code, out) == (1, "") and "write ./model for the file" in err
    assert command("inspect", "./model")[0] == command("inspect", "model", "model")[0] == 0
    code, _, err = command("inspect", "modle")
    assert code == 1 and "there is no file modle" in err
