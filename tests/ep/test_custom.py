"""Operators that a user registers: the documented example as it stands, and what it does not show."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx.parser
import onnx_vulkan
import pytest
from ep_stub import vulkan_session
from onnx_vulkan import versions
from onnx_vulkan.claims import partition
from onnx_vulkan.custom import DType, Host, KernelText, LowerContext, Value, register_kernel, register_lowering
from onnx_vulkan.engine.session import Session
from onnx_vulkan.errors import Unsupported
from onnx_vulkan.frontend import load
from onnx_vulkan.kernels import FAMILIES
from onnx_vulkan.lower import LOWERINGS
from onnx_vulkan.program.interp_nn import EVALUATORS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "custom-operators.md"


@pytest.fixture(autouse=True)
def registrations() -> Iterator[None]:
    """Registrations end with their test."""
    yield
    tables: list[dict[Any, Any]] = [LOWERINGS, FAMILIES, EVALUATORS, versions._REGISTERED]
    for table in tables:
        for key in [k for k in table if "acme" in (k if isinstance(k, tuple) else k.split("."))]:
            del table[key]


def blocks() -> list[str]:
    return re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


def test_the_documented_example_runs() -> None:
    done = subprocess.run([sys.executable, "-c", blocks()[0]], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "2 nodes in 1 block; both doors agree\n"


def model(version: int = 1, dtype: str = "float", body: str = "y = Neg(x)") -> bytes:
    """y = acme::Op(x), with the function *body* as what it means elsewhere."""
    text = f"""<ir_version: 10, opset_import: ["": 20, "acme": {version}]>
        g ({dtype}[n, t] x) => ({dtype}[n, t] y) {{ y = acme.Op(x) }}
        <domain: "acme", opset_import: ["": 20]> Op (x) => (y) {{ {body} }}"""
    return bytes(onnx.parser.parse_model(text).SerializeToString())


X = np.arange(12, dtype=np.float32).reshape(3, 4)


def alone(data: bytes, x: Any = X) -> Any:
    with onnx_vulkan.Session.load(data) as session:
        return session.run({"x": x})["y"]


def test_the_documented_lowering_without_a_kernel() -> None:
    body = blocks()[1]
    scope: dict[str, Any] = {"LowerContext": LowerContext, "Value": Value}
    exec(f"def fn(b: LowerContext, x: Value, *, coefficient: float = 0.5) -> Value:\n{body}", scope)
    register_lowering("acme", "Op", 1, scope["fn"])
    want = X - 0.5 * np.concatenate([np.zeros((3, 1), np.float32), X[:, :-1]], 1)
    np.testing.assert_array_equal(alone(model()), want)


def test_versions_and_the_function_where_none_fits() -> None:
    """Version 1 has no lowering, 2 and 3 have that of 2, 4 one of its own: the same through both doors."""

    def plus(n: int) -> Any:
        def fn(b: LowerContext, x: Value) -> Value:
            return b.add(x, b.broadcast(b.scalar(n, x.dtype), x.shape))

        return fn

    register_lowering("acme", "Op", 2, plus(2))
    register_lowering("acme", "Op", [4], plus(4))
    for version, want in ((1, -X), (2, X + 2), (3, X + 2), (4, X + 4)):
        data = model(version)
        np.testing.assert_array_equal(alone(data), want)
        np.testing.assert_array_equal(vulkan_session(data).run(None, {"x": X})[0], want)
    with pytest.raises(ValueError, match="twice"):
        register_lowering("acme", "Op", 2, plus(3))
    with pytest.raises(ValueError, match="twice"):
        register_lowering("", "Relu", 14, plus(3))


def test_a_refusal_is_the_lowerings_own_sentence() -> None:
    def fn(b: LowerContext, x: Value) -> Value:
        raise Unsupported("only on Tuesdays")

    register_lowering("acme", "Op", 1, fn)
    (refusal,) = partition(load(model())).refusals
    assert (refusal.domain, refusal.check, refusal.reason) == ("acme", "kernel", "only on Tuesdays.")
    np.testing.assert_array_equal(vulkan_session(model()).run(None, {"x": X})[0], -X)  # ONNX Runtime runs the function instead


@pytest.mark.parametrize("dtype", ["float", "float16", "bfloat16", "int64", "uint8"])
def test_a_kernel_of_every_kind_of_type(dtype: str) -> None:
    """Rows in reverse, at sizes that change without a new kernel."""

    def text(k: KernelText) -> str:
        length = k.number(k.inputs[0].shape[1])
        row, place = k.divided("i", k.inputs[0].shape[1])
        return k.store(0, "i", k.load(0, f"{row} * {length} + {length} - 1 - {place}"))

    register_kernel("acme.reverse", text, lambda x: x[:, ::-1])

    def fn(b: LowerContext, x: Value) -> Value:
        return b.emit("acme.reverse", [x], [(x.dtype, x.shape)])[0]

    register_lowering("acme", "Op", 1, fn)
    numpy = {"float": np.float32, "bfloat16": ml_dtypes.bfloat16}.get(dtype, dtype)
    with Session.load(model(dtype=dtype)) as session:
        for n, t in ((3, 4), (1, 1), (70, 33), (0, 4)):
            x = np.arange(n * t).reshape(n, t).astype(numpy)
            np.testing.assert_array_equal(session.run({"x": x})["y"], x[:, ::-1])


def test_a_kernel_that_cannot_is_a_refusal() -> None:
    register_kernel(
        "acme.never", lambda k: "", lambda x: x, supports=lambda instr: f"{instr.inputs[0].dtype.onnx_name} is too wide"
    )

    def fn(b: LowerContext, x: Value) -> Value:
        return b.emit("acme.never", [x], [(x.dtype, x.shape)])[0]

    register_lowering("acme", "Op", 1, fn)
    with pytest.raises(TypeError, match="no annotation"):
        register_lowering("acme", "Other", 1, lambda b, x: x)
    (refusal,) = partition(load(model())).refusals
    assert refusal.reason == "float32 is too wide."
    for name in ("never", "acme.never"):
        with pytest.raises(ValueError, match="no new name"):
            register_kernel(name, lambda k: "", lambda x: x)


def test_constants_are_folded_by_the_meaning() -> None:
    register_kernel("acme.twice", lambda k: "not GLSL at all;", lambda x: 2 * x)

    def fn(b: LowerContext, x: Value) -> Value:
        (c,) = b.emit("acme.twice", [b.const(np.array([1, 2, 3, 4], np.float32))], [(DType.F32, (4,))])
        return b.add(x, b.broadcast(c, x.shape))

    register_lowering("acme", "Op", 1, fn)
    np.testing.assert_array_equal(alone(model()), X + np.array([2, 4, 6, 8], np.float32))


def test_known_before_the_run_and_invocations_of_ones_own() -> None:
    """A Host input decides the shape; one invocation a row."""

    def text(k: KernelText) -> str:
        length = k.number(k.inputs[0].shape[1])
        return f"float s = 0.0; for (int j = 0; j < {length}; j++) s += {k.load(0, f'i * {length} + j')}; {k.store(0, 'i', 's')}"

    register_kernel("acme.rows", text, lambda x: x.sum(1), invocations=lambda instr: instr.inputs[0].shape[0])

    def fn(b: LowerContext, x: Value, times: Host) -> Value:
        (sums,) = b.emit("acme.rows", [x], [(x.dtype, x.shape[:1])])
        (n,) = times.ints()
        return b.broadcast(b.reshape(sums, (x.shape[0], 1)), (x.shape[0], n))

    register_lowering("acme", "Sums", 1, fn, dtypes={"x": [DType.F32]})
    data = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 20, "acme": 1]> g (float[n, t] x) => (float[n, 2] y) '
        "<int64[1] two = {2}> { y = acme.Sums(x, two) }"
    ).SerializeToString()
    np.testing.assert_array_equal(alone(data), np.repeat(X.sum(1, keepdims=True), 2, 1))
