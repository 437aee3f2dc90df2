"""Fixtures of the plug-in's tests: models made on the spot, and an engine that only notes what it is asked."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx_vulkan._shim import ffi
from onnx_vulkan.graph import Graph

import onnxruntime_ep_vulkan
from onnxruntime_ep_vulkan import capability, devices, sessions
from onnxruntime_ep_vulkan.reader import ReadGraph

ORT_MINOR = int(ort.__version__.split(".")[1])


def make_model(
    nodes: list[onnx.NodeProto],
    inputs: dict[str, list[Any]],
    outputs: dict[str, list[Any]],
    constants: dict[str, np.ndarray[Any, Any]] | None = None,
    *,
    opset: int = 18,
    dtype: int = TensorProto.FLOAT,
) -> bytes:
    """A serialized model. Constants that are also inputs may be overridden by a caller."""
    graph = helper.make_graph(
        nodes,
        "test",
        [helper.make_tensor_value_info(n, dtype, s) for n, s in inputs.items()],
        [helper.make_tensor_value_info(n, dtype, s) for n, s in outputs.items()],
        [numpy_helper.from_array(a, n) for n, a in (constants or {}).items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)
    return bytes(model.SerializeToString())


def chain() -> bytes:
    """y = LeakyRelu(Sin(x + w)), x [n, 3]."""
    nodes = [
        helper.make_node("Add", ["x", "w"], ["a"], name="add"),
        helper.make_node("Sin", ["a"], ["b"], name="sin"),
        helper.make_node("LeakyRelu", ["b"], ["y"], name="leaky", alpha=0.5),
    ]
    return make_model(nodes, {"x": ["n", 3]}, {"y": ["n", 3]}, {"w": np.array([1, 2, 3], np.float32)})


def vulkan_session(model: bytes | str, options: dict[str, Any] | None = None, **keywords: Any) -> ort.InferenceSession:
    """A session on VulkanEP in the way that this ORT has, falling back to the CPU on no account."""
    settings = keywords.pop("sess_options", None) or ort.SessionOptions()
    settings.log_severity_level = 4
    if ORT_MINOR >= 25:
        providers = [("VulkanEP", options or {})]
        return ort.InferenceSession(model, settings, providers=providers, enable_fallback=0, **keywords)
    settings.add_provider_for_devices(ep_devices()[:1], {k: str(v) for k, v in (options or {}).items()})
    return ort.InferenceSession(model, settings, enable_fallback=0, **keywords)


def ep_devices() -> list[Any]:
    """The OrtEpDevices of the plug-in, host memory first."""
    return [d for d in ort.get_ep_devices() if d.ep_name == "VulkanEP"]


@dataclass(frozen=True)
class StubOptions:
    device: str | None = None
    precision: Literal["strict", "fast"] = "strict"
    contexts: int = 2
    release_arena: bool = False
    runtime_dims: dict[str, int] = field(default_factory=dict)


@dataclass
class StubBlock:
    graph: Graph
    engine: StubEngine
    closed: bool = False

    @property
    def handle(self) -> Any:
        return ffi.cast("ov_block *", id(self))

    def close(self) -> None:
        assert not self.closed
        self.closed = True


def own(graph: Graph) -> None:
    """Copy a graph's constants: ORT's memory goes away, and the tests look at them later."""
    for table in (graph.initializers, graph.defaults):
        table.update({name: value.copy() for name, value in table.items()})
    for body in graph.subgraphs():
        own(body)


@dataclass
class StubEngine:
    """Stands for claims, device and Block. Sessions on it can be made, but not run."""

    graphs: list[ReadGraph] = field(default_factory=list)
    blocks: list[StubBlock] = field(default_factory=list)
    options: list[StubOptions] = field(default_factory=list)
    claims: Callable[[ReadGraph], list[list[int]]] = lambda read: [
        [i for i, owner in enumerate(read.owners) if not owner]
    ]
    fail: dict[str, BaseException] = field(default_factory=dict)

    def partition(self, session: Any, read: ReadGraph) -> tuple[list[list[int]], list[Any]]:
        if "capability" in self.fail:
            raise self.fail["capability"]
        own(read.graph)
        self.graphs.append(read)
        return [b for b in self.claims(read) if b], []

    def make_block(self, graph: Graph, device: Any, options: Any) -> StubBlock:
        if "compile" in self.fail:
            raise self.fail["compile"]
        own(graph)
        self.blocks.append(StubBlock(graph, self))
        return self.blocks[-1]

    def open_for(self, options: Any, *, device_memory: bool) -> Any:
        if "create" in self.fail:
            raise self.fail["create"]
        self.options.append(options)
        return "stub"


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> Iterator[StubEngine]:
    """Replaces the engine by a :class:`StubEngine`."""
    onnxruntime_ep_vulkan.register()
    engine = StubEngine()
    monkeypatch.setattr(capability, "partition", engine.partition)
    monkeypatch.setattr(sessions, "make_block", engine.make_block)
    monkeypatch.setattr(devices, "open_for", engine.open_for)
    monkeypatch.setattr(devices, "options_type", lambda: StubOptions)
    monkeypatch.setattr(devices, "label", str)
    yield engine
