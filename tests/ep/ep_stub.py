"""What the plug-in's tests share: models made on the spot, sessions, and engines that stand for the real one."""

from __future__ import annotations

import copy
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx_vulkan._shim import ffi
from onnx_vulkan.device import ReplayBlock, Shader
from onnx_vulkan.engine.options import Options
from onnx_vulkan.graph import Graph
from onnx_vulkan.plan.table import COMMAND, END, IO, KEY, PATCH, PUSH, RELOC, Op, PatchKind, PlanTables, Segment
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
    """A session on VulkanEP in the way that this ORT has, falling back to the CPU on no account; small blocks stay on Vulkan."""
    options = {"island": "keep", **(options or {})}
    settings = keywords.pop("sess_options", None) or ort.SessionOptions()
    settings.log_severity_level = 4
    if ORT_MINOR >= 25:
        providers = [("VulkanEP", options)]
        return ort.InferenceSession(model, settings, providers=providers, enable_fallback=0, **keywords)
    settings.add_provider_for_devices(ep_devices()[:1], {k: str(v) for k, v in options.items()})
    return ort.InferenceSession(model, settings, enable_fallback=0, **keywords)


device_memory = pytest.mark.skipif(ORT_MINOR < 25, reason="the device-memory mode needs 1.25")


def ep_devices() -> list[Any]:
    """The OrtEpDevices of the plug-in, host memory first."""
    return [d for d in ort.get_ep_devices() if d.ep_name == "VulkanEP"]


@dataclass
class StubBlock:
    graph: Graph
    engine: StubEngine
    closed: bool = False
    plans_loaded: int = 0
    mapped: frozenset[str] = frozenset()

    @property
    def native(self) -> Any:
        return ffi.cast("ov_block *", id(self))

    def close(self) -> None:
        assert not self.closed
        self.closed = True


def own(graph: Graph) -> None:
    """Copy a graph's constants: ORT's memory goes away, and the tests look at them later."""
    for table in (graph.initializers, graph.defaults):
        table.update({name: copy.deepcopy(value) for name, value in table.items()})
    for body in graph.subgraphs():
        own(body)


class StubDevice:
    """The tests look at nothing of it."""

    @staticmethod
    def copied(array: Any) -> Any:
        return array.copy()


@dataclass
class StubEngine:
    """Stands for claims, device and Block. Sessions on it can be made, but not run."""

    graphs: list[ReadGraph] = field(default_factory=list)
    blocks: list[StubBlock] = field(default_factory=list)
    options: list[Options] = field(default_factory=list)
    claims: Callable[[ReadGraph], list[list[int]]] = lambda read: [[i for i, owner in enumerate(read.owners) if not owner]]
    fail: dict[str, BaseException] = field(default_factory=dict)

    def partition(self, session: Any, read: ReadGraph, *, body: bool = False) -> tuple[list[list[int]], list[Any]]:
        if "capability" in self.fail:
            raise self.fail["capability"]
        own(read.graph)
        self.graphs.append(read)
        return [b for b in self.claims(read) if b], []

    def make_block(self, graph: Graph, session: Any) -> StubBlock:
        if "compile" in self.fail:
            raise self.fail["compile"]
        mapped = frozenset(n for n, a in graph.initializers.items() if isinstance(a, np.memmap))
        self.blocks.append(StubBlock(graph, self, mapped=mapped))
        return self.blocks[-1]

    def open_for(self, options: Any, *, device_memory: bool) -> Any:
        if "create" in self.fail:
            raise self.fail["create"]
        self.options.append(options)
        return StubDevice()


DOUBLE = Shader(
    """#version 460
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_scalar_block_layout : require
layout(local_size_x = 64) in;
layout(buffer_reference, scalar) buffer Floats { float v[]; };
layout(buffer_reference, scalar) buffer Record { Floats x, y; uint n; };
layout(push_constant, scalar) uniform P { Record r; };
void main() {
    uint i = gl_GlobalInvocationID.x;
    if (i < r.n) r.y.v[i] = r.x.v[i] * 2;
}
""",
    push_size=8,
    label="double",
)


def rows(dtype: np.dtype[np.void], *values: dict[str, Any]) -> Any:
    """A structured array from dicts; what is left out is zero."""
    out = np.zeros(len(values), dtype)
    for row, value in zip(out, values, strict=True):
        for name, v in value.items():
            row[name] = v
    return out


