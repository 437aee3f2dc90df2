"""The sides of the comparison. Each opens a model of the catalog and gives a function that runs it once, to be timed.

This runs inside the contender's own child process (`worker`): what one library does to a process, or a crash, stays there.
Everything heavy is imported late, and only by the side that needs it.
"""

from __future__ import annotations

import importlib.util
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["CONTENDERS", "Contender", "make"]

Feeds = Mapping[str, np.ndarray]
Outputs = list[np.ndarray]


class Contender(ABC):
    """One way to run a model. ``open`` may be called again with another model, which lets go of the last one."""

    name: str
    label: str
    on_gpu = True

    @classmethod
    def missing(cls) -> str | None:
        """Why this side cannot take part here, as a sentence, or None."""
        return None

    def import_packages(self) -> None:  # noqa: B027  (counts as loading where it is not done before)
        """Import what a user imports before loading a model."""

    @abstractmethod
    def open(self, path: Path, torchvision: str, feeds: Feeds, options: Mapping[str, str]) -> None:
        """Load the model; *options* are this engine's. Raises with a sentence when this side cannot run it."""

    @abstractmethod
    def run(self, feeds: Feeds) -> Outputs:
        """One run, numpy in and out; the outputs in the model's order."""

    def facts(self, feeds: Feeds) -> dict[str, Any]:
        """What this side knows about its last run besides the time, e.g. GPU time and counters."""
        return {}

    def structures(self) -> int | None:
        """How many structures the engine has built for the model, where this side can tell."""
        return None

    def close(self) -> None:  # noqa: B027  (a side that holds nothing has nothing to do)
        """Let go of the model."""


def _quiet() -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    return options


class OrtCpu(Contender):
    """ONNX Runtime's CPU EP with its default thread count: also the reference for right."""

    name = "cpu"
    label = "ORT CPU EP"
    on_gpu = False
    session: Any = None

    def _session(self, path: Path, options: Mapping[str, str]) -> Any:
        import onnxruntime

        return onnxruntime.InferenceSession(str(path), _quiet(), providers=["CPUExecutionProvider"])

    def open(self, path: Path, torchvision: str, feeds: Feeds, options: Mapping[str, str]) -> None:
        self.session = None
        self.session = self._session(path, options)

    def run(self, feeds: Feeds) -> Outputs:
        return list(self.session.run(None, dict(feeds)))

    def close(self) -> None:
        self.session = None


class OrtVulkan(OrtCpu):
    """Ours, through ONNX Runtime."""

    name = "ep"
    label = "ours, VulkanEP"
    on_gpu = True

    def import_packages(self) -> None:
        import onnxruntime  # noqa: F401
        import onnxruntime_ep_vulkan  # noqa: F401

    def _session(self, path: Path, options: Mapping[str, str]) -> Any:
        import onnxruntime
        import onnxruntime_ep_vulkan

        providers = [("VulkanEP", dict(options))]
        session = onnxruntime.InferenceSession(str(path), _quiet(), providers=providers, enable_fallback=0)
        self._assert_on_vulkan = onnxruntime_ep_vulkan.assert_on_vulkan
        return session

    def facts(self, feeds: Feeds) -> dict[str, Any]:
        from benchmark.counters import steady_facts

        self._assert_on_vulkan(self.session)
        return steady_facts(lambda: self.run(feeds))


class Standalone(Contender):
    """Ours, without ONNX Runtime."""

    name = "standalone"
    label = "ours, standalone"
    session: Any = None

    def import_packages(self) -> None:
        import onnx_vulkan  # noqa: F401

    def open(self, path: Path, torchvision: str, feeds: Feeds, options: Mapping[str, str]) -> None:
        import onnx_vulkan

        self.close()
        self.session = onnx_vulkan.Session.load(path, options=options)

    def run(self, feeds: Feeds) -> Outputs:
        return list(self.session.run(feeds).values())

    def facts(self, feeds: Feeds) -> dict[str, Any]:
        from benchmark.counters import gpu_ms, steady_facts

        peak = self.session.device.counters()["peak_bytes"]  # before anything is measured that a user would not do
        return {**steady_facts(lambda: self.run(feeds)), "gpu_ms": gpu_ms(self.session, feeds), "peak_bytes": peak}

    def structures(self) -> int | None:
        return len(self.session.block.structures)

    def close(self) -> None:
        if self.session is not None:
            self.session.close()
        self.session = None


