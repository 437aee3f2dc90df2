"""Bundles keep every byte, and say which one has changed."""

import json
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto as T
from onnx import helper
from onnx_vulkan.bundle import Bundle, is_bundle, read_bundle, write_bundle
from onnx_vulkan.errors import InvalidInput, ModelError
from onnx_vulkan.publish import published
from onnx_vulkan.tolerance import FP32_MODEL


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """A bundle of a model with external data in a folder below its own."""
    source = tmp_path / "source"
    (source / "data").mkdir(parents=True)
    (source / "data" / "w.bin").write_bytes(bytes(16))
    t = onnx.TensorProto(name="w", data_type=T.FLOAT, dims=[4], data_location=T.EXTERNAL)
    t.external_data.add(key="location", value="data/w.bin")
    graph = helper.make_graph([helper.make_node("Add", ["file", "w"], ["y"])], "g",
        [helper.make_tensor_value_info("file", 1, [4])], [helper.make_tensor_value_info("y", 1, [4])], [t])  # fmt: skip
    (source / "m.onnx").write_bytes(helper.make_model(graph).SerializeToString())
    inputs = {"file": np.arange(4, dtype=np.float32), "a/b:0": np.array([1.5, -2], ml_dtypes.bfloat16)}
    reference = {"y": np.arange(4, dtype=np.float32), "s": np.array(True)}
    (source / "tactics.json").write_text("{}")
    model = source / "m.onnx"
    facts = {"dims": {"n": 4}, "records": {"optimize": [1.5, None]}, "versions": {"onnx": "1"}, "generated": ("file",)}
    tactics = source / "tactics.json"
    write_bundle(Bundle(model, model, inputs, reference, FP32_MODEL, tactics=tactics, **facts), tmp_path / "bundle")
    return tmp_path / "bundle"


def test_round_trip(bundle: Path) -> None:
    read = read_bundle(bundle)
    assert read.model == bundle / "model/m.onnx" and read.original == bundle / "original/m.onnx"
    assert read.tolerance == FP32_MODEL and read.versions == {"onnx": "1"} and not read.strict
    assert read.dims == {"n": 4} and read.generated == ("file",) and read.records == {"optimize": [1.5, None]}
    assert read.tactics is not None and read.tactics.read_text() == "{}"
    assert list(read.inputs) == ["file", "a/b:0"] and list(read.reference) == ["y", "s"]
    assert read.inputs["a/b:0"].dtype == ml_dtypes.bfloat16 and read.inputs["a/b:0"].tolist() == [1.5, -2]
    assert read.reference["s"].shape == () and read.reference["s"].dtype == bool
    assert (bundle / "model/data/w.bin").samefile(bundle / "original/data/w.bin"), "equal files are stored once"
    assert not read.model.samefile(bundle.parent / "source/m.onnx"), "who writes to the source leaves the bundle as it is"


def test_a_bundle_of_a_bundle_is_equal_and_stores_nothing_twice(bundle: Path, tmp_path: Path) -> None:
    read = read_bundle(bundle)
    again = write_bundle(read, tmp_path / "again")
    assert (tmp_path / "again/manifest.json").read_bytes() == (bundle / "manifest.json").read_bytes()
    assert again.model.samefile(read.model)
    write_bundle(read, bundle)
    read_bundle(bundle)


CHANGED = ["model/m.onnx", "original/data/w.bin", "inputs.npz", "reference.npz", "tactics.json", "manifest.json"]


