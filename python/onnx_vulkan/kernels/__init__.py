"""Kernel families for the instructions that generated kernels cannot compute at a point: one module a family.

A family registers a builder for a primitive or composite. The fuser decides what shares a kernel and calls :func:`build` with a
:class:`Group`; the family reads its operands as strided views where it can and fills its epilogue with the group's other
instructions (:func:`onnx_vulkan.codegen.hole.fill_hole`).
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache

from onnx_vulkan.codegen.functions import has_function
from onnx_vulkan.codegen.kernel import Step
from onnx_vulkan.codegen.render import INLINE_OPS
from onnx_vulkan.codegen.view import View, strided_view
from onnx_vulkan.dtypes import DType
from onnx_vulkan.program.ir import Instr, Value

__all__ = ["FAMILIES", "Family", "Group", "build", "families", "family", "key_of", "supports"]


@dataclass(frozen=True, eq=False)
class Group:
    """What one step computes: the anchor instruction and the elementwise instructions after it.

    ``outputs`` are the values to store. All of them have the shape of the anchor's output and are computed from it and from
    leaves by the instructions in ``producers``; the anchor's own output is among them when somebody else reads it.
    """

    anchor: Instr
    outputs: tuple[Value, ...]
    producers: Mapping[Value, Instr]
    is_leaf: Callable[[Value], bool]

    @property
    def label(self) -> str:
        return self.anchor.source or self.anchor.op

    def view(self, operand: int) -> View:
        """Operand *operand* of the anchor as a strided view. The fuser guarantees that it is one."""
        view = self.view_or_none(operand)
        assert view is not None, f"operand {operand} of {self.anchor.op} is not a view"
        return view

    def view_or_none(self, operand: int) -> View | None:
        """The same, or None for an operand that the fuser has left to be computed (see ``Family.computed``)."""
        return strided_view(self.anchor.inputs[operand], self.producers, self.is_leaf)


@dataclass(frozen=True, slots=True)
class Family:
    """How one operation is run. ``supports(instr)`` gives None or the reason why not; ``views`` are the operands that may be
    strided views (the others are dense in memory); ``computed`` those that may also be elementwise work, done where they
    are read; ``epilogue`` whether elementwise instructions can be fused after it."""

    build: Callable[[Group], Step]
    supports: Callable[[Instr], str | None]
    views: frozenset[int]
    computed: frozenset[int]
    epilogue: bool


FAMILIES: dict[str, Family] = {}


def family(
    op: str,
    supports: Callable[[Instr], str | None],
    *,
    views: frozenset[int] = frozenset(),
    computed: frozenset[int] = frozenset(),
    epilogue: bool = False,
) -> Callable[[Callable[[Group], Step]], Callable[[Group], Step]]:
    """Register the decorated builder for *op* (a primitive or composite; ``window:conv`` names one kind of window)."""

    def register(function: Callable[[Group], Step]) -> Callable[[Group], Step]:
        FAMILIES[op] = Family(function, supports, views, computed, epilogue)
        return function

    return register


def key_of(instr: Instr) -> str:
    """The registry key of an instruction: its op, with the kind for windows."""
    return f"window:{instr.attrs['kind']}" if instr.op == "window" else instr.op


@cache
def families() -> Mapping[str, Family]:
    """All families; the modules of this package are imported on the first call."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    return FAMILIES


def build(group: Group) -> Step:
    """The step of a group. Raises KeyError when no family runs its anchor (claims would have refused it)."""
    return families()[key_of(group.anchor)].build(group)


def supports(instr: Instr) -> str | None:
    """Why no kernel computes *instr*, as a sentence, or None. The claims' kernel check asks this of every instruction."""
    if instr.op == "map":
        fn, dtype = instr.attrs["fn"], instr.inputs[-1].dtype
        return None if has_function(fn, dtype) else f"there is no kernel for {fn} on {dtype.onnx_name}"
    if instr.op == "reduce":
        fn, dtype = instr.attrs["fn"], instr.inputs[0].dtype
        good = dtype is not DType.BOOL or fn in ("max", "min", "argmax", "argmin")
        return None if good else f"there is no kernel for a {fn} over {dtype.onnx_name}"
    if instr.op in INLINE_OPS:
        return None
    found = families().get(key_of(instr))
    if found is None:
        return f"there is no kernel for {key_of(instr)}"
    return found.supports(instr)
