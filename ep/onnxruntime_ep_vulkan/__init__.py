"""ONNX Runtime plug-in execution provider "VulkanEP". Importing this package registers it.

    import onnxruntime, onnxruntime_ep_vulkan
    session = onnxruntime.InferenceSession("model.onnx", providers=["VulkanEP"])

``providers=`` knows plug-ins from ONNX Runtime 1.25 on; with 1.23 and 1.24 give the devices of ``onnxruntime.get_ep_devices()``
whose ``ep_name`` is ``"VulkanEP"`` to ``SessionOptions.add_provider_for_devices``.
"""

from __future__ import annotations

import gc
import sys
import threading
import uuid
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onnxruntime_ep_vulkan.sessions import EpSession, SessionStats

__all__ = [
    "assert_on_vulkan",
    "get_ep_name",
    "get_ep_names",
    "get_library_path",
    "register",
    "session_blocks",
    "session_stats",
    "unregister",
]

EP_NAME = "VulkanEP"
_OLDEST = (1, 23)
_lock = threading.Lock()
_registered = False


def get_library_path() -> str:
    """The path of the library that ONNX Runtime loads: the engine's own extension module, from ``onnx_vulkan.use_library``, the
    environment variable ``ONNX_VULKAN_LIBRARY``, or the package, the first of them that names one. Raises LibraryError."""
    from onnx_vulkan.library import library_path

    return str(library_path())


def get_ep_name() -> str:
    """The name to use in ``providers=``."""
    return EP_NAME


def get_ep_names() -> list[str]:
    """The names of all execution providers in the library: one."""
    return [EP_NAME]


def register() -> None:
    """Register the library with ONNX Runtime, once; further calls do nothing.

    Raises ImportError when onnxruntime is missing or older than 1.23, LibraryError when the native library is.
    """
    global _registered
    ort = _onnxruntime()
    from onnxruntime_ep_vulkan import callbacks

    with _lock:
        if _registered:
            return
        callbacks.attach()
        ort.register_execution_provider_library(EP_NAME, get_library_path())
        _registered = True


def unregister() -> None:
    """Take the library out of ONNX Runtime. Sessions that exist go on; new ones do not find VulkanEP any more.

    Raises RuntimeError before ONNX Runtime 1.28 while values in device memory are alive.
    """
    global _registered
    ort = _onnxruntime()
    from onnx_vulkan._shim import lib

    with _lock:
        if not _registered:
            return
        # Until 1.27 ORT reaches the allocator of a value through the OrtEpDevice, which it frees here.
        if _version(ort) < (1, 28) and lib.ov_ort_live_allocations():
            gc.collect()
            alive = lib.ov_ort_live_allocations()
            if alive:
                raise RuntimeError(
                    f"{alive} values in VulkanEP's device memory are alive, and onnxruntime {ort.__version__} would crash when "
                    "they are freed after this. Delete them (and the sessions and bindings that hold them) first."
                )
        ort.unregister_execution_provider_library(EP_NAME)
        _registered = False


def session_stats(session: Any) -> SessionStats:
    """What VulkanEP has done for an ``onnxruntime.InferenceSession``.

    Raises LookupError when the session does not have VulkanEP, for example because ONNX Runtime has fallen back to the CPU.
    """
    return _ours(session).stats()


def session_blocks(session: Any) -> list[Any]:
    """The blocks (``onnx_vulkan.engine.block.Block``) of an ``onnxruntime.InferenceSession``, for profiles; raises LookupError as
    :func:`session_stats` does."""
    return _ours(session).running_blocks()


def _ours(session: Any) -> EpSession:
    """Our part of a session of ONNX Runtime's."""
    from onnxruntime_ep_vulkan import callbacks, sessions

    # ORT gives no way from its session to our part of it, but it passes dynamic options through.
    token = uuid.uuid4().hex
    if not hasattr(session, "set_ep_dynamic_options"):
        raise LookupError("The statistics of a session need onnxruntime 1.24 or newer.")
    if EP_NAME in session.get_providers():
        session.set_ep_dynamic_options({callbacks.IDENTIFY: token})
    found = sessions.identified.pop(token, None)
    if found is None:
        raise LookupError(
            f"This session does not run on VulkanEP, its providers are {', '.join(session.get_providers())}. Import "
            "onnxruntime_ep_vulkan first, ask for it with providers=['VulkanEP'], and pass enable_fallback=0 so that ONNX "
            "Runtime raises errors instead of falling back."
        )
    return found


def assert_on_vulkan(session: Any) -> SessionStats:
    """Raise AssertionError unless the session has VulkanEP, nodes of its model were claimed, and they have run.

    Gives back the session's statistics. Run the session once before.
    """
    try:
        stats = session_stats(session)
    except LookupError as error:
        raise AssertionError(str(error)) from None
    if not stats.offered_nodes:
        raise AssertionError(
            "VulkanEP is in this session, but ONNX Runtime offered it no node: the model has none, or ONNX Runtime has "
            "folded all of them to constants."
        )
    if not stats.claimed_nodes:
        reasons = "".join(f"\n  - {r}" for r in stats.refusals[:20])
        raise AssertionError(f"VulkanEP is in this session, but none of the {stats.offered_nodes} nodes was claimed:{reasons}")
    if not stats.runs:
        raise AssertionError(
            f"VulkanEP claimed {stats.claimed_nodes} nodes in {stats.blocks} blocks, but no block has run: run the session first."
        )
    if not stats.dispatches:
        raise AssertionError(
            f"VulkanEP claimed {stats.claimed_nodes} nodes and ran {stats.runs} times, but nothing was dispatched to "
            f"{stats.device}: the model computes nothing on the device."
        )
    return stats


def _version(onnxruntime: Any) -> tuple[int, ...]:
    return tuple(int(part) for part in onnxruntime.__version__.split(".")[:2])


def _onnxruntime() -> Any:
    try:
        import onnxruntime
    except ImportError as error:
        raise ImportError(
            "onnxruntime_ep_vulkan is a plug-in of ONNX Runtime, which is not installed: pip install 'onnxruntime>=1.25'."
        ) from error
    if _version(onnxruntime) < _OLDEST or not hasattr(onnxruntime, "register_execution_provider_library"):
        raise ImportError(
            f"onnxruntime {onnxruntime.__version__} cannot load plug-ins from Python; VulkanEP needs 1.25 or newer (1.23 and "
            "1.24 work with add_provider_for_devices): pip install -U onnxruntime."
        )
    return onnxruntime


# `python -m onnxruntime_ep_vulkan` imports this package before it can say what is wrong: there __main__ registers.
if not (sys.argv[:1] == ["-m"] and __name__ in sys.orig_argv):
    register()
