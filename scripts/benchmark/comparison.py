"""One model over all sides: they take turns, and what each knows of its runs is put together."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from onnx_vulkan.tolerance import Tolerance, tolerance_ratio

from benchmark.worker import Failed, Worker

__all__ = ["OURS", "Task", "compare_sides"]

OURS = ("ep", "standalone")


@dataclass(frozen=True)
class Task:
    """A model file with its inputs. ``options`` are for our own sides; ``sides`` names those that run it (all where it is None),
    and ``once`` those whose first run is enough (a reference)."""

    name: str
    path: Path
    feeds: Mapping[str, np.ndarray]
    tolerance: Tolerance
    torchvision: str = ""
    options: Mapping[str, str] = field(default_factory=dict)
    sides: Collection[str] | None = None
    once: Collection[str] = ()


def compare_sides(
    task: Task, workers: Mapping[str, Worker], rounds: int, seconds: float, say: Callable[[str], None]
) -> dict[str, Any]:
    """One model over all sides: the entry of the report."""
    results: dict[str, dict[str, Any]] = {}
    outputs: dict[str, Any] = {}
    times: dict[str, list[float]] = {}
    opened = []
    for name, worker in workers.items():
        if (task.sides is not None and name not in task.sides) or (name.startswith("torch") and not task.torchvision):
            continue
        try:
            options = task.options if name in OURS else {}
            results[name], outputs[name] = worker.open(task.path, task.torchvision, task.feeds, options)
            opened.append(name)
            if name not in task.once:
                times[name] = []
        except Failed as error:
            results[name] = {"error": str(error)}
    for _ in range(rounds):
        for name in list(times):
            try:
                times[name] += workers[name].time(seconds)
            except Failed as error:
                results[name] = {"error": str(error)}
                del times[name]
    for name, measured in times.items():
        results[name]["median_ms"] = statistics.median(measured)
        results[name]["runs"] = len(measured)
        results[name]["best_ms"] = min(measured)
        try:
            results[name].update(workers[name].ask("facts"))
        except Failed as error:
            results[name]["facts_error"] = str(error)
    _compare(task, results, outputs)
    for name in opened:
        try:
            workers[name].ask("close")
        except Failed as error:
            say(f"{task.name}, {name}: {error}")
    if results.get("standalone", {}).get("gpu_ms"):
        _add_overhead(results)
    return {"name": task.name, "feeds": {k: list(v.shape) for k, v in task.feeds.items()}, "results": results}


def _compare(task: Task, results: Mapping[str, dict[str, Any]], outputs: Mapping[str, Any]) -> None:
    """Each side's worst difference from the CPU EP, as a share of the tolerance."""
    reference = outputs.get("cpu")
    for name, arrays in outputs.items():
        if reference and arrays and name != "cpu" and "error" not in results[name]:
            pairs = zip(arrays, reference, strict=True)
            results[name]["tolerance_ratio"] = max(tolerance_ratio(a, b, task.tolerance) for a, b in pairs)


def _add_overhead(results: Mapping[str, dict[str, Any]]) -> None:
    """Wall time less GPU time less the bytes over the measured rates of the link, for both of our doors."""
    gpu_ms = results["standalone"]["gpu_ms"]
    for name in OURS:
        result = results.get(name, {})
        if "median_ms" in result and "link_ms" in result:
            result["overhead_us"] = 1e3 * (result["median_ms"] - gpu_ms - result["link_ms"])
