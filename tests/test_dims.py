"""Extents: polynomial arithmetic against the numbers, guards, and decisions with and without numbers."""

from __future__ import annotations

import operator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx_vulkan.dims import (
    Dim,
    Scope,
    at_least,
    broadcast_shapes,
    ceil_div,
    evaluate,
    is_one,
    is_zero,
    maximum,
    minimum,
    product,
    require_same,
    same,
    substitute,
    symbol,
    symbols_of,
)
from onnx_vulkan.errors import ShapeMismatch
from onnx_vulkan.plan.table import ADD, END, FLOORDIV, MAX, MIN, MUL, PUSH, SYM, Encoder

A, B, C = symbol("a"), symbol("b"), symbol("c")

NUMBERS = st.fixed_dictionaries({name: st.integers(1, 40) for name in "abc"})


@st.composite
def expressions(draw, depth=3):
    """An extent, and the function of the symbols' numbers that it stands for."""
    if depth == 0 or draw(st.integers(0, 3)) == 0:
        if draw(st.booleans()):
            n = draw(st.integers(-5, 9))
            return n, lambda v, n=n: n
        name = draw(st.sampled_from("abc"))
        return symbol(name), lambda v, name=name: v[name]
    kind = draw(st.sampled_from("+-*/%mM"))
    x, f = draw(expressions(depth=depth - 1))
    if kind in "/%":
        d = draw(st.integers(1, 7))
        if draw(st.booleans()):
            y, g = symbol("a") + d, lambda v, d=d: v["a"] + d  # never 0
        else:
            y, g = d, lambda v, d=d: d
    else:
        y, g = draw(expressions(depth=depth - 1))
    op = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.floordiv, "%": operator.mod}.get(kind)
    if op is not None:
        return op(x, y), lambda v: op(f(v), g(v))
    if kind == "m":
        return minimum(x, y), lambda v: min(f(v), g(v))
    return maximum(x, y), lambda v: max(f(v), g(v))


SETTINGS = settings(max_examples=300, deadline=None, derandomize=True, database=None)


@SETTINGS
@given(expressions(), NUMBERS)
def test_arithmetic_is_that_of_the_numbers(made, numbers):
    e, f = made
    assert evaluate(e, numbers) == f(numbers)
    assert not isinstance(e, Dim) or symbols_of(e) <= {"a", "b", "c"}


@SETTINGS
@given(expressions(), NUMBERS)
def test_substitution_is_evaluation(made, numbers):
    e, f = made
    assert substitute(e, numbers) == f(numbers)
    half = substitute(e, {"a": numbers["a"]})
    assert "a" not in symbols_of(half) and evaluate(half, numbers) == f(numbers)
    renamed = substitute(e, {"a": symbol("z") + 1})
    assert evaluate(renamed, {**numbers, "z": numbers["a"] - 1}) == f(numbers)


