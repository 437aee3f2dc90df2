"""Signal operators: DFT and STFT as products with cosine and sine tables, window functions and mel filters as constants.

The tables are made on the host in float64, since the sines of a GPU need not be accurate; a length that depends on the run's
shapes is pinned.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from onnx_vulkan.dims import Extent, at_least, axis_of, is_one, minimum, product, require_same
from onnx_vulkan.dtypes import FLOATS, REAL, DType
from onnx_vulkan.errors import ShapeMismatch, Unsupported
from onnx_vulkan.lower.coordinates import pinned
from onnx_vulkan.lower.elementwise import GPU_FLOATS
from onnx_vulkan.lower.registry import Host, LowerContext, Unknown, lowers
from onnx_vulkan.program import composites
from onnx_vulkan.program.builder import Builder
from onnx_vulkan.program.ir import Value

__all__: list[str] = []

Table = NDArray[np.float64]


def _table(b: Builder, shape: Sequence[Extent], make: Callable[..., Table], sizes: Sequence[Extent], dtype: DType) -> Value:
    """A constant made from numbers; while claiming, anything of its shape."""
    known = [pinned(e) for e in sizes]
    numbers = [n for n in known if n is not None]
    if len(numbers) != len(known):
        return b.full(shape, 0, dtype)
    return b.const(make(*numbers).astype(dtype.numpy))


def _fourier(n: int, bins: int, inverse: bool, complex_in: bool) -> Table:
    """``[n(*2), bins*2]``: what a row of (interleaved) samples is multiplied by to give interleaved bins."""
    angle = 2 * np.pi * (np.outer(np.arange(n), np.arange(bins)) % n) / max(n, 1) * (1 if inverse else -1)
    cos, sin = np.cos(angle), np.sin(angle)
    real = np.stack([cos, sin], -1).reshape(n, bins * 2)
    rows = np.stack([real, np.stack([-sin, cos], -1).reshape(n, bins * 2)], 1).reshape(2 * n, bins * 2)
    table = rows if complex_in else real
    return table / n if inverse else table


def _is_complex(x: Value) -> bool:
    if isinstance(x.shape[-1], int) and x.shape[-1] not in (1, 2):
        raise Unsupported(f"the last axis holds {x.shape[-1]} numbers instead of a real or complex one")
    return not is_one(x.shape[-1])


def _dft(b: LowerContext, x: Value, length: Host | None, axis: int, inverse: int, onesided: int) -> Value:
    if x.rank < 2:
        raise Unsupported(f"a signal of rank {x.rank}")
    axis = axis_of(axis, x.rank)
    if axis == x.rank - 1:
        raise Unsupported("the last axis holds the real and imaginary parts")
    complex_in = _is_complex(x)
    if inverse and onesided:
        return _inverse_onesided(b, x, length, axis, complex_in)
    n = length.ints()[0] if length is not None else x.shape[axis]
    y = composites.wide(b, x)
    if length is not None:
        y = _cut_or_padded(b, y, axis, n)
    bins = n // 2 + 1 if onesided else n
    order = [*(i for i in range(x.rank - 1) if i != axis), axis, x.rank - 1]
    moved = b.transpose(y, order)
    lead = moved.shape[:-2]
    width = 2 if complex_in else 1
    table = _table(b, (n * width, bins * 2), lambda n, bins: _fourier(n, bins, bool(inverse), complex_in), (n, bins), y.dtype)
    z = b.contract(b.reshape(moved, (product(lead), n * width)), table)
    z = b.reshape(z, (*lead, bins, 2))
    return b.cast(b.transpose(z, sorted(range(x.rank), key=order.__getitem__)), x.dtype)


def _halved_spectrum(n: int, bins: int) -> Table:
    """``[bins*2, n]``: the real signal of n samples from the bins 0 .. n//2 of its spectrum."""
    k, t = np.arange(bins), np.arange(n)
    angle = 2 * np.pi * (np.outer(k, t) % n) / max(n, 1)
    weight = np.where((k == 0) | (2 * k == n), 1.0, 2.0)[:, None] / max(n, 1)
    return np.stack([weight * np.cos(angle), -weight * np.sin(angle)], 1).reshape(2 * bins, n)


