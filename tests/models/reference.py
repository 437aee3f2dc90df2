"""The references of the model tests: ONNX Runtime's CPU EP, and the interpreter in float64 for disputes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

import onnxruntime
from catalog import Array, Model
from onnx_vulkan.dims import Dim, Scope
from onnx_vulkan.frontend import load
from onnx_vulkan.graph import Graph
from onnx_vulkan.lower import host_symbol, lower_graph
from onnx_vulkan.lower.driver import HOST_INPUT_LIMIT
from onnx_vulkan.program.interp import interpret

__all__ = ["cpu_outputs", "cpu_session", "float64_outputs", "interpret_file", "interpreted", "quiet_options"]


def quiet_options() -> onnxruntime.SessionOptions:
    """Session options that keep ORT's warnings about the models' own shape hints out of the test log."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    return options


@lru_cache(maxsize=2)
def cpu_session(model: Model) -> onnxruntime.InferenceSession:
    """The model on the CPU EP."""
    return onnxruntime.InferenceSession(str(model.path()), quiet_options(), providers=["CPUExecutionProvider"])


@lru_cache(maxsize=4)
def cpu_outputs(model: Model, case: int | None) -> tuple[Array, ...]:
    """The outputs for test *case* (or the bench's feeds), in the model's order."""
    return tuple(cpu_session(model).run(None, model.feeds(case)))


def interpreted(model: Model, case: int, *, float64: bool = False) -> list[Array]:
    """The outputs by lowering and the numpy interpreter, with dims and small integer inputs as symbols: the engine's way."""
    return interpret_file(model.path(), model.feeds(case), float64=float64)


def interpret_file(path: Path, feeds: Mapping[str, Array], *, float64: bool = False) -> list[Array]:
    """:func:`interpreted` of any model and feeds."""
    graph = load(path)
    values = _symbols(graph, feeds)
    with Scope(values):
        program = lower_graph(graph, host_values={k: v for k, v in feeds.items() if v.size <= HOST_INPUT_LIMIT}).program
        return interpret(program, feeds, values, float64=float64)


def float64_outputs(model: Model, case: int) -> list[Array]:
    """The outputs computed in float64 throughout."""
    return interpreted(model, case, float64=True)


def _symbols(graph: Graph, feeds: Mapping[str, Array]) -> dict[str, int]:
    """The number of every symbol: dims of the inputs, and the elements of inputs small enough to decide shapes."""
    values: dict[str, int] = {}
    for name, array in feeds.items():
        for extent, n in zip(graph.types[name].shape or (), array.shape, strict=True):
            if isinstance(extent, Dim):
                values[repr(extent)] = n
        if array.dtype.kind in "iub" and array.size <= HOST_INPUT_LIMIT:
            values.update({host_symbol(name, i): int(v) for i, v in enumerate(array.reshape(-1))})
    return values
