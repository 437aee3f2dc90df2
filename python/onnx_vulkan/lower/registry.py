"""How an ONNX operator enters: one typed function an operator, whose signature is the schema. No operator lives here.

``@lowers("Softmax", versions=[13], dtypes={"x": FLOATS})`` registers a function ``(b, x, *, axis=-1)``:

- ``b`` is the :class:`LowerContext`: a Builder that also knows the node;
- positional parameters are the node's inputs in order. Annotated ``Value`` they arrive on the device (a run-known value is
  materialised); annotated ``Host`` they must be known on the host before the run (constants, shape arithmetic), else the
  node is refused by the kernel check; annotated ``Value | Host`` (``Operand``) they arrive as whichever they are; ``| None``
  marks an optional input; ``*xs: Value`` is variadic;
- keyword-only parameters are the attributes; a parameter without default is required; an attribute that the signature
  does not have is refused by the opset check;
- the result is one Value or Host, or a tuple of them (None for an output that nobody reads).

``versions`` lists the operator's since-versions that the function was read against: a node of any other version is refused.
``dtypes`` names the element types allowed for inputs (by parameter), the dtype check. A lowering raises
:class:`~onnx_vulkan.errors.Unsupported` with one sentence for a form that it cannot do right.

``@evaluates("Add")`` registers a host evaluation ``(ctx, *hosts, **attributes)`` that is tried first when every input is known
on the host; it raises :class:`NotHost` to decline.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnx_vulkan.dims import Dim, Extent
from onnx_vulkan.dtypes import DType
from onnx_vulkan.errors import Unsupported
from onnx_vulkan.graph import Graph, Node
from onnx_vulkan.program.builder import Builder
from onnx_vulkan.program.ir import Value

if typing.TYPE_CHECKING:
    from onnx_vulkan.lower.dequantized import Weight

__all__ = [
    "EVALUATIONS",
    "LOWERINGS",
    "MAX_OPSET",
    "Host",
    "LowerContext",
    "Lowering",
    "NotHost",
    "Operand",
    "Parameter",
    "Unknown",
    "evaluates",
    "find_lowering",
    "lowers",
]

MAX_OPSET = 28
"""The newest ``ai.onnx`` opset whose operators were read. Above it every node is refused."""


@dataclass(frozen=True, slots=True, eq=False)
class Unknown:
    """A host element that only a run can tell, met while claiming (e.g. ``shape == 1``, ``sqrt(width)``).

    ``generic`` is the answer of the generic run for a bool, None where there is none. ``question`` is the one decision (its kind
    and expression, as :class:`~onnx_vulkan.dims.Scope` knows them) that settles it, where it hangs on a single one.
    """

    generic: bool | None = None
    question: tuple[str, Dim] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Host:
    """A tensor known before the run: ``data`` is an object array of int, Dim, float, bool or Unknown.

    ``dtype`` is the ONNX element type it stands for; a Dim in a float tensor is its exact integer value.
    """

    dtype: DType
    data: NDArray[np.object_]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.data.shape

    def items(self) -> list[Any]:
        """The elements in row-major order."""
        return list(self.data.reshape(-1))

    def ints(self) -> list[Extent]:
        """The elements as extents. Raises Unsupported where one is not known as an integer."""
        out = []
        for v in self.items():
            if isinstance(v, Unknown):
                raise Unsupported("it needs numbers before the run that depend on data")
            out.append(int(v) if isinstance(v, (bool, float, np.generic)) else v)
        return out


class NotHost(Exception):
    """A host evaluation declines: the value has to be computed on the device."""


Operand = Value | Host


class LowerContext(Builder):
    """The Builder handed to lowerings. ``node`` is the node being lowered, ``version`` its since-version.

    ``n_outputs`` is how many outputs the node names; ``wants(i)`` tells whether output *i* is read by anyone.
    """

    node: Node
    inline: Callable[[Graph, Sequence[Operand]], tuple[Operand, ...]]
    """Lowers a body (If, Loop, Scan) in place: its inputs are bound to the operands, its outputs come back. Set by the driver."""
    forks: dict[tuple[str, Dim], None]
    """The undecided questions on which the types of later values hang, met while claiming. Kept by the driver."""
    weights: dict[Value, Weight]
    """The values that are dequantized constants, with what they are made of (:mod:`onnx_vulkan.lower.dequantized`)."""
    demanded: bool = False
    """In an evaluation: whether something needs the result on the host. Else it declines what would pin the run's shapes."""

    @property
    def version(self) -> int:
        return self.node.since_version

    @property
    def n_outputs(self) -> int:
        return len(self.node.outputs)

    def wants(self, i: int) -> bool:
        """Whether the node names output *i*."""
        return i < len(self.node.outputs) and bool(self.node.outputs[i])

    def device(self, x: Operand) -> Value:
        """*x* as a Value: a Host becomes a constant, or a ``dims`` instruction where it depends on the run's shapes."""
        if isinstance(x, Value):
            return x
        items = x.items()
        if any(isinstance(v, Unknown) for v in items):
            return Value(x.dtype, x.shape, "unknown")  # only while claiming: stands for the run's value
        if all(isinstance(v, (int, float, bool, np.generic)) for v in items):
            # numpy makes floats of integers that no one type holds
            array = np.array(items, object if x.dtype.is_int else None)
            return self.const(array.astype(x.dtype.numpy).reshape(x.shape))
        if any(isinstance(v, float) and not v.is_integer() for v in items):
            parts = [self.device(Host(x.dtype, np.array([v], object))) for v in items]
            return self.reshape(self.concat(parts, 0), x.shape)
        return self.cast(self.dims([v if isinstance(v, Dim) else int(v) for v in items], x.shape), x.dtype)


