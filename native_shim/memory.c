// Device memory: big driver allocations ("chunks"), cut into 256-byte aligned pieces. A chunk goes back to the driver when its
// last piece is freed. Every byte is reachable by device address, so nobody else needs a VkBuffer, copies and indirect grids
// excepted.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine.h"

enum { ALIGN = 256 };
static const uint64_t MIN_CHUNK = 4u << 20, MAX_CHUNK = 64u << 20;
static const char *const KIND_NAMES[OV_MEMORY_KINDS] = {"device", "upload", "readback"};

static uint64_t align_up(uint64_t n, uint64_t to) {
    return (n + to - 1) / to * to;
}

int ov_buffer_create(ov_device *d, uint64_t size, vk_handle *buffer, VkMemoryRequirements *needs, ov_error *err) {
    VkBufferCreateInfo info = {.type = VK_TYPE_BUFFER_CREATE_INFO,
                               .size = size,
                               .usage = VK_USAGE_TRANSFER_SRC | VK_USAGE_TRANSFER_DST | VK_USAGE_STORAGE | VK_USAGE_INDIRECT |
                                        VK_USAGE_DEVICE_ADDRESS};
    int32_t result = d->vk.CreateBuffer(d->handle, &info, NULL, buffer);
    if (result) return ov_vk_fail(d, err, "vkCreateBuffer", result);
    d->vk.GetBufferMemoryRequirements(d->handle, *buffer, needs);
    return OV_OK;
}

// How well a memory type suits a kind: higher is better, negative is unusable. Coherent always, so that nothing needs a flush.
static int score(uint32_t kind, uint32_t flags) {
    const uint32_t visible = VK_MEMORY_HOST_VISIBLE | VK_MEMORY_HOST_COHERENT;
    if (flags & (VK_MEMORY_LAZY | VK_MEMORY_PROTECTED | VK_MEMORY_DEVICE_COHERENT_AMD)) return -1;
    bool local = flags & VK_MEMORY_DEVICE_LOCAL, mapped = (flags & visible) == visible, cached = flags & VK_MEMORY_HOST_CACHED;
    switch (kind) {
    case OV_DEVICE: return local ? 2 + !mapped : -1;
    case OV_UPLOAD: return mapped ? 1 + 2 * local : -1;    // kernels read inputs where the host wrote them
    default: return mapped ? 1 + 4 * cached + !local : -1; // the host's reads of uncached memory run at some 100 MB/s
    }
}

void ov_memory_choose_types(ov_device *d, uint32_t type_bits, const VkMemoryProperties2 *p) {
    d->n_types = p->n_types;
    memcpy(d->types, p->types, sizeof d->types);
    for (uint32_t i = 0; i < p->n_heaps; i++) d->heap_size[i] = p->heaps[i].size;
    for (uint32_t kind = 0; kind < OV_MEMORY_KINDS; kind++)
        for (int wanted = 7; wanted >= 0; wanted--)
            for (uint32_t t = 0; t < p->n_types; t++)
                if ((type_bits >> t & 1) && score(kind, p->types[t].flags) == wanted)
                    d->candidates[kind][d->n_candidates[kind]++] = t;
}

int ov_device_direct_input(ov_device *d) {
    uint32_t upload = d->candidates[OV_UPLOAD][0], device = d->candidates[OV_DEVICE][0];
    // A window of 256 MB into the device's memory is too small to build on.
    return (d->types[upload].flags & VK_MEMORY_DEVICE_LOCAL) &&
           d->heap_size[d->types[upload].heap] * 2 >= d->heap_size[d->types[device].heap];
}

static void read_budget(ov_device *d, VkMemoryBudget *budget) {
    memset(budget, 0, sizeof *budget);
    budget->type = VK_TYPE_MEMORY_BUDGET;
    if (d->desc.has_budget) {
        VkMemoryProperties2 p = {.type = VK_TYPE_MEMORY_PROPERTIES_2, .next = budget};
        ((vk_get_memory_properties2)(uintptr_t)d->desc.get_memory_properties2)((void *)(uintptr_t)d->desc.physical_device, &p);
    } else {
        memcpy(budget->budget, d->heap_size, sizeof budget->budget);
    }
}

