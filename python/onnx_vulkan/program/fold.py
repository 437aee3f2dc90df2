"""Computes what depends on constants alone, once: transposed weights, folded scales, position tables.

Results are named after how they were made, so that a second structure of the same model finds them instead of computing (and
uploading) them again.
"""

from __future__ import annotations

import hashlib

import numpy as np

from onnx_vulkan.dims import Dim
from onnx_vulkan.program.interp import Evaluator
from onnx_vulkan.program.ir import Instr, Program, Value

__all__ = ["constant_name", "fold_constants"]

FREE_BYTES = 1 << 20
"""Constants up to this size are made whatever they are made from; larger ones only where they replace as much."""

_CHEAP = frozenset({"broadcast", "iota"})
"""Left in place for kernels to compute: a constant in memory would be slower to read than to make."""


def constant_name(v: Value) -> str:
    """A name that two constants share only if their bytes are equal: the initializer's, or a hash."""
    assert v.data is not None
    if v.name:
        return v.name
    data = np.ascontiguousarray(v.data)
    digest = hashlib.blake2b(data.view(np.uint8).data if data.size else b"", digest_size=12)
    v.name = f"#{digest.hexdigest()}:{v.dtype.onnx_name}{list(data.shape)}"
    return v.name


class _Folder:
    def __init__(self, program: Program, known: dict[str, Value]):
        self.program = program
        self.known = known
        self.producers = program.producers()
        self.foldable: dict[Value, bool] = {}
        self.made: dict[Value, Value] = {}
        self.machine = Evaluator({})

    def can_fold(self, instr: Instr) -> bool:
        """Whether the results depend on constants only, have known sizes, and are not far larger than what they come from."""
        if instr.op == "dims" or not all(v.is_const or self.foldable.get(v, False) for v in instr.inputs):
            return False
        if any(v.packed for v in instr.inputs):
            return False
        out_bytes = in_bytes = 0
        for o in instr.outputs:
            if any(isinstance(e, Dim) for e in o.shape):
                return False
            out_bytes += _bytes(o)
        if instr.op == "iota":
            attrs = instr.attrs
            return out_bytes <= FREE_BYTES and not isinstance(attrs["start"], Dim) and not isinstance(attrs["step"], Dim)
        in_bytes = sum(_bytes(v) for v in instr.inputs)
        if any(isinstance(e, Dim) for v in instr.attrs.values() if isinstance(v, tuple) for e in v):
            return False
        return out_bytes <= max(FREE_BYTES, 2 * in_bytes)

    def constant(self, v: Value) -> Value:
        """*v* as a constant."""
        if v.is_const:
            return v
        if v in self.made:
            return self.made[v]
        instr = self.producers[v]
        inputs = [self.constant(x) for x in instr.inputs]
        recipe = f"{instr.op}{sorted(instr.attrs.items())!r}" + "|".join(constant_name(x) for x in inputs)
        digest = hashlib.blake2b(recipe.encode(), digest_size=12).hexdigest()
        names = [f"={digest}.{n}:{o.dtype.onnx_name}{list(o.shape)}" for n, o in enumerate(instr.outputs)]
        if all(n in self.known for n in names):
            results = [self.known[n] for n in names]
        else:
            with np.errstate(all="ignore"):
                arrays = self.machine.run(instr, [self.machine.read({}, x) for x in inputs])
            # A transposed weight stays a view of the model's bytes: who uploads it brings them in order, several weights at once.
            results = [Value(o.dtype, o.shape, n, np.asarray(a)) for o, n, a in zip(instr.outputs, names, arrays, strict=True)]
            self.known.update(zip(names, results, strict=True))
        for o, result in zip(instr.outputs, results, strict=True):
            self.made[o] = result
        return self.made[v]

    def run(self) -> Program:
        for instr in self.program.instrs:
            fold = self.can_fold(instr)
            for o in instr.outputs:
                self.foldable[o] = fold
        kept: list[Instr] = []
        for instr in self.program.instrs:
            if self.foldable[instr.outputs[0]] and instr.op not in _CHEAP:
                continue
            inputs = tuple(self.operand(v) for v in instr.inputs)
            kept.append(Instr(instr.op, inputs, instr.outputs, instr.attrs, instr.source, instr.merged))
        return Program(self.program.inputs, [self.operand(v) for v in self.program.outputs], kept)

    def operand(self, v: Value) -> Value:
        """A constant where *v* was folded, but what is cheap to make stays as it is."""
        if not self.foldable.get(v, False) or self.producers[v].op in _CHEAP:
            return v
        return self.constant(v)


def _bytes(v: Value) -> int:
    n = v.dtype.size
    for e in v.shape:
        n *= e if isinstance(e, int) else 1 << 20
    return n


def fold_constants(program: Program, known: dict[str, Value]) -> Program:
    """The program with constant parts computed. *known* keeps results by name between calls for one model."""
    return _Folder(program, known).run()
