"""The values that are in sight while a graph or body is lowered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from onnx_vulkan.dims import Extent, product
from onnx_vulkan.dtypes import SMALL, DType
from onnx_vulkan.graph import Graph
from onnx_vulkan.lower.host import HOST_LIMIT, objects
from onnx_vulkan.lower.registry import Host, LowerContext, Operand
from onnx_vulkan.packing import Packed, pack
from onnx_vulkan.program.ir import Value

__all__ = ["Frame", "Lost", "is_small"]


@dataclass(frozen=True, slots=True)
class Lost:
    """Stands for a value that cannot be had; ``why`` completes "input x ...". ``refused``: a refused node should have made it."""

    why: str
    dtype: DType | None = None
    type_name: str = ""
    refused: bool = False


class Frame:
    """The values of one graph or body; a body sees those of the graph around it."""

    def __init__(self, graph: Graph, outer: Frame | None):
        self.graph = graph
        self.outer = outer
        self.values: dict[str, Operand | Lost] = {}
        self.inputs: set[str] = set()  # what a run gives: graph inputs, and outputs of refused nodes
        self.demanded: dict[str, Host | None] = {}
        self.producers = graph.producers()
        self._device: dict[str, Value] = {}
        self._constants: dict[str, Host] = {}

    def owner(self, name: str) -> Frame | None:
        """The frame that has the value, or None."""
        frame: Frame | None = self
        while frame is not None and name not in frame.values and name not in frame.graph.initializers:
            frame = frame.outer
        return frame

    def find(self, name: str) -> Operand | Lost | None:
        """What the name stands for, or None where nothing makes it."""
        frame = self.owner(name)
        if frame is None:
            return None
        if name not in frame.values:
            data = frame.graph.initializers[name]
            try:
                dtype = DType.of(data.dtype)
            except KeyError:
                frame.values[name] = Lost(f"is of {data.dtype}", None, str(data.dtype))
            else:
                held = data.data if isinstance(data, Packed) else pack(data) if dtype.bits < 8 else data
                frame.values[name] = Value(dtype, data.shape, name, held)
        return frame.values[name]

    def constant(self, name: str) -> Host | None:
        """A small constant as a host value."""
        frame = self.owner(name)
        if frame is None:
            return None
        if name not in frame._constants:
            value = frame.find(name)
            if not isinstance(value, Value) or value.data is None or value.data.size > HOST_LIMIT or value.dtype in SMALL:
                return None
            items = value.data.reshape(-1).astype(object).tolist()
            if value.dtype is DType.BF16:
                items = [float(v) for v in items]
            frame._constants[name] = Host(value.dtype, objects(items, value.data.shape))
        return frame._constants[name]

    def on_device(self, name: str, host: Host, b: LowerContext) -> Value:
        """A host value on the device, made once."""
        frame = self.owner(name) or self
        if name not in frame._device:
            frame._device[name] = b.device(host)
        return frame._device[name]


def is_small(shape: Sequence[Extent], limit: int) -> bool:
    """Whether a tensor has a known number of elements, at most *limit*."""
    n = product(shape)
    return isinstance(n, int) and n <= limit