void ov_device_heap(ov_device *d, uint64_t *budget, uint64_t *usage) {
    VkMemoryBudget b;
    read_budget(d, &b);
    uint32_t heap = d->types[d->candidates[OV_DEVICE][0]].heap;
    *budget = b.budget[heap];
    *usage = b.usage[heap];
}

static void chunk_destroy(ov_chunk *c) {
    ov_device *d = c->device;
    if (c->buffer) d->vk.DestroyBuffer(d->handle, c->buffer, NULL);
    if (c->memory) d->vk.FreeMemory(d->handle, c->memory, NULL); // unmaps
    free(c->holes);
    free(c);
}

// Tries one memory type; 0, a VkResult, or an error kind in *rc.
static int32_t chunk_create_in(ov_device *d, uint64_t size, uint32_t kind, uint32_t type, ov_chunk **out, int *rc,
                               ov_error *err) {
    ov_chunk *c = calloc(1, sizeof *c);
    if (c) c->holes = malloc(16 * sizeof *c->holes);
    if (!c || !c->holes) {
        free(c);
        *rc = ov_fail(err, OV_OUT_OF_MEMORY, "No host memory for the books of a device allocation.");
        return 0;
    }
    c->device = d, c->size = size, c->kind = kind, c->type = type, c->hole_room = 16;
    VkMemoryRequirements needs;
    if ((*rc = ov_buffer_create(d, size, &c->buffer, &needs, err))) {
        chunk_destroy(c);
        return 0;
    }
    VkMemoryAllocateFlagsInfo flags = {.type = VK_TYPE_MEMORY_ALLOCATE_FLAGS_INFO, .flags = VK_ALLOCATE_DEVICE_ADDRESS};
    VkMemoryAllocateInfo info = {.type = VK_TYPE_MEMORY_ALLOCATE_INFO, .next = &flags, .size = needs.size, .memory_type = type};
    int32_t result = d->vk.AllocateMemory(d->handle, &info, NULL, &c->memory);
    if (result) c->memory = 0;
    if (!result) result = d->vk.BindBufferMemory(d->handle, c->buffer, c->memory, 0);
    bool mapped = (d->types[type].flags & VK_MEMORY_HOST_VISIBLE) && !(kind == OV_DEVICE && d->desc.unmapped);
    if (!result && mapped) {
        void *at = NULL;
        result = d->vk.MapMemory(d->handle, c->memory, 0, ~0ull, 0, &at);
        c->mapped = at;
    }
    if (result) {
        chunk_destroy(c);
        return result;
    }
    VkBufferDeviceAddressInfo where = {.type = VK_TYPE_BUFFER_DEVICE_ADDRESS_INFO, .buffer = c->buffer};
    c->address = d->vk.GetBufferDeviceAddress(d->handle, &where);
    c->holes[0] = (ov_range){0, size};
    c->n_holes = 1;
    *out = c;
    return 0;
}

static double mib(uint64_t bytes) {
    return (double)bytes / (1 << 20);
}

typedef char ov_amount[32];

// "12.5 MiB", or "768 bytes" where that would read as nothing.
static const char *amount(ov_amount text, uint64_t bytes) {
    if (bytes && bytes < 1 << 20) snprintf(text, sizeof(ov_amount), "%u bytes", (unsigned)bytes);
    else snprintf(text, sizeof(ov_amount), "%.1f MiB", mib(bytes));
    return text;
}

