"""Gates, gated norms and stream mixes of ONNX Runtime against its CPU EP."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from one_node import check, model_of, normal
from run_case import graph_of, refusals, run

CONTRIB: dict[str, Any] = {"domain": "com.microsoft", "dynamic": True}
HALVES: dict[str, Any] = {"rtol": 2e-3, "atol": 2e-3}


def half(*shape: int) -> Any:
    return normal(*shape).astype(np.float16)


def test_scaled_silu() -> None:
    check("ScaledSiLU", 13, {"x": normal(3, 5)}, {"alpha": 1.7}, **CONTRIB)
    check("ScaledSiLU", 13, {"x": half(3, 5), "s": np.float32(0.7)}, **HALVES, **CONTRIB)


def test_gated_add() -> None:
    check("GatedAdd", 13, {"x": normal(2, 3, 5), "y": normal(2, 3, 5), "g": normal(2, 3, 1)}, **CONTRIB)
    check("GatedAdd", 13, {"x": half(2, 3, 5), "y": half(2, 3, 5), "g": half(2, 3, 1)}, **HALVES, **CONTRIB)


@pytest.mark.parametrize("activation", ["silu", "swish", "sigmoid"])
def test_gated_rms_norm(activation: str) -> None:
    attributes = {"activation": activation, "epsilon": 1e-3}
    given = {"x": normal(2, 3, 12), "s": normal(4), "g": normal(2, 3, 12)}
    check("GatedRMSNorm", 13, given, attributes, device=activation == "silu", **CONTRIB)
    check("GatedRMSNorm", 13, {"x": half(2, 12), "s": half(12), "g": half(2, 12)}, attributes, **HALVES, **CONTRIB)


@pytest.mark.parametrize("scale", [(12,), (3, 4), (4,), None])
def test_branchwise_rms_norm(scale: tuple[int, ...] | None) -> None:
    s = normal(*scale) if scale else None
    check("BranchwiseRMSNorm", 13, {"x": normal(2, 3, 4), "s": s}, **CONTRIB)
    check("BranchwiseRMSNorm", 13, {"x": normal(2, 12), "s": s}, {"num_branches": 3}, **CONTRIB)


def test_linear_attention_gate() -> None:
    given = {"a": normal(2, 3, 4), "bias": normal(4), "scale": normal(4)}
    check("LinearAttentionGate", 13, given, **CONTRIB)
    check("LinearAttentionGate", 13, {**given, "b": normal(2, 3, 4)}, outputs=2, **CONTRIB)


@pytest.mark.parametrize("mix", [(2, 3), (2, 3, 1), (2, 3, 4)])
def test_hyper_connections(mix: tuple[int, ...]) -> None:
    streams, m = normal(2, 3, 4), normal(*mix)
    check("HyperConnectionPreMix", 13, {"x": streams, "m": m}, {"reduction_scale": 0.5}, **CONTRIB)
    given = {"x": streams, "o": normal(2, 4), "m": m}
    check("HyperConnectionPostMix", 13, given, **CONTRIB)
    check("HyperConnectionPostMix", 13, {**given, "s": normal(2, 3, 3)}, device=mix == (2, 3), **CONTRIB)


def by_formula(op: str, given: dict[str, Any], attributes: dict[str, Any], want: Any) -> None:
    """For what ONNX Runtime's CPU EP has no kernel of."""
    graph = graph_of(model_of(op, 13, given, attributes, **CONTRIB))
    assert not refusals(graph)
    (got,) = run(graph, given)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_swiglu() -> None:
    x = 3 * normal(2, 3, 8)
    g, u = np.minimum(x[..., :4], 2), np.clip(x[..., 4:], -2, 2)
    want = g / (1 + np.exp(-1.7 * g)) * (u + 1)
    attributes = {"activation_alpha": 1.7, "activation_beta": 1.0, "limit": 2.0}
    by_formula("SwiGLU", {"gate": x}, attributes, want)
    by_formula("SwiGLU", {"gate": np.ascontiguousarray(x[..., :4]), "up": np.ascontiguousarray(x[..., 4:])}, attributes, want)


@pytest.mark.parametrize("conjugate", [False, True])
def test_complex_product(conjugate: bool) -> None:
    x, y = normal(3, 4, 2), normal(4, 2)
    right = y[..., 0] + (-1j if conjugate else 1j) * y[..., 1]
    z = (x[..., 0] + 1j * x[..., 1]) * right
    by_formula("ComplexMulConj" if conjugate else "ComplexMul", {"x": x, "y": y}, {}, np.stack([z.real, z.imag], -1))


def test_product_with_gelu() -> None:
    x, w, bias = normal(2, 3, 4), normal(4, 5), normal(5)
    z = (x @ w + bias).astype(np.float64)
    want = 0.5 * z * (1 + np.tanh(0.7978845608028654 * (z + 0.044715 * z**3)))
    by_formula("GemmFastGelu", {"x": x, "w": w, "bias": bias}, {}, want)
