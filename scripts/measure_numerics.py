#!/usr/bin/env python3
"""Measures how far each transcendental function of a device is from the exact result, in float32.

    python scripts/measure_numerics.py [--device NAME] [--samples N] [--write]

Prints a table: the function, its documented bound, the worst error found and where, in units of the last place (ulp) of the
exact result; for numbers below the normal range in units of the smallest normal number's last place. ``--write`` puts the table
into docs/numerics.md. Exit status 1 when a bound does not hold.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto, helper
from onnx_vulkan import Session

Array = np.ndarray[Any, Any]
Exact = Callable[..., Array]
TINY = np.float64(np.finfo(np.float32).tiny)
DOCUMENT = Path(__file__).parents[1] / "docs" / "numerics.md"
BEGIN, END = "<!-- measured by scripts/measure_numerics.py -->\n", "<!-- end -->\n"

_erf = np.vectorize(math.erf, otypes=[np.float64])
_erfc = np.vectorize(math.erfc, otypes=[np.float64])


def _sigmoid(x: Array) -> Array:
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + e), e / (1 + e))


def _gelu(x: Array) -> Array:
    return 0.5 * x * _erfc(-x / math.sqrt(2))


def _gelu_tanh(x: Array) -> Array:
    return x * _sigmoid(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))


@dataclass(frozen=True)
class Function:
    """``nodes`` are ONNX operators in a row, each with its attributes; ``exact`` gives the result in float64; ``bound`` is in
    ulp."""

    name: str
    nodes: Sequence[tuple[str, dict[str, Any]]]
    exact: Exact
    bound: float
    opset: int = 20
    operands: int = 1
    slow: bool = False
    of_argument: bool = False
    """The unit is the argument's last place where that is larger: what is left of a tail is not exact."""


def _one(op: str, exact: Exact, bound: float, **more: Any) -> Function:
    return Function(op, [(op, {})], exact, bound, **more)


FUNCTIONS = [
    _one("Exp", np.exp, 2),
    _one("Log", np.log, 2),
    _one("Sin", np.sin, 3),
    _one("Cos", np.cos, 3),
    _one("Tan", np.tan, 5),
    _one("Asin", np.arcsin, 3),
    _one("Acos", np.arccos, 2),
    _one("Atan", np.arctan, 3),
    _one("Sinh", np.sinh, 4),
    _one("Cosh", np.cosh, 4),
    _one("Tanh", np.tanh, 2),
    _one("Asinh", np.arcsinh, 4),
    _one("Acosh", np.arccosh, 4),
    _one("Atanh", np.arctanh, 4),
    _one("Erf", _erf, 2, slow=True),
    _one("Sqrt", np.sqrt, 2),
    _one("Reciprocal", lambda x: 1 / x, 2),
    Function("1/Sqrt", [("Sqrt", {}), ("Reciprocal", {})], lambda x: 1 / np.sqrt(x), 2),
    _one("Pow", np.power, 6, operands=2),
    _one("Sigmoid", _sigmoid, 3),
    _one("Softplus", lambda x: np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x))), 4),
    _one("Gelu", _gelu, 2, slow=True, of_argument=True),
    Function("Gelu tanh", [("Gelu", {"approximate": "tanh"})], _gelu_tanh, 2, of_argument=True),
    _one("Mish", lambda x: x * np.tanh(np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))), 3, of_argument=True),
]


