"""Scatters against the interpreter."""

from __future__ import annotations

import itertools

import numpy as np
import onnx_vulkan.kernels.scatter  # noqa: F401  (registers the family)
import pytest
from onnx_vulkan.codegen import functions
from onnx_vulkan.dims import symbol
from onnx_vulkan.dtypes import NUMERIC, DType
from onnx_vulkan.kernels import build
from onnx_vulkan.kernels.scatter import distinct_rows
from onnx_vulkan.program.builder import Builder
from run_step import IndexOutside, check_program, group_of, run_step

RNG = np.random.default_rng(5)
REDUCTIONS = ["none", "add", "mul", "max", "min"]


def numbers(shape, dtype):
    """Small whole numbers, so that floats sum and multiply exactly."""
    if dtype is DType.BOOL:
        return RNG.integers(0, 2, shape).astype(bool)
    return RNG.integers(-3 if dtype.is_signed else 0, 4, shape).astype(dtype.numpy)


def check(data, indices, updates, *, constant=False, distinct=None, declared=None, values=None, **attrs):
    b = Builder()
    feeds = {"data": data, "updates": updates} | ({} if constant else {"indices": indices})
    shapes = declared or {n: a.shape for n, a in feeds.items()}
    v = {n: b.input(n, DType.of(a.dtype), shapes[n]) for n, a in feeds.items()}
    out = b.scatter(v["data"], b.const(indices) if constant else v["indices"], v["updates"], **attrs)
    if distinct is not None:
        assert distinct_rows(b.instrs[-1]) is distinct
    return check_program(b, [out], feeds, values)


def nd(shape, rows, depth, dtype=DType.F32, index=np.int64, **attrs):
    extents = np.array(shape[:depth])
    indices = (RNG.integers(0, 1 << 30, (*rows, depth)) % extents - RNG.integers(0, 2, (*rows, depth)) * extents).astype(index)
    return check(numbers(shape, dtype), indices, numbers((*rows, *shape[depth:]), dtype), kind="nd", **attrs)


def elements(shape, where, axis, dtype=DType.F32, index=np.int64, **attrs):
    indices = RNG.integers(-shape[axis], shape[axis], where).astype(index)
    return check(numbers(shape, dtype), indices, numbers(where, dtype), kind="elements", axis=axis, **attrs)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_shapes(reduction):
    for index in np.int32, np.int64:
        nd((7,), (30,), 1, reduction=reduction, index=index)
        nd((3, 4, 5), (2, 6), 2, reduction=reduction, index=index)
        nd((5, 3, 70), (9,), 1, reduction=reduction, index=index)
        nd((2, 3, 2, 2, 2, 3), (20,), 6, reduction=reduction, index=index)
        elements((9,), (30,), 0, reduction=reduction, index=index)
        elements((4, 5, 6), (3, 9, 6), 1, reduction=reduction, index=index)
    nd((4, 0), (3,), 1, reduction=reduction)
    nd((4, 3), (0,), 1, reduction=reduction)
    elements((2, 3), (2, 0), 1, reduction=reduction)


@pytest.mark.parametrize("dtype", sorted(NUMERIC, key=lambda d: d.value))
def test_every_dtype(dtype):
    for reduction in REDUCTIONS:
        if reduction == "none" or functions.has_function(reduction, dtype):
            nd((5, 3), (20,), 1, dtype, reduction=reduction)
            elements((5, 3), (4, 3), 0, dtype, reduction=reduction)


def test_order_of_rows_is_the_specs():
    data = np.zeros(3, np.float32)
    updates = RNG.standard_normal(300).astype("f")
    updates[7] = 1e8  # sums in another order differ
    indices = RNG.integers(0, 3, (300, 1))
    for reduction in "none", "add", "mul":
        check(data + 1, indices, updates, kind="nd", reduction=reduction)
    updates[100] = np.nan
    for reduction in "max", "min":
        check(data, indices, updates, kind="nd", reduction=reduction)


def test_many_rows():
    for reduction in "none", "add":
        check(
            numbers((2000, 2), DType.F32),
            RNG.integers(0, 2000, (6000, 1)),
            numbers((6000, 2), DType.F32),
            kind="nd",
            reduction=reduction,
        )


def test_distinct_rows():
    for reduction in "none", "add":
        at = np.array([[2], [0], [-1]])
        check(
            numbers((5, 4), DType.F32),
            at,
            numbers((3, 4), DType.F32),
            constant=True,
            distinct=True,
            kind="nd",
            reduction=reduction,
        )
        at = np.array([[2], [0], [-3]])
        check(
            numbers((5, 4), DType.F32),
            at,
            numbers((3, 4), DType.F32),
            constant=True,
            distinct=False,
            kind="nd",
            reduction=reduction,
        )
        nd((5, 4), (1,), 1, distinct=True, reduction=reduction)
        elements((5, 4), (1, 4), 0, distinct=True, reduction=reduction)
        at = np.array([[2, 0], [0, 1], [-1, -1]])
        check(numbers((5, 2), DType.F32), at, numbers((3, 2), DType.F32), constant=True, distinct=True,
              kind="elements", axis=0, reduction=reduction)  # fmt: skip


@pytest.mark.parametrize("index", [5, -6, 2**40])
def test_index_outside(index):
    for reduction, kind in itertools.product(["none", "add"], ["nd", "elements"]):
        indices = np.array([[0], [index]]) if kind == "nd" else np.array([0, index])
        b = Builder()
        v = [b.input("data", DType.F32, (5,)), b.input("i", DType.I64, indices.shape), b.input("u", DType.F32, (2,))]
        program = b.finish([b.scatter(*v, kind=kind, reduction=reduction)])
        feeds = dict(zip(v, [np.zeros(5, "f"), indices, np.ones(2, "f")], strict=True))
        with pytest.raises(IndexOutside):
            run_step(build(group_of(program)), feeds)


def test_updates_of_an_empty_tensor_are_outside_and_write_nothing():
    for reduction, dtype in itertools.product(["none", "add"], [DType.F32, DType.I32]):
        b = Builder()
        v = [b.input("data", dtype, (symbol("n"), 2)), b.input("i", DType.I64, (3, 1)), b.input("u", dtype, (3, 2))]
        program = b.finish([b.scatter(*v, kind="nd", reduction=reduction)])
        feeds = dict(zip(v, [np.zeros((0, 2), dtype.numpy), np.zeros((3, 1), "i8"), np.ones((3, 2), dtype.numpy)], strict=True))
        with pytest.raises(IndexOutside):
            run_step(build(group_of(program)), feeds, {"n": 0})


def test_broadcast_data_and_run_time_extents():
    n, m = symbol("n"), symbol("m")
    for rows, extent in (3, 5), (40, 7):
        b = Builder()
        x = b.broadcast(b.input("x", DType.F32, (1, 4)), (n, 4))
        indices, updates = b.input("indices", DType.I64, (m, 1)), b.input("updates", DType.F32, (m, 4))
        feeds = {"x": numbers((1, 4), DType.F32), "indices": RNG.integers(0, extent, (rows, 1))}
        feeds["updates"] = numbers((rows, 4), DType.F32)
        for reduction in "none", "add":
            out = b.scatter(x, indices, updates, kind="nd", reduction=reduction)
            check_program(b, [out], feeds, {"n": extent})
            b.instrs.pop()
