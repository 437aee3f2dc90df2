"""Device memory as Python objects, and the process's weights, shared by content."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnx_vulkan.device.native import check, ffi, lib

__all__ = ["Memory", "MemoryKind", "MemoryLimit", "WeightStore", "allocate"]


class MemoryKind(IntEnum):
    """DEVICE: fastest for kernels. UPLOAD: the host writes, kernels read. READBACK: kernels write, the host reads fast."""

    DEVICE = lib.OV_DEVICE
    UPLOAD = lib.OV_UPLOAD
    READBACK = lib.OV_READBACK


class Memory:
    """An allocation on the device. It goes back by :meth:`free`, or with its last reference.

    ``handle`` is the ``ov_memory`` pointer as an integer (for COPY_ABSOLUTE commands), ``address`` the device address,
    ``mapped`` the host pointer or 0. Shared memory (weights) is freed when all who asked for it have freed it.
    """

    def __init__(self, device: Any, pointer: Any, size: int):
        info = ffi.new("ov_memory_info *")
        lib.ov_memory_get(pointer, info)
        self._device = device  # keeps the device open
        self._pointer = pointer
        self._release: Callable[[], None] | None = None
        self.size = size
        self.address = int(info.address)
        self.mapped = int(ffi.cast("uintptr_t", info.mapped))
        self.handle = int(ffi.cast("uintptr_t", pointer))

    def free(self) -> None:
        """Give the memory back; a second call does nothing."""
        pointer, self._pointer = self._pointer, None
        if pointer is None:
            return
        if self._release:
            self._release()
        else:
            lib.ov_free(pointer)

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # at interpreter exit the shim may be gone
            self.free()

    def upload(self, data: NDArray[Any] | bytes, offset: int = 0) -> None:
        """Copy *data* to byte *offset*; returns when it has arrived."""
        raw = ffi.from_buffer(data if isinstance(data, bytes) else as_bytes(data))
        if offset < 0 or offset + len(raw) > self.size:
            raise ValueError(f"{len(raw)} bytes at {offset} do not fit an allocation of {self.size} bytes")
        error = ffi.new("ov_error *")
        check(lib.ov_upload(self._device.native, self.address + offset, raw, len(raw), error), error)

    def download(self, dtype: Any, shape: tuple[int, ...], offset: int = 0) -> NDArray[Any]:
        """A host copy of an array that lies at byte *offset*."""
        out = np.empty(shape, dtype)
        if offset < 0 or offset + out.nbytes > self.size:
            raise ValueError(f"{out.nbytes} bytes at {offset} lie outside an allocation of {self.size} bytes")
        error = ffi.new("ov_error *")
        to = ffi.cast("void *", out.ctypes.data)
        check(lib.ov_download(self._device.native, to, self.address + offset, out.nbytes, error), error)
        return out


def as_bytes(array: NDArray[Any]) -> NDArray[np.uint8]:
    """The bytes of an array in row-major order, without a copy where it is contiguous."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def allocate(device: Any, size: int, kind: MemoryKind) -> Memory:
    error = ffi.new("ov_error *")
    out = ffi.new("ov_memory **")
    check(lib.ov_alloc(device.native, size, int(kind), out, error), error)
    return Memory(device, out[0], size)


class MemoryLimit:
    """A wish that the process have at most *size* bytes of the device; it ends by :meth:`release` or with the object."""

    def __init__(self, device: Any, size: int):
        self._device = device
        self._size: int | None = size
        device._apply_limits(take=size)

    def release(self) -> None:
        """Give the limit up; a second call does nothing."""
        size, self._size = self._size, None
        if size is not None:
            self._device._apply_limits(give=size)

    def __enter__(self) -> MemoryLimit:
        return self

    def __exit__(self, *exc: object) -> None:
        self.release()

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # at interpreter exit the shim may be gone
            self.release()


class WeightStore:
    """Memory shared in the process by a key, reference counted."""

    def __init__(self, device: Any):
        self._device = device
        self._lock = threading.RLock()
        self._entries: dict[bytes, tuple[Memory, int]] = {}

    def get(self, key: bytes, make: Callable[[], Memory]) -> Memory:
        """The memory of *key*, from *make* if nobody holds it now. Each result is freed on its own."""
        with self._lock:  # held while making: a second session shall wait for the bytes, not upload them again
            owner, count = self._entries.get(key, (None, 0))
            if owner is None:
                owner = make()
            # Counted before anything else: making an object may collect garbage, and with it the last other share.
            self._entries[key] = (owner, count + 1)
            share = Memory(self._device, owner._pointer, owner.size)
            share._release = lambda: self._drop(key)
            return share

    def _drop(self, key: bytes) -> None:
        with self._lock:
            owner, count = self._entries[key]
            if count > 1:
                self._entries[key] = (owner, count - 1)
                return
            del self._entries[key]
            owner.free()

    def __len__(self) -> int:
        return len(self._entries)


def content_key(array: NDArray[Any]) -> bytes:
    """A 128-bit hash of the bytes, and their number."""
    data = as_bytes(array)
    out = ffi.new("uint64_t[2]")
    raw = ffi.from_buffer(data)
    lib.ov_hash128(raw, len(raw), out)
    return bytes(ffi.buffer(out)) + len(raw).to_bytes(8, "little")
