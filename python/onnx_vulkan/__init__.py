"""Runs ONNX models on any GPU with a Vulkan driver. ``Session`` is the standalone engine; ``onnxruntime_ep_vulkan`` the plug-in.

Importing this package opens no device and loads no Vulkan; the names below are loaded on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from onnx_vulkan import errors
from onnx_vulkan.library import use_library

if TYPE_CHECKING:
    from onnx_vulkan.custom import register_kernel, register_lowering
    from onnx_vulkan.engine.options import Options
    from onnx_vulkan.engine.session import Session

__all__ = ["Options", "Session", "errors", "register_kernel", "register_lowering", "use_library"]


def __getattr__(name: str) -> Any:
    if name == "Session":
        from onnx_vulkan.engine.session import Session

        return Session
    if name == "Options":
        from onnx_vulkan.engine.options import Options

        return Options
    if name in ("register_kernel", "register_lowering"):
        from onnx_vulkan import custom

        return getattr(custom, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
