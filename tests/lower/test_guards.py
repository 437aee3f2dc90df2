"""A structure serves every shape at which its guards hold: random forms, each at every small size, against ONNX Runtime."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx.parser
import onnxruntime
import pytest
from onnx_vulkan.dims import Scope
from onnx_vulkan.errors import ShapeMismatch
from onnx_vulkan.lower import Lowered
from run_case import Array, assert_close, bind, graph_of, refusals, replay, symbol_numbers

RNG = np.random.default_rng(11)


def ints(name: str, *values: int) -> str:
    return f"{name} = Constant<value_ints: ints = [{', '.join(map(str, values))}]>()\n"


def slices(count: int) -> Iterator[str]:
    for _ in range(count):
        start, end = RNG.integers(-8, 9, 2)
        step = int(RNG.choice([-3, -2, -1, 1, 1, 2, 3]))
        yield ints("s", start) + ints("e", end) + ints("a", 0) + ints("t", step) + "y = Slice(x, s, e, a, t)"


def pads(count: int) -> Iterator[str]:
    for _ in range(count):
        before, after = RNG.integers(-3, 5, 2)
        yield ints("p", before, 0, after, 1) + "y = Pad(x, p)"


BODIES = [
    *slices(12),
    *pads(4),
    ints("p", 2, 0, 1, 0) + 'y = Pad<mode = "edge">(x, p)',
    ints("p", 2, 0, 1, 0) + 'y = Pad<mode = "reflect">(x, p)',
    ints("t", -1, 4) + "y = Reshape(x, t)",
    ints("t", 0, 2, -1) + "y = Reshape(x, t)",
    ints("t", 2, -1) + "f = Reshape(x, t)\n" + ints("u", 4, -1) + "y = Reshape(f, u)",
    ints("r", 2, 3) + "y = Tile(x, r)",
    "y = Concat<axis = 0>(x, x, x)",
    "z = Transpose(x)\n" + ints("a", 0) + "w = Unsqueeze(z, a)\nf = Flatten<axis = 2>(w)\ny = Transpose(f)",
    "s = Shape(x)\n" + ints("k", 3, 1, 1) + "c = Concat<axis = 0>(k, s)\ny = Expand(x, c)",
    "s = Shape<end = 1>(x)\n" + ints("h", 2) + "q = Div(s, h)\n" + ints("z", 0) + "y = Slice(x, z, q, z)",
    "s = Shape<end = 1>(x)\n" + ints("h", 3) + "q = Mod(s, h)\n" + ints("z", 0) + "y = Slice(x, q, s, z)",
    "s = Shape<end = 1>(x)\n" + ints("h", 4) + "q = Min(s, h)\n" + ints("z", 0) + "y = Slice(x, z, q, z)",
    "s = Shape<end = 1>(x)\n" + ints("h", 4) + "d = Sub(s, h)\nq = Abs(d)\n" + ints("z", 0) + "y = Slice(x, q, s, z)",
    "s = Shape<end = 1>(x)\nf = Cast<to = 1>(s)\nh = Constant<value_floats = [0.6]>()\nm = Mul(f, h)\nc = Ceil(m)\n"
    "q = Cast<to = 7>(c)\n" + ints("z", 0) + "y = Slice(x, z, q, z)",
    "y = Split<axis = 0, num_outputs = 1>(x)",
    "s = Shape<end = 1>(x)\n" + ints("h", 2) + "b = Less(s, h)\n" + ints("o", 1) + "w = Where(b, o, s)\n"
    + ints("z", 0) + "y = Slice(x, z, w, z)",
    "i = Constant<value_int = -1>()\ny = Gather<axis = 0>(x, i)",
    "s = Shape<end = 1>(x)\n" + ints("a", 0) + "n = Squeeze(s, a)\nz = Constant<value_int = 0>()\nt = Constant<value_int = 2>()\n"
    "r = Range(z, n, t)\ny = Gather<axis = 0>(x, r)",
    ints("a", 0) + "y = ReduceMean(x, a)",
    "m = Transpose(x)\np = MatMul(m, x)\ny = Softmax(p)",
    "c = Constant<value_floats = [1.0, 2.0, 3.0, 4.0]>()\ny = Add(x, c)",
    "f = Transpose(x)\n" + ints("a", 0) + "w = Unsqueeze(f, a)\n"
    "y = MaxPool<kernel_shape = [3], strides = [2], pads = [1, 1], ceil_mode = 1>(w)",
    "f = Transpose(x)\n" + ints("a", 0) + "w = Unsqueeze(f, a)\ny = AveragePool<kernel_shape = [2], strides = [2]>(w)",
    "k = Constant<value_floats = [2.0, 1.0]>()\ne = Constant<value_floats = [0.0]>()\n"
    'y = Resize<mode = "nearest">(x, , k)',
]  # fmt: skip


LEAST = {"AveragePool": 2, "ReduceMean": 1, "Gather": 1}
"""The smallest size at which an operator means something: a window that fits, a mean of something, a row to take."""


@pytest.mark.parametrize("body", BODIES, ids=range(len(BODIES)))
def test_structures_serve_what_their_guards_allow(body: str) -> None:
    # a first node of our own, so that its output is never the input itself
    text = f'<ir_version: 8, opset_import: ["": 18]>\ng (float[n, 4] given) => (float y) {{\nx = Neg(given)\n{body}\n}}'
    model = onnx.parser.parse_model(text)
    model.graph.output[0].CopyFrom(onnx.helper.make_empty_tensor_value_info("y"))
    graph = graph_of(model)
    assert not refusals(graph)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    structures: list[tuple[Lowered, Scope]] = []
    least = max((size for op, size in LEAST.items() if f"{op}<" in body or f"{op}(" in body), default=0)
    for n in (n for n in (4, 6, 1, 2, 3, 5, 8, 7, 12, 0) if n >= least):
        feeds = {"given": RNG.standard_normal((n, 4)).astype(np.float32)}
        want: Array | None = None
        try:
            (want,) = session.run(None, feeds)
        except Exception:
            want = None
        values = symbol_numbers(graph, feeds)
        found = next((s for s in structures if all(g.holds(values) for g in s[1].guards)), None)
        if found is None:
            try:
                found = bind(graph, feeds)
            except ShapeMismatch:
                assert want is None or n == 0, f"refused at {n}, ONNX Runtime gives {want}"
                continue
            structures.append(found)
        (got,) = replay(found[0], graph, feeds, found[1])
        if want is not None:
            assert_close(got, want, rtol=1e-5, atol=1e-6)
