// Blocks and their runs: find the plan of these shapes, take a run context, copy in, submit, wait, copy out.
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine.h"

enum { CANCEL_POLL_NS = 10000000 }; // how often a run that waits for a context is asked whether it is cancelled

struct ov_block {
    ov_block_desc desc;
    ov_device *device;
    pthread_mutex_t lock; // plans, contexts, the profile
    pthread_cond_t idle;
    pthread_mutex_t miss; // one planner at a time
    ov_context *contexts;
    ov_plan *plans; // most recently used first
    uint32_t n_plans;
    uint64_t plans_made, plans_evicted;
    _Atomic uint64_t runs, recordings, dispatches;
    atomic_bool profiling;
    ov_profile_entry *profile;
    uint32_t n_profile, profile_room;
    ov_run_times times; // of the last finished run
};

// ---- blocks ----

int ov_block_create(const ov_block_desc *desc, ov_block **out, ov_error *err) {
    ov_block *b = calloc(1, sizeof *b);
    if (!b) return ov_fail(err, OV_OUT_OF_MEMORY, "No host memory for a block.");
    b->desc = *desc;
    b->device = desc->device;
    if (!b->desc.contexts) b->desc.contexts = 2;
    if (!b->desc.plan_cap) b->desc.plan_cap = 64;
    pthread_mutex_init(&b->lock, NULL);
    pthread_mutex_init(&b->miss, NULL);
    pthread_cond_init(&b->idle, NULL);
    OV_COUNT(b->device, live_blocks, 1);
    b->contexts = calloc(b->desc.contexts, sizeof *b->contexts);
    int rc = b->contexts ? OV_OK : ov_fail(err, OV_OUT_OF_MEMORY, "No host memory for a block.");
    for (uint32_t i = 0; !rc && i < b->desc.contexts; i++) {
        ov_context *c = &b->contexts[i];
        c->index = i;
        c->generation = 1;
        c->inputs = calloc((size_t)desc->n_inputs + desc->n_outputs + 1, sizeof *c->inputs);
        c->outputs = c->inputs + desc->n_inputs;
        if (!c->inputs) rc = ov_fail(err, OV_OUT_OF_MEMORY, "No host memory for a block.");
        else rc = ov_new_timeline(b->device, &c->semaphore, err);
    }
    if (rc) ov_block_destroy(b);
    else *out = b;
    return rc;
}

// Frees a plan that no run uses. Its recordings are idle: a run waits for its commands before it lets go of the plan.
static void plan_destroy(ov_block *b, ov_plan *plan) {
    for (uint32_t i = 0; plan->recordings && i < b->desc.contexts; i++) ov_recording_free(b->device, &plan->recordings[i]);
    ov_plan_free(plan);
    OV_UNCOUNT(b->device, live_plans, 1);
}

static void segments_free(ov_context *c) {
    for (int s = 0; s < OV_SEG_RECORD; s++) {
        ov_free(c->segments[s]);
        c->segments[s] = NULL;
        c->sizes[s] = 0;
    }
    c->generation++; // recordings hold the old addresses
}

void ov_block_destroy(ov_block *b) {
    if (!b || ov_forked(b->device)) return;
    pthread_mutex_lock(&b->lock);
    for (uint32_t i = 0; b->contexts && i < b->desc.contexts; i++)
        while (b->contexts[i].busy) pthread_cond_wait(&b->idle, &b->lock);
    pthread_mutex_unlock(&b->lock);
    while (b->plans) {
        ov_plan *next = b->plans->next;
        plan_destroy(b, b->plans);
        b->plans = next;
    }
    for (uint32_t i = 0; b->contexts && i < b->desc.contexts; i++) {
        ov_context *c = &b->contexts[i];
        segments_free(c);
        ov_free(c->segments[OV_SEG_ERROR]);
        if (c->semaphore) b->device->vk.DestroySemaphore(b->device->handle, c->semaphore, NULL);
        free(c->inputs);
    }
    free(b->contexts);
    free(b->profile);
    pthread_cond_destroy(&b->idle);
    pthread_mutex_destroy(&b->lock);
    pthread_mutex_destroy(&b->miss);
    OV_UNCOUNT(b->device, live_blocks, 1);
    free(b);
}

