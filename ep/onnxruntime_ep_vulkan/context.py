"""EPContext models: blocks written as compiled models by a session with ``ep.context_enable``, and read back.

The content is the engine's own (``onnx_vulkan.engine.compiled``); here is what ONNX Runtime wraps around it: a node of the
operator ``com.microsoft::EPContext``, which holds the bytes or names the file that does.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from onnx_vulkan._shim import ffi, lib
from onnx_vulkan.errors import InvalidInput, ModelError
from onnx_vulkan.graph import Graph, Node

from onnxruntime_ep_vulkan import abi
from onnxruntime_ep_vulkan.abi import Handle
from onnxruntime_ep_vulkan.reader import EP_NAME

__all__ = ["ContextWriter", "context_source", "is_ours"]

OP_TYPE, DOMAIN = "EPContext", "com.microsoft"
SUFFIX = ".ovk"
MOST_EMBEDDED = (1 << 31) - (1 << 20)
"""Bytes that an attribute can hold: protobuf ends at 2 GiB."""


def is_ours(node: Node) -> bool:
    """Whether a node is a block that VulkanEP has written."""
    return (node.op_type, node.domain) == (OP_TYPE, DOMAIN) and node.attributes.get("source") == EP_NAME


def context_source(graph: Graph, model_path: str, config: Mapping[str, str]) -> tuple[Path | bytes, str, str | None]:
    """The compiled model in the one node of a fused graph, bytes or a file, what to call it in messages, and a file's digest.

    Raises ModelError for a name that leads out of the model's folder.
    """
    attributes = graph.nodes[0].attributes
    held = attributes.get("ep_cache_context", b"")
    if attributes.get("embed_mode", 1) == 1:
        data = held.encode(errors="surrogateescape") if isinstance(held, str) else held
        assert isinstance(data, bytes)
        return data, "the compiled model in the EPContext node", None
    name = held if isinstance(held, str) else str(held)
    if not name or PurePath(name).is_absolute() or ".." in PurePath(name).parts:
        raise ModelError(f"The EPContext model names the file {name!r}; that has to be in the model's own folder.")
    path = model_path or config.get("ep.context_file_path", "")
    if not path:
        raise ModelError(
            f"The EPContext model names the file {name!r} beside it, but it was loaded from memory: load it by its path, or set "
            "the session option ep.context_file_path to where it lies."
        )
    file = Path(path).parent / name
    if not file.is_file():
        raise ModelError(f"The EPContext model needs the file {file}, which is not there.")
    return file, str(file), str(attributes.get("notes", ""))


@dataclass(frozen=True, slots=True)
class ContextWriter:
    """How a session with ``ep.context_enable`` writes its blocks. ``model``: where the EPContext model will lie."""

    embed: bool
    model: str

    @staticmethod
    def of(config: Mapping[str, str]) -> ContextWriter | None:
        """What the session's options ask for; None without ``ep.context_enable``."""
        if config.get("ep.context_enable") != "1":
            return None
        return ContextWriter(config.get("ep.context_embed_mode", "0") == "1", config.get("ep.context_file_path", ""))

    def node(self, block: Any, fused: Handle, names: tuple[list[str], list[str]], model_path: str) -> Handle:
        """An OrtNode that stands for *block*: the fused node's name, inputs and outputs. ONNX Runtime takes it over."""
        from onnx_vulkan import provenance
        from onnx_vulkan.engine.compiled import compiled_bytes, save_compiled

        name = abi.text(lib.OrtApi_Node_GetName, fused)
        digest = ""
        if self.embed:
            held = compiled_bytes(block)
            if len(held) > MOST_EMBEDDED:
                raise InvalidInput(
                    f"The compiled model has {len(held)} bytes, and at most {MOST_EMBEDDED} can be embedded: set the session "
                    "option ep.context_embed_mode to 0, which writes it to a file of its own."
                )
        else:
            file = self._file(name, model_path)
            digest = save_compiled(block, file)
            held = os.fsencode(file.name)
        attributes = {
            "main_context": 1,
            "embed_mode": int(self.embed),
            "ep_cache_context": held,
            "source": EP_NAME.encode(),
            "ep_sdk_version": provenance.version().encode(),
            "hardware_architecture": block.device.info.name.encode(),
            "partition_name": name.encode(),
            "notes": digest.encode(),
        }
        return _make_node(name, *names, attributes)

    def _file(self, name: str, model_path: str) -> Path:
        # Where ORT puts the model by itself: beside the source, as NAME_ctx.onnx.
        if self.model:
            place = Path(self.model)
        elif model_path:
            place = Path(model_path).with_name(Path(model_path).stem + "_ctx.onnx")
        else:
            raise InvalidInput(
                "VulkanEP writes compiled blocks to files beside the EPContext model, but this model comes from memory: set the "
                "session option ep.context_file_path, or ep.context_embed_mode to 1."
            )
        return place.with_name(f"{place.stem}_{name}{SUFFIX}")


def _make_node(name: str, inputs: list[str], outputs: list[str], attributes: Mapping[str, int | bytes]) -> Handle:
    made = [_make_attribute(key, value) for key, value in attributes.items()]
    kept = [[ffi.new("char[]", n.encode(errors="surrogateescape")) for n in names] for names in (inputs, outputs)]
    out = ffi.new("void **")
    editor = ffi.cast("void **", abi.function(lib.OrtApi_GetModelEditorApi, "void *(*)(void)")())
    kind = (
        "void *(*)(const char *, const char *, const char *, const char *const *, size_t, const char *const *, size_t, void **, "
        "size_t, void **)"
    )
    create = ffi.cast(kind, editor[lib.OrtModelEditorApi_CreateNode])
    words = [w.encode(errors="surrogateescape") for w in (OP_TYPE, DOMAIN, name)]
    lists = [argument for names in kept for argument in (ffi.new("char *[]", names), len(names))]
    # The attributes are ORT's from here on, whatever comes of it.
    abi.check(create(*words, *lists, ffi.new("void *[]", made), len(made), out))
    return out[0]


def _make_attribute(name: str, value: int | bytes) -> Handle:
    out = ffi.new("void **")
    kind = "void *(*)(const char *, const void *, int, int, void **)"
    if isinstance(value, int):
        held: Any = ffi.new("int64_t *", value)
        abi.call(lib.OrtApi_CreateOpAttr, kind, name.encode(), held, 1, lib.ORT_OP_ATTR_INT, out)
    else:
        held = ffi.from_buffer("char[]", value)
        abi.call(lib.OrtApi_CreateOpAttr, kind, name.encode(), held, len(value), lib.ORT_OP_ATTR_STRING, out)
    return out[0]
