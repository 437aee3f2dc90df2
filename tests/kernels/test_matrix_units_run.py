"""Products on a device's matrix units against float64, on fresh random data. Devices without such units skip this file."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx_vulkan.kernels.product as products
import pytest
from onnx import helper, numpy_helper
from onnx_vulkan import Session, frontend
from onnx_vulkan.device import Device
from onnx_vulkan.dims import Scope
from onnx_vulkan.dtypes import DType
from onnx_vulkan.graph import Array
from onnx_vulkan.inputs import bound_dims
from onnx_vulkan.kernels.matrix_units import (
    HALVES,
    IN_PARTS,
    MOST_SUMS,
    ROUNDED,
    SIGNED,
    UNIT_TILES,
    UNSIGNED,
    Unit,
    UnitChoice,
    UnitTile,
)
from onnx_vulkan.lower import lower_graph
from onnx_vulkan.program.interp import interpret

NUMPY: dict[Unit, Any] = {HALVES: np.float16, ROUNDED: np.float32, IN_PARTS: np.float32, SIGNED: np.int8, UNSIGNED: np.uint8}
PRECISION = {ROUNDED: "fast", IN_PARTS: "fp32_split"}
UNITS = tuple(NUMPY)
FLOATS = (HALVES, ROUNDED, IN_PARTS)
named = {"ids": lambda x: x.name.replace(" ", "_") if isinstance(x, Unit) else str(x)}

Shape = tuple[int, ...]


@pytest.fixture(autouse=True)
def ran(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Unit]]:
    """The units of the launches that were planned; products in parts find scales whatever their size."""
    if not {"coop_f16", "coop_s8", "coop_u8"} <= Device.get().info.features:
        pytest.skip("the device lacks cooperative matrices")
    launched: list[Unit] = []
    launch = products.unit_launch

    def noted(kernel: Any, sizes: Any, choice: Any, unit: Unit, *rest: Any) -> Any:
        launched.append(unit)
        return launch(kernel, sizes, choice, unit, *rest)

    monkeypatch.setattr(products, "unit_launch", noted)
    monkeypatch.setattr(products, "WORTH_SCALES", 0)
    yield launched


@pytest.fixture
def rng() -> np.random.Generator:
    seed = secrets.randbits(32)
    print("seed", seed)  # shown where the test fails
    return np.random.default_rng(seed)


@dataclass(frozen=True)
class Work:
    """A small model of one output ``y``: its nodes, the arrays that are fed and those that are weights."""

    nodes: tuple[Any, ...]
    inputs: Mapping[str, Array]
    weights: Mapping[str, Array]
    dims: Mapping[str, Shape | list[Any]] | None = None

    def each(self, change: Any) -> Work:
        """The same with every array changed."""
        inputs, weights = ({name: change(a) for name, a in given.items()} for given in (self.inputs, self.weights))
        return replace(self, inputs=inputs, weights=weights)

    def model(self) -> bytes:
        first = next(iter(self.inputs.values())).dtype
        out = np.dtype(np.int32) if first.kind in "iu" else first
        inputs = [self._value(name, a.dtype, (self.dims or {}).get(name, a.shape)) for name, a in self.inputs.items()]
        weights = [numpy_helper.from_array(np.asarray(a), name) for name, a in self.weights.items()]
        graph = helper.make_graph(list(self.nodes), "work", inputs, [self._value("y", out, None)], weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8).SerializeToString()

    @staticmethod
    def _value(name: str, dtype: np.dtype[Any], shape: Any) -> Any:
        return helper.make_tensor_value_info(name, DType.of(dtype).value, shape)

    def exact(self) -> Array:
        """The result in float64, of integers exactly."""
        graph, feeds = frontend.load(self.model()), dict(self.inputs)
        numbers = bound_dims(graph, feeds)
        with Scope(numbers):
            program = lower_graph(graph, host_values=feeds).program
            return interpret(program, feeds, numbers, float64=True)[0]

    def run(self, precision: str = "strict") -> Array:
        options = {"precision": precision, "compile_ahead": "off"}
        with Session.load(self.model(), options=options) as session:
            return np.asarray(session.run(dict(self.inputs))["y"])


def halved(a: Array) -> Array:
    """Floats rounded to fp16."""
    with np.errstate(over="ignore"):
        return a.astype(np.float16).astype(a.dtype) if a.dtype == np.float32 else a


def numbers(rng: np.random.Generator, shape: Shape, unit: Unit) -> Array:
    dtype = np.dtype(NUMPY[unit])
    if dtype.kind in "iu":
        return rng.integers(np.iinfo(dtype).min, np.iinfo(dtype).max + 1, shape).astype(dtype)
    return rng.standard_normal(shape).astype(dtype)


def check(work: Work, unit: Unit, depth: int) -> Array:
    """Run the work and compare: integers exactly, floats to within what the sums of *depth* products and one rounding of
    the result may be off. The unit may truncate what it adds up to 24 bits, 16 products at a time."""
    got = work.run(PRECISION.get(unit, "strict"))
    taken = work.each(halved) if unit is ROUNDED else work
    want = taken.exact()
    assert got.shape == want.shape
    if unit not in FLOATS:
        np.testing.assert_array_equal(got, want)
        return got
    finite = taken.each(lambda a: np.abs(np.where(np.isfinite(a), a, 0).astype(a.dtype)))
    room = (depth / 16 + 4) * 2.0**-21 * finite.exact() + 2.0**-24
    if got.dtype == np.float16:
        room = room + 2.0**-11 * np.abs(np.where(np.isfinite(want), want, 0))
    sure = np.isfinite(want)
    assert (np.isfinite(got) == sure).all(), "infinities and NaN are where they should be"
    if unit is not IN_PARTS:
        np.testing.assert_array_equal(got[~sure], want[~sure].astype(got.dtype))
    off = np.abs(got[sure].astype(np.float64) - want[sure]) / room[sure]
    assert off.max(initial=0) <= 1, f"{off.max()} times what is allowed"
    return got


def product(rng: np.random.Generator, a: Shape, b: Shape, unit: Unit, *, constant: bool = True) -> Work:
    op = "MatMul" if unit in FLOATS else "MatMulInteger"
    x, w = numbers(rng, a, unit), numbers(rng, b, unit)
    node = helper.make_node(op, ["x", "w"], ["y"])
    return Work((node,), {"x": x} if constant else {"x": x, "w": w}, {"w": w} if constant else {})


# ------------------------------------------------------------------------------------------------ products
@pytest.mark.parametrize("constant", [True, False])
@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((64, 64), (64, 64)),
        ((17, 19), (19, 23)),
        ((33, 1), (1, 40)),
        ((130, 40), (40, 132)),
        ((257, 333), (333, 129)),
        ((200, 1000), (1000, 72)),
        ((3, 20, 36), (3, 36, 24)),
        ((2, 3, 18, 7), (2, 3, 7, 21)),
        ((2, 3, 18, 48), (48, 40)),
        ((2, 1, 18, 32), (1, 3, 32, 20)),
        ((20, 0), (0, 30)),
        ((0, 20, 8), (0, 8, 20)),
        ((40, 2500), (2500, 24)),
    ],
    ids=str,
)
@pytest.mark.parametrize("unit", UNITS, **named)
def test_products(ran: list[Unit], rng: np.random.Generator, unit: Unit, a: Shape, b: Shape, constant: bool) -> None:
    check(product(rng, a, b, unit, constant=constant), unit, a[-1])
    assert set(ran) == {unit} or min(a[-2], b[-1]) <= 64, "few rows of fp16 may have a kernel of their own"


def tiles(unit: Unit) -> list[UnitTile]:
    return [t for t in UNIT_TILES if t.wm * t.wn * unit.parts <= MOST_SUMS]


@pytest.mark.parametrize(("splits", "aligned"), [(1, False), (4, True)])
@pytest.mark.parametrize(("unit", "tile"), [(u, t) for u in UNITS for t in tiles(u)], **named)
def test_tiles(
    monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator, unit: Unit, tile: UnitTile, splits: int, aligned: bool
) -> None:
    """Off the tile's edges, with K in a number of steps that the splits do not share evenly; both orientations of either side."""
    monkeypatch.setattr(products, "choose_unit_tile", lambda *a: UnitChoice(tile, splits))
    m, k, n = (tile.bm + 32, 352, 2 * tile.bn + 16) if aligned else (tile.bm + 5, 345, 2 * tile.bn + 3)
    x, w = numbers(rng, (k, m), unit), numbers(rng, (n, k), unit)
    op = "MatMul" if unit in FLOATS else "MatMulInteger"
    check(product(rng, (m, k), (k, n), unit), unit, k)
    nodes = [helper.make_node("Transpose", [name], [name + "t"], perm=[1, 0]) for name in ("x", "w")]
    check(Work((*nodes, helper.make_node(op, ["xt", "wt"], ["y"])), {"x": x, "w": w}, {}), unit, k)


