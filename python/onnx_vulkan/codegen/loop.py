"""The loop kernel: any set of elementwise and movement instructions, computed at each index of one or more outputs.

Outputs of one kernel have the same shape.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from onnx_vulkan.codegen.choices import pick
from onnx_vulkan.codegen.hole import merge_axes
from onnx_vulkan.codegen.index import ZERO, Lin, linearize
from onnx_vulkan.codegen.kernel import At, Kernel, Launch, Limits, Variant, chosen_by_step, grid_of, workgroups
from onnx_vulkan.codegen.params import Params
from onnx_vulkan.codegen.render import Renderer
from onnx_vulkan.codegen.tile import Crossing, find_crossing
from onnx_vulkan.codegen.vector import VECTOR_COUNT, vector_width
from onnx_vulkan.codegen.walk import Walk, reads_as_written
from onnx_vulkan.dims import product
from onnx_vulkan.program.ir import Instr, Value

__all__ = ["LoopStep", "loop_step"]


@dataclass(frozen=True, eq=False)
class _Group:
    label: str
    outputs: tuple[Value, ...]
    producers: Mapping[Value, Instr]
    is_leaf: Callable[[Value], bool]


def loop_step(
    label: str,
    outputs: Sequence[Value],
    producers: Mapping[Value, Instr],
    is_leaf: Callable[[Value], bool],
    *,
    tunable: bool = True,
) -> LoopStep:
    """The step of a loop kernel. *producers* holds the instructions computed inside, *is_leaf* what is loaded from memory;
    a step that is not *tunable* has no tactics."""
    return LoopStep(_Group(label, tuple(outputs), producers, is_leaf), tunable)


@dataclass(frozen=True, slots=True)
class Spread:
    """A variant: invocations of a workgroup, and how many vectors of how many elements each of them computes."""

    size: int
    items: int
    width: int

    @property
    def name(self) -> str:
        return f"{self.size} threads, {self.items} times {self.width} elements"


class LoopStep:
    """A loop kernel in its texts, for single elements, vectors and tiles, which are rendered when sizes first ask for them."""

    def __init__(self, group: _Group, tunable: bool):
        self.group, self.tunable = group, tunable
        self.label, self.writes = group.label, group.outputs
        self.shape = group.outputs[0].shape
        self.names = [f"c{i}" for i in range(len(self.shape))]
        self.coords = [Lin.var(n) if e != 1 else ZERO for n, e in zip(self.names, self.shape, strict=True)]
        probe = Renderer(Params(), group.producers, group.is_leaf)
        for out in group.outputs:
            probe.value(out, self.coords)
        accesses = [offset for _, offset in probe.loads] + [linearize(self.coords, self.shape)]
        self.runs = merge_axes(self.names, self.shape, range(len(self.shape)), accesses, probe.opaque)
        self.reads = tuple(probe.reads)
        self.dense = reads_as_written(self.names, self.coords, self.shape, accesses)
        self._crossing: Crossing | None = None
        found = find_crossing(self.names, self.runs, probe.loads)
        if found is not None:
            self._crossing = Crossing(
                group.label, group.outputs, group.producers, group.is_leaf, self.names, self.coords, self.runs, found, self.reads
            )
        self._texts: dict[tuple[int, bool], tuple[Kernel, Walk]] = {}

    def text(self, width: int, dense: bool = False) -> tuple[Kernel, Walk]:
        """The kernel for vectors of *width* elements, and how it walks them. *dense*: vectors cross runs (see
        ``elements.Elements``)."""
        if (width, dense) not in self._texts:
            self._texts[width, dense] = self._render(width, dense)
        return self._texts[width, dense]

    def _render(self, width: int, dense: bool) -> tuple[Kernel, Walk]:
        params, group = Params(), self.group
        r = Renderer(params, group.producers, group.is_leaf)
        total = params.word(product(self.shape))
        last = f"({total} - 1) & ~{width - 1}" if dense else f"{total} - {width}"
        head = [
            f"int at = (first + n * int(gl_WorkGroupSize.x)) * {width};",
            f"bool there = at < {total};",
            f"int i = min(at, {last});",
        ]
        whole = linearize(self.coords, self.shape) if dense else None
        walk = Walk(r, self.names, self.shape, self.runs, "i", head, width=width, kept=False, dense=whole, end=total)
        coords = walk.point(self.coords)
        offset = Lin((("i", 1), ("k", 1)) if width > 1 else (("i", 1),))
        walk.store([(out, coords, offset) for out in group.outputs], "", ("{", "}"))
        body = "\n".join(
            [
                "layout(local_size_x_id = 0) in;",
                "layout(constant_id = 1) const uint ITEMS = 1u;",
                "",
                "void main() {",
                "    uint group = gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x;",
                "    int first = int(group * gl_WorkGroupSize.x * ITEMS + gl_LocalInvocationID.x);",
                f"    if (first{f' * {width}' if width > 1 else ''} >= {total}) return;",
                *("    " + line for line in r.scopes[0].lines),
                "}",
                "",
            ]
        )
        return Kernel(group.label, params, body, tuple(r.reads), group.outputs, chosen_by_step), walk

    def launches(self, at: At, limits: Limits) -> list[Launch]:
        """One launch."""
        tiled = self._crossing.launches(at, limits) if self._crossing is not None else []
        total = product(self.shape)
        usual = None if tiled else self.rule(at, limits)
        choice = (
            usual
            if not self.tunable
            else pick(
                "loop",
                lambda: self.text(1)[0],
                {"elements": at(total)},
                at,
                limits,
                usual,
                lambda: [*([None] if tiled else []), *self.space(at, limits)],
                lambda c: c.name if c else "tiled",
            )
        )
        if choice is None:
            return tiled
        groups = workgroups(total, choice.size * choice.items * choice.width)
        kernel, _ = self._text_at(at, choice.width)
        return [Launch(kernel, Variant((choice.size, choice.items), grid_of(groups)))]

    def rule(self, at: At, limits: Limits) -> Spread:
        """What sizes and limits alone say."""
        count = at(product(self.shape))
        width = self._width(at, count)
        size = min(64 if count < 64 * 1024 else 256, limits.max_workgroup_invocations)
        _, walk = self._text_at(at, width)
        items = 1
        wanted = 1 if count < 1 << 20 else 2 * width if width > 1 else 8 if count >= 1 << 23 else 4
        while items * width < wanted and 2 * items * width <= walk.most(wanted):
            items *= 2
        return Spread(size, items, width)

    def space(self, at: At, limits: Limits) -> list[Spread]:
        """The legal variants without tiles."""
        widths = sorted({1, self._width(at, VECTOR_COUNT)})
        return [
            Spread(size, items, width)
            for width in widths
            for items in (1, 2, 4, 8)
            if items == 1 or items * width <= self._text_at(at, width)[1].most(16)
            for size in (64, 128, 256, 512)
            if size <= limits.max_workgroup_invocations
        ]

    def _text_at(self, at: At, width: int) -> tuple[Kernel, Walk]:
        """The text for vectors of *width* elements at a plan's sizes."""
        return self.text(width, dense=not self.text(width)[1].suits(at))

    def _width(self, at: At, count: int) -> int:
        if count < VECTOR_COUNT or not self.runs:
            return 1
        width = vector_width(v.dtype for v in (*self.reads, *self.writes))
        return width if self.dense or self.text(width)[1].suits(at) else 1
