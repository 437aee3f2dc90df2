"""EPContext models: what a session writes with ``ep.context_enable`` runs again without planning or compiling."""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import onnxruntime_ep_vulkan
import pytest
from ep_stub import ORT_MINOR, device_memory, ep_devices, make_model, vulkan_session
from onnx import helper
from onnx_vulkan.device import Device
from onnx_vulkan.engine import compiled

pytestmark = pytest.mark.skipif(ORT_MINOR < 25, reason="session_stats and providers= by name, from 1.25 on, are used here")

RNG = np.random.default_rng(5)
WEIGHTS = RNG.standard_normal((8, 16), np.float32)
X = RNG.standard_normal((3, 8), np.float32)


def model(rows: Any = 3) -> bytes:
    """y = softmax(relu(x w)), x [rows, 8]."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Softmax", ["b"], ["y"], axis=1),
    ]
    return make_model(nodes, {"x": [rows, 8]}, {"y": [rows, 16]}, {"w": WEIGHTS})


def settings(**entries: str) -> ort.SessionOptions:
    made = ort.SessionOptions()
    for key, value in entries.items():
        made.add_session_config_entry(f"ep.{key}", value)
    return made


def written(folder: Path, rows: Any = 3, options: dict[str, Any] | None = None, embed: str = "0") -> Path:
    """An EPContext model, made by a session."""
    folder.mkdir(exist_ok=True)
    target = folder / "compiled.onnx"
    entries = settings(context_enable="1", context_file_path=str(target), context_embed_mode=embed)
    session = vulkan_session(model(rows), options, sess_options=entries)
    np.testing.assert_array_equal(session.run(None, {"x": X})[0], expected())
    return target


def expected(x: np.ndarray[Any, Any] = X) -> np.ndarray[Any, Any]:
    return np.asarray(vulkan_session(model("n")).run(None, {"x": x})[0])


@pytest.mark.parametrize("embed", ["0", "1"])
def test_it_runs_without_planning(tmp_path: Path, embed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, embed=embed)
    (node,) = onnx.load(path).graph.node
    assert (node.op_type, node.domain) == ("EPContext", "com.microsoft")
    assert len(list(tmp_path.iterdir())) == (1 if embed == "1" else 2)
    want = expected()

    def never(*arguments: object, **named: object) -> object:
        raise AssertionError("planned")

    monkeypatch.setattr("onnx_vulkan.engine.block.build_structure", never)
    monkeypatch.setattr("onnx_vulkan.engine.block.lower_graph", never)
    monkeypatch.setattr("onnx_vulkan.engine.block.draft_plan", never)
    session = vulkan_session(str(path))
    np.testing.assert_array_equal(session.run(None, {"x": X})[0], want)
    stats = onnxruntime_ep_vulkan.assert_on_vulkan(session)
    assert (stats.plans_made, stats.plans_loaded, stats.claimed_nodes) == (0, 1, 3)


def test_nothing_is_compiled_in_a_new_process(tmp_path: Path) -> None:
    path = written(tmp_path)
    np.savez(tmp_path / "arrays.npz", x=X, y=expected())
    code = f"""
