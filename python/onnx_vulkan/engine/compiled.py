"""Compiled models: a block with the plans that it has made, saved so that it runs again without planning or compiling.

The file holds the graph with its constants (so that any other size can still be planned), the plans' tables, SPIR-V and the
driver's data of their pipelines, and the constants that they read as the device has them. Plans, SPIR-V and driver data are used
only where device, driver, engine and settings are those of then.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import struct
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from onnx_vulkan import claims, provenance
from onnx_vulkan.device import Device, Shader
from onnx_vulkan.device import compile as compiling
from onnx_vulkan.engine.block import Block
from onnx_vulkan.engine.container import Reader, Writer
from onnx_vulkan.engine.options import Options
from onnx_vulkan.engine.stored_graph import graph_as_json, graph_from_json
from onnx_vulkan.errors import CompiledMismatch, ModelError, RefusedError, Unsupported
from onnx_vulkan.graph import Graph
from onnx_vulkan.plan.table import COMMAND, GUARD, IO, KEY, PATCH, RELOC, Op, PlanTables
from onnx_vulkan.program.fold import constant_name
from onnx_vulkan.versions import registered_version

__all__ = ["compiled_bytes", "open_compiled", "save_compiled"]

log = logging.getLogger("onnx_vulkan")

Json = Any

SETTINGS = ("precision", "guard_zones", "barrier_everywhere", "shadow")
"""Options that plans depend on, and whether they were chosen by tactics (those of then, whatever was measured since)."""
ARRAYS = {
    "commands": COMMAND, "keys": KEY, "inputs": IO, "outputs": IO, "relocs": RELOC, "patches": PATCH, "guards": GUARD,
    "output_dims": np.dtype("u4"), "code": np.dtype("i8"), "derived": np.dtype("u4"),
}  # fmt: skip
BYTES = ("push", "record", "host_keys")
NUMBERS = ("arena_size", "input_size", "output_size", "n_symbols")
BLOBS = ("push", "record")
"""Which blob of the tables the numbers 0 and 1 of ``PlanDraft.weight_places`` mean."""


# ------------------------------------------------------------------------------------------------------------------ saving


def save_compiled(block: Block, path: Path) -> str:
    """Write *block* with the plans that it has made so far; gives back a digest of what was written.

    Raises Unsupported for operators of the user's own, InvalidInput when the file cannot be written.
    """
    out = Writer()
    return out.save(_header(block, out), path)


def compiled_bytes(block: Block) -> bytes:
    """The content of :func:`save_compiled`'s file."""
    out = Writer()
    return out.bytes(_header(block, out))


def _header(block: Block, out: Writer) -> Json:
    for node in _nodes(block.graph):
        if registered_version(node.domain, node.op_type, 1 << 30):
            raise Unsupported(
                f"node {node.name!r} ({node.label}) is an operator that this program has registered: a compiled model could not "
                "tell when that changes"
            )
    drafts = [block.final_draft(request) for request in block.made()]
    shaders: dict[Shader, int] = {}
    constants: dict[str, Json] = {}
    plans = []
    for draft in drafts:
        tables, _ = draft.finish()
        if any(tables.commands["op"] == Op.COPY_ABSOLUTE):
            raise AssertionError("a plan copies from a weight by its handle, which does not outlive the process")
        blobs = {name: bytearray(getattr(tables, name)) for name in BYTES}
        places = []
        for which, at, value in draft.weight_places:
            name = constant_name(value)
            if name not in constants:
                assert value.data is not None
                constants[name] = [len(constants), out.add(value.data)]
            struct.pack_into("<Q", blobs[BLOBS[which]], at, 0)
            places.append((which, at, constants[name][0]))
        used = [shaders.setdefault(s, len(shaders)) for s in block.shaders(list(draft.wanted))]
        plans.append(
            {
                **{name: out.add(np.asarray(getattr(tables, name), dtype)) for name, dtype in ARRAYS.items()},
                **{name: out.add(bytes(blob)) for name, blob in blobs.items()},
                **{name: int(getattr(tables, name)) for name in NUMBERS},
                "weights": out.add(np.array(places, "u4").reshape(-1, 3)),
                "labels": list(tables.labels),
                "shaders": used,
            }
        )
    return {
        "identity": _identity(block.device, block.options, block.external),
        "graph": graph_as_json(block.graph, out),
        "plans": plans,
        "constants": {name: blob for name, (_, blob) in constants.items()},
        "shaders": [
            {
                "source": out.add(zlib.compress(s.source.encode())),
                "code": out.add(compiling.spirv(s.source)),
                **{f.name: getattr(s, f.name) for f in dataclasses.fields(Shader) if f.name not in ("source", "code")},
            }
            for s in shaders
        ],
        "pipelines": out.add(block.device.exported_pipelines(list(shaders))),
    }


def _nodes(graph: Graph) -> Iterator[Any]:
    yield from graph.nodes
    for body in graph.subgraphs():
        yield from _nodes(body)


# ----------------------------------------------------------------------------------------------------------------- loading


