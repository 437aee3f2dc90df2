"""Operators that move elements by their position alone: reshape, transpose, slice, pad, concat, split, tile, depth/space.

Clamping decides on extents (guards) rather than writing min/max into the sizes, so that shapes stay simple polynomials.
"""

from __future__ import annotations

from collections.abc import Sequence

from onnx_vulkan.dims import (
    Dim,
    Extent,
    at_least,
    axis_of,
    broadcast_shapes,
    ceil_div,
    is_one,
    is_zero,
    product,
    require_at_least,
    require_same,
)
from onnx_vulkan.dtypes import ALL, NUMERIC, DType
from onnx_vulkan.errors import ShapeMismatch, Unsupported
from onnx_vulkan.lower.dequantized import note_transpose
from onnx_vulkan.lower.reduction import host_axes
from onnx_vulkan.lower.registry import Host, LowerContext, lowers
from onnx_vulkan.program.ir import Value

__all__ = ["clamped", "slice_axis"]

_ANY = {"x": ALL}
_VIEW_VERSIONS = [13, 21, 23, 24, 25]
_FAR = 1 << 40
"""A slice's end beyond this is "to the end": no question about the extent, and no overflow in a guard."""


# --------------------------------------------------------------------------------------------------------- reshape family


def _reshape(b: LowerContext, x: Value, target: Sequence[Extent], allowzero: bool = False) -> Value:
    """A 0 copies the input's extent (without *allowzero*), one -1 takes what is left."""
    shape: list[Extent] = []
    wild = None
    for i, e in enumerate(target):
        if at_least(e, 1):
            shape.append(e)
        elif is_zero(e):
            if not allowzero and i >= x.rank:
                raise ShapeMismatch(f"its shape {tuple(target)} copies axis {i} of an input of rank {x.rank}")
            shape.append(0 if allowzero else x.shape[i])
        else:
            require_at_least(e, -1, f"its shape {tuple(target)} has an extent below -1")
            if wild is not None:
                raise ShapeMismatch(f"its shape {tuple(target)} has more than one -1")
            wild = i
            shape.append(1)
    if wild is not None:
        shape[wild] = _left_over(x.shape, shape)
    return b.reshape(x, shape)


def _left_over(given: Sequence[Extent], known: Sequence[Extent]) -> Extent:
    """What -1 stands for beside the *known* extents.

    Where one of these is 0 any number would fit; it is then what it would be without the axes of extent 0 (a batch of nothing
    has the inner extents of any other batch). ONNX Runtime says the same where ``allowzero`` is set, and fails otherwise.
    """
    whole, rest = product(given), product(known)
    if not isinstance(rest, int) or rest != 0:
        quotient = whole // rest
        if quotient * rest == whole or not is_zero(rest):
            return quotient
    whole, rest = (product([e for e in shape if not is_zero(e)]) for shape in (given, known))
    require_same(whole % rest, 0, f"{tuple(given)} cannot be reshaped to {tuple(known)} with one more axis")
    return whole // rest


@lowers("Reshape", [5, 13, 14, 19, 21, 23, 24, 25], _ANY, note="the target shape must be known before the run")
def reshape(b: LowerContext, x: Value, shape: Host, *, allowzero: int = 0) -> Value:
    return _reshape(b, x, shape.ints(), bool(allowzero))


@lowers("Reshape", [1], _ANY)
def reshape_1(b: LowerContext, x: Value, *, shape: list[int], consumed_inputs: list[int] | None = None) -> Value:
    return _reshape(b, x, shape)


@lowers("Flatten", [1, 9, 11, *_VIEW_VERSIONS], _ANY)
def flatten(b: LowerContext, x: Value, *, axis: int = 1) -> Value:
    axis = axis + x.rank if axis < 0 else axis
    return b.reshape(x, (product(x.shape[:axis]), product(x.shape[axis:])))


