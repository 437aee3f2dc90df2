"""Small element types by the lowering and the interpreter: every code decoded, hard numbers encoded, packed edges, movement."""

from __future__ import annotations

import ctypes
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx_vulkan.dtypes import SMALL, SMALL_FLOATS, SMALL_INTS, DType
from onnx_vulkan.packing import pack, unpack
from run_case import Array, claim, graph_of, refusals, run

FLOATS8 = sorted(SMALL_FLOATS - {DType.F8E8M0, DType.F4E2M1}, key=lambda t: t.value)
TYPES = sorted(SMALL, key=lambda t: t.value)
INTS = sorted(SMALL_INTS, key=lambda t: t.value)
NAME = {"ids": lambda t: t.onnx_name if isinstance(t, DType) else str(t)}

HALVES = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
"""Every float16."""


def hard_floats() -> Array:
    """Float32 numbers around every number of every small float: itself, its neighbours, halfway to the next and around that."""
    points = [np.arange(1 << t.bits, dtype=np.uint8).view(t.numpy).astype(np.float32) for t in (*FLOATS8, DType.F4E2M1)]
    known = np.unique(np.concatenate(points))
    known = known[np.isfinite(known)]
    top = np.float32([464, 479.99, 480, 496, 61439.996, 61440, 65536, 248, 5, 7, 3.4e38, 1e-45, 1e-39, 2.0**-11, 2.0**-18])
    middle = (known[:-1] + known[1:]) / 2
    near = np.concatenate([known, middle, top, -top])
    around = [near, np.nextafter(near, np.float32(np.inf)), np.nextafter(near, np.float32(-np.inf))]
    return np.concatenate([*around, np.float32([np.nan, np.inf, -np.inf, 0.0, -0.0])])


def cast_model(source: DType, target: DType, shape: Any, opset: int = 25, **attributes: Any) -> onnx.ModelProto:
    """One Cast."""
    x, y = (helper.make_tensor_value_info(n, t.value, shape) for n, t in (("x", source), ("y", target)))
    node = helper.make_node("Cast", ["x"], ["y"], to=target.value, **attributes)
    graph = helper.make_graph([node], "cast", [x], [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=11)


def cast(x: Array, target: DType, **attributes: Any) -> Array:
    """By the lowering and the interpreter, at a shape that claiming does not know."""
    (y,) = run(graph_of(cast_model(DType.of(x.dtype), target, ["n"], **attributes)), {"x": x})
    return y


def bits(x: Array) -> Array:
    return x.view(np.uint8)


def all_codes(t: DType) -> Array:
    """Every element of a type."""
    return unpack(pack(np.arange(1 << t.bits, dtype=np.uint8).view(t.numpy)), t, (1 << t.bits,))


def same_codes(got: Array, want: Array, x: Array) -> None:
    """Equal bits; of NaN only that it is one."""
    a, b = got.astype(np.float32), want.astype(np.float32)
    wrong = np.where(np.isnan(b), ~np.isnan(a), bits(got) != bits(want))
    assert not wrong.any(), [(x[i], got[i], want[i]) for i in np.flatnonzero(wrong)[:5]]


# ------------------------------------------------------------------------------------------------------------ packing


@pytest.mark.parametrize("t", TYPES, **NAME)
@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 5, 16])
def test_packed_as_onnx_packs(t: DType, count: int) -> None:
    x = np.resize(all_codes(t), count)
    packed = pack(x)
    assert packed.tobytes() == numpy_helper.from_array(x).raw_data
    assert packed.size == (count * t.bits + 7) // 8
    assert (bits(unpack(packed, t, (count,))) == bits(x)).all()


@pytest.mark.parametrize("t", TYPES, **NAME)
@pytest.mark.parametrize("shape", [(), (1,), (3,), (3, 5), (2, 3, 8), (0, 4)], ids=str)
def test_through_a_block_and_out_again(t: DType, shape: tuple[int, ...]) -> None:
    """Odd counts and scalars; the transpose moves the carriers."""
    x = np.resize(all_codes(t), shape)
    nodes = [helper.make_node("Identity", ["x"], ["y"]), helper.make_node("Transpose", ["x"], ["z"])]
    values = [helper.make_tensor_value_info(n, t.value, [None] * len(shape)) for n in "xyz"]
    graph = helper.make_graph(nodes, "moved", values[:1], values[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 25)], ir_version=11)
    y, z = run(graph_of(model), {"x": x})
    assert y.dtype == z.dtype == t.numpy
    assert (bits(y) == bits(x)).all() and (bits(z) == bits(np.ascontiguousarray(x.T))).all()


