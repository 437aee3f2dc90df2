"""Devices that lack a feature: what needs it is refused by the feature's name, and nothing is computed in another type.

``ONNX_VULKAN_WITHOUT`` hides features when the device is described and leaves them off when it is opened, so each test has a
process of its own. Every ONNX node case runs so with ``ONNX_VULKAN_THOROUGH=1``, else one in sixty.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from onnx_vulkan.device.info import hidden_features
from onnx_vulkan.errors import DeviceError

CONFORMANCE = Path(__file__).parents[1] / "conformance"
STRIDE = 1 if os.environ.get("ONNX_VULKAN_THOROUGH") == "1" else 60

MODELS = f"""
import json, sys
sys.path.insert(0, {str(CONFORMANCE)!r})
import numpy as np
import onnx_vulkan
from onnx import TensorProto as T, helper
from onnx_vulkan.device import Device, Shader
from onnx_vulkan.errors import DeviceError, RefusedError

def model(nodes, elem, shape, out, constants=()):
    x = helper.make_tensor_value_info("x", elem, shape)
    graph = helper.make_graph(nodes, "g", [x], [helper.make_tensor_value_info("y", elem, out)], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8).SerializeToString()

def said(call):
    try: call()
    except Exception as e: return str(e)
    return ""

relu = lambda elem: model([helper.make_node("Relu", ["x"], ["y"], name="node")], elem, [4], [4])
"""


def lacking(features: str, code: str) -> Any:
    """What *code* prints as JSON in a process whose device has not these features."""
    done = subprocess.run(
        [sys.executable, "-c", MODELS + code + "\nassert not Device.get().validation_messages()"],
        env=os.environ | {"ONNX_VULKAN_WITHOUT": features},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


def test_a_double_model_is_refused_by_name_through_both_doors() -> None:
    standalone, ep, half = lacking(
        "f64,f16",
        """
import onnxruntime, onnxruntime_ep_vulkan
options = onnxruntime.SessionOptions()
options.log_severity_level = 4
options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
claimed = []
for elem in (T.DOUBLE, T.FLOAT):
    session = onnxruntime.InferenceSession(relu(elem), providers=["VulkanEP", "CPUExecutionProvider"])
    claimed.append(onnxruntime_ep_vulkan.session_stats(session).claimed_nodes)
    x = np.array([-1, 1, 2, 3], np.float64 if elem == T.DOUBLE else np.float32)
    assert session.run(None, {"x": x})[0].tolist() == [0, 1, 2, 3]
assert said(lambda: onnxruntime.InferenceSession(relu(T.DOUBLE), options, providers=["VulkanEP"]))
print(json.dumps([said(lambda: onnx_vulkan.Session.load(relu(T.DOUBLE))), claimed,
                  said(lambda: onnx_vulkan.Session.load(relu(T.FLOAT16)))]))
