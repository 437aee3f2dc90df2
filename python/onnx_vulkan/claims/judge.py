"""Which nodes of a graph can run on Vulkan, and for each other one the check and the sentence that refuse it.

Three checks must agree. *opset*: the operator version and form are among those that the lowering was read against. *dtype*:
every element type is one that the lowering, and the device, can do. *kernel*: the lowering runs, on symbolic shapes, and every
instruction that it emits has a kernel. No memory is allocated and no GPU is needed. Nothing here knows a model file.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

import onnx_vulkan.lower as lower
from onnx_vulkan.dims import Scope
from onnx_vulkan.dtypes import DType
from onnx_vulkan.errors import Refusal
from onnx_vulkan.graph import Attribute, Graph, Node
from onnx_vulkan.lower.refused import REFUSED_DOMAINS
from onnx_vulkan.lower.registry import LOWERINGS, MAX_OPSET, find_lowering
from onnx_vulkan.program.ir import Instr, Program

__all__ = ["Judgement", "judge"]

# What a device must have before a tensor of the type can be read, written and computed with (names of device.DeviceInfo).
# bfloat16 is computed in float32 and its bits in 16-bit integers; bools are bytes in memory. Functions of float64 take numbers
# apart as 64-bit integers.
_NEEDS: dict[DType, tuple[str, ...]] = {
    DType.F16: ("f16", "storage16"),
    DType.BF16: ("i16", "storage16"),
    DType.F64: ("f64", "i64"),
    DType.I64: ("i64",),
    DType.U64: ("i64",),
    DType.I16: ("i16", "storage16"),
    DType.U16: ("i16", "storage16"),
    DType.I8: ("i8", "storage8"),
    DType.U8: ("i8", "storage8"),
    DType.BOOL: ("i8", "storage8"),
}


@dataclass(frozen=True, slots=True)
class Judgement:
    """``refused`` by node index; ``host_inputs`` are the graph inputs whose values decide shapes, in the order of need.

    ``program`` is the lowering, ``index_of`` the node that the source of an instruction stands for.
    """

    refused: dict[int, Refusal]
    host_inputs: tuple[str, ...]
    program: Program
    index_of: Mapping[str, int]


def judge(graph: Graph, features: frozenset[str] | None = None, only: Collection[str] | None = None) -> Judgement:
    """Judge every node of *graph*.

    *features* are a device's; None judges without a device. *only*, where given, are the operators (``Conv``,
    ``com.microsoft::Gelu``) and node names that may be claimed at all.
    """
    renamed, index_of = _named_apart(graph)
    found: dict[int, tuple[str, str]] = {}
    for i, node in enumerate(graph.nodes):
        reason = _opset(node, graph)
        if reason is not None:
            found[i] = ("opset", reason)
        elif only is not None and not {node.op_type, node.label, node.name} & set(only):
            found[i] = ("kernel", f"ONNX_VULKAN_OPS does not name {node.label} or this node.")
    while True:
        # A node that is out already stays in the graph in a version that no lowering has: the driver then goes on from the
        # declared types of its outputs, so that the nodes after it are judged all the same.
        for i in found:
            renamed.nodes[i].since_version = -1
        with Scope(None):
            lowered = lower.lower_graph(renamed, strict=False)
        for r in lowered.refusals:
            found.setdefault(index_of[r.name], (r.check, r.reason))
        late = _kernels(lowered.program.instrs, index_of, features, found)
        if features is not None:
            late = _outputs(graph, lowered.program, features, found) | late
        if not late:
            break
        found.update(late)
    refused = {i: _refusal(graph.nodes[i], *found[i]) for i in sorted(found)}
    return Judgement(refused, tuple(lowered.host_inputs), lowered.program, index_of)


def _refusal(node: Node, check: str, reason: str) -> Refusal:
    return Refusal(node.name, node.op_type, node.domain, node.since_version, check, reason)


def _opset(node: Node, graph: Graph) -> str | None:
    """What the driver's own opset check cannot say: versions that nobody here has read, and how to get another one."""
    opset = graph.opsets.get(node.domain, 0)
    if node.domain == "" and opset > MAX_OPSET:
        return (
            f"the model's opset {opset} is newer than {MAX_OPSET}, the newest that was read here: export it again with an opset "
            f"up to that, or convert it with onnx.version_converter.convert_version(model, {MAX_OPSET})."
        )
    if node.since_version > 0 or find_lowering(node) is not None:
        return None
    if node.domain in REFUSED_DOMAINS:
        return f"{node.label} is not supported: {REFUSED_DOMAINS[node.domain]}."
    if node.domain not in graph.opsets:
        return f"the model imports no operator set of the domain {node.domain or 'ai.onnx'!r}."
    if (node.domain, node.op_type) in LOWERINGS:
        return f"version {opset} of {node.domain or 'ai.onnx'} has no operator {node.op_type} that is known here."
    return f"{node.label} is an operator that is not known here."


