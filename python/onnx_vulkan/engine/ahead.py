"""Compiling ahead of need: one background thread for the process, so that a run seldom waits for a pipeline.

Jobs are short pieces (an iterator's steps): between two of them the thread looks whether the interpreter is ending, and waits
while a run plans (:func:`foreground`), since planning and compiling both need the interpreter's lock.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator

__all__ = ["drain", "foreground", "submit"]

GRACE = 0.03
"""Seconds after planning that a run may need to record, run and hand back its outputs."""
PATIENCE = 0.1
"""The most seconds that a piece waits for runs that plan: a steady stream of new sizes must not hold up their better plans."""

log = logging.getLogger("onnx_vulkan")

Job = Callable[[], Iterator[None]]

_lock = threading.Lock()
_jobs: queue.PriorityQueue[tuple[int, int, Job]] = queue.PriorityQueue()
_order = itertools.count()
_ending = threading.Event()
_planning = 0
_quiet_until = 0.0
_thread: threading.Thread | None = None


@contextlib.contextmanager
def foreground() -> Iterator[None]:
    """While a run plans: the background thread begins no other piece until a little later."""
    global _planning, _quiet_until
    with _lock:
        _planning += 1
    try:
        yield
    finally:
        with _lock:
            _planning -= 1
            _quiet_until = time.monotonic() + GRACE


def _give_way() -> None:
    until = time.monotonic() + PATIENCE
    while (_planning or time.monotonic() < _quiet_until) and time.monotonic() < until and not _ending.is_set():
        time.sleep(0.002)


def submit(job: Job, *, urgent: bool = False) -> None:
    """Run *job*'s steps later, after the jobs before it (an urgent one only after urgent ones).

    What it raises is logged at debug level: the run that needs its result will meet the same error.
    """
    global _thread
    _jobs.put((0 if urgent else 1, next(_order), job))
    with _lock:
        if _thread is None:
            # A daemon, so that the interpreter's end does not wait for the queue; _end waits for the step under way.
            _thread = threading.Thread(target=_work, name="onnx-vulkan-ahead", daemon=True)
            _thread.start()
            atexit.register(_end)


def _work() -> None:
    while not _ending.is_set():
        *_, job = _jobs.get()
        try:
            _give_way()
            for _ in job():
                _give_way()
                if _ending.is_set():
                    break
        except Exception:
            # Also at the interpreter's end, when the pools that a job works with are closed before this thread is.
            log.debug("compiling ahead failed", exc_info=True)
        finally:
            _jobs.task_done()


def _end() -> None:
    _ending.set()
    _jobs.put((0, -1, lambda: iter(())))
    if _thread is not None:
        _thread.join()


def drain() -> None:
    """Wait until all jobs given so far are done."""
    _jobs.join()
