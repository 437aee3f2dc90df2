// Plans as data: copying and checking what Python hands over, the expressions of run-time extents, and matching a run to a plan.
#include <stdlib.h>
#include <string.h>

#include "engine.h"

enum { MAX_STACK = 64 };
enum { PART = 64 }; // dispatches of a command buffer, as long as nothing is known of their time

// The multiplier and shift of Granlund and Montgomery's round-up method; the same as plan/table.py's divisor_words.
void ov_divisor_words(int64_t d, uint32_t out[3]) {
    out[0] = 0, out[1] = 1, out[2] = 0;
    if (d <= 0 || d >= 1ll << 31) return;
    uint32_t s = 0;
    while ((1ull << s) < (uint64_t)d) s++;
    out[0] = (uint32_t)d;
    out[1] = (uint32_t)((((1ull << s) - (uint64_t)d) << 32) / (uint64_t)d + 1);
    out[2] = s;
}

static int64_t floor_div(int64_t a, int64_t b) {
    if (!b) return 0; // a run that divides by a zero extent does no work with the result
    if (b == -1) return (int64_t)(0 - (uint64_t)a);
    int64_t q = a / b;
    return q - ((a % b != 0) && ((a < 0) != (b < 0)));
}

int64_t ov_eval(const ov_plan *plan, uint32_t expr, const int64_t *symbols) {
    int64_t stack[MAX_STACK + 1];
    int64_t *top = stack;
    stack[0] = 0; // the value of an empty expression
    for (const int64_t *code = plan->p.code + expr;;) {
        switch (*code++) {
        case OV_END: return *top;
        case OV_PUSH: *++top = *code++; continue;
        case OV_SYM: *++top = symbols[*code++]; continue;
        case OV_ADD: top[-1] = (int64_t)((uint64_t)top[-1] + (uint64_t)top[0]); break;
        case OV_MUL: top[-1] = (int64_t)((uint64_t)top[-1] * (uint64_t)top[0]); break;
        case OV_FLOORDIV: top[-1] = floor_div(top[-1], top[0]); break;
        case OV_MIN: top[-1] = top[-1] < top[0] ? top[-1] : top[0]; break;
        case OV_MAX: top[-1] = top[-1] > top[0] ? top[-1] : top[0]; break;
        }
        top--;
    }
}

// Checks once what ov_eval then relies on.
static bool expr_ok(const ov_plan_desc *p, uint32_t expr, int64_t n_symbols) {
    uint32_t at = expr, depth = 0;
    while (at < p->n_code) {
        int64_t op = p->code[at++];
        if (op == OV_END) return true;
        if (op == OV_PUSH || op == OV_SYM) {
            if (at >= p->n_code || depth == MAX_STACK) return false;
            int64_t operand = p->code[at++];
            if (op == OV_SYM && (operand < 0 || operand >= n_symbols)) return false;
            depth++;
        } else {
            if (op < OV_ADD || op > OV_MAX || depth < 2) return false;
            depth--;
        }
    }
    return false;
}

static uint64_t key_bytes(const ov_plan_desc *p, const ov_io_desc *io) {
    uint64_t n = 1;
    for (uint32_t i = 0; i < io->rank; i++) n *= (uint64_t)p->keys[io->dims + i].value;
    return ov_packed_bytes(io, n);
}

static const char *check_io(const ov_plan_desc *p, uint32_t n_inputs, uint32_t n_outputs) {
    uint64_t host = 0;
    for (uint32_t i = 0; i < n_inputs; i++) {
        const ov_io_desc *io = &p->inputs[i];
        if (io->rank > OV_MAX_RANK) return "an input's rank is above 16";
        if (!io->bits) return "an input's elements have no bits";
        if ((uint64_t)io->dims + io->rank > p->n_keys) return "an input's dims lie outside the keys";
        if (io->offset > p->input_size || io->capacity > p->input_size - io->offset) return "an input lies outside its segment";
        if (!(io->flags & OV_IO_HOST_KNOWN)) continue;
        for (uint32_t k = 0; k < io->rank; k++)
            if (p->keys[io->dims + k].symbol >= 0) return "a host-known input has a run-time dim";
        host += key_bytes(p, io);
    }
    if (host != p->n_host_keys) return "the host-known bytes do not add up";
    for (uint32_t i = 0; i < n_outputs; i++) {
        const ov_io_desc *io = &p->outputs[i];
        if (io->rank > OV_MAX_RANK) return "an output's rank is above 16";
        if (!io->bits) return "an output's elements have no bits";
        if ((uint64_t)io->dims + io->rank > p->n_output_dims) return "an output's dims lie outside their array";
        if (io->offset > p->output_size || io->capacity > p->output_size - io->offset)
            return "an output lies outside its segment";
    }
    for (uint32_t i = 0; i < p->n_output_dims; i++)
        if (!expr_ok(p, p->output_dims[i], (int64_t)p->n_symbols + p->n_derived)) return "an output dim's expression is broken";
    for (uint32_t i = 0; i < p->n_keys; i++)
        if (p->keys[i].symbol >= (int64_t)p->n_symbols) return "a key names a symbol that does not exist";
    return NULL;
}

