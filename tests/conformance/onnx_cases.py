"""ONNX's own test cases: single nodes, simple graphs, graphs that PyTorch once exported, light models. No test lives here."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

__all__ = ["KINDS", "Case", "all_cases"]

Array = NDArray[Any]

KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator", "light")
"""The sets of cases. ``light`` are whole vision models whose weights are one number each."""


@dataclass(frozen=True, eq=False)
class Case:
    """One case: a model, and feeds with the outputs that they must give. ``tensors``: all of them are tensors, else no data."""

    name: str
    kind: str
    model: bytes
    data: Sequence[tuple[dict[str, Array], list[Array]]]
    tensors: bool
    rtol: float
    atol: float

    @cached_property
    def operators(self) -> tuple[str, ...]:
        """The operators of the main graph, each once, in order of name."""
        return tuple(sorted({node.op_type for node in onnx.ModelProto.FromString(self.model).graph.node}))


def all_cases(kinds: Collection[str] = KINDS) -> list[Case]:
    """Every case of these kinds, in a fixed order."""
    return [case for kind in KINDS if kind in kinds for case in _MAKERS[kind](kind)]


def _array(value: Any) -> Array | None:
    """A tensor of a case as an array; None for a sequence or an optional."""
    if isinstance(value, onnx.TensorProto):
        return numpy_helper.to_array(value)
    return np.asarray(value) if isinstance(value, (np.ndarray, np.generic)) else None


def _case(name: str, kind: str, model: onnx.ModelProto, data: Sequence[tuple[Any, Any]], rtol: float, atol: float) -> Case:
    names = [i.name for i in model.graph.input]
    sets = [([_array(x) for x in xs], [_array(y) for y in ys]) for xs, ys in data]
    tensors = all(a is not None for xs, ys in sets for a in (*xs, *ys))
    pairs = [(dict(zip(names, xs, strict=False)), ys) for xs, ys in sets] if tensors else []
    return Case(name, kind, model.SerializeToString(), pairs, tensors, rtol, atol)  # type: ignore[arg-type]


def _made(kind: str) -> Iterator[Case]:
    """The cases that ONNX makes in memory: operators and simple graphs."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.case import model, node

        made = node.collect_testcases(None) if kind == "node" else model.collect_testcases()
    for c in made:
        if c.model is not None and c.data_sets is not None:
            yield _case(c.name, kind, c.model, c.data_sets, c.rtol, c.atol)


def _stored(kind: str) -> Iterator[Case]:
    """The cases that come as files with the ``onnx`` package."""
    from onnx.backend.test.loader import load_model_tests

    for c in load_model_tests(kind=kind):
        folder = Path(c.model_dir)
        model = onnx.load(str(folder / "model.onnx"))
        data = [_stored_set(model, part) for part in sorted(folder.glob("test_data_set_*"))]
        yield _case(c.name, kind, model, data, c.rtol, c.atol)


def _stored_set(model: onnx.ModelProto, folder: Path) -> tuple[list[onnx.TensorProto], list[onnx.TensorProto]]:
    def read(kind: str) -> list[onnx.TensorProto]:
        count = len(list(folder.glob(f"{kind}_*.pb")))
        return [onnx.load_tensor(str(folder / f"{kind}_{i}.pb")) for i in range(count)]

    return read("input"), read("output")


def _light(kind: str) -> Iterator[Case]:
    """The vision models that come with the ``onnx`` package; the input is a ramp, as in ONNX's own runner."""
    from onnx.backend.test.loader import load_model_tests

    for c in load_model_tests(kind="real"):
        path = Path(onnx.__file__).parent.parent / (c.url or "")
        if path.parent.name != "light" or not path.is_file():
            continue
        model = onnx.load(str(path))
        constants = {i.name for i in model.graph.initializer}
        inputs = [_ramp(i) for i in model.graph.input if i.name not in constants]
        outputs = [onnx.load_tensor(str(path.with_name(f"{path.stem}_output_{i}.pb"))) for i in range(len(model.graph.output))]
        names = [i.name for i in model.graph.input if i.name not in constants]
        data = [(dict(zip(names, inputs, strict=True)), [numpy_helper.to_array(o) for o in outputs])]
        yield Case(c.name, kind, model.SerializeToString(), data, True, c.rtol, c.atol)


def _ramp(declared: onnx.ValueInfoProto) -> Array:
    shape = [d.dim_value or 1 for d in declared.type.tensor_type.shape.dim]
    count = int(np.prod(shape))
    return (np.arange(count).reshape(shape) / count).astype(np.float32)


_MAKERS: dict[str, Callable[[str], Iterator[Case]]] = {
    "node": _made,
    "simple": _made,
    "pytorch-converted": _stored,
    "pytorch-operator": _stored,
    "light": _light,
}
