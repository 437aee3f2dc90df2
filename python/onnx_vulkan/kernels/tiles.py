"""Which tile a matrix product runs in, and over how many splits of K: one rule, from sizes and device limits.

Variants name a finite set (``TILES`` times powers of two up to ``MAX_SPLITS``), so pipelines stay warm across shapes.
"""

from __future__ import annotations

from dataclasses import dataclass

from onnx_vulkan.codegen.kernel import Limits

__all__ = ["MAX_SPLITS", "SCRATCH_ELEMENTS", "TILES", "Choice", "Tile", "choose_tile", "power_of_two"]

CORES = 128
"""Workgroups that a large GPU runs side by side at full speed (an H200 has 132 multiprocessors). Fewer leave it idle; on a
smaller device the same choice only means more rounds of smaller workgroups."""

MAX_SPLITS = 32
SCRATCH_ELEMENTS = 1 << 22
"""Partial sums of all splits together: 16 MiB of fp32, which stays in a large GPU's L2."""


@dataclass(frozen=True, slots=True)
class Tile:
    """``bm x bn`` results a workgroup in steps of ``bk`` along K, ``tm x tn`` a thread (multiples of 4).

    ``efficiency`` is the share of peak that a full device reaches with it, relative to the largest.
    """

    bm: int
    bn: int
    bk: int
    tm: int
    tn: int
    efficiency: float

    @property
    def threads(self) -> int:
        return (self.bm // self.tm) * (self.bn // self.tn)

    def shared_memory(self, item: int) -> int:
        """Bytes of shared memory for elements of *item* bytes (``POOL`` of gemm_tile.glsl)."""
        step = self.bk * (self.bm // 4 + 1 + self.bn // 4 + 1)
        return max(2 * step, self.bm // self.tm * (self.bn // 4 + 1)) * 4 * item


TILES = (
    Tile(128, 128, 16, 8, 8, 1.0),
    Tile(128, 128, 8, 8, 8, 0.95),  # for 32 KiB of shared memory
    Tile(128, 64, 16, 8, 4, 0.85),
    Tile(64, 64, 16, 4, 4, 0.7),
    Tile(64, 64, 8, 8, 4, 0.6),  # for 64-bit elements in 32 KiB
    Tile(64, 32, 16, 4, 4, 0.55),
    Tile(32, 32, 16, 4, 4, 0.45),
    Tile(32, 32, 8, 4, 4, 0.4),
)

STEP_COST = 600 * 128
"""Multiply-adds that a core could do while one step of K waits for memory when nothing else runs on it."""
LAUNCH_COST = 3400 * 128
"""The same for a second, dependent launch (2 us on an H200)."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A tile and the number of splits of K."""

    tile: Tile
    splits: int


def power_of_two(n: int) -> int:
    """The smallest power of two that is at least *n*."""
    return 1 << max(n - 1, 0).bit_length()


def choose_tile(rows: int, columns: int, depth: int, batch: int, item: int, limits: Limits) -> Choice:
    """The cheapest tile and split for ``batch`` products of ``rows x depth`` by ``depth x columns``, *item* bytes an element.

    The estimate: rounds of ``CORES`` workgroups, each as long as its multiply-adds at the tile's efficiency, but no shorter than
    the waits of its steps; a split adds a launch. It is exact enough to choose, and says nothing of milliseconds.
    """
    best: tuple[float, Choice] | None = None
    for tile in TILES:
        if tile.threads > limits.max_workgroup_invocations or tile.shared_memory(item) > limits.max_shared_memory:
            continue
        if limits.subgroup_size < 16 and tile.threads > 64:
            continue  # a CPU: large register tiles only cost it compile time (4 s for 128 x 128, against 0.5 s)
        tiles = -(-rows // tile.bm) * -(-columns // tile.bn) * batch
        steps = max(-(-depth // tile.bk), 1)
        splits = 1
        while splits <= MAX_SPLITS:
            # a split of fewer than 4 steps only moves sums about
            if splits > 1 and (steps < 4 * splits or splits * rows * columns * batch > SCRATCH_ELEMENTS):
                break
            groups = tiles * splits
            rounds = 1.0 if groups <= CORES else (float(-(-groups // CORES)) if groups <= 4 * CORES else groups / CORES)
            step = max(tile.bm * tile.bn * tile.bk / tile.efficiency, STEP_COST if groups <= CORES else 0)
            cost = rounds * step * -(-steps // splits)
            if splits > 1:
                cost += LAUNCH_COST + 4.0 * splits * rows * columns * batch * 32 / CORES
            if best is None or cost < best[0]:
                best = cost, Choice(tile, splits)
            splits *= 2
    assert best is not None, "no tile fits this device"
    return best[1]
