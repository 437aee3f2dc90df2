"""Mixtures of experts of ONNX Runtime: MoE, and QMoE with weights in blocks.

Few tokens: each of their chosen experts is one product of a batch, by its index. Many: every expert takes all tokens, and a
token's weight of an expert that it has not chosen is 0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from onnx_vulkan.dims import Extent, at_least, product, require_same
from onnx_vulkan.dtypes import DType
from onnx_vulkan.errors import Unsupported
from onnx_vulkan.lower.elementwise import GPU_FLOATS
from onnx_vulkan.lower.microsoft.gated import swiglu
from onnx_vulkan.lower.registry import LowerContext, lowers
from onnx_vulkan.program import blocks, composites
from onnx_vulkan.program.builder import Builder
from onnx_vulkan.program.ir import Value

__all__: list[str] = []

Layer = Callable[[Value, Value | None], Value]
"""``(x [Z, M, K], index [Z] or None)`` gives ``[Z, M, N]``: product z by expert ``index[z]``, or by expert z."""

_ACTIVATIONS: dict[str, Callable[[Builder, Value], Value]] = {
    "relu": composites.relu,
    "gelu": composites.tanh_gelu,
    "silu": lambda b, x: composites.quick_gelu(b, x, 1.0),
    "identity": lambda b, x: x,
}


@dataclass(frozen=True, slots=True)
class _Activation:
    """What lies between an expert's two layers."""

    name: str
    fusion: int
    alpha: float
    beta: float
    limit: float | None

    def __call__(self, b: Builder, x: Value, third: Callable[[], Value] | None) -> Value:
        """The activation of FC1's result ``[Z, M, *]`` (float32), with FC3's for a SwiGLU that is not fused."""
        if self.name != "swiglu":
            return _ACTIVATIONS[self.name](b, x)
        if self.fusion == 0:
            assert third is not None
            gate, up = x, third()
        else:
            gate, up = self._halves(b, x)
        return swiglu(b, gate, up, alpha=self.alpha, beta=self.beta, limit=self.limit)

    def _halves(self, b: Builder, x: Value) -> tuple[Value, Value]:
        """Gate and up: interleaved (fusion 1), or one after the other."""
        z, m, n = x.shape
        half = n // 2
        require_same(half * 2, n, "a fused SwiGLU's rows do not divide into halves")
        if self.fusion == 1:
            pairs = b.reshape(x, (z, m, half, 2))
            first, second = (b.slice(pairs, (0, 0, 0, i), (z, m, half, 1)) for i in (0, 1))
            return b.reshape(first, (z, m, half)), b.reshape(second, (z, m, half))
        first, second = (b.slice(x, (0, 0, start), (z, m, half)) for start in (0, half))
        return first, second


def _activation(
    name: str, fusion: int, alpha: float, beta: float, limit: float | None, after: int, third: Value | None
) -> _Activation:
    """Raises Unsupported for an activation, or a form of SwiGLU, that is not here."""
    if name != "swiglu" and name not in _ACTIVATIONS:
        raise Unsupported(f"activation_type {name!r} is not supported")
    if name == "swiglu" and (fusion not in (0, 1, 2) or (fusion == 0) != (third is not None)):
        raise Unsupported(f"swiglu_fusion {fusion} {'without' if third is None else 'with'} fc3 is not supported")
    if name != "swiglu" and third is not None:
        raise Unsupported(f"fc3 with activation_type {name!r} is not supported")
    if after:
        raise Unsupported("swiglu_limit_after_activation is not supported")
    return _Activation(name, fusion, alpha, beta, limit)


