"""What comes of a random model: claimed and right, refused with a reason, not valid, or wrong. No test lives here."""

from __future__ import annotations

import enum
import re
import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_vulkan
import onnxruntime
import onnxruntime_ep_vulkan
import run_case
from disagreements import KNOWN
from doors import run_with_values
from onnx.reference import ReferenceEvaluator
from onnx_vulkan import claims
from onnx_vulkan.dtypes import DType
from onnx_vulkan.engine.options import Options
from onnx_vulkan.errors import OnnxVulkanError, RefusedError, Unsupported
from onnx_vulkan.graph import Array
from onnx_vulkan.tolerance import EXACT, Tolerance, compare
from random_model import ModelCase

__all__ = ["Judged", "Verdict", "compare_doors", "judge", "on_cpu"]

TOLERANCES = {
    DType.F64: Tolerance(1e-9, 1e-9, of_max=1e-9),
    DType.F32: Tolerance(1e-5, 1e-4, of_max=2e-5),
    DType.F16: Tolerance(2e-3, 4e-3, of_max=4e-3),
    DType.BF16: Tolerance(1e-2, 2e-2, of_max=2e-2),
}

IN_FLOAT32 = re.compile(r"(Group|Layer|RMS|SimplifiedLayer)Normalization")
"""Operators whose first stage is float32 by the specification (``stash_type``), whatever the tensors are."""

onnxruntime.set_default_logger_severity(4)

Answer = list[Array] | None
Run = Callable[[dict[str, Array]], list[Array]]


class Verdict(enum.Enum):
    """AGREES with the judge that is named; REFUSED at load with a reason; INVALID: nobody runs it; WRONG is everything else."""

    AGREES = "agrees"
    REFUSED = "refused"
    INVALID = "invalid"
    WRONG = "wrong"


@dataclass(frozen=True)
class Judged:
    """The verdict, and who judged it (cpu, reference, interpreter) or what is wrong."""

    verdict: Verdict
    text: str = ""


class _Cpu:
    """The model on ONNX Runtime's CPU EP."""

    def __init__(self, case: ModelCase):
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads = 1
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        self.session = None
        if case.doubtful:
            return
        try:
            self.session = onnxruntime.InferenceSession(
                case.model.SerializeToString(), options, providers=["CPUExecutionProvider"], enable_fallback=0
            )
        except Exception:
            return

    def run(self, feeds: dict[str, Array]) -> Answer:
        if self.session is None:
            return None
        try:
            return run_with_values(self.session, feeds)
        except Exception:
            return None


def on_cpu(case: ModelCase) -> Answer:
    """What the CPU EP gives, else ONNX's reference; None where neither runs it, or is known to follow the specification."""
    for name, answer in (("cpu", _Cpu(case).run), ("reference", lambda feeds: _reference(case, feeds))):
        found = None if _known(case, name) else answer(case.feeds)
        if found is not None:
            return found
    return None


def _reference(case: ModelCase, feeds: dict[str, Array]) -> Answer:
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            outputs = ReferenceEvaluator(case.model).run(None, feeds)
    except Exception:
        return None
    return [np.asarray(a) for a in outputs] if all(isinstance(a, (np.ndarray, np.generic)) for a in outputs) else None


def _interpreted(case: ModelCase, feeds: dict[str, Array]) -> Answer:
    graph = run_case.graph_of(case.model)
    with np.errstate(all="ignore"):
        return run_case.run(graph, {n: feeds[n] for n in graph.inputs})


def compare_doors(cases: Sequence[ModelCase]) -> str | None:
    """What differs, bit by bit, between the standalone engine and the EP; None where one of them does not run the model."""
    try:
        standalone, close = _open(cases[0], "standalone")
    except OnnxVulkanError:
        return None
    try:
        ep, _ = _open(cases[0], "ep")
        for case in cases:
            for i, (a, b) in enumerate(zip(standalone(case.feeds), ep(case.feeds), strict=True)):
                if (a.dtype, a.shape, a.tobytes()) != (b.dtype, b.shape, b.tobytes()):
                    return f"output {i}: {_worst(a, b)}" if a.shape == b.shape else f"output {i}: {a.shape} and {b.shape}"
    except (_NotForUs, OnnxVulkanError):
        return None
    finally:
        close()
    return ""


def judge(cases: Sequence[ModelCase], door: str = "standalone") -> Judged:
    """Load the model that *cases* share through *door* (standalone, ep, interpreter), run all of their feeds, and compare."""
    first = cases[0]
    try:
        run, close = _open(first, door)
    except RefusedError as error:
        return _reasons(error, first)
    except _NotForUs as error:
        return Judged(Verdict.REFUSED, str(error))
    except OnnxVulkanError as error:
        valid = _Cpu(first).run(first.feeds) is not None
        return Judged(Verdict.WRONG if valid else Verdict.INVALID, f"load: {error}")
    except Exception:
        return Judged(Verdict.WRONG, "load: " + traceback.format_exc(limit=-5))
    try:
        cpu = _Cpu(first)
        found = [_judged(case, run, cpu) for case in cases]
    finally:
        close()
    for verdict in (Verdict.WRONG, Verdict.AGREES):
        for judged in found:
            if judged.verdict is verdict:
                return judged
    return found[0]


class _NotForUs(Exception):
    """ONNX Runtime does not load it, or does not leave all of it to Vulkan."""


