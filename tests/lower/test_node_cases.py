"""ONNX's own node tests through front end, lowering and interpreter, for the operators of the core rooms."""

from __future__ import annotations

import importlib
import sys
import warnings

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnx.backend.test.case import node as node_cases
from onnx_vulkan.errors import RefusedError
from run_case import assert_close, graph_of, refusals, run

MODULES = """
    abs acos acosh add and_ argmax argmin asin asinh atan atanh bitshift bitwiseand bitwisenot bitwiseor bitwisexor cast
    castlike ceil celu clip compress concat constant constantofshape cos cosh cumprod cumsum depthtospace div dropout elu
    equal erf exp expand eyelike flatten floor gather gatherelements gathernd gelu greater greater_or_equal hardsigmoid
    hardswish identity if_ isinf isnan leakyrelu less less_or_equal log loop max mean min mish mod mul neg nonzero not_ onehot
    or_ pad pow prelu rangeop reciprocal reducel1 reducel2 reduce_log_sum reduce_log_sum_exp reducemax reducemean reducemin
    reduceprod reducesum reducesumsquare relu reshape reversesequence round scan scatter scatterelements scatternd selu shape
    shrink sigmoid sign sin sinh size slice softplus softsign spacetodepth split sqrt squeeze sub sum swish tan tanh
    thresholdedrelu tile transpose trilu unsqueeze where xor
""".split()

# What is refused on purpose, by a part of the case's name; element types that the engine does not have are refused besides.
REFUSED = {
    "training_default": "training mode",
    "training_dropout": "training mode",
    "nonzero": "depends on data",
    "reduce_log_sum_exp": "float64",
    "seq": "seq(",
    "_opt": "optional(",
    "range_float16_type_positive_delta_expanded": "trips",
    "range_bfloat16_type_positive_delta_expanded": "trips",
}


def cases(module: str) -> list[onnx.backend.test.case.test_case.TestCase]:
    """The test cases that a module of ONNX's suite defines."""
    node_cases._NodeTestCases.clear()
    node_cases._existing_names.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            sys.modules.pop(name := f"onnx.backend.test.case.node.{module}", None)  # the cases are made by the import
            importlib.import_module(name)
        except ModuleNotFoundError:
            pytest.skip(f"this onnx has no node tests of {module}")
        return list(node_cases._NodeTestCases)


@pytest.mark.parametrize("module", MODULES)
def test_node_cases(module: str) -> None:
    ran = 0
    for case in cases(module):
        graph = graph_of(case.model)
        claimed = not refusals(graph)
        inputs, outputs = case.data_sets[0]
        if not all(isinstance(x, (onnx.TensorProto, np.ndarray, np.generic)) for x in (*inputs, *outputs)):
            continue
        arrays = [
            [numpy_helper.to_array(x) if isinstance(x, onnx.TensorProto) else np.asarray(x) for x in xs]
            for xs in (inputs, outputs)
        ]
        names = [i.name for i in case.model.graph.input]
        feeds = {n: x for n, x in zip(names, arrays[0], strict=True) if n in graph.inputs}
        try:
            got = run(graph, feeds, host=claimed)
        except RefusedError as e:
            expected = [part for part in REFUSED if part in case.name and REFUSED[part] in str(e)]
            assert expected or "tensor(" in str(e) or "element type" in str(e), f"{case.name}: {e}"
            continue
        half = any(x.dtype.itemsize == 2 and x.dtype.kind not in "iu" for x in arrays[1])
        for a, want in zip(got, arrays[1], strict=True):
            assert_close(a, want, rtol=1e-2 if half else max(case.rtol, 1e-3), atol=max(case.atol, 1e-6))
        ran += 1
    assert ran or module == "nonzero"