def _squeeze(b: LowerContext, x: Value, axes: Sequence[int] | None) -> Value:
    if axes is None:
        gone = {i for i, e in enumerate(x.shape) if is_one(e)}
    else:
        gone = {axis_of(a, x.rank) for a in axes}
        for a in gone:
            require_same(x.shape[a], 1, f"axis {a} of {x.shape} cannot be squeezed")
    return b.reshape(x, [e for i, e in enumerate(x.shape) if i not in gone])


def _unsqueeze(b: LowerContext, x: Value, axes: Sequence[int]) -> Value:
    rank = x.rank + len(axes)
    new = {axis_of(a, rank) for a in axes}
    if len(new) != len(axes):
        raise Unsupported(f"its axes {list(axes)} name one axis twice")
    rest = iter(x.shape)
    return b.reshape(x, [1 if i in new else next(rest) for i in range(rank)])


@lowers("Squeeze", [1, 11], _ANY)
def squeeze_1(b: LowerContext, x: Value, *, axes: list[int] | None = None) -> Value:
    return _squeeze(b, x, axes)


@lowers("Squeeze", _VIEW_VERSIONS, _ANY)
def squeeze_13(b: LowerContext, x: Value, axes: Host | None) -> Value:
    return _squeeze(b, x, host_axes(axes))


@lowers("Unsqueeze", [1, 11], _ANY)
def unsqueeze_1(b: LowerContext, x: Value, *, axes: list[int]) -> Value:
    return _unsqueeze(b, x, axes)


@lowers("Unsqueeze", _VIEW_VERSIONS, _ANY)
def unsqueeze_13(b: LowerContext, x: Value, axes: Host) -> Value:
    return _unsqueeze(b, x, host_axes(axes) or [])


@lowers("ExpandDims", [1], _ANY, "com.microsoft")
def expand_dims(b: LowerContext, x: Value, axis: Host) -> Value:
    """ExpandDims of ONNX Runtime: one new axis."""
    at = axis.ints()[0]
    if not isinstance(at, int) or not -x.rank - 1 <= at <= x.rank:
        raise Unsupported(f"axis {at} for an input of rank {x.rank}")
    return _unsqueeze(b, x, [at])


@lowers("Transpose", [1, *_VIEW_VERSIONS], _ANY)
def transpose(b: LowerContext, x: Value, *, perm: list[int] | None = None) -> Value:
    if perm is None:
        perm = list(range(x.rank))[::-1]
    if sorted(perm) != list(range(x.rank)):
        raise Unsupported(f"perm {perm} does not name each of the {x.rank} axes of its input once")
    y = b.transpose(x, perm)
    if x.rank == 2 and y is not x:
        note_transpose(b, x, y)
    return y


# ----------------------------------------------------------------------------------------------------------- repetition


@lowers("Expand", [8, 13], _ANY)
def expand(b: LowerContext, x: Value, shape: Host) -> Value:
    target = shape.ints()
    for e in target:
        require_at_least(e, 0, f"its shape {tuple(target)} has a negative extent")
    return b.broadcast(x, broadcast_shapes(x.shape, target))


@lowers("Tile", [6, 13], _ANY)
def tile(b: LowerContext, x: Value, repeats: Host) -> Value:
    """Each axis becomes (repeats, extent), broadcast, and joined again."""
    return _tiled(b, x, repeats.ints())


@lowers("Tile", [1], _ANY)
def tile_1(b: LowerContext, x: Value, tiles: Host, axis: Host) -> Value:
    """Tile-1: one axis, and how often it is repeated, both of the input's element type."""
    (place,) = axis.ints()
    if isinstance(place, Dim) or not -x.rank <= place < x.rank:
        raise Unsupported(f"axis {place} of a tensor of rank {x.rank}")
    times: list[Extent] = [1] * x.rank
    (times[place],) = tiles.ints()
    return _tiled(b, x, times)


def _tiled(b: LowerContext, x: Value, times: Sequence[Extent]) -> Value:
    if len(times) != x.rank:
        raise ShapeMismatch(f"{len(times)} repeats for an input of rank {x.rank}")
    for r in times:
        require_at_least(r, 0, f"its repeats {tuple(times)} are not all 0 or more")
    split: list[Extent] = []
    grown: list[Extent] = []
    for r, e in zip(times, x.shape, strict=True):
        if isinstance(r, Dim) or r != 1:
            split += [1, e]
            grown += [r, e]
        else:
            split.append(e)
            grown.append(e)
    return b.reshape(b.broadcast(b.reshape(x, split), grown), [r * e for r, e in zip(times, x.shape, strict=True)])