@pytest.mark.parametrize("name", CHANGED)
def test_any_changed_byte_is_named(bundle: Path, name: str) -> None:
    path = bundle / name
    data = path.read_bytes()
    for at in sorted({0, len(data) // 3, len(data) // 2, max(0, len(data) - 3)}):
        changed = bytearray(data)
        changed[at] ^= 1
        path.write_bytes(changed)
        with pytest.raises(ModelError, match=name.replace(".", r"\.")):
            read_bundle(bundle)
    path.write_bytes(data)
    read_bundle(bundle)


def test_missing_and_added_files(bundle: Path, tmp_path: Path) -> None:
    (bundle / "extra.bin").touch()
    (bundle / "model/there").mkdir()
    with pytest.raises(ModelError, match=r"extra\.bin was added .* model/there was added"):
        read_bundle(bundle)
    (bundle / "extra.bin").unlink()
    (bundle / "model/there").rmdir()
    (bundle / "reference.npz").unlink()
    with pytest.raises(ModelError, match=r"reference\.npz is missing"):
        read_bundle(bundle)
    with pytest.raises(ModelError, match="no bundle"):
        read_bundle(tmp_path)


def test_another_tolerance_in_the_manifest(bundle: Path) -> None:
    manifest = json.loads((bundle / "manifest.json").read_text())
    manifest["tolerance"]["rtol"] = 1.0
    (bundle / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ModelError, match=r"manifest\.json has changed"):
        read_bundle(bundle)


def test_missing_external_data_is_named_and_leaves_nothing(bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "source/data/w.bin").unlink()
    source = tmp_path / "source/m.onnx"
    with pytest.raises(ModelError, match=r"data/w\.bin"):
        write_bundle(replace(read_bundle(bundle), original=source), tmp_path / "new")
    assert not [p for p in tmp_path.iterdir() if "new" in p.name]


def test_writing_over_something_else(bundle: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="no bundle"):
        write_bundle(read_bundle(bundle), tmp_path)


def _killed(bundle: Path, to: Path, where: str) -> None:
    """Write *to* in a process that kills itself when it comes to *where*."""
    code = (
        "import os, signal, sys\nfrom onnx_vulkan import bundle, publish\n"
        "def die(*_): os.kill(os.getpid(), signal.SIGKILL)\n"
        f"{where} = die\nbundle.write_bundle(bundle.read_bundle(sys.argv[1]), sys.argv[2])"
    )
    assert subprocess.run([sys.executable, "-c", code, bundle, to]).returncode == -signal.SIGKILL


def test_a_writer_that_is_killed_leaves_nothing_or_what_was_there(bundle: Path, tmp_path: Path) -> None:
    to = tmp_path / "new"
    _killed(bundle, to, "bundle._write_arrays")
    assert not to.exists() and [p.name for p in tmp_path.iterdir() if "new" in p.name] == [".new.partial"]
    write_bundle(read_bundle(bundle), to)
    assert [p.name for p in tmp_path.iterdir() if "new" in p.name] == ["new"]
    _killed(bundle, to, "bundle._write_arrays")
    read_bundle(to)
    _killed(bundle, to, "publish.shutil.rmtree")  # the new one is in its place, the old one not gone yet
    read_bundle(to)
    (tmp_path / "new").rename(tmp_path / ".new.replaced")  # as a kill between the two renames leaves it
    write_bundle(read_bundle(bundle), to)
    assert [p.name for p in tmp_path.iterdir() if "new" in p.name] == ["new"]


def test_a_full_disk(bundle: Path, tmp_path: Path) -> None:
    code = (
        "import resource, sys\nfrom onnx_vulkan import bundle\nresource.setrlimit(resource.RLIMIT_FSIZE, (400, 400))\n"
        "bundle.write_bundle(bundle.read_bundle(sys.argv[1]), sys.argv[2])"
    )
    done = subprocess.run([sys.executable, "-c", code, bundle, tmp_path / "new"], capture_output=True, text=True)
    assert "OnnxVulkanError: the bundle" in done.stderr and "cannot be written: File too large" in done.stderr
    assert not [p for p in tmp_path.iterdir() if "new" in p.name]


def test_two_writers_of_one_bundle(bundle: Path, tmp_path: Path) -> None:
    with published(tmp_path / "new", "bundle", is_bundle), pytest.raises(InvalidInput, match="another process is writing"):
        write_bundle(read_bundle(bundle), tmp_path / "new")
    assert (tmp_path / "new").is_dir()
