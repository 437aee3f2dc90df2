"""GridSample, AffineGrid, MaxUnpool, the signal operators and their kin against ONNX Runtime's CPU EP."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from one_node import RNG, Array, check, graph_of, model_of, normal, refusals


@pytest.mark.parametrize("align", [0, 1])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
def test_grid_sample(mode: str, padding: str, align: int) -> None:
    grid = RNG.uniform(-2.5, 2.5, (2, 5, 6, 2)).astype(np.float32)  # also far outside
    attributes = {"mode": mode, "padding_mode": padding, "align_corners": align}
    check("GridSample", 16, {"x": normal(2, 3, 4, 7), "g": grid}, attributes, dynamic=True, rtol=1e-3, atol=1e-4)
    check("GridSample", 20, {"x": normal(2, 3, 4, 7), "g": grid}, {**attributes, "mode": mode.removeprefix("bi")}, atol=1e-4)


@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["linear", "nearest"])
def test_grid_sample_in_three_dimensions(mode: str, padding: str) -> None:
    grid = RNG.uniform(-1.5, 1.5, (1, 2, 3, 4, 3)).astype(np.float32)
    attributes = {"mode": mode, "padding_mode": padding}
    check("GridSample", 20, {"x": normal(1, 2, 3, 4, 5), "g": grid}, attributes, dynamic=True, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("align", [0, 1])
@pytest.mark.parametrize("size", [(2, 3, 4, 5), (1, 2, 3, 4, 5)])
def test_affine_grid(size: tuple[int, ...], align: int) -> None:
    n = len(size) - 2
    given = {"theta": normal(size[0], n, n + 1), "size": np.array(size, np.int64)}
    check("AffineGrid", 20, given, {"align_corners": align}, constants=("size",))


def test_max_unpool() -> None:
    x = normal(1, 2, 3, 3)
    indices = np.stack([RNG.permutation(36)[:9] + 36 * c for c in range(2)]).reshape(x.shape)
    given: dict[str, Array | None] = {"x": x, "i": indices}
    check("MaxUnpool", 11, given, {"kernel_shape": [2, 2], "strides": [2, 2]}, dynamic=True)
    given["shape"] = np.array([1, 2, 7, 7], np.int64)
    model = model_of("MaxUnpool", 11, given, {"kernel_shape": [2, 2], "strides": [2, 2]}, constants=("shape",))
    assert "output_shape" in str(refusals(graph_of(model))[0])


@pytest.mark.parametrize("onesided", [0, 1])
@pytest.mark.parametrize("length", [None, 6, 16])
@pytest.mark.parametrize("axis", [1, 2])
def test_dft(axis: int, length: int | None, onesided: int) -> None:
    n = np.array(length, np.int64) if length else None
    given: dict[str, Array | None] = {"x": normal(2, 9, 10, 1), "n": n}
    if n is None:
        given.pop("n")
    check("DFT", 17, given, {"axis": axis, "onesided": onesided}, constants=("n",), dynamic=True, atol=1e-4)


@pytest.mark.parametrize("inverse", [0, 1])
def test_dft_of_complex_numbers(inverse: int) -> None:
    given: dict[str, Array | None] = {"x": normal(2, 9, 2), "n": None, "axis": np.array(-2, np.int64)}
    check("DFT", 20, given, {"inverse": inverse}, constants=("axis",), atol=1e-4)


@pytest.mark.parametrize("with_window", [False, True])
def test_stft(with_window: bool) -> None:
    given: dict[str, Array | None] = {
        "x": normal(2, 64, 1),
        "step": np.array(8, np.int64),
        "w": np.abs(normal(16)) if with_window else None,
        "n": np.array(16, np.int64),
    }
    check("STFT", 17, given, {"onesided": 1}, constants=("step", "n"), dynamic=True, atol=1e-4)


@pytest.mark.parametrize("op", ["HannWindow", "HammingWindow", "BlackmanWindow"])
@pytest.mark.parametrize("periodic", [0, 1])
def test_windows(op: str, periodic: int) -> None:
    check(op, 17, {"n": np.array(11, np.int64)}, {"periodic": periodic}, constants=("n",))


@pytest.mark.parametrize("bins,length,rate,low,high", [(8, 16, 8192, 0.0, 4096.0), (20, 512, 16000, 20.0, 7600.0)])
def test_mel_weights(bins: int, length: int, rate: int, low: float, high: float) -> None:
    given: dict[str, Any] = {
        "b": np.array(bins, np.int64), "n": np.array(length, np.int64), "r": np.array(rate, np.int64),
        "l": np.array(low, np.float32), "h": np.array(high, np.float32),
    }  # fmt: skip
    check("MelWeightMatrix", 17, given, constants=tuple(given), atol=1e-5)
