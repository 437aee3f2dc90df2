"""Matrices: MatMul, Gemm, MatMulInteger, QLinearMatMul, Einsum and Det."""

from __future__ import annotations

from collections.abc import Sequence

from onnx_vulkan.dims import Extent, broadcast_extents, product
from onnx_vulkan.dtypes import FLOATS, REAL, DType
from onnx_vulkan.errors import Unsupported
from onnx_vulkan.lower.conv import BYTES, centred
from onnx_vulkan.lower.dequantized import product_with_weight
from onnx_vulkan.lower.registry import LowerContext, lowers
from onnx_vulkan.program import composites
from onnx_vulkan.program.builder import Builder
from onnx_vulkan.program.ir import Value

__all__ = ["gemm", "matmul", "requantize", "scaled"]

_MATMUL_TYPES = FLOATS | {DType.I32, DType.U32, DType.I64, DType.U64}


def matmul(b: Builder, x: Value, y: Value) -> Value:
    """numpy.matmul: 1-D operands become a row or a column, batch dims broadcast.

    A matrix on the right of a batch is one product with the batch folded into its rows.
    """
    if x.rank == 0 or y.rank == 0:
        raise Unsupported("a scalar operand of a matrix product")
    packed = product_with_weight(b, x, y)
    if packed is not None:
        return packed
    row, column = x.rank == 1, y.rank == 1
    if row:
        x = b.reshape(x, (1, *x.shape))
    if column:
        y = b.reshape(y, (*y.shape, 1))
    if x.rank > 2 and y.rank == 2:
        rows = x.shape[:-1]
        z = b.contract(b.reshape(x, (product(rows), x.shape[-1])), y)
        z = b.reshape(z, (*rows, y.shape[-1]))
    else:
        z = b.contract(x, y)
    shape = list(z.shape)
    if column:
        del shape[-1]
    if row:
        del shape[-1 if column else -2]
    return b.reshape(z, shape)


@lowers("MatMul", versions=[1, 9, 13], dtypes={"x": _MATMUL_TYPES, "y": _MATMUL_TYPES})
def mat_mul(b: LowerContext, x: Value, y: Value) -> Value:
    """MatMul."""
    return matmul(b, x, y)


def scaled(b: Builder, x: Value, factor: float) -> Value:
    """``factor * x``."""
    return x if factor == 1.0 else b.map("mul", x, b.scalar(factor, x.dtype))


def gemm(b: Builder, x: Value, y: Value, c: Value | None, alpha: float, beta: float, trans_a: int, trans_b: int) -> Value:
    """``alpha * x' @ y' + beta * c`` for rank 2 operands."""
    if x.rank != 2 or y.rank != 2:
        raise Unsupported(f"Gemm operands of rank {x.rank} and {y.rank}")
    x = b.transpose(x, (1, 0)) if trans_a else x
    z = product_with_weight(b, x, y, bool(trans_b))
    if z is None:
        z = b.contract(x, b.transpose(y, (1, 0)) if trans_b else y)
    z = scaled(b, z, alpha)
    if c is not None and beta != 0.0:
        c = scaled(b, c, beta)
        z = b.map("add", z, b.broadcast(c, z.shape))  # c never widens the result
    return z


@lowers("Gemm", versions=[1, 6], dtypes={"a": FLOATS, "b_": FLOATS, "c": FLOATS})
def gemm_1(
    b: LowerContext,
    a: Value,
    b_: Value,
    c: Value,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    broadcast: int = 0,
    transA: int = 0,
    transB: int = 0,
) -> Value:
    """Gemm-1 and -6: C broadcasts only with ``broadcast``; a C that fits needs no leave."""
    return gemm(b, a, b_, c, alpha, beta, transA, transB)


