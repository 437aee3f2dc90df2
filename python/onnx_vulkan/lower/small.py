"""Small element types in terms of ordinary ones: packed integers of 2 and 4 bits, and floats of 4 and 8 bits.

A lowering may move a Value of a small type, and read or make its elements by the functions here; it computes in others. In the
finished Program (:func:`carried`) such a value is carried by int8 (int4, int2) or uint8 elements: the number or the code. At a
block's edges and in constants elements below a byte stay packed, as a flat uint8 tensor; they are unpacked where they are read,
by elementwise primitives that fuse into the reader.

Formats: E4M3FN, E4M3FNUZ, E5M2, E5M2FNUZ and their conversion tables as in ONNX Cast 19; E8M0 as in Cast 24, and where its table
says nothing as in ONNX Runtime; E2M1 as in Cast 23 (always saturating; NaN gives 0, as in ONNX's reference).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from onnx_vulkan.dims import Extent, ceil_div, product
from onnx_vulkan.dtypes import SMALL, SMALL_FLOATS, SMALL_INTS, DType
from onnx_vulkan.errors import Unsupported
from onnx_vulkan.lower.host import HOST_LIMIT
from onnx_vulkan.packing import pack
from onnx_vulkan.program.builder import Builder
from onnx_vulkan.program.ir import Program, Value

__all__ = ["bounds", "carried", "convert", "recode", "wide"]

_U32, _F32 = DType.U32, DType.F32


def bounds(dtype: DType) -> tuple[int, int]:
    """The least and the largest number of a small integer type."""
    top = 1 << (dtype.bits - 1)
    return (-top, top - 1) if dtype.carrier is DType.I8 else (0, 2 * top - 1)


# ------------------------------------------------------------------------------------------------------------ codes


def _u(b: Builder, n: int) -> Value:
    return b.scalar(n, _U32)


def _codes(b: Builder, carrier: Value, dtype: DType) -> Value:
    """The bits of *dtype*'s elements, as uint32."""
    code = b.cast(carrier, _U32)
    return b.map("bit_and", code, _u(b, (1 << dtype.bits) - 1)) if carrier.dtype is DType.I8 else code


def _carrier(b: Builder, codes: Value, dtype: DType) -> Value:
    """What carries the elements of these bits (uint32, none above the type's)."""
    if dtype.carrier is DType.I8:
        sign = b.scalar(1 << (dtype.bits - 1), DType.I32)
        codes = b.map("sub", b.map("bit_xor", b.cast(codes, DType.I32), sign), sign)
    return b.cast(codes, dtype.carrier)


def _codes_of(b: Builder, x: Value) -> Value:
    return _codes(b, b.bits(x, x.dtype.carrier), x.dtype)


def _of_codes(b: Builder, codes: Value, dtype: DType) -> Value:
    return b.bits(_carrier(b, codes, dtype), dtype)


def recode(b: Builder, x: Value, dtype: DType) -> Value:
    """ONNX BitCast: the same bits as another type of equally many."""
    if x.dtype.bits != dtype.bits:
        raise Unsupported(f"the bits of {x.dtype.onnx_name} are not those of {dtype.onnx_name}")
    if x.dtype in SMALL and dtype in SMALL:
        return _of_codes(b, _codes_of(b, x), dtype)
    return b.bits(x, dtype)


# ------------------------------------------------------------------------------------------------------- small floats


@dataclass(frozen=True, slots=True)
class _Format:
    """A float of a sign, an exponent and ``mantissa`` bits. ``largest`` is the code of the largest finite number, ``infinity``
    that of infinity (None: there is none), ``nan`` that of NaN. In ``unsigned_zero`` formats the code of -0 is the only NaN."""

    mantissa: int
    bias: int
    largest: int
    infinity: int | None
    nan: int | None
    unsigned_zero: bool = False
    sign: int = 0x80


_FORMATS = {
    DType.F8E4M3FN: _Format(3, 7, 0x7E, None, 0x7F),
    DType.F8E4M3FNUZ: _Format(3, 8, 0x7F, None, 0x80, unsigned_zero=True),
    DType.F8E5M2: _Format(2, 15, 0x7B, 0x7C, 0x7F),
    DType.F8E5M2FNUZ: _Format(2, 16, 0x7F, None, 0x80, unsigned_zero=True),
    DType.F4E2M1: _Format(1, 1, 0x7, None, None, sign=0x8),
}
_NAN = 0x7FC00000


