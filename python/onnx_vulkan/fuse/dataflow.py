"""Facts about a Program that fusion asks for again and again: users, order, who depends on whom, what a value costs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from functools import cached_property

from onnx_vulkan.codegen.render import INLINE_OPS
from onnx_vulkan.kernels import families, key_of
from onnx_vulkan.program.ir import Instr, Program, Value

__all__ = ["VIEW_OPS", "Dataflow"]

VIEW_OPS = frozenset({"reshape", "transpose", "broadcast", "slice"})
"""Movement that only re-arranges strides (a reshape may still need a copy)."""

_HEAVY = frozenset(
    """exp log sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh erf pow div div_rn mod fmod sqrt rsqrt
    reciprocal""".split()
)


class Dataflow:
    """An index over one Program."""

    def __init__(self, program: Program):
        self.program = program
        self.producers = program.producers()
        self.users = program.users()
        self.order = {instr: n for n, instr in enumerate(program.instrs)}
        self.outputs = frozenset(program.outputs)

    @cached_property
    def ancestors(self) -> list[int]:
        """By position: a bit set of the instructions that each one depends on, itself included."""
        table: list[int] = []
        for n, instr in enumerate(self.program.instrs):
            bits = 1 << n
            for v in instr.inputs:
                made = self.producers.get(v)
                if made is not None:
                    bits |= table[self.order[made]]
            table.append(bits)
        return table

    def depends(self, value: Value, mask: int) -> bool:
        """Whether *value* is computed from any instruction of *mask*, or waits for a kernel that is."""
        made = self.producers.get(value)
        return made is not None and bool(self.ancestors[self.order[made]] & mask)

    def join(self, instrs: Sequence[Instr]) -> None:
        """State that *instrs* run as one kernel: who depends on one of them waits for all that any of them needs.

        Without this two regions could each wait for the other although no instruction does.
        """
        if len(instrs) < 2:
            return
        mask, needs = self.mask(instrs), 0
        for i in instrs:
            needs |= self.ancestors[self.order[i]]
        table = self.ancestors
        for n in range(min(self.order[i] for i in instrs), len(table)):
            if table[n] & mask:
                table[n] |= needs

    def mask(self, instrs: Iterable[Instr]) -> int:
        """The bit set of some instructions."""
        bits = 0
        for i in instrs:
            bits |= 1 << self.order[i]
        return bits

    def is_anchor(self, instr: Instr) -> bool:
        """Whether the instruction needs a kernel family of its own."""
        return instr.op != "reduce" and instr.op not in INLINE_OPS

    def exported(self, instrs: Iterable[Instr]) -> list[Value]:
        """The results of *instrs* that somebody else reads, in order."""
        inside = set(instrs)
        return [
            v
            for i in sorted(inside, key=self.order.__getitem__)
            for v in i.outputs
            if v in self.outputs or any(u not in inside for u in self.users.get(v, ()))
        ]

    def costs(self, stored: Collection[Value], spread_limit: int) -> dict[Value, int]:
        """Rough arithmetic an element to compute each value in place, from inputs and *stored* values.

        What costs more than *spread_limit* is stored before it is broadcast, so behind that it costs nothing.

        What depends on the run's sizes alone (a count of elements) costs nothing: it is the same for all elements.
        """
        table: dict[Value, int] = {}
        uniform: set[Value] = set()
        for instr in self.program.instrs:
            same = instr.op == "dims" or (
                bool(instr.inputs)
                and all(v in uniform or (v.data is not None and v.data.size == 1) for v in instr.inputs)
                and instr.op in ("map", "cast", "reshape", "broadcast")
            )
            for out in instr.outputs:
                if same:
                    uniform.add(out)
                if same or out in stored or instr.op not in INLINE_OPS:
                    table[out] = 0
                    continue
                own = 0 if instr.op in VIEW_OPS else 1
                if instr.op == "map" and instr.attrs["fn"] in _HEAVY:
                    own = 6
                elif instr.op in ("gather", "gather_elements", "gather_nd", "concat", "pad"):
                    own = 3
                table[out] = min(own + sum(table.get(v, 0) for v in instr.inputs), 1 << 20)
                if instr.op == "broadcast" and table[out] > spread_limit and instr.inputs[0].shape != out.shape:
                    table[out] = 0
        return table

    @staticmethod
    def family_views(instr: Instr) -> frozenset[int]:
        """The operands that an anchor's family reads through strides."""
        family = families().get(key_of(instr))
        return family.views if family is not None else frozenset()

    @staticmethod
    def family_computed(instr: Instr) -> frozenset[int]:
        """The operands that an anchor's family can compute where it reads them."""
        family = families().get(key_of(instr))
        return family.computed if family is not None else frozenset()

    @staticmethod
    def family_epilogue(instr: Instr) -> bool:
        """Whether elementwise instructions can be fused after an anchor."""
        family = families().get(key_of(instr))
        return family is not None and family.epilogue
