"""Measures the cases of the peers suite and judges them."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from catalog import Missing, by_name

from benchmark.comparison import OURS, compare_sides
from benchmark.peers.cases import MEAN_BAR, Bar, Case
from benchmark.report import geometric_mean
from benchmark.worker import Failed, Worker

__all__ = ["CREATION_HEAD", "HEAD", "cells", "creation_cells", "measure", "measure_creation", "summary"]

MEMORY_BAR = 1.2
"""Our peak device memory over what torch has reserved, for batch 32 in strict fp32."""

CREATION_BARS = {"cold": 4.0, "warm": 0.6}
"""Seconds to load ResNet-50 and run it once."""

CACHES = ("XDG_CACHE_HOME", "__GL_SHADER_DISK_CACHE_PATH", "MESA_SHADER_CACHE_DIR")
"""Where this engine and drivers keep what they compiled."""


def judge(bar: Bar, results: Mapping[str, Mapping[str, Any]]) -> dict[str, Any] | None:
    """How a case stands to one of its bars, or None where a time is missing."""
    peer = results.get(bar.peer, {}).get("median_ms")
    ours = results.get("standalone", {}).get("gpu_ms") if bar.gpu else results.get("ep", {}).get("median_ms")
    if not peer or not ours or peer <= bar.above_ms:
        return None
    return {
        "peer": bar.peer,
        "of": "GPU" if bar.gpu else "wall",
        "ratio": ours / peer,
        "bar": bar.most,
        "reached": ours / peer <= bar.most,
    }


def measure(
    cases: Sequence[Case], workers: Mapping[str, Worker], rounds: int, seconds: float, say: Callable[[str], None]
) -> Iterator[dict[str, Any]]:
    """The entries of the report, one after the other. Our own sides start anew for each case: their memory is its memory."""
    for case in cases:
        say(case.name)
        try:
            task = case.task()
        except Missing as error:
            say(f"{case.name}: left out, {error}")
            continue
        for name in OURS:
            if name in workers:
                workers[name].stop()
        entry = compare_sides(task, workers, rounds, seconds, say)
        results = entry["results"]
        entry |= {"group": case.group, "verdicts": [v for v in (judge(bar, results) for bar in case.bars) if v]}
        ours, torch = results.get("standalone", {}).get("peak_bytes"), results.get("torch", {}).get("reserved_bytes")
        if ours and torch and case.batch > 1 and case.precision == "strict":
            entry["verdicts"].append(
                {"peer": "torch", "of": "memory", "ratio": ours / torch, "bar": MEMORY_BAR, "reached": ours / torch <= MEMORY_BAR}
            )
        yield entry


HEAD = (
    *("case", "VulkanEP", "standalone", "GPU", "CPU EP", "WebGPU", "torch", "torch TF32", "overhead, us"),
    *("memory, MB", "torch's, MB", "error / tolerance", "ratios (bar)"),
)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}" if value < 10 else f"{value:.1f}" if value < 1000 else f"{value:.0f}"


def cells(entry: Mapping[str, Any]) -> list[str]:
    """A row of the printed table; times in ms."""
    results = entry["results"]

    def fact(side: str, name: str, factor: float = 1.0) -> str:
        value = results.get(side, {}).get(name)
        return "failed" if name == "median_ms" and "error" in results.get(side, {}) else _number(value and factor * value)

    verdicts = [
        f"{v['ratio']:.2f} {v['of']} of {v['peer']} ({v['bar']:.2f}, {'reached' if v['reached'] else 'missed'})"
        for v in entry["verdicts"]
    ]
    return [
        entry["name"],
        fact("ep", "median_ms"),
        fact("standalone", "median_ms"),
        fact("standalone", "gpu_ms"),
        *(fact(side, "median_ms") for side in ("cpu", "webgpu", "torch", "torch-tf32")),
        fact("ep", "overhead_us"),
        fact("standalone", "peak_bytes", 1e-6),
        fact("torch", "reserved_bytes", 1e-6),
        fact("ep", "tolerance_ratio"),
        "; ".join(verdicts),
    ]


def summary(entries: Sequence[Mapping[str, Any]]) -> list[str]:
    """Sentences on all entries together: the mean against the WebGPU EP, the bars, and what did not run."""
    ratios = [v["ratio"] for e in entries if e["group"] == "webgpu" for v in e["verdicts"] if v["peer"] == "webgpu"]
    mean = geometric_mean(1 / r for r in ratios)
    lines = []
    if mean is not None:
        verdict = "reached" if mean >= MEAN_BAR else "missed"
        lines.append(
            f"{mean:.2f} times as fast as the WebGPU EP in the geometric mean of {len(ratios)} models ({MEAN_BAR:g}, {verdict})."
        )
    verdicts = [v for e in entries for v in e["verdicts"]]
    lines.append(f"{sum(v['reached'] for v in verdicts)} of {len(verdicts)} bars are reached.")
    lines += [f"{e['name']}, {side}: {r['error']}" for e in entries for side, r in e["results"].items() if "error" in r]
    return lines


# ------------------------------------------------------------------------------------------------------------ session creation
CREATION_HEAD = ("door", "disk cache", "import, s", "load, s", "first run, s", "load and run, s", "bar", "")


@contextmanager
def _caches_in(folder: str) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in CACHES}
    os.environ.update(dict.fromkeys(CACHES, folder))
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def measure_creation(say: Callable[[str], None], model_name: str = "resnet50") -> list[dict[str, Any]]:
    """Loading a model and its first run in fresh processes: with empty disk caches, then with what that left there."""
    found = []
    model = by_name(model_name)
    path, feeds = model.path(), model.feeds()
    for door in OURS:
        with tempfile.TemporaryDirectory() as folder, _caches_in(folder):
            for cache, bar in CREATION_BARS.items():
                say(f"{model_name}, {door}: loading with a {cache} disk cache")
                entry: dict[str, Any] = {"door": door, "cache": cache, "bar": bar}
                worker = Worker(door)
                try:
                    entry["import_s"] = worker.ask("import") / 1e3
                    times, _ = worker.open(path, "", feeds, {})
                    entry |= {"load_s": times["load_ms"] / 1e3, "first_s": times["first_ms"] / 1e3}
                    entry["reached"] = entry["load_s"] + entry["first_s"] <= bar
                except Failed as error:
                    entry["error"] = str(error)
                finally:
                    worker.stop()
                found.append(entry)
    return found


def creation_cells(entry: Mapping[str, Any]) -> list[str]:
    """A row of the table of session creation."""
    if "error" in entry:
        return [entry["door"], entry["cache"], *[""] * 5, entry["error"]]
    load, first = entry["load_s"], entry["first_s"]
    seconds = (f"{s:.2f}" for s in (entry["import_s"], load, first, load + first))
    return [entry["door"], entry["cache"], *seconds, f"{entry['bar']:g}", "reached" if entry["reached"] else "missed"]
