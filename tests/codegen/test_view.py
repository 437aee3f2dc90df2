"""Strided views against the strides that numpy gives to the same chain of views."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx_vulkan.codegen.view import strided_view
from onnx_vulkan.dims import evaluate, symbol
from onnx_vulkan.dtypes import DType
from onnx_vulkan.program.builder import Builder

N = symbol("n")


def view_of(b, v):
    producers = b.finish([v]).producers()
    return strided_view(v, producers, lambda x: x not in producers)


def read(view, shape, flat):
    """The elements of *flat* at the places that the view names."""
    at = np.full(shape, view.offset, np.int64)
    for i, (n, s) in enumerate(zip(shape, view.strides, strict=True)):
        at += (np.arange(n) * s).reshape([n if k == i else 1 for k in range(len(shape))])
    return flat[at]


@st.composite
def chains(draw):
    """A tensor, and the same chain of views as builder values and as a numpy array."""
    shape = draw(st.lists(st.sampled_from([1, 2, 3, 4, 6]), min_size=1, max_size=4))
    b = Builder()
    x = v = b.input("x", DType.I32, shape)
    a = np.arange(int(np.prod(shape)), dtype=np.int32).reshape(shape)
    for _ in range(draw(st.integers(1, 4))):
        kind = draw(st.sampled_from(["transpose", "slice", "broadcast", "reshape", "merge", "expand"]))
        if kind == "transpose":
            perm = draw(st.permutations(range(a.ndim)))
            v, a = b.transpose(v, perm), a.transpose(perm)
        elif kind == "slice":
            starts, sizes, steps, cut = [], [], [], []
            for n in a.shape:
                step = draw(st.sampled_from([1, 1, 2, -1, -2]))
                start = draw(st.integers(0, n - 1)) if n else 0
                most = (n - 1 - start) // step + 1 if step > 0 else start // -step + 1
                size = draw(st.integers(1, most)) if n else 0
                stop = start + step * size
                starts.append(start)
                sizes.append(size)
                steps.append(step)
                cut.append(slice(start, None if stop < 0 else stop, step))
            v, a = b.slice(v, starts, sizes, steps), a[tuple(cut)]
        elif kind == "broadcast":
            to = [draw(st.sampled_from([2, 3])) if n == 1 else n for n in a.shape]
            v, a = b.broadcast(v, to), np.broadcast_to(a, to)
        elif kind == "expand" and a.ndim < 5:
            at = draw(st.integers(0, a.ndim))
            to = [*a.shape[:at], 1, *a.shape[at:]]
            v, a = b.reshape(v, to), a.reshape(to)
        elif kind == "merge" and a.ndim >= 2:
            i = draw(st.integers(0, a.ndim - 2))
            to = [*a.shape[:i], a.shape[i] * a.shape[i + 1], *a.shape[i + 2 :]]
            v, a = b.reshape(v, to), a.reshape(to)
        elif kind == "reshape":
            i = draw(st.integers(0, a.ndim - 1)) if a.ndim else 0
            if a.ndim and a.ndim < 5 and a.shape[i] % 2 == 0:
                to = [*a.shape[:i], 2, a.shape[i] // 2, *a.shape[i + 1 :]]
                v, a = b.reshape(v, to), a.reshape(to)
    return b, x, v, a


@settings(max_examples=300, deadline=None, derandomize=True, database=None)
@given(chains())
def test_chains_of_views_read_what_numpy_reads(chain):
    b, x, v, a = chain
    view = view_of(b, v)
    if view is None:  # a reshape that numpy copies for as well
        return
    assert view.leaf is x
    flat = np.arange(int(np.prod(x.shape)), dtype=np.int32)
    np.testing.assert_array_equal(read(view, a.shape, flat), a)


def test_reshapes_that_need_no_copy_are_views():
    b = Builder()
    x = b.input("x", DType.F32, (4, 6, 5))
    turned = b.transpose(x, [2, 0, 1])  # [5, 4, 6]
    assert view_of(b, b.reshape(turned, (5, 24))).strides == (1, 5)
    assert view_of(b, b.reshape(turned, (5, 4, 2, 3))).strides == (1, 30, 15, 5)
    assert view_of(b, b.reshape(turned, (20, 6))) is None
    assert view_of(b, b.reshape(turned, (1, 5, 1, 24, 1))).strides[1:4:2] == (1, 5)


def test_symbolic_strides():
    b = Builder()
    x = b.input("x", DType.F32, (N, 8, 3))
    back = b.slice(x, [N - 1, 0, 0], [N, 8, 3], [-1, 1, 1])
    view = view_of(b, b.transpose(back, [2, 1, 0]))
    assert view.strides == (1, 3, -24)
    assert evaluate(view.offset, {"n": 5}) == 96
    assert view_of(b, b.reshape(b.transpose(x, [1, 0, 2]), (8, 3 * N))) is None
    assert view_of(b, b.reshape(x, (8 * N, 3))).strides == (3, 1)


def test_what_is_computed_is_no_view():
    b = Builder()
    x = b.input("x", DType.F32, (4, 6))
    assert view_of(b, b.neg(x)) is None
    assert view_of(b, b.transpose(b.neg(x), [1, 0])) is None
    assert view_of(b, x).strides == (6, 1)
