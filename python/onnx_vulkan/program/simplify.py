"""Rebuilds a Program in a canonical form: transposes and reshapes sink towards the outputs until they meet and cancel.

This is also the layout pass. Windows are channels-last from their lowering, each between two transposes; sinking the one
after a window through elementwise, reducing and joining instructions brings it to the one before the next window, and the
pair is nothing. An instruction is moved only when all its full-size operands agree, so no transpose is ever added to a tensor
that had none.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from onnx_vulkan.codegen.index import reshape_groups
from onnx_vulkan.dims import Extent, broadcast_shapes
from onnx_vulkan.dtypes import DType
from onnx_vulkan.program.builder import Builder
from onnx_vulkan.program.ir import Instr, Program, Value

__all__ = ["simplify"]

BYTES = (DType.I8, DType.U8)
_JOINED = {"reshape": {"reshape"}, "transpose": {"transpose", "broadcast"}, "broadcast": {"broadcast"}}
"""Movements, and those before them with which the builder makes one of them."""
SMALL = 16
"""Elements of a constant that is worth comparing with others."""


class _Rebuild(Builder):
    """A Builder that copies a Program instruction by instruction, moving transposes and reshapes on the way."""

    def __init__(self, program: Program):
        super().__init__()
        self.inputs = list(program.inputs)
        self.new: dict[Value, Value] = {}

    def made_by(self, v: Value, op: str) -> Instr | None:
        instr = self._made.get(v)
        return instr if instr is not None and instr.op == op else None

    def get(self, v: Value) -> Value:
        return self.new.get(v, v)

    # ------------------------------------------------------------------------------------------------ instructions
    def copy(self, instr: Instr) -> None:
        self.source, self.merged = instr.source, instr.merged
        xs = [self.get(v) for v in instr.inputs]
        moved = self.sink(instr, xs)
        if moved is None:
            moved = self.again(instr, xs)
        for old, new in zip(instr.outputs, moved, strict=True):
            if new.shape != old.shape:
                new = self.reshape(new, old.shape)
            self.new[old] = new

    def again(self, instr: Instr, xs: Sequence[Value]) -> tuple[Value, ...]:
        """The same instruction on new operands; the builder's own simplifications apply."""
        a = instr.attrs
        if instr.op in ("contract", "window") and a.get("acc") is DType.I32:
            xs = [self.narrow(x) for x in xs]
        if all(map(operator.is_, xs, instr.inputs)) and not self.joins(instr):
            return self.append(instr)
        if instr.op == "reshape":
            return (self.reshape(xs[0], a["shape"]),)
        if instr.op == "transpose":
            return (self.transpose(xs[0], a["perm"]),)
        if instr.op == "broadcast":
            return (self.broadcast(xs[0], a["shape"]),)
        if instr.op == "cast":
            return (self.cast(xs[0], instr.out.dtype, saturate=a["saturate"]),)
        outputs = [(o.dtype, o.shape) for o in instr.outputs]
        return self.emit(instr.op, xs, outputs, **a)

    def narrow(self, x: Value) -> Value:
        """An integer operand of a product with 32-bit sums before it was widened: the product does that for itself."""
        made = self._made.get(x)
        if made is None:
            return x
        inner = made.inputs[0] if made.inputs else x
        if made.op == "cast" and x.dtype is DType.I32 and inner.dtype in BYTES:
            return inner
        if made.op in ("transpose", "reshape", "broadcast"):
            narrow = self.narrow(inner)
            if narrow is not inner:
                return self.again(made, [narrow])[0]
        return x

    def joins(self, instr: Instr) -> bool:
        """Whether the builder makes one instruction, or a constant, of this movement and what it moves."""
        joined = _JOINED.get(instr.op)
        if joined is None:
            return False
        (x,) = instr.inputs
        made = self._made.get(x)
        return (x.is_const and instr.op == "reshape") or (made is not None and made.op in joined)

    def sink(self, instr: Instr, xs: list[Value]) -> tuple[Value, ...] | None:
        if instr.op in ("map", "cast"):
            return self.sink_elementwise(instr, xs)
        if instr.op == "reshape":
            return self.sink_transpose_below_reshape(instr, xs[0])
        if instr.op == "contract":
            return self.sink_into_product(instr, xs)
        if instr.op == "slice" and self.made_by(xs[0], "reshape") is not None:
            return self.sink_reshape_below_slice(instr, xs[0])
        if instr.op == "transpose":
            return self.sink_reshape_below_transpose(instr, xs[0])
        if instr.op == "reduce" and self.made_by(xs[0], "reshape") is not None:
            return self.sink_reshape_below_reduce(instr, xs[0])
        if instr.op in ("reduce", "concat", "pad", "slice", "gather", "scan", "sort", "broadcast"):
            return self.sink_axes(instr, xs)
        return None

    # ------------------------------------------------------------------------------------------------ elementwise
    def sink_elementwise(self, instr: Instr, xs: list[Value]) -> tuple[Value, ...] | None:
        if all(self.is_spread(x) for x in xs):
            return self.sink_broadcast(instr, xs) if instr.out.rank else None
        full = [x for x in xs if not self.is_spread(x) and not x.is_const]
        for op in ("transpose", "reshape"):
            moved = [self.made_by(x, op) for x in full]
            if not full or not any(moved):
                continue
            first = next(m for m in moved if m is not None)
            inner: list[Value] = []
            if op == "transpose":
                perm = first.attrs["perm"]
                if not all(m is not None and m.attrs["perm"] == perm for m in moved):
                    continue
                back = [perm.index(i) for i in range(len(perm))]
                inner = [self.transpose(x, back) for x in xs]
                if any(self.made_by(x, "transpose") for x, y in zip(inner, xs, strict=True) if self.is_spread(y)):
                    continue
                y = self.again_elementwise(instr, inner)
                return (self.transpose(y, perm),)
            if any(self.made_by(x, "contract") for x in full):
                continue  # what follows a product in its own shape runs in its kernel
            of_product = [m for m in moved if m is not None and self.made_by(m.inputs[0], "contract")]
            shape = (of_product or [first])[0].inputs[0].shape
            spread = [self.respread(x, shape) if self.is_spread(x) else self.reshape(x, shape) for x in xs]
            if any(x is None for x in spread):
                continue
            y = self.again_elementwise(instr, [x for x in spread if x is not None])
            return (self.reshape(y, instr.out.shape),)
        return None

    def again_elementwise(self, instr: Instr, xs: Sequence[Value]) -> Value:
        if instr.op == "cast":
            return self.cast(xs[0], instr.out.dtype, saturate=instr.attrs["saturate"])
        return self._one("map", xs, instr.out.dtype, xs[-1].shape, fn=instr.attrs["fn"])

    def is_spread(self, x: Value) -> bool:
        """Whether *x* is a smaller tensor spread over a shape (such operands follow any re-arrangement)."""
        return self.made_by(x, "broadcast") is not None or x.rank == 0

    def respread(self, x: Value, shape: Sequence[Extent]) -> Value | None:
        """A spread operand of one shape, spread over another of equal size, where the axes allow it."""
        made = self.made_by(x, "broadcast")
        if made is None:
            return x
        inner = made.inputs[0]
        small = (*([1] * (x.rank - inner.rank)), *inner.shape)
        target: list[Extent] = [1] * len(shape)
        for a, b in reshape_groups(x.shape, shape):
            held = [small[i] for i in a]
            if held == [x.shape[i] for i in a]:
                for j in b:
                    target[j] = shape[j]
            elif any(e != 1 for e in held):
                return None
        return self.broadcast(self.reshape(inner, target), shape)

    def sink_broadcast(self, instr: Instr, xs: list[Value]) -> tuple[Value, ...] | None:
        """Operands that are all spread over the result: compute at the shape that they have together, then spread."""
        inner: list[Value] = []
        for x in xs:
            made = self.made_by(x, "broadcast")
            inner.append(made.inputs[0] if made is not None else x)
        together = broadcast_shapes(*(x.shape for x in inner))
        lead = instr.out.rank - len(together)
        if not lead and all(e != 1 or n == 1 for e, n in zip(together, instr.out.shape, strict=True)):
            return None
        y = self.again_elementwise(instr, [self.broadcast(x, together) for x in inner])
        return (self.broadcast(y, instr.out.shape),)

    # ------------------------------------------------------------------------------------------------ axes
    def sink_axes(self, instr: Instr, xs: list[Value]) -> tuple[Value, ...] | None:
        """Instructions that treat each axis by itself: rename their axes and transpose the result."""
        data = xs if instr.op == "concat" else xs[:1]
        moved = [self.made_by(x, "transpose") for x in data]
        if any(m is None or m.attrs["perm"] != moved[0].attrs["perm"] for m in moved if moved[0] is not None) or moved[0] is None:
            return None
        perm: tuple[int, ...] = moved[0].attrs["perm"]
        inner = [m.inputs[0] for m in moved if m is not None]
        back = [perm.index(i) for i in range(len(perm))]
        a = instr.attrs

        def renamed(values: Sequence[Extent]) -> list[Extent]:
            return [values[b] for b in back]

        if instr.op == "concat":
            return (self.transpose(self.concat(inner, perm[a["axis"]]), perm),)
        x = inner[0]
        if instr.op == "reduce":
            axes = sorted(perm[i] for i in a["axes"])
            y = self.reduce(a["fn"], x, axes, last=a["last"])
            kept = [i for i in range(x.rank) if i not in axes]
            return (self.transpose(y, [kept.index(p) for p in perm if p not in axes]),)
        if instr.op == "pad":
            y = self.pad(x, renamed(a["before"]), renamed(a["after"]), a["mode"], xs[1] if len(xs) > 1 else None)
            return (self.transpose(y, perm),)
        if instr.op == "slice":
            steps = [a["steps"][b] for b in back]
            return (self.transpose(self.slice(x, renamed(a["starts"]), renamed(a["sizes"]), steps), perm),)
        if instr.op == "broadcast":
            if instr.out.rank != x.rank:
                return None
            return (self.transpose(self.broadcast(x, renamed(instr.out.shape)), perm),)
        if instr.op == "gather":
            if xs[1].rank != 1:
                return None
            return (self.transpose(self.gather(x, xs[1], perm[a["axis"]], wrap=a["wrap"]), perm),)
        axis = perm[a["axis"]]
        if instr.op == "scan":
            y = self.scan(a["fn"], x, axis, exclusive=a["exclusive"], reverse=a["reverse"])
            return (self.transpose(y, perm),)
        values, indices = self.sort(x, instr.outputs[0].shape[a["axis"]], axis, largest=a["largest"])
        return self.transpose(values, perm), self.transpose(indices, perm)

    def sink_reshape_below_reduce(self, instr: Instr, x: Value) -> tuple[Value, ...] | None:
        """A reduction over axes that a reshape left whole: reduce before the reshape, so that what is around it meets in one
        index space."""
        made = self.made_by(x, "reshape")
        if made is None or instr.attrs["fn"] in ("argmax", "argmin"):
            return None
        source, reduced = made.inputs[0], set(instr.attrs["axes"])
        axes: list[int] = []
        for a, b in reshape_groups(source.shape, x.shape):
            inside = {j for j in b if x.shape[j] != 1}
            if inside & reduced and not inside <= reduced:
                return None
            if inside & reduced:
                axes += [i for i in a if source.shape[i] != 1]
        if not axes:
            return None
        y = self.reduce(instr.attrs["fn"], source, axes, last=instr.attrs["last"])
        return (self.reshape(y, instr.out.shape),)

    def sink_transpose_below_reshape(self, instr: Instr, x: Value) -> tuple[Value, ...] | None:
        """A reshape that splits or joins axes which the transpose before it left side by side."""
        made = self.made_by(x, "transpose")
        if made is None:
            return None
        perm, source = made.attrs["perm"], made.inputs[0]
        blocks: list[tuple[int, list[Extent]]] = []
        for a, b in reshape_groups(x.shape, instr.out.shape):
            axes = [perm[i] for i in a if x.shape[i] != 1]
            if any(q != p + 1 for p, q in pairwise(axes)):
                return None
            blocks.append((axes[0] if axes else -1, [instr.out.shape[j] for j in b]))
        order = sorted(range(len(blocks)), key=lambda n: blocks[n][0])
        flat = self.reshape(source, [e for n in order for e in blocks[n][1]])
        starts, at = {}, 0
        for n in order:
            starts[n] = at
            at += len(blocks[n][1])
        final = [starts[n] + k for n in range(len(blocks)) for k in range(len(blocks[n][1]))]
        return (self.transpose(flat, final),)

    # ------------------------------------------------------------------------------------------------ products
    def sink_into_product(self, instr: Instr, xs: list[Value]) -> tuple[Value, ...] | None:
        """A product whose operands are read by strides and never written out.

        A batch axis that an operand has joined from axes apart (windows and heads), or over a part of which it is spread (keys
        that several heads share), is split in all operands. A number that a slice was multiplied with multiplies the product.
        """
        found = [self.scaled_slice(x) if x.dtype is DType.F32 and instr.out.dtype is DType.F32 else None for x in xs]
        left, right = (x if f is None else f[0] for x, f in zip(xs, found, strict=True))
        factors = [f[1] for f in found if f is not None]
        batch = self.joined_batch(left) or self.joined_batch(right)
        if batch is None and not factors:
            return None
        if batch is not None:
            left, right = self.with_batch(left, batch), self.with_batch(right, batch)
        y = self.reshape(self.contract(left, right, dtype=instr.out.dtype, acc=instr.attrs["acc"]), instr.out.shape)
        for factor in factors:
            y = self.map("mul", y, factor)
        return (y,)

    def behind(self, x: Value) -> tuple[list[Instr], Value]:
        """The transposes and reshapes that make *x*, the last first, and what they re-arrange."""
        views: list[Instr] = []
        while (made := self._made.get(x)) is not None and made.op in ("transpose", "reshape"):
            views.append(made)
            x = made.inputs[0]
        return views, x

    def scaled_slice(self, x: Value) -> tuple[Value, Value] | None:
        """*x* without a number that a slice was multiplied with on the way, and the number; None where there was none."""
        views, x = self.behind(x)
        made = self.made_by(x, "map")
        if made is None or made.attrs["fn"] != "mul":
            return None
        for y, factor in (made.inputs, made.inputs[::-1]):
            spread = self.made_by(factor, "broadcast")
            data = spread.inputs[0].data if spread is not None else None
            if data is None or data.size != 1 or not np.isfinite(data).all() or not data.any():
                continue
            if self.made_by(self.behind(y)[1], "slice") is None:
                continue
            for view in reversed(views):
                (y,) = self.again(view, [y])
            return y, self.const(data.reshape(()))
        return None

    def untransposed(self, x: Value) -> Value:
        """What *x* is with its last two axes exchanged, where it was made so; else *x*."""
        made, r = self.made_by(x, "transpose"), x.rank
        return made.inputs[0] if made is not None and made.attrs["perm"] == (*range(r - 2), r - 1, r - 2) else x

    def joined_batch(self, x: Value) -> tuple[Extent, ...] | None:
        """The batch axes before a reshape that joined such as no strides can join, None where there was none."""
        x = self.untransposed(x)
        made = self.made_by(x, "reshape")
        view = self._made.get(made.inputs[0]) if made is not None else None
        if view is None or view.op not in ("broadcast", "transpose", "slice") or view.out.shape[-2:] != x.shape[-2:]:
            return None
        whole, inner = view.out.shape, view.inputs[0].shape
        small = (*([1] * (len(whole) - len(inner))), *inner) if view.op == "broadcast" else whole
        for a, _ in reshape_groups(whole[:-2], x.shape[:-2]):
            own = [small[i] == whole[i] for i in a if whole[i] != 1]
            if len(own) > 1 and (view.op != "broadcast" or (True in own and False in own)):
                return tuple(e for e in whole[:-2] if e != 1)
        return None

    def with_batch(self, x: Value, batch: tuple[Extent, ...]) -> Value:
        """Operand *x* of a product with other batch axes."""
        inner = self.untransposed(x)
        y = self.reshape(inner, (*batch, *inner.shape[-2:]))
        return y if inner is x else self.transpose(y, [*range(len(batch)), len(batch) + 1, len(batch)])

    def sink_reshape_below_transpose(self, instr: Instr, x: Value) -> tuple[Value, ...] | None:
        """Axes of a product that a reshape joined or split move together: then the product itself can store them transposed."""
        made = self.made_by(x, "reshape")
        if made is None or self.made_by(made.inputs[0], "contract") is None:
            return None
        source = made.inputs[0]
        runs = {tuple(j for j in b if x.shape[j] != 1): list(a) for a, b in reshape_groups(source.shape, x.shape)}
        moved = [p for p in instr.attrs["perm"] if x.shape[p] != 1]
        perm = runs.pop((), [])
        while moved:
            run = next((r for r in runs if r == tuple(moved[: len(r)])), None)
            if run is None:
                return None
            perm += runs.pop(run)
            moved = moved[len(run) :]
        return (self.reshape(self.transpose(source, perm), instr.out.shape),)

    def sink_reshape_below_slice(self, instr: Instr, x: Value) -> tuple[Value, ...] | None:
        """A slice of axes that a reshape left as they were."""
        made = self.made_by(x, "reshape")
        if made is None:
            return None
        a = instr.attrs
        source = made.inputs[0]
        starts: list[Extent] = [0] * source.rank
        sizes, steps = list(source.shape), [1] * source.rank
        for before, after in reshape_groups(source.shape, x.shape):
            cut = [j for j in after if not (a["starts"][j] == 0 and a["sizes"][j] == x.shape[j] and a["steps"][j] == 1)]
            if not cut:
                continue
            own = [i for i in before if source.shape[i] != 1]
            if len(own) != 1 or len(cut) != 1 or [j for j in after if x.shape[j] != 1] != cut:
                return None
            (i,), (j,) = own, cut
            starts[i], sizes[i], steps[i] = a["starts"][j], a["sizes"][j], a["steps"][j]
        y = self.slice(source, starts, sizes, steps)
        return (self.reshape(y, instr.out.shape),)


