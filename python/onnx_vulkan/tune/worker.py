"""The child process that works with the device: ``python -m onnx_vulkan.tune.worker``.

One JSON request a line on stdin, one JSON answer a line on what stdout was at the start; prints go to stderr. It may crash or
hang at any request (see :mod:`.children`), and it ends by itself when nobody holds the other end of its stdin any more.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import queue
import signal
import statistics
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from onnx_vulkan import claims, frontend
from onnx_vulkan.bundle import is_bundle, read_bundle
from onnx_vulkan.device import Device
from onnx_vulkan.engine.options import Options, parse_options
from onnx_vulkan.engine.session import Session
from onnx_vulkan.errors import DeviceLost, RefusedError
from onnx_vulkan.graph import Array
from onnx_vulkan.inputs import make_inputs
from onnx_vulkan.tolerance import compare, tolerance_of
from onnx_vulkan.tune.tactics import Place
from onnx_vulkan.tune.workshop import Workshop, warm_up

__all__ = ["Bench", "main", "serve"]

SAMPLE_SECONDS = 0.4


class Bench:
    """What the requests do; each method is one, its arguments are the request's fields."""

    def __init__(self) -> None:
        self.workshop: Workshop | None = None

    def open(
        self, model: str, dims: Mapping[str, int], options: Mapping[str, str], device: str | None, steps: bool = True
    ) -> dict[str, Any]:
        """Load a model or bundle; gives the device and, with *steps*, the workloads."""
        if self.workshop is not None:
            self.workshop.close()
            self.workshop = None
        path = Path(model)
        self.reference: Mapping[str, Array] = {}
        if is_bundle(path):
            bundle = read_bundle(path)
            self.path, self.feeds, self.reference = bundle.model, dict(bundle.inputs), bundle.reference
            self.tolerance = bundle.tolerance
            self.graph = frontend.load(self.path)
        else:
            self.path, self.graph = path, frontend.load(path)
            self.feeds = make_inputs(self.graph, dims)
            self.tolerance = tolerance_of({t.dtype for t in self.graph.types.values() if t.dtype is not None})
        self.options = parse_options(options, Options)
        self.device = Device.get(device or self.options.device)
        refusals = claims.partition(self.graph, features=self.device.info.features).refusals
        if refusals:
            raise RefusedError(self.graph.name, refusals)
        answer: dict[str, Any] = {"place": dataclasses.asdict(Place.of(self.device.info)), "kind": self.device.info.kind}
        if steps:
            self.workshop = Workshop(self.graph, self.device, self.options, self.feeds)
            answer["workloads"] = [
                {
                    "workload": dataclasses.asdict(t.workload),
                    "default": t.default,
                    "legal": list(t.legal),
                    "steps": len(t.steps),
                    "labels": list(t.labels),
                }
                for t in self.workshop.found.values()
            ]
        return answer

    @property
    def _open(self) -> Workshop:
        assert self.workshop is not None, "open comes first"
        return self.workshop

    def shares(self) -> dict[str, Any]:
        """Microseconds on the GPU of each workload and of the model under the rules, and how many plans fit side by side."""
        us, total = self._open.shares()
        return {"us": us, "total_us": total, "together": self._open.together()}

    def compile(self, digest: str, choices: list[str]) -> dict[str, Any]:
        """Make the pipelines of several variants, in parallel."""
        self._open.compile(digest, choices)
        return {}

    def check(self, digest: str, choice: str, seed: int) -> dict[str, Any]:
        """Check one variant; ``wrong`` says why it is."""
        return {"wrong": self._open.check(digest, choice, seed)}

    def time(self, digest: str, choices: list[dict[str, str]]) -> dict[str, Any]:
        """Time the model under several sets of choices."""
        return {"timings": [dataclasses.asdict(t) for t in self._open.time(digest, choices)]}

    def sample(self, tactics_file: str | None) -> dict[str, Any]:
        """One session with the tactics of a file or with none: medians of GPU and wall time in microseconds, and the worst output
        as a share of the tolerance (None without reference)."""
        tactics = {"tactics": "cache-only", "tactics_file": tactics_file} if tactics_file else {"tactics": "off"}
        options = dataclasses.replace(self.options, **tactics)  # type: ignore[arg-type]
        with Session.load(self.path, device=self.device.info.uuid, options=options) as session:
            outputs = session.run(self.feeds)
            ratios = [compare(outputs[n], e, self.tolerance).ratio for n, e in self.reference.items()]
            replay = session.block.replay

            def run() -> None:
                session.run(self.feeds)

            def gpu() -> float:
                run()
                entries = replay.profile()
                return (max(e.start_ns + e.ns for e in entries) - min(e.start_ns for e in entries)) / 1e3

            def wall() -> float:
                start = time.perf_counter_ns()
                run()
                return (time.perf_counter_ns() - start) / 1e3

            warm_up(run, self.device)
            walls = _repeat(wall)
            replay.set_profile(True)
            run()
            times = _repeat(gpu)
        return {
            "gpu_us": statistics.median(times),
            "wall_us": statistics.median(walls),
            "ratio": float(min(np.max(ratios), 1e30)) if ratios else None,
        }


def _repeat(measure: Callable[[], float]) -> list[float]:
    until, found = time.monotonic() + SAMPLE_SECONDS, [measure()]
    while time.monotonic() < until and len(found) < 200:
        found.append(measure())
    return found


def serve(bench: Bench) -> None:
    """Answer requests until stdin ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent's to handle: Ctrl-C in a terminal goes to both
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    requests: queue.Queue[str] = queue.Queue()

    def listen() -> None:
        for line in sys.stdin:
            requests.put(line)
        os._exit(0)  # the parent is gone, whatever this process is doing

    threading.Thread(target=listen, daemon=True).start()
    while True:
        request = json.loads(requests.get())
        try:
            answer = getattr(bench, request.pop("do"))(**request)
        except Exception as e:
            answer = {"error": str(e) or repr(e), "kind": type(e).__name__}
            if isinstance(e, DeviceLost):
                answer["lost"] = True
        with contextlib.suppress(BrokenPipeError):
            answers.write(json.dumps(answer) + "\n")
            answers.flush()


def main() -> None:
    """The child's entry."""
    serve(Bench())


if __name__ == "__main__":
    main()
