// What the engine's own files share. Not part of the interface.
#ifndef OV_ENGINE_H
#define OV_ENGINE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "onnx_vulkan.h"
#include "vk.h"

typedef struct ov_chunk ov_chunk;

// A byte range of a chunk.
struct ov_memory {
    ov_chunk *chunk;
    uint64_t offset, size;
};

typedef struct ov_range {
    uint64_t offset, size;
} ov_range;

// One driver allocation with one buffer over all of it. `holes` are its free ranges, sorted by offset, none adjacent.
struct ov_chunk {
    ov_device *device;
    ov_chunk *next;
    vk_handle memory, buffer;
    uint64_t address, size, used;
    uint8_t *mapped;
    uint32_t kind, type;
    ov_range *holes;
    uint32_t n_holes, hole_room, pieces;
};

enum { OV_COUNTER_COUNT = sizeof(ov_counters) / sizeof(uint64_t) };

struct ov_device {
    ov_device_desc desc;
    vk_functions vk;
    void *handle, *queue;
    long pid;
    pthread_mutex_t queue_lock;
    atomic_bool lost;
    _Atomic uint64_t counters[OV_COUNTER_COUNT];
    _Atomic uint64_t limit;

    VkMemoryType types[32];
    uint64_t heap_size[16];
    uint32_t n_types, candidates[OV_MEMORY_KINDS][32], n_candidates[OV_MEMORY_KINDS];
    pthread_mutex_t memory_lock; // chunks
    ov_chunk *chunks[OV_MEMORY_KINDS];

    // Transfers and single dispatches: one at a time, under a lock.
    pthread_mutex_t transfer_lock;
    vk_handle transfer_pools[2], transfer_semaphore, transfer_queries;
    void *transfer_commands[2];
    uint64_t transfer_value, transfer_values[2]; // submitted last, overall and by slot
    ov_memory *staging;
};

#define OV_COUNTER(d, name) ((d)->counters[offsetof(ov_counters, name) / sizeof(uint64_t)])
#define OV_COUNT(d, name, by) atomic_fetch_add_explicit(&OV_COUNTER(d, name), (uint64_t)(by), memory_order_relaxed)
#define OV_UNCOUNT(d, name, by) atomic_fetch_sub_explicit(&OV_COUNTER(d, name), (uint64_t)(by), memory_order_relaxed)

#define OV_TRY(call)                                                                                                             \
    do {                                                                                                                         \
        int ov_rc_ = (call);                                                                                                     \
        if (ov_rc_) return ov_rc_;                                                                                               \
    } while (0)

// device.c
int ov_fail(ov_error *err, int kind, const char *format, ...) __attribute__((format(printf, 3, 4)));
// Turns a failed Vulkan call into an error; marks the device as lost when it is.
int ov_vk_fail(ov_device *d, ov_error *err, const char *call, int32_t result);
// Whether this is a forked child of the process that opened the device. It must make no Vulkan call: the driver's files are
// shared with the parent, so even a free would be the parent's.
bool ov_forked(const ov_device *d);
int ov_check_process(const ov_device *d, ov_error *err);
uint64_t ov_now_ns(void); // CLOCK_MONOTONIC
int ov_new_timeline(ov_device *d, vk_handle *out, ov_error *err);
// Submits command buffers that set `semaphore` to `value` when they are done.
int ov_submit(ov_device *d, void *const *commands, uint32_t count, vk_handle semaphore, uint64_t value, ov_error *err);
int ov_wait(ov_device *d, vk_handle semaphore, uint64_t value, ov_error *err);
// Everything that was written before is seen by everything after, the host included when `host`.
void ov_barrier(ov_device *d, void *commands, bool indirect, bool host);

