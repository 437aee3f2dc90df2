"""Small element types on the device: packed inputs, outputs and weights, and the arithmetic of their numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx_vulkan import Session
from onnx_vulkan.device import Device
from onnx_vulkan.dims import Scope
from onnx_vulkan.dtypes import SMALL, SMALL_FLOATS, SMALL_INTS, DType
from onnx_vulkan.errors import InvalidInput
from onnx_vulkan.frontend import load
from onnx_vulkan.frontend.tensors import origin
from onnx_vulkan.lower import lower_graph
from onnx_vulkan.packing import Packed, from_storage, to_storage
from onnx_vulkan.program.interp import interpret

Array = np.ndarray[Any, Any]
TYPES = sorted(SMALL, key=lambda t: t.value)
NAME = {"ids": lambda t: t.onnx_name}
RNG = np.random.default_rng(5)


def value(name: str, dtype: int, shape: Sequence[Any]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)


def model(
    nodes: list[onnx.NodeProto],
    inputs: list[onnx.ValueInfoProto],
    outputs: list[onnx.ValueInfoProto],
    weights: Sequence[onnx.TensorProto] = (),
) -> onnx.ModelProto:
    graph = helper.make_graph(nodes, "small", inputs, outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 25)], ir_version=11)


def random(t: DType, shape: tuple[int, ...]) -> Array:
    return RNG.integers(0, 1 << t.bits, shape).astype(np.uint8).view(t.numpy)


def bits(x: Array) -> Array:
    return np.ascontiguousarray(x).view(np.uint8)


def hard_floats() -> Array:
    """Every float16, and float32 numbers around ties, limits and the ends of the exponents."""
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
    sizes = np.arange(256, dtype=np.uint32)[:, None] << np.uint32(23) | np.array(
        [0, 1, 0x100000, 0x200000, 0x300000, 0x3FFFFF, 0x400000, 0x400001, 0x500000, 0x600000, 0x700000, 0x7FFFFF], np.uint32
    )
    floats = sizes.reshape(-1).view(np.float32)
    return np.concatenate([halves, floats, -floats])


@pytest.mark.parametrize("t", TYPES, **NAME)
def test_casts_agree_with_the_interpreter_to_the_bit(t: DType) -> None:
    """From float32 and back; the interpreter's are tested against ONNX and ONNX Runtime."""
    nodes, outputs = [], []
    for saturate in (1, 0) if t in SMALL_FLOATS else (1,):
        nodes += [
            helper.make_node("Cast", ["x"], [f"y{saturate}"], to=t.value, saturate=saturate),
            helper.make_node("Cast", [f"y{saturate}"], [f"z{saturate}"], to=TensorProto.FLOAT),
        ]
        outputs += [value(f"y{saturate}", t.value, ["n"]), value(f"z{saturate}", TensorProto.FLOAT, ["n"])]
    data = model(nodes, [value("x", TensorProto.FLOAT, ["n"])], outputs).SerializeToString()
    feeds = {"x": hard_floats() if t in SMALL_FLOATS else np.arange(-400, 401).astype(np.float32) / 16}
    numbers = {"n": feeds["x"].size}
    with Scope(numbers):
        lowered = lower_graph(load(data))
        want = interpret(lowered.program, feeds, numbers)
    with Session.load(data) as session:
        got = session.run(feeds)
    for name, a, t_out in zip(got, want, lowered.outputs, strict=True):
        assert t_out.dtype is not None
        expected = from_storage(a, t_out.dtype, (numbers["n"],))
        same = (bits(got[name]) == bits(expected)).reshape(numbers["n"], -1).all(1)
        if t_out.dtype is DType.F32:
            same |= np.isnan(got[name]) & np.isnan(expected)
        assert same.all(), (name, feeds["x"][~same][:4], got[name][~same][:4], expected[~same][:4])


