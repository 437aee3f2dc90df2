"""What lives as long as one ORT session: its options, its blocks and what was claimed. Found by the EP's number."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from onnx_vulkan._shim import ffi, lib
from onnx_vulkan.device import Device
from onnx_vulkan.engine.options import Options, parse_options
from onnx_vulkan.errors import InvalidInput, ModelError, Refusal
from onnx_vulkan.graph import Graph, Node

from onnxruntime_ep_vulkan import abi, devices, options, reader
from onnxruntime_ep_vulkan.abi import Handle
from onnxruntime_ep_vulkan.bodies import unfold
from onnxruntime_ep_vulkan.context import ContextWriter, context_source, is_ours
from onnxruntime_ep_vulkan.reader import ReadGraph

__all__ = [
    "EpSession",
    "SessionStats",
    "compile_blocks",
    "create",
    "find",
    "identified",
    "make_block",
    "release",
    "release_block",
]

log = logging.getLogger("onnxruntime_ep_vulkan")


@dataclass(slots=True)
class SessionStats:
    """What VulkanEP did for one session so far.

    ``claimed_nodes`` counts the model's nodes (after ORT's first optimisations) that run in ``blocks`` fused nodes; ``refusals``
    says why others do not. ``runs`` counts block runs, ``plans`` the plans that are kept now, ``plans_made`` all that were made
    here, ``plans_loaded`` those that came with an EPContext model.
    """

    device: str
    blocks: int = 0
    claimed_nodes: int = 0
    offered_nodes: int = 0
    runs: int = 0
    dispatches: int = 0
    plans: int = 0
    plans_made: int = 0
    plans_loaded: int = 0
    recordings: int = 0
    refusals: list[Refusal] = field(default_factory=list)


@dataclass(slots=True)
class _Compiled:
    """A fused node of ORT's: its block (onnx_vulkan.engine.block.Block) and the graph that it stands for. ``unfolded``: it was in
    a body whose node was claimed whole later, so that ORT never runs it."""

    block: Any
    graph: Graph
    op_type: str
    unfolded: bool = False


@dataclass(slots=True)
class EpSession:
    """One OrtEp. ``config``: the session's configuration entries; ``writer``: set where its blocks become EPContext nodes."""

    number: int
    options: Options
    device: Device
    device_memory: bool
    config: Mapping[str, str]
    writer: ContextWriter | None
    offered: int = 0
    refusals: list[Refusal] = field(default_factory=list)
    blocks: dict[int, _Compiled] = field(default_factory=dict)

    def read(self, graph: Handle) -> ReadGraph:
        """Read an OrtGraph; the bodies in it are whole, whatever was fused inside of them before."""
        read = reader.read_graph(graph)
        read.graph = unfold(read.graph, self._stands_for)
        return read

    def _stands_for(self, node: Node) -> Graph | None:
        found = self._fused(node)
        return found.graph if found else None

    def _fused(self, node: Node) -> _Compiled | None:
        """What was compiled for a node, where it is a fused node of this session."""
        if node.domain != reader.EP_NAME:
            return None
        return next((c for c in self.blocks.values() if c.op_type == node.op_type), None)

    def compile(self, graph: Handle, fused: Handle) -> _Compiled:
        """Make the block of a fused node."""
        inputs, outputs = _edges(fused)
        # ORT frees its constants once the session is made; a block of dynamic shapes reads them when it is first planned.
        read = reader.read_graph(graph, inputs=inputs, lasting=self.device.copied).graph
        if read.inputs != inputs:
            raise RuntimeError(f"ONNX Runtime made constants inputs of a fused node: {set(inputs) - set(read.inputs)}")
        op_type = abi.text(lib.OrtApi_Node_GetOperatorType, fused)
        read.outputs = outputs
        if is_ours(read.nodes[0]):
            block = self._open(read, abi.text(lib.OrtApi_Graph_GetModelPath, graph))
            return _Compiled(block, block.graph, op_type)
        # ORT hands over a value for every input of a fused node, so a default can never be needed here.
        read.defaults = {}
        unfolded: list[_Compiled] = []

        def stands_for(node: Node) -> Graph | None:
            found = self._fused(node)
            if found is None:
                return None
            unfolded.append(found)
            return found.graph

        whole = unfold(read, stands_for)
        block = make_block(whole, self)
        for inner in unfolded:
            inner.unfolded = True
        return _Compiled(block, whole, op_type)

    def _open(self, read: Graph, model_path: str) -> Any:
        """The block of an EPContext node."""
        from onnx_vulkan.engine.compiled import open_compiled

        if self.writer is not None:
            raise InvalidInput("This model is an EPContext model already: leave out the session option ep.context_enable.")
        source, where, digest = context_source(read, model_path, self.config)
        block = open_compiled(source, self.device, self.options, external=self.device_memory, where=where, digest=digest)
        node = read.nodes[0]
        if (len(block.graph.inputs), len(block.graph.outputs)) != (len(node.inputs), len(node.outputs)):
            block.close()
            raise ModelError(f"{where} does not belong to this EPContext model: it has other inputs or outputs.")
        if (read.inputs, read.outputs) != (list(node.inputs), list(node.outputs)):
            block.close()
            raise RuntimeError("ONNX Runtime gave an EPContext node's inputs or outputs in another order than the node has them.")
        return block

    def running_blocks(self) -> list[Any]:
        """The blocks that ORT runs."""
        return [c.block for c in self.blocks.values() if not c.unfolded]

    def stats(self) -> SessionStats:
        """The counters of this session's blocks, added up."""
        total = SessionStats(devices.label(self.device), offered_nodes=self.offered, refusals=list(self.refusals))
        info = ffi.new("ov_block_info *")
        for compiled in list(self.blocks.values()):
            if compiled.unfolded:
                total.offered_nodes -= len(compiled.graph.nodes)
                continue
            total.blocks += 1
            total.claimed_nodes += len(compiled.graph.nodes)
            lib.ov_block_get(compiled.block.native, info)
            total.runs += info.runs
            total.dispatches += info.dispatches
            total.plans += info.plans
            total.plans_made += info.plans_made - compiled.block.plans_loaded
            total.plans_loaded += compiled.block.plans_loaded
            total.recordings += info.recordings
        return total