# ---------------------------------------------------------------------------------------------------------- decoding


@pytest.mark.parametrize("target", [DType.F32, DType.F16, DType.BF16, DType.F64], **NAME)
@pytest.mark.parametrize("t", TYPES, **NAME)
def test_every_code_decodes(t: DType, target: DType) -> None:
    x = all_codes(t)
    with np.errstate(over="ignore"):
        want = x.astype(np.float32).astype(target.numpy).astype(np.float64)
    got = cast(x, target).astype(np.float64)
    np.testing.assert_array_equal(got, want)
    assert (np.signbit(got) == np.signbit(want))[want == 0].all()


@pytest.mark.parametrize("t", INTS, **NAME)
def test_integers_widen_and_wrap(t: DType) -> None:
    x = all_codes(t)
    for target in (DType.I8, DType.I64, DType.U8, DType.BOOL):
        np.testing.assert_array_equal(cast(x, target), x.astype(np.int32).astype(target.numpy))
    for source in (DType.I8, DType.U8, DType.I32, DType.I64, DType.U64):
        wide = np.arange(-100, 100).astype(source.numpy)
        np.testing.assert_array_equal(cast(wide, t), all_codes(t)[wide.astype(np.int64) % (1 << t.bits)])
    np.testing.assert_array_equal(cast(np.array([True, False]), t), np.array([1, 0]).astype(t.numpy))


@pytest.mark.parametrize("t", INTS, **NAME)
def test_floats_to_small_integers_as_onnx_runtime_does(t: DType) -> None:
    """To the nearest, ties away from zero, wrapped."""
    x = np.concatenate([np.arange(-40, 40) / 4, [0.49999997, -0.49999997, 100, -100, 1e6]]).astype(np.float32)
    model = cast_model(DType.F32, t, [x.size])
    model.graph.node.append(helper.make_node("Cast", ["y"], ["w"], to=TensorProto.INT8))
    del model.graph.output[:]
    model.graph.output.append(helper.make_tensor_value_info("w", TensorProto.INT8, [x.size]))
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    np.testing.assert_array_equal(run(graph_of(model), {"x": x})[0], session.run(None, {"x": x})[0])


# ---------------------------------------------------------------------------------------------------------- encoding


@pytest.mark.parametrize("saturate", [1, 0])
@pytest.mark.parametrize("t", [*FLOATS8, DType.F4E2M1], **NAME)
@pytest.mark.parametrize("x", [HALVES, hard_floats()], ids=["halves", "floats"])
def test_floats_encode_by_the_tables_of_cast(t: DType, x: Array, saturate: int) -> None:
    with np.errstate(all="ignore"):
        want = numpy_helper.saturate_cast(x, t.numpy) if saturate else x.astype(t.numpy)
    if t is DType.F4E2M1:  # without NaN and infinity: it saturates, and ONNX's reference makes NaN a zero
        got = cast(x, t, saturate=saturate)
        with np.errstate(all="ignore"):
            want = x.astype(t.numpy)
        same_codes(got[~np.isnan(x)], want[~np.isnan(x)], x[~np.isnan(x)])
        assert (got[np.isnan(x)].astype(np.float32) == 0).all()
    else:
        same_codes(cast(x, t, saturate=saturate), want, x)


def test_wide_floats_and_integers_encode_by_way_of_float32() -> None:
    x = np.array([1 + 2.0**-4 + 2.0**-40, 448, 464.0000001, -1e300])
    assert cast(x, DType.F8E4M3FN).astype(np.float32).tolist() == [1, 448, 448, -448]
    n = np.array([0, 1, -3, 17, 500, -(2**62)], np.int64)
    assert cast(n, DType.F8E5M2).astype(np.float32).tolist() == [0, 1, -3, 16, 512, -57344]
    assert bits(cast(np.array([-8, -3, 0, 7]).astype(ml_dtypes.int4), DType.F8E4M3FN)).tolist() == [0xD0, 0xC4, 0, 0x4E]


