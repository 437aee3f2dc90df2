"""What becomes of the scores of an attention between product and softmax, as GLSL for the kernels that never store them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from onnx_vulkan.codegen.elements import Elements
from onnx_vulkan.codegen.hole import Axes, merge_axes
from onnx_vulkan.codegen.index import ZERO, Lin
from onnx_vulkan.codegen.kernel import At, is_multiple
from onnx_vulkan.codegen.params import Params
from onnx_vulkan.codegen.render import Renderer
from onnx_vulkan.dims import Extent, product
from onnx_vulkan.dtypes import DType
from onnx_vulkan.kernels import Group
from onnx_vulkan.program.attention import SCORE
from onnx_vulkan.program.builder import Builder
from onnx_vulkan.program.ir import Value

__all__ = ["QUAD", "Scores"]

QUAD = 4
"""Scores of neighbouring keys that an invocation computes together."""
LOG2_E = 1 / math.log(2)
LOWEST = -1e30
"""What is below stands for minus infinity, in whatever unit."""

Steps = Sequence[tuple[str, tuple[int | Value, ...]]]


class Scores:
    """The steps of the scores of ``group.anchor``, an attention over ``keys`` keys; ``axes`` as ``hole.merge_axes`` takes them.

    ``base_2``: the scores come in a unit in which their weight is 2^x instead of e^x, which costs nothing where they are
    multiplied by a number anyway. ``causal``: keys past the query's index plus this number have no weight, None where that is
    not known; the mask that says so is then computed instead of read.
    """

    def __init__(self, group: Group, keys: Extent, axes: Axes):
        self.group, self.axes = group, axes
        instr = group.anchor
        self.space = (*instr.out.shape[:-1], keys)
        self.names = [f"c{i}" for i in range(len(self.space))]
        self.coords = [Lin.var(n) if e != 1 else ZERO for n, e in zip(self.names, self.space, strict=True)]
        self.given = Value(DType.F32, self.space)
        steps: Steps = [(fn, tuple(n if n == SCORE else instr.inputs[n] for n in given)) for fn, given in instr.attrs["score"]]
        self.reads = tuple(self._chain(Builder(), steps).reads)
        """The values that some choice of kernels loads for the scores."""
        b = Builder()
        steps, self.base_2 = _in_base_2(steps)
        self.causal: Extent | None = instr.attrs["causal"]
        if self.causal is not None:
            steps = _computed(b, steps, self.space, self.causal)
        self.masks = [v for _, given in steps for v in given if isinstance(v, Value) and v.rank]
        self._probe = self._chain(b, steps)
        self._aligned: tuple[Extent, ...] | None = None

    def _chain(self, b: Builder, steps: Steps) -> Renderer:
        """Set what is rendered to these steps, and render it once."""
        x = self.given
        for fn, given in steps:
            x = b.map(fn, *(v if isinstance(v, Value) else x for v in given))
        self.result = x
        self.own = {i.out: i for i in b.instrs}
        probe = self._renderer(Params())
        self._value(probe, self.coords, "s")
        return probe

    def _renderer(self, params: Params) -> Renderer:
        def is_leaf(v: Value) -> bool:
            return v not in self.own and self.group.is_leaf(v)

        return Renderer(params, {**self.group.producers, **self.own}, is_leaf)

    def _value(self, r: Renderer, coords: Sequence[Lin], score: str) -> str:
        r.define(self.given, coords, score)
        return r.value(self.result, coords)

    def _place(self, r: Renderer, level: int) -> None:
        """Give the axes their places, from the GLSL ints of ``axes``."""
        accesses = [offset for _, offset in self._probe.loads]
        for variable, over in self.axes:
            runs = merge_axes(self.names, self.space, over, accesses, self._probe.opaque)
            for i in over:
                r.alias[self.names[i]] = None
            extents = [product(self.space[i] for i in run) for run in runs]
            for run, c in zip(runs, r.delinearize(Lin.var(variable), extents, level), strict=True):
                r.alias[self.names[run[-1]]] = r.text(c)

    @property
    def loaded(self) -> tuple[Value, ...]:
        """The values that the functions load."""
        return tuple(self._probe.reads)

    def function(self, params: Params) -> str:
        """``float score(int z, int m, int n, float s)``: the score of query m and key n of the batch's z, whose product is s.

        And ``int keys_of(int m)``: how many keys have weight for queries up to m.
        """
        r = self._renderer(params)
        self._place(r, 0)
        text = self._value(r, self.coords, "s")
        lines = "".join(f"    {line}\n" for line in r.scopes[0].lines)
        unit = "#define BASE_2\n" if self.base_2 else ""
        keys = "SIZE_T" if self.causal is None else f"min(SIZE_T, m + {params.word(self.causal + 1)})"
        return f"""{unit}int keys_of(int m) {{ return {keys}; }}
