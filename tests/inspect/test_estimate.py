"""Plans without a device, against the plans of one and against arithmetic done by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from catalog import made_skeleton
from onnx import TensorProto, helper, numpy_helper
from onnx_vulkan import frontend
from onnx_vulkan.claims import partition
from onnx_vulkan.device import Device
from onnx_vulkan.engine.block import Block
from onnx_vulkan.engine.limits import TYPICAL, DeviceLimits
from onnx_vulkan.errors import InvalidInput
from onnx_vulkan.inputs import make_inputs
from onnx_vulkan.inspect.dry import dry_plan
from onnx_vulkan.inspect.estimate import estimate, estimate_at


def two_layers(path: Path, *, split: bool = False) -> Path:
    """``relu(x w) w``; with *split* a node between the two that cannot run on Vulkan and whose shape depends on data."""
    w = numpy_helper.from_array(np.ones((64, 64), np.float32), "w")
    nodes = [helper.make_node("MatMul", ["x", "w"], ["a"]), helper.make_node("Relu", ["a"], ["b"])]
    if split:
        nodes += [helper.make_node("Unique", ["b"], ["u"], name="unique"), helper.make_node("Exp", ["u"], ["y"])]
    else:
        nodes.append(helper.make_node("MatMul", ["b", "w"], ["y"]))
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 64])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [None] if split else ["n", 64])
    graph = helper.make_graph(nodes, "two", [x], [y], [w])
    path.write_bytes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString())
    return path


def test_by_hand(tmp_path: Path) -> None:
    graph = frontend.load(two_layers(tmp_path / "two.onnx"))
    found, example, lacks = estimate_at(graph, partition(graph), None, {"n": 8}, TYPICAL)
    assert found is not None and found["given"] and example == {"n": 1} and not lacks
    assert found["operations"] == 2 * (2 * 8 * 64 * 64) + 8 * 64
    memory = found["memory_bytes"]
    assert memory["weights"] == 4 * 64 * 64, "the two layers share them"
    assert memory["inputs"] == memory["outputs"] == 4 * 8 * 64 and memory["intermediates"] >= 4 * 8 * 64
    assert memory["peak"] == sum(n for name, n in memory.items() if name != "peak")
    products = [w for w in found["workloads"] if w["family"] == "contract"]
    assert [w["nodes"] for w in products] == [["a", "b"], ["y"]], "one has a Relu in it"
    assert all(w["sizes"] == {"z": 1, "m": 8, "n": 64, "k": 64} and w["variants"] > 1 for w in products)
    found, *_ = estimate_at(graph, partition(graph), None, {}, TYPICAL)
    assert found is not None and not found["given"] and found["dims"] == {"n": 1}


def test_wrong_dims(tmp_path: Path) -> None:
    graph = frontend.load(two_layers(tmp_path / "two.onnx"))
    with pytest.raises(InvalidInput, match="no dim 'k'"):
        estimate_at(graph, partition(graph), None, {"k": 8}, TYPICAL)


def test_what_hangs_on_data_is_said(tmp_path: Path) -> None:
    graph = frontend.load(two_layers(tmp_path / "two.onnx", split=True))
    claims = partition(graph, keep_islands())
    assert len(claims.blocks) == 2
    found = estimate(graph, claims, make_inputs(graph, {"n": 8}))
    assert len(found.parts) == 1 and list(found.missing) == [1]
    assert "the shape of its input 'u' is not known before a run" in found.missing[1]


def keep_islands() -> object:
    """Options that give no block back."""
    from onnx_vulkan.engine.options import Options, parse_options

    return parse_options({"island": "keep"}, Options)


@pytest.mark.parametrize("name", ["gpt2_tiny", "resnet50_tiny"])
def test_like_the_plan_of_a_device(name: str) -> None:
    """With the limits of the device that is here, dispatches and memory are those of the plan that it runs."""
    graph = frontend.load(made_skeleton(name))
    dims = {"batch": 1, "sequence": 3, "past_sequence": 5, "total_sequence": 8} if name.startswith("gpt2") else {"batch": 2}
    feeds = make_inputs(graph, dims)
    device = Device.get(None)
    block = Block(graph, device)
    try:
        tables = block.plan({n: a.shape for n, a in feeds.items()}, {})
        direct = device.direct_input, device.info.kind in ("cpu", "integrated")
        draft = dry_plan(graph, feeds, DeviceLimits.of(device), direct).draft
        assert block.planned is not None
        there = [(launch.kernel.label, launch.variant) for launch, _ in block.planned.dispatches]
        assert [(launch.kernel.label, launch.variant) for launch in draft.launches] == there
        assert draft.segment_sizes == (tables.arena_size, tables.input_size, tables.output_size)
    finally:
        block.close()


def test_inputs_that_are_no_numbers(tmp_path: Path) -> None:
    """They are left out; what runs on Vulkan is planned without them."""
    nodes = [helper.make_node("StringNormalizer", ["s"], ["t"]), helper.make_node("Relu", ["x"], ["y"])]
    ends = [helper.make_tensor_value_info(name, elem, ["n"]) for name, elem in (("s", 8), ("x", 1), ("t", 8), ("y", 1))]
    (tmp_path / "s.onnx").write_bytes(helper.make_model(helper.make_graph(nodes, "s", ends[:2], ends[2:])).SerializeToString())
    graph = frontend.load(tmp_path / "s.onnx")
    found, example, lacks = estimate_at(graph, partition(graph, keep_islands()), None, {"n": 100}, TYPICAL)
    assert found is not None and found["kernels"] == 1 and found["memory_bytes"]["inputs"] == 512 and not lacks
    assert example == {"n": 1}