def doubling_plan(device: Any, n: int) -> PlanTables:
    """y = 2 * x for n floats, reached where they lie: the record's pointers are patched before each run."""
    io = {"rank": 1, "bits": 32, "capacity": 4 * n}
    return PlanTables(
        commands=rows(COMMAND, {"op": Op.DISPATCH, "x": (n + 63) // 64, "y": 1, "z": 1, "push_size": 8}),
        push=bytes(8),
        record=struct.pack("<QQQ", 0, 0, n),
        relocs=rows(RELOC, {"offset": 0, "segment": Segment.RECORD}),
        patches=rows(
            PATCH,
            {"kind": PatchKind.EXTERNAL_IN, "offset": 0, "expr": 3},
            {"kind": PatchKind.EXTERNAL_OUT, "offset": 8, "expr": 3},
        ),
        keys=rows(KEY, {"symbol": -1, "value": n}),
        inputs=rows(IO, io),
        outputs=rows(IO, io),
        output_dims=(0,),
        code=(PUSH, n, END, PUSH, 0, END),
        pipelines=tuple(device.pipelines([DOUBLE])),
        labels=("double",),
        input_size=4 * n,
        output_size=4 * n,
    )


@dataclass
class ScalingEngine:
    """Claims every ``Mul`` by the constant 2 and runs it by a hand-made plan, on the real device."""

    requests: list[Any] = field(default_factory=list)
    fail: BaseException | None = None

    def partition(self, session: Any, read: ReadGraph, *, body: bool = False) -> tuple[list[list[int]], list[Any]]:
        return [[i] for i, n in enumerate(read.graph.nodes) if n.op_type == "Mul" and not read.owners[i]], []

    def make_block(self, graph: Graph, session: Any) -> Any:
        def plan(request: Any) -> Any:
            self.requests.append(request)
            if self.fail is not None:
                raise self.fail
            return doubling_plan(session.device, request.inputs[0].shape[0])

        return ScalingBlock(ReplayBlock(session.device, 1, [np.float32], plan, contexts=session.options.contexts))


class ScalingBlock:
    """A ReplayBlock under the engine's Block interface."""

    plans_loaded = 0

    def __init__(self, replay: ReplayBlock):
        self.replay = replay
        self.native = replay.native

    def close(self) -> None:
        self.replay.close()


def doubling(*, chain: str = "") -> bytes:
    """y = x * 2, x [n]; ``chain="cpu"`` puts nodes that stay on the CPU before and after: y = Relu(2 * Abs(x))."""
    two = {"two": np.array([2], np.float32)}
    if not chain:
        return make_model([helper.make_node("Mul", ["x", "two"], ["y"])], {"x": ["n"]}, {"y": ["n"]}, two)
    nodes = [
        helper.make_node("Abs", ["x"], ["a"]),
        helper.make_node("Mul", ["a", "two"], ["b"]),
        helper.make_node("Relu", ["b"], ["y"]),
    ]
    return make_model(nodes, {"x": ["n"]}, {"y": ["n"]}, two)


def loop(
    body_nodes: list[onnx.NodeProto], constants: dict[str, np.ndarray[Any, Any]], shape: list[Any], trips: int | None = None
) -> bytes:
    """y = body applied ``trips`` times to x: *body_nodes* make ``next`` from ``v``, the constants lie outside of the body.

    The number of *trips* is a constant too, or an input where it is None.
    """
    float_, bool_ = TensorProto.FLOAT, TensorProto.BOOL
    body = helper.make_graph(
        [helper.make_node("Identity", ["c"], ["go"]), *body_nodes],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("c", bool_, []),
            helper.make_tensor_value_info("v", float_, shape),
        ],
        [helper.make_tensor_value_info("go", bool_, []), helper.make_tensor_value_info("next", float_, shape)],
    )
    inputs = [helper.make_tensor_value_info("x", float_, shape)]
    if trips is None:
        inputs.append(helper.make_tensor_value_info("trips", TensorProto.INT64, []))
    else:
        constants = constants | {"trips": np.array(trips)}
    graph = helper.make_graph(
        [helper.make_node("Loop", ["trips", "", "x"], ["y"], body=body)],
        "test",
        inputs,
        [helper.make_tensor_value_info("y", float_, shape)],
        [numpy_helper.from_array(a, n) for n, a in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    return bytes(model.SerializeToString())
