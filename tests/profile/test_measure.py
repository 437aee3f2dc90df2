"""What profiles make of timestamps."""

from __future__ import annotations

from onnx_vulkan.device import ProfileEntry
from onnx_vulkan.profile.measure import Span, _covered, _span_of, after_barriers, lanes


def span(start: float, ns: float) -> Span:
    return Span(0, "", (), (), start, ns)


def test_a_start_before_a_barrier_is_over_is_put_right() -> None:
    entries = [
        ProfileEntry(0, "a", 0, 100),
        ProfileEntry(1, "b", 10, 150),  # beside a
        ProfileEntry(3, "c", 60, 140),  # behind a barrier, stamped while it waited for b
        ProfileEntry(5, "d", 200, 10),
    ]
    found = after_barriers(entries)
    assert [(e.label, e.start_ns, e.ns) for e in found] == [("a", 0, 100), ("b", 10, 150), ("c", 160, 40), ("d", 200, 10)]
    assert _span_of(found) == 210


def test_time_that_kernels_cover() -> None:
    assert _covered([]) == 0
    assert _covered([span(0, 10), span(5, 10), span(30, 5), span(31, 1)]) == 20


def test_rows_without_overlaps() -> None:
    rows = lanes([span(0, 10), span(5, 10), span(10, 3), span(15, 1), span(14, 9)])
    assert [[s.start_ns for s in row] for row in rows] == [[0, 10, 14], [5, 15]]