def numbers(count: int, rng: np.random.Generator) -> Array:
    """Float32 numbers of every size and sign, more of them where functions turn, and the special ones."""
    special = [0.0, 1, 0.5, 2, 3, math.inf, math.nan, 1e-40, TINY, 3.4e38, math.pi, math.pi / 2, math.e, 2.0**24, 88.72, 103.9]
    every = rng.integers(0, 1 << 31, count // 2, dtype=np.uint32)  # all exponents alike
    near = 1 + rng.choice([-1, 1], count // 6) * np.exp2(rng.uniform(-24, 0, count // 6))
    small, large = rng.uniform(0, 10, count // 6), rng.uniform(0, 110, count // 6)
    with np.errstate(all="ignore"):
        positive = np.concatenate([special, every.view(np.float32), near, small, large]).astype(np.float32)
    return np.concatenate([positive, -positive])


def operands_of(function: Function, count: int, rng: np.random.Generator) -> list[Array]:
    """Arguments for a function; a power's are such that its result is mostly a finite number."""
    x = numbers(count // 20 if function.slow else count, rng)
    if function.operands == 1:
        return [x]
    positive = np.abs(x)
    with np.errstate(all="ignore"):
        y = rng.uniform(-88, 88, len(x)) / np.log(positive)
    whole = rng.integers(-9, 10, len(x))
    return [np.concatenate([positive, x]), np.concatenate([y, whole]).astype(np.float32)]


def ulps(got: Array, exact: Array, scale: Array | None = None) -> Array:
    """The error in units of the last place of the exact result (or of *scale*); a NaN or an infinity has to be one."""
    near = exact.astype(np.float32)
    size = near if scale is None else np.where(np.isfinite(scale) & (np.abs(scale) > np.abs(near)), scale, near)
    unit = np.spacing(np.maximum(np.abs(size), np.float32(TINY))).astype(np.float64)
    error = np.abs(got.astype(np.float64) - exact) / unit
    error = np.where(np.abs(exact) < TINY, np.maximum(np.abs(got.astype(np.float64)) - TINY, 0) / unit, error)
    error = np.where(np.isinf(near), np.where(got == near, 0, np.inf), error)
    return np.where(np.isnan(exact), np.where(np.isnan(got), 0, np.inf), np.where(np.isnan(got), np.inf, error))


def run(function: Function, operands: Sequence[Array], device: str | None = None) -> Array:
    """The function on the device, as a model."""
    names = [f"x{i}" for i in range(len(operands))]
    nodes, given = [], names
    for n, (op, attributes) in enumerate(function.nodes):
        nodes.append(helper.make_node(op, given, [f"y{n}"], **attributes))
        given = [f"y{n}"]
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n"]) for n in (*names, *given)]
    graph = helper.make_graph(nodes, function.name, ends[:-1], ends[-1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", function.opset)], ir_version=9)
    with Session.load(model.SerializeToString(), device=device) as session:
        (result,) = session.run(dict(zip(names, operands, strict=True))).values()
    return result


def measure(function: Function, count: int, device: str | None = None) -> tuple[float, tuple[float, ...]]:
    """The worst error, and the arguments that had it."""
    operands = operands_of(function, count, np.random.default_rng(1))
    got = run(function, operands, device)
    with np.errstate(all="ignore"):
        wide = [x.astype(np.float64) for x in operands]
        # A device may take a subnormal argument for a zero of its sign.
        flushed = [np.where(np.abs(x) < TINY, np.copysign(0.0, x), x) for x in wide]
        scale = operands[0] if function.of_argument else None
        error = np.minimum(*(ulps(got, function.exact(*x), scale) for x in (wide, flushed)))
    worst = int(np.argmax(error))
    return float(error[worst]), tuple(float(x[worst]) for x in operands)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device")
    parser.add_argument("--samples", type=int, default=1_000_000)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    lines = ["| function | bound (ulp) | worst error found | at |\n", "| --- | --- | --- | --- |\n"]
    broken = False
    for function in FUNCTIONS:
        worst, where = measure(function, options.samples, options.device)
        broken |= not worst <= function.bound
        place = ", ".join(f"{x:.9g}" for x in where)
        name = f"{function.name} (of the argument)" if function.of_argument else function.name
        lines.append(f"| {name} | {function.bound:g} | {worst:.2f} | {place} |\n")
    print("".join(lines), end="")
    if options.write:
        text = DOCUMENT.read_text(encoding="utf-8")
        head, rest = text.split(BEGIN)
        DOCUMENT.write_text(head + BEGIN + "".join(lines) + END + rest.split(END)[1], encoding="utf-8")
    return int(broken)


if __name__ == "__main__":
    sys.exit(main())
