// Copies between host and device memory outside runs (weights, tensors of the device mode), and single dispatches.
// Two slots (command buffer + half of the staging memory) take turns, so that the host's memcpy overlaps the device's copy.
#include <string.h>

#include "engine.h"

static const uint64_t MAX_STAGING = 32u << 20;

typedef struct {
    vk_handle buffer;
    uint64_t offset;
    uint8_t *mapped;
    bool cached;
} place;

static bool find(ov_device *d, uint64_t address, uint64_t size, place *out) {
    bool found = false;
    pthread_mutex_lock(&d->memory_lock);
    for (uint32_t kind = 0; kind < OV_MEMORY_KINDS && !found; kind++)
        for (ov_chunk *c = d->chunks[kind]; c; c = c->next)
            if (address >= c->address && address - c->address <= c->size && size <= c->size - (address - c->address)) {
                out->buffer = c->buffer;
                out->offset = address - c->address;
                out->mapped = c->mapped ? c->mapped + out->offset : NULL;
                out->cached = d->types[c->type].flags & VK_MEMORY_HOST_CACHED;
                found = true;
                break;
            }
    pthread_mutex_unlock(&d->memory_lock);
    return found;
}

static int no_such(ov_error *err, uint64_t address, uint64_t size) {
    return ov_fail(err, OV_FAILED, "%llu bytes at device address 0x%llx are not in one live allocation.",
                   (unsigned long long)size, (unsigned long long)address);
}

void *ov_host_pointer(ov_device *d, uint64_t address) {
    place p;
    return find(d, address, 1, &p) ? p.mapped : NULL;
}

static int set_up(ov_device *d, ov_error *err) {
    if (d->transfer_semaphore) return OV_OK;
    for (int slot = 0; slot < 2; slot++) {
        VkCommandPoolCreateInfo pool = {.type = VK_TYPE_COMMAND_POOL_CREATE_INFO, .family = d->desc.queue_family};
        int32_t result = d->transfer_pools[slot] ? 0 : d->vk.CreateCommandPool(d->handle, &pool, NULL, &d->transfer_pools[slot]);
        if (result) return ov_vk_fail(d, err, "vkCreateCommandPool", result);
        VkCommandBufferAllocateInfo info = {
            .type = VK_TYPE_COMMAND_BUFFER_ALLOCATE_INFO, .pool = d->transfer_pools[slot], .count = 1};
        result = d->vk.AllocateCommandBuffers(d->handle, &info, &d->transfer_commands[slot]);
        if (result) return ov_vk_fail(d, err, "vkAllocateCommandBuffers", result);
    }
    if (d->desc.timestamp_bits && !d->transfer_queries) {
        VkQueryPoolCreateInfo info = {.type = VK_TYPE_QUERY_POOL_CREATE_INFO, .query = VK_QUERY_TIMESTAMP, .count = 2};
        int32_t result = d->vk.CreateQueryPool(d->handle, &info, NULL, &d->transfer_queries);
        if (result) return ov_vk_fail(d, err, "vkCreateQueryPool", result);
    }
    return ov_new_timeline(d, &d->transfer_semaphore, err);
}

void ov_transfer_destroy(ov_device *d) {
    if (d->staging) ov_free(d->staging);
    for (int slot = 0; slot < 2; slot++)
        if (d->transfer_pools[slot]) d->vk.DestroyCommandPool(d->handle, d->transfer_pools[slot], NULL);
    if (d->transfer_queries) d->vk.DestroyQueryPool(d->handle, d->transfer_queries, NULL);
    if (d->transfer_semaphore) d->vk.DestroySemaphore(d->handle, d->transfer_semaphore, NULL);
}

void ov_transfer_trim(ov_device *d) {
    if (pthread_mutex_trylock(&d->transfer_lock)) return; // a transfer is under way: it is still wanted
    ov_memory *staging = OV_COUNTER(d, live_allocations) == 1 ? d->staging : NULL;
    if (staging) d->staging = NULL;
    pthread_mutex_unlock(&d->transfer_lock);
    ov_free(staging);
}

static int staging_for(ov_device *d, uint64_t size, ov_error *err) {
    uint64_t wanted = size > MAX_STAGING / 2 ? MAX_STAGING : 2 * size;
    if (d->staging && d->staging->size >= wanted) return OV_OK;
    if (d->staging) ov_free(d->staging);
    d->staging = NULL;
    return ov_alloc(d, wanted, OV_READBACK, &d->staging, err);
}

static int slot_wait(ov_device *d, int slot, ov_error *err) {
    return ov_wait(d, d->transfer_semaphore, d->transfer_values[slot], err);
}

