"""Asks the Vulkan loader, by ctypes alone, what a set-up script needs to know before anything is installed.

vulkan_probe.py loader       exit 0 when libvulkan.so.1 loads
vulkan_probe.py device       exit 0 when there is a physical device
vulkan_probe.py layer NAME   exit 0 when the loader knows that layer
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence

VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO = 1
LAYER_PROPERTIES_SIZE = 520  # VkLayerProperties: char[256], 2 x uint32, char[256]


class InstanceCreateInfo(ctypes.Structure):
    """VkInstanceCreateInfo; all that is not set is null."""

    _fields_ = (
        ("sType", ctypes.c_int),
        ("pNext", ctypes.c_void_p),
        ("flags", ctypes.c_uint32),
        ("pApplicationInfo", ctypes.c_void_p),
        ("enabledLayerCount", ctypes.c_uint32),
        ("ppEnabledLayerNames", ctypes.c_void_p),
        ("enabledExtensionCount", ctypes.c_uint32),
        ("ppEnabledExtensionNames", ctypes.c_void_p),
    )


def load() -> ctypes.CDLL | None:
    """The Vulkan loader, or None."""
    try:
        return ctypes.CDLL("libvulkan.so.1")
    except OSError:
        return None


def device_count(vulkan: ctypes.CDLL) -> int:
    """How many physical devices the loader finds; 0 too where no driver is installed."""
    instance = ctypes.c_void_p()
    info = InstanceCreateInfo(sType=VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO)
    if vulkan.vkCreateInstance(ctypes.byref(info), None, ctypes.byref(instance)):
        return 0
    count = ctypes.c_uint32()
    failed = vulkan.vkEnumeratePhysicalDevices(instance, ctypes.byref(count), None)
    vulkan.vkDestroyInstance(instance, None)
    return 0 if failed else count.value


def layer_names(vulkan: ctypes.CDLL) -> list[str]:
    """The names of all layers."""
    count = ctypes.c_uint32()
    vulkan.vkEnumerateInstanceLayerProperties(ctypes.byref(count), None)
    table = ctypes.create_string_buffer(max(1, count.value) * LAYER_PROPERTIES_SIZE)
    vulkan.vkEnumerateInstanceLayerProperties(ctypes.byref(count), table)
    return [table.raw[i * LAYER_PROPERTIES_SIZE :].split(b"\0", 1)[0].decode(errors="replace") for i in range(count.value)]


def main(argv: Sequence[str]) -> int:
    """Answer one question by the exit status."""
    vulkan = load()
    if argv == ["loader"]:
        found = vulkan is not None
    elif argv == ["device"]:
        found = vulkan is not None and device_count(vulkan) > 0
    elif len(argv) == 2 and argv[0] == "layer":
        found = vulkan is not None and argv[1] in layer_names(vulkan)
    else:
        print(__doc__, file=sys.stderr)
        return 2
    return 0 if found else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
