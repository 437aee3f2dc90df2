"""The device that the tests run on."""

import pytest
from onnx_vulkan.device import Device


@pytest.fixture(scope="session")
def device() -> Device:
    return Device.get()
