"""How good a converted model is: its outputs against the original's on sample files, by one number, the larger the better.

================  ===========================================================================================
metric            meaning, over all outputs of floats together
================  ===========================================================================================
``cosine``        cosine of the angle between the outputs as vectors: 1 is equal up to a factor
``snr``           signal to noise ratio in dB: ``10 log10(|reference|^2 / |difference|^2)``; 200 where nothing differs
``argmax``        share of rows (along the last axis) whose largest element is at the same place
``adapter``       ``quality(outputs, reference, sample)`` of the adapter
================  ===========================================================================================

The figure of several samples is their mean.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnx_vulkan.errors import InvalidInput

__all__ = ["METRICS", "Metric", "quality_of", "read_sample"]

Array = NDArray[Any]
Named = Mapping[str, Array]

Metric = Callable[[Named, Named, Named], float]
"""``(outputs, reference, sample) -> figure``; the sample has every array of its file, labels that are no input included."""

NOTHING_DIFFERS = 200.0


def _vectors(outputs: Named, reference: Named) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    names = [n for n, a in reference.items() if np.issubdtype(a.dtype, np.floating)]
    if not names:
        raise InvalidInput(
            "the model has no output of floats to measure: give an adapter with quality(), and quality = 'adapter'."
        )
    a, b = (np.concatenate([np.asarray(side[n], np.float64).reshape(-1) for n in names]) for side in (outputs, reference))
    if a.shape != b.shape:
        raise InvalidInput("the converted model gives outputs of other shapes than the original.")
    return a, b


def cosine(outputs: Named, reference: Named, sample: Named) -> float:
    """The cosine of the angle between the outputs."""
    a, b = _vectors(outputs, reference)
    size = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(a @ b) / size if size else float(np.array_equal(a, b))


def snr(outputs: Named, reference: Named, sample: Named) -> float:
    """The signal to noise ratio in dB."""
    a, b = _vectors(outputs, reference)
    noise, signal = float(np.sum((a - b) ** 2)), float(np.sum(b**2))
    if noise == 0:
        return NOTHING_DIFFERS
    return min(NOTHING_DIFFERS, 10 * float(np.log10(signal / noise))) if signal else -NOTHING_DIFFERS


def argmax(outputs: Named, reference: Named, sample: Named) -> float:
    """The share of rows whose largest element is at the same place."""
    same = [
        np.argmax(outputs[n], -1).reshape(-1) == np.argmax(a, -1).reshape(-1)
        for n, a in reference.items()
        if np.issubdtype(a.dtype, np.floating) and a.ndim and a.shape[-1] > 1 and a.shape == outputs[n].shape
    ]
    if not same:
        raise InvalidInput("the model has no output with rows of floats, so argmax measures nothing: choose cosine or snr.")
    return float(np.concatenate(same).mean())


METRICS: Mapping[str, Metric] = {"cosine": cosine, "snr": snr, "argmax": argmax}


def read_sample(path: Path) -> dict[str, Array]:
    """The arrays of an ``.npz`` file. Raises InvalidInput."""
    try:
        with np.load(path, allow_pickle=False) as stored:
            if isinstance(stored, np.lib.npyio.NpzFile):
                return dict(stored)
    except (OSError, ValueError) as e:
        raise InvalidInput(f"the sample file {path} cannot be read: {e}.") from None
    raise InvalidInput(f"the sample file {path} is no .npz file of arrays by input name.")


def quality_of(
    metric: Metric, original: Callable[[Named], Named], converted: Callable[[Named], Named], samples: Sequence[Named]
) -> float:
    """The mean figure over *samples*. Raises InvalidInput where it is no number."""
    figures = [metric(converted(s), original(s), s) for s in samples]
    mean = float(np.mean(figures))
    if not np.isfinite(mean):
        raise InvalidInput(f"the quality is no number ({mean}): the converted model gives NaN or infinities.")
    return mean
