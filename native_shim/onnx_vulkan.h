// The engine's C interface: device memory, blocks with their plans, and the run loop. Used by Python (cffi reads the part
// between the two cdef marks) and by the ORT tables (ort_*.c). Nothing here knows ONNX, ORT or a Python object.
//
// Every function that can fail returns OV_OK or an error kind and fills in an ov_error with a sentence.
// Functions may be called from any thread unless they say otherwise.
#ifndef ONNX_VULKAN_H
#define ONNX_VULKAN_H

#include <stddef.h>
#include <stdint.h>

#define OV_PYTHON extern // the builder turns this into cffi's extern "Python+C"

// cdef begin
enum { OV_OK, OV_INVALID_INPUT, OV_OUT_OF_MEMORY, OV_DEVICE_LOST, OV_FAILED, OV_PYTHON_ERROR, OV_UNSUPPORTED, OV_CANCELLED };
enum { OV_MAX_RANK = 16, OV_MAX_SYMBOLS = 512, OV_PROFILE_LABEL = 96 };

typedef struct ov_error {
    int32_t kind;
    char text[764];
} ov_error;

typedef struct ov_device ov_device;
typedef struct ov_memory ov_memory;
typedef struct ov_block ov_block;

// ---- device ----

typedef struct ov_device_desc {
    uint64_t get_device_proc_addr;   // function pointers of the loader that made the device
    uint64_t get_memory_properties2; // vkGetPhysicalDeviceMemoryProperties2
    uint64_t physical_device, device, queue;
    uint64_t pipeline_layout; // the one layout of every pipeline: push constants only
    uint64_t max_allocation, max_buffer;
    uint64_t limit;   // bytes that may be allocated from the driver; 0: no limit
    uint64_t spin_ns; // how long a run polls before it blocks; 0 where the "GPU" needs the CPU's cores
    double timestamp_period;
    uint32_t timestamp_bits, queue_family;
    uint32_t has_budget; // VK_EXT_memory_budget is enabled
    uint32_t cores;      // that this process may use: large copies are shared among threads
    uint32_t unmapped;   // leave OV_DEVICE memory unmapped even if the host could see it, to test the staged copies
} ov_device_desc;

typedef struct ov_counters {
    uint64_t live_bytes;      // handed out and not freed
    uint64_t committed_bytes; // taken from the driver and not given back
    uint64_t peak_bytes;      // highest committed_bytes
    uint64_t allocations;     // ov_alloc calls, ever
    uint64_t chunks;          // driver allocations, ever
    uint64_t live_allocations;
    uint64_t uploaded_bytes, downloaded_bytes; // by ov_upload/ov_download and by runs
    uint64_t submits, dispatches, barriers, recordings, plans_made, plans_evicted, runs, waits;
    uint64_t live_blocks, live_plans;
    uint64_t waiting; // threads that wait for a run context now
} ov_counters;

typedef struct ov_memory_info {
    uint64_t address, size, offset; // device address; bytes; where it starts in its VkBuffer
    uint64_t buffer;                // VkBuffer
    void *mapped;                   // NULL if the host cannot see it
    uint32_t kind, type_flags;      // VkMemoryPropertyFlags of the memory type
} ov_memory_info;

enum { OV_DEVICE, OV_UPLOAD, OV_READBACK, OV_MEMORY_KINDS };

// The version of this interface; raise it (and INTERFACE in library.py) with every change of a function or struct.
int ov_version(void);
int ov_device_create(const ov_device_desc *desc, ov_device **out, ov_error *err);
// The caller has freed all blocks and memory before.
void ov_device_destroy(ov_device *d);
void ov_device_set_limit(ov_device *d, uint64_t bytes);
void ov_device_counters(ov_device *d, ov_counters *out);
// Whether kernels can read OV_UPLOAD memory at full speed, so that inputs need no staging copy.
int ov_device_direct_input(ov_device *d);
int ov_device_is_lost(ov_device *d);
// Budget and use of the heap that OV_DEVICE memory comes from, as the driver says now; usage 0 without the extension.
void ov_device_heap(ov_device *d, uint64_t *budget, uint64_t *usage);

int ov_alloc(ov_device *d, uint64_t size, uint32_t kind, ov_memory **out, ov_error *err);
void ov_free(ov_memory *m);
void ov_memory_get(const ov_memory *m, ov_memory_info *out);

