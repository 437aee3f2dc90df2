"""Loop and row kernels that move vectors, and what keeps them from it: every dtype, odd sizes, unaligned views, run-time dims."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from onnx_vulkan.codegen.vector import VECTOR_COUNT
from onnx_vulkan.dims import symbol
from onnx_vulkan.dtypes import FLOATS, NUMERIC, DType
from onnx_vulkan.program.builder import Builder
from onnx_vulkan.program.interp import interpret
from run_program import ProgramRun

RNG = np.random.default_rng(3)
N = symbol("n")
ROWS = VECTOR_COUNT // 128 + 5
TOLERANCE = {DType.F16: 4e-3, DType.BF16: 3e-2, DType.F64: 1e-9}


def data(shape, dtype):
    if dtype is DType.BOOL:
        return RNG.random(shape) < 0.5
    if dtype.is_float:
        a = (RNG.integers(-64, 65, shape) / 16).astype(np.float32)
        for odd in (np.nan, np.inf, -np.inf, -0.0):
            a[RNG.random(shape) < 0.01] = odd
        return a.astype(dtype.numpy)
    info = np.iinfo(dtype.numpy)
    return RNG.integers(info.min, info.max, shape, dtype.numpy, endpoint=True)


def check(b, outputs, feeds, numbers=None, *, tolerance=0.0, **options):
    """The program is right; gives the texts of its kernels."""
    program = b.finish(outputs)
    with ProgramRun(program, numbers, **options) as run:
        got = run.run(feeds)
        kernels = [x.kernel for step in run.steps for x in step.launches(lambda e: e if isinstance(e, int) else 5, run.limits)]
    for g, w in zip(got, interpret(program, feeds, numbers), strict=True):
        if w.dtype == np.bool_ or np.issubdtype(w.dtype, np.integer):
            np.testing.assert_array_equal(g, w)
        else:
            g, w = g.astype(np.float64), w.astype(np.float64)
            np.testing.assert_allclose(g, w, rtol=tolerance, atol=tolerance, equal_nan=True)
            zero = w == 0
            if not tolerance:
                np.testing.assert_array_equal(np.signbit(g[zero]), np.signbit(w[zero]))
    return [k.body for k in kernels]


def vectors(texts):
    return ["LOAD_WORDS" in text for text in texts]


@pytest.mark.parametrize("dtype", sorted(NUMERIC, key=lambda d: d.value))
def test_elements_of_every_dtype(dtype):
    b = Builder()
    x, m = b.input("x", dtype, (ROWS, 128)), b.input("m", DType.BOOL, (ROWS, 128))
    row = b.input("row", dtype, (128,))
    y = b.map("select", m, x, b.broadcast(row, x.shape))
    feeds = {"x": data(x.shape, dtype), "m": data(m.shape, DType.BOOL), "row": data((128,), dtype)}
    assert vectors(check(b, [y], feeds)) == [True]


@pytest.mark.parametrize("source", [DType.F16, DType.I8, DType.U8, DType.F32])
def test_vectors_of_several_widths(source):
    b = Builder()
    x = b.input("x", source, (ROWS, 128))
    wide = b.cast(x, DType.F32)
    feeds = {"x": data(x.shape, source)}
    assert vectors(check(b, [b.neg(wide)], feeds)) == [True]
    assert vectors(check(b, [b.cast(x, DType.F64)], feeds)) == [True]
    assert vectors(check(b, [b.map("gt", wide, b.scalar(1, DType.F32))], feeds)) == [True]


@pytest.mark.parametrize("columns", [127, 130])
def test_odd_rows(columns):
    b = Builder()
    x, bias = b.input("x", DType.F32, (ROWS + 64, columns)), b.input("bias", DType.F32, (columns,))
    feeds = {"x": data(x.shape, DType.F32), "bias": data(bias.shape, DType.F32)}
    assert vectors(check(b, [b.add(x, b.broadcast(bias, x.shape))], feeds)) == [True]
    assert vectors(check(b, [b.neg(x)], feeds)) == [True]
    shifted = b.pad(b.slice(x, [0, 1], [ROWS + 64, columns - 1]), [0, 1], [0, 0], "edge")
    assert vectors(check(b, [b.add(x, shifted)], feeds)) == [False]


@pytest.mark.parametrize("dtype", sorted(NUMERIC, key=lambda d: d.value))
@pytest.mark.parametrize("more", [1, 2, 7])
def test_a_last_vector_that_is_not_whole(dtype, more):
    b = Builder()
    x = b.input("x", dtype, (VECTOR_COUNT + more,))
    m = b.input("m", DType.BOOL, x.shape)
    feeds = {"x": data(x.shape, dtype), "m": data(m.shape, DType.BOOL)}
    assert vectors(check(b, [b.map("select", m, x, b.broadcast(b.scalar(1, dtype), x.shape))], feeds)) == [True]


def test_views_of_a_row():
    b = Builder()
    x = b.input("x", DType.F32, (ROWS, 200))
    feeds = {"x": data(x.shape, DType.F32)}
    for start, aligned in ((8, True), (6, False)):
        assert vectors(check(b, [b.abs(b.slice(x, [0, start], [ROWS, 128]))], feeds)) == [aligned]
    check(b, [b.abs(b.slice(x, [0, 199], [ROWS, 128], [1, -1]))], feeds)
    check(b, [b.pad(x, [0, 4], [0, 4], "edge")], feeds)
    check(b, [b.add(b.transpose(b.slice(x, [0, 0], [200, 200]), [1, 0]), b.slice(x, [8, 0], [200, 200]))], feeds)


@pytest.mark.parametrize("dtype", [DType.F32, DType.F16, DType.U8])
def test_concatenations_and_pads_by_vectors(dtype):
    b = Builder()
    x, y = b.input("x", dtype, (ROWS, 128)), b.input("y", dtype, (ROWS, 64))
    odd = b.input("odd", dtype, (ROWS, 65))
    feeds = {v.name: data(v.shape, dtype) for v in (x, y, odd)}
    fill = b.scalar(3, dtype)

    def texts(*outputs):
        return vectors(check(b, outputs, feeds))

    assert texts(b.concat([x, b.map("neg", y), x], 1)) == [True]
    assert texts(b.concat([x, b.neg(x)], 0)) == [True]
    assert texts(b.concat([x, odd, y], 1)) == [False]
    assert texts(b.pad(x, [0, 16], [3, 32], "constant", fill)) == [True]
    assert texts(b.pad(x, [2, 0], [3, 0], "constant", fill)) == [True]
    assert texts(b.pad(x, [0, 1], [0, 15], "constant", fill)) == [False]
    assert texts(b.pad(x, [5, 0], [4, 0], "reflect")) == [True]
    inner = b.pad(b.concat([x, y], 1), [1, 0], [0, 64], "constant", fill)
    row = b.broadcast(b.slice(b.pad(x, [1, 16], [0, 0], "constant", fill), [4, 0], [1, 144]), (ROWS + 1, 144))
    assert texts(b.concat([b.slice(inner, [0, 16], [ROWS + 1, 240]), b.map("neg", row)], 1)) == [True]
    small = b.slice(b.pad(x, [1, 16], [0, 0], "constant", fill), [0, 0], [2, 144])
    e = b.exp(b.cast(small, DType.F32))
    check(b, [b.div(e, b.reduce("sum", e, [1], keepdims=True))], feeds, tolerance=1e-5)


def test_rows_gathered_by_vectors():
    b = Builder()
    x, i = b.input("x", DType.F32, (50, 128)), b.input("i", DType.I64, (ROWS,))
    feeds = {"x": data(x.shape, DType.F32), "i": RNG.integers(-50, 50, (ROWS,))}
    assert vectors(check(b, [b.gather(x, i, 0)], feeds)) == [True]


def test_run_time_rows_are_vectors_where_columns_are_known():
    for columns, runtime in ((128, {"n": 2 * ROWS}), (N, {"n": 700})):
        b = Builder()
        x = b.input("x", DType.F32, (N, columns))
        program = b.finish([b.neg(x), b.map("mul", x, x)])
        with ProgramRun(program, {"n": 5}, runtime=runtime) as run:
            for n in (ROWS, 1, 0, 401, 2 * ROWS) if columns == 128 else (5, 601, 1, 0, 700):
                a = data((n, n if columns is N else 128), DType.F32)
                for got, want in zip(run.run({"x": a}), interpret(program, {"x": a}), strict=True):
                    np.testing.assert_array_equal(got, want)
            assert len(run.plans) == 1


def softmax(b, x, axes):
    e = b.exp(b.sub(x, b.reduce("max", x, axes, keepdims=True)))
    return b.div(e, b.reduce("sum", e, axes, keepdims=True))


@pytest.mark.parametrize("dtype", sorted(FLOATS, key=lambda d: d.value))
@pytest.mark.parametrize(
    "shape,axes",
    [
        ((70, 64), [1]),
        ((3, 64, 40), [1]),
        ((64, 64), [0]),
        ((5, 6, 4, 16), [1, 3]),
        ((3, 1001), [1]),
        ((2, 8192 + 8), [1]),
        ((2, 40000), [1]),
        ((2, 3000, 3), [1]),
        ((40, 100, 4), [1]),
        ((9000, 16), [1]),
        ((1000, 70), [0]),
        ((1, 1), [1]),
    ],
)
def test_rows_in_registers_and_beyond(shape, axes, dtype):
    b = Builder()
    x = b.input("x", dtype, shape)
    a = (RNG.integers(-64, 65, shape) / (128 if dtype is DType.F16 else 16)).astype(dtype.numpy)  # sums within the type
    tolerance = TOLERANCE.get(dtype, 1e-5)
    if dtype is not DType.F64:  # which has no exp on devices
        check(b, [softmax(b, x, axes)], {"x": a}, tolerance=tolerance)
    mean = b.mean(x, axes, keepdims=True)
    d = b.sub(x, mean)
    y = b.div(d, b.sqrt(b.add(b.mean(b.mul(d, d), axes, keepdims=True), b.scalar(1, dtype))))
    check(b, [y, mean], {"x": a}, tolerance=4 * tolerance)


@pytest.mark.parametrize("fn", ["argmax", "max", "sum"])
@pytest.mark.parametrize("dtype", [DType.I8, DType.F16, DType.I64, DType.BOOL, DType.U32])
def test_reductions_by_vectors(fn, dtype):
    if dtype is DType.BOOL and fn == "sum":
        return
    for shape in ((9, 512), (300, 128), (2, 3, 1024)):
        b = Builder()
        x = b.input("x", dtype, shape)
        axis = len(shape) - 1
        a = data(shape, dtype) if fn != "sum" or not dtype.is_float else RNG.integers(-2, 3, shape).astype(dtype.numpy)
        texts = check(b, [b.reduce(fn, x, [axis])], {"x": a}, tolerance=0)
        assert any(vectors(texts))


@pytest.mark.parametrize("invocations", [128, 1024])
def test_rows_on_a_device_without_shuffles(invocations):
    for shape, axes in (((70, 64), [1]), ((3, 1001), [1]), ((64, 64), [0]), ((2, 40000), [1]), ((2, 3000, 3), [1])):
        b = Builder()
        x = b.input("x", DType.F32, shape)
        a = RNG.standard_normal(shape).astype(np.float32)
        program = b.finish([softmax(b, x, axes), b.reduce("argmax", x, axes), b.reduce("min", x, axes)])
        with ProgramRun(program) as run:
            run.limits = replace(run.limits, features=frozenset(), max_workgroup_invocations=invocations)
            for got, want in zip(run.run({"x": a}), interpret(program, {"x": a}), strict=True):
                np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_run_time_columns_that_are_kept():
    b = Builder()
    x = b.input("x", DType.F32, (3, N))
    program = b.finish([softmax(b, x, [1]), b.reduce("sum", softmax(b, x, [1]), [1])])
    with ProgramRun(program, {"n": 5}, runtime={"n": 400}) as run:
        for n in (5, 0, 400, 1, 64):
            a = RNG.standard_normal((3, n)).astype(np.float32)
            for got, want in zip(run.run({"x": a}), interpret(program, {"x": a}), strict=True):
                np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
        assert len(run.plans) == 1


def test_zeros_of_both_signs_are_one_maximum():
    """All lanes of a row go on with the same zero."""
    b = Builder()
    x = b.input("x", DType.F32, (4, 64))
    a = np.where(np.arange(256).reshape(4, 64) % 3 == 0, -0.0, 0.0).astype(np.float32)
    m = b.reduce("max", x, [1], keepdims=True)
    program = b.finish([b.add(b.div(b.broadcast(b.scalar(1, DType.F32), x.shape), b.broadcast(m, x.shape)), x)])
    with ProgramRun(program) as run:
        (got,) = run.run({"x": a})
    assert np.all(np.isinf(got)) and np.all(got == got[:, :1])
