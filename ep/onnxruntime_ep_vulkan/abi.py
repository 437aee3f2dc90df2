"""Calls into ORT's C tables by slot number. Knows handles, statuses and strings; nothing of graphs or sessions.

ORT's getters nearly all have one of three shapes, so three functions serve them: :func:`get` (handle, out), :func:`handles`
(handle, array, length) and :func:`texts`. Everything else goes through :func:`call`. A status that comes back is raised as
:class:`OrtError`.
"""

from __future__ import annotations

from typing import Any

from onnx_vulkan._shim import ffi, lib

__all__ = [
    "Handle",
    "OrtError",
    "api_version",
    "call",
    "check",
    "ep_function",
    "flag",
    "function",
    "get",
    "handles",
    "pairs",
    "text",
]

Handle = Any
"""An opaque pointer of ORT, as cffi gives it."""

_functions: dict[tuple[str, int, str], Any] = {}
_GETTER = "void *(*)(const void *, void *)"
_LISTER = "void *(*)(const void *, void **, size_t)"


class OrtError(RuntimeError):
    """ORT refused a call; the text is its own."""

    def __init__(self, code: int, message: str):
        self.code = code
        super().__init__(message)


def api_version() -> int:
    """The API version that was agreed on with the runtime, e.g. 28."""
    return int(lib.ov_ort.version)


def _function(table: str, slot: int, kind: str) -> Any:
    found = _functions.get((table, slot, kind))
    if found is None:
        base = ffi.cast("void **", getattr(lib.ov_ort, table))
        found = _functions[table, slot, kind] = ffi.cast(kind, base[slot])
    return found


def function(slot: int, kind: str) -> Any:
    """The member of OrtApi at *slot*, as the C function type *kind* (a pointer type in C's notation)."""
    return _function("api", slot, kind)


def ep_function(slot: int, kind: str) -> Any:
    """The same for OrtEpApi."""
    return _function("ep_api", slot, kind)


def check(status: Handle) -> None:
    """Raise an OrtStatus that is not NULL, and release it."""
    if status == ffi.NULL:
        return
    code = function(lib.OrtApi_GetErrorCode, "int (*)(const void *)")(status)
    message = function(lib.OrtApi_GetErrorMessage, "const char *(*)(const void *)")(status)
    said = ffi.string(message).decode(errors="replace")
    function(lib.OrtApi_ReleaseStatus, "void (*)(void *)")(status)
    raise OrtError(code, said)


def call(slot: int, kind: str, *arguments: Any) -> None:
    """Call a member of OrtApi that gives a status."""
    check(function(slot, kind)(*arguments))


def get(slot: int, handle: Handle, kind: str = "void *") -> Any:
    """What a getter ``(handle, kind *out)`` of OrtApi gives."""
    out = ffi.new(f"{kind}[1]")
    check(function(slot, _GETTER)(handle, out))
    return out[0]


def flag(slot: int, handle: Handle) -> bool:
    """A getter of a bool."""
    return bool(get(slot, handle, "bool"))


def text(slot: int, handle: Handle) -> str:
    """A getter of a string; "" for NULL."""
    found = get(slot, handle, "const char *")
    return "" if found == ffi.NULL else ffi.string(found).decode(errors="surrogateescape")


def handles(count_slot: int, list_slot: int, handle: Handle) -> list[Handle]:
    """The objects that a pair of calls gives: how many, then all of them."""
    count = get(count_slot, handle, "size_t")
    if not count:
        return []
    out = ffi.new("void *[]", count)
    check(function(list_slot, _LISTER)(handle, out, count))
    return list(out)


def pairs(handle: Handle) -> dict[str, str]:
    """The content of an OrtKeyValuePairs (empty for NULL)."""
    if handle == ffi.NULL:
        return {}
    keys, values, count = ffi.new("char ***"), ffi.new("char ***"), ffi.new("size_t *")
    function(lib.OrtApi_GetKeyValuePairs, "void (*)(const void *, void *, void *, size_t *)")(handle, keys, values, count)
    return {ffi.string(keys[0][i]).decode(): ffi.string(values[0][i]).decode(errors="surrogateescape") for i in range(count[0])}
