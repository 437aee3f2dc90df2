// `RunOptions.terminate` inside of a block. ORT looks at it between nodes alone, and a whole model may be one node.
//
// A plug-in is handed the OrtRunOptions of each run, but no getter of the flag. Where it lies is found out on an object of our
// own: the one byte among the first that ORT's setter makes 1 and its opposite makes 0 again. Where there is no such byte, a run
// ends with its block.
#include "ort_ep.h"

#include <pthread.h>
#include <string.h>

enum { LOOKED_AT = 64, NOT_FOUND = -1 }; // bytes: two numbers and a string come before the flag, options in maps after it

static pthread_once_t looked = PTHREAD_ONCE_INIT;
static int flag_at = NOT_FOUND;
static _Thread_local const volatile uint8_t *flag; // of the run that this thread is in

static OrtStatus *set(int slot, void *options) {
    typedef OrtStatus *(*set_fn)(void *);
    return ORT_SLOT(ov_ort.api, slot, set_fn)(options);
}

static void look(void) {
    typedef OrtStatus *(*create_fn)(void **);
    void *options = NULL;
    OrtStatus *status = ORT_SLOT(ov_ort.api, OrtApi_CreateRunOptions, create_fn)(&options);
    uint8_t seen[3][LOOKED_AT];
    if (!status) memcpy(seen[0], options, LOOKED_AT);
    if (!status) status = set(OrtApi_RunOptionsSetTerminate, options);
    if (!status) memcpy(seen[1], options, LOOKED_AT);
    if (!status) status = set(OrtApi_RunOptionsUnsetTerminate, options);
    if (!status) memcpy(seen[2], options, LOOKED_AT);
    int changed = 0, at = NOT_FOUND;
    for (int i = 0; i < LOOKED_AT && !status; i++) {
        if (seen[0][i] == seen[1][i] && seen[1][i] == seen[2][i]) continue;
        changed++;
        if (seen[0][i] == 0 && seen[1][i] == 1 && seen[2][i] == 0) at = i;
    }
    if (changed == 1) flag_at = at;
    if (options) ORT_RELEASE(OrtApi_ReleaseRunOptions, options);
    if (status) ORT_RELEASE(OrtApi_ReleaseStatus, status);
}

OrtStatus *ov_ort_run_begins(void *ep, const void *options) {
    (void)ep;
    pthread_once(&looked, look);
    flag = options && flag_at != NOT_FOUND ? (const volatile uint8_t *)options + flag_at : NULL;
    return NULL;
}

OrtStatus *ov_ort_run_ends(void *ep, const void *options, bool synchronize) {
    (void)ep, (void)options, (void)synchronize;
    flag = NULL;
    return NULL;
}

int ov_ort_terminated(void *unused) {
    (void)unused;
    return flag && *flag;
}