// Copies by device address; each returns when the bytes have arrived. The range must lie in one live allocation.
int ov_upload(ov_device *d, uint64_t to, const void *from, uint64_t size, ov_error *err);
int ov_download(ov_device *d, void *to, uint64_t from, uint64_t size, ov_error *err);
int ov_copy(ov_device *d, uint64_t to, uint64_t from, uint64_t size, ov_error *err);
int ov_fill(ov_device *d, uint64_t to, uint64_t size, uint32_t word, ov_error *err);
// The host pointer of a device address, or NULL.
void *ov_host_pointer(ov_device *d, uint64_t address);
// One dispatch, waited for. ns gives the time between two timestamps round it, when the queue has timestamps.
int ov_dispatch_once(ov_device *d, uint64_t pipeline, const void *push, uint32_t push_size, uint32_t x, uint32_t y, uint32_t z,
                     double *ns, ov_error *err);

// ---- plans: the layouts of onnx_vulkan/plan/table.py ----

enum { OV_SEG_ARENA, OV_SEG_INPUT, OV_SEG_OUTPUT, OV_SEG_RECORD, OV_SEG_ERROR, OV_SEGMENTS };
enum { OV_OP_DISPATCH, OV_OP_DISPATCH_INDIRECT, OV_OP_BARRIER, OV_OP_COPY, OV_OP_COPY_ABSOLUTE };
enum { OV_PATCH_U32, OV_PATCH_U64, OV_PATCH_DIVISOR, OV_PATCH_EXTERNAL_IN, OV_PATCH_EXTERNAL_OUT };
enum { OV_END, OV_PUSH, OV_SYM, OV_ADD, OV_MUL, OV_FLOORDIV, OV_MIN, OV_MAX };
enum { OV_IO_UNUSED = 1, OV_IO_HOST_KNOWN = 2 };

typedef struct ov_command {
    uint32_t op, pipeline, push_offset, push_size, x, y, z, label;
    uint64_t a, b, size;
} ov_command;

typedef struct ov_reloc {
    uint32_t blob, offset, segment, pad;
    uint64_t addend;
} ov_reloc;

typedef struct ov_patch {
    uint32_t kind, offset, expr, index;
} ov_patch;

typedef struct ov_guard {
    uint32_t expr, nonneg, answer, pad;
} ov_guard;

typedef struct ov_key {
    int32_t symbol;
    uint32_t pad;
    int64_t value;
} ov_key;

// bits: of one element, a power of two; elements of less than 8 are packed, the first in the lowest bits of a byte.
typedef struct ov_io_desc {
    uint32_t rank, bits, dims, flags;
    uint64_t offset, capacity;
} ov_io_desc;

// The error word: 16 bytes of each context at OV_SEG_ERROR, zero before a run. A kernel that meets an index outside its tensor
// adds 1 to `count` atomically and, if it was the first, writes the rest. A run that finds count != 0 fails with
// OV_INVALID_INPUT.
typedef struct ov_error_word {
    uint32_t count;
    uint32_t label; // 1 + index of the kernel's label in the plan; 0: not known
    int64_t value;  // the index that was met
} ov_error_word;

// Everything is copied. host_keys holds the bytes of the OV_IO_HOST_KNOWN inputs, one after the other in input order.
// labels: n_labels strings, each ended by a zero byte. Inputs and outputs are as many as the block's.
typedef struct ov_plan_desc {
    const ov_command *commands;
    const uint8_t *push, *record, *host_keys;
    const ov_reloc *relocs;
    const ov_patch *patches;
    const int64_t *code;
    const ov_guard *guards;
    const ov_key *keys;
    const ov_io_desc *inputs, *outputs;
    const uint32_t *output_dims;
    const uint32_t *derived; // expressions of the symbols after the first n_symbols, each of symbols before it
    const uint64_t *pipelines;
    const char *labels;
    uint64_t arena_size, input_size, output_size;
    uint32_t n_commands, n_push, n_record, n_host_keys, n_relocs, n_patches, n_code, n_guards, n_keys, n_output_dims, n_pipelines,
        n_labels, labels_size, n_symbols, n_derived;
} ov_plan_desc;

// ---- blocks and runs ----

// A tensor of one run. data: host memory or NULL; address: device memory or 0. When both are given they are the same bytes
// (host-visible device memory).
typedef struct ov_tensor {
    void *data;
    uint64_t address;
    int64_t dims[16]; // OV_MAX_RANK
    uint32_t rank, pad;
} ov_tensor;

