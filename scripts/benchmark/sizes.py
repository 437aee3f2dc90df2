"""What a new input size costs: the first run of each of thirty sizes, less repeats of it, in a session that ran another size."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from catalog import by_name, made_skeleton
from inputs import Input

from benchmark.report import table
from benchmark.worker import Failed, Worker

__all__ = ["Sweep", "measure_sizes", "sizes_markdown", "sweeps"]

SIZES = 30
REPEATS = 5

Size = tuple[int, ...]


@dataclass(frozen=True)
class Sweep:
    """A model, how its inputs of a size are made, the size of the session's first run, and the sizes to measure."""

    name: str
    find: Callable[[], Path]
    feeds: Callable[[Size], dict[str, np.ndarray]]
    first: Size
    sizes: Sequence[Size]


def _image(feed: str) -> Callable[[Size], dict[str, np.ndarray]]:
    return lambda size: {feed: Input(size, "text").make(feed)}


def _prompt(size: Size) -> dict[str, np.ndarray]:
    """A prompt of (batch, tokens) for SmolLM, with nothing in the cache."""
    cache = np.empty((size[0], 3, 0, 64), np.float32)
    return {
        "input_ids": Input(size, "ints", "int64", high=49152).make("input_ids"),
        "attention_mask": np.ones(size, np.int64),
        "position_ids": Input(size, "arange", "int64").make("position_ids"),
        **{f"past_key_values.{i}.{kv}": cache for i in range(30) for kv in ("key", "value")},
    }


def sweeps(seed: int) -> tuple[Sweep, ...]:
    """Widths of a text recogniser, image sizes of a text detector, prompts of a language model (1,918 nodes), in random order."""
    rng = random.Random(seed)
    widths = [(1, 3, 48, w) for w in rng.sample(range(48, 48 + 8 * 100, 8), SIZES)]
    images = [(1, 3, h, w) for h, w in rng.sample([(h, w) for h in range(320, 1280, 96) for w in range(320, 1280, 96)], SIZES)]
    prompts = [(1, n) for n in rng.sample(range(2, 512), SIZES)]
    return (
        Sweep("ppocrv5_rec", by_name("ppocrv5_rec").path, _image("x"), (1, 3, 48, 40), widths),
        Sweep("ppocrv5_det", by_name("ppocrv5_det").path, _image("x"), (1, 3, 224, 224), images),
        Sweep("smollm_135m", lambda: made_skeleton("smollm_135m"), _prompt, (1, 1), prompts),
    )


def measure_sizes(plan: Sequence[Sweep], workers: Mapping[str, Worker], say: Callable[[str], None]) -> Iterator[dict[str, Any]]:
    """Entries of the report. Raises Missing where a model has to be fetched first."""
    for sweep in plan:
        path = sweep.find()
        for name, worker in workers.items():
            say(f"{sweep.name}, {name}: {len(sweep.sizes)} sizes")
            entry: dict[str, Any] = {"model": sweep.name, "contender": name, "sizes": []}
            try:
                times, _ = worker.open(path, "", sweep.feeds(sweep.first), {})
                entry["cold_ms"] = times["load_ms"] + times["first_ms"]
                for size in sweep.sizes:
                    feeds = sweep.feeds(size)
                    before = worker.ask("structures")
                    first = worker.ask("once", feeds)
                    after = worker.ask("structures")
                    repeats = [worker.ask("once", feeds) for _ in range(REPEATS)]
                    entry["sizes"].append(
                        {
                            "shape": list(size),
                            "first_ms": first,
                            "repeat_ms": statistics.median(repeats),
                            "rebuilt": None if before is None else after > before,
                        }
                    )
                worker.ask("close")
            except Failed as error:
                entry["error"] = str(error)
            yield entry


HEAD = ("model", "side", "sizes", "median cost, ms", "worst cost, ms", "median repeat, ms", "session and first run, ms")


def sizes_markdown(results: Sequence[Mapping[str, Any]]) -> str:
    """The first run of a size less a repeat of it, in ms; sizes whose structure was built anew apart from the others."""
    rows = []
    for result in results:
        side = result["contender"]
        if "error" in result:
            rows.append([result["model"], side, "failed: " + result["error"], *[""] * 4])
            continue
        rebuilt = [s for s in result["sizes"] if s["rebuilt"]]
        for what, sizes in (("", [s for s in result["sizes"] if not s["rebuilt"]]), (", structure rebuilt", rebuilt)):
            if not sizes:
                continue
            costs = sorted(s["first_ms"] - s["repeat_ms"] for s in sizes)
            repeat = statistics.median(s["repeat_ms"] for s in sizes)
            numbers = (f"{statistics.median(costs):.1f}", f"{costs[-1]:.1f}", f"{repeat:.2f}", f"{result['cold_ms']:.0f}")
            rows.append([result["model"], side + what, str(len(costs)), *numbers])
    return table(HEAD, rows)