_sessions: dict[int, EpSession] = {}

identified: dict[str, EpSession] = {}
"""Sessions that answered to a token (see ``onnxruntime_ep_vulkan.session_stats``)."""


def create(number: int, metadata: list[dict[str, str]], config: Mapping[str, str]) -> None:
    """Begin a session: read its options and open its device. ``metadata`` is that of the OrtEpDevices it was given."""
    chosen = parse_options(options.provider_options(config), Options)
    device_memory = any(m.get("memory") == "device" for m in metadata)
    device = devices.open_for(chosen, device_memory=device_memory)
    _sessions[number] = EpSession(number, chosen, device, device_memory, dict(config), ContextWriter.of(config))


def find(number: int) -> EpSession:
    """The session of an EP."""
    return _sessions[number]


def make_block(graph: Graph, session: EpSession) -> Any:
    """The engine's Block for a claimed graph (imported late: a session that claims nothing needs no engine)."""
    from onnx_vulkan.engine.block import Block

    return Block(graph, session.device, session.options, external=session.device_memory)


def compile_blocks(session: EpSession, graphs: list[Handle], fused: list[Handle]) -> tuple[list[Any], list[Handle]]:
    """Make the block of each fused node; gives back their C handles, and their EPContext nodes where the session writes them. All
    or none."""
    made: list[_Compiled] = []
    nodes: list[Handle] = []
    try:
        for graph, node in zip(graphs, fused, strict=True):
            made.append(session.compile(graph, node))
        if session.writer is not None:
            for compiled, graph, node in zip(made, graphs, fused, strict=True):
                model_path = abi.text(lib.OrtApi_Graph_GetModelPath, graph)
                nodes.append(session.writer.node(compiled.block, node, _edges(node), model_path))
    except BaseException:
        for node in nodes:
            abi.function(lib.OrtApi_ReleaseNode, "void (*)(void *)")(node)
        for compiled in made:
            compiled.block.close()
        raise
    for compiled in made:
        session.blocks[_address(compiled.block.native)] = compiled
    return [compiled.block.native for compiled in made], nodes


def _edges(fused: Handle) -> tuple[list[str], list[str]]:
    """The names of a fused node's inputs and outputs."""
    return (
        reader.value_names(lib.OrtApi_Node_GetNumInputs, lib.OrtApi_Node_GetInputs, fused),
        reader.value_names(lib.OrtApi_Node_GetNumOutputs, lib.OrtApi_Node_GetOutputs, fused),
    )


def release_block(number: int, handle: Any) -> None:
    """ORT lets go of one fused node."""
    compiled = _sessions[number].blocks.pop(_address(handle), None)
    if compiled is not None:
        compiled.block.close()


def release(number: int) -> None:
    """ORT lets go of the EP; blocks that it never took are closed."""
    session = _sessions.pop(number, None)
    if session is not None:
        for compiled in session.blocks.values():
            compiled.block.close()


def _address(handle: Any) -> int:
    return int(ffi.cast("uintptr_t", handle))


def config_entries(session_options: Handle) -> dict[str, str]:
    """All configuration entries of a session, provider options included."""
    held = abi.get(lib.OrtApi_GetSessionOptionsConfigEntries, session_options)
    try:
        return abi.pairs(held)
    finally:
        abi.function(lib.OrtApi_ReleaseKeyValuePairs, "void (*)(void *)")(held)