@pytest.mark.parametrize("saturate", [1, 0])
@pytest.mark.parametrize("mode", ["up", "down", "nearest"])
def test_scales_encode_as_onnx_runtime_does(mode: str, saturate: int) -> None:
    """Every exponent with hard fractions, both signs, and what float16 holds."""
    fractions = np.array([0, 1, 0x1FFFFF, 0x200000, 0x200001, 0x3FFFFF, 0x400000, 0x400001, 0x600000, 0x7FFFFF], np.uint32)
    sizes = (np.arange(256, dtype=np.uint32)[:, None] << np.uint32(23) | fractions).reshape(-1)
    x = np.concatenate([sizes, sizes | np.uint32(1 << 31)]).view(np.float32)
    x = np.concatenate([x, HALVES.astype(np.float32)])
    model = cast_model(DType.F32, DType.F8E8M0, [x.size], saturate=saturate, round_mode=mode)
    got = bits(run(graph_of(model), {"x": x})[0])
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    feeds = {"x": onnxruntime.OrtValue.ortvalue_from_numpy(x)}
    (value,) = session.run_with_ort_values(None, feeds)
    want = value_bytes(value)
    wrong = np.flatnonzero(got != want)
    assert not wrong.size, [(float(x[i]).hex(), got[i], want[i]) for i in wrong[:5]]


def value_bytes(value: onnxruntime.OrtValue) -> Array:
    """The bytes of a tensor whose type numpy does not know."""
    return np.array((ctypes.c_uint8 * value.tensor_size_in_bytes()).from_address(value.data_ptr()), np.uint8)


# --------------------------------------------------------------------------------------------------- movement, refusals


def text(body: str, inputs: str, outputs: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 11, opset_import: ["": 25]>\ng ({inputs}) => ({outputs}) {{ {body} }}')


@pytest.mark.parametrize("t", [DType.I4, DType.U2, DType.F4E2M1, DType.F8E5M2], **NAME)
def test_movement_keeps_the_type(t: DType) -> None:
    rng = np.random.default_rng(3)
    x = rng.choice(all_codes(t), (5, 6))
    axes = numpy_helper.from_array(np.array([1], np.int64), "one")
    target = numpy_helper.from_array(np.array([3, -1], np.int64), "target")
    pads = numpy_helper.from_array(np.array([1, 0, 2, 1], np.int64), "pads")
    start, end, step = (numpy_helper.from_array(np.array([v], np.int64), n) for n, v in (("start", -1), ("end", 0), ("step", -2)))
    index = numpy_helper.from_array(np.array([4, 0, 0], np.int64), "index")
    cases: list[tuple[list[Any], Any]] = [
        ([("Reshape", ["x", "target"])], x.reshape(3, -1)),
        ([("Flatten", ["x"])], x),
        ([("Unsqueeze", ["x", "one"]), ("Squeeze", ["v0", "one"])], x),
        ([("Gather", ["x", "index"])], x[[4, 0, 0]]),
        ([("Concat", ["x", "x"], {"axis": 1})], np.concatenate([x, x], 1)),
        ([("Slice", ["x", "start", "end", "one", "step"])], x[:, -1:0:-2]),
        ([("Pad", ["x", "pads"])], np.pad(bits(x), ((1, 2), (0, 1))).view(t.numpy)),
    ]
    for nodes, want in cases:
        made = [
            helper.make_node(op, inputs, [f"v{i}" if i < len(nodes) - 1 else "y"], **(rest[0] if rest else {}))
            for i, (op, inputs, *rest) in enumerate(nodes)
        ]
        values = [helper.make_tensor_value_info(n, t.value, s) for n, s in (("x", ["n", 6]), ("y", [None] * want.ndim))]
        graph = helper.make_graph(made, "moved", values[:1], values[1:], [axes, target, pads, index, start, end, step])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 25)], ir_version=11)
        (y,) = run(graph_of(model), {"x": x})
        assert y.dtype == t.numpy and (bits(y) == bits(np.ascontiguousarray(want))).all(), nodes


def test_bits_are_cast() -> None:
    for source, target in ((DType.I4, DType.U4), (DType.F4E2M1, DType.I4), (DType.U2, DType.I2), (DType.F8E5M2, DType.I8)):
        x = all_codes(source)
        model = cast_model(source, target, ["n"], 28)
        model.graph.node[0].op_type = "BitCast"
        (y,) = run(graph_of(model), {"x": x})
        assert y.dtype == target.numpy and (bits(y) == bits(x)).all()
    model = cast_model(DType.I4, DType.I8, ["n"], 28)
    model.graph.node[0].op_type = "BitCast"
    (refusal,) = refusals(graph_of(model))
    assert refusal.reason == "the bits of int4 are not those of int8."


