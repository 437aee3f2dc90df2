"""The pass that finds attention in a Program: what it takes for one, what it leaves alone, and that the numbers stay."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from onnx_vulkan.dims import Extent, Scope, symbol
from onnx_vulkan.dtypes import DType
from onnx_vulkan.lower.attention import Masks, scaled_attention
from onnx_vulkan.program.attention import fuse_attention
from onnx_vulkan.program.builder import Builder
from onnx_vulkan.program.composites import DECOMPOSITIONS, softmax
from onnx_vulkan.program.interp import interpret
from onnx_vulkan.program.ir import Program, Value
from onnx_vulkan.program.simplify import simplify

S, T = symbol("s"), symbol("t")
NUMBERS = {"s": 5, "t": 7}
RNG = np.random.default_rng(3)


def check(b: Builder, outputs: list[Value], attentions: int = 1) -> Program:
    """The pass finds so many attentions, and neither they nor their decompositions change a number."""
    with Scope(NUMBERS):
        program = simplify(b.finish(outputs))
        fused = fuse_attention(program)
        plain = Builder()
        for instr in fused.instrs:
            made = DECOMPOSITIONS["attention"](plain, instr) if instr.op == "attention" else None
            if made is None:
                plain.instrs.append(instr)
            else:
                last = plain.instrs.pop()
                assert last.outputs == made
                plain.instrs.append(type(last)(last.op, last.inputs, instr.outputs, last.attrs))
    assert sum(i.op == "attention" for i in fused.instrs) == attentions
    feeds = {}
    for v in program.inputs:
        shape = [NUMBERS.get(str(e), e) for e in v.shape]
        feeds[v.name] = (RNG.random(shape) < 0.8) if v.dtype is DType.BOOL else RNG.standard_normal(shape).astype(v.dtype.numpy)
    want = interpret(program, feeds)
    for same in (fused, Program(fused.inputs, fused.outputs, plain.instrs)):
        for x, y in zip(interpret(same, feeds), want, strict=True):
            np.testing.assert_allclose(x.astype(np.float32), y.astype(np.float32), rtol=1e-2, atol=1e-3)
    return fused


def operands(b: Builder, heads: int, groups: int, dtype: DType = DType.F32) -> tuple[Value, Value, Value]:
    shapes: list[tuple[Extent, ...]] = [(2, S, heads * 4), (2, T, groups * 4), (2, T, groups * 4)]
    found = []
    for name, shape, count in zip("qkv", shapes, (heads, groups, groups), strict=True):
        x = b.input(name, dtype, shape)
        found.append(b.transpose(b.reshape(x, (*shape[:2], count, 4)), (0, 2, 1, 3)))
    return found[0], found[1], found[2]


@pytest.mark.parametrize("groups", [6, 2, 1])
@pytest.mark.parametrize("dtype", [DType.F32, DType.F16])
def test_every_form_of_the_lowering(groups: int, dtype: DType) -> None:
    for may_be_empty in (False, True):
        b = Builder()
        q, k, v = operands(b, 6, groups, dtype)
        masks = Masks((b.input("mask", DType.BOOL, (2, 1, S, T)),), (b.input("bias", dtype, (6, 1, T)),), may_be_empty)
        with Scope(NUMBERS):
            y = scaled_attention(b, q, k, v, scale=0.5, masks=masks, softcap=3.0).y
        fused = check(b, [y])
        made = next(i for i in fused.instrs if i.op == "attention")
        assert made.attrs["empty"] == ("zero" if may_be_empty else "nan")
        assert [fn for fn, _ in made.attrs["score"]] == ["mul", "mul", "tanh", "mul", "add", "select"]


def product(b: Builder, masked: Callable[[Value], Value] = lambda x: x, weights: Callable[[Value], Value] = lambda p: p) -> Value:
    q, k, v = operands(b, 3, 3)
    x = masked(b.contract(q, b.transpose(k, (0, 1, 3, 2))))
    return b.contract(weights(softmax(b, x)), v)


def test_products_of_folded_batches() -> None:
    b = Builder()
    x, y, z = (b.reshape(v, (6, v.shape[2], 4)) for v in operands(b, 3, 3))
    scores = b.reshape(b.contract(x, b.transpose(y, (0, 2, 1))), (2, 3, S, T))
    weights = softmax(b, b.map("add", scores, b.input("bias", DType.F32, (2, 1, S, T))))
    check(b, [b.contract(b.reshape(weights, (6, S, T)), z)])


def test_nan_replaced_by_zero_and_masks_of_nothing() -> None:
    b = Builder()
    zeros = b.const(np.zeros((1, 1, 1, 1), np.float32))
    y = product(b, lambda x: b.map("add", x, zeros), lambda p: b.map("select", b.map("isnan", p), b.scalar(0, DType.F32), p))
    made = next(i for i in check(b, [y]).instrs if i.op == "attention")
    assert made.attrs["empty"] == "clean"
    assert not made.attrs["score"]


def test_scores_that_others_read_stay() -> None:
    b = Builder()
    seen: list[Value] = []

    def keep(x: Value) -> Value:
        seen.append(x)
        return x

    y = product(b, keep)
    check(b, [y, seen[0]], 0)
    b = Builder()
    y = product(b, weights=keep)
    check(b, [y, seen[1]], 0)


def test_softmax_over_another_axis_stays() -> None:
    b = Builder()
    q, k, v = operands(b, 3, 3)
    x = b.contract(q, b.transpose(k, (0, 1, 3, 2)))
    e = b.map("exp", b.map("sub", x, b.reduce("max", x, (-2,), keepdims=True)))
    p = b.map("div", e, b.reduce("sum", e, (-2,), keepdims=True))
    check(b, [b.contract(p, v)], 0)
    b = Builder()
    with Scope(NUMBERS):
        y = product(b, weights=lambda p: b.map("mul", p, b.scalar(2, p.dtype)))
    check(b, [y], 0)


def test_what_a_causal_mask_hides_is_known() -> None:
    def causal(fn: str, fill: float) -> Extent | None:
        b = Builder()

        def masked(x: Value) -> Value:
            mask = b.map(fn, b.iota((1, T), 1, DType.I64), b.iota((S, 1), 0, DType.I64, 2))
            return b.map("select", mask, x, b.scalar(fill, DType.F32))

        with Scope(NUMBERS):
            y = product(b, masked)
        offset: Extent | None = next(i for i in check(b, [y]).instrs if i.op == "attention").attrs["causal"]
        return offset

    assert causal("le", -np.inf) == 2
    assert causal("lt", -np.inf) is None
    assert causal("le", -1e38) is None, "what is hidden weighs something where all that is seen is as low"