def _open(case: ModelCase, door: str) -> tuple[Run, Callable[[], None]]:
    model = case.model.SerializeToString()
    if door == "interpreter":
        graph = run_case.graph_of(case.model)
        refusals = claims.partition(graph).refusals
        if refusals:
            raise RefusedError("random", refusals)
        return lambda feeds: _interpreted(case, feeds) or [], lambda: None
    if door == "standalone":
        session = onnx_vulkan.Session.load(model, options=Options(compile_ahead="off"))
        return lambda feeds: list(session.run(feeds).values()), session.close
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    onnxruntime_ep_vulkan.register()
    try:
        session = onnxruntime.InferenceSession(model, options, providers=["VulkanEP"], enable_fallback=0)
    except Exception as error:
        if "default CPU EP" in str(error) or "Could not find an implementation" in str(error) or _Cpu(case).session is None:
            raise _NotForUs(str(error)) from None
        raise
    return lambda feeds: run_with_values(session, feeds), lambda: None


def _reasons(error: RefusedError, case: ModelCase) -> Judged:
    """A refusal, when each of its reasons is a sentence. A model that nobody runs may trip a lowering."""
    for r in error.refusals:
        if "internal error" in r.reason and on_cpu(case) is None:
            return Judged(Verdict.INVALID, r.reason)
        if r.check not in ("opset", "dtype", "kernel") or len(r.reason.split()) < 3 or "internal error" in r.reason:
            return Judged(Verdict.WRONG, f"a refusal without a good reason: {r}")
    return Judged(Verdict.REFUSED, "; ".join(f"{r.op_type} ({r.check}): {r.reason}" for r in error.refusals))


def _judged(case: ModelCase, run: Run, cpu: _Cpu) -> Judged:
    try:
        with np.errstate(all="ignore"):
            got = run(case.feeds)
    except Exception as error:
        expected = cpu.run(case.feeds)
        if expected is None and isinstance(error, OnnxVulkanError) and not _known(case, "reference"):
            expected = _reference(case, case.feeds)
        if expected is None and (isinstance(error, OnnxVulkanError) or "InvalidArgument" in type(error).__name__):
            return Judged(Verdict.INVALID, str(error))
        word = "claimed, and refused by the run" if isinstance(error, Unsupported) else "run"
        return Judged(Verdict.WRONG, f"{word}: " + traceback.format_exc(limit=-4))
    if case.expected is not None:
        wrong = difference(case, got, case.expected)
        return Judged(Verdict.WRONG, wrong + "\n" + _other_opinions(case, got)) if wrong else Judged(Verdict.AGREES, "its nodes")
    for name, judge_ in (("cpu", cpu.run), ("reference", lambda feeds: _reference(case, feeds))):
        expected = judge_(case.feeds)
        if expected is None:
            continue
        wrong = difference(case, got, expected)
        if not wrong:
            return Judged(Verdict.AGREES, name)
        if not _known(case, name):
            return Judged(Verdict.WRONG, f"{name}: {wrong}\n" + _other_opinions(case, got))
    try:
        expected = _interpreted(case, case.feeds)
    except RefusedError as error:  # what ONNX Runtime decomposes before the EP sees it
        return Judged(Verdict.INVALID, str(error))
    wrong = difference(case, got, expected or [])
    return Judged(Verdict.WRONG, f"interpreter: {wrong}") if wrong else Judged(Verdict.AGREES, "interpreter")


def _known(case: ModelCase, judge_: str) -> bool:
    """Whether that judge is known not to follow the specification here."""
    return any(k.judge == judge_ and re.search(k.pattern, case.label) for k in KNOWN)


def _other_opinions(case: ModelCase, got: list[Array]) -> str:
    """What the judges that were not asked say, for whoever looks into it."""
    words = []
    for name, answer in (("reference", _reference), ("interpreter", _interpreted)):
        try:
            expected = answer(case, case.feeds)
        except Exception as error:
            words.append(f"  {name}: {type(error).__name__}: {error}")
            continue
        words.append(f"  {name}: " + ("cannot run it" if expected is None else difference(case, got, expected) or "agrees"))
    return "\n".join(words)


def difference(case: ModelCase, got: list[Array], expected: list[Array]) -> str:
    """What is wrong with the outputs, or nothing."""
    if len(got) != len(expected):
        return f"{len(got)} outputs, expected {len(expected)}"
    named = {t for t in TOLERANCES if re.search(rf"\b{t.onnx_name}\[", case.label)}
    coarse = [*named, *(t for t in (DType.of(b.dtype) for b in expected) if t.is_float)]
    if IN_FLOAT32.search(case.label):
        coarse.append(DType.F32)
    for i, (a, b) in enumerate(zip(got, expected, strict=True)):
        if (a.dtype, a.shape) != (b.dtype, b.shape):
            return f"output {i} is {a.dtype}{a.shape}, expected {b.dtype}{b.shape}"
        tolerance = TOLERANCES.get(DType.of(b.dtype), EXACT)
        if coarse and DType.of(b.dtype) in TOLERANCES:
            tolerance = max((tolerance, *(TOLERANCES[t] for t in coarse)), key=lambda t: t.rtol)
        with np.errstate(all="ignore"):
            ratio = compare(a, b, tolerance).ratio
        if not ratio <= 1:
            bad = _worst(a, b)
            return f"output {i} {a.dtype}{a.shape} is {ratio:.3g} times the tolerance away: {bad}"
    return ""


def _worst(a: Array, b: Array) -> str:
    with np.errstate(all="ignore"):
        x, y = a.astype(np.float64).reshape(-1), b.astype(np.float64).reshape(-1)
        away = np.abs(x - y)
        away = np.where(np.isnan(x) & np.isnan(y) | (x == y), 0, np.where(np.isnan(away), np.inf, away))
    worst = np.argsort(-away)[:4]
    return ", ".join(f"[{i}] {a.reshape(-1)[i]} for {b.reshape(-1)[i]}" for i in worst)