@dataclass(frozen=True, slots=True)
class Parameter:
    """One input of a lowering's signature."""

    name: str
    host: bool
    optional: bool
    variadic: bool
    device: bool = True


@dataclass(frozen=True, slots=True)
class Lowering:
    """A registered lowering: the function and what its decorator and signature say."""

    domain: str
    op_type: str
    versions: tuple[int, ...]
    function: Callable[..., Any]
    dtypes: Mapping[str, Collection[DType]]
    parameters: tuple[Parameter, ...]
    attributes: frozenset[str]
    required_attributes: frozenset[str]
    note: str
    float_defaults: Mapping[str, float]
    """Defaults of float attributes, rounded to float32: an attribute is one, whatever the tensors are."""


LOWERINGS: dict[tuple[str, str], list[Lowering]] = {}
EVALUATIONS: dict[tuple[str, str], Callable[..., Any]] = {}


def _parameters(
    function: Callable[..., Any],
) -> tuple[tuple[Parameter, ...], frozenset[str], frozenset[str], dict[str, float]]:
    hints = typing.get_type_hints(function)
    inputs, attributes, required = [], set(), set()
    floats: dict[str, float] = {}
    for p in list(inspect.signature(function).parameters.values())[1:]:
        if p.kind is p.KEYWORD_ONLY:
            attributes.add(p.name)
            if p.default is p.empty:
                required.add(p.name)
            elif isinstance(p.default, float):
                floats[p.name] = float(np.float32(p.default))
            continue
        hint = hints[p.name]
        union = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
        inputs.append(Parameter(p.name, Host in union, type(None) in union, p.kind is p.VAR_POSITIONAL, Value in union))
    return tuple(inputs), frozenset(attributes), frozenset(required), floats


def lowers(
    op_type: str,
    versions: Sequence[int],
    dtypes: Mapping[str, Collection[DType]] | None = None,
    domain: str = "",
    note: str = "",
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a lowering (see the module's text). *note* names the limits, for ``docs/operators.md``.

    Raises ValueError when a version is taken already.
    """

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        inputs, attributes, required, floats = _parameters(function)
        checked = dict(dtypes or {})
        entry = Lowering(domain, op_type, tuple(versions), function, checked, inputs, attributes, required, note, floats)
        entries = LOWERINGS.setdefault((domain, op_type), [])
        taken = {v for e in entries for v in e.versions} & set(versions)
        if taken:
            raise ValueError(f"{domain}::{op_type} versions {sorted(taken)} are registered twice")
        entries.append(entry)
        return function

    return register


def evaluates(op_type: str, domain: str = "") -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a host evaluation (see the module's text)."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        EVALUATIONS[domain, op_type] = function
        return function

    return register


def find_lowering(node: Node) -> Lowering | None:
    """The lowering that was read against the node's version, or None."""
    for entry in LOWERINGS.get((node.domain, node.op_type), ()):
        if node.since_version in entry.versions:
            return entry
    return None
