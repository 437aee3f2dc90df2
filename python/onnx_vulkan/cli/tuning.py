"""``onnx-vulkan optimize``: the search seen from a terminal or a log, its verdict, its picture."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from onnx_vulkan.cli.inspection import plural
from onnx_vulkan.cli.report import say
from onnx_vulkan.errors import InvalidInput
from onnx_vulkan.tune.optimize import FASTER, Job, journal_of, optimize
from onnx_vulkan.tune.search import Budget, Target, Trial, Watcher
from onnx_vulkan.tune.tactics import Tactic

__all__ = ["STOPPED", "optimize_bundle", "show"]

STOPPED = 130
"""The exit status after Ctrl-C."""

LINE_SECONDS = 10.0
"""In a log, progress is a line every so often."""


class Progress(Watcher):
    """Says how a search goes: a bar on a terminal, plain lines elsewhere. ``trials`` are all, in order."""

    def __init__(self) -> None:
        self.trials: list[tuple[Target, Trial]] = []
        self.rejected = 0
        self._new = 0
        self._bar: Any = None
        self._last = 0.0

    def began(self, targets: Sequence[Target], budget: Budget) -> None:
        self.budget, self.start = budget, time.monotonic()
        say(f"{plural(len(targets), 'workload')} to tune, {budget.trials} trials or {budget.seconds:.0f} seconds at most")
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
            from rich.progress import Progress as Bar

            self._bar = Bar(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                console=Console(stderr=True),
            )
            self._task = self._bar.add_task("tuning", total=budget.trials)
            self._bar.start()

    def known(self, target: Target, trial: Trial) -> None:
        self.trials.append((target, trial))
        self.rejected += trial.state != "timed"

    def tried(self, target: Target, trial: Trial) -> None:
        self.known(target, trial)
        self._new += 1
        done, seconds = len(self.trials), time.monotonic() - self.start
        rate = self._new / max(seconds, 1e-3)
        left = min(max(self.budget.trials - done, 0) / rate, max(self.budget.seconds - seconds, 0.0))
        text = f"{target.workload.told}: {rate:.1f} trials/s, {self.rejected} rejected, {left:.0f} s left"
        if self._bar is not None:
            self._bar.update(self._task, completed=done, description=text)
        elif time.monotonic() - self._last >= LINE_SECONDS:
            self._last = time.monotonic()
            say(f"trial {done}: {text}")
        if trial.state != "timed":
            self._say(f"rejected for {target.workload.told}: {trial.choice}: {trial.state}: {trial.reason}")

    def settled(self, target: Target, tactic: Tactic) -> None:
        if tactic.choice != tactic.default:
            times = f"{tactic.default_us:.1f} to {tactic.choice_us:.1f} us"
            self._say(f"{target.workload.told}: {times} with {tactic.choice} instead of {tactic.default}")

    def paired(self, done: int, most: int, gain: float) -> None:
        self.close()
        say(f"pair {done} of at most {most}: {gain:.1%} less GPU time so far")

    def _say(self, sentence: str) -> None:
        if self._bar is not None:
            self._bar.console.print(sentence, markup=False, highlight=False)
        else:
            say(sentence)

    def close(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def optimize_bundle(job: Job, html: Path | None) -> tuple[dict[str, Any], str]:
    """Tune a bundle; gives the JSON and the verdict. Raises KeyboardInterrupt after saying where the journal is."""
    if html is not None:
        from onnx_vulkan.profile.page import check_library

        check_library()
    if job.budget.trials < 1 or job.budget.seconds <= 0:
        raise InvalidInput("--trials and --seconds have to be more than 0.")
    progress = Progress()
    try:
        data = optimize(job, progress)
    except KeyboardInterrupt:
        progress.close()
        say(f"stopped; {journal_of(job.output)} has the trials so far: --resume goes on from there")
        raise
    finally:
        progress.close()
    text = verdict(data)
    if html is not None:
        from onnx_vulkan.profile.page import document

        picture = [(search_figure(progress.trials), "520px"), *([(rejected_table(data), "420px")] if data["rejected"] else [])]
        html.write_text(document(f"Search of {job.bundle.name}", text, picture), encoding="utf-8")
    return data, text


def verdict(data: Mapping[str, Any]) -> str:
    """The result in one line."""
    name, found = Path(data["bundle"]).name, data["comparison"]
    tried = f"{plural(data['trials']['all'], 'trial')}, {len(data['rejected'])} rejected"
    dropped = "".join(
        f"; dropped, since the model's outputs are beyond the tolerance with it: {d['workload']}: {d['choice']}"
        for d in data["dropped"]
    )
    if data["verdict"] == FASTER:
        times = ", ".join(
            f"{kind} {found[k]['original_us']:.0f} to {found[k]['tuned_us']:.0f} us ({found[k]['gain']:.1%} less)"
            for k, kind in (("gpu", "GPU"), ("wall", "wall"))
        )
        return (
            f"{name} on {data['device']}: faster: {times}, {plural(found['pairs'], 'pair')}; {tried}{dropped}; "
            f"{data['output']} has the tactics, for tactics={data['mode']}"
        )
    why = found["stopped"]
    return f"{name} on {data['device']}: {data['verdict']}: {why}; {tried}{dropped}; {data['output']} carries the original alone"


def show(data: Mapping[str, Any]) -> None:
    """The tactics for a person."""
    from rich.console import Console
    from rich.table import Table

    table = Table("workload", "rule us", "tactic us", "tactic", box=None, header_style="bold")
    for t in data["tactics"]:
        if t["choice"] != t["default"]:
            sizes = " ".join(f"{n}={v}" for n, v in t["workload"]["sizes"].items())
            times = f"{t['default_us']:.1f}", f"{t['choice_us']:.1f}"
            table.add_row(f"{t['workload']['family']} {sizes}", *times, t["choice"])
    if table.row_count:
        Console(file=sys.stdout).print(table, markup=False)


def search_figure(trials: Sequence[tuple[Target, Trial]]) -> dict[str, Any]:
    """The picture of a search: each trial's time as a share of the rule's, the best so far of each workload, and the rejected."""
    from onnx_vulkan.profile.page import figure

    traces: list[dict[str, Any]] = []
    timed = [(n, t, x) for n, (t, x) in enumerate(trials) if x.ratio is not None]
    wrong = [(n, t, x) for n, (t, x) in enumerate(trials) if x.ratio is None]
    for name, found, y, color, symbol in (
        ("timed", timed, [min(x.ratio or 0.0, 4.0) for _, _, x in timed], "#6a8caf", "circle"),
        ("rejected", wrong, [1.0] * len(wrong), "#c0392b", "x"),
    ):
        texts = [f"{t.workload.told}<br>{x.choice}<br>{x.state} {x.reason}" for _, t, x in found]
        traces.append(
            {
                "type": "scatter", "mode": "markers", "name": name, "x": [n for n, _, _ in found], "y": y, "text": texts,
                "hoverinfo": "text+y", "marker": {"color": color, "symbol": symbol, "size": 6},
            }
        )  # fmt: skip
    best: dict[str, float] = {}
    x_line: list[int | None] = []
    y_line: list[float | None] = []
    last = ""
    for n, _, x in timed:
        if x.digest != last and x_line:
            x_line.append(None)
            y_line.append(None)
        last = x.digest
        best[x.digest] = min(best.get(x.digest, 1.0), x.ratio or 1.0)
        x_line.append(n)
        y_line.append(best[x.digest])
    line = {"color": "#222222", "shape": "hv"}
    traces.append(
        {"type": "scatter", "mode": "lines", "name": "best so far of a workload", "x": x_line, "y": y_line, "line": line}
    )
    return figure("Trials", traces, {"title": {"text": "trial"}}, {"title": {"text": "time, as a share of the rule's choice"}})


def rejected_table(data: Mapping[str, Any]) -> dict[str, Any]:
    """What was rejected, and why."""
    columns = [[r[k] for r in data["rejected"]] for k in ("workload", "choice", "state", "reason")]
    header = {"values": ["workload", "variant", "rejected as", "reason"], "align": "left"}
    return {"data": [{"type": "table", "header": header, "cells": {"values": columns, "align": "left"}}], "layout": {}}
