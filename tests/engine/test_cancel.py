"""Cancelled runs stop at the next submit point, say so, and leave a session that works."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import Any

import numpy as np
import pytest
from long_model import turned
from onnx_vulkan import Session
from onnx_vulkan.errors import Cancelled

PRODUCTS = 5 * 64  # five command buffers: native_shim/plan.c
SIZE = 64


def products(size: int = SIZE, count: int = PRODUCTS) -> bytes:
    return turned(count, size)


class After:
    """Set from the given question on; counts them."""

    def __init__(self, questions: int):
        self.left = questions

    def is_set(self) -> bool:
        self.left -= 1
        return self.left < 0


def test_a_run_stops_at_the_submit_point_and_the_session_goes_on() -> None:
    x = np.random.default_rng(1).standard_normal((3, SIZE), np.float32)
    with Session.load(products()) as session:
        want = session.run({"x": x})[f"x{PRODUCTS}"]
        assert (want == np.roll(x, -PRODUCTS, 1)).all()
        before = session.device.counters()
        for questions in (0, 1):
            with pytest.raises(Cancelled, match="cancelled before its end"):
                session.run({"x": x}, cancel=After(questions))
        assert session.device.counters()["submits"] == before["submits"]
        assert (session.run({"x": x}, cancel=threading.Event())[f"x{PRODUCTS}"] == want).all()
        after = session.device.counters()
        assert after["recordings"] == before["recordings"]
        assert after["live_bytes"] == before["live_bytes"]


def test_short_runs_are_one_submit() -> None:
    x = np.ones((1, 8), np.float32)
    with Session.load(products(8, 80)) as session:

        def submits() -> int:
            before = session.device.counters()["submits"]
            session.run({"x": x})
            return session.device.counters()["submits"] - before

        assert submits() in (2, 3)  # where the device has memory of its own, one brings the weights there
        assert 1 in [submits() for _ in range(50)]  # a busy machine may make some of them long


def test_the_first_run_of_new_sizes_stops_as_well() -> None:
    with Session.load(products()) as session:
        for n in (3, 5):
            x = np.ones((n, SIZE), np.float32)
            before = session.device.counters()
            with pytest.raises(Cancelled):
                session.run({"x": x}, cancel=After(3))
            assert session.device.counters()["submits"] <= before["submits"] + 3  # of five, and one for the weights
            assert (session.run({"x": x})[f"x{PRODUCTS}"] == x).all()


def test_a_long_run_stops_well_before_its_end() -> None:
    x = np.ones((32, 128), np.float32)
    shares = []
    with Session.load(products(128)) as session:
        session.run({"x": x})
        for _ in range(10):  # a busy machine may hold up one of them
            begun = time.monotonic()
            session.run({"x": x})
            whole = time.monotonic() - begun
            event = threading.Event()
            threading.Timer(whole / 10, event.set).start()
            begun = time.monotonic()
            with contextlib.suppress(Cancelled):
                session.run({"x": x}, cancel=event)
            shares.append((time.monotonic() - begun) / whole)
            if shares[-1] < 0.7:
                return
    raise AssertionError(f"the cancelled runs took {shares} of a whole one")


def test_a_run_that_waits_for_a_context_can_be_cancelled() -> None:
    class Held:
        """Not set; the question is answered when the test allows it."""

        def __init__(self) -> None:
            self.asked, self.go = threading.Event(), threading.Event()

        def is_set(self) -> bool:
            self.asked.set()
            self.go.wait(20)
            return False

    x = np.ones((3, SIZE), np.float32)
    with Session.load(products(), options={"contexts": 1}) as session:
        session.run({"x": x})

        class SecondQuestion(Held):
            first = True

            def is_set(self) -> bool:  # the first question comes before the context is taken
                if self.first:
                    self.first = False
                    return False
                return super().is_set()

        held, results = SecondQuestion(), []
        thread = threading.Thread(target=lambda: results.append(session.run({"x": x}, cancel=held)))
        thread.start()
        assert held.asked.wait(20)
        with pytest.raises(Cancelled):
            session.run({"x": x}, cancel=After(2))
        held.go.set()
        thread.join(20)
        assert (results[0][f"x{PRODUCTS}"] == x).all()


def test_what_the_question_raises_is_raised_by_the_run() -> None:
    class Broken:
        def is_set(self) -> bool:
            raise KeyError("oops")

    x = np.ones((3, SIZE), np.float32)
    with Session.load(products()) as session:
        with pytest.raises(KeyError, match="oops"):
            session.run({"x": x}, cancel=Broken())
        assert (session.run({"x": x})[f"x{PRODUCTS}"] == x).all()


def test_runs_in_many_threads_are_cancelled_each_on_its_own() -> None:
    x = np.ones((3, SIZE), np.float32)
    outcomes: list[Any] = [None] * 12

    def run(i: int) -> None:
        try:
            outcomes[i] = session.run({"x": x}, cancel=After(1) if i % 2 else threading.Event())
        except Cancelled:
            outcomes[i] = "cancelled"

    with Session.load(products()) as session:
        threads = [threading.Thread(target=run, args=(i,)) for i in range(len(outcomes))]
        for t in threads:
            t.start()
        for t in threads:
            t.join(60)
    assert all((o == "cancelled") == bool(i % 2) for i, o in enumerate(outcomes) if not isinstance(o, dict)), outcomes
    assert all((o[f"x{PRODUCTS}"] == x).all() for o in outcomes[::2])
