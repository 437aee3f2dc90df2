"""OrtGraph -> Graph: what the claims and the blocks get to see."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from ep_stub import ORT_MINOR, StubEngine, chain, loop, make_model, vulkan_session
from onnx import TensorProto, helper, numpy_helper
from onnx_vulkan.dims import symbol
from onnx_vulkan.dtypes import DType
from onnx_vulkan.graph import Graph


def as_written() -> ort.SessionOptions:
    """Options without ORT's own optimizations."""
    settings = ort.SessionOptions()
    settings.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return settings


def read(stub: StubEngine, model: bytes | str) -> Graph:
    vulkan_session(model, sess_options=as_written())
    return stub.graphs[-1].graph


def test_chain(stub: StubEngine) -> None:
    graph = read(stub, chain())
    assert [(n.name, n.op_type, n.domain, n.since_version) for n in graph.nodes] == [
        ("add", "Add", "", 14),
        ("sin", "Sin", "", 7),
        ("leaky", "LeakyRelu", "", 16),
    ]
    assert [n.inputs for n in graph.nodes] == [("x", "w"), ("a",), ("b",)]
    assert graph.nodes[2].attributes == {"alpha": 0.5}
    assert (graph.inputs, graph.outputs, graph.opsets) == (["x"], ["y"], {"": 18})
    assert graph.types["x"].shape == (symbol("n"), 3)
    assert graph.types["x"].dtype is DType.F32
    np.testing.assert_array_equal(graph.initializers["w"], np.array([1, 2, 3], np.float32))


def test_block_graph_has_the_fused_nodes_order_and_its_constants(stub: StubEngine) -> None:
    vulkan_session(chain())
    (block,) = stub.blocks
    assert (block.graph.inputs, block.graph.outputs) == (["x"], ["y"])
    np.testing.assert_array_equal(block.graph.initializers["w"], np.array([1, 2, 3], np.float32))


def test_inner_values_that_others_read_become_outputs(stub: StubEngine) -> None:
    stub.claims = lambda found: [[0], [2]]
    vulkan_session(chain())
    assert [(b.graph.inputs, b.graph.outputs) for b in stub.blocks] == [(["x"], ["a"]), (["b"], ["y"])]


def test_overridable_initializer_stays_an_input(stub: StubEngine) -> None:
    model = make_model(
        [helper.make_node("Add", ["x", "w"], ["y"])], {"x": ["n", 3], "w": [3]}, {"y": ["n", 3]}, {"w": np.ones(3, np.float32)}
    )
    graph = read(stub, model)
    assert graph.inputs == ["x", "w"]
    assert not graph.initializers
    np.testing.assert_array_equal(graph.defaults["w"], np.ones(3, np.float32))
    assert stub.blocks[0].graph.inputs == ["x", "w"]
    assert not stub.blocks[0].graph.defaults


def test_holes_among_inputs(stub: StubEngine) -> None:
    nodes = [helper.make_node("Clip", ["x", "", "hi"], ["y"]), helper.make_node("Clip", ["y"], ["z"])]
    graph = read(stub, make_model(nodes, {"x": [4]}, {"z": [4]}, {"hi": np.array(2, np.float32)}))
    assert [n.inputs for n in graph.nodes] == [("x", "", "hi"), ("y",)]


def test_dims(stub: StubEngine) -> None:
    model = make_model([helper.make_node("Relu", ["x"], ["y"])], {"x": ["batch", None, 7]}, {"y": None})
    graph = read(stub, model)
    assert graph.types["x"].shape == (symbol("batch"), symbol("x.1"), 7)


def test_unknown_rank_and_scalar(stub: StubEngine) -> None:
    nodes = [helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Relu", ["s"], ["t"])]
    graph = read(stub, make_model(nodes, {"x": None, "s": []}, {"y": None, "t": []}))
    assert graph.types["x"].shape is None
    assert graph.types["s"].shape == (() if ORT_MINOR >= 24 else None)


def test_attributes(stub: StubEngine) -> None:
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 0, 1, 0], auto_pad="NOTSET", kernel_shape=[3, 1]),
        helper.make_node("Upsample", ["c"], ["u"], domain="test.domain", scales=[1.0, 2.5], modes=["ab", "c"], empty=""),
    ]
    model = onnx.load_from_string(
        make_model(nodes[:1], {"x": [1, 1, 8, 8]}, {"c": None}, {"w": np.ones((1, 1, 3, 1), np.float32)})
    )
    graph = read(stub, model.SerializeToString())
    attributes = graph.nodes[0].attributes
    assert attributes["pads"] == [1, 0, 1, 0]
    assert attributes["auto_pad"] == "NOTSET"
    assert attributes["kernel_shape"] == [3, 1]
    assert attributes["group"] == 1  # ORT adds the schema's default


