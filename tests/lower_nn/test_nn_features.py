"""The operators of ai.onnx.ml on numbers against ONNX Runtime's CPU EP and, where it has none, ONNX's reference evaluator."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_vulkan
import pytest
from one_node import RNG, Array, graph_of, normal, on_cpu, refusals
from onnx import helper, numpy_helper
from onnx_vulkan.errors import OnnxVulkanError
from run_case import assert_close, run

NAN = float("nan")


def model_of(op: str, version: int, inputs: dict[str, Array], attributes: dict[str, Any], *outputs: Any) -> onnx.ModelProto:
    """A model of one node of ``ai.onnx.ml`` with symbolic rows, and outputs of these types."""
    types = [
        helper.make_tensor_value_info(
            k, helper.np_dtype_to_tensor_dtype(v.dtype), ["rows", *v.shape[1:]] if k == "x" else v.shape
        )
        for k, v in inputs.items()
    ]
    names = [f"y{i}" for i in range(len(outputs))]
    dtypes = [helper.np_dtype_to_tensor_dtype(np.dtype(t)) for t in outputs]
    results = [helper.make_tensor_value_info(y, t, None) for y, t in zip(names, dtypes, strict=True)]
    node = helper.make_node(op, list(inputs), names, "node", domain="ai.onnx.ml", **attributes)
    imports = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", version)]
    return helper.make_model(helper.make_graph([node], "one", types, results), opset_imports=imports, ir_version=9)


def check(
    op: str, version: int, inputs: dict[str, Array], attributes: dict[str, Any], *outputs: Any, device: bool = True
) -> None:
    """The interpreter, with *device* also the engine, agrees with ONNX Runtime on outputs of these types (default: a float32)."""
    model = model_of(op, version, inputs, attributes, *(outputs or [np.float32]))
    graph = graph_of(model)
    assert not refusals(graph), [str(r) for r in refusals(graph)]
    wanted, found = on_cpu(model, inputs), [run(graph, inputs)]
    if device:
        with onnx_vulkan.Session.load(model.SerializeToString()) as session:
            found.append(list(session.run(inputs).values()))
    for results in found:
        for y, want in zip(results, wanted, strict=True):
            assert_close(y, want, 1e-5, 1e-6)


TABLES = [
    normal(5, 4),
    normal(5, 4).astype(np.float64),
    RNG.integers(-3, 4, (5, 4)).astype(np.int32),
    RNG.integers(-3, 4, (5, 4)),
]


@pytest.mark.parametrize("x", TABLES, ids=lambda x: str(x.dtype))
def test_tables(x: Array) -> None:
    check("ArrayFeatureExtractor", 1, {"x": x, "i": np.array([3, 0, 0], np.int64)}, {}, x.dtype)
    if x.dtype == np.float32:
        check("Binarizer", 1, {"x": x}, {"threshold": 0.25}, x.dtype)
    check("Scaler", 1, {"x": x}, {"offset": [1.0, -2.0, 0.5, 3.0], "scale": [2.0, 0.5, -1.0, 4.0]})
    check("Scaler", 1, {"x": x}, {"offset": [1.5], "scale": [2.0]}, device=False)
    for norm in ("MAX", "L1", "L2"):
        check("Normalizer", 1, {"x": np.concatenate([x, 0 * x[:1]])}, {"norm": norm})
    if x.dtype == np.float32:
        check("LinearRegressor", 1, {"x": x}, {"coefficients": normal(12).tolist(), "intercepts": [1.0, 2.0, 3.0], "targets": 3})


@pytest.mark.parametrize("post_transform", ["NONE", "SOFTMAX", "LOGISTIC"])
@pytest.mark.parametrize("classes", [2, 3])
def test_linear_classifier(classes: int, post_transform: str) -> None:
    weights = {"coefficients": normal(4 * classes).tolist(), "intercepts": normal(classes).tolist()}
    attributes = {**weights, "classlabels_ints": [7, -3, 20][:classes], "post_transform": post_transform}
    for x in TABLES[:1]:
        check("LinearClassifier", 1, {"x": x}, attributes, np.int64, np.float32, device=classes == 3)


def test_features_side_by_side() -> None:
    check("FeatureVectorizer", 1, {"x": TABLES[0], "z": normal(5, 2)}, {"inputdimensions": [4, 2]})


@pytest.mark.parametrize("x", [TABLES[i] for i in (0, 1, 3)], ids=lambda x: str(x.dtype))
def test_one_hot_encoder(x: Array) -> None:
    check("OneHotEncoder", 1, {"x": x}, {"cats_int64s": [2, 0, -1]})


def test_imputer() -> None:
    x = np.array([[1, NAN, 3], [NAN, 0, 0]], np.float32)
    check("Imputer", 1, {"x": x}, {"imputed_value_floats": [7.0, 8.0, 9.0], "replaced_value_float": NAN})
    check("Imputer", 1, {"x": x}, {"imputed_value_floats": [7.0], "replaced_value_float": 0.0})
    integers = np.array([[1, -1, 3], [-1, 0, 0]], np.int64)
    check("Imputer", 1, {"x": integers}, {"imputed_value_int64s": [7, 8, 9], "replaced_value_int64": -1}, np.int64)


def test_an_index_outside() -> None:
    feeds: dict[str, Array] = {"x": normal(2, 3), "i": np.array([0, -1], np.int64)}
    with (
        onnx_vulkan.Session.load(model_of("ArrayFeatureExtractor", 1, feeds, {}, np.float32).SerializeToString()) as session,
        pytest.raises(OnnxVulkanError, match="outside"),
    ):
        session.run(feeds)


INTS, FLOATS = np.array([[3, 5], [-1, 8]], np.int64), np.array([[3, 5], [-1, 8]], np.float32)


@pytest.mark.parametrize("version", [2, 4])
def test_label_encoder(version: int) -> None:
    keys, values = [8, 3, -1], [10, -20, 30]
    check("LabelEncoder", version, {"x": INTS}, {"keys_int64s": keys, "values_int64s": values}, np.int64)
    check("LabelEncoder", version, {"x": INTS}, {"keys_int64s": keys, "values_floats": [0.5, 2.0, 7.0], "default_float": 9.0})
    check(
        "LabelEncoder", version, {"x": FLOATS}, {"keys_floats": [8.0, 3.0], "values_int64s": [1, 2], "default_int64": 5}, np.int64
    )


def test_label_encoder_of_tensors() -> None:
    def tensor(values: list[int]) -> onnx.TensorProto:
        return numpy_helper.from_array(np.array(values, np.float64))

    attributes = {"keys_tensor": tensor([8, 3]), "values_tensor": tensor([1, 2]), "default_tensor": tensor([7])}
    check("LabelEncoder", 4, {"x": INTS.astype(np.float64)}, attributes, np.float64)


def test_strings_are_refused() -> None:
    attributes = {"keys_int64s": [1], "values_strings": ["one"]}
    model = model_of("LabelEncoder", 2, {"x": INTS}, attributes, np.int64)
    assert "no numbers" in str(refusals(graph_of(model))[0])


def grown(rng: np.random.Generator, depth: int, trees: int, targets: int, modes: list[str]) -> dict[str, Any]:
    """The attributes of a random forest for TreeEnsembleRegressor, on 4 features."""
    rows: list[tuple[int, int, int, float, str, int, int, int]] = []
    votes: list[tuple[int, int, int, float]] = []

    def grow(tree: int, level: int) -> int:
        number = sum(1 for r in rows if r[0] == tree)
        at = len(rows)
        rows.append((tree, number, 0, 0.0, "LEAF", 0, 0, 0))
        if level == 0 or (level < depth and rng.random() < 0.25):
            chosen = rng.choice(targets, rng.integers(1, targets + 1), replace=False)
            votes.extend((tree, number, int(t), float(np.float32(rng.normal()))) for t in chosen)
        else:
            split, mode = float(np.float32(rng.normal())), str(rng.choice(modes))
            feature, missing = int(rng.integers(4)), int(rng.integers(2))
            yes, no = grow(tree, level - 1), grow(tree, level - 1)
            rows[at] = (tree, number, feature, split, mode, yes, no, missing)
        return number

    for t in range(trees):
        grow(t, depth)
    names = ("treeids", "nodeids", "featureids", "values", "modes", "truenodeids", "falsenodeids", "missing_value_tracks_true")
    attributes: dict[str, Any] = {f"nodes_{n}": list(c) for n, c in zip(names, zip(*rows, strict=True), strict=True)}
    kinds = ("target_treeids", "target_nodeids", "target_ids", "target_weights")
    return {**attributes, **dict(zip(kinds, map(list, zip(*votes, strict=True)), strict=True)), "n_targets": targets}


FOREST_ROWS = np.concatenate([normal(40, 4), np.where(RNG.random((40, 4)) < 0.3, np.float32(NAN), normal(40, 4))])


@pytest.mark.parametrize("aggregate", ["SUM", "AVERAGE", "MIN", "MAX"])
@pytest.mark.parametrize("targets", [1, 3])
@pytest.mark.parametrize(
    "modes", [["BRANCH_LEQ"], ["BRANCH_LT", "BRANCH_GT", "BRANCH_GTE", "BRANCH_NEQ", "BRANCH_EQ", "BRANCH_LEQ"]]
)
def test_tree_regressor(modes: list[str], targets: int, aggregate: str) -> None:
    forest = grown(np.random.default_rng(3), 4, 5, targets, modes)
    check("TreeEnsembleRegressor", 1, {"x": FOREST_ROWS}, {**forest, "aggregate_function": aggregate}, device=False)
    forest |= {"base_values": [0.5] * targets, "aggregate_function": aggregate}
    check("TreeEnsembleRegressor", 3, {"x": FOREST_ROWS}, forest, device=targets == 3)


def check_classifier(forest: dict[str, Any]) -> None:
    """Labels and scores of both versions are those of ONNX Runtime."""
    renamed = {k.replace("target_", "class_"): v for k, v in forest.items() if k != "n_targets"}
    for version in (1, 3):
        check("TreeEnsembleClassifier", version, {"x": FOREST_ROWS}, renamed, np.int64, np.float32, device=version == 3)


@pytest.mark.parametrize("post_transform", ["NONE", "SOFTMAX", "LOGISTIC"])
@pytest.mark.parametrize("base", [False, True])
def test_tree_classifier(base: bool, post_transform: str) -> None:
    forest = {**grown(np.random.default_rng(5), 4, 5, 3, ["BRANCH_LEQ"]), "classlabels_int64s": [5, -7, 11]}
    check_classifier({**forest, "post_transform": post_transform, **({"base_values": [0.1, 0.2, -0.3]} if base else {})})


@pytest.mark.parametrize("post_transform", ["NONE", "SOFTMAX", "LOGISTIC"])
@pytest.mark.parametrize("positive", [False, True])
def test_tree_classifier_of_two_classes(positive: bool, post_transform: str) -> None:
    forest = {**grown(np.random.default_rng(6), 4, 5, 1, ["BRANCH_LEQ"]), "classlabels_int64s": [5, -7]}
    if positive:
        forest["target_weights"] = [abs(w) / 5 for w in forest["target_weights"]]
    check_classifier({**forest, "post_transform": post_transform})


def test_trees_that_lead_nowhere_are_refused() -> None:
    forest = grown(np.random.default_rng(3), 2, 1, 1, ["BRANCH_LEQ"])
    forest["nodes_truenodeids"][0] = 99
    model = model_of("TreeEnsembleRegressor", 1, {"x": FOREST_ROWS}, forest, np.float32)
    assert "is not there" in str(refusals(graph_of(model))[0])
    forest["nodes_truenodeids"][0] = 0
    model = model_of("TreeEnsembleRegressor", 1, {"x": FOREST_ROWS}, forest, np.float32)
    assert "deep" in str(refusals(graph_of(model))[0])