void ov_block_get(ov_block *b, ov_block_info *out) {
    pthread_mutex_lock(&b->lock);
    *out = (ov_block_info){.runs = b->runs,
                           .plans_made = b->plans_made,
                           .plans_evicted = b->plans_evicted,
                           .recordings = b->recordings,
                           .dispatches = b->dispatches,
                           .plans = b->n_plans};
    for (uint32_t i = 0; i < b->desc.contexts; i++)
        for (int s = 0; s < OV_SEGMENTS; s++) out->segment_bytes += b->contexts[i].sizes[s];
    pthread_mutex_unlock(&b->lock);
}

int ov_block_add_plan(ov_block *b, const ov_plan_desc *desc, ov_error *err) {
    ov_plan *plan;
    OV_TRY(ov_plan_create(desc, b->desc.n_inputs, b->desc.n_outputs, &plan, err));
    plan->recordings = calloc(b->desc.contexts, sizeof *plan->recordings);
    if (!plan->recordings) {
        ov_plan_free(plan);
        return ov_fail(err, OV_OUT_OF_MEMORY, "No host memory for a plan.");
    }
    OV_COUNT(b->device, plans_made, 1);
    OV_COUNT(b->device, live_plans, 1);
    ov_plan *evicted = NULL;
    pthread_mutex_lock(&b->lock);
    plan->next = b->plans;
    b->plans = plan;
    b->plans_made++;
    if (++b->n_plans > b->desc.plan_cap) {
        ov_plan **link = &b->plans;
        while ((*link)->next) link = &(*link)->next;
        evicted = *link;
        *link = NULL;
        b->n_plans--;
        b->plans_evicted++;
        OV_COUNT(b->device, plans_evicted, 1);
        if (evicted->users) {
            evicted->retired = true; // its last user frees it
            evicted = NULL;
        }
    }
    pthread_mutex_unlock(&b->lock);
    if (evicted) plan_destroy(b, evicted);
    return OV_OK;
}

// ---- choosing plan and context ----

static int context_take(ov_block *b, const ov_io *io, ov_context **out, ov_error *err) {
    OV_TRY(ov_cancelled(io, err));
    pthread_mutex_lock(&b->lock);
    for (bool waited = false;;) {
        for (uint32_t i = 0; i < b->desc.contexts; i++)
            if (!b->contexts[i].busy) {
                b->contexts[i].busy = true;
                pthread_mutex_unlock(&b->lock);
                *out = &b->contexts[i];
                return OV_OK;
            }
        if (!waited) OV_COUNT(b->device, waits, 1);
        waited = true;
        OV_COUNT(b->device, waiting, 1);
        if (io->cancelled) {
            struct timespec until;
            clock_gettime(CLOCK_REALTIME, &until);
            until.tv_nsec += CANCEL_POLL_NS;
            until.tv_sec += until.tv_nsec / 1000000000, until.tv_nsec %= 1000000000;
            pthread_cond_timedwait(&b->idle, &b->lock, &until);
        } else {
            pthread_cond_wait(&b->idle, &b->lock);
        }
        OV_UNCOUNT(b->device, waiting, 1);
        if (!io->cancelled) continue;
        pthread_mutex_unlock(&b->lock); // what is asked may want the interpreter's lock
        OV_TRY(ov_cancelled(io, err));
        pthread_mutex_lock(&b->lock);
    }
}

static void context_return(ov_block *b, ov_context *c, ov_plan *plan, bool finished) {
    if (b->desc.flags & OV_BLOCK_RELEASE_AFTER_RUN) segments_free(c);
    pthread_mutex_lock(&b->lock);
    if (finished) b->times = c->times;
    bool last = plan && --plan->users == 0 && plan->retired;
    if (last) {
        pthread_mutex_unlock(&b->lock); // the context is still ours: ov_block_destroy waits for it
        plan_destroy(b, plan);
        pthread_mutex_lock(&b->lock);
    }
    c->busy = false;
    pthread_cond_broadcast(&b->idle);
    pthread_mutex_unlock(&b->lock);
}

