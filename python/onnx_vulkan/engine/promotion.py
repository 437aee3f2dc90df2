"""Which dims become run-time dims: declared ones, and those that are seen to change again and again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from onnx_vulkan.dims import Extent, symbols_of
from onnx_vulkan.engine.options import Options

__all__ = ["Promotion", "Runtime"]

GROWTH_CAPACITY = 128
"""The smallest capacity of a dim that grows by one from run to run (a decoder's cache)."""


@dataclass(frozen=True, slots=True)
class Runtime:
    """The run-time symbols of a plan with their capacities.

    ``at_once``: those that it must have from its first run on: declared ones, and all of them while one grows by one from run to
    run (a decode loop would ask for a plan each step). The others are an improvement that may come later.
    """

    all: Mapping[str, int]
    at_once: Mapping[str, int]


class Promotion:
    """Remembers the values of each symbol that plans were asked for.

    A symbol becomes run-time at its third distinct value. Its capacity is the next power of two, with room to grow where the
    value grew by one (a decode loop); it is doubled when outgrown, together with those that are about to be.
    """

    def __init__(self, options: Options):
        self.declared = dict(options.runtime_dims)
        self.automatic = options.auto_runtime_dims
        self.seen: dict[str, dict[int, None]] = {}
        self.capacity: dict[str, int] = {}

    def runtime(self, shapes: Mapping[str, tuple[Extent, ...]], numbers: Mapping[str, int]) -> Runtime:
        """The run-time symbols for a plan at *numbers*."""
        present = {name for shape in shapes.values() for e in shape for name in symbols_of(e)}
        chosen: dict[str, int] = {}
        declared: dict[str, int] = {}
        growing = False
        for name in sorted(present):
            n = numbers[name]
            if name in self.declared and n <= self.declared[name]:
                chosen[name] = declared[name] = self.declared[name]
                continue
            seen = self.seen.setdefault(name, {})
            # a decode loop only ever grows; batches that go up and down step by one as well
            values = list(seen)
            grows = bool(values) and values[-1] + 1 == n and values == sorted(values)
            seen.setdefault(n)
            if not self.automatic or len(seen) < 3:
                continue
            growing |= grows
            room = n + n // 4 if grows else n
            if room > self.capacity.get(name, -1):  # also when the third value is 0
                self.capacity[name] = max(1 << max(room - 1, 0).bit_length(), GROWTH_CAPACITY if grows else 1)
            chosen[name] = self.capacity[name]
        return Runtime(chosen, chosen if growing else declared)
