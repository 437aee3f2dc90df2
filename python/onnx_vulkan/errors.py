"""The exceptions that users meet. Each message is a sentence: what was asked, what stands against it, what to do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = [
    "Cancelled",
    "CompiledMismatch",
    "DeviceError",
    "DeviceLost",
    "InvalidInput",
    "LibraryError",
    "ModelError",
    "OnnxVulkanError",
    "OutOfDeviceMemory",
    "Refusal",
    "RefusedError",
    "ShadowMismatch",
    "ShapeMismatch",
    "Unsupported",
]


class OnnxVulkanError(Exception):
    """Base of every error that this package raises on purpose."""


class LibraryError(OnnxVulkanError, ImportError):
    """The native library is missing, or is not of the build that the package needs."""


class ModelError(OnnxVulkanError):
    """The model file is broken: not ONNX, data missing, a path that leaves its folder, an ill-formed graph."""


class InvalidInput(OnnxVulkanError):
    """A value given to a run does not fit the model: unknown or missing name, wrong dtype or shape."""


class ShapeMismatch(InvalidInput):
    """The shapes of this run break a constraint of the model, e.g. two operands that do not broadcast."""


class Unsupported(OnnxVulkanError):
    """Raised inside a lowering: this form of the operator has no right implementation here."""


class Cancelled(OnnxVulkanError):
    """A run was cancelled by its caller; it has no outputs, and the session can run again."""


class ShadowMismatch(OnnxVulkanError):
    """A kernel gave another result than the interpreter (option ``shadow``); the message names its nodes."""


class CompiledMismatch(OnnxVulkanError):
    """A compiled model was made for another device, driver, engine or setting, and was not to be planned anew."""


class DeviceError(OnnxVulkanError):
    """No usable Vulkan device, a missing feature, or a failed Vulkan call."""


class OutOfDeviceMemory(DeviceError):
    """The device, or the limit set by the user, has no room for an allocation."""


class DeviceLost(DeviceError):
    """The driver lost the device; sessions on it cannot run any more, the process goes on."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why one node is not claimed.

    ``check`` is one of ``opset``, ``dtype``, ``kernel``, or ``cost`` where it could run and is not worth it; ``reason`` is one
    sentence.
    """

    name: str
    op_type: str
    domain: str
    since_version: int
    check: str
    reason: str

    def __str__(self) -> str:
        op = f"{self.domain}::{self.op_type}" if self.domain else self.op_type
        return f"{op}-{self.since_version} {self.name!r} ({self.check}): {self.reason}"


class RefusedError(OnnxVulkanError):
    """The graph cannot run whole on Vulkan; ``refusals`` holds every offender, not only the first."""

    def __init__(self, model: str, refusals: Sequence[Refusal]):
        self.refusals = tuple(refusals)
        lines = "\n".join(f"  - {r}" for r in self.refusals)
        super().__init__(
            f"{model} cannot run wholly on Vulkan: {len(self.refusals)} node(s) are refused. Run it through ONNX Runtime "
            f"(providers=['VulkanEP', 'CPUExecutionProvider']) to leave these to the CPU:\n{lines}"
        )
