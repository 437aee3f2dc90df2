"""Which functions may be coarse: those whose last bits only half floats see."""

from __future__ import annotations

import pytest
from onnx_vulkan.dtypes import DType
from onnx_vulkan.program import composites
from onnx_vulkan.program.builder import Builder
from onnx_vulkan.program.coarse import mark_coarse


def marked(formula, dtype=DType.F16, outputs=lambda y: [y]):
    """The functions that are coarse in a formula of one input."""
    b = Builder()
    x = b.input("x", dtype, (4, 40))
    program = mark_coarse(b.finish(outputs(formula(b, x))))
    return sorted(i.attrs["fn"] for i in program.instrs if "coarse" in i.attrs)


def halved(formula):
    """A formula in float32 between casts."""
    return lambda b, x: b.cast(formula(b, b.cast(x, DType.F32)), DType.F16)


@pytest.mark.parametrize(
    ("formula", "expected"),
    [
        (composites.softmax, ["div", "exp"]),
        (halved(composites.masked_softmax), ["div", "exp"]),
        (halved(composites.sigmoid), ["div", "exp"]),
        (composites.gelu, ["erf"]),
        (composites.tanh_gelu, ["tanh"]),
        (composites.quick_gelu, ["div", "exp"]),
        (halved(composites.softplus), ["exp"]),
        (halved(composites.expm1), ["exp", "tanh"]),
        # the logarithm of a sum near 1 shows its last bits, and so do differences, whole numbers and comparisons
        (composites.log_softmax, []),
        (halved(lambda b, x: b.sub(b.exp(x), b.scalar(1, DType.F32))), []),
        (halved(lambda b, x: b.floor(b.div(x, b.exp(x)))), []),
        (halved(lambda b, x: b.select(b.lt(b.exp(x), b.abs(x)), x, b.exp(x))), ["exp"]),
        (halved(lambda b, x: b.add(b.exp(x), x)), []),
        (halved(lambda b, x: b.add(b.tanh(x), b.scalar(0.5, DType.F32))), []),
        (halved(lambda b, x: b.exp(b.exp(x))), ["exp"]),
        # functions of half floats are coarse unmarked, but for quotients that may be whole numbers
        (lambda b, x: b.erf(b.div(x, b.scalar(2**0.5, DType.F16))), ["div"]),
        (lambda b, x: b.floor(b.div(x, b.scalar(3, DType.F16))), []),
    ],
)
def test_formulas(formula, expected):
    assert marked(formula) == expected


def test_of_other_dtypes_nothing_is_coarse():
    for dtype in (DType.F32, DType.F64):
        assert marked(composites.softmax, dtype) == []
    assert marked(composites.softmax, DType.BF16) == ["div", "exp"]


def test_what_leaves_as_float32_is_not_coarse():
    def formula(b, x):
        e = b.exp(b.cast(x, DType.F32))
        return [b.cast(e, DType.F16), e]

    assert marked(lambda b, x: formula(b, x), outputs=lambda ys: ys) == []
