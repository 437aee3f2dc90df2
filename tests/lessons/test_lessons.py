"""Pitfalls that inference engines on GPUs have met, each a test that fails where the bug is planted.

==  ===========================================================  ==========================================================
no  pitfall                                                      test
==  ===========================================================  ==========================================================
1   an element type that is computed in another one              test_claimed_types_agree, tests/claims
2   an attribute in the shader and not in its key                test_two_nodes_with_different_attributes
3   what is claimed fails when it runs                           test_what_is_claimed_runs, test_odd_shapes.py, tests/claims
4   decoding hides what prefill does wrong                       lower_nn/test_nn_group_query.py::test_window, test_caches
5   windows that are off by one                                  lower_nn/test_nn_group_query.py::test_window
6   inputs cached by their address                               models/test_robustness.py, ep/test_engine.py: changed in place
7   races between workgroups                                     test_ones, plan/verify.py under every test
8   a missing barrier; a validation layer that is not there      device/test_process.py: validation, plan/test_guard.py: hazards
9   replay into memory that was given away                       test_memory_taken_between_steps_changes_nothing
10  shapes and meanings that depend on the opset                 lower/test_versions.py, test_rank_of_a_full_reduction
11  variance in one pass                                         test_variance_at_a_large_mean
12  integers by way of a float                                   test_large_integers
13  the GPU's own remainders and rounding                        test_folding_beyond_the_edge, test_numerics.py: mod, fmod
14  errors that a second provider hides                          test_a_failed_run_is_not_repeated_on_the_cpu, ep/test_errors.py
15  a provider that is not there                                 ep/test_registration.py, ep/test_errors.py: nothing claimed
16  holes among inputs; an output that is read inside            test_holes_and_inner_outputs, ep/test_reader.py: holes
17  parameters that nobody wrote                                 test_every_parameter_byte_is_written, device/test_header.py
18  costs of every run                                           test_a_run_is_one_submit, device/test_replay.py: steady state
19  loading in quadratic time or twice the memory                test_loading_is_linear, test_weights_are_held_once
20  leaks by runs, sessions and shapes                           models/test_robustness.py: memory; device/test_replay.py
21  work that is not worth the crossing                          test_claims.py::test_islands_are_given_back
22  timestamps                                                   device/test_replay.py::test_profile, ep/test_runs.py: profile
23  comparisons of nothing with nothing                          test_skips_have_reasons, conformance/doors.py counts claims
24  several devices, threads, processes                          device/test_process.py: choice, fork; ep/test_registration.py
25  an operator known by its name alone                          test_operators_of_other_domains
==  ===========================================================  ==========================================================
"""

from __future__ import annotations

import ast
import itertools
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_vulkan
import onnxruntime
import onnxruntime_ep_vulkan as ep
import pytest
from onnx import TensorProto as T
from onnx import helper, numpy_helper
from onnx_vulkan.device import Device
from onnx_vulkan.engine.options import Options
from onnx_vulkan.errors import OnnxVulkanError, RefusedError
from onnx_vulkan.plan.build import PlanDraft

Array = np.ndarray[Any, Any]
Feeds = Mapping[str, Array]
TESTS = Path(__file__).parents[1]
RNG = np.random.default_rng(25)


