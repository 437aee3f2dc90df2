// The part of ONNX Runtime's C ABI that the plug-in uses, declared by slot number. No ORT header is needed to build.
//
// Every ORT table (OrtApi, OrtEpApi) and every struct that a plug-in fills (OrtEp, ...) is an array of pointer-size slots; ORT
// only ever appends, so a slot number never moves. `<Struct>_<Member>` below is the member's slot: its offset in the release's
// own header divided by the size of a pointer. The comment says which release first had it. Structs that we hand to ORT begin
// with a uint32 version in slot 0; a slot left 0 means "not implemented".
//
// cffi reads the part between the cdef marks as well, so it holds enums and opaque types only.
#ifndef ONNX_VULKAN_ORT_ABI_H
#define ONNX_VULKAN_ORT_ABI_H

// cdef begin
// The newest API version whose slots are listed here; what is asked of a runtime is min(this, its minor version).
enum { ORT_ABI_NEWEST = 28, ORT_ABI_OLDEST = 23 };

// OrtApiBase: 2 slots.
enum OrtApiBase_slot {
    OrtApiBase_GetApi = 0,          // 1.0
    OrtApiBase_GetVersionString = 1 // 1.0
};

// OrtApi: 424 slots.
enum OrtApi_slot {
    OrtApi_CreateStatus = 0,                            // 1.1
    OrtApi_GetErrorCode = 1,                            // 1.1
    OrtApi_GetErrorMessage = 2,                         // 1.1
    OrtApi_CreateRunOptions = 39,                       // 1.1
    OrtApi_RunOptionsSetTerminate = 46,                 // 1.1
    OrtApi_RunOptionsUnsetTerminate = 47,               // 1.1
    OrtApi_GetTensorMutableData = 51,                   // 1.1
    OrtApi_GetStringTensorDataLength = 53,              // 1.1
    OrtApi_GetStringTensorContent = 54,                 // 1.1
    OrtApi_CastTypeInfoToTensorInfo = 55,               // 1.1
    OrtApi_GetOnnxTypeFromTypeInfo = 56,                // 1.1
    OrtApi_GetTensorElementType = 60,                   // 1.1
    OrtApi_GetDimensionsCount = 61,                     // 1.1
    OrtApi_GetDimensions = 62,                          // 1.1
    OrtApi_GetSymbolicDimensions = 63,                  // 1.1
    OrtApi_GetTensorShapeElementCount = 64,             // 1.1
    OrtApi_GetTensorTypeAndShape = 65,                  // 1.1
    OrtApi_KernelContext_GetInputCount = 88,            // 1.1
    OrtApi_KernelContext_GetOutputCount = 89,           // 1.1
    OrtApi_KernelContext_GetInput = 90,                 // 1.1
    OrtApi_KernelContext_GetOutput = 91,                // 1.1
    OrtApi_ReleaseStatus = 93,                          // 1.1
    OrtApi_ReleaseMemoryInfo = 94,                      // 1.1
    OrtApi_ReleaseValue = 96,                           // 1.1
    OrtApi_ReleaseRunOptions = 97,                      // 1.1
    OrtApi_ReleaseTensorTypeAndShapeInfo = 99,          // 1.1
    OrtApi_GetTensorMemoryInfo = 194,                   // 1.11 or before
    OrtApi_CreateOpAttr = 211,                          // 1.12
    OrtApi_MemoryInfoGetDeviceType = 225,               // 1.14
    OrtApi_ReadOpAttr = 272,                            // 1.17
    OrtApi_ReleaseNode = 286,                           // 1.22
    OrtApi_GetValueInfoName = 289,                      // 1.22
    OrtApi_GetValueInfoTypeInfo = 290,                  // 1.22
    OrtApi_GetModelEditorApi = 291,                     // 1.22
    OrtApi_CreateKeyValuePairs = 295,                   // 1.22
    OrtApi_AddKeyValuePair = 296,                       // 1.22
    OrtApi_GetKeyValue = 297,                           // 1.22
    OrtApi_GetKeyValuePairs = 298,                      // 1.22
    OrtApi_ReleaseKeyValuePairs = 300,                  // 1.22
    OrtApi_HardwareDevice_Type = 307,                   // 1.22
    OrtApi_HardwareDevice_VendorId = 308,               // 1.22
    OrtApi_HardwareDevice_Vendor = 309,                 // 1.22
    OrtApi_HardwareDevice_DeviceId = 310,               // 1.22
    OrtApi_HardwareDevice_Metadata = 311,               // 1.22
    OrtApi_EpDevice_EpMetadata = 314,                   // 1.22
    OrtApi_GetEpApi = 317,                              // 1.22
    OrtApi_GetTensorSizeInBytes = 318,                  // 1.23
    OrtApi_CreateMemoryInfo_V2 = 320,                   // 1.23
    OrtApi_MemoryInfoGetVendorId = 322,                 // 1.23
    OrtApi_ValueInfo_GetInitializerValue = 326,         // 1.23
    OrtApi_ValueInfo_GetExternalInitializerInfo = 327,  // 1.23
    OrtApi_ValueInfo_IsRequiredGraphInput = 328,        // 1.23
    OrtApi_ValueInfo_IsOptionalGraphInput = 329,        // 1.23
    OrtApi_ValueInfo_IsConstantInitializer = 331,       // 1.23
    OrtApi_ValueInfo_IsFromOuterScope = 332,            // 1.23
    OrtApi_Graph_GetName = 333,                         // 1.23
    OrtApi_Graph_GetModelPath = 334,                    // 1.23
    OrtApi_Graph_GetNumOperatorSets = 336,              // 1.23
    OrtApi_Graph_GetOperatorSets = 337,                 // 1.23
    OrtApi_Graph_GetNumInputs = 338,                    // 1.23
    OrtApi_Graph_GetInputs = 339,                       // 1.23
    OrtApi_Graph_GetNumOutputs = 340,                   // 1.23
    OrtApi_Graph_GetOutputs = 341,                      // 1.23
    OrtApi_Graph_GetNumInitializers = 342,              // 1.23
    OrtApi_Graph_GetInitializers = 343,                 // 1.23
    OrtApi_Graph_GetNumNodes = 344,                     // 1.23
    OrtApi_Graph_GetNodes = 345,                        // 1.23
    OrtApi_Graph_GetParentNode = 346,                   // 1.23
    OrtApi_Node_GetId = 348,                            // 1.23
    OrtApi_Node_GetName = 349,                          // 1.23
    OrtApi_Node_GetOperatorType = 350,                  // 1.23
    OrtApi_Node_GetDomain = 351,                        // 1.23
    OrtApi_Node_GetSinceVersion = 352,                  // 1.23
    OrtApi_Node_GetNumInputs = 353,                     // 1.23
    OrtApi_Node_GetInputs = 354,                        // 1.23
    OrtApi_Node_GetNumOutputs = 355,                    // 1.23
    OrtApi_Node_GetOutputs = 356,                       // 1.23
    OrtApi_Node_GetNumImplicitInputs = 357,             // 1.23
    OrtApi_Node_GetImplicitInputs = 358,                // 1.23
    OrtApi_Node_GetNumAttributes = 359,                 // 1.23
    OrtApi_Node_GetAttributes = 360,                    // 1.23
    OrtApi_OpAttr_GetTensorAttributeAsOrtValue = 362,   // 1.23
    OrtApi_OpAttr_GetType = 363,                        // 1.23
    OrtApi_OpAttr_GetName = 364,                        // 1.23
    OrtApi_Node_GetNumSubgraphs = 365,                  // 1.23
    OrtApi_Node_GetSubgraphs = 366,                     // 1.23
    OrtApi_Node_GetGraph = 367,                         // 1.23
    OrtApi_Node_GetEpName = 368,                        // 1.23
    OrtApi_ReleaseExternalInitializerInfo = 369,        // 1.23
    OrtApi_ExternalInitializerInfo_GetFilePath = 370,   // 1.23
    OrtApi_ExternalInitializerInfo_GetFileOffset = 371, // 1.23
    OrtApi_ExternalInitializerInfo_GetByteSize = 372,   // 1.23
    OrtApi_GetTensorData = 378,                         // 1.23
    OrtApi_GetSessionOptionsConfigEntries = 379,        // 1.23
    OrtApi_TensorTypeAndShape_HasShape = 390            // 1.24
};

