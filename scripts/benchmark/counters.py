"""What our own engine tells about a run: counts, bytes over the link and their rate, time on the GPU."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import numpy as np
from counting import counted

__all__ = ["gpu_ms", "link_rates", "steady_facts"]

KEPT = ("dispatches", "barriers", "submits", "uploaded_bytes", "downloaded_bytes")


@cache
def link_rates(size: int = 64 << 20) -> tuple[float, float]:
    """Bytes per second up and down: the median of five copies of *size* bytes each way, after one to warm up."""
    from onnx_vulkan.device import Device

    host = np.ones(size, np.uint8)
    memory = Device.get().alloc(size)
    rates = []
    for copy in (lambda: memory.upload(host), lambda: memory.download(np.uint8, (size,))):
        times = []
        for _ in range(6):
            start = time.perf_counter()
            copy()
            times.append(time.perf_counter() - start)
        rates.append(size / statistics.median(times[1:]))
    memory.free()
    return rates[0], rates[1]


def steady_facts(run: Callable[[], Any]) -> dict[str, Any]:
    """Counts of one run, and the time that its bytes need at the link's rate."""
    counts = counted(run)
    up, down = link_rates()
    link = counts["uploaded_bytes"] / up + counts["downloaded_bytes"] / down
    return {**{name: counts[name] for name in KEPT}, "link_ms": 1e3 * link, "link_gb_per_s": [up / 1e9, down / 1e9]}


def gpu_ms(session: Any, feeds: Mapping[str, np.ndarray], runs: int = 9) -> float | None:
    """Median time from a run's first dispatch to the end of its last, by the device's timestamps; None without timestamps.

    A profiled run has timestamps round every dispatch, so this is an upper bound by a little.
    """
    block = session.block.replay
    block.set_profile(True)
    try:
        spans = []
        for _ in range(runs):
            session.run(feeds)
            entries = block.profile()
            if not entries:
                return None
            spans.append(max(e.start_ns + e.ns for e in entries) - min(e.start_ns for e in entries))
        return statistics.median(spans) / 1e6
    finally:
        block.set_profile(False)
