"""The rows of the kernel suite and their bars, and the neighbours that show cliffs."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from benchmark.kernels.families import FAMILIES
from benchmark.kernels.work import Work

__all__ = ["NEIGHBOURS", "ROWS", "Row", "rows_named"]


@dataclass(frozen=True)
class Row:
    """Work by its family's name and those sizes that differ from the family's usual ones; *bar* in the unit of the work."""

    family: str
    sizes: Mapping[str, int | str] = field(default_factory=dict)
    bar: float | None = None

    @property
    def label(self) -> str:
        """What ``--work`` takes to measure this row again."""
        sizes = ",".join(f"{name}={value}" for name, value in self.sizes.items())
        return f"{self.family}:{sizes}" if sizes else self.family

    def make(self) -> Work:
        """The work itself, with fresh random data."""
        return FAMILIES[self.family](**self.sizes)


def _conv(**sizes: int | str) -> Row:
    return Row("conv", sizes)


ROWS: tuple[Row, ...] = (
    Row("matmul", {}, 40),
    Row("matmul", {"weights": 0}, 40),
    Row("matmul", {"precision": "fast"}),
    Row("matmul", {"precision": "fp32_split"}, 60),
    Row("matmul", {"dtype": "fp16"}, 220),
    Row("matmul", {"dtype": "fp16", "weights": 0}, 220),
    Row("matmul", {"dtype": "int8"}, 350),
    *(Row("skinny", {"m": m, "dtype": dtype}, 3.0) for dtype in ("fp32", "fp16") for m in (1, 4, 16)),
    Row("softmax", {}, 3.1),
    Row("layer_norm", {}, 3.1),
    Row("transpose", {}, 3.1),
    Row("elementwise", {}, 3.1),
    *(Row(name, {"dtype": "fp16"}, 3.1) for name in ("softmax", "layer_norm", "transpose", "elementwise")),
    *(
        Row("attention", {"width": width, "form": form}, bar)
        for width, bar in ((64, 120), (128, 150))
        for form in ("onnx", "microsoft", "ops")
    ),
    Row("softmaxes", {}, 0.6),
    Row("softmaxes", {"count": 1}, 0.06),
    _conv(),
    _conv(channels=512, size=7),
    _conv(channels=256, size=56, out=64, kernel=1),
    _conv(channels=512, size=7, out=2048, kernel=1),
    _conv(channels=128, size=56, stride=2),
    _conv(channels=3, size=224, out=64, kernel=7, stride=2),
    _conv(channels=144, size=56, groups=0),
    _conv(batch=3),
    _conv(batch=32),
    _conv(batch=32, channels=512, size=7),
    _conv(batch=32, channels=256, size=56, out=64, kernel=1),
    _conv(batch=32, channels=144, size=56, groups=0),
    _conv(batch=32, precision="fast"),
    _conv(batch=32, dtype="fp16"),
    _conv(batch=32, channels=512, size=7, dtype="fp16"),
)


Sizes = Mapping[str, int | str]


def _squares(dtype: str) -> list[Sizes]:
    odd = ({}, {"m": 4095}, {"k": 4095}, {"n": 4095}, {"m": 4097, "k": 4097, "n": 4097})
    return [{"dtype": dtype, **sizes} for sizes in odd]


def _tokens(dtype: str, n: int) -> list[Sizes]:
    return [{"dtype": dtype, "m": m, "k": 768, "n": n} for m in (192, 196, 197, 208)]


def _few(dtype: str, rows: Sequence[int]) -> list[Sizes]:
    return [{"dtype": dtype, "m": m, "layers": 4} for m in rows]


_COLUMNS: Sequence[Sizes] = ({}, {"columns": 4095}, {"columns": 4097}, {"rows": 340_000, "columns": 197})

NEIGHBOURS: tuple[tuple[str, Sequence[Sizes]], ...] = (
    *(("matmul", _squares(dtype)) for dtype in ("fp32", "fp16", "int8")),
    *(("matmul", _tokens(dtype, n)) for dtype in ("fp32", "fp16") for n in (768, 3072)),
    *(("skinny", [{"dtype": dtype, "k": k, "layers": 4} for k in (4096, 4095, 4100)]) for dtype in ("fp32", "fp16")),
    *(("skinny", _few(dtype, rows)) for dtype in ("fp32", "fp16") for rows in ((1, 2, 3, 4, 5, 8), (15, 16, 17))),
    ("softmax", _COLUMNS),
    ("layer_norm", _COLUMNS),
    (
        "transpose",
        [{}, {"rows": 8191}, {"columns": 8191}, {"rows": 8193, "columns": 8193}, {"batch": 340, "rows": 197, "columns": 1000}],
    ),
    ("elementwise", [{}, {"elements": (1 << 26) - 1}, {"elements": (1 << 26) + 1}]),
    ("attention", [{}, {"length": 2047}, {"length": 2049}, {"width": 56}]),
    ("attention", [{"width": 128}, {"width": 128, "length": 2047}, {"width": 120}]),
    ("attention", [{"length": n, "batch": 8} for n in (192, 196, 197, 208)]),
    ("conv", [{"size": s, "channels": c, "batch": 8} for s, c in ((56, 64), (55, 64), (57, 64), (56, 63), (56, 65))]),
    ("conv", [{"size": s, "channels": 512, "batch": b} for s, b in ((7, 2), (7, 3), (7, 4), (8, 3), (6, 3))]),
    ("conv", [{"size": s, "channels": 144, "groups": 0, "batch": 8} for s in (55, 56, 57)]),
)
"""Families with neighbouring sizes: the rates of each group, work for work, should be alike."""


def rows_named(texts: Sequence[str]) -> list[Row]:
    """The rows for ``FAMILY`` (all of its rows) or ``FAMILY:NAME=VALUE,...``. Raises ValueError with a sentence."""
    found: list[Row] = []
    for text in texts:
        family, colon, rest = text.partition(":")
        if family not in FAMILIES:
            raise ValueError(f"there is no work {family!r}; there are {', '.join(FAMILIES)}")
        if not colon:
            found += [row for row in ROWS if row.family == family]
            continue
        kinds = {p.name: type(p.default) for p in inspect.signature(FAMILIES[family]).parameters.values()}
        sizes: dict[str, int | str] = {}
        for part in filter(None, rest.split(",")):
            name, _, value = part.partition("=")
            if name not in kinds:
                raise ValueError(f"{family} has no size {name!r}; it has {', '.join(kinds)}")
            try:
                sizes[name] = kinds[name](value)
            except ValueError:
                raise ValueError(f"{text}: {value!r} is no number") from None
        found.append(Row(family, sizes, next((row.bar for row in ROWS if row.family == family and row.sizes == sizes), None)))
    return found
