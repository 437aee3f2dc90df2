"""What kernels may know of a device, and what is assumed where there is none."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from onnx_vulkan.codegen.choices import Tactics

if TYPE_CHECKING:
    from onnx_vulkan.device import Device

__all__ = ["TYPICAL", "DeviceLimits"]


@dataclass(frozen=True, slots=True)
class DeviceLimits:
    """What kernels may know of a device (``codegen.kernel.Limits``)."""

    subgroup_size: int
    max_workgroup_invocations: int
    max_shared_memory: int
    features: frozenset[str]
    precision: str
    tactics: Tactics | None = field(default=None, compare=False)

    @staticmethod
    def of(device: Device, precision: str = "strict", tactics: Tactics | None = None) -> DeviceLimits:
        """The limits of an opened device, and the precision and the tactics that a session allows."""
        limits = device.info.limits
        return DeviceLimits(
            limits.subgroup_size,
            limits.workgroup_invocations,
            limits.shared_memory,
            device.info.features,
            precision,
            tactics,
        )


TYPICAL = DeviceLimits(
    subgroup_size=32,
    max_workgroup_invocations=1024,
    max_shared_memory=48 << 10,
    features=frozenset(
        "f16 f64 i8 i16 i64 storage8 storage16 int_dot full_subgroups subgroup_size_control subgroup_basic subgroup_vote "
        "subgroup_arithmetic subgroup_ballot subgroup_shuffle subgroup_shuffle_relative subgroup_clustered".split()
    ),
    precision="strict",
)
"""A common GPU, without matrix units: for what is said of a model where no device is."""
