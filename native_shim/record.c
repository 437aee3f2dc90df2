// Recording: a plan's commands for one run context, with its addresses filled in.
#include <stdlib.h>
#include <string.h>

#include "engine.h"

static void relocate(const ov_plan *plan, const ov_context *c, const ov_memory *record, uint32_t blob, uint8_t *bytes) {
    for (uint32_t i = 0; i < plan->p.n_relocs; i++) {
        const ov_reloc *r = &plan->p.relocs[i];
        if (r->blob != blob) continue;
        const ov_memory *segment = r->segment == OV_SEG_RECORD ? record : c->segments[r->segment];
        uint64_t address = ov_memory_address(segment) + r->addend;
        memcpy(bytes + r->offset, &address, sizeof address);
    }
}

typedef struct {
    ov_device *d;
    const ov_plan *plan;
    const ov_context *c;
    const ov_recording *r;
    const uint8_t *push;
    void *commands; // the command buffer being filled
    vk_handle bound;
    uint32_t dispatches;
    bool profile;
} recorder;

static void record_dispatch(recorder *k, const ov_command *c) {
    vk_functions *vk = &k->d->vk;
    vk_handle pipeline = k->plan->p.pipelines[c->pipeline];
    if (pipeline != k->bound) vk->CmdBindPipeline(k->commands, VK_BIND_COMPUTE, pipeline);
    k->bound = pipeline;
    if (c->push_size)
        vk->CmdPushConstants(k->commands, k->d->desc.pipeline_layout, VK_SHADER_STAGE_COMPUTE, 0, c->push_size,
                             k->push + c->push_offset);
    if (k->profile) vk->CmdWriteTimestamp(k->commands, VK_STAGE_TOP, k->r->queries, 2 * k->dispatches);
    if (c->op == OV_OP_DISPATCH) vk->CmdDispatch(k->commands, c->x, c->y, c->z);
    else vk->CmdDispatchIndirect(k->commands, k->r->record->chunk->buffer, k->r->record->offset + c->a);
    if (k->profile) vk->CmdWriteTimestamp(k->commands, VK_STAGE_COMPUTE, k->r->queries, 2 * k->dispatches + 1);
    k->dispatches++;
}

static void record_copy(recorder *k, const ov_memory *from, uint64_t from_offset, uint32_t segment, const ov_command *c) {
    const ov_memory *to = segment == OV_SEG_RECORD ? k->r->record : k->c->segments[segment];
    VkBufferCopy region = {from->offset + from_offset, to->offset + c->b, c->size};
    if (c->size) k->d->vk.CmdCopyBuffer(k->commands, from->chunk->buffer, to->chunk->buffer, 1, &region);
}

static int begin(recorder *k, uint32_t part, ov_error *err) {
    k->commands = k->r->commands[part];
    k->bound = 0;
    VkCommandBufferBeginInfo info = {.type = VK_TYPE_COMMAND_BUFFER_BEGIN_INFO};
    int32_t result = k->d->vk.BeginCommandBuffer(k->commands, &info);
    return result ? ov_vk_fail(k->d, err, "vkBeginCommandBuffer", result) : OV_OK;
}

static int end(recorder *k, ov_error *err) {
    int32_t result = k->d->vk.EndCommandBuffer(k->commands);
    return result ? ov_vk_fail(k->d, err, "vkEndCommandBuffer", result) : OV_OK;
}

static int record_commands(recorder *k, ov_error *err) {
    const ov_plan_desc *p = &k->plan->p;
    uint32_t part = 0;
    OV_TRY(begin(k, part, err));
    if (k->profile) k->d->vk.CmdResetQueryPool(k->commands, k->r->queries, 0, 2 * k->plan->n_dispatches);
    for (const ov_command *c = p->commands; c < p->commands + p->n_commands; c++) {
        switch (c->op) {
        case OV_OP_BARRIER: ov_barrier(k->d, k->commands, k->plan->indirect, false); break;
        case OV_OP_COPY: record_copy(k, c->x == OV_SEG_RECORD ? k->r->record : k->c->segments[c->x], c->a, c->y, c); break;
        case OV_OP_COPY_ABSOLUTE: record_copy(k, (const ov_memory *)(uintptr_t)c->a, c->push_offset, c->y, c); break;
        default:
            if (k->dispatches && k->dispatches % k->r->per_part == 0) {
                OV_TRY(end(k, err));
                OV_TRY(begin(k, ++part, err));
            }
            record_dispatch(k, c);
        }
    }
    // The host reads outputs; a later run, of this block or another, may read what this one wrote on the device.
    ov_barrier(k->d, k->commands, true, true);
    return end(k, err);
}

