"""One case through one door, and what came of it."""

from __future__ import annotations

import ctypes
import enum
import json
import os
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx_vulkan
import onnxruntime
import onnxruntime_ep_vulkan
from onnx_cases import Array, Case
from onnx_vulkan import claims, frontend
from onnx_vulkan.dims import Scope, evaluate
from onnx_vulkan.dtypes import SMALL, DType
from onnx_vulkan.engine.structure import name_dims
from onnx_vulkan.errors import RefusedError
from onnx_vulkan.graph import Graph
from onnx_vulkan.lower import lower_graph
from onnx_vulkan.lower.driver import HOST_INPUT_LIMIT
from onnx_vulkan.packing import from_storage, pack, to_storage, unpack
from onnx_vulkan.program.interp import interpret
from onnx_vulkan.tolerance import worst_ratio

__all__ = ["DOORS", "Outcome", "Verdict", "attempt"]

UNKNOWN_TO_NUMPY = {t.onnx_name: t for t in (DType.BF16, *SMALL)}

Run = Callable[[Mapping[str, Array]], list[Array]]


class Verdict(enum.Enum):
    """PASSED; REFUSED at load with a check and a reason; WRONG is everything else, a crash and a strange error included."""

    PASSED = "passed"
    REFUSED = "refused"
    WRONG = "wrong"


@dataclass(frozen=True)
class Outcome:
    """The verdict; for a refusal the check that refused (``onnxruntime``: it is ORT that cannot), and the reason in words."""

    verdict: Verdict
    check: str = ""
    reason: str = ""


def attempt(case: Case, door: str) -> Outcome:
    """Run *case* through *door* (of ``DOORS``) on all of its data."""
    return DOORS[door](case)


def _refused(op_type: str, check: str, reason: str) -> Outcome:
    """The first refusal as a verdict; the reason names the operator."""
    return Outcome(Verdict.REFUSED, check, reason if op_type in reason else f"{op_type}: {reason}")


def _wrong(stage: str) -> Outcome:
    """The exception being handled as a verdict."""
    return Outcome(Verdict.WRONG, "", f"{stage}: {traceback.format_exc(limit=-4)}")


# --------------------------------------------------------------------------------------------------------------- doors


def _interp(case: Case) -> Outcome:
    """Claimed, lowered for each set of data and interpreted in numpy: no device, no ORT."""
    try:
        graph = frontend.load(case.model)
        found = claims.partition(graph)
    except Exception:
        return _wrong("load")
    if found.refusals:
        return _refused(found.refusals[0].op_type, found.refusals[0].check, found.refusals[0].reason)
    return _compared(case, lambda feeds: _interpreted(graph, feeds))


def _interpreted(graph: Graph, feeds: Mapping[str, Array]) -> list[Array]:
    feeds = {name: feeds[name] if name in feeds else np.asarray(graph.defaults[name]) for name in graph.inputs}
    shapes, numbers = name_dims(graph, {name: a.shape for name, a in feeds.items()})
    small = {name: a for name, a in feeds.items() if a.size <= HOST_INPUT_LIMIT}
    with Scope(numbers):
        lowered = lower_graph(graph, shapes, small)
        outputs = interpret(lowered.program, {name: to_storage(a) for name, a in feeds.items()}, numbers)
        made = zip(outputs, lowered.outputs, strict=True)
        return [from_storage(a, t.dtype, [evaluate(e, numbers) for e in t.shape or ()]) if t.dtype else a for a, t in made]


def _standalone(case: Case) -> Outcome:
    try:
        session = onnx_vulkan.Session.load(case.model)
    except RefusedError as error:
        return _refused(error.refusals[0].op_type, error.refusals[0].check, error.refusals[0].reason)
    except Exception:
        return _wrong("load")

    def run(feeds: Mapping[str, Array]) -> list[Array]:
        return list(session.run({k: v for k, v in feeds.items() if k in session.graph.inputs}).values())

    with session:
        return _compared(case, run)


def _ep(case: Case) -> Outcome:
    """Through ORT without its CPU EP. What ORT computes at load already is asked for again without its optimizer."""
    outcome, nodes = _through_ort(case, onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL)
    if outcome.verdict is Verdict.PASSED and not nodes:
        outcome, nodes = _through_ort(case, onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL)
    if outcome.verdict is Verdict.PASSED and not nodes:
        return Outcome(Verdict.REFUSED, "onnxruntime", "ONNX Runtime makes a constant of it and leaves nothing to run.")
    return outcome


