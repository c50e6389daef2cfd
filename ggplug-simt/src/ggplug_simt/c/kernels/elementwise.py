"""Element-wise ops, from one table of expressions; also conversions, which are the identity between two types.

Expressions are C on ``x`` (and ``y``), valid for a float and for a vector of them: ``SELECT`` and ``REAL`` stand for
the conditional operator and for constants in it; ``P0`` to ``P3`` are parameters.
"""

from __future__ import annotations

from typing import NamedTuple

from ggplug import ops
from ggplug.backend import Decline
from ggplug.tensor import Operation, Tensor
from ggplug.types import Type
from ggplug_simt.c.kernels.accepted import FLOATS, KEPT, READABLE, WRITABLE, refuse
from ggplug_simt.c.launch import collapsed, launch, launches_of, units
from ggplug_simt.c.profile import Profile
from ggplug_simt.library import DST, Launch, Launches, TensorArgument, argument, argument_of


class Expression(NamedTuple):
    """A formula and the names of the op's parameters that it calls P0, P1, ..."""

    text: str
    parameters: tuple[str, ...] = ()


# x/2 (1 + tanh(z)) = x / (1 + exp(-2 z)): one exponential, and exact at both ends
_GELU = "(x / (1.0f + exp(-1.5957691216057308f * x * (1.0f + 0.044715f * x * x))))"
_GELU_ERF = "(0.5f * x * (1.0f + erf(x * 0.70710678118654752f)))"
_GELU_QUICK = "(x / (1.0f + exp(-1.702f * x)))"
_AT_MOST = "SELECT(x < P1, x, REAL(P1))"
# these two keep NaN, which fmin would not
_LIMITED = "SELECT(x > P0, REAL(P0), x)"
_CLIPPED = "SELECT(y > P0, REAL(P0), SELECT(y < -P0, REAL(-P0), y))"
_SILU = "(x / (1.0f + exp(-x)))"

ONE: dict[type[Operation], Expression] = {
    ops.Abs: Expression("fabs(x)"),
    ops.Sgn: Expression("SELECT(x > 0.0f, REAL(1), SELECT(x < 0.0f, REAL(-1), REAL(0)))"),
    ops.Neg: Expression("(-x)"),
    ops.Step: Expression("SELECT(x > 0.0f, REAL(1), REAL(0))"),
    ops.Sqr: Expression("(x * x)"),
    ops.Sqrt: Expression("sqrt(x)"),
    ops.Log: Expression("log(x)"),
    ops.Exp: Expression("exp(x)"),
    ops.Expm1: Expression("expm1(x)"),
    ops.Sin: Expression("SIN(x)"),
    ops.Cos: Expression("COS(x)"),
    ops.Floor: Expression("floor(x)"),
    ops.Ceil: Expression("ceil(x)"),
    ops.Round: Expression("round(x)"),
    ops.Trunc: Expression("trunc(x)"),
    ops.Tanh: Expression("tanh(x)"),
    ops.Relu: Expression("SELECT(x > 0.0f, x, REAL(0))"),
    ops.Elu: Expression("SELECT(x > 0.0f, x, expm1(x))"),
    ops.Sigmoid: Expression("(1.0f / (1.0f + exp(-x)))"),
    ops.Softplus: Expression("(fmax(x, REAL(0)) + log1p(exp(-fabs(x))))"),
    ops.Silu: Expression(_SILU),
    ops.Gelu: Expression(_GELU),
    ops.GeluErf: Expression(_GELU_ERF),
    ops.GeluQuick: Expression(_GELU_QUICK),
    ops.Hardsigmoid: Expression("fmin(fmax((x + 3.0f) / 6.0f, REAL(0)), REAL(1))"),
    ops.Hardswish: Expression("(x * fmin(fmax((x + 3.0f) / 6.0f, REAL(0)), REAL(1)))"),
    ops.Scale: Expression("(x * P0 + P1)", ("s", "bias")),
    ops.Clamp: Expression(f"SELECT({_AT_MOST} > P0, {_AT_MOST}, REAL(P0))", ("min", "max")),
    ops.LeakyRelu: Expression(
        "(SELECT(x > 0.0f, x, REAL(0)) + SELECT(x < 0.0f, x, REAL(0)) * P0)", ("negative_slope",)
    ),
    ops.Fill: Expression("REAL(P0)", ("value",)),
    ops.Xielu: Expression(
        "SELECT(x > 0.0f, P1 * x * x + P2 * x, P0 * (expm1(fmin(x, REAL(P3))) - x) + P2 * x)",
        ("alpha_n", "alpha_p", "beta", "eps"),
    ),
}
"""Expressions of one source."""

