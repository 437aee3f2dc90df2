"""The interpreter's larger parts: ``window``, ``scan``, ``sort`` and the composite instructions, in numpy.

``EVALUATORS[op]`` is ``(evaluator, instr, *arrays) -> array or tuple of arrays``, see
``interp.Primitive``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["EVALUATORS"]

EVALUATORS: dict[str, Callable[..., Any]] = {}
