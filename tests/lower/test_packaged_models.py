"""The small models with data that the onnx package ships: old opsets (6 to 9) as PyTorch exported them, and simple graphs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnx_vulkan.frontend import load
from run_case import Array, assert_close, refusals, run

DATA = Path(onnx.__file__).parent / "backend" / "test" / "data"
FOLDERS = sorted(p.parent for p in DATA.glob("*/test_*/model.onnx"))
REFUSED = ("gradient_of", "sequence_model", "strnorm")


def tensors(folder: Path, prefix: str) -> list[Array]:
    """The tensors ``prefix_0.pb``, ... of a data set."""
    found = []
    for i in range(len(list(folder.glob(f"{prefix}_*.pb")))):
        proto = onnx.TensorProto()
        proto.ParseFromString((folder / f"{prefix}_{i}.pb").read_bytes())
        found.append(np.asarray(numpy_helper.to_array(proto)))
    return found


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda f: f"{f.parent.name}-{f.name}")
def test_packaged_model(folder: Path) -> None:
    graph = load(folder / "model.onnx")
    refused = refusals(graph)
    if any(part in folder.name for part in REFUSED):
        assert refused
        return
    assert not refused
    for data in sorted(folder.glob("test_data_set_*")):
        feeds = dict(zip(graph.inputs, tensors(data, "input"), strict=False))
        for got, want in zip(run(graph, {**graph.defaults, **feeds}), tensors(data, "output"), strict=True):
            assert_close(got, want, rtol=1e-3, atol=1e-5)
