"""Fused products and convolutions of ONNX Runtime against its CPU EP."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from one_node import check, model_of, normal, on_cpu
from run_case import graph_of, refusals, run

CONTRIB: dict[str, Any] = {"domain": "com.microsoft", "dynamic": True}
NUMBERS = {"activation_alpha": 0.3, "activation_beta": 0.4, "activation_gamma": 1.1}


@pytest.mark.parametrize(
    "name",
    ["Relu", "LeakyRelu", "Tanh", "Sigmoid", "Elu", "Selu", "HardSigmoid", "Softplus", "Softsign", "ThresholdedRelu"],
)
def test_gemm(name: str) -> None:
    given = {"a": normal(3, 5), "b": normal(6, 5), "c": normal(6)}
    check("FusedGemm", 13, given, {"activation": name, "alpha": 0.5, "beta": 2.0, "transB": 1, **NUMBERS}, **CONTRIB)


def test_an_activation_without_its_numbers_is_refused() -> None:
    model = model_of("FusedGemm", 13, {"a": normal(3, 5), "b": normal(5, 6)}, {"activation": "Selu"}, **CONTRIB)
    (refusal,) = refusals(graph_of(model))
    assert "Selu needs alpha and gamma" in refusal.reason


@pytest.mark.parametrize("batches", [(0, 0), (1, 0), (0, 1), (1, 1)])
@pytest.mark.parametrize("swaps", [(0, 0), (1, 0), (0, 1), (1, 1)])
def test_matmul(swaps: tuple[int, int], batches: tuple[int, int]) -> None:
    operands = {}
    for name, shape, swap, batch in zip("ab", ((3, 4), (4, 5)), swaps, batches, strict=True):
        rows, columns = reversed(shape) if swap else shape
        operands[name] = normal(*((rows, 2, 6, columns) if batch else (2, 6, rows, columns)))
    attributes = {"transA": swaps[0], "transB": swaps[1], "transBatchA": batches[0], "transBatchB": batches[1], "alpha": 1.5}
    check("FusedMatMul", 13, operands, attributes, **CONTRIB)


def test_matmul_with_an_activation() -> None:
    """FusedMatMul and then the activation: ONNX Runtime's CPU EP has no kernel for both."""
    given = {"a": normal(2, 5, 3), "b": normal(2, 5, 6)}
    check("TransposeMatMul", 13, given, {"transA": 1, "alpha": 2.0}, **CONTRIB)
    (z,) = on_cpu(model_of("TransposeMatMul", 13, given, {"transA": 1}, **CONTRIB), given)
    attributes = {"transA": 1, "activation": "LeakyRelu", "activation_alpha": 0.25}
    (got,) = run(graph_of(model_of("FusedMatMulActivation", 13, given, attributes, **CONTRIB)), given)
    np.testing.assert_allclose(got, np.where(z < 0, 0.25 * z, z), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "name,numbers", [("Relu", None), ("LeakyRelu", [0.2]), ("Clip", [-0.5, 0.5]), ("HardSigmoid", [0.1, 0.4])]
)
def test_conv_with_a_sum(name: str, numbers: list[float] | None) -> None:
    """FusedConv with its fourth input, and the channels-last form of it by transposes (which has no CPU kernel)."""
    given = {"x": normal(1, 4, 6, 5), "w": normal(4, 2, 3, 3), "b": normal(4), "z": normal(1, 4, 4, 3)}
    attributes = {"activation": name, "group": 2} | ({"activation_params": numbers} if numbers else {})
    check("FusedConv", 13, given, attributes, constants=("w", "b"), **CONTRIB)
    (want,) = on_cpu(model_of("FusedConv", 13, given, attributes, domain="com.microsoft"), given)
    last = {k: np.moveaxis(v, 1, -1) if k in "xz" else v for k, v in given.items()}
    (got,) = run(graph_of(model_of("NhwcFusedConv", 13, last, attributes, domain="com.microsoft")), last)
    np.testing.assert_allclose(np.moveaxis(got, -1, 1), want, rtol=1e-4, atol=1e-5)


def test_conv_channels_last() -> None:
    given = {"x": normal(2, 3, 6, 5), "w": normal(4, 3, 3, 2), "b": normal(4)}
    (want,) = on_cpu(model_of("Conv", 13, given, {"pads": [1, 0, 0, 1]}), given)
    last = given | {"x": np.moveaxis(given["x"], 1, -1)}
    (got,) = run(graph_of(model_of("NhwcConv", 13, last, {"pads": [1, 0, 0, 1]}, domain="com.microsoft")), last)
    np.testing.assert_allclose(np.moveaxis(got, -1, 1), want, rtol=1e-4, atol=1e-5)
