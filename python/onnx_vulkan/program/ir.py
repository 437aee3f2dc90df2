"""The Program: values, instructions, and the closed set of primitives with their meaning.

Every pass, the interpreter (`interp`, which *is* the meaning) and every kernel speak this vocabulary. Shapes are tuples of
:data:`~onnx_vulkan.dims.Extent`. There is no implicit broadcasting and no implicit dtype promotion: operands of ``map``
have one shape, and a ``broadcast`` is written out. ONNX is unknown here.

====================  =========================================================================================
primitive             meaning (numpy); attrs
====================  =========================================================================================
``map``               elementwise function ``fn`` of 1 to 3 operands of one shape (:data:`MAP_FNS`); with ``coarse`` only the
                      first bits of the result are seen (:mod:`onnx_vulkan.program.coarse`)
``cast``              to ``dtype``; float to integer truncates towards zero; with ``saturate`` out-of-range values
                      clamp (NaN gives 0), else they wrap; anything to bool is ``x != 0``
``iota``              ``start + step * index along axis``; attrs shape, axis, start, step (Extents), dtype
``dims``              an int64 tensor of run-known integers; attrs values (Extents), shape
``reduce``            ``fn`` in sum prod max min argmax argmin over ``axes`` (sorted, dropped from the shape);
                      argmax/argmin: one axis, int64 result, ``last`` picks the last of equals; max/min keep NaN
``contract``          batched matrix product ``[*b, M, K] x [*b, K, N] -> [*b, M, N]``, accumulated in ``acc``
                      and given in the output dtype; batch dims are equal
``reshape``           same elements in row-major order; attrs shape
``transpose``         attrs perm
``broadcast``         numpy.broadcast_to; attrs shape
``slice``             ``x[start : : step]`` for ``size`` elements an axis; attrs starts, sizes (Extents), steps (ints)
``pad``               ``before``/``after`` (Extents, >= 0) an axis; ``mode`` constant (second operand: a scalar of the
                      same dtype), edge, reflect, wrap
``concat``            along ``axis``
``gather``            numpy.take(x, indices, axis); ``gather_elements``: take_along_axis; ``gather_nd``: ONNX GatherND
                      with ``batch_dims``. Negative indices count from the end (``gather`` without ``wrap``: they
                      are outside); an index outside the tensor is an error of the run, never a silent value
``scatter``           ONNX ScatterND (kind ``nd``) or ScatterElements (kind ``elements``, ``axis``) with ``reduction``
                      none add mul max min; operands data, indices, updates
``window``            kinds ``conv``, ``conv_transpose``, ``max``, ``avg``, ``lp`` on channels-last data, see below
``scan``              running ``fn`` (sum, prod) along ``axis`` with ``exclusive`` and ``reverse``
``sort``              top ``k`` (Extent) along ``axis``, ``largest``; two outputs: values, int64 indices; equal values in
                      the order of their indices; NaN counts as the largest value
``bits``              reinterpret the bytes as ``dtype`` of the same size
====================  =========================================================================================

``window`` takes x ``[N, *spatial, C]`` and gives ``[N, *out_spatial, M]``. Attrs: ``strides``, ``dilations``,
``pads_begin``, ``pads_end`` (an entry a spatial axis; ``pads_end`` may be negative or larger than the kernel needs: rows
past the end read padding), ``out_spatial`` (Extents; the size decides, not a formula). ``conv``: w ``[*kernel, C/groups, M]``,
attrs ``groups``, ``acc``. ``conv_transpose``: w ``[*kernel, C, M/groups]`` where the C input channels and M output channels are
split into ``groups`` in order; out[o] sums x[i]*w[k] with ``o = i*stride - pad_begin + k*dilation``. ``max``/``avg``/``lp``:
attrs ``kernel``; padding counts as -inf (lowest) for max, is left out of avg's divisor unless ``count_include_pad`` (then
cells inside ``pads`` count, cells beyond ``pads_end`` never do), adds 0 for lp (exponent ``p``). ``max`` with ``indices`` true
has a second int64 output: the flat index into the channels-last spatial plane of the first largest element.

Composites are an open set (:mod:`onnx_vulkan.program.composites`): instructions with a decomposition into primitives that a
backend may run by a kernel of their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from onnx_vulkan.dims import Extent
from onnx_vulkan.dtypes import DType
from onnx_vulkan.graph import Array

__all__ = ["BINARY", "COMPARE", "MAP_FNS", "PRIMITIVES", "UNARY", "Instr", "Program", "Value"]

PRIMITIVES = (
    "map",
    "cast",
    "iota",
    "dims",
    "reduce",
    "contract",
    "reshape",
    "transpose",
    "broadcast",
    "slice",
    "pad",
    "concat",
    "gather",
    "gather_elements",
    "gather_nd",
    "scatter",
    "window",
    "scan",
    "sort",
    "bits",
)

UNARY = frozenset(
    """neg abs sign floor ceil round sqrt rsqrt reciprocal exp log log1p sin cos tan asin acos atan sinh cosh tanh asinh acosh
    atanh erf not bit_not isnan isposinf isneginf""".split()
)
"""``round`` is half to even; ``not`` takes bool; ``isnan isposinf isneginf`` give bool; integers wrap (abs(min) is min)."""

BINARY = frozenset("add sub mul div div_rn pow min max mod fmod and or xor bit_and bit_or bit_xor shift_left shift_right".split())
"""Integers wrap; ``div`` of integers truncates towards zero, of floats it is as good as the device's. ``div_rn``, of floats only,
is rounded to the nearest (in float32: for numbers from 1e-10 to 1e10), for quotients that become integers. ``mod`` has the
divisor's sign, ``fmod`` the dividend's; ``min``/``max`` give NaN where an operand is NaN; ``and or xor`` take bool. Integer
division by 0 gives 0. A shift by a negative amount, or by all bits or more, leaves no bit of the operand: 0, or -1 of a
negative one shifted right."""

COMPARE = frozenset("eq ne lt le gt ge".split())
"""Give bool; NaN compares as IEEE 754 says."""

MAP_FNS = UNARY | BINARY | COMPARE | {"select"}
"""``select(c, a, b)``: a where the bool c, else b."""


@dataclass(slots=True, eq=False)
class Value:
    """One tensor of the program. Identity is the object. ``data`` holds the bytes of a constant, else None (of elements below a
    byte, which no finished Program has, the flat packed bytes).

    A constant that is *packed* is small for what is computed from it, and :mod:`onnx_vulkan.program.fold` leaves that to the
    kernels.
    """

    dtype: DType
    shape: tuple[Extent, ...]
    name: str = ""
    data: Array | None = None
    packed: bool = False

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def is_const(self) -> bool:
        return self.data is not None

    def __repr__(self) -> str:
        kind = "const " if self.is_const else ""
        return f"<{kind}{self.name or hex(id(self))[-5:]} {self.dtype.onnx_name}[{','.join(map(str, self.shape))}]>"


@dataclass(slots=True, eq=False)
class Instr:
    """One application of a primitive or composite. ``source`` names the ONNX node it came from, for messages; ``merged`` are the
    sources of others whose work it does too, for profiles."""

    op: str
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    attrs: dict[str, Any] = field(default_factory=dict)
    source: str = ""
    merged: tuple[str, ...] = ()

    @property
    def out(self) -> Value:
        """The only output. Raises ValueError when there are several."""
        (value,) = self.outputs
        return value

    def __repr__(self) -> str:
        outs = ", ".join(map(repr, self.outputs))
        return f"{outs} = {self.op}({', '.join(map(repr, self.inputs))}) {self.attrs}"


@dataclass(slots=True, eq=False)
class Program:
    """Instructions in execution order. Constants are Values with ``data`` and have no instruction."""

    inputs: list[Value]
    outputs: list[Value]
    instrs: list[Instr]

    def producers(self) -> dict[Value, Instr]:
        """The instruction that makes each value."""
        return {out: i for i in self.instrs for out in i.outputs}

    def users(self) -> dict[Value, list[Instr]]:
        """The instructions that read each value, in order, one entry for each time it is read."""
        table: dict[Value, list[Instr]] = {}
        for i in self.instrs:
            for v in i.inputs:
                table.setdefault(v, []).append(i)
        return table

    def constants(self) -> Iterator[Value]:
        """Every constant that an instruction or an output reads, once."""
        seen: dict[Value, None] = {}
        for i in self.instrs:
            for v in i.inputs:
                if v.is_const:
                    seen.setdefault(v)
        for v in self.outputs:
            if v.is_const:
                seen.setdefault(v)
        return iter(seen)

    def __str__(self) -> str:
        lines = [f"inputs {self.inputs}", *map(repr, self.instrs), f"outputs {self.outputs}"]
        return "\n".join(lines)
