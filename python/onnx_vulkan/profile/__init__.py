"""Profiles of a model's runs: time, work and share of the roofline of each kernel, and where the host's time went."""

from __future__ import annotations

from onnx_vulkan.profile.measure import Kernel, Phase, Profile, Span, profile

__all__ = ["Kernel", "Phase", "Profile", "Span", "profile"]
