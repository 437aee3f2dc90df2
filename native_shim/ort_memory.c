// Device memory for ORT: the allocator behind device OrtValues, and the copies between them and host memory.
//
// A device value's data pointer is its Vulkan device address, so a run reads and writes it where it lies. The allocator is made
// when the library is registered, before there is a device: the first allocation asks Python to open it.
#include "ort_ep.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// Values up to this size are put where the host sees them, so that a run can read shape-like inputs without a copy.
enum { HOST_VISIBLE_BYTES = 4096 };

// The live allocations by address, a chained hash table: ORT frees by pointer.
typedef struct piece {
    struct piece *next;
    uint64_t address;
    ov_memory *memory;
} piece;

enum { BUCKETS = 1024 };
static piece *pieces[BUCKETS];
static size_t n_pieces;
static pthread_mutex_t pieces_lock = PTHREAD_MUTEX_INITIALIZER;

static piece **bucket_of(uint64_t address) {
    return &pieces[(address >> 8) % BUCKETS];
} // addresses are multiples of 256

// Static like the factory: device values may outlive the registration. Its memory info is the one that Python made for the
// OrtEpDevice and keeps.
static void *allocator[OrtAllocator_SLOTS];

static void *memory_alloc(void *self, size_t size) {
    (void)self;
    // An allocator answers with NULL and no more, so the reason goes to stderr.
    if (!ov_ort.device) {
        ov_ort_error error;
        error.code = 0;
        if (!ov_ort.ready || !ov_py_open_device(&error)) {
            if (error.code) fprintf(stderr, "%s\n", error.text);
            return NULL;
        }
    }
    piece *p = malloc(sizeof *p);
    if (!p) return NULL;
    ov_error error = {0};
    ov_memory_info info;
    if (ov_alloc(ov_ort.device, size, size <= HOST_VISIBLE_BYTES ? OV_UPLOAD : OV_DEVICE, &p->memory, &error)) {
        fprintf(stderr, "VulkanEP: %s\n", error.text);
        free(p);
        return NULL;
    }
    ov_memory_get(p->memory, &info);
    p->address = info.address;
    pthread_mutex_lock(&pieces_lock);
    piece **bucket = bucket_of(p->address);
    p->next = *bucket;
    *bucket = p;
    n_pieces++;
    pthread_mutex_unlock(&pieces_lock);
    return (void *)(uintptr_t)info.address;
}

static void memory_free(void *self, void *data) {
    (void)self;
    if (!data || !ov_ort.ready) return; // at interpreter exit the device may be gone, with all its memory
    uint64_t address = (uint64_t)(uintptr_t)data;
    pthread_mutex_lock(&pieces_lock);
    piece **link = bucket_of(address);
    while (*link && (*link)->address != address) link = &(*link)->next;
    piece *p = *link;
    if (p) *link = p->next, n_pieces--;
    pthread_mutex_unlock(&pieces_lock);
    if (p) ov_free(p->memory);
    free(p);
}

size_t ov_ort_live_allocations(void) {
    pthread_mutex_lock(&pieces_lock);
    size_t count = n_pieces;
    pthread_mutex_unlock(&pieces_lock);
    return count;
}

static const OrtMemoryInfo *memory_info(const void *self) {
    (void)self;
    return ov_ort.memory_info;
}

OrtStatus *ov_ort_create_allocator(void *factory, const OrtMemoryInfo *info, const OrtKeyValuePairs *options, void **out) {
    (void)factory, (void)info, (void)options;
    ov_ort_begin(allocator);
    allocator[OrtAllocator_Alloc] = (void *)memory_alloc;
    allocator[OrtAllocator_Reserve] = (void *)memory_alloc;
    allocator[OrtAllocator_Free] = (void *)memory_free;
    allocator[OrtAllocator_Info] = (void *)memory_info;
    *out = allocator;
    return NULL;
}

void ov_ort_release_allocator(void *factory, void *released) {
    (void)factory, (void)released;
}

static bool device_is_ours(const OrtMemoryDevice *device) {
    typedef int (*type_fn)(const OrtMemoryDevice *);
    typedef uint32_t (*vendor_fn)(const OrtMemoryDevice *);
    return device && ORT_SLOT(ov_ort.ep_api, OrtEpApi_MemoryDevice_GetDeviceType, type_fn)(device) == ORT_MEMORY_GPU &&
           ORT_SLOT(ov_ort.ep_api, OrtEpApi_MemoryDevice_GetVendorId, vendor_fn)(device) == OV_ORT_VENDOR_ID;
}

static bool device_is_host(const OrtMemoryDevice *device) {
    typedef int (*type_fn)(const OrtMemoryDevice *);
    return device && ORT_SLOT(ov_ort.ep_api, OrtEpApi_MemoryDevice_GetDeviceType, type_fn)(device) == ORT_MEMORY_CPU;
}

bool ov_ort_on_device(const OrtValue *value) {
    typedef const OrtMemoryDevice *(*device_fn)(const OrtValue *);
    return device_is_ours(ORT_SLOT(ov_ort.ep_api, OrtEpApi_Value_GetMemoryDevice, device_fn)(value));
}

static void transfer_release(void *self) {
    (void)self;
} // static

static bool transfer_can_copy(const void *self, const OrtMemoryDevice *from, const OrtMemoryDevice *to) {
    (void)self;
    bool from_us = device_is_ours(from), to_us = device_is_ours(to);
    return (from_us && (to_us || device_is_host(to))) || (to_us && device_is_host(from));
}

static OrtStatus *transfer_copy(void *self, const OrtValue **from, OrtValue **to, OrtSyncStream **streams, size_t count) {
    (void)self, (void)streams; // every copy has arrived when this returns
    for (size_t i = 0; i < count; i++) {
        const void *source = NULL;
        void *target = NULL;
        size_t size = 0;
        OrtStatus *status = ORT_GET(OrtApi_GetTensorSizeInBytes, from[i], &size);
        if (!status) status = ORT_GET(OrtApi_GetTensorData, from[i], &source);
        if (!status) status = ORT_GET(OrtApi_GetTensorMutableData, to[i], &target);
        if (status) return status;
        if (!size) continue;
        bool from_us = ov_ort_on_device(from[i]), to_us = ov_ort_on_device(to[i]);
        uint64_t source_address = (uint64_t)(uintptr_t)source, target_address = (uint64_t)(uintptr_t)target;
        ov_error error = {0};
        int kind = OV_OK;
        if (from_us && to_us) kind = ov_copy(ov_ort.device, target_address, source_address, size, &error);
        else if (to_us) kind = ov_upload(ov_ort.device, target_address, source, size, &error);
        else if (from_us) kind = ov_download(ov_ort.device, target, source_address, size, &error);
        else memcpy(target, source, size);
        if (kind) return ov_ort_status_of_kind(kind, &error);
    }
    return NULL;
}

OrtStatus *ov_ort_create_data_transfer(void *factory, void **out) {
    (void)factory;
    static void *transfer[OrtDataTransferImpl_SLOTS];
    ov_ort_begin(transfer);
    transfer[OrtDataTransferImpl_Release] = (void *)transfer_release;
    transfer[OrtDataTransferImpl_CanCopy] = (void *)transfer_can_copy;
    transfer[OrtDataTransferImpl_CopyTensors] = (void *)transfer_copy;
    *out = transfer;
    return NULL;
}
