"""The operators of ``ai.onnx.ml`` on numbers. Importing registers them."""

from onnx_vulkan.lower.ml import features, trees  # noqa: F401