static int slot_begin(ov_device *d, int slot, ov_error *err) {
    int32_t result = d->vk.ResetCommandPool(d->handle, d->transfer_pools[slot], 0);
    if (result) return ov_vk_fail(d, err, "vkResetCommandPool", result);
    VkCommandBufferBeginInfo begin = {.type = VK_TYPE_COMMAND_BUFFER_BEGIN_INFO, .flags = 1};
    result = d->vk.BeginCommandBuffer(d->transfer_commands[slot], &begin);
    if (result) return ov_vk_fail(d, err, "vkBeginCommandBuffer", result);
    ov_barrier(d, d->transfer_commands[slot], false, false); // earlier runs may have written what is copied
    return OV_OK;
}

static int slot_end(ov_device *d, int slot, ov_error *err) {
    void *commands = d->transfer_commands[slot];
    ov_barrier(d, commands, true, true);
    int32_t result = d->vk.EndCommandBuffer(commands);
    if (result) return ov_vk_fail(d, err, "vkEndCommandBuffer", result);
    OV_TRY(ov_submit(d, &commands, 1, d->transfer_semaphore, d->transfer_value + 1, err));
    d->transfer_values[slot] = ++d->transfer_value;
    return OV_OK;
}

static int slot_copy(ov_device *d, int slot, vk_handle from, uint64_t from_offset, vk_handle to, uint64_t to_offset,
                     uint64_t size, ov_error *err) {
    OV_TRY(slot_begin(d, slot, err));
    VkBufferCopy region = {from_offset, to_offset, size};
    d->vk.CmdCopyBuffer(d->transfer_commands[slot], from, to, 1, &region);
    return slot_end(d, slot, err);
}

static int upload_staged(ov_device *d, const place *to, const uint8_t *from, uint64_t size, ov_error *err) {
    OV_TRY(set_up(d, err));
    OV_TRY(staging_for(d, size, err));
    uint64_t half = d->staging->size / 2;
    for (uint64_t done = 0, n; done < size; done += n) {
        int slot = done / half & 1;
        n = size - done < half ? size - done : half;
        OV_TRY(slot_wait(d, slot, err));
        ov_copy_host(d, ov_memory_mapped(d->staging) + slot * half, from + done, n);
        OV_TRY(slot_copy(d, slot, d->staging->chunk->buffer, d->staging->offset + slot * half, to->buffer, to->offset + done, n,
                         err));
    }
    OV_TRY(slot_wait(d, 0, err));
    return slot_wait(d, 1, err);
}

static int download_staged(ov_device *d, uint8_t *to, const place *from, uint64_t size, ov_error *err) {
    OV_TRY(set_up(d, err));
    OV_TRY(staging_for(d, size, err));
    uint64_t half = d->staging->size / 2;
    for (uint64_t asked = 0, got = 0; got < size;) { // one copy ahead of the memcpy
        while (asked < size && asked < got + 2 * half) {
            int slot = asked / half & 1;
            uint64_t n = size - asked < half ? size - asked : half;
            OV_TRY(slot_copy(d, slot, from->buffer, from->offset + asked, d->staging->chunk->buffer,
                             d->staging->offset + slot * half, n, err));
            asked += n;
        }
        int slot = got / half & 1;
        uint64_t n = size - got < half ? size - got : half;
        OV_TRY(slot_wait(d, slot, err));
        ov_copy_host(d, to + got, ov_memory_mapped(d->staging) + slot * half, n);
        got += n;
    }
    return OV_OK;
}

int ov_upload(ov_device *d, uint64_t to, const void *from, uint64_t size, ov_error *err) {
    place p;
    OV_TRY(ov_check_process(d, err));
    if (!size) return OV_OK;
    if (!find(d, to, size, &p)) return no_such(err, to, size);
    int rc = OV_OK;
    if (p.mapped) {
        ov_copy_host(d, p.mapped, from, size);
    } else {
        pthread_mutex_lock(&d->transfer_lock);
        rc = upload_staged(d, &p, from, size, err);
        pthread_mutex_unlock(&d->transfer_lock);
    }
    if (!rc) OV_COUNT(d, uploaded_bytes, size);
    return rc;
}

int ov_download(ov_device *d, void *to, uint64_t from, uint64_t size, ov_error *err) {
    place p;
    OV_TRY(ov_check_process(d, err));
    if (!size) return OV_OK;
    if (!find(d, from, size, &p)) return no_such(err, from, size);
    int rc = OV_OK;
    if (p.mapped && (p.cached || size <= 1024)) { // uncached reads cost about 10 ns a word
        ov_copy_host(d, to, p.mapped, size);
    } else {
        pthread_mutex_lock(&d->transfer_lock);
        rc = download_staged(d, to, &p, size, err);
        pthread_mutex_unlock(&d->transfer_lock);
    }
    if (!rc) OV_COUNT(d, downloaded_bytes, size);
    return rc;
}

