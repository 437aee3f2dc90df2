"""The structure of a block: what lowering, simplification and fusion made of it, and the guards under which it holds.

A structure knows no numbers. It serves every set of input shapes at which its guards give the same answers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from onnx_vulkan.codegen.kernel import Limits, Step
from onnx_vulkan.codegen.loop import loop_step
from onnx_vulkan.dims import Dim, Extent, Guard, Scope, product, symbol
from onnx_vulkan.fuse import fuse
from onnx_vulkan.graph import Array, Graph, TensorType
from onnx_vulkan.kernels.prepack import prepack
from onnx_vulkan.lower.driver import lower_graph
from onnx_vulkan.plan.build import PlanInput, PlanOutput
from onnx_vulkan.program.attention import fuse_attention
from onnx_vulkan.program.coarse import mark_coarse
from onnx_vulkan.program.fold import fold_constants
from onnx_vulkan.program.horizontal import merge_products
from onnx_vulkan.program.ir import Instr, Program, Value
from onnx_vulkan.program.simplify import simplify

__all__ = ["InputShapes", "Structure", "build_structure", "name_dims", "optimize"]

InputShapes = Mapping[str, tuple[Extent, ...]]


@dataclass(frozen=True, eq=False)
class Structure:
    """What :func:`build_structure` gives. ``shapes`` are the symbolic input shapes that it was lowered at; ``host_values``
    the bytes of the inputs that it was built on; ``counted`` what :func:`counted_extents` says."""

    program: Program
    steps: Sequence[Step]
    aliases: Mapping[Value, Value]
    inputs: Sequence[PlanInput]
    outputs: Sequence[PlanOutput]
    guards: Sequence[Guard]
    shapes: InputShapes
    host_values: Mapping[str, bytes]
    counted: Mapping[Extent, str]

    def serves(self, shapes: InputShapes, numbers: Mapping[str, int], host_bytes: Mapping[str, bytes]) -> bool:
        """Whether the structure holds at these numbers."""
        return (
            self.shapes == shapes
            and all(host_bytes.get(name) == data for name, data in self.host_values.items())
            and all(g.holds(numbers) for g in self.guards)
        )


def name_dims(graph: Graph, shapes: Mapping[str, tuple[int, ...]]) -> tuple[dict[str, tuple[Extent, ...]], dict[str, int]]:
    """Symbolic input shapes and the numbers of their symbols, for the shapes of a run.

    A named dim that the model uses twice is one symbol where the run gives it one number, two where it does not (ONNX's
    names are a hint, not a promise). A dim that the model fixes stays a number when the run agrees.
    """
    symbolic: dict[str, tuple[Extent, ...]] = {}
    numbers: dict[str, int] = {}
    for name in graph.inputs:
        actual = shapes[name]
        declared = graph.types[name].shape if name in graph.types else None
        if declared is None or len(declared) != len(actual):
            declared = tuple(symbol(f"{name}.{i}") for i in range(len(actual)))
        extents: list[Extent] = []
        for i, (e, n) in enumerate(zip(declared, actual, strict=True)):
            if not isinstance(e, Dim):
                extents.append(n)
                continue
            label = str(e)
            if numbers.setdefault(label, n) != n:
                label = f"{label}@{name}.{i}"
                numbers[label] = n
            extents.append(symbol(label))
        symbolic[name] = tuple(extents)
    return symbolic, numbers


def optimize(program: Program, folded: dict[str, Value]) -> Program:
    """The passes between lowering and fusion. Must run in the scope of the lowering."""
    program = simplify(program)
    program = fold_constants(program, folded)
    program = simplify(program)
    merged = merge_products(program)
    return mark_coarse(fuse_attention(program if merged is program else simplify(fold_constants(merged, folded))))


def build_structure(
    graph: Graph,
    shapes: InputShapes,
    numbers: Mapping[str, int],
    host_values: Mapping[str, Array],
    folded: dict[str, Value],
    limits: Limits,
) -> Structure:
    """Lower, simplify and fuse *graph* at these numbers.

    Raises RefusedError when a node cannot be lowered, ShapeMismatch when the shapes break a constraint of the model.
    """
    with Scope(numbers) as scope:
        lowered = lower_graph(graph, shapes, host_values)
        program = prepack(optimize(lowered.program, folded), folded, limits)
        stored, copies = _own_outputs(program)
        made = [v for v in dict.fromkeys([*stored, *(v for c in copies for v in c.reads)]) if v in program.producers()]
        fused = fuse(Program(program.inputs, made, program.instrs))
    outputs = [PlanOutput(v, t.shape or (), _bits(t)) for v, t in zip(stored, lowered.outputs, strict=True)]
    used = {name: host_values[name].tobytes() for name in lowered.host_inputs}
    steps = [*fused.steps, *copies]
    inputs = [
        PlanInput(v, t.shape or (), _bits(t), used.get(v.name))
        for v, t in zip(lowered.program.inputs, lowered.inputs, strict=True)
    ]
    guards = list(scope.guards)
    return Structure(program, steps, fused.aliases, inputs, outputs, guards, shapes, used, counted_extents(program))


def _bits(t: TensorType) -> int:
    assert t.dtype is not None
    return t.dtype.bits


def counted_extents(program: Program) -> dict[Extent, str]:
    """The numbers that kernels count to in 32 bits for values that may never be in memory, each with a node that has it.

    Axes are walked one by one; a reshape counts through the whole of its operand, a reduction through its rows and columns,
    an attention through its scores.
    """
    counted: dict[Extent, str] = {}
    for instr in program.instrs:
        found = [e for v in instr.outputs for e in v.shape]
        if instr.op == "reshape":
            found.append(product(instr.out.shape))
        elif instr.op == "reduce":
            x = instr.inputs[0].shape
            found += [product(instr.out.shape), product(x[a] for a in instr.attrs["axes"])]
        elif instr.op == "attention":
            found.append(product((*instr.out.shape[:-1], instr.inputs[1].shape[-1])))
        for e in found:
            if isinstance(e, Dim) or e >= 1 << 20:
                counted.setdefault(e, instr.source)
    return counted


def _own_outputs(program: Program) -> tuple[list[Value], list[Step]]:
    """Give each output bytes of its own: the values that hold the outputs, and the steps that copy some of them there.

    An output that is a reshape of another value is that value. One that is an input, a constant, or the same as another output
    is copied by a kernel at the end.
    """
    producers = program.producers()
    outputs: list[Value] = []
    copies: list[Step] = []
    for out in program.outputs:
        made = producers.get(out)
        while made is not None and made.op == "reshape":
            out = made.inputs[0]
            made = producers.get(out)
        if made is None or out in outputs:
            copy = Value(out.dtype, out.shape, out.name)
            instr = Instr("reshape", (out,), (copy,), {"shape": out.shape}, "output")
            source = out
            copies.append(loop_step("output", [copy], {copy: instr}, lambda v, source=source: v is source))  # type: ignore[misc]
            out = copy
        outputs.append(out)
    return outputs, copies