@pytest.mark.parametrize("splits", [1, 4])
@pytest.mark.parametrize("unit", FLOATS, **named)
def test_epilogues(monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator, ran: list[Unit], unit: Unit, splits: int) -> None:
    """Gemm with a bias, and an activation."""
    monkeypatch.setattr(products, "choose_unit_tile", lambda *a: UnitChoice(UNIT_TILES[5], splits))
    gemm, relu = helper.make_node("Gemm", ["x", "w", "c"], ["g"], transB=1), helper.make_node("Relu", ["g"], ["y"])
    x, w, c = numbers(rng, (70, 200), unit), numbers(rng, (90, 200), unit), numbers(rng, (90,), unit)
    check(Work((gemm, relu), {"x": halved(x)}, {"w": w, "c": halved(c)}), unit, 200)
    assert set(ran) == {unit}


@pytest.mark.parametrize("unit", UNITS, **named)
def test_sizes_that_change(rng: np.random.Generator, ran: list[Unit], unit: Unit) -> None:
    """One session: the rows become a run-time dim on the way."""
    w = numbers(rng, (96, 80), unit)
    node = helper.make_node("MatMul" if unit in FLOATS else "MatMulInteger", ["x", "w"], ["y"])
    works = [
        Work((node,), {"x": numbers(rng, (m, 96), unit)}, {"w": w}, {"x": ["m", 96]}) for m in (64, 37, 130, 20, 131, 300, 65)
    ]
    with Session.load(works[0].model(), options={"precision": PRECISION.get(unit, "strict"), "compile_ahead": "off"}) as session:
        for work in works:
            got = np.asarray(session.run(dict(work.inputs))["y"])
            want = (work.each(halved) if unit is ROUNDED else work).exact()
            np.testing.assert_allclose(
                got.astype(np.float64), want, rtol=1e-3 if unit is HALVES else 1e-4, atol=2e-2 if unit is HALVES else 1e-3
            )
    assert set(ran) == {unit}


