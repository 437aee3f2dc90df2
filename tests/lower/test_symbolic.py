"""Claiming without shapes, binding with guards, host-known inputs, control flow: what hangs on Dims rather than numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx.reference import ReferenceEvaluator
from onnx_vulkan.dims import Scope, symbol
from onnx_vulkan.errors import RefusedError, ShapeMismatch, Unsupported
from onnx_vulkan.graph import Graph
from onnx_vulkan.lower import lower_graph
from run_case import bind, claim, graph_of, refusals, replay, run, symbol_numbers


def parsed(text: str, opset: int = 17) -> Graph:
    """A graph in ONNX's textual syntax."""
    return graph_of(written(text, opset))


def written(text: str, opset: int) -> onnx.ModelProto:
    """The model around it."""
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}]>\n{text}')


def floats(*shape: int) -> Any:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


MERGE_HEADS = """g (float[n, s, 8] x) => (float[a, b, c, d] y) {
    shape = Shape(x)
    i0 = Constant<value_int: int = 0>()
    i1 = Constant<value_int: int = 1>()
    n = Gather(shape, i0)
    s = Gather(shape, i1)
    zero = Constant<value_ints: ints = [0]>()
    n1 = Unsqueeze(n, zero)
    s1 = Unsqueeze(s, zero)
    heads = Constant<value_ints: ints = [2, -1]>()
    target = Concat<axis: int = 0>(n1, s1, heads)
    y = Reshape(x, target)
}"""


def test_shape_arithmetic_folds_into_polynomials() -> None:
    graph = parsed(MERGE_HEADS)
    lowered = claim(graph)
    assert not lowered.refusals and not lowered.host_inputs
    assert [i.op for i in lowered.program.instrs] == ["reshape"]
    assert lowered.program.outputs[0].shape == (symbol("n"), symbol("s"), 2, 4)


def test_a_program_serves_every_shape_at_which_its_guards_hold() -> None:
    graph = parsed(MERGE_HEADS)
    lowered, scope = bind(graph, {"x": floats(3, 5, 8)})
    for shape in ((3, 5, 8), (2, 9, 8), (7, 2, 8)):
        x = floats(*shape)
        (y,) = replay(lowered, graph, {"x": x}, scope)
        np.testing.assert_array_equal(y, x.reshape(*shape[:2], 2, 4))


def test_a_slice_is_clamped_by_guards() -> None:
    graph = parsed("""g (float[n] x) => (float[m] y) {
        one = Constant<value_ints: ints = [1]>()
        end = Constant<value_ints: ints = [4]>()
        y = Slice(x, one, end)
    }""")
    lowered, scope = bind(graph, {"x": floats(9)})
    assert lowered.program.outputs[0].shape == (3,)
    assert not all(g.holds({"n": 2}) for g in scope.guards)
    np.testing.assert_array_equal(run(graph, {"x": floats(2)})[0], floats(2)[1:4])


def test_unneeded_nodes_are_not_judged() -> None:
    graph = parsed("""g (float[n] x) => (float[n] y) {
        z = NonZero(x)
        y = Relu(x)
    }""")
    assert not refusals(graph)


RESIZE_BY_INPUT = """g (float[n, 4] x, int64[2] target) => (float[a, b] y) {
    one = Constant<value_ints: ints = [1]>()
    first = Constant<value_int: int = 0>()
    rows = Gather(target, first)
    axis = Constant<value_ints: ints = [0]>()
    rows1 = Unsqueeze(rows, axis)
    wanted = Concat<axis: int = 0>(rows1, one)
    y = Expand(x, wanted)
}"""


def test_a_small_input_that_decides_a_shape_is_demanded() -> None:
    graph = parsed(RESIZE_BY_INPUT)
    lowered = claim(graph)
    assert not lowered.refusals and lowered.host_inputs == ["target"]
    feeds = {"x": floats(1, 4), "target": np.array([3, 9])}
    for host in (True, False):  # as symbols, as numbers
        (y,) = run(graph, feeds, host=host)
        np.testing.assert_array_equal(y, np.broadcast_to(feeds["x"], (3, 4)))


