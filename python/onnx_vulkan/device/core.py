"""The opened device: one VkDevice per physical GPU and process, made on first use."""

from __future__ import annotations

import builtins
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from onnx_vulkan.device import compile
from onnx_vulkan.device.api import chain, check, handle, load
from onnx_vulkan.device.info import DeviceInfo, Instance, choose, enabled_extensions, feature_blocks, wanted_features
from onnx_vulkan.device.memory import Memory, MemoryKind, MemoryLimit, WeightStore, allocate, content_key
from onnx_vulkan.device.native import check as check_native
from onnx_vulkan.device.native import ffi, lib
from onnx_vulkan.device.pipelines import PipelineCache, PipelineLease, Shader
from onnx_vulkan.device.unit_map import probed
from onnx_vulkan.errors import DeviceError

__all__ = ["Device"]

ENVIRONMENT = "ONNX_VULKAN_DEVICE"
UNMAPPED = "ONNX_VULKAN_UNMAPPED"  # for tests: a software device then copies by staging, like a GPU with memory of its own
SPIN_NS = 200_000  # poll this long before blocking: a blocked thread wakes some tens of us late


class Device:
    """An opened Vulkan device. Get it by :meth:`get`; it stays open until the process ends.

    ``native`` is the shim's ``ov_device *``, ``info`` describes the device.
    """

    _lock: ClassVar[threading.Lock] = threading.Lock()
    _opened: ClassVar[dict[str, Device]] = {}

    @classmethod
    def get(cls, selector: str | None = None) -> Device:
        """The device that *selector* names (index, UUID, or part of the name), opened on first use.

        None: what the environment variable ``ONNX_VULKAN_DEVICE`` names, else the best one: discrete before integrated, virtual,
        cpu.
        """
        selector = selector or os.environ.get(ENVIRONMENT) or None
        with cls._lock:
            for device in cls._opened.values():
                device._check_process()
            instance = Instance.get()
            info = choose(instance.devices, selector)
            key = f"{info.uuid}-{info.index}"
            if key not in cls._opened:
                cls._opened[key] = Device(instance, info)
            return cls._opened[key]

    @staticmethod
    def list() -> builtins.list[DeviceInfo]:
        """The devices of this machine, none of them opened."""
        return [*Instance.get().devices]

    def __init__(self, instance: Instance, info: DeviceInfo):
        vk = load()
        self.info = info
        self._instance = instance
        self._pid = os.getpid()
        try:
            self._handle, queue = _open(info)
        except DeviceError as failure:
            if not instance.forked:
                raise
            raise DeviceError(
                "This process was forked from one that had loaded the Vulkan driver, and this driver does not survive that: "
                f"{failure} Start workers by the 'spawn' method, or import and list devices after the fork."
            ) from failure
        identity = f"{info.uuid or info.name}-{info.driver_version:x}"
        self._pipelines = PipelineCache(self._handle, identity, info.features)
        description = ffi.new(
            "ov_device_desc *",
            {
                "get_device_proc_addr": handle(vk.ffi.addressof(vk.lib, "vkGetDeviceProcAddr")),
                "get_memory_properties2": handle(vk.ffi.addressof(vk.lib, "vkGetPhysicalDeviceMemoryProperties2")),
                "physical_device": handle(info.handle),
                "device": handle(self._handle),
                "queue": handle(queue),
                "pipeline_layout": int(vk.ffi.cast("uint64_t", self._pipelines.layout)),
                "max_allocation": info.limits.max_allocation,
                "max_buffer": info.limits.max_buffer,
                "spin_ns": 0 if info.kind == "cpu" else SPIN_NS,
                "timestamp_period": info.timestamp_period,
                "timestamp_bits": info.timestamp_bits,
                "queue_family": info.queue_family,
                "has_budget": "VK_EXT_memory_budget" in info.extensions,
                "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
                "unmapped": os.environ.get(UNMAPPED, "") not in ("", "0"),
            },
        )
        error, out = ffi.new("ov_error *"), ffi.new("ov_device **")
        check_native(lib.ov_device_create(description, out, error), error)
        self.native = out[0]
        self._weights = WeightStore(self)
        self._limits: builtins.list[int] = []
        self._limits_lock = threading.RLock()  # a collected limit gives itself up in whatever thread
        self.info = replace(info, features=info.features | probed(self, identity))

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise DeviceError(
                "This process was forked from one that had opened a Vulkan device, and a device does not survive a fork. Start "
                "workers by the 'spawn' method, or open the first session after the fork."
            )

    @property
    def direct_input(self) -> bool:
        """Whether kernels read UPLOAD memory at full speed: the plan then needs no copy of its inputs."""
        return bool(lib.ov_device_direct_input(self.native))

    def alloc(self, size: int, kind: MemoryKind = MemoryKind.DEVICE) -> Memory:
        """Allocate *size* bytes; raises OutOfDeviceMemory with what was asked for and what is in use."""
        self._check_process()
        return allocate(self, size, kind)

    def copied(self, array: NDArray[Any]) -> NDArray[Any]:
        """A copy in host memory; a large one is made by several threads."""
        if array.dtype.hasobject or not array.flags.c_contiguous:
            return array.copy()
        copy = np.empty_like(array)
        to, source = (ffi.cast("void *", a.ctypes.data) for a in (copy, array))
        lib.ov_copy_host(self.native, to, source, array.nbytes)
        return copy

    def weights(self, array: NDArray[Any]) -> Memory:
        """The bytes of *array* (row-major) on the device, shared in the process with every equal array."""

        def upload() -> Memory:
            memory = self.alloc(array.nbytes)
            memory.upload(array)
            return memory

        return self._weights.get(content_key(array), upload)

    def shared(self, key: bytes, make: Callable[[], Memory]) -> Memory:
        """Like :meth:`weights` for memory that *make* fills (packed weights); *key* says what it holds."""
        return self._weights.get(b"made:" + key, make)

    def pipelines(self, shaders: Sequence[Shader]) -> builtins.list[int]:
        """VkPipeline handles, which stay for good; known ones cost a dictionary look-up."""
        self._check_process()
        return self._pipelines.get(shaders)

    def lease_pipelines(self) -> PipelineLease:
        """A lease, for pipelines that may go once their user has gone."""
        self._check_process()
        return PipelineLease(self._pipelines)

    def compile_glsl(self, shader: Shader) -> None:
        """Have a shader's SPIR-V in the cache. The compiler holds the interpreter's lock: one call stops every other thread."""
        compile.spirv(shader.source)

    def pipelines_missing(self, shaders: Sequence[Shader]) -> builtins.list[Shader]:
        """Those of them whose pipelines do not exist yet, each once."""
        return self._pipelines.missing(shaders)

    def exported_pipelines(self, shaders: Sequence[Shader]) -> bytes:
        """The driver's data of these pipelines, so that :meth:`take_in_pipelines` saves compiling them there."""
        return self._pipelines.exported(shaders)

    def take_in_pipelines(self, data: bytes) -> None:
        """Know the pipelines of :meth:`exported_pipelines`, given on this device under this driver."""
        self._pipelines.take_in(data)

    def run_once(self, shader: Shader, push: bytes, grid: tuple[int, int, int]) -> float:
        """Dispatch one kernel and wait for it; gives back its time in ns by the device's clock (0.0 without timestamps)."""
        (pipeline,) = self.pipelines([shader])
        error, ns = ffi.new("ov_error *"), ffi.new("double *")
        check_native(lib.ov_dispatch_once(self.native, pipeline, push, len(push), *grid, ns, error), error)
        return float(ns[0])

    def limit_memory(self, size: int) -> MemoryLimit:
        """Limit the bytes that all of the process may have from the driver on this device, until the result is given up.

        Of several limits the smallest holds.
        """
        return MemoryLimit(self, size)

    def _apply_limits(self, take: int | None = None, give: int | None = None) -> None:
        with self._limits_lock:
            if take is not None:
                self._limits.append(take)
            if give is not None:
                self._limits.remove(give)
            lib.ov_device_set_limit(self.native, min(self._limits, default=0))

    def counters(self) -> dict[str, int]:
        """Counts since the device was opened, and what lives now (``live_bytes``, ``live_blocks``, ...)."""
        out = ffi.new("ov_counters *")
        lib.ov_device_counters(self.native, out)
        counts = {name: int(getattr(out, name)) for name, _ in ffi.typeof("ov_counters").fields}
        counts |= {
            "glsl_compiles": compile.counters.glsl_compiles,
            "spirv_hits": compile.counters.spirv_hits,
            "pipelines_created": self._pipelines.pipelines_created,
            "pipeline_hits": self._pipelines.pipeline_hits,
            "pipelines_evicted": self._pipelines.pipelines_evicted,
            "live_pipelines": len(self._pipelines),
            "shared_weights": len(self._weights),
        }
        return counts

    def heap(self) -> tuple[int, int]:
        """(budget, usage) in bytes of the device-local heap, as the driver says; usage is 0 without VK_EXT_memory_budget."""
        budget, usage = ffi.new("uint64_t *"), ffi.new("uint64_t *")
        lib.ov_device_heap(self.native, budget, usage)
        return int(budget[0]), int(usage[0])

    @property
    def lost(self) -> bool:
        return bool(lib.ov_device_is_lost(self.native))

    def save_caches(self) -> None:
        """Write the pipeline cache now; otherwise that happens from time to time and at exit."""
        self._pipelines.save()

    def validation_messages(self) -> Sequence[str]:
        """What the validation layer has said so far in this process (needs ONNX_VULKAN_VALIDATION=1)."""
        return tuple(self._instance.messages)