def test_bytes_of_mixed_signs(rng: np.random.Generator, ran: list[Unit]) -> None:
    """No unit takes them: another kernel does."""
    x, w = rng.integers(0, 256, (40, 64)).astype(np.uint8), rng.integers(-128, 128, (64, 40)).astype(np.int8)
    work = Work((helper.make_node("MatMulInteger", ["x", "w"], ["y"]),), {"x": x}, {"w": w})
    np.testing.assert_array_equal(work.run(), work.exact())
    assert not ran


def test_strict_float32_stays_off_the_units(rng: np.random.Generator, ran: list[Unit]) -> None:
    product(rng, (64, 64), (64, 64), ROUNDED).run()
    assert not ran


# ------------------------------------------------------------------------------------------------ NaN, infinities, ranges
@pytest.mark.parametrize("unit", FLOATS, **named)
def test_nan_and_infinities_stay_in_their_rows(rng: np.random.Generator, ran: list[Unit], unit: Unit) -> None:
    work = product(rng, (70, 90), (90, 100), unit, constant=False)
    x, w = work.inputs["x"], work.inputs["w"]
    x[3, 5], x[40, 7], x[41, 0], w[1, 9], w[2, 99] = np.nan, np.inf, -np.inf, np.nan, np.inf
    x[50, :], w[:, 60] = 0, 0
    got = check(work, unit, 90)
    assert not np.isfinite(got[[3, 40, 41]]).any() and not np.isfinite(got[:, [9, 99]]).any()
    rest = np.delete(np.delete(got, [3, 40, 41], 0), [9, 99], 1)
    assert np.isfinite(rest).all() and set(ran) == {unit}
    assert (np.delete(got[50], [9, 99]) == 0).all()


