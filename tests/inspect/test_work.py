"""Operations and bytes that are reckoned for kernels, and the kind of arithmetic that a kernel uses."""

from __future__ import annotations

import numpy as np
import pytest
from onnx_vulkan.device.info import CoopMatrix
from onnx_vulkan.dims import Scope, symbol
from onnx_vulkan.dtypes import DType
from onnx_vulkan.fuse import fuse
from onnx_vulkan.inspect.work import Work, WorkModel
from onnx_vulkan.profile.ceilings import LAUNCH, MEMORY, Ceilings, _matrix_source, arithmetic_of
from onnx_vulkan.program import composites
from onnx_vulkan.program.blocks import contract_blocks
from onnx_vulkan.program.builder import Builder
from onnx_vulkan.program.operations import operations

F32 = DType.F32
N = symbol("n")


def works(b: Builder, outputs: list, **numbers: int) -> list[Work]:
    """The work of each step of a program."""
    program = b.finish(outputs)
    with Scope(numbers):
        steps = fuse(program).steps
    model = WorkModel(program, numbers)
    return [model.of(step) for step in steps]


def test_sizes_are_those_of_the_run() -> None:
    b = Builder()
    x = b.input("x", F32, (N, 10))
    (work,) = works(b, [b.exp(b.add(x, b.const(np.ones(10, np.float32))))], n=7)
    assert (work.family, work.operations, work.dtype) == ("loop", 2 * 70, F32)
    assert (work.read_bytes, work.written_bytes, work.bytes) == (4 * 70 + 4 * 10, 4 * 70, 8 * 70 + 40)


def test_of_a_table_only_the_rows_that_are_read() -> None:
    b = Builder()
    table, ids = b.input("table", F32, (50_000, 64)), b.input("ids", DType.I64, (N,))
    (work,) = works(b, [b.gather(table, ids, 0)], n=3)
    assert (work.operations, work.dtype) == (0, None)
    assert (work.read_bytes, work.written_bytes) == (4 * 3 * 64 + 8 * 3, 4 * 3 * 64)


def test_what_a_slice_drops_is_not_computed() -> None:
    b = Builder()
    x = b.input("x", DType.F16, (8, 100))
    (work,) = works(b, [b.slice(b.exp(x), [0, 0], [2, 100])])
    assert (work.operations, work.read_bytes, work.written_bytes) == (200, 400, 400)


def test_what_is_read_twice_counts_once() -> None:
    b = Builder()
    x = b.input("x", F32, (40,))
    (work,) = works(b, [b.mul(x, x)])
    assert (work.operations, work.read_bytes) == (40, 160)


def test_the_columns_of_a_reduction_count() -> None:
    b = Builder()
    x = b.input("x", F32, (6, 50))
    (work,) = works(b, [b.reduce("sum", x, [1])])
    assert (work.family, work.operations, work.read_bytes, work.written_bytes) == ("row", 300, 1200, 24)


def test_recurrent_cells_and_packed_weights() -> None:
    b = Builder()
    xw, r = b.input("xw", F32, (5, 2, 4 * 16)), b.input("r", F32, (1, 16, 4 * 16))
    acts = [("sigmoid", 0.0, 0.0), ("tanh", 0.0, 0.0), ("tanh", 0.0, 0.0)]
    y, *_ = composites.rnn(b, "lstm", xw, r, direction="forward", hidden=16, activations=acts)
    (work,) = works(b, [y])
    assert (work.family, work.operations) == ("rnn", 2 * 5 * 2 * 64 * 16)

    b = Builder()
    x = b.input("x", F32, (3, 64))
    packed, scales = b.const(np.zeros((8, 32), np.uint8)), b.const(np.ones((8, 2), np.float32))
    (work,) = works(b, [contract_blocks(b, x, packed, scales, None, bits=4, block=32)])
    assert (work.family, work.operations) == ("contract_blocks", 2 * 3 * 8 * 64)
    assert work.read_bytes == 4 * 3 * 64 + 8 * 32 + 4 * 16


def test_another_composite_is_reckoned_by_its_decomposition(monkeypatch) -> None:
    def decompose(b, instr):
        a, w = instr.inputs
        return (b.exp(b.contract(a, w)),)

    monkeypatch.setitem(composites.DECOMPOSITIONS, "novel", decompose)
    b = Builder()
    a, w = b.input("a", F32, (3, 4)), b.input("w", F32, (4, 5))
    (y,) = b.emit("novel", [a, w], [(F32, (3, 5))])
    (instr,) = b.finish([y]).instrs
    assert operations(instr, {}) == 2 * 15 * 4 + 15


def test_floors() -> None:
    c = Ceilings({MEMORY: 1e9, "f32": 1e12, LAUNCH: 1e6})
    assert c.floor_ns("f32", 1000, 1000) == 1000 and c.bound("f32", 1000, 1000) in ("memory", "launch")
    assert c.floor_ns("f32", 10**7, 1000) == 10_000 and c.bound("f32", 10**7, 1000) == "arithmetic"
    assert c.floor_ns("unknown", 10**7, 5000) == 5000 and c.bound("unknown", 10**7, 5000) == "memory"
    assert c.bound("", 0, 10) == "launch"


@pytest.mark.parametrize(("a", "result"), [("f16", "f32"), ("f16", "f16"), ("bf16", "f32"), ("s8", "s32"), ("u8", "u32")])
def test_matrix_units_are_seen_in_a_kernel(a: str, result: str) -> None:
    source = _matrix_source(CoopMatrix(16, 16, 16, a, a, result, result, False))
    assert arithmetic_of(source, F32) == f"matrix {a}->{result}"


def test_other_kinds_of_arithmetic() -> None:
    plain = "#version 460\nvoid main() {}\n"
    assert [arithmetic_of(plain, t) for t in (F32, DType.F16, DType.I32, DType.F64, None)] == ["f32", "f32", "f32", "f64", ""]
