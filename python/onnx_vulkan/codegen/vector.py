"""Vectors: neighbouring elements that one invocation moves together, as 32-bit words in registers.

A vector has *width* elements, enough for accesses of 16 bytes where the widest tensor allows it. What is loaded is an array of
words, from which :func:`get` takes elements; what is stored is an array of elements in their compute type.
"""

from __future__ import annotations

from collections.abc import Iterable

from onnx_vulkan.codegen.types import GLSL_TYPES, pack
from onnx_vulkan.dtypes import DType

__all__ = ["VECTOR_COUNT", "get", "load", "store", "vector_width", "word_count"]

ACCESS_BYTES = 16
"""The widest load and store of a device."""

VECTOR_COUNT = 128 * 1024
"""Elements from which on vectors pay: with fewer, more invocations hide more of the memory's latency."""


def vector_width(dtypes: Iterable[DType]) -> int:
    """How many elements of tensors of these dtypes one invocation moves together."""
    return max(4, ACCESS_BYTES // max(d.size for d in dtypes))


def word_count(dtype: DType, width: int) -> int:
    """The words of a vector."""
    return width * dtype.size // 4


def _moves(macro: str, name: str, dtype: DType, width: int, pointer: str, offset: str) -> list[str]:
    words = word_count(dtype, width)
    step = min(words, ACCESS_BYTES // 4)
    first = f"({offset}) >> {width.bit_length() - 1}"
    if words == step:
        return [f"{macro}{step}({name}, 0, {pointer}, {first})"]
    moves = words // step
    return [f"{macro}{step}({name}, {step * n}, {pointer}, ({first}) * {moves} + {n})" for n in range(moves)]


def load(name: str, dtype: DType, width: int, pointer: str, offset: str) -> list[str]:
    """Statements that declare the words *name* and load the vector at element *offset*, a multiple of the width."""
    return [f"uint {name}[{word_count(dtype, width)}];", *_moves("LOAD_WORDS", name, dtype, width, pointer, offset)]


def store(name: str, dtype: DType, width: int, pointer: str, offset: str) -> list[str]:
    """Statements that store the elements *name* at element *offset*, a multiple of the width."""
    words = word_count(dtype, width)
    if dtype.size == 8:
        step, pack_some = 2, f"{{ uvec2 q = {_pair(dtype, name)}; words[w] = q.x; words[w + 1] = q.y; }}"
    else:
        step, pack_some = 1, f"words[w] = {_word(dtype, name)};"
    pack_all = f"[[unroll]] for (int w = 0; w < {words}; w += {step}) {pack_some}"
    return [f"{{ uint words[{words}];", pack_all, *_moves("STORE_WORDS", "words", dtype, width, pointer, offset), "}"]


def _pair(dtype: DType, name: str) -> str:
    """The two words of an 8-byte element."""
    value = f"{name}[w / 2]"
    packed = {DType.F64: f"unpackDouble2x32({value})", DType.U64: f"unpackUint2x32({value})"}
    return packed.get(dtype, f"uvec2(unpackInt2x32({value}))")


def _word(dtype: DType, name: str) -> str:
    """Word ``w`` of the elements *name*."""
    if dtype.size == 4:
        return f"floatBitsToUint({name}[w])" if dtype is DType.F32 else f"uint({name}[w])"
    each = 4 // dtype.size
    elements = [f"{name}[w * {each}{f' + {n}' if n else ''}]" for n in range(each)]
    if dtype is DType.F16:  # a pair is one conversion
        return f"packFloat2x16(f16vec2(vec2({', '.join(elements)})))"
    values = [pack(dtype, e) for e in elements]
    bits = 8 * dtype.size
    fields = [f"((uint({v}) & {(1 << bits) - 1}u) << {bits * n})" for n, v in enumerate(values)]
    return " | ".join(fields)


def get(dtype: DType, name: str, k: str = "k") -> str:
    """Element *k* of the words *name*, in its compute type."""
    if dtype.size == 8:
        pair = f"uvec2({name}[2 * {k}], {name}[2 * {k} + 1])"
        if dtype is DType.F64:
            return f"packDouble2x32({pair})"
        return f"packUint2x32({pair})" if dtype is DType.U64 else f"packInt2x32(ivec2({pair}))"
    if dtype.size == 4:
        word = f"{name}[{k}]"
        return {DType.F32: f"uintBitsToFloat({word})", DType.I32: f"int({word})", DType.U32: word}[dtype]
    if dtype is DType.F16:
        return f"float(unpackFloat2x16({name}[{k} >> 1])[{k} & 1])"
    if dtype is DType.BF16:
        return f"uintBitsToFloat(({name}[{k} >> 1] >> (16 * ({k} & 1))) << 16)"
    each = 4 // dtype.size
    bits = 8 * dtype.size
    word = f"{name}[{k} >> {each.bit_length() - 1}]"
    compute = GLSL_TYPES[dtype].compute
    signed = f"int({word})" if dtype.is_signed and dtype is not DType.BOOL else word
    field = f"bitfieldExtract({signed}, {bits} * ({k} & {each - 1}), {bits})"
    return f"({field} != 0u)" if compute == "bool" else field
