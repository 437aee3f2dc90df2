"""``onnx-vulkan run --bisect``: the first node of a model whose value leaves the tolerance.

The model is cut after a node: its outputs are then the values that the nodes after the cut would read. Everything before the cut
stays fused as it is, so a wrong kernel stays wrong; where the cut falls is found by halving.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx

from onnx_vulkan import frontend
from onnx_vulkan.cli.judging import NOT_COMPARABLE, Case, wrong_text
from onnx_vulkan.cli.sides import NothingClaimed, cpu_side, gpu_side
from onnx_vulkan.errors import OnnxVulkanError

__all__ = ["bisect"]


class _Cuts:
    """A model file that is cut after one of its nodes."""

    def __init__(self, path: Path):
        self.model = onnx.load(str(path), load_external_data=False)
        self.nodes = list(self.model.graph.node)
        self.makers = {name: n for n, node in enumerate(self.nodes) for name in node.output if name}
        self.last: dict[str, int] = {}
        for n, node in enumerate(self.nodes):
            self.last.update(dict.fromkeys(_reads(node), n))
        self.outputs = {v.name: v for v in self.model.graph.output}
        self.last.update(dict.fromkeys(self.outputs, len(self.nodes)))

    def after(self, n: int) -> tuple[bytes, list[str]]:
        """The model of the nodes up to *n*, and its outputs."""
        wanted = [name for name, maker in self.makers.items() if maker <= n < self.last.get(name, -1)]
        if n == len(self.nodes) - 1:
            wanted = list(self.outputs)
        cut = onnx.ModelProto()
        cut.CopyFrom(self.model)
        del cut.graph.node[n + 1 :], cut.graph.output[:]
        known = {v.name: v for v in (*self.model.graph.value_info, *self.outputs.values())}
        cut.graph.output.extend(known.get(name) or onnx.ValueInfoProto(name=name) for name in wanted)
        return cut.SerializeToString(), wanted


def _reads(node: onnx.NodeProto) -> Iterator[str]:
    """The values that a node reads, in its bodies too."""
    yield from node.input
    for a in node.attribute:
        for body in (a.g, *a.graphs):
            yield from (v.name for v in body.output)
            for inner in body.node:
                yield from _reads(inner)


def bisect(path: Path, case: Case, door: str, options: Mapping[str, str]) -> tuple[dict[str, Any], str]:
    """Find the first node whose value is wrong through *door* (``ep`` or ``standalone``), against ONNX Runtime's CPU EP.

    Gives the JSON and a sentence.
    """
    cuts = _Cuts(path)
    options = {"island": "keep", **options}  # what is worth a crossing is another question for a part of the model
    tried = 0

    def wrong(n: int) -> dict[str, Any] | None:
        """The first wrong value of the model cut after node *n*, None where all are right."""
        nonlocal tried
        data, names = cuts.after(n)
        if not names:
            return None
        tried += 1
        graph = frontend.load(data, base_dir=path.parent)
        reference = cpu_side(path, graph, case.feeds, data).run()
        try:
            got = gpu_side(door, path, graph, case.feeds, options, data).run()
        except NothingClaimed:
            return None
        except OnnxVulkanError as e:
            return {"name": names[-1], "failure": str(e)}
        compared, good, _ = replace(case, graph=graph, reference=reference).verify(got)
        if good:
            return None
        beyond = [o for o in compared if o["max_tolerance_ratio"] > 1.0]
        return min(beyond, key=lambda o: cuts.makers.get(o["name"], -1))

    end = len(cuts.nodes) - 1
    found = wrong(end)
    if found is None:
        text = f"{door}: the outputs agree with this machine's CPU, so no node is to blame: the stored reference is another"
        return {"node": None, "cuts": tried}, text
    good, bad = -1, end
    while bad - good > 1:
        middle = (good + bad) // 2
        now = wrong(middle)
        if now is None:
            good = middle
        else:
            bad, found = middle, now
    index = cuts.makers[found["name"]]
    node = cuts.nodes[index]
    ratio = found.get("max_tolerance_ratio", NOT_COMPARABLE)
    data = {
        "node": {"name": node.name, "op_type": node.op_type, "index": index},
        "value": found["name"],
        "max_tolerance_ratio": ratio,
        "worst": found.get("worst"),
        "cuts": tried,
    }
    what = found.get("failure") or wrong_text(found, "value")
    label = f"{node.name!r}, {node.op_type}" if node.name else node.op_type
    return data, f"{door}: the first node to leave the tolerance is {label} (node {index + 1} of {end + 1}): {what}"
