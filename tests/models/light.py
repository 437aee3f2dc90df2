"""Gives the graphs of the onnx package (backend/test/data/light) weights that make them worth running.

As shipped, every weight tensor is one number repeated, so a wrong channel order or a wrong kernel position changes nothing.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from inputs import Array, rng_of
from onnx import TensorProto, numpy_helper
from onnx.helper import make_tensor_value_info

__all__ = ["fill_light", "shipped"]


def shipped(name: str) -> Path:
    """The file in the onnx package."""
    spec = importlib.util.find_spec("onnx")
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent / "backend" / "test" / "data" / "light" / f"{name}.onnx"


def fill_light(source: Path, target: Path) -> None:
    """Replace each ConstantOfShape that stands for a weight by random numbers that keep activations near 1."""
    model = onnx.load(str(source))
    graph = model.graph
    shapes = {i.name: numpy_helper.to_array(i) for i in graph.initializer}
    consumers = {name: (node, i) for node in graph.node for i, name in enumerate(node.input)}
    kept = []
    made: dict[str, Array] = {}
    for node in graph.node:
        if node.op_type != "ConstantOfShape" or node.input[0] not in shapes:
            kept.append(node)
            continue
        made[node.output[0]] = np.empty(shapes[node.input[0]], np.float32)
    gain = 0.6 if any(node.op_type == "Sum" for node in kept) else 1.0  # residual branches add up
    for name, empty in made.items():
        made[name] = _weight(name, empty.shape, *_reader(consumers, name), gain)
    used = {name for node in kept for name in node.input}
    del graph.node[:]
    graph.node.extend(kept)
    for listed in (graph.initializer, graph.input):
        stale = [item for item in listed if item.name in shapes and item.name not in used]
        for item in stale:
            listed.remove(item)
    # The files are of IR version 3, where every initializer is listed as an input too.
    graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in made.items())
    graph.input.extend(make_tensor_value_info(name, TensorProto.FLOAT, value.shape) for name, value in made.items())
    onnx.checker.check_model(model)
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_suffix(".part")
    part.write_bytes(model.SerializeToString())
    part.replace(target)


def _reader(consumers: Mapping[str, tuple[Any, int]], name: str) -> tuple[str, int]:
    """The operator that reads weight *name*, seen through an Unsqueeze, and which of its inputs it is."""
    node, index = consumers[name]
    while node.op_type == "Unsqueeze":
        node, index = consumers[node.output[0]]
    return node.op_type, index


def _weight(name: str, shape: Sequence[int], op_type: str, index: int, gain: float) -> Array:
    noise: Array = rng_of(name).standard_normal(shape, dtype=np.float32)
    if op_type in ("Conv", "Gemm") and index == 1:
        fan_in = int(np.prod(shape[1:]))
        return noise * np.float32(np.sqrt(2 / fan_in))
    if op_type == "BatchNormalization" and index == 4:
        return np.abs(1 + np.float32(0.2) * noise)
    if op_type in ("BatchNormalization", "Mul") and index == 1:
        return np.float32(gain) + np.float32(0.1) * noise
    return np.float32(0.1) * noise
