"""What shares a kernel: epilogues, row kernels, recomputation, and what must not be fused."""

from __future__ import annotations

import numpy as np
import pytest
from onnx_vulkan.device import Device
from onnx_vulkan.dims import Scope, symbol
from onnx_vulkan.dtypes import DType
from onnx_vulkan.engine.block import DeviceLimits
from onnx_vulkan.engine.structure import optimize
from onnx_vulkan.fuse import MAX_INLINE, MAX_LEAVES, fuse
from onnx_vulkan.program.builder import Builder
from onnx_vulkan.program.interp import interpret
from run_program import ProgramRun

RNG = np.random.default_rng(8)
N = symbol("n")


def data(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def check(b, outputs, feeds, kernels, tolerance=1e-5):
    """The program takes so many kernels, and they are right; gives the labels of the steps."""
    program = b.finish(outputs)
    numbers = {"n": feeds["x"].shape[0]}
    with Scope(numbers):
        best = optimize(program, {})
        fused = fuse(best)
    # a value that one kernel makes is made by no other, and read only when it is there
    written = set()
    for step in fused.steps:
        for v in step.reads:
            v = fused.aliases.get(v, v)
            assert v in written or v.is_const or v in best.inputs, (step.label, v)
        assert not written & set(step.writes)
        written |= set(step.writes)
    labels = [step.label for step in fused.steps]
    assert len(labels) == kernels, labels
    with ProgramRun(program, numbers) as run:
        for got, want in zip(run.run(feeds), interpret(program, feeds), strict=True):
            np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)
    return labels


def softmax(b, x, axis):
    e = b.exp(b.sub(x, b.reduce("max", x, [axis], keepdims=True)))
    return b.div(e, b.reduce("sum", e, [axis], keepdims=True))


def layer_norm(b, x, axes):
    d = b.sub(x, b.mean(x, axes, keepdims=True))
    var = b.mean(b.mul(d, d), axes, keepdims=True)
    y = b.mul(d, b.rsqrt(b.add(var, b.scalar(1e-5, DType.F32))))
    scale, bias = (b.const(data(*[x.shape[a] for a in axes])) for _ in range(2))
    return b.add(b.mul(y, scale), bias)


def gelu(b, x):
    half = b.mul(x, b.scalar(0.5, DType.F32))
    return b.mul(half, b.add(b.erf(b.mul(x, b.scalar(0.7071067811865475, DType.F32))), b.scalar(1, DType.F32)))


@pytest.mark.parametrize("axis", [-1, 1, 0])
@pytest.mark.parametrize("lead", [5, N])
def test_softmax_is_one_kernel(axis, lead):
    b = Builder()
    x = b.input("x", DType.F32, (lead, 7, 33))
    check(b, [softmax(b, x, axis)], {"x": data(5, 7, 33)}, 1)


def test_softmax_with_scale_mask_and_a_cast_is_one_kernel():
    b = Builder()
    x = b.input("x", DType.F32, (N, 4, 9, 9))
    mask = b.input("mask", DType.BOOL, (N, 1, 1, 9))
    s = b.select(mask, b.mul(x, b.scalar(0.25, DType.F32)), b.scalar(-1e4, DType.F32))
    y = b.cast(softmax(b, s, -1), DType.F16)
    feeds = {"x": data(2, 4, 9, 9), "mask": RNG.random((2, 1, 1, 9)) < 0.7}
    check(b, [y], feeds, 1, tolerance=1e-3)


@pytest.mark.parametrize("axes", [(-1,), (-2, -1)])
def test_layer_norm_is_one_kernel(axes):
    b = Builder()
    x = b.input("x", DType.F32, (N, 6, 40))
    check(b, [layer_norm(b, x, axes)], {"x": data(3, 6, 40)}, 1, tolerance=1e-4)


def test_a_residual_sum_before_a_norm_is_stored_on_the_way():
    b = Builder()
    x, r = (b.input(name, DType.F32, (N, 6, 40)) for name in "xr")
    s = b.add(x, r)
    y = layer_norm(b, s, (-1,))
    w = b.const(data(40, 16))
    z = b.contract(y, w)
    # the sum goes into the norm's kernel although the last line reads it too
    out = b.add(s, b.contract(b.neg(z), b.const(data(16, 40))))
    check(b, [out], {"x": data(2, 6, 40), "r": data(2, 6, 40)}, 3, tolerance=1e-3)


