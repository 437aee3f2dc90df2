// What the ORT-facing C files share: the runtime's tables, error passing, and the callbacks into Python.
//
// Knows ORT's ABI and the callbacks of `onnxruntime_ep_vulkan`; no Vulkan and no ONNX.
#ifndef ONNX_VULKAN_ORT_EP_H
#define ONNX_VULKAN_ORT_EP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "onnx_vulkan.h"
#include "ort_abi.h"

#if defined(_WIN32)
#define OV_EXPORT __declspec(dllexport)
#else
#define OV_EXPORT __attribute__((visibility("default")))
#endif

// Slot `slot` of an ORT table, as a function of the given type. Converting a void * to a function pointer is what every
// platform with dlsym allows.
#define ORT_SLOT(table, slot, type) ((type)(((void *const *)(table))[slot]))

// The common shapes of ORT functions: a getter `(handle, out)` that gives a status, and a release.
typedef OrtStatus *(*ort_get_fn)(const void *handle, void *out);
typedef void (*ort_release_fn)(void *handle);

#define ORT_GET(slot, handle, out) (ORT_SLOT(ov_ort.api, slot, ort_get_fn)((handle), (out)))
#define ORT_RELEASE(slot, handle) (ORT_SLOT(ov_ort.api, slot, ort_release_fn)(handle))

// cdef begin
// An error on its way from Python to an OrtStatus: an OrtErrorCode (0: none) and a sentence.
typedef struct ov_ort_error {
    int code;
    char text[16384];
} ov_ort_error;

// The runtime that loaded us. Python sets `ready` once its callbacks are attached and clears it at interpreter exit: while it
// is 0 nothing enters Python (an `extern "Python"` function with nothing attached would quietly give 0).
typedef struct ov_ort_state {
    const void *api_base, *api, *ep_api;
    uint32_t version;
    volatile int ready;
    OrtMemoryInfo *memory_info; // of our device memory; made by Python once, and never released
    ov_device *device;          // whose memory the allocator and the data transfer use; set by Python, which keeps it alive
} ov_ort_state;

extern ov_ort_state ov_ort;

// How many allocations ORT holds in device memory.
size_t ov_ort_live_allocations(void);

// The vendor id of our device memory in ORT. Not a PCI id (those have 16 bits): ORT takes memories with equal ids for the same,
// and a pointer of the CUDA EP means nothing to us.
enum { OV_ORT_VENDOR_ID = 0x564B4550 };

// The callbacks. All but the releases give 1 for success, or 0 with *error filled in.
OV_PYTHON int ov_py_devices(void *factory, void **hardware, size_t count, void **made, size_t room, size_t *n_made,
                            ov_ort_error *error);
OV_PYTHON int ov_py_create_ep(int64_t ep, void **metadata, size_t count, void *session_options, ov_ort_error *error);
OV_PYTHON int ov_py_capability(int64_t ep, void *graph, void *support, ov_ort_error *error);
// context_nodes: where to put the EPContext nodes of a session that writes them; all NULL when it fails.
OV_PYTHON int ov_py_compile(int64_t ep, void **graphs, void **fused, size_t count, ov_block **blocks, void **context_nodes,
                            ov_ort_error *error);
OV_PYTHON int ov_py_dynamic_options(int64_t ep, char **keys, char **values, size_t count, ov_ort_error *error);
// Opens the device of the allocator and stores it in ov_ort.device.
OV_PYTHON int ov_py_open_device(ov_ort_error *error);
OV_PYTHON void ov_py_release_block(int64_t ep, ov_block *block);
OV_PYTHON void ov_py_release_ep(int64_t ep);
// cdef end

// ort_factory.c
// Writes the API version into slot 0 of a struct for ORT.
void ov_ort_begin(void **slots);
OrtStatus *ov_ort_status(int code, const char *text);
OrtStatus *ov_ort_status_of(const ov_ort_error *error);
OrtStatus *ov_ort_no_memory(void);

// ort_ep.c
OrtStatus *ov_ort_create_ep(void **metadata, size_t count, const OrtSessionOptions *options, void **out);
void ov_ort_release_ep(void *ep);

// ort_profile.c: kernel times for ORT's profiler. One record keeper an EP, counted.
typedef struct ov_ort_profile ov_ort_profile;
ov_ort_profile *ov_ort_profile_new(void);
void ov_ort_profile_drop(ov_ort_profile *profile);
bool ov_ort_profile_active(const ov_ort_profile *profile);
void ov_ort_profile_run(ov_ort_profile *profile, ov_block *block);
OrtStatus *ov_ort_create_profiler(ov_ort_profile *profile, void **out);

// ort_compute.c: the OrtNodeComputeInfo of one block; NULL when there is no host memory.
void *ov_ort_new_compute(int64_t ep, ov_ort_profile *profile, ov_block *block);
void ov_ort_release_compute(void *info);
OrtStatus *ov_ort_status_of_kind(int kind, const ov_error *error);

// ort_cancel.c: whether the caller has set the terminate flag of the run that this thread is in.
OrtStatus *ov_ort_run_begins(void *ep, const void *options);
OrtStatus *ov_ort_run_ends(void *ep, const void *options, bool synchronize);
int ov_ort_terminated(void *unused);

// ort_memory.c: device memory for ORT.
OrtStatus *ov_ort_create_allocator(void *factory, const OrtMemoryInfo *info, const OrtKeyValuePairs *options, void **out);
void ov_ort_release_allocator(void *factory, void *allocator);
OrtStatus *ov_ort_create_data_transfer(void *factory, void **out);
// Whether the value lies in memory of our allocator.
bool ov_ort_on_device(const OrtValue *value);

#endif