def _decode(b: Builder, codes: Value, dtype: DType) -> Value:
    """The float32 numbers of codes; exact. Subnormals go by way of integers: a device may flush those of float32."""
    if dtype is DType.F8E8M0:
        bits = b.map("shift_left", codes, _u(b, 23))
        bits = b.map("select", b.map("eq", codes, _u(b, 0)), _u(b, 1 << 22), bits)
        return b.bits(b.map("select", b.map("eq", codes, _u(b, 0xFF)), _u(b, _NAN), bits), _F32)
    f = _FORMATS[dtype]
    sign_bit = f.sign.bit_length() - 1
    size = b.map("bit_and", codes, _u(b, f.sign - 1))
    normal = b.map("add", b.map("shift_left", size, _u(b, 23 - f.mantissa)), _u(b, (127 - f.bias) << 23))
    least = b.scalar(2.0 ** (1 - f.bias - f.mantissa), _F32)
    subnormal = b.bits(b.map("mul", b.cast(size, _F32), least), _U32)
    bits = b.map("select", b.map("lt", size, _u(b, 1 << f.mantissa)), subnormal, normal)
    if f.infinity is not None:
        bits = b.map("select", b.map("eq", size, _u(b, f.infinity)), _u(b, 0x7F800000), bits)
    if f.nan is not None and not f.unsigned_zero:
        beyond = f.largest if f.infinity is None else f.infinity
        bits = b.map("select", b.map("gt", size, _u(b, beyond)), _u(b, _NAN), bits)
    sign = b.map("shift_left", b.map("bit_and", codes, _u(b, f.sign)), _u(b, 31 - sign_bit))
    bits = b.map("bit_or", bits, sign)
    if f.unsigned_zero:
        bits = b.map("select", b.map("eq", codes, _u(b, f.sign)), _u(b, _NAN), bits)
    return b.bits(bits, _F32)


def _encode(b: Builder, x: Value, dtype: DType, saturate: bool) -> Value:
    """The codes of float32 numbers, rounded to the nearest, ties to even."""
    f = _FORMATS[dtype]
    bits = b.bits(x, _U32)
    size = b.map("bit_and", bits, _u(b, 0x7FFFFFFF))
    shift = 23 - f.mantissa
    odd = b.map("bit_and", b.map("shift_right", size, _u(b, shift)), _u(b, 1))
    rounded = b.map("shift_right", b.map("add", b.map("add", size, _u(b, (1 << (shift - 1)) - 1)), odd), _u(b, shift))
    normal = b.map("sub", rounded, _u(b, (127 - f.bias) << f.mantissa))
    # below the least normal number a code counts steps of the least subnormal one
    border = _u(b, (128 - f.bias) << 23)
    low = b.map("lt", size, border)
    part = b.map("mul", b.bits(b.map("min", size, border), _F32), b.scalar(2.0 ** (f.bias - 1 + f.mantissa), _F32))
    code = b.map("select", low, b.cast(b.map("round", part), _U32), normal)
    beyond = f.largest if saturate or f.nan is None else f.nan if f.infinity is None else f.infinity
    code = b.map("select", b.map("gt", code, _u(b, f.largest)), _u(b, beyond), code)
    is_nan = b.map("gt", size, _u(b, 0x7F800000))
    code = b.map("select", is_nan, _u(b, f.nan or 0), code)
    sign = b.map("shift_left", b.map("shift_right", bits, _u(b, 31)), _u(b, f.sign.bit_length() - 1))
    if f.unsigned_zero:
        sign = b.map("select", b.map("eq", code, _u(b, 0)), _u(b, 0), sign)
    return b.map("bit_or", code, sign)


