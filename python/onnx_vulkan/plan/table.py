"""The plan as plain data: numpy structured arrays that C reads. `native_shim/onnx_vulkan.h` declares the same layouts.

A plan is independent of where its arena lies: pointers in push constants and records are *relocations* (segment + addend) that
C resolves when it records the plan for a run context. What depends on run-time extents is a *patch*: C evaluates a small
expression before each submit and writes the result into the record.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from onnx_vulkan.dims import Dim, Extent

__all__ = [
    "COMMAND",
    "GUARD",
    "IO",
    "KEY",
    "PATCH",
    "RELOC",
    "Encoder",
    "Op",
    "PatchKind",
    "PlanTables",
    "Segment",
    "divisor_words",
]


class Segment(IntEnum):
    """What a relocation is relative to. Each run context has one of each; RECORD is the plan's own.

    ERROR is the context's error word, 16 bytes: u32 count, u32 label + 1, i64 value (``ov_error_word`` in the C header).
    """

    ARENA = 0
    INPUT = 1
    OUTPUT = 2
    RECORD = 3
    ERROR = 4


class Op(IntEnum):
    """Commands of a plan.

    DISPATCH: bind ``pipeline``, push ``push_size`` bytes at ``push_offset`` of the push blob, grid ``x, y, z``.
    DISPATCH_INDIRECT: the grid is three u32 at byte ``a`` of the record.
    BARRIER: shader and transfer writes before, shader and transfer accesses after.
    COPY: ``size`` bytes from segment ``x`` offset ``a`` to segment ``y`` offset ``b``.
    COPY_ABSOLUTE: like COPY, but from a weight: memory handle ``a``, byte ``push_offset`` in it, to segment ``y`` offset ``b``.
    """

    DISPATCH = 0
    DISPATCH_INDIRECT = 1
    BARRIER = 2
    COPY = 3
    COPY_ABSOLUTE = 4


class PatchKind(IntEnum):
    """U32, U64: the value of expression ``expr``. DIVISOR: three u32 (d, multiplier, shift), see divisor_words.

    EXTERNAL_IN, EXTERNAL_OUT: a u64, the device address of input/output ``index`` of this run plus the expression's value
    (whatever memory it lies in: the caller's device buffer, or the context's INPUT/OUTPUT segment).
    """

    U32 = 0
    U64 = 1
    DIVISOR = 2
    EXTERNAL_IN = 3
    EXTERNAL_OUT = 4


COMMAND = np.dtype(
    [
        ("op", "u4"),
        ("pipeline", "u4"),  # index into the plan's pipeline handles
        ("push_offset", "u4"),
        ("push_size", "u4"),
        ("x", "u4"),
        ("y", "u4"),
        ("z", "u4"),
        ("label", "u4"),  # which kernel name, for profiles
        ("a", "u8"),
        ("b", "u8"),
        ("size", "u8"),
    ]
)
RELOC = np.dtype([("blob", "u4"), ("offset", "u4"), ("segment", "u4"), ("pad", "u4"), ("addend", "u8")])
"""``blob`` 0: the push blob, 1: the record. The u64 at ``offset`` becomes the segment's address plus ``addend``."""

PATCH = np.dtype([("kind", "u4"), ("offset", "u4"), ("expr", "u4"), ("index", "u4")])
"""``offset`` is a byte of the record; ``expr`` is where the expression starts in the code array."""

GUARD = np.dtype([("expr", "u4"), ("nonneg", "u4"), ("answer", "u4"), ("pad", "u4")])
"""(expr >= 0 if nonneg else expr == 0) must equal ``answer`` for the plan to serve a run."""

KEY = np.dtype([("symbol", "i4"), ("pad", "u4"), ("value", "i8")])
"""One input dim: symbol -1: the dim equals ``value``; else it gives run-time symbol ``symbol``, at most ``value``."""

IO = np.dtype([("rank", "u4"), ("bits", "u4"), ("dims", "u4"), ("flags", "u4"), ("offset", "u8"), ("capacity", "u8")])
"""An input or output: ``offset``/``capacity`` bytes in its segment. ``dims``: for inputs the first row of the KEY array, for
outputs the first of ``rank`` entries of the output-dims array, each where an expression starts. Flags: 1 = not used on the
device, 2 = copied into the key (host-known: its bytes are compared, its dims are fixed)."""