import numpy as np, onnxruntime, onnxruntime_ep_vulkan
from onnx_vulkan.device import Device
before = Device.get().counters()  # opening a device may compile something to examine it
arrays = np.load({str(tmp_path / "arrays.npz")!r})
session = onnxruntime.InferenceSession({str(path)!r}, providers=["VulkanEP"], enable_fallback=0)
assert (session.run(None, {{"x": arrays["x"]}})[0] == arrays["y"]).all()
counters = Device.get().counters()
assert all(counters[n] == before[n] for n in ("glsl_compiles", "spirv_hits")), counters
"""
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path / "cold")}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_other_sizes_are_planned_from_the_stored_graph(tmp_path: Path) -> None:
    path = written(tmp_path, rows="n", options={"plan_dims": "n=3"})
    session = vulkan_session(str(path))
    longer = RNG.standard_normal((50, 8), np.float32)
    for x, loaded, made in ((X, 1, 0), (longer, 1, 1), (X, 1, 1)):
        np.testing.assert_array_equal(session.run(None, {"x": x})[0], expected(x))
        stats = onnxruntime_ep_vulkan.session_stats(session)
        assert (stats.plans_loaded, stats.plans_made) == (loaded, made)


def test_a_model_whose_sizes_are_not_known_is_written_too(tmp_path: Path) -> None:
    session = vulkan_session(str(written(tmp_path, rows="n")))
    np.testing.assert_array_equal(session.run(None, {"x": X})[0], expected())
    assert onnxruntime_ep_vulkan.session_stats(session).plans_loaded == 0


@pytest.mark.skipif(not hasattr(ort, "ModelCompiler"), reason="this ONNX Runtime has no ModelCompiler")
@pytest.mark.parametrize("embed", [False, True])
def test_the_model_compiler(tmp_path: Path, embed: bool) -> None:
    entries = settings()
    entries.add_provider_for_devices(ep_devices()[:1], {})
    source, target = tmp_path / "source.onnx", tmp_path / "target.onnx"
    source.write_bytes(model())
    ort.ModelCompiler(entries, str(source), embed_compiled_data_into_model=embed).compile_to_file(str(target))
    session = vulkan_session(str(target))
    np.testing.assert_array_equal(session.run(None, {"x": X})[0], expected())
    assert onnxruntime_ep_vulkan.session_stats(session).plans_loaded == 1


@pytest.mark.skipif(not hasattr(ort, "ModelCompiler"), reason="this ONNX Runtime has no ModelCompiler")
def test_the_model_compiler_in_memory() -> None:
    entries = settings()
    entries.add_provider_for_devices(ep_devices()[:1], {})
    data = ort.ModelCompiler(entries, model(), embed_compiled_data_into_model=True).compile_to_bytes()
    session = vulkan_session(data)
    np.testing.assert_array_equal(session.run(None, {"x": X})[0], expected())
    assert onnxruntime_ep_vulkan.session_stats(session).plans_loaded == 1
    with pytest.raises(Exception, match=r"comes from memory: set the session option ep\.context_file_path"):
        ort.ModelCompiler(entries, model(), embed_compiled_data_into_model=False).compile_to_bytes()


def test_blocks_between_cpu_nodes(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("NonZero", ["a"], ["places"]),
        helper.make_node("Cast", ["places"], ["f"], to=1),
        helper.make_node("Mul", ["f", "f"], ["y"]),
    ]
    data = make_model(nodes, {"x": [3, 8]}, {"y": [2, "k"]}, {"w": WEIGHTS})
    target = tmp_path / "compiled.onnx"
    vulkan_session(data, sess_options=settings(context_enable="1", context_file_path=str(target)))
    assert [n.op_type for n in onnx.load(target).graph.node].count("EPContext") == 2
    session = vulkan_session(str(target))
    want = ort.InferenceSession(data, providers=["CPUExecutionProvider"]).run(None, {"x": X})[0]
    np.testing.assert_array_equal(session.run(None, {"x": X})[0], want)


@device_memory
def test_device_memory(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    target = tmp_path / "compiled.onnx"
    devices = [d for d in ep_devices() if d.ep_metadata["memory"] == "device"]
    for entries, source in ((settings(context_enable="1", context_file_path=str(target)), model()), (settings(), str(target))):
        entries.add_provider_for_devices(devices, {})
        session = ort.InferenceSession(source, entries, enable_fallback=0)
        np.testing.assert_array_equal(session.run(None, {"x": X})[0], expected())
    assert onnxruntime_ep_vulkan.session_stats(session).plans_loaded == 1
    session = vulkan_session(str(target))  # host memory
    np.testing.assert_array_equal(session.run(None, {"x": X})[0], expected())
    assert onnxruntime_ep_vulkan.session_stats(session).plans_loaded == 0
    assert "this session's are in host memory" in caplog.text


def test_another_driver_is_refused_or_planned_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = written(tmp_path)
    now = compiled._identity
    monkeypatch.setattr(compiled, "_identity", lambda *a: {**now(*a), "driver_version": 7})
    with pytest.raises(Exception, match=r"compiled under the driver .*, and now there is .*Compile the model again") as caught:
        vulkan_session(str(path), {"stale_compiled": "refuse"})
    assert "VulkanEP" in str(caught.value)
    session = vulkan_session(str(path))
    np.testing.assert_array_equal(session.run(None, {"x": X})[0], expected())
    assert onnxruntime_ep_vulkan.session_stats(session).plans_loaded == 0
    assert "planned anew" in caplog.text


def test_mistakes_are_sentences(tmp_path: Path) -> None:
    path = written(tmp_path)
    with pytest.raises(Exception, match="EPContext model already"):
        vulkan_session(str(path), sess_options=settings(context_enable="1", context_file_path=str(tmp_path / "again.onnx")))
    with pytest.raises(Exception, match="loaded from memory: load it by its path"):
        vulkan_session(path.read_bytes())
    session = vulkan_session(path.read_bytes(), sess_options=settings(context_file_path=str(path)))
    np.testing.assert_array_equal(session.run(None, {"x": X})[0], expected())
    (file,) = tmp_path.glob("*.ovk")
    whole = file.read_bytes()
    file.write_bytes(whole[:-100])
    with pytest.raises(Exception, match="is damaged: it has"):
        vulkan_session(str(path))
    vulkan_session(str(written(tmp_path / "other", options={"precision": "fast"})))
    shutil.copy(next((tmp_path / "other").glob("*.ovk")), file)
    with pytest.raises(Exception, match="is not the compiled model that was written with this EPContext model"):
        vulkan_session(str(path))
    file.unlink()
    with pytest.raises(Exception, match="which is not there"):
        vulkan_session(str(path))
    proto = onnx.load(path)
    for a in proto.graph.node[0].attribute:
        if a.name == "ep_cache_context":
            a.s = b"../stolen.ovk"
    with pytest.raises(Exception, match="in the model's own folder"):
        vulkan_session(proto.SerializeToString())


def test_nothing_is_left_behind(tmp_path: Path) -> None:
    path = written(tmp_path)
    vulkan_session(str(path)).run(None, {"x": X})
    gc.collect()  # what other tests have left
    before = Device.get().counters()
    for _ in range(3):
        vulkan_session(str(path)).run(None, {"x": X})
    after = Device.get().counters()
    assert after["live_bytes"] == before["live_bytes"] and after["live_plans"] == before["live_plans"]


def test_a_forked_child_is_told(tmp_path: Path) -> None:
    session = vulkan_session(str(written(tmp_path)))
    pid = os.fork()
    if not pid:
        try:
            session.run(None, {"x": X})
            os._exit(1)
        except Exception as e:
            os._exit(0 if "forked" in str(e) else 2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    np.testing.assert_array_equal(session.run(None, {"x": X})[0], expected())