def _inverse_onesided(b: Builder, x: Value, length: Host | None, axis: int, complex_in: bool) -> Value:
    """A real signal from half a spectrum; its length is ``2 * (bins - 1)`` unless dft_length says so."""
    if not complex_in:
        raise ShapeMismatch("the inverse of a one-sided spectrum needs complex numbers")
    n = length.ints()[0] if length is not None else 2 * (x.shape[axis] - 1)
    y = _cut_or_padded(b, composites.wide(b, x), axis, n // 2 + 1)
    order = [*(i for i in range(x.rank - 1) if i != axis), axis, x.rank - 1]
    moved = b.transpose(y, order)
    lead, bins = moved.shape[:-2], n // 2 + 1
    table = _table(b, (bins * 2, n), _halved_spectrum, (n, bins), y.dtype)
    z = b.reshape(b.contract(b.reshape(moved, (product(lead), bins * 2)), table), (*lead, n, 1))
    return b.cast(b.transpose(z, sorted(range(x.rank), key=order.__getitem__)), x.dtype)


def _cut_or_padded(b: Builder, x: Value, axis: int, n: Extent) -> Value:
    """*x* cut to *n* along the axis, or padded with zeros."""
    have = x.shape[axis]
    kept = minimum(have, n)
    x = b.slice(x, (0,) * x.rank, [kept if i == axis else e for i, e in enumerate(x.shape)])
    return b.pad(x, (0,) * x.rank, [n - kept if i == axis else 0 for i in range(x.rank)])


@lowers("DFT", versions=[17], dtypes={"x": FLOATS})
def dft_17(
    b: LowerContext, x: Value, dft_length: Host | None = None, *, axis: int = 1, inverse: int = 0, onesided: int = 0
) -> Value:
    """DFT-17: the axis is an attribute."""
    return _dft(b, x, dft_length, axis, inverse, onesided)


@lowers("DFT", versions=[20], dtypes={"x": FLOATS})
def dft(
    b: LowerContext,
    x: Value,
    dft_length: Host | None = None,
    axis: Host | None = None,
    *,
    inverse: int = 0,
    onesided: int = 0,
) -> Value:
    """DFT-20: the axis is an input, -2 by default."""
    at = axis.ints()[0] if axis is not None else -2
    if not isinstance(at, int):
        raise Unsupported("the axis is not known before the run")
    return _dft(b, x, dft_length, at, inverse, onesided)


def _check_rfft(normalized: int, onesided: int, signal_ndim: int) -> None:
    if normalized or not onesided or signal_ndim != 1:
        raise Unsupported(f"normalized {normalized}, onesided {onesided}, signal_ndim {signal_ndim}: 0, 1 and 1 are supported")


@lowers("Rfft", versions=[1], dtypes={"x": FLOATS}, domain="com.microsoft")
def rfft(b: LowerContext, x: Value, *, normalized: int = 0, onesided: int = 1, signal_ndim: int = 1) -> Value:
    """Rfft of ONNX Runtime (its CPU EP has none): ``[*, n]`` to ``[*, n // 2 + 1, 2]``, over the last axis."""
    _check_rfft(normalized, onesided, signal_ndim)
    if x.rank < 1:
        raise Unsupported("a signal of rank 0")
    y = _dft(b, b.reshape(x, (1, *x.shape, 1)), None, x.rank, 0, 1)
    return b.reshape(y, y.shape[1:])


@lowers("Irfft", versions=[1], dtypes={"x": FLOATS}, domain="com.microsoft")
def irfft(b: LowerContext, x: Value, *, normalized: int = 0, onesided: int = 1, signal_ndim: int) -> Value:
    """Irfft of ONNX Runtime (its CPU EP has none): ``[*, m, 2]`` to ``[*, 2 * (m - 1)]``, divided by the length."""
    _check_rfft(normalized, onesided, signal_ndim)
    if x.rank < 2:
        raise Unsupported(f"a spectrum of rank {x.rank}")
    require_same(x.shape[-1], 2, "the last axis holds no complex numbers")
    y = _inverse_onesided(b, x, None, x.rank - 2, True)
    return b.reshape(y, y.shape[:-1])


@lowers("STFT", versions=[17], dtypes={"x": FLOATS, "window": FLOATS})
def stft(
    b: LowerContext,
    x: Value,
    frame_step: Host,
    window: Value | None = None,
    frame_length: Host | None = None,
    *,
    onesided: int = 1,
) -> Value:
    """STFT as a strided 1-D convolution with the windowed table."""
    step = frame_step.ints()[0]
    length = frame_length.ints()[0] if frame_length is not None else window.shape[0] if window is not None else None
    if length is None:
        raise Unsupported("neither window nor frame_length is given")
    n, stride = pinned(length), pinned(step)
    if n is None or stride is None or n < 1 or stride < 1:
        raise Unsupported("frame length and step must be positive and known before the run")
    if onesided and x.rank == 3:
        require_same(x.shape[-1], 1, "onesided needs a real signal")
    complex_in = x.rank == 3 and not onesided and _is_complex(x)
    y = composites.wide(b, x if x.rank == 3 else b.reshape(x, (*x.shape, 1)))
    bins = n // 2 + 1 if onesided else n
    width = 2 if complex_in else 1
    table = b.const(_fourier(n, bins, False, complex_in).reshape(n, width, bins * 2).astype(y.dtype.numpy))
    if window is not None:
        require_same(window.shape[0], n, "the window is not as long as a frame")
        table = b.map("mul", table, b.reshape(b.cast(window, y.dtype), (n, 1, 1)))
    if not at_least(y.shape[1], n):
        raise Unsupported(f"a signal of {y.shape[1]} samples is shorter than a frame of {n}")
    frames = (y.shape[1] - n) // stride + 1
    (z,) = b.window(
        "conv",
        y,
        table,
        out_channels=bins * 2,
        out_spatial=(frames,),
        kernel=(n,),
        strides=(stride,),
        dilations=(1,),
        pads_begin=(0,),
        pads_end=(0,),
        groups=1,
    )
    return b.cast(b.reshape(z, (y.shape[0], frames, bins, 2)), x.dtype)


# ----------------------------------------------------------------------------------------------------------- windows


def _cosines(n: int, periodic: bool, coefficients: Sequence[float]) -> Table:
    """``sum c_j cos(2 pi j i / N)`` with N = n for a periodic window, n - 1 for a symmetric one."""
    with np.errstate(invalid="ignore"):  # a symmetric window of one element: 0 / 0
        angle = 2 * np.pi * np.arange(n) / (n if periodic else n - 1)
    total = np.zeros(n)
    for j, c in enumerate(coefficients):
        total += c * np.cos(j * angle)
    return total


def _register_window(op_type: str, coefficients: Sequence[float]) -> None:
    @lowers(op_type, versions=[17])
    def lowering(b: LowerContext, size: Host, *, output_datatype: int = 1, periodic: int = 1) -> Value:
        dtype = DType(output_datatype) if output_datatype in {t.value for t in DType} else None
        if dtype is None or dtype not in REAL:
            raise Unsupported(f"output_datatype {output_datatype} is not supported")
        n = size.ints()[0]
        if dtype.is_int and not periodic and not at_least(n, 2):
            raise Unsupported("a symmetric window of one element is NaN, which no integer is")

        def make(n: int) -> Table:
            table = _cosines(n, bool(periodic), coefficients)
            return table if dtype is DType.F64 else table.astype(np.float32)  # so that a 1 is one before it is cut off

        return _table(b, (n,), make, (n,), dtype)


_register_window("HannWindow", (0.5, -0.5))
_register_window("HammingWindow", (25 / 46, -21 / 46))
_register_window("BlackmanWindow", (0.42, -0.5, 0.08))


@lowers("MelWeightMatrix", versions=[17])
def mel_weight_matrix(
    b: LowerContext,
    num_mel_bins: Host,
    dft_length: Host,
    sample_rate: Host,
    lower_edge_hertz: Host,
    upper_edge_hertz: Host,
    *,
    output_datatype: int = 1,
) -> Value:
    """MelWeightMatrix by the formulas of version 17, as a constant."""
    if output_datatype not in {t.value for t in GPU_FLOATS | {DType.F64}}:
        raise Unsupported(f"output_datatype {output_datatype} is not supported")
    values = [h.items()[0] for h in (num_mel_bins, dft_length, sample_rate, lower_edge_hertz, upper_edge_hertz)]
    if any(isinstance(v, Unknown) or not isinstance(v, (int, float)) for v in values):
        raise Unsupported("its inputs are not known before the run")
    bins, length, rate = (int(v) for v in values[:3])
    low, high = (2595 * np.log10(1 + float(v) / 700) for v in values[3:])
    spectrogram = length // 2 + 1
    edges = low + np.arange(bins + 2) * ((high - low) / (bins + 2))
    hertz = 700 * (10 ** (edges / 2595) - 1)
    at = ((length + 1) * hertz // rate).astype(np.int64)
    matrix = np.zeros((spectrogram, bins))
    for i in range(bins):
        lower, center, upper = at[i : i + 3]
        if lower == center:
            matrix[center, i] = 1
        else:
            matrix[lower : center + 1, i] = np.arange(center - lower + 1) / (center - lower)
        if upper > center:
            matrix[center:upper, i] = (upper - np.arange(center, upper)) / (upper - center)
    return b.const(matrix.astype(DType(output_datatype).numpy))
