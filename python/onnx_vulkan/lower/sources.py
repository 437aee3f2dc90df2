"""Operators that make tensors out of shapes and constants: Shape, Size, Constant, ConstantOfShape, Range, EyeLike."""

from __future__ import annotations

import math

import numpy as np

from onnx_vulkan.dims import Dim, Extent, at_least, product, require_at_least
from onnx_vulkan.dtypes import ALL, NUMERIC, REAL, DType
from onnx_vulkan.errors import ShapeMismatch, Unsupported
from onnx_vulkan.graph import Array
from onnx_vulkan.lower.host import objects
from onnx_vulkan.lower.registry import Host, LowerContext, Operand, Unknown, lowers
from onnx_vulkan.program.ir import Value

__all__: list[str] = []

_VIEW_VERSIONS = [13, 19, 21, 23, 24, 25]


def _host_ints(values: list[Extent], shape: tuple[int, ...]) -> Host:
    return Host(DType.I64, objects(values, shape))


@lowers("Shape", [1, *_VIEW_VERSIONS, 15], {"x": ALL})
def shape(b: LowerContext, x: Operand, *, start: int = 0, end: int | None = None) -> Host:
    """Python's slice clamps as the specification does."""
    dims = list(x.shape)[start:end]
    return _host_ints(dims, (len(dims),))


@lowers("Size", [1, *_VIEW_VERSIONS], {"x": ALL})
def size(b: LowerContext, x: Operand) -> Host:
    return _host_ints([product(x.shape)], ())


@lowers("OptionalHasElement", [15, 18, 28], {"x": ALL}, note="tensors, or no input")
def optional_has_element(b: LowerContext, x: Operand | None) -> Host:
    """OptionalHasElement: whether there is an input, which is a tensor here."""
    return Host(DType.BOOL, objects([x is not None], ()))


@lowers("OptionalGetElement", [15, 18, 28], {"x": ALL}, note="tensors")
def optional_get_element(b: LowerContext, x: Operand) -> Operand:
    """OptionalGetElement: of a tensor itself."""
    return x


@lowers("Constant", [1, 9, 11, 12, 13, 19, 21, 23, 24, 25])
def constant(
    b: LowerContext,
    *,
    value: Array | None = None,
    value_int: int | None = None,
    value_ints: list[int] | None = None,
    value_float: float | None = None,
    value_floats: list[float] | None = None,
    value_string: str | None = None,
    value_strings: list[str] | None = None,
    sparse_value: object = None,
) -> Value:
    if value is not None:
        data = np.asarray(value)
    elif value_int is not None or value_ints is not None:
        data = np.array(value_int if value_int is not None else value_ints, np.int64)
    elif value_float is not None or value_floats is not None:
        data = np.array(value_float if value_float is not None else value_floats, np.float32)
    else:
        raise Unsupported("only tensors, numbers and lists of numbers are supported as its value")
    try:
        return b.const(data, b.node.outputs[0])
    except KeyError:
        raise Unsupported(f"a constant of {data.dtype} is not supported") from None


@lowers("ConstantOfShape", [9, 20, 21, 23, 24, 25])
def constant_of_shape(b: LowerContext, shape: Host, *, value: Array | None = None) -> Value:
    fill = np.zeros(1, np.float32) if value is None else np.asarray(value)
    try:
        dtype = DType.of(fill.dtype)
    except KeyError:
        raise Unsupported(f"a constant of {fill.dtype} is not supported") from None
    sizes = shape.ints()
    for e in sizes:
        require_at_least(e, 0, f"its shape [{', '.join(map(str, sizes))}] has a negative size")
    return b.full(sizes, fill.reshape(-1)[0], dtype)


@lowers("Range", [1], {"start": REAL, "limit": REAL, "delta": REAL}, "com.microsoft")
def range_1(b: LowerContext, start: Host, limit: Host, delta: Host | None) -> Value:
    """Range of ONNX Runtime; the delta is 1 where it is left out."""
    y: Value = range_(b, start, limit, delta or Host(start.dtype, np.array(1, object)))
    return y


@lowers("Range", [11, 27], {"start": REAL, "limit": REAL, "delta": REAL})
def range_(b: LowerContext, start: Host, limit: Host, delta: Host, *, stash_type: int = 1) -> Value:
    """``start + i * delta`` for ``i < ceil((limit - start) / delta)``; halves in float32."""
    a, end, step = (h.items()[0] for h in (start, limit, delta))
    if any(isinstance(v, Unknown) for v in (a, end, step)):
        raise Unsupported("its bounds are floats that are not known before the run")
    if start.dtype.is_float and not any(isinstance(v, Dim) for v in (a, end, step)):
        if not step:
            raise ShapeMismatch("its delta is 0")
        count = max(0, math.ceil((end - a) / step))
        kind = start.dtype if start.dtype is DType.F64 else DType.F32
        index = b.cast(b.iota((count,), 0, DType.I64), kind)
        return b.cast(b.map("add", b.map("mul", index, b.scalar(step, kind)), b.scalar(a, kind)), start.dtype)
    first, last, stride = (_integral(v) for v in (a, end, step))
    up = at_least(stride, 1)
    if not up:
        require_at_least(-stride, 1, "its delta is 0")
    span = (last - first) if up else (first - last)
    width = stride if up else -stride
    number = -((-span) // width)
    if not at_least(number, 0):
        number = 0
    return b.cast(b.iota((number,), 0, DType.I64, start=first, step=stride), start.dtype)


def _integral(v: Extent | float) -> Extent:
    if isinstance(v, float):
        if not v.is_integer():
            raise Unsupported("a float range whose bounds depend on the run's shapes is not supported")
        return int(v)
    return v


@lowers("EyeLike", [9, 22], {"x": NUMERIC})
def eye_like(b: LowerContext, x: Value, *, dtype: int | None = None, k: int = 0) -> Value:
    if x.rank != 2:
        raise Unsupported(f"its input has rank {x.rank}, not 2")
    try:
        kind = x.dtype if dtype is None else DType(dtype)
    except ValueError:
        raise Unsupported(f"element type {dtype} is not supported") from None
    if kind not in NUMERIC:
        raise Unsupported(f"element type {kind.onnx_name} is not supported")
    return b.cast(b.map("eq", b.iota(x.shape, 1, DType.I64), b.iota(x.shape, 0, DType.I64, start=k)), kind)