def open_compiled(
    source: Path | bytes, device: Device, options: Options, *, external: bool = False, where: str, digest: str | None = None
) -> Block:
    """The block of a compiled model; *where* names it in messages, *digest* is the one that it has to have.

    What was made for another device, driver, engine or setting is planned anew with a line in the log, or refused, as the
    option ``stale_compiled`` says. Raises ModelError for a file that is damaged or of another format, CompiledMismatch, or
    RefusedError for what this device cannot run.
    """
    reader = Reader(source, where)
    if digest is not None and reader.digest != digest:
        raise ModelError(
            f"{where} is not the compiled model that was written with this EPContext model. Compile the model again."
        )
    try:
        graph = graph_from_json(reader.header["graph"], reader)
        different = _differences(reader.header["identity"], _identity(device, options, external))
        if not different:
            return Block(graph, device, options, external=external, stored=StoredPlans(reader))
    except (KeyError, IndexError, TypeError, ValueError, struct.error, zlib.error) as e:
        raise ModelError(f"{where} cannot be read ({type(e).__name__}: {e}). Compile the model again.") from e
    reason = f"{where} cannot be used as it is: {'; '.join(different)}."
    if options.stale_compiled == "refuse":
        raise CompiledMismatch(f"{reason} Compile the model again on this device, or let stale_compiled=rebuild plan it anew.")
    log.warning("%s It is planned anew, which takes as long as without it; compile the model again to save that.", reason)
    reader.check_all()
    found = claims.partition(graph, features=device.info.features)
    if found.refusals:
        raise RefusedError(where, found.refusals)
    return Block(graph, device, options, external=external)


class StoredPlans:
    """The plans in a compiled model, for a block of its device, driver, engine and settings."""

    def __init__(self, reader: Reader):
        self.reader = reader

    def check(self) -> None:
        """Check what planning reads: the constants of the graph."""
        self.reader.check_all()

    def tables(self, block: Block) -> list[PlanTables]:
        """The plans, the one used last at the end, with pipelines and constants on the block's device."""
        header, blob = self.reader.header, self.reader.blob
        shaders = [
            Shader(**{**s, "source": _text(blob(s["source"])), "code": blob(s["code"]).tobytes(), "spec": tuple(s["spec"])})
            for s in header["shaders"]
        ]
        block.device.take_in_pipelines(blob(header["pipelines"]).tobytes())
        pipelines = block.lease.get(shaders)
        stored = header["constants"]
        with ThreadPoolExecutor(8, "onnx-vulkan-weights") as pool:
            memories = list(pool.map(lambda n: block.device.weights(blob(n)), stored.values()))
        block.weights.update(zip(stored, memories, strict=True))
        made = []
        for plan in header["plans"]:
            blobs = {name: bytearray(blob(plan[name])) for name in BYTES}
            for which, at, n in blob(plan["weights"]).view("u4").reshape(-1, 3).tolist():
                struct.pack_into("<Q", blobs[BLOBS[which]], at, memories[n].address)
            fields: dict[str, Any] = {name: blob(plan[name]).view(dtype) for name, dtype in ARRAYS.items()}
            fields |= {name: bytes(data) for name, data in blobs.items()} | {name: plan[name] for name in NUMBERS}
            made.append(PlanTables(**fields, labels=plan["labels"], pipelines=[pipelines[n] for n in plan["shaders"]]))
        return made


def _text(data: Any) -> str:
    return zlib.decompress(data.tobytes()).decode()


# ---------------------------------------------------------------------------------------------------------------- identity


def _identity(device: Device, options: Options, external: bool) -> Json:
    """All that plans and pipelines depend on besides the graph, as JSON gives it back."""
    info = device.info
    return json.loads(
        json.dumps(
            {
                "version": provenance.version(),
                "sources": provenance.source_digest(),
                "device": info.name,
                "model": f"{info.vendor_id:04x}:{info.device_id:04x}",  # of the GPU: its twins run what was made on it
                "uuid": info.uuid,
                "driver": info.driver,
                "driver_version": info.driver_version,
                "abilities": {
                    "features": sorted(info.features),
                    "limits": dataclasses.asdict(info.limits),
                    "direct_input": device.direct_input,
                },
                "settings": {
                    **{name: getattr(options, name) for name in SETTINGS},
                    "tactics": options.tactics or os.environ.get("ONNX_VULKAN_TACTICS") or "off",
                },
                "memory": "device" if external else "host",
            }
        )
    )


def _differences(then: Json, now: Json) -> list[str]:
    """What is not as it was, in clauses."""
    found = []
    if (then["version"], then["sources"]) != (now["version"], now["sources"]):
        made, ours = (f"onnx-vulkan {i['version']} (sources {i['sources']})" for i in (then, now))
        found.append(f"it was written by {made}, and this is {ours}")
    if (then["model"], then["device"]) != (now["model"], now["device"]):
        made, ours = (f"{i['device']} ({i['model']}, {i['uuid']})" for i in (then, now))
        found.append(f"it was compiled for {made}, and this device is {ours}")
    elif (then["driver"], then["driver_version"]) != (now["driver"], now["driver_version"]):
        made, ours = (f"{i['driver']} (version {i['driver_version']:#x})" for i in (then, now))
        found.append(f"it was compiled under the driver {made}, and now there is {ours}")
    elif then["abilities"] != now["abilities"]:
        found.append("the device's features or limits are not those of then")
    for name, value in now["settings"].items():
        if then["settings"][name] != value:
            found.append(f"it was compiled with {name}={then['settings'][name]}, and this session has {name}={value}")
    if then["memory"] != now["memory"]:
        found.append(f"it was compiled for values in {then['memory']} memory, and this session's are in {now['memory']} memory")
    return found
