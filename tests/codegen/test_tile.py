"""Loop kernels in tiles: transposes of every dtype, off the tiles' sides, with what is fused around them."""

from __future__ import annotations

import numpy as np
import pytest
from onnx_vulkan.codegen.loop import loop_step
from onnx_vulkan.dims import symbol
from onnx_vulkan.dtypes import NUMERIC, DType
from onnx_vulkan.program.builder import Builder
from onnx_vulkan.program.interp import interpret
from run_program import ProgramRun

RNG = np.random.default_rng(4)
N = symbol("n")


def data(shape, dtype):
    """Any bytes; of floats no NaN, whose payload may change on the way."""
    if dtype is DType.BOOL:
        return RNG.random(shape) < 0.5
    if dtype.is_float:
        return (RNG.integers(-64, 65, shape) / 16).astype(dtype.numpy)
    info = np.iinfo(dtype.numpy)
    return RNG.integers(info.min, info.max, shape, dtype.numpy, endpoint=True)


def check(b, outputs, feeds, numbers=None, **options):
    """The program is right and has one kernel, in tiles; gives how many elements it moves together."""
    program = b.finish(outputs)
    with ProgramRun(program, numbers, **options) as run:
        got = run.run(feeds)
        (launch,) = [x for step in run.steps for x in step.launches(lambda e: e if isinstance(e, int) else 5, run.limits)]
    for g, w in zip(got, interpret(program, feeds, numbers), strict=True):
        assert g.shape == w.shape and g.tobytes() == w.tobytes()
    body = launch.kernel.body
    assert "tile_0" in body
    return 1 if "LOAD_WORDS" not in body else 4 // outputs[0].dtype.size


@pytest.mark.parametrize("dtype", sorted(NUMERIC, key=lambda d: d.value))
def test_every_dtype(dtype):
    for shape, words in (
        ((132, 136), True),
        ((129, 135), False),
        ((16, 1200), True),
        ((3, 70, 81), False),
        ((2, 3, 64, 64), True),
    ):
        b = Builder()
        x = b.input("x", dtype, shape)
        perm = [*range(len(shape) - 2), len(shape) - 1, len(shape) - 2]
        together = check(b, [b.transpose(x, perm)], {"x": data(shape, dtype)})
        if min(shape[-2:]) >= 64:
            assert together == (max(1, 4 // dtype.size) if words else 1)


@pytest.mark.parametrize("perm", [(0, 2, 3, 1), (0, 3, 1, 2), (3, 2, 1, 0), (2, 0, 3, 1), (1, 3, 2, 0)])
def test_permutations(perm):
    for dtype in (DType.F32, DType.F16):
        b = Builder()
        x = b.input("x", dtype, (10, 12, 14, 16))
        check(b, [b.transpose(x, perm)], {"x": data(x.shape, dtype)})


def test_what_is_fused_around_a_transpose():
    b = Builder()
    x, y = b.input("x", DType.F32, (130, 140)), b.input("y", DType.F32, (140, 130))
    bias, scale = b.input("bias", DType.F32, (130,)), b.input("scale", DType.F32, (140, 1))
    t = b.transpose(b.abs(x), [1, 0])
    total = b.add(b.add(t, y), b.broadcast(bias, y.shape))
    out = b.mul(total, b.broadcast(scale, y.shape))
    check(b, [out], {v.name: data(v.shape, DType.F32) for v in (x, y, bias, scale)})


def test_two_transposes_and_a_slice():
    b = Builder()
    x, y = b.input("x", DType.F16, (200, 140)), b.input("y", DType.F16, (136, 128))
    t = b.transpose(b.slice(x, [8, 4], [136, 128]), [1, 0])
    u = b.transpose(y, [1, 0])
    check(b, [b.map("min", t, u)], {"x": data(x.shape, DType.F16), "y": data(y.shape, DType.F16)})


def test_more_tiles_than_a_direction_of_the_grid_has():
    b = Builder()
    x = b.input("x", DType.U8, (65600, 8, 9))
    check(b, [b.transpose(x, [0, 2, 1])], {"x": data(x.shape, DType.U8)})


def test_tensors_of_several_widths():
    b = Builder()
    x, m, y = b.input("x", DType.F16, (136, 128)), b.input("m", DType.BOOL, (136, 128)), b.input("y", DType.F16, (128, 136))
    picked = b.map("select", b.transpose(m, [1, 0]), b.transpose(x, [1, 0]), y)
    feeds = {v.name: data(v.shape, v.dtype) for v in (x, m, y)}
    check(b, [picked], feeds)
    check(b, [b.cast(b.transpose(m, [1, 0]), DType.F16)], feeds)
    check(b, [b.cast(b.transpose(x, [1, 0]), DType.F32)], feeds)
    check(b, [b.map("select", b.transpose(m, [1, 0]), y, b.neg(y))], feeds)


def test_more_tensors_than_shared_memory_holds():
    b = Builder()
    xs = [b.input(f"x{i}", DType.F32, (136, 128)) for i in range(9)]
    total = b.transpose(xs[0], [1, 0])
    for x in xs[1:]:
        total = b.map("max", total, b.transpose(b.abs(x), [1, 0]))
    program = b.finish([total])
    feeds = {x.name: data(x.shape, DType.F32) for x in xs}
    with ProgramRun(program) as run:
        np.testing.assert_array_equal(run.run(feeds)[0], interpret(program, feeds)[0])


def test_padding_after_a_transpose():
    b = Builder()
    x = b.input("x", DType.F32, (130, 140))
    y = b.pad(b.transpose(x, [1, 0]), [1, 2], [3, 4], "constant", b.scalar(7, DType.F32))
    program = b.finish([y])
    with ProgramRun(program) as run:
        (got,) = run.run({"x": (a := data(x.shape, DType.F32))})
    np.testing.assert_array_equal(got, interpret(program, {"x": a})[0])


def test_run_time_extents():
    for shape, runtime in (((N, 128), {"n": 400}), ((2, 130, N), {"n": 300})):
        b = Builder()
        x = b.input("x", DType.U8, shape)
        perm = [*range(len(shape) - 2), len(shape) - 1, len(shape) - 2]
        program = b.finish([b.transpose(x, perm)])
        with ProgramRun(program, {"n": 5}, runtime=runtime) as run:
            for n in (5, runtime["n"], 1, 0, 97, 128):
                a = data([n if e is N else e for e in shape], DType.U8)
                np.testing.assert_array_equal(run.run({"x": a})[0], interpret(program, {"x": a})[0])
            assert len(run.plans) == 1


def test_what_is_too_small_or_too_narrow_is_a_plain_loop():
    for shape in ((100, 100), (3, 20000), (20000, 4)):
        b = Builder()
        x = b.input("x", DType.F32, shape)
        producers = b.finish([y := b.transpose(x, [1, 0])]).producers()
        step = loop_step("", [y], producers, lambda v, producers=producers: v not in producers)
        with ProgramRun(b.finish([y])) as run:
            (launch,) = step.launches(lambda e: e, run.limits)
            assert "tile" not in launch.kernel.body
            a = data(shape, DType.F32)
            np.testing.assert_array_equal(run.run({"x": a})[0], a.T)
