"""Claims: which check refuses what, that blocks are convex and few, and that a block alone is what was judged."""

import json
import random
import re
from types import SimpleNamespace

import numpy as np
import pytest
from onnx import TensorProto as T
from onnx import helper, numpy_helper
from onnx_vulkan import claims
from onnx_vulkan.claims import convex_blocks, cost, extract, partition
from onnx_vulkan.dims import symbol
from onnx_vulkan.dtypes import DType
from onnx_vulkan.errors import InvalidInput
from onnx_vulkan.frontend import load
from onnx_vulkan.graph import Graph, Node, TensorType
from onnx_vulkan.lower.driver import readable


def value(name, shape, elem=T.FLOAT):
    return helper.make_tensor_value_info(name, elem, shape)


node = helper.make_node


def graph(nodes, inputs, outputs, constants=(), opset=17, **imports) -> Graph:
    made = helper.make_graph(nodes, "g", inputs, outputs, list(constants))
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(d, v) for d, v in imports.items())]
    return load(helper.make_model(made, opset_imports=opsets).SerializeToString())


def unary(op, opset=17, domain="", elem=T.FLOAT, out=None, **attrs) -> Graph:
    """One node between an input and an output."""
    imports = {domain: 1} if domain else {}
    nodes = [node(op, ["x"], ["y"], name="n", domain=domain, **attrs)]
    return graph(nodes, [value("x", ["n", 4], elem)], [value("y", None, out or elem)], opset=opset, **imports)


X = [value("x", ["n", 4])]
KEEP = SimpleNamespace(island="keep")


@pytest.mark.parametrize(
    ("made", "check", "says"),
    [
        (lambda: unary("Relu", opset=29), "opset", "opset 29 is newer than 28"),
        (lambda: unary("Nonsense"), "opset", "not known here"),
        (lambda: unary("Relu", domain="my"), "opset", "my::Relu is an operator that is not known"),
        (lambda: unary("Conv", domain="com.microsoft.nchwc"), "opset", "NchwcTransformer"),
        (lambda: unary("Relu", beta=1), "opset", "the model is not valid: Relu has no attribute beta in version 14"),
        (lambda: unary("Transpose", perm=[0, 0]), "kernel", "does not name each of the 2 axes of its input once"),
        (lambda: graph([node("Relu", ["x", "x"], ["y"])], X, [value("y", None)]), "opset", "at most 1 input"),
        (lambda: graph([node("Add", ["x"], ["y"])], X, [value("y", None)]), "opset", "needs its input"),
        (lambda: unary("Relu", elem=T.BOOL), "dtype", "is bool"),
        (lambda: unary("Identity", elem=T.STRING), "dtype", "tensor(string)"),
        (lambda: unary("StringNormalizer", elem=T.STRING), "kernel", "StringNormalizer is not supported: it works on strings"),
    ],
)  # fmt: skip
def test_each_check_refuses(made, check, says) -> None:
    found = partition(made())
    (refusal,) = found.refusals
    assert (refusal.check, says in refusal.reason) == (check, True), refusal
    assert refusal.reason.endswith((".", ")"))
    assert found.blocks == () and found.claimed == 0


def test_too_new_an_opset_says_how_to_export() -> None:
    (refusal,) = partition(unary("Relu", opset=29)).refusals
    assert "convert_version(model, 28)" in refusal.reason


def test_domain_that_is_not_imported() -> None:
    made = helper.make_graph([node("Relu", ["x"], ["y"], domain="my")], "g", X, [value("y", None)])
    (refusal,) = partition(load(helper.make_model(made).SerializeToString())).refusals
    assert refusal.check == "opset" and "imports no operator set of the domain 'my'" in refusal.reason


def test_device_features() -> None:
    half = unary("Relu", elem=T.FLOAT16)
    assert not partition(half).refusals
    assert not partition(half, features=frozenset({"f16", "storage16"})).refusals
    (refusal,) = partition(half, features=frozenset({"storage16"})).refusals
    assert refusal.check == "dtype" and "lacks f16" in refusal.reason
    assert not partition(unary("Relu"), features=frozenset()).refusals
    (refusal,) = partition(unary("Abs", elem=T.DOUBLE), features=frozenset()).refusals
    assert "float64" in refusal.reason


