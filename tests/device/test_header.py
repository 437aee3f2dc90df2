"""Our own declarations of Vulkan (native_shim/vk.h) against those of the `vulkan` package."""

import re
from pathlib import Path

import vulkan._vulkan as vk
from cffi import FFI

HEADER = (Path(__file__).parents[2] / "native_shim" / "vk.h").read_text()
STRUCTURES = {
    "VkMemoryProperties2": "VkPhysicalDeviceMemoryProperties2",
    "VkMemoryBudget": "VkPhysicalDeviceMemoryBudgetPropertiesEXT",
    "VkTimelineSubmitInfo": "VkTimelineSemaphoreSubmitInfo",
}
CONSTANTS = {
    r"VK_TYPE_(.*)_2": "VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_{}_2",
    r"VK_TYPE_TIMELINE_SUBMIT_INFO": "VK_STRUCTURE_TYPE_TIMELINE_SEMAPHORE_SUBMIT_INFO",
    r"VK_TYPE_MEMORY_BUDGET": "VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_BUDGET_PROPERTIES_EXT",
    r"VK_TYPE_(.*)": "VK_STRUCTURE_TYPE_{}",
    r"VK_MEMORY_LAZY": "VK_MEMORY_PROPERTY_LAZILY_ALLOCATED_BIT",
    r"VK_MEMORY_(.*)_AMD": "VK_MEMORY_PROPERTY_{}_BIT_AMD",
    r"VK_MEMORY_(.*)": "VK_MEMORY_PROPERTY_{}_BIT",
    r"VK_USAGE_(TRANSFER_.*)": "VK_BUFFER_USAGE_{}_BIT",
    r"VK_USAGE_(STORAGE|INDIRECT)": "VK_BUFFER_USAGE_{}_BUFFER_BIT",
    r"VK_STAGE_(TOP|BOTTOM)": "VK_PIPELINE_STAGE_{}_OF_PIPE_BIT",
    r"VK_STAGE_INDIRECT": "VK_PIPELINE_STAGE_DRAW_INDIRECT_BIT",
    r"VK_STAGE_COMPUTE": "VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT",
    r"VK_STAGE_(.*)": "VK_PIPELINE_STAGE_{}_BIT",
    r"VK_ACCESS_INDIRECT_READ": "VK_ACCESS_INDIRECT_COMMAND_READ_BIT",
    r"VK_ACCESS_(.*)": "VK_ACCESS_{}_BIT",
    r"VK_BIND_COMPUTE": "VK_PIPELINE_BIND_POINT_COMPUTE",
    r"VK_SHADER_STAGE_(.*)": "VK_SHADER_STAGE_{}_BIT",
    r"VK_QUERY_TIMESTAMP": "VK_QUERY_TYPE_TIMESTAMP",
    r"VK_QUERY_(.*)": "VK_QUERY_RESULT_{}_BIT",
    r"VK_SEMAPHORE_(.*)": "VK_SEMAPHORE_TYPE_{}",
    r"(VK_(?:SUCCESS|TIMEOUT|ERROR_.*))": "{}",
}


def test_structures_and_constants() -> None:
    text = HEADER[: HEADER.index("// Device functions")]
    ours = FFI()
    ours.cdef("\n".join(line for line in text.splitlines() if not line.startswith("#")))
    checked = 0
    for name in re.findall(r"^\} (Vk\w+);", text, flags=re.M):
        mine, theirs = ours.typeof(name), vk.ffi.typeof(STRUCTURES.get(name, name))
        if name == "VkMemoryProperties2":  # theirs has one nested structure where ours lists its members
            assert ours.offsetof(name, "n_types") == vk.ffi.offsetof(theirs, "memoryProperties")
        else:
            assert [f.offset for _, f in mine.fields] == [f.offset for _, f in theirs.fields], name
        assert ours.sizeof(mine) == vk.ffi.sizeof(theirs), name
        checked += 1
    constants = re.findall(r"\b(VK_[A-Z0-9_]+) = (-?\w+)", text)
    for name, value in constants:
        for pattern, template in CONSTANTS.items():
            if m := re.fullmatch(pattern, name):
                theirs = template.format(*m.groups())
                if hasattr(vk, theirs):  # the package lacks some that were promoted from extensions
                    assert getattr(vk, theirs) == int(value, 0), name
                    checked += 1
                break
    assert checked > 60