def _encode_scale(b: Builder, x: Value, saturate: bool, round_mode: str) -> Value:
    """The E8M0 codes of float32 numbers. A number below the least, or above the largest, saturates or is NaN."""
    if round_mode not in ("up", "down", "nearest"):
        raise Unsupported(f"round_mode {round_mode!r} is not supported")
    bits = b.bits(x, _U32)
    size = b.map("bit_and", bits, _u(b, 0x7FFFFFFF))
    exponent, fraction = b.map("shift_right", size, _u(b, 23)), b.map("bit_and", size, _u(b, 0x7FFFFF))
    # float32 keeps the numbers of exponent 0, from 2**-127 on, with one bit less
    lowest = b.map("eq", exponent, _u(b, 0))
    rest = b.map("shift_left", b.map("bit_and", fraction, _u(b, 0x3FFFFF)), _u(b, 1))
    rest = b.map("select", lowest, rest, fraction)
    least = {"up": 1, "nearest": 0x400000, "down": 1 << 23}[round_mode]
    code = b.map("add", exponent, b.cast(b.map("ge", rest, _u(b, least)), _U32))
    code = b.map("select", b.map("gt", size, _u(b, 0xFE << 23)), _u(b, 0xFE if saturate else 0xFF), code)
    negative = b.map("ge", bits, _u(b, 0x80000000))
    below = b.map("or", negative, b.map("lt", size, _u(b, 1 << 22)))
    code = b.map("select", below, _u(b, 0 if saturate else 0xFF), code)
    return b.map("select", b.map("gt", size, _u(b, 0x7F800000)), _u(b, 0xFF), code)


# -------------------------------------------------------------------------------------------------------- conversion


def wide(b: Builder, x: Value) -> Value:
    """The numbers of a small value: int8 or uint8 for an integer type, float32 for a float type. Others stay as they are."""
    if x.dtype in SMALL_INTS:
        return b.bits(x, x.dtype.carrier)
    return _decode(b, _codes_of(b, x), x.dtype) if x.dtype in SMALL_FLOATS else x


def _nearest(b: Builder, x: Value) -> Value:
    """Rounded to the nearest integer, ties away from zero."""
    size = b.map("abs", x)
    whole = b.map("floor", size)
    up = b.map("ge", b.map("sub", size, whole), b.scalar(0.5, x.dtype))
    whole = b.map("select", up, b.map("add", whole, b.scalar(1, x.dtype)), whole)
    return b.map("select", b.map("lt", x, b.scalar(0, x.dtype)), b.map("neg", whole), whole)


def convert(b: Builder, x: Value, dtype: DType, *, saturate: bool = True, round_mode: str = "up") -> Value:
    """ONNX Cast from and to any type, small ones included.

    A float becomes a small integer rounded to the nearest (ties away from zero) and wrapped, as in ONNX Runtime; other integers
    wrap. A float64 is rounded to float32 before it becomes a small float, as there.
    """
    if x.dtype is dtype:
        return x
    x = wide(b, x)
    if dtype in SMALL_FLOATS:
        x = b.cast(x, _F32)
        if dtype is DType.F8E8M0:
            return _of_codes(b, _encode_scale(b, x, saturate, round_mode), dtype)
        return _of_codes(b, _encode(b, x, dtype, saturate), dtype)
    if dtype in SMALL_INTS:
        if x.dtype.is_float:
            x = b.cast(_nearest(b, b.cast(x, _F32) if x.dtype.size == 2 else x), DType.I32)
        return _of_codes(b, b.map("bit_and", b.cast(x, _U32), _u(b, (1 << dtype.bits) - 1)), dtype)
    return b.cast(x, dtype)


# ------------------------------------------------------------------------------------------- carriers and packed edges


