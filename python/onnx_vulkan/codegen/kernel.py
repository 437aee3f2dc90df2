"""What a kernel is once it is rendered, before any size is known: text, parameters, and a rule that picks the variant."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Protocol

from onnx_vulkan.codegen import functions
from onnx_vulkan.codegen.params import Params
from onnx_vulkan.dims import Extent, ceil_div, maximum
from onnx_vulkan.program.ir import Value

__all__ = ["At", "Kernel", "Launch", "Limits", "Step", "Variant", "chosen_by_step", "grid_of", "is_multiple", "workgroups"]

At = Callable[[Extent], int]
"""Evaluates an extent at this plan's sizes (run-time symbols at their capacity). One with run-time symbols has a method
``varies(extent)``, see :func:`is_multiple`."""

RECORD_MAIN = """void main() {
    P = record.values;
    kernel_main();
}"""

MAX_GRID = 65535
"""Vulkan's guaranteed workgroup count in each direction; larger grids are folded into two directions."""


class Limits(Protocol):
    """The facts about a device that variants depend on, and the ``precision`` that the session allows (``engine.block``)."""

    @property
    def subgroup_size(self) -> int: ...
    @property
    def max_workgroup_invocations(self) -> int: ...
    @property
    def max_shared_memory(self) -> int: ...
    @property
    def features(self) -> frozenset[str]: ...
    @property
    def precision(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Variant:
    """A choice: values of the specialization constants 0, 1, ... and the grid in workgroups."""

    spec: tuple[int, ...]
    grid: tuple[Extent, Extent, Extent]


@dataclass(frozen=True, slots=True)
class Launch:
    """One dispatch of a plan: a kernel in one variant."""

    kernel: Kernel
    variant: Variant


class Step(Protocol):
    """What the fuser hands to the planner: a piece of the program that reads and writes materialised values.

    ``launches`` gives the dispatches for a plan's sizes, in order, each after the one before (a split-K product is two). Values
    that its kernels touch and that are in neither ``reads`` nor ``writes`` are scratch: the planner gives them room while the
    step runs.
    """

    @property
    def label(self) -> str: ...
    @property
    def reads(self) -> tuple[Value, ...]: ...
    @property
    def writes(self) -> tuple[Value, ...]: ...
    def launches(self, at: At, limits: Limits) -> list[Launch]: ...


@dataclass(eq=False)
class Kernel:
    """A rendered kernel. By itself it is a :class:`Step` of one launch.

    ``body`` is the GLSL from the specialization constants to ``main``. ``choose(at, limits)`` gives the variant for a plan's
    sizes; it must be a pure function of them. ``reads`` and ``writes`` are the materialised values touched, from which hazards
    are found. ``full_subgroups`` asks for a pipeline whose subgroups are all full (feature ``full_subgroups``),
    ``fixed_subgroups`` for full ones of ``Limits.subgroup_size`` invocations.
    """

    label: str
    params: Params
    body: str
    reads: tuple[Value, ...]
    writes: tuple[Value, ...]
    choose: Callable[[At, Limits], Variant]
    extensions: tuple[str, ...] = ()
    full_subgroups: bool = False
    fixed_subgroups: bool = False
    _sources: dict[bool, str] = field(default_factory=dict)

    def launches(self, at: At, limits: Limits) -> list[Launch]:
        """The kernel itself, in the variant that suits the sizes."""
        return [Launch(self, self.choose(at, limits))]

    def source(self, *, in_record: bool, nan_preserve: Collection[int] = ()) -> str:
        """The whole GLSL text, with parameters in push constants or in the record.

        *nan_preserve*: the float widths for which the device can be told to keep NaN, infinities and the sign of zero.
        """
        if in_record not in self._sources:
            self._sources[in_record] = _assembled(
                self.body,
                self.params.declarations(in_record=in_record),
                (*self.params.extensions, *self.extensions),
                tuple(nan_preserve),
                in_record,
            )
        return self._sources[in_record]


_TYPE_EXTENSIONS = {
    name: f"GL_EXT_shader_explicit_arithmetic_types_{suffix}"
    for name, suffix in (("int8_t", "int8"), ("int16_t", "int16"), ("int64_t", "int64"), ("float16_t", "float16"))
}


# The layers of a model have equal kernels, and so has the structure that is built when a guard fails.
@lru_cache(maxsize=1024)
def _assembled(body: str, declarations: str, wanted: tuple[str, ...], nan_preserve: tuple[int, ...], in_record: bool) -> str:
    """The whole text of a kernel."""
    used = functions.snippet(body)
    extensions = {
        "GL_EXT_buffer_reference2",
        "GL_EXT_scalar_block_layout",
        "GL_EXT_control_flow_attributes",
        *wanted,
        *(e for name, e in _TYPE_EXTENSIONS.items() if name in body or name in used),
    }
    defines = []
    if "GL_EXT_shader_explicit_arithmetic_types_float64" in extensions:
        defines.append("#define HAS_F64")
    if "GL_EXT_shader_explicit_arithmetic_types_int64" in extensions:
        defines.append("#define HAS_I64")
    mode = []
    for bits in nan_preserve:
        # SignedZeroInfNanPreserve (SPIR-V execution mode 4461, capability 4466)
        if bits == 32 or "GL_EXT_shader_explicit_arithmetic_types_float64" in extensions:
            extensions.add("GL_EXT_spirv_intrinsics")
            mode.append(f'spirv_execution_mode(extensions = ["SPV_KHR_float_controls"], capabilities = [4466], 4461, {bits});')
    return "\n".join(
        [
            "#version 460",
            *(f"#extension {e} : require" for e in sorted(extensions)),
            *defines,
            *mode,
            '#include "prelude.glsl"',
            declarations,
            used,
            *(["#define main kernel_main", body, "#undef main", RECORD_MAIN] if in_record else [body]),
            "",
        ]
    )


def chosen_by_step(at: At, limits: Limits) -> Variant:
    """The ``choose`` of a kernel whose step chooses for it."""
    raise TypeError("this kernel's variant is chosen by its step")


def is_multiple(at: At, e: Extent, of: int) -> bool:
    """Whether an extent is a multiple of *of* in every run that the plan serves: what aligned loads may rely on.

    The number of a run-time extent is only its capacity; such an extent counts where all coefficients are multiples.
    """
    if isinstance(e, int) or not getattr(at, "varies", lambda e: False)(e):
        return at(e) % of == 0
    return all(c % of == 0 for _, c in e.terms)


def workgroups(items: Extent, per_group: int) -> Extent:
    """How many workgroups cover *items*."""
    return ceil_div(items, per_group)


def grid_of(groups: Extent) -> tuple[Extent, Extent, Extent]:
    """A one-dimensional grid, folded into two directions past the guaranteed limit (the kernel linearises it again).

    Its last row is nearly full: workgroups past the end are few.
    """
    y = ceil_div(maximum(groups, 0), MAX_GRID)
    return ceil_div(groups, maximum(y, 1)), y, 1
