"""Index arithmetic that hand-written kernels share: splitting a flat index into coordinates, strided offsets, flat grids."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from onnx_vulkan.codegen.kernel import At, Limits, Variant, grid_of, workgroups
from onnx_vulkan.codegen.params import Params
from onnx_vulkan.codegen.types import unpack
from onnx_vulkan.codegen.view import View
from onnx_vulkan.dims import Extent, product

__all__ = ["FLAT_GROUP", "Rows", "flat_grid", "load", "offset_text", "rows_of", "split_index"]

FLAT_GROUP = "(gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x)"
"""The number of this workgroup in a grid made by :func:`~onnx_vulkan.codegen.kernel.grid_of`."""


def split_index(params: Params, flat: str, parts: Sequence[tuple[str, Extent]]) -> list[str]:
    """Statements that declare the int coordinates *parts* (name, extent), outermost first, of row-major index *flat*."""
    lines = [f"int {name} = 0;" for name, e in parts if e == 1]
    rest = [(name, e) for name, e in parts if e != 1]
    if not rest:
        return lines
    at = flat
    for n, (name, e) in enumerate(reversed(rest[1:])):
        d = params.divisor(e)
        lines.append(f"int q{n} = divide({at}, {d});")
        lines.append(f"int {name} = {at} - q{n} * int({d}.d);")
        at = f"q{n}"
    lines.append(f"int {rest[0][0]} = {at};")
    return lines


def offset_text(params: Params, names: Sequence[str], strides: Sequence[Extent], offset: Extent = 0) -> str:
    """``offset + sum(names[i] * strides[i])`` as GLSL. A name of ``"0"`` and a stride of 0 are left out."""
    terms = [n if s == 1 else f"{n} * {params.word(s)}" for n, s in zip(names, strides, strict=True) if s != 0 and n != "0"]
    if offset != 0 or not terms:
        terms.append(params.word(offset))
    return " + ".join(terms)


def load(params: Params, view: View, index: str) -> str:
    """The compute-type expression of element *index* (an offset in elements) of a view's leaf."""
    return unpack(view.leaf.dtype, f"{params.read(view.leaf)}.v[{index}]")


def flat_grid(total: Extent, *spec: int) -> Callable[[At, Limits], Variant]:
    """One thread an item: the workgroup size is specialization constant 0, *spec* are the further ones."""

    def choose(at: At, limits: Limits) -> Variant:
        size = min(64 if at(total) < 64 * 1024 else 256, limits.max_workgroup_invocations)
        return Variant((size, *spec), grid_of(workgroups(total, size)))

    return choose


@dataclass(frozen=True, slots=True)
class Rows:
    """The lines of a tensor along one axis, for one or more views of it.

    ``count`` is how many there are and ``length`` how long they are. ``split(flat)`` declares the coordinates of line *flat*,
    ``at(view, position)`` is then the offset of an element of the line.
    """

    params: Params
    length: Extent
    names: tuple[str, ...]
    extents: tuple[Extent, ...]
    outer: tuple[tuple[Extent, ...], ...]
    inner: tuple[Extent, ...]
    offsets: tuple[Extent, ...]

    @property
    def count(self) -> Extent:
        return product(self.extents)

    def split(self, flat: str) -> list[str]:
        """Statements that declare the coordinates of line *flat*."""
        return split_index(self.params, flat, list(zip(self.names, self.extents, strict=True)))

    def at(self, view: int, position: str) -> str:
        """The offset in view number *view* of element *position* of the line."""
        names, strides = [*self.names, position], [*self.outer[view], self.inner[view]]
        return offset_text(self.params, names, strides, self.offsets[view])


def rows_of(params: Params, shape: Sequence[Extent], axis: int, views: Sequence[tuple[Sequence[Extent], Extent]]) -> Rows:
    """The lines along *axis* of *shape*. *views* are (strides, offset); axes that all of them walk alike are merged."""
    runs: list[list[int]] = []
    for i in (i for i in range(len(shape)) if i != axis and shape[i] != 1):
        joined = runs and all(s[runs[-1][-1]] == s[i] * shape[i] for s, _ in views)
        if joined:
            runs[-1].append(i)
        else:
            runs.append([i])
    return Rows(
        params,
        shape[axis],
        tuple(f"r{n}" for n in range(len(runs))),
        tuple(product(shape[i] for i in run) for run in runs),
        tuple(tuple(s[run[-1]] for run in runs) for s, _ in views),
        tuple(s[axis] for s, _ in views),
        tuple(offset for _, offset in views),
    )