""",
    )
    assert "'node' (dtype): it uses float64, and the device lacks f64." in standalone
    assert ep == [0, 1]
    assert "it uses float16, and the device lacks f16." in half


def test_every_type_names_its_feature() -> None:
    said = lacking(
        "f64,f16,i64,i16,i8,storage8,storage16",
        "kinds = dict(double=T.DOUBLE, half=T.FLOAT16, bf=T.BFLOAT16, long=T.INT64, short=T.INT16, byte=T.INT8)\n"
        "print(json.dumps({k: said(lambda: onnx_vulkan.Session.load("
        "model([helper.make_node('Neg', ['x'], ['y'])], e, [4], [4]))) for k, e in kinds.items()}))",
    )
    ends = dict(double="f64 and i64", half="f16 and storage16", bf="i16 and storage16", long="i64", short="i16 and storage16",
                byte="i8 and storage8")  # fmt: skip
    for kind, names in ends.items():
        assert said[kind].endswith(f"the device lacks {names}."), said[kind]


def test_int64_shapes_need_no_int64_on_the_device() -> None:
    """``reshape(x, [shape(x)[1], -1])``: the arithmetic is the host's, and an index that is known is a slice."""
    code = """
nodes = [helper.make_node("Shape", ["x"], ["s"]), helper.make_node("Gather", ["s", "one"], ["w"]),
         helper.make_node("Concat", ["w", "rest"], ["to"], axis=0), helper.make_node("Reshape", ["x", "to"], ["r"]),
         helper.make_node("Softmax", ["r"], ["y"])]
constants = [helper.make_tensor("one", T.INT64, [1], [1]), helper.make_tensor("rest", T.INT64, [1], [-1])]
session = onnx_vulkan.Session.load(model(nodes, T.FLOAT, ["a", "b"], [None, None], constants))
x = np.random.default_rng(1).standard_normal((6, 4)).astype(np.float32)
e = np.exp(x.reshape(4, 6)); e /= e.sum(1, keepdims=True)
y = session.run({"x": x})["y"]
shape_out = model([helper.make_node("Shape", ["x"], ["y"])], T.INT64, [4], [1])
print(json.dumps([y.shape == (4, 6) and bool(np.allclose(y, e)), said(lambda: onnx_vulkan.Session.load(shape_out))]))
"""
    right, refused = lacking("i64", code)
    assert right
    assert refused.endswith("it uses int64, and the device lacks i64.")


def test_a_kernel_that_needs_a_missing_feature_is_not_made() -> None:
    """The last gate, whatever the claims believed: the capabilities in the compiled kernel."""
    code = """
text = "#version 460\\nlayout(local_size_x = 1) in;\\nlayout(constant_id = 0) const %s a = %s;\\n" \\
       "shared %s s;\\nvoid main() { s = a + a; }\\n"
kinds = [("double", "1.0lf"), ("float", "1.0")]
print(json.dumps([said(lambda: Device.get().pipelines([Shader(text % (t, v, t), label="k")])) for t, v in kinds]))
"""
    assert lacking("f64", code) == ["Kernel k needs f64, which the device lacks.", ""]


def test_the_command_line_says_it(tmp_path: Path) -> None:
    path = tmp_path / "double.onnx"
    code = f"""
open({str(path)!r}, "wb").write(relu(T.DOUBLE))
from onnx_vulkan.cli import app
from typer.testing import CliRunner
run = CliRunner().invoke
print(json.dumps([run(app, ["inspect", {str(path)!r}, "--device", "0"]).stdout, run(app, ["doctor"]).output]))
"""
    inspected, doctor = lacking("f64", code)
    (refused,) = json.loads(inspected)["refused"]
    assert refused["check"] == "dtype" and refused["reason"] == "it uses float64, and the device lacks f64."
    assert "no f64: float64 tensors are refused" in doctor
    assert "ONNX_VULKAN_WITHOUT=f64 hides features" in doctor


def test_a_feature_that_does_not_exist_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONNX_VULKAN_WITHOUT", "f64, float17")
    with pytest.raises(DeviceError, match=r"ONNX_VULKAN_WITHOUT names float17; the features are .*f16"):
        hidden_features()


@pytest.mark.parametrize("features", ["i64", "f16,f64,i16,storage8"])
def test_what_is_claimed_without_a_feature_runs_without_it(features: str) -> None:
    code = f"""
from collections import Counter
from doors import Verdict, attempt
from onnx_cases import all_cases
outcomes = [(c.name, attempt(c, "standalone")) for c in all_cases()[::{STRIDE}]]
print(json.dumps([Counter(o.verdict.value for _, o in outcomes),
                  [[n, o.reason] for n, o in outcomes if o.verdict is Verdict.WRONG],
                  sum("the device lacks" in o.reason for _, o in outcomes)]))
"""
    counts, wrong, lacks = lacking(features, code)
    assert wrong == []
    assert counts["passed"] > 15 and lacks > 2
