"""Sorts and top-k against the interpreter."""

from __future__ import annotations

import numpy as np
import onnx_vulkan.kernels.sort  # noqa: F401  (registers the family)
import pytest
from onnx_vulkan.dims import symbol
from onnx_vulkan.dtypes import REAL, DType
from onnx_vulkan.program.builder import Builder
from run_step import check_program

RNG = np.random.default_rng(4)


def data(shape, dtype):
    """Few distinct values, so that ties are common."""
    low, high = (-20, 20) if dtype.is_signed else (0, 40)
    return (RNG.integers(low, high, shape) / (4 if dtype.is_float else 1)).astype(dtype.numpy)


def check(a, k, axis, *, declared=None, wanted=(0, 1), values=None, view=None, **options):
    for largest in False, True:
        b = Builder()
        x = b.input("x", DType.of(a.dtype), declared or a.shape)
        outs = b.sort(x if view is None else view(b, x), k, axis, largest=largest)
        check_program(b, [outs[i] for i in wanted], {"x": a}, values, **options)


@pytest.mark.parametrize("dtype", sorted(REAL, key=lambda d: d.value))
def test_every_dtype(dtype):
    check(data((3, 50), dtype), 50, 1)
    check(data((70, 3), dtype), 7, 0)
    if dtype.is_int:
        info = np.iinfo(dtype.numpy)
        check(RNG.permutation(np.array([info.min, info.min + 1, 0, 1, info.max - 1, info.max], dtype.numpy)), 6, 0)


@pytest.mark.parametrize("dtype", [DType.F32, DType.F16, DType.BF16, DType.F64])
def test_special_values(dtype):
    special = [np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, np.finfo(np.float16).tiny / 4]
    a = np.concatenate([special, special, special]).astype(dtype.numpy)
    check(np.stack([RNG.permutation(a) for _ in range(4)]), 27, 1)
    check(np.full((2, 3), np.nan, dtype.numpy), 3, 1)  # the key of NaN is that of padding


def test_shapes():
    for shape, axis, k in [
        ((1,), 0, 1),
        ((5, 1), 1, 1),
        ((2,), 0, 0),
        ((0, 4), 1, 2),
        ((3, 0), 1, 0),
        ((2, 3, 5, 2, 2, 2), 2, 4),
    ]:
        check(data(shape, DType.F32), k, axis)
    for n in 63, 64, 65, 1000:
        check(data((2, n), DType.F32), n, 1)
    check(data((300, 5), DType.F32), 2, 1)
    check(data((4, 9), DType.F32), 3, 1, wanted=(0,))
    check(data((4, 9), DType.F32), 3, 1, wanted=(1,), in_record=True)


@pytest.mark.parametrize("n,k", [(1025, 1025), (2048, 2048), (5000, 5000), (5000, 1), (9000, 1500), (3000, 0)])
def test_lines_longer_than_shared_memory(n, k):
    limits = {"max_shared_memory": 8192}
    check(data((2, n), DType.F32), k, 1, limits=limits)
    check(RNG.standard_normal((n, 2)), k, 0, limits=limits)


def test_default_limits():
    check(RNG.standard_normal((1, 4096)).astype("f"), 4096, 1)
    check(RNG.standard_normal((1, 4097)).astype("f"), 300, 1)


def test_views_and_run_time_extents():
    a = RNG.standard_normal((40, 3)).astype("f")
    check(a, 5, 1, view=lambda b, x: b.slice(b.transpose(x, (1, 0)), (0, 39), (3, 20), (1, -2)))
    n, k = symbol("n"), symbol("k")
    check(a, k, 0, declared=(n, 3), values={"k": 7})
    check(
        RNG.standard_normal((2500, 3)).astype("f"), k, 0, declared=(n, 3), values={"k": 2400}, limits={"max_shared_memory": 8192}
    )