float score(int z, int m, int n, float s) {{
{lines}    return {text};
}}
"""

    def quad_function(self, params: Params) -> str:
        """``vec4 scores(int z, int m, int n, vec4 s)``: those of keys n to n + 3, n a multiple of 4, after :meth:`function`.

        With the constant ``MASK_QUADS`` (see :meth:`quads`) masks are loaded as vectors.
        """
        by_one = f"""    [[unroll]] for (int k = 0; k < {QUAD}; k++) s[k] = score(z, m, min(n + k, SIZE_T - 1), s[k]);
    return s;
}}
"""
        head = "vec4 scores(int z, int m, int n, vec4 s) {\n"
        if not self.masks or self.coords[-1] is ZERO:
            self._aligned = None
            return head + by_one
        r = self._renderer(params)
        axis = self.names[-1]
        r.elements = e = Elements(axis, "n", QUAD, 1, kept=False)
        r.levels.update(dict.fromkeys(["z", "m", "n", *self.names], 1))
        r.levels["k"] = e.inner
        with r.scope() as item:
            self._place(r, 1)
            with r.scope() as element:
                r.emit(f"s[k] = {self._value(r, [*self.coords[:-1], self.coords[-1] + Lin.var('k')], 's[k]')};")
        self._aligned = None if e.scattered else (self.space[-1], *e.aligned)
        lines = [*r.scopes[0].lines, *item.lines, f"[[unroll]] for (int k = 0; k < {QUAD}; k++) {{", *element.lines, "}"]
        text = "".join(f"        {line}\n" for line in lines)
        return f"""{head}    if (MASK_QUADS) {{
        n = min(n, SIZE_T - {QUAD});
{text}        return s;
    }}
{by_one}"""

    def quads(self, at: At) -> bool:
        """Whether masks can be loaded as vectors, after :meth:`quad_function`."""
        return self._aligned is not None and all(is_multiple(at, e, QUAD) for e in self._aligned)


def _number(v: int | Value) -> float | None:
    """The number that an operand is everywhere."""
    known = isinstance(v, Value) and v.data is not None and v.data.size == 1
    return float(v.data.reshape(-1)[0]) if known and isinstance(v, Value) and v.data is not None else None


def _computed(b: Builder, steps: Steps, space: Sequence[Extent], offset: Extent) -> Steps:
    """The steps with the causal mask of the last one computed from positions."""
    fn, (_, *scores) = steps[-1]
    rank = len(space)
    key = b.iota((*[1] * (rank - 1), space[-1]), rank - 1, DType.I32)
    query = b.iota((*[1] * (rank - 2), space[-2], 1), rank - 2, DType.I32, offset)
    return [*steps[:-1], (fn, (b.map("le", key, query), *scores))]


def _in_base_2(steps: Steps) -> tuple[Steps, bool]:
    """The steps with log2(e) in the number that multiplies scores, where after that some are only replaced by minus infinity."""
    for place in reversed(range(len(steps))):
        fn, given = steps[place]
        if fn == "mul":
            numbers = [_number(v) for v in given]
            c = next((c for c in numbers if c is not None), None)
            if c is None or abs(c) * LOG2_E > 1:  # what is larger might overflow
                return steps, False
            scaled = Value(DType.F32, (), data=np.asarray(c * LOG2_E, np.float32))
            changed = tuple(scaled if n is not None else v for v, n in zip(given, numbers, strict=True))
            return [*steps[:place], (fn, changed), *steps[place + 1 :]], True
        others = [_number(v) for v in given[1:] if v != SCORE]
        if fn != "select" or given[0] == SCORE or len(others) != 1 or others[0] is None or others[0] > LOWEST:
            return steps, False
    return steps, False
