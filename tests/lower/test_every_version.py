"""Every version of every operator of ``ai.onnx`` that a lowering was read against, in a form that all of them have.

A version is held against ONNX Runtime's CPU EP at an opset of that version; where it has no kernel of it, at the nearest
version of the same form that it runs (what the operator means did not change between them), or at a later form that means the
same; else against ONNX's reference evaluator. What did change has its own cases in ``test_versions``, ``lower_nn`` and
``test_first_versions``.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, defs, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx_vulkan.lower import LOWERINGS
from run_case import Array, assert_close, graph_of, refusals, run

RNG = np.random.default_rng(29)
LAST = 28
NEWEST = 23
"""What models of an operator's newest version say they are; ONNX Runtime may not know the newest opset."""

SINCE: dict[str, list[int]] = {}
for _schema in defs.get_all_schemas_with_history():
    if _schema.domain == "":
        SINCE.setdefault(_schema.name, []).append(_schema.since_version)


def normal(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


def ints(*values: int) -> Array:
    return np.array(values, np.int64)


@dataclass(frozen=True)
class Form:
    """One node: ``data`` are graph inputs, ``constants`` follow them. ``since`` and ``until`` bound its versions.

    ``like`` is the opset and the form of later days that means the same.
    """

    op: str
    data: Sequence[Array] = ()
    constants: Sequence[Array | None] = ()
    attributes: dict[str, Any] = field(default_factory=dict)
    outputs: int = 1
    since: int = 1
    until: int = LAST
    like: tuple[int, Form] | None = None

    def versions(self) -> list[int]:
        """The versions that a lowering was read against and that have this form."""
        read = {v for e in LOWERINGS["", self.op] for v in e.versions}
        return sorted(v for v in read if self.since <= v <= self.until)


X, P, U = normal(3, 4, 5), np.abs(normal(3, 4, 5)) + 1.5, RNG.uniform(-0.9, 0.9, (3, 4, 5)).astype(np.float32)
M, IMAGE, B, WINDOW = normal(3, 4), normal(1, 4, 6, 6), normal(3, 4) > 0, {"kernel_shape": [3, 2]}
I = RNG.integers(1, 9, (3, 4)).astype(np.int32)  # noqa: E741
SCORES = RNG.permutation(60).reshape(3, 4, 5).astype(np.float32)


def recurrent(op: str) -> list[Form]:
    """A recurrent cell, and its form of before version 7, which gives the sequence on demand only."""
    gates = {"RNN": 1, "GRU": 3, "LSTM": 4}[op]
    data = [normal(3, 2, 4), normal(1, gates * 5, 4), normal(1, gates * 5, 5)]
    form = Form(op, data, attributes={"hidden_size": 5}, outputs=2, since=7)
    return [form, Form(op, data, attributes={"hidden_size": 5, "output_sequence": 1}, outputs=2, until=6, like=(7, form))]


NORM = Form("BatchNormalization", [IMAGE, normal(4), normal(4), normal(4), np.abs(normal(4))], since=7)

_UNARY = """
    Abs Asinh Atan Ceil Celu Cos Elu Erf Exp Floor Gelu HardSigmoid HardSwish Identity LeakyRelu Mish Neg Relu Round Selu Shrink
    Sigmoid Sign Sin Sinh Softplus Softsign Swish Tan Tanh ThresholdedRelu Cosh IsNaN IsInf
"""
_REDUCTIONS = "L1 L2 LogSum LogSumExp Max Mean Min Prod Sum SumSquare".split()
_INPUT_AXES = {"Sum": 13}

FORMS = [
    *(Form(op, [X]) for op in _UNARY.split()),
    *(Form(op, [P]) for op in ("Log", "Sqrt", "Reciprocal", "Acosh")),
    *(Form(op, [U]) for op in ("Acos", "Asin", "Atanh")),
    Form("Not", [B]),
    Form("BitwiseNot", [I]),
    *(Form(op, [X, P]) for op in ("Add", "Sub", "Mul", "Div", "Max", "Min", "Sum", "Mean")),
    Form("Pow", [P, U]),
    Form("Mod", [X, P], attributes={"fmod": 1}),
    Form("PRelu", [X, np.abs(X)], since=6),
    *(Form(op, [B, M > 0.5]) for op in ("And", "Or", "Xor")),
    *(Form(op, [I, I[::-1].copy()]) for op in ("Equal", "BitwiseAnd", "BitwiseOr", "BitwiseXor")),
    *(Form(op, [X, X[::-1].copy()]) for op in ("Less", "Greater", "LessOrEqual", "GreaterOrEqual")),
    Form("BitShift", [I.astype(np.uint8), I.astype(np.uint8) % 3], attributes={"direction": "LEFT"}),
    Form("BitCast", [X], attributes={"to": TensorProto.INT32}),
    Form("Where", [B, M, -M]),
    Form("Clip", [X], attributes={"min": -0.5, "max": 0.5}, until=10),
    Form("Clip", [X], [np.array(-0.5, np.float32), np.array(0.5, np.float32)], since=11),
    Form("Cast", [X], attributes={"to": "INT32"}, until=5, like=(13, Form("Cast", [X], attributes={"to": TensorProto.INT32}))),
    Form("Cast", [X], attributes={"to": TensorProto.INT32}, since=6),
    Form("CastLike", [X], [np.array(1, np.int32)]),
    Form("Dropout", [X], attributes={"is_test": 1}, until=6, like=(13, Form("Identity", [X]))),
    Form("Dropout", [X], since=7),
    Form("Dropout", [X], [np.array(0, np.float32), np.array(True)], since=12),
    # movement
    Form("Concat", [X, P], attributes={"axis": 1}),
    Form("Transpose", [X], attributes={"perm": [2, 0, 1]}),
    Form("Reshape", [X], attributes={"shape": [4, -1]}, until=4, like=(13, Form("Reshape", [X], [ints(4, -1)]))),
    Form("Reshape", [X], [ints(4, -1)], since=5),
    Form("Flatten", [X], attributes={"axis": 2}),
    Form("Squeeze", [X[:1]], attributes={"axes": [0]}, until=12),
    Form("Squeeze", [X[:1]], [ints(0)], since=13),
    Form("Unsqueeze", [X], attributes={"axes": [1]}, until=12),
    Form("Unsqueeze", [X], [ints(1)], since=13),
    Form("Slice", [X], attributes={"starts": [1, 0], "ends": [3, 2], "axes": [0, 2]}, until=9),
    Form("Slice", [X], [ints(1, 0), ints(3, 2), ints(0, 2)], since=10),
    Form("Split", [X], attributes={"axis": 1, "split": [1, 3]}, outputs=2, until=12),
    Form("Split", [X], [ints(1, 3)], {"axis": 1}, outputs=2, since=13),
    Form("Pad", [M], attributes={"paddings": [1, 0, 0, 2]}, until=1, like=(13, Form("Pad", [M], [ints(1, 0, 0, 2)]))),
    Form("Pad", [M], attributes={"pads": [1, 0, 0, 2]}, since=2, until=10),
    Form("Pad", [M], [ints(1, 0, 0, 2)], since=11),
    Form("Tile", [M], [ints(2, 3)], since=6),
    Form("Expand", [M], [ints(2, 3, 4)]),
    Form("DepthToSpace", [IMAGE], attributes={"blocksize": 2}),
    Form("SpaceToDepth", [IMAGE], attributes={"blocksize": 2}),
    Form("CenterCropPad", [X], [ints(5, 2, 5)]),
    Form("Trilu", [X], [np.array(1, np.int64)]),
    Form("ReverseSequence", [X, ints(3, 1, 2, 3)]),
    Form("Gather", [X, ints(2, 0)], attributes={"axis": 1}),
    Form("GatherElements", [M, ints(0, 2, 1, 1)[None]]),
    Form("GatherND", [X, np.array([[0, 1], [2, 3]])]),
    Form("Scatter", [M, ints(0, 2, 1, 1)[None], -M[:1]]),
    Form("ScatterElements", [M, ints(0, 2, 1, 1)[None], -M[:1]]),
    Form("ScatterND", [M, np.array([[2], [0]]), -M[:2]]),
    Form("Compress", [M], [np.array([True, False, True])], {"axis": 0}),
    Form("OneHot", [ints(1, 0, 2)], [np.array(3, np.int64), np.array([0, 5], np.float32)]),
    Form("TopK", [SCORES], attributes={"k": 2}, outputs=2, until=9),
    Form("TopK", [SCORES], [ints(2)], outputs=2, since=10),
    # sources
    Form("Shape", [X]),
    Form("OptionalHasElement", [X], since=18),
    Form("OptionalHasElement", [], [None], since=18),
    Form("OptionalGetElement", [X], since=18),
    Form("Size", [X]),
    Form("Constant", attributes={"value": numpy_helper.from_array(M)}),
    Form("ConstantOfShape", [], [ints(2, 3)], {"value": numpy_helper.from_array(np.array([7], np.int64))}),
    Form("EyeLike", [M], attributes={"k": 1}),
    Form("Range", [], [np.array(1, np.int64), np.array(9, np.int64), np.array(3, np.int64)]),
    *(Form(op, [], [np.array(11, np.int64)]) for op in ("HannWindow", "HammingWindow", "BlackmanWindow")),
    # reductions
    *(Form(f"Reduce{r}", [P], attributes={"axes": [1], "keepdims": 0}, until=_INPUT_AXES.get(r, 18) - 1) for r in _REDUCTIONS),
    *(Form(f"Reduce{r}", [P], [ints(1)], {"keepdims": 0}, since=_INPUT_AXES.get(r, 18)) for r in _REDUCTIONS),
    *(Form(op, [SCORES], attributes={"axis": 1}) for op in ("ArgMax", "ArgMin")),
    *(Form(op, [P], [np.array(1, np.int64)]) for op in ("CumSum", "CumProd")),
    # networks
    *(Form(op, [M], attributes={"axis": 1}) for op in ("Softmax", "LogSoftmax", "Hardmax")),
    Form("MatMul", [M, M.T.copy()]),
    Form("Gemm", [M, M.T.copy(), normal(3, 3)], attributes={"alpha": 0.5, "beta": 2.0}),
    Form("Einsum", [M, M], attributes={"equation": "ij,kj->ik"}),
    Form("Det", [normal(2, 4, 4)]),
    Form("Conv", [IMAGE], [normal(3, 4, 3, 3)]),
    Form("ConvTranspose", [IMAGE], [normal(4, 3, 3, 3)]),
    *(Form(op, [IMAGE], attributes={"kernel_shape": [3, 2], "strides": [2, 1]}) for op in ("MaxPool", "AveragePool")),
    Form("LpPool", [IMAGE], attributes={"kernel_shape": [3, 2], "p": 3}, since=2),
    Form("LpPool", [IMAGE], (), {"kernel_shape": [3, 2], "p": 2.0}, until=1, like=(2, Form("LpPool", [IMAGE], (), WINDOW))),
    *(Form(op, [IMAGE]) for op in ("GlobalAveragePool", "GlobalMaxPool")),
    Form("GlobalLpPool", [IMAGE], attributes={"p": 3}, since=2),
    Form("GlobalLpPool", [IMAGE], attributes={"p": 3.0}, until=1, like=(2, Form("GlobalLpPool", [IMAGE], attributes={"p": 3}))),
    Form("MaxRoiPool", [IMAGE, np.array([[0, 1, 0, 4, 5]], np.float32)], attributes={"pooled_shape": [2, 2]}),
    Form("MaxUnpool", [normal(1, 1, 2, 2), np.array([[[[0, 3], [9, 14]]]])], (), {"kernel_shape": [2, 2], "strides": [2, 2]}),
    Form("LRN", [IMAGE], attributes={"size": 3}),
    Form("LpNormalization", [X], attributes={"axis": 1}),
    Form("MeanVarianceNormalization", [IMAGE]),
    Form("InstanceNormalization", [IMAGE, normal(4), normal(4)]),
    Form("LayerNormalization", [X, normal(5), normal(5)], since=17),
    Form("RMSNormalization", [X, normal(5)]),
    Form("GroupNormalization", [IMAGE, normal(4), normal(4)], attributes={"num_groups": 2}, since=21),
    Form("GroupNormalization", [IMAGE, normal(2), normal(2)], attributes={"num_groups": 2}, until=20),
    NORM,
    Form("BatchNormalization", NORM.data, attributes={"is_test": 1}, until=6, like=(7, NORM)),
    Form("Upsample", [IMAGE], attributes={"scales": [1.0, 1.0, 2.0, 2.0]}, since=7, until=8),
    Form("Upsample", [IMAGE], [np.array([1, 1, 2, 2], np.float32)], since=9),
    Form("Resize", [IMAGE], [np.array([1, 1, 2, 2], np.float32)], until=10),
    Form("Resize", [IMAGE], [None, np.array([1, 1, 2, 2], np.float32)], since=11),
    Form("GridSample", [IMAGE, RNG.uniform(-1, 1, (1, 2, 3, 2)).astype(np.float32)]),
    Form("AffineGrid", [normal(2, 2, 3)], [ints(2, 1, 3, 4)]),
    Form("DFT", [normal(1, 6, 1)], attributes={"axis": 1}, until=19),
    Form("DFT", [normal(1, 6, 1)], [None, np.array(1, np.int64)], since=20),
    Form("STFT", [normal(1, 32, 1)], [np.array(8, np.int64), None, np.array(16, np.int64)]),
    *(cell for op in ("RNN", "GRU", "LSTM") for cell in recurrent(op)),
    Form("QuantizeLinear", [X], [np.array(0.02, np.float32), np.array(7, np.uint8)]),
    Form("DequantizeLinear", [I.astype(np.uint8)], [np.array(0.02, np.float32), np.array(7, np.uint8)]),
    Form("DynamicQuantizeLinear", [X], outputs=3),
    Form("MatMulInteger", [I.astype(np.uint8), I.T.astype(np.uint8).copy()]),
    Form("Col2Im", [normal(1, 8, 4)], [ints(3, 3), ints(2, 2)]),
    Form("RoiAlign", [IMAGE, np.array([[0, 0, 3, 4]], np.float32), ints(0)], attributes={"sampling_ratio": 2}, since=16),
    Form("DeformConv", [normal(1, 2, 4, 4), normal(3, 2, 2, 2), normal(1, 8, 3, 3)]),
    Form("TensorScatter", [normal(2, 6, 3), normal(2, 2, 3), ints(1, 4)]),
]  # fmt: skip

ELSEWHERE = {
    "Attention", "RotaryEmbedding", "If", "Loop", "Scan", "NonZero", "ConvInteger", "QLinearConv", "QLinearMatMul",
    "MelWeightMatrix", "TfIdfVectorizer", "SimplifiedLayerNormalization",
}  # fmt: skip
"""Operators whose versions are tested in other files; NonZero is known on the host only."""

OTHER_FORMS = {
    ("PRelu", 1),
    ("Upsample", 1),
    ("Tile", 1),
    ("RoiAlign", 10),
    ("LayerNormalization", 1),
    ("OptionalHasElement", 15),
    ("OptionalGetElement", 15),
}
"""Versions whose form is like no other; they too are tested in other files."""


def build(form: Form, version: int) -> onnx.ModelProto:
    """The form as a model of the last opset that has that version."""
    opset = min([v - 1 for v in SINCE[form.op] if v > version], default=max(version, NEWEST))
    names = [f"x{i}" for i in range(len(form.data))]
    inputs = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
        for n, x in zip(names, form.data, strict=True)
    ]
    constants = [(f"c{i}" if c is not None else "", c) for i, c in enumerate(form.constants)]
    outputs = [f"y{i}" for i in range(form.outputs)]
    node = helper.make_node(form.op, names + [n for n, _ in constants], outputs, "node", **form.attributes)
    initializers = [numpy_helper.from_array(c, n) for n, c in constants if c is not None]
    infos = [helper.make_empty_tensor_value_info(y) for y in outputs]
    graph = helper.make_graph([node], "form", inputs, infos, initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def on_cpu(form: Form, version: int, feeds: dict[str, Array]) -> list[Array] | None:
    """ONNX Runtime's outputs at that version, None where it has no kernel."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    try:
        model = build(form, version).SerializeToString()
        session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except Exception:
        return None
    return list(session.run(None, feeds))


@functools.cache
def expected(index: int, version: int) -> list[Array]:
    """What the form gives at that version, or at the nearest one that ONNX Runtime has."""
    form = FORMS[index]
    feeds = {f"x{i}": x for i, x in enumerate(form.data)}
    others = form.versions()
    for near in (version, *(v for v in others if v > version), *(v for v in reversed(others) if v < version)):
        found = on_cpu(form, near, feeds)
        if found is not None:
            return found
    if form.like is not None:
        found = on_cpu(form.like[1], form.like[0], feeds)
        assert found is not None, "ONNX Runtime has to run the later form"
        return found
    return list(ReferenceEvaluator(build(form, version)).run(None, feeds))


ALL = [(i, v) for i, form in enumerate(FORMS) for v in form.versions()]
# A form's first and last version every time, those between with ONNX_VULKAN_THOROUGH=1.
THOROUGH = os.environ.get("ONNX_VULKAN_THOROUGH") == "1"
PAIRS = [(i, v) for i, v in ALL if THOROUGH or v in (FORMS[i].versions()[0], FORMS[i].versions()[-1])]


@pytest.mark.parametrize("index,version", PAIRS, ids=[f"{FORMS[i].op}-{v}" for i, v in PAIRS])
def test_version(index: int, version: int) -> None:
    form = FORMS[index]
    graph = graph_of(build(form, version))
    assert form.op == "Constant" or graph.nodes[0].since_version == version
    assert not refusals(graph), [str(r) for r in refusals(graph)]
    feeds = {f"x{i}": x for i, x in enumerate(form.data)}
    for got, want in zip(run(graph, feeds), expected(index, version), strict=True):
        assert_close(got, want, rtol=1e-4, atol=1e-5)


def test_no_version_is_left_out() -> None:
    tested = {(FORMS[i].op, v) for i, v in ALL}
    known = {s.name for s in defs.get_all_schemas() if s.domain == ""}
    read = {
        (op, v)
        for (domain, op), entries in LOWERINGS.items()
        if domain == "" and op in known
        for e in entries
        for v in e.versions
    }
    missing = sorted((op, v) for op, v in read - tested - OTHER_FORMS if op not in ELSEWHERE)
    assert not missing, missing