TWO: dict[type[Operation], Expression] = {
    ops.Add: Expression("(x + y)"),
    ops.Sub: Expression("(x - y)"),
    ops.Mul: Expression("(x * y)"),
    ops.Div: Expression("(x / y)"),
    ops.SiluBack: Expression("(x / (1.0f + exp(-y)) * (1.0f + y * (1.0f - 1.0f / (1.0f + exp(-y)))))"),
    ops.Reglu: Expression("SELECT(x > 0.0f, x * y, REAL(0))"),
    ops.Geglu: Expression(f"({_GELU} * y)"),
    ops.GegluErf: Expression(f"({_GELU_ERF} * y)"),
    ops.GegluQuick: Expression(f"({_GELU_QUICK} * y)"),
    ops.Swiglu: Expression(f"({_SILU} * y)"),
    ops.SwigluClamp: Expression(f"({_LIMITED} / (1.0f + exp(-{_LIMITED})) * {_CLIPPED})", ("limit",)),
    ops.SwigluOai: Expression(
        f"({_LIMITED} / (1.0f + exp(-P1 * {_LIMITED})) * (1.0f + {_CLIPPED}))", ("limit", "alpha")
    ),
}
"""Expressions of two sources, or of the halves of one."""

IDENTITY = Expression("(x)")


def _values(op: Operation | None, expression: Expression) -> tuple[dict[str, str], dict[str, float]]:
    """The defines and the scalars of an expression's parameters."""
    names = {f"P{i}": f"args.p{i}" for i in range(len(expression.parameters))}
    return names, {f"p{i}": float(getattr(op, name)) for i, name in enumerate(expression.parameters)}


def map_one(
    profile: Profile,
    op: Operation | None,
    expression: Expression,
    dst: TensorArgument,
    dst_type: Type,
    x: TensorArgument,
    x_type: Type,
) -> Launch | Decline:
    """dst = f(x), both of the same extents, any strides and types."""
    unit = max(profile.vec, dst_type.block_size)
    dst, x = collapsed((dst, x), (dst_type.block_size, x_type.block_size))
    names, values = _values(op, expression)
    return launch(
        "elementwise",
        "map_one",
        {"dst": dst, "x": x},
        groups=-(-units(dst.ne, unit) // profile.unit_lanes),
        lanes=profile.unit_lanes,
        defines={
            "VEC": profile.vec,
            "UNIT": unit,
            "TD": dst_type.name,
            "TX": x_type.name,
            "F(x)": expression.text,
            **names,
            **(KEPT if expression is IDENTITY else {}),
        },
        **values,
    )


def map_two(
    profile: Profile,
    op: Operation,
    expression: Expression,
    dst: TensorArgument,
    dst_type: Type,
    x: TensorArgument,
    x_type: Type,
    y: TensorArgument,
    y_type: Type,
) -> Launch | Decline:
    """dst = f(x, y), y repeated to dst's extents."""
    unit = max(profile.vec, dst_type.block_size)
    names, values = _values(op, expression)
    repeats = any(have not in (1, want) for have, want in zip(y.ne, dst.ne, strict=True))
    if repeats:
        names["REPEATS"] = "1"
    else:
        nb = tuple(0 if have == 1 else stride for have, stride in zip(y.ne, y.nb, strict=True))
        y = y._replace(ne=dst.ne, nb=nb)  # type: ignore[arg-type]
        sizes = (dst_type.block_size, x_type.block_size, y_type.block_size)
        dst, x, y = collapsed((dst, x, y), sizes)
    return launch(
        "elementwise",
        "map_two",
        {"dst": dst, "x": x, "y": y},
        groups=-(-units(dst.ne, unit) // profile.unit_lanes),
        lanes=profile.unit_lanes,
        defines={
            "VEC": profile.vec,
            "UNIT": unit,
            "TD": dst_type.name,
            "TX": x_type.name,
            "TY": y_type.name,
            "F(x, y)": expression.text,
            **names,
        },
        **values,
    )


def unary(profile: Profile, node: Tensor) -> Launches | Decline:
    """Functions of one number."""
    refused = refuse(node, FLOATS, FLOATS)
    if refused is not None:
        return refused
    (x,) = node.src
    assert x is not None
    expression = ONE[type(node.op)]  # type: ignore[index]
    return launches_of(map_one(profile, node.op, expression, argument(DST, node), node.type, argument(0, x), x.type))


def binary(profile: Profile, node: Tensor) -> Launches | Decline:
    """Arithmetic of two tensors; the first may be quantised, and then the result is."""
    refused = refuse(node, WRITABLE, READABLE, FLOATS)
    if refused is not None:
        return refused
    x, y = node.src
    assert node.op is not None
    assert x is not None
    assert y is not None
    expression = TWO[type(node.op)]
    return launches_of(
        map_two(
            profile, node.op, expression, argument(DST, node), node.type, argument(0, x), x.type, argument(1, y), y.type
        )
    )


def glu(profile: Profile, node: Tensor) -> Launches | Decline:
    """Gated units: x and the gate are two tensors, or the halves of one."""
    refused = refuse(node, FLOATS, FLOATS, FLOATS)
    if refused is not None:
        return refused
    x, gate = node.src
    assert isinstance(node.op, ops.Glu)
    assert x is not None
    left = argument_of(0, x.type, node.ne, x.nb)
    if gate is not None:
        right = argument(1, gate)
    else:
        right = left._replace(delta=node.ne[0] * x.type.block_bytes)
        if node.op.swapped:
            left, right = right, left
    kind = x.type
    return launches_of(
        map_two(profile, node.op, TWO[type(node.op)], argument(DST, node), node.type, left, x.type, right, kind)
    )


CHOOSERS = {
    **dict.fromkeys(ONE, unary),
    **{op: glu if issubclass(op, ops.Glu) else binary for op in TWO},
}
