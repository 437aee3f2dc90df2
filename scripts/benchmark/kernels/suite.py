"""Measures the rows of the kernel suite: a family is loaded, warmed up, and its rows take turns."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import groupby
from typing import Any

from onnx_vulkan.errors import InvalidInput

from benchmark.kernels.runner import Ours, Torch
from benchmark.kernels.table import NEIGHBOURS, Row
from benchmark.worker import WARM_SECONDS

__all__ = ["HEAD", "cells", "cliffs", "measure", "neighbour_groups"]

CLIFF = 2.0
"""Neighbours may differ by this factor in their rates."""

STREAMING = ("softmax", "layer_norm", "transpose", "elementwise")


class _Entry:
    """A row under way: what runs it, and what was measured."""

    def __init__(self, row: Row, with_torch: bool):
        self.row = row
        self.result: dict[str, Any] = {"work": row.label, "bar": row.bar}
        self.ours: Ours | None = None
        self.torch: Torch | None = None
        self.gpu: list[float] = []
        self.wall: list[float] = []
        self.peer: list[float] = []
        try:
            self.work = row.make()
            self.ours = Ours(self.work)
            self.result["error_share"], self.result["limit"] = self.ours.error(), self.work.limit
        except Exception as failure:
            self.result["failed"] = _sentence(failure)
            return
        if with_torch and self.work.torch is not None:
            try:
                self.torch = Torch(self.work)
            except Exception as failure:
                self.result["torch_failed"] = _sentence(failure)

    def turn(self, seconds: float, warm: float) -> None:
        """One turn of both sides."""
        try:
            if self.ours is not None and "failed" not in self.result:
                _warm(lambda: self.ours.run(), warm)  # type: ignore[union-attr]
                self.gpu += self.ours.gpu_ms(seconds)
                if not self.ours.resident:
                    self.wall += self.ours.wall_ms(seconds)
        except Exception as failure:
            self.result["failed"] = _sentence(failure)
        try:
            if self.torch is not None and "torch_failed" not in self.result:
                self.torch.gpu_ms(warm)
                self.peer += self.torch.gpu_ms(seconds)
        except Exception as failure:
            self.result["torch_failed"] = _sentence(failure)

    def finish(self) -> dict[str, Any]:
        """The medians, as the report has them."""
        r = self.result
        if "failed" not in r and self.ours is not None:
            amount, unit = self.work.amount, self.work.unit
            r["unit"], r["kernels"] = unit, self.ours.kernels
            for name, times in (("gpu_ms", self.gpu), ("wall_ms", self.wall), ("torch_ms", self.peer)):
                if times:
                    r[name] = statistics.median(times)
            r["rate"] = r.get("wall_ms") if unit == "ms" else 1e3 * amount / r["gpu_ms"] if self.gpu else None
            if self.row.bar is not None and r["rate"] is not None:
                r["passed"] = r["rate"] <= self.row.bar if unit == "ms" else r["rate"] >= self.row.bar
            r["right"] = r["error_share"] <= r["limit"]
        if self.ours is not None:
            self.ours.close()
        try:
            if self.torch is not None:
                self.torch.close()
        except Exception as failure:  # an error on CUDA is told again by every later call
            r.setdefault("torch_failed", _sentence(failure))
        return r


def _sentence(failure: Exception) -> str:
    if isinstance(failure, InvalidInput) and "There is no option" in str(failure):
        return f"left out: {str(failure).split('. ')[0].lower()}."
    return " ".join(f"failed: {type(failure).__name__}: {failure}".split())[:400]


def _warm(run: Callable[[], Any], seconds: float) -> None:
    end = time.perf_counter() + seconds
    while True:
        run()
        if time.perf_counter() >= end:
            return


def measure(
    rows: Sequence[Row], rounds: int, seconds: float, with_torch: bool, say: Callable[[str], None], warm: float = WARM_SECONDS
) -> Iterator[dict[str, Any]]:
    """The results of all rows in order. Rows of one kind that follow each other are loaded together and take turns."""
    for kind, group in groupby(rows, key=lambda row: "streaming" if row.family in STREAMING else row.family):
        say(kind)
        entries: list[_Entry] = []
        try:
            for row in group:
                entries.append(_Entry(row, with_torch))
            for number in range(rounds):
                for place, entry in enumerate(entries):
                    entry.turn(seconds, warm if number == place == 0 else warm / 25)
        except KeyboardInterrupt:
            yield from (entry.finish() for entry in entries if entry.gpu)
            raise
        for entry in entries:
            yield entry.finish()


HEAD = ("work", "rate", "unit", "bar", "", "GPU, us", "wall, us", "torch, us", "ours / torch", "dispatches", "error / limit")


def cells(result: dict[str, Any]) -> list[str]:
    """A row of the printed table."""
    if "failed" in result:
        return [result["work"], "", "", "", result["failed"], *[""] * 6]

    def number(name: str, factor: float = 1.0) -> str:
        value = result.get(name)
        return "" if value is None else f"{factor * value:.{3 if factor * value < 10 else 1}f}"

    verdict = {None: "", True: "reached", False: "missed"}[result.get("passed")]
    ratio = result["gpu_ms"] / result["torch_ms"] if "torch_ms" in result and "gpu_ms" in result else None
    return [
        result["work"],
        number("rate"),
        result["unit"],
        f"{result['bar']:g}" if result["bar"] is not None else "",
        verdict if result["right"] else "WRONG",
        number("gpu_ms", 1e3),
        number("wall_ms", 1e3),
        number("torch_ms", 1e3),
        f"{ratio:.2f}" if ratio else "",
        str(len(result["kernels"])),
        f"{result['error_share'] / result['limit']:.2g}" if result["limit"] else f"{result['error_share']:g}",
    ]


def neighbour_groups(families: Collection[str]) -> list[list[Row]]:
    """The rows of the neighbours of these families, group by group."""
    return [[Row(family, sizes) for sizes in group] for family, group in NEIGHBOURS if family in families]


def cliffs(groups: Sequence[Sequence[Row]], results: Sequence[dict[str, Any]]) -> list[str]:
    """Sentences on those neighbours whose rate is less than half of the best in their group."""
    found: list[str] = []
    by_name = {r["work"]: r for r in results if r.get("rate")}
    for group in groups:
        part = [by_name[row.label] for row in group if row.label in by_name]
        best = max(part, key=lambda r: r["rate"], default=None)
        for r in part:
            if best is not None and r["rate"] * CLIFF < best["rate"]:
                times = best["rate"] / r["rate"]
                found.append(f"{r['work']}: {times:.1f} times slower for its work than {best['work']}")
    return found
