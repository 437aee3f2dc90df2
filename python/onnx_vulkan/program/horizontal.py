"""Horizontal fusion: products of one tensor with several constant matrices become one product with their columns side by side.

The query, key and value of an attention are the case in point. What follows each product elementwise with constants (its bias,
a scale) is done on all columns at once; the results are slices, which products and generated kernels read through strides.
A sum of a column does not depend on the columns beside it, and where a product has nothing to add or to scale, -0 and 1 change no
number.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from onnx_vulkan.dims import Extent
from onnx_vulkan.program.builder import Builder
from onnx_vulkan.program.ir import Instr, Program, Value

__all__ = ["merge_products"]

MAX_PRODUCTS = 4
"""Products that become one, at most."""
MAX_DISTANCE = 48
"""Instructions between the first and the last of them: all columns stay in memory until the last of them is read."""

_NEUTRAL = {"add": -0.0, "mul": 1.0}
_VIEWS = frozenset({"reshape", "transpose", "broadcast", "slice"})
_STRIDED = frozenset({"contract", "reduce", "concat", "pad", "gather", "gather_elements", "gather_nd"})


@dataclass(frozen=True, slots=True)
class _Link:
    """One elementwise instruction after a product: ``x fn constant``, or ``fn x`` where ``operand`` is None."""

    instr: Instr
    fn: str
    operand: Value | None


@dataclass(slots=True)
class _Branch:
    """A product and the elementwise instructions with constants that alone read it, one after the other."""

    product: Instr
    chain: list[_Link] = field(default_factory=list)

    @property
    def columns(self) -> int:
        n = self.product.inputs[1].shape[1]
        assert isinstance(n, int)
        return n

    @property
    def result(self) -> Value:
        return self.chain[-1].instr.out if self.chain else self.product.out


class _Merger:
    def __init__(self, program: Program):
        self.program = program
        self.producers = program.producers()
        self.users = program.users()
        self.outputs = set(program.outputs)

    # ------------------------------------------------------------------------------------------------ what can be merged
    def groups(self) -> list[list[_Branch]]:
        """Products to merge, by their common operand."""
        open_groups: dict[object, tuple[int, list[_Branch]]] = {}
        found: list[list[_Branch]] = []
        for n, instr in enumerate(self.program.instrs):
            branch = self.branch(instr)
            if branch is None:
                continue
            key = (instr.inputs[0], instr.out.dtype, instr.inputs[1].dtype, instr.attrs["acc"])
            first, group = open_groups.get(key, (n, []))
            if not group or n - first > MAX_DISTANCE or len(group) == MAX_PRODUCTS or _schedule([*group, branch]) is None:
                group = []
                found.append(group)
                open_groups[key] = (n, group)
            group.append(branch)
        return [group for group in found if len(group) > 1]

    def branch(self, instr: Instr) -> _Branch | None:
        """The branch of a product with a constant matrix, None where its result could not be a slice of another."""
        if instr.op != "contract":
            return None
        x, w = instr.inputs
        if x.rank != 2 or x.is_const or not w.is_const or w.packed or not all(isinstance(e, int) and e > 0 for e in w.shape):
            return None
        branch = _Branch(instr)
        while (link := self.link(branch.result)) is not None:
            branch.chain.append(link)
        return branch if self.may_be_slice(branch.result) else None

    def link(self, x: Value) -> _Link | None:
        """The elementwise instruction with a constant that alone reads *x*."""
        users = self.users.get(x, [])
        if x in self.outputs or len(users) != 1 or users[0].op != "map" or users[0].out.dtype is not x.dtype:
            return None
        (u,) = users
        if len(u.inputs) == 1:
            return _Link(u, u.attrs["fn"], None)
        if len(u.inputs) != 2 or u.attrs["fn"] not in _NEUTRAL:
            return None
        made = self.producers.get(u.inputs[1] if u.inputs[0] is x else u.inputs[0])
        if made is None or made.op != "broadcast" or not made.inputs[0].is_const:
            return None
        constant = made.inputs[0]
        lead = constant.shape[:-1]
        if any(e != 1 for e in lead) or (constant.rank and constant.shape[-1] not in (1, x.shape[-1])):
            return None
        return _Link(u, u.attrs["fn"], constant)

    def may_be_slice(self, x: Value) -> bool:
        """Whether all that read *x* can read it through strides, and nothing would have run in the product's own kernel."""
        shape = x.shape
        todo = [x]
        while todo:
            v = todo.pop()
            if v in self.outputs:
                return False
            for u in self.users.get(v, ()):
                if u.op in ("map", "cast"):
                    if u.out.shape == shape:
                        return False
                elif u.op in _VIEWS:
                    todo.append(u.out)
                elif u.op not in _STRIDED:
                    return False
        return True

    # ------------------------------------------------------------------------------------------------ the new program
    def run(self) -> Program:
        groups = self.groups()
        if not groups:
            return self.program
        leaders = {group[0].product: group for group in groups}
        gone = {i for group in groups for b in group for i in (b.product, *(link.instr for link in b.chain))}
        b = Builder()
        new: dict[Value, Value] = {}
        for instr in self.program.instrs:
            if instr in leaders:
                group = leaders[instr]
                x = new.get(instr.inputs[0], instr.inputs[0])
                new.update(zip([branch.result for branch in group], _merged(b, x, group), strict=True))
            elif instr not in gone:
                inputs = tuple(new.get(v, v) for v in instr.inputs)
                b.instrs.append(Instr(instr.op, inputs, instr.outputs, instr.attrs, instr.source, instr.merged))
        return Program(self.program.inputs, self.program.outputs, b.instrs)


