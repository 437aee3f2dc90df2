"""cffi builder of the shim: one shared object that is both ``onnx_vulkan._shim`` and the library that ORT loads."""

from cffi import FFI

ffibuilder = FFI()
ffibuilder.cdef("int ov_version(void);")
ffibuilder.set_source("onnx_vulkan._shim", "int ov_version(void) { return 1; }", py_limited_api=True)