# -------------------------------------------------------------------------------------------------------- concat and split


@lowers("Concat", [4, 11, 13], {"xs": ALL})
def concat_4(b: LowerContext, *xs: Value, axis: int) -> Value:
    return b.concat(xs, axis)


@lowers("Concat", [1], {"xs": ALL})
def concat_1(b: LowerContext, *xs: Value, axis: int = 1) -> Value:
    return b.concat(xs, axis)


def slice_axis(b: LowerContext, x: Value, axis: int, start: Extent, size: Extent, step: int = 1) -> Value:
    """*size* elements from *start* by *step* along *axis*; the caller has clamped them."""
    axis = axis_of(axis, x.rank)
    starts = [start if i == axis else 0 for i in range(x.rank)]
    sizes = [size if i == axis else e for i, e in enumerate(x.shape)]
    return b.slice(x, starts, sizes, [step if i == axis else 1 for i in range(x.rank)])


def _split(b: LowerContext, x: Value, axis: int, sizes: Sequence[Extent] | None, even: bool) -> tuple[Value, ...]:
    axis = axis_of(axis, x.rank)
    extent = x.shape[axis]
    if sizes is None:
        count = b.n_outputs
        chunk = ceil_div(extent, count)
        if even:
            chunk = extent // count
            require_same(chunk * count, extent, f"axis {axis} of {x.shape} does not split into {count} equal parts")
        require_at_least(extent, chunk * (count - 1), f"axis {axis} of {x.shape} is too short for {count} parts of {chunk}")
        sizes = [*[chunk] * (count - 1), extent - chunk * (count - 1)]
    total: Extent = 0
    parts = []
    for size in sizes:
        require_at_least(size, 0, f"the sizes {tuple(sizes)} of the parts are not all 0 or more")
        parts.append(slice_axis(b, x, axis, total, size))
        total = total + size
    require_same(total, extent, f"the sizes {tuple(sizes)} do not add up to axis {axis} of {x.shape}")
    return tuple(parts)


@lowers("Split", [2, 11], _ANY)
def split_2(b: LowerContext, x: Value, *, axis: int = 0, split: list[int] | None = None) -> tuple[Value, ...]:
    return _split(b, x, axis, split, even=True)


@lowers("Split", [1], _ANY)
def split_1(b: LowerContext, x: Value, sizes: Host | None, *, axis: int = 0, split: list[int] | None = None) -> tuple[Value, ...]:
    return _split(b, x, axis, sizes.ints() if sizes is not None else split, even=True)


@lowers("Split", [13], _ANY)
def split_13(b: LowerContext, x: Value, split: Host | None, *, axis: int = 0) -> tuple[Value, ...]:
    return _split(b, x, axis, split.ints() if split is not None else None, even=True)


@lowers("Split", [18], _ANY)
def split_18(
    b: LowerContext, x: Value, split: Host | None, *, axis: int = 0, num_outputs: int | None = None
) -> tuple[Value, ...]:
    return _split(b, x, axis, split.ints() if split is not None else None, even=False)


# ------------------------------------------------------------------------------------------------------------------ slice


def clamped(extent: Extent, start: Extent, end: Extent, step: int) -> tuple[Extent, Extent]:
    """``(start, size)`` of what ONNX Slice takes of an axis of *extent*, by decisions on the extents."""

    def from_front(e: Extent) -> Extent:
        return e if at_least(e, 0) else e + extent

    def limit(e: Extent, low: int, high: Extent) -> Extent:
        if isinstance(e, int) and abs(e) >= _FAR:
            return high if e > 0 else low
        e = from_front(e)
        return low if not at_least(e, low) else e if at_least(high, e) else high

    if step < 0 and not at_least(extent, 1):
        return 0, 0
    if step > 0:
        first, last = limit(start, 0, extent), limit(end, 0, extent)
        size = ceil_div(last - first, step)
    else:
        first, last = limit(start, 0, extent - 1), limit(end, -1, extent - 1)
        size = ceil_div(first - last, -step)
    return (first, size) if at_least(size, 1) else (0, 0)


