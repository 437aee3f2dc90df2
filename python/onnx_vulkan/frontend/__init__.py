"""Reads ``.onnx`` files into :class:`onnx_vulkan.graph.Graph`. Knows protobuf and files; no kernels, no Vulkan, no ORT."""

from onnx_vulkan.frontend.reader import load
from onnx_vulkan.frontend.tensors import origin

__all__ = ["load", "origin"]