def test_an_input_that_decides_nothing_stays_off_the_key() -> None:
    graph = parsed("""g (int64[2] ids, float[5, 3] table) => (int64[2] more, float[2, 3] rows) {
        one = Constant<value_ints: ints = [1]>()
        more = Add(ids, one)
        rows = Gather(table, more)
    }""")
    assert claim(graph).host_inputs == []


def test_a_broken_constraint_names_the_node() -> None:
    graph = parsed("""g (float[n] x, float[m] y) => (float[k] z) {
        z = Add(x, y)
    }""")
    graph.nodes[0].name = "sum"
    assert not refusals(graph)
    with pytest.raises(ShapeMismatch, match=r"Add 'sum'.*3.*4"):
        run(graph, {"x": floats(3), "y": floats(4)})


def test_every_offender_is_named_and_its_consumers_are_judged_on_declared_types() -> None:
    graph = parsed("""g (float[n] x) => (float[n] y, int64[a, b] z) {
        u = Unknown(x)
        v = Relu(u)
        y = Multinomial(v)
        z = NonZero(v)
    }""")
    for name in ("u", "v"):
        graph.types[name] = graph.types["x"]
    found = refusals(graph)
    assert [(r.op_type, r.check) for r in found] == [("Unknown", "kernel"), ("Multinomial", "kernel"), ("NonZero", "kernel")]
    assert "depends on data" in found[2].reason
    with pytest.raises(RefusedError, match="Unknown"):
        run(graph, {"x": floats(3)})


def test_checks_name_what_they_saw() -> None:
    def reason(text: str, opset: int = 17) -> tuple[str, str]:
        (refusal,) = refusals(parsed(text, opset))
        return refusal.check, refusal.reason

    assert reason("g (int32[n] x) => (int32[n] y) { y = Exp(x) }") == (
        "dtype",
        "input x of Exp is int32; supported are float32, float16, float64, bfloat16.",
    )
    assert reason("g (float[n] x) => (float[n] y) { y = Relu<slope: float = 1.0>(x) }")[0] == "opset"
    assert reason("g (float[n] x) => (float[n] y) { y = Relu(x) }", 29)[0] == "opset"
    check, text = reason("g (float[n] x, int64[m] axes) => (float[k] y) { y = ReduceSum(x, axes) }")
    assert check == "kernel" and "must be known before the run" in text


BRANCHES = """g (float[n, s] x) => (float[a] y) {
    shape = Shape(x)
    one = Constant<value_ints: ints = [1]>()
    index = Constant<value_ints: ints = [1]>()
    last = Gather(shape, index)
    single = Equal(last, one)
    flat = If (single) <
        then_branch = t () => (float[n] p) { p = Squeeze(x, one) },
        else_branch = e () => (float[n, s] q) { q = Identity(x) }
    >
    y = Expand(flat, shape)
}"""


def test_an_if_on_shapes_is_folded_when_bound() -> None:
    graph = parsed(BRANCHES)
    assert not refusals(graph)
    for n, s in ((3, 1), (1, 4), (3, 4)):
        x = floats(n, s)
        (y,) = run(graph, {"x": x})
        np.testing.assert_array_equal(y, (x[:, 0] if s == 1 else x) * np.ones((n, s)))


