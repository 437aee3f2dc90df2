"""What a Renderer knows of the elements that one invocation computes."""

from __future__ import annotations

from dataclasses import dataclass, field

from onnx_vulkan.codegen.index import Lin
from onnx_vulkan.dims import Extent

__all__ = ["Elements"]


@dataclass
class Elements:
    """How the elements of one invocation are walked: items (numbered by the GLSL int ``n``) of ``width`` neighbours (``k``).

    ``axis`` is the index variable along which they are neighbours; in coordinates its place is ``axis + k``. It, ``variable`` and
    the other ``multiples`` are multiples of the width. Scope ``level`` runs once an item, and for vectors the scope one deeper
    once an element. Where they are ``kept``, an element's values stay in registers for all items, so that a later walk over the
    same elements finds them. ``aligned`` collects what has to be a multiple of the width for vectors in memory to be aligned;
    ``scattered`` tells that something could not be a vector.

    With ``dense``, the offset in a tensor of the walked shape, vectors are neighbours there: they may cross from one run of the
    axis into the next. ``variable`` is the offset of the first element, only accesses at that offset are vectors, and an axis has
    an element's own coordinate.
    """

    axis: str
    variable: str
    width: int
    level: int
    kept: bool
    aligned: dict[Extent, None] = field(default_factory=dict)
    scattered: bool = False
    multiples: set[str] = field(default_factory=set)
    dense: Lin | None = None

    def __post_init__(self) -> None:
        self.multiples |= {self.axis, self.variable}

    @property
    def inner(self) -> int:
        """The level of the scope that runs once an element."""
        return self.level + 1 if self.width > 1 else self.level

    @property
    def slot(self) -> str:
        """Where in its array an element is kept."""
        return "n" if self.width == 1 else f"n * {self.width} + k"
