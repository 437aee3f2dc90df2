"""A kernel's parameters: what is in its push constants or record, in which order, and where each word comes from.

Nothing about a model's sizes is written into GLSL text. Rendering asks :class:`Params` for names (``P.p0``, ``P.u3``); the
planner later fills the words from values' addresses and evaluated extents.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from onnx_vulkan.codegen.types import GLSL_TYPES, extensions_for
from onnx_vulkan.dims import Extent
from onnx_vulkan.dtypes import DType
from onnx_vulkan.program.ir import Value

__all__ = ["Param", "Params"]


@dataclass(frozen=True, slots=True)
class Param:
    """One parameter.

    ``kind``: ``read``/``write`` (pointer to ``value``), ``error`` (pointer to the error word), ``int`` (32-bit ``extent``),
    ``long`` (64-bit ``extent``), ``divisor`` (three words of ``extent``), ``literal`` (``data`` bytes), ``label`` (the number of
    the label that ``data`` spells).
    """

    kind: str
    name: str
    value: Value | None = None
    extent: Extent = 0
    data: bytes = b""
    glsl: str = ""

    @property
    def size(self) -> int:
        """Bytes in the parameter block (scalar layout)."""
        if self.kind in ("read", "write", "error", "long"):
            return 8
        if self.kind == "divisor":
            return 12
        return len(self.data) if self.kind == "literal" else 4


@dataclass
class Params:
    """The parameters of one kernel while it is being rendered; equal requests share one parameter."""

    entries: list[Param] = field(default_factory=list)
    extensions: dict[str, None] = field(default_factory=dict)
    pointer_types: dict[DType, None] = field(default_factory=dict)
    _index: dict[object, str] = field(default_factory=dict)

    def _add(self, key: object, kind: str, prefix: str, **fields: object) -> str:
        name = self._index.get(key)
        if name is None:
            name = f"{prefix}{len(self.entries)}"
            self._index[key] = name
            self.entries.append(Param(kind, name, **fields))  # type: ignore[arg-type]
        return f"P.{name}"

    def use(self, dtype: DType) -> None:
        """Note that the kernel touches *dtype* (its GLSL extensions and pointer type are declared)."""
        for e in extensions_for(dtype):
            self.extensions.setdefault(e)
        self.pointer_types.setdefault(dtype)

    def read(self, value: Value) -> str:
        """A read-only pointer to a materialised value: index it as ``{name}.v[i]``."""
        self.use(value.dtype)
        return self._add(("r", value), "read", "r", value=value, glsl=GLSL_TYPES[value.dtype].pointer + "R")

    def write(self, value: Value) -> str:
        """A pointer that the kernel writes through."""
        self.use(value.dtype)
        return self._add(("w", value), "write", "w", value=value, glsl=GLSL_TYPES[value.dtype].pointer)

    def word(self, e: Extent) -> str:
        """A 32-bit integer; 0 and 1 are written out."""
        if e == 0 or e == 1:
            return str(e)
        return self._add(("i", e), "int", "n", extent=e, glsl="int")

    def long(self, e: Extent) -> str:
        """A 64-bit integer."""
        self.use(DType.I64)
        return self._add(("l", e), "long", "l", extent=e, glsl="int64_t")

    def divisor(self, e: Extent) -> str:
        """A divisor for ``divide(n, d)`` and its ``.d`` (see ``plan.table.divisor_words``)."""
        return self._add(("d", e), "divisor", "d", extent=e, glsl="Divisor")

    def error(self) -> str:
        """The pointer to the run's error word (``fail_index``)."""
        return self._add("error", "error", "e", glsl="ErrorWord")

    def label(self, name: str = "") -> str:
        """The number of *name* (else the kernel's label) among the plan's labels, counted from 1: what an error word names."""
        return self._add(("label", name), "label", "w", data=name.encode(), glsl="uint")

    def literal(self, value: Value) -> str:
        """A rank-0 constant as an expression of its compute type."""
        assert value.data is not None
        dtype, t = value.dtype, GLSL_TYPES[value.dtype]
        if dtype is DType.BOOL:
            return "true" if bool(value.data) else "false"
        wide: dict[DType, np.dtype[Any]] = {
            DType.F64: np.dtype("<f8"),
            DType.I64: np.dtype("<i8"),
            DType.U64: np.dtype("<u8"),
        }
        if dtype in wide:
            data = np.asarray(value.data).astype(wide[dtype]).tobytes()
        elif t.compute == "float":
            data = np.asarray(value.data).astype("<f4").tobytes()
        else:
            data = np.asarray(value.data).astype("<i4" if t.compute == "int" else "<u4").tobytes()
        self.use(dtype)
        return self._add(("c", t.compute, data), "literal", "c", data=data, glsl=t.compute)

    # ------------------------------------------------------------------------------------------------ layout
    def layout(self) -> list[Param]:
        """The parameters in block order: 8-byte ones first, so that scalar layout needs no padding."""
        return sorted(self.entries, key=lambda p: 0 if p.size == 8 else 1)

    @property
    def size(self) -> int:
        """Bytes of the parameter block."""
        return sum(p.size for p in self.entries)

    def declarations(self, *, in_record: bool) -> str:
        """GLSL: extensions are the caller's; pointer types, the parameter block and ``P``."""
        lines = []
        for pointer in sorted({(GLSL_TYPES[t].pointer, GLSL_TYPES[t].storage, t.size) for t in self.pointer_types}):
            name, storage, size = pointer
            align = f"layout(buffer_reference, scalar, buffer_reference_align = {size})"
            lines.append(f"{align} buffer {name} {{ {storage} v[]; }};")
            lines.append(f"{align} readonly restrict buffer {name}R {{ {storage} v[]; }};")
        members = " ".join(f"{p.glsl} {p.name};" for p in self.layout()) or "uint unused;"
        if in_record:
            lines.append(f"struct Values {{ {members} }};")
            lines.append(
                "layout(buffer_reference, scalar, buffer_reference_align = 8) readonly buffer Record { Values values; };"
            )
            lines.append("layout(push_constant, scalar) uniform Push { Record record; };")
            # Read once into registers: any store might else be to the record, and each use a load from memory.
            lines.append("Values P;")
        else:
            lines.append(f"layout(push_constant, scalar) uniform Push {{ {members} }} P;")
        return "\n".join(lines)