def test_kernel_check(monkeypatch) -> None:
    from onnx_vulkan import kernels

    monkeypatch.setattr(
        kernels, "supports", lambda i: "no kernel for tanh" if i.attrs.get("fn") == "tanh" else None, raising=False
    )
    made = graph([node("Relu", ["x"], ["a"]), node("Tanh", ["a"], ["y"], name="t")], X, [value("y", None)])
    (refusal,) = partition(made).refusals
    assert (refusal.name, refusal.check, refusal.reason) == ("t", "kernel", "no kernel for tanh.")


def test_every_offender_is_named() -> None:
    nodes = [node("Nonsense", ["x"], ["a"]), node("Relu", ["a"], ["b"]), node("Abs", ["x"], ["c"], bad=1)]
    nodes += [node("Add", ["b", "c"], ["y"], name="")]
    found = partition(graph(nodes, X, [value("y", None), value("a", ["n", 4])]))
    assert [r.op_type for r in found.refusals] == ["Nonsense", "Abs"], "the types of refused outputs are believed"


def test_equal_names() -> None:
    nodes = [node("Nonsense", ["x"], ["a"], name="same"), node("Relu", ["x"], ["b"], name="same")]
    found = partition(graph(nodes, X, [value("a", None), value("b", None)]))
    assert [r.op_type for r in found.refusals] == ["Nonsense"]


def test_whole_graph_is_one_block_with_its_shape_arithmetic() -> None:
    k = numpy_helper.from_array(np.array([0], np.int64), "k")
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("Gather", ["s", "k"], ["n"]),
        node("Concat", ["n", "m"], ["t"], axis=0),
        node("Reshape", ["x", "t"], ["y"]),
    ]
    constants = [k, numpy_helper.from_array(np.array([2, 2], np.int64), "m")]
    found = partition(graph(nodes, X, [value("y", None)], constants))
    assert found.blocks == ((0, 1, 2, 3),) and not found.refusals and not found.host_inputs


def test_host_inputs() -> None:
    made = graph([node("Reshape", ["x", "s"], ["y"])], [*X, value("s", [2], T.INT64)], [value("y", None)])
    assert partition(made).host_inputs == ("s",)


def test_value_that_decided_a_shape_from_outside_the_block() -> None:
    """Judged whole, the mask's length folds; behind a refused node it is an input of the second block, and its host value."""
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("Nonsense", ["s"], ["t"]),
        node("MatMul", ["x", "w"], ["a"]),
        node("Reshape", ["a", "t"], ["y"]),
    ]
    w = numpy_helper.from_array(np.ones((4, 4), np.float32), "w")
    made = graph(nodes, X, [value("y", None), value("t", [2], T.INT64)], [w])
    found = partition(made, KEEP)
    assert [r.op_type for r in found.refusals] == ["Nonsense"]
    assert found.host_inputs == ("t",)


def _random_graph(rng: random.Random) -> Graph:
    n = rng.randrange(1, 30)
    nodes = []
    for i in range(n):
        sources = [f"v{rng.randrange(i)}" if i else "x" for _ in range(rng.randrange(1, 3))]
        nodes.append(Node(f"n{i}", "Add", "", 14, tuple(sources), (f"v{i}",)))
    types = {name: TensorType(DType.F32, (symbol("n"),)) for name in ["x", *(f"v{i}" for i in range(n))]}
    return Graph("g", ["x"], [f"v{n - 1}"], nodes, types, {}, {"": 17})


def _reaches(g: Graph) -> list[set[int]]:
    made = {o: i for i, nd in enumerate(g.nodes) for o in nd.outputs}
    before: list[set[int]] = []
    for nd in g.nodes:
        direct = {made[x] for x in nd.inputs if x in made}
        before.append(direct.union(*(before[j] for j in direct)))
    return before


def test_blocks_are_convex_and_ordered() -> None:
    rng = random.Random(3)
    for _ in range(200):
        g = _random_graph(rng)
        claimed = {i for i in range(len(g.nodes)) if rng.random() < 0.7}
        blocks = convex_blocks(g, claimed)
        assert sorted(i for b in blocks for i in b) == sorted(claimed)
        before = _reaches(g)
        for b in blocks:
            members = set(b)
            for i in b:
                for j in before[i] - members:
                    assert not before[j] & members, "a path leaves the block and comes back"
        for later, b in enumerate(blocks):
            for earlier in blocks[:later]:
                assert not any(before[i] & set(b) for i in earlier), "a block needs a later one"


