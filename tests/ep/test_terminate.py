"""``RunOptions.terminate`` stops a run inside of a block, and the session goes on."""

from __future__ import annotations

import threading
import time

import numpy as np
import onnxruntime as ort
import pytest
from ep_stub import vulkan_session
from long_model import turned
from onnx_vulkan.device import Device


def test_terminate_stops_a_block() -> None:
    session = vulkan_session(turned(320, 128))
    x = np.random.default_rng(2).standard_normal((32, 128), np.float32)
    want = session.run(None, {"x": x})[0]
    assert (want == np.roll(x, -320, 1)).all()
    before = Device.get().counters()
    options = ort.RunOptions()
    options.log_severity_level = 4
    shares, said = [], ""
    for _ in range(10):  # a busy machine may hold up one of them
        options.terminate = False
        begun = time.monotonic()
        assert (session.run(None, {"x": x}, options)[0] == want).all()
        whole = time.monotonic() - begun
        timer = threading.Timer(whole / 10, lambda: setattr(options, "terminate", True))
        timer.start()
        begun = time.monotonic()
        try:
            session.run(None, {"x": x}, options)
        except Exception as error:
            assert type(error).__name__ == "Fail" and "terminate flag" in str(error)
            said = str(error)
        shares.append((time.monotonic() - begun) / whole)
        timer.join()
        if shares[-1] < 0.7 and "VulkanEP: the run was stopped" in said:
            break
    assert min(shares) < 0.7 and "VulkanEP: the run was stopped" in said, (shares, said)
    options.terminate = False
    assert (session.run(None, {"x": x}, options)[0] == want).all()
    assert Device.get().counters()["live_bytes"] == before["live_bytes"]


def test_a_flag_that_is_set_before_the_run() -> None:
    session = vulkan_session(turned(40, 8))
    options = ort.RunOptions()
    options.log_severity_level = 4
    options.terminate = True
    with pytest.raises(Exception, match="terminate flag"):
        session.run(None, {"x": np.ones((1, 8), np.float32)}, options)


def test_each_thread_has_its_own_options() -> None:
    session = vulkan_session(turned(320, 128))
    x = np.ones((32, 128), np.float32)
    session.run(None, {"x": x})
    stopped, other = ort.RunOptions(), ort.RunOptions()
    stopped.log_severity_level = 4
    outcomes: dict[str, object] = {}

    def run(name: str, options: ort.RunOptions) -> None:
        try:
            outcomes[name] = session.run(None, {"x": x}, options)[0]
        except Exception as e:
            outcomes[name] = e

    for _ in range(10):  # a busy machine may let the run end before it is told to
        stopped.terminate = False
        threads = [threading.Thread(target=run, args=pair) for pair in (("stopped", stopped), ("other", other))]
        for t in threads:
            t.start()
        stopped.terminate = True
        for t in threads:
            t.join(60)
        assert isinstance(outcomes["other"], np.ndarray) and (outcomes["other"] == x).all()
        if isinstance(outcomes["stopped"], Exception):
            break
    assert "terminate" in str(outcomes["stopped"])
