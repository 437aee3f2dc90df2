"""A kernel that is wrong: run sees it, --bisect names the node, --shadow names the kernel; and the files that run writes."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from calling import call
from onnx import helper, numpy_helper
from onnx_vulkan.codegen import functions
from onnx_vulkan.errors import OnnxVulkanError


@pytest.fixture
def layers(tmp_path: Path) -> Path:
    """Four products, each with an elementwise function after it; the third is a tanh. Weights are external."""
    rng = np.random.default_rng(1)
    nodes, weights, value = [], [], "x"
    for n, op in enumerate(("Relu", "Sigmoid", "Tanh", "Softplus")):
        weights.append(numpy_helper.from_array(rng.standard_normal((16, 16)).astype(np.float32), f"w{n}"))
        nodes.append(helper.make_node("MatMul", [value, f"w{n}"], [f"m{n}"], name=f"product{n}"))
        nodes.append(helper.make_node(op, [f"m{n}"], [f"v{n}"], name=f"{op.lower()}{n}"))
        value = f"v{n}"
    edges = [helper.make_tensor_value_info(v, 1, ["n", 16]) for v in ("x", value)]
    model = helper.make_model(helper.make_graph(nodes, "layers", edges[:1], edges[1:], weights), ir_version=10)
    model.opset_import[0].version = 20
    onnx.save(model, tmp_path / "layers.onnx", save_as_external_data=True, location="weights.bin", size_threshold=0)
    return tmp_path / "layers.onnx"


def _forget() -> None:
    for function in vars(functions).values():
        if hasattr(function, "cache_clear"):
            function.cache_clear()


@pytest.fixture
def wrong_tanh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """One of a hundred wrong in every tanh that is compiled."""
    _forget()
    with monkeypatch.context() as patch:
        patch.setitem(functions._FLOAT, "tanh", "(ov_tanh({0}) * T(1.01))")
        yield
    _forget()


def test_a_right_model_has_nothing_to_bisect(layers: Path, tmp_path: Path) -> None:
    trace, page = tmp_path / "trace.json", tmp_path / "page.html"
    files = ("--trace", trace, "--html", page)
    code, data, err = call("run", layers, "--dim", "n=3", "--runs", 1, "--bisect", "--shadow", *files)
    assert code == 0 and data["bisect"] == {} and "nothing to bisect" in err
    for door in ("ep", "standalone"):
        assert data["shadow"][door]["kernels"] >= 4 and data["shadow"][door]["max_tolerance_ratio"] <= 1
    assert any(e["ph"] == "X" for e in json.loads(trace.read_text())["traceEvents"])
    text = page.read_text()
    assert "share of its allowance" in text and "v3 (ep)" in text and "http" not in text.split("<body>")[1].split("<script")[0]


def test_a_wrong_kernel(layers: Path, tmp_path: Path, wrong_tanh: None) -> None:
    code, _, err = call("prepare", layers, "--dim", "n=3", "--output", tmp_path / "bundle")
    assert code == 0, err
    code, data, err = call("run", tmp_path / "bundle", "--runs", 1, "--bisect")
    assert code == 1 and "BEYOND TOLERANCE" in err
    for door in ("ep", "standalone"):
        assert data["backends"][door]["max_tolerance_ratio"] > 1
        assert data["bisect"][door]["node"] == {"name": "tanh2", "op_type": "Tanh", "index": 5}
        assert data["bisect"][door]["value"] == "v2" and data["bisect"][door]["cuts"] <= 5
        assert f"{door}: the first node to leave the tolerance is 'tanh2', Tanh (node 6 of 8)" in err


@pytest.mark.parametrize("door", ["ep", "standalone"])
def test_a_shadow_run_ends_at_a_wrong_kernel(layers: Path, wrong_tanh: None, door: str) -> None:
    """Also where the tolerance of the model is too wide to see it."""
    arguments = ("run", layers, "--dim", "n=3", "--runs", 1, "--backend", door, "--atol", 100)
    assert call(*arguments)[0] == 0
    with pytest.raises(OnnxVulkanError, match=r"the kernel of .*'tanh2' is wrong: element \[\d, \d+\] is"):
        call(*arguments, "--shadow")


def test_a_shadow_run_is_not_swallowed_by_onnx_runtime(layers: Path, wrong_tanh: None) -> None:
    """The wrapper of ONNX Runtime would run a failed session again on the CPU; this failure is none of those."""
    import onnxruntime
    import onnxruntime_ep_vulkan  # noqa: F401

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    providers = [("VulkanEP", {"shadow": "on"}), "CPUExecutionProvider"]
    session = onnxruntime.InferenceSession(layers, options, providers=providers)
    for _ in range(2):
        with pytest.raises(Exception, match=r"the kernel of .*'tanh2' is wrong"):
            session.run(None, {"x": np.ones((3, 16), np.float32)})


def test_a_reference_that_is_another(layers: Path, tmp_path: Path) -> None:
    from dataclasses import replace

    from onnx_vulkan.bundle import read_bundle, write_bundle

    call("prepare", layers, "--dim", "n=3", "--output", tmp_path / "bundle")
    bundle = read_bundle(tmp_path / "bundle")
    write_bundle(replace(bundle, reference={k: v + 1 for k, v in bundle.reference.items()}), tmp_path / "bundle")
    code, data, err = call("run", tmp_path / "bundle", "--runs", 1, "--bisect", "--backend", "standalone")
    assert code == 1 and data["bisect"]["standalone"]["node"] is None and "the stored reference is another" in err


def test_a_part_on_vulkan_is_bisected_and_shadowed(tmp_path: Path, wrong_tanh: None) -> None:
    """Nodes before the wrong one that stay on the CPU are not blamed, and the whole is not excused."""
    nodes = [
        helper.make_node("NonZero", ["x"], ["where"], name="nz"),
        helper.make_node("Relu", ["x"], ["a"], name="relu"),
        helper.make_node("Tanh", ["a"], ["y"], name="tanh"),
    ]
    edges = [helper.make_tensor_value_info(n, t, s) for n, t, s in (("x", 1, [4, 8]), ("where", 7, [2, None]), ("y", 1, [4, 8]))]
    model = helper.make_model(helper.make_graph(nodes, "part", edges[:1], edges[1:]), ir_version=8)
    model.opset_import[0].version = 17
    onnx.save(model, tmp_path / "part.onnx")
    arguments = ("run", tmp_path / "part.onnx", "--backend", "ep", "--runs", 1, "--option", "island=keep")
    code, data, err = call(*arguments, "--bisect")
    assert code == 1 and data["bisect"]["ep"]["node"]["name"] == "tanh", err
    with pytest.raises(OnnxVulkanError, match=r"the kernel of .*'tanh' is wrong"):
        call(*arguments, "--shadow")
