"""Every elementwise function and cast on the device against numpy in float64, over dense and special operands."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from onnx_vulkan.codegen.functions import has_function
from onnx_vulkan.codegen.loop import loop_step
from onnx_vulkan.dtypes import FLOATS, INTS, NUMERIC, DType
from onnx_vulkan.program.builder import Builder
from onnx_vulkan.program.interp import interpret
from onnx_vulkan.program.ir import BINARY, COMPARE, MAP_FNS, UNARY
from run_step import run_step

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
RNG = np.random.default_rng(6)
SPECIAL = [0.0, -0.0, 1, -1, 0.5, -0.5, 2, -2, 3, -3, math.inf, -math.inf, math.nan, 1e-40, -1e-40, 2.0**-126, 3.4e38, -3.4e38]
SPECIAL += [1e-20, -1e-20, 16777216, 16777217, 1 - 2.0**-24, 1 + 2.0**-23, 2**31, -(2**31), 2**32, 2.0**63, -(2.0**63), 2.0**64]
TINY = float(np.finfo(np.float32).tiny)

REFERENCES = {
    "exp": np.exp, "log": np.log, "log1p": np.log1p, "sin": np.sin, "cos": np.cos, "tan": np.tan, "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan, "sinh": np.sinh, "cosh": np.cosh, "tanh": np.tanh, "asinh": np.arcsinh, "acosh": np.arccosh,
    "atanh": np.arctanh, "erf": np.vectorize(math.erf, otypes=[float]), "sqrt": np.sqrt, "rsqrt": lambda x: 1 / np.sqrt(x),
    "reciprocal": lambda x: 1 / x,
}  # fmt: skip
EXACT_UNARY = ["neg", "abs", "sign", "floor", "ceil", "round", "isnan", "isposinf", "isneginf"]


def program(fn, arrays, cast_to=None, saturate=False, bits_to=None):
    b = Builder()
    xs = [b.input(f"x{i}", DType.of(a.dtype), a.shape) for i, a in enumerate(arrays)]
    if bits_to:
        return b.finish([b.bits(xs[0], bits_to)])
    out = b.cast(xs[0], cast_to, saturate=saturate) if cast_to else b.map(fn, *xs)
    return b.finish([out])


def both(fn, *arrays, cast_to=None, saturate=False):
    """The device's result and the interpreter's."""
    p = program(fn, arrays, cast_to, saturate)
    producers = p.producers()
    kernel = loop_step(fn, p.outputs, producers, lambda v: v not in producers)
    got = run_step(kernel, dict(zip(p.inputs, arrays, strict=True)))[p.outputs[0]]
    want = interpret(p, {v.name: a for v, a in zip(p.inputs, arrays, strict=True)})[0]
    if p.outputs[0].dtype is DType.BF16:  # whose NaNs numpy's assertions do not know
        return got.astype(np.float32), want.astype(np.float32)
    return got, want


def dense():
    lines = [np.linspace(-s, s, 1501) for s in (1, 3, 10, 30, 100, 1000, 30000)]
    lines += [1 + np.linspace(-0.5, 0.5, 1001), 1 - np.exp(RNG.uniform(-17, 0, 500)), 1 + np.exp(RNG.uniform(-17, 0, 500))]
    wide = np.exp(RNG.uniform(np.log(1e-38), np.log(3e38), 3000))
    return np.concatenate([SPECIAL, *lines, wide, -wide]).astype(np.float32)


def ulps(got, want):
    """The distance in units of the last place of float32. Results below the normal range may be flushed."""
    with np.errstate(all="ignore"):
        near = want.astype(np.float32)
        unit = np.spacing(np.maximum(np.abs(near), np.float32(TINY))).astype(np.float64)
        error = np.where(np.abs(want) < TINY, np.maximum(np.abs(got) - TINY, 0), np.abs(got.astype(np.float64) - want)) / unit
        error = np.where(np.isinf(near), np.where(got == near, 0, np.inf), error)
    return np.where(np.isnan(want), np.where(np.isnan(got), 0, np.inf), np.where(np.isnan(got), np.inf, error))


def assert_close(fn, got, want, limit, *operands):
    error = ulps(got, want)
    worst = int(np.argmax(error))
    assert error[worst] <= limit, (
        f"{fn}{tuple(o[worst] for o in operands)}: {got[worst]} against {want[worst]}, {error[worst]} ulp"
    )


@pytest.mark.parametrize("fn", sorted(REFERENCES))
def test_float32(fn):
    x = dense()
    got, _ = both(fn, x)
    with np.errstate(all="ignore"):
        want = REFERENCES[fn](x.astype(np.float64))
    # a device may flush a subnormal operand to a zero of its sign
    flushed = (x != 0) & (np.abs(x) < TINY)
    with np.errstate(all="ignore"):
        zero = REFERENCES[fn](np.copysign(0.0, x))
    want = np.where(flushed & (got == zero), zero, want)
    assert_close(fn, got, want, 5, x)


@pytest.mark.parametrize("fn", sorted(REFERENCES))
def test_float64(fn):
    lines = [np.linspace(-s, s, 501) for s in (1, 3, 10, 30, 700, 1e4, 2e6)]
    wide = np.exp(RNG.uniform(-600, 600, 1000)) * RNG.choice([-1, 1], 1000)
    near = 1 + np.exp(RNG.uniform(-36, 0, 500)) * RNG.choice([-1, 1], 500)
    x = np.concatenate([np.array(SPECIAL, np.float64), [1e300, 1e22, 5e-300], *lines, wide, near])
    got, want = both(fn, x)
    np.testing.assert_allclose(got, want, rtol=4e-15, atol=1e-300)


def test_functions_of_negated_numbers():
    """A driver once joined the bits of a result and of its operand wrongly where the operand was a negated number."""
    x = np.linspace(-0.99, 0.99, 64, dtype=np.float32)
    for fn in ("asin", "asinh", "atan", "atanh", "erf", "sinh", "tan", "tanh"):
        b = Builder()
        v = b.input("x", DType.F32, x.shape)
        p = b.finish([b.map(fn, b.neg(v))])
        kernel = loop_step(fn, p.outputs, p.producers(), lambda leaf, v=v: leaf is v)
        got = run_step(kernel, {v: x})[p.outputs[0]]
        np.testing.assert_allclose(got, interpret(p, {"x": x})[0], rtol=1e-5, atol=1e-6, err_msg=fn)


def test_pow_of_doubles():
    x = np.concatenate([RNG.uniform(-20, 20, 2000), np.repeat(SPECIAL, len(SPECIAL))])
    y = np.concatenate(
        [np.where(np.arange(2000) % 2, np.round(x[:2000][::-1]), RNG.uniform(-40, 40, 2000)), np.tile(SPECIAL, len(SPECIAL))]
    )
    got, want = both("pow", x, y)
    np.testing.assert_allclose(got, want, rtol=1e-13, atol=1e-300)


def test_erf_and_tanh_of_halves_are_rounded_once():
    for dtype, fn in itertools.product([DType.F16, DType.BF16], ["erf", "tanh", "exp", "sin"]):
        x = RNG.uniform(-5, 5, 2000).astype(dtype.numpy)
        got, _ = both(fn, x)
        want = REFERENCES[fn](x.astype(np.float64)).astype(dtype.numpy)
        assert (got == want).mean() > 0.999
        np.testing.assert_allclose(got.astype("f8"), want.astype("f8"), rtol=2.0**-7 if dtype is DType.BF16 else 2.0**-10)


@pytest.mark.parametrize("fn", ["exp", "erf", "tanh"])
def test_coarse_functions(fn):
    """Right to 2^-15, far below the unit of half floats, at every argument."""
    x = dense()
    p = program(fn, [x])
    p.instrs[0].attrs["coarse"] = True
    kernel = loop_step(fn, p.outputs, p.producers(), lambda v: v in p.inputs)
    got = run_step(kernel, {p.inputs[0]: x})[p.outputs[0]]
    want, flushed = REFERENCES[fn](x.astype(np.float64)), REFERENCES[fn](np.copysign(0.0, x))
    want = np.where((np.abs(x) < TINY) & (got == flushed), got, want)  # a device may flush a subnormal operand
    assert_close(fn, got, want, 2**8, x)


def test_coarse_quotients():
    a, b = (v.reshape(-1) for v in np.meshgrid(dense()[::23], dense()[::19]))
    p = program("div", [a, b])
    p.instrs[0].attrs["coarse"] = True
    kernel = loop_step("div", p.outputs, p.producers(), lambda v: v in p.inputs)
    got = run_step(kernel, dict(zip(p.inputs, (a, b), strict=True)))[p.outputs[0]]
    flushed = [np.where(np.abs(v) < TINY, np.copysign(0.0, v), v).astype(np.float64) for v in (a, b)]
    want = flushed[0] / flushed[1]
    # a device may flush a subnormal operand to a zero of its sign
    want = np.where((got == want) | (np.isnan(got) & np.isnan(want)), got, a.astype(np.float64) / b.astype(np.float64))
    assert_close("div", got, want, 6, a, b)


def test_half_overflow():
    x = np.array([60000, 65504, -65504, 300, 6e-8], np.float16)
    for fn in "add", "mul":
        np.testing.assert_array_equal(*both(fn, x, x))


def test_pow():
    x = np.concatenate([dense()[::7], np.repeat(SPECIAL, len(SPECIAL))]).astype(np.float32)
    y = RNG.choice(np.array([*SPECIAL, 0.25, -0.75, 5, 7, -4, 10.5, 100, -31], np.float32), len(x))
    y[-(len(SPECIAL) ** 2) :] = np.tile(np.array(SPECIAL, np.float32), len(SPECIAL))
    with np.errstate(all="ignore"):
        want = np.power(x.astype(np.float64), y.astype(np.float64))
        # results that are far out for random exponents: near 1, where the error of a logarithm would be multiplied
        close = np.exp(RNG.uniform(-80, 80, 4000) / (e := RNG.uniform(-1000, 1000, 4000))).astype(np.float32)
        more = np.power(close.astype(np.float64), e.astype(np.float32).astype(np.float64))
    tiny = ((x != 0) & (np.abs(x) < TINY)) | ((y != 0) & (np.abs(y) < TINY))  # may be flushed
    got, _ = both("pow", x, y)
    assert_close("pow", got[~tiny], want[~tiny], 6, x[~tiny], y[~tiny])
    normal = close >= TINY
    got, _ = both("pow", close[normal], e[normal].astype(np.float32))
    assert_close("pow", got, more[normal], 6, close[normal], e[normal])


@pytest.mark.parametrize("dtype", [DType.F32, DType.F64])
def test_remainders(dtype):
    a = np.concatenate([RNG.standard_normal(3000) * np.exp(RNG.uniform(-30, 30, 3000)), np.repeat(SPECIAL, len(SPECIAL))])
    b = np.concatenate([RNG.standard_normal(3000) * np.exp(RNG.uniform(-30, 30, 3000)), np.tile(SPECIAL, len(SPECIAL))])
    a[:500] = b[:500] * RNG.integers(-1000, 1000, 500)
    a, b = a.astype(dtype.numpy), b.astype(dtype.numpy)
    keep = ~(((np.abs(a) < TINY) & (a != 0)) | ((np.abs(b) < TINY) & (b != 0)))
    for fn in "mod", "fmod":
        np.testing.assert_array_equal(*both(fn, a[keep], b[keep]), err_msg=fn)


def operands(dtype, n=400):
    """Random and extreme values, as two operands that meet in every combination of extremes."""
    if dtype is DType.BOOL:
        return np.array([0, 0, 1, 1], bool), np.array([0, 1, 0, 1], bool)
    if dtype.is_int:
        info = np.iinfo(dtype.numpy)
        edge = np.array([info.min, info.min + 1, info.max, info.max - 1, 0, 1, 2, 3, 7, min(63, info.max)], dtype.numpy)
        edge = np.concatenate([edge, -edge]) if dtype.is_signed else edge
        a, b = (RNG.integers(info.min, info.max, n, dtype.numpy, endpoint=True) for _ in range(2))
    else:
        edge = np.array([s for s in SPECIAL if s == 0 or not abs(s) < 1e-30]).astype(dtype.numpy)
        a, b = ((RNG.standard_normal(n) * 10).astype(dtype.numpy) for _ in range(2))
    return np.concatenate([a, np.repeat(edge, len(edge))]), np.concatenate([b, np.tile(edge, len(edge))])


def flushed(got, want):
    """Both results, the wanted one 0 where it is a subnormal float32 that a device has flushed."""
    if want.dtype in (np.float32, DType.BF16.numpy):
        want = np.where((np.abs(want.astype(np.float64)) < TINY) & (got == 0), got, want)
    return got, want


@pytest.mark.parametrize("dtype", sorted(NUMERIC, key=lambda d: d.value))
def test_exact_functions(dtype):
    a, b = operands(dtype)
    skip = {"pow", "mod", "fmod", "div", "div_rn"} | set(REFERENCES) if dtype in FLOATS else set()
    for fn in sorted((BINARY | COMPARE) - skip):
        if has_function(fn, dtype):
            second = b
            if fn.startswith("shift"):
                second = (b % np.array(dtype.size * 8 + 3, dtype.numpy)).astype(dtype.numpy) - (3 if dtype.is_signed else 0)
            got, want = both(fn, a, second)
            if fn in ("mod", "fmod", "div") and dtype.is_int:
                want = np.where(second == 0, 0, want)
            np.testing.assert_array_equal(*flushed(got, want), err_msg=f"{fn} of {dtype}")
    for fn in [*EXACT_UNARY, "bit_not", "not"]:
        if has_function(fn, dtype):
            np.testing.assert_array_equal(*both(fn, a), err_msg=f"{fn} of {dtype}")
    np.testing.assert_array_equal(*both("select", (RNG.integers(0, 2, a.shape)).astype(bool), a, b))


def test_division():
    for dtype in FLOATS:
        a, b = operands(dtype)
        got, want = both("div", a, b)
        tolerance = {DType.F16: 2.0**-10, DType.BF16: 2.0**-7, DType.F32: 2.0**-21, DType.F64: 2.0**-51}[dtype]
        np.testing.assert_allclose(got.astype("f8"), want.astype("f8"), rtol=tolerance, atol=1e-37)


def test_division_rounded_to_the_nearest():
    """Quotients that are exact, close to ties of integers, and any; also where the driver's own are 2 ulp off."""
    scale = RNG.uniform(1e-4, 4, 4000).astype("f4")
    whole = RNG.integers(-300, 300, 4000).astype("f4") / 2
    a = np.concatenate([whole * scale, RNG.standard_normal(4000).astype("f4"), np.exp2(RNG.uniform(-16, 16, 4000)).astype("f4")])
    b = np.concatenate([scale, scale, np.exp2(RNG.uniform(-16, 16, 4000)).astype("f4")])
    np.testing.assert_array_equal(*both("div_rn", a, b))
    specials = np.array([0, -0.0, np.inf, -np.inf, np.nan, 1, -3, 1e30, 1e-30], "f4")
    a, b = (m.reshape(-1).copy() for m in np.meshgrid(specials, specials))
    got, want = both("div_rn", a, b)
    np.testing.assert_allclose(got, want, rtol=2.0**-21, atol=1e-37)


