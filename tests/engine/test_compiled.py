"""Compiled models: saved with their plans, loaded without planning, never trusted when anything has changed."""

from __future__ import annotations

import dataclasses
import math
import random
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx_vulkan import Session, versions
from onnx_vulkan.dims import maximum, minimum, symbol
from onnx_vulkan.dtypes import DType
from onnx_vulkan.engine import compiled
from onnx_vulkan.engine.container import Reader, Writer
from onnx_vulkan.engine.stored_graph import graph_as_json, graph_from_json
from onnx_vulkan.errors import CompiledMismatch, InvalidInput, ModelError, Unsupported
from onnx_vulkan.graph import Graph, Node, TensorType
from onnx_vulkan.packing import Packed

RNG = np.random.default_rng(11)


def model() -> bytes:
    """y = softmax(relu(x w + b)), rows n."""
    nodes = [
        helper.make_node("Gemm", ["x", "w", "b"], ["a"]),
        helper.make_node("Relu", ["a"], ["r"]),
        helper.make_node("Softmax", ["r"], ["y"], axis=1),
    ]
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 12])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 20])],
        [
            numpy_helper.from_array(np.random.default_rng(1).standard_normal((12, 20), np.float32), "w"),
            numpy_helper.from_array(np.random.default_rng(2).standard_normal(20, np.float32), "b"),
        ],
    )
    imports = [helper.make_opsetid("", 18)]
    return onnx.ModelProto.SerializeToString(helper.make_model(graph, opset_imports=imports, ir_version=9))


