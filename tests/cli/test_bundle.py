"""Bundles keep every byte, and say which one has changed."""

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto as T
from onnx import helper
from onnx_vulkan.bundle import read_bundle, write_bundle
from onnx_vulkan.errors import InvalidInput, ModelError
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
    return write_bundle(source / "m.onnx", tmp_path / "bundle", inputs, reference, FP32_MODEL, {"onnx": "1"})


def test_round_trip(bundle: Path) -> None:
    read = read_bundle(bundle)
    assert read.model == bundle / "model/m.onnx" and read.tolerance == FP32_MODEL and read.versions == {"onnx": "1"}
    assert list(read.inputs) == ["file", "a/b:0"] and list(read.reference) == ["y", "s"]
    assert read.inputs["a/b:0"].dtype == ml_dtypes.bfloat16 and read.inputs["a/b:0"].tolist() == [1.5, -2]
    assert read.reference["s"].shape == () and read.reference["s"].dtype == bool
    assert (bundle / "model/data/w.bin").is_file()


def test_two_bundles_of_one_model_are_equal(bundle: Path, tmp_path: Path) -> None:
    read = read_bundle(bundle)
    again = write_bundle(read.model, tmp_path / "again", read.inputs, read.reference, read.tolerance, read.versions)
    assert (again / "manifest.json").read_bytes() == (bundle / "manifest.json").read_bytes()


@pytest.mark.parametrize("name", ["model/m.onnx", "model/data/w.bin", "inputs.npz", "reference.npz", "manifest.json"])
def test_any_changed_byte_is_named(bundle: Path, name: str) -> None:
    path = bundle / name
    data = path.read_bytes()
    for at in (0, len(data) // 3, len(data) // 2, len(data) - 3):
        changed = bytearray(data)
        changed[at] ^= 1
        path.unlink()  # the model is a hard link: writing into it would change the original
        path.write_bytes(changed)
        with pytest.raises(ModelError, match=name.replace(".", r"\.")):
            read_bundle(bundle)
    path.write_bytes(data)
    read_bundle(bundle)


def test_missing_and_added_files(bundle: Path, tmp_path: Path) -> None:
    (bundle / "extra.bin").touch()
    with pytest.raises(ModelError, match=r"extra\.bin was added"):
        read_bundle(bundle)
    (bundle / "extra.bin").unlink()
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


def test_writing_over_something_else(bundle: Path, tmp_path: Path) -> None:
    read = read_bundle(bundle)
    with pytest.raises(InvalidInput, match="no bundle"):
        write_bundle(read.model, tmp_path, {}, {}, FP32_MODEL, {})
    with pytest.raises(InvalidInput, match="inside the bundle"):
        write_bundle(read.model, bundle, {}, {}, FP32_MODEL, {})