// A chunk of at least `size` bytes, and of `wish` bytes if they are to be had. Under memory_lock.
static int chunk_create(ov_device *d, uint64_t size, uint64_t wish, uint32_t kind, ov_chunk **out, ov_error *err) {
    uint64_t committed = OV_COUNTER(d, committed_bytes), limit = atomic_load(&d->limit);
    uint64_t most = d->desc.max_allocation < d->desc.max_buffer ? d->desc.max_allocation : d->desc.max_buffer;
    if (size > most)
        return ov_fail(err, OV_OUT_OF_MEMORY,
                       "%.1f MiB of %s memory were asked for in one piece, but the device gives at most %.1f MiB at once (%s).",
                       mib(size), KIND_NAMES[kind], mib(most),
                       most < d->desc.max_allocation ? "maxBufferSize" : "maxMemoryAllocationSize");
    ov_amount asked, used, allowed;
    if (limit && (committed > limit || size > limit - committed))
        return ov_fail(err, OV_OUT_OF_MEMORY,
                       "%s of %s memory were asked for while %s are in use: the memory limit of %s would be passed. Raise the "
                       "limit or free sessions.",
                       amount(asked, size), KIND_NAMES[kind], amount(used, committed), amount(allowed, limit));
    if (wish > most) wish = most;
    if (limit && wish > limit - committed) wish = limit - committed;
    VkMemoryBudget budget;
    read_budget(d, &budget);
    int32_t result = VK_ERROR_OUT_OF_DEVICE_MEMORY;
    for (int small = wish == size; small < 2; small++) // first as wished, then only what is needed
        for (uint32_t i = 0; i < d->n_candidates[kind]; i++) {
            uint32_t type = d->candidates[kind][i], heap = d->types[type].heap;
            uint64_t ask = small ? size : wish;
            if (d->desc.has_budget && budget.usage[heap] + ask > budget.budget[heap]) continue;
            int rc = OV_OK;
            result = chunk_create_in(d, ask, kind, type, out, &rc, err);
            if (rc) return rc;
            if (result && result != VK_ERROR_OUT_OF_DEVICE_MEMORY && result != VK_ERROR_OUT_OF_HOST_MEMORY)
                return ov_vk_fail(d, err, "vkAllocateMemory", result);
            if (result) continue;
            uint64_t now = OV_COUNT(d, committed_bytes, ask) + ask;
            if (now > OV_COUNTER(d, peak_bytes)) OV_COUNTER(d, peak_bytes) = now;
            OV_COUNT(d, chunks, 1);
            (*out)->next = d->chunks[kind];
            d->chunks[kind] = *out;
            return OV_OK;
        }
    uint32_t heap = d->types[d->candidates[kind][0]].heap;
    return ov_fail(
        err, OV_OUT_OF_MEMORY,
        "The device has no room for %.1f MiB of %s memory: %.1f MiB are in use here, and %.1f of %.1f MiB of its heap by all "
        "processes. Use a smaller batch or shape, or free sessions.",
        mib(size), KIND_NAMES[kind], mib(committed), mib(budget.usage[heap]), mib(budget.budget[heap]));
}

// Takes `size` bytes from the smallest hole of the kind that holds them.
static ov_chunk *take(ov_device *d, uint64_t size, uint32_t kind, uint64_t *offset) {
    ov_chunk *best = NULL;
    uint32_t at = 0;
    for (ov_chunk *c = d->chunks[kind]; c; c = c->next)
        for (uint32_t i = 0; i < c->n_holes; i++)
            if (c->holes[i].size >= size && (!best || c->holes[i].size < best->holes[at].size)) best = c, at = i;
    if (!best) return NULL;
    ov_range *hole = &best->holes[at];
    *offset = hole->offset;
    hole->offset += size, hole->size -= size;
    if (!hole->size) memmove(hole, hole + 1, (--best->n_holes - at) * sizeof *hole);
    best->used += size;
    best->pieces++;
    return best;
}

// Puts a range back among the holes. There is always room: holes are at most one more than pieces, see reserve_hole.
static void put_back(ov_chunk *c, uint64_t offset, uint64_t size) {
    uint32_t i = 0;
    while (i < c->n_holes && c->holes[i].offset < offset) i++;
    bool before = i > 0 && c->holes[i - 1].offset + c->holes[i - 1].size == offset;
    bool after = i < c->n_holes && offset + size == c->holes[i].offset;
    if (before) {
        c->holes[i - 1].size += size + (after ? c->holes[i].size : 0);
        if (after) memmove(&c->holes[i], &c->holes[i + 1], (--c->n_holes - i) * sizeof *c->holes);
    } else if (after) {
        c->holes[i].offset = offset, c->holes[i].size += size;
    } else {
        memmove(&c->holes[i + 1], &c->holes[i], (c->n_holes++ - i) * sizeof *c->holes);
        c->holes[i] = (ov_range){offset, size};
    }
    c->used -= size;
    c->pieces--;
}

