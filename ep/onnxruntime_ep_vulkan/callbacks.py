"""The functions that C calls. Every error becomes a code and a sentence here: cffi would answer an exception with a quiet 0."""

from __future__ import annotations

import atexit
import functools
import logging
import traceback
from collections.abc import Callable
from typing import Any

from onnx_vulkan import errors
from onnx_vulkan._shim import ffi, lib

from onnxruntime_ep_vulkan import abi, capability, devices, sessions

__all__ = ["IDENTIFY", "attach"]

log = logging.getLogger("onnxruntime_ep_vulkan")

IDENTIFY = "ep.vulkanep.identify"
"""A dynamic option whose value is a token: the session that gets it enters itself in ``sessions.identified``."""

# Never ORT_EP_FAIL: ORT's Python wrapper answers that one with a quiet session on the CPU.
_CODES: list[tuple[type[BaseException], int]] = [
    (errors.InvalidInput, lib.ORT_INVALID_ARGUMENT),
    (errors.Unsupported, lib.ORT_NOT_IMPLEMENTED),
    (errors.RefusedError, lib.ORT_NOT_IMPLEMENTED),
    (errors.ModelError, lib.ORT_INVALID_GRAPH),
    (errors.DeviceLost, lib.ORT_DEVICE_RESET),
]
_TEXT_BYTES = ffi.sizeof("ov_ort_error") - ffi.offsetof("ov_ort_error", "text") - 1


def write_error(error: BaseException, out: Any) -> None:
    """Put an exception into an ``ov_ort_error *``: our own errors speak for themselves, others say where they come from."""
    out.code = next((code for kind, code in _CODES if isinstance(error, kind)), lib.ORT_ENGINE_ERROR)
    if isinstance(error, errors.OnnxVulkanError):
        said = str(error) if str(error).startswith("VulkanEP") else f"VulkanEP: {error}"
    else:
        log.debug("an exception in a callback of VulkanEP", exc_info=error)
        where = traceback.extract_tb(error.__traceback__)[-1:]
        place = f" (at {where[0].filename}:{where[0].lineno})" if where else ""
        said = f"VulkanEP: {type(error).__name__}: {error}{place}"
    raw = said.encode(errors="replace")[:_TEXT_BYTES].decode(errors="ignore").encode()
    ffi.memmove(out.text, raw + b"\0", len(raw) + 1)


def _answers(function: Callable[..., None]) -> Callable[..., int]:
    """Wraps a callback whose last argument is an ``ov_ort_error *``: 1 for success, 0 with the error filled in."""

    @functools.wraps(function)
    def entry(*arguments: Any) -> int:
        try:
            function(*arguments[:-1])
        except BaseException as error:  # also KeyboardInterrupt and SystemExit: nothing may pass through C
            write_error(error, arguments[-1])
            return 0
        return 1

    return entry


def _quiet(function: Callable[..., None]) -> Callable[..., None]:
    """Wraps a callback that has no way to answer with an error."""

    @functools.wraps(function)
    def entry(*arguments: Any) -> None:
        try:
            function(*arguments)
        except BaseException:
            log.exception("VulkanEP: an error in %s", function.__name__)

    return entry


@ffi.def_extern()  # type: ignore[untyped-decorator]
@_answers
def ov_py_devices(factory: Any, hardware: Any, count: int, made: Any, room: int, n_made: Any) -> None:
    for handle in devices.make_ep_devices(factory, ffi.unpack(hardware, count), room):
        made[n_made[0]] = handle
        n_made[0] += 1


@ffi.def_extern()  # type: ignore[untyped-decorator]
@_answers
def ov_py_create_ep(number: int, metadata: Any, count: int, session_options: Any) -> None:
    given = [abi.pairs(metadata[i]) for i in range(count)]
    sessions.create(number, given, sessions.config_entries(session_options))


@ffi.def_extern()  # type: ignore[untyped-decorator]
@_answers
def ov_py_capability(number: int, graph: Any, support: Any) -> None:
    capability.claim(sessions.find(number), graph, support)


@ffi.def_extern()  # type: ignore[untyped-decorator]
@_answers
def ov_py_compile(number: int, graphs: Any, fused: Any, count: int, blocks: Any, context_nodes: Any) -> None:
    made, nodes = sessions.compile_blocks(sessions.find(number), ffi.unpack(graphs, count), ffi.unpack(fused, count))
    for i, handle in enumerate(made):
        blocks[i] = handle
    for i, node in enumerate(nodes):
        context_nodes[i] = node


@ffi.def_extern()  # type: ignore[untyped-decorator]
@_answers
def ov_py_dynamic_options(number: int, keys: Any, values: Any, count: int) -> None:
    for i in range(count):
        key, value = ffi.string(keys[i]).decode(), ffi.string(values[i]).decode()
        if key == IDENTIFY:
            sessions.identified[value] = sessions.find(number)
        elif key.startswith("ep.vulkanep."):
            raise errors.InvalidInput(f"VulkanEP has no option {key!r} that can change while a session lives.")


@ffi.def_extern()  # type: ignore[untyped-decorator]
@_answers
def ov_py_open_device() -> None:
    lib.ov_ort.device = devices.open_shared()


@ffi.def_extern()  # type: ignore[untyped-decorator]
@_quiet
def ov_py_release_block(number: int, block: Any) -> None:
    sessions.release_block(number, block)


@ffi.def_extern()  # type: ignore[untyped-decorator]
@_quiet
def ov_py_release_ep(number: int) -> None:
    sessions.release(number)


def attach() -> None:
    """Let C call in. Undone at interpreter exit: ORT releases sessions later than Python can answer."""
    if not lib.ov_ort.ready:
        lib.ov_ort.ready = 1
        atexit.register(_detach)


def _detach() -> None:
    lib.ov_ort.ready = 0
