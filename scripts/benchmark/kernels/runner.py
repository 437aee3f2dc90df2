"""One piece of work, loaded and run: on this engine (time by the device's timestamps) and on torch (time by CUDA events)."""

from __future__ import annotations

import time
from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
import onnx_vulkan
from onnx_vulkan import claims, frontend
from onnx_vulkan.device import Device, DeviceTensor
from onnx_vulkan.engine.block import Block
from onnx_vulkan.engine.options import Options, parse_options
from onnx_vulkan.errors import RefusedError

from benchmark.kernels.work import Work

__all__ = ["Ours", "Torch", "torch_missing"]

RESIDENT_BYTES = 1 << 20
"""Work with more bytes of inputs and outputs keeps them in device memory: copies to the host would take the time."""


class Ours:
    """The standalone engine with the model of *work*. Raises what loading raises."""

    def __init__(self, work: Work):
        self.work = work
        (output,) = work.model.graph.output
        self.shape = tuple(d.dim_value for d in output.type.tensor_type.shape.dim)
        dtypes = {1: np.dtype(np.float32), 6: np.dtype(np.int32), 10: np.dtype(np.float16)}
        self.dtype = dtypes[output.type.tensor_type.elem_type]
        size = prod(self.shape) * self.dtype.itemsize
        arrays = [np.ascontiguousarray(array) for array in work.feeds.values()]
        self.resident = size + sum(a.nbytes for a in arrays) > RESIDENT_BYTES
        options = parse_options(work.options, Options)
        data = work.model.SerializeToString()
        self.session: onnx_vulkan.Session | None = None
        if not self.resident:
            self.session = onnx_vulkan.Session.load(data, options=options)
            self.block, self.inputs, self.outputs = self.session.block, arrays, None
            return
        device = Device.get()
        graph = frontend.load(data)
        refusals = claims.partition(graph, features=device.info.features).refusals
        if refusals:
            raise RefusedError(graph.name, refusals)
        self.block = Block(graph, device, options, external=True)
        self.inputs = [DeviceTensor(device.weights(array), array.shape) for array in arrays]
        self.memory = device.alloc(max(size, 1))
        self.outputs = [DeviceTensor(self.memory, self.shape)]

    def run(self) -> list[Any]:
        """Run once and wait."""
        return self.block.replay.run(self.inputs, self.outputs)

    def error(self) -> float:
        """The error of a run's result; poison lay where it is written."""
        if self.resident:
            poison = np.full(min(self.memory.size, 1 << 24), 0xA5, np.uint8)
            for start in range(0, self.memory.size, len(poison)):
                self.memory.upload(poison[: self.memory.size - start], start)
        (result,) = self.run()
        if not self.resident:
            return self.work.check(lambda start, count: result.reshape(-1)[start : start + count])
        step = self.dtype.itemsize
        return self.work.check(lambda start, count: self.memory.download(self.dtype, (count,), start * step))

    def wall_ms(self, seconds: float) -> list[float]:
        """Wall times of whole runs, with copies where the tensors are not resident."""
        return _repeat(self.run, seconds)

    def gpu_ms(self, seconds: float) -> list[float]:
        """GPU times of runs from the first kernel's start to the last one's end; copies of inputs and outputs do not count.

        Empty where the device has no timestamps.
        """
        replay = self.block.replay
        replay.set_profile(True)
        try:
            spans: list[float] = []

            def run() -> None:
                self.run()
                entries = [e for e in replay.profile() if e.label not in ("input", "output")]
                self.kernels = [(e.label, e.ns / 1e3) for e in entries]
                if entries:
                    spans.append((max(e.start_ns + e.ns for e in entries) - min(e.start_ns for e in entries)) / 1e6)

            _repeat(run, seconds)
            return spans
        finally:
            replay.set_profile(False)

    def close(self) -> None:
        """Give the memory back."""
        self.block.close()
        if self.session is not None:
            self.session.close()
        if self.resident:
            self.memory.free()
            for tensor in self.inputs:
                tensor.memory.free()


def _repeat(run: Callable[[], Any], seconds: float, at_least: int = 5, at_most: int = 500) -> list[float]:
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < at_least or (time.perf_counter() < end and len(times) < at_most):
        start = time.perf_counter()
        run()
        times.append(1e3 * (time.perf_counter() - start))
    return times


def torch_missing() -> str | None:
    """Why torch cannot take part, or None."""
    try:
        import torch
    except ImportError:
        return "the package torch is not installed"
    return None if torch.cuda.is_available() else "torch finds no CUDA device"


class Torch:
    """The same work in torch: a CUDA graph of several runs of it, timed by events."""

    def __init__(self, work: Work):
        import torch

        assert work.torch is not None
        self.torch = torch
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = work.tf32
        torch.backends.cudnn.benchmark = True
        self.times = 1 if work.unit == "ms" else 4
        with torch.inference_mode():
            self.run = run = work.torch(torch)  # it holds the inputs, which the graph reads
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for _ in range(3):
                    run()
            torch.cuda.current_stream().wait_stream(stream)
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.keep = [run() for _ in range(self.times)]
        torch.cuda.synchronize()

    def gpu_ms(self, seconds: float) -> list[float]:
        """GPU times of one run of the work."""
        event = self.torch.cuda.Event
        spans: list[float] = []

        def run() -> None:
            before, after = event(enable_timing=True), event(enable_timing=True)
            before.record()
            self.graph.replay()
            after.record()
            after.synchronize()
            spans.append(before.elapsed_time(after) / self.times)

        _repeat(run, seconds)
        return spans

    def close(self) -> None:
        """Let go of the graph and its memory."""
        self.graph = self.keep = self.run = None
        self.torch.cuda.empty_cache()