static ov_plan *plan_find(ov_block *b, ov_context *c) {
    pthread_mutex_lock(&b->lock);
    ov_plan **link = &b->plans;
    while (*link && !ov_plan_match(*link, c->inputs, b->desc.n_inputs, c->symbols)) link = &(*link)->next;
    ov_plan *plan = *link;
    if (plan) {
        *link = plan->next;
        plan->next = b->plans;
        b->plans = plan;
        plan->users++;
    }
    pthread_mutex_unlock(&b->lock);
    return plan;
}

static int plan_get(ov_block *b, ov_context *c, ov_plan **out, ov_error *err) {
    if ((*out = plan_find(b, c))) return OV_OK;
    pthread_mutex_lock(&b->miss);
    int rc = OV_OK;
    if (!(*out = plan_find(b, c))) { // another thread may have made it meanwhile
        rc = b->desc.plan ? b->desc.plan(b->desc.user, b, c->inputs, err)
                          : ov_fail(err, OV_FAILED, "No plan serves these inputs.");
        if (!rc && !(*out = plan_find(b, c)))
            rc = ov_fail(err, OV_FAILED, "The planner made no plan that serves these inputs. This is a bug in the planner.");
    }
    pthread_mutex_unlock(&b->miss);
    return rc;
}

// ---- one run ----

// Adds the time since the last call for this context to *phase.
static void phase_ends(ov_context *c, int64_t *phase) {
    int64_t now = (int64_t)ov_now_ns();
    *phase += now - c->phase_began;
    c->phase_began = now;
}

static int segment_grow(ov_device *d, ov_context *c, uint32_t segment, uint32_t kind, uint64_t need, ov_error *err) {
    if (need <= c->sizes[segment]) return OV_OK;
    uint64_t wish = c->sizes[segment] / 4 * 5; // growing shapes shall not re-record every time
    ov_free(c->segments[segment]);
    c->segments[segment] = NULL;
    c->sizes[segment] = 0;
    c->generation++;
    if (wish > need && !ov_alloc(d, wish, kind, &c->segments[segment], NULL)) need = wish;
    else OV_TRY(ov_alloc(d, need, kind, &c->segments[segment], err));
    c->sizes[segment] = need;
    return OV_OK;
}

static int context_fit(ov_device *d, ov_context *c, const ov_plan *plan, ov_error *err) {
    OV_TRY(segment_grow(d, c, OV_SEG_ARENA, OV_DEVICE, plan->p.arena_size, err));
    OV_TRY(segment_grow(d, c, OV_SEG_INPUT, OV_UPLOAD, plan->p.input_size, err));
    OV_TRY(segment_grow(d, c, OV_SEG_OUTPUT, OV_READBACK, plan->p.output_size, err));
    if (plan->uses_error && !c->segments[OV_SEG_ERROR]) {
        OV_TRY(segment_grow(d, c, OV_SEG_ERROR, OV_UPLOAD, sizeof(ov_error_word), err));
        memset(ov_memory_mapped(c->segments[OV_SEG_ERROR]), 0, sizeof(ov_error_word));
    }
    return OV_OK;
}

static int ask_outputs(ov_block *b, ov_context *c, const ov_io *io, ov_error *err) {
    for (uint32_t i = 0; i < b->desc.n_outputs; i++) {
        c->outputs[i].data = NULL;
        c->outputs[i].address = 0;
        OV_TRY(io->output(io->user, i, &c->outputs[i], err));
    }
    return OV_OK;
}

static int eval_output_dims(ov_block *b, ov_context *c, const ov_plan *plan, ov_error *err) {
    for (uint32_t i = 0; i < b->desc.n_outputs; i++) {
        const ov_io_desc *io = &plan->p.outputs[i];
        ov_tensor *t = &c->outputs[i];
        t->rank = io->rank;
        for (uint32_t k = 0; k < io->rank; k++) {
            t->dims[k] = ov_eval(plan, plan->p.output_dims[io->dims + k], c->symbols);
            if (t->dims[k] < 0)
                return ov_fail(err, OV_INVALID_INPUT, "With these inputs, dim %u of output %u would be %" PRId64 ".", k, i,
                               t->dims[k]);
        }
        if (ov_packed_bytes(io, ov_tensor_elements(t)) > io->capacity && !plan->out_external[i])
            return ov_fail(err, OV_FAILED, "Output %u does not fit the plan's capacity. This is a bug in the planner.", i);
    }
    return OV_OK;
}

