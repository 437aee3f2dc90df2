"""Child processes that run one case through one door after the other: a crash or a hang is a verdict like any other."""

from __future__ import annotations

import multiprocessing
import time
from collections import deque
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection, wait

from onnx_cases import Case

__all__ = ["Result", "run_all"]

PATIENCE_SECONDS = 300.0
"""What a case may take before its process is ended."""

Result = tuple[str, str, str]
"""Verdict, check and reason, in words."""


def serve(pipe: Connection) -> None:
    """A child's life: one case through one door after the other."""
    from doors import attempt

    while True:
        try:
            case, door = pipe.recv()
        except EOFError:
            return
        outcome = attempt(case, door)
        pipe.send((outcome.verdict.value, outcome.check, outcome.reason))


class Worker:
    """A child process, and the case that it is at."""

    def __init__(self) -> None:
        spawn = multiprocessing.get_context("spawn")
        self.pipe, theirs = spawn.Pipe()
        self.process = spawn.Process(target=serve, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()
        self.number = -1
        self.since = 0.0

    def give(self, number: int, case: Case, door: str) -> None:
        self.number, self.since = number, time.monotonic()
        self.pipe.send((case, door))

    def late(self) -> bool:
        return time.monotonic() - self.since > PATIENCE_SECONDS

    def result(self) -> Result | None:
        """What came of the case; None where the child died of it."""
        try:
            found: Result = self.pipe.recv()
        except (EOFError, OSError):
            return None
        return found

    def end(self) -> int | None:
        """End the child; its exit code."""
        self.pipe.close()
        self.process.join(5)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        return self.process.exitcode


def run_all(tasks: Sequence[tuple[Case, str]], jobs: int) -> Iterator[tuple[int, Result]]:
    """Each task's number and result, as they come. A child that dies or hangs costs its case only."""
    waiting = deque(range(len(tasks)))
    workers: list[Worker] = []
    try:
        while waiting or workers:
            while waiting and len(workers) < jobs:
                workers.append(Worker())
                number = waiting.popleft()
                workers[-1].give(number, *tasks[number])
            ready = set(wait([w.pipe for w in workers], timeout=1.0))
            for worker in list(workers):
                if worker.pipe in ready:
                    found = worker.result()
                    number = worker.number
                    if found is not None and waiting:
                        following = waiting.popleft()
                        worker.give(following, *tasks[following])
                    else:
                        workers.remove(worker)
                        code = worker.end()
                        found = found or ("wrong", "", f"its process died with exit code {code}")
                    yield number, found
                elif worker.late():
                    workers.remove(worker)
                    worker.process.kill()
                    worker.end()
                    yield worker.number, ("wrong", "", f"no result within {PATIENCE_SECONDS:.0f} s")
    finally:
        for worker in workers:
            worker.process.kill()
            worker.end()
