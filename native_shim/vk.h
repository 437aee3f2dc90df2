// The small part of the Vulkan API that the engine calls, declared here so that building needs no Vulkan headers.
// Layouts and values are those of the Vulkan 1.3 specification; tests/device/test_header.py compares them with another binding.
#ifndef OV_VK_H
#define OV_VK_H

#include <stdint.h>

typedef uint64_t vk_handle; // every non-dispatchable handle; dispatchable ones are void *

enum {
    VK_SUCCESS = 0,
    VK_TIMEOUT = 2,
    VK_ERROR_OUT_OF_HOST_MEMORY = -1,
    VK_ERROR_OUT_OF_DEVICE_MEMORY = -2,
    VK_ERROR_DEVICE_LOST = -4
};

// VkStructureType
enum {
    VK_TYPE_SUBMIT_INFO = 4,
    VK_TYPE_MEMORY_ALLOCATE_INFO = 5,
    VK_TYPE_QUERY_POOL_CREATE_INFO = 11,
    VK_TYPE_SEMAPHORE_CREATE_INFO = 9,
    VK_TYPE_BUFFER_CREATE_INFO = 12,
    VK_TYPE_COMMAND_POOL_CREATE_INFO = 39,
    VK_TYPE_COMMAND_BUFFER_ALLOCATE_INFO = 40,
    VK_TYPE_COMMAND_BUFFER_BEGIN_INFO = 42,
    VK_TYPE_MEMORY_BARRIER = 46,
    VK_TYPE_MEMORY_PROPERTIES_2 = 1000059006,
    VK_TYPE_MEMORY_ALLOCATE_FLAGS_INFO = 1000060000,
    VK_TYPE_SEMAPHORE_TYPE_CREATE_INFO = 1000207002,
    VK_TYPE_TIMELINE_SUBMIT_INFO = 1000207003,
    VK_TYPE_SEMAPHORE_WAIT_INFO = 1000207004,
    VK_TYPE_MEMORY_BUDGET = 1000237000,
    VK_TYPE_BUFFER_DEVICE_ADDRESS_INFO = 1000244001
};

enum {
    VK_MEMORY_DEVICE_LOCAL = 1,
    VK_MEMORY_HOST_VISIBLE = 2,
    VK_MEMORY_HOST_COHERENT = 4,
    VK_MEMORY_HOST_CACHED = 8,
    VK_MEMORY_LAZY = 16,
    VK_MEMORY_PROTECTED = 32,
    VK_MEMORY_DEVICE_COHERENT_AMD = 64
};

enum {
    VK_USAGE_TRANSFER_SRC = 1,
    VK_USAGE_TRANSFER_DST = 2,
    VK_USAGE_STORAGE = 0x20,
    VK_USAGE_INDIRECT = 0x100,
    VK_USAGE_DEVICE_ADDRESS = 0x20000
};

enum {
    VK_STAGE_TOP = 1,
    VK_STAGE_INDIRECT = 2,
    VK_STAGE_COMPUTE = 0x800,
    VK_STAGE_TRANSFER = 0x1000,
    VK_STAGE_BOTTOM = 0x2000,
    VK_STAGE_HOST = 0x4000
};

enum {
    VK_ACCESS_INDIRECT_READ = 1,
    VK_ACCESS_SHADER_READ = 0x20,
    VK_ACCESS_SHADER_WRITE = 0x40,
    VK_ACCESS_TRANSFER_READ = 0x800,
    VK_ACCESS_TRANSFER_WRITE = 0x1000,
    VK_ACCESS_HOST_READ = 0x2000
};

enum { VK_BIND_COMPUTE = 1, VK_SHADER_STAGE_COMPUTE = 0x20, VK_ALLOCATE_DEVICE_ADDRESS = 2, VK_SEMAPHORE_TIMELINE = 1 };
enum { VK_QUERY_TIMESTAMP = 2, VK_QUERY_64 = 1, VK_QUERY_WAIT = 2 };

