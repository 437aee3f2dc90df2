"""Compute pipelines: made in parallel, cached in memory and on disk. One pipeline layout serves them all."""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from onnx_vulkan.device import compile
from onnx_vulkan.device.api import check, load
from onnx_vulkan.errors import DeviceError

__all__ = ["PUSH_BYTES", "PipelineCache", "PipelineLease", "Shader"]

PUSH_BYTES = 128  # what every device has; what does not fit goes into a record
SAVE_AFTER = 2.0  # seconds between writes of the cache file
WAIT_FOR_OTHERS = 0.5  # seconds to wait for another process that writes it
IDLE_KEPT = 2048  # pipelines kept although no block that is open uses them


@dataclass(frozen=True, slots=True)
class Shader:
    """A compute pipeline wanted: GLSL text and the values of its specialization constants 0, 1, ... (as u32).

    ``label`` is for messages: kernels of equal text are one pipeline. ``subgroup_size`` asks for that size (feature
    ``subgroup_size_control``), ``full_subgroups`` for no partial ones. ``code``: its SPIR-V, from
    who has it already.
    """

    source: str
    spec: tuple[int, ...] = ()
    push_size: int = 0
    label: str = field(default="", compare=False)
    subgroup_size: int = 0
    full_subgroups: bool = False
    code: bytes = field(default=b"", compare=False, repr=False)


class PipelineLease:
    """The pipelines that one block uses: none of them is destroyed before :meth:`release`, or the end of this object.

    By then whatever was recorded with them must not be submitted any more.
    """

    def __init__(self, cache: PipelineCache):
        self._cache = cache
        self._held: set[Shader] = set()

    def get(self, shaders: Sequence[Shader]) -> list[int]:
        """One VkPipeline for each shader, as :meth:`PipelineCache.get`."""
        return self._cache.get(shaders, self._held)

    def release(self) -> None:
        """Give all of them back."""
        self._cache.give_back(self._held)

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # at interpreter exit
            self.release()


