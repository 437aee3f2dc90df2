"""Random models: one node of any operator of the registry, or a few nodes that read each other. No test lives here."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx
from forms import Choices, Draw, Form, Given, Operator, Recipe, Skip, operators
from onnx import helper, numpy_helper
from onnx_vulkan.graph import Array
from onnx_vulkan.lower.driver import HOST_INPUT_LIMIT
from recipes_basic import BASIC, generic
from recipes_moves import MOVES
from recipes_ms import CONTRIB
from recipes_nn import NN
from recipes_quantized import QUANTIZED
from recipes_signal import SIGNAL

__all__ = ["ModelCase", "make_model", "make_sizes", "recipe_of"]

RECIPES: dict[str, Recipe] = BASIC | MOVES | NN | QUANTIZED | SIGNAL | CONTRIB

JUMPS = re.compile(
    "Arg|Cast|Equal|Less|Greater|Floor|Ceil|Round|Sign|IsInf|IsNaN|Mod|TopK|Quantize|OneHot|Hardmax|MaxPool|Shrink|Thresholded|"
    "NonZero|Not|GridSample|QLinear|Div|Resize|Upsample|BitShift|CumProd|Einsum|Pow"
)
"""Operators with steps: a value that is not exact may fall on either side of one."""

KEEPS = re.compile(
    "Identity|Reshape|Transpose$|Slice|Concat|Split|Squeeze|Flatten|Expand|Tile|Gather|Pad|Where|Space|Trilu|Abs|Neg|Relu$|Max$|Min$|"
    "Reverse|Shape|Size|Arg|Cast|Equal|Less|Greater|Floor|Ceil|Round|Sign$|Is|Not|Bit|Scatter|OneHot|EyeLike|Constant|Range|MatMulInteger"
)
"""Operators that give the same bits everywhere when their inputs are exact."""


CRASHES = {"com.microsoft::QLinearWhere"}
"""Operators with which ONNX Runtime's CPU EP may take its process down (scales that are no constants)."""


@dataclass(frozen=True, eq=False)
class ModelCase:
    """A model, what it is fed, and what it is made of in words. ``expected``: what its nodes gave one by one, where they did."""

    model: onnx.ModelProto
    feeds: dict[str, Array]
    label: str
    expected: list[Array] | None = None
    doubtful: bool = False
    """It may not be valid, and ONNX Runtime's own operators do not check: its CPU EP must not run it."""


class _Tape:
    """Keeps decisions, to make them once more."""

    def __init__(self, choices: Choices | Sequence[int]):
        self.choices = choices
        self.kept: list[int] = []

    def integer(self, low: int, high: int) -> int:
        if isinstance(self.choices, Sequence):
            if len(self.kept) >= len(self.choices):
                raise Skip
            n = min(max(self.choices[len(self.kept)], low), high)
        else:
            n = self.choices.integer(low, high)
        self.kept.append(n)
        return n


def recipe_of(op: Operator) -> Recipe:
    """How to make a node of *op*."""
    return RECIPES.get(op.label) or generic


def make_sizes(
    choices: Choices, labels: Sequence[str], nodes: int, run: Callable[[ModelCase], list[Array] | None]
) -> list[ModelCase]:
    """A model, and the same decisions at other sizes where they give the same model: those may share a session.

    *run* gives what nodes make, or None where they are not valid. Raises Skip.
    """
    tape = _Tape(choices)
    seed = tape.integer(0, 2**31 - 1)
    first = make_model(tape, seed, labels, nodes, run)
    cases = [first]
    if first.feeds:
        try:
            again = make_model(_Tape(tape.kept[1:]), seed + 1, labels, nodes, run)
        except (Skip, ValueError, IndexError):
            return cases
        if again.model.SerializeToString() == first.model.SerializeToString():
            cases.append(again)
    return cases


