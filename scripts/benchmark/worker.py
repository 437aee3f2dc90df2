"""A contender's child process, and the handle that the parent holds: requests over a pipe, one at a time."""

from __future__ import annotations

import contextlib
import multiprocessing
import sys
import time
import traceback
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from benchmark.contenders import make

__all__ = ["Failed", "Worker"]

WARM_SECONDS = 0.5
"""A GPU that idled for a second runs at a fraction of its clock; half a second of work brings it up."""

PATIENCE_SECONDS = 300.0


class Failed(Exception):
    """The contender cannot do what was asked; the message is one line."""


def _serve(pipe: Connection, name: str) -> None:
    contender = make(name)
    feeds: Mapping[str, np.ndarray] = {}
    while True:
        request, arguments = pipe.recv()
        try:
            answer: Any = None
            if request == "quit":
                return
            if request == "open":
                path, torchvision, feeds, options = arguments
                start = time.perf_counter()
                contender.open(path, torchvision, feeds, options)
                opened = time.perf_counter()
                outputs = contender.run(feeds)
                answer = {"load_ms": 1e3 * (opened - start), "first_ms": 1e3 * (time.perf_counter() - opened)}, outputs
            elif request == "time":
                answer = _time(contender, feeds, *arguments)
            elif request == "once":
                (feeds,) = arguments
                answer = _time_once(contender, feeds)
            elif request == "import":
                start = time.perf_counter()
                contender.import_packages()
                answer = 1e3 * (time.perf_counter() - start)
            elif request == "structures":
                answer = contender.structures()
            elif request == "facts":
                answer = contender.facts(feeds)
            elif request == "close":
                contender.close()
            pipe.send(("ok", answer))
        except BrokenPipeError:
            return  # the bench was stopped
        except Exception as error:
            traceback.print_exc(file=sys.stderr)
            pipe.send(("error", f"{type(error).__name__}: {error}".splitlines()[0][:300]))


def _time_once(contender: Any, feeds: Mapping[str, np.ndarray]) -> float:
    start = time.perf_counter()
    contender.run(feeds)
    return 1e3 * (time.perf_counter() - start)


def _time(contender: Any, feeds: Mapping[str, np.ndarray], seconds: float, at_least: int, at_most: int) -> list[float]:
    """Times of single runs in ms, after warming up."""
    warm_until = time.perf_counter() + (WARM_SECONDS if contender.on_gpu else 0.1)
    while True:
        contender.run(feeds)
        if time.perf_counter() >= warm_until:
            break
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < at_least or (time.perf_counter() < end and len(times) < at_most):
        times.append(_time_once(contender, feeds))
    return times


class Worker:
    """The parent's side of one contender. After a failure it can be used again: a dead child is replaced at the next request."""

    def __init__(self, name: str):
        self.name = name
        self._process: Any = None
        self._pipe: Connection | None = None

    def _start(self) -> Connection:
        spawn = multiprocessing.get_context("spawn")
        ours, theirs = spawn.Pipe()
        self._process = spawn.Process(target=_serve, args=(theirs, self.name), daemon=True)
        self._process.start()
        theirs.close()
        self._pipe = ours
        return ours

    def ask(self, request: str, *arguments: Any) -> Any:
        """The answer to one request. Raises Failed when the contender failed, died or hung."""
        pipe = self._pipe or self._start()
        try:
            pipe.send((request, arguments))
            if not pipe.poll(PATIENCE_SECONDS):
                self.stop()
                raise Failed(f"no answer within {PATIENCE_SECONDS:.0f} s")
            verdict, answer = pipe.recv()
        except (EOFError, OSError) as error:
            self._process.join(10)
            code = self._process.exitcode
            self.stop()
            raise Failed(f"its process died with exit code {code}") from error
        if verdict == "error":
            raise Failed(answer)
        return answer

    def open(
        self, path: Path, torchvision: str, feeds: Mapping[str, np.ndarray], options: Mapping[str, str]
    ) -> tuple[dict[str, float], list[np.ndarray]]:
        """Load a model with *options* of the engine and run it once: the two times, and the outputs."""
        times, outputs = self.ask("open", path, torchvision, dict(feeds), dict(options))
        return times, outputs

    def time(self, seconds: float, at_least: int = 5, at_most: int = 200) -> list[float]:
        """Times of single runs in ms."""
        times: list[float] = self.ask("time", seconds, at_least, at_most)
        return times

    def stop(self) -> None:
        """End the child."""
        if self._pipe is not None:
            with contextlib.suppress(OSError):
                self._pipe.send(("quit", ()))
            self._pipe.close()
        if self._process is not None:
            self._process.join(5)
            if self._process.is_alive():
                self._process.kill()
                self._process.join()
        self._process = self._pipe = None
