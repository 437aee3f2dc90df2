"""MoE and QMoE against ONNX Runtime's CPU EP, few tokens (by index) and many (all experts)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from one_node import Array, check, model_of
from run_case import graph_of, refusals, run

RNG = np.random.default_rng(8)
CONTRIB: dict[str, Any] = {"domain": "com.microsoft", "dynamic": True}
EXPERTS, HIDDEN, INNER = 4, 32, 64
SWIGLU = {"activation_type": "swiglu", "swiglu_fusion": 1, "activation_alpha": 1.7, "activation_beta": 1.0, "swiglu_limit": 1.5}
Given = dict[str, Array | None]


def normal(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


def tokens(lead: tuple[int, ...]) -> Given:
    return {"x": normal(*lead, HIDDEN), "router": normal(int(np.prod(lead)), EXPERTS)}


def run_moe(op: str, given: Given, attributes: dict[str, Any], **options: Any) -> None:
    constants = [name for name in given if name not in ("x", "router", "router_weights")]
    check(op, 21, given, attributes, constants=constants, **{"rtol": 1e-4, "atol": 1e-4} | options, **CONTRIB)


@pytest.mark.parametrize("normalize", [0, 1])
@pytest.mark.parametrize("lead", [(1,), (5,), (2, 3)])
@pytest.mark.parametrize("form", [{"activation_type": n} for n in ("relu", "silu", "gelu", "identity")] + [SWIGLU], ids=str)
def test_moe(form: dict[str, Any], lead: tuple[int, ...], normalize: int) -> None:
    rows = INNER * (2 if "swiglu_fusion" in form else 1)
    given = tokens(lead) | {"w1": 0.2 * normal(EXPERTS, rows, HIDDEN), "b1": normal(EXPERTS, rows) if normalize else None}
    given |= {"w2": 0.2 * normal(EXPERTS, HIDDEN, INNER), "b2": normal(EXPERTS, HIDDEN)}
    device = form is SWIGLU and normalize == 1 and len(lead) == 1
    run_moe("MoE", given, {"k": 2, "normalize_routing_weights": normalize, **form}, device=device)


@pytest.mark.parametrize("fusion", [0, 2])
def test_layouts_of_swiglu(fusion: int) -> None:
    """ONNX Runtime's CPU EP has the interleaved layout alone: the others give what the same weights give in that one."""
    gate, up, w2 = 0.2 * normal(EXPERTS, INNER, HIDDEN), 0.2 * normal(EXPERTS, INNER, HIDDEN), normal(EXPERTS, HIDDEN, INNER)
    whole = tokens((5,))
    interleaved = np.stack([gate, up], 2).reshape(EXPERTS, 2 * INNER, HIDDEN)
    apart: Given = {"w1": gate, "b1": None, "w2": w2, "b2": None, "w3": up}
    together: Given = {"w1": np.concatenate([gate, up], 1), "b1": None, "w2": w2}
    results = []
    for given, form in (
        (whole | {"w1": interleaved, "b1": None, "w2": w2}, 1),
        (whole | (together if fusion else apart), fusion),
    ):
        feeds = {k: v for k, v in given.items() if v is not None}
        model = model_of("MoE", 21, given, SWIGLU | {"swiglu_fusion": form, "k": 2}, domain="com.microsoft")
        results.append(run(graph_of(model), feeds)[0])
    np.testing.assert_allclose(*results, rtol=1e-5, atol=1e-5)


def quantized(bits: int, block: int, zero: bool, rows: int) -> Given:
    """The weights of QMoE's two layers."""

    def packed(*shape: int) -> Array:
        return RNG.integers(0, 256, (*shape[:-1], -(-shape[-1] * bits // 8))).astype(np.uint8)

    given: Given = {}
    zeros: Given = {"w3": None, "s3": None, "b3": None}
    for i, n, k in ((1, rows, HIDDEN), (2, HIDDEN, INNER)):
        per = (EXPERTS, n, k // block) if block else (EXPERTS, n)
        given |= {f"w{i}": packed(EXPERTS, n, k), f"s{i}": RNG.uniform(0.01, 0.05, per).astype(np.float32) / (1 << bits) * 4}
        given |= {f"b{i}": normal(EXPERTS, n)}
        zeros |= {f"z{i}": packed(*per) if zero else None}
    return given | zeros | {"z3": None}


@pytest.mark.parametrize("zero", [False, True])
@pytest.mark.parametrize("block", [0, 16, 32])
@pytest.mark.parametrize("lead", [(1,), (5,)])
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_qmoe(bits: int, lead: tuple[int, ...], block: int, zero: bool) -> None:
    given = tokens(lead) | quantized(bits, block, zero, 2 * INNER)
    attributes = {"k": 2, "normalize_routing_weights": 1, "expert_weight_bits": bits, "weights_prepacked": 0, **SWIGLU}
    # in blocks ONNX Runtime takes tokens of 8 bits, except with weights of 4
    rough = {"atol": 0.05} if block and bits != 4 else {}
    run_moe(
        "QMoE", given, attributes | ({"block_size": block} if block else {}), device=bits == 4 and block != 16 and zero, **rough
    )


@pytest.mark.parametrize("normalize", [0, 1])
def test_qmoe_with_weights_of_its_own(normalize: int) -> None:
    given = tokens((5,)) | quantized(4, 32, False, INNER) | {"router_weights": np.abs(normal(5, EXPERTS))}
    attributes = {"k": 2, "normalize_routing_weights": normalize, "weights_prepacked": 0, "block_size": 32}
    run_moe("QMoE", given, {**attributes, "activation_type": "silu"})


@pytest.mark.parametrize(
    ("change", "says"),
    [({"weights_prepacked": -1}, "weights_prepacked -1"), ({"normalize_routing_weights": 0}, "normalize_routing_weights 0"),
     ({"quant_type": "fp4"}, "quant_type 'fp4'"), ({"expert_weight_bits": 3}, "3 bits")],
)  # fmt: skip
def test_qmoe_refused(change: dict[str, Any], says: str) -> None:
    given = tokens((5,)) | quantized(4, 0, False, INNER)
    attributes = {"k": 2, "normalize_routing_weights": 1, "weights_prepacked": 0, **change}
    (refusal,) = refusals(graph_of(model_of("QMoE", 21, given, attributes, domain="com.microsoft")))
    assert says in refusal.reason
