"""Which build this is: the version, and a digest of the sources that decide what a plan and a kernel are."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import importlib.resources
from collections.abc import Iterator
from importlib.resources.abc import Traversable

__all__ = ["kernel_digest", "shader_digest", "source_digest", "version"]


@functools.cache
def version() -> str:
    """The version of the installed distribution; "not installed" where the sources are used from a folder."""
    try:
        return importlib.metadata.version("onnx-vulkan")
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


@functools.cache
def shader_digest() -> str:
    """A digest (16 hex digits) of the shader templates."""
    return _digest("onnx_vulkan.shaders", (".glsl", ".comp"))


@functools.cache
def source_digest() -> str:
    """A digest (16 hex digits) of the engine's Python sources and shader templates: where it is equal, so are the kernels that a
    model gets."""
    return hashlib.blake2b((_digest("onnx_vulkan", (".py",)) + shader_digest()).encode(), digest_size=8).hexdigest()


@functools.cache
def kernel_digest() -> str:
    """A digest (16 hex digits) of all that kernels are rendered from: the shaders, and the modules that write and choose them."""
    parts = (_digest("onnx_vulkan.codegen", (".py",)), _digest("onnx_vulkan.kernels", (".py",)), shader_digest())
    return hashlib.blake2b("".join(parts).encode(), digest_size=8).hexdigest()


def _digest(package: str, endings: tuple[str, ...]) -> str:
    total = hashlib.blake2b(digest_size=8)
    for name, file in sorted(_files(importlib.resources.files(package), "")):
        if name.endswith(endings):
            data = file.read_bytes()
            total.update(f"{name}\0{len(data)}\0".encode() + data)
    return total.hexdigest()


def _files(folder: Traversable, prefix: str) -> Iterator[tuple[str, Traversable]]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _files(entry, f"{prefix}{entry.name}/")
        else:
            yield prefix + entry.name, entry