// OrtModelEditorApi: 20 slots.
enum OrtModelEditorApi_slot {
    OrtModelEditorApi_CreateNode = 6 // 1.22
};

// OrtEpApi: 73 slots.
enum OrtEpApi_slot {
    OrtEpApi_CreateEpDevice = 0,                     // 1.22
    OrtEpApi_ReleaseEpDevice = 1,                    // 1.22
    OrtEpApi_EpGraphSupportInfo_AddNodesToFuse = 2,  // 1.23
    OrtEpApi_NodeComputeContext_NodeName = 4,        // 1.23
    OrtEpApi_EpDevice_AddAllocatorInfo = 5,          // 1.23
    OrtEpApi_MemoryInfo_GetMemoryDevice = 6,         // 1.23
    OrtEpApi_Value_GetMemoryDevice = 7,              // 1.23
    OrtEpApi_MemoryDevice_AreEqual = 8,              // 1.23
    OrtEpApi_MemoryDevice_GetDeviceType = 9,         // 1.23
    OrtEpApi_MemoryDevice_GetMemoryType = 10,        // 1.23
    OrtEpApi_MemoryDevice_GetVendorId = 11,          // 1.23
    OrtEpApi_MemoryDevice_GetDeviceId = 12,          // 1.23
    OrtEpApi_CreateProfilingEvent = 65,              // 1.25
    OrtEpApi_ReleaseProfilingEvent = 66,             // 1.25
    OrtEpApi_ProfilingEventsContainer_AddEvents = 72 // 1.25
};