class _Builder:
    def __init__(self, choices: Choices, seed: int):
        self.choices = choices
        self.draw = Draw(choices, seed)
        self.static = self.draw.pick([0, 0, 100, 30])
        self.nodes: list[onnx.NodeProto] = []
        self.feeds: dict[str, Array] = {}
        self.types: list[onnx.ValueInfoProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.pool: list[Given] = []
        self.read: set[str] = set()
        self.words: list[str] = []
        self.opset = 0
        self.doubtful = False

    def operator(self, labels: Sequence[str]) -> Operator:
        """One of *labels* in one of its versions; newer ones more often."""
        versions = operators()[self.draw.pick(labels)]
        if self.opset:
            fit = [op for op in versions if op.domain or op.version <= self.opset <= op.newest]
            if not fit:
                raise Skip
            return fit[-1]
        return versions[-1] if self.draw.chance(40) else self.draw.pick(versions)

    def input(self, given: Given) -> str:
        """The name of an input: of an earlier value, a constant, or an input of the run."""
        if given.name:
            self.read.add(given.name)
            return given.name
        name = f"x{len(self.feeds) + len(self.constants)}"
        array = given.array
        constant = self.draw.chance(60 if given.host and array.size <= HOST_INPUT_LIMIT else 100 if given.host else 12)
        if constant:
            self.constants.append(numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name))
        else:
            static = 90 if given.host else self.static if not self.feeds or self.draw.chance(40) else 100
            shape = [e if self.draw.chance(static) else f"{name}_{i}" for i, e in enumerate(array.shape)]
            self.types.append(helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), shape))
            self.feeds[name] = array
        return name

    def add(self, op: Operator, form: Form) -> list[str]:
        """Adds a node. Returns its outputs' names ("" for one that is left out)."""
        k = len(self.nodes)
        self.doubtful |= (bool(op.domain) and op.label not in RECIPES) or op.label in CRASHES
        wanted = form.outputs
        while not wanted[-1]:
            wanted = wanted[:-1]
        outputs = [f"y{k}_{i}" if wanted_ else "" for i, wanted_ in enumerate(wanted)]
        inputs = list(form.inputs)
        while inputs and inputs[-1] is None:
            inputs.pop()
        names = [self.input(g) if g is not None else "" for g in inputs]
        node = helper.make_node(op.name, names, outputs, f"n{k}", domain=op.domain)
        for name, value in form.attributes.items():
            kind = op.attributes[name][0] if name in op.attributes else None
            value = float(value) if kind == "FLOAT" else value
            node.attribute.append(
                helper.make_attribute(name, value, attr_type=kind and onnx.AttributeProto.AttributeType.Value(kind))
            )
        self.nodes.append(node)
        types = ", ".join("-" if g is None else f"{g.dtype.onnx_name}{list(g.shape)}" for g in inputs)
        simple = {a: v for a, v in form.attributes.items() if not isinstance(v, onnx.TensorProto)}
        self.words.append(f"{op.label}-{op.version}({types}) {simple}")
        return outputs

    def case(self, outputs: Sequence[str], expected: list[Array] | None = None) -> ModelCase:
        infos = [helper.make_empty_tensor_value_info(o) for o in outputs]
        for info, array in zip(infos, expected or (), strict=False):
            info.type.tensor_type.elem_type = helper.np_dtype_to_tensor_dtype(array.dtype)
        graph = helper.make_graph(self.nodes, "random", self.types, infos, self.constants)
        domains = sorted({n.domain for n in self.nodes if n.domain})
        imports = [helper.make_opsetid("", self.opset), *(helper.make_opsetid(d, 1) for d in domains)]
        model = helper.make_model(graph, opset_imports=imports, ir_version=10)
        return ModelCase(model, self.feeds, "; ".join(self.words), expected, self.doubtful)


def make_model(
    choices: Choices, seed: int, labels: Sequence[str], nodes: int, run: Callable[[ModelCase], list[Array] | None]
) -> ModelCase:
    """One random model of *nodes* nodes; see :func:`make_sizes`."""
    b = _Builder(choices, seed)
    if nodes == 1:
        op = b.operator(labels)
        b.opset = op.version if b.draw.chance(60) else op.newest
        if op.domain:
            b.opset = b.draw.pick([13, 17, 21])
        outputs = [o for o in b.add(op, recipe_of(op)(b.draw, op)) if o]
        return replace(b.case(outputs, run(b.case(outputs))), expected=None)
    b.opset = b.draw.pick([13, 17, 18, 21, 22])
    tried = 0
    while len(b.nodes) < nodes and tried < 4 * nodes:
        tried += 1
        try:
            _grow(b, labels, run)
        except Skip:
            continue
    if len(b.nodes) < 2:
        raise Skip
    wanted = [g for g in b.pool if g.name not in b.read or b.draw.chance(15)] or b.pool[-1:]
    return b.case([g.name for g in wanted], [g.array for g in wanted])


def _grow(b: _Builder, labels: Sequence[str], run: Callable[[ModelCase], list[Array] | None]) -> None:
    """One more node, which may read what is there; none where it is not valid, or its numbers are not tame."""
    op = b.operator(labels)
    draw = Draw(b.choices, int(b.draw.rng.integers(2**31)), b.pool)
    draw.exact_only = JUMPS.search(op.name) is not None
    form = recipe_of(op)(draw, op)
    alone = _Builder(_Constant(), 0)
    alone.opset, alone.static = b.opset, 100
    outputs = alone.add(op, Form([_unnamed(g) for g in form.inputs], form.attributes, form.outputs))
    named = [o for o in outputs if o]
    arrays = run(alone.case(named))
    if arrays is None or any(not _tame(a) for a in arrays):
        raise Skip
    exact = KEEPS.search(op.name) is not None and all(g is None or g.exact for g in form.inputs)
    made = b.add(op, form)
    for name, array in zip([o for o in made if o], arrays, strict=True):
        b.pool.append(Given(np.asarray(array), name=name, exact=exact))


class _Constant:
    """Decides nothing: every input becomes one of the run."""

    def integer(self, low: int, high: int) -> int:
        return high


def _unnamed(g: Given | None) -> Given | None:
    return None if g is None else Given(g.array)


def _tame(a: Array) -> bool:
    if a.size > 20000:
        return False
    b = a.astype(np.float64)
    return bool(np.isfinite(b).all() and np.abs(b).max(initial=0.0) < (1e6 if a.dtype.kind in "iub" else 100))