@pytest.mark.parametrize(
    "options", [{}, {"runtime_dims": {"n": 9, "m": 9}}, {"guard_zones": "on"}], ids=["", "run-time", "guarded"]
)
@pytest.mark.parametrize("t", [DType.I4, DType.U2, DType.F4E2M1, DType.F8E4M3FN], **NAME)
def test_odd_sizes_in_one_session(t: DType, options: dict[str, Any]) -> None:
    """What comes in packed is moved, concatenated and goes out packed, at sizes that fill no byte."""
    nodes = [
        helper.make_node("Transpose", ["x"], ["y"]),
        helper.make_node("Concat", ["x", "w"], ["z"], axis=0),
        helper.make_node("Cast", ["x"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("Identity", ["x"], ["same"]),
    ]
    outputs = [
        value("y", t.value, ["m", "n"]),
        value("z", t.value, [None, "m"]),
        value("f", 1, ["n", "m"]),
        value("same", t.value, ["n", "m"]),
    ]
    data = model(nodes, [value("x", t.value, ["n", "m"]), value("w", t.value, ["k", "m"])], outputs).SerializeToString()
    with Session.load(data, options=options) as session:
        for n, m in ((3, 5), (1, 1), (4, 8), (0, 3), (7, 3), (9, 1), (5, 3)):
            x, w = random(t, (n, m)), random(t, (2, m))
            got = session.run({"x": x, "w": w})
            for name, want in (("y", x.T), ("z", np.concatenate([x, w])), ("same", x)):
                assert got[name].dtype == t.numpy and got[name].shape == want.shape
                assert (bits(got[name]) == bits(want)).all(), (name, n, m)
            np.testing.assert_array_equal(got["f"], x.astype(np.float32))


def dequantized(t: DType, k: int, n: int, block: int) -> tuple[onnx.ModelProto, Array]:
    """``x @ (w - z) * s`` with a quantized weight, and the weight in float32."""
    w, z = random(t, (k, n)), random(t, (k // block, n))
    s = RNG.random((k // block, n)).astype(np.float32)
    weights = [numpy_helper.from_array(a, name) for a, name in ((w, "w"), (s, "s"), (z, "z"))]
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "s", "z"], ["f"], axis=0, block_size=block),
        helper.make_node("MatMul", ["x", "f"], ["y"]),
    ]
    made = model(nodes, [value("x", 1, ["m", k])], [value("y", 1, ["m", n])], weights)
    spread = [np.repeat(a.astype(np.float32), block, 0) for a in (z, s)]
    return made, (w.astype(np.float32) - spread[0]) * spread[1]


@pytest.mark.parametrize("t", sorted(SMALL_INTS, key=lambda t: t.value), **NAME)
def test_weights_take_as_much_device_memory_as_in_the_file(t: DType) -> None:
    k, n = 1024, 640
    made, w = dequantized(t, k, n, 64)
    x = RNG.standard_normal((2, k)).astype(np.float32)
    device = Device.get()
    before = device.counters()["uploaded_bytes"]
    with Session.load(made.SerializeToString()) as session:
        y = session.run({"x": x})["y"]
        uploaded = device.counters()["uploaded_bytes"] - before
    np.testing.assert_allclose(y, x @ w, rtol=1e-4, atol=1e-3)
    packed, scales, points = k * n * t.bits // 8, 4 * n * (k // 64), n * (k // 64)
    assert packed <= uploaded <= packed + scales + points + x.nbytes + 4096


@dataclass(frozen=True)
class Form:
    """A product with a dequantized weight. ``rows``: the weight is ``[N, K]``; ``op`` multiplies by it (Transpose: and MatMul);
    ``scales`` block, tensor, column or depth (one an index of K); ``packed``: whether the product reads it packed."""

    t: DType = DType.I4
    op: str = "MatMul"
    rows: bool = False
    scales: str = "block"
    zero: bool = True
    depth: int = 100
    block: int = 32
    half: bool = False
    packed: bool = True


FORMS = [
    Form(),
    Form(DType.U4),
    Form(DType.U2, zero=False),
    Form(DType.I2, zero=False, depth=64, block=16),
    Form(op="Gemm", rows=True),
    Form(DType.U4, op="Transpose", rows=True),
    Form(scales="tensor"),
    Form(DType.U4, scales="column", depth=96),
    Form(DType.U4, op="Gemm", rows=True, scales="column", zero=False),
    Form(half=True),
    Form(scales="depth", packed=False),
    Form(block=25, packed=False),
    Form(rows=True, op="Gemm", scales="blocks of columns", packed=False),
]


@pytest.mark.parametrize("form", FORMS, ids=lambda f: f"{f.t.onnx_name}-{f.op}-{f.scales}-{f.depth}-{f.block}-{f.half}")
def test_products_read_packed_weights(form: Form) -> None:
    """Against float64 numbers; what the composite cannot do is dequantized first."""
    n, k = 48, form.depth
    depth_axis = int(form.rows)
    shape = (n, k) if form.rows else (k, n)
    axis = 1 - depth_axis if "column" in form.scales else depth_axis
    few: tuple[int, ...] = ()
    if "block" in form.scales:
        few = tuple(-(-e // form.block) if i == axis else e for i, e in enumerate(shape))
    elif form.scales != "tensor":
        few = (shape[axis],)
    kind = np.float16 if form.half else np.float32
    w, z, s = random(form.t, shape), random(form.t, few), (RNG.random(few) + 0.5).astype(kind)
    weights = [numpy_helper.from_array(np.asarray(a), name) for a, name in ((w, "w"), (s, "s"), (z, "z"))]
    blocked = {"block_size": form.block} if "block" in form.scales else {}
    nodes = [helper.make_node("DequantizeLinear", ["w", "s", "z"] if form.zero else ["w", "s"], ["f"], axis=axis, **blocked)]
    if form.op == "Gemm":
        nodes.append(helper.make_node("Gemm", ["x", "f"], ["y"], transB=1))
    else:
        nodes += [helper.make_node("Transpose", ["f"], ["g"])] if form.rows else []
        nodes.append(helper.make_node("MatMul", ["x", "g" if form.rows else "f"], ["y"]))
    lead = ["m"] if form.op == "Gemm" else ["b", "m"]
    real = DType.of(kind).value
    made = model(nodes, [value("x", real, [*lead, k])], [value("y", real, [*lead, n])], weights)

    def spread(a: Array) -> Array:
        wide = a.astype(np.float64)
        if blocked:
            return np.take(np.repeat(wide, form.block, axis), range(shape[axis]), axis)
        return np.expand_dims(wide, 1 - axis) if wide.ndim else wide

    exact = (w.astype(np.float64) - (spread(z) if form.zero else 0)) * spread(s)
    exact = exact.T if form.rows else exact
    near = {"rtol": 1e-2, "atol": 0.1} if form.half else {"rtol": 1e-4, "atol": 1e-3}
    x = RNG.standard_normal((5, k) if form.op == "Gemm" else (2, 5, k)).astype(kind)
    graph, numbers = load(made.SerializeToString()), {"b": 2, "m": 5}
    with Scope(None):
        assert not lower_graph(graph, strict=False).refusals
    with Scope(numbers):
        program = lower_graph(graph).program
        np.testing.assert_allclose(interpret(program, {"x": x}, numbers)[0], x.astype(np.float64) @ exact, **near)
    assert ("contract_blocks" in {i.op for i in program.instrs}) is form.packed
    if form in FORMS[:1]:
        with Session.load(made.SerializeToString()) as session:
            for few_rows in (x[:, :1], x):  # two structures may share what they read
                np.testing.assert_allclose(session.run({"x": few_rows})["y"], few_rows.astype(np.float64) @ exact, **near)


def test_weights_of_a_file_and_defaults(tmp_path: Path) -> None:
    """External data and typed fields; an initializer that a caller may replace."""
    w = random(DType.I4, (5, 3))
    weights = [
        numpy_helper.from_array(w, "w"),
        helper.make_tensor("d", TensorProto.UINT4, [5, 3], list(range(15))),
        helper.make_tensor("e", TensorProto.FLOAT8E5M2, [3], [1.0, -2.0, 4.0]),
    ]
    nodes = [helper.make_node("Cast", [v], [f"{v}f"], to=TensorProto.FLOAT) for v in "wde"]
    nodes.append(helper.make_node("Sum", ["wf", "df", "ef"], ["y"]))
    made = model(nodes, [value("d", TensorProto.UINT4, [5, 3])], [value("y", 1, [5, 3])], weights)
    onnx.save(made, tmp_path / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    rest = w.astype(np.float32) + np.float32([1, -2, 4])
    held = load(tmp_path / "m.onnx").initializers["w"]
    assert isinstance(held, Packed) and held.nbytes == 8
    assert origin(held.data) == (tmp_path / "w.bin", 0)  # a view of the file
    with Session.load(tmp_path / "m.onnx") as session:
        np.testing.assert_array_equal(session.run({})["y"], rest + np.arange(15).reshape(5, 3))
        d = random(DType.U4, (5, 3))
        np.testing.assert_array_equal(session.run({"d": d})["y"], rest + d.astype(np.float32))
        with pytest.raises(InvalidInput, match="input 'd' is uint8, the model wants uint4"):
            session.run({"d": bits(d)})


def test_a_program_takes_and_gives_packed_bytes() -> None:
    x = np.array([1, -2, 3]).astype(ml_dtypes.int4)
    assert to_storage(x).tolist() == [0xE1, 0x03]
    assert from_storage(to_storage(x), DType.I4, (3,)).astype(int).tolist() == [1, -2, 3]
    f = np.float32([1, -2]).astype(ml_dtypes.float8_e5m2)
    assert to_storage(f).tolist() == [0x3C, 0xC0] and to_storage(np.float32([1])).dtype == np.float32
