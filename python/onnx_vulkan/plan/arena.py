"""Places values of known lifetime in one range of memory. A pure function of (size, first use, last use)."""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence

__all__ = ["ALIGNMENT", "place"]

ALIGNMENT = 256


def place(intervals: Sequence[tuple[int, int, int]]) -> tuple[list[int], int]:
    """Offsets for ``(bytes, first, last)`` intervals, whose lifetimes are closed ranges of positions, and the total size.

    Best fit over a list of free gaps in order of time; two intervals overlap in memory only if they never live together.
    """
    offsets = [0] * len(intervals)
    order = sorted(range(len(intervals)), key=lambda n: (intervals[n][1], -intervals[n][0]))
    living: list[tuple[int, int, int]] = []  # (last, offset, bytes), sorted
    gaps: list[tuple[int, int]] = []  # (offset, bytes), sorted by offset
    top = 0
    for n in order:
        size, first, last = intervals[n]
        size = -(-max(size, 1) // ALIGNMENT) * ALIGNMENT
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
