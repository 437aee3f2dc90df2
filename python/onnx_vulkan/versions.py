"""Which version of an operator a node means, where a user registered it (:mod:`onnx_vulkan.custom`): no ONNX schema tells."""

from __future__ import annotations

__all__ = ["register_versions", "registered_version"]

_REGISTERED: dict[tuple[str, str], set[int]] = {}


def register_versions(domain: str, op_type: str, versions: set[int]) -> None:
    """Note that a user has lowerings of these versions of an operator."""
    _REGISTERED.setdefault((domain, op_type), set()).update(versions)


def registered_version(domain: str, op_type: str, opset: int) -> int:
    """The newest registered version up to *opset* of the operator's domain; 0 where there is none."""
    return max((v for v in _REGISTERED.get((domain, op_type), ()) if v <= opset), default=0)
