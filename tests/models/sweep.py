"""Runs many models in many ways and says where an answer is wrong: a tool for bug hunts. No test lives here.

    uv run python tests/models/sweep.py [NAME-PATTERN ...] [--ways standalone,ep] [--shapes 3] [--heavy]

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
from functools import lru_cache
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "data")]

import hydrate  # noqa: E402
import onnx_vulkan  # noqa: E402
import onnxruntime  # noqa: E402
import onnxruntime_ep_vulkan  # noqa: E402
from catalog import MODELS, Array, made_skeleton  # noqa: E402
from onnx_vulkan.dims import Dim  # noqa: E402
from onnx_vulkan.engine.options import Options  # noqa: E402
from onnx_vulkan.errors import RefusedError  # noqa: E402
from onnx_vulkan.frontend import load  # noqa: E402
from onnx_vulkan.tolerance import FP16_MODEL, FP32_MODEL, Tolerance, tolerance_ratio  # noqa: E402
from reference import interpret_file, quiet_options  # noqa: E402

__all__ = ["WAYS", "Refused", "Subject", "names", "subjects", "sweep"]

Feeds = dict[str, Array]
Run = Callable[[Feeds], dict[str, Array]]


KEEP = {"island": "keep"}
"""Options with which also small blocks between CPU nodes are ours."""
_INT4_LEVEL_4 = Tolerance(5e-2, 5e-2)
"""ONNX Runtime rounds activations to 8 bits in these models: norm weights that differ by 1e-7 move logits by 0.04 there."""


class Refused(Exception):
    """The door does not run the model, and says why."""


@dataclass(frozen=True)
class Subject:
    """A model and what it is fed."""

    name: str
    path: Path
    feeds: Sequence[Feeds]
    tolerance: Tolerance
    whole: bool = True

    def dynamic(self, feeds: Sequence[Feeds]) -> bool:
        """Whether any two of *feeds* differ in shape."""
        return len({tuple(sorted((n, a.shape) for n, a in f.items())) for f in feeds}) > 1


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
            if not entry["verified"] or "ringcache" in name:
                continue  # ONNX Runtime's CPU EP does not run it, or leaves rows of its outputs unwritten
            feeds = [hydrate.make_inputs(entry, recipe) for recipe in entry["recipes"]]
            half = any(a.dtype == np.float16 for f in feeds for a in f.values())
            tolerance = _INT4_LEVEL_4 if "int4" in name else FP16_MODEL if half else FP32_MODEL
            yield Subject(name, made_skeleton(name), feeds, tolerance, "int4" not in name and "qwen" not in name)


def names(heavy: bool = False) -> list[str]:
    """The names that :func:`subjects` knows."""
    known = [model.name for model in MODELS if heavy or not model.heavy]
    skeletons = [n for n, e in hydrate.load_catalog().items() if n.endswith("_tiny") and e["verified"] and "ringcache" not in n]
    return [*known, *(n for n in skeletons if n not in known)]


def stretched(subject: Subject, count: int, seed: int = 0) -> list[Feeds]:
    """*count* more feeds of other shapes: each dim that the model names takes another extent, on every axis of that name.

    Elements are the subject's own, repeated or left out. Images take multiples of 32; a mask is as long as cache and tokens.
    """
    source = max(subject.feeds, key=lambda f: sum(a.size for a in f.values()) * all(a.size for a in f.values()))
    graph = load(subject.path)
    axes = {n: [str(e) if isinstance(e, Dim) else "" for e in graph.types[n].shape or ()] for n in source}
    images = {e for n, es in axes.items() if len(es) == 4 and "past" not in n for e in es[2:] if e}
    chosen, rng = [], random.Random(seed)
    for _ in range(count):
        extents: dict[str, int] = {}
        for n, array in source.items():
            for e, old in zip(axes[n], array.shape, strict=True):
                if e and e not in extents:
                    extents[e] = 32 * rng.randint(1, 3) if e in images else rng.randint(1, 4 if old < 5 else old + old // 4)
        if {"past_sequence", "sequence", "total_sequence"} <= set(extents):
            extents["total_sequence"] = extents["past_sequence"] + extents["sequence"]
        made = {}
        for n, array in source.items():
            for axis, e in enumerate(axes[n]):
                if e:
                    array = array.take(np.arange(extents[e]) % array.shape[axis], axis)
            made[n] = array
        chosen.append(made)
    return chosen


def _standalone(path: Path, options: Options) -> Run:
    try:
        return onnx_vulkan.Session.load(path, options=options).run
    except RefusedError as error:
        raise Refused(str(error.refusals[0])) from None


def through_ort(
    path: Path, level: onnxruntime.GraphOptimizationLevel, provider: str, alone: bool = False, memory: str = ""
) -> Run:
    """The model in ONNX Runtime. *alone*: nothing may stay on the CPU; Refused otherwise. *memory*: which of our devices."""
    options = quiet_options()
    options.graph_optimization_level = level
    if memory:
        devices = [d for d in onnxruntime.get_ep_devices() if d.ep_name == provider and d.ep_metadata["memory"] == memory]
        options.add_provider_for_devices(devices[:1], KEEP)
    if alone:
        options.log_severity_level = 4
        options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    try:
        providers = None if memory else [(provider, KEEP if provider == "VulkanEP" else {})]
        session = onnxruntime.InferenceSession(str(path), options, providers=providers, enable_fallback=0)
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
    "ahead": lambda path: _standalone(path, Options(compile_ahead="on")),
    "ep": lambda path: through_ort(path, _ALL, "VulkanEP", alone=True),
    "ep_raw": lambda path: through_ort(path, _NONE, "VulkanEP", alone=True),
    "ep_device": lambda path: through_ort(path, _ALL, "VulkanEP", memory="device"),
    "ep_mixed": lambda path: through_ort(path, _ALL, "VulkanEP"),
}


SAME_BITS = ("standalone", "barriers", "guards")
"""Ways that make the same plans, and so have to give the same bits run by run."""


def sweep(
    subject: Subject, ways: Sequence[str], rounds: int = 2, shapes: int = 3, seed: int = 0
) -> Iterator[tuple[str, str, float]]:
    """Yields (way, what is wrong or how it went, worst share of the tolerance)."""
    reference = through_ort(subject.path, _ALL, "CPUExecutionProvider")
    feeds, expected = [], []
    for i, given in enumerate([*subject.feeds, *stretched(subject, shapes, seed)]):
        try:
            expected.append(reference(given))
            feeds.append(given)
        except Exception:
            if i < len(subject.feeds):
                raise
    if not subject.dynamic(feeds):
        feeds, expected = feeds[:1], expected[:1]
    order = [*range(len(feeds)), *random.Random(seed).choices(range(len(feeds)), k=len(feeds) * rounds)]
    before: list[dict[str, Array]] = []  # what each run gave in the way that is the reference for bits
    exact = lru_cache(lambda i: dict(zip(expected[i], interpret_file(subject.path, feeds[i], float64=True), strict=True)))
    for way in ways:
        begun = time.perf_counter()
        worst, complaints, results = 0.0, [], []
        try:
            run = WAYS[way](subject.path)
            for i in order:
                got, again = run(feeds[i]), run(feeds[i])
                results.append(got)
                if way != "ahead":  # there a better plan may have come in between
                    complaints += [f"case {i} {n}: other bits when run again" for n in got if not _same(got[n], again[n])]
                for name, want in expected[i].items():
                    ratio = tolerance_ratio(got[name], want, subject.tolerance)
                    if 1 < ratio < float("inf") and subject.whole:
                        ours, theirs = (np.abs(a.astype(np.float64) - exact(i)[name]).max() for a in (got[name], want))
                        ratio = ours / theirs if theirs else ratio
                    worst = max(worst, ratio)
                    if not ratio <= 1:
                        complaints.append(f"case {i} {name}: {ratio:.3g} of the tolerance")
            if way in SAME_BITS:
                for i, a, b in zip(order, before, results, strict=False):
                    complaints += [f"case {i} {n}: other bits than the first way" for n in a if not _same(a[n], b[n])]
                before = before or results
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
            yield way, "WRONG " + traceback.format_exc(limit=-6), float("inf")


def _same(a: Array, b: Array) -> bool:
    return a.shape == b.shape and a.tobytes() == b.tobytes()


def main() -> int:
    """The command line; the status is 1 when something is wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--shapes", type=int, default=3, help="how many more shapes than the catalog has")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--heavy", action="store_true")
    chosen = parser.parse_args()
    bad = 0
    for subject in subjects(chosen.names, chosen.heavy):
        for way, text, worst in sweep(subject, chosen.ways.split(","), chosen.rounds, chosen.shapes, chosen.seed):
            bad += text.startswith("WRONG")
            print(f"{subject.name:34} {way:11} {worst:8.3g}  {text[:1500]}", flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
