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

    @abstractmethod
    def open(self, path: Path, torchvision: str, feeds: Feeds) -> None:
        """Load the model. Raises with a sentence when this side cannot run it."""

    @abstractmethod
    def run(self, feeds: Feeds) -> Outputs:
        """One run, numpy in and out; the outputs in the model's order."""

    def facts(self, feeds: Feeds) -> dict[str, Any]:
        """What this side knows about its last run besides the time, e.g. GPU time and counters."""
        return {}

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

    def _session(self, path: Path) -> Any:
        import onnxruntime

        return onnxruntime.InferenceSession(str(path), _quiet(), providers=["CPUExecutionProvider"])

    def open(self, path: Path, torchvision: str, feeds: Feeds) -> None:
        self.session = None
        self.session = self._session(path)

    def run(self, feeds: Feeds) -> Outputs:
        return list(self.session.run(None, dict(feeds)))

    def close(self) -> None:
        self.session = None


class OrtVulkan(OrtCpu):
    """Ours, through ONNX Runtime."""

    name = "ep"
    label = "ours, VulkanEP"
    on_gpu = True

    def _session(self, path: Path) -> Any:
        import onnxruntime
        import onnxruntime_ep_vulkan

        session = onnxruntime.InferenceSession(str(path), _quiet(), providers=["VulkanEP"], enable_fallback=0)
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

    def open(self, path: Path, torchvision: str, feeds: Feeds) -> None:
        import onnx_vulkan

        self.close()
        self.session = onnx_vulkan.Session.load(path)

    def run(self, feeds: Feeds) -> Outputs:
        return list(self.session.run(feeds).values())

    def facts(self, feeds: Feeds) -> dict[str, Any]:
        from benchmark.counters import gpu_ms, steady_facts

        return {**steady_facts(lambda: self.run(feeds)), "gpu_ms": gpu_ms(self.session, feeds)}

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

    def _session(self, path: Path) -> Any:
        import onnxruntime
        import onnxruntime_ep_webgpu

        name = onnxruntime_ep_webgpu.get_ep_name()
        if name not in {device.ep_name for device in onnxruntime.get_ep_devices()}:
            onnxruntime.register_execution_provider_library(name, onnxruntime_ep_webgpu.get_library_path())
        devices = [device for device in onnxruntime.get_ep_devices() if device.ep_name == name]
        if not devices:
            raise RuntimeError("the WebGPU EP finds no device on this machine")
        options = _quiet()
        options.add_provider_for_devices(devices[:1], {})
        return onnxruntime.InferenceSession(str(path), options)


class TorchGraph(Contender):
    """torchvision's model of the same architecture (random weights) as a CUDA graph: GPU replay and wait, no copies."""

    name = "torch"
    label = "torch CUDA graph"
    tf32 = False

    @classmethod
    def missing(cls) -> str | None:
        for package in ("torch", "torchvision"):
            if importlib.util.find_spec(package) is None:
                return f"the package {package} is not installed"
        import torch

        return None if torch.cuda.is_available() else "torch finds no CUDA device"

    def open(self, path: Path, torchvision: str, feeds: Feeds) -> None:
        import torch
        import torchvision as vision

        if not torchvision:
            raise RuntimeError("torchvision has no such architecture")
        torch.backends.cuda.matmul.allow_tf32 = self.tf32
        torch.backends.cudnn.allow_tf32 = self.tf32
        torch.backends.cudnn.benchmark = True
        model = getattr(vision.models, torchvision)(weights=None).eval().cuda()
        x = torch.from_numpy(next(iter(feeds.values()))).cuda()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.inference_mode():
            with torch.cuda.stream(stream):
                for _ in range(5):
                    model(x)
            torch.cuda.current_stream().wait_stream(stream)
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.output = model(x)
        self.keep = (model, x)
        self.synchronize: Callable[[], None] = torch.cuda.synchronize

    def run(self, feeds: Feeds) -> Outputs:
        self.graph.replay()
        self.synchronize()
        return []


class TorchGraphTf32(TorchGraph):
    """The same with TF32 allowed, torch's usual setting for convolutions: not fp32 any more."""

    name = "torch-tf32"
    label = "torch, TF32"
    tf32 = True


CONTENDERS: tuple[type[Contender], ...] = (OrtVulkan, Standalone, OrtCpu, OrtWebGpu, TorchGraph, TorchGraphTf32)


def make(name: str) -> Contender:
    """A new contender of that name."""
    return next(kind for kind in CONTENDERS if kind.name == name)()
