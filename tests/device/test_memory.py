"""Allocation, copies, shared weights, the memory limit."""

import itertools
import random
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from onnx_vulkan.device import Device, MemoryKind
from onnx_vulkan.device.native import ffi, lib
from onnx_vulkan.errors import DeviceError, OutOfDeviceMemory


def live(device: Device) -> tuple[int, int]:
    counts = device.counters()
    return counts["live_bytes"], counts["committed_bytes"]


def test_pieces_do_not_overlap_and_all_goes_back(device: Device) -> None:
    before = live(device)
    rng = random.Random(1)
    held = []
    for step in range(600):
        if held and rng.random() < 0.45:
            held.pop(rng.randrange(len(held))).free()
        else:
            kind = rng.choice(list(MemoryKind))
            held.append(device.alloc(rng.choice([0, 1, 255, 256, 257, 70_000, 3 << 20]), kind))
        if step % 100 == 0:
            spans = sorted((m.address, m.address + m.size) for m in held)
            assert all(a[1] <= b[0] for a, b in itertools.pairwise(spans))
            assert all(m.address % 256 == 0 for m in held)
    for m in held:
        m.free()
        m.free()
    assert live(device) == before


@pytest.mark.parametrize("kind", list(MemoryKind))
@pytest.mark.parametrize("count", [1, 100, 11_000_000])
def test_bytes_come_back(device: Device, kind: MemoryKind, count: int) -> None:
    x = np.arange(count, dtype=np.int32)
    memory = device.alloc(x.nbytes + 4, kind)
    memory.upload(x, offset=4)
    assert (memory.download(np.int32, x.shape, offset=4) == x).all()
    with pytest.raises(ValueError):
        memory.upload(x, offset=8)


def test_weights_are_shared_by_content(device: Device) -> None:
    x = np.random.default_rng(0).standard_normal((100, 30)).astype(np.float32)
    before = device.counters()
    first, second = device.weights(x), device.weights(x.copy())
    other = device.weights(x + 1)
    assert first.address == second.address != other.address
    assert device.counters()["uploaded_bytes"] - before["uploaded_bytes"] == 2 * x.nbytes
    first.free()
    assert (second.download(np.float32, x.shape) == x).all()
    second.free()
    other.free()
    after = device.counters()
    assert (after["live_bytes"], after["shared_weights"]) == (before["live_bytes"], before["shared_weights"])


def test_an_array_of_any_layout(device: Device) -> None:
    x = np.arange(12, dtype=np.int16).reshape(3, 4)
    memory = device.weights(x.T)
    assert (memory.download(np.int16, (4, 3)) == x.T).all()
    assert device.weights(np.zeros((0, 3), np.float32)).size == 0
    assert device.weights(np.array(2.5)).download(np.float64, ()) == 2.5


def test_the_limit_is_a_sentence(device: Device) -> None:
    committed = device.counters()["committed_bytes"]
    with device.limit_memory(committed + (8 << 20)):
        small = device.alloc(5 << 20)
        with device.limit_memory(committed + (64 << 20)), pytest.raises(OutOfDeviceMemory, match=r"16\.0 MiB.*limit of"):
            device.alloc(16 << 20)
        small.free()
    with pytest.raises(OutOfDeviceMemory, match="at most"):
        device.alloc(device.info.limits.max_allocation + 1)
    device.alloc(16 << 20).free()


def test_addresses_outside_are_refused(device: Device) -> None:
    memory = device.alloc(1024)
    memory.address += 1 << 40
    with pytest.raises(DeviceError, match="not in one live allocation"):
        memory.upload(b"1234")


def test_large_copies_are_shared_among_threads(device: Device) -> None:
    """All bytes arrive, at sizes off the pieces, also where several threads copy at once and each right after the other."""

    def copy(n: int) -> None:
        source = np.random.default_rng(n).integers(0, 256, n, np.uint8)
        target = np.zeros(n + 2, np.uint8)
        at = target.ctypes.data
        for _ in range(3):
            target[...] = 255
            lib.ov_copy_host(device.native, ffi.cast("void *", at + 1), ffi.cast("void *", source.ctypes.data), n)
            assert target[0] == target[-1] == 255
            assert (target[1:-1] == source).all()

    sizes = [0, 1, 1000, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, 3 * (1 << 20) + 77, 5 << 20]
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(copy, sizes * 2))


@pytest.mark.parametrize("dtype", [np.float32, np.uint8, object])
def test_copied_arrays_are_their_own(device: Device, dtype: type) -> None:
    source = np.arange(700_000).astype(dtype).reshape(700, 1000)
    for array in (source, source[:3], source.T, source[:0]):
        copy = device.copied(array)
        assert copy.dtype == array.dtype
        assert (copy == array).all()
        assert not np.shares_memory(copy, array)
        assert copy.flags.writeable