// Makes what the recording needs and does not have yet.
static int prepare(ov_device *d, const ov_plan *plan, ov_recording *r, bool profile, ov_error *err) {
    int32_t result;
    if (r->per_part != plan->per_part) { // its command buffers are freed with their pool
        if (r->pool) d->vk.DestroyCommandPool(d->handle, r->pool, NULL);
        free(r->commands);
        r->pool = 0;
        r->commands = NULL;
        r->per_part = plan->per_part;
        r->n_parts = plan->n_dispatches ? (plan->n_dispatches + r->per_part - 1) / r->per_part : 1;
    }
    if (!r->pool) {
        VkCommandPoolCreateInfo info = {.type = VK_TYPE_COMMAND_POOL_CREATE_INFO, .family = d->desc.queue_family};
        result = d->vk.CreateCommandPool(d->handle, &info, NULL, &r->pool);
        if (result) return ov_vk_fail(d, err, "vkCreateCommandPool", result);
    }
    if (!r->commands) {
        r->commands = calloc(r->n_parts, sizeof *r->commands);
        if (!r->commands) return ov_fail(err, OV_OUT_OF_MEMORY, "No host memory for a recording.");
        VkCommandBufferAllocateInfo info = {.type = VK_TYPE_COMMAND_BUFFER_ALLOCATE_INFO, .pool = r->pool, .count = r->n_parts};
        result = d->vk.AllocateCommandBuffers(d->handle, &info, r->commands);
        if (result) {
            free(r->commands);
            r->commands = NULL;
            return ov_vk_fail(d, err, "vkAllocateCommandBuffers", result);
        }
    }
    if (plan->p.n_record && !r->record) OV_TRY(ov_alloc(d, plan->p.n_record, OV_UPLOAD, &r->record, err));
    if (plan->p.n_record && !r->values && !(r->values = malloc(plan->p.n_record))) {
        return ov_fail(err, OV_OUT_OF_MEMORY, "No host memory for a recording.");
    }
    if (profile && !r->queries && plan->n_dispatches) {
        VkQueryPoolCreateInfo info = {
            .type = VK_TYPE_QUERY_POOL_CREATE_INFO, .query = VK_QUERY_TIMESTAMP, .count = 2 * plan->n_dispatches};
        result = d->vk.CreateQueryPool(d->handle, &info, NULL, &r->queries);
        if (result) return ov_vk_fail(d, err, "vkCreateQueryPool", result);
    }
    result = d->vk.ResetCommandPool(d->handle, r->pool, 0);
    return result ? ov_vk_fail(d, err, "vkResetCommandPool", result) : OV_OK;
}

int ov_record(ov_device *d, ov_plan *plan, ov_context *c, bool profile, ov_error *err) {
    ov_recording *r = &plan->recordings[c->index];
    const ov_plan_desc *p = &plan->p;
    r->generation = 0;
    OV_TRY(prepare(d, plan, r, profile, err));
    uint8_t *bytes = malloc((size_t)p->n_push + 1);
    if (!bytes) return ov_fail(err, OV_OUT_OF_MEMORY, "No host memory for a recording.");
    if (p->n_push) memcpy(bytes, p->push, p->n_push);
    relocate(plan, c, r->record, 0, bytes);
    if (p->n_record) {
        memcpy(r->values, p->record, p->n_record);
        relocate(plan, c, r->record, 1, r->values);
        memcpy(ov_memory_mapped(r->record), r->values, p->n_record);
    }
    recorder k = {.d = d, .plan = plan, .c = c, .r = r, .push = bytes, .profile = profile && plan->n_dispatches};
    int rc = record_commands(&k, err);
    free(bytes);
    if (rc) return rc;
    r->generation = c->generation;
    r->profiled = profile;
    OV_COUNT(d, recordings, 1);
    return OV_OK;
}

void ov_recording_free(ov_device *d, ov_recording *r) {
    if (r->pool) d->vk.DestroyCommandPool(d->handle, r->pool, NULL);
    if (r->queries) d->vk.DestroyQueryPool(d->handle, r->queries, NULL);
    free(r->commands);
    free(r->values);
    ov_free(r->record);
    memset(r, 0, sizeof *r);
}
