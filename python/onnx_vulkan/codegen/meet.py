"""How the invocations that share a row combine their parts of a reduction.

Lanes next to each other in the workgroup shuffle within their subgroup and leave one part a subgroup in shared memory; without
shuffles, or where a row's lanes lie apart, every lane leaves one. Two sets of cells take turns, so that a meeting needs one
barrier (more for many lanes without subgroups). The order of combination follows from the variant and the device alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from onnx_vulkan.codegen.functions import call
from onnx_vulkan.codegen.types import GLSL_TYPES
from onnx_vulkan.dtypes import FLOATS, DType

__all__ = ["Meeting", "combine", "initial", "replaces"]

READ_ALL = 16
"""Up to so many parts of a row every lane reads them all; more are halved first."""


_INITIAL: dict[str, Callable[[DType], str]] = {
    "sum": lambda t: f"{GLSL_TYPES[t].compute}(0)",
    "prod": lambda t: f"{GLSL_TYPES[t].compute}(1)",
    "max": lambda t: _lowest(t),
    "min": lambda t: _highest(t),
}


def _lowest(t: DType) -> str:
    if t is DType.BOOL:
        return "false"
    if t in FLOATS:
        return f"(-ov_inf({GLSL_TYPES[t].compute}(0)))"
    if not t.is_signed:
        return f"{GLSL_TYPES[t].compute}(0)"
    bits = t.size * 8
    return f"(-{GLSL_TYPES[t].compute}({(1 << (bits - 1)) - 1}{'l' if bits == 64 else ''}) - {GLSL_TYPES[t].compute}(1))"


def _highest(t: DType) -> str:
    if t is DType.BOOL:
        return "true"
    if t in FLOATS:
        return f"ov_inf({GLSL_TYPES[t].compute}(0))"
    bits = t.size * 8
    if not t.is_signed:
        return f"{GLSL_TYPES[t].compute}({(1 << bits) - 1}{'ul' if bits == 64 else 'u'})"
    return f"{GLSL_TYPES[t].compute}({(1 << (bits - 1)) - 1}{'l' if bits == 64 else ''})"


def initial(fn: str, t: DType) -> str:
    """What a reduction starts from."""
    return _INITIAL[{"argmax": "max", "argmin": "min"}.get(fn, fn)](t)


def combine(fn: str, t: DType, a: str, b: str) -> str:
    """Two parts of a reduction as one."""
    if fn in ("sum", "prod") and t.is_int:
        return f"({a} {'+' if fn == 'sum' else '*'} {b})"
    return call({"sum": "add", "prod": "mul"}.get(fn, fn), t, [a, b])


def replaces(fn: str, t: DType, v: str, i: str, best: str, at: str, *, last: bool) -> str:
    """Whether (v, i) replaces (best, at): NaN wins, of equals the first (or last) index."""
    compare = ">" if fn == "argmax" else "<"
    tie = f"{i} > {at}" if last else f"{i} < {at}"
    if t is DType.BOOL:
        v, best = f"int({v})", f"int({best})"
    wins = f"{v} {compare} {best}"
    equal = f"{v} == {best}"
    if t in FLOATS:
        wins = f"({wins} || (ov_isnan({v}) && !ov_isnan({best})))"
        equal = f"({equal} || (ov_isnan({v}) && ov_isnan({best})))"
    return f"{wins} || ({equal} && {tie})"


@dataclass
class Meeting:
    """Renders the meetings of one kernel. ``shared`` are the declarations that they need.

    The kernel defines ``LANES``, ``LANE_STEP`` (how far neighbouring lanes of a row lie apart in the workgroup), ``slot`` (the
    invocation's place in the workgroup) and ``lane``. With *subgroups* a row's lanes are neighbours and ``slot`` counts through
    the subgroups.
    """

    subgroups: bool
    shared: dict[str, None] = field(default_factory=dict)
    _counts: dict[str, int] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        """Shared memory an invocation of the workgroup."""
        return sum(8 if re.search("64|double", declaration) else 4 for declaration in self.shared)

    def lines(self, fn: str, t: DType, acc: str, at: str | None, *, last: bool) -> list[str]:
        """Statements after which ``acc`` (and the index ``at``) of every lane is that of the whole row."""
        compute = GLSL_TYPES[t].compute
        parts = [(acc, compute)] if at is None else [(acc, compute), (at, "int")]

        def take(theirs: list[str]) -> str:
            """Combine our part with another."""
            if at is None:
                return f"{acc} = {combine(fn, t, acc, theirs[0])};"
            better = replaces(fn, t, theirs[0], theirs[1], acc, at, last=last)
            return f"if ({theirs[1]} >= 0 && ({at} < 0 || {better})) {{ {acc} = {theirs[0]}; {at} = {theirs[1]}; }}"

        # 8-byte and bool shuffles are features of their own
        if self.subgroups and compute in ("float", "int", "uint"):
            names = [f"their_{n}" for n in range(len(parts))]
            shuffles = [f"{c} {n} = subgroupShuffleXor({v}, d);" for (v, c), n in zip(parts, names, strict=True)]
            shuffle = f"{{ {' '.join(shuffles)} {take(names)} }}"
            first = "gl_SubgroupInvocationID & ~(min(LANES, gl_SubgroupSize) - 1u)"
            return [
                "[[unroll]] for (uint d = 1u; d < LANES; d <<= 1) {",
                f"    if (d < gl_SubgroupSize) {shuffle}",
                "}",
                # of 0 and -0 each lane has chosen the other's
                *([f"{acc} = subgroupShuffle({acc}, {first});"] if fn in ("max", "min") and compute == "float" else []),
                *self._cells(parts, take, "LANES > gl_SubgroupSize", "gl_SubgroupSize"),
            ]
        return self._cells(parts, take, "LANES > 1u", "1u")

    def _cells(self, parts: list[tuple[str, str]], take: Callable[[list[str]], str], condition: str, width: str) -> list[str]:
        """Combine through shared memory; each part there stands for *width* lanes."""
        turn = self._counts[width] = 1 - self._counts.get(width, 0)
        names = []
        for n, (_, compute) in enumerate(parts):
            name = f"cells_{'lanes' if width == '1u' else 'subgroups'}_{compute}_{turn}{n}"
            self.shared.setdefault(f"shared {compute} {name}[gl_WorkGroupSize.x];")
            names.append(name)

        def leave(where: str) -> str:
            return " ".join(f"{name}[{where}] = {v};" for name, (v, _) in zip(names, parts, strict=True))

        def at(where: str) -> list[str]:
            return [f"{name}[{where}]" for name in names]

        fetch = " ".join(f"{v} = {name}[cell];" for name, (v, _) in zip(names, parts, strict=True))
        lines = [f"if ({condition}) {{"]
        if width == "1u":
            lines += [
                f"    {leave('slot')}",
                "    barrier();",
                f"    for (uint half_lanes = LANES / 2u; half_lanes >= {READ_ALL}u; half_lanes >>= 1) {{",
                f"        if (uint(lane) < half_lanes) {{ {take(at('slot + half_lanes * LANE_STEP'))} {leave('slot')} }}",
                "        barrier();",
                "    }",
                f"    uint cell = slot - uint(lane) * LANE_STEP, parts = min(LANES, {READ_ALL}u);",
            ]
        else:
            lines += [
                f"    if (gl_SubgroupInvocationID == 0u) {{ {leave('gl_SubgroupID')} }}",
                "    barrier();",
                "    uint parts = LANES / gl_SubgroupSize, cell = gl_SubgroupID / parts * parts;",
            ]
        step = "LANE_STEP" if width == "1u" else "1u"
        lines += [
            f"    {fetch}",
            f"    for (uint part = 1u; part < parts; part++) {{ {take(at(f'cell + part * {step}'))} }}",
            "}",
        ]
        return lines
