"""Reads ``.onnx`` files into :class:`onnx_vulkan.graph.Graph`. Knows protobuf and files; no kernels, no Vulkan, no ORT."""

from onnx_vulkan.frontend.reader import external_files, load
from onnx_vulkan.frontend.tensors import origin

__all__ = ["external_files", "load", "origin"]
