"""Compiling ahead of need: one background thread for the process, so that a run seldom waits for a pipeline.

Jobs are short pieces (an iterator's steps): between two of them the thread looks whether the interpreter is ending.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

__all__ = ["drain", "submit"]

log = logging.getLogger("onnx_vulkan")

_lock = threading.Lock()
_pool: ThreadPoolExecutor | None = None
_last: Future[None] | None = None


def submit(job: Callable[[], Iterator[None]]) -> None:
    """Run *job*'s steps later, after the jobs before it. What it raises is logged: the run that needs its result will
    meet the same error."""
    global _pool, _last
    with _lock:
        if _pool is None:
            _pool = ThreadPoolExecutor(1, "onnx-vulkan-ahead")
        _last = _pool.submit(_run, job)


def _run(job: Callable[[], Iterator[None]]) -> None:
    try:
        for _ in job():
            if not threading.main_thread().is_alive():
                return
    except Exception:
        # Also at the interpreter's end, when the pools that the job works with are closed before this thread is.
        log.debug("compiling ahead failed", exc_info=True)


def drain() -> None:
    """Wait until all jobs given so far are done."""
    with _lock:
        last = _last
    if last is not None:
        last.result()
