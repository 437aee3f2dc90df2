"""Packed tensors on the host: elements below a byte as files and ONNX Runtime keep them, the first in the lowest bits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnx_vulkan.dtypes import SMALL, DType

__all__ = ["Packed", "from_storage", "pack", "to_storage", "unpack", "unpacked"]

Array = NDArray[np.generic]


@dataclass(frozen=True, slots=True, eq=False)
class Packed:
    """A constant of elements below a byte. ``dtype`` is that of its array, ``data`` are its bytes (flat uint8)."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    data: Array

    @property
    def nbytes(self) -> int:
        """Bytes as they are kept."""
        return self.data.nbytes

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        array = unpack(self.data, DType.of(self.dtype), self.shape)
        return array if dtype is None else array.astype(dtype)


def unpacked(constant: Array | Packed) -> Array:
    """As an array, one element a byte."""
    return np.asarray(constant) if isinstance(constant, Packed) else constant


def pack(array: Array) -> Array:
    """The bytes of an array of a small type, flat; bits past the last element are 0.

    A type of whole bytes gives a view of *array* where that is contiguous.
    """
    bits = DType.of(array.dtype).bits
    codes = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    if bits >= 8:
        return codes
    per_byte = 8 // bits
    codes = np.pad(codes, (0, -codes.size % per_byte)).reshape(-1, per_byte) & np.uint8((1 << bits) - 1)
    packed = codes[:, 0]
    for i in range(1, per_byte):
        packed = packed | codes[:, i] << np.uint8(i * bits)
    return np.ascontiguousarray(packed)


def unpack(data: Array, dtype: DType, shape: Sequence[int]) -> Array:
    """An array of *shape* from its packed bytes (uint8, flat); the inverse of :func:`pack`."""
    if dtype.bits >= 8:
        return data.view(dtype.numpy).reshape(tuple(shape))
    bits, count = dtype.bits, int(np.prod(shape, dtype=np.int64))
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    spread: Any = data[:, None]
    codes: Array = ((spread >> shifts) & np.uint8((1 << bits) - 1)).reshape(-1)[:count]
    made: Array = codes.view(dtype.numpy).reshape(tuple(shape))
    return made


def to_storage(array: Array) -> Array:
    """An array as a Program's input: packed where an element is below a byte, the codes where it is a small float of a byte."""
    dtype = DType.of(array.dtype)
    return array if dtype not in SMALL else pack(array) if dtype.bits < 8 else pack(array).reshape(array.shape)


def from_storage(array: Array, dtype: DType, shape: Sequence[int]) -> Array:
    """A Program's output as an array of *dtype* and *shape*; the inverse of :func:`to_storage`."""
    return unpack(array.reshape(-1), dtype, shape) if dtype in SMALL else array