def test_nothing_is_computed_in_a_small_type() -> None:
    """Operators that do not name the type refuse it by the dtype check, and so do those that name no types at all."""
    for op, attributes in (("Add", ""), ("Equal", ""), ("MatMul", ""), ("Where", "")):
        inputs = "c, x, x" if op == "Where" else "x, x"
        model = text(
            f"y = {op}{attributes}({inputs})", "int4[4, 4] x, bool[4, 4] c", f"{'bool' if op == 'Equal' else 'int4'}[4, 4] y"
        )
        (refusal,) = refusals(graph_of(model))
        assert refusal.check == "dtype" and "int4" in refusal.reason
    (refusal,) = refusals(graph_of(text("y = Cast<to: int = 27>(x)", "float[4] x", "float[4] y")))
    assert refusal.reason == "the element type float6e2m3 is not supported."


def test_constants_and_their_shapes_are_values_like_others() -> None:
    value = numpy_helper.from_array(np.array([[1, -2, 3], [-8, 7, 0]]).astype(ml_dtypes.int4), "v")
    nodes = [
        helper.make_node("Constant", [], ["c"], value=value),
        helper.make_node("Shape", ["c"], ["shape"]),
        helper.make_node("ConstantOfShape", ["shape"], ["full"], value=helper.make_tensor("f", TensorProto.INT4, [1], [-3])),
        helper.make_node("Concat", ["c", "full"], ["y"], axis=0),
    ]
    graph = helper.make_graph(nodes, "constants", [], [helper.make_tensor_value_info("y", TensorProto.INT4, [4, 3])])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 25)], ir_version=11)
    (y,) = run(graph_of(model), {})
    assert y.astype(np.int8).tolist() == [[1, -2, 3], [-8, 7, 0], [-3] * 3, [-3] * 3]


def test_a_weight_stays_packed_in_the_program() -> None:
    """What is read is the file's bytes; unpacked only where the numbers are used."""
    w = numpy_helper.from_array(np.resize(all_codes(DType.I4), (6, 8)), "w")
    values = [helper.make_tensor_value_info("x", 1, ["n", 8]), helper.make_tensor_value_info("y", 1, ["n", 8])]
    scale = numpy_helper.from_array(np.float32(0.5), "s")
    nodes = [helper.make_node("DequantizeLinear", ["w", "s"], ["f"]), helper.make_node("Add", ["x", "f"], ["y"])]
    graph = helper.make_graph(nodes, "weights", values[:1], values[1:], [w, scale])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    (packed,) = (v for v in claim(graph_of(model)).program.constants() if v.name.startswith("w"))
    assert packed.dtype is DType.U8 and packed.data is not None and packed.data.tobytes() == w.raw_data


# ------------------------------------------------------------------------------------------------------- quantization


def quantization(op: str, t: DType, kind: str, domain: str = "", **attributes: Any) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """QuantizeLinear or DequantizeLinear of ``[n, 7]`` (axis 1) with one scale, one a column, or one a block of 3 columns."""
    rng = np.random.default_rng(t.value)
    shape = {"tensor": (), "axis": (7,), "block": (5, 3)}[kind]
    scale = (rng.random(shape) + 0.5).astype(np.float32)
    codes = rng.integers(0, 1 << t.bits, shape).astype(np.uint8).view(t.numpy)
    zero = codes if t in SMALL_INTS else np.zeros(shape, np.uint8).view(t.numpy)
    if op == "QuantizeLinear":
        x, dtypes = rng.standard_normal((5, 7)).astype(np.float32) * 6, (TensorProto.FLOAT, t.value)
        x[0, :4] = scale.reshape(-1)[0] * np.float32([0.5, 1.5, -2.5, 1000])
    else:
        x, dtypes = rng.integers(0, min(1 << t.bits, 0x78), (5, 7)).astype(np.uint8).view(t.numpy), (t.value, TensorProto.FLOAT)
    if kind == "block":
        attributes["block_size"] = 3
    node = helper.make_node(op, ["x", "s", "z"], ["y"], axis=1, domain=domain, **attributes)
    values = [helper.make_tensor_value_info(n, d, ["n", 7]) for n, d in zip("xy", dtypes, strict=True)]
    weights = [numpy_helper.from_array(scale, "s"), numpy_helper.from_array(zero, "z")]
    graph = helper.make_graph([node], "quantization", values[:1], values[1:], weights)
    opset = 21 if t in (DType.I4, DType.U4, *FLOATS8) else 25
    imports = [helper.make_opsetid("", opset)] + ([helper.make_opsetid(domain, 1)] if domain else [])
    return helper.make_model(graph, opset_imports=imports, ir_version=10), {"x": x}


