"""The composite ``attention``: matrix product, softmax of the scores, matrix product, without the scores in memory.

Operands ``q [*b, S, D]``, ``k [*b, D, T]`` (as ``contract`` takes it), ``v [*b, T, E]``, then any number of float32 or bool
operands that broadcast to the scores ``[*b, S, T]``. The result is ``[*b, S, E]``. Attrs:

``score``
    what happens to a score, in order: steps ``(fn, arguments)``, ``fn`` an elementwise function, an argument the number of an
    operand or :data:`SCORE` for the score so far. Scores and all steps are float32.
``empty``
    the weights of a query all of whose scores are -inf: ``nan`` as the division gives them, ``zero``, or ``clean``: zero also
    where a score is NaN.
``causal``
    a number d where the last step makes -inf of the scores of exactly those keys whose index is more than their query's plus d,
    None where that is not known.
``acc``
    float32, the dtype of both sums.

:func:`fuse_attention` finds it in a Program, however a model wrote it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from onnx_vulkan.codegen.index import reshape_groups
from onnx_vulkan.dims import Extent, product
from onnx_vulkan.dtypes import DType
from onnx_vulkan.program import composites
from onnx_vulkan.program.builder import Builder
from onnx_vulkan.program.causal import causal_offset
from onnx_vulkan.program.composites import DECOMPOSITIONS
from onnx_vulkan.program.ir import Instr, Program, Value

__all__ = ["SCORE", "attention", "fuse_attention", "probabilities", "scores"]

SCORE = -1
_FLOATS = frozenset({DType.F32, DType.F16, DType.BF16})
MAX_STEPS = 12
"""Steps of a score: what is longer stays as it was written."""

Step = tuple[str, tuple[int, ...]]


def attention(
    b: Builder, q: Value, k: Value, v: Value, others: Sequence[Value] = (), score: Sequence[Step] = (), empty: str = "nan",
    dtype: DType | None = None, causal: Extent | None = None,
) -> Value:  # fmt: skip
    """The composite described above."""
    shape = (*q.shape[:-1], v.shape[-1])
    attrs = {"score": tuple(score), "empty": empty, "causal": causal, "acc": DType.F32}
    return b.emit("attention", [q, k, v, *others], [(dtype or v.dtype, shape)], **attrs)[0]


# ------------------------------------------------------------------------------------------------------ decomposition


def scores(b: Builder, instr: Instr) -> Value:
    """The scores ``[*b, S, T]`` after all steps."""
    x = b.contract(instr.inputs[0], instr.inputs[1], dtype=DType.F32, acc=DType.F32)
    for fn, arguments in instr.attrs["score"]:
        x = b.map(fn, *(x if n == SCORE else instr.inputs[n] for n in arguments))
    return x


def probabilities(b: Builder, instr: Instr, x: Value) -> Value:
    """The weights that scores *x* give, in the dtype of the values that they weigh."""
    empty = instr.attrs["empty"]
    p = composites.masked_softmax(b, x) if empty == "zero" else composites.softmax(b, x)
    if empty == "clean":
        p = b.map("select", b.map("isnan", p), b.scalar(0, p.dtype), p)
    return b.cast(p, instr.inputs[2].dtype)


def _decompose(b: Builder, instr: Instr) -> tuple[Value, ...]:
    p = probabilities(b, instr, scores(b, instr))
    return (b.contract(p, instr.inputs[2], dtype=instr.out.dtype, acc=DType.F32),)


DECOMPOSITIONS["attention"] = _decompose


# ---------------------------------------------------------------------------------------------------------- the pass


@dataclass(frozen=True, slots=True)
class _Found:
    """An attention as a model wrote it, ``q`` before any reshape. A step's operands are constants or values of the score's shape
    at that step, None the score."""

    first: Instr
    q: Value
    second: Instr
    steps: tuple[tuple[str, tuple[Value | None, ...]], ...]
    spaces: tuple[tuple[Extent, ...], ...]
    empty: str


def fuse_attention(program: Program) -> Program:
    """The program with each ``contract``, softmax, ``contract`` as one ``attention``, where nobody else reads the scores.

    Runs last: the operands that it makes are views as they stand.
    """
    finder = _Finder(program)
    replaced: dict[Instr, list[Instr]] = {}
    for instr in program.instrs:
        if instr.op == "contract":
            found = finder.match(instr)
            made = _written(found, finder.producers) if found is not None else None
            if made is not None:
                replaced[instr] = made
    if not replaced:
        return program
    instrs = [i for instr in program.instrs for i in replaced.get(instr, [instr])]
    wanted = set(program.outputs)
    kept: list[Instr] = []
    for instr in reversed(instrs):
        if any(o in wanted for o in instr.outputs):
            kept.append(instr)
            wanted.update(instr.inputs)
    gone = set(program.instrs).difference(kept)
    for second, made in replaced.items():
        sources = _sources(second, gone, finder.producers)
        for instr in made:
            if instr.op == "attention":
                instr.merged = sources
    return Program(program.inputs, program.outputs, kept[::-1])


def _sources(second: Instr, gone: Collection[Instr], producers: Mapping[Value, Instr]) -> tuple[str, ...]:
    """Whose instructions went with *second*: those that led to it alone."""
    found: dict[str, None] = {}
    seen: set[Instr] = set()
    todo = [second]
    while todo:
        instr = todo.pop()
        seen.add(instr)
        found.update(dict.fromkeys((instr.source, *instr.merged)))
        made = [producers[v] for v in instr.inputs if v in producers]
        todo.extend(i for i in made if i in gone and i not in seen)
    return tuple(reversed(found))


class _Finder:
    def __init__(self, program: Program):
        self.producers = program.producers()
        self.users = program.users()
        self.outputs = set(program.outputs)

    def made(self, v: Value, op: str, fn: str = "") -> Instr | None:
        """The instruction that makes *v* when it is of this kind."""
        made = self.producers.get(v)
        return made if made is not None and made.op == op and (not fn or made.attrs.get("fn") == fn) else None

    def read_by(self, v: Value, times: int) -> bool:
        """Whether *v* is read *times* and is no output."""
        return v not in self.outputs and len(self.users.get(v, ())) == times

    def match(self, second: Instr) -> _Found | None:
        """The attention whose last product is *second*."""
        p, v = second.inputs
        if second.attrs["acc"] is not DType.F32 or v.dtype not in _FLOATS or second.out.dtype not in _FLOATS:
            return None
        spaces = [p.shape]
        while (made := self.producers.get(p)) is not None and made.op in ("cast", "reshape"):
            if not self.read_by(p, 1) or not self.passes(made):
                return None
            p = made.inputs[0]
            spaces.append(p.shape)
        softmax = self.softmax(p)
        if softmax is None:
            return None
        x, empty = softmax
        chain = self.chain(x)
        if chain is None:
            return None
        first, steps, others = chain
        return _Found(first, self.whole(first.inputs[0]), second, steps, (*spaces, *others), empty)

    def passes(self, made: Instr) -> bool:
        """Whether a cast or reshape leaves scores what they are."""
        x, y = made.inputs[0], made.out
        if made.op == "cast":
            return x.dtype in _FLOATS and y.dtype in _FLOATS
        return bool(x.rank and y.rank) and x.shape[-1] == y.shape[-1]

    # ------------------------------------------------------------------------------------------------ softmax
    def softmax(self, p: Value) -> tuple[Value, str] | None:
        """The scores and the ``empty`` of weights *p*."""
        if (select := self.made(p, "map", "select")) is not None:
            test, zero, inner = select.inputs
            isnan = self.made(test, "map", "isnan")
            if isnan is None or isnan.inputs[0] is not inner or not self.read_by(p, 1) or not self.is_number(zero, 0):
                return None
            readers = 2
            while (cast := self.made(inner, "cast")) is not None and self.passes(cast):
                if not self.read_by(inner, readers):
                    return None
                inner, readers = cast.inputs[0], 1
            found = self.division(inner, readers)
            return None if found is None else (found[0], "clean")
        return self.division(p, readers=1)

    def division(self, p: Value, readers: int) -> tuple[Value, str] | None:
        div = self.made(p, "map", "div")
        if div is None or p.dtype is not DType.F32 or not self.read_by(p, readers):
            return None
        e, total = div.inputs
        exp = self.made(e, "map", "exp")
        sub = self.made(exp.inputs[0], "map", "sub") if exp is not None else None
        if sub is None or not self.read_by(e, 2) or not self.read_by(sub.out, 1):
            return None
        x, highest = sub.inputs
        below = self.row(total, "sum", e)
        above = self.row(highest, "max", x)
        if below is None or above is None or below != above or not self.read_by(x, 2):
            return None
        return x, below

    def row(self, v: Value, fn: str, x: Value) -> str | None:
        """The ``empty`` that a row statistic of *x* (broadcast over it) speaks of: its sum or maximum, None where it is none."""
        spread = self.made(v, "broadcast")
        if spread is None or v.shape != x.shape:
            return None
        v = spread.inputs[0]
        if v.rank != x.rank or v.shape != (*x.shape[:-1], 1):
            return None
        empty = "nan"
        while (made := self.producers.get(v)) is not None and made.op in ("reshape", "map"):
            if made.op == "map":
                guarded = self.guarded(made, fn) if empty == "nan" else None
                if guarded is None:
                    return None
                empty, v = "zero", guarded
            else:
                v = made.inputs[0]
        if made is None or made.op != "reduce" or made.attrs["fn"] != fn or made.inputs[0] is not x:
            return None
        return empty if made.attrs["axes"] == (x.rank - 1,) else None

    def guarded(self, select: Instr, fn: str) -> Value | None:
        """The statistic behind ``select(isneginf(m), 0, m)`` or ``select(s == 0, 1, s)``."""
        if select.attrs["fn"] != "select":
            return None
        test, instead, v = select.inputs
        if fn == "max":
            made = self.made(test, "map", "isneginf")
            good = made is not None and made.inputs[0] is v and self.is_number(instead, 0)
        else:
            made = self.made(test, "map", "eq")
            good = made is not None and made.inputs[0] is v and self.is_number(made.inputs[1], 0) and self.is_number(instead, 1)
        return v if good else None

    def is_number(self, v: Value, n: float) -> bool:
        """Whether *v* is this number everywhere."""
        constant = self.constant(v)
        return constant is not None and constant.data is not None and float(constant.data.reshape(-1)[0]) == n

    def is_zero(self, v: Value) -> bool:
        """Whether *v* is a constant of nothing but 0, as masks of models without padding are."""
        data = self.whole(v, ("broadcast", "reshape")).data
        return data is not None and not np.any(data)

    def constant(self, v: Value) -> Value | None:
        """The constant of one element that *v* is everywhere."""
        v = self.whole(v, ("broadcast", "reshape"))
        return v if v.data is not None and v.data.size == 1 else None

    def whole(self, v: Value, ops: Sequence[str] = ("reshape",)) -> Value:
        """What *v* is a reshape of."""
        while (made := self.producers.get(v)) is not None and made.op in ops:
            v = made.inputs[0]
        return v

    # ------------------------------------------------------------------------------------------------ scores
    def chain(
        self, x: Value
    ) -> tuple[Instr, tuple[tuple[str, tuple[Value | None, ...]], ...], tuple[tuple[Extent, ...], ...]] | None:
        """The product behind scores *x*, what happens to them (first step first) and the shapes that they pass through."""
        steps: list[tuple[str, tuple[Value | None, ...]]] = []
        spaces = [x.shape]
        readers = 2
        while len(steps) <= MAX_STEPS:
            made = self.producers.get(x)
            if made is None or not self.read_by(x, readers):
                return None
            readers = 1
            if made.op == "contract":
                good = made.attrs["acc"] is DType.F32 and all(v.dtype in _FLOATS for v in (*made.inputs, made.out))
                return (made, tuple(reversed(steps)), tuple(spaces)) if good else None
            if made.op in ("cast", "reshape") and self.passes(made):
                x = made.inputs[0]
            elif made.op == "map" and made.out.dtype in _FLOATS:
                inner = [v for v in made.inputs if v.dtype in _FLOATS and v.shape == x.shape and self.leads_to_scores(v)]
                if len(inner) != 1:
                    return None
                x = inner[0]
                if made.attrs["fn"] != "add" or not any(self.is_zero(v) for v in made.inputs):
                    steps.append((made.attrs["fn"], tuple(None if v is x else self.constant(v) or v for v in made.inputs)))
            else:
                return None
            if x.shape != spaces[-1]:
                spaces.append(x.shape)
        return None

    def leads_to_scores(self, v: Value) -> bool:
        """Whether *v* comes from a product by nothing but elementwise steps."""
        todo, seen = [v], 0
        while todo and seen < 4 * MAX_STEPS:
            made = self.producers.get(todo.pop())
            seen += 1
            if made is None or made.op not in ("contract", "map", "cast", "reshape"):
                continue
            if made.op == "contract":
                return True
            if made.op != "reshape" or self.passes(made):
                todo.extend(x for x in made.inputs if product(x.shape) == product(v.shape))
        return False


def _refined(a: Sequence[Extent], b: Sequence[Extent]) -> list[Extent] | None:
    """The axes that both *a* and *b* are runs of."""
    out: list[Extent] = []
    for i, j in reshape_groups(a, b):
        left, right = [a[n] for n in i], [b[n] for n in j]
        if len(left) <= 1 or len(right) <= 1 or left == right:
            out += left if len(left) >= len(right) else right
            continue
        # [groups, heads a group * rows] and [heads, rows]
        few, many = sorted((left, right), key=lambda x: x[0] if isinstance(x[0], int) else 0)
        if len(few) != 2 or len(many) != 2 or not isinstance(few[0], int) or not isinstance(many[0], int) or not few[0]:
            return None
        if many[0] % few[0] or many[0] // few[0] * many[1] != few[1]:
            return None
        out += [few[0], many[0] // few[0], many[1]]
    return out


def _runs(shape: Sequence[Extent], refined: Sequence[Extent]) -> list[range] | None:
    """For each axis of *shape* the run of refined axes that it is."""
    runs: list[range] = []
    at = 0
    for e in shape:
        end = at
        while product(refined[at:end]) != e:
            end += 1
            if end > len(refined):
                return None
        runs.append(range(at, end))
        at = end
    return runs if at == len(refined) else None


def _written(found: _Found, producers: Mapping[Value, Instr]) -> list[Instr] | None:
    """The instructions that take the place of the last product, None where the shapes do not allow it."""
    first, second = found.first, found.second
    k, v = first.inputs[1], second.inputs[1]
    total = k.shape[-1]
    refined: list[Extent] | None = [e for e in first.out.shape[:-1] if e != 1]
    for space in found.spaces:
        if refined is None or space[-1] != total:
            return None
        refined = _refined(refined, [e for e in space[:-1] if e != 1])
    if refined is None:
        return None
    before, after = _runs(first.out.shape[:-1], refined), _runs(second.out.shape[:-1], refined)
    if before is None or after is None:
        return None
    if not before[-1] or not after[-1]:  # one row, as a number
        refined.append(1)
        for runs in (before, after):
            runs[-1] = range(runs[-1].start, len(refined))
    if before[-1].stop != len(refined) or after[-1].stop != len(refined) or not before[-1] or not after[-1]:
        return None
    batch = refined[:-1]

    def shared(x: Value, runs: Sequence[range]) -> Value:
        """An operand of a product for each of the batch: the same for all that were its rows."""
        own = [1 if n in runs[-1] else e for n, e in enumerate(batch)]
        return b.broadcast(b.reshape(x, (*own, *x.shape[-2:])), (*batch, *x.shape[-2:]))

    b = Builder()
    b.source = second.source
    others: list[Value] = []
    score: list[Step] = []
    for fn, operands in found.steps:
        arguments = []
        for x in operands:
            if x is not None:
                others.append(_side(b, x, (*refined, total)))
            arguments.append(SCORE if x is None else len(others) + 2)
        score.append((fn, tuple(arguments)))
    rows = b.reshape(found.q, (*refined, first.inputs[0].shape[-1]))
    operands = rows, shared(k, before), shared(v, after)
    causal = _causal(score, (*operands, *others), {**producers, **{i.out: i for i in b.instrs}})
    y = attention(b, *operands, others, score, found.empty, second.out.dtype, causal)
    if y.shape != second.out.shape:
        b.reshape(y, second.out.shape)
    last = b.instrs[-1]
    return [*b.instrs[:-1], Instr(last.op, last.inputs, second.outputs, last.attrs, last.source)]


def _causal(score: Sequence[Step], operands: Sequence[Value], producers: Mapping[Value, Instr]) -> Extent | None:
    """The attr ``causal`` of an attention with these steps."""
    if not score or score[-1][0] != "select":
        return None
    mask, kept, instead = score[-1][1]
    if kept != SCORE or mask == SCORE or instead == SCORE:
        return None
    data = operands[instead].data
    if data is None or data.size != 1 or float(data.reshape(-1)[0]) != -np.inf:
        return None
    return causal_offset(operands[mask], producers)


def _side(b: Builder, x: Value, space: tuple[Extent, ...]) -> Value:
    """An operand of a step: a scalar, or spread over the scores as they are refined; floats in float32."""
    if x.data is not None and x.data.size == 1:
        return b.scalar(x.data.reshape(-1)[0], x.dtype if x.dtype is DType.BOOL else DType.F32)
    x = b.reshape(x, space)
    return x if x.dtype is DType.BOOL else b.cast(x, DType.F32)