def rows(n: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(n).standard_normal((n, 12), np.float32)


def saved(path: Path, *sizes: int, options: dict[str, Any] | None = None) -> dict[int, np.ndarray[Any, Any]]:
    """A compiled model with plans for these sizes; gives back their outputs."""
    with Session.load(model(), options=options) as session:
        outputs = {n: session.run({"x": rows(n)})["y"] for n in sizes}
        session.save_compiled(path)
    return outputs


def test_stored_sizes_run_without_planning_and_others_as_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.ovk"
    want = saved(path, 3, 0, 40, options={"auto_runtime_dims": False})  # a run-time plan serves other sizes too
    with monkeypatch.context() as patch:
        for name in ("build_structure", "lower_graph", "draft_plan"):
            patch.setattr(f"onnx_vulkan.engine.block.{name}", None)
        session = Session.load_compiled(path)
        before = session.device.counters()
        for n, y in want.items():
            np.testing.assert_array_equal(session.run({"x": rows(n)})["y"], y)
        stats, after = session.stats(), session.device.counters()
    assert (stats["plans_made"], stats["plans_loaded"], stats["structures"]) == (0, 3, 0)
    assert all(after[name] == before[name] for name in ("glsl_compiles", "spirv_hits", "pipelines_created"))
    with session, Session.load(model()) as fresh:
        assert session.inputs == fresh.inputs and session.outputs == fresh.outputs
        np.testing.assert_array_equal(session.run({"x": rows(7)})["y"], fresh.run({"x": rows(7)})["y"])
        assert session.stats()["plans_made"] == 1
        again = tmp_path / "again.ovk"
        session.save_compiled(again)
    with Session.load_compiled(again) as third:
        assert third.stats()["plans_loaded"] == 1  # what this session has planned


def test_plan_dims_are_planned_at_once(tmp_path: Path) -> None:
    path = tmp_path / "model.ovk"
    saved(path, options={"plan_dims": "n=5"})
    with Session.load_compiled(path) as session:
        assert session.stats()["plans_loaded"] == 1
        session.run({"x": rows(5)})
        assert session.stats()["plans_made"] == 0
    with pytest.raises(InvalidInput, match=r"'plan_dims' names 'm', but the dims of the model's inputs are 'n'"):
        Session.load(model(), options={"plan_dims": "m=5"})


def test_a_plan_with_a_run_time_dim(tmp_path: Path) -> None:
    path = tmp_path / "model.ovk"
    want = saved(path, 1, 9, 64, 100, options={"runtime_dims": {"n": 64}})
    with Session.load_compiled(path) as session:
        assert session.stats()["plans_loaded"] == 2
        for n, y in want.items():
            np.testing.assert_array_equal(session.run({"x": rows(n)})["y"], y)
        assert session.stats()["plans_made"] == 0


def test_whatever_byte_changes_there_is_an_error_and_never_a_wrong_result(tmp_path: Path) -> None:
    path = tmp_path / "model.ovk"
    want = saved(path, 3)[3]
    whole = path.read_bytes()
    draw = random.Random(4)
    damaged = [whole[:n] for n in (0, 7, 47, 48, 100, len(whole) // 2, len(whole) - 1)] + [whole + b"\0", b"x" * 100]
    places = [*range(64), *(draw.randrange(len(whole)) for _ in range(150))]
    for at in places:
        damaged.append(whole[:at] + bytes([whole[at] ^ (1 << draw.randrange(8))]) + whole[at + 1 :])
    refused = 0
    for data in damaged:
        path.write_bytes(data)
        try:
            with Session.load_compiled(path) as session:
                np.testing.assert_array_equal(session.run({"x": rows(3)})["y"], want)
        except ModelError as e:
            assert str(path) in str(e)
            refused += 1
    assert refused > len(damaged) / 2  # the rest: padding, and constants of the graph that a stored size does not read


def test_changed_constants_are_found_before_they_are_planned_with(tmp_path: Path) -> None:
    path = tmp_path / "model.ovk"
    saved(path, 3)
    whole = bytearray(path.read_bytes())
    bias = np.random.default_rng(2).standard_normal(20, np.float32).tobytes()
    at = bytes(whole).index(bias)
    whole[at + 3] ^= 0x40
    path.write_bytes(whole)
    with pytest.raises(ModelError, match="damaged"), Session.load_compiled(path) as session:
        session.run({"x": rows(8)})


CHANGES: list[tuple[dict[str, Any], str]] = [
    ({"version": "9"}, r"written by onnx-vulkan .*, and this is onnx-vulkan 9"),
    ({"sources": "f00"}, r"sources f00"),
    ({"model": "0000:0000"}, r"it was compiled for .*, and this device is"),
    ({"driver_version": 0xABC}, r"compiled under the driver .*, and now there is .*0xabc"),
    ({"abilities": {}}, "features or limits"),
    ({"memory": "device"}, r"for values in host memory, and this session's are in device memory"),
]


@pytest.mark.parametrize(("change", "said"), CHANGES, ids=lambda v: next(iter(v)) if isinstance(v, dict) else "")
def test_stale_plans_are_not_used(
    change: dict[str, Any], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "model.ovk"
    want = saved(path, 3)[3]
    now = compiled._identity
    monkeypatch.setattr(compiled, "_identity", lambda *a: {**now(*a), **change})
    with pytest.raises(CompiledMismatch, match=f"{said}.*Compile the model again"):
        Session.load_compiled(path, options={"stale_compiled": "refuse"})
    with Session.load_compiled(path) as session:
        assert session.stats()["plans_loaded"] == 0
        np.testing.assert_array_equal(session.run({"x": rows(3)})["y"], want)
    assert "planned anew" in caplog.text


def test_another_precision_is_another_plan(tmp_path: Path) -> None:
    path = tmp_path / "model.ovk"
    saved(path, 3)
    with pytest.raises(CompiledMismatch, match="precision=strict, and this session has precision=fast"):
        Session.load_compiled(path, options={"precision": "fast", "stale_compiled": "refuse"})


def test_mistakes_are_sentences(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="cannot be read: No such file"):
        Session.load_compiled(tmp_path / "nothing.ovk")
    (tmp_path / "model.onnx").write_bytes(model())
    with pytest.raises(ModelError, match="is no compiled model"):
        Session.load_compiled(tmp_path / "model.onnx")
    with Session.load(model()) as session, pytest.raises(InvalidInput, match="cannot be written to"):
        session.save_compiled(tmp_path / "missing" / "model.ovk")
    assert not list(tmp_path.rglob("*.tmp"))
    with pytest.raises(InvalidInput, match="was closed"):
        session.save_compiled(tmp_path / "model.ovk")


def test_operators_of_the_users_own_are_not_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Session.load(model()) as session:
        session.run({"x": rows(3)})
        monkeypatch.setitem(versions._REGISTERED, ("", "Relu"), {18})
        with pytest.raises(Unsupported, match="could not tell when that changes"):
            session.save_compiled(tmp_path / "model.ovk")


def test_a_graph_comes_back_as_it_was(tmp_path: Path) -> None:
    n, m = symbol("n"), symbol("m")
    strings = np.array([["a", b"\xff"]], object)
    body = Graph("body", ["i"], ["o"], [], {}, {"c": np.array(3)}, {"": 18}, outer=["x"])
    attributes: dict[str, Any] = {
        "int": -3, "float": 2.0, "nan": math.nan, "inf": -math.inf, "text": "ä", "odd": "\udcff", "raw": b"\x00\xff",
        "ints": [1, 2], "floats": [0.1], "strings": ["a", b"\xfe"], "none": [],
        "array": np.arange(6, dtype=np.float16).reshape(2, 3), "body": body, "bodies": [body],
    }  # fmt: skip
    shapes = [None, (), (4, n), (n * n * 3 + m - 2, (n + 1) // 4, minimum(n, m), maximum(n * 2, m // n))]
    graph = Graph(
        "g",
        ["x", "d"],
        ["y"],
        [Node("node", "Op", "dom", 7, ("x", "", "d"), ("y",), attributes)],
        {f"t{i}": TensorType(DType.BF16 if i else None, s, "tensor(string)") for i, s in enumerate(shapes)},
        {
            "bf16": np.array([1.5, -2], ml_dtypes.bfloat16),
            "packed": Packed(np.dtype(ml_dtypes.int4), (3,), np.array([0x21, 0x03], np.uint8)),
            "complex": np.array([1 + 2j], np.complex64),
            "strings": strings,
            "scalar": np.array(7, np.int64),
            "empty": np.zeros((0, 3), np.float32),
            "bool": np.array([True, False]),
        },
        {"": 18, "dom": 2},
        {"d": np.ones(2, np.float32)},
        ["outer"],
    )
    out = Writer()
    out.save({"graph": graph_as_json(graph, out)}, tmp_path / "g")
    for source in (tmp_path / "g", (tmp_path / "g").read_bytes()):
        reader = Reader(source, "g")
        reader.check_all()
        assert_same(graph, graph_from_json(reader.header["graph"], reader))


def assert_same(a: Any, b: Any) -> None:
    """Equal, to the types of numbers and the bytes of arrays."""
    assert type(a) is type(b) or isinstance(a, np.ndarray)
    if dataclasses.is_dataclass(a) and not isinstance(a, type):
        for f in dataclasses.fields(a):
            assert_same(getattr(a, f.name), getattr(b, f.name))
    elif isinstance(a, dict):
        assert list(a) == list(b)
        for key in a:
            assert_same(a[key], b[key])
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            assert_same(x, y)
    elif isinstance(a, np.ndarray):
        assert (a.dtype, a.shape) == (b.dtype, b.shape) and (a == b).all()
    else:
        assert a == b or (a != a and b != b)
