"""The peers suite of ``scripts/bench`` with tiny models: sides run, bars are judged, variants of models are right."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnx.reference
import pytest
from onnx import TensorProto, helper, numpy_helper

sys.path.append(str(Path(__file__).resolve().parents[2] / "scripts"))

from benchmark.comparison import Task
from benchmark.peers import suite
from benchmark.peers.cases import CASES, Bar, Case, any_batch, cases_named
from benchmark.sizes import Sweep, measure_sizes, sizes_markdown, sweeps
from benchmark.worker import Worker
from catalog import DATA
from onnx_vulkan.tolerance import FP32_MODEL


def quiet(text: str) -> None:
    """No progress."""


@pytest.fixture(scope="module")
def workers() -> Iterator[dict[str, Worker]]:
    """Processes of this engine and of the CPU EP."""
    made = {name: Worker(name) for name in ("standalone", "cpu")}
    yield made
    for worker in made.values():
        worker.stop()


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of one kernel whose batch is free."""
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"])],
        "relu",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 5])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 5])],
    )
    made = tmp_path_factory.mktemp("models") / "relu.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10), made)
    return made


def feeds_of(size: tuple[int, ...]) -> dict[str, np.ndarray]:
    """Its input."""
    return {"x": np.linspace(-1, 1, size[0] * 5, dtype=np.float32).reshape(*size, 5)}


def test_a_case_runs_and_is_judged(workers: dict[str, Worker], path: Path) -> None:
    """In processes of this engine and of the CPU EP, with a bar on the latter and one on a peer that is not there."""

    class Small(Case):
        def task(self) -> Task:
            return Task(self.name, path, feeds_of((self.batch,)), FP32_MODEL, sides=self.sides)

    (entry,) = suite.measure([Small("relu", 2, bars=(Bar("cpu", 1e9), Bar("webgpu", 1.0)))], workers, 1, 0.0, quiet)
    assert entry["name"] == "relu x2"
    ours = entry["results"]["standalone"]
    assert ours["tolerance_ratio"] == 0 and ours["peak_bytes"] > 0 and ours["gpu_ms"] > 0, entry
    assert "median_ms" in entry["results"]["cpu"]
    assert len(suite.cells(entry)) == len(suite.HEAD)
    assert suite.summary([entry]) == ["0 of 0 bars are reached."]  # ours is the plug-in's time, which was not measured


def test_sizes(workers: dict[str, Worker], path: Path) -> None:
    """Runs of new batches: those that break a guard, and the others, are told apart."""
    sweep = Sweep("relu", lambda: path, feeds_of, (2,), [(3,), (4,)])
    (entry,) = measure_sizes([sweep], {"standalone": workers["standalone"]}, quiet)
    assert "error" not in entry and [size["rebuilt"] for size in entry["sizes"]] == [False, False], entry
    entry["sizes"][1]["rebuilt"] = True
    assert sizes_markdown([entry]).count("| relu |") == 2


def test_the_language_model_takes_its_prompts() -> None:
    """Names and shapes of the feeds that are made for its sizes."""
    (sweep,) = (s for s in sweeps(1) if s.name == "smollm_135m")
    model = onnx.load(DATA / "skeletons" / "smollm_135m.onnx", load_external_data=False)
    feeds = sweep.feeds((1, 7))
    assert list(feeds) == [i.name for i in model.graph.input]
    for i in model.graph.input:
        dims = [d.dim_value for d in i.type.tensor_type.shape.dim]
        assert all(d in (0, n) for d, n in zip(dims, feeds[i.name].shape, strict=True)), i.name
    assert feeds["position_ids"].tolist() == [list(range(7))]


def test_a_batch_in_half_precision() -> None:
    """The file and the feeds of such a case; no two images are alike."""
    task = Case("resnet50_tiny", 3, "fp16").task()
    (images,) = task.feeds.values()
    assert images.shape[0] == 3 and images.dtype == np.float16 and not np.array_equal(images[1], images[2])
    assert onnx.load(task.path).graph.input[0].type.tensor_type.elem_type == TensorProto.FLOAT16


def test_bars() -> None:
    """Wall time or GPU time over the peer's; none where a time is missing or the peer is quick."""
    results = {
        "ep": {"median_ms": 3.0},
        "standalone": {"gpu_ms": 1.0},
        "torch": {"median_ms": 2.0},
        "cpu": {"median_ms": 0.5},
        "webgpu": {"error": "none"},
    }
    reached = suite.judge(Bar("torch", 1.0, gpu=True), results)
    missed = suite.judge(Bar("torch", 1.0), results)
    assert reached and reached["reached"] and reached["ratio"] == 0.5
    assert missed and not missed["reached"] and missed["ratio"] == 1.5
    assert suite.judge(Bar("cpu", 1.0, above_ms=1.0), results) is None
    assert suite.judge(Bar("webgpu", 1.0), results) is None


def test_all_cases_have_names_of_their_own() -> None:
    """A name stands for one case, a model for all of its cases, an empty text for all."""
    assert len({case.name for case in CASES}) == len(CASES) and cases_named("") == list(CASES)
    assert [c.name for c in cases_named("resnet50 x32 fast")] == ["resnet50 x32 fast"]
    assert len(cases_named("vit_b16")) > 2
    with pytest.raises(KeyError):
        cases_named("nothing")


def test_any_batch() -> None:
    """A model of batch 1 with a Reshape to fixed numbers runs with another batch."""
    shape = numpy_helper.from_array(np.array([1, 12]), "shape")
    graph = helper.make_graph(
        [helper.make_node("Reshape", ["x", "shape"], ["y"])],
        "reshape",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 2, 2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 12])],
        [shape],
    )
    model = any_batch(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)]))
    onnx.checker.check_model(model)
    x = np.arange(60, dtype=np.float32).reshape(5, 3, 2, 2)
    (y,) = onnx.reference.ReferenceEvaluator(model).run(None, {"x": x})
    assert np.array_equal(y, x.reshape(5, 12))
