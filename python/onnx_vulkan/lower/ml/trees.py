"""Tree ensembles of ``ai.onnx.ml``: every row walks all trees at once, one level a step, by gathers from tables of nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from onnx_vulkan.dims import require_at_least
from onnx_vulkan.dtypes import DType
from onnx_vulkan.errors import Unsupported
from onnx_vulkan.graph import Array
from onnx_vulkan.lower.ml.features import DOMAIN, transformed
from onnx_vulkan.lower.registry import LowerContext, lowers
from onnx_vulkan.program.builder import Builder
from onnx_vulkan.program.ir import Value

__all__: list[str] = []

DEPTH_LIMIT = 64
"""The deepest tree that is walked."""

TABLE_LIMIT = 1 << 24
"""The most numbers in the table of a leaf's votes."""

_COMPARISONS = {
    "BRANCH_LEQ": "le", "BRANCH_LT": "lt", "BRANCH_GTE": "ge", "BRANCH_GT": "gt", "BRANCH_EQ": "eq", "BRANCH_NEQ": "ne",
}  # fmt: skip
_FUNCTIONS = list(_COMPARISONS.values())
_AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")
_NOTE = f"trees up to {DEPTH_LIMIT} deep; post_transform NONE, SOFTMAX, LOGISTIC"


@dataclass(frozen=True, slots=True, eq=False)
class Forest:
    """Nodes of all trees in parallel arrays; a leaf leads to itself. ``mode`` numbers comparisons, ``votes`` is ``[nodes, C]``.

    ``voted`` tells which votes a leaf has (the others are 0 in ``votes``).
    """

    feature: Array
    split: Array
    mode: Array
    missing_true: Array
    yes: Array
    no: Array
    roots: Array
    votes: Array
    voted: Array

    def depth(self) -> int:
        """The number of steps after which every walk has come to its leaf. Raises Unsupported for no or too deep a tree."""
        if not all(0 <= t.min() <= t.max() < len(self.yes) for t in (self.yes, self.no, self.roots)):
            raise Unsupported("a node that its trees lead to is not there")
        reached = set(self.roots.tolist())
        steps = 0
        while any(self.yes[n] != n or self.no[n] != n for n in reached):
            steps += 1
            if steps > DEPTH_LIMIT:
                raise Unsupported(f"its trees are more than {DEPTH_LIMIT} deep")
            reached = {int(m) for n in reached for m in (self.yes[n], self.no[n])}
        return steps


def _walk(b: Builder, x: Value, forest: Forest) -> Value:
    """The leaf of every row in every tree, ``[N, T]`` int32."""
    rows, columns = x.shape
    flat = b.reshape(x, (rows * columns,))
    node = b.broadcast(b.const(forest.roots.astype(np.int32)), (rows, len(forest.roots)))
    first = b.cast(b.iota((rows, 1), 0, DType.I64, 0, columns), DType.I64)
    features = b.const(forest.feature.astype(np.int64))
    splits = b.const(forest.split.astype(x.dtype.numpy))
    targets = [b.const(t.astype(np.int32)) for t in (forest.yes, forest.no)]
    inner = (forest.yes != np.arange(len(forest.yes))) | (forest.no != np.arange(len(forest.no)))
    modes = sorted(set(forest.mode[inner].tolist()))
    mode_table, missing = b.const(forest.mode.astype(np.int32)), b.const(forest.missing_true.astype(np.bool_))
    for _ in range(forest.depth()):
        value = b.gather(flat, b.map("add", first, b.gather(features, node, 0)), 0)
        split = b.gather(splits, node, 0)
        yes = b.map(_FUNCTIONS[modes[0]], value, split)
        for m in modes[1:]:
            chosen = b.map("eq", b.gather(mode_table, node, 0), b.scalar(m, DType.I32))
            yes = b.map("select", chosen, b.map(_FUNCTIONS[m], value, split), yes)
        if forest.missing_true.any():
            yes = b.map("or", yes, b.map("and", b.gather(missing, node, 0), b.map("isnan", value)))
        node = b.map("select", yes, *(b.gather(t, node, 0) for t in targets))
    return node


def _scores(b: Builder, leaves: Value, forest: Forest, aggregate: str, dtype: DType) -> Value:
    """The votes of the leaves ``[N, T]``, put together by column: ``[N, C]``. A column without any vote is 0."""
    votes = forest.votes.astype(dtype.numpy)
    if aggregate in ("SUM", "AVERAGE"):
        total = b.reduce("sum", b.gather(b.const(votes), leaves, 0), (1,))
        return b.map("div", total, b.scalar(len(forest.roots), dtype)) if aggregate == "AVERAGE" else total
    fn = aggregate.lower()
    none = np.inf if fn == "min" else -np.inf
    best = b.reduce(fn, b.gather(b.const(np.where(forest.voted, votes, none).astype(dtype.numpy)), leaves, 0), (1,))
    some = b.reduce("max", b.gather(b.const(forest.voted.astype(np.int32)), leaves, 0), (1,))
    return b.map("select", b.map("gt", some, b.scalar(0, DType.I32)), best, b.scalar(0, dtype))


