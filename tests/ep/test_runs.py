"""Runs through ORT with hand-made plans: host memory, device memory, threads, errors, and nothing left behind."""

from __future__ import annotations

import gc
import json
import threading
from pathlib import Path

import numpy as np
import onnxruntime as ort
import onnxruntime_ep_vulkan
import pytest
from ep_stub import ORT_MINOR, ScalingEngine, device_memory, doubling, ep_devices, vulkan_session
from onnx_vulkan import errors
from onnx_vulkan._shim import lib
from onnx_vulkan.device import Device
from onnxruntime.capi import _pybind_state as C

stats_needed = pytest.mark.skipif(ORT_MINOR < 24, reason="statistics came with 1.24")


def numbers(n: int) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    return np.arange(n, dtype=np.float32) - n / 3


def device_session(model: bytes) -> ort.InferenceSession:
    """A session in device-memory mode."""
    settings = ort.SessionOptions()
    settings.log_severity_level = 4
    settings.add_provider_for_devices([d for d in ep_devices() if d.ep_metadata["memory"] == "device"], {})
    return ort.InferenceSession(model, settings, enable_fallback=0)


def on_device(array: np.ndarray) -> ort.OrtValue:  # type: ignore[type-arg]
    return ort.OrtValue.ortvalue_from_numpy(array, "gpu", 0, lib.OV_ORT_VENDOR_ID)


@pytest.mark.parametrize("chain", ["", "cpu"])
def test_host_memory(scaling: ScalingEngine, chain: str) -> None:
    session = vulkan_session(doubling(chain=chain))
    for n in (3, 1000, 3, 1):
        x = numbers(n)
        np.testing.assert_array_equal(session.run(None, {"x": x})[0], 2 * (np.abs(x) if chain else x))
    assert len(scaling.requests) == 3


@stats_needed
def test_statistics(scaling: ScalingEngine) -> None:
    session = vulkan_session(doubling(chain="cpu"))
    with pytest.raises(AssertionError, match="no block has run"):
        onnxruntime_ep_vulkan.assert_on_vulkan(session)
    for n in (3, 4, 3):
        session.run(None, {"x": numbers(n)})
    stats = onnxruntime_ep_vulkan.assert_on_vulkan(session)
    assert (stats.blocks, stats.claimed_nodes, stats.offered_nodes) == (1, 1, 3)
    assert (stats.runs, stats.plans, stats.dispatches) == (3, 2, 3)
    assert stats.device == Device.get().info.name


PLAN_ERRORS = [
    (errors.ShapeMismatch("The shapes do not fit."), "InvalidArgument"),
    (errors.Unsupported("That is too large."), "NotImplemented"),
    (errors.OutOfDeviceMemory("No room."), "EngineError"),
    (errors.DeviceLost("The device is lost."), "DeviceReset" if ORT_MINOR >= 28 else "EngineError"),
    (ZeroDivisionError("oops"), "EngineError"),
]


@pytest.mark.parametrize(("error", "kind"), PLAN_ERRORS, ids=lambda v: type(v).__name__ if isinstance(v, BaseException) else v)
def test_plan_errors_arrive_and_the_session_goes_on(scaling: ScalingEngine, error: BaseException, kind: str) -> None:
    session = vulkan_session(doubling())
    scaling.fail = error
    if ORT_MINOR >= 25:  # the fallback that ORT's Python wrapper keeps ready must not be taken either
        session.enable_fallback()
    with pytest.raises(Exception, match=str(error)) as caught:
        session.run(None, {"x": numbers(5)})
    assert type(caught.value).__name__ == kind
    scaling.fail = None
    np.testing.assert_array_equal(session.run(None, {"x": numbers(5)})[0], 2 * numbers(5))


@pytest.mark.parametrize("parallel", [False, True])
def test_threads_and_sessions(scaling: ScalingEngine, parallel: bool) -> None:
    sessions = []
    for _ in range(2):
        settings = ort.SessionOptions()
        if parallel:
            settings.execution_mode = ort.ExecutionMode.ORT_PARALLEL
        sessions.append(vulkan_session(doubling(chain="cpu"), {"contexts": 2}, sess_options=settings))
    failures: list[BaseException] = []

    def work(seed: int) -> None:
        random = np.random.default_rng(seed)
        try:
            for _ in range(20):
                x = numbers(int(random.integers(1, 40)))
                np.testing.assert_array_equal(sessions[seed % 2].run(None, {"x": x})[0], 2 * np.abs(x))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failures


def resident_bytes() -> int:
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * 4096


