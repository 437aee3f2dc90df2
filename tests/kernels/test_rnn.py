"""Recurrent kernels against the interpreter."""

from __future__ import annotations

import itertools

import numpy as np
import onnx_vulkan.kernels.rnn  # noqa: F401  (registers the family)
import pytest
from onnx_vulkan.dims import symbol
from onnx_vulkan.dtypes import DType
from onnx_vulkan.program import composites
from onnx_vulkan.program.builder import Builder
from run_step import check_program

RNG = np.random.default_rng(2)
DEFAULTS = {"lstm": ("sigmoid", "tanh", "tanh"), "gru": ("sigmoid", "tanh"), "rnn": ("tanh",)}
GATES = {"lstm": 4, "gru": 3, "rnn": 1}


def check(kind, steps, batch, hidden, *, direction="forward", dtype=DType.F32, optional=(), acts=None, tolerance=2e-6,
          symbols=(None, None), options=None, **attrs):  # fmt: skip
    directions = 2 if direction == "bidirectional" else 1
    g = GATES[kind]
    shapes = {"rb": (directions, hidden), "h0": (directions, batch, hidden), "c0": (directions, batch, hidden)}
    shapes |= {"p": (directions, 3 * hidden), "xw": (steps, batch, directions * g * hidden)}
    shapes |= {"r": (directions, hidden, g * hidden)}
    feeds = {n: RNG.standard_normal(shapes[n]).astype(dtype.numpy) for n in ["xw", "r", *optional] if n != "lens"}
    feeds["r"] = (feeds["r"].astype(np.float32) / np.sqrt(hidden)).astype(dtype.numpy)
    if "lens" in optional:
        feeds["lens"] = RNG.integers(0, steps + 1, batch).astype(np.int32)
    b = Builder()

    def declared(shape):
        named = {e: s for e, s in zip((steps, batch), symbols, strict=True) if s is not None}
        return [named.get(e, e) for e in shape]

    values = {n: b.input(n, DType.of(a.dtype), declared(a.shape) if n != "r" else a.shape) for n, a in feeds.items()}
    names = acts or [(n, *composites.RNN_ACTIVATIONS[n]) for n in DEFAULTS[kind]] * directions
    outs = composites.rnn(
        b, kind, values["xw"], values["r"], direction=direction, hidden=hidden, activations=names,
        **{n: values[n] for n in optional}, **attrs,
    )  # fmt: skip
    check_program(b, outs, feeds, atol=tolerance, rtol=tolerance, **(options or {}))


KINDS = [("lstm", {}), ("lstm", {"input_forget": True}), ("gru", {}), ("gru", {"linear_before_reset": True}), ("rnn", {})]


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("n", range(len(KINDS)))
def test_kinds(n, direction):
    kind, attrs = KINDS[n]
    optional = ["h0", "lens"]
    optional += ["c0", "p"] if kind == "lstm" else []
    optional += ["rb"] if attrs.get("linear_before_reset") else []
    check(kind, 5, 3, 7, direction=direction, **attrs)
    check(kind, 4, 5, 33, direction=direction, optional=optional, clip=0.7, **attrs)


@pytest.mark.parametrize("hidden", [1, 2, 31, 64, 100, 257, 1000, 1024])
def test_hidden_sizes(hidden):
    for kind, attrs in KINDS[0], KINDS[2], KINDS[3]:
        check(kind, 2, 2, hidden, direction="bidirectional", optional=["h0"], tolerance=5e-6, **attrs)


def test_more_units_than_threads_and_many_sequences():
    for kind, attrs in KINDS:
        check(kind, 2, 3, 300, options={"limits": {"max_workgroup_invocations": 128}}, tolerance=5e-6, **attrs)
        check(kind, 3, 515, 9, optional=["lens"], **attrs)
        check(kind, 2, 1, 48, options={"limits": {"max_workgroup_invocations": 256}}, **attrs)


def test_no_steps_and_no_sequences():
    for kind in DEFAULTS:
        check(kind, 0, 3, 4, optional=["h0"])
        check(kind, 3, 0, 4, optional=["h0"])


@pytest.mark.parametrize("dtype,tolerance", [(DType.F16, 2e-3), (DType.BF16, 1.6e-2)])
def test_halves(dtype, tolerance):
    for kind in DEFAULTS:
        check(kind, 6, 2, 20, dtype=dtype, optional=["h0"], tolerance=tolerance)


def test_activations():
    names = list(composites.RNN_ACTIVATIONS)
    for n in range(0, len(names), 3):
        three = [names[(n + i) % len(names)] for i in range(3)]
        acts = [(name, 0.3 * (i + 1), 0.1 * i) for i, name in enumerate(three)]
        check("lstm", 3, 2, 5, acts=acts, optional=["c0"], tolerance=1e-5)
        # each direction its own
        acts = [(name, 0.5, 0.2) for name in itertools.islice(itertools.cycle(names), n, n + 4)]
        check("gru", 3, 2, 5, direction="bidirectional", acts=acts, tolerance=1e-5)


def test_doubles():
    for kind in DEFAULTS:
        check(kind, 4, 2, 12, dtype=DType.F64, optional=["h0"], tolerance=1e-13)


def test_run_time_extents():
    for steps, batch in (5, 2), (3, 4):
        check("lstm", steps, batch, 6, optional=["h0"], symbols=(symbol("s"), symbol("b")))
