"""GetCapability: offers ORT's graph to the claims and fuses the blocks that come back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from onnx_vulkan._shim import ffi, lib
from onnx_vulkan.errors import Refusal
from onnx_vulkan.graph import Graph

from onnxruntime_ep_vulkan import abi
from onnxruntime_ep_vulkan.abi import Handle
from onnxruntime_ep_vulkan.context import is_ours
from onnxruntime_ep_vulkan.reader import EP_NAME, ReadGraph
from onnxruntime_ep_vulkan.sessions import EpSession

__all__ = ["claim", "partition"]

CAPTURING = "a body before ONNX Runtime 1.27"
NOT_HANDED_OVER = "ONNX Runtime before 1.27 does not hand over what its body captures."


def claim(session: EpSession, graph: Handle, support: Handle) -> None:
    """Claim what can run of *graph*.

    ORT asks for each graph of a model, bodies before the graph that holds them, and once more after it has inlined functions.
    Whether the node that has a body will be claimed whole cannot be told there (ORT lets nobody look from a body to the graph
    outside). So the bodies of Loop and Scan are claimed inside, which is undone where the node itself is claimed later; the
    branches of an If are left alone, as are the bodies of functions, which ORT inlines.
    """
    from onnx_vulkan.claims import BODIES_LEFT_ALONE

    if _parent(graph) in BODIES_LEFT_ALONE or (session.writer is not None and _parent(graph)):
        return  # ONNX Runtime writes the nodes of the main graph alone as EPContext nodes
    read = session.read(graph)
    # 1.23 names the blocks of two bodies alike and then refuses the second; it does not tell a body's parent either.
    if abi.api_version() < 24 and read.graph.outer:
        return
    ours = [i for i, node in enumerate(read.graph.nodes) if not read.owners[i] and is_ours(node)]
    for i in ours:
        _fuse(support, [read.handles[i]])
        read.owners[i] = EP_NAME
    blocks, refusals = partition(session, read, body=bool(_parent(graph)))
    free = [i for i, owner in enumerate(read.owners) if not owner]
    session.offered += len(free) + len(ours)
    session.refusals += refusals
    for block in blocks:
        _fuse(support, [read.handles[i] for i in block])


def _fuse(support: Handle, nodes: list[Handle]) -> None:
    # OrtNodeFusionOptions: uint32 version, bool drop_constant_initializers. Dropped: the weights are uploaded in Compile, and
    # ORT frees its copy after the session is made.
    fusion = ffi.new("uint32_t[2]", [abi.api_version(), 1])
    abi.check(
        abi.ep_function(
            lib.OrtEpApi_EpGraphSupportInfo_AddNodesToFuse, "void *(*)(void *, const void *const *, size_t, const void *)"
        )(support, ffi.new("void *[]", nodes), len(nodes), fusion)
    )


def partition(session: EpSession, read: ReadGraph, *, body: bool = False) -> tuple[list[list[int]], list[Refusal]]:
    """The blocks (node numbers) and refusals that the claims find among the nodes that no EP has yet.

    Nodes that are given back, their block not being worth the crossing, are among the refusals. *body*: the graph is that of a
    node.
    """
    from onnx_vulkan import claims

    # A node that another EP (or we, earlier) already has: no operator of this engine has an EP's name for a domain.
    taken = {i for i, owner in enumerate(read.owners) if owner}
    for i in taken:
        read.graph.nodes[i].domain = read.owners[i]
    # What a body captures comes in like its inputs do.
    graph = replace(read.graph, inputs=[*read.graph.inputs, *read.graph.outer], outer=[])
    info = session.device.info
    rates = claims.machine(info.kind)
    found = claims.partition(graph, session.options, info.features, rates=rates, body=body)
    while abi.api_version() < 27 and (lost := _not_handed_over(graph, found.blocks)):
        for i in lost:
            graph.nodes[i].domain = CAPTURING
        found = claims.partition(graph, session.options, info.features, rates=rates, body=body)
    refusals = [r for r in (*found.refusals, *found.given_back.values()) if r.domain not in {read.owners[i] for i in taken}]
    refusals = [r if r.domain != CAPTURING else replace(r, domain="", check="kernel", reason=NOT_HANDED_OVER) for r in refusals]
    return [list(block) for block in found.blocks if not taken & set(block)], refusals


def _not_handed_over(graph: Graph, blocks: Sequence[Sequence[int]]) -> list[int]:
    """Nodes of a block whose bodies capture what the block neither makes nor reads otherwise."""
    from onnx_vulkan.claims import bodies_of

    lost = []
    for block in blocks:
        nodes = [graph.nodes[i] for i in block]
        there = {*graph.initializers, *(name for node in nodes for name in (*node.inputs, *node.outputs))}
        lost += [i for i in block if any(set(body.outer) - there for _, body in bodies_of(graph.nodes[i]))]
    return lost


def _parent(graph: Handle) -> str:
    """The operator whose body the graph is; "" for the main graph."""
    parent = abi.get(lib.OrtApi_Graph_GetParentNode, graph)
    if parent == ffi.NULL:
        return ""
    return abi.text(lib.OrtApi_Node_GetOperatorType, parent)
