"""What a kernel has to do at least: arithmetic operations, and bytes that it has to read and write.

Both are read off the Program's instructions that a step computes, at the numbers of one run. They are floors: what a kernel does
more than once (a value computed again in each pass, an operand read again by each tile) counts once, elements that nobody asks
for (the part that a slice drops) not at all. A product counts two operations for each pair of factors, an elementwise function
one for each element whatever it is, a comparison of a sort one; moving and casting none.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from onnx_vulkan.codegen.kernel import Kernel, Step
from onnx_vulkan.codegen.render import INLINE_OPS
from onnx_vulkan.dims import Extent, evaluate, product
from onnx_vulkan.dtypes import DType
from onnx_vulkan.fuse.dataflow import VIEW_OPS
from onnx_vulkan.kernels import key_of
from onnx_vulkan.program.ir import Instr, Program, Value
from onnx_vulkan.program.operations import operations as operations_of

__all__ = ["Work", "WorkModel"]

_SAME = frozenset({"map", "cast", "reshape", "transpose", "bits", "slice"})
"""Operations that ask for as many elements of each operand as are asked of them."""
_PARTLY = frozenset({"broadcast", "gather", "gather_elements", "gather_nd", "concat", "pad"})
"""Operations that ask for at most so many."""


@dataclass(frozen=True, slots=True)
class Work:
    """``family``: the operation that the kernel is built around, ``row`` for reductions, ``loop`` for elementwise work and
    movement, ``copy`` where nothing is computed. ``operations``, ``read_bytes`` and ``written_bytes`` are floors. ``dtype`` is
    what most of the arithmetic is done on, None where there is none. ``nodes`` are the ONNX nodes, in order."""

    family: str
    operations: int
    read_bytes: int
    written_bytes: int
    dtype: DType | None
    nodes: tuple[str, ...]

    @property
    def bytes(self) -> int:
        """Bytes that have to be moved."""
        return self.read_bytes + self.written_bytes


class WorkModel:
    """The work of the steps of one program at given numbers of its symbols."""

    def __init__(self, program: Program, numbers: Mapping[str, int]):
        self.program = program
        self.numbers = numbers
        self.producers = program.producers()
        self.order = {instr: n for n, instr in enumerate(program.instrs)}
        self.working = {i.source for i in program.instrs if i.op not in VIEW_OPS}

    def of(self, step: Step) -> Work:
        """What *step* computes. Values that no instruction makes (copies at a block's edges) are moved, no more."""
        reads, writes = set(step.reads), step.writes
        inside = self.instructions(reads, writes)
        asked: dict[Value, int] = defaultdict(int)
        for v in writes:
            asked[v] = self._size(v)
        operations: dict[DType, int] = defaultdict(int)
        for instr in reversed(inside):
            self._ask(instr, asked)
            count = operations_of(instr, self.numbers, sum(self._asked(v, asked) for v in instr.outputs))
            if count:
                operations[_dtype_of(instr)] += count
        read = {v: self._asked(v, asked) if v in asked else self._size(v) for v in reads}
        return Work(
            _family(inside),
            sum(operations.values()),
            sum(n * v.dtype.size for v, n in read.items()),
            sum(self._size(v) * v.dtype.size for v in writes),
            max(operations, key=lambda t: operations[t], default=None),
            self._nodes(inside),
        )

    def copy(self, kernel: Kernel) -> Work:
        """The work of a kernel that only moves what it reads."""
        read, written = (sum(self._size(v) * v.dtype.size for v in values) for values in (kernel.reads, kernel.writes))
        return Work("copy", 0, read, written, None, ())

    def _nodes(self, inside: Sequence[Instr]) -> tuple[str, ...]:
        """The nodes of some instructions.

        A number that several nodes share is of the first of them, so it says nothing of this kernel: what depends on constants
        alone is left out, unless it is all there is. So are views on the result of a node that works elsewhere.
        """
        fixed: set[Value] = set()
        for i in inside:
            if all(v.is_const or v in fixed for v in i.inputs):
                fixed.update(i.outputs)
        varying = [i for i in inside if not fixed.issuperset(i.outputs)]
        own = [i for i in varying if i.op not in VIEW_OPS or i.source not in self.working]
        return tuple(dict.fromkeys(name for i in own or varying or inside for name in (i.source, *i.merged) if name))

    # ------------------------------------------------------------------------------------------------ instructions
    def instructions(self, reads: Iterable[Value], writes: Sequence[Value]) -> list[Instr]:
        """The instructions between what a step reads and what it writes, in order."""
        stop = set(reads)
        found: set[Instr] = set()
        todo = list(writes)
        while todo:
            v = todo.pop()
            instr = self.producers.get(v)
            if instr is None or instr in found or (v in stop and v not in writes):
                continue
            found.add(instr)
            todo.extend(instr.inputs)
        return sorted(found, key=self.order.__getitem__)

    def _at(self, e: Extent) -> int:
        return evaluate(e, self.numbers)

    def _size(self, v: Value) -> int:
        return self._at(product(v.shape))

    def _asked(self, v: Value, asked: Mapping[Value, int]) -> int:
        return min(self._size(v), asked.get(v, 0))

    def _ask(self, instr: Instr, asked: dict[Value, int]) -> None:
        """Note how many elements of its operands an instruction needs for what is asked of it."""
        wanted = sum(self._asked(v, asked) for v in instr.outputs)
        for v in instr.inputs:
            if instr.op in _SAME or instr.op in _PARTLY:
                asked[v] += min(wanted, self._size(v))
            elif instr.op == "reduce":
                asked[v] += wanted * self._columns(instr)
            else:
                asked[v] += self._size(v)

    def _columns(self, instr: Instr) -> int:
        shape = instr.inputs[0].shape
        return self._at(product(shape[a] for a in instr.attrs["axes"]))


def _family(inside: Sequence[Instr]) -> str:
    anchors = [key_of(i) for i in inside if i.op not in INLINE_OPS]
    if not anchors:
        return "loop" if inside else "copy"
    return "row" if set(anchors) == {"reduce"} else next(a for a in anchors if a != "reduce").removeprefix("window:")


def _dtype_of(instr: Instr) -> DType:
    """What an instruction computes on: the factors of a product, else the type of its last operand."""
    return instr.inputs[0 if instr.op in ("contract", "contract_blocks", "window") else -1].dtype
