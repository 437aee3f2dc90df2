// ORT's profiler: the GPU time of every kernel of a run, as Kernel events in the session's trace (ORT 1.25 and up).
//
// ORT may let go of its profiler before or after the EP, so the records are shared and counted.
#include "ort_ep.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct event {
    char name[OV_PROFILE_LABEL];
    int64_t start_ns, ns; // since ORT's profiling start
} event;

struct ov_ort_profile {
    _Atomic int references, active;
    int64_t origin_ns; // ORT's profiling start by our clock
    pthread_mutex_t lock;
    event *events;
    size_t count, room;
};

typedef struct profiler {
    void *slots[OrtEpProfilerImpl_SLOTS];
    ov_ort_profile *profile;
} profiler;

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

ov_ort_profile *ov_ort_profile_new(void) {
    ov_ort_profile *p = calloc(1, sizeof *p);
    if (!p) return NULL;
    p->references = 1;
    pthread_mutex_init(&p->lock, NULL);
    return p;
}

void ov_ort_profile_drop(ov_ort_profile *p) {
    if (!p || atomic_fetch_sub(&p->references, 1) != 1) return;
    pthread_mutex_destroy(&p->lock);
    free(p->events);
    free(p);
}

bool ov_ort_profile_active(const ov_ort_profile *p) {
    return p && atomic_load_explicit(&p->active, memory_order_relaxed);
}

// Events of the run that has just ended. The device's clock is not ours: its last kernel is taken to have ended now.
void ov_ort_profile_run(ov_ort_profile *p, ov_block *block) {
    uint32_t count = ov_block_read_profile(block, NULL, 0);
    ov_profile_entry *entries = count ? malloc(count * sizeof *entries) : NULL;
    if (!entries) return;
    uint32_t there = ov_block_read_profile(block, entries, count);
    if (there < count) count = there;
    int64_t end = now_ns();
    pthread_mutex_lock(&p->lock);
    if (p->count + count > p->room) {
        size_t room = 2 * p->room + count;
        event *more = realloc(p->events, room * sizeof *more);
        if (more) p->events = more, p->room = room;
    }
    double last = count ? entries[count - 1].start_ns + entries[count - 1].ns : 0;
    for (uint32_t i = 0; i < count && p->count < p->room; i++) {
        event *e = &p->events[p->count++];
        memcpy(e->name, entries[i].name, sizeof e->name);
        e->start_ns = end - p->origin_ns + (int64_t)(entries[i].start_ns - last);
        e->ns = (int64_t)entries[i].ns;
    }
    pthread_mutex_unlock(&p->lock);
    free(entries);
}

static void profiler_release(void *self) {
    ov_ort_profile_drop(((profiler *)self)->profile);
    free(self);
}

static OrtStatus *profiler_start(void *self, int64_t since_start_ns) {
    ov_ort_profile *p = ((profiler *)self)->profile;
    p->origin_ns = now_ns() - since_start_ns;
    atomic_store(&p->active, 1);
    return NULL;
}

// ORT correlates by these calls; our events carry times and names only.
static OrtStatus *profiler_event_start(void *self, uint64_t id) {
    (void)self, (void)id;
    return NULL;
}

static OrtStatus *profiler_event_stop(void *self, uint64_t id, const void *event) {
    (void)self, (void)id, (void)event;
    return NULL;
}

static OrtStatus *profiler_end(void *self, void *container) {
    typedef OrtStatus *(*create_fn)(int, int32_t, int32_t, const char *, int64_t, int64_t, const char *const *,
                                    const char *const *, size_t, void **);
    typedef OrtStatus *(*add_fn)(void *, void *const *, size_t);
    ov_ort_profile *p = ((profiler *)self)->profile;
    static const char *const keys[] = {"provider", "clock"}, *const values[] = {"VulkanEP", "gpu"};
    OrtStatus *status = NULL;
    atomic_store(&p->active, 0);
    pthread_mutex_lock(&p->lock);
    for (size_t i = 0; i < p->count && !status; i++) {
        const event *e = &p->events[i];
        void *made = NULL;
        status = ORT_SLOT(ov_ort.ep_api, OrtEpApi_CreateProfilingEvent, create_fn)(
            ORT_PROFILING_KERNEL, -1, -1, e->name, e->start_ns / 1000, e->ns / 1000, keys, values, 2, &made);
        if (status) break;
        status = ORT_SLOT(ov_ort.ep_api, OrtEpApi_ProfilingEventsContainer_AddEvents, add_fn)(container, &made, 1);
        ORT_SLOT(ov_ort.ep_api, OrtEpApi_ReleaseProfilingEvent, ort_release_fn)(made);
    }
    p->count = 0;
    pthread_mutex_unlock(&p->lock);
    return status;
}

OrtStatus *ov_ort_create_profiler(ov_ort_profile *p, void **out) {
    profiler *made = calloc(1, sizeof *made);
    *out = NULL;
    if (!made) return ov_ort_no_memory();
    ov_ort_begin(made->slots);
    made->slots[OrtEpProfilerImpl_Release] = (void *)profiler_release;
    made->slots[OrtEpProfilerImpl_StartProfiling] = (void *)profiler_start;
    made->slots[OrtEpProfilerImpl_StartEvent] = (void *)profiler_event_start;
    made->slots[OrtEpProfilerImpl_StopEvent] = (void *)profiler_event_stop;
    made->slots[OrtEpProfilerImpl_EndProfiling] = (void *)profiler_end;
    made->profile = p;
    atomic_fetch_add(&p->references, 1);
    *out = made;
    return NULL;
}