def test_sessions_leave_nothing_behind(scaling: ScalingEngine) -> None:
    def once() -> None:
        session = vulkan_session(doubling())
        session.run(None, {"x": numbers(100)})

    device = Device.get()
    for _ in range(20):
        once()
    gc.collect()
    before, live = resident_bytes(), device.counters()
    for _ in range(200):
        once()
    gc.collect()
    after = device.counters()
    assert resident_bytes() - before < 6 << 20
    assert all(after[name] == live[name] for name in ("live_bytes", "live_blocks", "live_plans", "live_allocations"))


# ---------------------------------------------------------------------------------------------------------------- device memory


@device_memory
def test_device_values(scaling: ScalingEngine) -> None:
    for n in (0, 1, 7, 5000):
        x = numbers(n)
        value = on_device(x)
        np.testing.assert_array_equal(value.numpy(), x)
    value = on_device(numbers(50))
    value.update_inplace(numbers(50) + 1)
    np.testing.assert_array_equal(value.numpy(), numbers(50) + 1)
    other = on_device(np.zeros(50, np.float32))
    if hasattr(C, "copy_tensors"):
        C.copy_tensors([value._ortvalue], [other._ortvalue], None)
        np.testing.assert_array_equal(other.numpy(), numbers(50) + 1)


@device_memory
def test_numpy_through_device_mode(scaling: ScalingEngine) -> None:
    session = device_session(doubling(chain="cpu"))
    for n in (3, 3000):
        np.testing.assert_array_equal(session.run(None, {"x": numbers(n)})[0], 2 * np.abs(numbers(n)))


@device_memory
def test_binding_copies_nothing(scaling: ScalingEngine) -> None:
    session = device_session(doubling())
    device = Device.get()
    values = [on_device(numbers(3000) + i) for i in range(3)]
    results = [on_device(np.zeros(3000, np.float32)) for _ in range(3)]

    def run(i: int) -> None:
        binding = session.io_binding()
        binding.bind_ortvalue_input("x", values[i])
        binding.bind_ortvalue_output("y", results[i])
        session.run_with_iobinding(binding)

    run(0)
    before = device.counters()
    for i in range(3):
        run(i)
    after = device.counters()
    assert after["runs"] == before["runs"] + 3
    for name in ("uploaded_bytes", "downloaded_bytes", "allocations"):
        assert after[name] == before[name], name
    for i in range(3):
        np.testing.assert_array_equal(results[i].numpy(), 2 * (numbers(3000) + i))


@device_memory
def test_device_input_and_output_made_by_ort(scaling: ScalingEngine) -> None:
    session = device_session(doubling())
    binding = session.io_binding()
    binding.bind_ortvalue_input("x", on_device(numbers(10)))
    binding.bind_output("y", "cpu")
    session.run_with_iobinding(binding)
    np.testing.assert_array_equal(binding.copy_outputs_to_cpu()[0], 2 * numbers(10))


@device_memory
def test_device_values_and_registration(scaling: ScalingEngine) -> None:
    gc.collect()
    value = on_device(numbers(10))
    live = lib.ov_ort_live_allocations()
    if ORT_MINOR >= 28:
        onnxruntime_ep_vulkan.unregister()
        onnxruntime_ep_vulkan.register()
    else:
        with pytest.raises(RuntimeError, match="device memory are alive"):
            onnxruntime_ep_vulkan.unregister()
    del value
    gc.collect()
    assert lib.ov_ort_live_allocations() == live - 1
    np.testing.assert_array_equal(on_device(numbers(4)).numpy(), numbers(4))


@device_memory
def test_device_memory_and_another_device(scaling: ScalingEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = ort.SessionOptions()
    settings.log_severity_level = 4
    settings.add_provider_for_devices(ep_devices()[1:], {"device": "no such device"})
    with pytest.raises(Exception, match="no such device"):
        ort.InferenceSession(doubling(), settings, enable_fallback=0)


@pytest.mark.skipif(ORT_MINOR < 25, reason="EP profilers came with 1.25")
def test_profile_has_the_kernels(scaling: ScalingEngine, tmp_path: Path) -> None:
    settings = ort.SessionOptions()
    settings.enable_profiling = True
    settings.profile_file_prefix = str(tmp_path / "trace")
    session = vulkan_session(doubling(chain="cpu"), sess_options=settings)
    for n in (100_000, 3):
        session.run(None, {"x": numbers(n)})
    trace = json.loads(Path(session.end_profiling()).read_text())
    ours = [e for e in trace if e.get("args", {}).get("provider") == "VulkanEP" and e["cat"] == "Kernel"]
    assert [e["name"] for e in ours] == ["double", "double"]
    run = next(e for e in trace if e["name"] == "model_run")
    assert run["ts"] <= ours[0]["ts"] <= run["ts"] + run["dur"]
    session.run(None, {"x": numbers(3)})  # and on without profiling
