"""Fixtures of the plug-in's tests."""

from __future__ import annotations

from collections.abc import Iterator

import onnxruntime_ep_vulkan
import pytest
from ep_stub import ScalingEngine, StubEngine
from onnxruntime_ep_vulkan import capability, devices, sessions


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> Iterator[StubEngine]:
    """Replaces claims, device and blocks by a :class:`StubEngine`."""
    onnxruntime_ep_vulkan.register()
    engine = StubEngine()
    monkeypatch.setattr(capability, "partition", engine.partition)
    monkeypatch.setattr(sessions, "make_block", engine.make_block)
    monkeypatch.setattr(devices, "open_for", engine.open_for)
    monkeypatch.setattr(devices, "label", str)
    yield engine


@pytest.fixture
def scaling(monkeypatch: pytest.MonkeyPatch) -> Iterator[ScalingEngine]:
    """Replaces claims and blocks by a :class:`ScalingEngine`; the device is real."""
    onnxruntime_ep_vulkan.register()
    engine = ScalingEngine()
    monkeypatch.setattr(capability, "partition", engine.partition)
    monkeypatch.setattr(sessions, "make_block", engine.make_block)
    yield engine
