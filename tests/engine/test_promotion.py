"""Which dims become run-time dims, and how large their capacity is."""

from __future__ import annotations

from onnx_vulkan.dims import symbol
from onnx_vulkan.engine.options import Options
from onnx_vulkan.engine.promotion import GROWTH_CAPACITY, Promotion

SHAPES = {"x": (symbol("batch"), symbol("length"), 64)}


def capacities(promotion, values, batch=1, shapes=SHAPES):
    return [dict(promotion.runtime(shapes, {"batch": batch, "length": n}).all) for n in values]


def test_the_third_value_promotes():
    assert capacities(Promotion(Options()), [10, 30, 10, 30, 20]) == [{}, {}, {}, {}, {"length": 32}]


def test_one_dim_is_promoted_without_the_other():
    p = Promotion(Options())
    capacities(p, [10, 30, 50])
    assert capacities(p, [50], batch=2) == [{"length": 64}]


def test_growth_by_one_gets_room():
    p = Promotion(Options())
    made = capacities(p, range(5, 130))
    assert made[2:90] == [{"length": GROWTH_CAPACITY}] * 88
    # outgrown before it is full, so that the next plan comes with room
    assert made[-1] == {"length": 2 * GROWTH_CAPACITY}
    assert all(n <= c.get("length", n) for n, c in zip(range(5, 130), made, strict=True))


def test_going_up_and_down_by_one_is_no_growth():
    assert capacities(Promotion(Options()), [2, 3, 1, 2, 4]) == [{}, {}, {"length": 1}, {"length": 2}, {"length": 4}]


def test_capacity_never_falls_and_covers_every_value():
    p = Promotion(Options())
    capacities(p, [100, 500, 3])
    assert capacities(p, [3, 700, 5]) == [{"length": 4}, {"length": 1024}, {"length": 1024}]


def test_zero_is_a_value_like_another():
    p = Promotion(Options())
    assert capacities(p, [4, 9, 0]) == [{}, {}, {"length": 1}]


def test_a_declared_dim_is_run_time_at_once_up_to_its_capacity():
    p = Promotion(Options(runtime_dims={"length": 100}))
    assert capacities(p, [1, 100, 7]) == [{"length": 100}] * 3
    # above it, it is bound like any other and promoted in time
    assert capacities(p, [101, 300, 200]) == [{}, {}, {"length": 256}]
    assert capacities(p, [50]) == [{"length": 100}]


def test_promotion_can_be_turned_off():
    p = Promotion(Options(auto_runtime_dims=False))
    assert capacities(p, [1, 2, 3, 4]) == [{}] * 4


def test_dims_that_no_input_has_are_left_out():
    p = Promotion(Options(runtime_dims={"other": 8}))
    assert capacities(p, [1], shapes={"x": (3, 4)}) == [{}]


def test_what_a_plan_must_have_at_once():
    def at_once(promotion, values):
        return [dict(promotion.runtime(SHAPES, {"batch": 1, "length": n}).at_once) for n in values]

    assert at_once(Promotion(Options()), [10, 30, 20, 40]) == [{}] * 4
    assert at_once(Promotion(Options()), [10, 11, 12, 13]) == [{}, {}, {"length": 128}, {"length": 128}]
    assert at_once(Promotion(Options(runtime_dims={"length": 64})), [10, 30]) == [{"length": 64}] * 2
