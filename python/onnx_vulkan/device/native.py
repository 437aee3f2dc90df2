"""The shim seen from Python: its ``ffi`` and ``lib``, and how its errors become exceptions."""

from __future__ import annotations

from typing import Any

from onnx_vulkan._shim import ffi, lib
from onnx_vulkan.errors import Cancelled, DeviceError, DeviceLost, InvalidInput, OnnxVulkanError, OutOfDeviceMemory, Unsupported

__all__ = ["check", "describe_failure", "error_of", "ffi", "lib"]

EXCEPTIONS: dict[int, type[OnnxVulkanError]] = {
    lib.OV_INVALID_INPUT: InvalidInput,
    lib.OV_OUT_OF_MEMORY: OutOfDeviceMemory,
    lib.OV_DEVICE_LOST: DeviceLost,
    lib.OV_FAILED: DeviceError,
    lib.OV_PYTHON_ERROR: OnnxVulkanError,
    lib.OV_UNSUPPORTED: Unsupported,
    lib.OV_CANCELLED: Cancelled,
}


def error_of(error: Any) -> OnnxVulkanError:
    """The exception that an ``ov_error`` stands for."""
    return EXCEPTIONS[error.kind](ffi.string(error.text).decode(errors="replace"))


def check(kind: int, error: Any) -> None:
    """Raise what *error* (an ``ov_error *``) says unless *kind* is OV_OK."""
    if kind:
        raise error_of(error)


def describe_failure(exception: BaseException, error: Any) -> int:
    """Write a Python exception into *error* (an ``ov_error *``); gives back its kind."""
    kind = next((k for k, t in EXCEPTIONS.items() if k != lib.OV_PYTHON_ERROR and isinstance(exception, t)), lib.OV_PYTHON_ERROR)
    text = str(exception) if isinstance(exception, OnnxVulkanError) else f"{type(exception).__name__}: {exception}"
    encoded = text.encode(errors="replace")[: len(error.text) - 1]
    ffi.memmove(error.text, encoded + b"\0", len(encoded) + 1)
    error.kind = kind
    return int(kind)