int ov_copy(ov_device *d, uint64_t to, uint64_t from, uint64_t size, ov_error *err) {
    place p, q;
    OV_TRY(ov_check_process(d, err));
    if (!size) return OV_OK;
    if (!find(d, to, size, &p)) return no_such(err, to, size);
    if (!find(d, from, size, &q)) return no_such(err, from, size);
    if (p.buffer == q.buffer && p.offset < q.offset + size && q.offset < p.offset + size) {
        if (p.offset == q.offset) return OV_OK;
        return ov_fail(err, OV_FAILED, "A device copy onto an overlapping range was asked for.");
    }
    pthread_mutex_lock(&d->transfer_lock);
    int rc = set_up(d, err);
    if (!rc) rc = slot_wait(d, 0, err);
    if (!rc) rc = slot_copy(d, 0, q.buffer, q.offset, p.buffer, p.offset, size, err);
    if (!rc) rc = slot_wait(d, 0, err);
    pthread_mutex_unlock(&d->transfer_lock);
    return rc;
}

int ov_fill(ov_device *d, uint64_t to, uint64_t size, uint32_t word, ov_error *err) {
    place p;
    OV_TRY(ov_check_process(d, err));
    if (!size) return OV_OK;
    if (!find(d, to, size, &p)) return no_such(err, to, size);
    if (to % 4 || size % 4) return ov_fail(err, OV_FAILED, "A fill must begin at a word and be a number of whole words.");
    pthread_mutex_lock(&d->transfer_lock);
    int rc = set_up(d, err);
    if (!rc) rc = slot_wait(d, 0, err);
    if (!rc) rc = slot_begin(d, 0, err);
    if (!rc) {
        d->vk.CmdFillBuffer(d->transfer_commands[0], p.buffer, p.offset, size, word);
        rc = slot_end(d, 0, err);
    }
    if (!rc) rc = slot_wait(d, 0, err);
    pthread_mutex_unlock(&d->transfer_lock);
    return rc;
}

static int dispatch(ov_device *d, uint64_t pipeline, const void *push, uint32_t push_size, const uint32_t grid[3], double *ns,
                    ov_error *err) {
    OV_TRY(set_up(d, err));
    OV_TRY(slot_wait(d, 0, err));
    OV_TRY(slot_begin(d, 0, err));
    void *commands = d->transfer_commands[0];
    bool timed = ns && d->transfer_queries;
    if (timed) {
        d->vk.CmdResetQueryPool(commands, d->transfer_queries, 0, 2);
        d->vk.CmdWriteTimestamp(commands, VK_STAGE_COMPUTE, d->transfer_queries, 0);
    }
    d->vk.CmdBindPipeline(commands, VK_BIND_COMPUTE, pipeline);
    if (push_size) d->vk.CmdPushConstants(commands, d->desc.pipeline_layout, VK_SHADER_STAGE_COMPUTE, 0, push_size, push);
    d->vk.CmdDispatch(commands, grid[0], grid[1], grid[2]);
    if (timed) d->vk.CmdWriteTimestamp(commands, VK_STAGE_COMPUTE, d->transfer_queries, 1);
    OV_TRY(slot_end(d, 0, err));
    OV_TRY(slot_wait(d, 0, err));
    OV_COUNT(d, dispatches, 1);
    if (timed) {
        uint64_t t[2];
        int32_t result =
            d->vk.GetQueryPoolResults(d->handle, d->transfer_queries, 0, 2, sizeof t, t, 8, VK_QUERY_64 | VK_QUERY_WAIT);
        if (result) return ov_vk_fail(d, err, "vkGetQueryPoolResults", result);
        uint64_t mask = d->desc.timestamp_bits >= 64 ? ~0ull : (1ull << d->desc.timestamp_bits) - 1;
        *ns = (double)((t[1] - t[0]) & mask) * d->desc.timestamp_period;
    }
    return OV_OK;
}

int ov_dispatch_once(ov_device *d, uint64_t pipeline, const void *push, uint32_t push_size, uint32_t x, uint32_t y, uint32_t z,
                     double *ns, ov_error *err) {
    if (ns) *ns = 0;
    OV_TRY(ov_check_process(d, err));
    if (!x || !y || !z) return OV_OK;
    pthread_mutex_lock(&d->transfer_lock);
    int rc = dispatch(d, pipeline, push, push_size, (uint32_t[]){x, y, z}, ns, err);
    pthread_mutex_unlock(&d->transfer_lock);
    return rc;
}
