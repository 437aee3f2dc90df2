"""Blocks and plans, with hand-made plans: matching, patches, copies, errors, counting."""

import gc
import struct
import threading
import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from onnx_vulkan.device import Device, DeviceTensor, MemoryKind, ReplayBlock, Request
from onnx_vulkan.errors import DeviceError, InvalidInput, OutOfDeviceMemory, Unsupported
from onnx_vulkan.plan.table import COMMAND, GUARD, IO, KEY, RELOC, Op, PlanTables, Segment
from plans import GATHER, rows, run_time_plan, scale_block, scale_plan


def floats(n: int) -> Any:
    return np.random.default_rng(n).standard_normal(n).astype(np.float32)


def staircase(x: Any) -> Any:
    """What run_time_plan computes."""
    n = len(x)
    return x + (np.arange(n) // (n // 2)).astype(np.float32)


def test_runs_of_several_shapes(device: Device) -> None:
    block = scale_block(device)
    for n in (5, 100, 5, 0, 100, 1000, 5, 0):
        x = floats(n)
        (y,) = block.run([x])
        assert y.shape == x.shape
        assert (y == 2 * x).all()
    info = block.info()
    assert (info["plans_made"], info["runs"], info["dispatches"]) == (4, 8, 12)


def test_steady_state_allocates_and_records_nothing(device: Device) -> None:
    calls = []

    def plan(request: Request) -> PlanTables:
        calls.append(request)
        return scale_plan(device, 300)

    block = ReplayBlock(device, 1, [np.float32], plan)
    x = floats(300)
    out = [np.empty_like(x)]
    block.run([x], out)
    before = device.counters()
    for _ in range(20):
        block.run([x], out)
    changed = {k: v - before[k] for k, v in device.counters().items() if v != before[k]}
    assert changed == {
        "submits": 20,
        "dispatches": 40,
        "barriers": 20,
        "runs": 20,
        "uploaded_bytes": 20 * x.nbytes,
        "downloaded_bytes": 20 * x.nbytes,
    }
    assert len(calls) == 1


def test_run_time_dims_replay_one_recording(device: Device) -> None:
    block = ReplayBlock(device, 1, [np.float32], lambda request: run_time_plan(device, 256))
    for n in (2, 64, 66, 128, 256, 10):
        x = floats(n)
        (y,) = block.run([x])
        assert (y == staircase(x)).all()
    info = block.info()
    assert (info["plans_made"], info["recordings"]) == (1, 1)


def test_a_longer_input_wants_another_plan(device: Device) -> None:
    block = ReplayBlock(
        device, 1, [np.float32], lambda request: run_time_plan(device, 1 << (request.inputs[0].shape[0] - 1).bit_length())
    )
    for n in (4, 8, 6, 100, 2, 128):
        x = floats(n)
        assert (block.run([x])[0] == staircase(x)).all()
    assert block.info()["plans_made"] == 3


def test_device_tensors_are_used_where_they_lie(device: Device) -> None:
    block = ReplayBlock(device, 1, [np.float32], lambda request: run_time_plan(device, 64))
    x = floats(32)
    source, target = device.weights(x), device.alloc(x.nbytes + 256)
    expected = staircase(x)
    there = DeviceTensor(target, (32,), 256)
    block.run([DeviceTensor(source, (32,))])
    before = device.counters()
    block.run([DeviceTensor(source, (32,))], [there])
    after = device.counters()
    assert after["uploaded_bytes"] == before["uploaded_bytes"]
    assert after["downloaded_bytes"] == before["downloaded_bytes"]
    assert (target.download(np.float32, (32,), 256) == expected).all()
    (y,) = block.run([there])
    assert (y == staircase(expected)).all()
    # A plan without external patches copies.
    fixed = scale_block(device)
    fixed.run([DeviceTensor(source, (32,))], [there])
    assert (target.download(np.float32, (32,), 256) == 2 * x).all()
    with pytest.raises(InvalidInput, match=r"shape \(32,\).*\(16,\)"):
        fixed.run([x], [DeviceTensor(target, (16,))])


def test_guards(device: Device) -> None:
    """n // 2 - 8 >= 0, answered either way, chooses between two plans; both answers are asked for once."""

    def plan(request: Request) -> PlanTables:
        n = request.inputs[0].shape[0]
        tables = run_time_plan(device, 64)
        code = (*tables.code, 2, 0, 1, 2, 5, 1, -8, 3, 0)
        guard = rows(GUARD, {"expr": len(tables.code), "nonneg": 1, "answer": int(n // 2 >= 8)})
        return replace(tables, code=code, guards=guard)

    block = ReplayBlock(device, 1, [np.float32], plan)
    for n, plans in ((4, 1), (6, 1), (32, 2), (16, 2), (14, 2)):
        block.run([floats(n)])
        assert block.info()["plans_made"] == plans


def test_host_known_inputs_are_part_of_the_key(device: Device) -> None:
    def plan(request: Request) -> PlanTables:
        scale = request.inputs[1].array(np.int64)
        tables = scale_plan(device, request.inputs[0].shape[0], float(scale[0]))
        return replace(
            tables,
            keys=np.concatenate([tables.keys, rows(KEY, {"symbol": -1, "value": 1})]),
            inputs=np.concatenate([tables.inputs, rows(IO, {"rank": 1, "bits": 64, "dims": 1, "flags": 3})]),
            host_keys=scale.tobytes(),
        )

    block = ReplayBlock(device, 2, [np.float32], plan)
    x = floats(10)
    for scale in (2, 3, 2, 4, 3):
        assert (block.run([x, np.array([scale])])[0] == np.float32(scale) * x).all()
    assert block.info()["plans_made"] == 3


def test_copies(device: Device) -> None:
    x = floats(64)
    y = device.weights(np.arange(64, dtype=np.float32))
    # The arena's first half is overwritten by a weight, its second by the input.
    copies = (
        {"op": Op.BARRIER},
        {"op": Op.COPY_ABSOLUTE, "a": y.handle, "push_offset": 16, "y": Segment.ARENA, "b": 0, "size": 128},
        {"op": Op.COPY, "x": Segment.INPUT, "a": 0, "y": Segment.ARENA, "b": 128, "size": 128},
        {"op": Op.BARRIER},
    )
    block = ReplayBlock(device, 1, [np.float32], lambda request: scale_plan(device, 64, middle=copies))
    assert (block.run([x])[0] == np.concatenate([np.arange(4, 36, dtype=np.float32), x[:32]])).all()


def gather_block(device: Device) -> ReplayBlock:
    def plan(request: Request) -> PlanTables:
        (count,), (n,) = request.inputs[0].shape, request.inputs[1].shape
        return PlanTables(
            commands=rows(COMMAND, {"op": Op.DISPATCH, "push_size": 40, "x": (n + 63) // 64, "y": 1, "z": 1}),
            push=struct.pack("<QQQQII", 0, 0, 0, 0, n, count),
            relocs=rows(
                RELOC,
                {"offset": 0, "segment": Segment.INPUT},
                {"offset": 8, "segment": Segment.INPUT, "addend": 4096},
                {"offset": 16, "segment": Segment.OUTPUT},
                {"offset": 24, "segment": Segment.ERROR},
            ),
            keys=rows(KEY, {"symbol": -1, "value": count}, {"symbol": -1, "value": n}),
            inputs=rows(
                IO,
                {"rank": 1, "bits": 32, "capacity": 4096},
                {"rank": 1, "bits": 64, "dims": 1, "offset": 4096, "capacity": 4096},
            ),
            outputs=rows(IO, {"rank": 1, "bits": 32, "capacity": 4 * n}),
            output_dims=(0,),
            code=(1, n, 0),
            pipelines=device.pipelines([GATHER]),
            labels=("gather",),
            input_size=8192,
            output_size=4 * n,
        )

    return ReplayBlock(device, 2, [np.float32], plan)


def test_an_index_outside_is_an_error_of_that_run_only(device: Device) -> None:
    block = gather_block(device)
    x = floats(10)
    good, bad = np.array([0, 9, 3]), np.array([0, 10, -7])
    for _ in range(2):
        assert (block.run([x, good])[0] == x[good]).all()
        with pytest.raises(InvalidInput, match=r"gather met the index (10|-7).*2 such"):
            block.run([x, bad])
    assert (block.run([x, good])[0] == x[good]).all()


def test_what_the_planner_raises_is_raised(device: Device) -> None:
    def plan(request: Request) -> PlanTables:
        if request.inputs[0].shape[0] == 1:
            raise Unsupported("no ones here")
        if request.inputs[0].shape[0] == 2:
            raise KeyError("a bug")
        if request.inputs[0].shape[0] == 3:
            return scale_plan(device, 4)
        if request.inputs[0].shape[0] == 6:
            return replace(scale_plan(device, 6), output_size=0)
        return scale_plan(device, request.inputs[0].shape[0])

    block = ReplayBlock(device, 1, [np.float32], plan)
    with pytest.raises(Unsupported, match="no ones"):
        block.run([floats(1)])
    with pytest.raises(KeyError, match="a bug"):
        block.run([floats(2)])
    with pytest.raises(DeviceError, match="no plan that serves"):
        block.run([floats(3)])
    with pytest.raises(DeviceError, match="ill-formed"):
        block.run([floats(6)])
    with pytest.raises(InvalidInput, match="2 inputs"):
        block.run([floats(4), floats(4)])
    assert (block.run([floats(5)])[0] == 2 * floats(5)).all()


def test_eviction_keeps_the_cap(device: Device) -> None:
    block = scale_block(device, plan_cap=4)
    for n in (*range(1, 30), 29, 28, 1):
        assert (block.run([floats(n)])[0] == 2 * floats(n)).all()
    info = block.info()
    assert (info["plans"], info["plans_made"], info["plans_evicted"]) == (4, 30, 26)


@pytest.mark.parametrize("contexts", [1, 2])
def test_threads_share_a_block(device: Device, contexts: int) -> None:
    block = scale_block(device, contexts=contexts, plan_cap=3)
    failures: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            for i in range(25):
                x = floats(10 + (i * 7 + seed) % 5)
                assert (block.run([x])[0] == 2 * x).all()
        except BaseException as e:
            failures.append(e)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failures
    info = block.info()
    assert info["runs"] == 100
    assert info["plans"] <= 3


def test_memory_goes_back(device: Device) -> None:
    gc.collect()
    before = device.counters()
    for i in range(200):
        block = scale_block(device)
        block.run([floats(10 + i % 3)])
        if i % 2:
            block.close()
            block.close()
        del block
    gc.collect()
    after = device.counters()
    for name in ("live_bytes", "committed_bytes", "live_allocations", "live_blocks", "live_plans"):
        assert after[name] == before[name], name


def test_release_after_run(device: Device) -> None:
    block = scale_block(device, release_after_run=True)
    live = device.counters()["live_bytes"]
    for n in (100, 2000, 100):
        assert (block.run([floats(n)])[0] == 2 * floats(n)).all()
        assert block.info()["segment_bytes"] == 0
        assert device.counters()["live_bytes"] == live


def test_the_memory_limit_fails_one_run(device: Device) -> None:
    block = scale_block(device)
    block.run([floats(10)])
    with device.limit_memory(device.counters()["committed_bytes"] + (6 << 20)):
        with pytest.raises(OutOfDeviceMemory, match="memory limit"):
            block.run([np.zeros(10 << 20, np.float32)])
        assert (block.run([floats(10)])[0] == 2 * floats(10)).all()


def test_profile(device: Device) -> None:
    block = scale_block(device)
    block.run([floats(100)])
    assert block.profile() == []
    block.set_profile(True)
    for n in (100, 5000):
        assert (block.run([floats(n)])[0] == 2 * floats(n)).all()
    entries = block.profile()
    assert [(e.command, e.label) for e in entries] == [(0, "scale"), (2, "copy")]
    assert all(e.ns > 0 for e in entries)
    assert entries[1].start_ns >= entries[0].ns
    block.set_profile(False)
    block.run([floats(100)])
    assert len(block.profile()) == 2


def test_times(device: Device) -> None:
    block = scale_block(device)
    assert not any(block.times().values())
    before = time.monotonic_ns()
    block.run([floats(5000)])
    elapsed = time.monotonic_ns() - before
    times = block.times()
    start = times.pop("start_ns")
    assert before <= start and sum(times.values()) <= before + elapsed - start
    assert all(ns >= 0 for ns in times.values()) and times["wait_ns"] > 0
    first = times["plan_ns"]
    block.run([floats(5000)])
    assert block.times()["start_ns"] > start and block.times()["plan_ns"] < first, "the plan is there"
    assert block.times()["record_ns"] < times["record_ns"]


def test_a_strided_array_and_a_readback_tensor(device: Device) -> None:
    block = scale_block(device)
    x = floats(40)[::2]
    assert (block.run([x])[0] == 2 * x).all()
    target = device.alloc(80, MemoryKind.READBACK)
    block.run([x], [DeviceTensor(target, (20,))])
    assert (target.download(np.float32, (20,)) == 2 * x).all()


def test_an_owner_goes_with_its_last_reference(device: Device) -> None:
    class Owner:
        def __init__(self) -> None:
            self.block = ReplayBlock(device, 1, [np.float32], self.plan)

        def plan(self, request: Request) -> PlanTables:
            return scale_plan(device, request.inputs[0].shape[0])

    before = device.counters()["live_blocks"]
    gc.disable()
    try:
        owner = Owner()
        assert (owner.block.run([floats(7)])[0] == 2 * floats(7)).all()
        del owner
        assert device.counters()["live_blocks"] == before
    finally:
        gc.enable()
