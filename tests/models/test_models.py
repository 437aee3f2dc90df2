"""Every model of the catalog on the device, through both doors, against ONNX Runtime's CPU EP; and the gates.

A gate is a count that does not depend on the machine's speed: blocks, dispatches, barriers, bytes over the link, plans.
They are recorded on the software driver; a rise fails, ``--update-gates`` records a change that was meant.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx_vulkan
import onnxruntime
import onnxruntime_ep_vulkan
import pytest
from catalog import MODELS, Array, Model
from counting import STEADY_ZERO, counted
from onnx_vulkan.device import Device
from onnx_vulkan.tolerance import tolerance_ratio
from reference import cpu_outputs, float64_outputs, quiet_options

GATES = Path(__file__).with_name("gates.json")
GATED = ("blocks", "dispatches", "barriers", "uploaded_bytes", "downloaded_bytes", "plans_made")

Gates = dict[str, dict[str, dict[str, int]]]


@pytest.fixture(scope="module")
def gates(request: pytest.FixtureRequest) -> Iterator[Gates]:
    """The recorded counts by model and case; written back after the tests with ``--update-gates``."""
    recorded: Gates = json.loads(GATES.read_text()) if GATES.exists() else {}
    yield recorded
    if request.config.getoption("--update-gates"):
        lines = [f' "{key}": {json.dumps(cases)}' for key, cases in sorted(recorded.items())]
        GATES.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Each model that this machine can run in reasonable time."""
    if "model" in metafunc.fixturenames:
        models = [m for m in MODELS if metafunc.config.getoption("--heavy") or not m.heavy]
        metafunc.parametrize("model", models, ids=lambda model: model.name)


def assert_right(model: Model, case: int, names: Sequence[str], got: Sequence[Array]) -> None:
    """Each output is within the tolerance of the CPU EP's, or no further from the float64 result than the CPU EP is."""
    for i, (name, array, reference) in enumerate(zip(names, got, cpu_outputs(model, case), strict=True)):
        assert reference.size <= 1 or np.ptp(reference.astype(np.float64)) > 0, f"{name} is constant: comparing says nothing"
        ratio = tolerance_ratio(array, reference, model.tolerance)
        if 1 < ratio < float("inf"):
            exact = float64_outputs(model, case)[i]
            ours, theirs = (float(np.max(np.abs(x.astype(np.float64) - exact))) for x in (array, reference))
            warnings.warn(
                f"{model.name}-{case} {name}: {ratio:.2f} of the tolerance; error {ours:.2g}, CPU EP {theirs:.2g}", stacklevel=1
            )
            ratio = ours / theirs if theirs else ratio
        assert ratio <= 1, f"{name}: {ratio:.3g} times the tolerance"


def check_gates(request: pytest.FixtureRequest, gates: Gates, key: str, case: str, counts: Mapping[str, int]) -> None:
    """Compare with what is recorded, or record."""
    if Device.get().info.kind != "cpu":
        return  # another device may choose other kernels
    found = {name: counts[name] for name in GATED}
    if request.config.getoption("--update-gates"):
        gates.setdefault(key, {})[case] = found
        return
    recorded = gates.get(key, {}).get(case)
    assert recorded is not None, f"no gates are recorded for {key}: run pytest tests/models --update-gates"
    risen = {name: (recorded[name], found[name]) for name in GATED if found[name] > recorded[name]}
    assert not risen, f"counts rose (recorded, now): {risen}"


def test_standalone(model: Model, gates: Gates, request: pytest.FixtureRequest) -> None:
    if not model.whole:
        with pytest.raises(onnx_vulkan.errors.RefusedError):
            onnx_vulkan.Session.load(model.path())
        return
    made: list[onnx_vulkan.Session] = []
    load = counted(lambda: made.append(onnx_vulkan.Session.load(model.path())))
    (session,) = made
    for case in range(len(model.tests)):
        feeds = model.feeds(case)
        outputs: dict[str, Array] = {}
        first = counted(lambda: outputs.update(session.run(feeds)))  # noqa: B023  (called at once)
        assert_right(model, case, list(outputs), list(outputs.values()))
        steady = counted(lambda: session.run(feeds))  # noqa: B023
        assert {name: steady[name] for name in STEADY_ZERO} == dict.fromkeys(STEADY_ZERO, 0)
        plans = first["plans_made"] + (load["plans_made"] if case == 0 else 0)  # fixed shapes are planned at once
        counts = {**steady, "blocks": 1, "plans_made": plans}
        check_gates(request, gates, f"{model.name} standalone", str(case), counts)


def test_ep(model: Model, gates: Gates, request: pytest.FixtureRequest) -> None:
    options = quiet_options()
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    if model.whole:
        options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    made: list[onnxruntime.InferenceSession] = []
    path = str(model.path())
    load = counted(lambda: made.append(onnxruntime.InferenceSession(path, options, providers=["VulkanEP"], enable_fallback=0)))
    (session,) = made
    blocks = onnxruntime_ep_vulkan.session_stats(session).blocks
    if model.whole:
        assert blocks == 1
    names = [output.name for output in session.get_outputs()]
    for case in range(len(model.tests)):
        feeds = model.feeds(case)
        outputs: list[Array] = []
        first = counted(lambda: outputs.extend(session.run(None, feeds)))  # noqa: B023
        assert_right(model, case, names, outputs)
        steady = counted(lambda: session.run(None, feeds))  # noqa: B023
        assert {name: steady[name] for name in STEADY_ZERO} == dict.fromkeys(STEADY_ZERO, 0)
        plans = first["plans_made"] + (load["plans_made"] if case == 0 else 0)
        counts = {**steady, "blocks": blocks, "plans_made": plans}
        check_gates(request, gates, f"{model.name} ep", str(case), counts)
    onnxruntime_ep_vulkan.assert_on_vulkan(session)
