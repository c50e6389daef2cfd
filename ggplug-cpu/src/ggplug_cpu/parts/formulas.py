"""The formulas of element-wise operations, on vectors of f32, named after their ops.

A formula of :data:`FORMULAS` takes one vector, or two (gated linear units included), and the op's parameters that it
names.  ``a.maximum(b)`` and ``a.minimum(b)`` are b where either is NaN, so the order of the operands
decides whether a NaN is kept, as the ops' docstrings demand.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass

from llvmlite.ir import IntType

from ggplug_cpu.simd.transcendental import emit_exp, emit_gelu_erf, emit_log, emit_sigmoid, emit_tanh
from ggplug_cpu.simd.values import F32, F64, Value


@dataclass(frozen=True)
class Formula:
    """A function of single elements.

    ``emit`` emits its code for vectors of f32: ``vectors`` sources and ``parameters`` numbers of the op, each number
    repeated in a vector.
    """

    emit: Callable[..., Value]
    vectors: int
    parameters: int


FORMULAS: dict[str, Formula] = {}

_Emit = Callable[..., Value]


def _registered(vectors: int) -> Callable[[_Emit], _Emit]:
    """Registers a formula on ``vectors`` vectors and the op's parameters."""

    def register(emit: _Emit) -> _Emit:
        FORMULAS[emit.__name__] = Formula(emit, vectors, len(inspect.signature(emit).parameters) - vectors)
        return emit

    return register


_unary = _registered(1)
_binary = _registered(2)


# -- arithmetic -------------------------------------------------------------------------------------


@_binary
def add(a: Value, b: Value) -> Value:
    return a + b


@_binary
def sub(a: Value, b: Value) -> Value:
    return a - b


@_binary
def mul(a: Value, b: Value) -> Value:
    return a * b


@_binary
def div(a: Value, b: Value) -> Value:
    return a / b


@_unary
def scale(x: Value, s: Value, bias: Value) -> Value:
    return x * s + bias


@_unary
def abs(x: Value) -> Value:
    return x.abs()


@_unary
def sgn(x: Value) -> Value:
    return (x > 0).select(1, (x < 0).select(x.constant(-1), 0))


@_unary
def neg(x: Value) -> Value:
    return -x


@_unary
def step(x: Value) -> Value:
    return (x > 0).select(x.constant(1), 0)


@_unary
def sqr(x: Value) -> Value:
    return x * x


@_unary
def sqrt(x: Value) -> Value:
    return x.unary("sqrt")


@_unary
def floor(x: Value) -> Value:
    return x.floor()


@_unary
def ceil(x: Value) -> Value:
    return x.ceil()


@_unary
def round(x: Value) -> Value:
    return x.round_away()


@_unary
def trunc(x: Value) -> Value:
    return x.truncate()


@_unary
def clamp(x: Value, low: Value, high: Value) -> Value:
    return x.minimum(high).maximum(low)


@_unary
def fill(x: Value, value: Value) -> Value:
    return value


@_unary
def normalised(x: Value, mean: Value, factor: Value) -> Value:
    """An element of ``norm``, with the mean and the factor of its row."""
    return (x - mean) * factor


@_unary
def resized(x: Value, factor: Value) -> Value:
    """An element of ``rms_norm`` or ``l2_norm``, with the factor of its row."""
    return x * factor


# -- rows of gradients and losses ---------------------------------------------------


@_binary
def weighted(a: Value, b: Value, of_a: Value, of_b: Value) -> Value:
    """The weighted sum of two rows."""
    return a * of_a + b * of_b


@_binary
def probabilities_back(dy: Value, y: Value, dot: Value, scale: Value) -> Value:
    """An element of soft_max_back; ``dot`` is the dot product of ``dy`` and ``y``."""
    return (dy - dot) * y * scale


@_binary
def loss_back(x: Value, label: Value, highest: Value, inverse: Value, factor: Value) -> Value:
    """An element of cross_entropy_loss_back: the softmax minus the label, times ``factor``.

    ``inverse``: 1 over the sum.
    """
    return (emit_exp(x - highest) * inverse - label) * factor


# -- transcendental functions -----------------------------------------------------------------------


@_unary
def exp(x: Value) -> Value:
    return emit_exp(x)


@_unary
def log(x: Value) -> Value:
    return emit_log(x)


@_unary
def expm1(x: Value) -> Value:
    # near 0 the difference would cancel; there e**x - 1 = 2 t / (1 - t) with t = tanh(x / 2)
    t = emit_tanh(x * 0.5)
    return (x.abs() < 1).select((t + t) / (1.0 - t), emit_exp(x) - 1.0)


@_unary
def tanh(x: Value) -> Value:
    return emit_tanh(x)


@_unary
def sigmoid(x: Value) -> Value:
    return emit_sigmoid(x)


@_unary
def sin(x: Value) -> Value:
    return _of_f64_lanes(x, "sin", lambda half: sine_and_cosine(half)[0])


@_unary
def cos(x: Value) -> Value:
    return _of_f64_lanes(x, "cos", lambda half: sine_and_cosine(half)[1])