def _none(dtype: np.dtype[np.void]) -> NDArray[np.void]:
    return np.zeros(0, dtype)


@dataclass(frozen=True)
class PlanTables:
    """A whole plan, as C copies it (``ov_plan_desc``). Arrays have the dtypes above; sizes are bytes.

    ``host_keys``: the bytes of the host-known inputs, one after the other in input order. ``output_dims``: where the expression
    of each output dim starts in ``code``. ``derived``: where the expressions start of the symbols that follow the
    ``n_symbols`` run-time ones, each made from those before it. ``pipelines`` and ``labels`` are what commands index.
    """

    commands: NDArray[np.void]
    keys: NDArray[np.void]
    inputs: NDArray[np.void]
    outputs: NDArray[np.void]
    output_dims: Sequence[int] = ()
    code: Sequence[int] = ()
    push: bytes = b""
    record: bytes = b""
    host_keys: bytes = b""
    relocs: NDArray[np.void] = field(default_factory=lambda: _none(RELOC))
    patches: NDArray[np.void] = field(default_factory=lambda: _none(PATCH))
    guards: NDArray[np.void] = field(default_factory=lambda: _none(GUARD))
    pipelines: Sequence[int] = ()
    labels: Sequence[str] = ()
    arena_size: int = 0
    input_size: int = 0
    output_size: int = 0
    n_symbols: int = 0
    derived: Sequence[int] = ()


# Expression code: int64 words. An expression is a run of operations ended by END; the value is the top of the stack.
END, PUSH, SYM, ADD, MUL, FLOORDIV, MIN, MAX = range(8)


class Encoder:
    """Writes extents as expression code. Quotients and the like, which many extents share, become derived symbols: C computes
    each once a run. ``symbols`` numbers the run-time symbols."""

    def __init__(self, symbols: Mapping[str, int]):
        self.symbols = symbols
        self.code: list[int] = []
        self.derived: list[int] = []
        self._starts: dict[Extent, int] = {}
        self._atoms: dict[object, int] = {}

    def encode(self, e: Extent) -> int:
        """Where the expression of *e* starts in ``code``."""
        start = self._starts.get(e)
        if start is None:
            self._prepare(e)
            start = self._starts[e] = len(self.code)
            self._terms(e)
            self.code.append(END)
        return start

    def _prepare(self, e: Extent) -> None:
        """Make the derived symbols that *e* needs, those of its parts first."""
        if not isinstance(e, Dim):
            return
        for monomial, _ in e.terms:
            for atom, _ in monomial:
                if atom[0] == "sym" or atom in self._atoms:
                    continue
                kind, a, b = atom
                self._prepare(a)  # type: ignore[arg-type]
                self._prepare(b)  # type: ignore[arg-type]
                start = len(self.code)
                self._terms(a)  # type: ignore[arg-type]
                self._terms(b)  # type: ignore[arg-type]
                self.code += [{"div": FLOORDIV, "min": MIN, "max": MAX}[str(kind)], END]
                self._atoms[atom] = len(self.symbols) + len(self.derived)
                self.derived.append(start)

    def _terms(self, e: Extent) -> None:
        if not isinstance(e, Dim):
            self.code += [PUSH, int(e)]
            return
        for n, (monomial, c) in enumerate(e.terms):
            self.code += [PUSH, c]
            for atom, power in monomial:
                index = self.symbols[str(atom[1])] if atom[0] == "sym" else self._atoms[atom]
                self.code += [SYM, index, MUL] * power
            if n:
                self.code.append(ADD)


def divisor_words(d: int) -> tuple[int, int, int]:
    """``(d, m, s)`` such that ``n // d == (((n * m) >> 32) + n) >> s`` for every 0 <= n < 2**31, in 32-bit arithmetic.

    The round-up method of Granlund and Montgomery, "Division by invariant integers using multiplication" (1994).
    A zero divisor gives (0, 1, 0), and such a kernel runs no work.
    """
    if d <= 0:
        return 0, 1, 0
    s = (d - 1).bit_length()
    m = ((1 << 32) * ((1 << s) - d)) // d + 1
    return d, m, s
