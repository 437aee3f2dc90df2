"""Causal masks are found as constants and as comparisons of positions, and nothing else is taken for one."""

from __future__ import annotations

import numpy as np
import pytest
from onnx_vulkan.dims import symbol
from onnx_vulkan.dtypes import DType
from onnx_vulkan.graph import Array
from onnx_vulkan.program.builder import Builder
from onnx_vulkan.program.causal import causal_offset
from onnx_vulkan.program.ir import Value

S = symbol("S")


def found(b: Builder, mask: Value) -> object:
    return causal_offset(mask, {i.out: i for i in b.instrs})


@pytest.mark.parametrize(
    ("shape", "offset"), [((5, 5), 0), ((3, 9), 6), ((6, 4), -3), ((4, 4), 3), ((2, 3), -1), ((2, 3), -2)], ids=str
)
def test_constants(shape: tuple[int, int], offset: int) -> None:
    b = Builder()
    spread = b.reshape(b.broadcast(b.const(np.tri(*shape, offset, dtype=bool)), (1, 2, *shape)), (2, *shape))
    assert found(b, spread) == offset


def other_masks() -> list[Array]:
    hole, late = np.tri(5, 5, dtype=bool), np.tri(5, 5, dtype=bool)
    hole[3, 1], late[4, 4] = False, False
    return [hole, late, np.tri(5, 5, dtype=bool).T, np.random.default_rng(0).random((5, 5)) < 0.5, np.ones((2, 5, 5), bool)]


@pytest.mark.parametrize("mask", other_masks(), ids=["hole", "late", "turned", "random", "batched"])
def test_other_constants(mask: Array) -> None:
    b = Builder()
    assert found(b, b.const(mask)) is None


def test_positions() -> None:
    b = Builder()
    keys, queries = b.iota((1, S), 1, DType.I64), b.iota((S, 1), 0, DType.I64, 7)
    assert found(b, b.broadcast(b.le(keys, queries), (2, S, S))) == 7
    assert found(b, b.le(keys, b.iota((S, 1), 0, DType.I64, S))) == S
    for left, right in (
        (queries, keys),
        (keys, b.iota((S, 1), 0, DType.I64, 0, 2)),
        (keys, b.iota((2, S, 1), 1, DType.I64)),
        (keys, b.input("x", DType.I64, (S, 1))),
        (keys, b.scalar(3, DType.I64)),
    ):
        mask = b.le(left, right)
        assert mask.rank == 3 or found(b, mask) is None
    assert found(b, b.lt(keys, queries)) is None
