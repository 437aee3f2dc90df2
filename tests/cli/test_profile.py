"""``onnx-vulkan profile`` as a user meets it, and the work that it reckons for kernels."""

import itertools
import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from calling import call
from onnx import TensorProto, helper, numpy_helper
from onnx_vulkan.device import Device
from onnx_vulkan.errors import DeviceError

KNOWN = ("--ceiling", "memory=10", "--ceiling", "f32=100", "--ceiling", "launch=20")


@pytest.fixture(scope="module")
def network(tmp_path_factory) -> Path:
    """A convolution with a bias and Relu, a pooling, a transposed product, a softmax and a reduction."""
    rng = np.random.default_rng(0)

    def constant(name: str, *shape: int) -> TensorProto:
        return numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), name)

    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], name="conv", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"], name="relu"),
        helper.make_node("MaxPool", ["r"], ["p"], name="pool", kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Reshape", ["p", "shape"], ["f"], name="flatten"),
        helper.make_node("Gemm", ["f", "m"], ["g"], name="gemm", transB=1),
        helper.make_node("Softmax", ["g"], ["y"], name="softmax"),
    ]
    constants = [constant("w", 8, 4, 3, 3), constant("b", 8), constant("m", 24, 8 * 36)]
    constants.append(numpy_helper.from_array(np.array([0, -1], np.int64), "shape"))
    edges = [helper.make_tensor_value_info("x", 1, ["n", 4, 12, 12]), helper.make_tensor_value_info("y", 1, ["n", 24])]
    graph = helper.make_graph(nodes, "network", edges[:1], edges[1:], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path = tmp_path_factory.mktemp("profile") / "network.onnx"
    path.write_bytes(model.SerializeToString())
    return path


@pytest.fixture(scope="module")
def profiled(network: Path, tmp_path_factory) -> tuple[dict, str, dict, str]:
    """JSON, verdict, trace and page of one profile of the network at batch 3."""
    pytest.importorskip("plotly")
    folder = tmp_path_factory.mktemp("out")
    trace, page = folder / "trace.json", folder / "page.html"
    code, data, err = call("profile", network, "--dim", "n=3", "--runs", 3, *KNOWN, "--trace", trace, "--html", page)
    assert code == 0, err
    return data, err, json.loads(trace.read_text()), page.read_text()


def test_verdict_and_numbers(profiled) -> None:
    data, err, _, _ = profiled
    assert err.startswith("onnx-vulkan: network.onnx on ") and err.count("\n") == 1 and "ms a run" in err
    assert data["inputs"] == [{"name": "x", "dtype": "float32", "shape": [3, 4, 12, 12]}]
    assert data["ceilings"] == {"memory_gb_per_s": 10, "launch_us": 20, "arithmetic_gop_per_s": {"f32": 100}}
    for k in data["kernels"]:
        floor = max(k["operations"] / 100e3, (k["read_bytes"] + k["written_bytes"]) / 10e3)
        assert math.isclose(k["floor_us"], floor) and math.isclose(k["share_of_roofline"], floor / k["us"])
        assert math.isclose(k["gop_per_s"], k["operations"] / k["us"] / 1e3)
        assert k["bound"] in ("memory", "arithmetic", "launch") and (k["bound"] == "launch") == (floor < 20)


def test_sums_agree(profiled) -> None:
    data, _, _, _ = profiled
    device, kernels = data["device_ms"], data["kernels"]
    assert math.isclose(sum(k["us"] for k in kernels), 1e3 * device["kernels"])
    assert math.isclose(sum(f["us"] for f in data["families"]), 1e3 * device["kernels"])
    assert sum(f["kernels"] for f in data["families"]) == len(kernels)
    assert math.isclose(device["busy"] + device["idle"], device["span"])
    assert math.isclose(sum(data["host_us"].values()), 1e3 * data["wall_ms"])
    assert all(us >= 0 for us in data["host_us"].values())
    first = data["first_run_ms"]
    assert first["wall"] >= sum(ms for name, ms in first.items() if name != "wall")
    assert 1e3 * first["plan"] > data["host_us"]["plan"], "its plan was made"
    assert math.isclose(sum(k["share"] for k in kernels), 1) and math.isclose(kernels[-1]["cumulative_share"], 1)
    assert [k["us"] for k in kernels] == sorted((k["us"] for k in kernels), reverse=True)
    assert data["operations"] == sum(k["operations"] for k in kernels)
    assert all(k["dispatches"] == len(k["launches"]) for k in kernels)
    launches = [launch for k in kernels for launch in k["launches"]]
    covered = max(x["start_us"] + x["us"] for x in launches) - min(x["start_us"] for x in launches)
    assert math.isclose(covered, 1e3 * device["span"], rel_tol=1e-6)


def test_work(profiled) -> None:
    kernels = {k["family"]: k for k in profiled[0]["kernels"]}
    conv, pool, product, row = (kernels[f] for f in ("conv", "max", "contract", "row"))
    places = 3 * 12 * 12 * 8
    assert conv["operations"] == 2 * places * 36 + 2 * places, "products, bias, Relu"
    assert [n["name"] for n in conv["nodes"]] == ["conv", "relu"] and conv["nodes"][0]["op_type"] == "Conv"
    assert conv["read_bytes"] == 4 * (3 * 4 * 144 + 8 * 36 + 8) and conv["written_bytes"] == 4 * places
    assert pool["operations"] == places and pool["read_bytes"] == 4 * places
    assert product["operations"] == 2 * 3 * 24 * 288
    assert product["read_bytes"] == 4 * (3 * 288 + 24 * 288)
    assert row["operations"] == 5 * 72 and row["arithmetic"] == "f32", "max, difference, exp, sum, quotient"
    assert row["written_bytes"] == 4 * 72 and [n["name"] for n in row["nodes"]] == ["softmax"]


def test_trace(profiled) -> None:
    data, _, trace, _ = profiled
    events = [e for e in trace["traceEvents"] if e["ph"] == "X"]
    kernels = [e for e in events if e["pid"] == 2]
    assert len(kernels) == sum(k["dispatches"] for k in data["kernels"])
    assert {"conv", "relu"} <= {n for e in kernels for n in e["args"]["nodes"]}
    assert {"plan", "copy in", "submit", "wait"} <= {e["name"] for e in events if e["pid"] == 1}
    assert all(e["dur"] >= 0 for e in events)
    for row in {(e["pid"], e["tid"]) for e in events}:  # events of one row must not overlap
        inside = sorted((e["ts"], e["ts"] + e["dur"]) for e in events if (e["pid"], e["tid"]) == row)
        assert all(end <= start + 0.01 for (_, end), (start, _) in itertools.pairwise(inside)), row
    wait = next(e for e in events if e["name"] == "wait")
    assert math.isclose(max(e["ts"] + e["dur"] for e in kernels), wait["ts"] + wait["dur"])


def test_page(profiled) -> None:
    page = profiled[3]
    assert page.startswith("<!DOCTYPE html>") and page.rstrip().endswith("</html>")
    assert "Roofline" in page and page.count("Plotly.newPlot(") >= 3
    assert "<script src=" not in page and "<link" not in page, "nothing is fetched"


def test_ceilings_are_measured_where_none_are_given(network: Path) -> None:
    code, data, _ = call("profile", network, "--dim", "n=1", "--runs", 1)
    found = data["ceilings"]
    assert code == 0 and found["memory_gb_per_s"] > 0 and found["launch_us"] > 0 and found["arithmetic_gop_per_s"]["f32"] > 0


def test_serial_has_no_overlaps(network: Path) -> None:
    code, data, _ = call("profile", network, "--dim", "n=2", "--runs", 1, "--serial", *KNOWN)
    assert code == 0
    assert data["device_ms"]["kernels"] <= data["device_ms"]["span"] * 1.001


def test_through_onnxruntime(network: Path) -> None:
    pytest.importorskip("onnxruntime_ep_vulkan")
    code, data, err = call("profile", network, "--dim", "n=3", "--runs", 2, "--backend", "ep", *KNOWN)
    assert code == 0, err
    assert data["backend"] == "ep" and data["block_runs"] == [1]
    conv = next(k for k in data["kernels"] if k["family"] == "conv")
    assert conv["operations"] == 2 * 3 * 12 * 12 * 8 * 36 + 2 * 3 * 12 * 12 * 8


def test_blocks_between_nodes_of_the_cpu(loop: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime_ep_vulkan")
    keep = ("--option", "island=keep", "--trace", tmp_path / "t.json")
    code, data, err = call("profile", loop, "--dim", "n=2", "--runs", 2, "--backend", "ep", *KNOWN, *keep)
    assert code == 0, err
    assert len(data["block_runs"]) == 2 and {k["block"] for k in data["kernels"]} == {0, 1}
    assert math.isclose(sum(data["host_us"].values()), 1e3 * data["wall_ms"])
    events = [e for e in json.loads((tmp_path / "t.json").read_text())["traceEvents"] if e["ph"] == "X"]
    assert {e["tid"] for e in events if e["pid"] == 1} == {0, 1}, "a row of the host for each block"


def test_a_model_that_cannot_run(partial: Path) -> None:
    code, data, err = call("profile", partial)
    assert code == 2 and data["refused"][0]["op_type"] == "NonZero" and "NonZero" in err


def test_a_device_without_timestamps(good: Path, monkeypatch) -> None:
    device = Device.get()
    monkeypatch.setattr(device, "info", replace(device.info, timestamp_bits=0))
    with pytest.raises(DeviceError, match="has no timestamps on its compute queue"):
        call("profile", good, "--dim", "batch=2", *KNOWN)


def test_wrong_options(good: Path) -> None:
    with pytest.raises(Exception, match="--ceiling memory=fast"):
        call("profile", good, "--dim", "batch=2", "--ceiling", "memory=fast")
    with pytest.raises(Exception, match="There is no option 'speed'"):
        call("profile", good, "--dim", "batch=2", "--option", "speed=high")
    assert call("profile", good, "--backend", "cuda")[0] != 0


def test_a_page_without_its_library(good: Path, tmp_path: Path, monkeypatch) -> None:
    from onnx_vulkan.profile import page

    monkeypatch.setattr(page.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(Exception, match=r"pip install 'onnx-vulkan\[html\]'"):
        call("profile", good, "--dim", "batch=2", "--html", tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()


def test_a_table_for_people(profiled, capsys, monkeypatch) -> None:
    from onnx_vulkan.cli import profiling

    monkeypatch.setenv("COLUMNS", "160")
    profiling.show(profiled[0], top=20)
    assert "Conv Relu" in capsys.readouterr().out
    profiling.show({**profiled[0], "nodes_without_kernel": ["shape"]}, top=1)
    out = capsys.readouterr().out
    assert "1 of " in out and "ceilings: memory 10 GB/s" in out and "views, arithmetic on shapes): shape" in out


def test_nodes_that_are_merged_into_others_are_named(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    weights = [numpy_helper.from_array(rng.standard_normal((16, 16)).astype(np.float32), n) for n in ("wq", "wk", "wv")]
    nodes = [helper.make_node("MatMul", ["x", w], [w[1]], name=w[1]) for w in ("wq", "wk", "wv")]
    nodes += [
        helper.make_node("Transpose", ["k"], ["t"], name="turn", perm=[1, 0]),
        helper.make_node("MatMul", ["q", "t"], ["s"], name="scores"),
        helper.make_node("Softmax", ["s"], ["p"], name="softmax"),
        helper.make_node("MatMul", ["p", "v"], ["y"], name="values"),
    ]
    edges = [helper.make_tensor_value_info(n, 1, [8, 16]) for n in "xy"]
    graph = helper.make_graph(nodes, "self", edges[:1], edges[1:], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    code, data, _ = call("profile", tmp_path / "m.onnx", "--runs", 1, *KNOWN)
    assert code == 0 and not set(data["nodes_without_kernel"]) & {"q", "k", "v", "scores", "softmax", "values"}
    by_family = {k["family"]: {n["name"] for n in k["nodes"]} for k in data["kernels"]}
    assert by_family["contract"] == {"q", "k", "v"} and {"scores", "softmax", "values"} <= by_family["attention"]