def test_fast_overflows_beyond_half_precision(rng: np.random.Generator) -> None:
    for constant in (False, True):
        work = product(rng, (70, 90), (90, 100), ROUNDED, constant=constant)
        arrays = {**work.inputs, **work.weights}
        arrays["x"][3, 5], arrays["w"][7, 2], arrays["x"][8, 8] = 1e5, -66000, 65519
        got = check(work, ROUNDED, 90)
        assert not np.isfinite(got[3]).any() and not np.isfinite(got[:, 2]).any() and np.isfinite(got[8, 3:]).all()


@pytest.mark.parametrize(("left", "right"), [(1e30, 1e-25), (1e37, 1e-3), (1e-30, 1e25), (1e-33, 1e37), (1e-20, 1e-18)])
def test_parts_have_the_range_of_float32(rng: np.random.Generator, left: float, right: float) -> None:
    """Nothing overflows on the way to a result that float32 holds; one below its normal range may be taken for zero."""
    for scales in ((left, right), (right, left)):
        work = product(rng, (65, 90), (90, 100), IN_PARTS, constant=False)
        x, w = (work.inputs[name] * np.float32(s) for name, s in zip("xw", scales, strict=True))
        got, want = replace(work, inputs={"x": x, "w": w}).run("fp32_split"), x.astype(np.float64) @ w.astype(np.float64)
        room = 2.0**-18 * (np.abs(x).astype(np.float64) @ np.abs(w).astype(np.float64)) + 2.0**-126
        assert (np.abs(got - want) <= room).all(), scales


# ------------------------------------------------------------------------------------------------ parts against plain sums
def normal(rng: np.random.Generator, x: Array, w: Array) -> None:
    pass


def badly_scaled(rng: np.random.Generator, x: Array, w: Array) -> None:
    x *= np.exp2(rng.uniform(-40, 40, (len(x), 1))).astype(np.float32)
    w *= np.exp2(rng.uniform(-40, 40, (1, w.shape[1]))).astype(np.float32)


def cancelling(rng: np.random.Generator, x: Array, w: Array) -> None:
    """Sums of which little is left."""
    half = len(w) // 2
    x[:, half:] = x[:, :half]
    w[half:] = -w[:half] * (1 + 1e-5 * rng.standard_normal(w[:half].shape)).astype(np.float32)


@pytest.mark.parametrize("depth", [1024, 4096])
@pytest.mark.parametrize("data", [normal, badly_scaled, cancelling], ids=lambda f: f.__name__)
def test_parts_are_no_worse_than_plain_sums(rng: np.random.Generator, ran: list[Unit], data: Any, depth: int) -> None:
    """The mean and the largest error against those of float32 sums of one product after the other."""
    x, w = rng.standard_normal((512, depth)).astype(np.float32), rng.standard_normal((depth, 512)).astype(np.float32)
    data(rng, x, w)
    work = Work((helper.make_node("MatMul", ["x", "w"], ["y"]),), {"x": x, "w": w}, {})
    want = x.astype(np.float64) @ w.astype(np.float64)
    size = np.abs(x).astype(np.float64) @ np.abs(w).astype(np.float64)
    plain = np.zeros_like(want, np.float32)
    for k in range(depth):
        plain += x[:, k : k + 1] * w[k : k + 1]
    errors = [np.abs(y - want) / size for y in (work.run("fp32_split"), plain)]
    ours, theirs = (np.array([np.sqrt(np.mean(e**2)), e.max()]) for e in errors)
    assert (ours <= theirs).all(), (ours, theirs)
    assert set(ran) == {IN_PARTS}


