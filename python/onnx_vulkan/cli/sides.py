"""The sides of ``onnx-vulkan run``: each is one way to run a model. They take turns, so that a slow phase hits all.

ONNX Runtime and the plug-in are imported here, by the side that needs them, and nowhere else in the command line.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnx_vulkan.dtypes import SMALL, DType
from onnx_vulkan.errors import DeviceError, InvalidInput, OnnxVulkanError
from onnx_vulkan.graph import Graph
from onnx_vulkan.packing import pack, unpack

__all__ = [
    "NothingClaimed",
    "Side",
    "cpu_side",
    "ep_side",
    "gpu_side",
    "ort_runner",
    "ort_session",
    "standalone_side",
    "take_turns",
]

Array = NDArray[Any]
Feeds = Mapping[str, Array]

_BEYOND_NUMPY = frozenset({DType.BF16, *SMALL})
_SIDE_SECONDS = 20.0
"""A side that has taken this long in total is not run again: a software driver may need seconds a run."""


class NothingClaimed(DeviceError):
    """ONNX Runtime runs no node of the model on Vulkan."""


@dataclass(slots=True)
class Side:
    """One way to run the model: ``run`` gives the outputs by name, ``facts`` what is known about the runs so far, ``blocks`` the
    engine's blocks (``engine.block.Block``)."""

    run: Callable[[], dict[str, Array]]
    facts: Callable[[], dict[str, Any]]
    device: str = ""
    times: list[float] = field(default_factory=list)
    outputs: dict[str, Array] = field(default_factory=dict)
    blocks: Callable[[], Sequence[Any]] = tuple

    def step(self) -> None:
        """One timed run."""
        start = time.perf_counter()
        self.outputs = self.run()
        self.times.append(time.perf_counter() - start)


def take_turns(sides: Sequence[Side], runs: int) -> None:
    """Run every side once to warm up, then *runs* times in turns; a slow side less often."""
    for side in sides:
        side.step()
    warm_up = [side.times.pop() for side in sides]
    for round_ in range(max(1, runs)):
        for side, first in zip(sides, warm_up, strict=True):
            if round_ == 0 or first + sum(side.times) < _SIDE_SECONDS:
                side.step()


def _onnxruntime() -> Any:
    try:
        import onnxruntime
    except ImportError as e:
        raise InvalidInput(
            f"comparing with the CPU needs ONNX Runtime, which cannot be imported ({e}): pip install onnxruntime"
        ) from None
    return onnxruntime


def ort_session(path: Path, what: str, data: bytes | None = None, **kwargs: Any) -> Any:
    """A session of ONNX Runtime's; *what* runs the model, for messages. *data*: a model to load in place of the file, with
    external data from beside it."""
    ort = _onnxruntime()
    options = ort.SessionOptions()
    options.log_severity_level = 4  # its warnings about the model's own shape hints are not about us, its errors are raised
    if data is not None:
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(path.parent))
    try:
        return ort.InferenceSession(str(path) if data is None else data, options, **kwargs)
    except Exception as e:  # ORT's exception classes have no common base
        raise OnnxVulkanError(f"{what} cannot load {path.name}: {_first_line(e)}") from e


def _first_line(e: Exception) -> str:
    text = str(e).strip().rpartition("Status Message: ")[2]  # what a node said, without where ONNX Runtime was told so
    lines = text.splitlines() or [type(e).__name__]
    return "\n".join(lines) if lines[0].endswith(":") else lines[0]  # a list follows


def _ort_value(array: Array) -> Any:
    """An OrtValue of any element type: ONNX Runtime's own conversion knows no bfloat16 and no small type."""
    ort = _onnxruntime()
    if array.dtype not in {t.numpy for t in _BEYOND_NUMPY}:
        return ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array).reshape(array.shape))
    value = ort.OrtValue.ortvalue_from_shape_and_type(list(array.shape), DType.of(array.dtype).value)
    data = pack(array)
    ctypes.memmove(value.data_ptr(), data.ctypes.data, data.nbytes)
    return value