typedef struct {
    uint32_t type;
    const void *next;
    uint32_t flags;
    uint64_t size;
    uint32_t usage, sharing;
    uint32_t n_families;
    const uint32_t *families;
} VkBufferCreateInfo;

typedef struct {
    uint64_t size, alignment;
    uint32_t type_bits;
} VkMemoryRequirements;

typedef struct {
    uint32_t type;
    const void *next;
    uint64_t size;
    uint32_t memory_type;
} VkMemoryAllocateInfo;

typedef struct {
    uint32_t type;
    const void *next;
    uint32_t flags, device_mask;
} VkMemoryAllocateFlagsInfo;

typedef struct {
    uint32_t type;
    const void *next;
    vk_handle buffer;
} VkBufferDeviceAddressInfo;

typedef struct {
    uint32_t type;
    const void *next;
    uint32_t flags, family;
} VkCommandPoolCreateInfo;

typedef struct {
    uint32_t type;
    const void *next;
    vk_handle pool;
    uint32_t level, count;
} VkCommandBufferAllocateInfo;

typedef struct {
    uint32_t type;
    const void *next;
    uint32_t flags;
    const void *inheritance;
} VkCommandBufferBeginInfo;

typedef struct {
    uint32_t type;
    const void *next;
    uint32_t src_access, dst_access;
} VkMemoryBarrier;

typedef struct {
    uint64_t src, dst, size;
} VkBufferCopy;

typedef struct {
    uint32_t type;
    const void *next;
    uint32_t n_waits;
    const vk_handle *waits;
    const uint32_t *wait_stages;
    uint32_t n_commands;
    void *const *commands;
    uint32_t n_signals;
    const vk_handle *signals;
} VkSubmitInfo;

typedef struct {
    uint32_t type;
    const void *next;
    uint32_t n_waits;
    const uint64_t *wait_values;
    uint32_t n_signals;
    const uint64_t *signal_values;
} VkTimelineSubmitInfo;

typedef struct {
    uint32_t type;
    const void *next;
    uint32_t flags;
} VkSemaphoreCreateInfo;

typedef struct {
    uint32_t type;
    const void *next;
    uint32_t kind;
    uint64_t initial;
} VkSemaphoreTypeCreateInfo;

typedef struct {
    uint32_t type;
    const void *next;
    uint32_t flags, count;
    const vk_handle *semaphores;
    const uint64_t *values;
} VkSemaphoreWaitInfo;

typedef struct {
    uint32_t type;
    const void *next;
    uint32_t flags, query, count, statistics;
} VkQueryPoolCreateInfo;

typedef struct {
    uint32_t flags, heap;
} VkMemoryType;

typedef struct {
    uint64_t size;
    uint32_t flags;
} VkMemoryHeap;

typedef struct {
    uint32_t type;
    void *next;
    uint32_t n_types;
    VkMemoryType types[32];
    uint32_t n_heaps;
    VkMemoryHeap heaps[16];
} VkMemoryProperties2;

typedef struct {
    uint32_t type;
    void *next;
    uint64_t budget[16], usage[16];
} VkMemoryBudget;