def _check_columns(x: Value, forest: Forest) -> None:
    if x.rank != 2:
        raise Unsupported(f"an input of rank {x.rank}")
    if forest.feature.min(initial=0) < 0:
        raise Unsupported("a node asks for a feature below 0")
    require_at_least(
        x.shape[1], int(forest.feature.max(initial=0)) + 1, "its trees ask for a feature that the input does not have"
    )


# --------------------------------------------------------------------------------------------------- TreeEnsemble-1, -3


def _old_forest(
    *, tree: Sequence[int], node: Sequence[int], feature: Sequence[int], split: Array, modes: Sequence[str],
    missing: Sequence[int] | None, yes: Sequence[int], no: Sequence[int], vote_tree: Sequence[int], vote_node: Sequence[int],
    vote_id: Sequence[int], weights: Array, classes: int,
) -> Forest:  # fmt: skip
    """The forest that the operators before version 5 describe: nodes and votes are named by tree and node ids."""
    place = {key: i for i, key in enumerate(zip(tree, node, strict=True))}
    if len(place) != len(tree) or set(modes) - {*_COMPARISONS, "LEAF"}:
        raise Unsupported("its nodes have the same name twice, or a mode that is not known")
    if len(tree) * classes > TABLE_LIMIT:
        raise Unsupported(f"{len(tree)} nodes with {classes} numbers each are too many")
    own = np.arange(len(tree))
    leaf = np.array([m == "LEAF" for m in modes])
    try:
        targets = [
            np.array([i if at_leaf else place[t, n] for i, (at_leaf, t, n) in enumerate(zip(leaf, tree, ids, strict=True))])
            for ids in (yes, no)
        ]
        at = np.array([place[key] for key in zip(vote_tree, vote_node, strict=True)], np.int64)
    except KeyError as e:
        raise Unsupported(f"its node {e} is not there") from None
    if not all(0 <= i < classes for i in vote_id):
        raise Unsupported(f"a vote is for none of the {classes} columns")
    votes = np.zeros((len(tree), classes), weights.dtype)
    voted = np.zeros((len(tree), classes), np.bool_)
    np.add.at(votes, (at, np.array(vote_id, np.int64)), weights)
    voted[at, np.array(vote_id, np.int64)] = True
    firsts = {t: i for i, t in reversed(list(enumerate(tree)))}  # a tree's root comes first
    return Forest(
        feature=np.where(leaf, 0, np.array(feature)), split=split,
        mode=np.array([0 if m == "LEAF" else list(_COMPARISONS).index(m) for m in modes]),
        missing_true=np.array(missing or [0] * len(tree)) != 0, yes=targets[0], no=targets[1],
        roots=own[sorted(firsts.values())], votes=votes, voted=voted,
    )  # fmt: skip


def _floats(numbers: Sequence[float] | None, tensor: Array | None, what: str) -> Array:
    if tensor is not None:
        return tensor
    if numbers is None:
        raise Unsupported(f"it has no {what}")
    return np.array(numbers, np.float32)


@lowers("TreeEnsembleRegressor", [1, 3], {"x": frozenset({DType.F32, DType.F64})}, domain=DOMAIN, note=_NOTE)
def tree_ensemble_regressor(
    b: LowerContext,
    x: Value,
    *,
    aggregate_function: str = "SUM",
    base_values: list[float] | None = None,
    base_values_as_tensor: Array | None = None,
    n_targets: int = 1,
    nodes_falsenodeids: list[int],
    nodes_featureids: list[int],
    nodes_hitrates: list[float] | None = None,
    nodes_hitrates_as_tensor: Array | None = None,
    nodes_missing_value_tracks_true: list[int] | None = None,
    nodes_modes: list[str],
    nodes_nodeids: list[int],
    nodes_treeids: list[int],
    nodes_truenodeids: list[int],
    nodes_values: list[float] | None = None,
    nodes_values_as_tensor: Array | None = None,
    post_transform: str = "NONE",
    target_ids: list[int],
    target_nodeids: list[int],
    target_treeids: list[int],
    target_weights: list[float] | None = None,
    target_weights_as_tensor: Array | None = None,
) -> Value:
    """TreeEnsembleRegressor: ``[N, F]`` to ``[N, n_targets]`` float32, summed in the input's type."""
    if aggregate_function not in _AGGREGATES:
        raise Unsupported(f"aggregate_function {aggregate_function!r} is not known")
    forest = _old_forest(
        tree=nodes_treeids, node=nodes_nodeids, feature=nodes_featureids,
        split=_floats(nodes_values, nodes_values_as_tensor, "splits"), modes=nodes_modes,
        missing=nodes_missing_value_tracks_true, yes=nodes_truenodeids, no=nodes_falsenodeids,
        vote_tree=target_treeids, vote_node=target_nodeids, vote_id=target_ids,
        weights=_floats(target_weights, target_weights_as_tensor, "weights"), classes=n_targets,
    )  # fmt: skip
    _check_columns(x, forest)
    y = _scores(b, _walk(b, x, forest), forest, aggregate_function, x.dtype)
    base = base_values_as_tensor if base_values_as_tensor is not None else np.array(base_values or [], np.float32)
    if base.size:
        if base.size != n_targets:
            raise Unsupported(f"{base.size} base values for {n_targets} targets")
        y = b.map("add", y, b.const(base.astype(x.dtype.numpy).reshape(-1)))
    return transformed(b, b.cast(y, DType.F32), post_transform)


