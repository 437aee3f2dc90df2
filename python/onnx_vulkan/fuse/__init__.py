"""Decides which instructions share a kernel, and which values are written to memory. See :func:`fuse`.

Order of decisions: anchors take their epilogues, reductions their rows, and what is left is computed where it is read unless
several kernels would compute it and that costs more than storing it once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial

from onnx_vulkan.codegen.chain import ChainStep
from onnx_vulkan.codegen.kernel import Step
from onnx_vulkan.codegen.loop import loop_step
from onnx_vulkan.codegen.render import INLINE_OPS
from onnx_vulkan.codegen.row import RowGroup, row_step
from onnx_vulkan.codegen.view import strided_view
from onnx_vulkan.dims import product
from onnx_vulkan.fuse.chains import find_chains
from onnx_vulkan.fuse.dataflow import VIEW_OPS, Dataflow
from onnx_vulkan.fuse.loops import join_loops
from onnx_vulkan.fuse.regions import Region, epilogue, row_region
from onnx_vulkan.fuse.twins import Twins
from onnx_vulkan.kernels import Group, build
from onnx_vulkan.program.ir import Instr, Program, Value

__all__ = ["Fused", "fuse"]

RECOMPUTE_LIMIT = 4
"""A value read by several kernels is recomputed in each of them while its cost times the extra kernels stays below this."""
BROADCAST_LIMIT = 6
"""A value of more cost than this is stored before it is broadcast (each element would be computed many times)."""
ROW_PASS_LIMIT = 24
"""The input of a row kernel, computed again in each of its passes, is stored first when it costs more than this."""
SCORE_LIMIT = 24
"""What is added to or selects among the scores of an attention is stored first when it costs more than this a score."""
MAX_INLINE = 96
"""Instructions inlined below one loop kernel."""
MAX_LEAVES = 24
"""Tensors that one generated kernel reads."""


UNPACKING_OPS = VIEW_OPS | {"map", "cast", "bits", "iota"}
MAX_UNPACKING = 48
"""Values on the way from packed weights to the matrix that a product computes for itself."""


def _bytes(v: Value) -> int | None:
    """The size of a tensor in memory, None where it depends on the run."""
    count = product(v.shape)
    return count * v.dtype.size if isinstance(count, int) else None


@dataclass(frozen=True, eq=False)
class Fused:
    """What :func:`fuse` gives. ``aliases`` maps a value that a step reads, but none writes, to the value whose bytes it has (they
    differ by a reshape)."""

    steps: tuple[Step, ...]
    aliases: Mapping[Value, Value]


class _Fuser:
    def __init__(self, program: Program):
        self.program = program
        self.flow = Dataflow(program)
        self.regions: list[Region] = []
        self.owner: dict[Instr, Region] = {}
        self.stored: set[Value] = set()
        self.loops: list[Value] = []
        self.costs: dict[Value, int] = {}

    # ------------------------------------------------------------------------------------------------ regions
    def grow_regions(self) -> None:
        taken: set[Instr] = set()
        for instr in self.program.instrs:
            if instr in taken or instr.op in INLINE_OPS:
                continue
            if instr.op == "reduce":
                region = row_region(self.flow, instr, taken)
            else:
                region = epilogue(self.flow, instr, taken)
            taken.update(region.instrs)
            self.flow.join(region.instrs)
            self.regions.append(region)
            for i in region.instrs:
                self.owner[i] = region
            self.stored.update(region.exports)

    # ------------------------------------------------------------------------------------------------ stores
    def choose_stores(self) -> None:
        """Decide, from the last instruction to the first, which inlined values are stored."""
        flow = self.flow
        self.costs = flow.costs(self.stored, BROADCAST_LIMIT)
        readers: dict[Value, set[object]] = {}
        for out in self.program.outputs:
            made = flow.producers.get(out)
            if made is not None and made not in self.owner:
                self.store(out)
        for instr in reversed(self.program.instrs):
            region = self.owner.get(instr)
            if region is not None:
                self.read_by_region(instr, region, readers)
                continue
            (out,) = instr.outputs
            if out not in self.stored:
                kernels = readers.get(out, set())
                if not kernels:
                    continue
                # (what a broadcast reads is smaller, has the same readers and comes later)
                if instr.op != "broadcast" and len(kernels) > 1 and self.costs[out] * (len(kernels) - 1) > RECOMPUTE_LIMIT:
                    self.store(out)
            me: set[object] = {out} if out in self.stored else readers.get(out, set())
            for v in instr.inputs:
                readers.setdefault(v, set()).update(me)
                if instr.op == "broadcast" and self.costly(v, BROADCAST_LIMIT) and v.shape != out.shape:
                    self.store(v)
                if instr.op in ("gather", "gather_nd", "gather_elements") and v is instr.inputs[0] and self.costly(v, 12):
                    self.store(v)

    def costly(self, v: Value, limit: int) -> bool:
        """Whether *v* costs more than *limit* to compute; a view of what is stored does not."""
        base, made = v, self.flow.producers.get(v)
        while base not in self.stored and made is not None and made.op in VIEW_OPS:
            base = made.inputs[0]
            made = self.flow.producers.get(base)
        if base in self.stored:
            return False
        made = self.flow.producers.get(v)
        return made is not None and made not in self.owner and v.rank > 0 and self.costs[v] > limit

    def store(self, v: Value) -> None:
        """Have *v* in memory. A reshape has the bytes of what it reshapes, so that is stored."""
        made = self.flow.producers.get(v)
        while made is not None and made.op == "reshape" and made not in self.owner:
            v = made.inputs[0]
            made = self.flow.producers.get(v)
        if made is not None and made not in self.owner and v not in self.stored:
            self.stored.add(v)
            self.loops.append(v)

    def read_by_region(self, instr: Instr, region: Region, readers: dict[Value, set[object]]) -> None:
        flow = self.flow
        views = flow.family_views(instr)
        for n, v in enumerate(instr.inputs):
            made = flow.producers.get(v)
            if made is None or self.owner.get(made) is region:
                continue
            readers.setdefault(v, set()).add(region)
            if flow.is_anchor(instr):
                if n in flow.family_computed(instr) and self.unpacks(v):
                    continue
                if instr.op == "attention" and n > 2 and made not in self.owner and not self.costly(v, SCORE_LIMIT):
                    continue
                base = self.view_base(v) if n in views else None
                self.store(base if base is not None else v)
            elif instr.op == "reduce" and self.costly(v, ROW_PASS_LIMIT):
                self.store(v)

    def unpacks(self, v: Value) -> bool:
        """Whether matrix *v* is elementwise work on a constant and what belongs to it (scales, zero points), and thrice as large.

        Such weights stay in memory as small as they are: the product that reads them computes them.
        """
        leaves: set[Value] = set()
        seen: set[Value] = set()
        todo = [v]
        while todo:
            x = todo.pop()
            made = self.flow.producers.get(x)
            if x in seen:
                continue
            seen.add(x)
            if made is None or made in self.owner or x in self.stored:
                leaves.add(x)
            elif made.op not in UNPACKING_OPS or len(seen) > MAX_UNPACKING:
                return False
            else:
                todo.extend(made.inputs)
        sizes = [_bytes(x) for x in leaves]
        whole = _bytes(v)
        known = [n for n in sizes if n is not None]
        if v.rank != 2 or whole is None or len(known) < len(sizes) or not any(x.data is not None and x.rank for x in leaves):
            return False
        return 3 * sum(known) <= whole

    def view_base(self, v: Value) -> Value | None:
        """The value that must be in memory for *v* to be read through strides, None when it cannot be."""
        flow = self.flow

        def is_leaf(x: Value) -> bool:
            made = flow.producers.get(x)
            return made is None or made.op not in VIEW_OPS or x in self.stored

        view = strided_view(v, flow.producers, is_leaf)
        return None if view is None else view.leaf

    def bound_size(self) -> None:
        """Split what would become too long a kernel: its largest inlined operand is stored."""
        pending = list(self.loops) + [v for r in self.regions for v in r.exports]
        for root in pending:
            while True:
                inlined, leaves = self.inlined(root)
                if len(inlined) <= MAX_INLINE and len(leaves) <= MAX_LEAVES:
                    break
                made = self.flow.producers[root]
                candidates = [v for i in [made, *inlined] for v in i.inputs if self.can_store(v)]
                if not candidates:
                    break
                sizes = self.inlined_sizes(inlined)
                half = min(candidates, key=lambda v: abs(sizes[self.flow.producers[v]] - len(inlined) // 2))
                self.store(half)
                pending.append(half)

    def can_store(self, v: Value) -> bool:
        made = self.flow.producers.get(v)
        return made is not None and made not in self.owner and v not in self.stored and made.op not in VIEW_OPS

    def inlined(self, root: Value) -> tuple[list[Instr], set[Value]]:
        """The instructions computed inside the kernel of *root*, and the values it loads."""
        seen: dict[Instr, None] = {}
        leaves: set[Value] = set()
        made = self.flow.producers.get(root)
        todo = list(made.inputs) if made is not None else []
        region = self.owner.get(made) if made is not None else None
        while todo:
            v = todo.pop()
            instr = self.flow.producers.get(v)
            if instr is None or v in self.stored:
                if not (v.data is not None and v.data.size == 1):
                    leaves.add(v)
                continue
            if instr in seen or (self.owner.get(instr) is not None and self.owner.get(instr) is not region):
                continue
            seen[instr] = None
            todo.extend(instr.inputs)
        return list(seen), leaves

    def inlined_sizes(self, instrs: list[Instr]) -> dict[Instr, int]:
        """How many instructions each of *instrs* that is in no region would have inlined, were it a kernel's root."""
        wanted = {i for i in instrs if i not in self.owner}
        within: dict[Instr, int] = {}  # a bit for each instruction
        for n, instr in enumerate(i for i in self.program.instrs if i in wanted):
            bits = 0
            for v in instr.inputs:
                made = self.flow.producers.get(v)
                if made is not None and v not in self.stored and made not in self.owner:
                    bits |= within[made]
            within[instr] = bits | 1 << n
        return {instr: bits.bit_count() - 1 for instr, bits in within.items()}

    # ------------------------------------------------------------------------------------------------ steps
    def aliases(self, built: list[tuple[int, Step]]) -> dict[Value, Value]:
        """The values that steps read under a reshape."""
        written = {v for _, step in built for v in step.writes}
        table: dict[Value, Value] = {}
        for _, step in built:
            for v in step.reads:
                base, made = v, self.flow.producers.get(v)
                while base not in written and made is not None and made.op == "reshape":
                    base = made.inputs[0]
                    made = self.flow.producers.get(base)
                if base is not v:
                    table[v] = base
        return table

    def steps(self) -> Fused:
        built: list[tuple[int, Step]] = []
        loop_groups = self.loop_groups()
        make: Callable[[], Step]
        producers = {v: i for v, i in self.flow.producers.items() if i.op in INLINE_OPS}
        inputs = set(self.program.inputs)
        twins = Twins(lambda v: v in self.flow.producers or v in inputs)

        for chain in find_chains(self.flow, self.regions, self.owner, self.stored):
            instrs = [i for region in chain for i in region.instrs]
            made_here = {v for i in instrs for v in i.outputs}

            def is_leaf(v: Value, made_here: set[Value] = made_here) -> bool:
                return v in self.stored and v not in made_here

            anchors = [i for i in instrs if i.op not in INLINE_OPS]
            position = max(self.flow.order[i] for i in instrs)
            if anchors[0].op == "reduce":
                rows = [self.row_group(region, producers) for region in chain]
                make = partial(ChainStep, rows) if len(rows) > 1 else partial(row_step, rows[0])
            else:
                make = partial(build, Group(instrs[0], chain[0].exports, producers, is_leaf))
            built.append((position, twins.step(instrs, chain[-1].exports, producers, is_leaf, make)))
        for group_values in loop_groups:
            made = self.flow.producers[group_values[0]]
            inside = set(group_values)

            def is_stored(v: Value, inside: set[Value] = inside) -> bool:
                return v in self.stored and v not in inside

            label = made.source or made.op
            position = max(self.flow.order[self.flow.producers[v]] for v in group_values)
            make = partial(loop_step, label, group_values, producers, is_stored)
            instrs = [self.flow.producers[v] for v in group_values]
            built.append((position, twins.step(instrs, group_values, producers, is_stored, make)))
        return _ordered(built, self.aliases(built))

    def row_group(self, region: Region, producers: Mapping[Value, Instr]) -> RowGroup:
        """What the kernel of a region of reductions computes."""
        outside = {v for i in region.instrs for v in i.outputs}
        reduces = tuple(i for i in region.instrs if i.op not in INLINE_OPS)
        first = reduces[0]

        def is_leaf(v: Value) -> bool:
            return v in self.stored and v not in outside

        label, space = first.source or "reduce", first.inputs[0].shape
        return RowGroup(label, space, first.attrs["axes"], reduces, region.exports, producers, is_leaf)

    def loop_groups(self) -> list[list[Value]]:
        """The values of each loop kernel. What only the kernel itself reads is not stored."""
        loops = sorted(set(self.loops), key=lambda v: self.flow.order[self.flow.producers[v]])
        groups = join_loops(self.flow, self.regions, loops, self.stored, MAX_INLINE, MAX_LEAVES)
        joined = {v: group for group in groups for v in group}
        for v in loops:
            group = joined[v]
            if len(group) > 1 and v not in self.flow.outputs and self.read_within(v, set(group)):
                group.remove(v)
                self.stored.remove(v)
        return groups

    def read_within(self, v: Value, group: Collection[Value]) -> bool:
        """Whether *v* is read for nothing but the values of *group*."""
        todo = [v]
        while todo:
            for user in self.flow.users.get(todo.pop(), ()):
                if user in self.owner:
                    return False
                (out,) = user.outputs
                if out not in self.stored:
                    if out in self.flow.outputs:
                        return False
                    todo.append(out)
                elif out not in group:
                    return False
        return True


def _ordered(built: list[tuple[int, Step]], aliases: Mapping[Value, Value]) -> Fused:
    """Topological order by depth, so that independent branches stand side by side and share their barriers."""
    built = sorted(built, key=lambda t: t[0])
    maker = {v: step for _, step in built for v in step.writes}
    needs = {id(step): [maker[w] for w in (aliases.get(v, v) for v in step.reads) if w in maker] for _, step in built}
    depth: dict[int, int] = {}

    def of(step: Step) -> int:
        stack = [step]
        while stack:
            top = stack[-1]
            waits = [s for s in needs[id(top)] if id(s) not in depth]
            if waits:
                stack.extend(waits)
                continue
            stack.pop()
            depth[id(top)] = 1 + max((depth[id(s)] for s in needs[id(top)]), default=0)
        return depth[id(step)]

    keyed = [(of(step), position, step) for position, step in built]
    return Fused(tuple(step for _, _, step in sorted(keyed, key=lambda t: (t[0], t[1]))), aliases)


def fuse(program: Program) -> Fused:
    """The steps that compute a program's outputs, in an order in which each finds its operands in memory."""
    fuser = _Fuser(program)
    fuser.grow_regions()
    fuser.choose_stores()
    fuser.bound_size()
    return fuser.steps()
