// One OrtEp a session: hands ORT's questions to Python and keeps the first error until there is a place to say it.
//
// ORT answers an error of CreateEp with a quiet session on the CPU and swallows one of GetCapability. So those two never fail:
// the error is kept, one free node is claimed, and Compile fails with the kept sentence (an error of Compile always reaches the
// caller, before ORT complains about nodes that have no CPU kernel). For a graph without a free node there is
// OnSessionInitializationEnd, from ORT 1.27 on.
#include "ort_ep.h"

#include <stdlib.h>
#include <string.h>

typedef struct ov_ort_ep {
    void *slots[OrtEp_SLOTS];
    int64_t id;
    ov_ort_error *error; // kept, or NULL
    ov_ort_profile *profile;
} ov_ort_ep;

// The text of a callback that gave 0 but left no error is that of ov_ort_status_of.
static const ov_ort_error unsaid;

static void keep_error(ov_ort_ep *ep, const ov_ort_error *error) {
    ep->error = malloc(sizeof *ep->error);
    if (ep->error) memcpy(ep->error, error, sizeof *error);
    else ep->error = (ov_ort_error *)&unsaid;
}

static const char *ep_name(const void *self) {
    (void)self;
    return "VulkanEP";
}

// Claims the first node that no EP has, as a group of one (a larger group might not be convex and would be dropped).
static OrtStatus *claim_one(const OrtGraph *graph, OrtEpGraphSupportInfo *support) {
    typedef OrtStatus *(*nodes_fn)(const OrtGraph *, const OrtNode **, size_t);
    typedef OrtStatus *(*fuse_fn)(OrtEpGraphSupportInfo *, const OrtNode *const *, size_t, const void *);
    size_t count = 0;
    OrtStatus *status = ORT_GET(OrtApi_Graph_GetNumNodes, graph, &count);
    if (status || !count) return status;
    const OrtNode **nodes = calloc(count, sizeof *nodes);
    if (!nodes) return ov_ort_no_memory();
    status = ORT_SLOT(ov_ort.api, OrtApi_Graph_GetNodes, nodes_fn)(graph, nodes, count);
    for (size_t i = 0; i < count && !status; i++) {
        const char *owner = NULL;
        status = ORT_GET(OrtApi_Node_GetEpName, nodes[i], &owner);
        if (!status && (!owner || !*owner)) {
            status = ORT_SLOT(ov_ort.ep_api, OrtEpApi_EpGraphSupportInfo_AddNodesToFuse, fuse_fn)(support, nodes + i, 1, NULL);
            break;
        }
    }
    free(nodes);
    return status;
}

static OrtStatus *ep_capability(void *self, const OrtGraph *graph, OrtEpGraphSupportInfo *support) {
    ov_ort_ep *ep = self;
    ov_ort_error error;
    error.code = 0;
    if (!ep->error && !(ov_ort.ready && ov_py_capability(ep->id, (void *)graph, support, &error))) keep_error(ep, &error);
    return ep->error ? claim_one(graph, support) : NULL;
}

static OrtStatus *ep_compile(void *self, const OrtGraph **graphs, const OrtNode **fused, size_t count, void **infos,
                             OrtNode **context_nodes) {
    ov_ort_ep *ep = self;
    ov_ort_error error;
    error.code = 0;
    if (ep->error) return ov_ort_status_of(ep->error);
    if (!count) return NULL;
    ov_block **blocks = calloc(count, sizeof *blocks);
    if (!blocks) return ov_ort_no_memory();
    OrtStatus *status = NULL;
    if (!(ov_ort.ready &&
          ov_py_compile(ep->id, (void **)graphs, (void **)fused, count, blocks, (void **)context_nodes, &error))) {
        status = ov_ort_status_of(&error);
    }
    for (size_t i = 0; i < count && !status; i++) {
        infos[i] = ov_ort_new_compute(ep->id, ep->profile, blocks[i]);
        // When Compile fails ORT releases the entries that are already filled; Python closes the other blocks in ReleaseEp.
        if (!infos[i]) status = ov_ort_no_memory();
    }
    free(blocks);
    return status;
}

static void ep_release_infos(void *self, void **infos, size_t count) {
    (void)self;
    for (size_t i = 0; i < count; i++) ov_ort_release_compute(infos[i]);
}

static OrtStatus *ep_dynamic_options(void *self, char **keys, char **values, size_t count) {
    ov_ort_ep *ep = self;
    ov_ort_error error;
    error.code = 0;
    if (ov_ort.ready && ov_py_dynamic_options(ep->id, keys, values, count, &error)) return NULL;
    return ov_ort_status_of(&error);
}

static OrtStatus *ep_is_concurrent(void *self, bool *yes) {
    (void)self;
    *yes = true; // a block has its own pool of run contexts, further threads queue there
    return NULL;
}

static OrtStatus *ep_create_profiler(void *self, void **out) {
    return ov_ort_create_profiler(((ov_ort_ep *)self)->profile, out);
}

static OrtStatus *ep_initialized(void *self) {
    ov_ort_ep *ep = self;
    return ep->error ? ov_ort_status_of(ep->error) : NULL;
}

OrtStatus *ov_ort_create_ep(void **metadata, size_t count, const OrtSessionOptions *options, void **out) {
    static int64_t last_id;
    ov_ort_ep *ep = calloc(1, sizeof *ep);
    if (!ep || !(ep->profile = ov_ort_profile_new())) {
        free(ep);
        return ov_ort_no_memory();
    }
    ov_ort_begin(ep->slots);
    ep->slots[OrtEp_GetName] = (void *)ep_name;
    ep->slots[OrtEp_GetCapability] = (void *)ep_capability;
    ep->slots[OrtEp_Compile] = (void *)ep_compile;
    ep->slots[OrtEp_ReleaseNodeComputeInfos] = (void *)ep_release_infos;
    ep->slots[OrtEp_SetDynamicOptions] = (void *)ep_dynamic_options;
    ep->slots[OrtEp_OnRunStart] = (void *)ov_ort_run_begins;
    ep->slots[OrtEp_OnRunEnd] = (void *)ov_ort_run_ends;
    if (ov_ort.version >= 24) ep->slots[OrtEp_IsConcurrentRunSupported] = (void *)ep_is_concurrent;
    if (ov_ort.version >= 25) ep->slots[OrtEp_CreateProfiler] = (void *)ep_create_profiler;
    if (ov_ort.version >= 27) ep->slots[OrtEp_OnSessionInitializationEnd] = (void *)ep_initialized;
    ep->id = __atomic_add_fetch(&last_id, 1, __ATOMIC_RELAXED);

    ov_ort_error error;
    error.code = 0;
    if (!(ov_ort.ready && ov_py_create_ep(ep->id, metadata, count, (void *)options, &error))) keep_error(ep, &error);
    *out = ep;
    return NULL;
}

void ov_ort_release_ep(void *released) {
    ov_ort_ep *ep = released;
    if (!ep) return;
    if (ov_ort.ready) ov_py_release_ep(ep->id);
    if (ep->error != &unsaid) free(ep->error);
    ov_ort_profile_drop(ep->profile);
    free(ep);
}
