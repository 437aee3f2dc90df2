"""The tolerance rule and the made-up inputs."""

import ml_dtypes
import numpy as np
import pytest
from onnx_vulkan.dims import symbol
from onnx_vulkan.dtypes import DType
from onnx_vulkan.errors import InvalidInput
from onnx_vulkan.graph import Graph, TensorType
from onnx_vulkan.inputs import bound_dims, make_inputs, unbound_dims
from onnx_vulkan.tolerance import FP16_MODEL, FP32_MODEL, allowance, compare, no_worse_than, tolerance_of, worst_ratio

F = np.float32


def test_rule() -> None:
    a = np.array([1.0, 2.0, 0.0], F)
    assert worst_ratio(a, a, 0, 0) == 0
    assert worst_ratio(a + F(0.5), a, 0.5, 0.0) == 1.0
    assert worst_ratio(np.array([1.0, 2.2, 0.0], F), a, 0.0, 0.1) == pytest.approx(1.0, rel=1e-5)
    assert worst_ratio(a + F(1e-6), a, 0, 0) == np.inf
    assert worst_ratio(np.empty(0, F), np.empty(0, F), 0, 0) == 0
    assert worst_ratio(np.array(1.5, F), np.array(1.0, F), 0.5, 0) == 1
    assert worst_ratio(np.array(2), np.array(1), 1, 1) == np.inf
    assert compare(np.array([[1, 2], [3, 5]]), np.array([[1, 2], [3, 4]]), FP32_MODEL).at == (1, 1)
    assert compare(a + F([0, 9, 0]), a, FP32_MODEL).at == (1,) and compare(a, a, FP32_MODEL).at is None


@pytest.mark.parametrize(
    ("got", "reference"),
    [
        (np.ones(3, F), np.ones(2, F)),
        (np.ones(2), np.ones(2, F)),
        (np.array([np.nan], F), np.array([1], F)),
        (np.array([1], F), np.array([np.nan], F)),
        (np.array([np.inf], F), np.array([-np.inf], F)),
        (np.array([np.inf], F), np.array([np.nan], F)),
        (np.array([np.inf], F), np.array([1e38], F)),
        (np.array([1]), np.array([2])),
        (np.array([True]), np.array([False])),
    ],
)
def test_not_comparable(got, reference) -> None:
    assert worst_ratio(got, reference, 1e9, 1e9) == np.inf


def test_special_values_that_agree() -> None:
    a = np.array([np.nan, np.inf, -np.inf, 1], F)
    assert worst_ratio(a, a.copy(), 0, 0) == 0
    assert compare(np.array([2**63 - 1]), np.array([-(2**63)]), FP32_MODEL).max_abs == float(2**64 - 1)


def test_half_precision_is_allowed_a_share_of_the_maximum() -> None:
    reference = np.array([0, 1000], F)
    assert compare(np.array([0.9, 1000], F), reference, FP16_MODEL).ratio == pytest.approx(0.9, rel=1e-5)
    assert tolerance_of({DType.F32}) == FP32_MODEL and tolerance_of({DType.F32, DType.BF16}) == FP16_MODEL
    assert allowance(FP16_MODEL, atol=1.0).of_max == 0
    half = np.array([1.5], ml_dtypes.bfloat16)
    assert compare(half, half, FP16_MODEL).ratio == 0


def test_no_worse_than() -> None:
    exact, cpu = [np.array([1.0])], [np.array([1.1], F)]
    assert no_worse_than([np.array([0.95], F)], cpu, exact, FP32_MODEL)
    assert not no_worse_than([np.array([1.2], F)], cpu, exact, FP32_MODEL)
    assert not no_worse_than([np.array([np.nan], F)], cpu, exact, FP32_MODEL)
    # A reference that cannot be compared with the truth excuses nothing but the reference itself.
    wrong, count = [np.array([np.inf], F)], [np.array([5])]
    assert no_worse_than(wrong, wrong, exact, FP32_MODEL) and not no_worse_than([np.array([np.nan], F)], wrong, exact, FP32_MODEL)
    assert no_worse_than([np.array([4])], [np.array([6])], count, FP32_MODEL)
    assert not no_worse_than([np.array([9])], [np.array([6])], count, FP32_MODEL)


def _graph(**types: TensorType) -> Graph:
    return Graph("g", list(types), [], [], types, {}, {"": 17})


def _of(dtype: DType, *shape) -> TensorType:
    return TensorType(dtype, tuple(symbol(e) if isinstance(e, str) else e for e in shape))


def test_names_say_what_integers_mean() -> None:
    graph = _graph(
        input_ids=_of(DType.I64, "batch", "seq"), attention_mask=_of(DType.I64, "batch", "total"),
        position_ids=_of(DType.I64, "batch", "seq"), token_type_ids=_of(DType.I32, "batch", "seq"),
        input_lengths=_of(DType.I64, "batch"), sr=_of(DType.I64), use_cache=_of(DType.BOOL, 1),
        image=_of(DType.F32, "batch", 3, 32, 48), past=_of(DType.F16, "batch", 2, 0, 8),
    )  # fmt: skip
    dims = {"batch": 2, "seq": 5, "total": 9}
    made = make_inputs(graph, dims)
    assert unbound_dims(graph) == ["batch", "seq", "total"]
    assert made["input_ids"].shape == (2, 5) and made["input_ids"].min() >= 0 and made["input_ids"].max() < 32
    assert (made["attention_mask"] == 1).all() and (made["token_type_ids"] == 0).all()
    assert made["position_ids"].tolist() == [[0, 1, 2, 3, 4]] * 2
    assert made["input_lengths"].tolist() == [9, 9] and made["sr"] == 16000 and made["use_cache"].tolist() == [True]
    assert made["image"].std() > 0.5 and made["image"].dtype == np.float32
    assert made["past"].shape == (2, 2, 0, 8) and made["past"].dtype == np.float16
    assert all(np.array_equal(a, b) for a, b in zip(made.values(), make_inputs(graph, dims).values(), strict=True))
    assert bound_dims(graph, made) == dims


def test_what_cannot_be_made() -> None:
    graph = _graph(x=_of(DType.F32, "n", "m"), s=TensorType(None, (2,), "tensor(string)"))
    with pytest.raises(InvalidInput, match=r"no number: m\. Give each one, for example: --dim n=1 --dim m=16"):
        make_inputs(graph, {"n": 1})
    with pytest.raises(InvalidInput, match=r"tensor\(string\): give it with --input s="):
        make_inputs(graph, {"n": 1, "m": 1})
    with pytest.raises(InvalidInput, match="wants"):
        make_inputs(graph, {}, {"x": np.zeros(3, F)})


def test_fixed_numbers() -> None:
    """The same numbers on every machine and in every version: bundles and gates depend on it."""
    made = make_inputs(_graph(x=_of(DType.F32, 3), ids=_of(DType.I64, 3)), {})
    assert made["x"].tolist() == pytest.approx([0.82775110, -0.70452696, 1.04330659])
    assert made["ids"].tolist() == [10, 7, 25]