def _rows(dtype: DType, shape: Sequence[Extent]) -> tuple[Extent, ...] | None:
    """The shape in bytes of a tensor whose rows take whole bytes; None for any other."""
    last, per_byte = shape[-1] if shape else 1, 8 // dtype.bits
    return (*shape[:-1], last // per_byte) if isinstance(last, int) and last % per_byte == 0 else None


def _packed_length(dtype: DType, shape: Sequence[Extent]) -> Extent:
    rows = _rows(dtype, shape)
    return product(rows) if rows is not None else ceil_div(product(shape), 8 // dtype.bits)


def _unpacked(b: Builder, packed: Value, dtype: DType, shape: Sequence[Extent]) -> Value:
    """The carrier of *shape* that packed bytes hold. Whole rows of bytes stay rows, which keeps the index arithmetic short."""
    per_byte = 8 // dtype.bits
    whole = _rows(dtype, shape)
    rows = packed.shape if whole is None else whole
    codes = b.broadcast(b.reshape(packed, (*rows, 1)), (*rows, per_byte))
    codes = b.map("shift_right", b.cast(codes, _U32), b.iota((per_byte,), 0, _U32, step=dtype.bits))
    codes = b.map("bit_and", codes, _u(b, (1 << dtype.bits) - 1))
    if whole is None:
        codes = b.reshape(codes, (packed.shape[0] * per_byte,))
        codes = b.slice(codes, (0,), (product(shape),))
    return _carrier(b, b.reshape(codes, shape), dtype)


def _packed(b: Builder, x: Value, dtype: DType) -> Value:
    """The flat packed bytes of a carrier; bits past the last element are 0."""
    per_byte = 8 // dtype.bits
    count, length = product(x.shape), _packed_length(dtype, x.shape)
    codes = _codes(b, b.reshape(x, (count,)), dtype)
    codes = b.reshape(b.pad(codes, (0,), (length * per_byte - count,)), (length, per_byte))
    parts = [b.slice(codes, (0, i), (length, 1)) for i in range(per_byte)]
    packed = parts[0]
    for i, part in enumerate(parts[1:], 1):
        packed = b.map("bit_or", packed, b.map("shift_left", part, _u(b, i * dtype.bits)))
    return b.cast(b.reshape(packed, (length,)), DType.U8)


class _Carrying:
    """Rewrites one program; new instructions are made where the first reader of a packed value stands."""

    def __init__(self, program: Program):
        self.program = program
        self.b = Builder()
        self.carriers: dict[Value, Value] = {}
        self.edges: dict[Value, Value] = {}  # packed inputs

    def run(self) -> Program:
        b = self.b
        for v in self.program.inputs:
            if v.dtype not in SMALL:
                b.inputs.append(v)
            elif v.dtype.bits < 8:
                self.edges[v] = b.input(v.name, DType.U8, (_packed_length(v.dtype, v.shape),))
            else:
                self.carriers[v] = b.input(v.name, DType.U8, v.shape)
        for instr in self.program.instrs:
            b.source = instr.source
            inputs = tuple(self.carrier(v) for v in instr.inputs)
            if instr.op == "bits" and inputs[0].dtype is instr.out.dtype.carrier:
                self.carriers[instr.out] = inputs[0]
                continue
            for v in instr.outputs:
                if v.dtype in SMALL:
                    self.carriers[v] = Value(v.dtype.carrier, v.shape, v.name)
            b.instrs.append(replace(instr, inputs=inputs, outputs=tuple(self.carriers.get(v, v) for v in instr.outputs)))
        b.source = "output"
        return b.finish([self.output(v) for v in self.program.outputs])

    def carrier(self, v: Value) -> Value:
        """What carries *v*; itself where it needs no carrier."""
        if v not in self.carriers and v.dtype in SMALL:
            self.carriers[v] = self.entered(v)
        return self.carriers.get(v, v)

    def entered(self, v: Value) -> Value:
        packed = self.edges.get(v)
        if packed is None and v.data is None:
            return Value(v.dtype.carrier, v.shape, v.name)  # only while claiming: stands for what a refused node makes
        if packed is None:
            assert v.data is not None
            data = v.data if v.dtype.bits < 8 else pack(v.data)
            large = data.size > HOST_LIMIT * v.dtype.bits // 8
            packed = Value(DType.U8, (data.size,), v.name, data, packed=v.dtype.bits < 8 and large)
        if v.dtype.bits >= 8:
            return self.b.reshape(packed, v.shape)
        return _unpacked(self.b, packed, v.dtype, v.shape)

    def output(self, v: Value) -> Value:
        if v.dtype not in SMALL or v.dtype.bits >= 8:
            return self.carrier(v)
        return _packed(self.b, self.carrier(v), v.dtype)


def carried(program: Program) -> Program:
    """*program* with a carrier for each value of a small type; sub-byte inputs, outputs and constants are packed.

    Must run in the scope of the lowering.
    """
    values = [v for i in program.instrs for v in (*i.inputs, *i.outputs)] + program.inputs + program.outputs
    return _Carrying(program).run() if any(v.dtype in SMALL for v in values) else program