def _schedule(group: Sequence[_Branch]) -> list[str] | None:
    """The functions to apply to all columns so that each branch gets its own in order, None where there is no such list."""
    longest = max(group, key=lambda branch: len(branch.chain))
    fns = [link.fn for link in longest.chain]
    for branch in group:
        left = [link.fn for link in branch.chain]
        for fn in fns:
            if left and left[0] == fn:
                left.pop(0)
            elif fn not in _NEUTRAL:
                return None
        if left:
            return None
    return fns


def _merged(b: Builder, x: Value, group: Sequence[_Branch]) -> Iterable[Value]:
    """Emit the product of *x* with all columns; gives the result of each branch."""
    first = group[0].product
    b.source, b.merged = first.source, tuple(branch.product.source for branch in group[1:])
    y = b.contract(x, b.concat([branch.product.inputs[1] for branch in group], 1), dtype=first.out.dtype, acc=first.attrs["acc"])
    chains = [list(branch.chain) for branch in group]
    for fn in _schedule(group) or []:
        operands: list[Value] = []
        sources: list[str] = []
        for branch, chain in zip(group, chains, strict=True):
            link = chain.pop(0) if chain and chain[0].fn == fn else None
            if link is not None:
                sources.append(link.instr.source)
            operand = link.operand if link is not None else b.scalar(_NEUTRAL[fn], y.dtype) if fn in _NEUTRAL else None
            if operand is not None:
                operands.append(_columns(operand, branch.columns))
        b.merged = tuple(sources)
        y = b.map(fn, y, *([b.concat(operands, 0)] if operands else []))
    b.merged = ()
    rows: Extent = y.shape[0]
    start = 0
    for branch in group:
        yield b.slice(y, (0, start), (rows, branch.columns))
        start += branch.columns


def _columns(constant: Value, columns: int) -> Value:
    """A constant as one number a column."""
    assert constant.data is not None
    if constant.data.size == columns:
        return Value(constant.dtype, (columns,), constant.name and f"{constant.name}:{[columns]}", constant.data.reshape(columns))
    return Value(constant.dtype, (columns,), "", np.broadcast_to(constant.data.reshape(()), (columns,)).copy())


def merge_products(program: Program) -> Program:
    """The program with products of one tensor merged; the same object where there is nothing to merge. What is constant in the
    result is still to be folded."""
    return _Merger(program).run()
