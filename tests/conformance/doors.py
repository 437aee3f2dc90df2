"""One case through one door, and what came of it."""

from __future__ import annotations

import ctypes
import enum
import traceback
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx_vulkan
import onnxruntime
import onnxruntime_ep_vulkan
from onnx_cases import Array, Case
from onnx_vulkan.dtypes import SMALL, DType
from onnx_vulkan.engine.options import Options
from onnx_vulkan.errors import RefusedError
from onnx_vulkan.packing import pack, unpack
from onnx_vulkan.tolerance import worst_ratio

__all__ = ["DOORS", "Outcome", "Verdict", "attempt"]

UNKNOWN_TO_NUMPY = {t.onnx_name: t for t in (DType.BF16, *SMALL)}

DOORS = ("standalone", "ep")


class Verdict(enum.Enum):
    """PASSED; REFUSED at load with a sentence; UNREADABLE: ONNX Runtime cannot load the model; WRONG is everything else."""

    PASSED = "passed"
    REFUSED = "refused"
    UNREADABLE = "unreadable"
    WRONG = "wrong"


@dataclass(frozen=True)
class Outcome:
    """The verdict and the sentence that goes with it."""

    verdict: Verdict
    text: str = ""


def attempt(case: Case, door: str, options: Options | None = None) -> Outcome:
    """Run *case* through *door* on all of its data."""
    if not case.tensors:
        return Outcome(Verdict.REFUSED, "not all values are tensors")
    return _standalone(case, options) if door == "standalone" else _ep(case)


def _standalone(case: Case, options: Options | None) -> Outcome:
    try:
        session = onnx_vulkan.Session.load(case.model, options=options)
    except RefusedError as error:
        return Outcome(Verdict.REFUSED, str(error))
    except Exception:
        return Outcome(Verdict.WRONG, "load: " + traceback.format_exc(limit=-4))
    with session:
        for feeds, expected in case.data:
            try:
                got = list(session.run({k: v for k, v in feeds.items() if k in session.graph.inputs}).values())
            except Exception:
                return Outcome(Verdict.WRONG, "run: " + traceback.format_exc(limit=-4))
            found = difference(case, got, expected)
            if found and not _as_on_the_cpu(case, feeds, got):
                return Outcome(Verdict.WRONG, found)
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


def _ep(case: Case) -> Outcome:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    try:
        session = onnxruntime.InferenceSession(case.model, options, providers=["VulkanEP"], enable_fallback=0)
    except Exception as error:
        if "default CPU EP" in str(error) or "Could not find an implementation" in str(error):
            return Outcome(Verdict.REFUSED, str(error))
        verdict = Verdict.WRONG if _cpu_session(case) else Verdict.UNREADABLE
        return Outcome(verdict, f"load: {type(error).__name__}: {error}")
    names = {i.name for i in session.get_inputs()}
    for feeds, expected in case.data:
        try:
            got = run_with_values(session, {k: v for k, v in feeds.items() if k in names})
        except Exception as error:
            return Outcome(Verdict.WRONG, f"run: {type(error).__name__}: {error}")
        found = difference(case, got, expected)
        if found and not _as_on_the_cpu(case, feeds, got):
            return Outcome(Verdict.WRONG, found)
    if not onnxruntime_ep_vulkan.session_stats(session).claimed_nodes:
        return Outcome(Verdict.REFUSED, "ONNX Runtime left nothing to run")
    return Outcome(Verdict.PASSED)


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