def test_an_if_on_data_is_refused() -> None:
    graph = parsed("""g (float[n] x, bool c) => (float[n] y) {
        y = If (c) <
            then_branch = t () => (float[n] p) { p = Relu(x) },
            else_branch = e () => (float[n] q) { q = Exp(x) }
        >
    }""")
    # a bool input is small enough to be part of the key
    lowered = claim(graph)
    assert not lowered.refusals and lowered.host_inputs == ["c"]
    x = floats(4)
    for c in (True, False):
        (y,) = run(graph, {"x": x, "c": np.array(c)})
        np.testing.assert_allclose(y, np.maximum(x, 0) if c else np.exp(x), rtol=1e-6)
    graph = parsed("""g (float[n] x) => (float[n] y) {
        total = ReduceSum<keepdims: int = 0>(x)
        zero = Constant<value_float: float = 0.0>()
        c = Greater(total, zero)
        y = If (c) <
            then_branch = t () => (float[n] p) { p = Relu(x) },
            else_branch = e () => (float[n] q) { q = Exp(x) }
        >
    }""")
    (refusal,) = refusals(graph)
    assert refusal.op_type == "If" and "depends on data" in refusal.reason


def test_a_loop_of_a_known_count_is_unrolled() -> None:
    graph = parsed("""g (float[n] x) => (float[n] y, float[3, n] rows) {
        trips = Constant<value_int: int = 3>()
        go = Constant<value = bool {1}>()
        y, rows = Loop (trips, go, x) <
            body = b (int64 i, bool c, float[n] v) => (bool again, float[n] w, float[n] row) {
                again = Identity(c)
                step = Cast<to: int = 1>(i)
                w = Add(v, step)
                row = Identity(w)
            }
        >
    }""")
    x = floats(5)
    y, rows = run(graph, {"x": x})
    np.testing.assert_allclose(y, x + 3, rtol=1e-6)
    np.testing.assert_allclose(rows, np.stack([x, x + 1, x + 3]), rtol=1e-6)


def test_a_loop_may_end_by_its_condition() -> None:
    text = """g (float[n] x) => (float[n] y) {
        many = Constant<value_int: int = 9223372036854775807>()
        go = Constant<value = bool {1}>()
        zero = Constant<value_int: int = 0>()
        last, y = Loop (many, go, zero, x) <
            body = b (int64 i, bool c, int64 k, float[n] v) => (bool again, int64 j, float[n] w) {
                one = Constant<value_int: int = 1>()
                limit = Constant<value_int: int = LIMIT>()
                j = Add(k, one)
                again = Less(j, limit)
                w = Add(v, v)
            }
        >
    }"""
    x = floats(5)
    (y,) = run(parsed(text.replace("LIMIT", "4")), {"x": x})
    np.testing.assert_allclose(y, x * 16, rtol=1e-6)
    (y,) = run(parsed(text.replace("LIMIT", "100")), {"x": x})
    np.testing.assert_allclose(y, x * 2.0**100, rtol=1e-6)
    (refusal,) = refusals(parsed(text.replace("LIMIT", "5000")))
    assert "more than 1365 times" in refusal.reason  # three nodes a time, without the constants


def test_float_arithmetic_on_extents_keeps_or_pins_the_dim() -> None:
    text = """g (float[n] x) => (int64[1] y, float[a] z) {
        shape = Shape(x)
        wide = Cast<to: int = 1>(shape)
        factor = Constant<value_floats: floats = [FACTOR]>()
        scaled = Mul(wide, factor)
        floor = Floor(scaled)
        y = Cast<to: int = 7>(floor)
        one = Constant<value_floats: floats = [1.0]>()
        z = Expand(one, y)
    }"""
    for factor, pinned in (("2.0", False), ("0.7", True)):
        graph = parsed(text.replace("FACTOR", factor))
        assert not refusals(graph)
        lowered, scope = bind(graph, {"x": floats(10)})
        assert any(not g.holds({"n": 11}) for g in scope.guards) == pinned
        y, z = replay(lowered, graph, {"x": floats(10)}, scope)
        assert y.tolist() == [int(np.floor(np.float32(10) * np.float32(factor)))] and z.shape == (y[0],)


