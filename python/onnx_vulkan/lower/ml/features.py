"""Operators of ``ai.onnx.ml`` on tables of numbers: rows are samples, columns are features. Strings are not tensors here."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from onnx_vulkan.dims import product, require_same
from onnx_vulkan.dtypes import DType
from onnx_vulkan.errors import Unsupported
from onnx_vulkan.graph import Array
from onnx_vulkan.lower.registry import LowerContext, lowers
from onnx_vulkan.program import composites
from onnx_vulkan.program.builder import Builder
from onnx_vulkan.program.ir import Value

__all__ = ["DOMAIN", "TABLE", "transformed"]

DOMAIN = "ai.onnx.ml"
TABLE = frozenset({DType.F32, DType.F64, DType.I32, DType.I64})
"""The element types of most of these operators."""


def transformed(b: Builder, scores: Value, post_transform: str) -> Value:
    """Scores ``[N, C]`` after one of the two transforms that are more than names: SOFTMAX over a row, LOGISTIC."""
    match post_transform:
        case "NONE":
            return scores
        case "SOFTMAX":
            return composites.softmax(b, scores)
        case "LOGISTIC":
            return composites.sigmoid(b, scores)
    raise Unsupported(f"post_transform {post_transform!r} is not supported")


def _row(b: Builder, numbers: Sequence[float], x: Value, dtype: DType, what: str) -> Value:
    """One number a column, or one for all, to broadcast against the rows of *x*."""
    if len(numbers) != 1:
        require_same(x.shape[-1], len(numbers), f"the {what} are not one for each column")
    return b.const(np.array(numbers).astype(dtype.numpy))


@lowers("ArrayFeatureExtractor", [1], {"x": TABLE, "indices": frozenset({DType.I64})}, domain=DOMAIN)
def array_feature_extractor(b: LowerContext, x: Value, indices: Value) -> Value:
    """ArrayFeatureExtractor: columns of the last axis; of a vector one row. An index outside is an error of the run."""
    if x.rank == 0:
        raise Unsupported("a scalar has no columns")
    count = product(indices.shape)
    y = b.gather(x, b.reshape(indices, (count,)), x.rank - 1, wrap=False)
    return b.reshape(y, (1, count)) if x.rank == 1 else y


@lowers("Binarizer", [1], {"x": TABLE}, domain=DOMAIN)
def binarizer(b: LowerContext, x: Value, *, threshold: float = 0.0) -> Value:
    """Binarizer: 1 above the threshold, else 0. Integers are compared in float64, where the threshold is what it is."""
    wide = b.cast(x, DType.F64) if x.dtype.is_int else x
    return b.cast(b.map("gt", wide, b.scalar(threshold, wide.dtype)), x.dtype)


@lowers("Scaler", [1], {"x": TABLE}, domain=DOMAIN)
def scaler(b: LowerContext, x: Value, *, offset: list[float] | None = None, scale: list[float] | None = None) -> Value:
    """Scaler: ``(x - offset) * scale`` by columns, in float32."""
    if not offset or not scale or x.rank == 0:
        raise Unsupported("it needs an offset and a scale, and columns")
    y = b.cast(x, DType.F32)
    y = b.map("sub", y, _row(b, offset, x, DType.F32, "offsets"))
    return b.map("mul", y, _row(b, scale, x, DType.F32, "scales"))


@lowers("Imputer", [1], {"x": TABLE}, domain=DOMAIN)
def imputer(
    b: LowerContext,
    x: Value,
    *,
    imputed_value_floats: list[float] | None = None,
    imputed_value_int64s: list[int] | None = None,
    replaced_value_float: float = 0.0,
    replaced_value_int64: int = 0,
) -> Value:
    """Imputer: what equals the replaced value (NaN equals NaN) becomes the column's value."""
    values: Sequence[float] | None = imputed_value_floats if x.dtype.is_float else imputed_value_int64s
    if not values or x.rank == 0:
        raise Unsupported("it needs values of the input's kind, and columns")
    replaced = replaced_value_float if x.dtype.is_float else replaced_value_int64
    missing = b.map("isnan", x) if replaced != replaced else b.map("eq", x, b.scalar(replaced, x.dtype))
    return b.map("select", missing, _row(b, values, x, x.dtype, "values"), x)


