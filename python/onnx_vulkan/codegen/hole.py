"""Fills a hole of a kernel: the statements that compute and store some values at a point of an index space.

A template's epilogue is a hole over its accumulator. The point is given by
GLSL int variables, each standing for one or more axes in row-major order. Axes that every access walks alike stay merged, so an
epilogue that adds a bias and a residual to a convolution sees two indices and no division.

The point may be a vector of neighbours along the last axis: each tensor that runs along it is then read and written in moves of
up to 16 bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from onnx_vulkan.codegen import vector
from onnx_vulkan.codegen.elements import Elements
from onnx_vulkan.codegen.index import ZERO, Lin, linearize
from onnx_vulkan.codegen.params import Params
from onnx_vulkan.codegen.render import Renderer
from onnx_vulkan.codegen.types import GLSL_TYPES, pack
from onnx_vulkan.codegen.walk import place_runs
from onnx_vulkan.dims import Extent
from onnx_vulkan.program.ir import Instr, Value

__all__ = ["Axes", "Hole", "fill_hole", "fill_vectors", "merge_axes"]

Axes = Sequence[tuple[str, Sequence[int]]]
"""``[(variable, axes it runs over), ...]``: together all axes of the index space, each variable a row-major index of its axes."""


@dataclass(frozen=True, slots=True)
class Hole:
    """What fills a hole: statements, and the materialised values that they read.

    ``multiples``: what has to be a multiple of the width for vectors to be aligned.
    """

    lines: tuple[str, ...]
    reads: tuple[Value, ...]
    multiples: tuple[Extent, ...] = ()

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
    return _Filling(params, shape, axes, outputs, producers, is_leaf, given or {}).points()


def fill_vectors(
    params: Params,
    shape: Sequence[Extent],
    axes: Axes,
    outputs: Sequence[Value],
    producers: Mapping[Value, Instr],
    is_leaf: Callable[[Value], bool],
    given: Mapping[Value, str],
    width: int,
) -> Hole | None:
    """Like :func:`fill_hole` for *width* neighbours along the last axis, which is the last of *axes*; None where they are none
    in an output.

    In the expressions of *given* the int ``k`` counts them.
    """
    return _Filling(params, shape, axes, outputs, producers, is_leaf, given).vectors(width)


class _Filling:
    """A hole and what it is filled with."""

    def __init__(
        self,
        params: Params,
        shape: Sequence[Extent],
        axes: Axes,
        outputs: Sequence[Value],
        producers: Mapping[Value, Instr],
        is_leaf: Callable[[Value], bool],
        given: Mapping[Value, str],
    ):
        self.shape, self.axes, self.outputs = shape, axes, outputs
        self.producers, self.given = producers, given
        self.names = [f"c{i}" for i in range(len(shape))]
        self.coords = [Lin.var(n) if e != 1 else ZERO for n, e in zip(self.names, shape, strict=True)]
        probe = Renderer(Params(), producers, is_leaf)
        self.define(probe, self.coords)
        stored = [(out, self.place(out, self.coords)) for out in outputs]
        for out, place in stored:
            probe.value(out, place)
        self.accesses = [offset for _, offset in probe.loads]
        self.accesses += [linearize(place, out.shape) for out, place in stored]
        self.opaque = probe.opaque
        self.r = Renderer(params, producers, is_leaf)

    def define(self, r: Renderer, coords: Sequence[Lin]) -> None:
        for value, text in self.given.items():
            r.define(value, coords, text)

    def place(self, out: Value, coords: Sequence[Lin]) -> Sequence[Lin]:
        return _place(out, coords, self.shape, self.producers)

    def place_axes(self) -> None:
        for variable, group in self.axes:
            runs = merge_axes(self.names, self.shape, group, self.accesses, self.opaque)
            place_runs(self.r, self.names, self.shape, runs, variable, 0)

    def points(self) -> Hole:
        r = self.r
        self.place_axes()
        self.define(r, self.coords)
        stored = []
        for out in self.outputs:
            place = self.place(out, self.coords)
            stored.append((out, r.value(out, place), linearize(place, out.shape)))
        for out, text, at in stored:
            offset = r.text(at, opaque=False)
            r.emit(f"{r.params.write(out)}.v[{offset}] = {pack(out.dtype, text)};")
        return Hole(tuple(r.scopes[0].lines), tuple(r.reads))

    def vectors(self, width: int) -> Hole | None:
        r = self.r
        if not self.coords or self.coords[-1] == ZERO:
            return None
        coords = [*self.coords[:-1], self.coords[-1] + Lin.var("k")]
        if any(linearize(self.place(out, coords), out.shape).coefficient("k") != 1 for out in self.outputs):
            return None
        variable, _ = self.axes[-1]
        r.elements = e = Elements(self.names[-1], variable, width, 0, kept=False)
        r.levels["k"] = e.inner
        self.place_axes()
        stores: list[str] = []
        with r.scope() as element:
            self.define(r, coords)
            for out in self.outputs:
                place = self.place(out, coords)
                text, name = r.value(out, place), r.fresh("y")
                r.emit(f"{GLSL_TYPES[out.dtype].compute} {name}[{width}];", 0)
                r.emit(f"{name}[k] = {text};")
                at = r.text(r.first_of(linearize(place, out.shape)), opaque=False)
                stores += vector.store(name, out.dtype, width, r.params.write(out), at)
        loop = [f"[[unroll]] for (int k = 0; k < {width}; k++) {{", *element.lines, "}"]
        return Hole((*r.scopes[0].lines, *loop, *stores), tuple(r.reads), tuple(e.aligned))