static bool in_segment(const ov_plan_desc *p, uint64_t segment, uint64_t offset, uint64_t size) {
    const uint64_t sizes[OV_SEGMENTS] = {p->arena_size, p->input_size, p->output_size, p->n_record, 16};
    return segment < OV_SEGMENTS && offset <= sizes[segment] && size <= sizes[segment] - offset;
}

static const char *check_commands(const ov_plan_desc *p) {
    for (uint32_t i = 0; i < p->n_commands; i++) {
        const ov_command *c = &p->commands[i];
        switch (c->op) {
        case OV_OP_DISPATCH_INDIRECT:
            if (c->a % 4 || c->a > p->n_record || p->n_record - c->a < 12) return "an indirect grid lies outside the record";
            // fall through
        case OV_OP_DISPATCH:
            if (c->pipeline >= p->n_pipelines) return "a dispatch names a pipeline that does not exist";
            if (c->label >= p->n_labels) return "a dispatch names a label that does not exist";
            if (c->push_size % 4 || (uint64_t)c->push_offset + c->push_size > p->n_push)
                return "push constants lie outside their blob";
            break;
        case OV_OP_COPY:
            if (!in_segment(p, c->x, c->a, c->size) || !in_segment(p, c->y, c->b, c->size))
                return "a copy lies outside its segments";
            break;
        case OV_OP_COPY_ABSOLUTE:
            if (!c->a || !in_segment(p, c->y, c->b, c->size)) return "a copy of a weight lies outside its segment";
            break;
        case OV_OP_BARRIER: break;
        default: return "there is an unknown command";
        }
    }
    return NULL;
}

static const char *check_values(const ov_plan_desc *p, uint32_t n_inputs, uint32_t n_outputs) {
    static const uint32_t widths[] = {4, 8, 12, 8, 8};
    int64_t n_symbols = (int64_t)p->n_symbols + p->n_derived;
    if (n_symbols > OV_MAX_SYMBOLS) return "it has more than 512 run-time symbols";
    for (uint32_t i = 0; i < p->n_derived; i++) {
        if (!expr_ok(p, p->derived[i], (int64_t)p->n_symbols + i)) return "a derived symbol's expression is broken";
    }
    for (uint32_t i = 0; i < p->n_relocs; i++) {
        const ov_reloc *r = &p->relocs[i];
        uint32_t room = r->blob ? p->n_record : p->n_push;
        if (r->blob > 1 || r->segment >= OV_SEGMENTS || r->offset > room || room - r->offset < 8) return "a relocation is broken";
    }
    for (uint32_t i = 0; i < p->n_patches; i++) {
        const ov_patch *q = &p->patches[i];
        if (q->kind > OV_PATCH_EXTERNAL_OUT || q->offset > p->n_record || p->n_record - q->offset < widths[q->kind])
            return "a patch lies outside the record";
        if (!expr_ok(p, q->expr, n_symbols)) return "a patch's expression is broken";
        if (q->kind == OV_PATCH_EXTERNAL_IN && q->index >= n_inputs) return "a patch names an input that does not exist";
        if (q->kind == OV_PATCH_EXTERNAL_OUT && q->index >= n_outputs) return "a patch names an output that does not exist";
    }
    for (uint32_t i = 0; i < p->n_guards; i++)
        if (!expr_ok(p, p->guards[i].expr, n_symbols)) return "a guard's expression is broken";
    return NULL;
}