def _open(info: DeviceInfo) -> tuple[Any, Any]:
    """Make the VkDevice; gives back it and its queue."""
    vk = load()
    raw, library = vk.ffi, vk.lib
    blocks = feature_blocks(info.extensions)
    first = chain(blocks)
    library.vkGetPhysicalDeviceFeatures2(info.handle, raw.cast("VkPhysicalDeviceFeatures2 *", first))
    wanted = wanted_features()
    for block in blocks:
        block.keep_only(wanted)
    priority = raw.new("float[]", [1.0])
    queues = raw.new(
        "VkDeviceQueueCreateInfo *",
        {
            "sType": vk.VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO,
            "queueFamilyIndex": info.queue_family,
            "queueCount": 1,
            "pQueuePriorities": priority,
        },
    )
    names = [raw.new("char[]", e.encode()) for e in enabled_extensions(info.extensions)]
    extensions = raw.new("char *[]", names)
    create = raw.new(
        "VkDeviceCreateInfo *",
        {
            "sType": vk.VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO,
            "pNext": first,
            "queueCreateInfoCount": 1,
            "pQueueCreateInfos": queues,
            "enabledExtensionCount": len(names),
            "ppEnabledExtensionNames": extensions,
        },
    )
    out = raw.new("VkDevice *")
    check(library.vkCreateDevice(info.handle, create, raw.NULL, out), f"vkCreateDevice of {info.name}")
    queue = raw.new("VkQueue *")
    library.vkGetDeviceQueue(out[0], info.queue_family, 0, queue)
    return out[0], queue[0]