// Copies inputs to where the plan reads them. What lies on the device and is read through an EXTERNAL patch stays there.
static int copy_inputs(ov_block *b, ov_context *c, const ov_plan *plan, ov_error *err) {
    for (uint32_t i = 0; i < b->desc.n_inputs; i++) {
        const ov_io_desc *io = &plan->p.inputs[i];
        const ov_tensor *t = &c->inputs[i];
        uint64_t size = ov_packed_bytes(io, ov_tensor_elements(t));
        if ((io->flags & OV_IO_UNUSED) || !size || (t->address && plan->in_external[i])) continue;
        if (size > io->capacity)
            return ov_fail(err, OV_FAILED, "Input %u does not fit the plan's capacity. This is a bug in the planner.", i);
        if (t->data) {
            ov_copy_host(b->device, ov_memory_mapped(c->segments[OV_SEG_INPUT]) + io->offset, t->data, size);
            OV_COUNT(b->device, uploaded_bytes, size);
        } else if (t->address) {
            OV_TRY(ov_copy(b->device, ov_memory_address(c->segments[OV_SEG_INPUT]) + io->offset, t->address, size, err));
        } else {
            return ov_fail(err, OV_INVALID_INPUT, "Input %u has no data.", i);
        }
    }
    return OV_OK;
}

static int copy_outputs(ov_block *b, ov_context *c, const ov_plan *plan, ov_error *err) {
    for (uint32_t i = 0; i < b->desc.n_outputs; i++) {
        const ov_io_desc *io = &plan->p.outputs[i];
        const ov_tensor *t = &c->outputs[i];
        uint64_t size = ov_packed_bytes(io, ov_tensor_elements(t));
        if ((io->flags & OV_IO_UNUSED) || !size || (t->address && plan->out_external[i])) continue;
        if (t->data) {
            ov_copy_host(b->device, t->data, ov_memory_mapped(c->segments[OV_SEG_OUTPUT]) + io->offset, size);
            OV_COUNT(b->device, downloaded_bytes, size);
        } else if (t->address) {
            OV_TRY(ov_copy(b->device, t->address, ov_memory_address(c->segments[OV_SEG_OUTPUT]) + io->offset, size, err));
        } else {
            return ov_fail(err, OV_INVALID_INPUT, "Output %u was given no memory.", i);
        }
    }
    return OV_OK;
}

// The planner puts patches of one expression side by side, so each is evaluated once.
static void apply_patches(const ov_plan *plan, const ov_context *c, const ov_recording *r) {
    int64_t result = 0;
    for (uint32_t i = 0; i < plan->p.n_patches; i++) {
        const ov_patch *q = &plan->p.patches[i];
        uint8_t *to = r->values + q->offset;
        if (!i || q->expr != q[-1].expr) result = ov_eval(plan, q->expr, c->symbols);
        int64_t value = result;
        uint32_t words[3];
        switch (q->kind) {
        case OV_PATCH_U32:
            words[0] = (uint32_t)value;
            memcpy(to, words, 4);
            continue;
        case OV_PATCH_DIVISOR:
            ov_divisor_words(value, words);
            memcpy(to, words, 12);
            continue;
        case OV_PATCH_EXTERNAL_IN: {
            uint64_t own = ov_memory_address(c->segments[OV_SEG_INPUT]) + plan->p.inputs[q->index].offset;
            value += (int64_t)(c->inputs[q->index].address ? c->inputs[q->index].address : own);
            break;
        }
        case OV_PATCH_EXTERNAL_OUT: {
            uint64_t own = ov_memory_address(c->segments[OV_SEG_OUTPUT]) + plan->p.outputs[q->index].offset;
            value += (int64_t)(c->outputs[q->index].address ? c->outputs[q->index].address : own);
            break;
        }
        default: break;
        }
        memcpy(to, &value, 8);
    }
    if (plan->p.n_patches) memcpy(ov_memory_mapped(r->record), r->values, plan->p.n_record);
}

