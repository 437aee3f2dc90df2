"""ONNX's own node tests of the neural-network operators through front end, lowering and interpreter."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnx_vulkan.errors import RefusedError
from run_case import assert_close, graph_of, refusals, run
from test_node_cases import cases

# Of averagepool and lppool only the making of the cases takes seconds: test_nn_forms has them.
MODULES = """
    conv convinteger convtranspose maxpool globalaveragepool globalmaxpool
    matmul gemm matmulinteger qlinearmatmul einsum
    batch_normalization instance_normalization layernormalization groupnormalization rmsnormalization
    lpnormalization meanvariancenormalization lrn
    softmax logsoftmax hardmax lstm gru rnn
    quantizelinear dequantizelinear dynamicquantizelinear qlinearconv attention rotaryembedding
    resize upsample topk gridsample affinegrid center_crop_pad col2im maxunpool dft stft roialign deformconv tensorscatter
    det flexattention adagrad adam momentum
""".split()

# Case -> why it does not agree with ONNX's numbers; ONNX Runtime gives ours (it leaves these cases out as well).
DIFFERENT = {
    "test_resize_downsample_scales_linear_align_corners": "ONNX divides by the unrounded output extent",
    "test_resize_downsample_scales_cubic_align_corners": "ONNX divides by the unrounded output extent",
}

REFUSED = {"with_output_shape": "output_shape"}


def arrays_of(values: list[object]) -> list[np.ndarray] | None:
    """Test data as arrays, None where something is no tensor."""
    if not all(isinstance(v, (onnx.TensorProto, np.ndarray, np.generic)) for v in values):
        return None
    return [numpy_helper.to_array(v) if isinstance(v, onnx.TensorProto) else np.asarray(v) for v in values]


@pytest.mark.parametrize("module", MODULES)
def test_node_cases(module: str) -> None:
    ran = 0
    for case in cases(module):
        inputs, outputs = (arrays_of(list(part)) for part in case.data_sets[0])
        if inputs is None or outputs is None or case.name in DIFFERENT:
            continue
        graph = graph_of(case.model)
        feeds = {i.name: x for i, x in zip(case.model.graph.input, inputs, strict=True) if i.name in graph.inputs}
        try:
            got = run(graph, feeds, host=not refusals(graph))
        except RefusedError as e:
            expected = [part for part, reason in REFUSED.items() if part in case.name and reason in str(e)]
            assert expected or "(dtype)" in str(e) or "output_dtype" in str(e), f"{case.name}: {e}"
            continue
        half = any(x.dtype.itemsize == 2 and x.dtype.kind not in "iu" for x in outputs)
        for a, want in zip(got, outputs, strict=True):
            assert_close(a, want, rtol=1e-2 if half else max(case.rtol, 1e-3), atol=1e-2 if half else max(case.atol, 1e-5))
        ran += 1
    assert ran
