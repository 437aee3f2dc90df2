"""Python's garbage collector, kept quiet while much is built that stays."""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Iterator

__all__ = ["collector_paused"]

_lock = threading.Lock()
_pauses = 0
_was_enabled = False


@contextlib.contextmanager
def collector_paused() -> Iterator[None]:
    """No automatic collection meanwhile, in any thread.

    Planning makes some hundred thousand objects that live on, and each threshold that they cross has the collector walk over all
    objects of the process to free none: a fifth of the time, and far more next to a library with a large heap.
    """
    global _pauses, _was_enabled
    with _lock:
        if not _pauses:
            _was_enabled = gc.isenabled()
            gc.disable()
        _pauses += 1
    try:
        yield
    finally:
        with _lock:
            _pauses -= 1
            if not _pauses and _was_enabled:
                gc.enable()