def test_a_product_takes_bias_activation_and_residual():
    b = Builder()
    x, r = b.input("x", DType.F32, (N, 24)), b.input("r", DType.F32, (N, 20))
    y = gelu(b, b.add(b.contract(x, b.const(data(24, 20))), b.const(data(20))))
    check(b, [b.add(y, r)], {"x": data(9, 24), "r": data(9, 20)}, 1, tolerance=1e-4)


def test_a_convolution_takes_what_follows_it():
    b = Builder()
    x = b.input("x", DType.F32, (N, 9, 8, 4))
    w = b.const(data(3, 3, 4, 6))
    (y,) = b.window(
        "conv", x, w, out_channels=6, out_spatial=(9, 8), kernel=(3, 3), strides=(1, 1), dilations=(1, 1), pads_begin=(1, 1),
        pads_end=(1, 1), groups=1,
    )  # fmt: skip
    y = b.map("max", b.add(y, b.const(data(6))), b.scalar(0, DType.F32))
    check(b, [b.add(y, b.const(data(1, 9, 8, 6)))], {"x": data(2, 9, 8, 4)}, 1, tolerance=1e-4)


def test_squeeze_and_excitation_is_a_kernel_a_product():
    b = Builder()
    x = b.input("x", DType.F32, (N, 30, 16))
    squeezed = b.mean(x, [1])
    y = b.map("max", b.contract(squeezed, b.const(data(16, 4))), b.scalar(0, DType.F32))
    one = b.scalar(1, DType.F32)
    gate = b.div(one, b.add(one, b.exp(b.neg(b.contract(y, b.const(data(4, 16)))))))
    out = b.mul(x, b.reshape(gate, (N, 1, 16)))
    check(b, [out], {"x": data(3, 30, 16)}, 4, tolerance=1e-4)


def test_movement_costs_no_kernel():
    b = Builder()
    x = b.input("x", DType.F32, (N, 12, 8))
    y = b.slice(b.transpose(x, [0, 2, 1]), [0, 7, 0], [N, 8, 6], [1, -1, 2])
    y = b.pad(b.concat([y, b.neg(y)], 2), [0, 1, 0], [0, 0, 2], "constant", b.scalar(3, DType.F32))
    check(b, [b.gather(y, b.const(np.array([[0, -1], [3, 5]])), 1)], {"x": data(3, 12, 8)}, 1)


def test_heads_are_split_and_joined_in_place():
    b = Builder()
    x = b.input("x", DType.F32, (N, 6, 16))

    def heads(w):
        return b.transpose(b.reshape(b.contract(x, b.const(w)), (N, 6, 4, 4)), [0, 2, 1, 3])

    q, k, v = (heads(data(16, 16)) for _ in range(3))
    p = softmax(b, b.contract(q, b.transpose(k, [0, 1, 3, 2])), -1)
    y = b.reshape(b.transpose(b.contract(p, v), [0, 2, 1, 3]), (N, 6, 16))
    # three projections, attention, projection: no copy between them
    check(b, [b.contract(y, b.const(data(16, 16)))], {"x": data(2, 6, 16)}, 5, tolerance=1e-3)


def test_a_cheap_value_is_computed_again_and_a_costly_one_stored_on_the_way():
    b = Builder()
    x = b.input("x", DType.F32, (N, 8))
    cheap = b.neg(x)
    check(b, [b.reduce("sum", cheap, [0]), b.reduce("max", cheap, [1])], {"x": data(5, 8)}, 2)
    b = Builder()
    x = b.input("x", DType.F32, (N, 8))
    costly = b.erf(b.exp(b.map("sin", b.map("tan", x))))
    outs = [b.reduce("sum", costly, [0]), b.reduce("max", costly, [1])]
    check(b, outs, {"x": data(5, 8)}, 2)
    _, second = fuse(b.finish(outs)).steps
    assert second.reads == (costly,)
    # two loops cannot share it, so it is a kernel of its own
    b = Builder()
    x = b.input("x", DType.F32, (N, 8))
    costly = b.erf(b.exp(x))
    check(b, [b.transpose(costly, [1, 0]), b.concat([costly, x], 0)], {"x": data(5, 8)}, 3)


