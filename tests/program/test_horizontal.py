"""Products of one tensor with constant matrices become one product, where what reads them can read slices."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from onnx_vulkan.dims import Scope, symbol
from onnx_vulkan.dtypes import DType
from onnx_vulkan.engine.structure import optimize
from onnx_vulkan.fuse import fuse
from onnx_vulkan.program.builder import Builder
from onnx_vulkan.program.interp import interpret

RNG = np.random.default_rng(5)
ROWS = symbol("rows")


def weights(*shape, dtype=np.float32):
    return (RNG.integers(-3, 4, shape) / 4).astype(dtype)


def products(b, x, columns=(8, 8, 8), dtype=np.float32):
    return [b.contract(x, b.const(weights(x.shape[1], n, dtype=dtype))) for n in columns]


def optimized(b, outputs, rows=5):
    """The program after the passes; its results have the same bits."""
    program = b.finish(outputs)
    with Scope({"rows": rows}):
        best = optimize(program, {})
    feeds = {"x": weights(rows, 6, dtype=b.inputs[0].dtype.numpy)}
    for got, want in zip(interpret(best, feeds), interpret(program, feeds), strict=True):
        assert got.dtype == want.dtype and got.tobytes() == want.tobytes()
    return best


def counts(program):
    return Counter(i.op for i in program.instrs)


def start(dtype=DType.F32):
    b = Builder()
    return b, b.input("x", dtype, (ROWS, 6))


def attention(b, q, k, v):
    return b.contract(b.contract(q, b.transpose(k, [1, 0])), v)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_query_key_value(dtype):
    b, x = start(DType.of(np.dtype(dtype)))
    q, k, v = products(b, x, dtype=dtype)
    q = b.mul(b.add(q, b.const(weights(8, dtype=dtype))), b.scalar(0.5, x.dtype))
    v = b.add(b.const(weights(1, 8, dtype=dtype)), v)
    best = optimized(b, [attention(b, q, k, v)])
    assert counts(best)["contract"] == 3 and counts(best)["slice"] == 3
    with Scope({"rows": 5}):
        assert len(fuse(best).steps) == 3  # bias and scale run in the product


def test_what_one_product_lacks_changes_no_number():
    b, x = start()
    p, q = products(b, x, (4, 4))
    x_zero = b.mul(p, b.const(np.array([-0.0, 0, np.inf, np.nan], np.float32)))
    best = optimized(b, [b.concat([x_zero, q], 0)])
    assert counts(best)["contract"] == 1 and counts(best)["map"] == 1


def test_a_function_that_all_have_is_applied_once():
    b, x = start()
    gates = [b.tanh(b.add(y, b.const(weights(y.shape[1])))) for y in products(b, x, (3, 5))]
    best = optimized(b, [b.contract(b.reshape(gates[0], (3, ROWS)), gates[1])])
    assert counts(best)["contract"] == 2 and counts(best)["map"] == 2


def combine(b, x, what):
    """Programs whose products stay as they are."""
    p, q = products(b, x, (8, 8))
    if what == "an output":
        return [p, b.contract(b.transpose(q, [1, 0]), x)]
    if what == "an epilogue between two":
        return [b.mul(b.tanh(p), q)]
    if what == "one function alone":
        return [b.concat([b.tanh(p), q], 0)]
    return [b.concat([p, *b.sort(q, 8, 1, largest=True)[:1]], 0)]


@pytest.mark.parametrize("what", ["an output", "an epilogue between two", "one function alone", "a sort"])
def test_left_as_they_are(what):
    b, x = start()
    outputs = combine(b, x, what)
    before = counts(b.finish(outputs))["contract"]
    assert counts(optimized(b, outputs))["contract"] == before


def test_not_too_many_and_not_too_far_apart():
    b, x = start()
    many = products(b, x, (1, 2, 3, 1, 2, 3, 1))
    assert counts(optimized(b, [b.concat(many, 1)]))["contract"] == 2
    b, x = start()
    (p,) = products(b, x, (8,))
    y = b.transpose(p, [1, 0])
    for _ in range(60):
        y = b.tanh(y)
    (q,) = products(b, x, (8,))
    assert counts(optimized(b, [b.contract(q, y)]))["contract"] == 3
