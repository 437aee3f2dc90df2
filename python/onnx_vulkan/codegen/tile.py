"""Loop kernels that cross memory: what is loaded runs along another axis than what is stored, as in a transpose.

A workgroup computes a tile of the two axes. It loads the crossing tensors along their own fast axis ``b`` into shared memory, and
computes and stores along the output's fast axis ``a``, so that both sides move whole lines. Elements of fewer than 4 bytes are
loaded and stored by words of neighbours where the extents allow it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from onnx_vulkan.codegen import vector
from onnx_vulkan.codegen.index import Lin, linearize
from onnx_vulkan.codegen.kernel import MAX_GRID, At, Kernel, Launch, Limits, Variant, chosen_by_step, grid_of, is_multiple
from onnx_vulkan.codegen.params import Params
from onnx_vulkan.codegen.render import Renderer
from onnx_vulkan.codegen.types import GLSL_TYPES, unpack
from onnx_vulkan.codegen.walk import Walk, place_runs
from onnx_vulkan.dims import Extent, ceil_div, product
from onnx_vulkan.program.ir import Instr, Value

__all__ = ["Crossing", "find_crossing"]

SIDES = {1: 32, 2: 64, 4: 64}
"""Elements along either side of a tile, by how many are moved together."""

SHORTEST = 8
"""An axis shorter than this leaves most of a tile empty."""

FEWEST = 16 * 1024
"""Elements below which nothing is gained."""


@dataclass(frozen=True, slots=True)
class Access:
    """An access of a leaf that can be staged in shared memory."""

    leaf: Value
    offset: Lin


def find_crossing(
    names: Sequence[str], runs: Sequence[Sequence[int]], loads: Sequence[tuple[Value, Lin]]
) -> tuple[int, tuple[Access, ...]] | None:
    """The run along which loads are fast that the last run, along which stores are fast, crosses, and those loads."""
    if len(runs) < 2:
        return None
    last = [names[run[-1]] for run in runs]
    for b in range(len(runs) - 1):
        crossing = [
            Access(leaf, o)
            for leaf, o in loads
            if o.coefficient(last[b]) == 1 and o.coefficient(last[-1]) not in (0, 1) and o.variables <= set(names)
        ]
        if crossing:
            return b, tuple(dict.fromkeys(crossing))
    return None


class Crossing:
    """The tiled texts of a loop kernel. ``run`` is the number of the run that is ``b``; ``staged`` what goes through tiles."""

    def __init__(
        self,
        label: str,
        outputs: Sequence[Value],
        producers: Mapping[Value, Instr],
        is_leaf: Callable[[Value], bool],
        names: Sequence[str],
        coords: Sequence[Lin],
        runs: Sequence[Sequence[int]],
        found: tuple[int, tuple[Access, ...]],
        reads: Sequence[Value],
    ):
        self.label, self.outputs, self.producers, self.is_leaf = label, tuple(outputs), producers, is_leaf
        self.names, self.coords, self.shape = names, coords, outputs[0].shape
        run, self.staged = found
        self.a, self.b = runs[-1], runs[run]
        self.outer = [r for n, r in enumerate(runs) if n not in (run, len(runs) - 1)]
        self.extent_a, self.extent_b, self.extent_outer = (
            product(self.shape[i] for r in part for i in r) for part in ([self.a], [self.b], self.outer)
        )
        # together are whole words, of every tensor
        sizes = {v.dtype.size for v in (*(s.leaf for s in self.staged), *outputs)}
        self.vector = max(1, 4 // max(sizes)) if max(sizes) == min(sizes | {v.dtype.size for v in reads}) else 1
        self._texts: dict[int, tuple[Kernel, Walk, list[Extent]]] = {}

    def text(self, width: int) -> tuple[Kernel, Walk, list[Extent]]:
        """The kernel that moves *width* elements together, its walk, and what has to be multiples of the width."""
        if width not in self._texts:
            self._texts[width] = self._render(width)
        return self._texts[width]

    def tiles(self, width: int) -> tuple[Extent, Extent]:
        """The tiles along a and b."""
        return ceil_div(self.extent_a, SIDES[width]), ceil_div(self.extent_b, SIDES[width])

    def _render(self, width: int) -> tuple[Kernel, Walk, list[Extent]]:
        params = Params()
        r = Renderer(params, self.producers, self.is_leaf)
        end_a, end_b = params.word(self.extent_a), params.word(self.extent_b)
        tiles_a, tiles_b = self.tiles(width)
        side, line = SIDES[width], SIDES[width] // width
        local = "gl_LocalInvocationID.x"
        across, along = f"int({local} / {line}u + n * gl_WorkGroupSize.x / {line}u)", f"int({local} % {line}u) * {width}"
        walk = Walk(
            r,
            self.names,
            self.shape,
            [self.a],
            "a",
            [
                f"int in_a = {along}, in_b = {across};",
                f"int a = min(first_a + in_a, {end_a} - {width}), b = min(first_b + in_b, {end_b} - 1);",
                f"bool there = first_a + in_a < {end_a} && first_b + in_b < {end_b};",
            ],
            width=width,
            kept=False,
        )
        r.alias.update({self.names[i]: None for i in self.b})
        r.alias[self.names[self.b[-1]]] = "b"
        r.levels.update({self.names[i]: 1 for i in self.b})
        place_runs(r, self.names, self.shape, [self.a], "a", 1)
        place_runs(r, self.names, self.shape, self.outer, "outer", 0)
        placed = len(r.scopes[0].lines)
        shared, lines, aligned = [], [], []
        for n, s in enumerate(self.staged):
            cells = f"tile_{n}"
            place = r.text(s.offset, opaque=False)
            pointer, t = params.read(s.leaf), s.leaf.dtype
            r.reads.setdefault(s.leaf)
            if width == 1:
                shared.append(f"shared {GLSL_TYPES[t].compute} {cells}[{side}][{side} + 1];")
                lines.append(f"{cells}[in_a][in_b] = {unpack(t, f'{pointer}.v[{place}]')};")
                r.staged[s.leaf, s.offset] = f"{cells}[in_a][in_b]"
            else:
                words = vector.word_count(t, width)
                shared.append(f"shared uint {cells}[{side}][{words * line} + 1];")
                lines += vector.load(f"x{n}", t, width, pointer, place)
                lines += [f"{cells}[in_a][in_b / {width} * {words} + {w}] = x{n}[{w}];" for w in range(words)]
                r.staged[s.leaf, s.offset] = vector.get(t, f"{cells}[in_a + k]", "in_b")
                aligned += [c for name, c in s.offset.terms if name != self.names[self.b[-1]]]
                aligned.append(s.offset.const)
        aligned += [self.extent_b] if width > 1 else []
        coords = walk.point(self.coords)
        walk.store([(out, coords, linearize(coords, out.shape)) for out in self.outputs], "", ("{", "}"))
        setup = r.scopes[0].lines
        body = "\n".join(
            [
                "layout(local_size_x_id = 0) in;",
                "layout(constant_id = 1) const bool FOLDED = false;  // the grid's directions are not those of the tiles",
                f"const uint ITEMS = {side * line}u / gl_WorkGroupSize.x;",
                *shared,
                "",
                "void main() {",
                "    int tile_a = int(gl_WorkGroupID.x), tile_b = int(gl_WorkGroupID.y), outer = int(gl_WorkGroupID.z);",
                "    if (FOLDED) {",
                "        int tile = tile_b * int(gl_NumWorkGroups.x) + tile_a;",
                f"        if (tile >= {params.word(tiles_a * tiles_b * self.extent_outer)}) return;",
                f"        int rest = divide(tile, {params.divisor(tiles_a)});",
                f"        outer = divide(rest, {params.divisor(tiles_b)});",
                f"        tile_a = tile - rest * {params.word(tiles_a)};",
                f"        tile_b = rest - outer * {params.word(tiles_b)};",
                "    }",
                f"    int first_a = tile_a * {side}, first_b = tile_b * {side};",
                *("    " + line for line in setup[:placed]),
                "    [[unroll]] for (int n = 0; n < int(ITEMS); n++) {",
                f"        int in_a = {across}, in_b = {along};",
                f"        int a = min(first_a + in_a, {end_a} - 1), b = min(first_b + in_b, {end_b} - {width});",
                *("        " + line for line in lines),
                "    }",
                "    barrier();",
                *("    " + line for line in setup[placed:]),
                "}",
                "",
            ]
        )
        return Kernel(self.label, params, body, tuple(r.reads), self.outputs, chosen_by_step), walk, aligned

    def launches(self, at: At, limits: Limits) -> list[Launch]:
        """One launch, or none where tiles do not suit the sizes."""
        a, b = at(self.extent_a), at(self.extent_b)
        if min(a, b) < SHORTEST or a * b * at(self.extent_outer) < FEWEST or limits.max_workgroup_invocations < 256:
            return []
        width = self.vector
        if width > 1:
            _, walk, aligned = self.text(width)
            if min(a, b) < SIDES[width] // 2 or not walk.suits(at) or not all(is_multiple(at, e, width) for e in aligned):
                width = 1
        kernel, _, _ = self.text(width)
        cells = [max(s.leaf.dtype.size, 4) if width == 1 else 4 for s in self.staged]
        if sum(cells) * SIDES[width] * (SIDES[width] // width + 1) > limits.max_shared_memory:
            return []
        tiles_a, tiles_b = self.tiles(width)
        grid = tiles_a, tiles_b, self.extent_outer
        folded = any(at(e) > MAX_GRID for e in grid)
        if folded:
            grid = grid_of(tiles_a * tiles_b * self.extent_outer)
        return [Launch(kernel, Variant((256, int(folded)), grid))]
