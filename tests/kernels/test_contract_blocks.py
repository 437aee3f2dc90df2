"""Products with weights quantized in blocks against the interpreter, and that against the decomposition."""

from __future__ import annotations

import numpy as np
import pytest
from onnx_vulkan.dims import Extent, symbol
from onnx_vulkan.dtypes import DType
from onnx_vulkan.graph import Array
from onnx_vulkan.kernels import families
from onnx_vulkan.program.blocks import contract_blocks
from onnx_vulkan.program.builder import Builder
from onnx_vulkan.program.composites import DECOMPOSITIONS
from onnx_vulkan.program.interp import interpret
from onnx_vulkan.program.ir import Value
from run_step import check_program

F32, F16, BF16 = DType.F32, DType.F16, DType.BF16
families()  # registers them
RNG = np.random.default_rng(3)


def made(
    m: Extent, n: int, k: int, bits: int, block: int, zero: str, dtype: DType = F32, rows: int = 0
) -> tuple[Builder, Value, dict[str, Array]]:
    blocks = -(-k // block)
    b = Builder()
    feeds: dict[str, Array] = {
        "x": RNG.standard_normal((rows or m, k)).astype(np.float32).astype(dtype.numpy),
        "q": RNG.integers(0, 256, (n, blocks * block * bits // 8)).astype(np.uint8),
        "scales": RNG.uniform(0.01, 0.1, (n, blocks)).astype(np.float32).astype(dtype.numpy),
    }
    if zero == "packed":
        feeds["zero"] = RNG.integers(0, 256, (n, -(-blocks * bits // 8))).astype(np.uint8)
    elif zero == "float":
        feeds["zero"] = RNG.uniform(0, 1 << bits, (n, blocks)).astype(np.float32).astype(dtype.numpy)
    values = {name: b.input(name, DType.of(v.dtype), (m, k) if name == "x" else v.shape) for name, v in feeds.items()}
    y = contract_blocks(b, values["x"], values["q"], values["scales"], values.get("zero"), bits=bits, block=block)
    return b, y, feeds


@pytest.mark.parametrize("zero", ["", "packed", "float"])
@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize(("m", "n", "k", "block"), [(1, 70, 200, 32), (40, 50, 72, 16), (30, 3, 130, 64)])
def test_product(m: int, n: int, k: int, block: int, bits: int, zero: str) -> None:
    """One row, tiles, and few columns; K is not whole blocks."""
    b, y, feeds = made(m, n, k, bits, block, zero)
    check_program(b, [y], feeds, atol=1e-3, rtol=1e-4)


@pytest.mark.parametrize("dtype", [F16, BF16])
@pytest.mark.parametrize("m", [1, 20])
def test_halves(m: int, dtype: DType) -> None:
    b, y, feeds = made(m, 33, 96, 4, 32, "float", dtype)
    check_program(b, [y], feeds, atol=0.1, rtol=2e-2)


def test_symbolic_rows_a_split_and_an_epilogue() -> None:
    b, y, feeds = made(symbol("m"), 10, 8190, 4, 128, "packed", rows=2)
    bias = b.const(np.arange(10, dtype=np.float32))
    out = b.map("max", b.map("add", y, b.broadcast(bias, y.shape)), b.broadcast(b.scalar(0, F32), y.shape))
    check_program(b, [out], feeds, {"m": 2}, atol=2e-3, rtol=1e-4)


@pytest.mark.parametrize(("m", "bits", "block"), [(3, 2, 16), (8, 4, 32), (16, 4, 16), (16, 8, 64)])
def test_rows_that_a_gpu_takes_in_one_go(m: int, bits: int, block: int) -> None:
    b, y, feeds = made(m, 40, 530, bits, block, "packed")
    check_program(b, [y], feeds, atol=2e-3, rtol=1e-4, limits={"subgroup_size": 32})


def test_an_infinite_scale_stays_in_its_block() -> None:
    b, y, feeds = made(1, 8, 48, 4, 32, "")
    feeds["scales"][3, 1], feeds["x"][0, 32:] = np.inf, 1
    feeds["q"][3] = 0xFF
    (got,) = check_program(b, [y], feeds, atol=1e-3, rtol=1e-4)
    assert np.isinf(got[0, 3]) and np.isfinite(np.delete(got, 3)).all()


@pytest.mark.parametrize("zero", ["", "packed", "float"])
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_decomposition(bits: int, zero: str) -> None:
    b, y, feeds = made(3, 7, 40, bits, 16, zero)
    (whole,) = interpret(b.finish([y]), feeds)
    instr = b.instrs.pop()
    (parts,) = interpret(b.finish(DECOMPOSITIONS["contract_blocks"](b, instr) or ()), feeds)
    np.testing.assert_allclose(parts, whole, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("m", [1, 20])
def test_a_table(m: int) -> None:
    b, _, feeds = made(m, 33, 96, 4, 32, "")
    x, q, scales = b.inputs
    b.instrs.clear()
    y = contract_blocks(b, x, q, scales, None, bits=4, block=32, table=tuple(np.linspace(-1, 2, 16) ** 3))
    check_program(b, [y], feeds, atol=1e-4, rtol=1e-4)
    (whole,) = interpret(b.finish([y]), feeds)
    instr = b.instrs.pop()
    (parts,) = interpret(b.finish(DECOMPOSITIONS["contract_blocks"](b, instr) or ()), feeds)
    np.testing.assert_allclose(parts, whole, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize(("m", "indexed", "zero"), [(1, True, "packed"), (20, False, ""), (20, True, "float")])
@pytest.mark.parametrize(("bits", "block", "k"), [(4, 32, 72), (8, 0, 36), (4, 0, 40), (2, 0, 48)])
def test_batches(bits: int, block: int, k: int, indexed: bool, m: int, zero: str) -> None:
    """Five products with the matrix of their number or of an index, in blocks or with one scale a row."""
    matrices, n, blocks = 3 if indexed else 5, 20, -(-k // block) if block else 1
    length = blocks * block if block else k
    feeds: dict[str, Array] = {
        "x": RNG.standard_normal((5, m, k)).astype(np.float32),
        "q": RNG.integers(0, 256, (matrices, n, length * bits // 8)).astype(np.uint8),
        "scales": RNG.uniform(0.01, 0.1, (matrices, n, blocks)).astype(np.float32),
    }
    if zero:
        packed = RNG.integers(0, 256, (matrices, n, -(-blocks * bits // 8))).astype(np.uint8)
        feeds["zero"] = packed if zero == "packed" else RNG.uniform(0, 4, (matrices, n, blocks)).astype(np.float32)
    if indexed:
        feeds["index"] = np.array([2, 0, 2, 1, 0], np.int32)
    b = Builder()
    v = {name: b.input(name, DType.of(a.dtype), a.shape) for name, a in feeds.items()}
    y = contract_blocks(b, v["x"], v["q"], v["scales"], v.get("zero"), bits=bits, block=block, index=v.get("index"))
    check_program(b, [y], feeds, atol=1e-3, rtol=1e-4)
    (whole,) = interpret(b.finish([y]), feeds)
    instr = b.instrs.pop()
    (parts,) = interpret(b.finish(DECOMPOSITIONS["contract_blocks"](b, instr) or ()), feeds)
    np.testing.assert_allclose(parts, whole, atol=1e-3, rtol=1e-5)
