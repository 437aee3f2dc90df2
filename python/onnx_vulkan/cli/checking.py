"""``onnx-vulkan check``, and ``python -m onnxruntime_ep_vulkan --check``: whether an installation works, shown by a run."""

from __future__ import annotations

from typing import Any

from onnx_vulkan import library, provenance
from onnx_vulkan.cli.examination import describe_device

__all__ = ["check", "show", "verdict"]


def check(device: str | None, library_file: str | None) -> dict[str, Any]:
    """Register the plug-in, run a tiny model through it, and say what was selected, as JSON has it.

    ``failed`` is a sentence, or None. A library that was named and does not fit is an error (LibraryError): no other is tried.
    """
    if library_file is not None:
        library.use_library(library_file)
    data: dict[str, Any] = {
        "good": False,
        "version": provenance.version(),
        "sources": provenance.source_digest(),
        "shaders": provenance.shader_digest(),
        "library": {"path": str(library.library_path()), "source": library.library_source()},
        "onnxruntime": None,
        "device": None,
        "dispatches": 0,
        "failed": None,
    }
    try:
        _run(device, data)
        data["good"] = True
    except Exception as e:  # whatever is wrong here is what the user wants to read
        data["failed"] = str(e).strip() or type(e).__name__
    return data


def _run(device: str | None, data: dict[str, Any]) -> None:
    import numpy as np
    import onnxruntime_ep_vulkan as ep

    from onnx_vulkan.device import Device

    ep.register()  # says what is missing where ONNX Runtime is
    import onnxruntime as ort

    data["onnxruntime"] = ort.__version__
    found = describe_device(Device.get(device).info)
    data["device"] = {name: found[name] for name in ("name", "uuid", "kind", "driver", "api_version")}
    options = {"island": "keep", **({"device": device} if device else {})}
    settings = ort.SessionOptions()
    settings.log_severity_level = 4
    settings.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    providers = [(ep.get_ep_name(), options)]
    session = ort.InferenceSession(_model(), settings, providers=providers, enable_fallback=0)
    x = np.arange(-6, 6, dtype=np.float32).reshape(3, 4)
    (y,) = session.run(None, {"x": x})
    if not np.array_equal(y, np.maximum(x @ np.eye(4, dtype=np.float32) + 1, 0)):
        raise RuntimeError(f"the tiny model gave a wrong result: {y.tolist()}")
    data["dispatches"] = ep.assert_on_vulkan(session).dispatches


def _model() -> bytes:
    """y = max(x @ 1 + 1, 0)."""
    import numpy as np
    from onnx import ModelProto, TensorProto, helper, numpy_helper

    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["a"]),
            helper.make_node("Add", ["a", "one"], ["b"]),
            helper.make_node("Relu", ["b"], ["y"]),
        ],
        "check",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [3, 4])],
        [numpy_helper.from_array(np.eye(4, dtype=np.float32), "w"), numpy_helper.from_array(np.ones(1, np.float32), "one")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    return bytes(ModelProto.SerializeToString(model))


def show(data: dict[str, Any]) -> None:
    """The result for a person."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, show_header=False)
    found = data["device"]
    table.add_row("onnx-vulkan", f"{data['version']}, sources {data['sources']}, shaders {data['shaders']}")
    table.add_row("library", f"{data['library']['path']} ({data['library']['source']})")
    table.add_row("ONNX Runtime", data["onnxruntime"] or "missing")
    table.add_row("device", f"{found['name']} ({found['driver']}, {found['uuid']})" if found else "none")
    Console().print(table, markup=False)


def verdict(data: dict[str, Any]) -> str:
    """The line for stderr."""
    if data["good"]:
        return f"VulkanEP ran a model on {data['device']['name']} ({data['device']['driver']})"
    return f"VulkanEP does not work here: {data['failed']}"