def _mixture(
    b: Builder, x: Value, router: Value, chosen: Value | None, layers: tuple[Layer, Layer, Layer | None], experts: int,
    *, k: int, normalize: bool, activation: _Activation,
) -> Value:  # fmt: skip
    """The mixture of *x* ``[*, H]`` by *router* ``[T, E]``; *chosen* ``[T, E]`` are mixing weights in place of its softmax."""
    width = x.shape[-1]
    tokens = product(x.shape[:-1])
    require_same(router.shape[0], tokens, "router_probs has another number of rows than there are tokens")
    if not 1 <= k <= experts:
        raise Unsupported(f"k {k} of {experts} experts")
    scores = b.cast(router, DType.F32)
    _, index = b.sort(scores, k, -1, largest=True)
    weights = b.cast(chosen, DType.F32) if chosen is not None else composites.softmax(b, scores)
    weights = b.gather_elements(weights, index, 1)
    if normalize:
        weights = b.map("div", weights, b.reduce("sum", weights, (1,), keepdims=True))
    rows = b.reshape(x, (tokens, width))
    one, two, three = layers

    def expert(x: Value, index: Value | None) -> Value:
        third = (lambda: three(x, index)) if three is not None else None
        return two(activation(b, one(x, index), third), index)

    if at_least(experts, tokens * k):
        count = tokens * k
        spread = b.broadcast(b.reshape(rows, (tokens, 1, width)), (tokens, k, width))
        y = expert(b.reshape(spread, (count, 1, width)), b.cast(b.reshape(index, (count,)), DType.I32))
        y = b.map("mul", b.reshape(y, (tokens, k, y.shape[2])), b.reshape(weights, (tokens, k, 1)))
        total = b.reduce("sum", y, (1,))
    else:
        which = b.iota((experts, 1, 1), 0, DType.I64)
        own = b.map("select", b.map("eq", b.reshape(index, (1, tokens, k)), which), weights, b.scalar(0, DType.F32))
        y = expert(b.broadcast(b.reshape(rows, (1, tokens, width)), (experts, tokens, width)), None)
        y = b.map("mul", y, b.reduce("sum", own, (2,), keepdims=True))
        total = b.reduce("sum", y, (0,))
    return b.cast(b.reshape(total, (*x.shape[:-1], total.shape[1])), x.dtype)


def _biased(b: Builder, y: Value, bias: Value | None, index: Value | None) -> Value:
    """*y* ``[Z, M, N]`` in float32 with the bias ``[E, N]`` of its experts."""
    y = b.cast(y, DType.F32)
    if bias is None:
        return y
    own = b.cast(b.gather(bias, index, 0) if index is not None else bias, DType.F32)
    return b.map("add", y, b.reshape(own, (y.shape[0], 1, y.shape[2])))


def _experts(weights: Value) -> int:
    if weights.rank != 3 or not isinstance(weights.shape[0], int):
        raise Unsupported("weights of an unknown number of experts are not supported")
    return weights.shape[0]


@lowers(
    "MoE",
    versions=[1],
    dtypes=dict.fromkeys(("x", "router", "w1", "b1", "w2", "b2", "w3", "b3"), GPU_FLOATS),
    domain="com.microsoft",
    note="no use_sparse_mixer",
)
def moe(
    b: LowerContext,
    x: Value,
    router: Value,
    w1: Value,
    b1: Value | None,
    w2: Value,
    b2: Value | None = None,
    w3: Value | None = None,
    b3: Value | None = None,
    *,
    activation_alpha: float = 1.0,
    activation_beta: float = 0.0,
    activation_type: str = "relu",
    k: int = 1,
    normalize_routing_weights: int = 0,
    swiglu_fusion: int = 0,
    swiglu_limit: float | None = None,
    swiglu_limit_after_activation: int = 0,
    use_sparse_mixer: int = 0,
) -> Value:
    """MoE of ONNX Runtime: x ``[T, H]`` or ``[B, S, H]``, router logits ``[T, E]``, weights ``[E, N, K]``, biases ``[E, N]``."""
    if use_sparse_mixer:
        raise Unsupported("use_sparse_mixer is not supported")
    experts = _experts(w1)

    def layer(w: Value, bias: Value | None) -> Layer:
        def run(x: Value, index: Value | None) -> Value:
            own = b.gather(w, index, 0) if index is not None else w
            return _biased(b, b.contract(b.cast(x, w.dtype), b.transpose(own, (0, 2, 1))), bias, index)

        return run

    activation = _activation(
        activation_type, swiglu_fusion, activation_alpha, activation_beta, swiglu_limit, swiglu_limit_after_activation, w3
    )
    layers = layer(w1, b1), layer(w2, b2), layer(w3, b3) if w3 is not None else None
    return _mixture(b, x, router, None, layers, experts, k=k, normalize=bool(normalize_routing_weights), activation=activation)


