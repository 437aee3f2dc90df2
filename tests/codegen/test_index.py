"""Index expressions: strides, reshape groups, merged axes."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx_vulkan.codegen.hole import merge_axes
from onnx_vulkan.codegen.index import ZERO, Lin, linearize, reshape_groups, row_major
from onnx_vulkan.dims import evaluate, product, symbol

N, M = symbol("n"), symbol("m")


def groups(a, b):
    return [(list(p), list(q)) for p, q in reshape_groups(a, b)]


@pytest.mark.parametrize(
    "a,b,expected",
    [
        ((2, 3, 4), (6, 4), [([0, 1], [0]), ([2], [1])]),
        ((6, 4), (2, 3, 4), [([0], [0, 1]), ([1], [2])]),
        ((2, 3, 4), (2, 3, 4), [([0], [0]), ([1], [1]), ([2], [2])]),
        ((4, 6), (6, 4), [([0, 1], [0, 1])]),
        ((2, 1, 3), (2, 3), [([0, 1], [0]), ([2], [1])]),
        ((3,), (1, 3, 1), [([0], [0, 1, 2])]),
        ((), (1, 1), [([], [0, 1])]),
        ((1, 1), (), [([0, 1], [])]),
        ((), (), []),
        ((N, M, 8), (N, M, 2, 4), [([0], [0]), ([1], [1]), ([2], [2, 3])]),
        ((N, M), (N * M,), [([0, 1], [0])]),
        ((N * M, 6), (N, M, 2, 3), [([0], [0, 1]), ([1], [2, 3])]),
        ((N, 4), (4, N), [([0, 1], [0, 1])]),
        ((0, 3), (0,), [([0, 1], [0])]),
        ((0,), (0, 1, 3, 63), [([0], [0, 1, 2, 3])]),
        ((5, 0), (0, 7), [([0, 1], [0, 1])]),
    ],
)
def test_reshape_groups(a, b, expected):
    assert groups(a, b) == expected


@settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(st.lists(st.sampled_from([1, 2, 3, 4, 5, 6]), max_size=5), st.data())
def test_groups_of_random_shapes_have_equal_products(a, data):
    rest, b = math.prod(a), []
    while rest > 1 and len(b) < 5:
        b.append(data.draw(st.sampled_from([d for d in range(1, rest + 1) if rest % d == 0])))
        rest //= b[-1]
    b.append(rest)
    found = reshape_groups(a, b)
    assert [i for p, _ in found for i in p] == list(range(len(a)))
    assert [j for _, q in found for j in q] == list(range(len(b)))
    for p, q in found:
        assert product(a[i] for i in p) == product(b[j] for j in q)
    # as fine as can be: no group splits at an inner point where the products agree
    for p, q in found:
        for s, t in itertools.product(range(1, len(p)), range(1, len(q))):
            left, right = [a[i] for i in p[:s]], [b[j] for j in q[:t]]
            if left[-1] != 1 and right[-1] != 1 and a[p[s]] != 1 and b[q[t]] != 1:
                assert math.prod(left) != math.prod(right)


def test_linear_expressions():
    x, y = Lin.var("x"), Lin.var("y")
    e = (x.scale(N) + y).shift(3) + x
    assert e.coefficient("x") == N + 1 and e.coefficient("y") == 1 and e.coefficient("z") == 0 and e.const == 3
    assert x + x.scale(-1) == ZERO
    assert x.scale(0) == ZERO and x.shift(0) is x and x.scale(1) is x
    assert e.variables == {"x", "y"}


@pytest.mark.parametrize("shape", [(), (5,), (2, 3, 4), (1, 7, 1), (2, 0, 3)])
def test_row_major_is_numpys(shape):
    item = np.empty(shape, np.int8)
    if item.size:
        assert [s for s, e in zip(row_major(shape), shape, strict=True) if e > 1] == [
            s for s, e in zip(item.strides, shape, strict=True) if e > 1
        ]
    coords = [Lin.var(f"c{i}") for i in range(len(shape))]
    for at in itertools.islice(np.ndindex(shape), 50):
        offset = linearize(coords, shape)
        value = offset.const + sum(at[int(n[1:])] * c for n, c in offset.terms)
        assert value == np.ravel_multi_index(at, shape) if shape else value == 0


def test_symbolic_strides():
    assert row_major((5, N, M)) == [N * M, M, 1]
    assert evaluate(row_major((5, N + 1, 3))[0], {"n": 6}) == 21


def merged(shape, accesses, axes=None, opaque=()):
    names = [f"c{i}" for i in range(len(shape))]
    return merge_axes(names, shape, axes if axes is not None else range(len(shape)), accesses, {names[i] for i in opaque})


def dense(shape, axes=None):
    coords = [Lin.var(f"c{i}") if axes is None or i in axes else ZERO for i in range(len(shape))]
    return linearize(coords, shape)


def test_axes_that_all_walk_alike_are_one():
    assert merged((2, 3, N), [dense((2, 3, N))]) == [[0, 1, 2]]
    assert merged((2, 3, N), []) == [[0, 1, 2]]
    # the transpose of the last two
    turned = Lin.var("c0").scale(3 * N) + Lin.var("c1") + Lin.var("c2").scale(3)
    assert merged((2, 3, N), [dense((2, 3, N)), turned]) == [[0], [1], [2]]


def test_a_broadcast_splits_only_where_it_starts():
    bias = Lin.var("c2")  # [C] over [N, H, C]
    assert merged((2, 3, 4), [dense((2, 3, 4)), bias]) == [[0, 1], [2]]
    row = Lin.var("c0").scale(3) + Lin.var("c1")  # [N, H, 1]
    assert merged((2, 3, 4), [dense((2, 3, 4)), row]) == [[0, 1], [2]]
    middle = Lin.var("c0").scale(4) + Lin.var("c2")  # [N, 1, C]
    assert merged((2, 3, 4), [dense((2, 3, 4)), middle]) == [[0], [1], [2]]


def test_axes_of_one_are_dropped_and_opaque_ones_stand_alone():
    assert merged((2, 1, 4), [dense((2, 1, 4), axes=(0, 2))]) == [[0, 2]]
    assert merged((2, 3, 4), [dense((2, 3, 4))], opaque=(1,)) == [[0], [1], [2]]
    assert merged((2, 3, 4), [dense((2, 3, 4))], opaque=(2,)) == [[0, 1], [2]]
    assert merged((1, 1), []) == []


def test_only_the_axes_asked_for():
    assert merged((2, 3, 4, 5), [dense((2, 3, 4, 5))], axes=[1, 2]) == [[1, 2]]
    # 0 and 2 are not neighbours in memory
    assert merged((2, 3, 4), [dense((2, 3, 4))], axes=[0, 2]) == [[0], [2]]
