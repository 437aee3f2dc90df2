"""A profile as one HTML page that needs no network: time line, roofline, kernels. The plots are plotly's (extra ``html``)."""

from __future__ import annotations

import html
import importlib.util
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from onnx_vulkan.errors import InvalidInput
from onnx_vulkan.profile.ceilings import LAUNCH, MEMORY
from onnx_vulkan.profile.measure import Kernel, Profile, lanes

__all__ = ["check_library", "document", "figure", "page"]

_STYLE = "body { font: 15px system-ui, sans-serif; margin: 2em auto; max-width: 1400px; padding: 0 1em; }"
_FONT = {"family": "system-ui, sans-serif"}


def check_library() -> None:
    """Raises InvalidInput where the plots' library is not installed."""
    if importlib.util.find_spec("plotly") is None:
        raise InvalidInput("an HTML page needs the library plotly: pip install 'onnx-vulkan[html]'.")


def page(p: Profile, data: Mapping[str, Any], title: str, verdict: str) -> str:
    """The page. *data* is the profile as :func:`onnx_vulkan.profile.report.as_data` gives it."""
    return document(
        f"Profile of {title}", verdict, [(time_line(p), "420px"), (roofline(p), "620px"), (kernel_table(data), "900px")]
    )


def document(title: str, verdict: str, figures: Sequence[tuple[Mapping[str, Any], str]]) -> str:
    """A page of a sentence and figures, each with its height."""
    import plotly.io
    from plotly.offline import get_plotlyjs

    parts = [
        plotly.io.to_html(figure, validate=False, full_html=False, include_plotlyjs=False, default_height=height)
        for figure, height in figures
    ]
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>{html.escape(title)}</title>
<style>{_STYLE}</style>
<script>{get_plotlyjs()}</script>
</head>
<body>
<h1>{html.escape(title)}</h1>
<p>{html.escape(verdict)}</p>
{"".join(f"<section>{part}</section>" for part in parts)}
</body>
</html>
"""


def time_line(p: Profile) -> dict[str, Any]:
    """Dispatches by row of kernels that do not overlap, and the host's phases, of one profiled run."""
    bars: dict[str, list[tuple[str, float, float, str]]] = defaultdict(list)
    for phase in p.shown_phases:
        row = "host" if len(p.block_runs) == 1 else f"host, block {phase.block}"
        text = f"{phase.name.replace('_', ' ')}: {phase.ns / 1e3:.1f} us"
        bars["host"].append((row, phase.start_ns, phase.ns, text))
    for n, spans in enumerate(lanes(p.spans)):
        for s in spans:
            k = p.kernels[s.kernel]
            row = "kernels" if not n else f"overlapping {n}"
            bars[k.work.family].append((row, s.start_ns, s.ns, f"{html.escape(s.label)}: {s.ns / 1e3:.1f} us<br>{_facts(k)}"))
    traces = [
        {
            "type": "bar",
            "orientation": "h",
            "name": family,
            "y": [row for row, _, _, _ in found],
            "base": [start / 1e3 for _, start, _, _ in found],
            "x": [ns / 1e3 for _, _, ns, _ in found],
            "hovertext": [text for _, _, _, text in found],
            "hoverinfo": "text",
        }
        for family, found in bars.items()
    ]
    rows = sorted({row for found in bars.values() for row, _, _, _ in found}, key=lambda row: (row.startswith("host"), row))
    return figure(
        "One profiled run (the clocks of host and device are fitted at the end of the wait)",
        traces,
        {"title": {"text": "us"}},
        {"categoryorder": "array", "categoryarray": rows[::-1]},
        barmode="overlay",
    )