class PipelineCache:
    """The pipelines of one device. ``pipelines_created``, ``pipeline_hits`` and ``pipelines_evicted`` count.

    Those that no lease holds are kept until ``IDLE_KEPT`` are, then the one given back longest ago goes.
    """

    def __init__(self, device: Any, identity: str, features: frozenset[str]):
        self._device = device  # the VkDevice
        self._features = features
        self._pid = os.getpid()
        self._lock = threading.RLock()  # a collected lease gives up in whatever thread
        self._made: dict[Shader, Future[int]] = {}
        self._holders: dict[Shader, int] = {}
        self._idle: dict[Shader, None] = {}  # the one given back longest ago first
        self._pool: ThreadPoolExecutor | None = None
        self._path = compile.cache_dir() / "pipelines" / f"{identity}.bin"
        self._saved = time.monotonic()
        self._unsaved = False
        self.pipelines_created = 0
        self.pipeline_hits = 0
        self.pipelines_evicted = 0
        self.layout = self._make_layout()
        self.cache = self._make_cache(compile.unsealed(self._path) or b"")
        atexit.register(self.save)

    def get(self, shaders: Sequence[Shader], held: set[Shader] | None = None) -> list[int]:
        """One VkPipeline for each shader; those that do not exist yet are made in parallel.

        *held*: the set of a lease, which they join; without one they are kept for good.
        """
        missing: list[tuple[Shader, Future[int]]] = []
        with self._lock:
            futures = []
            for shader in shaders:
                if held is None or shader not in held:
                    self._holders[shader] = self._holders.get(shader, 0) + 1
                    self._idle.pop(shader, None)
                    if held is not None:
                        held.add(shader)
                future = self._made.get(shader)
                if future is None:
                    future = self._made[shader] = Future()
                    missing.append((shader, future))
                else:
                    self.pipeline_hits += 1
                futures.append(future)
            if len(missing) > 1 and self._pool is None:
                self._pool = ThreadPoolExecutor(min(16, os.cpu_count() or 1), "onnx-vulkan-pipelines")
        if len(missing) > 1 and self._pool is not None:
            list(self._pool.map(lambda pair: self._fulfil(*pair), missing))
        else:
            for shader, future in missing:
                self._fulfil(shader, future)
        result = [f.result() for f in futures]
        if missing and time.monotonic() - self._saved > SAVE_AFTER:
            self.save()
        return result

    def give_back(self, held: set[Shader]) -> None:
        """Take back what a lease holds, and destroy what has been idle for longest."""
        with self._lock:
            while held:
                shader = held.pop()
                self._holders[shader] -= 1
                if not self._holders[shader]:
                    del self._holders[shader]
                    self._idle[shader] = None
            vk = load()
            for shader in [*self._idle][: max(len(self._idle) - IDLE_KEPT, 0)]:
                future = self._made.get(shader)
                if future is not None and not future.done():
                    continue  # somebody is at work on it whose block was closed meanwhile
                del self._idle[shader]
                if future is not None:
                    del self._made[shader]
                    vk.lib.vkDestroyPipeline(self._device, vk.ffi.cast("VkPipeline", future.result()), vk.ffi.NULL)
                    self.pipelines_evicted += 1

    def __len__(self) -> int:
        return len(self._made)

    def missing(self, shaders: Sequence[Shader]) -> list[Shader]:
        """Those that do not exist yet, each once: :meth:`get` would compile them or wait for somebody."""
        with self._lock:
            futures = {shader: self._made.get(shader) for shader in shaders}
        return [shader for shader, f in futures.items() if f is None or not f.done()]

    def _fulfil(self, shader: Shader, future: Future[int]) -> None:
        try:
            pipeline = self._make(shader, shader.code or compile.spirv(shader.source), self.cache)
        except BaseException as e:
            with self._lock:
                del self._made[shader]  # the next one tries again
            future.set_exception(e)
        else:
            with self._lock:
                self.pipelines_created += 1
                self._unsaved = True
            future.set_result(pipeline)

    def _make_layout(self) -> int:
        vk = load()
        ffi = vk.ffi
        pushed = ffi.new("VkPushConstantRange *", {"stageFlags": vk.VK_SHADER_STAGE_COMPUTE_BIT, "offset": 0, "size": PUSH_BYTES})
        create = ffi.new(
            "VkPipelineLayoutCreateInfo *",
            {
                "sType": vk.VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO,
                "pushConstantRangeCount": 1,
                "pPushConstantRanges": pushed,
            },
        )
        out = ffi.new("VkPipelineLayout *")
        check(vk.lib.vkCreatePipelineLayout(self._device, create, ffi.NULL, out), "vkCreatePipelineLayout")
        return out[0]  # type: ignore[no-any-return]

    def _make_cache(self, data: bytes) -> Any:
        """A VkPipelineCache from saved data; the driver ignores what it does not know."""
        vk = load()
        ffi = vk.ffi
        raw = ffi.new("char[]", data) if data else ffi.NULL
        create = ffi.new(
            "VkPipelineCacheCreateInfo *",
            {"sType": vk.VK_STRUCTURE_TYPE_PIPELINE_CACHE_CREATE_INFO, "initialDataSize": len(data), "pInitialData": raw},
        )
        out = ffi.new("VkPipelineCache *")
        result = vk.lib.vkCreatePipelineCache(self._device, create, ffi.NULL, out)
        if result < 0 and data:
            return self._make_cache(b"")
        check(result, "vkCreatePipelineCache")
        return out[0]

    def _make(self, shader: Shader, code: bytes, cache: Any) -> int:
        if shader.push_size > PUSH_BYTES:
            raise DeviceError(f"Kernel {shader.label} wants {shader.push_size} bytes of push constants; there are {PUSH_BYTES}.")
        missing = sorted(compile.needed_features(code) - self._features)
        if missing:
            raise DeviceError(f"Kernel {shader.label} needs {' and '.join(missing)}, which the device lacks.")
        vk = load()
        ffi, lib = vk.ffi, vk.lib
        words = ffi.new("uint32_t[]", len(code) // 4)
        ffi.memmove(words, code, len(code))
        create_module = ffi.new(
            "VkShaderModuleCreateInfo *",
            {"sType": vk.VK_STRUCTURE_TYPE_SHADER_MODULE_CREATE_INFO, "codeSize": len(code), "pCode": words},
        )
        module = ffi.new("VkShaderModule *")
        check(lib.vkCreateShaderModule(self._device, create_module, ffi.NULL, module), f"vkCreateShaderModule of {shader.label}")
        try:
            name = ffi.new("char[]", b"main")
            entries = ffi.new("VkSpecializationMapEntry[]", max(1, len(shader.spec)))
            values = ffi.new("uint32_t[]", [v & 0xFFFFFFFF for v in shader.spec] or [0])
            for i in range(len(shader.spec)):
                entries[i].constantID, entries[i].offset, entries[i].size = i, 4 * i, 4
            spec = ffi.new(
                "VkSpecializationInfo *",
                {"mapEntryCount": len(shader.spec), "pMapEntries": entries, "dataSize": 4 * len(shader.spec), "pData": values},
            )
            sized = ffi.new(
                "VkPipelineShaderStageRequiredSubgroupSizeCreateInfo *",
                {
                    "sType": vk.VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_REQUIRED_SUBGROUP_SIZE_CREATE_INFO,
                    "requiredSubgroupSize": shader.subgroup_size,
                },
            )
            stage = {
                "sType": vk.VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO,
                "pNext": sized if shader.subgroup_size else ffi.NULL,
                "flags": 2 if shader.full_subgroups else 0,
                "stage": vk.VK_SHADER_STAGE_COMPUTE_BIT,
                "module": module[0],
                "pName": name,
                "pSpecializationInfo": spec if shader.spec else ffi.NULL,
            }
            create = ffi.new(
                "VkComputePipelineCreateInfo *",
                {"sType": vk.VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO, "stage": stage, "layout": self.layout},
            )
            out = ffi.new("VkPipeline *")
            result = lib.vkCreateComputePipelines(self._device, cache, 1, create, ffi.NULL, out)
            check(result, f"vkCreateComputePipelines of {shader.label}")
            return int(ffi.cast("uint64_t", out[0]))
        finally:
            lib.vkDestroyShaderModule(self._device, module[0], ffi.NULL)

    def exported(self, shaders: Sequence[Shader]) -> bytes:
        """The driver's data of these pipelines alone, for :meth:`take_in` on this device and driver; each is made once more."""
        vk = load()
        cache = self._make_cache(b"")

        def make(shader: Shader) -> None:
            pipeline = self._make(shader, shader.code or compile.spirv(shader.source), cache)
            vk.lib.vkDestroyPipeline(self._device, vk.ffi.cast("VkPipeline", pipeline), vk.ffi.NULL)

        try:
            with ThreadPoolExecutor(min(16, os.cpu_count() or 1), "onnx-vulkan-pipelines") as pool:
                list(pool.map(make, dict.fromkeys(shaders)))
            return self._data_of(cache)
        finally:
            vk.lib.vkDestroyPipelineCache(self._device, cache, vk.ffi.NULL)

    def take_in(self, data: bytes) -> None:
        """Know what :meth:`exported` gave; the driver ignores data that is not its own."""
        vk = load()
        theirs = self._make_cache(data)
        with self._lock:
            vk.lib.vkMergePipelineCaches(self._device, self.cache, 1, vk.ffi.new("VkPipelineCache[]", [theirs]))
        vk.lib.vkDestroyPipelineCache(self._device, theirs, vk.ffi.NULL)

    def _data_of(self, cache: Any) -> bytes:
        """A cache as bytes; none where the driver does not give them."""
        vk = load()
        ffi, lib = vk.ffi, vk.lib
        size = ffi.new("size_t *")
        if lib.vkGetPipelineCacheData(self._device, cache, size, ffi.NULL) != 0 or not size[0]:
            return b""
        data = ffi.new("char[]", size[0])
        if lib.vkGetPipelineCacheData(self._device, cache, size, data) != 0:
            return b""
        return bytes(ffi.buffer(data, size[0]))

    def save(self) -> None:
        """Write the cache file, merged with what other processes wrote meanwhile."""
        if os.getpid() != self._pid:
            return  # a forked child at its exit: the cache is the parent's
        with self._lock:
            if not self._unsaved:
                return
            self._unsaved = False
            self._saved = time.monotonic()
        with _exclusive(self._path.with_suffix(".lock")) as mine:
            if not mine:
                self._unsaved = True  # the next save tries again
                return
            others = compile.unsealed(self._path)
            if others:
                self.take_in(others)
            data = self._data_of(self.cache)
            if data:
                compile.write_atomically(self._path, compile.sealed(data))


@contextlib.contextmanager
def _exclusive(path: Path) -> Iterator[bool]:
    """Hold a lock file among processes, where the platform and the file system have such a thing.

    Gives whether it is held: a process that was stopped while it writes its cache must not stop the others.
    """
    try:
        import fcntl

        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("wb")
    except (ImportError, OSError):
        yield True
        return
    with file:
        until = time.monotonic() + WAIT_FOR_OTHERS
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > until:
                    yield False
                    return
                time.sleep(0.01)
            except OSError:
                break  # no locks on this file system
        yield True
