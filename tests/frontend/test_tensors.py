"""Every encoding of a tensor gives the same array, and broken ones are sentences."""

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto as T
from onnx import helper, numpy_helper
from onnx_vulkan.errors import ModelError
from onnx_vulkan.frontend import load, origin
from onnx_vulkan.frontend.tensors import ExternalData, array_of, sparse_array_of

NONE = ExternalData(None)

TYPES = [
    T.FLOAT, T.DOUBLE, T.FLOAT16, T.BFLOAT16, T.INT8, T.UINT8, T.INT16, T.UINT16, T.INT32, T.UINT32, T.INT64, T.UINT64, T.BOOL,
    T.COMPLEX64, T.COMPLEX128, T.FLOAT8E4M3FN, T.FLOAT8E5M2, T.INT4, T.UINT4,
]  # fmt: skip


def _sample(elem: int) -> np.ndarray:
    dtype = helper.tensor_dtype_to_np_dtype(elem)
    if elem in (T.UINT64, T.UINT32, T.UINT16, T.UINT8, T.UINT4):
        return np.array([[0, 1, 2], [3, 14, 15]]).astype(dtype)
    if elem == T.UINT64:
        return np.array([[0, 1, 2**63], [3, 4, 2**64 - 1]], dtype)
    return np.array([[0, 1, -2], [3, -4, 1]]).astype(dtype)


@pytest.mark.parametrize("elem", TYPES, ids=lambda e: T.DataType.Name(e))
@pytest.mark.parametrize("raw", [True, False], ids=["raw", "typed"])
def test_encodings(elem: int, raw: bool) -> None:
    want = _sample(elem)
    if raw:
        proto = numpy_helper.from_array(want, "t")
    else:
        proto = helper.make_tensor("t", elem, want.shape, want.reshape(-1))
    got = array_of(proto, NONE)
    assert got.shape == want.shape
    assert got.dtype == want.dtype
    assert np.array_equal(got, want)


def test_raw_data_is_a_view() -> None:
    weight = np.arange(4096, dtype=np.float32)
    graph = helper.make_graph([helper.make_node("Add", ["x", "w"], ["y"])], "g",
        [helper.make_tensor_value_info("x", 1, [4096])], [helper.make_tensor_value_info("y", 1, None)],
        [numpy_helper.from_array(weight, "w")])  # fmt: skip
    data = helper.make_model(graph).SerializeToString()
    got = load(data).initializers["w"]
    assert np.array_equal(got, weight)
    assert not got.flags.owndata and not got.flags.writeable
    assert np.shares_memory(got, np.frombuffer(data, np.uint8))


def test_scalar_and_empty() -> None:
    assert array_of(helper.make_tensor("t", T.FLOAT, [], [2.5]), NONE) == np.float32(2.5)
    assert array_of(helper.make_tensor("t", T.INT64, [0, 3], []), NONE).shape == (0, 3)
    strings = array_of(helper.make_tensor("t", T.STRING, [2], ["a", "ü"]), NONE)
    assert strings.tolist() == ["a", "ü"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda t: t.dims.append(2), "needs 24 bytes"),
        (lambda t: t.dims.append(-2), "impossible shape"),
        (lambda t: setattr(t, "data_type", 99), "element type 99"),
        (lambda t: setattr(t, "data_type", 0), "element type undefined"),
        (lambda t: t.ClearField("raw_data"), "needs 3 elements"),
    ],
)
def test_broken_tensor(change: object, says: str) -> None:
    proto = numpy_helper.from_array(np.ones(3, np.float32), "weight")
    change(proto)  # type: ignore[operator]
    with pytest.raises(ModelError, match=says) as e:
        array_of(proto, NONE)
    assert "'weight'" in str(e.value)