@lowers(
    "TreeEnsembleClassifier", [1, 3], {"x": frozenset({DType.F32, DType.F64})}, domain=DOMAIN, note=_NOTE + "; integer labels"
)
def tree_ensemble_classifier(
    b: LowerContext,
    x: Value,
    *,
    base_values: list[float] | None = None,
    base_values_as_tensor: Array | None = None,
    class_ids: list[int],
    class_nodeids: list[int],
    class_treeids: list[int],
    class_weights: list[float] | None = None,
    class_weights_as_tensor: Array | None = None,
    classlabels_int64s: list[int] | None = None,
    classlabels_strings: list[str] | None = None,
    nodes_falsenodeids: list[int],
    nodes_featureids: list[int],
    nodes_hitrates: list[float] | None = None,
    nodes_hitrates_as_tensor: Array | None = None,
    nodes_missing_value_tracks_true: list[int] | None = None,
    nodes_modes: list[str],
    nodes_nodeids: list[int],
    nodes_treeids: list[int],
    nodes_truenodeids: list[int],
    nodes_values: list[float] | None = None,
    nodes_values_as_tensor: Array | None = None,
    post_transform: str = "NONE",
) -> tuple[Value, Value]:
    """TreeEnsembleClassifier: the label of every row ``[N]`` int64 and its scores ``[N, C]`` float32.

    Of two classes only the first has votes, for the second label: it wins above 0.5 where no vote is negative, else above 0, and
    the scores are ``1 - s`` and s, or -s and s, as ONNX Runtime has it. Of more the largest score wins, of equals the first.
    """
    classes = len(classlabels_int64s or ())
    if classlabels_int64s is None or classes < 2:
        raise Unsupported("its labels are not two integers or more")
    weights = _floats(class_weights, class_weights_as_tensor, "weights")
    base = base_values_as_tensor if base_values_as_tensor is not None else np.array(base_values or [], np.float32)
    binary = classes == 2
    if not ((set(class_ids) == {0} and base.size <= 1) if binary else base.size in (0, classes)):
        raise Unsupported("of two classes another than the first has votes, or its base values are not one for each class")
    forest = _old_forest(
        tree=nodes_treeids, node=nodes_nodeids, feature=nodes_featureids,
        split=_floats(nodes_values, nodes_values_as_tensor, "splits"), modes=nodes_modes,
        missing=nodes_missing_value_tracks_true, yes=nodes_truenodeids, no=nodes_falsenodeids,
        vote_tree=class_treeids, vote_node=class_nodeids, vote_id=class_ids,
        weights=weights, classes=1 if binary else classes,
    )  # fmt: skip
    _check_columns(x, forest)
    leaves = _walk(b, x, forest)
    scores = _scores(b, leaves, forest, "SUM", x.dtype)
    if base.size:
        scores = b.map("add", scores, b.const(base.astype(x.dtype.numpy).reshape(-1)))
    labels = b.const(np.array(classlabels_int64s, np.int64))
    single = b.cast(scores, DType.F32)
    if binary:
        positive = bool((weights.astype(np.float64) >= 0).all())
        won = b.map("gt", scores, b.scalar(0.5 if positive else 0, x.dtype))
        label = b.reshape(b.gather(labels, b.cast(won, DType.I64), 0), (x.shape[0],))
        other = b.map("neg", single)
        if positive and post_transform != "LOGISTIC":
            other = b.map("sub", b.scalar(1, DType.F32), single)
        pair = b.concat([other, single], 1)
        return label, transformed(b, pair, "NONE" if post_transform == "SOFTMAX" else post_transform)
    if not base.size:  # a class without any vote does not win
        some = b.reduce("max", b.gather(b.const(forest.voted.astype(np.int32)), leaves, 0), (1,))
        scores = b.map("select", b.map("gt", some, b.scalar(0, DType.I32)), scores, b.scalar(-np.inf, x.dtype))
    return b.gather(labels, b.reduce("argmax", scores, (1,)), 0), transformed(b, single, post_transform)


