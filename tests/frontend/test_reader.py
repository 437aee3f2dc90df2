"""Graphs as they come out of the front end: order, constants, functions, types, and what is refused."""

import os
import random
import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto as T
from onnx import helper, numpy_helper
from onnx_vulkan.dims import symbol
from onnx_vulkan.dtypes import DType
from onnx_vulkan.errors import ModelError
from onnx_vulkan.frontend import load
from onnx_vulkan.graph import Graph, TensorType

LIGHT = Path(onnx.__file__).parent / "backend/test/data/light"


def node(op, inputs, outputs, **attrs):
    return helper.make_node(op, inputs, outputs, **attrs)


def value(name, shape, elem=T.FLOAT):
    return helper.make_tensor_value_info(name, elem, shape)


def model(nodes, inputs, outputs, constants=(), opset=17, ir=None, **kw) -> bytes:
    graph = helper.make_graph(nodes, "g", inputs, outputs, list(constants), **kw.pop("graph", {}))
    imports = kw.pop("imports", [helper.make_opsetid("", opset), helper.make_opsetid("my", 1)])
    made = helper.make_model(graph, opset_imports=imports, **kw)
    made.ir_version = ir or 8
    return made.SerializeToString()


def read(*args, **kw) -> Graph:
    return load(model(*args, **kw))


def test_nodes_are_sorted_and_versioned() -> None:
    g = read([node("Relu", ["a"], ["y"]), node("Softmax", ["x"], ["a"])], [value("x", ["n", 4])], [value("y", None)], opset=12)
    assert [(n.op_type, n.since_version) for n in g.nodes] == [("Softmax", 11), ("Relu", 6)]
    assert g.types["x"] == TensorType(DType.F32, (symbol("n"), 4))
    assert g.types["a"] == TensorType(DType.F32, (symbol("n"), 4))
    assert g.nodes[1].name == "y"


def test_since_versions() -> None:
    imports = [helper.make_opsetid("ai.onnx", 13), helper.make_opsetid("com.microsoft", 1), helper.make_opsetid("my", 3)]
    nodes = [
        node("Relu", ["x"], ["a"], domain="ai.onnx"),
        node("Gelu", ["a"], ["b"], domain="com.microsoft"),
        node("Relu", ["b"], ["c"], domain="my"),
        node("Nonsense", ["c"], ["d"]),
        node("SimplifiedLayerNormalization", ["d", "x"], ["y"]),
        node("Relu", ["y"], ["z"], domain="not.imported"),
    ]
    g = read(nodes, [value("x", [2])], [value("z", None)], imports=imports)
    assert [(n.domain, n.since_version) for n in g.nodes] == [
        ("", 13), ("com.microsoft", 1), ("my", 0), ("", 0), ("", 1), ("not.imported", 0),
    ]  # fmt: skip
    assert g.opsets == {"": 13, "com.microsoft": 1, "my": 3}


def test_opset_newer_than_the_onnx_package() -> None:
    newest = onnx.defs.onnx_opset_version()
    g = read([node("Relu", ["x"], ["y"])], [value("x", [2])], [value("y", None)], opset=newest + 1)
    assert g.nodes[0].since_version == 0
    assert g.opsets[""] == newest + 1


def test_nameless_dims() -> None:
    g = read([node("Relu", ["x"], ["y"])], [value("x", ["?", "?", -1, "", None, 3])], [value("y", None)])
    assert g.types["x"].shape == (*(symbol(f"x.{i}") for i in range(5)), 3)
    g = read([node("Relu", ["x"], ["y"])], [value("x", None)], [value("y", None)])
    assert g.types["x"] == TensorType(DType.F32, None)


def test_other_types_are_named() -> None:
    seq = helper.make_value_info("s", helper.make_sequence_type_proto(helper.make_tensor_type_proto(T.FLOAT, None)))
    inputs = [value("x", [2], T.STRING), seq, value("q", [2], T.COMPLEX64)]
    g = read([node("Identity", ["x"], ["y"])], inputs, [value("y", None, T.STRING)])
    assert g.types["x"] == TensorType(None, (2,), "tensor(string)")
    assert g.types["s"] == TensorType(None, None, "seq(tensor(float))")
    assert g.types["q"].type_name == "tensor(complex64)"


