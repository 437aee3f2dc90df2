"""Each form of an operator that ONNX has had (attributes, inputs, corner cases) against ONNX Runtime's CPU EP at that opset."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from run_case import Array, assert_close, graph_of, refusals, run

RNG = np.random.default_rng(7)


def normal(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


def ints(*values: int) -> Array:
    return np.array(values, np.int64)


@dataclass(frozen=True)
class Case:
    """One node: ``data`` are graph inputs, ``constants`` follow them (None is an input left out)."""

    op: str
    opset: int
    data: tuple[Array, ...]
    constants: tuple[Array | None, ...] = ()
    attributes: dict[str, Any] = field(default_factory=dict)
    outputs: int = 1
    want: Array | None = None

    def __str__(self) -> str:
        shapes = "x".join(str(list(a.shape)) for a in self.data)
        return f"{self.op}-{self.opset}-{shapes}-{self.attributes or [None if c is None else c.tolist() for c in self.constants]}"


X = normal(3, 4, 5)
P = np.abs(X) + 0.5
I = RNG.integers(-9, 9, (3, 4)).astype(np.int32)  # noqa: E741
BYTES = np.array([1, 200, 7], np.uint8)
NAN = np.array([1, -2, np.nan, np.inf, -np.inf, 0.0, -0.0, 3], np.float32)

CASES = [
    # broadcasting
    *(Case(op, v, (X, normal(4, 1))) for op in ("Add", "Sub", "Mul", "Div") for v in (7, 13, 14)),
    *(Case(op, 14, (I, RNG.integers(1, 5, (4,)).astype(np.int32))) for op in ("Add", "Sub", "Mul", "Div")),
    Case("Pow", 7, (P, normal(5))),
    Case("Pow", 12, (P,), (np.array(2, np.int64),)),
    Case("Pow", 13, (X,), (np.array(3.0, np.float32),)),
    Case("Pow", 15, (X,), (np.array([2.0], np.float32),)),
    Case("Pow", 13, (I,), (np.array(2, np.int32),)),
    Case("Mod", 13, (I, np.array([3, -3, 2, -5], np.int32))),
    Case("Mod", 13, (X, P), attributes={"fmod": 1}),
    *(Case(op, v, (X, normal(4, 1), normal(5))) for op in ("Min", "Max", "Sum", "Mean") for v in (8, 13)),
    Case("Max", 12, (I, np.array([1], np.int32))),
    Case("Min", 13, (NAN, np.zeros(8, np.float32))),
    # comparisons
    *(Case(op, v, (NAN, NAN[::-1].copy())) for op in ("Less", "Greater", "Equal") for v in (11, 13)),
    Case("LessOrEqual", 12, (NAN, NAN[::-1].copy())),
    Case("GreaterOrEqual", 16, (I, I[::-1].copy())),
    Case("Equal", 13, (np.array([True, False]), np.array([True, True]))),
    Case("Where", 9, (X > 0, X, normal(5))),
    # clip
    Case("Clip", 6, (X,), attributes={"min": -0.5, "max": 0.5}),
    Case("Clip", 6, (X,), attributes={"max": 0.5}),
    Case("Clip", 11, (X,), (np.array(-0.5, np.float32), None)),
    Case("Clip", 12, (I,), (np.array(-2, np.int32), np.array(3, np.int32))),
    Case("Clip", 13, (NAN[[0, 1, 2, 3, 7]],), (None, np.array(1.5, np.float32))),
    Case("Clip", 13, (X,)),
    # functions
    *(Case(op, 13, (NAN,)) for op in ("Relu", "Abs", "Sign", "Neg", "Floor", "Ceil", "IsNaN", "Sigmoid", "Tanh", "Exp")),
    *(Case("LeakyRelu", 16, (X,), attributes={"alpha": a}) for a in (0.01, 0.3)),
    Case("PRelu", 9, (X, normal(4, 1))),
    Case("Elu", 6, (X,), attributes={"alpha": 0.7}),
    Case("Selu", 6, (X,)),
    Case("Celu", 12, (X,), attributes={"alpha": 0.7}),
    Case("HardSigmoid", 6, (X * 4,), attributes={"alpha": 0.1, "beta": 0.4}),
    Case("HardSwish", 14, (X * 4,)),
    Case("Softplus", 1, (X * 50,)),
    Case("Softsign", 1, (X,)),
    Case("ThresholdedRelu", 10, (X,), attributes={"alpha": 0.3}),
    Case("Shrink", 9, (X,), attributes={"bias": 0.2, "lambd": 0.3}),
    *(Case("Gelu", 20, (X,), attributes={"approximate": a}) for a in ("none", "tanh")),
    Case("Round", 11, (np.array([0.5, 1.5, -0.5, -1.5, 2.5, 0.4999], np.float32),)),
    # casts
    *(Case("Cast", 13, (X * 3,), attributes={"to": t}) for t in (TensorProto.INT32, TensorProto.BOOL, TensorProto.FLOAT16)),
    Case("Cast", 13, (I,), attributes={"to": TensorProto.UINT8}),
    Case("Cast", 9, (I,), attributes={"to": TensorProto.FLOAT}),
    # shapes
    Case("Reshape", 13, (X,), (ints(0, -1, 2),), want=X.reshape(3, 10, 2)),
    Case("Reshape", 5, (X,), (ints(5, 12),)),
    Case("Reshape", 14, (np.zeros((0, 3), np.float32),), (ints(3, 0),), {"allowzero": 1}),
    *(Case("Flatten", 13, (X,), attributes={"axis": a}) for a in (0, 1, 2, 3, -1)),
    Case("Squeeze", 11, (normal(1, 3, 1),), attributes={"axes": [0, -1]}),
    Case("Squeeze", 13, (normal(1, 3, 1),), (ints(-1),)),
    Case("Squeeze", 13, (normal(1, 3, 1),)),
    Case("Unsqueeze", 11, (X,), attributes={"axes": [0, -1]}),
    Case("Unsqueeze", 13, (X,), (ints(-1, 1),)),
    Case("Transpose", 13, (X,)),
    Case("Transpose", 1, (X,), attributes={"perm": [2, 0, 1]}),
    Case("Expand", 8, (normal(3, 1),), (ints(2, 1, 4),)),
    Case("Tile", 13, (normal(2, 3),), (ints(2, 3),)),
    Case("Concat", 4, (X, normal(3, 2, 5)), attributes={"axis": 1}),
    Case("Concat", 13, (X, normal(3, 4, 1)), attributes={"axis": -1}),
    # slice
    Case("Slice", 9, (X,), attributes={"starts": [1, -2], "ends": [100, -1], "axes": [1, 2]}),
    Case("Slice", 10, (X,), (ints(0), ints(-1), ints(-1))),
    Case("Slice", 13, (X,), (ints(-1, 4), ints(-100, 0), ints(0, 2), ints(-1, -2))),
    Case("Slice", 13, (X,), (ints(100), ints(-(2**63)), ints(2), ints(-3))),
    Case("Slice", 13, (X,), (ints(1), ints(2**63 - 1), ints(1), ints(2))),
    Case("Slice", 13, (X,), (ints(3), ints(2), ints(1))),
    Case("Slice", 11, (X,), (ints(1, 1, 1), ints(3, 3, 3))),
    # split
    Case("Split", 11, (X,), attributes={"axis": 1, "split": [1, 3]}, outputs=2),
    Case("Split", 2, (X,), attributes={"axis": -2}, outputs=2),
    Case("Split", 13, (X,), (ints(2, 0, 3),), {"axis": 2}, 3),
    Case("Split", 18, (X,), attributes={"axis": 2, "num_outputs": 3}, outputs=3),
    # pad
    Case("Pad", 2, (X,), attributes={"pads": [0, 1, 2, 1, 0, 0], "value": 1.5}),
    *(Case("Pad", 13, (X,), (ints(0, 1, 2, 1, 3, 0),), {"mode": m}) for m in ("constant", "reflect", "edge")),
    Case("Pad", 11, (X,), (ints(0, -1, 2, 1, 0, -2), np.array(2.5, np.float32))),
    Case("Pad", 18, (X,), (ints(1, 2), np.array(2.5, np.float32), ints(-1))),
    Case("Pad", 19, (X,), (ints(1, 2), None, ints(1)), {"mode": "wrap"}),
    # indices
    Case("Gather", 11, (X,), (np.array([[-1, 0], [2, 1]], np.int32),), {"axis": 1}),
    Case("Gather", 13, (X,), (ints(-2),), {"axis": -1}),
    Case("Gather", 13, (X,), (np.array(1, np.int64),), {"axis": 0}),
    Case("GatherElements", 13, (X,), (np.array([[[0, 2], [-1, 1]]], np.int64),), {"axis": 2}),
    Case("GatherND", 11, (X,), (np.array([[0, 1], [-1, 3]], np.int64),)),
    Case("GatherND", 12, (X,), (np.array([[1], [3], [-1]], np.int64),), {"batch_dims": 1}),
    Case("ScatterElements", 11, (X,), (np.array([[[1], [0]]], np.int64), normal(1, 2, 1)), {"axis": -1}),
    *(
        Case("ScatterElements", 18, (X,), (np.array([[[1], [1]]], np.int64), normal(1, 2, 1)), {"axis": 2, "reduction": r})
        for r in ("add", "mul", "max", "min")
    ),
    Case("Scatter", 9, (X,), (np.array([[[1], [0]]], np.int64), normal(1, 2, 1)), {"axis": 1}),
    Case("ScatterND", 13, (X,), (np.array([[0, 1], [-1, 3]], np.int64), normal(2, 5))),
    *(Case("ScatterND", 18, (X,), (np.array([[0], [0]], np.int64), normal(2, 4, 5)), {"reduction": r}) for r in ("add", "max")),
    Case("OneHot", 11, (np.array([[1, -1], [5, 3]], np.int64),), (np.array(4, np.int64), normal(2)), {"axis": 1}),
    Case("OneHot", 9, (ints(0, 2),), (ints(3), ints(7, 9))),
    Case("ReverseSequence", 10, (X,), (ints(2, 1, 3, 3),), {"batch_axis": 1, "time_axis": 0}),
    Case("Trilu", 14, (X,), (np.array(-1, np.int64),), {"upper": 0}),
    Case("Trilu", 14, (X,)),
    Case("EyeLike", 9, (normal(3, 5),), attributes={"k": 1, "dtype": TensorProto.INT32}),
    Case("Compress", 11, (X,), (np.array([True, False, True]),), {"axis": 1}),
    Case("Compress", 9, (X,), (np.array([True, False, True]),)),
    # blocks
    *(Case("DepthToSpace", 11, (normal(2, 8, 2, 3),), attributes={"blocksize": 2, "mode": m}) for m in ("DCR", "CRD")),
    Case("SpaceToDepth", 13, (normal(2, 3, 4, 6),), attributes={"blocksize": 2}),
    # reductions
    *(
        Case(f"Reduce{r}", v, (P,), attributes={"axes": [0, -1], "keepdims": k})
        for r in ("Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "LogSum", "LogSumExp", "SumSquare")
        for v, k in ((11, 0), (12, 1))
    ),
    *(Case(f"Reduce{r}", 18, (P,), (ints(1),), {"keepdims": 0}) for r in ("Mean", "Max", "L2", "LogSumExp")),
    Case("ReduceSum", 13, (X,), (ints(),), {"noop_with_empty_axes": 1}),
    Case("ReduceSum", 13, (I,), (ints(0),)),
    Case("ReduceMean", 11, (X,)),
    *(Case("ArgMax", v, (np.array([[3, 1, 3], [2, 2, 2]], np.float32),), attributes={"axis": 1}) for v in (11, 13)),
    Case("ArgMin", 12, (I.astype(np.float32),), attributes={"axis": -1, "keepdims": 0}),
    Case("ArgMax", 12, (np.array([[3, 1, 3]], np.float32),), attributes={"axis": 1, "select_last_index": 1}),
    *(Case("CumSum", 14, (X,), (np.array(1, np.int64),), {"exclusive": e, "reverse": r}) for e in (0, 1) for r in (0, 1)),
    # sources
    Case("Shape", 15, (X,), attributes={"start": -2}),
    Case("Size", 13, (X,)),
    # others
    Case("Dropout", 7, (X,)),
    Case("Dropout", 12, (X,), (np.array(0.3, np.float32), np.array(False))),
    Case("Identity", 13, (X,)),
    *(Case("BitShift", 11, (BYTES, BYTES % 7), (), {"direction": d}) for d in ("LEFT", "RIGHT")),
    Case("IsInf", 10, (NAN,), attributes={"detect_negative": 0}),
    Case("And", 7, (X > 0, X[0] > 0)),
    Case("Not", 1, (X > 0,)),
]  # fmt: skip


def build(case: Case) -> Any:
    """The case as a model; the first axes are symbolic where the input has more than one axis."""
    names, inputs, constants = [], [], []
    for i, x in enumerate(case.data):
        names.append(f"x{i}")
        inputs.append(helper.make_tensor_value_info(f"x{i}", helper.np_dtype_to_tensor_dtype(x.dtype), x.shape))
    for i, c in enumerate(case.constants):
        names.append("" if c is None else f"c{i}")
        if c is not None:
            constants.append(numpy_helper.from_array(c, f"c{i}"))
    outputs = [f"y{i}" for i in range(case.outputs)]
    node = helper.make_node(case.op, names, outputs, name="node", **case.attributes)
    infos = [helper.make_empty_tensor_value_info(y) for y in outputs]
    graph = helper.make_graph([node], "case", inputs, infos, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", case.opset)], ir_version=8)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_like_onnxruntime(case: Case) -> None:
    model = build(case)
    graph = graph_of(model)
    assert not refusals(graph)
    feeds = {f"x{i}": x for i, x in enumerate(case.data)}
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    wants = session.run(None, feeds)
    for got, want in zip(run(graph, feeds), wants, strict=True):
        assert_close(got, want, rtol=1e-4, atol=1e-5)
    if case.want is not None:
        np.testing.assert_array_equal(wants[0], case.want)
