"""Matrices as wholes: Det, and Inverse and CDist of ONNX Runtime."""

from __future__ import annotations

from onnx_vulkan.dims import Dim, Extent, product, require_same
from onnx_vulkan.dtypes import FLOATS, DType
from onnx_vulkan.errors import Unsupported
from onnx_vulkan.lower.registry import LowerContext, lowers
from onnx_vulkan.program import composites
from onnx_vulkan.program.ir import Value

__all__: list[str] = []

ELIMINATION_LIMIT = 32
"""The largest matrix whose elimination is written out."""


def _square(x: Value) -> tuple[Extent, int]:
    """The number of matrices of ``[*, M, M]``, and M."""
    if x.rank < 2:
        raise Unsupported(f"an input of rank {x.rank} is no matrix")
    require_same(x.shape[-2], x.shape[-1], "its matrices are not square")
    size = x.shape[-1] if isinstance(x.shape[-1], int) else x.shape[-2]
    if isinstance(size, Dim) or size > ELIMINATION_LIMIT:
        raise Unsupported(f"matrices of size {size}: known sizes up to {ELIMINATION_LIMIT} are supported")
    return product(x.shape[:-2]), size


@lowers("Det", versions=[11, 22], dtypes={"x": FLOATS}, note=f"matrices of a known size, at most {ELIMINATION_LIMIT}")
def det(b: LowerContext, x: Value) -> Value:
    """Det: ``[*, M, M]`` to ``[*]``, the product of the pivots of an elimination that takes the largest entry of each column."""
    batch, size = _square(x)
    rest = b.reshape(composites.wide(b, x), (batch, size, size))
    t = rest.dtype
    zero = b.scalar(0, t)
    result = b.full((batch,), 1, t)
    for n in range(size, 0, -1):  # rest is [batch, n, n]
        column = b.slice(rest, (0, 0, 0), (batch, n, 1))
        best = b.reduce("argmax", b.map("abs", column), (1,), keepdims=True)  # [batch, 1, 1]
        pivots = b.gather_elements(rest, b.broadcast(best, (batch, 1, n)), 1)
        pivot = b.reshape(b.slice(pivots, (0, 0, 0), (batch, 1, 1)), (batch,))
        moved = b.map("ne", b.reshape(best, (batch,)), b.scalar(0, DType.I64))
        result = b.map("mul", result, b.map("select", moved, b.map("neg", pivot), pivot))
        if n == 1:
            break
        # the row that the pivot's row displaces takes its place
        chosen = b.map("eq", b.iota((1, n - 1, 1), 1, DType.I64, 1), best)
        rows = b.slice(rest, (0, 1, 0), (batch, n - 1, n))
        rows = b.map("select", chosen, b.slice(rest, (0, 0, 0), (batch, 1, n)), rows)
        divisor = b.reshape(pivot, (batch, 1, 1))
        factor = b.map("div", b.slice(rows, (0, 0, 0), (batch, n - 1, 1)), divisor)
        factor = b.map("select", b.map("eq", divisor, zero), zero, factor)  # a column of zeros: the determinant is 0
        rest = b.map(
            "sub",
            b.slice(rows, (0, 0, 1), (batch, n - 1, n - 1)),
            b.map("mul", factor, b.slice(pivots, (0, 0, 1), (batch, 1, n - 1))),
        )
    return b.reshape(b.cast(result, x.dtype), x.shape[:-2])


@lowers(
    "Inverse",
    versions=[1],
    dtypes={"x": FLOATS},
    domain="com.microsoft",
    note=f"matrices of a known size, at most {ELIMINATION_LIMIT}",
)
def inverse(b: LowerContext, x: Value) -> Value:
    """Inverse of ONNX Runtime: ``[*, M, M]``, by Gauss-Jordan elimination that takes the largest entry of each column.

    A singular matrix gives infinities and NaN. Halves are computed in float32.
    """
    batch, size = _square(x)
    a = b.reshape(composites.wide(b, x), (batch, size, size))
    unit = b.map("eq", b.iota((size, size), 0, DType.I32), b.iota((size, size), 1, DType.I32))
    both = b.concat([a, b.broadcast(b.cast(unit, a.dtype), (batch, size, size))], 2)
    width = 2 * size
    row = b.iota((1, size, 1), 1, DType.I64)
    for n in range(size):
        here = b.scalar(n, DType.I64)
        column = b.slice(both, (0, 0, n), (batch, size, 1))
        # among the rows from n on; those before are done
        magnitude = b.map("select", b.map("ge", row, here), b.map("abs", column), b.scalar(-1, a.dtype))
        best = b.reduce("argmax", magnitude, (1,), keepdims=True)
        pivots = b.gather_elements(both, b.broadcast(best, (batch, 1, width)), 1)
        swapped = b.map("select", b.map("eq", row, best), b.slice(both, (0, n, 0), (batch, 1, width)), both)
        pivots = b.map("div", pivots, b.slice(pivots, (0, 0, n), (batch, 1, 1)))
        factor = b.slice(swapped, (0, 0, n), (batch, size, 1))
        both = b.map("select", b.map("eq", row, here), pivots, b.map("sub", swapped, b.map("mul", factor, pivots)))
    result = b.slice(both, (0, 0, size), (batch, size, size))
    return b.cast(b.reshape(result, x.shape), x.dtype)


@lowers("CDist", versions=[1], dtypes={"x": (DType.F32, DType.F64), "y": (DType.F32, DType.F64)}, domain="com.microsoft")
def cdist(b: LowerContext, x: Value, y: Value, *, metric: str = "sqeuclidean") -> Value:
    """CDist of ONNX Runtime: the distances ``[M, K]`` between the rows of ``x [M, N]`` and ``y [K, N]``.

    By the product, ``max(0, |x|^2 + |y|^2 - 2 x y^T)``, as there. Raises Unsupported for a metric that is not Euclidean.
    """
    if metric not in ("euclidean", "sqeuclidean"):
        raise Unsupported(f"metric {metric!r} is not supported")
    if x.rank != 2 or y.rank != 2:
        raise Unsupported(f"operands of rank {x.rank} and {y.rank}")
    left, right = (b.reduce("sum", b.map("mul", v, v), (1,)) for v in (x, y))
    squares = b.map("add", b.reshape(left, (x.shape[0], 1)), right)
    cross = b.map("mul", b.contract(x, b.transpose(y, (1, 0))), b.scalar(2, x.dtype))
    d = b.map("max", b.map("sub", squares, cross), b.scalar(0, x.dtype))
    return b.map("sqrt", d) if metric == "euclidean" else d