@pytest.mark.parametrize(
    ("attrs", "want"),
    [
        ({"value": helper.make_tensor("", T.INT32, [2], [1, 2])}, np.array([1, 2], np.int32)),
        ({"value_int": 3}, np.array(3, np.int64)),
        ({"value_ints": [3, 4]}, np.array([3, 4], np.int64)),
        ({"value_float": 1.5}, np.array(1.5, np.float32)),
        ({"value_floats": [1.5, 2.0]}, np.array([1.5, 2], np.float32)),
        ({"value_string": "a"}, np.array("a", object)),
        ({"value_strings": ["a", "b"]}, np.array(["a", "b"], object)),
        (
            {"sparse_value": helper.make_sparse_tensor(
                helper.make_tensor("v", T.FLOAT, [1], [9.0]), helper.make_tensor("i", T.INT64, [1], [1]), [3])},
            np.array([0, 9, 0], np.float32),
        ),
    ],
    ids=lambda v: next(iter(v)) if isinstance(v, dict) else "",
)  # fmt: skip
def test_constant_nodes(attrs, want) -> None:
    g = read([node("Constant", [], ["c"], **attrs), node("Identity", ["c"], ["y"])], [], [value("y", None)])
    assert [n.op_type for n in g.nodes] == ["Identity"]
    assert g.initializers["c"].dtype == want.dtype and np.array_equal(g.initializers["c"], want)
    assert g.types["c"].shape == want.shape


def test_overridable_initializers() -> None:
    w = numpy_helper.from_array(np.ones(2, np.float32), "w")
    args = ([node("Add", ["x", "w"], ["y"])], [value("x", [2]), value("w", [2])], [value("y", None)], [w])
    new, old = read(*args, ir=4), read(*args, ir=3)
    assert new.inputs == ["x", "w"] and list(new.defaults) == ["w"] and not new.initializers
    assert old.inputs == ["x"] and list(old.initializers) == ["w"] and not old.defaults


def test_sparse_initializer() -> None:
    s = helper.make_sparse_tensor(helper.make_tensor("w", T.FLOAT, [1], [9.0]), helper.make_tensor("i", T.INT64, [1], [1]), [2])
    g = read([node("Add", ["x", "w"], ["y"])], [value("x", [2])], [value("y", None)], graph={"sparse_initializer": [s]})
    assert g.initializers["w"].tolist() == [0, 9]


def test_bodies_and_captures() -> None:
    inner = helper.make_graph([node("Add", ["h", "w"], ["t"])], "inner", [], [value("t", None)])
    outer = helper.make_graph([node("If", ["c"], ["u"], then_branch=inner, else_branch=inner)], "outer", [], [value("u", None)])
    nodes = [node("If", ["c"], ["y"], then_branch=outer, else_branch=outer), node("Relu", ["x"], ["h"])]
    w = numpy_helper.from_array(np.ones(2, np.float32), "w")
    g = read(nodes, [value("x", [2]), value("c", [], T.BOOL)], [value("y", None)], [w])
    assert [n.op_type for n in g.nodes] == ["Relu", "If"], "a body's captures order its node"
    body = g.nodes[1].attributes["then_branch"]
    assert isinstance(body, Graph)
    assert sorted(body.outer) == ["c", "h", "w"]
    assert [sorted(b.outer) for b in body.subgraphs()] == [["h", "w"]] * 2


def _functions() -> list[onnx.FunctionProto]:
    opset = [helper.make_opsetid("", 17), helper.make_opsetid("my", 1)]
    leaky = node("LeakyRelu", ["a"], ["t"])
    ref = leaky.attribute.add(name="alpha", type=onnx.AttributeProto.FLOAT)
    ref.ref_attr_name = "slope"
    inner = helper.make_function(
        "my", "Inner", ["a"], ["b"], [leaky, node("Relu", ["t"], ["b"])], opset,
        attribute_protos=[helper.make_attribute("slope", 0.5)],
    )  # fmt: skip
    first, second = node("Inner", ["a"], ["t"], domain="my"), node("Inner", ["t"], ["b"], domain="my", slope=0.25)
    ref = first.attribute.add(name="slope", type=onnx.AttributeProto.FLOAT)
    ref.ref_attr_name = "s"
    outer = helper.make_function("my", "Outer", ["a", "unused"], ["b", "a"], [first, second], opset, attributes=["s"])
    old = helper.make_function("my", "Old", ["a"], ["b"], [node("Softmax", ["a"], ["b"])], [helper.make_opsetid("", 12)])
    return [outer, inner, old]