def _slice(
    b: LowerContext,
    x: Value,
    starts: Sequence[Extent],
    ends: Sequence[Extent],
    axes: Sequence[int] | None,
    steps: Sequence[Extent] | None,
) -> Value:
    firsts: list[Extent] = [0] * x.rank
    sizes: list[Extent] = list(x.shape)
    strides = [1] * x.rank
    for i, axis in enumerate(axes if axes is not None else range(len(starts))):
        step = steps[i] if steps is not None else 1
        if isinstance(step, Dim) or step == 0:
            raise Unsupported(f"step {step} is not supported")
        axis = axis_of(axis, x.rank)
        firsts[axis], sizes[axis] = clamped(x.shape[axis], starts[i], ends[i], step)
        strides[axis] = step
    return b.slice(x, firsts, sizes, strides)


@lowers("Slice", [1], _ANY)
def slice_1(b: LowerContext, x: Value, *, starts: list[int], ends: list[int], axes: list[int] | None = None) -> Value:
    return _slice(b, x, starts, ends, axes, None)


@lowers("Slice", [10, 11, 13], _ANY)
def slice_10(b: LowerContext, x: Value, starts: Host, ends: Host, axes: Host | None, steps: Host | None) -> Value:
    return _slice(b, x, starts.ints(), ends.ints(), host_axes(axes), steps.ints() if steps is not None else None)


# -------------------------------------------------------------------------------------------------------------------- pad


def _pad(b: LowerContext, x: Value, mode: str, before: Sequence[Extent], after: Sequence[Extent], fill: Value | None) -> Value:
    """Negative amounts cut, then the others pad."""
    if mode not in ("constant", "reflect", "edge", "wrap"):
        raise Unsupported(f"mode {mode!r} is not known")
    cut = [[0 if at_least(p, 0) else -p for p in side] for side in (before, after)]
    grow = [[p if at_least(p, 0) else 0 for p in side] for side in (before, after)]
    if any(isinstance(c, Dim) or c for side in cut for c in side):
        if mode != "constant":
            raise Unsupported(f"negative padding with mode {mode!r} is not supported")
        sizes = [e - lo - hi for e, lo, hi in zip(x.shape, *cut, strict=True)]
        if not all(at_least(e, 0) for e in sizes):
            raise ShapeMismatch(f"negative padding takes more than {x.shape} has")
        x = b.slice(x, cut[0], sizes)
    if mode == "wrap":
        x, grow = _wrap_around(b, x, grow)
    if mode != "constant":
        _check_room(x, mode, grow)
    if fill is not None:
        fill = b.reshape(fill, ())
    elif x.dtype is DType.F8E8M0 and mode == "constant":
        raise Unsupported("float8e8m0 has no 0 to pad with")
    return b.pad(x, grow[0], grow[1], mode, fill)


def _wrap_around(b: LowerContext, x: Value, grow: list[list[Extent]]) -> tuple[Value, list[list[Extent]]]:
    """Axes that wrap more than once are gathered. Returns x with these padded, and the amounts that are left."""
    for i, (lo, hi) in enumerate(zip(*grow, strict=True)):
        n = x.shape[i]
        if at_least(n, lo) and at_least(n, hi):
            continue
        require_at_least(n, 1, f"wrap padding needs an element, and axis {i} has none")
        place = b.cast(b.dims([lo], ()), DType.I64)
        place = b.map("sub", b.iota((lo + n + hi,), 0, DType.I64), place)
        x = b.gather(x, b.map("mod", place, b.cast(b.dims([n], ()), DType.I64)), i)
        grow = [[0 if k == i else p for k, p in enumerate(side)] for side in grow]
    return x, grow


