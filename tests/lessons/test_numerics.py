"""What docs/numerics.md says of numbers: the bounds of its table, and what comes of NaN, overflow, shifts and casts."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx_vulkan
import pytest
from onnx import TensorProto as T
from onnx import helper

ROOT = Path(__file__).parents[2]
SAMPLES = 1_000_000 if os.environ.get("ONNX_VULKAN_THOROUGH") == "1" else 40_000


def _script() -> Any:
    spec = importlib.util.spec_from_file_location("measure_numerics", ROOT / "scripts" / "measure_numerics.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


MEASURE = _script()
NAN, INF = np.nan, np.inf
LOW, HIGH = -(2**31), 2**31 - 1
FAR = [NAN, INF, -INF, 300.7, -1.5, -0.5, 3e9, -3e9, 2.0**63, 1e20]


@pytest.mark.parametrize("function", MEASURE.FUNCTIONS, ids=lambda f: f.name)
def test_functions_keep_their_bounds(function: Any) -> None:
    worst, where = MEASURE.measure(function, SAMPLES)
    assert worst <= function.bound, f"{worst} ulp at {where}"
    assert f"| {function.bound:g} |" in next(
        line for line in MEASURE.DOCUMENT.read_text(encoding="utf-8").splitlines() if line.startswith(f"| {function.name} ")
    )


def test_the_measure_sees_an_error() -> None:
    exact = np.array([1.0, 2.0, 1e-30])
    off = (exact * (1 + np.array([2.0**-22, 2.0**-22, 0]))).astype(np.float32)
    assert MEASURE.ulps(off, exact).tolist()[:2] == [2, 2]
    assert MEASURE.ulps(np.array([1.0, INF], np.float32), np.array([NAN, 3.0])).tolist() == [INF, INF]


def f32(*values: float) -> np.ndarray[Any, Any]:
    return np.array(values, np.float32)


def ints(*values: int, dtype: Any = np.int32) -> np.ndarray[Any, Any]:
    return np.array(values, dtype)


UNIT = ints(1, 1, 1, dtype=np.uint32)

# operator, operands, attributes, the result (with its sign of zero)
SAYS: dict[str, tuple[str, list[np.ndarray[Any, Any]], dict[str, Any], list[Any]]] = {
    "max": ("Max", [f32(NAN, 1, 2), f32(1, NAN, -2)], {}, [NAN, NAN, 2]),
    "min": ("Min", [f32(NAN, 1, 2), f32(1, NAN, -2)], {}, [NAN, NAN, -2]),
    "relu": ("Relu", [f32(NAN, -1, INF)], {}, [NAN, 0, INF]),
    "clip": ("Clip", [f32(NAN, -2, 2), f32(-1).reshape(()), f32(1).reshape(())], {}, [NAN, -1, 1]),
    "largest": ("ReduceMax", [f32(1, NAN, 3)], {"keepdims": 0}, [NAN]),
    "smallest": ("ReduceMin", [f32(1, NAN, 3)], {"keepdims": 0}, [NAN]),
    "first nan": ("ArgMax", [f32(1, NAN, NAN)], {"keepdims": 0}, [1]),
    "sort": ("TopK", [f32(1, NAN, 3), ints(3, dtype=np.int64)], {}, [NAN, 3, 1]),
    "equal": ("Equal", [f32(NAN, 0.0), f32(NAN, -0.0)], {}, [False, True]),
    "identity": ("Identity", [f32(-0.0, 1e-40, -1e-40)], {}, [-0.0, np.float32(1e-40), np.float32(-1e-40)]),
    "negate": ("Neg", [f32(0.0, -0.0)], {}, [-0.0, 0.0]),
    "round": ("Round", [f32(-0.4, 0.5, 1.5, -2.5)], {}, [-0.0, 0.0, 2, -2]),
    "product of zeros": ("Mul", [f32(-0.0, -0.0), f32(1, -1)], {}, [-0.0, 0.0]),
    "float division": ("Div", [f32(1, -1, 0, 1), f32(0, 0, 0, -0.0)], {}, [INF, -INF, NAN, -INF]),
    "half overflow": ("Cast", [f32(1e6, -1e6, 65519)], {"to": T.FLOAT16}, [INF, -INF, 65504]),
    "sum wraps": ("Add", [ints(HIGH), ints(1)], {}, [LOW]),
    "bytes wrap": ("Mul", [ints(200, dtype=np.uint8), ints(2, dtype=np.uint8)], {}, [144]),
    "long product": ("Mul", [ints(2**40 + 1, dtype=np.int64), ints(3, dtype=np.int64)], {}, [3 * 2**40 + 3]),
    "abs wraps": ("Abs", [ints(LOW)], {}, [LOW]),
    "division": ("Div", [ints(7, -7, 7, -7, 5, LOW), ints(2, 2, -2, -2, 0, -1)], {}, [3, -3, -3, 3, 0, LOW]),
    "long division": ("Div", [ints(-(2**63), 7, -7, dtype=np.int64), ints(-1, 0, 2, dtype=np.int64)], {}, [-(2**63), 0, -3]),
    "unsigned division": ("Div", [ints(200, 7, dtype=np.uint8), ints(3, 0, dtype=np.uint8)], {}, [66, 0]),
    "mod": ("Mod", [ints(7, -7, 7, -7, 5, LOW), ints(3, 3, -3, -3, 0, -1)], {}, [1, 2, -2, -1, 0, 0]),
    "fmod": ("Mod", [ints(7, -7, 7, -7, 5, LOW), ints(3, 3, -3, -3, 0, -1)], {"fmod": 1}, [1, -1, 1, -1, 0, 0]),
    "left": ("BitShift", [UNIT, ints(31, 32, 99, dtype=np.uint32)], {"direction": "LEFT"}, [2**31, 0, 0]),
    "right": ("BitShift", [UNIT << 31, ints(31, 32, 2**31, dtype=np.uint32)], {"direction": "RIGHT"}, [1, 0, 0]),
    "to int32": ("Cast", [f32(*FAR)], {"to": T.INT32}, [0, 0, 0, 300, -1, 0, 3000000000 - 2**32, 2**32 - 3000000000, 0, 0]),
    "to int64": (
        "Cast", [f32(*FAR)], {"to": T.INT64},
        [0, 0, 0, 300, -1, 0, 3 * 10**9, -3 * 10**9, -(2**63), int(np.float32(1e20)) % 2**64],
    ),
    "to uint8": ("Cast", [f32(*FAR)], {"to": T.UINT8}, [0, 0, 0, 44, 255, 0, 0, 0, 0, 0]),
    "to int8": ("Cast", [f32(*FAR)], {"to": T.INT8}, [0, 0, 0, 44, -1, 0, 0, 0, 0, 0]),
    "to bool": ("Cast", [f32(NAN, 0, -0.0, 0.1, -INF)], {"to": T.BOOL}, [True, False, False, True, True]),
}  # fmt: skip


@pytest.mark.parametrize("case", SAYS)
def test_what_the_page_says(case: str) -> None:
    op, operands, attributes, expected = SAYS[case]
    names = [f"x{i}" for i in range(len(operands))]
    outputs = ["y", "z"] if op == "TopK" else ["y"]
    ends = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in zip(names, operands, strict=True)
    ]
    node = helper.make_node(op, names, outputs, **attributes)
    graph = helper.make_graph([node], "g", ends, [helper.make_empty_tensor_value_info(o) for o in outputs])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    with onnx_vulkan.Session.load(model.SerializeToString()) as session:
        got = session.run(dict(zip(names, operands, strict=True)))["y"].reshape(-1)
    np.testing.assert_array_equal(got, np.array(expected).astype(got.dtype))
    if got.dtype.kind == "f":
        zeros = got == 0
        np.testing.assert_array_equal(np.signbit(got[zeros]), np.signbit(np.array(expected, got.dtype)[zeros]))
