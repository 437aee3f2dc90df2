"""Where the native library (``onnx_vulkan._shim``) comes from: a path that was given, the environment, or this package.

Whatever names a library has the last word: one that is missing or does not fit is an error, and no other is taken instead.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from onnx_vulkan.errors import LibraryError

__all__ = ["ENVIRONMENT", "INTERFACE", "library_path", "library_source", "use_library"]

ENVIRONMENT = "ONNX_VULKAN_LIBRARY"
MODULE = "onnx_vulkan._shim"
INTERFACE = 2
"""What ``ov_version`` of a library that fits this package gives."""

_given: Path | None = None


def use_library(path: str | os.PathLike[str]) -> None:
    """Take the native library from *path*, whatever the environment says. To be called before anything needs it (before
    ``onnxruntime_ep_vulkan`` is imported, too).

    Raises LibraryError where there is no such file, or another library is in use already.
    """
    global _given
    chosen = Path(path).resolve()
    if not chosen.is_file():
        raise LibraryError(f"The native library {path} is not there.")
    loaded = sys.modules.get(MODULE)
    if loaded is not None and Path(str(loaded.__file__)).resolve() != chosen:
        raise LibraryError(f"The native library {loaded.__file__} is in use already: name {path} before anything else is done.")
    _given = chosen


def library_path() -> Path:
    """The native library that is in use, or will be. Raises LibraryError where it is missing."""
    loaded = sys.modules.get(MODULE)
    if loaded is not None:
        return Path(str(loaded.__file__))
    named = _given or os.environ.get(ENVIRONMENT)
    if named:
        if not Path(named).is_file():
            raise LibraryError(f"The native library {named}, which {ENVIRONMENT} names, is not there.")
        return Path(named).resolve()
    for ending in importlib.machinery.EXTENSION_SUFFIXES:
        bundled = Path(__file__).with_name(f"_shim{ending}")
        if bundled.is_file():
            return bundled
    raise LibraryError(
        f"The native library is not in this package ({Path(__file__).parent}): install a wheel, or from the sources with a C "
        f"compiler (pip install .), or name one by {ENVIRONMENT}."
    )


def library_source() -> str:
    """Which of the three named it: ``argument``, ``environment`` or ``bundled``."""
    return "argument" if _given else "environment" if os.environ.get(ENVIRONMENT) else "bundled"


class _Finder:
    """Answers the import system's question for the native library, wherever in the package it is imported first."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != MODULE:
            return None
        chosen = library_path()
        return importlib.util.spec_from_file_location(name, chosen, loader=_Loader(name, str(chosen)))


class _Loader(importlib.machinery.ExtensionFileLoader):
    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        try:
            return super().create_module(spec)
        except ImportError as e:
            raise LibraryError(f"The native library {self.path} cannot be loaded: {e}.") from e

    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        found = module.lib.ov_version() if hasattr(getattr(module, "lib", None), "ov_version") else "none"
        if found != INTERFACE:
            raise LibraryError(
                f"The native library {self.path} has the interface {found}, and this package needs {INTERFACE}: they are not of "
                "one build. Install the package again (uv sync --reinstall-package onnx-vulkan)."
            )


sys.meta_path.insert(0, _Finder)
