"""How commands speak: a one-line verdict on stderr, JSON on stdout for programs, tables on stdout for people."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

__all__ = ["CANNOT_RUN", "FAILED", "GOOD", "deliver", "say", "shape_text"]

GOOD, FAILED, CANNOT_RUN = 0, 1, 2
"""Exit codes: good; failed or beyond tolerance; the model cannot run on Vulkan."""


def say(sentence: str) -> None:
    """The verdict, or what went wrong, in one line."""
    print(f"onnx-vulkan: {sentence}", file=sys.stderr, flush=True)


def deliver(data: Mapping[str, Any], show: Callable[[], None], report_json: Path | None = None) -> None:
    """Give a command's result: JSON when stdout is no terminal, else what *show* prints. Also JSON to a file if asked."""
    if report_json is not None:
        report_json.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
    if sys.stdout.isatty():
        show()
    else:
        print(json.dumps(data, indent=2), flush=True)


def shape_text(shape: list[int | str] | None) -> str:
    """``[n, 3, 224]``, or ``of unknown rank``."""
    return "of unknown rank" if shape is None else f"[{', '.join(map(str, shape))}]"
