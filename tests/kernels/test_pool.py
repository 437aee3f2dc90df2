"""Pooling kernels against the interpreter."""

from __future__ import annotations

import itertools

import numpy as np
import onnx_vulkan.kernels.pool  # noqa: F401  (registers the families)
import pytest
from onnx_vulkan.dims import symbol
from onnx_vulkan.dtypes import REAL, DType
from onnx_vulkan.program.builder import Builder
from run_step import check_program

RNG = np.random.default_rng(1)


def data(shape, dtype):
    if dtype.is_float:
        return RNG.standard_normal(shape).astype(dtype.numpy)
    low, high = (-100, 100) if dtype.is_signed else (0, 200)
    return RNG.integers(low, high, shape).astype(dtype.numpy)


def window(b, kind, x, *, kernel, strides=None, dilations=None, begin=None, end=None, out=None, indices=False, **attrs):
    rank = len(kernel)
    strides, dilations = strides or (1,) * rank, dilations or (1,) * rank
    begin, end = begin or (0,) * rank, end or (0,) * rank
    if out is None:
        out = [(x.shape[1 + i] + begin[i] + end[i] - (kernel[i] - 1) * dilations[i] - 1) // strides[i] + 1 for i in range(rank)]
    return b.window(
        kind, x, None, out_channels=x.shape[-1], out_spatial=out, kernel=kernel, strides=strides, dilations=dilations,
        pads_begin=begin, pads_end=end, indices=indices, **attrs,
    )  # fmt: skip


CASES = [
    {"shape": (2, 7, 5), "kernel": (3,), "strides": (2,), "begin": (1,), "end": (1,)},
    {"shape": (1, 9, 8, 3), "kernel": (3, 2), "strides": (2, 1), "dilations": (2, 3), "begin": (1, 0), "end": (0, 2)},
    {"shape": (2, 5, 4, 6, 3), "kernel": (2, 3, 2), "begin": (1, 1, 0), "end": (0, 1, 1), "strides": (1, 2, 3)},
    {"shape": (1, 6, 6, 70), "kernel": (3, 3), "strides": (2, 2), "out": (3, 3)},  # ceil mode: the last windows are cut
    {
        "shape": (1, 6, 6, 2),
        "kernel": (2, 2),
        "strides": (2, 2),
        "begin": (1, 1),
        "end": (1, 1),
        "out": (5, 5),
    },  # beyond the pads
    {"shape": (1, 6, 7, 2), "kernel": (2, 2), "end": (-1, -2)},
    {"shape": (0, 6, 7, 2), "kernel": (2, 2)},
    {"shape": (3, 1, 1, 1), "kernel": (1, 1)},
]
KINDS = [("max", {}), ("avg", {"count_include_pad": True}), ("avg", {"count_include_pad": False})]
KINDS += [("lp", {"p": p}) for p in (1, 2, 3)]


@pytest.mark.parametrize("case", range(len(CASES)))
def test_kinds(case):
    options = dict(CASES[case])
    shape = options.pop("shape")
    for kind, attrs in KINDS:
        b = Builder()
        x = b.input("x", DType.F32, shape)
        outs = window(b, kind, x, **options, **attrs)
        check_program(b, outs, {"x": data(shape, DType.F32)}, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", sorted(REAL, key=lambda d: d.value))
def test_max_of_every_dtype_with_indices(dtype):
    b = Builder()
    x = b.input("x", dtype, (2, 6, 5, 3))
    outs = window(b, "max", x, kernel=(3, 2), begin=(1, 1), end=(1, 0), strides=(2, 2), indices=True)
    a = data((2, 6, 5, 3), dtype)
    check_program(b, outs, {"x": a})
    a[...] = np.iinfo(dtype.numpy).min if dtype.is_int else -np.inf  # the first cell wins though nothing is larger
    check_program(b, outs, {"x": a})


@pytest.mark.parametrize("kind,dtype", list(itertools.product(["avg", "lp"], [DType.F16, DType.BF16, DType.F64])))
def test_other_floats(kind, dtype):
    b = Builder()
    x = b.input("x", dtype, (2, 6, 5, 3))
    attrs = {"count_include_pad": False} if kind == "avg" else {"p": 2}
    outs = window(b, kind, x, kernel=(3, 2), begin=(1, 1), end=(1, 0), strides=(2, 2), **attrs)
    check_program(b, outs, {"x": data((2, 6, 5, 3), dtype)}, rtol={2: 1e-2, 8: 1e-13}[dtype.size], atol=1e-12)


def test_max_keeps_nan():
    b = Builder()
    x = b.input("x", DType.F32, (1, 8, 8, 2))
    outs = window(b, "max", x, kernel=(3, 3), strides=(2, 2), begin=(1, 1), end=(1, 1), indices=True)
    a = data((1, 8, 8, 2), DType.F32)
    a[0, 3, 3, 0] = a[0, 3, 4, 0] = np.nan
    a[0, 1, 6, 1] = np.inf
    (got, _) = check_program(b, outs, {"x": a})
    assert np.isnan(got).sum() == 4


def test_epilogue_and_transposed_operand():
    b = Builder()
    x = b.input("x", DType.F32, (2, 5, 6, 7))
    bias, residual = b.input("bias", DType.F32, (5,)), b.input("residual", DType.F32, (2, 3, 3, 5))
    (y,) = window(b, "avg", b.transpose(x, (0, 2, 3, 1)), kernel=(2, 3), strides=(2, 2), count_include_pad=True)
    z = b.max(b.add(b.add(y, bias), residual), b.scalar(0, DType.F32))
    feeds = {v.name: data(v.shape, DType.F32) for v in (x, bias, residual)}
    check_program(b, [z], feeds, atol=1e-5, rtol=1e-5)
    check_program(b, [y, z], feeds, atol=1e-5, rtol=1e-5, in_record=True)


def test_run_time_extents():
    n, h = symbol("n"), symbol("h")
    b = Builder()
    x = b.input("x", DType.F32, (n, h, 6, 3))
    outs = window(b, "max", x, kernel=(3, 3), strides=(2, 2), begin=(1, 1), end=(1, 1))
    for shape in [(1, 5, 6, 3), (3, 12, 6, 3), (0, 5, 6, 3)]:
        check_program(b, outs, {"x": data(shape, DType.F32)})