def _ort_array(value: Any) -> Array:
    """The inverse of :func:`_ort_value`."""
    names = {f"tensor({t.onnx_name})": t for t in _BEYOND_NUMPY}
    dtype = names.get(value.data_type())
    if dtype is None:
        return np.asarray(value.numpy())
    count = int(np.prod(value.shape()))
    data = np.frombuffer(ctypes.string_at(value.data_ptr(), (count * dtype.bits + 7) // 8) if count else b"", np.uint8)
    return unpack(data, dtype, value.shape())


def ort_runner(session: Any, graph: Graph, feeds: Feeds, what: str) -> Callable[[], dict[str, Array]]:
    """What runs the session once, on values of any element type, and gives its outputs by name."""
    edges = [graph.types.get(name) for name in (*graph.inputs, *graph.outputs)]
    beyond = any(t is not None and t.dtype in _BEYOND_NUMPY for t in edges)

    def results() -> list[Array]:
        if not beyond:
            return list(session.run(graph.outputs, dict(feeds)))
        values = {name: _ort_value(array) for name, array in feeds.items()}
        return [_ort_array(value) for value in session.run_with_ort_values(graph.outputs, values)]

    def step() -> dict[str, Array]:
        try:
            return dict(zip(graph.outputs, results(), strict=True))
        except Exception as e:
            raise OnnxVulkanError(f"{what} failed: {_first_line(e)}") from e

    return step


def cpu_side(path: Path, graph: Graph, feeds: Feeds, data: bytes | None = None) -> Side:
    """The model on ONNX Runtime's CPU EP: the reference. *data* is as for :func:`ort_session`, here and below."""
    session = ort_session(path, "ONNX Runtime's CPU EP", data, providers=["CPUExecutionProvider"])
    return Side(ort_runner(session, graph, feeds, "ONNX Runtime's CPU EP"), dict)


def ep_side(path: Path, graph: Graph, feeds: Feeds, options: Mapping[str, str], data: bytes | None = None) -> Side:
    """The model through ONNX Runtime and the plug-in."""
    import onnxruntime_ep_vulkan as ep

    session = ort_session(path, "VulkanEP", data, providers=[("VulkanEP", dict(options))], enable_fallback=0)
    # Raises where ORT quietly made a session without us, or we claimed nothing.
    runner = ort_runner(session, graph, feeds, "VulkanEP")
    outputs = runner()
    try:
        first = ep.assert_on_vulkan(session)
    except AssertionError as e:
        raise NothingClaimed(str(e)) from None

    def facts() -> dict[str, Any]:
        now = ep.session_stats(session)
        per_run = max(1, now.runs // max(1, now.blocks) - 1)
        return {
            "blocks": now.blocks,
            "claimed": now.claimed_nodes,
            "offered": now.offered_nodes,
            "dispatches": (now.dispatches - first.dispatches) // per_run,
            "plans": now.plans_made,
        }

    return Side(runner, facts, first.device, outputs=outputs, blocks=lambda: ep.session_blocks(session))


def gpu_side(door: str, path: Path, graph: Graph, feeds: Feeds, options: Mapping[str, str], data: bytes | None = None) -> Side:
    """The model on Vulkan; *door* is ``ep`` or ``standalone``."""
    return (ep_side if door == "ep" else standalone_side)(path, graph, feeds, options, data)


def standalone_side(path: Path, graph: Graph, feeds: Feeds, options: Mapping[str, str], data: bytes | None = None) -> Side:
    """The model in the standalone engine."""
    import onnx_vulkan

    session: Any = onnx_vulkan.Session.load(path if data is None else data, options=options, base_dir=path.parent)

    def facts() -> dict[str, Any]:
        stats = session.stats()
        dispatches = stats.get("dispatches", 0) // max(1, stats.get("runs", 1))
        return {"blocks": 1, "claimed": len(graph.nodes), "dispatches": dispatches, "plans": stats.get("plans_made")}

    return Side(lambda: dict(session.run(dict(feeds))), facts, session.device.info.name, blocks=lambda: [session.block])