def test_a_value_is_stored_before_it_is_spread_far():
    b = Builder()
    x = b.input("x", DType.F32, (N, 1))
    costly = b.exp(b.map("sin", x))
    check(b, [b.add(b.broadcast(costly, (N, 64)), b.input("y", DType.F32, (N, 64)))], {"x": data(5, 1), "y": data(5, 64)}, 2)


def test_no_cycle_between_two_regions():
    """Two products, each of whose epilogues would need the other's result."""
    b = Builder()
    x, y = b.input("x", DType.F32, (N, 8)), b.input("y", DType.F32, (N, 8))
    w = b.const(data(8, 8))
    p, q = b.contract(x, w), b.contract(y, w)
    left, right = b.add(b.neg(p), q), b.add(b.exp(b.mul(q, b.scalar(0.1, DType.F32))), p)
    check(b, [left, right], {"x": data(4, 8), "y": data(4, 8)}, 3, tolerance=1e-4)


def test_no_cycle_through_a_product():
    """A row kernel must not take in what depends on a product of its own result."""
    b = Builder()
    x = b.input("x", DType.F32, (N, 8))
    y = layer_norm(b, x, (-1,))
    z = b.add(y, b.contract(y, b.const(data(8, 8))))
    top = b.reduce("max", z, [1], keepdims=True)
    check(b, [b.add(b.sub(z, top), y)], {"x": data(4, 8)}, 3, tolerance=1e-3)


def test_a_tensor_of_the_rows_shape_along_another_axis_is_no_row():
    b = Builder()
    x = b.input("x", DType.F32, (N, 4, 4))
    low = b.reduce("min", x, [0, 2])  # one a middle index
    check(b, [b.add(x, low)], {"x": data(3, 4, 4)}, 2)
    b = Builder()
    x = b.input("x", DType.F32, (N, 4, 4))
    low = b.reduce("min", x, [0, 2])
    check(b, [b.add(x, b.reshape(low, (4, 1)))], {"x": data(3, 4, 4)}, 1)


def test_reductions_over_other_axes_are_kernels_of_their_own():
    b = Builder()
    x = b.input("x", DType.F32, (N, 6, 5))
    low, total = b.reduce("min", x, [1], keepdims=True), b.reduce("sum", x, [2], keepdims=True)
    check(b, [b.add(b.sub(x, low), total)], {"x": data(3, 6, 5)}, 2, tolerance=1e-4)


def test_a_long_chain_is_cut():
    b = Builder()
    y = x = b.input("x", DType.F32, (N, 5))
    for i in range(300):
        y = b.mul(b.add(y, x), b.scalar(0.5 + i / 1000, DType.F32))
    program = optimize(b.finish([y]), {})
    steps = fuse(program).steps
    limits = DeviceLimits.of(Device.get())
    launches = [launch for step in steps for launch in step.launches(lambda e: e if isinstance(e, int) else 3, limits)]
    assert all(launch.kernel.body.count("\n") < 3 * MAX_INLINE for launch in launches)
    check(b, [y], {"x": data(3, 5)}, len(steps), tolerance=1e-4)


def test_many_operands_are_cut():
    b = Builder()
    xs = [b.input("x", DType.F32, (N, 5)), *(b.input(f"x{i}", DType.F32, (N, 5)) for i in range(60))]
    total = xs[0]
    for x in xs[1:]:
        total = b.add(total, x)
    feeds = {v.name: data(3, 5) for v in xs}
    check(b, [total], feeds, 4, tolerance=1e-4)
    assert all(len(step.reads) <= MAX_LEAVES for step in fuse(b.finish([total])).steps)


def test_independent_branches_stand_side_by_side():
    b = Builder()
    x = b.input("x", DType.F32, (N, 8))
    outs = []
    weights = [b.input(name, DType.F32, (8, 8)) for name in "abc"]
    for w in weights:
        y = b.contract(x, w)
        outs.append(b.contract(y, b.const(data(8, 8))))
    program = b.finish(outs)
    with ProgramRun(program, {"n": 4}) as run:
        run.run({"x": data(4, 8), **{w.name: data(8, 8) for w in weights}})
        ((tables, _),) = run.plans
        assert list(tables.commands["op"]) == [0, 0, 0, 2, 0, 0, 0]  # one barrier for all three


