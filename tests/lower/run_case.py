"""Run a model through the front end, the lowering and the interpreter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx_vulkan.dims import Dim, Scope, evaluate
from onnx_vulkan.errors import Refusal
from onnx_vulkan.frontend import load
from onnx_vulkan.graph import Graph
from onnx_vulkan.lower import Lowered, host_symbol, lower_graph
from onnx_vulkan.packing import from_storage, to_storage
from onnx_vulkan.program.interp import interpret

Array = NDArray[Any]


def graph_of(model: onnx.ModelProto) -> Graph:
    """The model as the engine's graph."""
    return load(model.SerializeToString())


def claim(graph: Graph) -> Lowered:
    """The graph lowered as claiming does: before any shape is known."""
    with Scope(None):
        return lower_graph(graph, strict=False)


def refusals(graph: Graph) -> list[Refusal]:
    """What claiming refuses."""
    return claim(graph).refusals


def symbol_numbers(graph: Graph, feeds: Mapping[str, Array], host: bool = True) -> dict[str, int]:
    """The numbers of the input symbols and, with *host*, of the elements of small integer inputs."""
    values: dict[str, int] = {}
    for name in graph.inputs:
        for e, n in zip(graph.types[name].shape or (), feeds[name].shape, strict=True):
            if isinstance(e, Dim):
                values.setdefault(repr(e), int(n))
        if host and feeds[name].dtype.kind in "iu" and feeds[name].size <= 64:
            values.update({host_symbol(name, i): int(v) for i, v in enumerate(feeds[name].reshape(-1))})
    return values


def run(graph: Graph, feeds: Mapping[str, Array], *, float64: bool = False, host: bool = True) -> list[Array]:
    """Bind the graph to the feeds' shapes, and interpret the Program.

    Host-known inputs are symbols with *host*, else plain numbers.
    """
    lowered, scope = bind(graph, feeds, host)
    return replay(lowered, graph, feeds, scope, float64=float64)


def bind(graph: Graph, feeds: Mapping[str, Array], host: bool = True) -> tuple[Lowered, Scope]:
    """The graph lowered for these feeds; the scope holds the guards."""
    scope = Scope(symbol_numbers(graph, feeds, host))
    with scope:
        return lower_graph(graph, host_values=feeds), scope


def replay(lowered: Lowered, graph: Graph, feeds: Mapping[str, Array], scope: Scope, *, float64: bool = False) -> list[Array]:
    """Interpret a Program at feeds for which its guards hold (asserted)."""
    values = symbol_numbers(graph, feeds)
    assert all(g.holds(values) for g in scope.guards), "a guard does not hold"
    with Scope(values):
        outputs = interpret(lowered.program, {k: to_storage(v) for k, v in feeds.items()}, values, float64=float64)
    shapes = [tuple(evaluate(e, values) for e in t.shape or ()) for t in lowered.outputs]
    outputs = [from_storage(a, t.dtype, s) for a, t, s in zip(outputs, lowered.outputs, shapes, strict=True) if t.dtype]
    assert [a.shape for a in outputs] == shapes
    return outputs


def assert_close(got: Array, want: Array, rtol: float, atol: float) -> None:
    """Equal dtype and shape, values within tolerance (exactly, for integers and bools)."""
    assert got.dtype == want.dtype and got.shape == want.shape, f"{got.dtype}{got.shape} against {want.dtype}{want.shape}"
    if want.dtype.kind in "iub":
        np.testing.assert_array_equal(got, want)
    else:
        np.testing.assert_allclose(got.astype(np.float64), want.astype(np.float64), rtol=rtol, atol=atol)