def test_functions_are_inlined() -> None:
    nodes = [
        node("Outer", ["x"], ["p", "q"], domain="my", s=0.125, name="first"),
        node("Outer", ["p", "x"], ["r"], domain="my"),
        node("Old", ["r"], ["y"], domain="my"),
    ]
    g = read(nodes, [value("x", ["n"])], [value("y", None), value("q", None)], functions=_functions())
    ops = [(n.op_type, n.attributes.get("alpha"), n.since_version) for n in g.nodes]
    assert ops == [
        ("LeakyRelu", 0.125, 16), ("Relu", None, 14), ("LeakyRelu", 0.25, 16), ("Relu", None, 14), ("Identity", None, 16),
        ("LeakyRelu", 0.5, 16), ("Relu", None, 14), ("LeakyRelu", 0.25, 16), ("Relu", None, 14),
        ("Softmax", None, 11),
    ]  # fmt: skip
    made = [o for n in g.nodes for o in n.outputs]
    assert len(set(made)) == len(made)
    assert g.nodes[3].outputs == ("p",) and g.nodes[4].outputs == ("q",) and g.nodes[4].inputs == ("x",)
    assert g.types["p"].shape == (symbol("n"),)


def test_function_with_body() -> None:
    body = helper.make_graph([node("Mul", ["a", "k"], ["t"])], "b", [], [value("t", None)],
        [numpy_helper.from_array(np.ones(1, np.float32), "k")])  # fmt: skip
    f = helper.make_function("my", "F", ["c", "a"], ["b"], [node("If", ["c"], ["b"], then_branch=body, else_branch=body)],
        [helper.make_opsetid("", 17)])  # fmt: skip
    nodes = [node("F", ["c", "x"], ["t"], domain="my"), node("F", ["c", "t"], ["y"], domain="my")]
    g = read(nodes, [value("c", [], T.BOOL), value("x", [2])], [value("y", None)], functions=[f])
    assert [b.outer for n in g.nodes for b in n.attributes.values() if isinstance(b, Graph)] == [["x"], ["x"], ["t"], ["t"]]


def test_recursive_function() -> None:
    f = helper.make_function("my", "F", ["a"], ["b"], [node("F", ["a"], ["b"], domain="my")], [helper.make_opsetid("my", 1)])
    with pytest.raises(ModelError, match="calls itself"):
        read([node("F", ["x"], ["y"], domain="my")], [value("x", [2])], [value("y", None)], functions=[f])


X, Y = [value("x", [2])], [value("y", None)]


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (([node("Relu", ["a"], ["y"])], X, Y), "reads 'a', which no node"),
        (([node("Relu", ["x"], ["z"])], X, Y), "output 'y', which no node"),
        (([node("Relu", ["x"], ["y"]), node("Abs", ["x"], ["y"])], X, Y), "value 'y' twice"),
        (([node("Relu", ["x"], ["x"])], X, [value("x", None)]), "value 'x' twice: as an input"),
        (([node("Relu", ["x"], ["y"])], X + X, Y), "input 'x' twice"),
        (([node("Add", ["x", "b"], ["a"]), node("Relu", ["a"], ["b"]), node("Relu", ["b"], ["y"])], X, Y), "cycle"),
        (([node("", ["x"], ["y"])], X, Y), "names no operator"),
        (([node("Constant", [], ["y"])], X, Y), "0 attributes"),
        (([node("Constant", [], ["y"], foo=1)], X, Y), "attribute 'foo'"),
        (([node("Relu", ["x"], ["y"])], X, Y, [numpy_helper.from_array(np.ones(1), "w")] * 2), "constant 'w' twice"),
    ],
)
def test_wrong_graphs(args, says) -> None:
    with pytest.raises(ModelError, match=says):
        read(*args)


def test_no_model(tmp_path) -> None:
    empty, text = tmp_path / "empty.onnx", tmp_path / "text.onnx"
    empty.touch()
    text.write_text("version https://git-lfs.github.com/spec/v1")
    for path, says in ((empty, "is empty"), (text, "no ONNX model"), (tmp_path, "a folder"), (tmp_path / "no", "no file")):
        with pytest.raises(ModelError, match=says):
            load(path)
    with pytest.raises(ModelError, match="no graph"):
        load(b"")


