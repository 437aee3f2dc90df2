"""Small models for the command line's tests, and a stand-in for the sides that need a GPU."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jsonschema import Draft202012Validator
from onnx import TensorProto, helper, numpy_helper

SCHEMAS = Path(__file__).resolve().parents[2] / "docs" / "schemas"


def _closed(schema: Any) -> Any:
    """The same schema, with an error for every field that it does not name: nothing shall be delivered that is not documented."""
    if isinstance(schema, list):
        return [_closed(s) for s in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {k: _closed(v) for k, v in schema.items()}
    return {"additionalProperties": False, **closed} if isinstance(schema.get("properties"), dict) else closed


def _no_json(word: str) -> float:
    raise ValueError(f"{word} is no JSON")


@cache
def _validator(schema: str) -> Draft202012Validator:
    _, name, version = schema.split("/")
    return Draft202012Validator(_closed(json.loads((SCHEMAS / f"{name}-{version}.json").read_text(encoding="utf-8"))))


def check_delivery(data: Mapping[str, Any]) -> None:
    """Raises where a command's JSON is not what its schema says."""
    _validator(data["schema"]).validate(data)


@pytest.fixture(autouse=True)
def deliveries_match_their_schemas(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a command delivers in this process is checked against its committed schema."""
    from onnx_vulkan.cli import report

    as_json = report._as_json

    def checked(data: Mapping[str, Any]) -> str:
        text = as_json(data)
        check_delivery(json.loads(text, parse_constant=_no_json))
        return text

    monkeypatch.setattr(report, "_as_json", checked)


def _value(name: str, shape: list, elem: int = TensorProto.FLOAT) -> object:
    return helper.make_tensor_value_info(name, elem, shape)


def _save(path: Path, nodes: list, inputs: list, outputs: list, constants: list, opset: int = 17) -> Path:
    graph = helper.make_graph(nodes, path.stem, inputs, outputs, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    model.ir_version = 8
    path.write_bytes(model.SerializeToString())
    return path


@pytest.fixture
def good(tmp_path: Path) -> Path:
    """``y = relu(x) * w + 1``, elementwise, with a free batch."""
    w = numpy_helper.from_array(np.linspace(0.5, 2, 8, dtype=np.float32), "w")
    one = numpy_helper.from_array(np.float32(1), "one")
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("Mul", ["a", "w"], ["b"]),
        helper.make_node("Add", ["b", "one"], ["y"]),
    ]
    return _save(tmp_path / "good.onnx", nodes, [_value("x", ["batch", 8])], [_value("y", ["batch", 8])], [w, one])


@pytest.fixture
def partial(tmp_path: Path) -> Path:
    """A model with a node that cannot run: NonZero's shape depends on data."""
    nodes = [helper.make_node("Relu", ["x"], ["a"]), helper.make_node("NonZero", ["a"], ["y"], name="nz")]
    outputs = [_value("y", [2, None], TensorProto.INT64)]
    return _save(tmp_path / "partial.onnx", nodes, [_value("x", [2, 8])], outputs, [])


@pytest.fixture
def fake_gpu(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Replace the EP and standalone sides by the CPU, with an error of the given size added to each output."""
    from onnx_vulkan.cli import sides

    def install(error: float = 0.0, dispatches: int = 3) -> None:
        def side(path: Path, graph: object, feeds: dict, options: dict, data: bytes | None = None) -> sides.Side:
            cpu = sides.cpu_side(path, graph, feeds, data)

            def step() -> dict:
                return {k: v + np.asarray(error, v.dtype) for k, v in cpu.run().items()}

            return sides.Side(step, lambda: {"blocks": 1, "claimed": 3, "dispatches": dispatches}, "a device")

        monkeypatch.setattr(sides, "ep_side", side)
        monkeypatch.setattr(sides, "standalone_side", side)

    return install


@pytest.fixture
def loop(tmp_path: Path) -> Path:
    """A loop whose number of trips depends on data: nothing around it is claimed, its body is."""
    carried = _value("acc", ["n", 4])
    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["going"]), helper.make_node("Mul", ["acc", "two"], ["next"])],
        "body",
        [_value("i", [], TensorProto.INT64), _value("go", [], TensorProto.BOOL), carried],
        [_value("going", [], TensorProto.BOOL), _value("next", ["n", 4])],
    )
    nodes = [
        helper.make_node("ReduceMax", ["x"], ["most"], keepdims=0),
        helper.make_node("Cast", ["most"], ["trips"], to=TensorProto.INT64),
        helper.make_node("Loop", ["trips", "", "x"], ["y"], body=body, name="loop"),
    ]
    two = numpy_helper.from_array(np.float32(2), "two")
    return _save(tmp_path / "loop.onnx", nodes, [_value("x", ["n", 4])], [_value("y", ["n", 4])], [two])


@pytest.fixture
def choice(tmp_path: Path) -> Path:
    """An If whose condition depends on data; ONNX Runtime keeps it and its branches."""
    branches = {
        f"{name}_branch": helper.make_graph([helper.make_node(op, ["x"], [name])], name, [], [_value(name, ["n", 4])])
        for name, op in (("then", "Exp"), ("else", "Neg"))
    }
    nodes = [
        helper.make_node("ReduceMax", ["x"], ["most"], keepdims=0),
        helper.make_node("Cast", ["most"], ["b"], to=TensorProto.BOOL),
        helper.make_node("If", ["b"], ["y"], name="if", **branches),
    ]
    return _save(tmp_path / "choice.onnx", nodes, [_value("x", ["n", 4])], [_value("y", ["n", 4])], [])


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[object, str, str]]:
    """The entry point in this process: exit code, stdout, stderr."""
    from onnx_vulkan.cli import main

    def call_main(*args: object) -> tuple[object, str, str]:
        monkeypatch.setattr(sys, "argv", ["onnx-vulkan", *map(str, args)])
        with pytest.raises(SystemExit) as exit_:
            main()
        return exit_.value.code, *capsys.readouterr()

    return call_main