// memory.c
void ov_memory_choose_types(ov_device *d, uint32_t type_bits, const VkMemoryProperties2 *properties);
int ov_buffer_create(ov_device *d, uint64_t size, vk_handle *buffer, VkMemoryRequirements *needs, ov_error *err);
static inline uint64_t ov_memory_address(const ov_memory *m) {
    return m ? m->chunk->address + m->offset : 0;
}
static inline uint8_t *ov_memory_mapped(const ov_memory *m) {
    return m && m->chunk->mapped ? m->chunk->mapped + m->offset : NULL;
}

// transfer.c
void ov_transfer_destroy(ov_device *d);
// Gives the staging buffer back once it is the only allocation that is left.
void ov_transfer_trim(ov_device *d);

// plan.c
typedef struct ov_recording ov_recording;

typedef struct ov_plan {
    ov_plan_desc p; // its pointers lead into `storage`
    void *storage;
    const char **labels;
    uint32_t users; // runs that use it now; guarded by the block's lock
    bool retired;   // evicted while in use: freed by its last user
    bool indirect;
    uint8_t *in_external, *out_external; // by input, output: reached through an EXTERNAL patch
    bool any_out_external, uses_error;
    uint32_t n_dispatches, n_barriers;
    _Atomic uint32_t per_part, per_submit; // dispatches of one command buffer, and of one submit
    atomic_bool timed;                     // whether a run has told how long the dispatches take
    ov_recording *recordings;              // one for each context of the block
    struct ov_plan *next;                  // most recently used first
} ov_plan;

int ov_plan_create(const ov_plan_desc *desc, uint32_t n_inputs, uint32_t n_outputs, ov_plan **out, ov_error *err);
// Frees the plan's arrays, not its recordings.
void ov_plan_free(ov_plan *plan);
int64_t ov_eval(const ov_plan *plan, uint32_t expr, const int64_t *symbols);
// Whether the plan serves these inputs; fills in the run-time symbols.
bool ov_plan_match(const ov_plan *plan, const ov_tensor *inputs, uint32_t n_inputs, int64_t *symbols);
static inline uint64_t ov_tensor_elements(const ov_tensor *t) {
    uint64_t n = 1;
    for (uint32_t i = 0; i < t->rank; i++) n *= (uint64_t)t->dims[i];
    return n;
}
static inline uint64_t ov_packed_bytes(const ov_io_desc *io, uint64_t elements) {
    return (elements * io->bits + 7) / 8;
}

// record.c
// A plan recorded for one run context: command buffers (parts) of so many dispatches each, and the plan's record in
// host-visible memory.
struct ov_recording {
    vk_handle pool, queries;
    void **commands;
    uint32_t n_parts, per_part;
    ov_memory *record;
    uint8_t *values;     // the record in cached memory: patches are scattered, and the mapped record wants writes in order
    uint64_t generation; // of the context's segments when it was made; 0: not recorded
    bool profiled;
};

typedef struct ov_context {
    uint32_t index;
    bool busy;
    ov_memory *segments[OV_SEGMENTS]; // RECORD stays empty: it belongs to the recording
    uint64_t sizes[OV_SEGMENTS];
    uint64_t generation;
    vk_handle semaphore;
    uint64_t value;
    ov_tensor *inputs, *outputs;
    int64_t symbols[OV_MAX_SYMBOLS];
    ov_run_times times; // of the run under way
    int64_t phase_began;
} ov_context;

int ov_record(ov_device *d, ov_plan *plan, ov_context *c, bool profile, ov_error *err);
void ov_recording_free(ov_device *d, ov_recording *r);

// submit.c
// OV_CANCELLED once the caller has cancelled the run.
int ov_cancelled(const ov_io *io, ov_error *err);
// Submits a recording, at most two submits ahead of the device; asks before each whether the run is cancelled.
int ov_submit_run(ov_device *d, ov_context *c, const ov_plan *plan, const ov_recording *r, const ov_io *io, ov_error *err);
// Learns from a run whose dispatches took `ns`. Gives whether the plan is to be recorded anew, in smaller parts.
bool ov_learn_pace(ov_plan *plan, int64_t ns);

#endif
