"""The bench's table and its means, from plain dicts (the JSON that it writes)."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

__all__ = ["geometric_mean", "markdown", "print_table", "summary", "table"]


def geometric_mean(numbers: Iterable[float]) -> float | None:
    """The geometric mean, or None of nothing."""
    logs = [math.log(n) for n in numbers]
    return math.exp(sum(logs) / len(logs)) if logs else None


def _ms(result: Mapping[str, Any] | None) -> str:
    if result is None:
        return ""
    if "error" in result:
        return "failed"
    ms = result["median_ms"]
    return f"{ms:.3f}" if ms < 10 else f"{ms:.1f}"


def _ratio(results: Mapping[str, Any], ours: str, other: str) -> float | None:
    """How many times faster *ours* is than *other*, or None where either has no time."""
    times = [results.get(name, {}).get("median_ms") for name in (other, ours)]
    return times[0] / times[1] if all(times) else None


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in markdown."""
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines)


def print_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table: drawn on a terminal, else as markdown."""
    if not sys.stdout.isatty():
        print(table(head, rows))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    drawn = Table(*head)
    for row in rows:
        drawn.add_row(*map(Text, row))
    Console().print(drawn)


def summary(models: Sequence[Mapping[str, Any]], contenders: Sequence[str]) -> dict[str, float | None]:
    """Geometric means of the speed ratios of ours against every other side, over the models where both have a time."""
    means = {}
    for ours in ("ep", "standalone"):
        for other in contenders:
            if ours in contenders and other not in ("ep", "standalone"):
                ratios = [_ratio(m["results"], ours, other) for m in models]
                means[f"{ours} against {other}"] = geometric_mean(r for r in ratios if r)
    return means


def markdown(models: Sequence[Mapping[str, Any]], contenders: Sequence[str]) -> str:
    """Medians in ms, one row a model; the last columns are speed against WebGPU and the run's overhead."""
    rows = []
    for model in models:
        results = model["results"]
        ratio = _ratio(results, "ep", "webgpu")
        ep = results.get("ep", {})
        error = ep.get("tolerance_ratio")
        overhead = ep.get("overhead_us")
        gpu = results.get("standalone", {}).get("gpu_ms")
        rows.append(
            [
                model["name"],
                *(_ms(results.get(name)) for name in contenders),
                f"{gpu:.3f}" if gpu else "",
                f"{ratio:.2f}" if ratio else "",
                f"{overhead:.0f}" if overhead is not None else "",
                f"{error:.2g}" if error is not None else "",
            ]
        )
    head = ["model", *contenders, "ours on the GPU", "webgpu / ep", "ep overhead, us", "error / tolerance"]
    means = [f"{name}: {mean:.2f} times as fast" for name, mean in summary(models, contenders).items() if mean]
    failures = [
        f"{model['name']}, {name}: {result['error']}"
        for model in models
        for name, result in model["results"].items()
        if "error" in result
    ]
    text = table(head, rows)
    if means:
        text += "\n\nGeometric means:\n" + "\n".join(means)
    if failures:
        text += "\n\nWhat did not run:\n" + "\n".join(failures)
    return text
