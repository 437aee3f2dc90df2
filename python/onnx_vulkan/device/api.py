"""Set-up-time Vulkan: the cffi declarations of the ``vulkan`` package, loaded on first use, and feature structures by name.

The package's own wrappers are passed by: they do not keep nested structures alive (a driver then reads freed memory).
Here every structure is bound to a variable that outlives the call.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
from collections.abc import Collection
from pathlib import Path
from typing import Any

from onnx_vulkan.errors import DeviceError, DeviceLost, OutOfDeviceMemory

__all__ = ["FeatureBlock", "Vulkan", "chain", "check", "handle", "load"]

LIBRARIES = ("libvulkan.so.1", "vulkan-1.dll", "libvulkan.dylib")
NO_LOADER = (
    "The Vulkan loader (libvulkan.so.1) was not found. Install it (`apt install libvulkan1` on Debian or Ubuntu) and a driver: "
    "the GPU vendor's, or `mesa-vulkan-drivers` (which also brings a software device for right answers without a GPU)."
)


class Vulkan:
    """Vulkan as the ``vulkan`` package declares it: ``ffi``, ``lib``, and the constants as attributes."""

    def __init__(self) -> None:
        self.ffi = _declarations()
        self.lib = _loader(self.ffi)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.lib, name)


def _declarations() -> Any:
    """The package's cffi declarations alone: its wrappers of all functions, which nobody here calls, take ten times as long."""
    found = importlib.util.find_spec("vulkan")
    for folder in (found and found.submodule_search_locations) or ():
        spec = importlib.util.spec_from_file_location("onnx_vulkan.device._vulkan", Path(folder) / "_vulkancache.py")
        if spec is not None and spec.loader is not None and Path(folder, "_vulkancache.py").is_file():
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            return module.ffi
    try:
        import vulkan._vulkan
    except OSError as e:
        raise DeviceError(NO_LOADER) from e
    return vulkan._vulkan.ffi


def _loader(ffi: Any) -> Any:
    for name in LIBRARIES:
        with contextlib.suppress(OSError):
            return ffi.dlopen(name)
    raise DeviceError(NO_LOADER)


@functools.cache
def load() -> Vulkan:
    """The binding, made on first use. Raises DeviceError where there is no Vulkan loader."""
    return Vulkan()


def check(result: int, call: str) -> None:
    """Raise a :class:`DeviceError` unless *result* is VK_SUCCESS (or a success code above it)."""
    if result >= 0:
        return
    if result in (-1, -2):
        raise OutOfDeviceMemory(f"{call} failed: the driver is out of {'host' if result == -1 else 'device'} memory.")
    if result == -4:
        raise DeviceLost(f"{call}: the driver lost the device; sessions on it cannot run any more.")
    raise DeviceError(f"{call} failed with VkResult {result}.")


def handle(value: Any) -> int:
    """A Vulkan handle (pointer or integer) as an integer."""
    return int(load().ffi.cast("uintptr_t", value))


class FeatureBlock:
    """A Vulkan feature structure: a header and 32-bit booleans, for structures that the binding knows and those it does not."""

    def __init__(self, structure_type: int, names: tuple[str, ...]):
        ffi = load().ffi
        self.names = names
        self.memory = ffi.new("uint64_t[]", 2 + (len(names) + 1) // 2)
        self.words = ffi.cast("uint32_t *", self.memory)
        self.words[0] = structure_type

    @classmethod
    def known(cls, name: str, structure_type: int) -> FeatureBlock:
        """The block of a structure that the binding declares."""
        fields = [f for f, _ in load().ffi.typeof(name).fields]
        return cls(structure_type, tuple(fields[2:]))

    def __getitem__(self, name: str) -> bool:
        return bool(self.words[4 + self.names.index(name)])

    def keep_only(self, names: Collection[str]) -> None:
        """Switch every feature off that is not among *names*."""
        for i, name in enumerate(self.names):
            if name not in names:
                self.words[4 + i] = 0


def chain(blocks: list[FeatureBlock]) -> Any:
    """Link *blocks* by pNext; gives back the first one's pointer (NULL for none)."""
    ffi = load().ffi
    for block, following in zip(blocks, [*blocks[1:], None], strict=True):
        block.memory[1] = int(ffi.cast("uintptr_t", following.memory)) if following else 0
    return ffi.cast("void *", blocks[0].memory) if blocks else ffi.NULL