def f32(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


def model(
    nodes: Sequence[onnx.NodeProto], feeds: Feeds, outputs: Sequence[str] = ("y",), *,
    constants: Feeds | None = None, opset: int = 21, domains: Sequence[str] = (), free: bool = False, kind: int | None = None,
) -> bytes:  # fmt: skip
    """A model of *nodes*; its inputs are as *feeds* are, with free dims where *free*. *kind* is the outputs' type where ONNX does
    not infer it."""
    ends = [
        helper.make_tensor_value_info(
            n, helper.np_dtype_to_tensor_dtype(a.dtype), [f"{n}{i}" for i in range(a.ndim)] if free else a.shape
        )
        for n, a in feeds.items()
    ]
    made = [numpy_helper.from_array(a, n) for n, a in (constants or {}).items()]
    empty = helper.make_empty_tensor_value_info
    results = [empty(o) if kind is None else helper.make_tensor_value_info(o, kind, None) for o in outputs]
    graph = helper.make_graph(nodes, "g", ends, results, made)
    imports = [helper.make_opsetid("", opset), *(helper.make_opsetid(d, 1) for d in domains)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10).SerializeToString()


def cpu(data: bytes, feeds: Feeds) -> list[Array]:
    """What ONNX Runtime's CPU EP gives, its optimizations off."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    return [np.asarray(a) for a in session.run(None, dict(feeds))]


def standalone(data: bytes, feeds: Feeds) -> list[Array]:
    with onnx_vulkan.Session.load(data) as session:
        return list(session.run(feeds).values())


def through_ort(data: bytes, feeds: Feeds) -> list[Array]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    session = onnxruntime.InferenceSession(data, options, providers=["VulkanEP"], enable_fallback=0)
    results = [np.asarray(a) for a in session.run(None, dict(feeds))]
    assert ep.session_stats(session).dispatches > 0
    return results


both_doors = pytest.mark.parametrize("door", [standalone, through_ort])
Door = Callable[[bytes, Feeds], list[Array]]


def assert_agree(got: Sequence[Array], want: Sequence[Array], rtol: float = 1e-4, atol: float = 1e-5) -> None:
    for a, b in zip(got, want, strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        np.testing.assert_allclose(a.astype(np.float64), b.astype(np.float64), rtol=rtol, atol=atol)


node = helper.make_node

# ---------------------------------------------------------------------------------------------------------------- 1: types

THOROUGH = os.environ.get("ONNX_VULKAN_THOROUGH") == "1"
FLOATS = [np.float32, np.float16, np.float64, ml_dtypes.bfloat16]
TYPES = (
    [*FLOATS, *(f"{s}int{n}" for s in ("", "u") for n in (8, 16, 32, 64)), bool] if THOROUGH else ["uint8", "int64", "float64"]
)
OPERATORS: dict[str, tuple[Sequence[tuple[int, ...]], dict[str, Any]]] = {
    "MaxPool": ([(1, 2, 5, 5)], {"kernel_shape": [2, 2]}),
    "AveragePool": ([(1, 2, 5, 5)], {"kernel_shape": [2, 2]}),
    "GlobalMaxPool": ([(1, 2, 5, 5)], {}),
    "Conv": ([(1, 2, 5, 5), (3, 2, 2, 2)], {}),
    "MatMul": ([(3, 4), (4, 5)], {}),
    "Gemm": ([(3, 4), (4, 5)], {}),
    "Add": ([(3, 4), (4,)], {}),
    "Mul": ([(3, 4), (4,)], {}),
    "Div": ([(3, 4), (4,)], {}),
    "Mod": ([(3, 4), (4,)], {}),
    "Pow": ([(3, 4), (4,)], {}),
    "Max": ([(3, 4), (4,)], {}),
    "Relu": ([(3, 4)], {}),
    "Abs": ([(3, 4)], {}),
    "Sign": ([(3, 4)], {}),
    "Softmax": ([(3, 4)], {}),
    "ReduceSum": ([(3, 4)], {}),
    "ReduceMean": ([(3, 4)], {}),
    "ReduceMax": ([(3, 4)], {}),
    "CumSum": ([(3, 4)], {}),
    "ArgMax": ([(3, 4)], {}),
    "Transpose": ([(3, 4)], {}),
    "Concat": ([(3, 4), (3, 4)], {"axis": 1}),
    "Sqrt": ([(3, 4)], {}),
}


def _values(dtype: Any, shape: tuple[int, ...]) -> Array:
    kind = np.dtype(dtype)
    if kind == np.bool_:
        return RNG.integers(0, 2, shape).astype(bool)
    if kind.kind in "iu":
        info = np.iinfo(kind)
        # ONNX Runtime wraps some sums that leave their type and saturates others, and its means go through float64
        return RNG.integers(max(info.min, -(2**48)) // 16, min(info.max, 2**48) // 16, shape, dtype=np.int64).astype(kind)
    return (RNG.standard_normal(shape) * 3).astype(kind)


def _reference(data: bytes, feeds: Feeds) -> list[Array] | None:
    """By the CPU EP; None where that cannot run the type."""
    try:
        return cpu(data, feeds)
    except Exception:
        return None


@pytest.mark.parametrize("op", OPERATORS)
def test_claimed_types_agree(op: str) -> None:
    """A type that is claimed is computed in: large integers stay exact, small ones wrap. All others are refused by name."""
    shapes, attributes = OPERATORS[op]
    compared = 0
    for dtype in TYPES:
        feeds = {f"x{i}": _values(dtype, s) for i, s in enumerate(shapes)}
        constants = {"axis": np.array(1, np.int64)} if op == "CumSum" else {}
        if op in ("Div", "Mod"):
            feeds["x1"] = np.where(feeds["x1"] == 0, np.array(1, dtype), feeds["x1"])
        if op == "Pow":
            feeds = {n: (np.abs(a.astype(np.float64)) % 5).astype(a.dtype) for n, a in feeds.items()}
        if op == "Mod" and np.dtype(dtype).kind not in "iu":
            attributes = {"fmod": 1}
        data = model([node(op, [*feeds, *constants], ["y"], **attributes)], feeds, constants=constants)
        attributes = OPERATORS[op][1]
        try:
            session = onnx_vulkan.Session.load(data)
        except RefusedError as error:
            assert re.search(r"\((dtype|kernel)\): ", str(error)), error
            continue
        except onnx_vulkan.errors.ModelError:
            continue  # not a type of this operator
        want = _reference(data, feeds)
        got = list(session.run(feeds).values())
        if want is None:
            continue
        compared += 1
        loose = {np.float16: 4e-3, ml_dtypes.bfloat16: 3e-2}.get(dtype, 1e-5)  # type: ignore[call-overload]
        for a, b in zip(got, want, strict=True):
            if b.dtype.kind in "iub":
                np.testing.assert_array_equal(a, b, err_msg=f"{op} of {np.dtype(dtype)}")
            else:
                assert_agree([a], [b], loose, loose)
    assert compared >= 2 or not THOROUGH


# ------------------------------------------------------------------------------------------------------------ 2: attributes

TWINS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "LeakyRelu": ("LeakyRelu", {"alpha": 0.1}, {"alpha": 0.7}),
    "Elu": ("Elu", {"alpha": 0.1}, {"alpha": 2.0}),
    "HardSigmoid": ("HardSigmoid", {"alpha": 0.1, "beta": 0.2}, {"alpha": 0.4, "beta": 0.6}),
    "Gelu": ("Gelu", {}, {"approximate": "tanh"}),
    "ThresholdedRelu": ("ThresholdedRelu", {"alpha": 0.1}, {"alpha": 1.0}),
    "Softmax": ("Softmax", {"axis": 0}, {"axis": 1}),
    "LpNormalization": ("LpNormalization", {"p": 1}, {"p": 2}),
    "ReduceSum": ("ReduceSum", {"keepdims": 0}, {"keepdims": 1}),
    "Transpose": ("Transpose", {"perm": [0, 1]}, {"perm": [1, 0]}),
}


@both_doors
@pytest.mark.parametrize("case", TWINS)
def test_two_nodes_with_different_attributes(case: str, door: Door) -> None:
    op, one, other = TWINS[case]
    feeds = {"x": f32(4, 4)}
    data = model([node(op, ["x"], ["y"], **one), node(op, ["x"], ["z"], **other)], feeds, ["y", "z"])
    first, second = door(data, feeds)
    assert_agree([first, second], cpu(data, feeds), 1e-3 if op == "Gelu" else 1e-4, 1e-6)
    assert first.shape != second.shape or (first != second).any(), "the test's inputs do not tell the two apart"


def test_two_clips_of_one_graph() -> None:
    feeds = {"x": f32(50)}
    bounds = {"a": np.float32(-0.5), "b": np.float32(0.5), "c": np.float32(0.1)}
    nodes = [node("Clip", ["x", "a", "b"], ["y"]), node("Clip", ["x", "", "c"], ["z"]), node("Clip", ["x", "a"], ["w"])]
    data = model(nodes, feeds, ["y", "z", "w"], constants={n: np.asarray(v) for n, v in bounds.items()})
    x = feeds["x"]
    want = [np.clip(x, bounds["a"], bounds["b"]), np.minimum(x, bounds["c"]), np.maximum(x, bounds["a"])]
    assert_agree(standalone(data, feeds), want, 0, 0)


# ------------------------------------------------------------------------------------------------- 3: claimed, so it runs

ODD: dict[str, tuple[onnx.NodeProto, dict[str, Array], dict[str, Array]]] = {
    "K is odd": (node("MatMul", ["x", "w"], ["y"]), {"x": f32(5, 7)}, {"w": f32(7, 3)}),
    "K is 1": (node("MatMul", ["x", "w"], ["y"]), {"x": f32(5, 1)}, {"w": f32(1, 3)}),
    "rank 9": (node("Transpose", ["x"], ["y"]), {"x": f32(1, 2, 1, 3, 2, 1, 2, 2, 3)}, {}),
    "rank 9 sum": (node("Add", ["x", "w"], ["y"]), {"x": f32(2, 1, 2, 1, 2, 1, 2, 1, 2)}, {"w": f32(2, 1, 3, 1, 2, 1, 3, 1)}),
    "many rows": (node("Softmax", ["x"], ["y"]), {"x": f32(70_000, 3)}, {}),
    "long row": (node("Softmax", ["x"], ["y"]), {"x": f32(2, 70_001)}, {}),
    "norm of two axes": (node("LayerNormalization", ["x", "w"], ["y"], axis=1), {"x": f32(3, 4, 5)}, {"w": f32(4, 5)}),
    "norm from the end": (node("LayerNormalization", ["x", "w"], ["y"], axis=-3), {"x": f32(3, 4, 5)}, {"w": f32(3, 4, 5)}),
    "five operands": (node("Sum", ["x", "w", "x", "w", "x"], ["y"]), {"x": f32(3, 4)}, {"w": f32(4)}),
    "reflected pad": (node("Pad", ["x", "p"], ["y"], mode="reflect"), {"x": f32(3, 4)}, {"p": np.array([2, 3, 1, 2])}),
    "no zero point": (
        node("QuantizeLinear", ["x", "s"], ["y"]), {"x": f32(3, 4)}, {"s": np.array(0.02, np.float32)},
    ),
    "no elements": (node("MatMul", ["x", "w"], ["y"]), {"x": f32(0, 7)}, {"w": f32(7, 3)}),
    "nothing to sum": (node("MatMul", ["x", "w"], ["y"]), {"x": f32(2, 0)}, {"w": f32(0, 3)}),
    "a scalar": (node("Exp", ["x"], ["y"]), {"x": np.array(0.5, np.float32)}, {}),
}  # fmt: skip


@pytest.mark.parametrize("free", [False, True])
@pytest.mark.parametrize("case", ODD)
def test_what_is_claimed_runs(case: str, free: bool) -> None:
    one, feeds, constants = ODD[case]
    data = model([one], feeds, constants=constants, free=free)
    assert_agree(standalone(data, feeds), cpu(data, feeds))


# --------------------------------------------------------------------------------------------------------------- 7, 9: memory


@both_doors
@pytest.mark.parametrize("shape", [(64, 64, 64), (65, 63, 130), (1, 300, 33)])
def test_ones(shape: tuple[int, int, int], door: Door) -> None:
    """Each element of a product of ones is K: a tile that is read before it is written shows."""
    m, k, n = shape
    feeds = {"x": np.ones((m, k), np.float32), "w": np.ones((k, n), np.float32)}
    (y,) = door(model([node("MatMul", ["x", "w"], ["y"])], feeds), feeds)
    np.testing.assert_array_equal(y, np.full((m, n), k, np.float32))


@pytest.mark.parametrize("release", [False, True])
def test_memory_taken_between_steps_changes_nothing(release: bool) -> None:
    """64 steps, between which others take, fill and give back memory of the sizes that the session uses."""
    names = [f"h{i}" for i in range(5)]
    nodes = [node("MatMul", [a, "w"], [b]) for a, b in zip(["x", *names], [*names, "m"], strict=True)]
    nodes.append(node("Softmax", ["m"], ["y"]))
    x = f32(8, 32)
    data = model(nodes, {"x": x}, constants={"w": f32(32, 32) / 6})
    device, rubbish = Device.get(), np.full(8 * 32 * 5, np.nan, np.float32)
    with (
        onnx_vulkan.Session.load(data) as quiet,
        onnx_vulkan.Session.load(data, options=Options(release_arena=release)) as disturbed,
    ):
        a = b = x
        for step in range(64):
            a, b = quiet.run({"x": a})["y"], disturbed.run({"x": b})["y"]
            assert a.tobytes() == b.tobytes(), step
            assert np.isfinite(a).all()
            taken = [device.alloc(size) for size in (1024, 4096, rubbish.nbytes)]
            taken[-1].upload(rubbish)
            for memory in taken[step % 2 :]:
                memory.free()


# ------------------------------------------------------------------------------------------------------------ 10: shapes


@both_doors
def test_rank_of_a_full_reduction(door: Door) -> None:
    feeds = {"x": f32(3, 4)}
    axes = {"both": np.array([0, -1])}
    nodes = [
        node("ReduceSum", ["x", "both"], ["y"], keepdims=0),
        node("ReduceMax", ["x"], ["z"], keepdims=0),
        node("ReduceSum", ["x", "both"], ["w"], keepdims=1),
        node("ArgMax", ["x"], ["v"], axis=-1, keepdims=0),
    ]
    got = door(model(nodes, feeds, ["y", "z", "w", "v"], constants=axes), feeds)
    assert [a.shape for a in got] == [(), (), (1, 1), (3,)]
    assert_agree(got, cpu(model(nodes, feeds, ["y", "z", "w", "v"], constants=axes), feeds))


# ----------------------------------------------------------------------------------------------------- 11, 12, 13: numbers

NORMS: dict[str, onnx.NodeProto] = {
    "layer": node("LayerNormalization", ["x", "one"], ["y"], axis=-1),
    "instance": node("InstanceNormalization", ["x", "channel", "shift"], ["y"]),
    "group": node("GroupNormalization", ["x", "channel", "shift"], ["y"], num_groups=2),
    "mean variance": node("MeanVarianceNormalization", ["x"], ["y"], axes=[0, 2]),
}


@pytest.mark.parametrize("kind", NORMS)
def test_variance_at_a_large_mean(kind: str) -> None:
    x = (1e4 + f32(2, 4, 256)).astype(np.float32)
    constants = {"one": np.ones(256, np.float32), "channel": np.ones(4, np.float32), "shift": np.zeros(4, np.float32)}
    axes = {"layer": (2,), "instance": (2,), "group": (2, 3), "mean variance": (0, 2)}[kind]
    wide = x.astype(np.float64).reshape((2, 2, 2, 256) if kind == "group" else x.shape)
    want = ((wide - wide.mean(axes, keepdims=True)) / np.sqrt(wide.var(axes, keepdims=True) + 1e-5)).reshape(x.shape)
    used = {n: a for n, a in constants.items() if n in NORMS[kind].input}
    (got,) = standalone(model([NORMS[kind]], {"x": x}, constants=used, kind=T.FLOAT), {"x": x})
    np.testing.assert_allclose(got, want, atol=5e-3)


@both_doors
def test_large_integers(door: Door) -> None:
    far = 2**24 + 3
    line = np.zeros(far + 2, np.uint8)
    line[far] = 1
    (y,) = door(model([node("ArgMax", ["x"], ["y"], keepdims=0)], {"x": line}), {"x": line})
    assert y == far
    long = np.array([2**53 + 1, 2**31, 3], np.int64)
    nodes = [node("Add", ["x", "x"], ["y"]), node("Mul", ["x", "k"], ["z"]), node("ReduceSum", ["x"], ["w"], keepdims=0)]
    data = model(nodes, {"x": long}, ["y", "z", "w"], constants={"k": np.array([3], np.int64)})
    assert [a.tolist() for a in door(data, {"x": long})] == [(2 * long).tolist(), (3 * long).tolist(), int(long.sum())]
    limits = {"a": np.array(2**24 - 1, np.int64), "b": np.array(2**24 + 4, np.int64), "c": np.array(1, np.int64)}
    nodes = [node("Range", ["a", "b", "c"], ["r"]), node("Cast", ["r"], ["i"], to=T.INT32), node("Add", ["i", "x"], ["y"])]
    zero = np.zeros(1, np.int32)
    (y,) = door(model(nodes, {"x": zero}, constants=limits), {"x": zero})
    assert y.tolist() == list(range(2**24 - 1, 2**24 + 4))


@both_doors
def test_shape_arithmetic_beyond_32_bits(door: Door) -> None:
    """2048 cubed does not fit 32 bits, nor the whole numbers of a float32."""
    x = f32(2048)
    cube = {"k": np.array([2048 * 2048 + 1], np.int64)}
    nodes = [node("Shape", ["x"], ["s"]), node("Mul", ["s", "k"], ["y"]), node("Neg", ["x"], ["z"])]
    y, _ = door(model(nodes, {"x": x}, ["y", "z"], constants=cube, free=True), {"x": x})
    assert y.tolist() == [2048 * (2048 * 2048 + 1)]


@pytest.mark.parametrize("mode", ["reflect", "wrap", "edge"])
def test_folding_beyond_the_edge(mode: str) -> None:
    x = f32(7, 5)
    pads = {"p": np.array([6, 4, 6, 4])}
    (y,) = standalone(model([node("Pad", ["x", "p"], ["y"], mode=mode)], {"x": x}, constants=pads), {"x": x})
    np.testing.assert_array_equal(y, np.pad(x, ((6, 6), (4, 4)), mode=mode))
    grid = (RNG.uniform(-9, 9, (1, 6, 6, 2))).astype(np.float32)
    feeds = {"x": x.reshape(1, 1, 7, 5), "grid": grid}
    data = model([node("GridSample", list(feeds), ["y"], padding_mode="reflection")], feeds)
    assert_agree(standalone(data, feeds), cpu(data, feeds), atol=1e-3)


# --------------------------------------------------------------------------------------------------------- 14, 16: the plug-in


def test_a_failed_run_is_not_repeated_on_the_cpu() -> None:
    """ONNX Runtime's Python layer would make a session on the CPU and go on: as it comes, with all providers named."""
    x = f32(3, 4)
    feeds = {"x": x, "i": np.array([5], np.int64)}
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    nodes = [node("Gather", ["x", "i"], ["g"], name="victim"), node("MatMul", ["g", "w"], ["y"])]
    data = model(nodes, feeds, constants={"w": f32(4, 4)})
    session = onnxruntime.InferenceSession(data, options, providers=["VulkanEP", "CPUExecutionProvider"])
    before = session.get_providers()
    for _ in range(2):
        with pytest.raises(Exception, match="victim met the index 5"):
            session.run(None, feeds)
    assert session.get_providers() == before and before[0] == "VulkanEP"
    good = {**feeds, "i": np.array([1], np.int64)}
    assert_agree(session.run(None, good), cpu(data, good))
    assert ep.session_stats(session).dispatches > 0


@both_doors
def test_holes_and_inner_outputs(door: Door) -> None:
    """An absent input shifts no other; a residual stream is an output and read by a later node, twice."""
    feeds = {"x": f32(1, 2, 4, 4)}
    constants = {"high": np.array(0.3, np.float32), "sizes": np.array([1, 2, 8, 8]), "w": f32(8, 8)}
    nodes = [
        node("Clip", ["x", "", "high"], ["c"]),
        node("Resize", ["c", "", "", "sizes"], ["r"], mode="nearest"),
        node("MatMul", ["r", "w"], ["m"]),
        node("Add", ["r", "m"], ["residual"]),
        node("Relu", ["residual"], ["a"]),
        node("Add", ["residual", "a"], ["y"]),
    ]
    data = model(nodes, feeds, ["residual", "y", "c"], constants=constants)
    assert_agree(door(data, feeds), cpu(data, feeds))


# ------------------------------------------------------------------------------------------------- 17, 18, 19: what it costs


def test_every_parameter_byte_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[tuple[int, int]] = []
    plain = PlanDraft.write_params

    def watched(self: PlanDraft, kernel: Any, blob: bytearray, which: int) -> None:
        before = len(blob)
        plain(self, kernel, blob, which)
        written.append((len(blob) - before, kernel.params.size))

    monkeypatch.setattr(PlanDraft, "write_params", watched)
    feeds = {"x": f32(2, 5, 7), "i": np.array([1, 0], np.int64)}
    nodes = [
        node("Gather", ["x", "i"], ["g"]), node("MatMul", ["g", "w"], ["m"]), node("Softmax", ["m"], ["s"]),
        node("TopK", ["s", "k"], ["y", "z"]), node("CumSum", ["s", "k"], ["c"]),
    ]  # fmt: skip
    constants = {"w": f32(7, 6), "k": np.array([2], np.int64)}
    standalone(model(nodes, feeds, ["y", "z", "c"], constants=constants, free=True), feeds)
    assert len(written) >= 4 and all(got == size for got, size in written), written


def test_a_run_is_one_submit() -> None:
    """And moves what goes in and comes out, no more."""
    feeds = {"x": f32(16, 64)}
    data = model([node("MatMul", ["x", "w"], ["m"]), node("Softmax", ["m"], ["y"])], feeds, constants={"w": f32(64, 64)})
    with onnx_vulkan.Session.load(data) as session:
        session.run(feeds)
        before = Device.get().counters()
        for _ in range(5):
            session.run(feeds)
        after = Device.get().counters()
    used = {name: after[name] - before[name] for name in before}
    assert used["submits"] == 5 and used["runs"] == 5
    assert used["recordings"] == used["plans_made"] == used["pipelines_created"] == used["live_bytes"] == 0
    assert used["uploaded_bytes"] == used["downloaded_bytes"] == 5 * feeds["x"].nbytes


def _chain(count: int) -> float:
    """CPU seconds that loading and running a chain of different nodes takes."""
    feeds = {"x": f32(4)}
    names = ["x", *(f"v{i}" for i in range(count - 1)), "y"]
    nodes = [node("Add", [a, "w"], [b]) for a, b in itertools.pairwise(names)]
    data = model(nodes, feeds, constants={"w": f32(4)})
    start = time.process_time()
    standalone(data, feeds)
    return time.process_time() - start


def test_loading_is_linear() -> None:
    _chain(20)
    few, many = min(_chain(150) for _ in range(2)), _chain(1200)
    assert many < 30 * few, f"{few:.2f} s for 150 nodes, {many:.2f} s for 1200"


def test_weights_are_held_once(tmp_path: Path) -> None:
    """External data are mapped: beside the device's copy (host memory too, on a software device) no other stays."""
    weights = {f"w{i}": np.full((2048, 2048), i, np.float32) for i in range(4)}
    names = ["x", "a", "b", "c", "y"]
    nodes = [node("MatMul", [a, w], [b]) for (a, b), w in zip(itertools.pairwise(names), weights, strict=True)]
    made = onnx.ModelProto.FromString(model(nodes, {"x": f32(1, 2048)}, constants=weights))
    onnx.save(made, str(tmp_path / "m.onnx"), save_as_external_data=True, location="m.data")
    code = f"""
import numpy as np, onnx_vulkan
from onnx_vulkan.device import Device
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096
Device.get()
before = resident()
session = onnx_vulkan.Session.load({str(tmp_path / "m.onnx")!r})
session.run({{"x": np.ones((1, 2048), "f")}})
print((resident() - before) / (4 * 2048 * 2048 * 4))
"""
    environment = os.environ | {"ONNX_VULKAN_VALIDATION": "0"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    # the mapped file and the device's memory are two; compiled kernels come on top
    assert float(done.stdout) < 2.8, done.stdout


# -------------------------------------------------------------------------------------------------------------- 23, 25


def test_skips_have_reasons() -> None:
    """Nothing is passed over in silence: every skip tells its reason, and no test is expected to fail."""
    silent = []
    for path in sorted(TESTS.rglob("*.py")):
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(call, ast.Attribute) or call.attr not in ("skip", "skipif", "xfail", "importorskip"):
                continue
            silent.append((path, call.lineno, call.attr))
    told = []
    for path, line, kind in silent:
        text = "\n".join(path.read_text(encoding="utf-8").splitlines()[line - 1 : line + 3])
        if kind == "xfail" or not re.search(r"reason=f?[\"']\w|reason=\w+|skip\(f?[\"']\w", text):
            told.append(f"{path.relative_to(TESTS)}:{line}: {kind}")
    assert not told, told


@pytest.mark.parametrize(
    ("op", "domain"), [("Add", "my.own"), ("Conv", "com.ms.internal.nhwc"), ("Relu", "com.microsoft"), ("Gelu", "my.own")]
)
def test_operators_of_other_domains(op: str, domain: str) -> None:
    feeds = {"x": f32(1, 3, 4, 4)}
    inputs = {"Add": ["x", "x"], "Conv": ["x", "w"]}.get(op, ["x"])
    victim = node(op, inputs, ["y"], name="victim", domain=domain)
    data = model([victim], feeds, constants={"w": f32(2, 3, 1, 1)}, domains=[domain], kind=T.FLOAT)
    with pytest.raises(OnnxVulkanError, match=rf"{re.escape(domain)}::{op}.*victim"):
        onnx_vulkan.Session.load(data)
