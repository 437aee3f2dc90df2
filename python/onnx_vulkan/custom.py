"""Operators of your own: a lowering for an operator of any domain, and hand-written kernels for what primitives cannot say.

``docs/custom-operators.md`` shows both at work. Registrations hold for the process and for both doors; make them before a model
is loaded.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from onnx_vulkan.codegen.kernel import Kernel
from onnx_vulkan.codegen.params import Params
from onnx_vulkan.codegen.types import pack, unpack
from onnx_vulkan.dims import Extent, product
from onnx_vulkan.dtypes import DType
from onnx_vulkan.graph import Array
from onnx_vulkan.kernels import Group, families, family
from onnx_vulkan.kernels.indexing import FLAT_GROUP, flat_grid
from onnx_vulkan.lower import Host, LowerContext, Operand, lowers
from onnx_vulkan.program.interp import Evaluator
from onnx_vulkan.program.interp_nn import EVALUATORS
from onnx_vulkan.program.ir import Instr, Value
from onnx_vulkan.versions import register_versions

__all__ = ["DType", "Host", "KernelText", "LowerContext", "Operand", "Value", "register_kernel", "register_lowering"]


def register_lowering(
    domain: str,
    op_type: str,
    since: int | Sequence[int],
    fn: Callable[..., Any],
    *,
    dtypes: Mapping[str, Collection[DType]] | None = None,
    note: str = "",
) -> None:
    """Make ``domain::op_type`` an operator that runs on Vulkan, through both doors.

    *fn* is a lowering as :mod:`onnx_vulkan.lower.registry` describes it: ``fn(b, x, y, *, axis=-1)`` with annotated inputs
    (:class:`Value`, :class:`Host`, ``| None``), the attributes as keywords, and the outputs as result. *since* is the version of
    the operator, or all versions, that *fn* is right for; a model whose import of *domain* is between two versions means the
    older one. *dtypes* restricts the element types of inputs by name.

    Raises ValueError when a version is registered already, the project's own operators included, and TypeError for an input
    without an annotation.
    """
    given = [p for p in list(inspect.signature(fn).parameters.values())[1:] if p.kind is not p.KEYWORD_ONLY]
    for p in given:
        if p.annotation is p.empty:
            raise TypeError(f"the input {p.name} of the lowering of {domain}::{op_type} has no annotation (Value, Host)")
    versions = [since] if isinstance(since, int) else list(since)
    lowers(op_type, versions, dtypes, domain=domain, note=note)(fn)
    register_versions(domain, op_type, set(versions))


@dataclass(frozen=True, slots=True)
class KernelText:
    """What the text of a hand-written kernel may name. Elements arrive in a 32-bit type (``float``, ``int``, ``uint``) or a
    64-bit one (``double``, ``int64_t``, ``uint64_t``); a bool is a ``bool``.

    ``inputs`` and ``outputs`` are the instruction's values (``dtype``, ``shape``), ``attrs`` its attributes.
    """

    params: Params
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    attrs: Mapping[str, Any]

    def load(self, i: int, index: str) -> str:
        """An expression: element *index* (a row-major offset) of input *i*. The kernel keeps *index* inside of the tensor."""
        return unpack(self.inputs[i].dtype, f"{self.params.read(self.inputs[i])}.v[{index}]")

    def store(self, i: int, index: str, value: str) -> str:
        """A statement: set element *index* of output *i*."""
        return f"{self.params.write(self.outputs[i])}.v[{index}] = {pack(self.outputs[i].dtype, value)};"

    def number(self, extent: Extent) -> str:
        """An expression of type ``int`` for a size, e.g. ``k.number(k.inputs[0].shape[-1])``: sizes are no part of the text."""
        return self.params.word(extent)

    def divided(self, value: str, extent: Extent) -> tuple[str, str]:
        """Two expressions: the quotient and the remainder of a non-negative int by a size, without the driver's division."""
        divisor = self.params.divisor(extent)
        quotient = f"divide({value}, {divisor})"
        return quotient, f"({value} - {quotient} * int({divisor}.d))"


def register_kernel(
    name: str,
    text: Callable[[KernelText], str],
    meaning: Callable[..., Any],
    *,
    invocations: Callable[[Instr], Extent] | None = None,
    supports: Callable[[Instr], str | None] | None = None,
) -> None:
    """Make *name* an instruction that a lowering can emit (``b.emit(name, inputs, outputs, **attrs)``), with a kernel of its own.

    *text* gives GLSL statements that are run once for each ``int i`` from 0 up to *invocations* (by default one for each element
    of the first output). *meaning* says the same in numpy: ``meaning(*arrays, **attrs)`` gives the output, or a tuple of them;
    the interpreter and constant folding use it. Half floats arrive in both as float32.
    *supports* gives a sentence for an instruction that the kernel cannot do, which is then refused.

    *name* has a dot in it, e.g. ``acme.filter``. Raises ValueError when it has none or is taken.
    """
    if "." not in name or name in families():
        raise ValueError(f"{name!r} is no new name with a dot in it")

    def build(group: Group) -> Kernel:
        instr, params = group.anchor, Params()
        given = tuple(group.view(n).leaf for n in range(len(instr.inputs)))
        for value in (*given, *instr.outputs):
            params.use(value.dtype)
        total = invocations(instr) if invocations else product(instr.outputs[0].shape)
        statements = text(KernelText(params, given, instr.outputs, instr.attrs))
        body = f"""layout(local_size_x_id = 0) in;

void main() {{
    int i = int({FLAT_GROUP} * gl_WorkGroupSize.x + gl_LocalInvocationID.x);
    if (i >= {params.word(total)}) return;
    {statements}
}}
"""
        return Kernel(group.label, params, body, given, instr.outputs, flat_grid(total))

    def evaluate(machine: Evaluator, instr: Instr, *arrays: Array) -> Any:
        return meaning(*arrays, **instr.attrs)

    family(name, supports or (lambda instr: None))(build)
    EVALUATORS[name] = evaluate