// OrtEpFactory: 21 slots, slot 0 is a uint32 version.
enum OrtEpFactory_slot {
    OrtEpFactory_GetName = 1,             // 1.22
    OrtEpFactory_GetVendor = 2,           // 1.22
    OrtEpFactory_GetSupportedDevices = 3, // 1.22
    OrtEpFactory_CreateEp = 4,            // 1.22
    OrtEpFactory_ReleaseEp = 5,           // 1.22
    OrtEpFactory_GetVendorId = 6,         // 1.23
    OrtEpFactory_GetVersion = 7,          // 1.23
    OrtEpFactory_CreateAllocator = 9,     // 1.23
    OrtEpFactory_ReleaseAllocator = 10,   // 1.23
    OrtEpFactory_CreateDataTransfer = 11, // 1.23
    OrtEpFactory_IsStreamAware = 12,      // 1.23
    OrtEpFactory_SLOTS = 21
};

// OrtEp: 25 slots, slot 0 is a uint32 version.
enum OrtEp_slot {
    OrtEp_GetName = 1,                     // 1.22
    OrtEp_GetCapability = 2,               // 1.23
    OrtEp_Compile = 3,                     // 1.23
    OrtEp_ReleaseNodeComputeInfos = 4,     // 1.23
    OrtEp_SetDynamicOptions = 7,           // 1.23
    OrtEp_OnRunStart = 8,                  // 1.23
    OrtEp_OnRunEnd = 9,                    // 1.23
    OrtEp_CreateAllocator = 10,            // 1.23
    OrtEp_IsConcurrentRunSupported = 14,   // 1.24
    OrtEp_CreateProfiler = 16,             // 1.25
    OrtEp_OnSessionInitializationEnd = 22, // 1.27
    OrtEp_SLOTS = 25
};

// OrtNodeComputeInfo: 4 slots, slot 0 is a uint32 version.
enum OrtNodeComputeInfo_slot {
    OrtNodeComputeInfo_CreateState = 1,  // 1.23
    OrtNodeComputeInfo_Compute = 2,      // 1.23
    OrtNodeComputeInfo_ReleaseState = 3, // 1.23
    OrtNodeComputeInfo_SLOTS = 4
};

// OrtAllocator: 8 slots, slot 0 is a uint32 version.
enum OrtAllocator_slot {
    OrtAllocator_Alloc = 1,   // 1.18 or before
    OrtAllocator_Free = 2,    // 1.18 or before
    OrtAllocator_Info = 3,    // 1.18 or before
    OrtAllocator_Reserve = 4, // 1.18
    OrtAllocator_SLOTS = 8
};