# ------------------------------------------------------------------------------------------------------- TreeEnsemble-5


def _members(modes: Array, values: Array | None) -> list[list[float]]:
    """The numbers of each membership node, in the order of the nodes; NaN parts them."""
    if not (modes == len(_FUNCTIONS)).any():
        return []
    sets: list[list[float]] = [[]]
    for v in () if values is None else values.reshape(-1).tolist():
        if v != v:
            sets.append([])
        else:
            sets[-1].append(v)
    return sets


@lowers("TreeEnsemble", [5], {"x": frozenset({DType.F32, DType.F64, DType.F16})}, domain=DOMAIN, note=_NOTE)
def tree_ensemble(
    b: LowerContext,
    x: Value,
    *,
    aggregate_function: int = 1,
    leaf_targetids: list[int],
    leaf_weights: Array,
    membership_values: Array | None = None,
    n_targets: int = 1,
    nodes_falseleafs: list[int],
    nodes_falsenodeids: list[int],
    nodes_featureids: list[int],
    nodes_hitrates: Array | None = None,
    nodes_missing_value_tracks_true: list[int] | None = None,
    nodes_modes: Array,
    nodes_splits: Array,
    nodes_trueleafs: list[int],
    nodes_truenodeids: list[int],
    post_transform: int = 0,
    tree_roots: list[int],
) -> Value:
    """TreeEnsemble: ``[N, F]`` to ``[N, n_targets]``. A membership node is a chain of comparisons with its numbers."""
    if not 0 <= aggregate_function < len(_AGGREGATES) or not 0 <= post_transform <= 2:
        raise Unsupported(f"aggregate_function {aggregate_function} with post_transform {post_transform} is not supported")
    count, leaves = len(nodes_featureids), len(leaf_targetids)
    modes = np.asarray(nodes_modes).reshape(-1).astype(np.int64)
    sets = _members(modes, membership_values)
    member = len(_FUNCTIONS)
    if modes.max(initial=0) > member or len(sets) < int((modes == member).sum()):
        raise Unsupported("a node has a mode that is not known, or a membership without numbers")
    missing = list(nodes_missing_value_tracks_true or [0] * count)
    yes = [count + i if at_leaf else i for at_leaf, i in zip(nodes_trueleafs, nodes_truenodeids, strict=True)]
    no = [count + i if at_leaf else i for at_leaf, i in zip(nodes_falseleafs, nodes_falsenodeids, strict=True)]
    # interior nodes, then leaves, then what a membership needs besides its own node
    feature, split = [*nodes_featureids, *[0] * leaves], [*nodes_splits.reshape(-1).tolist(), *[0.0] * leaves]
    kind, missing = [*modes.tolist(), *[0] * leaves], [*missing, *[0] * leaves]
    yes, no = [*yes, *range(count, count + leaves)], [*no, *range(count, count + leaves)]
    equal = _FUNCTIONS.index("eq")
    for number, i in enumerate(np.flatnonzero(modes == member).tolist()):
        first, *rest = sets[number] or [np.nan]
        split[i], kind[i], end, at = first, equal, no[i], i
        for v in rest:
            no[at] = at = len(kind)
            feature, split, kind = [*feature, feature[i]], [*split, v], [*kind, equal]
            missing, yes, no = [*missing, missing[i]], [*yes, yes[i]], [*no, end]
    if not all(0 <= i < n_targets for i in leaf_targetids):
        raise Unsupported(f"a leaf is for none of the {n_targets} targets")
    votes = np.zeros((len(kind), n_targets), np.asarray(leaf_weights).dtype)
    votes[np.arange(count, count + leaves), leaf_targetids] = np.asarray(leaf_weights).reshape(-1)
    voted = np.zeros(votes.shape, np.bool_)
    voted[np.arange(count, count + leaves), leaf_targetids] = True
    if votes.size > TABLE_LIMIT:
        raise Unsupported(f"{len(kind)} nodes with {n_targets} numbers each are too many")
    forest = Forest(
        feature=np.array(feature), split=np.array(split), mode=np.array(kind), missing_true=np.array(missing) != 0,
        yes=np.array(yes), no=np.array(no), roots=np.array(tree_roots), votes=votes, voted=voted,
    )  # fmt: skip
    _check_columns(x, forest)
    wide = DType.F32 if x.dtype is DType.F16 else x.dtype
    y = _scores(b, _walk(b, b.cast(x, wide), forest), forest, _AGGREGATES[aggregate_function], wide)
    return b.cast(transformed(b, y, ("NONE", "SOFTMAX", "LOGISTIC")[post_transform]), x.dtype)
