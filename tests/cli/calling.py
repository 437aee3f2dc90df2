"""Calls a command in this process."""

from __future__ import annotations

import json
from typing import Any

from onnx_vulkan.cli import app
from typer.testing import CliRunner

__all__ = ["call"]


def call(*args: object) -> tuple[int, dict[str, Any], str]:
    """Exit code, JSON of stdout, stderr. Errors that the entry point would say are raised."""
    done = CliRunner().invoke(app, [str(a) for a in args])
    if done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.exit_code, json.loads(done.stdout) if done.stdout else {}, done.stderr
