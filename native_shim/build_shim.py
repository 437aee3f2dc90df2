"""cffi builder of the shim: one shared object that is both ``onnx_vulkan._shim`` and the library that ORT loads.

The C interface is declared once, in the headers: what lies between their ``// cdef begin`` and ``// cdef end`` lines is given to
cffi, with ``OV_PYTHON`` marking the callbacks that Python defines.
"""

import re
from pathlib import Path

from cffi import FFI

HERE = Path(__file__).resolve().parent
HEADERS = [HERE / "onnx_vulkan.h", *sorted(HERE.glob("ort_*.h"))]
SOURCES = [
    HERE / f"{name}.c" for name in ("device", "memory", "copies", "transfer", "plan", "record", "submit", "run", "hash")
] + sorted(HERE.glob("ort_*.c"))


def cdefs(text: str) -> str:
    """The marked parts of a header, for cffi."""
    parts = re.findall(r"^// cdef begin\n(.*?)^// cdef end$", text, flags=re.M | re.S)
    return re.sub(r"\bOV_PYTHON\b", 'extern "Python+C"', "\n".join(parts))


ffibuilder = FFI()
ffibuilder.cdef("\n".join(cdefs(header.read_text()) for header in HEADERS))
ffibuilder.set_source(
    "onnx_vulkan._shim",
    "\n".join(f'#include "{header.name}"' for header in HEADERS),
    sources=[f"native_shim/{source.name}" for source in SOURCES],  # setuptools wants them relative to the project's root
    include_dirs=["native_shim"],
    extra_compile_args=["-std=c11", "-D_POSIX_C_SOURCE=200809L", "-O2", "-Wall", "-Wextra", "-Wno-unused-parameter", "-pthread"],
    extra_link_args=["-pthread"],
    py_limited_api=True,
)
