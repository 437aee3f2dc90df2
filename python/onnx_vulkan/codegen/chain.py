"""Chains: row kernels over one small tensor, one after the other in one workgroup.

A dispatch that waits for the one before it takes about two microseconds before it does anything, and small row kernels do little
more than that. One workgroup runs several: what one leaves for the next stays in shared memory, in two rooms that take turns, and
a barrier of the workgroup is between them.
"""

from __future__ import annotations

from collections.abc import Sequence

from onnx_vulkan.codegen.kernel import At, Kernel, Launch, Limits, Variant, chosen_by_step
from onnx_vulkan.codegen.params import Params
from onnx_vulkan.codegen.row import SHUFFLES, Form, RowGroup, RowRenderer, RowStep, few
from onnx_vulkan.dims import product
from onnx_vulkan.dtypes import FLOATS
from onnx_vulkan.program.ir import Value

__all__ = ["ChainStep", "is_small"]

CHAIN_ELEMENTS = 4096
"""The most elements of a tensor that a workgroup walks: four an invocation of 1,024."""

SPEC = ("LANES", "ITEMS")
"""The specialization constants of each part."""


def is_small(v: Value) -> bool:
    """Whether *v* can stay in shared memory: few floats at all times, none of 8 bytes."""
    count = product(v.shape)
    return isinstance(count, int) and 0 < count <= CHAIN_ELEMENTS and v.dtype in FLOATS and v.dtype.size <= 4


class ChainStep:
    """Row kernels that are one launch where a workgroup has the shared memory, else one each.

    Each of *groups* alone reads the one result of the group before it.
    """

    def __init__(self, groups: Sequence[RowGroup]):
        self.parts = [RowStep(group) for group in groups]
        self.kept = [v for group in groups[:-1] for v in group.outputs]
        self.label, self.writes = groups[0].label, groups[-1].outputs
        self.reads = tuple(dict.fromkeys(v for part in self.parts for v in part.reads if v not in self.kept))
        self._texts: dict[bool, Kernel] = {}

    def launches(self, at: At, limits: Limits) -> list[Launch]:
        """One launch, or one of each part."""
        size = 1 << min(limits.max_workgroup_invocations, 1024).bit_length() - 1
        room = 1 << max(at(product(v.shape)) - 1 for v in self.kept).bit_length()
        cells = size * max(part.cell_bytes for part in self.parts)
        if 2 * 4 * (room + room // 32 + 1) + cells > limits.max_shared_memory or size < limits.subgroup_size:
            return [launch for part in self.parts for launch in part.launches(at, limits)]
        spec = [size, room]
        for part in self.parts:
            rows, cols = at(part.rows), at(part.cols)
            lanes = max(min(size >> (rows - 1).bit_length(), 1 << (cols - 1).bit_length()), 1)
            spec += [lanes, few(-(-cols // lanes))]
        kernel = self.text({"subgroup_shuffle", "full_subgroups"} <= limits.features)
        return [Launch(kernel, Variant(tuple(spec), (1, 1, 1)))]

    def text(self, subgroups: bool) -> Kernel:
        """The kernel of all parts."""
        if subgroups not in self._texts:
            self._texts[subgroups] = self._render(subgroups)
        return self._texts[subgroups]

    def _render(self, subgroups: bool) -> Kernel:
        params = Params()
        rooms = {v: f"room{n % 2}" for n, v in enumerate(self.kept)}
        shared = {f"shared float {name}[ROOM + ROOM / 32u + 1u];": None for name in rooms.values()}
        reads: dict[Value, None] = {}
        constants = ["layout(constant_id = 1) const uint ROOM = 1u;"]
        functions: list[str] = []
        for n, part in enumerate(self.parts):
            made = RowRenderer(part.group, params, Form(True, subgroups=subgroups), part.runs, rooms=rooms)
            made.run()
            shared.update(made.meeting.shared)
            reads.update(made.r.reads)
            constants += [f"layout(constant_id = {2 + 2 * n + i}) const uint {name}{n} = 1u;" for i, name in enumerate(SPEC)]
            functions += [
                *(f"#define {name} {name}{n}" for name in SPEC),
                f"void part{n}() {{",
                *made.places(),
                f"for (uint group = 0u; group * ROWS < uint({made.rows}); group++) {{",
                *made.rows_at("group"),
                *made.r.scopes[0].lines,
                "barrier();",
                "}",
                "}",
                *(f"#undef {name}" for name in SPEC),
            ]
        body = "\n".join(
            [
                "layout(local_size_x_id = 0) in;",
                *constants,
                *shared,
                # neighbours along an axis may be whole lines apart: a word more a line puts them in different banks
                "uint room_at(int i) { return uint(i) + (uint(i) >> 5); }",
                *functions,
                "void main() {",
                *(f"    part{n}();" for n in range(len(self.parts))),
                "}",
            ]
        )
        extensions = SHUFFLES if subgroups else ()
        return Kernel(self.label, params, body, tuple(reads), self.writes, chosen_by_step, extensions, full_subgroups=subgroups)