def sine_and_cosine(angle: Value) -> tuple[Value, Value]:
    """Sine and cosine of f64 lanes, good to 1e-12 for angles of up to 1e4 and to 1e-16 of the angle beyond that.

    Multiples of pi/2 are subtracted in f64, which has digits to spare even at positions of long contexts.  Taylor's
    series is evaluated at the rest, which is at most pi/4.
    """
    quarters = (angle * (2 / math.pi)).round_even()
    # pi/2 in two parts: what rounding it to f64 leaves off
    rest = quarters.fma(-6.123233995736766e-17, quarters.fma(-math.pi / 2, angle))
    square = rest * rest
    sine, cosine = square.constant(0), square.constant(0)
    for n in (13, 11, 9, 7, 5, 3):
        sine = sine.fma(square, (-1) ** (n // 2) / math.factorial(n))
    for n in (12, 10, 8, 6, 4, 2):
        cosine = cosine.fma(square, (-1) ** (n // 2) / math.factorial(n))
    sine, cosine = (sine * square).fma(rest, rest), cosine.fma(square, 1.0)
    # 0, 1, 2 or 3 times pi/2
    quarter = quarters - (quarters * 0.25).floor() * 4.0
    odd = quarter.equal(1.0) | quarter.equal(3.0)
    s, c = odd.select(cosine, sine), odd.select(sine, cosine)
    return (quarter > 1.5).select(-s, s), (quarter.equal(1.0) | quarter.equal(2.0)).select(-c, c)


def _of_f64_lanes(x: Value, name: str, function: Callable[[Value], Value]) -> Value:
    """``function``, which takes f64 lanes, applied to f32 lanes; libm's function where any lane is too large for it."""
    b, half = x.b, x.count // 2
    far = (x.abs() > 1e7).bitcast(IntType(x.count)).unequal(0)
    with b.if_else(far.ir, likely=False) as (then, otherwise):
        with then:
            exact = Value(b, x.ir).unary(name)
            after_exact = b.block
        with otherwise:
            parts = [function(x.part(start, half).convert(F64)).convert(F32) for start in (0, half)]
            fast = parts[0].concat(parts[1])
            after_fast = b.block
    result = b.phi(x.type)
    result.add_incoming(exact.ir, after_exact)
    result.add_incoming(fast.ir, after_fast)
    return Value(b, result)


# -- activations ------------------------------------------------------------------------------------


@_unary
def relu(x: Value) -> Value:
    return x.maximum(0)


@_unary
def leaky_relu(x: Value, negative_slope: Value) -> Value:
    return x.maximum(0) + x.minimum(0) * negative_slope


@_unary
def elu(x: Value) -> Value:
    return (x > 0).select(x, expm1(x))


@_unary
def softplus(x: Value) -> Value:
    # max(x, 0) + ln(1 + u), u = e**-|x|; what rounding takes from 1 + u is put back by the ratio
    u = emit_exp(-x.abs())
    w = u + 1.0
    tail = w.equal(1.0).select(u, emit_log(w) * (u / (w - 1.0)))
    return x.constant(0).maximum(x) + tail


@_unary
def silu(x: Value) -> Value:
    return x * emit_sigmoid(x)


@_unary
def gelu(x: Value) -> Value:
    # (1 + tanh(z)) / 2 = sigmoid(2 z)
    return x * emit_sigmoid((x * x).fma(0.044715, 1.0) * x * (2 * math.sqrt(2 / math.pi)))


@_unary
def gelu_erf(x: Value) -> Value:
    return emit_gelu_erf(x)


@_unary
def gelu_quick(x: Value) -> Value:
    return x * emit_sigmoid(1.702 * x)


@_unary
def hardsigmoid(x: Value) -> Value:
    return ((x + 3.0) / 6.0).maximum(0).minimum(1)


@_unary
def hardswish(x: Value) -> Value:
    return x * hardsigmoid(x)


@_unary
def xielu(x: Value, alpha_n: Value, alpha_p: Value, beta: Value, eps: Value) -> Value:
    positive = alpha_p * x * x
    negative = (expm1(eps.minimum(x)) - x) * alpha_n
    return (x > 0).select(positive, negative) + beta * x


@_binary
def silu_back(dy: Value, x: Value) -> Value:
    s = emit_sigmoid(x)
    return dy * s * (x * (1.0 - s) + 1.0)


# -- gated linear units -----------------------------------------------------------------------------


@_binary
def reglu(x: Value, gate: Value) -> Value:
    return (x > 0).select(x * gate, 0)


@_binary
def geglu(x: Value, gate: Value) -> Value:
    return gelu(x) * gate


@_binary
def geglu_erf(x: Value, gate: Value) -> Value:
    return gelu_erf(x) * gate


@_binary
def geglu_quick(x: Value, gate: Value) -> Value:
    return gelu_quick(x) * gate


@_binary
def swiglu(x: Value, gate: Value) -> Value:
    return silu(x) * gate


@_binary
def swiglu_clamp(x: Value, gate: Value, limit: Value) -> Value:
    return silu(limit.minimum(x)) * limit.minimum((-limit).maximum(gate))


@_binary
def swiglu_oai(x: Value, gate: Value, alpha: Value, limit: Value) -> Value:
    u = limit.minimum(x)
    return u * emit_sigmoid(alpha * u) * (limit.minimum((-limit).maximum(gate)) + 1.0)
