"""Every element type that a lowering lists, on the device against the interpreter, in the newest form of each operator.

All of them with ``ONNX_VULKAN_THOROUGH=1`` (two minutes), else one in ``STRIDE``.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx_vulkan
import pytest
from onnx import helper
from onnx_vulkan.dtypes import NUMERIC, DType
from onnx_vulkan.lower import LOWERINGS
from run_case import Array, graph_of, refusals, run
from test_every_version import FORMS, THOROUGH, Form, build

STRIDE = 41
# Operators whose constants are of a type of their own, whatever the data's is.
OWN_CONSTANTS = {"Resize", "Upsample", "QuantizeLinear", "OneHot", "STFT"}
TOLERANCES = {2: 2e-2, 4: 1e-4, 8: 1e-9}


def of_type(array: Array, dtype: DType) -> Array:
    """A float32 operand in another type; small numbers from 0 on for integers."""
    if array.dtype != np.float32:
        return array
    return (np.abs(array) * 3).round().clip(0, 100).astype(dtype.numpy) if dtype.is_int else array.astype(dtype.numpy)


def cases() -> list[tuple[int, DType]]:
    """Forms, and the types that their first input may have besides float32."""
    found = []
    for i, form in enumerate(FORMS):
        if not form.versions() or not form.data or form.data[0].dtype != np.float32:
            continue
        entry = next(e for e in LOWERINGS["", form.op] if form.versions()[-1] in e.versions)
        allowed = entry.dtypes.get(entry.parameters[0].name, ())
        found += [(i, t) for t in DType if t in allowed and t in NUMERIC and t is not DType.F32]
    return found


CASES = [case for n, case in enumerate(cases()) if THOROUGH or n % STRIDE == 0]


def retyped(form: Form, dtype: DType) -> Form:
    """The form with its float32 operands in another type."""
    constants = form.constants
    if form.op not in OWN_CONSTANTS:
        constants = [None if c is None else of_type(c, dtype) for c in constants]
    return dataclasses.replace(form, data=[of_type(x, dtype) for x in form.data], constants=constants, like=None)


@pytest.mark.parametrize("index,dtype", CASES, ids=[f"{FORMS[i].op}-{t.onnx_name}" for i, t in CASES])
def test_element_type(index: int, dtype: DType) -> None:
    form = retyped(FORMS[index], dtype)
    model = build(form, form.versions()[-1])
    graph = graph_of(model)
    feeds = {f"x{i}": x for i, x in enumerate(form.data)}
    refused = refusals(graph)
    if refused:  # not of these types together: then with a reason
        assert refused[0].check in ("dtype", "kernel") and "internal error" not in str(refused[0])
        return
    with np.errstate(all="ignore"):
        wanted = run(graph, feeds)
    for output, want in zip(model.graph.output, wanted, strict=True):
        output.type.tensor_type.elem_type = helper.np_dtype_to_tensor_dtype(want.dtype)  # ONNX infers none for some
    with onnx_vulkan.Session.load(model.SerializeToString()) as session:
        results = list(session.run(feeds).values())
    for got, want in zip(results, wanted, strict=True):
        assert got.dtype == want.dtype and got.shape == want.shape
        if want.dtype.kind in "iub":
            np.testing.assert_array_equal(got, want)
        else:
            tolerance = TOLERANCES[want.dtype.itemsize]
            np.testing.assert_allclose(got.astype(np.float64), want.astype(np.float64), tolerance, tolerance)
