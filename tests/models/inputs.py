"""How a model's inputs are made: small recipes that give the same arrays everywhere. No model is named here."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Array", "Input", "rng_of"]

Array = NDArray[Any]


def rng_of(name: str) -> np.random.Generator:
    """The random stream that belongs to *name*."""
    return np.random.default_rng(list(hashlib.sha256(name.encode()).digest()[:8]))


@dataclass(frozen=True)
class Input:
    """One input's recipe: an array of *shape*, made from the input's name alone. ``fill`` says what the numbers are.

    Fills: ``normal``, ``uniform`` (-1 to 1), ``ints`` (0 to ``high``), ``arange`` (from ``start``), ``ones``, ``zeros``,
    ``value`` (``start`` everywhere), ``sound`` (a chord and some noise at 16 kHz), ``text`` (words, black on white, in
    an image ``[N, C, H, W]`` of about -2 to 2: a text detector answers nothing but zeros to noise).
    """

    shape: tuple[int, ...]
    fill: str = "normal"
    dtype: str = "float32"
    high: int = 0
    start: int = 0

    def make(self, name: str) -> Array:
        """The array for input *name*."""
        rng = rng_of(f"{name}{self.shape}")
        made: Array
        if self.fill == "normal":
            made = rng.standard_normal(self.shape, dtype=np.float32)
        elif self.fill == "uniform":
            made = rng.uniform(-1, 1, self.shape)
        elif self.fill == "ints":
            made = rng.integers(0, self.high, self.shape)
        elif self.fill == "arange":
            made = np.broadcast_to(np.arange(self.shape[-1]) + self.start, self.shape)
        elif self.fill == "sound":
            made = _sound(self.shape, rng)
        elif self.fill == "text":
            made = _text(self.shape, rng)
        else:
            made = np.full(self.shape, {"ones": 1, "zeros": 0, "value": self.start}[self.fill])
        return made.astype(self.dtype)


def _sound(shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    count = int(np.prod(shape))
    t = np.arange(count) / 16000
    tones = np.sin(2 * np.pi * 220 * t) + 0.6 * np.sin(2 * np.pi * 277.2 * t) + 0.4 * np.sin(2 * np.pi * 1320 * t)
    wave: Array = 0.2 * tones * (0.6 + 0.4 * np.sin(2 * np.pi * 3 * t)) + 0.02 * rng.standard_normal(count)
    return wave.reshape(shape)


_GLYPHS = {
    "V": "10001 10001 10001 10001 10001 01010 00100",
    "U": "10001 10001 10001 10001 10001 10001 01110",
    "L": "10000 10000 10000 10000 10000 10000 11111",
    "K": "10001 10010 10100 11000 10100 10010 10001",
    "A": "01110 10001 10001 11111 10001 10001 10001",
    "N": "10001 11001 10101 10011 10001 10001 10001",
    "4": "00010 00110 01010 10010 11111 00010 00010",
    "2": "01110 10001 00001 00010 00100 01000 11111",
    " ": "00000 00000 00000 00000 00000 00000 00000",
}


def _text(shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Lines of 5x7 letters, about 30 pixels high at most, centred in each image."""
    images, channels, height, width = shape
    scale = max(1, min(4, height // 12))
    page = np.full((images, channels, height, width), 2.0)
    for n in range(images):
        for top in range(scale * 2, height - 9 * scale + 1, 16 * scale):
            letters = rng.choice(list(_GLYPHS), max(1, (width - 2 * scale) // (6 * scale)))
            rows = [[c for letter in letters for c in _GLYPHS[str(letter)].split()[row] + "0"] for row in range(7)]
            ink = np.kron(np.array(rows) == "1", np.ones((scale, scale), bool))[:, : width - 2 * scale]
            page[n, :, top : top + ink.shape[0], scale : scale + ink.shape[1]][:, ink] = -2.0
    return page + 0.05 * rng.standard_normal(shape)