def run_code(code, start, values):
    """What the shim does with an expression's code."""
    stack, at = [], start
    while code[at] != END:
        op = code[at]
        at += 1
        if op in (PUSH, SYM):
            stack.append(code[at] if op == PUSH else values[code[at]])
            at += 1
            continue
        y, x = stack.pop(), stack.pop()
        stack.append({ADD: x + y, MUL: x * y, FLOORDIV: x // y if y else 0, MIN: min(x, y), MAX: max(x, y)}[op])
    (result,) = stack
    return result


@SETTINGS
@given(expressions(), NUMBERS)
def test_the_encoded_expression_gives_the_same_number(made, numbers):
    e, f = made
    encoder = Encoder({"a": 0, "b": 1, "c": 2})
    start = encoder.encode(e)
    assert encoder.encode(e) == start
    values = [numbers["a"], numbers["b"], numbers["c"]]
    for derived in encoder.derived:
        values.append(run_code(encoder.code, derived, values))
    assert run_code(encoder.code, start, values) == f(numbers)


@SETTINGS
@given(expressions(depth=2), expressions(depth=2), NUMBERS, NUMBERS)
def test_a_guard_holds_exactly_where_the_answer_is_the_same(one, two, numbers, others):
    (x, f), (y, g) = one, two
    for decide, answer in ((same, operator.eq), (at_least, operator.ge)):
        with Scope(numbers) as scope:
            assert decide(x, y) == answer(f(numbers), g(numbers))
        agrees = answer(f(numbers), g(numbers)) == answer(f(others), g(others))
        # one guard is one question: it holds where the answer is the same
        assert all(guard.holds(numbers) for guard in scope.guards)
        assert all(guard.holds(others) for guard in scope.guards) == agrees


def test_equal_extents_are_one_object():
    assert (A + B) * 2 - B is 2 * A + B
    assert (A * B + 7) // 3 is (7 + B * A) // 3
    assert substitute(A * B, {"a": B, "b": A}) is A * B
    assert A * B is not A + B


def test_numbers_stay_numbers():
    assert A - A == 0 and isinstance(A - A, int)
    assert (A * 6) // 3 == A * 2
    assert (A * B) // B == A
    assert (A + 4) // 2 - A // 2 == 2
    assert (A * 4 + 7) % 4 == 3
    assert ceil_div(A * 8, 8) == A
    assert minimum(A + 1, A) == A and maximum(A + 1, A) == A + 1
    assert product([]) == 1 and product([A, 0]) == 0
    assert 3 - (3 - A) == A and 0 * A == 0


def test_equal_values_have_equal_forms():
    assert (A + B) * (A - B) == A * A - B * B
    assert hash(A * B + C) == hash(C + B * A)
    assert (A + 1) // 2 == (1 + A) // 2
    assert str((A + B) // 2) == str((B + A) // 2)


@pytest.mark.parametrize("misuse", [bool, int, lambda d: d < 3, lambda d: range(d)])
def test_a_dim_is_no_number(misuse):
    with pytest.raises(TypeError):
        misuse(A)


def test_a_missing_number_is_an_error():
    with pytest.raises(KeyError):
        evaluate(A + B, {"a": 1})


def test_equal_questions_are_one_guard():
    with Scope({"a": 4, "b": 6}) as scope:
        assert not same(A, B)
        assert not same(B, A)
        assert not same(2 * A, 2 * B)
        assert same(A, A) and same(3, 3) and not same(3, 4)
    assert len(scope.guards) == 1
    with Scope({"a": 4, "b": 6}) as scope:
        assert at_least(B, A) and at_least(3 * B, 3 * A)
        assert not at_least(A, B)
    assert len(scope.guards) == 2


def test_unbound_extents_are_distinct_and_larger_than_one():
    assert not same(A, B) and not is_one(A) and not is_zero(A) and at_least(A, 2)
    assert require_same(A, 5, "must agree") == 5  # a requirement is taken to hold
    assert require_same(A, B, "must agree") == A


def test_scopes_nest():
    with Scope({"a": 1}) as outer:
        assert is_one(A)
        with Scope({"a": 2}) as inner:
            assert not is_one(A)
        assert is_one(A)
    assert len(outer.guards) == len(inner.guards) == 1
    assert not is_one(A)


def test_requirements():
    with Scope({"a": 5, "b": 5, "c": 6}):
        assert require_same(A, 5, "must agree") == 5
        assert require_same(A, B, "must agree") == A
        with pytest.raises(ShapeMismatch, match=r"must agree \(5 against 6\)"):
            require_same(A, C, "must agree")


def test_broadcasting():
    assert broadcast_shapes((3, 1), (4,), ()) == (3, 4)
    with Scope({"a": 1, "b": 7, "c": 7}) as scope:
        assert broadcast_shapes((A, 3), (B, 1)) == (B, 3)
        assert broadcast_shapes((B,), (C,)) == (B,)
        assert broadcast_shapes((B,), (7,)) == (7,)
        with pytest.raises(ShapeMismatch, match="do not broadcast"):
            broadcast_shapes((B,), (8,))
    assert any(g.answer for g in scope.guards)
