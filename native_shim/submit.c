// Submitting a recording, in pieces of such a length that a run can be stopped between two of them.
//
// A recording has a command buffer every so many dispatches. That number is found by the clock: the time of a plan's first run
// says whether 64 dispatches are too long a wait, and the time of every run how many command buffers one submit takes, so that a
// short run is one submit.
#include "engine.h"

enum { SUBMIT_NS = 20000000 }; // what one submit is to take, where a run is longer
enum { SLOW = 4 };             // parts that take so many times that are recorded anew

int ov_cancelled(const ov_io *io, ov_error *err) {
    if (!io->cancelled || !io->cancelled(io->user)) return OV_OK;
    return ov_fail(err, OV_CANCELLED, "The run was cancelled before its end; it has no outputs.");
}

int ov_submit_run(ov_device *d, ov_context *c, const ov_plan *plan, const ov_recording *r, const ov_io *io, ov_error *err) {
    uint32_t at_once = (plan->per_submit + r->per_part - 1) / r->per_part, submits = 0;
    for (uint32_t part = 0; part < r->n_parts; part += at_once, submits++) {
        if (submits >= 2) OV_TRY(ov_wait(d, c->semaphore, c->value - 1, err));
        OV_TRY(ov_cancelled(io, err));
        uint32_t left = r->n_parts - part;
        OV_TRY(ov_submit(d, r->commands + part, at_once < left ? at_once : left, c->semaphore, c->value + 1, err));
        c->value++;
    }
    OV_COUNT(d, dispatches, plan->n_dispatches);
    OV_COUNT(d, barriers, plan->n_barriers);
    return OV_OK;
}

bool ov_learn_pace(ov_plan *plan, int64_t ns) {
    if (plan->n_dispatches < 2) return false;
    int64_t fit = (int64_t)plan->n_dispatches * SUBMIT_NS / (ns > 0 ? ns : 1);
    plan->per_submit = fit < 1 ? 1 : fit < plan->n_dispatches ? (uint32_t)fit : plan->n_dispatches;
    uint32_t part = plan->per_part < plan->n_dispatches ? plan->per_part : plan->n_dispatches;
    if (atomic_exchange(&plan->timed, true) || fit * SLOW >= part) return false;
    plan->per_part = plan->per_submit;
    return true;
}