def _check_room(x: Value, mode: str, amounts: Sequence[Sequence[Extent]]) -> None:
    """Reflecting or wrapping reads each element at most once more."""
    spare = {"reflect": 1, "wrap": 0}.get(mode)
    for i, e in enumerate(x.shape):
        for side in amounts:
            p = side[i]
            if isinstance(p, int) and p == 0:
                continue
            least = 1 if spare is None else p + spare
            require_at_least(e, least, f"{mode} padding by {p} needs at least {least} elements, and axis {i} has {e}")


@lowers("Pad", [1], _ANY)
def pad_1(b: LowerContext, x: Value, *, paddings: list[int], mode: str = "constant", value: float = 0.0) -> Value:
    return _pad(b, x, mode, paddings[: x.rank], paddings[x.rank :], b.scalar(value, x.dtype))


@lowers("Pad", [2], _ANY)
def pad_2(b: LowerContext, x: Value, *, pads: list[int], mode: str = "constant", value: float = 0.0) -> Value:
    return _pad(b, x, mode, pads[: x.rank], pads[x.rank :], b.scalar(value, x.dtype))


@lowers("Pad", [1], _ANY, "com.microsoft", note="pads must be known before the run")
@lowers("Pad", [11, 13, 18, 19, 21, 23, 24, 25], _ANY, note="pads must be known before the run")
def pad_11(b: LowerContext, x: Value, pads: Host, value: Value | None, axes: Host | None, *, mode: str = "constant") -> Value:
    along = host_axes(axes)
    along = [axis_of(a, x.rank) for a in along] if along is not None else list(range(x.rank))
    given = pads.ints()
    if len(given) != 2 * len(along):
        raise ShapeMismatch(f"{len(given)} pads for {len(along)} axes")
    before: list[Extent] = [0] * x.rank
    after: list[Extent] = [0] * x.rank
    for i, a in enumerate(along):
        before[a], after[a] = given[i], given[i + len(along)]
    return _pad(b, x, mode, before, after, value)


# ----------------------------------------------------------------------------------------------------- blocks and triangles


@lowers("DepthToSpace", [1, 11, 13, 28], _ANY)
def depth_to_space(b: LowerContext, x: Value, *, blocksize: int, mode: str = "DCR") -> Value:
    n, c, h, w = x.shape
    depth = c // (blocksize * blocksize)
    if mode == "DCR":
        y = b.transpose(b.reshape(x, (n, blocksize, blocksize, depth, h, w)), (0, 3, 4, 1, 5, 2))
    else:
        y = b.transpose(b.reshape(x, (n, depth, blocksize, blocksize, h, w)), (0, 1, 4, 2, 5, 3))
    return b.reshape(y, (n, depth, h * blocksize, w * blocksize))


@lowers("SpaceToDepth", [1, 13, 28], _ANY)
def space_to_depth(b: LowerContext, x: Value, *, blocksize: int, mode: str = "DCR") -> Value:
    n, c, h, w = x.shape
    y = b.reshape(x, (n, c, h // blocksize, blocksize, w // blocksize, blocksize))
    y = b.transpose(y, (0, 3, 5, 1, 2, 4) if mode == "DCR" else (0, 1, 3, 5, 2, 4))
    return b.reshape(y, (n, c * blocksize * blocksize, h // blocksize, w // blocksize))


@lowers("Trilu", [1], {"x": NUMERIC}, "com.microsoft")
@lowers("Trilu", [14], {"x": NUMERIC})
def trilu(b: LowerContext, x: Value, k: Host | None, *, upper: int = 1) -> Value:
    """Keeps ``j - i >= k`` (upper) or ``j - i <= k``."""
    diagonal = k.ints()[0] if k is not None else 0
    if isinstance(diagonal, int):  # as far away as no tensor reaches: the sum stays in 64 bits
        diagonal = max(-_FAR, min(_FAR, diagonal))
    plane = x.shape[-2:]
    rows, columns = b.iota(plane, 0, DType.I64, start=diagonal), b.iota(plane, 1, DType.I64)
    kept = b.map("ge" if upper else "le", columns, rows)
    return b.map("select", kept, x, b.scalar(0, x.dtype))
