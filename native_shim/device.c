// The device: loading functions, the queue, waiting, errors and counters.
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "engine.h"

int ov_version(void) {
    return 2; // library.py has the number that it needs
}

int ov_fail(ov_error *err, int kind, const char *format, ...) {
    if (err) {
        va_list args;
        va_start(args, format);
        err->kind = kind;
        vsnprintf(err->text, sizeof err->text, format, args);
        va_end(args);
    }
    return kind;
}

int ov_vk_fail(ov_device *d, ov_error *err, const char *call, int32_t result) {
    if (result == VK_ERROR_DEVICE_LOST) {
        atomic_store(&d->lost, true);
        return ov_fail(err, OV_DEVICE_LOST,
                       "%s: the driver lost the device (a crash or a time limit on the GPU); sessions on it cannot run any more.",
                       call);
    }
    if (result == VK_ERROR_OUT_OF_DEVICE_MEMORY || result == VK_ERROR_OUT_OF_HOST_MEMORY)
        return ov_fail(err, OV_OUT_OF_MEMORY, "%s failed: the driver is out of %s memory.", call,
                       result == VK_ERROR_OUT_OF_DEVICE_MEMORY ? "device" : "host");
    return ov_fail(err, OV_FAILED, "%s failed with VkResult %d.", call, result);
}

