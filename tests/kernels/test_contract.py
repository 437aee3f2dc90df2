"""Matrix products against the interpreter: shapes off the tiles, strides of every kind, dtypes, epilogues, forced variants."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_vulkan.kernels.contract as contract
import onnx_vulkan.kernels.product as products
import pytest
from onnx_vulkan.dims import Dim, Extent, evaluate, symbol
from onnx_vulkan.dtypes import DType
from onnx_vulkan.graph import Array
from onnx_vulkan.kernels import tiles
from onnx_vulkan.program.builder import Builder
from onnx_vulkan.program.ir import Value
from run_step import check_program, device

TOLERANCE = {DType.F32: (1e-5, 1e-4), DType.F16: (1e-2, 1e-2), DType.BF16: (2e-2, 2e-2), DType.F64: (1e-12, 1e-12)}
Shape = tuple[int, ...]


def random(rng: np.random.Generator, shape: Shape, dtype: DType) -> Array:
    if dtype.is_float:
        return rng.standard_normal(shape).astype(np.float32).astype(dtype.numpy)
    low, high = (-100, 100) if dtype.is_signed else (0, 200)
    return rng.integers(low, high, shape).astype(dtype.numpy)


def identity(builder: Builder, x: Value) -> Value:
    return x


def product(
    a: Shape,
    b: Shape,
    dtypes: tuple[DType, DType, DType | None] = (DType.F32, DType.F32, None),
    left: Callable[[Builder, Value], Value] = identity,
    right: Callable[[Builder, Value], Value] = identity,
    after: Callable[[Builder, Value], Value] = identity,
    **options: Any,
) -> list[Array]:
    """``after(left(a) @ right(b))`` on the device and in the interpreter."""
    rng = np.random.default_rng(0)
    builder = Builder()
    x, y = left(builder, builder.input("a", dtypes[0], a)), right(builder, builder.input("b", dtypes[1], b))
    out = after(builder, builder.contract(x, y, dtype=dtypes[2], acc=dtypes[2] if dtypes[0].is_int else None))
    atol, rtol = TOLERANCE.get(dtypes[0], (0.0, 0.0))
    feeds = {"a": random(rng, a, dtypes[0]), "b": random(rng, b, dtypes[1])}
    depth = x.shape[-1]
    assert isinstance(depth, int)
    return check_program(builder, [out], feeds, atol=atol * max(depth, 1) ** 0.5, rtol=rtol, **options)


@pytest.mark.parametrize("tile", tiles.TILES, ids=str)
def test_every_tile_is_whole(tile: tiles.Tile) -> None:
    """Each thread loads whole quads, and warps of 32 cover 4 x 8 blocks (gemm_tile.glsl)."""
    assert tile.bm * tile.bk // 4 % tile.threads == 0
    assert tile.bn * tile.bk // 4 % tile.threads == 0
    assert tile.tm % 4 == tile.tn % 4 == tile.bn // tile.tn % 8 == tile.bm // tile.tm % 4 == 0


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((1, 1), (1, 1)),
        ((17, 19), (19, 23)),
        ((64, 64), (64, 64)),
        ((130, 40), (40, 132)),
        ((33, 4), (4, 100)),
        ((200, 1), (1, 30)),
        ((3, 20, 36), (3, 36, 24)),
        ((2, 3, 18, 7), (2, 3, 7, 21)),
        ((2, 3, 18, 8), (8, 20)),
        ((2, 1, 18, 8), (1, 3, 8, 20)),
        ((40, 500), (500, 24)),
        # few rows or columns
        ((1, 40), (40, 70)),
        ((3, 257), (257, 130)),
        ((16, 64), (64, 64)),
        ((70, 33), (33, 2)),
        ((5, 1, 64), (5, 64, 30)),
        ((2, 2, 1, 9), (9, 40)),
        ((1, 3000), (3000, 10)),
        # nothing to sum, nothing to store
        ((20, 0), (0, 30)),
        ((3, 0), (0, 30)),
        ((0, 8), (8, 30)),
        ((20, 8), (8, 0)),
        ((0, 20, 8), (0, 8, 20)),
    ],
)
def test_shapes(a: Shape, b: Shape) -> None:
    product(a, b)


def tiles_by_size(*sizes: tuple[int, int, int]) -> list[tiles.Tile]:
    return [t for t in tiles.TILES if (t.bm, t.bn, t.bk) in sizes]


@pytest.mark.parametrize(
    ("tile", "splits"),
    # a CPU takes 2 to 4 s to compile the larger ones; the largest goes out through shared memory in two parts
    [(t, 4) for t in tiles_by_size((32, 32, 8), (64, 32, 16))]
    + [(t, 1) for t in tiles_by_size((32, 32, 16), (32, 128, 16), (128, 128, 8))],
    ids=lambda x: str(x) if isinstance(x, int) else f"{x.bm}x{x.bn}x{x.bk}",
)
def test_tiles(monkeypatch: pytest.MonkeyPatch, tile: tiles.Tile, splits: int) -> None:
    monkeypatch.setattr(products, "choose_tile", lambda *a: tiles.Choice(tile, splits))
    product((tile.bm + 5, 84), (84, tile.bn + 4))


def transposed(builder: Builder, x: Value) -> Value:
    return builder.transpose(x, [*range(x.rank - 2), x.rank - 1, x.rank - 2])


def heads(builder: Builder, x: Value) -> Value:
    """[batch, length, 3 * 8] -> [batch, 3, length, 8]: attention's view of a projection."""
    batch, length, width = x.shape
    return builder.transpose(builder.reshape(x, [batch, length, 3, width // 3]), [0, 2, 1, 3])


def heads_transposed(builder: Builder, x: Value) -> Value:
    return transposed(builder, heads(builder, x))


def every_other(builder: Builder, x: Value) -> Value:
    sizes = [*x.shape[:-2], x.shape[-2] // 2, x.shape[-1] - 3]
    return builder.slice(x, [0] * (x.rank - 2) + [1, 2], sizes, [1] * (x.rank - 2) + [2, 1])


def reversed_rows(builder: Builder, x: Value) -> Value:
    return builder.slice(x, [*[0] * (x.rank - 2), x.shape[-2] - 1, 0], x.shape, [*[1] * (x.rank - 2), -1, 1])


def each_head(builder: Builder, x: Value) -> Value:
    batch, rows, columns = x.shape
    return builder.broadcast(builder.reshape(x, [batch, 1, rows, columns]), [batch, 3, rows, columns])


@pytest.mark.parametrize(
    ("a", "b", "left", "right"),
    [
        ((36, 20), (36, 24), transposed, identity),
        ((35, 21), (23, 35), transposed, transposed),
        ((20, 36), (40, 36), identity, transposed),
        ((2, 20, 24), (2, 28, 24), heads, heads_transposed),
        ((2, 20, 28), (2, 28, 24), each_head, heads),
        ((2, 40, 23), (20, 30), every_other, identity),
        ((20, 36), (36, 24), reversed_rows, reversed_rows),
        # few rows or columns
        ((36, 4), (36, 24), transposed, identity),
        ((4, 36), (40, 36), identity, transposed),
        ((40, 36), (3, 36), identity, transposed),
        ((36, 40), (36, 3), transposed, identity),
        ((2, 1, 24), (2, 28, 24), heads, heads_transposed),
        ((3, 36), (36, 24), reversed_rows, reversed_rows),
    ],
)
def test_views(a: Shape, b: Shape, left: Any, right: Any) -> None:
    product(a, b, left=left, right=right)


@pytest.mark.parametrize("shapes", [((20, 36), (36, 24)), ((3, 36), (36, 24))], ids=["tile", "skinny"])
@pytest.mark.parametrize(
    "dtypes",
    [
        (DType.F16, DType.F16, None),
        (DType.BF16, DType.BF16, None),
        (DType.F16, DType.F16, DType.F32),
        (DType.F32, DType.F16, None),  # weights that are stored rounded
        (DType.F64, DType.F64, None),
        (DType.I32, DType.I32, DType.I32),
        (DType.U32, DType.U32, DType.U32),
        (DType.I64, DType.I64, DType.I64),
        (DType.U64, DType.U64, DType.U64),
        (DType.I8, DType.I8, DType.I32),
        (DType.U8, DType.I8, DType.I32),
        (DType.U8, DType.U8, DType.I32),
    ],
    ids=lambda t: "-".join(d.onnx_name if d else "same" for d in t),
)
def test_dtypes(shapes: tuple[Shape, Shape], dtypes: tuple[DType, DType, DType | None]) -> None:
    product(*shapes, dtypes)


@pytest.mark.parametrize("dtype", [DType.F16, DType.BF16])
@pytest.mark.parametrize("along_k", [False, True])
@pytest.mark.parametrize(("rows", "columns", "depth"), [(1, 72, 136), (3, 40, 2056), (4, 20, 72), (2, 16, 8)])
def test_skinny_halves_in_octets(rows: int, columns: int, depth: int, along_k: bool, dtype: DType) -> None:
    """Eight 16-bit elements a load along either axis of the wide operand (not in 20 columns), with few rows and few columns."""
    wide = (columns, depth) if along_k else (depth, columns)
    product((rows, depth), wide, (dtype, dtype, None), right=transposed if along_k else identity)
    product(wide[::-1], (depth, rows), (dtype, dtype, None), left=identity if not along_k else transposed)


def test_rows_that_a_gpu_takes_in_one_go() -> None:
    product((7, 72), (72, 40), (DType.F16, DType.F16, None), limits={"subgroup_size": 32})
    product((40, 72), (72, 9), limits={"subgroup_size": 32})


def test_what_is_refused() -> None:
    builder = Builder()
    a, b = builder.input("a", DType.I8, (4, 4)), builder.input("b", DType.I8, (4, 4))
    for acc, reason in ((DType.F32, "cannot be summed in float32"), (DType.BOOL, "not supported")):
        builder.contract(a, b, dtype=DType.I32, acc=acc)
        assert reason in str(products.refusal(builder.instrs[-1]))


def bias_relu(builder: Builder, x: Value) -> Value:
    bias = builder.const(np.linspace(-1, 1, int(x.shape[-1]), dtype=np.float32))
    residual = builder.input("r", DType.F32, x.shape)
    return builder.max(builder.add(builder.add(x, bias), residual), builder.scalar(0, DType.F32))


@pytest.mark.parametrize("splits", [1, 2])
@pytest.mark.parametrize(("a", "b"), [((2, 20, 130), (130, 24)), ((2, 3, 20, 130), (2, 3, 130, 24)), ((1, 3, 4000), (4000, 24))])
def test_epilogue(monkeypatch: pytest.MonkeyPatch, a: Shape, b: Shape, splits: int) -> None:
    """Bias, residual and activation, and the sum itself read by somebody else too; also after a split."""
    monkeypatch.setattr(products, "choose_tile", lambda *_: tiles.Choice(tiles.TILES[-1], splits))
    rng = np.random.default_rng(1)
    builder = Builder()
    x, y = builder.input("a", DType.F32, a), builder.input("b", DType.F32, b)
    raw = builder.contract(x, y)
    out = bias_relu(builder, raw)
    feeds = {"a": random(rng, a, DType.F32), "b": random(rng, b, DType.F32)}
    feeds["r"] = random(rng, tuple(map(int, out.shape)), DType.F32)
    check_program(builder, [raw, out], feeds, atol=1e-4, rtol=1e-4)


def test_epilogue_changes_the_dtype() -> None:
    product((20, 36), (36, 24), (DType.I8, DType.I8, DType.I32), after=lambda b, x: b.cast(x, DType.F32))


def test_nan_and_infinity_pass_through() -> None:
    """In the row or column that they belong to, and nowhere else: not where a tile is filled up."""
    builder = Builder()
    x, y = builder.input("a", DType.F32, (37, 21)), builder.input("b", DType.F32, (21, 19))
    a, b = np.ones((37, 21), np.float32), np.ones((21, 19), np.float32)
    a[36, 20], a[3, 0], b[20, 18] = np.nan, np.inf, -np.inf
    (got,) = check_program(builder, [builder.contract(x, y)], {"a": a, "b": b})
    assert np.isnan(got).sum() == 19 + 1


class Capacity:
    """``at`` of a plan in which n may be anything up to 8."""

    def __call__(self, e: Extent) -> int:
        return evaluate(e, {"n": 8})

    def varies(self, e: Extent) -> bool:
        return isinstance(e, Dim)


def test_run_time_extents(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run-time extent is at its capacity when the variant is chosen, and smaller when the kernel runs."""
    n = symbol("n")
    builder = Builder()
    x, y = builder.input("a", DType.F32, (2, 20, n)), builder.input("b", DType.F32, (2, n, 24))
    rng = np.random.default_rng(0)
    feeds = {"a": random(rng, (2, 20, 7), DType.F32), "b": random(rng, (2, 7, 24), DType.F32)}
    launches = contract.ContractStep.launches
    monkeypatch.setattr(contract.ContractStep, "launches", lambda self, at, limits: launches(self, Capacity(), limits))
    check_program(builder, [builder.contract(x, y)], feeds, atol=1e-5, rtol=1e-4)


def test_many_shapes_one_text() -> None:
    """One structure serves every shape; only the few variants are new pipelines."""
    m, n, k = symbol("m"), symbol("n"), symbol("k")
    builder = Builder()
    out = builder.contract(builder.input("a", DType.F32, (3, m, k)), builder.input("b", DType.F32, (3, k, n)))
    rng = np.random.default_rng(7)
    texts = len(device().modules)
    for _ in range(20):
        rows, columns, depth = (int(e) for e in rng.integers(17, 60, 3))
        feeds = {"a": random(rng, (3, rows, depth), DType.F32), "b": random(rng, (3, depth, columns), DType.F32)}
        check_program(builder, [out], feeds, atol=1e-4, rtol=1e-4)
    assert len(device().modules) - texts <= 1
