// The library's two entry points and the EP factory. The factory is static: ORT hands it to ReleaseEp and ReleaseAllocator even
// after ReleaseEpFactory (a session or a device value may outlive its registration), so it may never go away.
#include "ort_ep.h"

#include <stdio.h>
#include <string.h>

ov_ort_state ov_ort;

static void *factory[OrtEpFactory_SLOTS];

void ov_ort_begin(void **slots) {
    memcpy(slots, &ov_ort.version, sizeof ov_ort.version);
}

OrtStatus *ov_ort_status(int code, const char *text) {
    // Before 1.28 Python had no class for this code and raised RuntimeError, which ORT's wrapper answers with the CPU.
    if (code == ORT_DEVICE_RESET && ov_ort.version < 28) code = ORT_ENGINE_ERROR;
    return ORT_SLOT(ov_ort.api, OrtApi_CreateStatus, OrtStatus * (*)(int, const char *))(code, text);
}

OrtStatus *ov_ort_status_of(const ov_ort_error *error) {
    if (error->code) return ov_ort_status(error->code, error->text);
    return ov_ort_status(ORT_ENGINE_ERROR, ov_ort.ready
                                               ? "VulkanEP: a Python callback failed without saying why."
                                               : "VulkanEP: its Python package is not loaded, or the interpreter is exiting.");
}

OrtStatus *ov_ort_no_memory(void) {
    return ov_ort_status(ORT_ENGINE_ERROR, "VulkanEP: the host is out of memory.");
}

static const char *factory_name(const void *self) {
    (void)self;
    return "VulkanEP";
}

static const char *factory_vendor(const void *self) {
    (void)self;
    return "onnx-vulkan";
}

// ORT demands a semantic version.
static const char *factory_version(const void *self) {
    (void)self;
    return "0.1.0";
}

static uint32_t factory_vendor_id(const void *self) {
    (void)self;
    return OV_ORT_VENDOR_ID;
}

static OrtStatus *factory_devices(void *self, void **hardware, size_t count, void **made, size_t room, size_t *n_made) {
    ov_ort_error error;
    error.code = 0;
    *n_made = 0;
    if (ov_ort.ready && ov_py_devices(self, hardware, count, made, room, n_made, &error)) return NULL;
    return ov_ort_status_of(&error);
}

static OrtStatus *factory_create_ep(void *self, void **hardware, void **metadata, size_t count, const OrtSessionOptions *options,
                                    const OrtLogger *logger, void **ep) {
    (void)self, (void)hardware, (void)logger;
    return ov_ort_create_ep(metadata, count, options, ep);
}

static void factory_release_ep(void *self, void *ep) {
    (void)self;
    ov_ort_release_ep(ep);
}

static bool factory_is_stream_aware(const void *self) {
    (void)self;
    return false;
}

// The newest API version that both sides know, or 0 for a runtime that is too old. GetApi gives NULL for a version above the
// runtime's own; runtime "1.32.0" has API version 32.
static uint32_t common_version(const void *api_base) {
    const char *text = ORT_SLOT(api_base, OrtApiBase_GetVersionString, const char *(*)(void))();
    unsigned major = 0, minor = 0;
    if (!text || sscanf(text, "%u.%u", &major, &minor) != 2 || major != 1 || minor < ORT_ABI_OLDEST) return 0;
    return minor < ORT_ABI_NEWEST ? minor : ORT_ABI_NEWEST;
}

OV_EXPORT OrtStatus *CreateEpFactories(const char *registered_name, const OrtApiBase *api_base, const OrtLogger *logger,
                                       void **factories, size_t room, size_t *count) {
    (void)registered_name, (void)logger;
    typedef const void *(*get_api_fn)(uint32_t);
    get_api_fn get_api = ORT_SLOT(api_base, OrtApiBase_GetApi, get_api_fn);
    uint32_t version = common_version(api_base);
    const void *api = version ? get_api(version) : NULL;
    *count = 0;
    if (!api) {
        // Version 1 exists everywhere and has CreateStatus in the same slot.
        return ORT_SLOT(get_api(1), OrtApi_CreateStatus, OrtStatus * (*)(int, const char *))(
            ORT_NOT_IMPLEMENTED, "VulkanEP needs ONNX Runtime 1.23 or newer, for its plug-in interface: update onnxruntime.");
    }
    ov_ort.api_base = api_base;
    ov_ort.api = api;
    ov_ort.ep_api = ORT_SLOT(api, OrtApi_GetEpApi, const void *(*)(void))();
    ov_ort.version = version;
    if (!ov_ort.ready) {
        return ov_ort_status(ORT_ENGINE_ERROR,
                             "VulkanEP plans in Python: import onnxruntime_ep_vulkan, which registers this library "
                             "itself, instead of (or before) registering it by path.");
    }
    if (room < 1) return ov_ort_status(ORT_INVALID_ARGUMENT, "VulkanEP: ONNX Runtime has no room for a factory.");

    ov_ort_begin(factory);
    factory[OrtEpFactory_GetName] = (void *)factory_name;
    factory[OrtEpFactory_GetVendor] = (void *)factory_vendor;
    factory[OrtEpFactory_GetVendorId] = (void *)factory_vendor_id;
    factory[OrtEpFactory_GetVersion] = (void *)factory_version;
    factory[OrtEpFactory_GetSupportedDevices] = (void *)factory_devices;
    factory[OrtEpFactory_CreateEp] = (void *)factory_create_ep;
    factory[OrtEpFactory_ReleaseEp] = (void *)factory_release_ep;
    factory[OrtEpFactory_CreateAllocator] = (void *)ov_ort_create_allocator;
    factory[OrtEpFactory_ReleaseAllocator] = (void *)ov_ort_release_allocator;
    factory[OrtEpFactory_CreateDataTransfer] = (void *)ov_ort_create_data_transfer;
    factory[OrtEpFactory_IsStreamAware] = (void *)factory_is_stream_aware;
    factories[0] = factory;
    *count = 1;
    return NULL;
}

OV_EXPORT OrtStatus *ReleaseEpFactory(void *released) {
    (void)released; // static, see the top
    return NULL;
}