// Device functions: OV_VK(result, name, parameters). They are loaded through the vkGetDeviceProcAddr pointer that Python hands
// over: the loader then is the very one that made the device, and the shim links with nothing.
#define OV_VK_FUNCTIONS(OV_VK)                                                                                                   \
    OV_VK(int32_t, CreateBuffer, (void *, const VkBufferCreateInfo *, const void *, vk_handle *))                                \
    OV_VK(void, DestroyBuffer, (void *, vk_handle, const void *))                                                                \
    OV_VK(void, GetBufferMemoryRequirements, (void *, vk_handle, VkMemoryRequirements *))                                        \
    OV_VK(int32_t, AllocateMemory, (void *, const VkMemoryAllocateInfo *, const void *, vk_handle *))                            \
    OV_VK(void, FreeMemory, (void *, vk_handle, const void *))                                                                   \
    OV_VK(int32_t, BindBufferMemory, (void *, vk_handle, vk_handle, uint64_t))                                                   \
    OV_VK(int32_t, MapMemory, (void *, vk_handle, uint64_t, uint64_t, uint32_t, void **))                                        \
    OV_VK(uint64_t, GetBufferDeviceAddress, (void *, const VkBufferDeviceAddressInfo *))                                         \
    OV_VK(int32_t, CreateCommandPool, (void *, const VkCommandPoolCreateInfo *, const void *, vk_handle *))                      \
    OV_VK(void, DestroyCommandPool, (void *, vk_handle, const void *))                                                           \
    OV_VK(int32_t, ResetCommandPool, (void *, vk_handle, uint32_t))                                                              \
    OV_VK(int32_t, AllocateCommandBuffers, (void *, const VkCommandBufferAllocateInfo *, void **))                               \
    OV_VK(int32_t, BeginCommandBuffer, (void *, const VkCommandBufferBeginInfo *))                                               \
    OV_VK(int32_t, EndCommandBuffer, (void *))                                                                                   \
    OV_VK(void, CmdBindPipeline, (void *, uint32_t, vk_handle))                                                                  \
    OV_VK(void, CmdPushConstants, (void *, vk_handle, uint32_t, uint32_t, uint32_t, const void *))                               \
    OV_VK(void, CmdDispatch, (void *, uint32_t, uint32_t, uint32_t))                                                             \
    OV_VK(void, CmdDispatchIndirect, (void *, vk_handle, uint64_t))                                                              \
    OV_VK(void, CmdCopyBuffer, (void *, vk_handle, vk_handle, uint32_t, const VkBufferCopy *))                                   \
    OV_VK(void, CmdFillBuffer, (void *, vk_handle, uint64_t, uint64_t, uint32_t))                                                \
    OV_VK(void, CmdPipelineBarrier,                                                                                              \
          (void *, uint32_t, uint32_t, uint32_t, uint32_t, const VkMemoryBarrier *, uint32_t, const void *, uint32_t,            \
           const void *))                                                                                                        \
    OV_VK(int32_t, CreateQueryPool, (void *, const VkQueryPoolCreateInfo *, const void *, vk_handle *))                          \
    OV_VK(void, DestroyQueryPool, (void *, vk_handle, const void *))                                                             \
    OV_VK(void, CmdResetQueryPool, (void *, vk_handle, uint32_t, uint32_t))                                                      \
    OV_VK(void, CmdWriteTimestamp, (void *, uint32_t, vk_handle, uint32_t))                                                      \
    OV_VK(int32_t, GetQueryPoolResults, (void *, vk_handle, uint32_t, uint32_t, size_t, void *, uint64_t, uint32_t))             \
    OV_VK(int32_t, CreateSemaphore, (void *, const VkSemaphoreCreateInfo *, const void *, vk_handle *))                          \
    OV_VK(void, DestroySemaphore, (void *, vk_handle, const void *))                                                             \
    OV_VK(int32_t, GetSemaphoreCounterValue, (void *, vk_handle, uint64_t *))                                                    \
    OV_VK(int32_t, WaitSemaphores, (void *, const VkSemaphoreWaitInfo *, uint64_t))                                              \
    OV_VK(int32_t, QueueSubmit, (void *, uint32_t, const VkSubmitInfo *, vk_handle))                                             \
    OV_VK(int32_t, DeviceWaitIdle, (void *))

typedef struct {
#define OV_VK(result, name, parameters) result(*name) parameters;
    OV_VK_FUNCTIONS(OV_VK)
#undef OV_VK
} vk_functions;

typedef void (*vk_function)(void);
typedef vk_function (*vk_get_device_proc_addr)(void *device, const char *name);
typedef void (*vk_get_memory_properties2)(void *physical_device, VkMemoryProperties2 *properties);

#endif
