"""Convolutions and transposed convolutions against the interpreter: ranks, strides, dilations, pads, groups, dtypes, holes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_vulkan.kernels.conv_transpose  # noqa: F401  (registers both families)
import onnx_vulkan.kernels.product as products
import pytest
from onnx_vulkan.dtypes import DType
from onnx_vulkan.graph import Array
from onnx_vulkan.kernels import FAMILIES, tiles
from onnx_vulkan.program.builder import Builder
from onnx_vulkan.program.ir import Value
from run_step import check_program

TOLERANCE = {DType.F32: (1e-5, 1e-4), DType.F16: (1e-2, 1e-2), DType.BF16: (2e-2, 2e-2), DType.F64: (1e-12, 1e-12)}
Ints = tuple[int, ...]


def random(rng: np.random.Generator, shape: Ints, dtype: DType) -> Array:
    if dtype.is_float:
        return rng.standard_normal(shape).astype(np.float32).astype(dtype.numpy)
    low, high = (-100, 100) if dtype.is_signed else (0, 200)
    return rng.integers(low, high, shape).astype(dtype.numpy)


def bias_relu(builder: Builder, x: Value) -> list[Value]:
    bias = builder.const(np.linspace(-1, 1, int(x.shape[-1]), dtype=np.float32))  # type: ignore[arg-type]
    residual = builder.input("r", DType.F32, x.shape)
    return [x, builder.max(builder.add(builder.add(x, bias), residual), builder.scalar(0, DType.F32))]


def conv(
    x: Ints,
    kernel: Ints,
    m: int,
    *,
    groups: int = 1,
    strides: Sequence[int] | None = None,
    dilations: Sequence[int] | None = None,
    begin: Sequence[int] | None = None,
    end: Sequence[int] | None = None,
    out: Sequence[int] | None = None,
    dtypes: tuple[DType, DType, DType] = (DType.F32, DType.F32, DType.F32),
    transpose: bool = False,
    epilogue: bool = False,
    scale: float = 1.0,
    **options: Any,
) -> list[Array]:
    """One convolution of an ``[N, *spatial, C]`` image on the device and in the interpreter."""
    rank, spatial, c = len(x) - 2, x[1:-1], x[-1]
    s, d, p = tuple(strides or [1] * rank), tuple(dilations or [1] * rank), tuple(begin or [0] * rank)
    q = tuple(end if end is not None else p)
    if out is None:
        if transpose:
            sizes = [(e - 1) * s[i] + (kernel[i] - 1) * d[i] + 1 - p[i] - q[i] for i, e in enumerate(spatial)]
        else:
            sizes = [(e + p[i] + q[i] - (kernel[i] - 1) * d[i] - 1) // s[i] + 1 for i, e in enumerate(spatial)]
        out = [max(e, 0) for e in sizes]
    weights = (*kernel, c, m // groups) if transpose else (*kernel, c // groups, m)
    rng = np.random.default_rng(0)
    builder = Builder()
    image, w = builder.input("x", dtypes[0], x), builder.input("w", dtypes[1], weights)
    acc = {DType.F16: DType.F32, DType.BF16: DType.F32}.get(dtypes[2], dtypes[2])
    kind = "conv_transpose" if transpose else "conv"
    (y,) = builder.window(
        kind, image, w, out_channels=m, out_spatial=out, kernel=kernel, strides=s, dilations=d, pads_begin=p, pads_end=q,
        dtype=dtypes[2], acc=acc, groups=groups,
    )  # fmt: skip
    outputs = bias_relu(builder, y) if epilogue else [y]
    feeds = {"x": random(rng, x, dtypes[0]), "w": random(rng, weights, dtypes[1])}
    if epilogue:
        feeds["r"] = random(rng, tuple(map(int, y.shape)), DType.F32)  # type: ignore[arg-type]
    atol, rtol = TOLERANCE.get(dtypes[0], (0.0, 0.0))
    depth = int(np.prod(kernel)) * c // groups
    return check_program(builder, outputs, feeds, atol=atol * max(depth, 1) ** 0.5, rtol=rtol, **options)


@pytest.mark.parametrize(
    "case",
    [
        dict(x=(1, 9, 11, 8), kernel=(1, 1), m=20),
        dict(x=(2, 9, 11, 16), kernel=(3, 3), m=20, begin=(1, 1)),
        dict(x=(2, 9, 11, 12), kernel=(3, 3), m=20, begin=(1, 1)),
        dict(x=(1, 20, 17, 3), kernel=(7, 7), m=33, strides=(2, 2), begin=(3, 3)),
        dict(x=(1, 12, 13, 4), kernel=(3, 2), m=5, begin=(0, 1), end=(2, 0)),
        dict(x=(1, 12, 13, 5), kernel=(3, 3), m=40, dilations=(2, 3), begin=(2, 3)),
        dict(x=(1, 12, 13, 8), kernel=(1, 1), m=18, strides=(2, 2)),
        dict(x=(1, 5, 5, 8), kernel=(1, 1), m=18, begin=(1, 1)),
        dict(x=(3, 30, 6), kernel=(5,), m=17, begin=(2,)),
        dict(x=(1, 6, 7, 8, 3), kernel=(3, 3, 3), m=18, begin=(1, 1, 1), strides=(1, 2, 1)),
        dict(x=(1, 6, 6, 24), kernel=(3, 3), m=50, groups=2, begin=(1, 1)),
        dict(x=(1, 6, 6, 48), kernel=(1, 1), m=48, groups=3),
        dict(x=(1, 7, 7, 32), kernel=(3, 3), m=20, begin=(1, 1), end=(5, 5), out=(8, 8)),
        dict(x=(1, 7, 7, 8), kernel=(3, 3), m=20, begin=(0, 0), end=(-2, -1), out=(3, 4)),
        dict(x=(1, 1, 1, 64), kernel=(1, 1), m=20),
        dict(x=(1, 8, 8, 16), kernel=(3, 3), m=1, begin=(1, 1)),
        dict(x=(0, 8, 8, 16), kernel=(3, 3), m=4),
        dict(x=(1, 2, 2, 16), kernel=(3, 3), m=4, out=(0, 0)),
        dict(x=(1, 5, 5, 0), kernel=(3, 3), m=20),
        dict(x=(1, 0, 5, 8), kernel=(3, 3), m=20, begin=(2, 1)),
    ],
    ids=str,
)
def test_conv(case: dict[str, Any]) -> None:
    conv(**case)


@pytest.mark.parametrize(
    "case",
    [
        dict(x=(1, 9, 10, 24), kernel=(3, 3), m=24, groups=24, begin=(1, 1)),
        dict(x=(2, 9, 10, 6), kernel=(3, 3), m=6, groups=6, begin=(1, 1), strides=(2, 2)),
        dict(x=(1, 9, 10, 6), kernel=(5, 5), m=6, groups=6, begin=(2, 2), strides=(1, 2)),
        dict(x=(1, 9, 10, 6), kernel=(5, 5), m=12, groups=6, begin=(4, 4), dilations=(2, 2)),
        dict(x=(1, 9, 10, 6), kernel=(2, 4), m=6, groups=6, strides=(3, 3)),
        dict(x=(2, 19, 6), kernel=(3,), m=6, groups=6, begin=(1,)),
        dict(x=(2, 3, 0, 6), kernel=(3, 3), m=6, groups=6, begin=(1, 1)),
        dict(x=(1, 5, 6, 7, 4), kernel=(3, 3, 3), m=8, groups=4, begin=(1, 1, 1)),
        dict(x=(1, 9, 10, 6), kernel=(3, 3), m=8, groups=2, begin=(1, 0), end=(0, 2)),
    ],
    ids=str,
)
def test_narrow_groups(case: dict[str, Any]) -> None:
    conv(**case)


@pytest.mark.parametrize("stride", [1, 2])
def test_eight_columns_a_thread(monkeypatch: pytest.MonkeyPatch, stride: int) -> None:
    monkeypatch.setattr("onnx_vulkan.kernels.depthwise.MANY_OUTPUTS", 1)
    conv((1, 9, 21, 6), (3, 3), 6, groups=6, begin=(1, 1), strides=(stride, stride), epilogue=True)


@pytest.mark.parametrize(("index", "splits"), [(-4, 4), (-3, 1)])
def test_tiles(monkeypatch: pytest.MonkeyPatch, index: int, splits: int) -> None:
    tile = tiles.TILES[index]
    monkeypatch.setattr(products, "choose_tile", lambda *a: tiles.Choice(tile, splits))
    conv((1, 10, 9, 16), (3, 3), 36, begin=(1, 1), epilogue=True)


@pytest.mark.parametrize(
    "dtypes",
    [
        (DType.F16, DType.F16, DType.F16),
        (DType.F32, DType.F16, DType.F32),
        (DType.BF16, DType.BF16, DType.BF16),
        (DType.F64, DType.F64, DType.F64),
        (DType.I8, DType.I8, DType.I32),
        (DType.U8, DType.I8, DType.I32),
    ],
    ids=lambda t: "-".join(d.onnx_name for d in t),
)
@pytest.mark.parametrize("groups", [1, 8])
@pytest.mark.parametrize("transpose", [False, True])
def test_dtypes(dtypes: tuple[DType, DType, DType], groups: int, transpose: bool) -> None:
    conv((1, 6, 7, 8), (3, 3), 24, begin=(1, 1), groups=groups, dtypes=dtypes, transpose=transpose)


@pytest.mark.parametrize("case", [dict(groups=1), dict(groups=2), dict(groups=8), dict(groups=1, transpose=True)], ids=str)
def test_epilogue(case: dict[str, Any]) -> None:
    conv((2, 6, 7, 8), (3, 3), 40, begin=(1, 1), epilogue=True, **case)


@pytest.mark.parametrize(
    "case",
    [
        dict(x=(1, 5, 6, 8), kernel=(2, 2), m=20, strides=(2, 2)),
        dict(x=(2, 5, 6, 16), kernel=(3, 3), m=20, strides=(2, 2), begin=(1, 1), end=(0, 1)),
        dict(x=(1, 5, 6, 12), kernel=(4, 4), m=21, strides=(2, 2), begin=(1, 1)),
        dict(x=(1, 5, 6, 3), kernel=(3, 3), m=18),
        dict(x=(1, 5, 6, 6), kernel=(3, 2), m=18, dilations=(2, 3), begin=(1, 0)),
        dict(x=(1, 5, 6, 6), kernel=(3, 3), m=18, strides=(3, 2), dilations=(2, 2), begin=(2, 1)),
        dict(x=(1, 5, 6, 6), kernel=(4, 5), m=18, strides=(4, 6), dilations=(6, 4), begin=(0, 3)),
        dict(x=(1, 5, 6, 6), kernel=(2, 2), m=18, strides=(3, 3), dilations=(4, 1)),
        dict(x=(1, 5, 6, 6), kernel=(1, 1), m=18, strides=(3, 3)),
        dict(x=(2, 9, 8), kernel=(5,), m=17, strides=(4,), begin=(6,), out=(20,)),
        dict(x=(1, 3, 4, 3, 4), kernel=(2, 3, 2), m=18, strides=(2, 1, 2)),
        dict(x=(1, 5, 6, 40), kernel=(2, 2), m=48, strides=(2, 2), groups=2),
        dict(x=(1, 5, 6, 6), kernel=(3, 3), m=12, strides=(2, 2), groups=6, begin=(1, 1)),
        dict(x=(1, 5, 6, 6), kernel=(3, 3), m=6, strides=(2, 3), dilations=(2, 1), groups=2, begin=(1, 0), out=(13, 20)),
        dict(x=(0, 5, 6, 4), kernel=(3, 3), m=6),
    ],
    ids=str,
)
def test_conv_transpose(case: dict[str, Any]) -> None:
    conv(transpose=True, **case)


def test_what_is_refused() -> None:
    builder = Builder()
    image = builder.input("x", DType.F32, (1, 2, 2, 2, 2, 4))
    four = dict(kernel=(1,) * 4, strides=(1,) * 4, dilations=(1,) * 4, pads_begin=(0,) * 4, pads_end=(0,) * 4)
    builder.window("conv", image, image, out_channels=4, out_spatial=(2,) * 4, groups=1, **four)  # type: ignore[arg-type]
    assert "over 4 spatial axes" in str(FAMILIES["window:conv"].supports(builder.instrs[-1]))