def simplify(program: Program) -> Program:
    """The program in canonical form, dead instructions dropped, equal ones shared. Must run in the scope it was lowered in."""
    rebuild = _Rebuild(program)
    for instr in program.instrs:
        rebuild.copy(instr)
    outputs = [rebuild.get(v) for v in program.outputs]
    return _live(_shared(Program(list(program.inputs), outputs, rebuild.instrs)))


def _live(program: Program) -> Program:
    """Without the instructions that no output needs."""
    wanted = set(program.outputs)
    kept: list[Instr] = []
    for instr in reversed(program.instrs):
        if any(o in wanted for o in instr.outputs):
            kept.append(instr)
            wanted.update(instr.inputs)
    return Program(program.inputs, program.outputs, kept[::-1])


def _identity(instr: Instr, inputs: tuple[Value, ...]) -> object:
    """What equal instructions have in common, hashable."""
    outputs = tuple([(o.dtype, o.shape) for o in instr.outputs])
    try:
        key = (instr.op, inputs, outputs, *instr.attrs.items())  # in the order that the builder always writes them
        hash(key)
    except TypeError:
        return instr.op, inputs, outputs, repr(sorted(instr.attrs.items()))
    return key


def _shared(program: Program) -> Program:
    """Equal instructions on equal operands are computed once. A constant of a few equal bytes is one operand."""
    seen: dict[object, Instr] = {}
    same: dict[Value, Value] = {}
    constants: dict[object, Value] = {}
    kept: list[Instr] = []
    for instr in program.instrs:
        for v in instr.inputs:
            if v not in same and isinstance(v.data, np.ndarray) and v.data.size <= SMALL:
                same[v] = constants.setdefault((v.dtype, v.shape, v.data.tobytes()), v)
        inputs = tuple([same.get(v, v) for v in instr.inputs])
        key = _identity(instr, inputs)
        twin = seen.get(key)
        if twin is not None:
            same.update(zip(instr.outputs, twin.outputs, strict=True))
            continue
        if inputs != instr.inputs:
            instr = Instr(instr.op, inputs, instr.outputs, instr.attrs, instr.source, instr.merged)
        seen[key] = instr
        kept.append(instr)
    return Program(program.inputs, [same.get(v, v) for v in program.outputs], kept)
