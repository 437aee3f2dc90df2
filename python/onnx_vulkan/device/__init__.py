"""The GPU: choice of device, memory, pipelines, caches, and blocks that replay plans.

Knows Vulkan and the shim; must not know ONNX, ORT, or how plans are made.
"""

from onnx_vulkan.device.core import Device
from onnx_vulkan.device.info import CoopMatrix, DeviceInfo, Heap, Limits
from onnx_vulkan.device.memory import Memory, MemoryKind
from onnx_vulkan.device.pipelines import Shader
from onnx_vulkan.device.replay import Cancel, DeviceTensor, ProfileEntry, ReplayBlock, Request, RequestInput

__all__ = [
    "Cancel",
    "CoopMatrix",
    "Device",
    "DeviceInfo",
    "DeviceTensor",
    "Heap",
    "Limits",
    "Memory",
    "MemoryKind",
    "ProfileEntry",
    "ReplayBlock",
    "Request",
    "RequestInput",
    "Shader",
]
