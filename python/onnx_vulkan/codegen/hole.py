"""Fills a hole of a kernel: the statements that compute and store some values at a point of an index space.

A template's epilogue is a hole over its accumulator. The point is given by
GLSL int variables, each standing for one or more axes in row-major order. Axes that every access walks alike stay merged, so an
epilogue that adds a bias and a residual to a convolution sees two indices and no division.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from onnx_vulkan.codegen.index import ZERO, Lin, linearize
from onnx_vulkan.codegen.params import Params
from onnx_vulkan.codegen.render import Renderer
from onnx_vulkan.codegen.types import pack
from onnx_vulkan.codegen.walk import place_runs
from onnx_vulkan.dims import Extent
from onnx_vulkan.program.ir import Instr, Value

__all__ = ["Axes", "Hole", "fill_hole", "merge_axes"]

Axes = Sequence[tuple[str, Sequence[int]]]
"""``[(variable, axes it runs over), ...]``: together all axes of the index space, each variable a row-major index of its axes."""


@dataclass(frozen=True, slots=True)
class Hole:
    """What fills a hole: statements, and the materialised values that they read."""

    lines: tuple[str, ...]
    reads: tuple[Value, ...]

    def text(self, indent: int = 4) -> str:
        """The statements as a block of text."""
        return "\n".join(" " * indent + line for line in self.lines)


def merge_axes(
    names: Sequence[str], shape: Sequence[Extent], axes: Sequence[int], accesses: Sequence[Lin], opaque: set[str]
) -> list[list[int]]:
    """Split adjacent *axes* into runs that can be walked as one index.

    Axis *i* joins the one before it when in every access the former's coefficient times its extent is the latter's, and
    neither is used in another way. Axes of extent 1 are dropped.
    """
    runs: list[list[int]] = []
    for i in [i for i in axes if shape[i] != 1]:
        joins = bool(runs) and names[i] not in opaque and names[runs[-1][-1]] not in opaque
        if joins and all(a.coefficient(names[runs[-1][-1]]) == a.coefficient(names[i]) * shape[i] for a in accesses):
            runs[-1].append(i)
        else:
            runs.append([i])
    return runs


def _place(out: Value, coords: Sequence[Lin], shape: Sequence[Extent], producers: Mapping[Value, Instr]) -> Sequence[Lin]:
    """Where the point *coords* of the index space lies in *out*: the same place, or that of a transpose of the space."""
    made = producers.get(out)
    if made is not None and made.op == "transpose" and made.inputs[0].shape == tuple(shape):
        return [coords[p] for p in made.attrs["perm"]]
    return coords


def fill_hole(
    params: Params,
    shape: Sequence[Extent],
    axes: Axes,
    outputs: Sequence[Value],
    producers: Mapping[Value, Instr],
    is_leaf: Callable[[Value], bool],
    given: Mapping[Value, str] | None = None,
) -> Hole:
    """Statements that store *outputs* (values of *shape*, or transposes of such) at the point that *axes* names.

    *producers* are the instructions computed here, *is_leaf* tells what is loaded from memory; *given* maps values of *shape*
    that are already in a register (the accumulator) to their GLSL expression, of the value's compute type.
    """
    names = [f"c{i}" for i in range(len(shape))]
    coords = [Lin.var(n) if e != 1 else ZERO for n, e in zip(names, shape, strict=True)]
    places = [_place(out, coords, shape, producers) for out in outputs]

    def render(r: Renderer) -> None:
        for value, text in (given or {}).items():
            r.define(value, coords, text)
        stored = [(out, r.value(out, place), linearize(place, out.shape)) for out, place in zip(outputs, places, strict=True)]
        for out, text, at in stored:
            offset = r.text(at, opaque=False)
            r.emit(f"{r.params.write(out)}.v[{offset}] = {pack(out.dtype, text)};")

    probe = Renderer(Params(), producers, is_leaf)
    render(probe)
    accesses = [offset for _, offset in probe.loads]
    accesses += [linearize(place, out.shape) for out, place in zip(outputs, places, strict=True)]
    r = Renderer(params, producers, is_leaf)
    for variable, group in axes:
        runs = merge_axes(names, shape, group, accesses, probe.opaque)
        place_runs(r, names, shape, runs, variable, 0)
    render(r)
    return Hole(tuple(r.scopes[0].lines), tuple(r.reads))