// How a run gets at its tensors. Each returns OV_OK or an error kind. `output` is called once for each output with dims and rank
// filled in and sets data and/or address. `cancelled` may be NULL; non-zero stops the run with OV_CANCELLED at the next submit
// point.
typedef struct ov_io {
    void *user;
    int (*input)(void *user, uint32_t i, ov_tensor *tensor, ov_error *err);
    int (*output)(void *user, uint32_t i, ov_tensor *tensor, ov_error *err);
    int (*cancelled)(void *user);
} ov_io;

// Asked when no plan serves a run; adds one by ov_block_add_plan. Returns OV_OK, or an error kind with err filled in.
typedef int (*ov_plan_callback)(void *user, ov_block *block, const ov_tensor *inputs, ov_error *err);
// Asked by ov_run_arrays for the memory of an output whose dims are not those that the caller foresaw.
typedef int (*ov_output_callback)(void *user, uint32_t i, ov_tensor *tensor, ov_error *err);
// Asked by ov_run_arrays from time to time: non-zero stops the run.
typedef int (*ov_cancel_callback)(void *user);

enum { OV_BLOCK_RELEASE_AFTER_RUN = 1 };

typedef struct ov_block_desc {
    ov_device *device;
    ov_plan_callback plan;
    void *user;
    uint32_t n_inputs, n_outputs;
    uint32_t contexts; // how many runs at once; 0: 2
    uint32_t plan_cap; // plans kept; 0: 64
    uint32_t flags, pad;
} ov_block_desc;

typedef struct ov_block_info {
    uint64_t runs, plans_made, plans_evicted, recordings, dispatches;
    uint64_t segment_bytes; // of all contexts
    uint32_t plans, pad;
} ov_block_info;

typedef struct ov_profile_entry {
    uint32_t command, label;
    double start_ns, ns; // since the first timestamp of the run
    char name[96];       // OV_PROFILE_LABEL
} ov_profile_entry;

// How long the phases of a run took on the host, in ns. They follow one another from start_ns (CLOCK_MONOTONIC) on, but for the
// asking for output memory, which is done before the inputs are copied or while the device works.
typedef struct ov_run_times {
    int64_t start_ns;
    int64_t plan_ns;    // waiting for a run context, asking for inputs, finding the plan (or making it)
    int64_t record_ns;  // output dims, memory of the context, recording when needed
    int64_t copy_in_ns; // inputs to where the plan reads them
    int64_t submit_ns;  // run-time words, submits
    int64_t outputs_ns; // asking for the memory of outputs
    int64_t wait_ns;    // for the device
    int64_t copy_out_ns;
} ov_run_times;

int ov_block_create(const ov_block_desc *desc, ov_block **out, ov_error *err);
// Waits for the runs that are under way.
void ov_block_destroy(ov_block *b);
int ov_block_add_plan(ov_block *b, const ov_plan_desc *plan, ov_error *err);
void ov_block_get(ov_block *b, ov_block_info *out);
// Timestamps round each dispatch, from the next run on. Recordings are made anew when it changes.
void ov_block_set_profile(ov_block *b, int on);
// Entries of the last finished run with profiling on; gives back how many there are (out may be NULL).
uint32_t ov_block_read_profile(ov_block *b, ov_profile_entry *out, uint32_t capacity);
// The phases of the last finished run.
void ov_block_read_times(ov_block *b, ov_run_times *out);
int ov_run(ov_block *b, const ov_io *io, ov_error *err);
// A run whose tensors are in arrays. An output with data or address set and the right dims is used as it is; for any other
// one `grow` is called, which may be NULL (then it is an error). `cancelled` may be NULL.
int ov_run_arrays(ov_block *b, const ov_tensor *inputs, ov_tensor *outputs, ov_output_callback grow, ov_cancel_callback cancelled,
                  void *user, ov_error *err);

// (d, m, s) with n / d == (((n * m) >> 32) + n) >> s for 0 <= n < 2**31; (0, 1, 0) for d <= 0.
void ov_divisor_words(int64_t d, uint32_t out[3]);
// memcpy; where it is large, by several threads.
void ov_copy_host(ov_device *d, void *to, const void *from, uint64_t size);
// A fast hash of bytes, for sharing equal weights.
void ov_hash128(const void *data, uint64_t size, uint64_t out[2]);

OV_PYTHON int ov_py_plan(void *user, ov_block *block, const ov_tensor *inputs, ov_error *err);
OV_PYTHON int ov_py_output(void *user, uint32_t i, ov_tensor *tensor, ov_error *err);
OV_PYTHON int ov_py_cancelled(void *user);
// cdef end

#endif
