"""Causal convolution with a carried state, as ONNX Runtime has it for models with linear attention."""

from __future__ import annotations

from onnx_vulkan.dims import product, require_same
from onnx_vulkan.errors import Unsupported
from onnx_vulkan.lower.elementwise import GPU_FLOATS
from onnx_vulkan.lower.registry import LowerContext, lowers
from onnx_vulkan.program import composites
from onnx_vulkan.program.ir import Value

__all__: list[str] = []


@lowers(
    "CausalConvWithState",
    versions=[1],
    dtypes=dict.fromkeys(("x", "w", "bias", "past_state"), GPU_FLOATS),
    domain="com.microsoft",
    note="one spatial axis; no state_window, no slices of channels",
)
def causal_conv_with_state(
    b: LowerContext,
    x: Value,
    w: Value,
    bias: Value | None = None,
    past_state: Value | None = None,
    *,
    activation: str = "none",
    channels_last: int = 0,
    dilation: int = 1,
    input_channel_offset: int = 0,
    input_channels: int = 0,
    ndim: int = 1,
    state_channels_last: int = -1,
    state_length: int = 0,
    state_update_capacity: int = 0,
    state_window: int = 0,
) -> tuple[Value, Value]:
    """CausalConvWithState of ONNX Runtime: each channel of ``[B, C, L]`` convolved with its own kernel of ``w [C, 1, K]``.

    The state ``[B, C, (K - 1) * dilation]`` (0 where it is left out) goes before the input; the last as many positions of both
    are the second output. With ``channels_last`` input, output and state are ``[B, L, *]``.
    """
    extended = (input_channel_offset, input_channels, state_length, state_update_capacity, state_window)
    if ndim != 1 or any(extended) or state_channels_last not in (-1, channels_last):
        raise Unsupported("ndim other than 1, and slices or windows of channels and states, are not supported")
    if activation not in ("none", "silu", "swish"):
        raise Unsupported(f"activation {activation!r} is not supported")
    channels, kernel = w.shape[0], w.shape[2]
    if not isinstance(channels, int) or not isinstance(kernel, int) or dilation < 1:
        raise Unsupported("a kernel whose extents are not known before the run")
    span = (kernel - 1) * dilation
    tail = x.shape[2:] if channels_last else (channels,)
    require_same(product(tail) if channels_last else x.shape[1], channels, "the kernels are not as many as the channels")

    def flat(v: Value) -> Value:  # [B, L, C]
        return b.reshape(v, (*v.shape[:2], channels)) if channels_last else b.transpose(v, (0, 2, 1))

    def back(v: Value) -> Value:
        return b.reshape(v, (*v.shape[:2], *tail)) if channels_last else b.transpose(v, (0, 2, 1))

    rows = flat(x)
    length = rows.shape[1]
    whole = b.concat([flat(past_state), rows], 1) if past_state is not None else b.pad(rows, (0, span, 0), (0, 0, 0))
    (y,) = b.window(
        "conv",
        whole,
        b.transpose(w, (2, 1, 0)),
        out_channels=channels,
        out_spatial=(length,),
        kernel=(kernel,),
        strides=(1,),
        dilations=(dilation,),
        pads_begin=(0,),
        pads_end=(0,),
        groups=channels,
    )
    if bias is not None:
        y = b.map("add", y, bias)
    if activation != "none":
        y = composites.quick_gelu(b, y, 1.0)
    return back(y), back(b.slice(whole, (0, length, 0), (whole.shape[0], span, channels)))
