"""What every test gets: options of the model tests, and a watch over the validation layer's messages."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options of this project's tests."""
    group = parser.getgroup("onnx-vulkan")
    group.addoption("--heavy", action="store_true", help="also run the models that are too slow for a software driver")
    group.addoption("--update-gates", action="store_true", help="write tests/models/gates.json anew from this run")


def _messages() -> Sequence[str]:
    """What the validation layer has said so far; nothing while no test has opened the device."""
    info = sys.modules.get("onnx_vulkan.device.info")
    instance = info.Instance._current if info else None
    return tuple(instance.messages) if instance else ()


@pytest.fixture(autouse=True)
def _no_validation_messages() -> Iterator[None]:
    """Under ONNX_VULKAN_VALIDATION=1, fail a test that made the layer speak."""
    before = len(_messages())
    yield
    heard = _messages()[before:]
    if heard:
        pytest.fail("the validation layer said:\n" + "\n".join(heard), pytrace=False)
