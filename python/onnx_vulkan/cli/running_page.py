"""The page of ``onnx-vulkan run --html``: verdict, worst elements of each output, how large the errors are. It needs no network.

The plots are plotly's (extra ``html``).
"""

from __future__ import annotations

import html
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnx_vulkan.cli.judging import Case, element
from onnx_vulkan.profile.page import document
from onnx_vulkan.tolerance import shares

__all__ = ["page"]

Array = NDArray[Any]

WORST = 10
"""So many elements of an output are listed."""
BINS = 60


def page(verdict: str, case: Case, outputs: Mapping[str, Mapping[str, Array]], data: Mapping[str, Any]) -> str:
    """The page. *outputs* are the results of each side, *data* is the JSON of the run."""
    found = {
        (door, name): shares(np.asarray(made[name]), np.asarray(want), case.allowed)
        for door, made in outputs.items()
        for name, want in case.reference.items()
        if np.asarray(made[name]).shape == want.shape
        and np.asarray(made[name]).dtype == want.dtype
        and want.dtype.kind not in "OSU"
    }
    figures = [(_table(case, outputs, found), "600px")]
    figures += [(_histogram(door, name, s), "380px") for (door, name), s in found.items() if s.size]
    return document(f"Run of {data['model']}", verdict, figures)


def _table(case: Case, outputs: Mapping[str, Mapping[str, Array]], found: Mapping[tuple[str, str], Array]) -> dict[str, Any]:
    """The worst elements of each output."""
    rows: list[tuple[str, ...]] = []
    for (door, name), share in found.items():
        got, want = np.asarray(outputs[door][name]), np.asarray(case.reference[name])
        for flat in np.argsort(share, axis=None)[::-1][:WORST]:
            at = tuple(int(i) for i in np.unravel_index(int(flat), share.shape))
            e = element(got, want, at)
            rows.append((door, html.escape(name), str(e["index"]), str(e["value"]), str(e["reference"]), f"{share[at]:.3g}"))
    columns = ("side", "output", "element", "value", "reference", "share of its allowance")
    return {
        "data": [
            {
                "type": "table",
                "header": {"values": columns, "align": "left"},
                "cells": {"values": list(zip(*rows, strict=True)) if rows else [[]] * len(columns), "align": "left"},
            }
        ],
        "layout": {"title": {"text": f"The {WORST} worst elements of each output"}},
    }


def _histogram(door: str, name: str, share: Array) -> dict[str, Any]:
    """How many elements differ by how much of what is allowed, by powers of ten."""
    positive = share[np.isfinite(share) & (share > 0)]
    low = float(np.log10(positive.min())) if positive.size else -1.0
    high = max(float(np.log10(positive.max())) if positive.size else 0.0, 0.0)
    counts, edges = np.histogram(np.log10(positive), BINS, (min(low, high - 1), high))
    equal, infinite = int((share == 0).sum()), int(np.isinf(share).sum())
    title = f"{html.escape(name)} ({door}): {equal} of {share.size} elements are equal" + (
        f", {infinite} are not comparable" if infinite else ""
    )
    bars = {"type": "bar", "x": ((edges[:-1] + edges[1:]) / 2).tolist(), "y": counts.tolist(), "width": (edges[1] - edges[0])}
    return {
        "data": [bars],
        "layout": {
            "title": {"text": title},
            "xaxis": {"title": {"text": "share of the allowance, power of ten (0: just allowed)"}},
            "yaxis": {"title": {"text": "elements"}, "type": "log"},
        },
    }
