"""TopK on the ``sort`` primitive."""

from __future__ import annotations

from onnx_vulkan.dims import Extent, axis_of, require_at_least
from onnx_vulkan.dtypes import FLOATS, REAL
from onnx_vulkan.errors import Unsupported
from onnx_vulkan.lower.registry import Host, LowerContext, lowers
from onnx_vulkan.program.ir import Value

__all__: list[str] = []


def _top(b: LowerContext, x: Value, k: Extent, axis: int, largest: bool) -> tuple[Value, Value]:
    if x.rank == 0:
        raise Unsupported("a scalar has no axis to sort")
    axis = axis_of(axis, x.rank)
    size = x.shape[axis]
    require_at_least(k, 0, f"its k of {k} is negative")
    require_at_least(size, k, f"its k of {k} is more than the {size} elements of axis {axis}")
    return b.sort(x, k, axis, largest=largest)


@lowers("TopK", versions=[1], dtypes={"x": FLOATS})
def top_k_1(b: LowerContext, x: Value, *, axis: int = -1, k: int) -> tuple[Value, Value]:
    """TopK-1: k is an attribute."""
    return _top(b, x, k, axis, True)


@lowers("TopK", versions=[10, 11, 24], dtypes={"x": REAL})
def top_k(b: LowerContext, x: Value, k: Host, *, axis: int = -1, largest: int = 1, sorted: int = 1) -> tuple[Value, Value]:
    """TopK; always sorted, equal values in the order of their indices."""
    if len(k.items()) != 1:
        raise Unsupported("K has to hold one element")
    return _top(b, x, k.ints()[0], axis, bool(largest))
