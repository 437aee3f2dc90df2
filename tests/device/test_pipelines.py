"""Shaders to pipelines: counters, includes, errors, and the caches on disk."""

import fcntl
import struct
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from onnx_vulkan.device import Device, Shader, compile
from onnx_vulkan.errors import DeviceError
from plans import SCALE


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "onnx-vulkan"


def test_a_known_shader_makes_nothing(device: Device) -> None:
    variants = [replace(SCALE, spec=(n,)) for n in (32, 64, 128)]
    made = device.pipelines(variants)
    assert len(set(made)) == 3
    before = device.counters()
    assert device.pipelines([*reversed(variants)]) == made[::-1]
    after = device.counters()
    assert after["pipelines_created"] == before["pipelines_created"]
    assert after["glsl_compiles"] == before["glsl_compiles"]
    assert after["pipeline_hits"] == before["pipeline_hits"] + 3


def test_kernels_of_equal_text_are_one_pipeline(device: Device) -> None:
    first, second = device.pipelines([replace(SCALE, label=name) for name in ("layer 1", "layer 2")])
    assert first == second


def test_idle_pipelines_go_and_held_ones_stay(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onnx_vulkan.device.pipelines.IDLE_KEPT", 0)
    device.lease_pipelines().release()  # what other tests left
    monkeypatch.setattr("onnx_vulkan.device.pipelines.IDLE_KEPT", 2)
    variants = [replace(SCALE, spec=(n,)) for n in range(201, 207)]
    mine, other = device.lease_pipelines(), device.lease_pipelines()
    handles = mine.get(variants)
    assert other.get(variants[:1]) == handles[:1]
    before = device.counters()
    mine.release()
    after = device.counters()
    assert after["pipelines_evicted"] == before["pipelines_evicted"] + 3  # five idle ones, two are kept
    assert after["live_pipelines"] == before["live_pipelines"] - 3
    assert len(device.pipelines_missing(variants)) == 3
    assert other.get(variants[:1]) == handles[:1]
    assert len(set(mine.get(variants))) == 6  # those that went are made again
    assert device.counters()["pipelines_created"] == before["pipelines_created"] + 3
    before = device.counters()
    del mine, other  # a lease ends with its last reference
    assert device.counters()["pipelines_evicted"] == before["pipelines_evicted"] + 4


@pytest.mark.parametrize("local", [1, 32, 256])
def test_specialization_and_push_constants(device: Device, local: int) -> None:
    x = np.arange(1000, dtype=np.float32)
    a, b = device.weights(x), device.alloc(x.nbytes)
    ns = device.run_once(replace(SCALE, spec=(local,)), struct.pack("<QQIf", a.address, b.address, 1000, 3.0), (1000, 1, 1))
    assert (b.download(np.float32, x.shape) == 3 * x).all()
    assert ns > 0 or not device.info.timestamp_bits


def test_compile_errors_quote_the_line(cache: Path) -> None:
    with pytest.raises(DeviceError, match=r"(?s)line 3.*nonsense.*x = nonsense"):
        compile.spirv("#version 460\nvoid main() {\nint x = nonsense;\n}\n")


def test_a_failed_shader_is_tried_again(device: Device, cache: Path) -> None:
    for _ in range(2):
        with pytest.raises(DeviceError, match="does not compile"):
            device.pipelines([Shader("#version 460\nvoid main() { oops }")])


def test_includes(cache: Path) -> None:
    with pytest.raises(DeviceError, match="not in the shaders package"):
        compile.spirv('#version 460\n#include "missing.glsl"\nvoid main() {}')
    with pytest.raises(DeviceError, match="inside the shaders package"):
        compile.spirv('#version 460\n#include "../x.glsl"\nvoid main() {}')


def test_spirv_cache_is_used_and_rebuilt(cache: Path) -> None:
    source = "#version 460\nvoid main() { /* test */ }\n"
    first = compile.spirv(source)
    (path,) = cache.rglob("*.spv")
    compiles, hits = compile.counters.glsl_compiles, compile.counters.spirv_hits
    assert compile.spirv(source) == first
    assert (compile.counters.glsl_compiles, compile.counters.spirv_hits) == (compiles, hits + 1)
    for damage in (b"", b"xy", path.read_bytes()[:-4], path.read_bytes()[:40] + b"\xff" + path.read_bytes()[41:]):
        path.write_bytes(damage)
        assert compile.spirv(source) == first
    assert compile.counters.glsl_compiles == compiles + 4
    assert not list(cache.rglob("*.tmp"))


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    assert compile.spirv("#version 460\nvoid main() {}")[:4] == compile.SPIRV_MAGIC


def test_a_process_that_stopped_while_it_writes_the_cache_holds_up_nobody(device: Device) -> None:
    pipelines = device._pipelines
    device.pipelines([replace(SCALE, spec=(48,))])
    pipelines._unsaved = True
    with pipelines._path.with_suffix(".lock").open("wb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        begun = time.monotonic()
        pipelines.save()
        assert time.monotonic() - begun < 5
        assert pipelines._unsaved
    pipelines.save()
    assert not pipelines._unsaved and pipelines._path.exists()