def test_a_chain_with_one_hole_is_two_blocks() -> None:
    nodes = [Node(f"n{i}", "Add", "", 14, (f"v{i}", f"v{i}"), (f"v{i + 1}",)) for i in range(9)]
    g = Graph("g", ["v0"], ["v9"], nodes, {}, {}, {"": 17})
    assert convex_blocks(g, set(range(9)) - {4}) == [(0, 1, 2, 3), (5, 6, 7, 8)]
    assert convex_blocks(g, range(9)) == [tuple(range(9))]


def test_independent_branches_share_a_block() -> None:
    """Two claimed branches beside an unclaimed one join its result in one second block."""
    nodes = [
        Node("a", "Add", "", 14, ("x", "x"), ("a",)),
        Node("hole", "Nonsense", "", 0, ("a",), ("h",)),
        Node("b", "Add", "", 14, ("x", "x"), ("b",)),
        Node("c", "Add", "", 14, ("h", "b"), ("c",)),
    ]
    g = Graph("g", ["x"], ["c"], nodes, {}, {}, {"": 17})
    assert convex_blocks(g, {0, 2, 3}) == [(0,), (2, 3)], "b is needed only by the later block and moves there"


def test_extract() -> None:
    w = numpy_helper.from_array(np.ones(4, np.float32), "w")
    body = helper.make_graph([node("Add", ["b", "w"], ["t"])], "b", [], [value("t", None)])
    nodes = [
        node("Abs", ["x"], ["a"]),
        node("Add", ["z", "a"], ["b"]),
        node("If", ["c"], ["d"], then_branch=body, else_branch=body),
        node("Mul", ["d", "a"], ["y"]),
    ]
    g = graph(nodes, [*X, value("z", [4]), value("c", [], T.BOOL)], [value("y", None), value("b", None)], [w])
    middle = extract(g, {1, 2})
    assert (middle.inputs, middle.outputs, list(middle.initializers)) == (["z", "a", "c"], ["b", "d"], ["w"])
    assert middle.types["a"] == g.types["a"] and "y" not in middle.types
    first = extract(g, {0})
    assert (first.inputs, first.outputs) == (["x"], ["a"])
    whole = extract(g, range(4))
    assert (whole.inputs, whole.outputs) == (["x", "z", "c"], ["b", "y"])


def test_a_body_judged_alone() -> None:
    w = numpy_helper.from_array(np.ones(4, np.float32), "w")
    body = helper.make_graph([node("Add", ["a", "w"], ["t"])], "b", [], [value("t", None)])
    other = helper.make_graph([node("NonZero", ["a"], ["i"]), node("Cast", ["i"], ["u"], to=1)], "b", [], [value("u", None)])
    nodes = [node("Abs", ["x"], ["a"]), node("If", ["c"], ["y"], then_branch=body, else_branch=other)]
    g = graph(nodes, [*X, value("c", [], T.BOOL)], [value("y", None)], [w])
    bodies = dict(claims.bodies_of(g.nodes[1]))
    alone = claims.with_outer(g, bodies["then_branch"])
    assert (alone.inputs, list(alone.initializers), alone.outer) == (["a"], ["w"], [])
    assert partition(alone).blocks == ((0,),)
    assert partition(claims.with_outer(g, bodies["else_branch"])).refusals[0].op_type == "NonZero"


def _islands(width: int = 1024, rows: int | str = "n", elem: int = T.FLOAT) -> Graph:
    """A product, a Relu and a Transpose with nodes that nobody knows between them."""
    w = numpy_helper.from_array(np.ones((width, width), helper.tensor_dtype_to_np_dtype(elem)), "w")
    nodes = [
        node("MatMul", ["x", "w"], ["a"]),
        node("Nonsense", ["a"], ["b"]),
        node("Relu", ["b"], ["c"]),
        node("Nonsense", ["c"], ["d"]),
        node("Transpose", ["d"], ["e"]),
        node("Nonsense", ["e"], ["y"]),
    ]
    known = [value(n, [rows, width], elem) for n in "bd"]
    return graph(nodes, [value("x", [rows, width], elem)], [value("y", None), *known], [w])


FOUR_CORES = claims.machine("discrete", 4)


