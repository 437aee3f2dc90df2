"""Pictures of a model's nodes, and of the kernels that are made of them, in Graphviz's language; and as SVG where it is there.

DOT text is made by the package ``graphviz``, which quotes it. It is drawn by the program ``dot``, or by the one of the package
``graphviz-pure`` (extra ``html``), which needs nothing else.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onnx_vulkan.claims import convex_blocks
from onnx_vulkan.dims import evaluate
from onnx_vulkan.errors import InvalidInput, OnnxVulkanError
from onnx_vulkan.inspect.estimate import Part
from onnx_vulkan.inspect.nodes import Model
from onnx_vulkan.program.ir import Value

if TYPE_CHECKING:
    import graphviz

__all__ = ["as_svg", "check_program", "picture_of_blocks", "picture_of_nodes", "picture_of_program", "shape_of"]

LABELLED = 150
"""Pictures of more nodes have shapes only in what a pointer over an edge shows: labels would take most of the room."""
PATIENCE = 300
"""Seconds that a picture may take."""

BLOCKS = ("#d6e6f5", "#dff0d8", "#fdf1cf", "#e8dff5", "#d5f0ee", "#f6e0ea")
REFUSED, GIVEN_BACK, EDGE = "#f4b6b0", "#e8e8e8", "#ffffff"


def _digraph(title: str) -> graphviz.Digraph:
    import graphviz

    g = graphviz.Digraph(
        graph_attr={"tooltip": title, "ranksep": "0.3", "nodesep": "0.2", "nslimit": "2", "mclimit": "0.5"},
        node_attr={"shape": "box", "style": "filled,rounded", "fontname": "Helvetica", "fontsize": "11", "margin": "0.1,0.04"},
        edge_attr={"fontname": "Helvetica", "fontsize": "9", "color": "#808080", "arrowsize": "0.6"},
    )
    return g


def _label(*lines: str) -> str:
    """The lines of a node; what is long is cut in its middle, since names differ at both ends."""
    import graphviz

    short = (line if len(line) <= 40 else f"{line[:18]}...{line[-19:]}" for line in lines if line)
    return graphviz.escape("\n".join(short))  # type: ignore[no-any-return]


def shape_of(v: Mapping[str, Any]) -> str:
    """``float32 [n, 8]`` of a value as JSON has it."""
    shape = "?" if v["shape"] is None else f"[{', '.join(map(str, v['shape']))}]"
    return f"{v['dtype']} {shape}"


# ------------------------------------------------------------------------------------------------------------ nodes
def picture_of_nodes(model: Model, nodes: Collection[int], *, ends: bool = True) -> str:
    """The DOT text of some nodes. Node *i* has the id ``ni``; *ends*: draw what comes in and what goes out, too.

    Colours tell blocks apart; what does not run on Vulkan is red, or grey where it is only not worth the crossing.
    """
    import graphviz

    g = _digraph(model.graph.name)
    labelled = len(nodes) <= LABELLED
    for i in sorted(nodes):
        node, refusal, block = model.graph.nodes[i], model.refusal.get(i), model.block_of.get(i)
        colour = BLOCKS[block % len(BLOCKS)] if block is not None else GIVEN_BACK if i in model.given_back else REFUSED
        told = f"{node.name} (@{i})" + (f": {refusal.reason}" if refusal else f", block {block}")
        g.node(f"n{i}", _label(node.label, node.name), id=f"n{i}", fillcolor=colour, tooltip=graphviz.escape(told))
    values: dict[str, str] = {}
    for name, maker, reader in model.edges(nodes):
        if maker is None or reader is None:
            if not ends:
                continue
            if name not in values:
                values[name] = f"v{len(values)}"
                g.node(values[name], _label(name), shape="ellipse", fillcolor=EDGE, tooltip=graphviz.escape(name))
        shape = shape_of(model.value_data(name))
        told = graphviz.escape(f"{name}: {shape}")
        start, end = (values[name] if maker is None else f"n{maker}"), (values[name] if reader is None else f"n{reader}")
        g.edge(start, end, label=graphviz.escape(shape) if labelled else "", tooltip=told, labeltooltip=told)
    return str(g.source)


# ------------------------------------------------------------------------------------------------------------ blocks
def picture_of_blocks(model: Model) -> str:
    """The DOT text of a model's blocks and of what is between them. Block *k* has the id ``bk``, a node outside ``ni``.

    More than a few nodes between the same blocks are one box.
    """
    import graphviz

    g = _digraph(model.graph.name)
    group = {i: f"b{block}" for i, block in model.block_of.items()}
    for n, nodes in enumerate(model.claims.blocks):
        g.node(f"b{n}", _label(f"block {n}", f"{len(nodes)} nodes"), id=f"b{n}", fillcolor=BLOCKS[n % len(BLOCKS)])
    outside = sorted(model.refusal)
    many = len(outside) > LABELLED
    for n, nodes in enumerate(convex_blocks(model.graph, outside) if many else [(i,) for i in outside]):
        node = model.graph.nodes[nodes[0]]
        back = all(i in model.given_back for i in nodes)
        name = f"c{n}" if many else f"n{nodes[0]}"
        lines = (f"{len(nodes)} nodes", "not on Vulkan") if many else (node.label, node.name)
        reason = "; ".join(dict.fromkeys(model.refusal[i].reason for i in nodes[:10]))
        colour = GIVEN_BACK if back else REFUSED
        g.node(name, _label(*lines), id=name, fillcolor=colour, tooltip=graphviz.escape(reason))
        group.update(dict.fromkeys(nodes, name))
    edges: dict[tuple[str, str], dict[str, None]] = {}
    for name, maker, reader in model.edges(range(len(model.graph.nodes))):
        if maker is not None and reader is not None and group[maker] != group[reader]:
            edges.setdefault((group[maker], group[reader]), {})[name] = None
    for (start, end), names in edges.items():
        g.edge(start, end, label=str(len(names)) if len(names) > 1 else "", tooltip=graphviz.escape(", ".join(list(names)[:10])))
    return str(g.source)


# ------------------------------------------------------------------------------------------------------------ kernels
def picture_of_program(parts: Sequence[Part]) -> str:
    """The DOT text of the kernels that run: each step with the ONNX nodes in it, and the tensors that go through memory."""
    import graphviz

    g = _digraph("program")
    labelled = sum(len(p.works) for p in parts) <= LABELLED
    for p, part in enumerate(parts):
        numbers, aliases = part.plan.numbers, part.plan.structure.aliases

        def shown(v: Value, numbers: Mapping[str, int] = numbers) -> str:
            return f"{v.dtype.onnx_name} [{', '.join(str(evaluate(e, numbers)) for e in v.shape)}]"

        made: dict[Value, str] = {}
        for n, i in enumerate(part.plan.structure.inputs):
            made[i.value] = f"i{p}.{n}"
            g.node(f"i{p}.{n}", _label(i.value.name), shape="ellipse", fillcolor=EDGE, tooltip=graphviz.escape(shown(i.value)))
        for s, (step, work) in enumerate(part.works.items()):
            made.update(dict.fromkeys(step.writes, f"s{p}.{s}"))
            nodes = f"{work.nodes[0]} ... {work.nodes[-1]}" if len(work.nodes) > 2 else ", ".join(work.nodes)
            facts = f"{work.operations / 1e6:.3g} Mop, {work.bytes / 1e6:.3g} MB"
            g.node(
                f"s{p}.{s}",
                _label(work.family, nodes, facts),
                id=f"s{p}.{s}",
                fillcolor=BLOCKS[p % len(BLOCKS)],
                tooltip=graphviz.escape(f"{step.label}: {' '.join(work.nodes)}"),
            )
            for v in dict.fromkeys(aliases.get(v, v) for v in step.reads):
                if v in made and made[v] != f"s{p}.{s}":
                    told = graphviz.escape(shown(v))
                    g.edge(made[v], f"s{p}.{s}", label=told if labelled else "", tooltip=told, labeltooltip=told)
        for n, o in enumerate(part.plan.structure.outputs):
            v = aliases.get(o.value, o.value)
            g.node(f"o{p}.{n}", _label(part.plan.outputs[n]), shape="ellipse", fillcolor=EDGE)
            if v in made:
                g.edge(made[v], f"o{p}.{n}", label=graphviz.escape(shown(v)) if labelled else "")
    return str(g.source)


# ------------------------------------------------------------------------------------------------------------ SVG
def check_program() -> Path:
    """The program that draws. Raises InvalidInput where there is none."""
    own = shutil.which("graphviz-pure", path=str(Path(sys.executable).parent))
    found = shutil.which("dot") or own or shutil.which("graphviz-pure")
    if found is None:
        raise InvalidInput(
            "drawing needs Graphviz, and there is no program dot: install it (apt-get install graphviz) or the extra that brings "
            "one (pip install 'onnx-vulkan[html]'); without it, inspect dot -o FILE.dot writes the text that it draws."
        )
    return Path(found)


def as_svg(texts: Iterable[str]) -> list[str]:
    """DOT texts drawn: an ``<svg>`` element each. Raises InvalidInput where there is no program for it."""
    program = check_program()
    out = []
    for text in texts:
        try:
            done = subprocess.run([program, "-Tsvg"], input=text, capture_output=True, text=True, timeout=PATIENCE, check=True)
        except subprocess.TimeoutExpired:
            raise OnnxVulkanError(
                f"{program.name} has not drawn the graph in {PATIENCE} s: draw a part of it (inspect dot --around NAME)."
            ) from None
        except (OSError, subprocess.CalledProcessError) as e:
            why = (getattr(e, "stderr", "") or str(e)).strip().splitlines()
            raise OnnxVulkanError(f"{program.name} cannot draw the graph: {why[-1] if why else 'it does not say why'}") from None
        out.append(done.stdout[done.stdout.index("<svg") :])
    return out
