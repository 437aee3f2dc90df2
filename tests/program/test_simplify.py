"""The canonical form: transposes and reshapes meet and cancel, equal work is shared, what is constant is folded."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from onnx_vulkan.dims import Scope, symbol
from onnx_vulkan.dtypes import DType
from onnx_vulkan.engine.structure import optimize
from onnx_vulkan.fuse import fuse
from onnx_vulkan.program.builder import Builder
from onnx_vulkan.program.interp import interpret
from onnx_vulkan.program.simplify import simplify

RNG = np.random.default_rng(4)
H, W = symbol("h"), symbol("w")


def count(program, op):
    return Counter(i.op for i in program.instrs)[op]


def weights(*shape):
    return (RNG.integers(-3, 4, shape) / 4).astype(np.float32)


class Net(Builder):
    """Layers as the lowerings write them: ONNX order outside, a channels-last window between two transposes inside."""

    def windowed(self, kind, x, w, kernel, stride, pad, channels, **attrs):
        last = self.transpose(x, [0, 2, 3, 1])
        out = [(e + 2 * pad - kernel) // stride + 1 for e in last.shape[1:3]]
        y = self.window(
            kind, last, w, out_channels=channels, out_spatial=out, kernel=(kernel,) * 2, strides=(stride,) * 2,
            dilations=(1, 1), pads_begin=(pad,) * 2, pads_end=(pad,) * 2, **attrs,
        )[0]  # fmt: skip
        return self.transpose(y, [0, 3, 1, 2])

    def conv(self, x, channels, kernel=3, stride=1, bias=True):
        c = x.shape[1]
        assert isinstance(c, int)
        y = self.windowed(
            "conv", x, self.const(weights(kernel, kernel, c, channels)), kernel, stride, kernel // 2, channels, groups=1
        )
        return self.add(y, self.const(weights(1, channels, 1, 1))) if bias else y

    def pool(self, x, kind="max"):
        attrs = {"count_include_pad": False} if kind == "avg" else {}
        return self.windowed(kind, x, None, 2, 2, 0, x.shape[1], **attrs)

    def relu(self, x):
        return self.map("max", x, self.scalar(0, DType.F32))


def check(b, outputs, feeds, transposes):
    """The canonical program has so many transposes and the same results."""
    program = b.finish(outputs)
    numbers = {"h": feeds["x"].shape[2], "w": feeds["x"].shape[3]} if any(e is H for v in b.inputs for e in v.shape) else {}
    with Scope(numbers):
        best = optimize(program, {})
    assert count(best, "transpose") == transposes, best
    for got, want in zip(interpret(best, feeds), interpret(program, feeds), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
    return best


def image(*shape):
    return {"x": weights(*shape)}


@pytest.mark.parametrize("shape", [(1, 3, 8, 12), (2, 3, H, W)])
def test_a_chain_of_layers_has_a_transpose_at_each_edge(shape):
    b = Net()
    x = b.input("x", DType.F32, shape)
    y = x
    for channels in (4, 8, 8):
        y = b.relu(b.conv(y, channels))
    y = b.pool(y)
    check(b, [y], image(shape[0], 3, 8, 12), 2)


@pytest.mark.parametrize("shape", [(1, 3, 8, 12), (1, 3, H, W)])
def test_residuals_concats_and_pools_keep_the_order(shape):
    b = Net()
    x = b.input("x", DType.F32, shape)
    y = b.relu(b.conv(x, 8))
    y = b.relu(b.add(b.conv(b.relu(b.conv(y, 8)), 8), y))
    left, right = b.conv(y, 4, kernel=1), b.relu(b.conv(y, 4))
    y = b.pool(b.concat([left, right, y], 1), "avg")
    y = b.conv(b.pad(y, [0, 0, 1, 1], [0, 0, 1, 1]), 5)
    check(b, [y], image(1, 3, 8, 12), 2)


def test_squeeze_and_excitation():
    b = Net()
    y = b.conv(b.input("x", DType.F32, (1, 3, 8, 12)), 8)
    squeezed = b.mean(y, [2, 3], keepdims=True)
    gate = b.conv(b.relu(b.conv(squeezed, 2, kernel=1)), 8, kernel=1)
    one = b.scalar(1, DType.F32)
    gate = b.div(one, b.add(one, b.exp(b.neg(gate))))
    y = b.conv(b.mul(y, gate), 4)
    check(b, [y], image(1, 3, 8, 12), 2)


def test_a_global_pool_and_a_classifier_need_one_transpose():
    b = Net()
    y = b.relu(b.conv(b.input("x", DType.F32, (2, 3, 8, 12)), 8))
    y = b.mean(y, [2, 3], keepdims=True)
    y = b.contract(b.reshape(y, (2, 8)), b.const(weights(8, 5)))
    check(b, [y], image(2, 3, 8, 12), 1)


def test_channels_of_one_need_no_transpose():
    b = Net()
    x = b.input("x", DType.F32, (2, 1, 8, 12))
    check(b, [b.conv(x, 1)], image(2, 1, 8, 12), 0)


def test_slices_gathers_scans_and_sorts_follow():
    b = Net()
    y = b.conv(b.input("x", DType.F32, (1, 3, 6, 6)), 4)
    y = b.slice(y, [0, 3, 0, 5], [1, 3, 6, 3], [1, -1, 1, -2])
    y = b.gather(y, b.const(np.array([2, 0, 1, 1])), 1)
    y = b.scan("sum", y, 2)
    y, order = b.sort(y, 2, 1, largest=True)
    z = b.conv(y, 2)
    best = check(b, [z, order], image(1, 3, 6, 6), 3)
    assert count(best, "sort") == 1


def test_an_operand_in_the_other_order_is_left_alone():
    """No transpose is added to a tensor that had none."""
    b = Net()
    x = b.input("x", DType.F32, (1, 4, 6, 6))
    y = b.add(b.conv(x, 4, bias=False), x)
    program = b.finish([y])
    assert count(simplify(program), "transpose") <= count(program, "transpose")


def test_transposes_sink_below_reshapes_that_keep_their_axes_together():
    b = Builder()
    x = b.input("x", DType.F32, (2, 3, 4, 5))
    heads = b.transpose(x, [0, 2, 1, 3])
    y = b.reshape(heads, (2, 4, 3, 5, 1))
    y = b.transpose(b.reshape(y, (2, 4, 3, 5)), [0, 2, 1, 3])
    best = simplify(b.finish([y]))
    assert not best.instrs and best.outputs == [x]


def test_equal_work_is_done_once_and_dead_work_not_at_all():
    b = Builder()
    x = b.input("x", DType.F32, (3, 4))
    one, two = b.exp(b.neg(x)), b.exp(b.neg(x))
    b.log(x)
    best = simplify(b.finish([b.add(one, two), two]))
    assert [i.attrs["fn"] for i in best.instrs] == ["neg", "exp", "add"]
    # equal but for an attribute is not equal
    best = simplify(b.finish([b.reduce("sum", x, [0]), b.reduce("sum", x, [1])]))
    assert count(best, "reduce") == 2


def test_what_depends_on_constants_alone_is_folded():
    b = Builder()
    x = b.input("x", DType.F32, (3, 4))
    scale = b.mul(b.exp(b.const(np.zeros(4, np.float32))), b.scalar(3, DType.F32))
    y = b.mul(x, b.transpose(b.broadcast(b.reshape(scale, (4, 1)), (4, 3)), [1, 0]))
    best = optimize(b.finish([y]), {})
    assert Counter(i.op for i in best.instrs) == {"map": 1, "broadcast": 1}
    np.testing.assert_array_equal(interpret(best, {"x": np.ones((3, 4), np.float32)})[0], np.full((3, 4), 3))


def test_work_on_equal_small_constants_is_equal_work():
    b = Builder()
    x = b.input("x", DType.F32, (2, 3))
    pairs = [b.add(x, b.const(np.array([1, 2, 3], np.float32))) for _ in range(2)]
    others = [b.add(x, b.const(np.array([0.0, sign, 1], np.float32))) for sign in (0.0, -0.0)]
    best = simplify(b.finish([*pairs, *others]))
    assert Counter(i.op for i in best.instrs)["map"] == 3  # 0 and -0 differ
    assert best.outputs[0] is best.outputs[1] and best.outputs[2] is not best.outputs[3]


def test_folding_shares_results_of_one_model_by_name():
    known = {}

    def once():
        b = Builder()
        x = b.input("x", DType.F32, (64, 3))
        w = b.const(np.ones((64, 32), np.float32), "w")
        return optimize(b.finish([b.contract(b.transpose(b.neg(w), [1, 0]), x)]), known)

    first, second = once(), once()
    (a,), (b,) = ([v for v in p.constants() if v.rank] for p in (first, second))
    assert a is b


def test_a_large_spread_of_a_constant_stays_where_it_is():
    b = Builder()
    x = b.input("x", DType.F32, (512, 1024))
    best = optimize(b.finish([b.add(x, b.full((512, 1024), 2, DType.F32))]), {})
    assert sum(v.data.size for v in best.constants()) == 1


def test_outputs_may_be_inputs_constants_and_each_other():
    b = Builder()
    x = b.input("x", DType.I64, (2, 3))
    flat = b.reshape(x, (6,))
    c = b.const(np.arange(3))
    y = b.neg(x)
    program = b.finish([x, c, flat, y, y, b.transpose(b.transpose(x, [1, 0]), [1, 0])])
    best = simplify(program)
    feeds = {"x": np.arange(6).reshape(2, 3)}
    for got, want in zip(interpret(best, feeds), interpret(program, feeds), strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("length", [5, 1])
def test_heads_that_share_keys_and_values_read_them_where_they_are(length):
    """As models write it: keys and values of 2 heads are spread over 3 heads each by expand and reshape."""
    b = Builder()
    rows = symbol("n")
    x, past = b.input("x", DType.F32, (2, rows, 6 * 4)), b.input("past", DType.F32, (2, 2, 7, 4))
    q = b.transpose(b.reshape(x, (2, rows, 6, 4)), [0, 2, 1, 3])

    def shared(v):
        return b.reshape(b.broadcast(b.reshape(v, (2, 2, 1, 7, 4)), (2, 2, 3, 7, 4)), (2, 6, 7, 4))

    scores = b.contract(q, b.transpose(shared(b.tanh(past)), [0, 1, 3, 2]))
    scores = b.add(b.mul(scores, b.scalar(0.5, DType.F32)), b.const(weights(1, 1, 1, 7)))
    e = b.exp(b.sub(scores, b.reduce("max", scores, [3], keepdims=True)))
    y = b.contract(b.div(e, b.reduce("sum", e, [3], keepdims=True)), shared(past))
    y = b.reshape(b.transpose(y, [0, 2, 1, 3]), (2, rows, 24))
    program = b.finish([b.contract(y, b.const(weights(24, 3)))])
    feeds = {"x": weights(2, length, 24), "past": weights(2, 2, 7, 4)}
    with Scope({"n": length}):
        best = optimize(program, {})
        steps = fuse(best).steps
    (got,), (want,) = interpret(best, feeds), interpret(program, feeds)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    spread = [v for step in steps for v in step.writes if 3 in v.shape[:-2] and 7 in v.shape]
    assert not spread, "neither keys nor values are written for each head"
    assert count(best, "attention") == 1 and len(steps) == 3, [s.label for s in steps]


def test_a_batch_axis_of_one_operand_alone_is_split_in_both():
    b = Builder()
    x, y = b.input("x", DType.F32, (6, 4, 5)), b.input("y", DType.F32, (3, 1, 5, 2))
    spread = b.reshape(b.broadcast(y, (3, 2, 5, 2)), (6, 5, 2))
    program = b.finish([b.contract(x, spread), b.contract(b.transpose(spread, [0, 2, 1]), b.transpose(x, [0, 2, 1]))])
    with Scope({}):
        best = optimize(program, {})
    assert all(i.out.shape[:2] == (3, 2) for i in best.instrs if i.op == "contract")
    feeds = {"x": weights(6, 4, 5), "y": weights(3, 1, 5, 2)}
    for got, want in zip(interpret(best, feeds), interpret(program, feeds), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [DType.I8, DType.U8])
def test_products_take_bytes_as_they_are(dtype):
    """Not widened first, also where views lie between; a zero point that is subtracted keeps an operand wide."""
    b = Builder()
    x, w = b.input("x", dtype, (2, 3, 8, 5)), b.input("w", dtype, (8, 3))
    y, v = b.input("y", dtype, (3, 5)), b.input("v", dtype, (5, 4))
    turned = b.reshape(b.transpose(b.cast(x, DType.I32), [0, 1, 3, 2]), [6, 5, 8])
    z = b.contract(turned, b.cast(w, DType.I32))
    shifted = b.contract(b.sub(b.cast(y, DType.I32), b.scalar(3, DType.I32)), b.cast(v, DType.I32))
    program = b.finish([z, shifted])
    after = simplify(program)
    dtypes = [[v.dtype for v in i.inputs] for i in after.instrs if i.op == "contract"]
    assert dtypes == [[dtype, dtype], [DType.I32, dtype]]
    feeds = {v.name: RNG.integers(0, 100, v.shape).astype(dtype.numpy) for v in program.inputs}
    for before, now in zip(interpret(program, feeds), interpret(after, feeds), strict=True):
        np.testing.assert_array_equal(before, now)


def test_windows_and_heads_are_read_where_they_are():
    """Attention in windows, as models write it: batch and heads of one product, cut from a tensor that has them apart."""
    b = Builder()
    windows, tokens, heads, depth = 4, 9, 3, 8
    x = b.input("x", DType.F32, (windows * tokens, 3 * heads * depth))
    qkv = b.tanh(x)
    qkv = b.transpose(b.reshape(qkv, (windows, tokens, 3, heads, depth)), [2, 0, 3, 1, 4])
    qkv = b.reshape(qkv, (3, windows * heads, tokens, depth))
    parts = [b.slice(qkv, (i, 0, 0, 0), (1, *qkv.shape[1:])) for i in range(3)]
    q, k, v = (b.reshape(p, qkv.shape[1:]) for p in parts)
    y = b.contract(b.contract(q, b.transpose(k, [0, 2, 1])), v)
    y = b.transpose(b.reshape(y, (windows, heads, 3, 3, depth)), [0, 2, 3, 1, 4])
    program = b.finish([b.contract(b.reshape(y, (windows * tokens, heads * depth)), b.const(weights(heads * depth, 5)))])
    with Scope({}):
        best = optimize(program, {})
        steps = fuse(best).steps
    feeds = {"x": weights(*x.shape)}
    for got, want in zip(interpret(best, feeds), interpret(program, feeds), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
    assert [len(s.writes) for s in steps] == [1] * 4, [s.label for s in steps]  # the tanh and three products


@pytest.mark.parametrize("cut", [((0, 1, 0), (6, 2, 5)), ((0, 0, 4), (6, 4, 1)), ((1, 0, 0), (3, 4, 5)), ((0, 0, 0), (6, 4, 5))])
def test_slices_of_what_was_reshaped(cut):
    b = Builder()
    x = b.input("x", DType.F32, (2, 3, 4, 5))
    split = b.slice(b.reshape(b.abs(x), (2, 3, 2, 2, 5)), (0, 0, 1, 1, 0), (2, 3, 1, 1, 5))
    program = b.finish([b.neg(b.slice(b.reshape(b.abs(x), (6, 4, 5)), *cut, steps=(1, 1, 1))), split])
    best = optimize(program, {})
    feeds = {"x": weights(2, 3, 4, 5)}
    for got, want in zip(interpret(best, feeds), interpret(program, feeds), strict=True):
        assert got.tobytes() == want.tobytes() and got.shape == want.shape


@pytest.mark.parametrize("factor", [0.5, np.inf, 0.0])
def test_a_number_that_scales_a_slice_scales_the_product(factor):
    b = Builder()
    x, w = b.input("x", DType.F32, (2, 6, 8)), b.input("w", DType.F32, (2, 4, 3))
    part = b.mul(b.scalar(factor, DType.F32), b.slice(x, (0, 0, 2), (2, 6, 4)))
    program = b.finish([b.contract(part, w), b.contract(b.transpose(w, [0, 2, 1]), b.transpose(part, [0, 2, 1]))])
    best = optimize(program, {})
    scales_last = [i.op for i in best.instrs if i.op in ("map", "contract")][:2] == ["contract", "map"]
    assert scales_last == (factor == 0.5), "no factor whose place matters is moved"
    feeds = {"x": weights(2, 6, 8), "w": weights(2, 4, 3)}
    with np.errstate(all="ignore"):
        for got, want in zip(interpret(best, feeds), interpret(program, feeds), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