def test_tensor_and_string_attributes(stub: StubEngine) -> None:
    table = numpy_helper.from_array(np.array([2.5], np.float32))
    labels = helper.make_node(
        "LabelEncoder",
        ["k"],
        ["v"],
        domain="ai.onnx.ml",
        keys_strings=["a", "bb", ""],
        values_floats=[1.0, 2.0, 3.0],
        default_float=9.0,
    )
    nodes = [helper.make_node("ConstantOfShape", ["s"], ["c"], value=table), labels]
    graph_proto = helper.make_graph(
        nodes,
        "test",
        [
            helper.make_tensor_value_info("s", TensorProto.INT64, [2]),
            helper.make_tensor_value_info("k", TensorProto.STRING, ["n"]),
        ],
        [
            helper.make_tensor_value_info("c", TensorProto.FLOAT, None),
            helper.make_tensor_value_info("v", TensorProto.FLOAT, ["n"]),
        ],
    )
    model = helper.make_model(
        graph_proto, opset_imports=[helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", 2)], ir_version=9
    )
    stub.claims = lambda found: []
    graph = read(stub, model.SerializeToString())
    by_op = {n.op_type: n for n in graph.nodes}
    np.testing.assert_array_equal(by_op["ConstantOfShape"].attributes["value"], np.array([2.5], np.float32))  # type: ignore[arg-type]
    assert by_op["LabelEncoder"].attributes["keys_strings"] == ["a", "bb", ""]
    assert by_op["LabelEncoder"].attributes["values_floats"] == [1.0, 2.0, 3.0]
    assert by_op["LabelEncoder"].domain == "ai.onnx.ml"
    assert graph.types["k"].dtype is None
    assert graph.types["k"].type_name == "tensor(string)"
    assert graph.opsets == {"": 18, "ai.onnx.ml": 2}


ELEMENTS: list[tuple[int, Any]] = [
    (TensorProto.DOUBLE, np.array([1.5, -2])),
    (TensorProto.FLOAT16, np.array([1.5, -2], np.float16)),
    (TensorProto.BFLOAT16, np.array([1.5, -2], ml_dtypes.bfloat16)),
    (TensorProto.BOOL, np.array([True, False])),
    (TensorProto.INT64, np.array([2**40, -5])),
    (TensorProto.UINT8, np.array([0, 255], np.uint8)),
    (TensorProto.INT4, np.array([-8, 7, 3], ml_dtypes.int4)),
    (TensorProto.UINT4, np.array([15, 0, 3], ml_dtypes.uint4)),
    (TensorProto.FLOAT8E4M3FN, np.array([1.5, -2], ml_dtypes.float8_e4m3fn)),
    (TensorProto.FLOAT, np.zeros((0, 3), np.float32)),
]


@pytest.mark.parametrize(("number", "value"), ELEMENTS, ids=[TensorProto.DataType.Name(n) for n, _ in ELEMENTS])
def test_constants_of_every_type(stub: StubEngine, number: int, value: Any) -> None:
    tensor = numpy_helper.from_array(value, "w")
    assert tensor.data_type == number
    node, result, constants = helper.make_node("Identity", ["w"], ["y"]), number, [tensor]
    if number in (TensorProto.INT4, TensorProto.UINT4):  # these have no Identity on the CPU
        node, result = helper.make_node("DequantizeLinear", ["w", "s"], ["y"]), TensorProto.FLOAT
        constants.append(numpy_helper.from_array(np.array(1, np.float32), "s"))
    graph = helper.make_graph([node], "test", [], [helper.make_tensor_value_info("y", result, value.shape)], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    stub.claims = lambda found: []
    found = read(stub, model.SerializeToString()).initializers["w"]
    assert (found.dtype, found.shape) == (value.dtype, value.shape)
    assert found.nbytes == len(tensor.raw_data)
    np.testing.assert_array_equal(np.asarray(found).astype(np.float64), value.astype(np.float64))


def test_strings(stub: StubEngine) -> None:
    value = np.array([["ab", ""], ["ü", "d"]], dtype=object)
    tensor = helper.make_tensor("w", TensorProto.STRING, [2, 2], [s.encode() for s in value.reshape(-1)])
    graph = helper.make_graph(
        [helper.make_node("Identity", ["w"], ["y"])], "test", [], [helper.make_tensor_value_info("y", 8, [2, 2])], [tensor]
    )
    stub.claims = lambda found: []
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    np.testing.assert_array_equal(read(stub, model.SerializeToString()).initializers["w"], value)


def test_external_data(stub: StubEngine, tmp_path: Path) -> None:
    weight = np.arange(300, dtype=np.float32).reshape(100, 3)
    model = make_model([helper.make_node("Add", ["x", "w"], ["y"])], {"x": [100, 3]}, {"y": [100, 3]}, {"w": weight})
    path = tmp_path / "model.onnx"
    onnx.save(onnx.load_from_string(model), path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    np.testing.assert_array_equal(read(stub, str(path)).initializers["w"], weight)
    np.testing.assert_array_equal(stub.blocks[0].graph.initializers["w"], weight)
    assert stub.blocks[0].mapped == {"w"}, "external data is mapped, not copied"


def branches() -> bytes:
    """y = x + w if c else Sin(x), with w outside of the bodies."""

    def body(name: str, node: onnx.NodeProto) -> onnx.GraphProto:
        return helper.make_graph([node], name, [], [helper.make_tensor_value_info("r", TensorProto.FLOAT, ["n"])])

    graph = helper.make_graph(
        [
            helper.make_node("Relu", ["x"], ["p"]),
            helper.make_node(
                "If",
                ["c"],
                ["y"],
                then_branch=body("then", helper.make_node("Add", ["p", "w"], ["r"])),
                else_branch=body("else", helper.make_node("Sin", ["p"], ["r"])),
            ),
        ],
        "test",
        [
            helper.make_tensor_value_info("c", TensorProto.BOOL, []),
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n"])],
        [numpy_helper.from_array(np.array([3], np.float32), "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    return bytes(model.SerializeToString())


def test_bodies_are_attributes(stub: StubEngine) -> None:
    stub.claims = lambda found: []
    graph = read(stub, branches())
    node = next(n for n in graph.nodes if n.op_type == "If")
    then = node.attributes["then_branch"]
    assert isinstance(then, Graph)
    assert [n.op_type for n in then.nodes] == ["Add"]
    assert then.outer == ["p"]
    np.testing.assert_array_equal(then.initializers["w"], [3])
    assert then.types["p"].dtype is DType.F32
    assert isinstance(node.attributes["else_branch"], Graph)


def test_branches_wait_for_their_if(stub: StubEngine) -> None:
    stub.claims = lambda found: [[i for i, n in enumerate(found.graph.nodes) if n.op_type != "If"]]
    vulkan_session(branches())
    assert [[n.op_type for n in b.graph.nodes] for b in stub.blocks] == [["Relu"]]


@pytest.mark.skipif(ORT_MINOR < 24, reason="1.23 gives two bodies' blocks one name")
def test_nodes_inside_a_loop_are_offered(stub: StubEngine) -> None:
    stub.claims = lambda found: [[i for i, n in enumerate(found.graph.nodes) if n.op_type == "Add"]]
    vulkan_session(loop([helper.make_node("Add", ["v", "w"], ["next"])], {"w": np.array([3], np.float32)}, ["n"]))
    (block,) = stub.blocks
    assert block.graph.inputs == ["v"]
    np.testing.assert_array_equal(block.graph.initializers["w"], [3])


def test_whole_if_is_claimed_with_its_bodies(stub: StubEngine) -> None:
    vulkan_session(branches())
    (block,) = stub.blocks
    assert [n.op_type for n in block.graph.nodes] == ["Relu", "If"]
    assert set(block.graph.inputs) == {"c", "x"}
    then = block.graph.nodes[1].attributes["then_branch"]
    assert isinstance(then, Graph)
    assert then.outer == ["p"]


def test_inlined_functions_come_in_a_second_call(stub: StubEngine) -> None:
    """HardSwish is a function: unclaimed, ORT inlines it and asks again, with our earlier blocks among the nodes."""
    nodes = [helper.make_node("Sin", ["x"], ["a"]), helper.make_node("HardSwish", ["a"], ["y"])]
    stub.claims = lambda found: [[i] for i, n in enumerate(found.graph.nodes) if not found.owners[i] and n.op_type != "HardSwish"]
    vulkan_session(make_model(nodes, {"x": [4]}, {"y": [4]}))
    assert stub.blocks[0].graph.nodes[0].op_type == "Sin"
    if len(stub.graphs) > 1:
        assert "VulkanEP" in stub.graphs[-1].owners
