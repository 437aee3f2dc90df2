"""Lowers a Graph into a Program: walks the nodes, checks them, feeds the registered functions. Knows no operator by name.

A value is an *operand*: on the device (:class:`Value`) or known on the host before the run (:class:`Host`). Nodes whose inputs
are all host-known are evaluated on the host where an evaluation is registered. A value that a later node needs on the host is
*demanded*: its producers are evaluated back to constants, shapes and small graph inputs (which become part of the plan's key).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from onnx_vulkan.dims import Dim, Extent, current_scope, evaluate, same, symbol
from onnx_vulkan.dtypes import SMALL, DType
from onnx_vulkan.errors import OnnxVulkanError, Refusal, RefusedError, ShapeMismatch, Unsupported
from onnx_vulkan.graph import Array, Graph, Node, TensorType
from onnx_vulkan.lower.checks import check_dtypes, check_opset
from onnx_vulkan.lower.frame import Frame, Lost, is_small
from onnx_vulkan.lower.host import HOST_LIMIT, is_plain, objects
from onnx_vulkan.lower.refused import REFUSED
from onnx_vulkan.lower.registry import (
    EVALUATIONS,
    LOWERINGS,
    Host,
    LowerContext,
    Lowering,
    NotHost,
    Operand,
    Parameter,
    Unknown,
    find_lowering,
)
from onnx_vulkan.lower.schema_functions import function_body
from onnx_vulkan.lower.small import carried
from onnx_vulkan.program.ir import Program, Value

__all__ = ["HOST_INPUT_LIMIT", "HOST_LIMIT", "Lowered", "host_symbol", "lower_graph"]

HOST_INPUT_LIMIT = 64
"""The most elements of a graph input whose values may decide shapes (they are part of the plan's key)."""

FORK_LIMIT = 16
"""The most questions that claiming tries the other answer of."""


def _sample(numbers: Callable[[int], Sequence[int]]) -> Callable[[Operand], Operand]:
    """Fills what is not known of a host value: with ``numbers(size)``, element by element."""

    def fill(x: Operand) -> Operand:
        if isinstance(x, Value) or is_plain(x):
            return x
        known = zip(x.items(), numbers(x.data.size), strict=True)
        items = [n if isinstance(v, (Dim, Unknown)) else v for v, n in known]
        return Host(x.dtype, objects([x.dtype.numpy.type(v).item() for v in items], x.shape))

    return fill


SAMPLES = (_sample(range), _sample(lambda size: [1] * size), _sample(lambda size: [2] * size))
"""Numbers at which a node is judged that hangs on numbers only a run can tell: different axes, then factors and counts (a
flag is 0, then 1)."""


@dataclass(slots=True)
class Lowered:
    """What :func:`lower_graph` gives.

    ``inputs`` and ``outputs`` are the types of the graph's edges; the program holds those of elements below a byte packed
    (:func:`onnx_vulkan.lower.small.carried`). ``host_inputs`` names the graph inputs whose values the program was built on, in
    the order they were needed; ``host_outputs`` the outputs that were known on the host (the program makes them all the same).
    ``shapes`` are those of the graph's values, as far as they are known.
    """

    program: Program
    inputs: list[TensorType]
    outputs: list[TensorType]
    refusals: list[Refusal]
    host_inputs: list[str]
    host_outputs: list[str]
    shapes: dict[str, tuple[Extent, ...]]


def host_symbol(name: str, i: int) -> str:
    """The symbol that stands for element *i* of the host-known graph input *name*."""
    return f"host:{name}.{i}"


def readable(reason: str) -> str:
    """A reason without the names that only the lowering knows: element i of a host input reads ``name[i]``."""
    return re.sub(r"unknown:\d+", "a number that depends on data", re.sub(r"host:(\S+?)\.(\d+)\b", r"\1[\2]", reason))


class _Refuse(Exception):
    """Ends the lowering of one node."""

    def __init__(self, check: str, reason: str):
        super().__init__(reason)
        self.check, self.reason = check, reason


def lower_graph(
    graph: Graph,
    shapes: Mapping[str, tuple[Extent, ...]] | None = None,
    host_values: Mapping[str, Array] | None = None,
    *,
    strict: bool = True,
) -> Lowered:
    """Lower *graph* under the active :class:`~onnx_vulkan.dims.Scope`.

    ``shapes`` gives the graph inputs' shapes (default: the declared ones). ``host_values`` gives the numbers of inputs that
    decide shapes; where the scope knows the symbols :func:`host_symbol`, those are used instead of plain numbers.

    With *strict* a node that cannot be lowered raises RefusedError (naming all offenders that do not depend on another) and a
    broken shape constraint raises ShapeMismatch. Without it, refusals are collected and the outputs of a refused node stand in as
    if they were inputs.
    """
    if not strict and current_scope().values is None:
        return _claim(graph, shapes or {})
    return _Driver(graph, host_values or {}, strict).run(shapes or {})


def _claim(graph: Graph, shapes: Mapping[str, tuple[Extent, ...]]) -> Lowered:
    """Lower before any shape is known, settling the undecided questions on which types hang (an ``If`` whose branches differ
    in rank) so that the fewest nodes are refused. A run that answers such a question otherwise is refused when it is bound.
    """
    scope = current_scope()
    before = dict(scope.assumed)
    tried: set[tuple[str, Dim]] = set()
    best = _Driver(graph, {}, False)
    lowered = best.run(shapes)
    while best.troubles and len(tried) < FORK_LIMIT:
        question = next((q for q in best.b.forks if q not in tried), None)
        if question is None:
            break
        tried.add(question)
        scope.assumed[question] = not scope.decide(*question)
        other = _Driver(graph, {}, False)
        result = other.run(shapes)
        if other.troubles < best.troubles:
            best, lowered = other, result
        else:
            del scope.assumed[question]
    scope.assumed = before
    return lowered


class _Driver:
    """The state of one :func:`lower_graph` call."""

    def __init__(self, graph: Graph, host_values: Mapping[str, Array], strict: bool):
        self.graph = graph
        self.strict = strict
        self.host_values = host_values
        self.b = LowerContext()
        self.b.inline = self.inline
        self.b.forks = {}
        self.b.weights = {}
        self.refusals: list[Refusal] = []
        self.troubles = 0  # refusals, those inside bodies included
        self.host_inputs: dict[str, None] = {}
        self.frame = Frame(graph, None)
        self.origins: dict[Value, tuple[Frame, str]] = {}  # what a body gave, and its name there
        self.sampled_values: list[Value] = []
        self.function: Node | None = None  # the node whose body by the schema is being lowered

    # -------------------------------------------------------------------------------------------- whole graphs
    def run(self, shapes: Mapping[str, tuple[Extent, ...]]) -> Lowered:
        graph, frame = self.graph, self.frame
        for name in graph.inputs:
            declared = graph.types.get(name, TensorType(None, None, "an undeclared type"))
            shape = shapes.get(name, declared.shape)
            if declared.dtype is None or shape is None:
                why = "has an unknown rank" if declared.dtype else f"is of {declared.type_name or 'an unsupported type'}"
                self.b.input(name, DType.U8, (0,))
                frame.values[name] = Lost(why, declared.dtype, declared.type_name)
            else:
                frame.values[name] = self.b.input(name, declared.dtype, shape)
                frame.inputs.add(name)
        self.lower_nodes()
        outputs, host_outputs = [], []
        for name in graph.outputs:
            operand = frame.find(name)
            if isinstance(operand, Host):
                host_outputs.append(name)
                operand = self.b.device(operand)
            if isinstance(operand, Lost) or operand is None:
                if self.strict and not self.refusals:
                    reason = operand.why if operand else "is made by no node"
                    raise Unsupported(f"output {name!r} of {graph.name} {reason}")
                operand = Value(DType.U8, (0,), name)
            outputs.append(operand)
        if self.strict and self.refusals:
            raise RefusedError(graph.name, self.refusals)
        program = self.b.finish(outputs)
        program.instrs = _live(program, self.sampled_values)
        inputs, made = ([TensorType(v.dtype, v.shape) for v in edge] for edge in (program.inputs, program.outputs))
        known = {name: tuple(v.shape) for name, v in frame.values.items() if isinstance(v, (Value, Host))}
        return Lowered(carried(program), inputs, made, self.refusals, list(self.host_inputs), host_outputs, known)

    def inline(self, body: Graph, operands: Sequence[Operand]) -> tuple[Operand, ...]:
        """Lower a body in place. Raises Unsupported when one of its nodes is refused."""
        node, refusals, outer = self.b.node, self.refusals, self.frame
        self.frame, self.refusals = Frame(body, outer), []
        try:
            if len(operands) != len(body.inputs):
                raise Unsupported(f"its body takes {len(body.inputs)} inputs, {len(operands)} are given")
            self.frame.values.update(zip(body.inputs, operands, strict=True))
            self.lower_nodes()
            if self.refusals:
                raise Unsupported(f"its body has a node that is refused: {self.refusals[0]}")
            results = [self.frame.find(name) for name in body.outputs]
            for name, operand in zip(body.outputs, results, strict=True):
                if not isinstance(operand, (Value, Host)):
                    raise Unsupported(f"its body's output {name!r} {operand.why if operand else 'is made by no node'}")
            self.origins.update({r: (self.frame, n) for r, n in zip(results, body.outputs, strict=True) if isinstance(r, Value)})
            return tuple(r for r in results if isinstance(r, (Value, Host)))
        finally:
            self.frame, self.refusals = outer, refusals
            self.b.node, self.b.source = node, self.label(node)

    def label(self, node: Node) -> str:
        """Whose the instructions are that the node becomes."""
        node = self.function or node
        return node.name or node.op_type

    def lower_nodes(self) -> None:
        for node in _needed(self.frame.graph):
            self.b.node, self.b.source = node, self.label(node)
            try:
                self.lower_node(node)
            except _Refuse as e:
                self.refuse(node, e.check, e.reason)
            except Unsupported as e:
                self.refuse(node, "kernel", str(e))
            except ShapeMismatch as e:
                if current_scope().values is not None:
                    raise ShapeMismatch(f"{node.label} {node.name or node.outputs[0]!r}: {e}") from e
                self.refuse(node, "kernel", str(e))
            except (
                ArithmeticError,
                AssertionError,
                AttributeError,
                LookupError,
                NotImplementedError,
                TypeError,
                ValueError,
            ) as e:
                if isinstance(e, OnnxVulkanError):
                    raise
                self.refuse(node, "kernel", f"internal error while lowering: {type(e).__name__}: {e}", e)

    def refuse(self, node: Node, check: str, reason: str, cause: BaseException | None = None) -> None:
        reason = readable(reason if reason.endswith((".", ")", "!")) else reason + ".")
        refusal = Refusal(node.name, node.op_type, node.domain, node.since_version, check, reason)
        self.refusals.append(refusal)
        self.troubles += 1
        for name in filter(None, node.outputs):
            declared = self.frame.graph.types.get(name, TensorType(None, None))
            if self.strict or declared.dtype is None or declared.shape is None:
                unknown = "whose output has an unknown rank" if declared.dtype else "whose output has an unknown type"
                why = f"comes from the refused node {node.label} {node.name!r}, {unknown}"
                self.frame.values[name] = Lost(why, declared.dtype, declared.type_name, refused=True)
            else:
                self.frame.values[name] = Value(declared.dtype, declared.shape, name)
                self.frame.inputs.add(name)

    # -------------------------------------------------------------------------------------------- one node
    def lower_node(self, node: Node) -> None:
        operands = [self.frame.find(name) if name else None for name in node.inputs]
        lost = [(name, o) for name, o in zip(node.inputs, operands, strict=True) if isinstance(o, Lost)]
        if self.strict and any(o.refused for _, o in lost):
            for name in filter(None, node.outputs):
                self.frame.values[name] = lost[0][1]
            return
        entry = find_lowering(node)
        if entry is None and (node.domain, node.op_type) not in LOWERINGS:
            self.lower_function(node, operands)
            return
        if (reason := check_opset(node, self.graph.opsets.get("", 0))) is not None:
            raise _Refuse("opset", reason)
        assert entry is not None
        if self.evaluate_forward(node, operands):
            return
        for name, operand in lost:
            if operand.refused and operand.dtype is None and not operand.type_name:
                raise _Refuse("kernel", f"input {name!r} {operand.why}.")
        dtypes = [o.dtype if o is not None else None for o in operands]
        names = [o.type_name if isinstance(o, Lost) else "" for o in operands]
        if (reason := check_dtypes(node, dtypes, names)) is not None:
            raise _Refuse("dtype", reason)
        if lost:
            raise _Refuse("kernel", f"input {lost[0][0]!r} {lost[0][1].why}.")
        arguments: list[Operand | None] = []
        for i, name in enumerate(node.inputs):
            arguments.append(self.operand(name, entry.parameters[min(i, len(entry.parameters) - 1)]) if name else None)
        arguments += [None for p in entry.parameters[len(arguments) :] if not p.variadic]
        self.bind(node, self.call(entry, arguments))

    def lower_function(self, node: Node, operands: Sequence[Operand | Lost | None]) -> None:
        """A node without a lowering by the body that ONNX gives its operator. Its instructions count as the node's."""
        given = [o for o in operands if not isinstance(o, Lost)]
        body = function_body(node, given, self.graph.opsets) if len(given) == len(operands) else None
        if body is None:
            reason = REFUSED.get((node.domain, node.op_type))
            why = f"is not supported: {reason}" if reason else "has no implementation for Vulkan here"
            raise _Refuse("kernel", f"{node.label} {why}.")
        outer, self.function = self.function, self.function or node
        try:
            results = iter(self.inline(body, [o for o in given if o is not None]))
        finally:
            self.function = outer
        self.bind(node, [next(results) if name else None for name in node.outputs])

    def call(self, entry: Lowering, arguments: Sequence[Operand | None]) -> Sequence[Operand | None]:
        """What the lowering gives.

        A node that is refused because of numbers that are not plain (axes, ``k``, scales given as inputs) is tried again at this
        run's numbers, to which the plan is then pinned. While claiming there are none: samples decide whether it can be lowered
        at all, and its results take their declared shapes.
        """
        node = self.b.node
        try:
            result = entry.function(self.b, *arguments, **{**entry.float_defaults, **node.attributes})
        except (Unsupported, ShapeMismatch):
            if all(not isinstance(a, Host) or is_plain(a) for a in arguments) or any(_bodies(node)):
                raise  # how often a body runs may be anything: no sample can stand for that
            if current_scope().values is not None:
                pinned = (_pinned(a) for a in arguments)
                result = entry.function(self.b, *pinned, **{**entry.float_defaults, **node.attributes})
            else:
                tries = [self.sampled(entry, [a and sample(a) for a in arguments]) for sample in SAMPLES]
                result = next((found for found in tries if found is not None), None)
                # a flag has two values, and both have to do
                flags = any(isinstance(a, Host) and a.dtype is DType.BOOL and not is_plain(a) for a in arguments)
                if result is None or (flags and None in tries):
                    raise
        return result if isinstance(result, tuple) else (result,)

    def sampled(self, entry: Lowering, arguments: Sequence[Operand | None]) -> tuple[Operand | None, ...] | None:
        """Placeholders, of the declared shapes where there are any, for what the lowering gives at sample numbers, or None."""
        node = self.b.node
        try:
            with np.errstate(all="ignore"):  # the samples may mean nothing
                result = entry.function(self.b, *arguments, **{**entry.float_defaults, **node.attributes})
        except (OnnxVulkanError, ArithmeticError, LookupError, TypeError, ValueError):
            return None
        made: list[Operand | None] = []
        for name, value in zip(node.outputs, result if isinstance(result, tuple) else (result,), strict=False):
            declared = self.frame.graph.types.get(name)
            if name and value is not None:
                shape = declared.shape if declared is not None else None
                if shape is None:
                    shape = tuple(symbol(f"unknown:{name}.{i}") for i in range(len(value.shape)))
                if len(shape) != len(value.shape):
                    return None
                if isinstance(value, Value):
                    self.sampled_values.append(value)  # so that the kernel check sees its instructions
                value = Value(value.dtype, shape, name)
            made.append(value)
        return tuple(made)

    def operand(self, name: str, parameter: Parameter) -> Operand:
        found = self.frame.find(name)
        if parameter.host and not parameter.device:
            host = self.host(name)
            if host is None:
                raise _Refuse("kernel", f"input {parameter.name} ({name!r}) must be known before the run, but depends on data.")
            return host
        if isinstance(found, Host) and not parameter.host:
            return self.frame.on_device(name, found, self.b)
        if found is None or isinstance(found, Lost):
            raise _Refuse("kernel", f"input {parameter.name} ({name!r}) {found.why if found else 'is made by no node'}.")
        return found

    def bind(self, node: Node, results: Sequence[Operand | None]) -> None:
        for i, name in enumerate(node.outputs):
            if not name:
                continue
            result = results[i] if i < len(results) else None
            if result is None:
                self.frame.values[name] = Lost(f"is output {i} of {node.label} {node.name!r}, which is not supported")
                if name in self.frame.graph.outputs or name in _reads(self.frame.graph):
                    raise Unsupported(f"output {i} of {node.label} is not supported.")
                continue
            declared = self.frame.graph.types.get(name)
            if declared is not None and declared.dtype not in (None, result.dtype):
                says = declared.dtype.onnx_name if declared.dtype else "nothing"
                raise Unsupported(f"its output {name!r} is {result.dtype.onnx_name}, but the model declares it {says}")
            self.frame.values[name] = result

    # -------------------------------------------------------------------------------------------- host values
    def evaluate_forward(self, node: Node, operands: Sequence[Operand | Lost | None]) -> bool:
        """Evaluate the node on the host if all its inputs are known there already."""
        if (node.domain, node.op_type) not in EVALUATIONS:
            return False
        hosts: list[Host | None] = []
        for name, operand in zip(node.inputs, operands, strict=True):
            host = operand if isinstance(operand, Host) else self.frame.constant(name) if name else None
            if name and host is None:
                return False
            hosts.append(host)
        results = self.evaluate(node, hosts, demanded=False)
        if results is not None:
            self.bind(node, results)
        return results is not None

    def evaluate(self, node: Node, hosts: Sequence[Host | None], *, demanded: bool) -> tuple[Host | None, ...] | None:
        before, self.b.node, self.b.demanded = self.b.node, node, demanded
        try:
            result = EVALUATIONS[node.domain, node.op_type](self.b, *hosts, **node.attributes)
        except (NotHost, IndexError, ValueError, ZeroDivisionError):
            return None  # an index outside a tensor and the like: the device's lowering says it better
        finally:
            self.b.node, self.b.demanded = before, False
        results = result if isinstance(result, tuple) else (result,)
        return results if all(r.data.size <= HOST_LIMIT for r in results) else None

    def host(self, name: str, depth: int = 0) -> Host | None:
        """The value on the host, demanded: evaluates its producers back to what is known. None where it depends on data."""
        frame = self.frame.owner(name)
        if frame is None or depth > 256:
            return None
        if name in frame.demanded:
            return frame.demanded[name]
        found = frame.find(name)
        host = found if isinstance(found, Host) else frame.constant(name)
        if host is None and isinstance(found, Value) and is_small(found.shape, HOST_LIMIT):
            producer = frame.producers.get(name)
            if name in frame.inputs:
                host = self.host_input(name, found)
            elif producer is not None and (producer.domain, producer.op_type) in EVALUATIONS:
                host = self.evaluate_back(producer, producer.outputs.index(name), depth)
            elif found in self.origins and self.origins[found] != (frame, name):
                around, (self.frame, inner) = self.frame, self.origins[found]
                host = self.host(inner, depth + 1)
                self.frame = around
        frame.demanded[name] = host
        return host

    def evaluate_back(self, node: Node, output: int, depth: int) -> Host | None:
        """One output of a node on the host, its inputs demanded there too."""
        hosts = [self.host(n, depth + 1) if n else None for n in node.inputs]
        if any(h is None and n for h, n in zip(hosts, node.inputs, strict=True)):
            return None
        results = self.evaluate(node, hosts, demanded=True)
        return results[output] if results is not None else None

    def host_input(self, name: str, value: Value) -> Host | None:
        """A small graph input as a host value; it becomes part of the plan's key."""
        if not is_small(value.shape, HOST_INPUT_LIMIT) or value.dtype in SMALL:
            return None
        shape = [e for e in value.shape if isinstance(e, int)]
        count, scope = int(np.prod(shape)), current_scope()
        names = [host_symbol(name, i) for i in range(count)]
        items: list[Any]
        if scope.values is None:
            items = [symbol(n) if value.dtype.is_int else Unknown() for n in names]
        elif value.dtype.is_int and all(n in scope.values for n in names):
            items = [symbol(n) for n in names]
        elif name in self.host_values:
            items = self.host_values[name].reshape(-1).astype(object).tolist()
        else:
            return None
        self.host_inputs.setdefault(name)
        return Host(value.dtype, objects(items, shape))


def _pinned(x: Operand | None) -> Operand | None:
    """A host value at this run's numbers, which its plan then holds for."""
    values = current_scope().values
    if not isinstance(x, Host) or values is None:
        return x
    items = [evaluate(v, values) if isinstance(v, Dim) else v for v in x.items()]
    for v, n in zip(x.items(), items, strict=True):
        if isinstance(v, Dim):
            same(v, n)
    return Host(x.dtype, objects(items, x.shape))


def _bodies(node: Node) -> Iterator[Graph]:
    """The graphs among the node's attributes."""
    for value in node.attributes.values():
        for body in value if isinstance(value, list) else [value]:
            if isinstance(body, Graph):
                yield body


def _captured(node: Node) -> set[str]:
    """The outer values that the bodies of *node* read."""
    names: set[str] = set()
    for body in _bodies(node):
        inner = set(body.inputs) | set(body.initializers) | {o for n in body.nodes for o in n.outputs}
        reads = {i for n in body.nodes for i in (*n.inputs, *_captured(n))} | set(body.outputs)
        names |= reads - inner
    return names - {""}


def _reads(graph: Graph) -> set[str]:
    return {i for n in graph.nodes for i in (*n.inputs, *_captured(n))}


def _needed(graph: Graph) -> list[Node]:
    """The nodes that an output depends on, in order."""
    live, kept = set(graph.outputs), []
    for node in reversed(graph.nodes):
        if any(o in live for o in node.outputs):
            kept.append(node)
            live.update(node.inputs)
            live |= _captured(node)
    return kept[::-1]


def _live(program: Program, more: Sequence[Value]) -> list[Any]:
    """The instructions that an output, or one of *more*, depends on."""
    live, kept = {*program.outputs, *more}, []
    for instr in reversed(program.instrs):
        if any(o in live for o in instr.outputs):
            kept.append(instr)
            live.update(instr.inputs)
    return kept[::-1]
