"""What the engine's counters say about one piece of work. Used by the gates and by the bench."""

from __future__ import annotations

from collections.abc import Callable

from onnx_vulkan.device import Device

__all__ = ["STEADY_ZERO", "counted"]

STEADY_ZERO = (
    "allocations",
    "chunks",
    "recordings",
    "plans_made",
    "glsl_compiles",
    "pipelines_created",
)
"""Counters that a run of shapes seen before must leave alone: no allocation, no plan, no recording, no compilation."""


def counted(work: Callable[[], object], device: Device | None = None) -> dict[str, int]:
    """How far each counter of the device rose while *work* ran."""
    device = device or Device.get()
    before = device.counters()
    work()
    return {name: value - before[name] for name, value in device.counters().items()}
