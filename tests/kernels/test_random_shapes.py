"""Random shapes and attributes of the families, from a fixed seed, in one process: right answers, and no pipeline a shape."""

from __future__ import annotations

import numpy as np
import onnx_vulkan.kernels.pool
import onnx_vulkan.kernels.scan
import onnx_vulkan.kernels.scatter
import onnx_vulkan.kernels.sort  # noqa: F401  (registers the families)
from onnx_vulkan.dims import symbol
from onnx_vulkan.dtypes import DType
from onnx_vulkan.program.builder import Builder
from run_step import check_program, device

RNG = np.random.default_rng(7)
DTYPES = [DType.F32, DType.F16, DType.I32, DType.I64, DType.U8]


def data(shape, dtype):
    return RNG.integers(0, 9, shape).astype(dtype.numpy)


def shape_of(rank):
    return tuple(int(RNG.choice([0, 1, 2, 3, 5, 17, 33], p=[0.04, 0.16, 0.2, 0.2, 0.2, 0.1, 0.1])) for _ in range(rank))


def test_windows():
    for _ in range(50):
        rank = int(RNG.integers(1, 4))
        kernel, strides, dilations, begin, end = (
            tuple(map(int, RNG.integers(a, b, rank))) for a, b in [(1, 4), (1, 4), (1, 3), (0, 3), (-1, 4)]
        )
        spatial = tuple(int(RNG.integers(1, 12)) for _ in range(rank))
        out = tuple(
            max((e + p + q - (k - 1) * d - 1) // s + 1, 0)
            for e, p, q, k, d, s in zip(spatial, begin, end, kernel, dilations, strides, strict=True)
        )
        kind = str(RNG.choice(["max", "avg", "lp"]))
        dtype = DTYPES[RNG.integers(len(DTYPES))] if kind == "max" else DType.F32
        shape = (int(RNG.integers(1, 3)), *spatial, int(RNG.integers(1, 40)))
        attrs = {"avg": {"count_include_pad": bool(RNG.integers(2))}, "lp": {"p": int(RNG.integers(1, 4))}}.get(kind, {})
        b = Builder()
        outs = b.window(
            kind, b.input("x", dtype, shape), None, out_channels=shape[-1], out_spatial=out, kernel=kernel, strides=strides,
            dilations=dilations, pads_begin=begin, pads_end=end, indices=kind == "max", **attrs,
        )  # fmt: skip
        check_program(b, outs, {"x": data(shape, dtype)}, atol=1e-5, rtol=1e-5)


def test_scans_and_sorts():
    for _ in range(50):
        shape = shape_of(int(RNG.integers(1, 7)))
        axis, dtype = int(RNG.integers(len(shape))), DTYPES[RNG.integers(len(DTYPES))]
        b = Builder()
        x = b.input("x", dtype, shape)
        flags = {"exclusive": bool(RNG.integers(2)), "reverse": bool(RNG.integers(2))}
        out = b.scan("sum", x, axis, **flags)
        check_program(b, [out], {"x": data(shape, dtype)}, atol=1e-5, rtol=1e-3)
        b = Builder()
        k = int(RNG.integers(0, shape[axis] + 1))
        outs = b.sort(b.input("x", dtype, shape), k, axis, largest=bool(RNG.integers(2)))
        check_program(b, outs, {"x": data(shape, dtype)})


def test_scatters():
    for _ in range(50):
        dtype, reduction = DTYPES[RNG.integers(len(DTYPES))], str(RNG.choice(["none", "add", "mul", "max", "min"]))
        shape = tuple(max(e, 1) for e in shape_of(int(RNG.integers(1, 6))))
        b = Builder()
        if RNG.integers(2):
            depth = int(RNG.integers(1, len(shape) + 1))
            rows = shape_of(int(RNG.integers(0, 3)))
            indices = RNG.integers(0, 1 << 20, (*rows, depth)) % np.array(shape[:depth])
            updates, attrs = (*rows, *shape[depth:]), {"kind": "nd"}
        else:
            axis = int(RNG.integers(len(shape)))
            updates = tuple(int(RNG.integers(0, e + (3 if i == axis else 1))) for i, e in enumerate(shape))
            indices, attrs = RNG.integers(-shape[axis], shape[axis], updates), {"kind": "elements", "axis": axis}
        feeds = {"x": data(shape, dtype), "i": indices, "u": data(updates, dtype)}
        v = [b.input(n, DType.of(a.dtype), a.shape) for n, a in feeds.items()]
        check_program(b, [b.scatter(*v, reduction=reduction, **attrs)], feeds)


def test_a_new_shape_makes_no_pipeline_once_variants_are_warm():
    n, m = symbol("n"), symbol("m")
    b = Builder()
    x = b.input("x", DType.F32, (n, m))
    (out,) = (b.sort(x, 3, 1, largest=True)[0],)
    for size in 3, 40, 64:
        check_program(b, [out], {"x": data((2, size), DType.F32)})
    before = len(device().pipelines)
    for size in 4, 33, 50:
        check_program(b, [out], {"x": data((5, size), DType.F32)})
    assert len(device().pipelines) == before
