"""What ONNX Runtime's CPU EP gives for the catalog's models: the reference of the model tests."""

from __future__ import annotations

from functools import lru_cache

import onnxruntime
from catalog import Array, Model

__all__ = ["cpu_outputs", "cpu_session", "quiet_options"]


def quiet_options() -> onnxruntime.SessionOptions:
    """Session options that keep ORT's warnings about the models' own shape hints out of the test log."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    return options


@lru_cache(maxsize=2)
def cpu_session(model: Model) -> onnxruntime.InferenceSession:
    """The model on the CPU EP."""
    return onnxruntime.InferenceSession(str(model.path()), quiet_options(), providers=["CPUExecutionProvider"])


@lru_cache(maxsize=2)
def cpu_outputs(model: Model, case: int | None) -> tuple[Array, ...]:
    """The outputs for test *case* (or the bench's feeds), in the model's order."""
    return tuple(cpu_session(model).run(None, model.feeds(case)))