def test_every_function_is_tested():
    named = set(REFERENCES) | set(EXACT_UNARY) | BINARY | COMPARE | {"bit_not", "not", "select"}
    assert named >= MAP_FNS >= UNARY


def cast_operands(dtype):
    a, b = operands(dtype)
    if dtype in FLOATS:
        edges = [
            s * (2.0**k + d) for k in (7, 8, 15, 16, 24, 31, 32, 53, 63, 64, 70) for s in (1, -1) for d in (-1, -0.5, 0, 0.5, 1)
        ]
        halves = [65503, 65519.99, 65520, 65536, 2.0**-24, 2.0**-25, 3 * 2.0**-26, 1 + 2.0**-11, 1 + 3 * 2.0**-11, 1 + 2.0**-8]
        a = np.concatenate([a, np.array([*edges, *halves, *SPECIAL]).astype(dtype.numpy), (b * 1000).astype(dtype.numpy)])
        if dtype is DType.F64:  # ties of narrower floats that a detour by float32 would round twice
            a = np.concatenate(
                [a, 1 + 2.0**-11 + np.array([2.0**-40, -(2.0**-40)]), 1 + 2.0**-8 + np.array([2.0**-40, -(2.0**-40)])]
            )
    return a


@pytest.mark.parametrize("source", sorted(NUMERIC, key=lambda d: d.value))
def test_casts(source):
    x = cast_operands(source)
    for target, saturate in itertools.product(sorted(NUMERIC, key=lambda d: d.value), [False, True]):
        if target is source or (saturate and target not in INTS):
            continue
        got, want = both("cast", x, cast_to=target, saturate=saturate)
        if target in FLOATS:
            got, want = got.astype(np.float64), want.astype(np.float64)
            least = {DType.F32: TINY, DType.BF16: TINY}.get(target, 0.0)
            want = np.where((np.abs(want) < least) & (got == 0), 0, want)
            if source in (DType.F32, DType.BF16):  # subnormal operands may be flushed
                want = np.where((np.abs(x.astype(np.float64)) < TINY) & (got == 0), 0, want)
        different = np.flatnonzero(~((got == want) | ((got != got) & (want != want))))
        shown = [(x[i], got[i], want[i]) for i in different[:5]]
        assert not different.size, f"{source} to {target}, saturate {saturate}: {shown}"


def test_bits():
    for source, target in itertools.permutations(sorted(NUMERIC, key=lambda d: d.value), 2):
        if source.size == target.size and target is not DType.BOOL:
            x, _ = operands(source)
            p = program("bits", [x], bits_to=target)
            producers = p.producers()
            kernel = loop_step("bits", p.outputs, producers, lambda v: v not in producers)  # noqa: B023 (called at once)
            got = run_step(kernel, {p.inputs[0]: x})[p.outputs[0]].tobytes()
            keep = x == x if source in FLOATS else np.ones(x.shape, bool)  # a NaN's payload may change on the way
            back = [np.frombuffer(data, target.numpy) for data in (got, x.tobytes())]
            if target in FLOATS:
                keep &= back[1] == back[1]
            assert back[0][keep].tobytes() == back[1][keep].tobytes(), (source, target)


def test_integers_have_shifts():
    assert all(has_function("shift_left", t) and has_function("shift_right", t) for t in INTS)
