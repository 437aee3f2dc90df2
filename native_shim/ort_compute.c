// A run: adapts ORT's kernel context to the engine's ov_io. No Python, no allocation.
#include "ort_ep.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

typedef struct ov_ort_compute {
    void *slots[OrtNodeComputeInfo_SLOTS];
    int64_t ep;
    ov_ort_profile *profile; // the EP's, which outlives this
    ov_block *block;
    _Atomic int profiled; // whether the block takes timestamps now
} ov_ort_compute;

static OrtStatus *terminated(void) {
    return ov_ort_status(ORT_FAIL,
                         "VulkanEP: the run was stopped before its end, because the terminate flag of its RunOptions is set.");
}

OrtStatus *ov_ort_status_of_kind(int kind, const ov_error *error) {
    switch (kind) {
    case OV_INVALID_INPUT: return ov_ort_status(ORT_INVALID_ARGUMENT, error->text);
    case OV_UNSUPPORTED: return ov_ort_status(ORT_NOT_IMPLEMENTED, error->text);
    case OV_CANCELLED: return terminated();
    case OV_DEVICE_LOST: return ov_ort_status(ORT_DEVICE_RESET, error->text);
    default: return ov_ort_status(ORT_ENGINE_ERROR, error->text); // never EP_FAIL: ORT would run again on the CPU
    }
}

// Turns a status of ORT into an error of the run, and releases it. Gives OV_OK for NULL.
static int take_status(OrtStatus *status, ov_error *err) {
    if (!status) return OV_OK;
    typedef const char *(*message_fn)(const OrtStatus *);
    const char *text = ORT_SLOT(ov_ort.api, OrtApi_GetErrorMessage, message_fn)(status);
    err->kind = OV_FAILED;
    strncpy(err->text, text ? text : "ONNX Runtime failed without saying why.", sizeof err->text - 1);
    err->text[sizeof err->text - 1] = 0;
    ORT_RELEASE(OrtApi_ReleaseStatus, status);
    return OV_FAILED;
}

static void place(const OrtValue *value, void *data, ov_tensor *tensor) {
    if (ov_ort_on_device(value)) {
        tensor->address = (uint64_t)(uintptr_t)data;
        tensor->data = ov_host_pointer(ov_ort.device, tensor->address);
    } else {
        tensor->address = 0;
        tensor->data = data;
    }
}

static int run_input(void *context, uint32_t i, ov_tensor *tensor, ov_error *err) {
    typedef OrtStatus *(*input_fn)(const OrtKernelContext *, size_t, const OrtValue **);
    typedef OrtStatus *(*dims_fn)(const OrtTensorTypeAndShapeInfo *, int64_t *, size_t);
    const OrtValue *value = NULL;
    const void *data = NULL;
    OrtTensorTypeAndShapeInfo *info = NULL;
    size_t rank = 0;
    OrtStatus *status = ORT_SLOT(ov_ort.api, OrtApi_KernelContext_GetInput, input_fn)(context, i, &value);
    if (status) return take_status(status, err);
    if (!value) {
        strcpy(err->text, "VulkanEP: ONNX Runtime gave no value for an input of a block.");
        return err->kind = OV_INVALID_INPUT;
    }
    status = ORT_GET(OrtApi_GetTensorTypeAndShape, value, &info);
    if (status) return take_status(status, err);
    status = ORT_GET(OrtApi_GetDimensionsCount, info, &rank);
    if (!status && rank > OV_MAX_RANK) {
        status = ov_ort_status(ORT_NOT_IMPLEMENTED, "VulkanEP: an input of a block has too many dimensions.");
    }
    if (!status) status = ORT_SLOT(ov_ort.api, OrtApi_GetDimensions, dims_fn)(info, tensor->dims, rank);
    ORT_RELEASE(OrtApi_ReleaseTensorTypeAndShapeInfo, info);
    if (!status) status = ORT_GET(OrtApi_GetTensorData, value, &data);
    if (status) return take_status(status, err);
    tensor->rank = (uint32_t)rank;
    place(value, (void *)data, tensor);
    return OV_OK;
}

static int run_output(void *context, uint32_t i, ov_tensor *tensor, ov_error *err) {
    typedef OrtStatus *(*output_fn)(OrtKernelContext *, size_t, const int64_t *, size_t, OrtValue **);
    OrtValue *value = NULL;
    void *data = NULL;
    OrtStatus *status =
        ORT_SLOT(ov_ort.api, OrtApi_KernelContext_GetOutput, output_fn)(context, i, tensor->dims, tensor->rank, &value);
    if (!status) status = ORT_GET(OrtApi_GetTensorMutableData, value, &data);
    if (status) return take_status(status, err);
    place(value, data, tensor);
    return OV_OK;
}

static OrtStatus *compute_state(void *self, OrtNodeComputeContext *context, void **state) {
    (void)context;
    *state = self;
    return NULL;
}

static OrtStatus *compute_run(void *self, void *state, OrtKernelContext *context) {
    (void)state;
    ov_ort_compute *info = self;
    ov_io io = {.user = context, .input = run_input, .output = run_output, .cancelled = ov_ort_terminated};
    ov_error error = {0};
    bool profile = ov_ort_profile_active(info->profile);
    if (profile != (bool)atomic_load_explicit(&info->profiled, memory_order_relaxed)) {
        ov_block_set_profile(info->block, profile);
        atomic_store(&info->profiled, profile);
    }
    int kind = ov_run(info->block, &io, &error);
    if (profile && kind == OV_OK) ov_ort_profile_run(info->profile, info->block);
    return kind == OV_OK ? NULL : ov_ort_status_of_kind(kind, &error);
}

static void compute_release_state(void *self, void *state) {
    (void)self, (void)state;
}

void *ov_ort_new_compute(int64_t ep, ov_ort_profile *profile, ov_block *block) {
    ov_ort_compute *info = calloc(1, sizeof *info);
    if (!info) return NULL;
    ov_ort_begin(info->slots);
    info->slots[OrtNodeComputeInfo_CreateState] = (void *)compute_state;
    info->slots[OrtNodeComputeInfo_Compute] = (void *)compute_run;
    info->slots[OrtNodeComputeInfo_ReleaseState] = (void *)compute_release_state;
    info->ep = ep;
    info->profile = profile;
    info->block = block;
    return info;
}

void ov_ort_release_compute(void *released) {
    ov_ort_compute *info = released;
    if (!info) return;
    if (ov_ort.ready) ov_py_release_block(info->ep, info->block);
    free(info);
}