// OrtDataTransferImpl: 4 slots, slot 0 is a uint32 version.
enum OrtDataTransferImpl_slot {
    OrtDataTransferImpl_Release = 1,     // 1.23
    OrtDataTransferImpl_CanCopy = 2,     // 1.23
    OrtDataTransferImpl_CopyTensors = 3, // 1.23
    OrtDataTransferImpl_SLOTS = 4
};

// OrtEpProfilerImpl: 6 slots, slot 0 is a uint32 version.
enum OrtEpProfilerImpl_slot {
    OrtEpProfilerImpl_Release = 1,        // 1.25
    OrtEpProfilerImpl_StartProfiling = 2, // 1.25
    OrtEpProfilerImpl_StartEvent = 3,     // 1.25
    OrtEpProfilerImpl_StopEvent = 4,      // 1.25
    OrtEpProfilerImpl_EndProfiling = 5,   // 1.25
    OrtEpProfilerImpl_SLOTS = 6
};

// OrtNodeFusionOptions is no slot struct: uint32 version at byte 0, bool drop_constant_initializers at byte 4 (1.23), 8 bytes.

// Values of ORT's enums.
enum OrtErrorCode_value {
    ORT_FAIL = 1, // what ORT answers when a run was terminated
    ORT_INVALID_ARGUMENT = 2,
    ORT_ENGINE_ERROR = 5,
    ORT_NOT_IMPLEMENTED = 9,
    ORT_INVALID_GRAPH = 10,
    ORT_EP_FAIL = 11, // never ours: ORT's Python wrapper answers it with a quiet session on the CPU
    ORT_DEVICE_RESET = 15
};
enum ONNXType_value {
    ONNX_TYPE_UNKNOWN = 0,
    ONNX_TYPE_TENSOR = 1,
    ONNX_TYPE_SEQUENCE = 2,
    ONNX_TYPE_MAP = 3,
    ONNX_TYPE_OPAQUE = 4,
    ONNX_TYPE_SPARSETENSOR = 5,
    ONNX_TYPE_OPTIONAL = 6
};
enum OrtOpAttrType_value {
    ORT_OP_ATTR_UNDEFINED = 0,
    ORT_OP_ATTR_INT = 1,
    ORT_OP_ATTR_INTS = 2,
    ORT_OP_ATTR_FLOAT = 3,
    ORT_OP_ATTR_FLOATS = 4,
    ORT_OP_ATTR_STRING = 5,
    ORT_OP_ATTR_STRINGS = 6,
    ORT_OP_ATTR_GRAPH = 7,
    ORT_OP_ATTR_TENSOR = 8
};
enum OrtHardwareDeviceType_value { ORT_HARDWARE_CPU = 0, ORT_HARDWARE_GPU = 1, ORT_HARDWARE_NPU = 2 };
enum OrtMemoryInfoDeviceType_value { ORT_MEMORY_CPU = 0, ORT_MEMORY_GPU = 1 };
enum OrtDeviceMemoryType_value { ORT_DEVICE_MEMORY_DEFAULT = 0, ORT_DEVICE_MEMORY_HOST_ACCESSIBLE = 5 };
enum OrtAllocatorType_value { ORT_DEVICE_ALLOCATOR = 0 };
enum OrtProfilingEventCategory_value { ORT_PROFILING_KERNEL = 2 };

// ORT's objects are opaque.
typedef struct OrtStatus OrtStatus;
typedef struct OrtApiBase OrtApiBase;
typedef struct OrtLogger OrtLogger;
typedef struct OrtGraph OrtGraph;
typedef struct OrtNode OrtNode;
typedef struct OrtValue OrtValue;
typedef struct OrtKernelContext OrtKernelContext;
typedef struct OrtNodeComputeContext OrtNodeComputeContext;
typedef struct OrtSessionOptions OrtSessionOptions;
typedef struct OrtHardwareDevice OrtHardwareDevice;
typedef struct OrtKeyValuePairs OrtKeyValuePairs;
typedef struct OrtEpDevice OrtEpDevice;
typedef struct OrtEpGraphSupportInfo OrtEpGraphSupportInfo;
typedef struct OrtMemoryInfo OrtMemoryInfo;
typedef struct OrtMemoryDevice OrtMemoryDevice;
typedef struct OrtSyncStream OrtSyncStream;
typedef struct OrtTensorTypeAndShapeInfo OrtTensorTypeAndShapeInfo;
// cdef end

#endif
