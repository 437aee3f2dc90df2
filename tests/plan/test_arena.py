"""The arena: values that live together do not overlap, and the whole is not much larger than it has to be."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st
from onnx_vulkan.plan.arena import ALIGNMENT, place


def rounded(size):
    return -(-max(size, 1) // ALIGNMENT) * ALIGNMENT


def check(intervals, spare=0):
    """No two values that live together overlap; gives the total and the largest sum of what lives at one time."""
    offsets, total = place(intervals, spare)
    assert len(offsets) == len(intervals)
    for n, (size, first, last) in enumerate(intervals):
        assert offsets[n] % ALIGNMENT == 0
        assert offsets[n] + rounded(size) <= total
        for m in range(n):
            other, begin, end = intervals[m]
            if first <= end and begin <= last:
                apart = offsets[n] + rounded(size) <= offsets[m] or offsets[m] + rounded(other) <= offsets[n]
                assert apart, (intervals[n], intervals[m])
    times = {first for _, first, _ in intervals}
    live = max((sum(rounded(s) for s, a, b in intervals if a <= t <= b) for t in times), default=0)
    assert total >= live
    return total, live


def test_nothing():
    assert place([]) == ([], 0)


def test_a_chain_needs_two_buffers():
    total, _ = check([(1000, t, t + 1) for t in range(20)])
    assert total == 2 * rounded(1000)


def test_one_residual_more():
    total, live = check([(4096, 0, 10), *((4096, t, t + 1) for t in range(10))])
    assert total == live == 3 * 4096


def test_a_growing_chain_grows_the_last_gap():
    total, live = check([(256 * n, n, n + 1) for n in range(1, 12)])
    assert total <= 1.5 * live


def test_empty_values_have_a_place():
    offsets, total = place([(0, 0, 3), (0, 1, 2)])
    assert offsets[0] != offsets[1]
    assert total == 2 * ALIGNMENT


@settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 30), st.integers(0, 12)), max_size=25))
def test_random_lifetimes(rows):
    check([(size, first, first + length) for size, first, length in rows])


def test_size_stays_near_what_lives():
    random.seed(1)
    ratios = []
    for _ in range(60):
        rows = []
        for t in range(60):
            size = random.choice([256, 1024, 4096, 65536, 1 << 20]) * random.randint(1, 8)
            rows.append((size, t, t + random.choice([1, 1, 1, 2, 5, 20])))
        total, live = check(rows)
        ratios.append(total / live)
    assert max(ratios) < 1.5
    assert sum(ratios) / len(ratios) < 1.1


def test_a_residual_network_takes_what_lives():
    """A wide value and its residual, narrow ones between them, halved from stage to stage: what time order alone spreads out."""
    rows = [(19, 0, 1)]
    for stage in range(4):
        wide, t = 100 >> stage, 10 * stage + 1
        rows += [(wide, t, t + 2), (wide // 4, t, t + 1), (wide // 4, t + 1, t + 2), (wide, t + 2, t + 5)]
        rows += [(wide // 4, t + 3, t + 4), (wide // 4, t + 4, t + 5), (wide, t + 5, t + 10)]
    total, live = check([(n << 20, first, last) for n, first, last in rows])
    assert total <= 1.02 * live


def test_a_little_room_to_spare_is_not_fought_for():
    """The order of time, which makes launches wait least."""
    rows = [(n << 8, t, t + 1 + n % 3) for t, n in enumerate([5, 3, 9, 1, 7, 2, 8, 4, 6] * 3)]
    assert check(rows, 1 << 20)[0] >= check(rows)[0]
    assert place(rows) == place(rows, 1 << 40)


def test_many_values_are_placed_by_time_alone():
    total, live = check([(4096 << n % 3, n, n + 1 + n % 5) for n in range(1200)])
    assert total < 1.5 * live