def test_damaged_bytes_are_sentences() -> None:
    body = helper.make_graph([node("Add", ["x", "w"], ["t"])], "b", [], [value("t", None)])
    nodes = [
        node("Constant", [], ["k"], value=helper.make_tensor("k", T.INT64, [1], [-1])),
        node("Reshape", ["x", "k"], ["r"]),
        node("Outer", ["r"], ["o"], domain="my", s=0.5),
        node("If", ["c"], ["i"], then_branch=body, else_branch=body),
        node("Add", ["o", "i"], ["y"]),
    ]
    good = model(nodes, [value("x", ["n"]), value("c", [], T.BOOL)], Y, [numpy_helper.from_array(np.ones(1, np.float32), "w")],
        functions=_functions())  # fmt: skip
    load(good)
    rng = random.Random(7)
    for _ in range(1500):
        data = bytearray(good)
        if rng.random() < 0.2:
            del data[rng.randrange(len(data)) :]
        for _ in range(rng.choice([1, 1, 2, 3])):
            if data:
                data[rng.randrange(len(data))] = rng.randrange(256)
        try:
            load(bytes(data))
        except ModelError as e:
            assert str(e).strip()


@pytest.mark.parametrize("path", sorted(LIGHT.glob("*.onnx")), ids=lambda p: p.stem)
def test_light_models(path: Path) -> None:
    g = load(path)
    assert g.nodes and all(n.since_version for n in g.nodes)
    proto = onnx.load(path)
    for t in proto.graph.initializer[:20]:
        assert np.array_equal(g.initializers[t.name], numpy_helper.to_array(t))


def test_two_gigabytes_of_external_data(tmp_path) -> None:
    """Mapped, not read: a sparse file of 2.5 GB loads at once and costs no memory."""
    rows, count = 1 << 27, 5
    with open(tmp_path / "w.bin", "wb") as f:
        os.truncate(f.fileno(), 4 * rows * count)
    tensors = []
    for i in range(count):
        t = onnx.TensorProto(name=f"w{i}", data_type=T.FLOAT, dims=[rows], data_location=T.EXTERNAL)
        for key, v in (("location", "w.bin"), ("offset", str(4 * rows * i))):
            t.external_data.add(key=key, value=v)
        tensors.append(t)
    nodes = [node("Add", [f"v{i}" if i else "x", f"w{i}"], [f"v{i + 1}"]) for i in range(count)]
    data = model(nodes, [value("x", [1])], [value(f"v{count}", None)], tensors)
    (tmp_path / "m.onnx").write_bytes(data)
    code = (
        "import resource, sys\nfrom onnx_vulkan.frontend import load\n"
        "import onnx_vulkan.frontend.types\nbefore = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "g = load(sys.argv[1])\nassert g.initializers['w4'].shape == (1 << 27,) and g.initializers['w4'][-1] == 0\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)"
    )
    start = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", code, tmp_path / "m.onnx"], capture_output=True, text=True, check=True)
    assert time.perf_counter() - start < 10
    assert int(done.stdout) < 64 * 1024, "kilobytes of memory"


def test_weights_inside_the_file_are_not_read(tmp_path) -> None:
    weight = np.zeros(1 << 22, np.float32)
    weight[-1] = 3
    path = tmp_path / "m.onnx"
    w = numpy_helper.from_array(weight, "w")
    path.write_bytes(model([node("Add", ["x", "w"], ["y"])], [value("x", [1])], Y, [w]))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    g = load(path)
    assert g.initializers["w"][-1] == 3 and not g.initializers["w"].flags.owndata
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 8 * 1024


@pytest.mark.parametrize("inner", [False, True])
def test_inference_that_would_end_the_process_is_not_asked(inner: bool) -> None:
    """ONNX's own inference of EyeLike reads the type of an input that has none."""
    nodes = [node("Unknown", ["x"], ["a"], domain="my"), node("EyeLike", ["a"], ["y"], dtype=T.FLOAT)]
    if inner:
        body = helper.make_graph([node("EyeLike", ["a"], ["b"], dtype=T.FLOAT)], "body", [], [value("b", None)])
        nodes[1] = node("If", ["c"], ["y"], then_branch=body, else_branch=body)
    inputs = [value("x", [2, 2]), value("c", [], T.BOOL)]
    graph = load(model([*nodes, node("Relu", ["x"], ["z"])], inputs, [value("y", None), value("z", None)]))
    assert [n.op_type for n in graph.nodes] == ["Unknown", nodes[1].op_type, "Relu"]
    assert graph.types["y"].dtype is DType.F32
