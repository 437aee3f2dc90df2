"""Whether a tuned model is faster: it and the original are measured in pairs, one process a sample, in alternating order."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from onnx_vulkan.tune.children import Child

__all__ = ["MOST_PAIRS", "WANTED", "Pairs", "measure_pairs"]

WANTED = 0.10
"""The share of GPU time and of wall time that has to be saved."""
MOST_PAIRS = 20
LEAST_PAIRS = 4
DEVIATIONS = 2.0


@dataclass
class Pairs:
    """The samples in microseconds, and what follows from them. A gain is the share of the time that is saved."""

    gpu: list[tuple[float, float]] = field(default_factory=list)
    wall: list[tuple[float, float]] = field(default_factory=list)
    stopped: str = ""

    @staticmethod
    def gain(pairs: list[tuple[float, float]]) -> tuple[float, float]:
        """The mean gain, and two standard deviations of that mean."""
        gains = [1 - tuned / original for original, tuned in pairs]
        if len(gains) < 2:
            return (gains or [0.0])[0], math.inf
        return statistics.mean(gains), DEVIATIONS * statistics.stdev(gains) / math.sqrt(len(gains))

    @property
    def faster(self) -> bool:
        """At least ``WANTED`` is saved on the GPU and on the clock, both more than two standard deviations."""
        both = self.gain(self.gpu), self.gain(self.wall)
        return len(self.gpu) >= LEAST_PAIRS and all(gain >= WANTED and gain > noise for gain, noise in both)

    @property
    def verdict(self) -> str:
        """Why to stop, or nothing."""
        if len(self.gpu) < LEAST_PAIRS:
            return ""
        both = {"GPU": self.gain(self.gpu), "wall": self.gain(self.wall)}
        for name, (gain, noise) in both.items():
            if gain + noise < WANTED:
                return f"even two standard deviations more than {gain:.1%} of {name} time do not make {WANTED:.0%}"
        if all(gain - noise >= WANTED for gain, noise in both.values()):
            return "the gain is beyond two standard deviations"
        return ""

    def as_json(self) -> dict[str, Any]:
        """Medians in microseconds, gains and their noise."""
        out: dict[str, Any] = {"pairs": len(self.gpu), "faster": self.faster, "stopped": self.stopped}
        for name, pairs in (("gpu", self.gpu), ("wall", self.wall)):
            gain, noise = self.gain(pairs)
            out[name] = {
                "original_us": statistics.median(a for a, _ in pairs) if pairs else None,
                "tuned_us": statistics.median(b for _, b in pairs) if pairs else None,
                "gain": gain,
                "noise": noise if math.isfinite(noise) else None,
            }
        return out


def measure_pairs(
    make: Callable[[], Child],
    tactics_file: Path,
    seconds: float,
    paired: Callable[[int, int, float], None],
    most: int = MOST_PAIRS,
) -> Pairs:
    """Measure up to *most* pairs of the model without and with the tactics of a file; stops when the outcome is clear.

    *make* gives a new child for each sample. Raises what a child raises.
    """
    pairs = Pairs()

    def sample(file: Path | None) -> tuple[float, float]:
        child = make()
        try:
            found = child.ask(seconds, "sample", tactics_file=str(file) if file else None)
            return found["gpu_us"], found["wall_us"]
        finally:
            child.close()

    for n in range(most):
        order = [None, tactics_file] if n % 2 == 0 else [tactics_file, None]
        found = {file: sample(file) for file in order}
        (gpu, wall), (tuned_gpu, tuned_wall) = found[None], found[tactics_file]
        pairs.gpu.append((gpu, tuned_gpu))
        pairs.wall.append((wall, tuned_wall))
        paired(n + 1, most, pairs.gain(pairs.gpu)[0])
        pairs.stopped = pairs.verdict
        if pairs.stopped:
            return pairs
    pairs.stopped = f"{most} pairs were measured, and the gain is not beyond their noise"
    return pairs
