"""Which tile a matrix product runs in, and over how many splits of K: one rule, from sizes and device limits.

Variants name a finite set (``TILES`` times powers of two up to ``MAX_SPLITS``), so pipelines stay warm across shapes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from onnx_vulkan.codegen.kernel import Limits

__all__ = [
    "MAX_SPLITS",
    "SCRATCH_ELEMENTS",
    "TILES",
    "Choice",
    "Tile",
    "cheapest_split",
    "choose_tile",
    "legal_splits",
    "legal_tiles",
    "power_of_two",
]

CORES = 128
"""Workgroups that a large GPU runs side by side at full speed (an H200 has 132 multiprocessors). Fewer leave it idle; on a
smaller device the same choice only means more rounds of smaller workgroups."""

MAX_SPLITS = 32
SCRATCH_ELEMENTS = 1 << 22
"""Partial sums of all splits together: 16 MiB of fp32, which stays in a large GPU's L2."""


@dataclass(frozen=True, slots=True)
class Tile:
    """``bm x bn`` results a workgroup in steps of ``bk`` along K, ``tm x tn`` a thread (multiples of 4).

    ``efficiency`` is the share of its multiply-add rate that a full core keeps, ``resident`` how many workgroups a core holds.
    """

    bm: int
    bn: int
    bk: int
    tm: int
    tn: int
    efficiency: float
    resident: int

    @property
    def threads(self) -> int:
        return (self.bm // self.tm) * (self.bn // self.tn)

    def shared_memory(self, item: int) -> int:
        """Bytes of shared memory for elements of *item* bytes (``POOL`` of gemm_tile.glsl)."""
        step = self.bk * (self.bm // 4 + 1 + self.bn // 4 + 1)
        return max(2 * step, self.bm // self.tm * (self.bn // 4 + 1)) * 4 * item


TILES = (
    Tile(128, 128, 16, 8, 8, 0.75, 2),
    Tile(128, 128, 8, 8, 8, 0.65, 2),  # for 32 KiB of shared memory
    Tile(128, 64, 16, 8, 4, 0.62, 3),
    Tile(64, 64, 16, 8, 4, 0.65, 6),
    Tile(64, 64, 32, 8, 4, 0.5, 5),  # fewer, longer steps: where waiting for memory is what takes the time
    Tile(64, 64, 8, 8, 4, 0.5, 6),  # for 64-bit elements in 32 KiB
    Tile(32, 128, 16, 4, 8, 0.55, 6),  # few rows
    Tile(64, 32, 16, 4, 4, 0.52, 8),
    Tile(32, 32, 16, 4, 4, 0.4, 12),
    Tile(32, 32, 32, 4, 4, 0.35, 8),
    Tile(32, 32, 8, 4, 4, 0.3, 12),
)

LANES = 128
"""Multiply-adds that a core makes in a cycle."""
WAIT = 500
"""Cycles of a step that pass in waiting (memory, barriers) and that only other workgroups of the core can fill."""
LAUNCH = 5000
"""Cycles of a second, dependent launch with its barrier (2.5 us on an H200)."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A tile and the number of splits of K."""

    tile: Tile
    splits: int

    @property
    def name(self) -> str:
        t = self.tile
        return f"tile {t.bm}x{t.bn}x{t.bk}, {t.tm}x{t.tn} a thread, {self.splits} splits"


def power_of_two(n: int) -> int:
    """The smallest power of two that is at least *n*."""
    return 1 << max(n - 1, 0).bit_length()


class Shape(Protocol):
    """What the estimate asks of a tile: its results, and how many workgroups a core holds."""

    @property
    def bm(self) -> int: ...
    @property
    def bn(self) -> int: ...
    @property
    def resident(self) -> int: ...


def cycles(work: float, wait: float, resident: int, groups: int, steps: int) -> float:
    """An estimate of the cycles that *groups* workgroups of *steps* steps each take on ``CORES`` cores.

    A step is *work* cycles of multiply-adds and *wait* of waiting. Workgroups that share a core (*resident* at most) take turns:
    a step of all of them lasts as long as their multiply-adds, but no less than one's own with its waiting. Good enough to
    choose by; it says nothing of milliseconds.
    """
    rounds, rest = divmod(-(-groups // CORES), resident)
    step = rounds * max(work + wait, resident * work)
    if rest:
        step += max(work + wait, rest * work)
    return step * steps


def cheapest_split(
    tile: Shape, step: int, work: float, wait: float, sizes: tuple[int, int, int, int], item: int
) -> tuple[float, int]:
    """The cost of a product of *sizes* (rows, columns, depth, batch) in a tile, and the number of splits of K at which it has it.

    *step* elements of K at a time, *work* and *wait* as for :func:`cycles`, *item* bytes a sum.
    """
    rows, columns, depth, batch = sizes
    tiles = -(-rows // tile.bm) * -(-columns // tile.bn) * batch
    steps = max(-(-depth // step), 1)
    best = cycles(work, wait, tile.resident, tiles, steps), 1
    splits = 2
    # a split of fewer than 4 steps only moves sums about
    while splits <= MAX_SPLITS and steps >= 4 * splits and splits * rows * columns * batch <= SCRATCH_ELEMENTS:
        cost = cycles(work, wait, tile.resident, tiles * splits, -(-steps // splits))
        # the sums are written and read once: about 16 bytes a cycle and core
        cost += LAUNCH + 2 * splits * rows * columns * batch * item / (16 * CORES)
        best = min(best, (cost, splits))
        splits *= 2
    return best


def legal_splits(step: int, sizes: tuple[int, int, int, int]) -> Iterator[int]:
    """The numbers of splits of K that a product of *sizes* (rows, columns, depth, batch) may have, in steps of *step*."""
    rows, columns, depth, batch = sizes
    splits = 1
    while splits == 1 or (
        splits <= MAX_SPLITS and -(-depth // step) >= 2 * splits and splits * rows * columns * batch <= SCRATCH_ELEMENTS
    ):
        yield splits
        splits *= 2


def legal_tiles(item: int, limits: Limits) -> list[Tile]:
    """The tiles that a device can run, for elements of *item* bytes in registers and shared memory."""
    return [
        tile
        for tile in TILES
        if tile.threads <= limits.max_workgroup_invocations
        and tile.shared_memory(item) <= limits.max_shared_memory
        # on a CPU large register tiles only cost compile time (4 s for 128 x 128, against 0.5 s)
        and (limits.subgroup_size >= 16 or tile.threads <= 64)
    ]


def choose_tile(rows: int, columns: int, depth: int, batch: int, item: int, limits: Limits) -> Choice:
    """The cheapest tile and split for ``batch`` products of ``rows x depth`` by ``depth x columns``, *item* bytes an element."""
    best: tuple[float, Choice] | None = None
    for tile in legal_tiles(item, limits):
        work = tile.bm * tile.bn * tile.bk / LANES / tile.efficiency
        cost, splits = cheapest_split(tile, tile.bk, work, WAIT, (rows, columns, depth, batch), item)
        if best is None or cost < best[0]:
            best = cost, Choice(tile, splits)
    assert best is not None, "no tile fits this device"
    return best[1]