def _kernels(
    instrs: Collection[Instr],
    index_of: dict[str, int],
    features: frozenset[str] | None,
    found: Collection[int],
) -> dict[int, tuple[str, str]]:
    """Nodes with an instruction that the device or the kernels cannot do."""
    late: dict[int, tuple[str, str]] = {}
    supports = _kernel_check()
    for instr in instrs:
        i = index_of.get(instr.source)
        if i is None or i in found or i in late:
            continue
        reason = None if features is None else _lacking({v.dtype for v in (*instr.inputs, *instr.outputs)}, features)
        if reason is not None:
            late[i] = ("dtype", reason)
            continue
        reason = supports(instr) if supports else None
        if reason is not None:
            late[i] = ("kernel", reason if reason.endswith((".", ")")) else f"{reason}.")
    return late


def _outputs(graph: Graph, program: Program, features: frozenset[str], found: Collection[int]) -> dict[int, tuple[str, str]]:
    """Nodes that make an output which the device cannot write, be it known before the run."""
    maker = {name: i for i, node in enumerate(graph.nodes) for name in node.outputs}
    late: dict[int, tuple[str, str]] = {}
    for name, value in zip(graph.outputs, program.outputs, strict=True):
        reason = _lacking({value.dtype}, features)
        if reason is not None and name in maker and maker[name] not in found:
            late[maker[name]] = ("dtype", reason)
    return late


def _lacking(dtypes: Collection[DType], features: frozenset[str]) -> str | None:
    """Why a device with these features cannot compute with these element types, as a sentence, or None."""
    for dtype in sorted(dtypes, key=lambda t: t.onnx_name):
        missing = [f for f in _NEEDS.get(dtype, ()) if f not in features]
        if missing:
            return f"it uses {dtype.onnx_name}, and the device lacks {' and '.join(missing)}."
    return None


def _kernel_check() -> Callable[[Instr], str | None] | None:
    from onnx_vulkan import kernels

    found: Callable[[Instr], str | None] | None = getattr(kernels, "supports", None)
    return found


def _named_apart(graph: Graph) -> tuple[Graph, dict[str, int]]:
    """A copy of *graph* whose node names are unique, inside bodies too, and which top-level node each name belongs to."""
    index_of: dict[str, int] = {}

    def unique(name: str, i: int) -> str:
        wish, n = name, 1
        while name in index_of:
            n += 1
            name = f"{wish}#{n}"
        index_of[name] = i
        return name

    def renamed(node: Node, i: int) -> Node:
        attributes = {k: body_of(v, i) for k, v in node.attributes.items()}
        return replace(node, name=unique(node.name or node.op_type, i), attributes=attributes)

    def body_of(value: Attribute, i: int) -> Attribute:
        if isinstance(value, Graph):
            return replace(value, nodes=[renamed(n, i) for n in value.nodes])
        if isinstance(value, list) and value and isinstance(value[0], Graph):
            return [body_of(g, i) for g in value]  # type: ignore[return-value]
        return value

    return replace(graph, nodes=[renamed(n, i) for i, n in enumerate(graph.nodes)]), index_of