int ov_device_create(const ov_device_desc *desc, ov_device **out, ov_error *err) {
    ov_device *d = calloc(1, sizeof *d);
    if (!d) return ov_fail(err, OV_OUT_OF_MEMORY, "No host memory for a device.");
    d->desc = *desc;
    d->handle = (void *)(uintptr_t)desc->device;
    d->queue = (void *)(uintptr_t)desc->queue;
    d->limit = desc->limit;
    d->pid = getpid();
    pthread_mutex_init(&d->queue_lock, NULL);
    pthread_mutex_init(&d->memory_lock, NULL);
    pthread_mutex_init(&d->transfer_lock, NULL);

    vk_get_device_proc_addr load = (vk_get_device_proc_addr)(uintptr_t)desc->get_device_proc_addr;
    const char *missing = NULL;
#define OV_VK(result, name, parameters)                                                                                          \
    d->vk.name = (result(*) parameters)load(d->handle, "vk" #name);                                                              \
    if (!d->vk.name) missing = "vk" #name;
    OV_VK_FUNCTIONS(OV_VK)
#undef OV_VK
    if (missing) {
        free(d);
        return ov_fail(err, OV_FAILED, "The Vulkan driver lacks %s, which Vulkan 1.3 has; update the driver.", missing);
    }

    VkMemoryProperties2 properties = {.type = VK_TYPE_MEMORY_PROPERTIES_2};
    ((vk_get_memory_properties2)(uintptr_t)desc->get_memory_properties2)((void *)(uintptr_t)desc->physical_device, &properties);
    vk_handle probe;
    VkMemoryRequirements needs;
    int rc = ov_buffer_create(d, 256, &probe, &needs, err);
    if (rc) {
        free(d);
        return rc;
    }
    d->vk.DestroyBuffer(d->handle, probe, NULL);
    ov_memory_choose_types(d, needs.type_bits, &properties);
    *out = d;
    return OV_OK;
}

void ov_device_destroy(ov_device *d) {
    if (!d) return;
    ov_transfer_destroy(d);
    pthread_mutex_destroy(&d->queue_lock);
    pthread_mutex_destroy(&d->memory_lock);
    pthread_mutex_destroy(&d->transfer_lock);
    free(d);
}

void ov_device_set_limit(ov_device *d, uint64_t bytes) {
    atomic_store(&d->limit, bytes);
}

void ov_device_counters(ov_device *d, ov_counters *out) {
    uint64_t values[OV_COUNTER_COUNT];
    for (size_t i = 0; i < OV_COUNTER_COUNT; i++) values[i] = atomic_load_explicit(&d->counters[i], memory_order_relaxed);
    memcpy(out, values, sizeof *out);
}

int ov_device_is_lost(ov_device *d) {
    return atomic_load(&d->lost);
}

bool ov_forked(const ov_device *d) {
    return d->pid != getpid();
}

int ov_check_process(const ov_device *d, ov_error *err) {
    if (!ov_forked(d)) return OV_OK;
    return ov_fail(
        err, OV_FAILED,
        "This process was forked from one that had opened a Vulkan device, and a device does not survive a fork. Start "
        "workers by the 'spawn' method, or open the first session after the fork.");
}

int ov_new_timeline(ov_device *d, vk_handle *out, ov_error *err) {
    VkSemaphoreTypeCreateInfo kind = {.type = VK_TYPE_SEMAPHORE_TYPE_CREATE_INFO, .kind = VK_SEMAPHORE_TIMELINE};
    VkSemaphoreCreateInfo info = {.type = VK_TYPE_SEMAPHORE_CREATE_INFO, .next = &kind};
    int32_t result = d->vk.CreateSemaphore(d->handle, &info, NULL, out);
    return result ? ov_vk_fail(d, err, "vkCreateSemaphore", result) : OV_OK;
}

int ov_submit(ov_device *d, void *const *commands, uint32_t count, vk_handle semaphore, uint64_t value, ov_error *err) {
    if (atomic_load(&d->lost))
        return ov_fail(err, OV_DEVICE_LOST, "The device was lost earlier in this process; start a new process to use it again.");
    OV_TRY(ov_check_process(d, err));
    VkTimelineSubmitInfo timeline = {.type = VK_TYPE_TIMELINE_SUBMIT_INFO, .n_signals = 1, .signal_values = &value};
    VkSubmitInfo submit = {.type = VK_TYPE_SUBMIT_INFO,
                           .next = &timeline,
                           .n_commands = count,
                           .commands = commands,
                           .n_signals = 1,
                           .signals = &semaphore};
    pthread_mutex_lock(&d->queue_lock);
    int32_t result = d->vk.QueueSubmit(d->queue, 1, &submit, 0);
    pthread_mutex_unlock(&d->queue_lock);
    if (result) return ov_vk_fail(d, err, "vkQueueSubmit", result);
    OV_COUNT(d, submits, 1);
    return OV_OK;
}

uint64_t ov_now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

int ov_wait(ov_device *d, vk_handle semaphore, uint64_t value, ov_error *err) {
    int32_t result;
    if (d->desc.spin_ns) { // a blocked thread wakes some 20 us late; short runs are worth polling for
        uint64_t until = ov_now_ns() + d->desc.spin_ns;
        do {
            uint64_t reached = 0;
            result = d->vk.GetSemaphoreCounterValue(d->handle, semaphore, &reached);
            if (result) return ov_vk_fail(d, err, "vkGetSemaphoreCounterValue", result);
            if (reached >= value) return OV_OK;
        } while (ov_now_ns() < until);
    }
    VkSemaphoreWaitInfo info = {.type = VK_TYPE_SEMAPHORE_WAIT_INFO, .count = 1, .semaphores = &semaphore, .values = &value};
    do result = d->vk.WaitSemaphores(d->handle, &info, 1000000000u);
    while (result == VK_TIMEOUT && !atomic_load(&d->lost));
    if (result == VK_TIMEOUT) result = VK_ERROR_DEVICE_LOST;
    return result ? ov_vk_fail(d, err, "vkWaitSemaphores", result) : OV_OK;
}

void ov_barrier(ov_device *d, void *commands, bool indirect, bool host) {
    const uint32_t stages = VK_STAGE_COMPUTE | VK_STAGE_TRANSFER;
    const uint32_t reads = VK_ACCESS_SHADER_READ | VK_ACCESS_TRANSFER_READ;
    const uint32_t writes = VK_ACCESS_SHADER_WRITE | VK_ACCESS_TRANSFER_WRITE;
    VkMemoryBarrier barrier = {.type = VK_TYPE_MEMORY_BARRIER, .src_access = writes};
    barrier.dst_access = reads | writes | (indirect ? VK_ACCESS_INDIRECT_READ : 0) | (host ? VK_ACCESS_HOST_READ : 0);
    uint32_t after = stages | (indirect ? VK_STAGE_INDIRECT : 0) | (host ? VK_STAGE_HOST : 0);
    d->vk.CmdPipelineBarrier(commands, stages, after, 0, 1, &barrier, 0, NULL, 0, NULL);
}