// Keeps room for the holes that freeing can make, so that freeing never needs host memory.
static bool reserve_hole(ov_chunk *c) {
    if (c->pieces + 2 <= c->hole_room) return true;
    ov_range *more = realloc(c->holes, 2 * c->hole_room * sizeof *more);
    if (!more) return false;
    c->holes = more, c->hole_room *= 2;
    return true;
}

int ov_alloc(ov_device *d, uint64_t size, uint32_t kind, ov_memory **out, ov_error *err) {
    OV_TRY(ov_check_process(d, err));
    if (kind >= OV_MEMORY_KINDS) return ov_fail(err, OV_FAILED, "There is no memory kind %u.", kind);
    if (size > 1ull << 62) return ov_fail(err, OV_OUT_OF_MEMORY, "%.0f MiB were asked for.", mib(size));
    ov_memory *m = calloc(1, sizeof *m);
    if (!m) return ov_fail(err, OV_OUT_OF_MEMORY, "No host memory for the books of a device allocation.");
    m->size = align_up(size ? size : 1, ALIGN);
    pthread_mutex_lock(&d->memory_lock);
    int rc = OV_OK;
    m->chunk = take(d, m->size, kind, &m->offset);
    if (!m->chunk) {
        uint64_t of_kind = 0;
        for (ov_chunk *c = d->chunks[kind]; c; c = c->next) of_kind += c->size;
        uint64_t chunk = of_kind < MIN_CHUNK   ? MIN_CHUNK
                         : of_kind > MAX_CHUNK ? MAX_CHUNK
                                               : of_kind; // few small models, few bytes
        ov_chunk *fresh;
        rc = chunk_create(d, m->size, m->size * 2 > chunk ? m->size : chunk, kind, &fresh, err);
        if (!rc) m->chunk = take(d, m->size, kind, &m->offset);
    }
    if (!rc && !reserve_hole(m->chunk)) {
        put_back(m->chunk, m->offset, m->size);
        rc = ov_fail(err, OV_OUT_OF_MEMORY, "No host memory for the books of a device allocation.");
    }
    if (!rc) {
        OV_COUNT(d, live_bytes, m->size);
        OV_COUNT(d, live_allocations, 1);
        OV_COUNT(d, allocations, 1);
    }
    pthread_mutex_unlock(&d->memory_lock);
    if (rc) free(m);
    else *out = m;
    return rc;
}

void ov_free(ov_memory *m) {
    if (!m) return;
    ov_chunk *c = m->chunk;
    ov_device *d = c->device;
    if (ov_forked(d)) return;
    pthread_mutex_lock(&d->memory_lock);
    put_back(c, m->offset, m->size);
    OV_UNCOUNT(d, live_bytes, m->size);
    uint64_t left = OV_UNCOUNT(d, live_allocations, 1) - 1;
    if (!c->used) {
        ov_chunk **link = &d->chunks[c->kind];
        while (*link != c) link = &(*link)->next;
        *link = c->next;
        OV_UNCOUNT(d, committed_bytes, c->size);
        chunk_destroy(c);
    }
    pthread_mutex_unlock(&d->memory_lock);
    free(m);
    if (left == 1) ov_transfer_trim(d);
}

void ov_memory_get(const ov_memory *m, ov_memory_info *out) {
    const ov_chunk *c = m->chunk;
    *out = (ov_memory_info){.address = ov_memory_address(m),
                            .size = m->size,
                            .offset = m->offset,
                            .buffer = c->buffer,
                            .mapped = ov_memory_mapped(m),
                            .kind = c->kind,
                            .type_flags = c->device->types[c->type].flags};
}
