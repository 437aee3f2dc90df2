"""What one row of the kernel suite is: a small model, its inputs, how its result is checked and what its time is worth."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

__all__ = ["DTYPES", "LIMITS", "Array", "Read", "Work", "make_model", "random_array", "worst_error"]

Array = NDArray[Any]
Read = Callable[[int, int], Array]
"""Elements ``start`` to ``start + count`` of the (only) output, flat."""
TorchRun = Callable[[], Any]

DTYPES = {"fp32": np.dtype(np.float32), "fp16": np.dtype(np.float16), "int8": np.dtype(np.int8)}

LIMITS = {"fp32": 1e-5, "fp16": 5e-3, "int8": 0.0, "fast": 5e-3, "fp32_split": 1e-5}
"""The largest error that is right, as a share of the reference's largest magnitude, by dtype or precision."""

_POOL = (1 << 24) + 43


@dataclass(frozen=True, eq=False)
class Work:
    """A model of one output and all that is needed to time and check it.

    ``amount`` in ``unit`` per second is its rate: operations (TFLOP/s, TOP/s), bytes (TB/s); for ``ms`` the wall time itself is
    shown. ``check`` gives the error of a result, which has to be at most ``limit``. ``torch`` makes a function that does the same
    work once on CUDA; ``tf32`` allows it TF32.
    """

    model: onnx.ModelProto
    feeds: Mapping[str, Array]
    amount: float
    unit: str
    check: Callable[[Read], float]
    limit: float
    options: Mapping[str, str] = field(default_factory=dict)
    torch: Callable[[Any], TorchRun] | None = None
    tf32: bool = False


@lru_cache(maxsize=8)
def _pool(dtype: str, scale: float = 1.0) -> Array:
    if scale != 1.0:
        return (_pool("fp32") * np.float32(scale)).astype(DTYPES[dtype])
    if dtype == "fp32":
        return np.random.default_rng().standard_normal(_POOL, dtype=np.float32)
    numbers = _pool("fp32")
    return (numbers * 40).clip(-127, 127).astype(np.int8) if dtype == "int8" else numbers.astype(DTYPES[dtype])


def random_array(dtype: str, shape: Sequence[int], salt: int = 0, scale: float = 1.0) -> Array:
    """Normal numbers times *scale* (int8: times 40), other ones for each *salt* and in each process."""
    count = prod(shape)
    large = count > _POOL // 16  # many large arrays have one scale
    pool = _pool(dtype, scale if large else 1.0)
    start = salt * 1_000_003 % len(pool)
    made = pool[start : start + count]
    if made.size < count:
        made = np.resize(np.concatenate([pool[start:], pool[:start]]), count)
    made = made.reshape(shape)
    return made if scale == 1.0 or large else made * made.dtype.type(scale)


def make_model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, Array],
    output: tuple[str, str, Sequence[int]],
    weights: Mapping[str, Array] | None = None,
    opset: int = 17,
) -> onnx.ModelProto:
    """A model of *nodes*; *inputs* give names, types and shapes, *output* is (name, dtype, shape)."""
    name, dtype, shape = output
    element = {**{k: helper.np_dtype_to_tensor_dtype(v) for k, v in DTYPES.items()}, "int32": TensorProto.INT32}[dtype]
    graph = helper.make_graph(
        list(nodes),
        "work",
        [helper.make_tensor_value_info(k, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for k, a in inputs.items()],
        [helper.make_tensor_value_info(name, element, shape)],
    )
    domains = {node.domain for node in nodes} - {""}
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(d, 1) for d in domains)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    for k, array in (weights or {}).items():  # in place: they may be hundreds of megabytes
        data_type = helper.np_dtype_to_tensor_dtype(array.dtype)
        model.graph.initializer.add(name=k, dims=array.shape, data_type=data_type, raw_data=array.tobytes())
    return model


def worst_error(got: Array, expected: Array) -> float:
    """The largest difference as a share of the reference's largest magnitude; infinite where NaN or shapes differ."""
    if got.shape != expected.shape:
        return float("inf")
    if not expected.size:
        return 0.0
    difference = np.abs(got.astype(np.float64) - expected.astype(np.float64)).max()
    return float("inf") if np.isnan(difference) else float(difference / max(np.abs(expected).max(), 1e-30))
