"""FlexAttention: attention whose scores and probabilities pass through bodies that the model brings."""

from __future__ import annotations

import math

from onnx_vulkan.dims import Extent, require_same
from onnx_vulkan.dtypes import FLOATS, DType
from onnx_vulkan.errors import Unsupported
from onnx_vulkan.graph import Graph
from onnx_vulkan.lower.registry import LowerContext, lowers
from onnx_vulkan.program import composites
from onnx_vulkan.program.ir import Value

__all__: list[str] = []


def _modified(b: LowerContext, body: Graph | None, x: Value) -> Value:
    """What *body* makes of *x*, of the same type and shape."""
    if body is None:
        return x
    results = b.inline(body, (x,))
    if len(results) != 1 or results[0].dtype is not x.dtype or len(results[0].shape) != x.rank:
        raise Unsupported("a body does not give one tensor of its input's type")
    y = b.device(results[0])
    for i in range(x.rank):
        require_same(y.shape[i], x.shape[i], f"a body changes the extent of axis {i}")
    return y


@lowers("FlexAttention", versions=[1], dtypes={"q": FLOATS, "k": FLOATS, "v": FLOATS}, domain="ai.onnx.preview")
def flex_attention(
    b: LowerContext,
    q: Value,
    k: Value,
    v: Value,
    *,
    prob_mod: Graph | None = None,
    scale: float | None = None,
    score_mod: Graph | None = None,
    softmax_precision: int | None = None,
) -> Value:
    """FlexAttention: ``prob_mod(softmax(score_mod(q k^T * scale))) v`` with the scores in *softmax_precision*.

    q ``[B, H, S, D]``, k ``[B, G, T, D]``, v ``[B, G, T, E]`` with H a multiple of G. Query heads that share a key head are rows
    of one product.
    """
    if not q.rank == k.rank == v.rank == 4:
        raise Unsupported(f"operands of rank {q.rank}, {k.rank} and {v.rank}")
    batch, heads, steps, width = q.shape
    groups, total = k.shape[1], k.shape[2]
    require_same(heads % groups, 0, "query heads are no multiple of key heads")
    wide = DType.F64 if q.dtype is DType.F64 else DType.F32
    precision = {t.value: t for t in FLOATS}.get(softmax_precision or wide.value)
    if precision is None:
        raise Unsupported(f"softmax_precision {softmax_precision} is not supported")
    if scale is None:
        if not isinstance(width, int):
            raise Unsupported("the head size is not known before the run")
        scale = 1 / math.sqrt(width)
    rows: Extent = (heads // groups) * steps
    folded = b.reshape(q, (batch, groups, rows, width))
    scores = b.contract(folded, b.transpose(k, (0, 1, 3, 2)), dtype=wide, acc=wide)
    scores = composites.affine(b, b.reshape(scores, (batch, heads, steps, total)), scale, 0.0)
    scores = _modified(b, score_mod, b.cast(scores, precision))
    weights = _modified(b, prob_mod, composites.softmax(b, scores))
    weights = b.reshape(composites.wide(b, weights), (batch, groups, rows, total))
    y = b.contract(weights, b.cast(v, weights.dtype))
    return b.cast(b.reshape(y, (batch, heads, steps, v.shape[3])), v.dtype)
