"""Element types: one enum that knows ONNX's number, numpy's dtype and the GLSL names. No shapes, no tensors."""

from __future__ import annotations

from enum import Enum
from functools import cached_property
from typing import Any

import ml_dtypes
import numpy as np

__all__ = [
    "ALL",
    "FLOATS",
    "INTS",
    "NUMERIC",
    "REAL",
    "SIGNED_INTS",
    "SMALL",
    "SMALL_FLOATS",
    "SMALL_INTS",
    "UNSIGNED_INTS",
    "DType",
]


class DType(Enum):
    """An ONNX tensor element type. The enum's value is ``TensorProto.DataType``'s number.

    Those in :data:`SMALL` are only stored and moved: nothing is computed in them (see :mod:`onnx_vulkan.lower.small`).
    """

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
    F8E4M3FN = 17
    F8E4M3FNUZ = 18
    F8E5M2 = 19
    F8E5M2FNUZ = 20
    U4 = 21
    I4 = 22
    F4E2M1 = 23
    F8E8M0 = 24
    U2 = 25
    I2 = 26

    __hash__ = object.__hash__  # members are single objects, and every table of the compiler asks

    @cached_property
    def numpy(self) -> np.dtype[Any]:
        """The numpy dtype (bfloat16 and the small types come from ``ml_dtypes``, which keeps one element a byte at least)."""
        made: np.dtype[Any] = np.dtype(_NUMPY[self.name])
        return made

    @cached_property
    def size(self) -> int:
        """Bytes of one element of an array, on the host and on the device (bool is one byte)."""
        return int(self.numpy.itemsize)

    @cached_property
    def bits(self) -> int:
        """Bits of one element of a tensor at rest: in a file, in ONNX Runtime's memory, at a block's edges."""
        return _SUB_BYTE_BITS.get(self.name, 8 * self.size)

    @cached_property
    def carrier(self) -> DType:
        """The type that carries the elements inside a Program: int8 for int4 and int2, uint8 for the codes of the other small
        types, for all others the type itself."""
        return DType.I8 if self in (DType.I4, DType.I2) else DType.U8 if self in SMALL else self

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
    "F8E4M3FN": ml_dtypes.float8_e4m3fn,
    "F8E4M3FNUZ": ml_dtypes.float8_e4m3fnuz,
    "F8E5M2": ml_dtypes.float8_e5m2,
    "F8E5M2FNUZ": ml_dtypes.float8_e5m2fnuz,
    "U4": ml_dtypes.uint4,
    "I4": ml_dtypes.int4,
    "F4E2M1": ml_dtypes.float4_e2m1fn,
    "F8E8M0": ml_dtypes.float8_e8m0fnu,
    "U2": ml_dtypes.uint2,
    "I2": ml_dtypes.int2,
}
_SUB_BYTE_BITS = {"U4": 4, "I4": 4, "F4E2M1": 4, "U2": 2, "I2": 2}
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
    "F8E4M3FN": "float8e4m3fn",
    "F8E4M3FNUZ": "float8e4m3fnuz",
    "F8E5M2": "float8e5m2",
    "F8E5M2FNUZ": "float8e5m2fnuz",
    "U4": "uint4",
    "I4": "int4",
    "F4E2M1": "float4e2m1",
    "F8E8M0": "float8e8m0",
    "U2": "uint2",
    "I2": "int2",
}
_BY_NUMPY = {t.numpy: t for t in DType}

FLOATS = frozenset({DType.F16, DType.BF16, DType.F32, DType.F64})
SIGNED_INTS = frozenset({DType.I8, DType.I16, DType.I32, DType.I64})
UNSIGNED_INTS = frozenset({DType.U8, DType.U16, DType.U32, DType.U64})
INTS = SIGNED_INTS | UNSIGNED_INTS
REAL = FLOATS | INTS
NUMERIC = REAL | {DType.BOOL}
SMALL_INTS = frozenset({DType.I4, DType.U4, DType.I2, DType.U2})
SMALL_FLOATS = frozenset({DType.F8E4M3FN, DType.F8E4M3FNUZ, DType.F8E5M2, DType.F8E5M2FNUZ, DType.F8E8M0, DType.F4E2M1})
SMALL = SMALL_INTS | SMALL_FLOATS
"""Types that are stored and moved, but not computed in. ``is_int`` and ``is_float`` do not hold for them."""
ALL = NUMERIC | SMALL
