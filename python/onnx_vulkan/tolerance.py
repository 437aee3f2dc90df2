"""How close a result must be to its reference to be right: one table and one measure, for tests, bench, bundles and the CLI.

Right means ``|d| <= atol + rtol * |reference|`` for every element. NaN and infinities must be where the reference has them;
integers, bools and strings must be equal.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from onnx_vulkan.dtypes import DType
from onnx_vulkan.graph import Array

__all__ = [
    "EXACT",
    "FP16_MODEL",
    "FP32_MODEL",
    "FP32_OPERATOR",
    "INT4_MODEL",
    "Difference",
    "Tolerance",
    "allowance",
    "compare",
    "no_worse_than",
    "shares",
    "tolerance_of",
    "tolerance_ratio",
    "worst_ratio",
]


@dataclass(frozen=True, slots=True)
class Tolerance:
    """``atol`` and ``rtol`` of the rule; where ``of_max`` of the tensor's largest magnitude is more, that is allowed."""

    atol: float
    rtol: float
    of_max: float = 0.0


FP32_OPERATOR = Tolerance(1e-5, 1e-4)
"""A single fp32 operator."""

FP32_MODEL = Tolerance(1e-4, 1e-3)
"""A whole fp32 model."""

FP16_MODEL = Tolerance(1e-2, 1e-2, of_max=1e-3)
"""A model that computes in float16 or bfloat16, against float32 reference values."""

INT4_MODEL = Tolerance(2e-3, 1e-3)
"""Logits of a model with 4-bit weights, against weights dequantized in float64."""

EXACT = Tolerance(0.0, 0.0)
"""Integers and bools."""


def tolerance_of(dtypes: Collection[DType]) -> Tolerance:
    """The tolerance of a model that computes in *dtypes*."""
    return FP16_MODEL if {DType.F16, DType.BF16} & set(dtypes) else FP32_MODEL


def allowance(row: Tolerance, atol: float | None = None, rtol: float | None = None) -> Tolerance:
    """A row of the table, or what a user asks for instead."""
    if atol is None and rtol is None:
        return row
    return replace(row, atol=row.atol if atol is None else atol, rtol=row.rtol if rtol is None else rtol, of_max=0.0)


@dataclass(frozen=True, slots=True)
class Difference:
    """The worst element of a comparison. ``ratio`` is its share of what is allowed: 1 is just right, inf is not comparable.
    ``at`` is its index, None where there is none: nothing differs, or shapes or dtypes do."""

    max_abs: float
    ratio: float
    at: tuple[int, ...] | None = None


_BAD = Difference(float("inf"), float("inf"))


def compare(got: Array, reference: Array, tolerance: Tolerance) -> Difference:
    """Compare two tensors element by element; not comparable where shape, dtype, NaN or inf differ, or integers do."""
    if got.shape != reference.shape or got.dtype != reference.dtype:
        return _BAD
    if reference.dtype.kind in "OSU":
        return Difference(0.0, 0.0) if np.array_equal(got, reference) else _BAD
    distance, shares = _distances(got, reference, tolerance)
    worst = int(shares.argmax()) if shares.size else 0
    if not shares.size or not shares.flat[worst]:
        return Difference(0.0, 0.0)
    if shares.flat[worst] == np.inf:  # of those for which nothing is allowed, the furthest
        worst = int(np.where(shares == np.inf, distance, 0).argmax())
    at = tuple(int(i) for i in np.unravel_index(worst, got.shape))
    return Difference(float(distance.max()), float(shares.flat[worst]), at)


def shares(got: Array, reference: Array, tolerance: Tolerance) -> NDArray[np.float64]:
    """Each element's difference as a share of what is allowed for it; inf where none is allowed, or NaN or infinities differ.

    The tensors have one shape and one dtype of numbers.
    """
    return _distances(got, reference, tolerance)[1]


def _distances(got: Array, reference: Array, tolerance: Tolerance) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The elements' differences, and these as shares of what is allowed."""
    if reference.dtype.kind in "biu":
        distance = _integer_distance(got, reference)
        return distance, np.where(distance > 0, np.inf, 0.0)
    a, b = got.astype(np.float64), reference.astype(np.float64)
    with np.errstate(all="ignore"):
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        distance = np.where(same, 0.0, np.nan_to_num(np.abs(a - b), nan=np.inf, posinf=np.inf))
        size = np.where(np.isfinite(b), np.abs(b), 0.0)
        allowed = np.maximum(tolerance.atol + tolerance.rtol * size, tolerance.of_max * size.max(initial=0.0))
    # a tolerance of nothing: equal or wrong
    share = np.where(distance > 0, np.inf, 0.0)
    np.divide(distance, allowed, out=share, where=allowed > 0)
    return distance, share


def _integer_distance(a: Array, b: Array) -> NDArray[np.float64]:
    if a.dtype.kind == "b":
        return np.asarray(a != b, np.float64)
    high, low = np.maximum(a, b), np.minimum(a, b)
    # the difference of two int64 may not fit int64; as unsigned it does
    return np.asarray(high.astype(np.uint64) - low.astype(np.uint64), np.float64)


def tolerance_ratio(got: Array, reference: Array, tolerance: Tolerance) -> float:
    """The worst difference as a share of the tolerance: 1.0 is just right, inf where shape, dtype, NaN or inf differ."""
    return compare(got, reference, tolerance).ratio


def worst_ratio(got: Array, reference: Array, atol: float, rtol: float) -> float:
    """:func:`tolerance_ratio` with plain numbers."""
    return compare(got, reference, Tolerance(atol, rtol)).ratio


def no_worse_than(got: Sequence[Array], reference: Sequence[Array], exact: Sequence[Array], tolerance: Tolerance) -> bool:
    """Whether *got* is as near to the float64 result *exact* as *reference* is, tensor by tensor.

    What lets a model pass whose reference is itself further from the truth than the tolerance.
    """
    for a, r, e in zip(got, reference, exact, strict=True):
        if compare(a, r, tolerance).ratio <= 1.0:
            continue
        ours, theirs = compare(a.astype(e.dtype), e, tolerance), compare(r.astype(e.dtype), e, tolerance)
        if ours.ratio == float("inf"):  # integers, or a tolerance of nothing: the distance decides, and there has to be one
            good = ours.max_abs < float("inf") and ours.max_abs <= theirs.max_abs
        else:
            good = ours.ratio <= max(theirs.ratio, 1.0)
        if not good:
            return False
    return True
