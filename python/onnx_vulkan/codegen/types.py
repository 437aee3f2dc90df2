"""GLSL names of element types: how a tensor is stored, in which type it is computed, how one becomes the other.

Storage is byte for byte what the host has. f16 and bf16 are computed in float and rounded when stored; 8- and 16-bit integers
are computed in 32 bits and wrapped to their width after each operation that can leave it.
"""

from __future__ import annotations

from dataclasses import dataclass

from onnx_vulkan.dtypes import DType

__all__ = ["GLSL_TYPES", "GlslType", "extensions_for", "pack", "unpack", "wrap"]


@dataclass(frozen=True, slots=True)
class GlslType:
    """``storage`` is the type in buffers, ``compute`` the type in registers, ``pointer`` our buffer reference's name."""

    storage: str
    compute: str
    pointer: str


GLSL_TYPES: dict[DType, GlslType] = {
    DType.F32: GlslType("float", "float", "F32"),
    DType.F16: GlslType("float16_t", "float", "F16"),
    DType.BF16: GlslType("uint16_t", "float", "U16"),
    DType.F64: GlslType("double", "double", "F64"),
    DType.I8: GlslType("int8_t", "int", "I8"),
    DType.U8: GlslType("uint8_t", "uint", "U8"),
    DType.I16: GlslType("int16_t", "int", "I16"),
    DType.U16: GlslType("uint16_t", "uint", "U16"),
    DType.I32: GlslType("int", "int", "I32"),
    DType.U32: GlslType("uint", "uint", "U32"),
    DType.I64: GlslType("int64_t", "int64_t", "I64"),
    DType.U64: GlslType("uint64_t", "uint64_t", "U64"),
    DType.BOOL: GlslType("uint8_t", "bool", "U8"),
}

_EXTENSIONS: dict[DType, tuple[str, ...]] = {
    DType.F16: ("GL_EXT_shader_explicit_arithmetic_types_float16", "GL_EXT_shader_16bit_storage"),
    DType.BF16: ("GL_EXT_shader_explicit_arithmetic_types_int16", "GL_EXT_shader_16bit_storage"),
    DType.F64: ("GL_EXT_shader_explicit_arithmetic_types_float64",),
    DType.I8: ("GL_EXT_shader_explicit_arithmetic_types_int8", "GL_EXT_shader_8bit_storage"),
    DType.U8: ("GL_EXT_shader_explicit_arithmetic_types_int8", "GL_EXT_shader_8bit_storage"),
    DType.BOOL: ("GL_EXT_shader_explicit_arithmetic_types_int8", "GL_EXT_shader_8bit_storage"),
    DType.I16: ("GL_EXT_shader_explicit_arithmetic_types_int16", "GL_EXT_shader_16bit_storage"),
    DType.U16: ("GL_EXT_shader_explicit_arithmetic_types_int16", "GL_EXT_shader_16bit_storage"),
    DType.I64: ("GL_EXT_shader_explicit_arithmetic_types_int64",),
    DType.U64: ("GL_EXT_shader_explicit_arithmetic_types_int64",),
}


def extensions_for(dtype: DType) -> tuple[str, ...]:
    """The GLSL extensions that code touching *dtype* names."""
    return _EXTENSIONS.get(dtype, ())


def unpack(dtype: DType, stored: str) -> str:
    """The compute-type expression of a stored one."""
    if dtype is DType.BF16:
        return f"uintBitsToFloat(uint({stored}) << 16)"
    if dtype is DType.BOOL:
        return f"({stored} != uint8_t(0))"
    t = GLSL_TYPES[dtype]
    return stored if t.storage == t.compute else f"{t.compute}({stored})"


def pack(dtype: DType, computed: str) -> str:
    """The stored expression of a compute-type one. bf16 needs the function ``bf16_bits``."""
    if dtype is DType.BF16:
        return f"bf16_bits({computed})"
    if dtype is DType.BOOL:
        return f"uint8_t({computed})"
    t = GLSL_TYPES[dtype]
    return computed if t.storage == t.compute else f"{t.storage}({computed})"


def wrap(dtype: DType, computed: str) -> str:
    """Bring a 32-bit result back to the width of an 8- or 16-bit integer type (two's complement)."""
    if dtype in (DType.I8, DType.U8, DType.I16, DType.U16):
        t = GLSL_TYPES[dtype]
        return f"{t.compute}({t.storage}({computed}))"
    return computed
