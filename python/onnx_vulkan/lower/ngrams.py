"""TfIdfVectorizer on numbers: how often the n-grams of a pool occur in each row."""

from __future__ import annotations

import numpy as np

from onnx_vulkan.dims import maximum
from onnx_vulkan.dtypes import DType
from onnx_vulkan.errors import Unsupported
from onnx_vulkan.graph import Array
from onnx_vulkan.lower.registry import LowerContext, lowers
from onnx_vulkan.program.builder import Builder
from onnx_vulkan.program.ir import Value

__all__: list[str] = []


def _occurrences(b: Builder, x: Value, grams: Array, distance: int) -> Value:
    """How often each of *grams* ``[G, n]`` is in each row of x ``[B, C]``, its items *distance* apart: ``[B, G]`` int32."""
    batch, length = x.shape
    n = grams.shape[1]
    places = maximum(length - (n - 1) * distance, 0)
    same: Value | None = None
    for k in range(n):
        items = b.reshape(b.slice(x, (0, k * distance), (batch, places)), (batch, 1, places))
        equal = b.map("eq", items, b.const(np.ascontiguousarray(grams[:, k]).reshape(1, -1, 1).astype(x.dtype.numpy)))
        same = equal if same is None else b.map("and", same, equal)
    assert same is not None
    return b.reduce("sum", b.cast(same, DType.I32), (2,))


@lowers("TfIdfVectorizer", [9], {"x": frozenset({DType.I32, DType.I64})}, note="numbers")
def tf_idf_vectorizer(
    b: LowerContext,
    x: Value,
    *,
    max_gram_length: int,
    max_skip_count: int,
    min_gram_length: int,
    mode: str,
    ngram_counts: list[int],
    ngram_indexes: list[int],
    pool_int64s: list[int] | None = None,
    pool_strings: list[str] | None = None,
    weights: list[float] | None = None,
) -> Value:
    """TfIdfVectorizer: ``[C]`` or ``[B, C]`` to one float32 a column that ``ngram_indexes`` names.

    n-grams are counted with 0 to ``max_skip_count`` items left out between two of theirs, single items once. ``mode`` TF gives
    the counts, IDF the weight of an n-gram that occurs, TFIDF their product.
    """
    if pool_int64s is None or mode not in ("TF", "IDF", "TFIDF"):
        raise Unsupported(f"mode {mode!r} with a pool that holds no numbers" if pool_int64s is None else f"mode {mode!r}")
    if x.rank not in (1, 2):
        raise Unsupported(f"an input of rank {x.rank}")
    columns = max(ngram_indexes) + 1
    if min(ngram_indexes) < 0 or (weights and not len(weights) == len(ngram_indexes) == len(set(ngram_indexes))):
        raise Unsupported("its weights are not one for each n-gram, or n-grams with weights share a column")
    if any(not -(2**31) <= v < 2**31 for v in pool_int64s) and x.dtype is DType.I32:
        raise Unsupported("its pool holds numbers that its input cannot")
    rows = b.reshape(x, (1, x.shape[0])) if x.rank == 1 else x
    pool, ends = np.array(pool_int64s, np.int64), [*ngram_counts[1:], len(pool_int64s)]
    counted: list[Value] = []
    chosen: list[int] = []  # the column of each count
    done = 0
    for n, (start, end) in enumerate(zip(ngram_counts, ends, strict=True), 1):
        if (end - start) % n:
            raise Unsupported(f"its pool's {n}-grams are not whole")
        grams = pool[start:end].reshape(-1, n)
        if len(np.unique(grams, axis=0)) != len(grams):
            raise Unsupported("its pool holds an n-gram twice")
        own = ngram_indexes[done : done + len(grams)]
        done += len(grams)
        if not len(grams) or not min_gram_length <= n <= max_gram_length:
            continue
        total = _occurrences(b, rows, grams, 1)
        for skip in range(1, max_skip_count + 1 if n > 1 else 1):
            total = b.map("add", total, _occurrences(b, rows, grams, skip + 1))
        counted.append(total)
        chosen += own
    if not counted:
        raise Unsupported("its pool has no n-gram of the lengths that it counts")
    # n-grams that have one column share it, columns without any stay 0
    places = np.zeros((len(chosen), columns), np.float32)
    places[np.arange(len(chosen)), chosen] = 1
    counts = b.contract(b.cast(b.concat(counted, 1), DType.F32), b.const(places))
    if mode != "TF":
        by_column = np.ones(columns, np.float32)
        if weights:
            by_column[ngram_indexes] = weights
        factor = b.const(by_column)
        if mode == "TFIDF":
            counts = b.map("mul", counts, factor)
        else:
            counts = b.map("select", b.map("gt", counts, b.scalar(0, DType.F32)), factor, b.scalar(0, DType.F32))
    return b.reshape(counts, (columns,)) if x.rank == 1 else counts
