"""Forms of operators that move elements: shapes, slices, padding, gathering, scattering, selecting."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from forms import Draw, Form, Given, Operator, Recipe, Skip
from onnx_vulkan.dtypes import NUMERIC, REAL, DType

__all__ = ["MOVES", "gather_nd", "pad", "trilu"]


# ------------------------------------------------------------------------------------------------------------ movement
def reshape(d: Draw, op: Operator) -> Form:
    x = d.tensor(op.dtypes() & NUMERIC)
    n = x.array.size
    target: list[int] = []
    left = n
    for i in range(d.int(0, 4)):
        if n == 0 and i < x.rank and x.shape[i] == 0:
            target.append(0)
            continue
        divisors = [k for k in range(1, 33) if left and left % k == 0] or [1]
        e = int(d.rng.choice(divisors))
        target.append(e)
        left //= e
    if left != 1 or not target:
        target.append(left)
    attributes = d.only(op, {"allowzero": 1}) if d.chance(20) else {}
    if n and d.chance(50):
        target[d.int(0, len(target) - 1)] = -1
    elif n and not attributes and target[0] == (x.shape[0] if x.rank else 0) and d.chance(50):
        target[0] = 0
    if op.version < 5:
        return Form([x], {"shape": target})
    return Form([x, d.numbers(target)], attributes)


def flatten(d: Draw, op: Operator) -> Form:
    x = d.tensor(op.dtypes() & NUMERIC, (1, 6))
    axis = d.int(0, x.rank) if op.version < 11 else d.int(-x.rank, x.rank)
    return Form([x], {"axis": axis} if d.chance(70) else {})


def transpose(d: Draw, op: Operator) -> Form:
    x = d.tensor(op.dtypes() & NUMERIC)
    perm = list(range(x.rank))
    for i in range(x.rank - 1):
        j = d.int(i, x.rank - 1)
        perm[i], perm[j] = perm[j], perm[i]
    return Form([x], {"perm": perm} if d.chance(80) else {})


def squeeze(d: Draw, op: Operator) -> Form:
    x = d.tensor(op.dtypes() & NUMERIC, (1, 6))
    axes = d.axes(x.rank)
    if not x.name:
        taken = {a % x.rank for a in axes}
        x.array = d.data(x.dtype, [1 if i in taken else e for i, e in enumerate(x.shape)])
    else:
        axes = [i for i, e in enumerate(x.shape) if e == 1]
    if op.version < 13:
        return Form([x], {"axes": [a % x.rank for a in axes] if op.version < 11 else axes} if axes else {})
    return Form([x, d.numbers(axes) if axes and d.chance(80) else None])


def unsqueeze(d: Draw, op: Operator) -> Form:
    x = d.tensor(op.dtypes() & NUMERIC, (0, 4))
    count = d.int(1, 2)
    rank = x.rank + count
    axes = [d.axis(rank)]
    if count == 2:
        axes.append((axes[0] + d.int(1, rank - 1)) % rank)
    if op.version < 11:
        axes = [a % rank for a in axes]
    return Form([x], {"axes": axes}) if op.version < 13 else Form([x, d.numbers(axes)])


def expand(d: Draw, op: Operator) -> Form:
    x = d.tensor(op.dtypes() & NUMERIC, (0, 4), high=8)
    shape = [d.extent(1, 6) if e == 1 else (1 if d.chance(20) else e) for e in x.shape]
    if d.chance(30):
        shape = [*d.shape(d.int(1, 2), 1, 4), *shape]
    elif d.chance(20) and shape:
        shape = shape[1:]
    return Form([x, d.numbers(shape)])


def tile(d: Draw, op: Operator) -> Form:
    x = d.tensor(op.dtypes() & NUMERIC, (1, 5), high=8)
    return Form([x, d.numbers([d.number(0, 3) if d.chance(20) else d.number(1, 2) for _ in range(x.rank)])])


def concat(d: Draw, op: Operator) -> Form:
    x = d.tensor(op.dtypes() & NUMERIC, (1, 5))
    axis = d.axis(x.rank) if op.version >= 11 else d.int(0, x.rank - 1)
    parts = [x]
    for _ in range(d.int(0, 4)):
        shape = list(x.shape)
        shape[axis] = d.extent(0, 5)
        parts.append(d.like(x.dtype, shape))
    return Form(parts, {"axis": axis})


def split(d: Draw, op: Operator) -> Form:
    x = d.tensor(op.dtypes() & NUMERIC, (1, 5))
    axis = d.axis(x.rank) if op.version >= 11 else d.int(0, x.rank - 1)
    count = d.int(1, 4)
    n = x.shape[axis]
    if d.chance(50):
        cuts = sorted(d.number(0, n) for _ in range(count - 1))
        sizes = np.diff([0, *cuts, n]).tolist()
        if op.version >= 13:
            return Form([x, d.numbers(sizes)], {"axis": axis}, (True,) * count)
        if op.version >= 2:
            return Form([x], {"axis": axis, "split": sizes}, (True,) * count)
        return Form([x, d.numbers(sizes)], {"axis": axis}, (True,) * count)
    if not x.name and op.version < 18:
        shape = list(x.shape)
        shape[axis] = count * d.extent(0, 5)
        x.array = d.data(x.dtype, shape)
    return Form([x], {"axis": axis} | ({"num_outputs": count} if op.version >= 18 else {}), (True,) * count)


def slice_(d: Draw, op: Operator) -> Form:
    x = d.tensor(op.dtypes() & NUMERIC, (1, 5))
    axes = d.axes(x.rank, 1)
    starts, ends, steps = [], [], []
    for a in axes:
        n = x.shape[a]
        step = d.pick([1, 1, 1, 2, 3, -1, -2]) if op.version >= 10 else 1
        start, end = (d.number(-n - 2, n + 2) for _ in range(2))
        if d.chance(30):
            start, end = (0, 2**31 - 1) if step > 0 else (n, -(2**31))
        elif d.chance(10):
            start, end = (0, 2**63 - 1) if step > 0 else (-1, -(2**63))
        starts.append(start)
        ends.append(end)
        steps.append(step)
    if op.version < 10:
        return Form([x], {"starts": starts, "ends": ends} | ({} if axes == list(range(len(axes))) else {"axes": axes}))
    dtype = DType.I32 if d.chance(30) and all(abs(v) < 2**31 for v in (*starts, *ends)) else DType.I64
    inputs: list[Given | None] = [x, d.numbers(starts, dtype), d.numbers(ends, dtype)]
    needed = axes != list(range(len(axes)))
    inputs.append(d.numbers(axes, dtype) if needed or d.chance(50) else None)
    inputs.append(d.numbers(steps, dtype) if any(s != 1 for s in steps) or d.chance(30) else None)
    return Form(inputs)


def pad(d: Draw, op: Operator) -> Form:
    x = d.tensor(op.dtypes() & NUMERIC, (1, 5), high=9)
    mode = d.pick(["constant", "constant", "edge", "reflect", "wrap"])
    if mode == "wrap" and op.version < 19:
        mode = "edge"
    axes = d.axes(x.rank, 1) if op.version >= 18 and d.chance(40) else list(range(x.rank))
    pads = []
    for a in axes * 2:
        n = x.shape[a]
        most = {"constant": 3, "edge": 3 if n else 0, "reflect": max(min(n - 1, 3), 0), "wrap": 5 if n else 0}[mode]
        pads.append(d.number(0, most) if d.chance(60) else 0)
        if mode == "constant" and d.chance(10):
            pads[-1] = -min(n // 2, 2)
    attributes = {"mode": mode} if mode != "constant" or d.chance(50) else {}
    if op.version < 11 and not op.domain:
        return Form([x], attributes | {"paddings" if op.version == 1 else "pads": pads} | d.some(value=(1.5, 0.0)))
    value = d.maybe(lambda: Given(d.data(x.dtype, ()), host=d.chance(50)), 50)
    return Form([x, d.numbers(pads), value, d.numbers(axes) if axes != list(range(x.rank)) else None], attributes)


def depth_space(d: Draw, op: Operator) -> Form:
    block = d.int(1, 3)
    n, c, h, w = d.shape(4, 0, 4)
    t = d.dtype(op.dtypes() & NUMERIC)
    shape = (n, c * block * block, h, w) if op.name == "DepthToSpace" else (n, c, h * block, w * block)
    return Form([d.like(t, shape)], {"blocksize": block} | d.only(op, d.some(mode=("DCR", "CRD"))))


def center_crop_pad(d: Draw, op: Operator) -> Form:
    x = d.tensor(op.dtypes() & NUMERIC, (1, 4), high=9)
    axes = d.axes(x.rank, 1) if d.chance(50) else None
    sizes = [d.extent(0, 9) for _ in (axes or range(x.rank))]
    return Form([x, d.numbers(sizes)], {"axes": axes} if axes else {})


def trilu(d: Draw, op: Operator) -> Form:
    x = d.tensor(op.dtypes() & NUMERIC, (2, 5))
    return Form([x, d.maybe(lambda: d.numbers(np.int64(d.number(-6, 6))))], d.some(upper=(0, 1)))  # type: ignore[arg-type]


def identity(d: Draw, op: Operator) -> Form:
    return Form([d.tensor(op.dtypes() & NUMERIC)])


def shape_of(d: Draw, op: Operator) -> Form:
    x = d.tensor(op.dtypes() & NUMERIC)
    return Form([x], d.only(op, d.some(start=(-2, -1, 0, 1, 3), end=(-1, 0, 1, 2, 9))))


# ------------------------------------------------------------------------------------------------------------ indexing
def _indices(d: Draw, shape: Sequence[int], n: int, dtype: DType) -> Given:
    if n == 0 and int(np.prod(shape)):
        raise Skip
    return Given(d.rng.integers(-n, max(n, 1), tuple(shape)).astype(dtype.numpy), host=d.chance(20))


def gather(d: Draw, op: Operator) -> Form:
    x = d.tensor(op.dtypes() & NUMERIC, (1, 5))
    axis = d.axis(x.rank)
    i = _indices(d, d.shape(d.int(0, 2), 0, 5), x.shape[axis], d.pick([DType.I64, DType.I32]))
    if op.version < 11:
        i.array = np.asarray(i.array % max(x.shape[axis], 1), i.array.dtype)
    return Form([x, i], {"axis": axis} if axis or d.chance(50) else {})


def gather_elements(d: Draw, op: Operator) -> Form:
    x = d.tensor(op.dtypes() & NUMERIC, (1, 5))
    axis = d.axis(x.rank)
    shape = [d.number(0, 5) if i == axis % x.rank else d.number(min(e, 1), e) for i, e in enumerate(x.shape)]
    return Form([x, _indices(d, shape, x.shape[axis], d.pick([DType.I64, DType.I32]))], {"axis": axis})


def gather_nd(d: Draw, op: Operator) -> Form:
    x = d.tensor(op.dtypes() & NUMERIC, (1, 5))
    batch = d.int(0, min(x.rank - 1, 2)) if op.version >= 12 else 0
    depth = d.int(1, x.rank - batch)
    lead = [*x.shape[:batch], *d.shape(d.int(0, 2), 1, 4)]
    if not lead and d.chance(50):
        lead = [d.number(1, 4)]
    columns = [_indices(d, [*lead, 1], x.shape[batch + k], DType.I64).array for k in range(depth)]
    return Form([x, Given(np.concatenate(columns, -1))], {"batch_dims": batch} if batch else {})


def scatter_elements(d: Draw, op: Operator) -> Form:
    x = d.tensor(op.dtypes() & NUMERIC, (1, 4), low=1, high=17)
    axis = d.axis(x.rank)
    n = x.shape[axis]
    reductions = {16: ["none", "add", "mul"], 18: ["none", "add", "mul", "max", "min"]}.get(op.version, ["none"])
    reduction = d.pick(reductions) if x.dtype is not DType.BOOL else "none"
    shape = [e if d.chance(60) else d.number(1, e) for e in x.shape]
    if reduction == "none":
        order = np.argsort(d.rng.random([n if i == axis % x.rank else e for i, e in enumerate(shape)]), axis)
        at = np.take(order, np.arange(shape[axis]), axis)
        at = np.where(d.rng.random(at.shape) < 0.3, at - n, at)
    else:
        at = d.rng.integers(-n, n, shape)
    i = Given(at.astype(d.pick([DType.I64, DType.I32]).numpy))
    return Form([x, i, d.like(x.dtype, shape)], {"axis": axis} | ({} if reduction == "none" else {"reduction": reduction}))


def scatter_nd(d: Draw, op: Operator) -> Form:
    x = d.tensor(op.dtypes() & NUMERIC, (1, 4), low=1, high=17)
    reductions = {16: ["none", "add", "mul"], 18: ["none", "add", "mul", "max", "min"]}.get(op.version, ["none"])
    reduction = d.pick(reductions) if x.dtype is not DType.BOOL else "none"
    depth = d.int(1, x.rank)
    sizes = x.shape[:depth]
    total = int(np.prod(sizes))
    count = d.number(1, min(total, 9))
    flat = d.rng.permutation(total)[:count] if reduction == "none" else d.rng.integers(0, total, count)
    at = np.stack(np.unravel_index(flat, sizes), -1).astype(np.int64)
    at = np.where(d.rng.random(at.shape) < 0.2, at - np.array(sizes), at)
    if count % 2 == 0 and d.chance(30):
        at = at.reshape(2, count // 2, depth)
    updates = d.like(x.dtype, (*at.shape[:-1], *x.shape[depth:]))
    return Form([x, Given(at), updates], {} if reduction == "none" else {"reduction": reduction})


def one_hot(d: Draw, op: Operator) -> Form:
    i = d.tensor(d.dtype(op.dtypes() & REAL), (0, 3), high=9)
    if i.name and i.dtype.is_float:
        raise Skip  # no whole numbers
    depth = d.number(1, 9)
    t = d.dtype(op.dtypes(2) & NUMERIC)
    if not i.name:
        i.array = np.round(i.array.astype(np.float64) * 3).astype(i.array.dtype)
    return Form(
        [i, d.host(depth, d.dtype(op.dtypes(1) & REAL)), Given(d.data(t, (2,)))], d.some(axis=(-1, 0, -1 - i.rank, i.rank))
    )


def reverse_sequence(d: Draw, op: Operator) -> Form:
    x = d.tensor(op.dtypes() & NUMERIC, (2, 5), low=1)
    time = d.int(0, 1)
    lens = d.rng.integers(1, x.shape[time] + 1, x.shape[1 - time])
    return Form([x, Given(lens.astype(np.int64))], {"batch_axis": 1 - time, "time_axis": time})


def compress(d: Draw, op: Operator) -> Form:
    x = d.tensor(op.dtypes() & NUMERIC, (1, 4))
    axis = d.axis(x.rank) if d.chance(70) else None
    n = x.array.size if axis is None else x.shape[axis]
    condition = d.rng.integers(0, 2, min(n, 50) if d.chance(60) else min(n, 2)).astype(bool)
    return Form([x, Given(condition, host=True)], {} if axis is None else {"axis": axis})


def non_zero(d: Draw, op: Operator) -> Form:
    x = d.tensor(op.dtypes() & NUMERIC, (0, 4), high=9)
    return Form([Given(x.array, host=True)])


def top_k(d: Draw, op: Operator) -> Form:
    x = d.tensor(op.dtypes(), (1, 4))
    axis = d.axis(x.rank)
    k = d.number(0, x.shape[axis])
    if op.version == 1:
        return Form([x], {"axis": axis % x.rank, "k": max(k, 1)}, (True, True))
    return Form([x, d.numbers([k])], {"axis": axis} | d.only(op, d.some(largest=(0, 1), sorted=(1,))), (True, d.chance(80)))


MOVES: dict[str, Recipe] = {
    "Reshape": reshape, "Flatten": flatten, "Transpose": transpose, "Squeeze": squeeze, "Unsqueeze": unsqueeze,
    "Expand": expand, "Tile": tile, "Concat": concat, "Split": split, "Slice": slice_, "Pad": pad,
    "DepthToSpace": depth_space, "SpaceToDepth": depth_space, "CenterCropPad": center_crop_pad, "Trilu": trilu,
    "Identity": identity, "Shape": shape_of, "Size": identity, "Gather": gather, "GatherElements": gather_elements,
    "GatherND": gather_nd, "ScatterElements": scatter_elements, "Scatter": scatter_elements, "ScatterND": scatter_nd,
    "OneHot": one_hot, "ReverseSequence": reverse_sequence, "Compress": compress, "NonZero": non_zero, "TopK": top_k,
    "DynamicQuantizeLinear": identity,
}  # fmt: skip
