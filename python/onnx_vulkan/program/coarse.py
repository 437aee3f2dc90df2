"""Finds the functions whose last bits nobody sees: their results only reach float16 or bfloat16.

A value *may be coarse* where an error of 2^-16 of it is at most about such an error of everything that is rounded to half floats
or bfloats in the end: nothing on the way takes a difference, rounds, compares (but with 0), or is an output. Instructions that
make such values get the attr ``coarse``; a kernel then computes exponentials, quotients, ``erf`` and ``tanh`` with fewer
operations. Their error is below 2^-15 of the result (of ``erf`` and ``tanh`` also below 2^-21), where the unit of float16 is
2^-11 and that of bfloat16 2^-8.

Quotients of half floats themselves may be whole numbers, which must stay whole where the next function rounds. They are coarse
where only functions read them whose results are none (GELU's ``erf``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from onnx_vulkan.dtypes import DType
from onnx_vulkan.program.ir import COMPARE, Instr, Program, Value

__all__ = ["mark_coarse"]

_HALF = frozenset({DType.F16, DType.BF16})
_FUNCTIONS = frozenset({"exp", "div", "erf", "tanh"})
"""What has a coarse form."""

_MOVES = frozenset({"reshape", "transpose", "broadcast", "slice", "concat", "pad", "gather", "gather_elements", "gather_nd"})
_KEEPS = frozenset({"neg", "abs", "mul", "div", "sqrt", "rsqrt", "reciprocal", "erf", "tanh", "min", "max", "select"})
"""Functions whose result is no further off, relatively, than an operand."""
_BOUNDED = frozenset({"erf", "tanh"})
"""Functions whose coarse forms are right to an absolute error like that of a float32 sum with 1."""
_NEVER_WHOLE = frozenset({"erf", "exp", "tanh"})
"""Functions whose results are no whole numbers but at their ends and at 0."""
_POSITIVE = frozenset({"exp", "abs", "sqrt", "rsqrt"})
_KEEPS_SIGN = frozenset({"add", "mul", "div", "min", "erf", "tanh", "log1p", "reciprocal"})


def _scalar(v: Value, producers: Mapping[Value, Instr]) -> float | None:
    """The number that a constant is, also behind views and casts."""
    while v.data is None:
        made = producers.get(v)
        if made is None or made.op not in ("broadcast", "reshape", "cast"):
            return None
        v = made.inputs[0]
    return float(np.asarray(v.data).reshape(-1)[0]) if v.data.size == 1 and v.dtype.is_float else None


class _Marker:
    def __init__(self, program: Program):
        self.program = program
        self.producers = program.producers()
        self.users = program.users()
        self.outputs = set(program.outputs)
        self.positive: set[Value] = set()
        self.coarse: set[Value] = set()

    def not_negative(self, v: Value) -> bool:
        """Whether *v* is never below zero."""
        number = _scalar(v, self.producers)
        return v in self.positive or (number is not None and number >= 0)

    def find_positive(self) -> None:
        for instr in self.program.instrs:
            fn = instr.attrs.get("fn")
            if instr.op == "map":
                known = fn in _POSITIVE
                known |= fn in _KEEPS_SIGN and all(map(self.not_negative, instr.inputs))
                known |= fn == "max" and any(map(self.not_negative, instr.inputs))
                known |= fn == "select" and all(map(self.not_negative, instr.inputs[1:]))
                known |= fn == "mul" and instr.inputs[0] is instr.inputs[1]
            elif instr.op == "reduce":
                known = fn in ("sum", "max", "min") and self.not_negative(instr.inputs[0])
            else:
                known = instr.op in ("cast", "reshape", "transpose", "broadcast", "slice") and self.not_negative(instr.inputs[0])
            if known:
                self.positive.update(instr.outputs)

    def passes(self, user: Instr, v: Value) -> bool:
        """Whether *user* may read *v* coarsely."""
        (out, *more) = user.outputs
        fn = user.attrs.get("fn")
        if (user.op == "cast" and out.dtype in _HALF) or fn == "isnan":
            return True
        if user.op == "map" and fn in COMPARE:
            return any(_scalar(x, self.producers) == 0 for x in user.inputs if x is not v)
        if out not in self.coarse or more:
            return False
        if user.op == "map":
            if fn == "select":
                return v is not user.inputs[0]
            if fn == "add":
                return all(map(self.not_negative, user.inputs)) or self.near_one(user, v)
            return fn in _KEEPS or (fn == "log1p" and self.not_negative(v))
        if user.op == "reduce":
            return fn in ("max", "min") or (fn == "sum" and self.not_negative(v))
        return user.op in _MOVES or (user.op == "cast" and out.dtype is DType.F32)

    def near_one(self, user: Instr, v: Value) -> bool:
        """Whether *user* adds a number of at least 1 to a function that is right to an absolute error."""
        made = self.producers.get(v)
        numbers = [_scalar(x, self.producers) for x in user.inputs if x is not v]
        bounded = made is not None and made.op == "map" and made.attrs["fn"] in _BOUNDED
        return bounded and len(numbers) == 1 and numbers[0] is not None and abs(numbers[0]) >= 1

    def half_quotient(self, instr: Instr) -> bool:
        """Whether *instr* makes a quotient of half floats that may be coarse."""
        (out, *_) = instr.outputs
        users = self.users.get(out, ())
        half = instr.op == "map" and instr.attrs["fn"] == "div" and out.dtype in _HALF
        return half and out not in self.outputs and all(u.op == "map" and u.attrs["fn"] in _NEVER_WHOLE for u in users)

    def marked(self) -> Program:
        self.find_positive()
        instrs: list[Instr] = []
        for instr in reversed(self.program.instrs):
            (out, *more) = instr.outputs
            wide = out.dtype is DType.F32 and not more
            if wide and out not in self.outputs and all(self.passes(user, out) for user in self.users.get(out, ())):
                self.coarse.add(out)
                if instr.op == "map" and instr.attrs["fn"] in _FUNCTIONS:
                    instr = replace(instr, attrs={**instr.attrs, "coarse": True})
            elif self.half_quotient(instr):
                instr = replace(instr, attrs={**instr.attrs, "coarse": True})
            instrs.append(instr)
        return replace(self.program, instrs=instrs[::-1])


def mark_coarse(program: Program) -> Program:
    """*program* with the attr ``coarse`` where it may be."""
    return _Marker(program).marked() if any(v.dtype in _HALF for i in program.instrs for v in i.outputs) else program
