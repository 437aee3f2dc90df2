"""How much arithmetic an instruction is.

A product counts two operations for each pair of factors, an elementwise function one for each element whatever it is, a
comparison of a sort one; moving and casting none. The operations of a composite are those of its decomposition.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from onnx_vulkan.dims import Extent, Scope, evaluate, product
from onnx_vulkan.program.builder import Builder
from onnx_vulkan.program.composites import DECOMPOSITIONS
from onnx_vulkan.program.ir import Instr

__all__ = ["operations"]


def operations(instr: Instr, numbers: Mapping[str, int], wanted: int | None = None) -> int:
    """Arithmetic operations at these numbers of the symbols, for *wanted* elements of the results (None: all of them)."""

    def size(extents: Iterable[Extent]) -> int:
        return evaluate(product(extents), numbers)

    op, attrs = instr.op, instr.attrs
    if wanted is None:
        wanted = sum(size(o.shape) for o in instr.outputs)
    if op in ("map", "scan"):
        return wanted
    if op == "reduce":
        return wanted * size(instr.inputs[0].shape[a] for a in attrs["axes"])
    if op in ("contract", "contract_blocks"):
        return 2 * wanted * size(instr.inputs[0].shape[-1:])
    if op == "window":
        return _window(instr, numbers, wanted)
    if op == "scatter":
        return size(instr.inputs[2].shape) if attrs["reduction"] != "none" else 0
    if op == "sort":
        n = size([instr.inputs[0].shape[attrs["axis"]]])
        return size(instr.inputs[0].shape) * math.ceil(math.log2(max(n, 1)))
    if op == "rnn":
        xw, hidden = instr.inputs[0], int(attrs["hidden"])
        return 2 * size(xw.shape) * hidden  # of every gate of every step: a product with the state before
    return _decomposed(instr, numbers) if op in DECOMPOSITIONS else 0


def _window(instr: Instr, numbers: Mapping[str, int], wanted: int) -> int:
    kind, (x, *rest) = instr.attrs["kind"], instr.inputs
    if kind == "conv":
        return 2 * wanted * evaluate(product(rest[0].shape[:-1]), numbers)
    if kind == "conv_transpose":
        taps = product((*rest[0].shape[:-2], rest[0].shape[-1]))
        return 2 * evaluate(product(x.shape), numbers) * evaluate(taps, numbers)
    return wanted * evaluate(product(instr.attrs["kernel"]), numbers)


def _decomposed(instr: Instr, numbers: Mapping[str, int]) -> int:
    with Scope(numbers):
        b = Builder()
        made = DECOMPOSITIONS[instr.op](b, instr)
    return 0 if made is None else sum(operations(i, numbers) for i in b.finish(made).instrs)