def roofline(p: Profile) -> dict[str, Any]:
    """Every kernel that computes at its operations a byte and operations a second; the ceilings above."""
    points: dict[str, list[Kernel]] = defaultdict(list)
    for k in p.kernels:
        if k.work.operations and k.work.bytes and k.ns:
            points[k.work.family].append(k)
    total = sum(k.ns for k in p.kernels)
    traces: list[dict[str, Any]] = []
    for family, kernels in points.items():
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": family,
                "x": [k.work.operations / k.work.bytes for k in kernels],
                "y": [k.work.operations / k.ns for k in kernels],
                "marker": {"size": [6 + 60 * (k.ns / total) ** 0.5 for k in kernels], "opacity": 0.7},
                "hovertext": [f"{html.escape(k.label)}: {k.ns / 1e3:.1f} us<br>{_facts(k)}" for k in kernels],
                "hoverinfo": "text",
            }
        )
    found = [k.work.operations / k.work.bytes for kernels in points.values() for k in kernels]
    traces += _roofs(p.ceilings.rates, min(found, default=0.1) / 4, max(found, default=100.0) * 16)
    return figure(
        "Roofline (area: time; what caches hold may lie above the roof of memory)",
        traces,
        {"type": "log", "title": {"text": "operations a byte"}},
        {"type": "log", "title": {"text": "thousands of millions of operations a second"}},
    )


def _roofs(rates: Mapping[str, float], low: float, high: float) -> list[dict[str, Any]]:
    memory = rates.get(MEMORY, 0.0)
    traces = []
    for kind, peak in rates.items():
        if kind in (MEMORY, LAUNCH):
            continue
        knee = peak / memory if memory else low
        x = sorted({low, min(max(knee, low), high), max(high, 2 * knee)})
        y = [min(peak, memory * i if memory else peak) / 1e9 for i in x]
        name = f"{kind}: {peak / 1e12:.3g} Top/s, memory: {memory / 1e9:,.4g} GB/s"
        traces.append({"type": "scatter", "mode": "lines", "name": name, "x": x, "y": y, "hoverinfo": "name"})
    return traces


def kernel_table(data: Mapping[str, Any]) -> dict[str, Any]:
    """All kernels, the longest first."""
    columns: list[tuple[str, list[str]]] = [
        ("kernel", [html.escape(k["label"]) for k in data["kernels"]]),
        ("nodes", [html.escape(_node_text(k["nodes"])) for k in data["kernels"]]),
        ("family", [k["family"] for k in data["kernels"]]),
        ("us", [f"{k['us']:.1f}" for k in data["kernels"]]),
        ("share", [f"{k['share']:.1%}" for k in data["kernels"]]),
        ("so far", [f"{k['cumulative_share']:.1%}" for k in data["kernels"]]),
        ("Gop/s", [f"{k['gop_per_s']:,.4g}" for k in data["kernels"]]),
        ("GB/s", [f"{k['gb_per_s']:,.4g}" for k in data["kernels"]]),
        ("roofline", [f"{k['share_of_roofline']:.0%}" for k in data["kernels"]]),
        ("bound by", [k["bound"] for k in data["kernels"]]),
    ]
    table = {
        "type": "table",
        "columnwidth": [3, 5, 1.3, 1, 1, 1, 1.2, 1.2, 1.2, 1.4],
        "header": {"values": [name for name, _ in columns], "align": "left"},
        "cells": {"values": [cells for _, cells in columns], "align": "left"},
    }
    return {"data": [table], "layout": {"title": {"text": "Kernels"}, "font": _FONT, "margin": {"l": 10, "r": 10}}}


def _node_text(nodes: Sequence[Mapping[str, str]]) -> str:
    return ", ".join(f"{n['name']} ({n['op_type']})" if n["op_type"] else n["name"] for n in nodes)


def _facts(k: Kernel) -> str:
    """What a kernel did, for the text of a mark."""
    nodes = ", ".join(k.work.nodes[:6]) + (" ..." if len(k.work.nodes) > 6 else "")
    return (
        f"{html.escape(nodes)}<br>{k.work.operations / 1e6:.4g} Mop, {k.work.bytes / 1e6:.4g} MB<br>"
        f"{k.work.operations / k.ns if k.ns else 0:,.4g} Gop/s, {k.work.bytes / k.ns if k.ns else 0:,.4g} GB/s<br>"
        f"{k.share_of_roofline:.0%} of the roofline, bound by {k.bound}"
    )


def figure(title: str, traces: Sequence[Any], x: Mapping[str, Any], y: Mapping[str, Any], **layout: Any) -> dict[str, Any]:
    """A figure of traces, for :func:`document`."""
    return {
        "data": list(traces),
        "layout": {"title": {"text": title}, "font": _FONT, "xaxis": x, "yaxis": y, "hovermode": "closest", **layout},
    }