# ------------------------------------------------------------------------------------------------ convolutions
CONVS: list[tuple[Shape, Shape, dict[str, Any]]] = [
    ((2, 16, 20, 17), (33, 16, 3, 3), {"pads": [1, 1, 1, 1]}),
    ((1, 3, 30, 31), (40, 3, 7, 7), {"pads": [3, 3, 3, 3], "strides": [2, 2]}),
    ((1, 24, 20, 19), (34, 24, 3, 3), {"pads": [2, 3, 2, 3], "dilations": [2, 3]}),
    ((1, 64, 12, 13), (80, 32, 3, 3), {"pads": [0, 1, 1, 0], "group": 2}),
    ((3, 48, 14, 14), (96, 48, 1, 1), {}),
    ((2, 37, 14, 14), (50, 37, 1, 1), {"strides": [2, 2]}),
    ((2, 32, 100), (48, 32, 5), {"pads": [2, 2]}),
    ((1, 20, 6, 7, 8), (36, 20, 3, 3, 3), {"pads": [1] * 6}),
    ((1, 128, 7, 7), (64, 128, 3, 3), {"pads": [1] * 4}),
]
TRANSPOSED: list[tuple[Shape, Shape, dict[str, Any]]] = [
    ((1, 32, 9, 11), (32, 24, 3, 3), {"strides": [2, 2]}),
    ((2, 33, 9, 11), (33, 20, 4, 4), {"strides": [2, 2], "pads": [1, 1, 1, 1]}),
    ((1, 64, 8, 8), (64, 40, 2, 2), {"strides": [2, 2], "group": 2}),
]


def convolution(rng: np.random.Generator, op: str, x: Shape, w: Shape, attributes: dict[str, Any], unit: Unit) -> Work:
    image, weights = numbers(rng, x, unit), numbers(rng, w, unit)
    if unit not in FLOATS:
        return Work((helper.make_node(op, ["x", "w"], ["y"], **attributes),), {"x": image}, {"w": weights})
    channels = w[1] * attributes.get("group", 1) if op == "ConvTranspose" else w[0]
    nodes = helper.make_node(op, ["x", "w", "c"], ["conv"], **attributes), helper.make_node("Relu", ["conv"], ["y"])
    return Work(nodes, {"x": image}, {"w": weights, "c": halved(numbers(rng, (channels,), unit))})


@pytest.mark.parametrize("splits", [0, 3])
@pytest.mark.parametrize(
    ("op", "case"),
    [("Conv", c) for c in CONVS] + [("ConvTranspose", c) for c in TRANSPOSED],
    ids=lambda x: x if isinstance(x, str) else str(x[:2]),
)
@pytest.mark.parametrize("unit", [HALVES, ROUNDED], **named)
def test_convolutions(
    monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator, ran: list[Unit], unit: Unit, op: str, case: Any, splits: int
) -> None:
    if splits:
        monkeypatch.setattr(products, "choose_unit_tile", lambda *a: UnitChoice(UNIT_TILES[5], splits))
    x, w, attributes = case
    depth = w[0] * int(np.prod(w[2:])) if op == "ConvTranspose" else int(np.prod(w[1:]))
    check(convolution(rng, op, x, w, attributes, unit), unit, depth)
    assert set(ran) == {unit}


@pytest.mark.parametrize("case", CONVS, ids=lambda x: str(x[:2]))
@pytest.mark.parametrize("unit", [SIGNED, UNSIGNED], **named)
def test_convolutions_of_bytes(rng: np.random.Generator, ran: list[Unit], unit: Unit, case: Any) -> None:
    x, w, attributes = case
    check(convolution(rng, "ConvInteger", x, w, attributes, unit), unit, 0)
    assert set(ran) <= {unit}