def _through_ort(case: Case, level: onnxruntime.GraphOptimizationLevel) -> tuple[Outcome, int]:
    """The outcome, and how many nodes ran on Vulkan."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = level
    options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    with _claim_log() as log:
        try:
            session = onnxruntime.InferenceSession(case.model, options, providers=["VulkanEP"], enable_fallback=0)
        except Exception as error:
            return _not_loaded(case, str(error), log), 0
    names = {i.name for i in session.get_inputs()}
    outcome = _compared(case, lambda feeds: run_with_values(session, {k: v for k, v in feeds.items() if k in names}))
    return outcome, onnxruntime_ep_vulkan.session_stats(session).claimed_nodes


@contextmanager
def _claim_log() -> Iterator[Path]:
    """The file to which the claims made inside write why each node was refused."""
    before = os.environ.get("ONNX_VULKAN_CLAIM_LOG")
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "claims.jsonl"
        os.environ["ONNX_VULKAN_CLAIM_LOG"] = str(log)
        try:
            yield log
        finally:
            if before is None:
                del os.environ["ONNX_VULKAN_CLAIM_LOG"]
            else:
                os.environ["ONNX_VULKAN_CLAIM_LOG"] = before


def _not_loaded(case: Case, said: str, log: Path) -> Outcome:
    """Why ORT made no session: our refusal, or its own limits, or a fault."""
    entries = [json.loads(line) for line in log.read_text().splitlines()] if log.is_file() else []
    refused = [e for e in entries if not e["claimed"] and e["domain"] != "VulkanEP"]
    refused.sort(key=lambda e: e["check"] == "cost")  # what a block costs only matters because another node was refused
    if refused and ("default CPU EP" in said or "Could not find an implementation" in said):
        return _refused(refused[0]["op_type"], refused[0]["check"], refused[0]["reason"])
    if "VulkanEP:" in said or _cpu_session(case) is not None:
        return Outcome(Verdict.WRONG, "", f"load: {said}")
    return Outcome(Verdict.REFUSED, "onnxruntime", f"ONNX Runtime cannot load it: {said}")


DOORS: dict[str, Callable[[Case], Outcome]] = {"interp": _interp, "standalone": _standalone, "ep": _ep}
"""The interpreter; the standalone engine on the device; ORT with VulkanEP and no other provider."""


# --------------------------------------------------------------------------------------------------------------- comparing


def _compared(case: Case, run: Run) -> Outcome:
    """Run all data and compare."""
    if not case.tensors:
        return Outcome(Verdict.WRONG, "", "it loads, though not all of its values are tensors")
    for feeds, expected in case.data:
        try:
            got = run(feeds)
        except Exception:
            return _wrong("run")
        found = difference(case, got, expected)
        if found and not _as_on_the_cpu(case, feeds, got):
            return Outcome(Verdict.WRONG, "", found)
    return Outcome(Verdict.PASSED)


def _as_on_the_cpu(case: Case, feeds: Mapping[str, Array], got: list[Array]) -> bool:
    """Whether ONNX Runtime's CPU EP gives the same: it reads a few formulas (``align_corners``) otherwise than ONNX's numbers."""
    session = _cpu_session(case)
    return session is not None and not difference(case, got, run_with_values(session, feeds))


def _cpu_session(case: Case) -> onnxruntime.InferenceSession | None:
    """The model on the CPU EP, where that can run it."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        return onnxruntime.InferenceSession(case.model, options, providers=["CPUExecutionProvider"])
    except Exception:
        return None


def run_with_values(session: onnxruntime.InferenceSession, feeds: Mapping[str, Array]) -> list[Array]:
    """Run on arrays of any element type: ONNX Runtime's own conversion from and to numpy knows no bfloat16 and no small type."""
    values = {name: _ort_value(array) for name, array in feeds.items()}
    wanted = [output.name for output in session.get_outputs()]
    return [_array(value) for value in session.run_with_ort_values(wanted, values)]


def _ort_value(array: Array) -> onnxruntime.OrtValue:
    dtype = DType.of(array.dtype) if array.dtype.kind != "O" else None
    if dtype is None or not (dtype is DType.BF16 or dtype in SMALL):
        return onnxruntime.OrtValue.ortvalue_from_numpy(np.asarray(array, order="C"))
    value = onnxruntime.OrtValue.ortvalue_from_shape_and_type(array.shape, dtype.value)
    data = pack(array) if dtype in SMALL else np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    ctypes.memmove(value.data_ptr(), data.ctypes.data, data.size)
    return value


def _array(value: onnxruntime.OrtValue) -> Array:
    dtype = UNKNOWN_TO_NUMPY.get(value.data_type().removeprefix("tensor(").removesuffix(")"))
    if dtype is None:
        return value.numpy()
    shape = tuple(value.shape())
    size = (int(np.prod(shape)) * dtype.bits + 7) // 8
    data = np.array((ctypes.c_uint8 * size).from_address(value.data_ptr()) if size else [], np.uint8)
    return unpack(data, dtype, shape)


def difference(case: Case, got: list[Array], expected: list[Array]) -> str:
    """What is wrong with the outputs, or nothing."""
    if len(got) != len(expected):
        return f"{len(got)} outputs, expected {len(expected)}"
    for i, (a, b) in enumerate(zip(got, expected, strict=True)):
        if (a.dtype, a.shape) != (b.dtype, b.shape):
            return f"output {i} is {a.dtype}{a.shape}, expected {b.dtype}{b.shape}"
        half = a.dtype.itemsize == 2 and a.dtype.kind not in "iu"
        ratio = worst_ratio(a, b, 1e-2 if half else max(case.atol, 1e-6), 1e-2 if half else max(case.rtol, 1e-3))
        if not ratio <= 1:
            return f"output {i} is {ratio:.3g} times the tolerance away: {_few(a)} expected {_few(b)}"
    return ""


def _few(a: Array) -> str:
    return np.array2string(a.reshape(-1)[:6], precision=4)