@lowers(
    "QMoE",
    versions=[1],
    dtypes={
        **dict.fromkeys(("x", "router", "s1", "b1", "s2", "b2", "s3", "b3", "router_weights"), GPU_FLOATS),
        **dict.fromkeys(("w1", "w2", "w3", "z1", "z2", "z3"), (DType.U8,)),
    },
    domain="com.microsoft",
    note="packed weights of 2, 4 and 8 bits; weights_prepacked=0; normalize_routing_weights or router_weights",
)
def qmoe(
    b: LowerContext,
    x: Value,
    router: Value,
    w1: Value,
    s1: Value | None,
    b1: Value | None,
    w2: Value,
    s2: Value | None,
    b2: Value | None = None,
    w3: Value | None = None,
    s3: Value | None = None,
    b3: Value | None = None,
    z1: Value | None = None,
    z2: Value | None = None,
    z3: Value | None = None,
    router_weights: Value | None = None,
    global_scale_1: Value | None = None,
    global_scale_2: Value | None = None,
    act_scale_1: Value | None = None,
    act_scale_2: Value | None = None,
    act_block_scale_1: Value | None = None,
    act_block_scale_2: Value | None = None,
    *,
    accuracy_level: int = 0,
    activation_alpha: float = 1.0,
    activation_beta: float = 0.0,
    activation_type: str = "relu",
    block_size: int = 0,
    expert_weight_bits: int = 4,
    fc1_expert_weight_bits: int | None = None,
    fc2_expert_weight_bits: int | None = None,
    fc3_expert_weight_bits: int | None = None,
    k: int = 1,
    normalize_routing_weights: int = 0,
    quant_type: str = "int",
    swiglu_fusion: int = 0,
    swiglu_limit: float | None = None,
    swiglu_limit_after_activation: int = 0,
    use_sparse_mixer: int = 0,
    weights_prepacked: int = -1,
) -> Value:
    """QMoE of ONNX Runtime: MoE with weights ``[E, N, K * bits/8]`` in blocks along K, or with one scale a row.

    Scales are ``[E, N, K / block_size]`` or ``[E, N]``; zero points are packed along the last axis of the scales' shape.
    Raises Unsupported for weights in a layout of one execution provider, which is what ``weights_prepacked`` says by default.
    """
    extra = (global_scale_1, global_scale_2, act_scale_1, act_scale_2, act_block_scale_1, act_block_scale_2)
    if any(v is not None for v in extra):
        raise Unsupported("global scales and scales of the activations are not supported")
    if quant_type != "int":
        raise Unsupported(f"quant_type {quant_type!r} is not supported")
    if weights_prepacked:
        raise Unsupported(
            f"weights_prepacked {weights_prepacked}, a layout that each execution provider chooses, is not supported"
        )
    if use_sparse_mixer:
        raise Unsupported("use_sparse_mixer is not supported")
    if not normalize_routing_weights and router_weights is None:
        raise Unsupported("normalize_routing_weights 0, by which execution providers mean different things, is not supported")
    if block_size and (block_size < 16 or block_size & (block_size - 1)):
        raise Unsupported(f"block_size {block_size} is not a power of two of at least 16")
    experts = _experts(w1)

    def layer(w: Value, scales: Value | None, zero: Value | None, bias: Value | None, bits: int | None) -> Layer:
        bits = expert_weight_bits if bits is None else bits
        if bits not in (2, 4, 8) or scales is None:
            raise Unsupported(f"{bits} bits a weight, or weights without scales, are not supported")
        depth: Extent = w.shape[2] * (8 // bits)
        if not block_size:
            if zero is not None:  # packed along the rows
                zero = b.reshape(b.cast(blocks.unpack(b, zero, bits, scales.shape[1]), DType.F32), (experts, scales.shape[1], 1))
            scales = b.reshape(scales, (experts, scales.shape[1], 1))
        elif scales.rank != 3:
            raise Unsupported(f"scales of rank {scales.rank} with block_size {block_size} are not supported")
        else:
            require_same(scales.shape[2] * block_size, depth, "the scales do not fit the weights")

        def run(x: Value, index: Value | None) -> Value:
            require_same(x.shape[2], depth, "the weights do not fit their input")
            x = b.reshape(x, (*x.shape[:2], depth))
            y = blocks.contract_blocks(b, x, w, scales, zero, bits=bits, block=block_size, index=index)
            return _biased(b, y, bias, index)

        return run

    activation = _activation(
        activation_type, swiglu_fusion, activation_alpha, activation_beta, swiglu_limit, swiglu_limit_after_activation, w3
    )
    layers = (
        layer(w1, s1, z1, b1, fc1_expert_weight_bits),
        layer(w2, s2, z2, b2, fc2_expert_weight_bits),
        layer(w3, s3, z3, b3, fc3_expert_weight_bits) if w3 is not None else None,
    )
    return _mixture(
        b, x, router, router_weights, layers, experts, k=k, normalize=bool(normalize_routing_weights), activation=activation
    )
