"""Runs many models in many ways and says where an answer is wrong: a tool for bug hunts. No test lives here.

    uv run python tests/models/sweep.py [NAME-PATTERN ...] [--ways standalone,ep] [--rounds 2] [--heavy]

Models: the catalog's, and every tiny skeleton of ``tests/data``. Each way is one session that runs all of the model's feeds in
random order, some of them again and again, so that plans are found anew, dims are promoted to run-time dims and recordings are
replayed. Every output is compared with the CPU EP's, and bit by bit with what the same feeds gave before, in any standalone way.
"""

from __future__ import annotations

import argparse
import fnmatch
import random
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "data")]

import hydrate  # noqa: E402
import onnx_vulkan  # noqa: E402
import onnxruntime  # noqa: E402
import onnxruntime_ep_vulkan  # noqa: E402
from catalog import DATA, MADE_MODELS, MODELS, Array  # noqa: E402
from onnx_vulkan.engine.options import Options  # noqa: E402
from onnx_vulkan.errors import RefusedError  # noqa: E402
from onnx_vulkan.tolerance import FP16_MODEL, FP32_MODEL, Tolerance, tolerance_ratio  # noqa: E402
from reference import quiet_options  # noqa: E402

__all__ = ["WAYS", "Refused", "Subject", "subjects", "sweep"]

Feeds = dict[str, Array]
Run = Callable[[Feeds], dict[str, Array]]


class Refused(Exception):
    """The door does not run the model, and says why."""


@dataclass(frozen=True)
class Subject:
    """A model and what it is fed."""

    name: str
    path: Path
    feeds: Sequence[Feeds]
    tolerance: Tolerance


def subjects(patterns: Sequence[str] = (), heavy: bool = False) -> Iterator[Subject]:
    """The models whose names match a pattern (all without one): the catalog's, then the skeletons that it does not have."""

    def wanted(name: str) -> bool:
        return not patterns or any(fnmatch.fnmatch(name, p) for p in patterns)

    for model in MODELS:
        if wanted(model.name) and (heavy or not model.heavy):
            yield Subject(model.name, model.path(), [model.feeds(i) for i in range(len(model.tests))], model.tolerance)
    known = {model.name for model in MODELS}
    for name, entry in hydrate.load_catalog().items():
        if name.endswith("_tiny") and name not in known and wanted(name):
            if not entry["verified"]:
                continue  # ONNX Runtime's CPU EP does not run it
            feeds = [hydrate.make_inputs(entry, recipe) for recipe in entry["recipes"]]
            half = any(a.dtype == np.float16 for f in feeds for a in f.values())
            yield Subject(name, _made(name), feeds, FP16_MODEL if half else FP32_MODEL)


def _made(name: str) -> Path:
    path = MADE_MODELS / f"{name}.onnx"
    return path if path.is_file() else hydrate.hydrate(DATA / "skeletons" / f"{name}.onnx", MADE_MODELS)


def _standalone(path: Path, options: Options) -> Run:
    try:
        return onnx_vulkan.Session.load(path, options=options).run
    except RefusedError as error:
        raise Refused(str(error.refusals[0])) from None


def through_ort(path: Path, level: onnxruntime.GraphOptimizationLevel, provider: str, alone: bool = False) -> Run:
    """The model in ONNX Runtime. *alone*: nothing may stay on the CPU; Refused otherwise."""
    options = quiet_options()
    options.graph_optimization_level = level
    if alone:
        options.log_severity_level = 4
        options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    try:
        session = onnxruntime.InferenceSession(str(path), options, providers=[provider], enable_fallback=0)
    except Exception as error:
        if "default CPU EP" in str(error):
            raise Refused(str(error)) from None
        raise
    names = [output.name for output in session.get_outputs()]

    def run(feeds: Feeds) -> dict[str, Array]:
        return dict(zip(names, session.run(None, feeds), strict=True))

    run.session = session  # type: ignore[attr-defined]
    return run


_ALL = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
_NONE = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL

WAYS: Mapping[str, Callable[[Path], Run]] = {
    "standalone": lambda path: _standalone(path, Options()),
    "barriers": lambda path: _standalone(path, Options(barrier_everywhere=True)),
    "guards": lambda path: _standalone(path, Options(guard_zones=True)),
    "bound": lambda path: _standalone(path, Options(auto_runtime_dims=False)),
    "ep": lambda path: through_ort(path, _ALL, "VulkanEP", alone=True),
    "ep_raw": lambda path: through_ort(path, _NONE, "VulkanEP", alone=True),
    "ep_mixed": lambda path: through_ort(path, _ALL, "VulkanEP"),
}


def sweep(subject: Subject, ways: Sequence[str], rounds: int = 2, seed: int = 0) -> Iterator[tuple[str, str, float]]:
    """Yields (way, what is wrong or how it went, worst share of the tolerance)."""
    reference = through_ort(subject.path, _ALL, "CPUExecutionProvider")
    expected = [reference(dict(f)) for f in subject.feeds]
    first: dict[int, dict[str, Array]] = {}
    for way in ways:
        order = random.Random(seed).choices(range(len(subject.feeds)), k=len(subject.feeds) * rounds)
        order = [*range(len(subject.feeds)), *order]
        begun = time.perf_counter()
        worst, complaints = 0.0, []
        try:
            run = WAYS[way](subject.path)
            own = first if not way.startswith("ep") else {}
            for i in order:
                got = run(subject.feeds[i])
                for name, want in expected[i].items():
                    ratio = tolerance_ratio(got[name], want, subject.tolerance)
                    worst = max(worst, ratio)
                    if not ratio <= 1 and len(complaints) < 4:
                        complaints.append(f"case {i} {name}: {ratio:.3g} of the tolerance")
                    if i in own and not np.array_equal(got[name], own[i][name], equal_nan=want.dtype.kind == "f"):
                        complaints.append(f"case {i} {name}: other bits than before")
                own.setdefault(i, got)
            if hasattr(run, "session"):
                stats = onnxruntime_ep_vulkan.session_stats(run.session)
                extra = f"{stats.blocks} blocks of {stats.claimed_nodes}/{stats.offered_nodes} nodes, {stats.plans_made} plans"
            else:
                session = run.__self__  # type: ignore[attr-defined]
                extra = f"{session.stats()['plans_made']} plans"
                session.close()
            text = "WRONG " + "; ".join(complaints[:6]) if complaints else "ok"
            yield way, f"{text} ({extra}, {time.perf_counter() - begun:.1f} s)", worst
        except Refused as error:
            yield way, f"refused: {error}", 0.0
        except Exception:
            yield way, "WRONG " + traceback.format_exc(limit=-5), float("inf")


def main() -> int:
    """The command line; the status is 1 when something is wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--heavy", action="store_true")
    chosen = parser.parse_args()
    bad = 0
    for subject in subjects(chosen.names, chosen.heavy):
        for way, text, worst in sweep(subject, chosen.ways.split(","), chosen.rounds):
            bad += text.startswith("WRONG")
            print(f"{subject.name:34} {way:11} {worst:8.3g}  {text[:1500]}", flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
