#!/usr/bin/env python3
"""Writes docs/operators.md from the registered lowerings; with --check only tells (by the exit status) whether it is current."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Collection, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from types import CodeType, FunctionType, ModuleType

from onnx_vulkan.dtypes import SMALL, DType
from onnx_vulkan.kernels import families
from onnx_vulkan.lower import LOWERINGS
from onnx_vulkan.lower.refused import REFUSED
from onnx_vulkan.lower.registry import MAX_OPSET, LowerContext, Lowering
from onnx_vulkan.program.builder import Builder

PAGE = Path(__file__).resolve().parent.parent / "docs" / "operators.md"

HEAD = f"""# Operators

Written by `scripts/document_operators.py` from the code that does the work. *Versions* are the operator's own versions
(ONNX's "since version") that the lowering was read against: any other is refused, and so is every operator of a model whose
`ai.onnx` opset is newer than {MAX_OPSET}. *Element types* are those of the inputs, by their names here. An input *known before
the run* has to be a constant, shape arithmetic, or a small integer input. A form that an operator's own checks refuse is
named with its reason by `onnx-vulkan inspect`. *Kernels* are the families that may run it besides the generated loops that
elementwise and movement operations become: `row` for generated reductions, else a template of `kernels/`. An operator that
is not listed but that ONNX defines as a function (`SwiGLU`, `LinearAttention`, the losses) runs through the operators of its
body.

*Small types* are {", ".join(t.onnx_name for t in DType if t in SMALL)}. They are moved, converted and quantized, and stay packed
(a 4-bit element takes half a byte) at the edges of a block and in weights; nothing is computed in them.
"""


HEADER = ("| operator | versions | element types | kernels | notes |", "| --- | --- | --- | --- | --- |")


def types_text(allowed: Collection[DType]) -> str:
    """Element types in ONNX's words, in the order of the enumeration; runs of sizes in short."""
    names = [t.onnx_name for t in DType if t in allowed]
    integers = {"int8", "int16", "int32", "int64"}
    short = []
    small = {t.onnx_name for t in SMALL}
    for family, prefix in (({f"u{n}" for n in integers}, "uint8-64"), (integers, "int8-64"), (small, "small types")):
        if family <= set(names):
            names = [n for n in names if n not in family]
            short.append(prefix)
    return ", ".join([*names, *sorted(short)])


def _called(function: FunctionType) -> Iterator[FunctionType]:
    """The functions of this project that *function* names: globals, members of modules, the Builder's methods."""
    names = list(_names(function.__code__))
    found = [function.__globals__.get(name) for name in names]
    modules = (m for m in found if isinstance(m, ModuleType) and m.__name__.startswith("onnx_vulkan."))
    places = [LowerContext, *modules]
    found += [getattr(place, name, None) for place in places for name in names]
    for thing in found:
        thing = inspect.unwrap(thing) if callable(thing) else thing
        if isinstance(thing, FunctionType) and thing.__module__.startswith(("onnx_vulkan.lower", "onnx_vulkan.program")):
            yield thing


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for inner in _inner(code):
        yield from _names(inner)


def _texts(code: CodeType) -> Iterator[str]:
    yield from (c for c in code.co_consts if isinstance(c, str))
    for inner in _inner(code):
        yield from _texts(inner)


def _inner(code: CodeType) -> Iterator[CodeType]:
    yield from (c for c in code.co_consts if isinstance(c, CodeType))


def kernels(function: FunctionType) -> list[str]:
    """The kernel families of the instructions that *function* and what it calls can emit."""
    known = {"row": "reduce", **{name: name for name in families()}}
    found, kinds, seen, left = set(), set(), {function}, [function]
    while left:
        function = left.pop()
        names, texts = set(_names(function.__code__)), set(_texts(function.__code__))
        if names & {"emit", "_one"}:
            found |= {name for name, op in known.items() if op in texts}
        if not function.__qualname__.startswith("Builder."):
            kinds |= {f"window:{text}" for text in texts}
        new = set(_called(function)) - seen
        seen |= new
        left += new
    if Builder.window in seen:
        found |= kinds & known.keys()
    return sorted(found)


def row(entry: Lowering) -> str:
    """One line of the table."""
    dtypes = {name: types_text(allowed) for name, allowed in entry.dtypes.items()}
    parts = []
    for text, names in groupby(sorted(dtypes, key=lambda n: (dtypes[n], n)), key=dtypes.__getitem__):
        parts.append(f"{', '.join(names)}: {text}")
    hosts = [p.name for p in entry.parameters if p.host]
    notes = [f"known before the run: {', '.join(hosts)}"] * bool(hosts) + [entry.note] * bool(entry.note)
    versions = ", ".join(map(str, sorted(entry.versions)))
    return f"| {entry.op_type} | {versions} | {'; '.join(parts)} | {', '.join(kernels(entry.function))} | {'; '.join(notes)} |"


def page() -> str:
    """The whole page."""
    lines = [HEAD]
    for domain in sorted({domain for domain, _ in LOWERINGS}):
        entries = sorted(
            (e for (d, _), found in LOWERINGS.items() if d == domain for e in found), key=lambda e: (e.op_type, min(e.versions))
        )
        lines += [f"## {domain or 'ai.onnx'}", "", *HEADER]
        lines += [row(entry) for entry in entries] + [""]
    lines += ["## Refused by name", "", "| operator | why |", "| --- | --- |"]
    lines += [f"| {domain or 'ai.onnx'}::{name} | {reason} |" for (domain, name), reason in sorted(REFUSED.items())] + [""]
    return "\n".join(lines)


def main(argv: Sequence[str]) -> int:
    """Command line entry point; returns the exit status."""
    text = page()
    if argv == ["--check"]:
        if PAGE.is_file() and PAGE.read_text(encoding="utf-8") == text:
            return 0
        print("docs/operators.md is not what the code says: run scripts/document_operators.py", file=sys.stderr)
        return 1
    PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