def test_islands_are_given_back() -> None:
    found = partition(_islands(rows=512), rates=FOUR_CORES)
    assert found.blocks == ((0,),) and list(found.given_back) == [2, 4]
    relu = found.given_back[2]
    assert (relu.op_type, relu.check) == ("Relu", "cost")
    numbers = (
        r"this node would be a block of about \d+ us \(60 us to enter and leave it, \d+ us of copies, \d+ us on the device\)"
    )
    assert re.match(numbers + ", and the CPU takes about .*; the option island=keep", relu.reason), relu.reason
    assert partition(_islands(), KEEP, rates=FOUR_CORES).blocks == ((0,), (2,), (4,))
    assert partition(unary("Transpose")).blocks == ((0,),), "a whole graph is never given back"
    body = partition(unary("Transpose"), body=True)
    assert not body.blocks and body.given_back[0].check == "cost", "but a body is no whole graph"


@pytest.mark.parametrize(
    ("sizes", "kind", "cores", "product_stays"),
    [
        ((64, 64), "discrete", 4, False),  # too small
        ((64, 4096), "discrete", 4, False),  # little more than its copies
        ((1024, 512), "discrete", 4, True),
        ((1024, 512), "discrete", 128, False),  # a CPU that is faster
        ((1024, 512), "integrated", 4, True),
        ((1024, 512), "integrated", 64, False),
        ((1024, 512), "cpu", 4, True),  # it stands for a GPU
        ((64, 64, T.DOUBLE), "discrete", 4, True),  # the CPU may have no kernel for the type
    ],
)
def test_what_a_product_is_worth(sizes: tuple, kind: str, cores: int, product_stays: bool) -> None:
    found = partition(_islands(*sizes), rates=claims.machine(kind, cores))
    assert ((0,) in found.blocks) == product_stays, found.given_back


def test_sizes_that_are_assumed() -> None:
    def stays(dim: str, **declared: int) -> bool:
        options = SimpleNamespace(runtime_dims=declared)
        return (0,) in partition(_islands(512, dim), options, rates=FOUR_CORES).blocks

    assert not stays("n") and not stays("batch"), "the first axis counts as a batch of one"
    assert stays("n", n=2048)
    numbers = cost.assumed_numbers(graph([node("Relu", ["x"], ["y"])], [value("x", ["b", "length"])], [value("y", None)]))
    assert (numbers["b"], numbers["length"], numbers["batch_size"]) == (1, cost.ASSUMED_EXTENT, 1)


def test_claim_log_and_restriction(tmp_path, monkeypatch) -> None:
    log = tmp_path / "claims.jsonl"
    monkeypatch.setenv("ONNX_VULKAN_CLAIM_LOG", str(log))
    partition(_islands(rows=512), rates=FOUR_CORES)
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [(e["op_type"], e["claimed"], e["check"], e["block"]) for e in lines] == [
        ("MatMul", True, "", 0), ("Nonsense", False, "opset", None), ("Relu", False, "cost", None),
        ("Nonsense", False, "opset", None), ("Transpose", False, "cost", None), ("Nonsense", False, "opset", None),
    ]  # fmt: skip
    assert set(lines[0]) == {"name", "op_type", "domain", "since_version", "claimed", "check", "reason", "block"}
    monkeypatch.setenv("ONNX_VULKAN_OPS", "")  # set to nothing is not set
    assert not any("ONNX_VULKAN_OPS" in r.reason for r in partition(_islands(4)).refusals)
    monkeypatch.setenv("ONNX_VULKAN_OPS", "Relu, d")
    found = partition(_islands(4))
    assert found.blocks == ((2,),)
    assert ("kernel", True) in {(r.check, "ONNX_VULKAN_OPS" in r.reason) for r in found.refusals}
    assert len(log.read_text().splitlines()) == 18
    monkeypatch.setenv("ONNX_VULKAN_CLAIM_LOG", str(tmp_path))
    with pytest.raises(InvalidInput, match=r"CLAIM_LOG names .* cannot be written"):
        partition(_islands(rows=512), rates=FOUR_CORES)


def test_no_gpu_and_no_ort_are_needed() -> None:
    import subprocess
    import sys

    code = "import sys, onnx_vulkan.claims, onnx_vulkan.frontend; print({'onnxruntime', 'vulkan'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
    assert claims.__doc__


def test_reasons_hold_no_names_of_the_lowering() -> None:
    assert readable("its k is host:k.0.") == "its k is k[0]."
    assert readable("a pad of host:my.pads.12, then unknown:3.") == "a pad of my.pads[12], then a number that depends on data."
