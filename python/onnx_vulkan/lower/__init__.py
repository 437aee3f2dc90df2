"""ONNX operators as functions on the Program's primitives. Importing this package registers all of them."""

from onnx_vulkan.lower import (  # noqa: F401  importing a room registers its operators
    activations,
    attention,
    blocks,
    control,
    conv,
    elementwise,
    fused,
    group_query,
    host,
    host_tensors,
    indexing,
    linear,
    movement,
    norm,
    patches,
    pool,
    quantize,
    reduction,
    regions,
    resize,
    rnn,
    sampling,
    signal,
    sorting,
    sources,
)
from onnx_vulkan.lower.checks import check_dtypes, check_opset
from onnx_vulkan.lower.driver import Lowered, host_symbol, lower_graph
from onnx_vulkan.lower.registry import (
    EVALUATIONS,
    LOWERINGS,
    Host,
    LowerContext,
    NotHost,
    Operand,
    Unknown,
    evaluates,
    lowers,
)

__all__ = [
    "EVALUATIONS",
    "LOWERINGS",
    "Host",
    "LowerContext",
    "Lowered",
    "NotHost",
    "Operand",
    "Unknown",
    "check_dtypes",
    "check_opset",
    "evaluates",
    "host_symbol",
    "lower_graph",
    "lowers",
]