@lowers("Gemm", versions=[7, 9, 11, 13], dtypes={"a": _MATMUL_TYPES, "b_": _MATMUL_TYPES, "c": _MATMUL_TYPES})
def gemm_7(
    b: LowerContext,
    a: Value,
    b_: Value,
    c: Value | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: int = 0,
    transB: int = 0,
) -> Value:
    """Gemm: unidirectional broadcast of C, which may be left out from 11 on."""
    if not a.dtype.is_float and (alpha not in (0.0, 1.0) or beta not in (0.0, 1.0)):
        raise Unsupported("alpha or beta other than 1 with integer operands")
    return gemm(b, a, b_, c, alpha, beta, transA, transB)


# --------------------------------------------------------------------------------------------------------- quantized


def _row_zero_point(b: Builder, zero_point: Value | None) -> Value | None:
    """A zero point for each row lies along axis -2 of the left operand."""
    if zero_point is not None and zero_point.rank == 1 and zero_point.shape != (1,):
        return b.reshape(zero_point, (*zero_point.shape, 1))
    return zero_point


@lowers("MatMulInteger", versions=[10], dtypes={"x": BYTES, "y": BYTES})
def matmul_integer(
    b: LowerContext, x: Value, y: Value, x_zero_point: Value | None = None, y_zero_point: Value | None = None
) -> Value:
    """MatMulInteger: int32 sums; zero points are scalars, one a row of x, one a column of y, or full batches of these."""
    x = centred(b, x, _row_zero_point(b, x_zero_point) if x.rank > 1 else x_zero_point)
    return matmul(b, x, centred(b, y, y_zero_point))


def requantize(b: Builder, acc: Value, multiplier: Value, zero_point: Value) -> Value:
    """``saturate(round(acc * multiplier) + zero_point)`` in float32, ties to even; the dtype is the zero point's."""
    y = b.map("round", b.map("mul", b.cast(acc, DType.F32), multiplier))
    return b.cast(b.map("add", y, b.cast(zero_point, DType.F32)), zero_point.dtype, saturate=True)


def scalar_or(b: Builder, v: Value, shape: Sequence[Extent]) -> Value:
    """A scale or zero point: of one element it becomes a scalar, else it takes *shape*."""
    if v.rank == 0:
        return v
    return b.reshape(v, () if v.shape == (1,) else shape) if v.rank == 1 else v


@lowers(
    "QLinearMatMul",
    versions=[10, 21],
    dtypes={"x": BYTES, "y": BYTES, "x_scale": FLOATS - {DType.F64}, "z_zero_point": BYTES},
)
def qlinear_matmul(
    b: LowerContext,
    x: Value,
    x_scale: Value,
    x_zero_point: Value,
    y: Value,
    y_scale: Value,
    y_zero_point: Value,
    z_scale: Value,
    z_zero_point: Value,
) -> Value:
    """QLinearMatMul: exact int32 sums, then ``round(acc * (x_scale * y_scale / z_scale)) + z_zero_point`` in float32."""
    acc = matmul(
        b,
        centred(b, x, _row_zero_point(b, x_zero_point) if x.rank > 1 else x_zero_point),
        centred(b, y, y_zero_point),
    )
    sx, sy, sz = (b.cast(s, DType.F32) for s in (x_scale, y_scale, z_scale))
    rows = (*sx.shape, 1)
    sx, sz = scalar_or(b, sx, rows), scalar_or(b, sz, rows)
    sy = scalar_or(b, sy, sy.shape)
    multiplier = b.map("div_rn", b.map("mul", sx, sy), sz)
    return requantize(b, acc, multiplier, scalar_or(b, z_zero_point, (*z_zero_point.shape, 1)))