static int check_error_word(const ov_plan *plan, ov_context *c, ov_error *err) {
    if (!plan->uses_error) return OV_OK;
    void *mapped = ov_memory_mapped(c->segments[OV_SEG_ERROR]);
    ov_error_word word;
    memcpy(&word, mapped, sizeof word);
    if (!word.count) return OV_OK;
    memset(mapped, 0, sizeof word);
    const char *label = word.label && word.label <= plan->p.n_labels ? plan->labels[word.label - 1] : "a kernel";
    return ov_fail(err, OV_INVALID_INPUT,
                   "%s met the index %" PRId64 ", which lies outside its tensor (%u such indices in this run).", label,
                   word.value, word.count);
}

static int keep_profile(ov_block *b, const ov_plan *plan, const ov_recording *r, ov_error *err) {
    uint32_t n = plan->n_dispatches, at = 0;
    ov_device *d = b->device;
    uint64_t *stamps = malloc((2 * (size_t)n + 1) * sizeof *stamps);
    if (!stamps) return ov_fail(err, OV_OUT_OF_MEMORY, "No host memory for a profile.");
    int32_t result = d->vk.GetQueryPoolResults(d->handle, r->queries, 0, 2 * n, 2 * n * sizeof *stamps, stamps, 8,
                                               VK_QUERY_64 | VK_QUERY_WAIT);
    if (result) {
        free(stamps);
        return ov_vk_fail(d, err, "vkGetQueryPoolResults", result);
    }
    uint64_t mask = d->desc.timestamp_bits >= 64 ? ~0ull : (1ull << d->desc.timestamp_bits) - 1;
    pthread_mutex_lock(&b->lock);
    if (n > b->profile_room) {
        ov_profile_entry *more = realloc(b->profile, n * sizeof *more);
        if (more) b->profile = more, b->profile_room = n;
    }
    for (uint32_t i = 0; i < plan->p.n_commands && at < b->profile_room; i++) {
        const ov_command *c = &plan->p.commands[i];
        if (c->op != OV_OP_DISPATCH && c->op != OV_OP_DISPATCH_INDIRECT) continue;
        ov_profile_entry *e = &b->profile[at];
        e->command = i;
        e->label = c->label;
        e->start_ns = (double)((stamps[2 * at] - stamps[0]) & mask) * d->desc.timestamp_period;
        e->ns = (double)((stamps[2 * at + 1] - stamps[2 * at]) & mask) * d->desc.timestamp_period;
        snprintf(e->name, sizeof e->name, "%s", plan->labels[c->label]);
        at++;
    }
    b->n_profile = at;
    pthread_mutex_unlock(&b->lock);
    free(stamps);
    return OV_OK;
}

static int run_plan(ov_block *b, ov_context *c, ov_plan *plan, const ov_io *io, ov_error *err) {
    ov_device *d = b->device;
    ov_recording *r = &plan->recordings[c->index];
    bool profile = atomic_load(&b->profiling), works = plan->p.n_commands > 0;
    int64_t took = 0;
    OV_TRY(eval_output_dims(b, c, plan, err));
    OV_TRY(context_fit(d, c, plan, err));
    if (works && (r->generation != c->generation || r->profiled != profile)) {
        OV_TRY(ov_record(d, plan, c, profile, err));
        atomic_fetch_add(&b->recordings, 1);
    }
    phase_ends(c, &c->times.record_ns);
    if (plan->any_out_external) OV_TRY(ask_outputs(b, c, io, err));
    phase_ends(c, &c->times.outputs_ns);
    OV_TRY(copy_inputs(b, c, plan, err));
    phase_ends(c, &c->times.copy_in_ns);
    if (works) {
        apply_patches(plan, c, r);
        int64_t submitted = c->phase_began;
        int rc = ov_submit_run(d, c, plan, r, io, err);
        phase_ends(c, &c->times.submit_ns);
        // The host's memory for outputs is got while the device works.
        if (!rc && !plan->any_out_external) rc = ask_outputs(b, c, io, err);
        phase_ends(c, &c->times.outputs_ns);
        // Also after a failure: what was submitted uses this context.
        ov_error ignored;
        int waited = ov_wait(d, c->semaphore, c->value, rc ? &ignored : err);
        if (rc || waited) return rc ? rc : waited;
        phase_ends(c, &c->times.wait_ns);
        took = c->phase_began - submitted;
    } else if (!plan->any_out_external) {
        OV_TRY(ask_outputs(b, c, io, err));
    }
    OV_TRY(check_error_word(plan, c, err));
    OV_TRY(copy_outputs(b, c, plan, err));
    phase_ends(c, &c->times.copy_out_ns);
    if (works && profile && plan->n_dispatches) OV_TRY(keep_profile(b, plan, r, err));
    if (works && ov_learn_pace(plan, took)) { // now, so that the next run finds its recording
        ov_error ignored;
        if (!ov_record(d, plan, c, profile, &ignored)) atomic_fetch_add(&b->recordings, 1);
    }
    atomic_fetch_add(&b->runs, 1);
    atomic_fetch_add(&b->dispatches, plan->n_dispatches);
    OV_COUNT(d, runs, 1);
    return OV_OK;
}