def test_a_range_of_symbolic_length_is_made_on_the_device() -> None:
    graph = parsed("""g (float[n, s] x) => (int64[s] y) {
        shape = Shape<start: int = 1>(x)
        axis = Constant<value_ints: ints = [0]>()
        s = Squeeze(shape, axis)
        zero = Constant<value_int: int = 0>()
        one = Constant<value_int: int = 1>()
        y = Range(zero, s, one)
    }""")
    lowered, scope = bind(graph, {"x": floats(2, 5)})
    assert [i.op for i in lowered.program.instrs] == ["iota"]
    (y,) = replay(lowered, graph, {"x": floats(2, 9)}, scope)
    assert y.tolist() == list(range(9))


def test_outputs_may_be_inputs_constants_and_shapes() -> None:
    graph = parsed("""g (float[n, s] x) => (float[n, s] same, int64[2] shape, int64[2] constant) {
        same = Identity(x)
        shape = Shape(x)
        constant = Constant<value_ints: ints = [4, 5]>()
    }""")
    lowered = claim(graph)
    assert lowered.program.outputs[0] is lowered.program.inputs[0] and lowered.host_outputs == ["shape"]
    x = floats(2, 3)
    same, shape, constant = run(graph, {"x": x})
    assert same is x and shape.tolist() == [2, 3] and constant.tolist() == [4, 5]


def test_an_output_of_an_unusable_type_is_an_error_when_bound() -> None:
    graph = parsed("g (string[n] x) => (string[n] x) { }")
    with Scope({"n": 1}), pytest.raises((RefusedError, Unsupported)):
        lower_graph(graph)


def test_symbol_numbers_cover_host_inputs() -> None:
    graph = parsed(RESIZE_BY_INPUT)
    assert symbol_numbers(graph, {"x": floats(1, 4), "target": np.array([3, 9])}) == {
        "n": 1,
        "host:target.0": 3,
        "host:target.1": 9,
    }


@pytest.mark.parametrize(
    "text",
    [
        "g (float[a, b, c] x, int64[2] axes) => (float[p, q, r] y) { y = ReduceSum(x, axes) }",
        "g (float[a, b, c] x, int64[1] axes) => (float[p, q] y) { r = ReduceMax<keepdims: int = 0>(x, axes) y = Exp(r) }",
        "g (float[a, b, c] x, int64[1] axes) => (float[p, q, r, s] y) { y = Unsqueeze(x, axes) }",
        "g (float[a, b, c] x, int64[1] k) => (float[p, q, r] y, int64[p, q, r] i) { y, i = TopK(x, k) }",
    ],
)
def test_axes_and_counts_given_as_inputs_are_claimed_and_pinned(text: str) -> None:
    """Claimed by samples; a run has the numbers, whose guards fail for other ones."""
    graph = parsed(text, 18)
    assert not refusals(graph)
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    numbers = {"axes": np.array([2, 1][: 2 if "int64[2]" in text else 1]), "k": np.array([2])}
    feeds = {n: x if n == "x" else numbers[n] for n in graph.inputs}
    got = run(graph, feeds)
    expected = ReferenceEvaluator(written(text, 18)).run(None, feeds)
    for a, b in zip(got, expected, strict=True):
        np.testing.assert_array_equal(a, b)
    if "axes" in feeds:
        _, scope = bind(graph, feeds)
        other = symbol_numbers(graph, {**feeds, "axes": feeds["axes"] * 0})
        assert not all(g.holds(other) for g in scope.guards)


def test_samples_do_not_speak_for_flags_and_loops() -> None:
    flag = """g (float[n] x, bool training) => (float[n] y) {
        ratio = Constant<value_float: float = 0.5>()
        y = Dropout(x, ratio, training)
    }"""
    assert "training" in refusals(parsed(flag, 17))[0].reason
    loop = """g (float[n] x, int64 trips) => (float[n] y) {
        y = Loop(trips, , x) < body = b (int64 i, bool c, float[n] v) => (bool go, float[n] w) { go = Identity(c) w = Exp(v) } >
    }"""
    assert "trip count" in refusals(parsed(loop, 17))[0].reason
