"""Rules of ops that work element by element: functions of one number, arithmetic of two, gated linear units."""

from __future__ import annotations

import math
from collections.abc import Callable

from ggplug import ops
from ggplug.gradients.rules import Parts, formula, gradient, packed, sources, summed, wide
from ggplug.host import tensor as constant
from ggplug.tensor import Tensor

# -- functions of one number -----------------------------------------------------------------------

_Slope = Callable[[Tensor, Tensor, Tensor], Tensor]
"""``(dy, x, y) -> dx`` of y = f(x)."""


def _between(x: Tensor, low: float, high: float) -> Tensor:
    """1 where x is above ``low`` and below ``high``, else 0."""
    return ops.mul(ops.step(ops.scale(x, 1, -low)), ops.step(ops.scale(x, -1, high)))


def _gelu(dy: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """With u = 2 s x (1 + c x**2) and p = 1 / (1 + e**-u), gelu(x) is x p: p + x p (1 - p) 2 s (1 + 3 c x**2)."""
    s, c = 2 * math.sqrt(2 / math.pi), 0.044715
    x = ops.clamp(x, -16, 16)  # beyond these it is 0 or 1 in F32
    squared = ops.sqr(x)
    u = ops.mul(x, ops.scale(squared, s * c, s))
    p, rest = ops.sigmoid(u), ops.sigmoid(ops.neg(u))
    rising = ops.mul(ops.mul(x, ops.scale(squared, 3 * s * c, s)), rest)
    return ops.mul(dy, ops.mul(p, ops.scale(rising, 1, 1)))


def _gelu_erf(dy: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """p(x) + x e**(-x**2 / 2) / sqrt(2 pi); p, the normal distribution, is gelu_erf(x) / x, which 0 / 0 must not be."""
    size = ops.clamp(ops.abs(x), 1e-12, math.inf)
    above = ops.div(ops.gelu_erf(size), size)
    p = ops.scale(ops.mul(ops.sgn(x), ops.scale(above, 1, -0.5)), 1, 0.5)
    density = ops.scale(ops.exp(ops.scale(ops.sqr(x), -0.5)), 1 / math.sqrt(2 * math.pi))
    return ops.mul(dy, ops.add(p, ops.mul(x, density)))


def _hardswish(dy: Tensor, x: Tensor, y: Tensor) -> Tensor:
    rising = ops.mul(ops.scale(x, 1 / 6), _between(x, -3, 3))
    return ops.mul(dy, ops.add(ops.hardsigmoid(x), rising))


_SLOPES: dict[type[ops.Unary], _Slope] = {
    ops.Abs: lambda dy, x, y: ops.mul(dy, ops.sgn(x)),
    ops.Neg: lambda dy, x, y: ops.neg(packed(dy)),
    ops.Sqr: lambda dy, x, y: ops.scale(ops.mul(dy, x), 2),
    ops.Sqrt: lambda dy, x, y: ops.scale(ops.div(dy, y), 0.5),
    ops.Log: lambda dy, x, y: ops.div(dy, x),
    ops.Exp: lambda dy, x, y: ops.mul(dy, y),
    ops.Expm1: lambda dy, x, y: ops.mul(dy, ops.exp(x)),
    ops.Sin: lambda dy, x, y: ops.mul(dy, ops.cos(x)),
    ops.Cos: lambda dy, x, y: ops.neg(ops.mul(dy, ops.sin(x))),
    ops.Tanh: lambda dy, x, y: ops.mul(dy, ops.scale(ops.sqr(y), -1, 1)),
    ops.Relu: lambda dy, x, y: ops.mul(dy, ops.step(x)),
    ops.Elu: lambda dy, x, y: ops.mul(dy, ops.exp(ops.clamp(x, -math.inf, 0))),
    ops.Sigmoid: lambda dy, x, y: ops.mul(dy, ops.mul(y, ops.scale(y, -1, 1))),
    ops.Softplus: lambda dy, x, y: ops.mul(dy, ops.sigmoid(x)),
    ops.Silu: lambda dy, x, y: ops.silu_back(dy, x),
    ops.Gelu: _gelu,
    ops.GeluErf: _gelu_erf,
    ops.GeluQuick: lambda dy, x, y: ops.silu_back(dy, ops.scale(x, 1.702)),
    ops.Hardsigmoid: lambda dy, x, y: ops.scale(ops.mul(dy, _between(x, -3, 3)), 1 / 6),
    ops.Hardswish: _hardswish,
}


@gradient(*_SLOPES)
def _(node: Tensor, dy: Tensor) -> Parts:
    (x,) = sources(node)
    slope = next(found for cls, found in _SLOPES.items() if isinstance(node.op, cls))
    return (lambda: slope(dy, wide(x), wide(node)),)


@gradient(ops.Sgn, ops.Step, ops.Floor, ops.Ceil, ops.Round, ops.Trunc, ops.Fill)
def _(node: Tensor, dy: Tensor) -> Parts:
    return (None,)


@gradient(ops.Scale)
def _(node: Tensor, dy: Tensor) -> Parts:
    assert isinstance(node.op, ops.Scale)
    s = node.op.s
    return (lambda: ops.scale(packed(dy), s),)


@gradient(ops.Clamp)
def _(node: Tensor, dy: Tensor) -> Parts:
    assert isinstance(node.op, ops.Clamp)
    (x,), op = sources(node), node.op

    def of_x() -> Tensor:
        dx = dy
        for sign, limit in ((1, op.min), (-1, op.max)):
            if math.isfinite(limit):
                dx = ops.mul(dx, ops.step(ops.scale(wide(x), sign, -sign * limit)))
        return dx

    return (of_x,)


@gradient(ops.LeakyRelu)
def _(node: Tensor, dy: Tensor) -> Parts:
    assert isinstance(node.op, ops.LeakyRelu)
    (x,), slope = sources(node), node.op.negative_slope

    def of_x() -> Tensor:
        above = ops.step(wide(x))
        return ops.mul(dy, ops.add(above, ops.scale(above, -slope, slope)))

    return (of_x,)


@formula(ops.Xielu)
def _(op: ops.Xielu, x: Tensor) -> Tensor:
    above, below = ops.relu(x), ops.neg(ops.relu(ops.neg(x)))
    rising = ops.scale(ops.sqr(above), op.alpha_p)
    falling = ops.scale(ops.sub(ops.expm1(ops.clamp(below, -math.inf, op.eps)), below), op.alpha_n)
    return ops.add(ops.add(rising, falling), ops.scale(x, op.beta))


# -- arithmetic of two tensors ---------------------------------------------------------------------


@gradient(ops.Add)
def _(node: Tensor, dy: Tensor) -> Parts:
    _, b = sources(node)
    return lambda: dy, lambda: summed(dy, b.ne)


@gradient(ops.Sub)
def _(node: Tensor, dy: Tensor) -> Parts:
    _, b = sources(node)
    return lambda: dy, lambda: ops.neg(packed(summed(dy, b.ne)))


@gradient(ops.Mul)
def _(node: Tensor, dy: Tensor) -> Parts:
    a, b = sources(node)
    return lambda: ops.mul(dy, b), lambda: summed(ops.mul(dy, wide(a)), b.ne)


@gradient(ops.Div)
def _(node: Tensor, dy: Tensor) -> Parts:
    _, b = sources(node)
    return lambda: ops.div(dy, b), lambda: ops.neg(summed(ops.div(ops.mul(dy, wide(node)), b), b.ne))


@formula(ops.SiluBack)
def _(op: ops.SiluBack, dy: Tensor, x: Tensor) -> Tensor:
    s = ops.sigmoid(packed(x))
    slope = ops.mul(s, ops.scale(ops.mul(x, ops.scale(s, -1, 1)), 1, 1))
    return ops.mul(dy, slope)


@formula(ops.TimestepEmbedding)
def _(op: ops.TimestepEmbedding, x: Tensor) -> Tensor:
    half, steps = op.dim // 2, x.ne[0]
    angles = ops.out_prod(constant(op.frequencies.astype("f4").reshape(1, half)), ops.reshape(packed(x), steps, 1))
    y = ops.concat(ops.cos(angles), ops.sin(angles), 0)
    return ops.pad(y, op.dim - 2 * half)


# -- gated linear units ----------------------------------------------------------------------------


def _halves(op: ops.Glu, x: Tensor, gate: Tensor | None) -> tuple[Tensor, Tensor]:
    """x and the gate, which may be the halves of one tensor."""
    if gate is not None:
        return x, gate
    ne = (x.ne[0] // 2, *x.ne[1:])
    first, second = (ops.view(x, *ne, nb=x.nb[1:], offset=half * ne[0] * x.type.block_bytes) for half in (0, 1))
    return (second, first) if op.swapped else (first, second)


_ACTIVATIONS: dict[type[ops.Glu], Callable[[Tensor], Tensor]] = {
    ops.Reglu: ops.relu,
    ops.Geglu: ops.gelu,
    ops.GegluErf: ops.gelu_erf,
    ops.GegluQuick: ops.gelu_quick,
    ops.Swiglu: ops.silu,
}


@formula(*_ACTIVATIONS)
def _(op: ops.Glu, x: Tensor, gate: Tensor | None = None) -> Tensor:
    x, gate = _halves(op, x, gate)
    return ops.mul(_ACTIVATIONS[type(op)](x), gate)


@formula(ops.SwigluClamp)
def _(op: ops.SwigluClamp, x: Tensor, gate: Tensor | None = None) -> Tensor:
    x, gate = _halves(op, x, gate)
    return ops.mul(ops.silu(ops.clamp(x, -math.inf, op.limit)), ops.clamp(gate, -op.limit, op.limit))


@formula(ops.SwigluOai)
def _(op: ops.SwigluOai, x: Tensor, gate: Tensor | None = None) -> Tensor:
    x, gate = _halves(op, x, gate)
    u = ops.clamp(x, -math.inf, op.limit)
    scaled = ops.silu(ops.scale(u, op.alpha))  # alpha u / (1 + e**(-alpha u))
    return ops.mul(ops.scale(scaled, 1 / op.alpha), ops.scale(ops.clamp(gate, -op.limit, op.limit), 1, 1))
