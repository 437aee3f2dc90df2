"""Constant operands of products, once rearranged for the matrix units that read them in every run."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from onnx_vulkan.codegen.kernel import Limits
from onnx_vulkan.dtypes import DType
from onnx_vulkan.graph import Array
from onnx_vulkan.kernels.matrix_units import ROUNDED, SIGNED, UNSIGNED, unit_of
from onnx_vulkan.program.fold import constant_name
from onnx_vulkan.program.ir import Instr, Program, Value

__all__ = ["prepack"]


def prepack(program: Program, known: dict[str, Value], limits: Limits) -> Program:
    """The program with such constants; *known* keeps them by name between calls for one model (``fold.fold_constants``).

    Where fp32 operands are rounded to fp16 the weights lie in memory as fp16. Matrices of bytes lie along K, which is how the
    units take bytes.
    """
    instrs: list[Instr] = []
    for instr in program.instrs:
        unit = unit_of(instr, limits) if instr.op in ("contract", "window") and len(instr.inputs) == 2 else None
        weights = instr.inputs[-1] if instr.inputs else None
        if unit is None or weights is None or not isinstance(weights.data, np.ndarray) or weights.packed:
            instrs.append(instr)
            continue
        if unit is ROUNDED and weights.dtype is DType.F32:
            weights = _made("f16", weights, known, DType.F16, _rounded)
        elif unit in (SIGNED, UNSIGNED) and instr.op == "contract" and weights.rank == 2:
            turned = _made("transposed", weights, known, weights.dtype, np.transpose)
            weights = Value(weights.dtype, weights.shape)
            instrs.append(Instr("transpose", (turned,), (weights,), {"perm": (1, 0)}, instr.source))
        instrs.append(Instr(instr.op, (instr.inputs[0], weights), instr.outputs, instr.attrs, instr.source, instr.merged))
    return Program(program.inputs, program.outputs, instrs)


def _rounded(a: Array) -> Array:
    with np.errstate(over="ignore"):
        return a.astype(np.float16)


def _made(how: str, v: Value, known: dict[str, Value], dtype: DType, make: Callable[[Array], Array]) -> Value:
    name = f"{how}({constant_name(v)})"
    if name not in known:
        assert isinstance(v.data, np.ndarray)
        data = np.ascontiguousarray(make(v.data))
        known[name] = Value(dtype, data.shape, name, data)
    return known[name]