@lowers("Normalizer", [1], {"x": TABLE}, domain=DOMAIN)
def normalizer(b: LowerContext, x: Value, *, norm: str = "MAX") -> Value:
    """Normalizer: each row over its largest number, the sum of its sizes, or its length; a row whose divisor is 0 stays."""
    if x.rank not in (1, 2):
        raise Unsupported(f"an input of rank {x.rank}")
    y = b.cast(x, DType.F32)
    zero = b.scalar(0, DType.F32)
    if norm == "MAX":
        divisor = b.reduce("max", y, (-1,), keepdims=True)
    elif norm == "L1":
        divisor = b.reduce("sum", b.map("abs", y), (-1,), keepdims=True)
    elif norm == "L2":
        divisor = b.map("sqrt", b.reduce("sum", b.map("mul", y, y), (-1,), keepdims=True))
    else:
        raise Unsupported(f"norm {norm!r} is not known")
    return b.map("select", b.map("eq", divisor, zero), y, b.map("div", y, divisor))


@lowers("LinearRegressor", [1], {"x": TABLE}, domain=DOMAIN)
def linear_regressor(
    b: LowerContext,
    x: Value,
    *,
    coefficients: list[float] | None = None,
    intercepts: list[float] | None = None,
    post_transform: str = "NONE",
    targets: int = 1,
) -> Value:
    """LinearRegressor: ``x @ coefficients^T + intercepts`` in float32; the coefficients of a target follow each other."""
    if x.rank != 2 or not coefficients or len(coefficients) % targets:
        raise Unsupported(f"an input of rank {x.rank} with {len(coefficients or ())} coefficients for {targets} targets")
    weights = np.array(coefficients, np.float32).reshape(targets, -1)
    y = b.contract(b.cast(x, DType.F32), b.const(np.ascontiguousarray(weights.T)))
    if intercepts:
        y = b.map("add", y, b.const(np.array(intercepts, np.float32)))
    return transformed(b, y, post_transform)


@lowers("LinearClassifier", [1], {"x": TABLE}, domain=DOMAIN, note="integer labels, a score for each")
def linear_classifier(
    b: LowerContext,
    x: Value,
    *,
    classlabels_ints: list[int] | None = None,
    classlabels_strings: list[str] | None = None,
    coefficients: list[float],
    intercepts: list[float] | None = None,
    multi_class: int = 0,
    post_transform: str = "NONE",
) -> tuple[Value, Value]:
    """LinearClassifier: the label of the largest of ``x @ coefficients^T + intercepts``, of equals the first; and the scores."""
    classes = len(classlabels_ints or ())
    if x.rank != 2 or classes < 2 or len(intercepts or ()) != classes or len(coefficients) % classes:
        raise Unsupported("its labels are not two integers or more with an intercept each, or its input is no matrix")
    weights = np.array(coefficients, np.float32).reshape(classes, -1)
    y = b.contract(b.cast(x, DType.F32), b.const(np.ascontiguousarray(weights.T)))
    y = b.map("add", y, b.const(np.array(intercepts, np.float32)))
    labels = b.const(np.array(classlabels_ints, np.int64))
    return b.gather(labels, b.reduce("argmax", y, (1,)), 0), transformed(b, y, post_transform)


@lowers("FeatureVectorizer", [1], {"tables": TABLE}, domain=DOMAIN)
def feature_vectorizer(b: LowerContext, *tables: Value, inputdimensions: list[int] | None = None) -> Value:
    """FeatureVectorizer: matrices side by side, in float32."""
    widths = inputdimensions or []
    if len(widths) != len(tables) or any(t.rank != 2 for t in tables):
        raise Unsupported("its inputs are not matrices whose widths are given")
    for table, width in zip(tables, widths, strict=True):
        require_same(table.shape[1], width, "an input does not have the width that is given")
    return b.concat([b.cast(t, DType.F32) for t in tables], 1)