@lowers("QGemm", versions=[1], dtypes={"x": BYTES, "y": BYTES, "y_zero_point": BYTES}, domain="com.microsoft")
def qgemm(
    b: LowerContext,
    x: Value,
    x_scale: Value,
    x_zero_point: Value,
    y: Value,
    y_scale: Value,
    y_zero_point: Value,
    c: Value | None = None,
    z_scale: Value | None = None,
    z_zero_point: Value | None = None,
    *,
    alpha: float = 1.0,
    transA: int = 0,
    transB: int = 0,
) -> Value:
    """QGemm of ONNX Runtime: exact int32 sums with the int32 C, scaled once; float32 when no output scale is given.

    C's own scale is ``alpha * x_scale * y_scale``.
    """
    x, y = centred(b, x, x_zero_point), centred(b, y, _column_zero_point(b, y_zero_point, transB))
    acc = gemm(b, x, y, c, 1.0, 1.0, transA, transB)
    scale = scaled(b, b.map("mul", scalar_or(b, x_scale, x_scale.shape), scalar_or(b, y_scale, y_scale.shape)), alpha)
    if z_scale is None:
        return b.map("mul", b.cast(acc, DType.F32), scale)
    if z_zero_point is None:
        z_zero_point = b.scalar(0, y_zero_point.dtype)
    multiplier = b.map("div_rn", scale, scalar_or(b, z_scale, z_scale.shape))
    return requantize(b, acc, multiplier, scalar_or(b, z_zero_point, z_zero_point.shape))


def _column_zero_point(b: Builder, zero_point: Value, transposed: int) -> Value:
    """A zero point a column of the right operand, which may be stored transposed."""
    if transposed and zero_point.rank == 1 and zero_point.shape != (1,):
        return b.reshape(zero_point, (*zero_point.shape, 1))
    return zero_point


# ------------------------------------------------------------------------------------------------------------ einsum

_ELLIPSIS = "."


def _parse(equation: str, ranks: Sequence[int]) -> tuple[list[list[str]], list[str]]:
    """The labels of each operand and of the output. Axes of an ellipsis get labels "0", "1", ... from the right."""
    left, arrow, right = equation.replace(" ", "").replace("...", _ELLIPSIS).partition("->")
    terms = left.split(",")
    if len(terms) != len(ranks):
        raise Unsupported(f"equation {equation!r} has {len(terms)} terms for {len(ranks)} operands")
    widest: int | None = None
    operands = []
    for term, rank in zip(terms, ranks, strict=True):
        n = rank - len(term.replace(_ELLIPSIS, ""))
        if n < 0 or (n and _ELLIPSIS not in term) or term.count(_ELLIPSIS) > 1:
            raise Unsupported(f"term {term!r} of equation {equation!r} does not fit an operand of rank {rank}")
        if _ELLIPSIS in term:
            if widest not in (None, n):
                raise Unsupported(f"the ellipses of equation {equation!r} stand for different numbers of axes")
            widest = n
        dots = [str(i) for i in reversed(range(n))]
        operands.append([label for c in term for label in (dots if c == _ELLIPSIS else [c])])
    dots = [str(i) for i in reversed(range(widest or 0))]
    seen = [label for term in operands for label in term if not label.isdigit()]
    if arrow:
        output = [label for c in right for label in (dots if c == _ELLIPSIS else [c])]
    else:
        output = dots + sorted(label for label in set(seen) if seen.count(label) == 1)
    if any(not (c.isalpha() or c.isdigit()) for term in [*operands, output] for c in term):
        raise Unsupported(f"equation {equation!r} has a character that is no letter")
    if len(set(output)) != len(output) or not set(output) <= {*seen, *dots}:
        raise Unsupported(f"the output of equation {equation!r} repeats or invents an index")
    return operands, output


def _diagonal(b: Builder, x: Value, labels: list[str]) -> tuple[Value, list[str]]:
    """Take the diagonal of axes that carry one label."""
    for label in dict.fromkeys(labels):
        while labels.count(label) > 1:
            i = labels.index(label)
            j = labels.index(label, i + 1)
            rest = [a for a in range(x.rank) if a not in (i, j)]
            x = b.transpose(x, [*rest, i, j])
            index = b.broadcast(b.iota((x.shape[-2], 1), 0, DType.I64), (*x.shape[:-1], 1))
            x = b.reshape(b.gather_elements(x, index, -1), x.shape[:-1])
            labels = [labels[a] for a in rest] + [label]
    return x, labels