@pytest.mark.parametrize("coordinates", [False, True])
def test_sparse(coordinates: bool) -> None:
    values = helper.make_tensor("s", T.FLOAT, [2], [5.0, 7.0])
    indices = np.array([[0, 1], [1, 2]], np.int64) if coordinates else np.array([1, 5], np.int64)
    got = sparse_array_of(helper.make_sparse_tensor(values, numpy_helper.from_array(indices), [2, 3]), NONE)
    assert got.tolist() == [[0, 5, 0], [0, 0, 7]]
    with pytest.raises(ModelError, match="outside its shape"):
        sparse_array_of(helper.make_sparse_tensor(values, numpy_helper.from_array(indices + 3), [2, 3]), NONE)


def _external_model(tmp_path, location="w.bin", offset=8, length=16, data=bytes(range(24))) -> str:
    if data is not None:
        (tmp_path / "w.bin").write_bytes(data)
    t = onnx.TensorProto(name="w", data_type=T.FLOAT, dims=[4], data_location=T.EXTERNAL)
    for key, value in (("location", location), ("offset", offset), ("length", length)):
        if value is not None:
            t.external_data.add(key=key, value=str(value))
    graph = helper.make_graph([helper.make_node("Add", ["x", "w"], ["y"])], "g",
        [helper.make_tensor_value_info("x", 1, ["n", 4])], [helper.make_tensor_value_info("y", 1, None)], [t])  # fmt: skip
    path = tmp_path / "m.onnx"
    path.write_bytes(helper.make_model(graph).SerializeToString())
    return str(path)


def test_external_data(tmp_path) -> None:
    graph = load(_external_model(tmp_path))
    want = np.frombuffer(bytes(range(8, 24)), np.float32)
    assert graph.initializers["w"].tobytes() == want.tobytes()
    assert origin(graph.initializers["w"]) == (tmp_path / "w.bin", 8)
    assert graph.types["y"].shape == graph.types["x"].shape
    assert load(_external_model(tmp_path, length=None)).initializers["w"].tobytes() == want.tobytes()


def test_external_data_of_bytes_needs_a_folder(tmp_path) -> None:
    with open(_external_model(tmp_path), "rb") as f:
        data = f.read()
    with pytest.raises(ModelError, match="pass base_dir"):
        load(data)
    assert load(data, base_dir=tmp_path).initializers["w"].shape == (4,)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"location": "../w.bin"}, "leaves the model's folder"),
        ({"location": "a/../../w.bin"}, "leaves the model's folder"),
        ({"location": "/etc/passwd"}, "absolute"),
        ({"location": ""}, "absolute or leaves"),
        ({"location": "none.bin"}, "missing"),
        ({"data": bytes(20)}, "only 20"),
        ({"data": b""}, "only 0"),
        ({"offset": -4}, "bytes -4"),
        ({"offset": "x"}, "no number"),
        ({"length": 12}, "need 16"),
    ],
)
def test_external_data_refused(tmp_path, change, says) -> None:
    with pytest.raises(ModelError, match=says) as e:
        load(_external_model(tmp_path, **change))
    assert "'w'" in str(e.value) and repr(change.get("location", "w.bin")) in str(e.value)


def test_external_data_through_links(tmp_path) -> None:
    """A link out of the folder is refused, unless the model itself is a link to where the data is (download caches)."""
    blobs, folder, other = tmp_path / "blobs", tmp_path / "snapshot", tmp_path / "other"
    for d in (blobs, folder, other):
        d.mkdir()
    model = _external_model(blobs)
    (folder / "w.bin").symlink_to(blobs / "w.bin")
    (folder / "m.onnx").symlink_to(model)
    assert load(folder / "m.onnx").initializers["w"].shape == (4,)
    (other / "m.onnx").write_bytes((blobs / "m.onnx").read_bytes())
    (other / "w.bin").symlink_to(blobs / "w.bin")
    with pytest.raises(ModelError, match="a link that leaves"):
        load(other / "m.onnx")


def test_typed_bfloat16_bits() -> None:
    proto = onnx.TensorProto(name="t", data_type=T.BFLOAT16, dims=[1], int32_data=[0x3FC0])
    got = array_of(proto, NONE)
    assert got.dtype == ml_dtypes.bfloat16 and float(got[0]) == 1.5
