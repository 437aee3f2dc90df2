"""Compiling ahead: new sizes wait for nothing that can be made later, and the better plan takes over by itself."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import numpy as np
from onnx import TensorProto, helper
from onnx_vulkan import Options, Session
from onnx_vulkan.engine import ahead


def _model() -> bytes:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 3])
    nodes = [helper.make_node("Softmax", ["x"], ["s"], axis=-1), helper.make_node("Mul", ["s", "x"], ["y"])]
    graph = helper.make_graph(nodes, "ahead", [x], [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()


def _expected(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True) * x


def _run(session: Session, n: int) -> None:
    x = np.random.default_rng(n).standard_normal((n, 3)).astype(np.float32)
    np.testing.assert_allclose(session.run({"x": x})["y"], _expected(x), rtol=1e-4, atol=1e-6)


def test_a_promoted_plan_is_made_in_the_background_and_takes_over() -> None:
    with Session.load(_model(), options=Options(compile_ahead="on")) as session:
        for n in (4, 7, 20):
            _run(session, n)
        assert session.stats()["plans_made"] >= 3, "the third size has a plan of its own, it does not wait for a promotion"
        ahead.drain()
        made, created = session.stats()["plans_made"], session.device.counters()["pipelines_created"]
        for n in (5, 9, 31, 32, 1):
            _run(session, n)
        assert session.stats()["plans_made"] == made, "one plan serves every size up to its capacity"
        assert session.device.counters()["pipelines_created"] == created


def test_variants_of_other_sizes_are_compiled_ahead() -> None:
    with Session.load(_model(), options=Options(compile_ahead="on", auto_runtime_dims=False)) as session:
        _run(session, 40)
        ahead.drain()
        created = session.device.counters()["pipelines_created"]
        for n in (80, 20, 160, 10):
            _run(session, n)
        assert session.device.counters()["pipelines_created"] == created


def test_a_decode_loop_does_not_wait_for_the_background() -> None:
    with Session.load(_model(), options=Options(compile_ahead="on")) as session:
        for n in range(5, 40):
            _run(session, n)
        assert session.stats()["plans_made"] <= 4


def test_the_interpreter_ends_while_a_job_is_under_way() -> None:
    program = textwrap.dedent(
        """
        import numpy as np
        from onnx_vulkan.engine import ahead
        def job():
            while True:
                sum(range(10000))
                yield
        ahead.submit(job)
        print("end")
        """
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")


def test_sessions_close_while_plans_are_made_for_them() -> None:
    live = None
    for _ in range(10):
        session = Session.load(_model(), options=Options(compile_ahead="on"))
        for n in (4, 7, 20, 11):
            _run(session, n)
        session.close()
        device = session.device
        ahead.drain()
        live = device.counters()["live_bytes"] if live is None else live
        assert device.counters()["live_bytes"] == live
