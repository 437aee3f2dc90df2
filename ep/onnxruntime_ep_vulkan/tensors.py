"""ORT's tensors as numpy arrays: views of its memory, or of the file that a constant comes from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from onnx_vulkan._shim import ffi, lib
from onnx_vulkan.dtypes import DType
from onnx_vulkan.graph import Array

from onnxruntime_ep_vulkan import abi
from onnxruntime_ep_vulkan.abi import Handle

__all__ = ["element_type", "mapped_constant", "tensor_of"]

# Element types that onnx_vulkan has no DType for: ONNX's number -> (name, numpy dtype of the unpacked array or None, bits).
_OTHER_TYPES: dict[int, tuple[str, Any, int]] = {
    8: ("string", None, 0),
    14: ("complex64", np.complex64, 64),
    15: ("complex128", np.complex128, 128),
    17: ("float8e4m3fn", ml_dtypes.float8_e4m3fn, 8),
    18: ("float8e4m3fnuz", ml_dtypes.float8_e4m3fnuz, 8),
    19: ("float8e5m2", ml_dtypes.float8_e5m2, 8),
    20: ("float8e5m2fnuz", ml_dtypes.float8_e5m2fnuz, 8),
    21: ("uint4", ml_dtypes.uint4, 4),
    22: ("int4", ml_dtypes.int4, 4),
    23: ("float4e2m1", ml_dtypes.float4_e2m1fn, 4),
    24: ("uint2", ml_dtypes.uint2, 2),
    25: ("int2", ml_dtypes.int2, 2),
    26: ("float8e8m0", ml_dtypes.float8_e8m0fnu, 8),
}


def element_type(number: int) -> tuple[DType | None, str]:
    """The DType of an ``ONNXTensorElementDataType``, or None and its name in ONNX's words."""
    try:
        return DType(number), ""
    except ValueError:
        return None, f"tensor({_OTHER_TYPES.get(number, ('undefined', None, 0))[0]})"


def tensor_of(value: Handle) -> Array:
    """An OrtValue tensor as an array: a read-only view of ORT's memory, except for strings and types below a byte."""
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
    if number in _OTHER_TYPES:
        _, dtype, bits = _OTHER_TYPES[number]
    else:
        dtype, bits = DType(number).numpy, DType(number).size * 8
    size = (elements * bits + 7) // 8
    if not size:
        return np.empty(shape, dtype)
    data = abi.get(lib.OrtApi_GetTensorData, value)
    raw = np.frombuffer(ffi.buffer(data, size), np.uint8)
    raw.flags.writeable = False
    if bits >= 8:
        whole: Array = raw.view(dtype).reshape(shape)
        return whole
    per_byte = 8 // bits
    spread = (raw[:, None] >> (np.arange(per_byte, dtype=np.uint8) * bits)) & ((1 << bits) - 1)
    return _narrow(spread.reshape(-1)[:elements].astype(np.uint8), dtype, bits).reshape(shape)


def _narrow(codes: Array, dtype: Any, bits: int) -> Array:
    """Codes of *bits* bits (one a byte) as an ml_dtypes array, which keeps one element a byte too."""
    if np.dtype(dtype).name.startswith("int"):
        signed = codes.astype(np.int8)
        return np.where(signed >= 1 << (bits - 1), signed - (1 << bits), signed).astype(np.int8).astype(dtype)
    return codes.view(dtype) if np.dtype(dtype).name.startswith("float") else codes.astype(dtype)


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


def mapped_constant(info: Handle, held: Handle, model_path: str) -> Array | None:
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
    like = tensor_of(held)
    if not size or like.nbytes != size or not file.is_file():
        return None
    return np.memmap(file, like.dtype, "r", offset, like.shape)
