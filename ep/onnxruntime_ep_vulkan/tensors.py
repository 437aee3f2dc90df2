"""ORT's tensors as numpy arrays: views of its memory, or of the file that a constant comes from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from onnx_vulkan._shim import ffi, lib
from onnx_vulkan.dtypes import DType
from onnx_vulkan.graph import Array
from onnx_vulkan.packing import Packed, unpacked

from onnxruntime_ep_vulkan import abi
from onnxruntime_ep_vulkan.abi import Handle

__all__ = ["constant_of", "element_type", "mapped_constant", "tensor_of"]

# Element types that onnx_vulkan has no DType for: ONNX Runtime's number -> (name, numpy dtype of an array, bytes of an element).
_OTHER_TYPES: dict[int, tuple[str, Any, int]] = {
    8: ("string", None, 0),
    14: ("complex64", np.complex64, 8),
    15: ("complex128", np.complex128, 16),
}
# Where ONNX Runtime's number is not ONNX's.
_RENUMBERED = {24: DType.U2, 25: DType.I2, 26: DType.F8E8M0}


def _dtype(number: int) -> DType | None:
    try:
        return _RENUMBERED.get(number) or DType(number)
    except ValueError:
        return None


def element_type(number: int) -> tuple[DType | None, str]:
    """The DType of an ``ONNXTensorElementDataType``, or None and its name in ONNX's words."""
    dtype = _dtype(number)
    return dtype, "" if dtype is not None else f"tensor({_OTHER_TYPES.get(number, ('undefined', None, 0))[0]})"


def tensor_of(value: Handle) -> Array:
    """:func:`constant_of` as an array in any case."""
    return unpacked(constant_of(value))


def constant_of(value: Handle) -> Array | Packed:
    """An OrtValue tensor: a read-only view of ORT's memory, except for strings; elements below a byte stay packed."""
    info = abi.get(lib.OrtApi_GetTensorTypeAndShape, value)
    try:
        number = int(abi.get(lib.OrtApi_GetTensorElementType, info, "int"))
        rank = int(abi.get(lib.OrtApi_GetDimensionsCount, info, "size_t"))
        sizes = ffi.new("int64_t[]", rank)
        abi.call(lib.OrtApi_GetDimensions, "void *(*)(const void *, int64_t *, size_t)", info, sizes, rank)
        elements = int(abi.get(lib.OrtApi_GetTensorShapeElementCount, info, "size_t"))
    finally:
        abi.function(lib.OrtApi_ReleaseTensorTypeAndShapeInfo, "void (*)(void *)")(info)
    shape = tuple(int(s) for s in sizes)
    if number == 8:
        return _strings(value, elements).reshape(shape)
    known = _dtype(number)
    if known is not None:
        dtype, size = known.numpy, (elements * known.bits + 7) // 8
    else:
        _, dtype, width = _OTHER_TYPES[number]
        size = elements * width
    if not size:
        return np.empty(shape, dtype)
    data = abi.get(lib.OrtApi_GetTensorData, value)
    raw = np.frombuffer(ffi.buffer(data, size), np.uint8)
    raw.flags.writeable = False
    if known is not None and known.bits < 8:
        return Packed(known.numpy, shape, raw)
    whole: Array = raw.view(dtype).reshape(shape)
    return whole


def _strings(value: Handle, elements: int) -> Array:
    total = int(abi.get(lib.OrtApi_GetStringTensorDataLength, value, "size_t"))
    data, starts = ffi.new("char[]", total + 1), ffi.new("size_t[]", elements + 1)
    abi.call(
        lib.OrtApi_GetStringTensorContent,
        "void *(*)(const void *, void *, size_t, size_t *, size_t)",
        value,
        data,
        total,
        starts,
        elements,
    )
    raw, ends = bytes(ffi.buffer(data, total)), [*list(starts)[1:elements], total]
    return np.array([raw[starts[i] : ends[i]].decode(errors="surrogateescape") for i in range(elements)], dtype=object)


def mapped_constant(info: Handle, held: Handle, model_path: str) -> Array | Packed | None:
    """A constant of external data as a read-only view of its file, which outlives ORT's own mapping; None for any other.

    *info* is the constant's OrtValueInfo, *held* its OrtValue.
    """
    external = abi.get(lib.OrtApi_ValueInfo_GetExternalInitializerInfo, info)
    if external == ffi.NULL:
        return None
    try:
        path = abi.function(lib.OrtApi_ExternalInitializerInfo_GetFilePath, "const char *(*)(const void *)")(external)
        offset = abi.function(lib.OrtApi_ExternalInitializerInfo_GetFileOffset, "int64_t (*)(const void *)")(external)
        size = abi.function(lib.OrtApi_ExternalInitializerInfo_GetByteSize, "size_t (*)(const void *)")(external)
        file = Path(model_path).parent / ffi.string(path).decode(errors="surrogateescape")
    finally:
        abi.function(lib.OrtApi_ReleaseExternalInitializerInfo, "void (*)(void *)")(external)
    like = constant_of(held)
    if not size or like.nbytes != size or not file.is_file():
        return None
    if isinstance(like, Packed):
        return Packed(like.dtype, like.shape, np.memmap(file, np.uint8, "r", offset, like.data.shape))
    return np.memmap(file, like.dtype, "r", offset, like.shape)