@lowers("OneHotEncoder", [1], {"x": TABLE}, domain=DOMAIN, note="integer categories, zeros 1")
def one_hot_encoder(
    b: LowerContext, x: Value, *, cats_int64s: list[int] | None = None, cats_strings: list[str] | None = None, zeros: int = 1
) -> Value:
    """OneHotEncoder: a new last axis with 1 at the element's category, or nowhere; numbers are cut off to integers before."""
    if not cats_int64s or not zeros or len(set(cats_int64s)) != len(cats_int64s):
        raise Unsupported("its categories are not different integers, or zeros is 0")
    index = b.reshape(b.cast(x, DType.I64), (*x.shape, 1))
    return b.cast(b.map("eq", index, b.const(np.array(cats_int64s, np.int64))), DType.F32)


# -------------------------------------------------------------------------------------------------------- LabelEncoder


def _encoded(b: Builder, x: Value, keys: Array, values: Array, default: Array) -> Value:
    """The value of each element's key, the default where there is none."""
    if len(keys) != len(values) or len(np.unique(keys)) != len(keys) or (keys != keys).any():
        raise Unsupported("its keys have to be as many as its values, numbers, and different from each other")
    if DType.of(keys.dtype) is not x.dtype:
        raise Unsupported(f"its keys are {keys.dtype}, its input {x.dtype.onnx_name}")
    dtype = DType.of(values.dtype)
    size = product(x.shape)
    same = b.map("eq", b.reshape(x, (size, 1)), b.const(keys.reshape(1, -1)))
    chosen = b.map("select", same, b.const(values.reshape(1, -1)), b.scalar(0, dtype))
    total = b.reduce("sum", chosen, (1,))  # of one value and zeros
    found = b.reduce("max", b.cast(same, DType.I32), (1,))
    y = b.map("select", b.map("gt", found, b.scalar(0, DType.I32)), total, b.const(default.astype(values.dtype).reshape(())))
    return b.reshape(y, x.shape)


_NUMBERS = "numbers to numbers"


@lowers("LabelEncoder", [2], {"x": frozenset({DType.F32, DType.I64})}, domain=DOMAIN, note=_NUMBERS)
def label_encoder_2(
    b: LowerContext,
    x: Value,
    *,
    default_float: float = -0.0,
    default_int64: int = -1,
    default_string: str = "_Unused",
    keys_floats: list[float] | None = None,
    keys_int64s: list[int] | None = None,
    keys_strings: list[str] | None = None,
    values_floats: list[float] | None = None,
    values_int64s: list[int] | None = None,
    values_strings: list[str] | None = None,
) -> Value:
    """LabelEncoder-2: int64 and float32 to int64 and float32."""
    y: Value = label_encoder(
        b, x, default_float=default_float, default_int64=default_int64, keys_floats=keys_floats, keys_int64s=keys_int64s,
        values_floats=values_floats, values_int64s=values_int64s,
    )  # fmt: skip
    return y


@lowers(
    "LabelEncoder", [4], {"x": frozenset({DType.F32, DType.F64, DType.I16, DType.I32, DType.I64})}, domain=DOMAIN, note=_NUMBERS
)
def label_encoder(
    b: LowerContext,
    x: Value,
    *,
    default_float: float = -0.0,
    default_int64: int = -1,
    default_string: str = "_Unused",
    default_tensor: Array | None = None,
    keys_floats: list[float] | None = None,
    keys_int64s: list[int] | None = None,
    keys_strings: list[str] | None = None,
    keys_tensor: Array | None = None,
    values_floats: list[float] | None = None,
    values_int64s: list[int] | None = None,
    values_strings: list[str] | None = None,
    values_tensor: Array | None = None,
) -> Value:
    """LabelEncoder: each element's place among the keys gives its value."""

    def numbers(floats: list[float] | None, ints: list[int] | None, tensor: Array | None, what: str) -> Array:
        given = [np.array(v, t) for v, t in ((floats, np.float32), (ints, np.int64)) if v is not None]
        given += [tensor.reshape(-1)] if tensor is not None else []
        if len(given) != 1 or given[0].dtype.kind not in "fi":
            raise Unsupported(f"its {what} are no numbers")
        return given[0]

    keys = numbers(keys_floats, keys_int64s, keys_tensor, "keys")
    values = numbers(values_floats, values_int64s, values_tensor, "values")
    if default_tensor is not None and values_tensor is not None:
        default = default_tensor
    else:
        default = np.array(default_float if values.dtype.kind == "f" else default_int64)
    return _encoded(b, x, keys, values, default)
