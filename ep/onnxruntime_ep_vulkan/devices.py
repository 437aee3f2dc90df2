"""Which device: what is shown to ORT at registration, and what a session opens.

Registration touches Vulkan only where ORT lists a GPU (to find out whether it is ours); the device itself is opened by the
first session, or by the first device value.
"""

from __future__ import annotations

import logging
import os
import threading
from typing import Any

from onnx_vulkan._shim import ffi, lib
from onnx_vulkan.device import Device
from onnx_vulkan.device.core import ENVIRONMENT
from onnx_vulkan.engine.options import Options
from onnx_vulkan.errors import DeviceError, InvalidInput

from onnxruntime_ep_vulkan import abi
from onnxruntime_ep_vulkan.abi import Handle

__all__ = ["choose_hardware", "label", "make_ep_devices", "open_for", "open_shared"]

log = logging.getLogger("onnxruntime_ep_vulkan")

_lock = threading.Lock()
_shared: list[Device] = []  # the device of the allocator, once it is open
_warned = False


# ------------------------------------------------------------------------------------------------ what ORT is shown


def make_ep_devices(factory: Handle, hardware: list[Handle], room: int) -> list[Handle]:
    """The OrtEpDevices of this library on ORT's *hardware*: one for host memory, then one for device memory.

    By name ORT takes the first, so ``providers=["VulkanEP"]`` has numpy arrays in and out without copy nodes. Both stand on the
    GPU that is our default device; where ORT does not list it (a software driver, a container without PCI), on the CPU.
    """
    chosen = choose_hardware(hardware)
    if chosen is None:
        return []
    made = [_ep_device(factory, chosen, "host")]
    if room > 1 and abi.api_version() >= 25:  # 1.23 and 1.24 crash when a device value is freed after its session
        made.append(_ep_device(factory, chosen, "device"))
        if lib.ov_ort.memory_info == ffi.NULL:
            lib.ov_ort.memory_info = _memory_info()
        add_allocator_info = abi.ep_function(lib.OrtEpApi_EpDevice_AddAllocatorInfo, "void *(*)(void *, const void *)")
        abi.check(add_allocator_info(made[1], lib.ov_ort.memory_info))
    return made


def choose_hardware(hardware: list[Handle]) -> Handle | None:
    """The OrtHardwareDevice to stand on: the GPU that is our default device, else the CPU; None where ORT has neither."""

    def number(slot: int, handle: Handle) -> int:
        return int(abi.function(slot, "uint32_t (*)(const void *)")(handle))

    kinds = [number(lib.OrtApi_HardwareDevice_Type, h) for h in hardware]
    gpus = [h for h, kind in zip(hardware, kinds, strict=True) if kind == lib.ORT_HARDWARE_GPU]
    if gpus:
        ours = _default_ids()
        for h in gpus:
            if (number(lib.OrtApi_HardwareDevice_VendorId, h), number(lib.OrtApi_HardwareDevice_DeviceId, h)) == ours:
                return h
    return next((h for h, kind in zip(hardware, kinds, strict=True) if kind == lib.ORT_HARDWARE_CPU), None)


def _ep_device(factory: Handle, hardware: Handle, memory: str) -> Handle:
    metadata = ffi.new("void **")
    abi.function(lib.OrtApi_CreateKeyValuePairs, "void (*)(void **)")(metadata)
    add = abi.function(lib.OrtApi_AddKeyValuePair, "void (*)(void *, const char *, const char *)")
    add(metadata[0], b"memory", memory.encode())
    out = ffi.new("void **")
    try:
        abi.check(
            abi.ep_function(lib.OrtEpApi_CreateEpDevice, "void *(*)(void *, const void *, const void *, const void *, void **)")(
                factory, hardware, metadata[0], ffi.NULL, out
            )
        )
    finally:
        abi.function(lib.OrtApi_ReleaseKeyValuePairs, "void (*)(void *)")(metadata[0])
    return out[0]


def _memory_info() -> Handle:
    out = ffi.new("void **")
    # Alignment 0: with any other ORT's Python `OrtValue.ortvalue_from_numpy` does not find the allocator. Ours gives 256.
    abi.call(
        lib.OrtApi_CreateMemoryInfo_V2,
        "void *(*)(const char *, int, uint32_t, int32_t, int, size_t, int, void **)",
        b"VulkanEP",
        lib.ORT_MEMORY_GPU,
        lib.OV_ORT_VENDOR_ID,
        0,
        lib.ORT_DEVICE_MEMORY_DEFAULT,
        0,
        lib.ORT_DEVICE_ALLOCATOR,
        out,
    )
    return out[0]


# ------------------------------------------------------------------------------------------------ what sessions use


def _default_ids() -> tuple[int, int] | None:
    """(vendor id, device id) of the device that a session takes by default; None where there is none, or only software."""
    from onnx_vulkan.device.info import choose

    try:
        found = choose(Device.list(), os.environ.get(ENVIRONMENT))
    except DeviceError as error:
        log.debug("no Vulkan device to show to ONNX Runtime: %s", error)
        return None
    return None if found.kind == "cpu" else (found.vendor_id, found.device_id)


def open_for(options: Options, *, device_memory: bool) -> Device:
    """The device of a session; opened by the first one that asks."""
    device = Device.get(options.device)
    if device_memory and device is not _shared_device():
        raise InvalidInput(
            f"Device memory of VulkanEP lies on {_shared_device().info.name}, but this session asks for {device.info.name}: set "
            f"the environment variable {ENVIRONMENT} instead of the option 'device', or use VulkanEP's host-memory device."
        )
    _warn_about_software(device)
    return device


def open_shared() -> Any:
    """The ``ov_device *`` that ORT's device values lie on."""
    return _shared_device().native


def label(device: Device) -> str:
    """The device's name for people."""
    return device.info.name


def _shared_device() -> Device:
    with _lock:
        if not _shared:
            _shared.append(Device.get())
            lib.ov_ort.device = _shared[0].native
        return _shared[0]


def _warn_about_software(device: Device) -> None:
    global _warned
    if device.info.kind == "cpu" and not _warned:
        _warned = True
        log.warning("VulkanEP runs on %s, a software driver: good for right answers, not for speed.", device.info.name)
