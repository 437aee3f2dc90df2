"""What many shapes in one session cost: pipelines, GLSL, structures, plans and device memory."""

from __future__ import annotations

import gc
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx_vulkan import Session
from onnx_vulkan.device import Device
from onnx_vulkan.engine import ahead
from onnx_vulkan.engine.options import Options

RNG = np.random.default_rng(12)


def model() -> bytes:
    """A little of everything: convolution, pooling, products, softmax, shape arithmetic, a residual."""

    def weight(name, *shape):
        return numpy_helper.from_array((RNG.standard_normal(shape) / 4).astype(np.float32), name)

    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["c1"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c1"], ["r1"]),
        helper.make_node("Conv", ["r1", "w2"], ["c2"], pads=[1, 1, 1, 1]),
        helper.make_node("Add", ["c2", "r1"], ["s"]),
        helper.make_node("MaxPool", ["s"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Shape", ["p"], ["shape"]),
        helper.make_node("Gather", ["shape", "zero"], ["n"]),
        helper.make_node("Concat", ["n", "rest"], ["to"], axis=0),
        helper.make_node("Reshape", ["p", "to"], ["flat"]),
        helper.make_node("Transpose", ["flat"], ["t"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["t", "w3"], ["m"]),
        helper.make_node("Softmax", ["m"], ["y"], axis=-1),
        helper.make_node("ReduceMean", ["m", "last"], ["z"], keepdims=0),
    ]
    weights = [
        weight("w1", 8, 3, 3, 3), weight("b1", 8), weight("w2", 8, 8, 3, 3), weight("w3", 8, 10),
        numpy_helper.from_array(np.array([0]), "zero"), numpy_helper.from_array(np.array([8, -1]), "rest"),
        numpy_helper.from_array(np.array([1]), "last"),
    ]  # fmt: skip
    floats = TensorProto.FLOAT
    graph = helper.make_graph(
        nodes, "little", [helper.make_tensor_value_info("x", floats, ["batch", 3, "height", "width"])],
        [helper.make_tensor_value_info("y", floats, None), helper.make_tensor_value_info("z", floats, None)], weights,
    )  # fmt: skip
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    return made.SerializeToString()


def image(*shape):
    return {"x": RNG.standard_normal(shape).astype(np.float32)}


@pytest.fixture(scope="module")
def little() -> bytes:
    return model()


def counted(device, work):
    before = device.counters()
    work()
    return {name: value - before[name] for name, value in device.counters().items()}


def test_a_new_shape_is_a_plan_and_nothing_else(little):
    device = Device.get()
    with Session.load(little, options=Options(auto_runtime_dims=False)) as session:
        session.run(image(1, 3, 16, 16))
        assert session.stats()["structures"] == 1
        for n, shape in enumerate([(1, 3, 18, 14), (1, 3, 20, 20), (1, 3, 14, 22)], 2):
            cost = counted(device, lambda shape=shape: session.run(image(*shape)))
            assert cost["glsl_compiles"] == cost["pipelines_created"] == 0
            assert session.stats()["plans_made"] == n
        # a batch of one is a guard
        session.run(image(2, 3, 16, 16))
        assert session.stats()["structures"] <= 2
        cost = counted(device, lambda: session.run(image(3, 3, 16, 18)))
        assert cost["glsl_compiles"] == 0
        assert session.stats()["structures"] <= 2
        # a shape seen before is nothing at all, once it is recorded for the memory that larger ones have moved
        session.run(image(1, 3, 18, 14))
        cost = counted(device, lambda: session.run(image(1, 3, 18, 14)))
        assert not any(cost[name] for name in ("glsl_compiles", "pipelines_created", "plans_made", "recordings", "allocations"))


def test_only_a_new_variant_makes_a_pipeline(little):
    """Sizes far apart may choose other variants: each is one pipeline, and no text is compiled twice."""
    device = Device.get()
    named = set()
    with Session.load(little, options=Options(auto_runtime_dims=False, compile_ahead="off")) as session:
        ask = session.block.shaders

        def note(asked):
            shaders = ask(asked)
            named.update((s.source, s.spec) for s in shaders)
            return shaders

        session.block.shaders = note
        for shape in [(1, 3, 16, 16), (1, 3, 64, 64), (1, 3, 8, 200), (1, 3, 2, 2), (1, 3, 128, 96)]:
            texts, before = {s for s, _ in named}, len(named)
            cost = counted(device, lambda shape=shape: session.run(image(*shape)))
            assert cost["pipelines_created"] <= len(named) - before
            assert cost["glsl_compiles"] <= len({s for s, _ in named} - texts)


@pytest.mark.parametrize("promote", [False, True])
def test_fifty_shapes_stay_in_bounded_memory_and_all_of_it_comes_back(little, promote):
    device = Device.get()
    gc.collect()
    start = device.counters()["live_bytes"]
    shapes = [(int(RNG.integers(1, 4)), 3, int(RNG.integers(2, 40)), int(RNG.integers(2, 40))) for _ in range(50)]
    # what is promoted is sized by its capacity: a power of two, 128 where a size happened to grow by one
    largest = (4, 3, 128, 128) if promote else max(shapes, key=np.prod)
    with Session.load(little, options=Options(auto_runtime_dims=False)) as alone:
        want = alone.run(image(*largest))
        need = device.counters()["live_bytes"] - start
    gc.collect()
    assert device.counters()["live_bytes"] == start
    with Session.load(little, options=Options(auto_runtime_dims=promote)) as session:
        peak = 0
        for shape in shapes:
            got = session.run(image(*shape))
            pooled = (shape[2] // 2) * (shape[3] // 2)
            assert got["y"].shape == (shape[0], pooled, 10) and got["z"].shape == (shape[0], 10)
            np.testing.assert_allclose(got["y"].sum(-1), 1, rtol=1e-4)
            peak = max(peak, device.counters()["live_bytes"] - start)
        assert peak <= 3 * need + (1 << 20)  # two contexts at most, each as large as the largest shape needs
        assert {n: v.shape for n, v in want.items()} == {n: v.shape for n, v in session.run(image(*largest)).items()}
    gc.collect()
    assert device.counters()["live_bytes"] == start


def test_run_time_dims_make_few_plans(little):
    with Session.load(little, options=Options(runtime_dims={"width": 64})) as session:
        for width in (16, 2, 64, 30, 17, 63):
            got = session.run(image(1, 3, 16, width))
            assert got["y"].shape == (1, 8 * (width // 2), 10)
        assert session.stats()["plans_made"] <= 2


def test_a_dim_of_nothing(little):
    with Session.load(little) as session:
        got = session.run(image(0, 3, 16, 16))
        assert got["y"].shape == (0, 64, 10) and got["z"].shape == (0, 10)


def test_threads_and_plans_made_ahead_change_no_result(little):
    device = Device.get()
    gc.collect()
    start = device.counters()["live_bytes"]
    feeds = [image(int(RNG.integers(1, 4)), 3, 2 * int(RNG.integers(1, 12)), int(RNG.integers(2, 24))) for _ in range(24)]
    with Session.load(little, options=Options(compile_ahead="off", auto_runtime_dims=False)) as plain:
        want = [plain.run(f) for f in feeds]
    with Session.load(little, options=Options(compile_ahead="on")) as session, ThreadPoolExecutor(3) as pool:
        for _ in range(2):
            for got, expected in zip(pool.map(session.run, feeds), want, strict=True):
                for name, value in expected.items():
                    np.testing.assert_allclose(got[name], value, rtol=1e-5, atol=1e-5)
    ahead.drain()
    gc.collect()
    assert device.counters()["live_bytes"] == start
