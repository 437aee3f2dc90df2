"""Places values of known lifetime in one range of memory. A pure function of (size, first use, last use)."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Sequence

__all__ = ["ALIGNMENT", "place"]

ALIGNMENT = 256

SPARE = 16 << 20
"""Bytes more than the most that live at once that are good enough: the tighter an arena, the more launches wait for others that
read what was there before."""
MANY = 1000
"""Of more values than these only one order is tried: each costs the square of their number."""

Interval = tuple[int, int, int]


def place(intervals: Sequence[Interval], spare: int = SPARE) -> tuple[list[int], int]:
    """Offsets for ``(bytes, first, last)`` intervals, whose lifetimes are closed ranges of positions, and the total size.

    Two intervals overlap in memory only if they never live together. Three orders of placing are tried until one needs at most
    *spare* bytes more than the least that there can be: by time (a chain of layers), by size, and by how full the moment is that
    an interval lives in.
    """
    aligned = [(-(-max(size, 1) // ALIGNMENT) * ALIGNMENT, first, last) for size, first, last in intervals]
    live = _live(aligned)
    enough = max(live, default=0) + spare
    best = _by_time(aligned)
    if best[1] <= enough or len(aligned) > MANY:
        return best
    everyone = range(len(aligned))
    breadth = [max(live[first : last + 1]) for _, first, last in aligned]
    orders = (
        sorted(everyone, key=lambda n: (-aligned[n][0], aligned[n][1])),
        sorted(everyone, key=lambda n: (-breadth[n], -aligned[n][0])),
    )
    for order in orders:
        other = _in_order(aligned, order)
        if other[1] < best[1]:
            best = other
        if best[1] <= enough:
            break
    return best


def _live(intervals: Sequence[Interval]) -> list[int]:
    """The bytes that live at each position."""
    change = [0] * (max((last for _, _, last in intervals), default=-1) + 2)
    for size, first, last in intervals:
        change[first] += size
        change[last + 1] -= size
    total, live = 0, []
    for by in change[:-1]:
        total += by
        live.append(total)
    return live


def _in_order(intervals: Sequence[Interval], order: Iterable[int]) -> tuple[list[int], int]:
    """Place one after the other, each in the tightest gap among those placed before that live with it."""
    offsets = [0] * len(intervals)
    placed: list[tuple[int, int, int, int]] = []  # (offset, end, first, last), sorted
    top = 0
    for n in order:
        size, first, last = intervals[n]
        at, tightest, end = -1, 0, 0
        for offset, its_end, its_first, its_last in placed:
            if its_first > last or its_last < first:
                continue
            gap = offset - end
            if gap >= size and (at < 0 or gap < tightest):
                at, tightest = end, gap
            if its_end > end:
                end = its_end
        if at < 0:
            at = end
        offsets[n] = at
        insort(placed, (at, at + size, first, last))
        top = max(top, at + size)
    return offsets, top


def _by_time(intervals: Sequence[Interval]) -> tuple[list[int], int]:
    """Best fit over a list of free gaps in order of time."""
    offsets = [0] * len(intervals)
    order = sorted(range(len(intervals)), key=lambda n: (intervals[n][1], -intervals[n][0]))
    living: list[tuple[int, int, int]] = []  # (last, offset, bytes), sorted
    gaps: list[tuple[int, int]] = []  # (offset, bytes), sorted by offset
    top = 0
    for n in order:
        size, first, last = intervals[n]
        while living and living[0][0] < first:
            _, offset, freed = living.pop(0)
            _release(gaps, offset, freed)
        best = min((g for g in gaps if g[1] >= size), key=lambda g: g[1], default=None)
        if best is not None:
            gaps.remove(best)
            offsets[n] = best[0]
            if best[1] > size:
                insort(gaps, (best[0] + size, best[1] - size))
        elif gaps and gaps[-1][0] + gaps[-1][1] == top:
            # the last gap reaches the top: grow it
            offsets[n] = gaps.pop()[0]
            top = offsets[n] + size
        else:
            offsets[n] = top
            top += size
        insort(living, (last, offsets[n], size))
    return offsets, top


def _release(gaps: list[tuple[int, int]], offset: int, size: int) -> None:
    insort(gaps, (offset, size))
    i = gaps.index((offset, size))
    if i + 1 < len(gaps) and gaps[i][0] + gaps[i][1] == gaps[i + 1][0]:
        gaps[i] = (gaps[i][0], gaps[i][1] + gaps[i + 1][1])
        del gaps[i + 1]
    if i > 0 and gaps[i - 1][0] + gaps[i - 1][1] == gaps[i][0]:
        gaps[i - 1] = (gaps[i - 1][0], gaps[i - 1][1] + gaps[i][1])
        del gaps[i]
