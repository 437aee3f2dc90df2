"""The engine as an ``onnx.backend.base.Backend``: ONNX's own runner on a handful of its cases."""

from __future__ import annotations

import unittest
import warnings

import numpy as np
import onnx_vulkan.backend
import pytest
from onnx import TensorProto, helper
from onnx_vulkan.errors import InvalidInput, RefusedError

CASES = """test_relu_cpu test_softmax_axis_1_cpu test_tril_neg_cpu test_single_relu_model_cpu test_operator_conv_cpu
test_Linear_cpu test_string_concat_cpu test_relu_cuda""".split()

MODEL = helper.make_model(
    helper.make_graph(
        [helper.make_node("Sub", ["a", "b"], ["d"], name="minus")],
        "difference",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n"]) for n in "ab"],
        [helper.make_tensor_value_info("d", TensorProto.FLOAT, ["n"])],
    ),
    opset_imports=[helper.make_opsetid("", 17)],
)
A, B = np.array([1, 2, 3], np.float32), np.array([3, 5, 7], np.float32)


def test_the_runner_really_runs_and_skips() -> None:
    """What is claimed passes, what is refused is skipped with the reason, and so is another device."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # ONNX's makers of cases divide by zero
        import onnx.backend.test

        runner = onnx.backend.test.BackendTest(onnx_vulkan.backend, __name__)
    result = unittest.TestResult()
    unittest.TestSuite(runner.tests(name) for name in CASES).run(result)
    assert result.testsRun == len(CASES) and not result.errors and not result.failures
    reasons = {test.id().rpartition(".")[2]: reason for test, reason in result.skipped}
    assert sorted(reasons) == ["test_relu_cuda", "test_string_concat_cpu"]
    assert "strings" in reasons["test_string_concat_cpu"]


def test_a_prepared_model_takes_inputs_in_order_and_by_name() -> None:
    rep = onnx_vulkan.backend.prepare(MODEL)
    np.testing.assert_array_equal(rep.run([A, B])[0], A - B)
    np.testing.assert_array_equal(rep.run({"b": B, "a": A})["d"], A - B)
    with pytest.raises(InvalidInput, match="missing"):
        rep.run([A])
    with pytest.raises(InvalidInput, match="3 inputs are given"):
        rep.run([A, B, A])


def test_one_call_for_a_model_and_for_a_node() -> None:
    np.testing.assert_array_equal(onnx_vulkan.backend.run_model(MODEL, [A, B])[0], A - B)
    clip = helper.make_node("Clip", ["x", "", "high"], ["y"])
    (y,) = onnx_vulkan.backend.run_node(clip, [A, np.float32(2)])
    np.testing.assert_array_equal(y, np.minimum(A, 2))
    softmax = helper.make_node("Softmax", ["x"], ["y"])
    x = np.zeros((2, 1, 4), np.float32)
    (old,) = onnx_vulkan.backend.run_node(softmax, [x], opset_version=11)
    np.testing.assert_allclose(old, np.full((2, 1, 4), 0.25, np.float32))
    gelu = helper.make_node("FastGelu", ["x"], ["y"], domain="com.microsoft")
    np.testing.assert_allclose(
        onnx_vulkan.backend.run_node(gelu, [A], outputs_info=[(np.float32, (3,))])[0], [0.8412, 1.9546, 2.9964], atol=1e-3
    )


def test_what_is_refused_and_what_is_no_device() -> None:
    node = helper.make_node("RandomNormal", [], ["y"], shape=[3])
    with pytest.raises(RefusedError, match="random numbers"):
        onnx_vulkan.backend.run_node(node, [])
    refused = helper.make_model(helper.make_graph([node], "g", [], [helper.make_tensor_value_info("y", TensorProto.FLOAT, [3])]))
    assert not onnx_vulkan.backend.is_compatible(refused)
    assert onnx_vulkan.backend.is_compatible(MODEL)
    assert not onnx_vulkan.backend.supports_device("CUDA")
    with pytest.raises(InvalidInput, match="no Vulkan device"):
        onnx_vulkan.backend.prepare(MODEL, "CUDA:0")
