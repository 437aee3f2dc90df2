"""Element types: one enum that knows ONNX's number, numpy's dtype and the GLSL names. No shapes, no tensors."""

from __future__ import annotations

from enum import Enum
from functools import cached_property
from typing import Any

import ml_dtypes
import numpy as np

__all__ = ["FLOATS", "INTS", "NUMERIC", "REAL", "SIGNED_INTS", "UNSIGNED_INTS", "DType"]


class DType(Enum):
    """An ONNX tensor element type. The enum's value is ``TensorProto.DataType``'s number."""

    F32 = 1
    U8 = 2
    I8 = 3
    U16 = 4
    I16 = 5
    I32 = 6
    I64 = 7
    BOOL = 9
    F16 = 10
    F64 = 11
    U32 = 12
    U64 = 13
    BF16 = 16

    __hash__ = object.__hash__  # members are single objects, and every table of the compiler asks

    @cached_property
    def numpy(self) -> np.dtype[Any]:
        """The numpy dtype with the same bytes (bfloat16 comes from ``ml_dtypes``)."""
        made: np.dtype[Any] = np.dtype(_NUMPY[self.name])
        return made

    @cached_property
    def size(self) -> int:
        """Bytes of one element, on the host and on the device (bool is one byte)."""
        return int(self.numpy.itemsize)

    @property
    def is_float(self) -> bool:
        return self in FLOATS

    @property
    def is_signed(self) -> bool:
        return self in SIGNED_INTS or self in FLOATS

    @property
    def is_int(self) -> bool:
        return self in INTS

    @property
    def onnx_name(self) -> str:
        """The name the ONNX specification uses, e.g. ``float16``."""
        return _ONNX_NAMES[self.name]

    @classmethod
    def of(cls, dtype: Any) -> DType:
        """The DType of a numpy dtype (or anything ``numpy.dtype`` takes). Raises KeyError when ONNX has none here."""
        return _BY_NUMPY[np.dtype(dtype)]


_NUMPY: dict[str, Any] = {
    "F32": np.float32,
    "U8": np.uint8,
    "I8": np.int8,
    "U16": np.uint16,
    "I16": np.int16,
    "I32": np.int32,
    "I64": np.int64,
    "BOOL": np.bool_,
    "F16": np.float16,
    "F64": np.float64,
    "U32": np.uint32,
    "U64": np.uint64,
    "BF16": ml_dtypes.bfloat16,
}
_ONNX_NAMES = {
    "F32": "float32",
    "U8": "uint8",
    "I8": "int8",
    "U16": "uint16",
    "I16": "int16",
    "I32": "int32",
    "I64": "int64",
    "BOOL": "bool",
    "F16": "float16",
    "F64": "float64",
    "U32": "uint32",
    "U64": "uint64",
    "BF16": "bfloat16",
}
_BY_NUMPY = {t.numpy: t for t in DType}

FLOATS = frozenset({DType.F16, DType.BF16, DType.F32, DType.F64})
SIGNED_INTS = frozenset({DType.I8, DType.I16, DType.I32, DType.I64})
UNSIGNED_INTS = frozenset({DType.U8, DType.U16, DType.U32, DType.U64})
INTS = SIGNED_INTS | UNSIGNED_INTS
REAL = FLOATS | INTS
NUMERIC = REAL | {DType.BOOL}