def cpu_bytes(model: onnx.ModelProto, feeds: dict[str, Array]) -> Array:
    """The bytes of the only output by ONNX Runtime's CPU EP."""
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    values = {}
    for name, x in feeds.items():
        t = DType.of(x.dtype)
        values[name] = onnxruntime.OrtValue.ortvalue_from_shape_and_type(list(x.shape), t.value)
        data = pack(x) if t in SMALL else np.ascontiguousarray(x)
        ctypes.memmove(values[name].data_ptr(), data.ctypes.data, data.nbytes)
    return value_bytes(session.run_with_ort_values(None, values)[0])


@pytest.mark.parametrize("kind", ["tensor", "axis", "block"])
@pytest.mark.parametrize("op", ["QuantizeLinear", "DequantizeLinear"])
@pytest.mark.parametrize("t", [*INTS, *FLOATS8], **NAME)
def test_quantization_agrees_with_onnx_runtime(t: DType, op: str, kind: str) -> None:
    model, feeds = quantization(op, t, kind)
    (y,) = run(graph_of(model), feeds)
    want = cpu_bytes(model, feeds)
    got = unpack(pack(y), DType.of(y.dtype), y.shape) if y.dtype != np.float32 else y
    out = DType.of(y.dtype)
    np.testing.assert_array_equal(
        bits(got), bits(unpack(want, out, y.shape) if out in SMALL else want.view(np.float32).reshape(5, 7))
    )


@pytest.mark.parametrize("t", [DType.I4, DType.U4], **NAME)
@pytest.mark.parametrize("op", ["QuantizeLinear", "DequantizeLinear"])
def test_quantization_of_onnx_runtimes_domain(op: str, t: DType) -> None:
    model, feeds = quantization(op, t, "axis", "com.microsoft")
    (y,) = run(graph_of(model), feeds)
    want = cpu_bytes(model, feeds)
    assert (pack(y) if y.dtype != np.float32 else y.view(np.uint8).reshape(-1)).tolist()[:17] == want.tolist()[:17]


@pytest.mark.parametrize("kind", ["tensor", "axis", "block"])
def test_four_bit_floats_are_quantized_by_the_formula(kind: str) -> None:
    """ONNX Runtime's CPU EP has no float4: ONNX's reference is the other side."""
    for op in ("QuantizeLinear", "DequantizeLinear"):
        model, feeds = quantization(op, DType.F4E2M1, kind)
        (y,) = run(graph_of(model), feeds)
        (want,) = ReferenceEvaluator(model).run(None, feeds)
        np.testing.assert_array_equal(y.astype(np.float32), want.astype(np.float32))


def test_scales_of_powers_of_two() -> None:
    """A float8e8m0 scale multiplies as the number it is; what comes out has to be named."""
    model, feeds = quantization("DequantizeLinear", DType.F4E2M1, "block", output_dtype=TensorProto.FLOAT)
    scale = np.array([0, 100, 127, 128, 130] * 3, np.uint8).reshape(5, 3).view(ml_dtypes.float8_e8m0fnu)
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(scale, "s"))
    (y,) = run(graph_of(model), feeds)
    spread = np.repeat(scale.astype(np.float32), 3, 1)[:, :7]
    np.testing.assert_array_equal(y, feeds["x"].astype(np.float32) * spread)
    del model.graph.node[0].attribute[-1]
    (refusal,) = refusals(graph_of(model))
    assert "float8e8m0" in refusal.reason


@pytest.mark.parametrize("saturate", [1, 0])
def test_quantization_out_of_range(saturate: int) -> None:
    x = np.float32([1e6, -1e6, 448, 500, np.inf, np.nan])
    for t in FLOATS8:
        node = helper.make_node("QuantizeLinear", ["x", "s"], ["y"], output_dtype=t.value, saturate=saturate)
        values = [helper.make_tensor_value_info(n, d, [6]) for n, d in (("x", 1), ("y", t.value))]
        graph = helper.make_graph([node], "range", values[:1], values[1:], [numpy_helper.from_array(np.float32(1), "s")])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)
        (y,) = run(graph_of(model), {"x": x})
        same_codes(y, cast(x, t, saturate=saturate), x)
