"""exp, log, tanh, sigmoid and erf of f32 vectors, lane by lane, with no calls and no branches.

The polynomials are minimax fits in the relative error of the function (made by reweighted least squares on Chebyshev
nodes, then rounded to f32).  Largest errors seen, in units of the last place: exp 1.0, log 0.8, tanh 1.3, erf 1.3,
sigmoid 2.0 (and 0 where it would be subnormal).  NaN stays NaN.

They are emitted into their callers, so ``fastmath`` of a kernel would make them inaccurate.
"""

from __future__ import annotations

import functools
import math

import numpy as np

from .. import features
from .lanes import is_vec
from .lookup import emit_lookup_of_floats, looks_up_floats
from .values import F32, I16, I32, Value, emitted, vector

_LOG2E = 1.4426950408889634
# ln 2 in two floats: the first has few enough bits that n * _LN2_HIGH is exact for every exponent n
_LN2_HIGH = 0.693145751953125
_LN2_LOW = 1.42860682030941723212e-6

_EXP = (0.4999999403953552, 0.1666652113199234, 0.04166838899254799, 0.008368715643882751, 0.0013814602280035615)
_LOG = (
    0.3333331346511841,
    -0.25000008940696716,
    0.2000211924314499,
    -0.1666799634695053,
    0.14219552278518677,
    -0.1240558922290802,
    0.11888162791728973,
    -0.11675651371479034,
    0.0674663856625557,
)
_TANH = (-0.3333328068256378, 0.13331441581249237, -0.05373971536755562, 0.0206390880048275, -0.005704987328499556)
# erf(x) / x - 1 in x * x
_ERF = (
    0.12837916612625122,
    -0.3761262595653534,
    0.1128358542919159,
    -0.026853812858462334,
    0.005188329610973597,
    -0.0008010208257474005,
    7.853906572563574e-05,
)
_LOG_ERFC = (
    0.00016920392226893455,
    -1.1294883489608765,
    -0.6334008574485779,
    -0.10822036862373352,
    0.025080606341362,
    -0.004156250506639481,
    0.00043139257468283176,
    -2.08285273401998e-05,
)

# log2 of (1 - erf(x / sqrt(2))) / 2 for x from 0 to 6.5: the power of two is good to 8e-8, and to 2e-5 of itself
_LOG2_UPPER = (
    -0.9999998807907104,
    -1.1511114835739136,
    -0.45915305614471436,
    -0.05266979709267616,
    0.007315923925489187,
    -0.0003228193963877857,
    -0.00011710589751601219,
    2.8284186555538627e-05,
    -2.698468279049848e-06,
    9.954178636917277e-08,
)
# 2**x from -1/2 to 1/2
_EXP2 = (
    1.0000001192092896,
    0.6931469440460205,
    0.24022120237350464,
    0.05550713092088699,
    0.009675540961325169,
    0.001327647129073739,
)


def polynomial(x: Value, coefficients: tuple[float, ...]) -> Value:
    """``c[0] + c[1] x + c[2] x**2 + ...`` by Horner's rule."""
    result = x.constant(coefficients[-1])
    for c in reversed(coefficients[:-1]):
        result = result.fma(x, c)
    return result


def _polynomial_of_halves(x: Value, coefficients: tuple[float, ...]) -> Value:
    """The same polynomial, even and odd powers in two chains: half the latency."""
    square = x * x
    return polynomial(square, coefficients[1::2]).fma(x, polynomial(square, coefficients[0::2]))


def _times_power_of_two(x: Value, n: Value, *, normal: bool = False) -> Value:
    """x * 2**n for whole numbers n from -150 to 254: rounded once, 0 or inf where that is too small or too large.

    ``normal``: only results of n from -126 to 127 are needed.
    """
    if features.has("avx512f") and x.count == 16:
        zero, all_lanes, to_nearest = x.constant(0), x.constant(-1, I16), x.constant(4, I32)
        return x.call("llvm.x86.avx512.mask.scalef.ps.512", None, n, zero, all_lanes, to_nearest)
    if normal:
        return x * _power_of_two(n.convert(I32))
    # two factors, for 2**n itself may lie outside the normal numbers; where n is NaN so is x
    whole = n.equal(n).select(n, 0.0).convert(I32)
    half = whole >> 1
    return x * _power_of_two(half) * _power_of_two(whole - half)


def _power_of_two(n: Value) -> Value:
    """2**n as f32 for int32 lanes from -126 to 127."""
    return ((n + 127) << 23).bitcast(vector(F32, n.count))


def emit_exp(x: Value, *, positive: bool = True) -> Value:
    """e**x; with ``positive=False`` for numbers up to 0 only."""
    # beyond these the result is 0 or inf; in this order NaN is kept
    bounded = x.constant(-104.0).maximum(x.constant(89.0).minimum(x) if positive else x)
    n = (bounded * _LOG2E).round_even()
    r = n.fma(-_LN2_LOW, n.fma(-_LN2_HIGH, bounded))
    return _times_power_of_two((r * r).fma(polynomial(r, _EXP), r) + 1.0, n)


def emit_log(x: Value) -> Value:
    subnormal = x < 2.0**-126
    bits = subnormal.select(x * 2.0**23, x).bits()
    # subtracting the bits of sqrt(1/2) puts the mantissa between it and sqrt(2)
    shifted = bits - 0x3F3504F3
    exponent = (shifted >> 23) - subnormal.select(shifted.constant(23), 0)
    f = ((shifted & 0x7FFFFF) + 0x3F3504F3).bitcast(x.type) - 1.0
    e = exponent.convert(F32)
    square = f * f
    tail = (square * f).fma(polynomial(f, _LOG), e * _LN2_LOW)
    result = e.fma(_LN2_HIGH, f + square.fma(-0.5, tail))
    special = x.equal(0.0).select(float("-inf"), (x < 0.0).select(float("nan"), x))
    # zero, what is negative, inf and NaN: neither above zero nor below inf
    return ((x > 0.0) & (x < float("inf"))).select(result, special)