int ov_plan_create(const ov_plan_desc *desc, uint32_t n_inputs, uint32_t n_outputs, ov_plan **out, ov_error *err) {
    const char *wrong = check_values(desc, n_inputs, n_outputs);
    if (!wrong) wrong = check_io(desc, n_inputs, n_outputs);
    if (!wrong) wrong = check_commands(desc);
    if (wrong) return ov_fail(err, OV_FAILED, "The plan is ill-formed: %s. This is a bug in the planner.", wrong);

    struct part {
        const void **pointer;
        size_t size;
    };
    ov_plan *plan = calloc(1, sizeof *plan);
    if (!plan) return ov_fail(err, OV_OUT_OF_MEMORY, "No host memory for a plan.");
    ov_plan_desc *p = &plan->p;
    *p = *desc;
#define PART(field, count)                                                                                                       \
    {                                                                                                                            \
        (const void **)(void *)&p->field, (size_t)(count) * sizeof *p->field                                                     \
    }
    struct part parts[] = {
        PART(commands, p->n_commands),   PART(push, p->n_push),        PART(record, p->n_record),
        PART(host_keys, p->n_host_keys), PART(relocs, p->n_relocs),    PART(patches, p->n_patches),
        PART(code, p->n_code),           PART(guards, p->n_guards),    PART(keys, p->n_keys),
        PART(inputs, n_inputs),          PART(outputs, n_outputs),     PART(output_dims, p->n_output_dims),
        PART(pipelines, p->n_pipelines), PART(labels, p->labels_size), PART(derived, p->n_derived),
    };
#undef PART
    enum { N_PARTS = sizeof parts / sizeof *parts };
    size_t total = 0;
    for (int i = 0; i < N_PARTS; i++) total += (parts[i].size + 15) & ~(size_t)15;
    uint8_t *storage = plan->storage = malloc(total + 1);
    plan->labels = calloc(p->n_labels + 1, sizeof *plan->labels);
    plan->in_external = calloc(n_inputs + n_outputs + 1, 1);
    if (!storage || !plan->labels || !plan->in_external) {
        ov_plan_free(plan);
        return ov_fail(err, OV_OUT_OF_MEMORY, "No host memory for a plan.");
    }
    plan->out_external = plan->in_external + n_inputs;
    for (int i = 0; i < N_PARTS; i++) {
        if (parts[i].size) memcpy(storage, *parts[i].pointer, parts[i].size);
        *parts[i].pointer = storage;
        storage += (parts[i].size + 15) & ~(size_t)15;
    }

    const char *label = p->labels, *end = p->labels + p->labels_size;
    for (uint32_t i = 0; i < p->n_labels; i++) {
        const char *stop = label < end ? memchr(label, 0, (size_t)(end - label)) : NULL;
        plan->labels[i] = stop ? label : "?";
        if (stop) label = stop + 1;
    }
    for (uint32_t i = 0; i < p->n_patches; i++) {
        const ov_patch *q = &p->patches[i];
        if (q->kind == OV_PATCH_EXTERNAL_IN) plan->in_external[q->index] = 1;
        if (q->kind == OV_PATCH_EXTERNAL_OUT) plan->out_external[q->index] = plan->any_out_external = 1;
    }
    for (uint32_t i = 0; i < p->n_relocs; i++) plan->uses_error |= p->relocs[i].segment == OV_SEG_ERROR;
    plan->per_part = plan->per_submit = PART;
    for (uint32_t i = 0; i < p->n_commands; i++) {
        uint32_t op = p->commands[i].op;
        plan->n_barriers += op == OV_OP_BARRIER;
        plan->n_dispatches += op == OV_OP_DISPATCH || op == OV_OP_DISPATCH_INDIRECT;
        plan->indirect |= op == OV_OP_DISPATCH_INDIRECT;
    }
    *out = plan;
    return OV_OK;
}

void ov_plan_free(ov_plan *plan) {
    if (!plan) return;
    free(plan->storage);
    free(plan->labels);
    free(plan->in_external);
    free(plan->recordings);
    free(plan);
}

bool ov_plan_match(const ov_plan *plan, const ov_tensor *inputs, uint32_t n_inputs, int64_t *symbols) {
    const ov_plan_desc *p = &plan->p;
    for (uint32_t i = 0; i < p->n_symbols; i++) symbols[i] = -1;
    for (uint32_t i = 0; i < n_inputs; i++) {
        const ov_io_desc *io = &p->inputs[i];
        const ov_tensor *t = &inputs[i];
        if (t->rank != io->rank) return false;
        for (uint32_t k = 0; k < io->rank; k++) {
            const ov_key *key = &p->keys[io->dims + k];
            if (key->symbol < 0) {
                if (t->dims[k] != key->value) return false;
                continue;
            }
            if (t->dims[k] > key->value || (symbols[key->symbol] >= 0 && symbols[key->symbol] != t->dims[k])) return false;
            symbols[key->symbol] = t->dims[k];
        }
    }
    const uint8_t *host = p->host_keys;
    for (uint32_t i = 0; i < n_inputs; i++) {
        if (!(p->inputs[i].flags & OV_IO_HOST_KNOWN)) continue;
        uint64_t size = key_bytes(p, &p->inputs[i]);
        if (size && (!inputs[i].data || memcmp(inputs[i].data, host, size))) return false;
        host += size;
    }
    for (uint32_t i = 0; i < p->n_derived; i++) symbols[p->n_symbols + i] = ov_eval(plan, p->derived[i], symbols);
    for (uint32_t i = 0; i < p->n_guards; i++) {
        const ov_guard *g = &p->guards[i];
        int64_t value = ov_eval(plan, g->expr, symbols);
        if ((g->nonneg ? value >= 0 : value == 0) != (g->answer != 0)) return false;
    }
    return true;
}
