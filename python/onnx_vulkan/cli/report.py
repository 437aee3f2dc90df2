"""How commands speak: a one-line verdict on stderr, JSON on stdout for programs, tables on stdout for people."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

__all__ = ["CANNOT_RUN", "FAILED", "GOOD", "contract", "deliver", "say", "shape_text"]

GOOD, FAILED, CANNOT_RUN = 0, 1, 2
"""Exit codes: good; failed or beyond tolerance; the model cannot run on Vulkan."""

_PREFIX = "onnx-vulkan/"


def say(sentence: str) -> None:
    """The verdict, or what went wrong, in one line."""
    print(f"onnx-vulkan: {sentence}", file=sys.stderr, flush=True)


def contract(schema: str, *, reads: str, writes: str, good: str, failed: str, cannot_run: str = "") -> str:
    """The end of a command's ``--help``: what it reads and writes, what goes where, and what its exit status means.

    *schema* is the one that the command gives to :func:`deliver`.
    """
    status = [f"0 {good}", f"1 {failed}, or a mistake in the command line", *([f"2 {cannot_run}"] if cannot_run else [])]
    return "\n\n".join(
        (
            f"Reads: {reads}.",
            f"Writes: {writes}.",
            f"stdout: JSON of the schema {_PREFIX}{schema} when it is no terminal, else tables. stderr: the verdict in one line.",
            f"Exit status: {'; '.join(status)}.",
        )
    )


def deliver(schema: str, data: Mapping[str, Any], show: Callable[[], None], report_json: Path | None = None) -> None:
    """Give a command's result: JSON when stdout is no terminal, else what *show* prints. Also JSON to a file if asked.

    *schema* names what *data* is, as in ``inspect/1``: the JSON has it as ``schema`` with ``onnx-vulkan/`` before it, and
    ``docs/schemas/inspect-1.json`` describes it.
    """
    text = _as_json({"schema": _PREFIX + schema, **data})
    if report_json is not None:
        report_json.write_text(text + "\n", encoding="utf-8")
    if sys.stdout.isatty():
        show()
    else:
        print(text, flush=True)


def _as_json(data: Mapping[str, Any]) -> str:
    return json.dumps(data, indent=2)


def shape_text(shape: list[int | str] | None) -> str:
    """``[n, 3, 224]``, or ``of unknown rank``."""
    return "of unknown rank" if shape is None else f"[{', '.join(map(str, shape))}]"
