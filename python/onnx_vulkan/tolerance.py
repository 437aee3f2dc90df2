"""How close a result must be to its reference to be right: one table and one measure, for the tests, the bench and the CLI."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from onnx_vulkan.dtypes import DType
from onnx_vulkan.graph import Array

__all__ = ["FP16_MODEL", "FP32_MODEL", "FP32_OPERATOR", "Tolerance", "tolerance_of", "tolerance_ratio"]


@dataclass(frozen=True)
class Tolerance:
    """Right means ``|d| <= atol + rtol * |reference|`` for every element."""

    atol: float
    rtol: float


FP32_OPERATOR = Tolerance(1e-5, 1e-4)
"""A single fp32 operator."""

FP32_MODEL = Tolerance(1e-4, 1e-3)
"""A whole fp32 model."""

FP16_MODEL = Tolerance(1e-2, 1e-2)
"""A model that computes in float16 or bfloat16."""


def tolerance_of(dtypes: set[DType]) -> Tolerance:
    """The tolerance of a model that computes in *dtypes*."""
    return FP16_MODEL if dtypes & {DType.F16, DType.BF16} else FP32_MODEL


def tolerance_ratio(got: Array, reference: Array, tolerance: Tolerance) -> float:
    """The worst difference as a share of the tolerance: 1.0 is just right, inf where shape, dtype, NaN or inf differ.

    Integers and bools must be equal.
    """
    if got.shape != reference.shape or got.dtype != reference.dtype:
        return float("inf")
    if reference.dtype.kind in "biu":
        return 0.0 if np.array_equal(got, reference) else float("inf")
    a, b = got.astype(np.float64), reference.astype(np.float64)
    finite = np.isfinite(b)
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True) or not np.isfinite(a[finite]).all():
        return float("inf")
    allowed = tolerance.atol + tolerance.rtol * np.abs(b[finite])
    difference = np.abs(a[finite] - b[finite])
    if not allowed.all():  # a tolerance of nothing: equal or wrong
        return 0.0 if not difference.any() else float("inf")
    return float(np.max(difference / allowed, initial=0.0))
