"""The scales of the rows of a product's operands, for units that take fp32 in parts (``gemm_scale.glsl``)."""

from __future__ import annotations

from collections.abc import Sequence

from onnx_vulkan.codegen.kernel import At, Kernel, Launch, Variant, chosen_by_step, grid_of
from onnx_vulkan.codegen.params import Params
from onnx_vulkan.dims import Extent, ceil_div
from onnx_vulkan.dtypes import DType
from onnx_vulkan.kernels.operand import Operand, accumulator
from onnx_vulkan.program.ir import Value

__all__ = ["RowScales"]


class RowScales:
    """A power of two for each row of ``a`` and each column of ``b``, in *batch* products along *depth*; *label* is the product's.

    ``values`` hold them, first those of ``a``.
    """

    def __init__(self, label: str, batch: Extent, depth: Extent, operands: Sequence[tuple[str, Operand, Extent]]):
        self.label, self.batch, self.depth = label, batch, depth
        self.operands = operands
        self.values = tuple(Value(DType.F32, (batch * rows,), f"scales of {name}") for name, _, rows in operands)
        self._kernels: dict[str, Kernel] = {}

    def functions(self, params: Params) -> str:
        """The GLSL of ``float {name}_scale(int z, int row)`` of each operand."""
        return "".join(
            f"float {name}_scale(int z, int row) "
            f"{{ return {params.read(scale)}.v[z * {params.word(rows)} + min(row, {params.word(rows)} - 1)]; }}\n"
            for (name, _, rows), scale in zip(self.operands, self.values, strict=True)
        )

    def launches(self, at: At) -> list[Launch]:
        """The launches that find the scales."""
        found = []
        for (name, operand, rows), scale in zip(self.operands, self.values, strict=True):
            if name not in self._kernels:
                self._kernels[name] = self._kernel(operand, rows, scale)
            mode = operand.mode(at)
            groups = ceil_div(rows, 1 if mode & 1 == 0 else 32) * self.batch
            found.append(Launch(self._kernels[name], Variant((128, mode), grid_of(groups))))
        return found

    def _kernel(self, operand: Operand, rows: Extent, scale: Value) -> Kernel:
        params = Params()
        body = f"""{accumulator(params, DType.F32)}#define SIZE_Z {params.word(self.batch)}
#define SIZE_R {params.word(rows)}
#define SIZE_K {params.word(self.depth)}
layout(local_size_x_id = 0) in;
layout(constant_id = 1) const int X_MODE = 0;
const bool X_ALONG_K = (X_MODE & 1) == 0;
const bool X_VECTOR = (X_MODE & 2) != 0;
const bool K_WHOLE = false;
{operand.functions(params, "x")}
void begin(int z) {{ x_begin(z); }}
void store_scale(int z, int row, float scale) {{ {params.write(scale)}.v[z * {params.word(rows)} + row] = scale; }}
#include "gemm_scale.glsl"
"""
        return Kernel(f"{self.label} (scales)", params, body, operand.leaves, (scale,), chosen_by_step)