def emit_sigmoid(x: Value) -> Value:
    return 1.0 / (emit_exp(-x) + 1.0)


def emit_tanh(x: Value) -> Value:
    size = x.abs()
    square = x * x
    near = (size * square).fma(polynomial(square, _TANH), size)
    # from here on tanh rounds to 1
    far = 1.0 - 2.0 / (emit_exp(size.constant(10.0).minimum(size) * 2.0) + 1.0)
    return (size < 0.625).select(near, far).copysign(x)


def emit_erf(x: Value) -> Value:
    size = x.abs()
    square = x * x
    near = size.fma(polynomial(square, _ERF), size)
    # erf(4) rounds to 1
    far = 1.0 - emit_exp(polynomial(size.constant(4.0).minimum(size), _LOG_ERFC))
    return (size < 1.0).select(near, far).copysign(x)


def emit_gelu_erf(x: Value) -> Value:
    """x (1 + erf(x / sqrt(2))) / 2, good to three last places of x; the factor of negative x does not cancel."""
    size = x.abs()
    if looks_up_floats(x.count):
        return _positive_part(x) - _part_of_negative(size)
    upper = _upper_by_power(size)
    return x * (x < 0.0).select(upper, 1.0 - upper)


def _upper_by_power(size: Value) -> Value:
    """(1 - erf(size / sqrt(2))) / 2 as a power of two."""
    log2_upper = _polynomial_of_halves(size, _LOG2_UPPER)
    n = log2_upper.round_even()
    power = _times_power_of_two(_polynomial_of_halves(log2_upper - n, _EXP2), n, normal=True)
    # beyond 6.5 it is less than 1e-10, and not to be multiplied with an infinity
    return (size < 6.5).select(power, 0.0)


def _positive_part(x: Value) -> Value:
    """x, or zero where it is negative; NaN of NaN and of minus infinity, as a product with zero has it."""
    # the result for each class of numbers, the first in the lowest digit:
    # quiet and signalling NaN, 0, +1, -inf and inf, negative, positive; 1: itself, 2 and 3: NaN, 8: zero
    kinds, all_lanes, current = x.constant(0x18131121, I32), x.constant(-1, I16), x.constant(4, I32)
    kinds = kinds.splat(x.count)
    return x.call("llvm.x86.avx512.mask.fixupimm.ps.512", None, x, kinds, x.constant(0, I32), all_lanes, current)


def _part_of_negative(size: Value) -> Value:
    """size (1 - erf(size / sqrt(2))) / 2 by a polynomial for each quarter, whose coefficients are looked up."""
    bounded = size.constant(_QUARTERS / 4 - 0.5).minimum(size)  # so that NaN is kept; there it is zero
    # in a float of this size the last bit counts quarters
    shifted = bounded + 1.5 * 2.0**21
    rest = bounded - (shifted - 1.5 * 2.0**21)
    *lower, highest = (emit_lookup_of_floats(table, shifted.bits()) for table in _coefficients_of_quarters())
    result = highest
    for coefficient in reversed(lower):
        result = result.fma(rest, coefficient)
    return result


_QUARTERS = 32


@functools.cache
def _coefficients_of_quarters() -> list[list[float]]:
    """Coefficients, the constant ones first, of x (1 - erf(x / sqrt(2))) / 2 around 0, 1/4, 2/4, ...; then of zero.

    The polynomials meet the function in Chebyshev's nodes.  They are off by 2e-7 of x at most, and by 4e-5 of the
    function up to 5.
    """

    def upper(x: float) -> float:
        return math.erfc(x / math.sqrt(2)) / 2

    def through(nodes: list[float], values: list[float]) -> list[float]:
        found: list[float] = np.linalg.solve(np.vander(nodes, increasing=True), values).tolist()
        return found

    # around 0 the function is x times what is fitted, from 0 to 1/8, so that it is good to last places of x
    near = [(1 + math.cos(math.pi * (2 * i + 1) / 8)) / 16 for i in range(4)]
    nodes = [math.cos(math.pi * (2 * i + 1) / 10) / 8 for i in range(5)]
    rows = [[0.0, *through(near, [upper(x) for x in near])]]
    for k in range(1, _QUARTERS - 2):
        rows.append(through(nodes, [(k / 4 + node) * upper(k / 4 + node) for node in nodes]))
    columns: list[list[float]] = np.array([*rows, [0] * 5, [0] * 5]).T.tolist()
    return columns


def _floats(v: str) -> str | None:
    return f"{v}({v})" if is_vec(v) and v.startswith("f32x") else None


@emitted(_floats)
def exp(x: Value) -> Value:
    """e**x; 0 at -inf and below -103.98, inf above 88.73."""
    return emit_exp(x)


@emitted(_floats)
def log(x: Value) -> Value:
    """The natural logarithm; -inf at 0, NaN below."""
    return emit_log(x)


@emitted(_floats)
def sigmoid(x: Value) -> Value:
    """1 / (1 + e**-x)."""
    return emit_sigmoid(x)


@emitted(_floats)
def tanh(x: Value) -> Value:
    """The hyperbolic tangent."""
    return emit_tanh(x)


@emitted(_floats)
def erf(x: Value) -> Value:
    """The error function."""
    return emit_erf(x)