class OrtWebGpu(OrtCpu):
    """The WebGPU plug-in EP of the ONNX Runtime project (Dawn on Vulkan)."""

    name = "webgpu"
    label = "ORT WebGPU EP"
    on_gpu = True

    @classmethod
    def missing(cls) -> str | None:
        if importlib.util.find_spec("onnxruntime_ep_webgpu") is None:
            return "the package onnxruntime-ep-webgpu is not installed"
        return None

    def _session(self, path: Path, options: Mapping[str, str]) -> Any:
        import onnxruntime
        import onnxruntime_ep_webgpu

        name = onnxruntime_ep_webgpu.get_ep_name()
        if name not in {device.ep_name for device in onnxruntime.get_ep_devices()}:
            onnxruntime.register_execution_provider_library(name, onnxruntime_ep_webgpu.get_library_path())
        devices = [device for device in onnxruntime.get_ep_devices() if device.ep_name == name]
        if not devices:
            raise RuntimeError("the WebGPU EP finds no device on this machine")
        settings = _quiet()
        settings.add_provider_for_devices(devices[:1], {})
        return onnxruntime.InferenceSession(str(path), settings)


class TorchGraph(Contender):
    """torchvision's model of the same architecture (random weights) as a CUDA graph: GPU replay and wait, no copies.

    Its precision is that of the input, its memory layout (contiguous or channels last) the faster one.
    """

    name = "torch"
    label = "torch CUDA graph"
    tf32 = False
    graph: Any = None

    @classmethod
    def missing(cls) -> str | None:
        for package in ("torch", "torchvision"):
            if importlib.util.find_spec(package) is None:
                return f"the package {package} is not installed"
        import torch

        return None if torch.cuda.is_available() else "torch finds no CUDA device"

    def open(self, path: Path, torchvision: str, feeds: Feeds, options: Mapping[str, str]) -> None:
        import torch

        if not torchvision:
            raise RuntimeError("torchvision has no such architecture")
        torch.backends.cuda.matmul.allow_tf32 = self.tf32
        torch.backends.cudnn.allow_tf32 = self.tf32
        torch.backends.cudnn.benchmark = True
        times = {}
        for layout in (torch.contiguous_format, torch.channels_last):
            self._capture(torchvision, next(iter(feeds.values())), layout)
            times[layout] = self._replays_ms()
        self.layout = min(times, key=lambda layout: times[layout])
        self._capture(torchvision, next(iter(feeds.values())), self.layout)

    def _capture(self, torchvision: str, array: np.ndarray, layout: Any) -> None:
        import torch
        import torchvision as vision

        self.close()
        x = torch.from_numpy(array).cuda().contiguous(memory_format=layout)
        model = getattr(vision.models, torchvision)(weights=None).eval().to("cuda", x.dtype, memory_format=layout)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.inference_mode():
            with torch.cuda.stream(stream):
                for _ in range(5):
                    model(x)
            torch.cuda.current_stream().wait_stream(stream)
            torch.cuda.empty_cache()  # what choosing algorithms took does not count as memory of the model
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.output = model(x)
        self.keep = (model, x)
        self.synchronize: Callable[[], None] = torch.cuda.synchronize

    def _replays_ms(self, count: int = 20) -> float:
        """The mean time of the last of some replays."""
        import torch

        before, after = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        for n in range(2 * count):
            if n == count:
                before.record()
            self.graph.replay()
        after.record()
        after.synchronize()
        return float(before.elapsed_time(after)) / count

    def run(self, feeds: Feeds) -> Outputs:
        self.graph.replay()
        self.synchronize()
        return []

    def facts(self, feeds: Feeds) -> dict[str, Any]:
        import torch

        return {"reserved_bytes": torch.cuda.memory_reserved(), "layout": str(self.layout)}

    def close(self) -> None:
        import torch

        self.graph = self.keep = self.output = None
        torch.cuda.empty_cache()


class TorchGraphTf32(TorchGraph):
    """The same with TF32 allowed, torch's usual setting for convolutions: not fp32 any more."""

    name = "torch-tf32"
    label = "torch, TF32"
    tf32 = True


CONTENDERS: tuple[type[Contender], ...] = (OrtVulkan, Standalone, OrtCpu, OrtWebGpu, TorchGraph, TorchGraphTf32)


def make(name: str) -> Contender:
    """A new contender of that name."""
    return next(kind for kind in CONTENDERS if kind.name == name)()
