"""Control flow. What is decided before the run is inlined; a trip count or branch that depends on data is refused."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from onnx_vulkan.dims import Dim, axis_of
from onnx_vulkan.dtypes import ALL, DType
from onnx_vulkan.errors import Unsupported
from onnx_vulkan.graph import Graph
from onnx_vulkan.lower.host import objects
from onnx_vulkan.lower.registry import Host, LowerContext, Operand, Unknown, lowers
from onnx_vulkan.program.ir import Value

__all__ = ["most_steps"]

UNROLLED_STEPS = 64
UNROLLED_NODES = 4096
"""A Loop or Scan of a known length is written out up to so many iterations, or until it comes to so many nodes."""

_VERSIONS = [1, 11, 13, 16, 19, 21, 23, 24, 25]


def most_steps(body: Graph) -> int:
    """How many iterations of *body* are written out at most."""
    return max(UNROLLED_STEPS, UNROLLED_NODES // max(1, len(body.nodes)))


@lowers("If", _VERSIONS, note="the condition must be known before the run")
def if_(b: LowerContext, condition: Host, *, then_branch: Graph, else_branch: Graph) -> tuple[Operand, ...]:
    """Inlines the branch that is taken. While claiming an undecided one both must do; where they differ in type or rank, the
    driver tries which answer the rest of the graph stands."""
    answer = condition.items()[0]
    if not isinstance(answer, Unknown):
        return b.inline(then_branch if answer else else_branch, ())
    try:
        then = b.inline(then_branch, ())
    except Unsupported:
        b.inline(else_branch, ())  # so that the questions of both are met
        raise
    other = b.inline(else_branch, ())
    for t, o in zip(then, other, strict=True):
        if t.dtype is not o.dtype or len(t.shape) != len(o.shape):
            if answer.question is None:
                raise Unsupported("its condition depends on the run's shapes, and its branches differ in type or rank")
            b.forks.setdefault(answer.question)
    return then if answer.generic else other


def _stacked(b: LowerContext, slices: Sequence[Operand], axis: int = 0) -> Value:
    values = [b.device(s) for s in slices]
    axis = axis % (values[0].rank + 1)
    return b.concat([b.reshape(v, (*v.shape[:axis], 1, *v.shape[axis:])) for v in values], axis)


@lowers(
    "Loop",
    _VERSIONS,
    {"carried": ALL},
    note="unrolled: the trip count must be known before the run, at most 64, or 4096 nodes in all",
)
def loop(
    b: LowerContext, trips: Host | None, condition: Host | None, *carried: Operand, body: Graph
) -> tuple[Operand | None, ...]:
    count = trips.ints()[0] if trips is not None else None
    going = condition.items()[0] if condition is not None else True
    if isinstance(count, Dim):
        raise Unsupported("its trip count depends on the shapes or values of a run")
    state: tuple[Operand, ...] = carried
    scans: list[list[Operand]] = [[] for _ in body.outputs[1 + len(carried) :]]
    for i in itertools.count():
        if isinstance(going, Unknown):
            raise Unsupported("its condition depends on the run's shapes")
        if not going or (count is not None and i >= count):
            break
        if i == most_steps(body):
            raise Unsupported(f"it runs more than {i} times")
        flags = (Host(DType.I64, objects([i], ())), Host(DType.BOOL, objects([True], ())))
        results = b.inline(body, (*flags, *state))
        keep = results[0]
        if isinstance(keep, Value):
            if keep.data is None:
                raise Unsupported("its condition depends on data")
            going = bool(np.asarray(keep.data).reshape(-1)[0])
        else:
            going = keep.items()[0]
        state = results[1 : 1 + len(state)]
        for made, x in zip(scans, results[1 + len(state) :], strict=True):
            made.append(x)
    if any(not made for made in scans):
        raise Unsupported("it runs no iteration, so that the shapes of its scan outputs are unknown")
    return (*state, *(_stacked(b, made) for made in scans))


def _steps(
    b: LowerContext,
    body: Graph,
    state: tuple[Operand, ...],
    inputs: Sequence[Value],
    axes: Sequence[int],
    backward: Sequence[int],
    length: int,
) -> tuple[tuple[Operand, ...], list[list[Operand]]]:
    """Runs *body* along *axes* of *inputs*: the final state, and what each step gave to each scan output."""
    first = len(state)
    scans: list[list[Operand]] = [[] for _ in body.outputs[first:]]
    for i in range(length):
        rows = []
        for x, axis, back in zip(inputs, axes, backward, strict=True):
            starts = [(length - 1 - i if back else i) if a == axis else 0 for a in range(x.rank)]
            row = b.slice(x, starts, [1 if a == axis else e for a, e in enumerate(x.shape)])
            rows.append(b.reshape(row, [e for a, e in enumerate(x.shape) if a != axis]))
        results = b.inline(body, (*state, *rows))
        state = results[:first]
        for made, result in zip(scans, results[first:], strict=True):
            made.append(result)
    return state, scans


@lowers(
    "Scan", [9, 11, 16, 19, 21, 23, 24, 25], {"operands": ALL}, note="unrolled: a known length, at most 64, or 4096 nodes in all"
)
def scan(
    b: LowerContext,
    *operands: Value,
    body: Graph,
    num_scan_inputs: int,
    scan_input_axes: list[int] | None = None,
    scan_input_directions: list[int] | None = None,
    scan_output_axes: list[int] | None = None,
    scan_output_directions: list[int] | None = None,
) -> tuple[Operand | None, ...]:
    first = len(operands) - num_scan_inputs
    inputs = operands[first:]
    axes = [axis_of(a, x.rank) for a, x in zip(scan_input_axes or [0] * len(inputs), inputs, strict=True)]
    length = inputs[0].shape[axes[0]]
    if not isinstance(length, int) or not 1 <= length <= most_steps(body):
        raise Unsupported(f"its length {length} is not a number from 1 to {most_steps(body)}")
    state, scans = _steps(b, body, operands[:first], inputs, axes, scan_input_directions or [0] * len(inputs), length)
    out_axes = scan_output_axes or [0] * len(scans)
    out_back = scan_output_directions or [0] * len(scans)
    stacked = [
        _stacked(b, made[::-1] if back else made, axis) for made, axis, back in zip(scans, out_axes, out_back, strict=True)
    ]
    return (*state, *stacked)


@lowers("Scan", [8], note="unrolled: a known batch times a known length, at most 64, or 4096 nodes in all; no sequence_lens")
def scan_8(
    b: LowerContext,
    sequence_lens: Value | None,
    *operands: Value,
    body: Graph,
    directions: list[int] | None = None,
    num_scan_inputs: int,
) -> tuple[Operand | None, ...]:
    """Scan-8: axis 0 of every operand is the batch, axis 1 of a scanned one the steps; each sequence has its own state."""
    if sequence_lens is not None:
        raise Unsupported("sequence_lens is not supported")
    first = len(operands) - num_scan_inputs
    inputs = operands[first:]
    batch, length = inputs[0].shape[:2]
    if not isinstance(batch, int) or not isinstance(length, int) or not 1 <= batch * length <= most_steps(body):
        raise Unsupported(f"its batch {batch} times its length {length} is not a number from 1 to {most_steps(body)}")
    results: list[list[Operand]] = [[] for _ in body.outputs]
    for i in range(batch):
        own = [b.slice(x, [i] + [0] * (x.rank - 1), (1, *x.shape[1:])) for x in operands]
        own = [b.reshape(x, x.shape[1:]) for x in own]
        state, scans = _steps(
            b, body, tuple(own[:first]), own[first:], [0] * num_scan_inputs, directions or [0] * num_scan_inputs, length
        )
        for made, value in zip(results, (*state, *(_stacked(b, s) for s in scans)), strict=True):
            made.append(value)
    return tuple(_stacked(b, made) for made in results)