def test_what_is_stored_before_it_is_spread_costs_its_readers_nothing():
    b = Builder()
    x = b.input("x", DType.F32, (N, 1))
    first, second = b.input("first", DType.F32, (N, 64)), b.input("second", DType.F32, (N, 64))
    costly = b.exp(b.exp(b.neg(b.abs(x))))
    below = b.lt(b.broadcast(costly, (N, 64)), b.broadcast(b.scalar(2, DType.F32), (N, 64)))
    outputs = [b.select(below, first, second), b.select(below, second, first)]
    feeds = {"x": data(5, 1), "first": data(5, 64), "second": data(5, 64)}
    check(b, outputs, feeds, 2)  # the mask is no tensor of its own


def test_what_many_kernels_read_spread_is_stored_before_it_is_spread():
    b = Builder()
    x = b.input("x", DType.F32, (N, 1))
    other = [b.input(name, DType.F32, (N, 64)) for name in ("first", "second", "third")]
    sign = b.lt(b.mul(b.abs(x), x), b.neg(b.abs(b.sub(x, b.abs(x)))))
    outputs = [b.select(b.broadcast(sign, (N, 64)), v, b.neg(v)) for v in other]
    feeds = {"x": data(5, 1), **{v.name: data(5, 64) for v in other}}
    program = b.finish(outputs)
    with Scope({"n": 5}):
        fused = fuse(optimize(program, {}))
    assert sum(v.dtype is DType.BOOL for step in fused.steps for v in step.writes) == 1
    assert all(v.shape == (N, 1) for step in fused.steps for v in step.writes if v.dtype is DType.BOOL)
    check(b, outputs, feeds, 2)


def part(b, x, start, size):
    return b.slice(x, (0, start), (x.shape[0], size))


def test_loops_of_one_shape_are_one_kernel():
    b = Builder()
    x = b.input("x", DType.F32, (N, 8))
    left, right = part(b, x, 0, 4), part(b, x, 4, 4)
    costly = b.exp(b.sin(left))
    outputs = [b.add(costly, right), b.mul(costly, right), b.sqrt(b.abs(right))]
    feeds = {"x": data(5, 8)}
    check(b, outputs, feeds, 1)
    with Scope({"n": 5}):
        (step,) = fuse(optimize(b.finish(outputs), {})).steps
    assert len(step.writes) == 3, "what the kernel alone reads is not stored"


def test_small_loops_that_share_nothing_are_one_kernel():
    b = Builder()
    x, y = b.input("x", DType.F32, (N, 4)), b.input("y", DType.F32, (N, 4))
    outputs = [b.exp(x), b.transpose(b.sin(b.transpose(y, [1, 0])), [1, 0])]
    check(b, outputs, {"x": data(5, 4), "y": data(5, 4)}, 1)
    check(b, outputs, {"x": data(5000, 4), "y": data(5000, 4)}, 2)


def test_loops_join_what_they_read_at_their_own_index_only():
    b = Builder()
    x = b.input("x", DType.F32, (4, 4))
    y = b.exp(b.sin(x))
    turned = b.add(b.transpose(y, [1, 0]), b.tanh(b.transpose(y, [1, 0])))
    check(b, [y, turned], {"x": data(4, 4)}, 2)
    b = Builder()
    x = b.input("x", DType.F32, (4, 4))
    y = b.exp(b.sin(x))
    check(b, [y, b.add(b.tanh(y), x)], {"x": data(4, 4)}, 1)


def test_no_loop_waits_for_more_than_before():
    b = Builder()
    x = b.input("x", DType.F32, (N, 8))
    y = b.tanh(x)
    z = b.contract(y, b.const(data(8, 8)))
    late = b.concat([part(b, z, 0, 4), part(b, x, 4, 4)], 1)  # reads x like y, but needs y
    check(b, [y, late], {"x": data(4, 8)}, 3, tolerance=1e-4)
    other = b.input("other", DType.F32, (N, 8))
    product = b.contract(other, b.const(data(8, 8)))
    early, late = b.sin(b.add(other, x)), b.concat([part(b, product, 0, 4), part(b, other, 4, 4)], 1)
    feeds = {"x": data(4, 8), "other": data(4, 8)}
    check(b, [early, late], feeds, 3, tolerance=1e-4)  # apart: `early` runs beside the product
