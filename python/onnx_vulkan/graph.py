"""The model as both front ends hand it over: nodes, value types, constants. Plain data; no kernels, no ORT, no files.

The ``.onnx`` front end and the OrtGraph reader of the plug-in both build a :class:`Graph`; everything after that point
(claims, lowering, binding) sees only this.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Union

import numpy as np
from numpy.typing import NDArray

from onnx_vulkan.dims import Extent
from onnx_vulkan.dtypes import DType
from onnx_vulkan.packing import Packed

__all__ = ["Array", "Attribute", "Graph", "Node", "TensorType"]

Array = NDArray[np.generic]

Attribute = Union[int, float, str, bytes, list[int], list[float], list[str], list[bytes], Array, "Graph", list["Graph"]]
"""An attribute's value. Tensors are numpy arrays; a sub-graph (If, Loop, Scan) is a Graph."""


@dataclass(frozen=True, slots=True)
class TensorType:
    """What is known about a value before a run.

    ``dtype`` is None where this engine has no such element type (string, sequence, ...); then ``type_name`` says what it
    is, in ONNX's words. ``shape`` is None when even the rank is unknown. Named dims are symbols of that name; nameless
    unknown dims get a symbol that no other value shares, ``{value name}.{axis}``.
    """

    dtype: DType | None
    shape: tuple[Extent, ...] | None
    type_name: str = ""


@dataclass(slots=True)
class Node:
    """One operator application.

    ``since_version`` is the operator's schema version that the model's opset import selects (ONNX's SinceVersion), 0
    when no schema is known. ``inputs`` holds ``""`` for an optional input that is left out. Attributes that the model does
    not give are absent (the lowering's signature has the defaults).
    """

    name: str
    op_type: str
    domain: str
    since_version: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: dict[str, Attribute] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """``domain::Op`` or ``Op``."""
        return f"{self.domain}::{self.op_type}" if self.domain else self.op_type


@dataclass(slots=True)
class Graph:
    """A graph (or an If/Loop/Scan body) in topological order.

    ``initializers`` are constants, zero-copy where possible (read-only views of a mapped file or of ORT's memory), of elements
    below a byte packed;
    an initializer that a caller may override (also listed as an input) is an input here with a ``default``.
    ``types`` covers every value with a known type. ``outer`` names the values that a body captures from outside.
    """

    name: str
    inputs: list[str]
    outputs: list[str]
    nodes: list[Node]
    types: dict[str, TensorType]
    initializers: dict[str, Array | Packed]
    opsets: dict[str, int]
    defaults: dict[str, Array] = field(default_factory=dict)
    outer: list[str] = field(default_factory=list)

    def subgraphs(self) -> Iterator[Graph]:
        """The bodies in the attributes of this graph's nodes, one level down."""
        for node in self.nodes:
            for value in node.attributes.values():
                if isinstance(value, Graph):
                    yield value
                elif isinstance(value, list):
                    yield from (v for v in value if isinstance(v, Graph))

    def producers(self) -> dict[str, Node]:
        """The node that makes each value."""
        return {out: node for node in self.nodes for out in node.outputs if out}