def _summed(b: Builder, x: Value, labels: list[str], keep: set[str]) -> tuple[Value, list[str]]:
    """Sum out the labels that nobody reads any more."""
    axes = [i for i, label in enumerate(labels) if label not in keep]
    total = b.cast(b.reduce("sum", composites.wide(b, x), axes), x.dtype) if axes else x
    return total, [label for label in labels if label in keep]


def _arranged(b: Builder, x: Value, labels: list[str], order: Sequence[str], extents: dict[str, Extent]) -> Value:
    """*x* with axes in *order* and at full extent."""
    x = b.transpose(x, [labels.index(label) for label in order])
    return b.broadcast(x, [extents[label] for label in order])


def _pair(
    b: Builder, x: Value, xl: list[str], y: Value, yl: list[str], keep: set[str], extents: dict[str, Extent]
) -> tuple[Value, list[str]]:
    """The product of two operands, summed over the shared labels that are not in *keep*."""
    xs, ys = set(xl), set(yl)
    batch = [label for label in xl if label in ys and label in keep]
    summed = [label for label in xl if label in ys and label not in keep]
    rows, columns = [label for label in xl if label not in ys], [label for label in yl if label not in xs]
    x, y = _arranged(b, x, xl, batch + rows + summed, extents), _arranged(b, y, yl, batch + summed + columns, extents)
    sizes = [[extents[label] for label in group] for group in (batch, rows, summed, columns)]
    if not summed:
        x = b.reshape(x, (*sizes[0], *sizes[1], *(1,) * len(columns)))
        y = b.reshape(y, (*sizes[0], *(1,) * len(rows), *sizes[3]))
        return b.map("mul", x, y), batch + rows + columns
    x = b.reshape(x, (*sizes[0], product(sizes[1]), product(sizes[2])))
    y = b.reshape(y, (*sizes[0], product(sizes[2]), product(sizes[3])))
    return b.reshape(b.contract(x, y), (*sizes[0], *sizes[1], *sizes[3])), batch + rows + columns


@lowers("Einsum", versions=[12, 28], dtypes={"xs": REAL})
def einsum(b: LowerContext, *xs: Value, equation: str) -> Value:
    """Einsum: operands are multiplied from left to right, each pair as one matrix product. 8 and 16 bits wrap at the end."""
    if xs[0].dtype not in _MATMUL_TYPES:
        wide = DType.I32 if xs[0].dtype.is_signed else DType.U32
        return b.cast(einsum(b, *(b.cast(x, wide) for x in xs), equation=equation), xs[0].dtype)
    terms, output = _parse(equation, [x.rank for x in xs])
    extents: dict[str, Extent] = {}
    for x, labels in zip(xs, terms, strict=True):
        for label, e in zip(labels, x.shape, strict=True):
            message = f"index {label!r} of equation {equation!r} has two extents"
            extents[label] = broadcast_extents(extents[label], e, message) if label in extents else e
    for label in output:
        extents.setdefault(label, 1)
    pending = [_diagonal(b, x, labels) for x, labels in zip(xs, terms, strict=True)]
    acc, labels = pending[0]
    for i, (x, xl) in enumerate(pending[1:], 1):
        later = {*output, *(label for _, ls in pending[i + 1 :] for label in ls)}
        acc, labels = _summed(b, acc, labels, later | set(xl))
        x, xl = _summed(b, x, xl, later | set(labels))
        acc, labels = _pair(b, acc, labels, x, xl, later, extents)
    acc, labels = _summed(b, acc, labels, set(output))
    return b.transpose(acc, [labels.index(label) for label in output])