int ov_run(ov_block *b, const ov_io *io, ov_error *err) {
    OV_TRY(ov_check_process(b->device, err));
    int64_t start = (int64_t)ov_now_ns();
    ov_context *c;
    OV_TRY(context_take(b, io, &c, err));
    c->times = (ov_run_times){.start_ns = start};
    c->phase_began = start;
    ov_plan *plan = NULL;
    int rc = OV_OK;
    for (uint32_t i = 0; !rc && i < b->desc.n_inputs; i++) {
        c->inputs[i] = (ov_tensor){0};
        rc = io->input(io->user, i, &c->inputs[i], err);
        if (!rc && c->inputs[i].rank > OV_MAX_RANK) rc = ov_fail(err, OV_UNSUPPORTED, "Input %u has more than 16 dims.", i);
    }
    if (!rc) rc = plan_get(b, c, &plan, err);
    phase_ends(c, &c->times.plan_ns);
    if (!rc) rc = run_plan(b, c, plan, io, err);
    context_return(b, c, plan, !rc);
    return rc;
}

// ---- runs on arrays ----

typedef struct {
    const ov_tensor *inputs;
    ov_tensor *outputs;
    ov_output_callback grow;
    ov_cancel_callback cancelled;
    void *user;
} arrays;

static int array_input(void *user, uint32_t i, ov_tensor *tensor, ov_error *err) {
    (void)err;
    *tensor = ((arrays *)user)->inputs[i];
    return OV_OK;
}

static int array_output(void *user, uint32_t i, ov_tensor *tensor, ov_error *err) {
    arrays *a = user;
    ov_tensor *given = &a->outputs[i];
    bool fits = (given->data || given->address) && given->rank == tensor->rank &&
                !memcmp(given->dims, tensor->dims, tensor->rank * sizeof *tensor->dims);
    if (!fits) {
        if (!a->grow) return ov_fail(err, OV_INVALID_INPUT, "Output %u has other dims than its array.", i);
        given->data = NULL;
        given->address = 0;
        given->rank = tensor->rank;
        memcpy(given->dims, tensor->dims, sizeof given->dims);
        OV_TRY(a->grow(a->user, i, given, err));
    }
    tensor->data = given->data;
    tensor->address = given->address;
    return OV_OK;
}

static int array_cancelled(void *user) {
    arrays *a = user;
    return a->cancelled(a->user);
}

int ov_run_arrays(ov_block *b, const ov_tensor *inputs, ov_tensor *outputs, ov_output_callback grow, ov_cancel_callback cancelled,
                  void *user, ov_error *err) {
    arrays a = {inputs, outputs, grow, cancelled, user};
    ov_io io = {.user = &a, .input = array_input, .output = array_output, .cancelled = cancelled ? array_cancelled : NULL};
    return ov_run(b, &io, err);
}

// ---- profiles ----

void ov_block_set_profile(ov_block *b, int on) {
    atomic_store(&b->profiling, on && b->device->desc.timestamp_bits);
}

uint32_t ov_block_read_profile(ov_block *b, ov_profile_entry *out, uint32_t capacity) {
    pthread_mutex_lock(&b->lock);
    uint32_t n = b->n_profile;
    if (out && n) memcpy(out, b->profile, (n < capacity ? n : capacity) * sizeof *out);
    pthread_mutex_unlock(&b->lock);
    return n;
}

void ov_block_read_times(ov_block *b, ov_run_times *out) {
    pthread_mutex_lock(&b->lock);
    *out = b->times;
    pthread_mutex_unlock(&b->lock);
}
