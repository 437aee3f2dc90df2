"""A model as one HTML page that needs no network: its graph by blocks, what does not run on Vulkan and why; searchable."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from typing import Any

from onnx_vulkan.errors import InvalidInput
from onnx_vulkan.inspect.nodes import Model
from onnx_vulkan.inspect.picture import as_svg, check_program, picture_of_blocks, picture_of_nodes, shape_of

__all__ = ["check_tools", "page"]

PIECE = 400
"""Nodes in one drawing. Larger blocks are drawn in several, one after the other: Graphviz takes much longer for all at once, and
nobody reads more."""


def check_tools() -> None:
    """Raises InvalidInput where what makes the page is not installed."""
    if importlib.util.find_spec("jinja2") is None:
        raise InvalidInput("an HTML page needs the library jinja2: pip install 'onnx-vulkan[html]'.")
    check_program()


def page(model: Model, data: Mapping[str, Any], verdict: str) -> str:
    """The page. *data* is what ``inspect MODEL`` gives as JSON, *verdict* its line."""
    import jinja2

    sections = list(_sections(model))
    drawn = [_embedded(svg) for svg in as_svg(text for _, _, pieces in sections for _, text in pieces)]
    pictures = iter(drawn)
    template = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True).from_string(
        resources.files("onnx_vulkan.inspect").joinpath("page.html").read_text(encoding="utf-8")
    )
    return template.render(
        data=data,
        verdict=verdict,
        overview=_embedded(as_svg([picture_of_blocks(model)])[0]),
        sections=[
            {"id": anchor, "title": title, "pieces": [{"title": told, "svg": next(pictures)} for told, _ in pieces]}
            for anchor, title, pieces in sections
        ],
        nodes=[_row(model, i) for i in range(len(model.graph.nodes))],
    )


def _sections(model: Model) -> Iterator[tuple[str, str, list[tuple[str, str]]]]:
    """The blocks and what is outside of them: an anchor, a title, and the drawings with theirs."""
    for n, block in enumerate(model.claims.blocks):
        yield f"block-{n}", f"Block {n}: {len(block)} nodes", _pieces(model, block)
    outside = sorted(model.refusal)
    if outside:
        yield "outside", f"Not on Vulkan: {len(outside)} nodes", _pieces(model, outside)


def _pieces(model: Model, nodes: Sequence[int]) -> list[tuple[str, str]]:
    parts = [nodes[n : n + PIECE] for n in range(0, len(nodes), PIECE)]
    titles = [f"@{part[0]} to @{part[-1]}" if len(parts) > 1 else "" for part in parts]
    return [(title, picture_of_nodes(model, part)) for title, part in zip(titles, parts, strict=True)]


def _embedded(svg: str) -> str:
    """A drawing as part of a page: ids that all drawings have are dropped; those of nodes (``n5``, ``b0``, ``c3``) stay."""
    return re.sub(r' id="(?!(?:n|b|c)\d+")[^"]*"', "", svg)


def _row(model: Model, i: int) -> dict[str, Any]:
    """What the page says of a node."""
    row = model.row_data(i)
    for kind in ("inputs", "outputs"):
        row[kind] = [[v["name"], shape_of(v)] for v in row[kind]]
    return row
