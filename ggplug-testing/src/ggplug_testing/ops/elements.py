"""Ops that work element by element: functions of one number, arithmetic of two, gated linear units."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from ggplug import ops
from ggplug.ops.base import Array, Op
from ggplug.ops.elementwise import tile
from ggplug.sketches import parameters_of
from ggplug.tensor import Tensor
from ggplug.types import BF16, F16, F32, FLOATS, KERNEL_FLOATS, Type
from ggplug_testing.cases.case import ENCODED, LAYOUTS, LENGTHS, ROWWISE, Case, Leafs, node
from ggplug_testing.cases.making import Make, array, case, laid, leaf, made, named, spell
from ggplug_testing.cases.special import LONG, NUMBERS
from ggplug_testing.description import CaseOf, describe
from ggplug_testing.drawing import ANY, ANYTHING, BATCHES, CONTIGUOUS, FEW, NOT_WHOLE, ROWS, Draw, Drawn, of_one
from ggplug_testing.drawing.draw import NUMBERS as PARAMETERS
from ggplug_testing.drawing.draw import sketched
from ggplug_testing.precision.rule import EXACT, FLUSHED, UNIT, Node, Rule, element, flushed, nearest, of_result


def _labelled(op: type[Op]) -> Iterator[tuple[dict[str, Any], str]]:
    """The parameters to try an op with, each with what it adds to a label."""
    for parameters in parameters_of(op):
        yield parameters, f" {named(parameters)}".rstrip()


def _near_ties(type: Type) -> Array:
    """1, 1 and a step, 1 and two steps: sums, products and squares of these lie halfway between two numbers."""
    return 1 + np.arange(40) * {F16: 2.0**-10, BF16: 2.0**-7}.get(type, 2.0**-23)


# -- functions of one number -----------------------------------------------------------------------

_EDGES = np.concatenate(
    [
        [0.0, -0.0, 0.5, -0.5, 1.5, -1.5, 2.5, -2.5, 1e-30, -1e-30, 3.4e-4],
        [20.0, -20.0, 88.0, -88.0, 110.0, -110.0, 1e4, -1e4],
    ]
)
"""Zeros, halves (for rounding), tiny and huge numbers, both sides of where float32's exp overflows and vanishes."""

_ANGLES = np.array([-4e-28, 1e-3, 0.25, 1.0, 3.1415927, 314.15927, 51471.85, 1e5, 1e10])
"""From tiny to billions of full circles: how an angle is reduced must not depend on those next to it."""


def unary_cases(op: type[Op], low: float = -6.0, high: float = 6.0) -> Iterator[Case]:
    """For every function of one number: lengths, types, layouts, special values; of ``low`` to ``high``."""
    within = {"low": low, "high": high}

    def edges(random: np.random.Generator, shape: tuple[int, ...]) -> Array:
        drawn = random.choice(_EDGES, shape)
        return np.abs(drawn) + 1e-3 if low >= 0 else drawn

    for parameters, shown in _labelled(op):

        def x(*ne: int, **how: Any) -> Make:
            return leaf(F32, ne, **{**within, **how})

        for length in LENGTHS:
            yield case(op, spell(F32, (length,)) + shown, x(length), **parameters)
        yield from laid(op, (37, 5, 3, 2), layouts=ROWWISE, what=shown, values=within, **parameters)
        yield case(op, f"special values{shown}", x(64, 3, values=edges), **parameters)
        if op in (ops.Sin, ops.Cos):
            angles = x(48, 3, values=lambda random, shape: random.choice(_ANGLES, shape))
            yield case(op, "tiny and huge angles", angles, **parameters)
        yield case(op, f"column of one element{shown}", x(1, 9, 2, layout="transposed"), **parameters)
        yield case(op, f"many rows{shown}", x(3, 700), **parameters)


def _unary_special(op: type[Op], case: CaseOf) -> Iterator[Case]:
    for parameters, shown in _labelled(op):
        for type in KERNEL_FLOATS:
            values = np.resize(NUMBERS, (4, LONG))
            values[3] = _near_ties(type)[:LONG]
            what = f"{type.name}, NaN, infinities, zeros, near ties of rounding{shown}"
            yield case(what, made(op, array(type, values), **parameters))


def _draw_unary(c: Draw, op: type[Op]) -> Drawn:
    return of_one(FLOATS, ROWS, ANYTHING, **dict.fromkeys(op.parameters, PARAMETERS))(c, op)


# Larger slopes would show nothing but the rounding of e**x - 1 - x.
_draw_xielu = of_one(
    FLOATS,
    ROWS,
    ("normal", "ties", "constant", "hundreds", "NaN"),
    **dict.fromkeys(ops.Xielu.parameters, (1.0, 0.0, -1.0, 0.5, 3.0)),
)


def _draw_clamp(c: Draw, op: type[Op]) -> Drawn:
    drawn = _draw_unary(c, op)
    c.promised &= drawn.parameters["min"] <= drawn.parameters["max"]
    return drawn


def _hardsigmoid(node: Tensor, exact: Array, x: Array) -> Array:
    return 8 * (np.minimum(np.abs(x), 3) + 3) / 6


def _hardswish(node: Tensor, exact: Array, x: Array) -> Array:
    return np.where(np.abs(x) < 3.001, np.abs(x) * _hardsigmoid(node, exact, x), 0) + np.abs(exact)


def _xielu(node: Node, exact: Array, x: Array) -> Array:
    positive = 5 * np.abs(node.op.alpha_p * x * x)
    negative = 12 * abs(node.op.alpha_n) * (np.abs(np.expm1(np.minimum(x, node.op.eps))) + np.abs(x))
    return np.asarray(np.where(x > 0, positive, negative) + 5 * np.abs(node.op.beta * x))


def _overflow(x: Array) -> Array:
    """Of x / (1 + e**-x): the power overflows float32 where the quotient with 1 is below what may be flushed."""
    return np.where(np.isfinite(x), np.abs(x), 0) * (FLUSHED / UNIT)


_ACTIVATIONS: dict[Any, tuple[str, str, Callable[[Array, Array], Array]]] = {
    ops.Silu: (
        "14 abs(y) + 2**-102 abs(x)",
        "the power, which may overflow, the sum, the quotient, a product",
        lambda x, y: 14 * np.abs(y) + _overflow(x),
    ),
    ops.Gelu: (
        "8 abs(x) + abs(y)",
        "the argument and tanh, of at most 1, the sum 1 + tanh, products",
        lambda x, y: 8 * np.abs(x) + np.abs(y),
    ),
    ops.GeluErf: (
        "18 abs(x) + abs(y)",
        "the argument and erf, of at most 1, the sum 1 + erf, products",
        lambda x, y: 18 * np.abs(x) + np.abs(y),
    ),
    ops.GeluQuick: (
        "(14 + 4 abs(x)) abs(y) + 2**-102 abs(x)",
        "as silu, and 1.702 x, whose error becomes a factor of the power",
        lambda x, y: (14 + 4 * np.abs(x)) * np.abs(y) + _overflow(x),
    ),
}
"""The rules of activations, from x and y = f(x); gated units have these tolerances, too."""


describe(ops.Unary, cases=[unary_cases], special=[_unary_special], draw=_draw_unary)
describe(ops.Abs, ops.Sgn, ops.Neg, ops.Step, ops.Relu, rule=EXACT, signs=True)
describe(ops.Floor, ops.Ceil, ops.Round, ops.Trunc, rule=EXACT, signs=True)
describe(ops.Clamp, draw=_draw_clamp, rule=nearest("a limit"), signs=True)
describe(ops.Fill, rule=of_result(1, "the number"))
describe(ops.Sqr, rule=nearest("the product, to the nearest"), signs=True)
describe(ops.Sqrt, cases=[partial(unary_cases, low=0.0, high=20.0)], rule=of_result(6, "the root, within 3 units"))
describe(ops.Exp, rule=of_result(6, "the power, within 3 units"))
describe(ops.Expm1, rule=of_result(6, "the power less 1, within 3 units"))
describe(ops.Log, cases=[partial(unary_cases, low=1e-3, high=20.0)], rule=of_result(6, "the logarithm, within 3 units"))
describe(ops.Sin, rule=of_result(8, "the sine, within 4 units"))
describe(ops.Cos, rule=of_result(8, "the cosine, within 4 units"))
describe(ops.Tanh, rule=of_result(10, "the function, within 5 units"))
describe(
    ops.Scale,
    signs=True,
    rule=element(
        "3 (abs(s x) + abs(bias))",
        "s, bias, their product with x, the sum",
        lambda node, exact, x: 3 * (np.abs(node.op.s * x) + abs(node.op.bias)),
    ),
)
describe(ops.LeakyRelu, rule=of_result(2, "the slope, the product"), signs=True)
describe(ops.Elu, rule=of_result(6, "the power less 1, within 3 units"))
describe(ops.Sigmoid, rule=of_result(12, "the power, the sum, the quotient"))
describe(
    ops.Softplus,
    rule=element(
        "8 + 6 abs(y)",
        "the power and the sum, of 1 or more; the logarithm",
        lambda node, exact, x: 8 + 6 * np.abs(exact),
    ),
)
describe(
    ops.Hardsigmoid, rule=element("8 (min(abs(x), 3) + 3) / 6", "the sum, the quotient, 1/6", _hardsigmoid), signs=True
)
describe(
    ops.Hardswish,
    rule=element("as hardsigmoid, times abs(x), + abs(y)", "those of hardsigmoid, a product", _hardswish),
    signs=True,
)
describe(
    ops.Xielu,
    draw=_draw_xielu,
    rule=element(
        "5 abs(ap x**2) or 12 abs(an) (abs(e**x - 1) + abs(x)), + 5 abs(beta x)",
        "the parameters, the power less 1, products, differences",
        _xielu,
    ),
)
for _op, (_bound, _why, _off) in _ACTIVATIONS.items():
    describe(_op, rule=element(_bound, _why, lambda node, exact, x, off=_off: off(x, exact)))


# -- arithmetic of two -----------------------------------------------------------------------------

_BROADCASTS = (
    ((16, 5, 4, 3), (16, 5, 4, 3)),
    ((16, 5, 4, 3), (16, 1, 1, 1)),
    ((16, 5, 4, 3), (1, 1, 1, 1)),
    ((16, 5, 4, 3), (1, 5, 1, 3)),
    ((16, 5, 4, 3), (16, 5, 2, 1)),
    ((16, 6, 4, 2), (8, 3, 2, 2)),
    ((33, 7), (33, 1)),
    ((33, 7), (11, 7)),
)
"""ne of a and of b, which repeats to a's shape."""


def binary_cases(op: type[Op]) -> Iterator[Case]:
    """Arithmetic: lengths, broadcasts, layouts of each side, mixed types, a tensor with itself."""
    # Away from zero where it divides: a quotient by almost nothing would hide every other error.
    low, high = (0.5, 2.0) if op is ops.Div else (None, None)

    def pair(label: str, types: Any, a: Any, b: Any, layouts: Any = ("packed", "packed")) -> Case:
        return case(op, label, leaf(types[0], a, layouts[0]), leaf(types[1], b, layouts[1], low=low, high=high))

    both = (F32, F32)
    for length in LENGTHS:
        yield pair(f"{spell(F32, (length, 2))} rows", both, (length, 2), (length, 2))
    for a, b in _BROADCASTS:
        yield pair(f"{spell(F32, a)} with {spell(F32, b)}", both, a, b)
    ne = (24, 5, 3, 2)
    for types in (both, (F16, F16), (BF16, BF16), (F16, F32), (BF16, F32), (F32, F16)):
        yield pair(f"{types[0].name} with {types[1].name}", types, ne, ne)
        yield pair(f"{types[0].name} with a row of {types[1].name}", types, ne, (24,))
    for layout in LAYOUTS[1:]:
        yield pair(f"a {layout}", both, ne, ne, (layout, "packed"))
        yield pair(f"b {layout}", both, ne, ne, ("packed", layout))
        yield pair(f"a {layout}, b broadcast {layout}", both, ne, (24, 1, 3), (layout, layout))
        yield pair(f"f16, both {layout}", (F16, F16), ne, ne, (layout, layout))
    for type in () if op is ops.SiluBack else ENCODED:
        n = 3 * type.block_size
        yield pair(f"{type.name} with f32", (type, F32), (n, 5), (n, 5))
        for b in ((n // 3, 5), (n // 2, 1), (3, 5), (1, 5)):
            yield pair(f"{type.name} with {spell(F32, b)}", (type, F32), (n, 5), b)
    yield pair("many rows, more than a MiB", both, (70, 4001), (70, 4001))
    yield Case(op.name, "with itself", lambda leafs: _twice(op, leafs))
    yield Case(op.name, "with itself transposed", lambda leafs: _twice(op, leafs, transposed=True))


def _twice(op: type[Op], leafs: Leafs, *, transposed: bool = False) -> Any:
    """A tensor with itself, or with a view of the same bytes and extents, but other strides."""
    x = leafs.tensor(F32, 33, 33 if transposed else 4, low=0.5, high=2)
    return node(op, x, node(ops.Transpose, x) if transposed else x)


def _pairs(numbers: Array) -> tuple[Array, Array]:
    """Each number with each."""
    a, b = np.meshgrid(numbers, numbers)
    return a.reshape(-1), b.reshape(-1)


def _binary_special(op: type[Op], case: CaseOf) -> Iterator[Case]:
    a, b = _pairs(NUMBERS)
    for type in KERNEL_FLOATS:
        yield case(f"{type.name}, NaN, infinities, zeros", made(op, array(type, a), array(type, b)))
        near = np.tile(_near_ties(type), (4, 1))
        half = near[0, 1] / 2 - 0.5
        other = np.array([half, -half, 1.5, 3 * half])[:, np.newaxis]
        yield case(f"{type.name}, ties of rounding", made(op, array(type, near), array(type, other)))
    yield case("broadcast", made(op, array(F32, a.reshape(15, 15)), array(F32, NUMBERS[:, np.newaxis])))


def _draw_binary(c: Draw, op: type[Op]) -> Drawn:
    if c.aims_at("b"):
        b = c.type("b", FLOATS)
        # What b may be depends on a: floats mix, a block type goes with itself.
        a = c.type("a", NOT_WHOLE if b in FLOATS else (b, *FLOATS))
    else:
        a = c.type("a", NOT_WHOLE)
        b = c.type("b", FLOATS)
    n = [c.row("n0", a, b), c.extent("n1"), c.extent("n2", FEW), c.extent("n3", BATCHES)]
    ne_a = [m * c.pick(f"repeat{i}", (1, 2, 3), (6, 1, 1)) for i, m in enumerate(n)]
    single = c.pick("b.single", (0, 1, 2, 4, 8, 14, 15), (8, 1, 1, 1, 1, 1, 1))
    ne_b = [1 if single >> i & 1 and (i or b.block_size == 1) else m for i, m in enumerate(n)]
    if 0 in ne_b and ne_a != ne_b:
        c.promised = False
    return Drawn([c.source("a", a, ne_a, ANY, ANYTHING), c.source("b", b, ne_b, ANY, ANYTHING)])


def _silu_back(node: Tensor, exact: Array, dy: Array, x: Array) -> Array:
    x = tile(x, dy.shape)
    return np.asarray(16 * np.abs(dy) / (1 + np.exp(-x)) * (2 + np.abs(x)) + np.abs(exact) + np.abs(dy) * _overflow(x))


describe(ops.Binary, cases=[binary_cases], special=[_binary_special], draw=_draw_binary)
describe(ops.Add, rule=nearest("the sum, to the nearest"), signs=True)
describe(ops.Sub, rule=nearest("the difference, to the nearest"), signs=True)
describe(ops.Mul, rule=nearest("the product, to the nearest"), signs=True)
describe(ops.Div, rule=of_result(5, "the quotient, within 2.5 units"), signs=True)
# Its sources have one shape and one type, as its sketches have it.
describe(
    ops.SiluBack,
    draw=sketched,
    rule=element(
        "16 abs(dy) s (2 + abs(x)) + abs(y) + 2**-102 abs(dy x), s = 1 / (1 + e**-x)",
        "s, whose power may overflow, 1 - s, products and a sum",
        _silu_back,
    ),
)


# -- gated linear units ----------------------------------------------------------------------------


def glu_cases(op: type[Op]) -> Iterator[Case]:
    """Gated linear units: both halves of one tensor, in both orders, and two tensors."""
    for parameters, shown in _labelled(op):
        for length in LENGTHS[1:]:
            yield case(op, f"halves of {spell(F32, (length, 3))}{shown}", leaf(F32, (length, 3)), **parameters)
            x = leaf(F32, (length, 2))
            yield case(op, f"two {spell(F32, (length, 2))}{shown}", x, x, **parameters)
        for type in KERNEL_FLOATS:
            for layout in LAYOUTS[:3]:
                label = spell(type, (46, 6), layout) + shown
                x = leaf(type, (46, 6), layout)
                yield case(op, f"halves of {label}", x, **parameters)
                yield case(op, f"halves of {label} swapped", x, swapped=True, **parameters)
                yield case(op, f"two {label}", x, x, **parameters)


def _glu_special(op: type[Op], case: CaseOf) -> Iterator[Case]:
    # Beyond 3 an activation is so small that a gate without limit is multiplied with what rounding left.
    x, gate = _pairs(NUMBERS[np.isnan(NUMBERS) | np.isinf(NUMBERS) | (np.abs(NUMBERS) <= 3)])
    for parameters, shown in _labelled(op):
        yield case(f"pairs{shown}", made(op, array(F32, x), array(F32, gate), **parameters))


def _draw_glu(c: Draw, op: type[Op]) -> Drawn:
    kind = c.type(c.target[0], FLOATS)
    ne = c.shape(kind)
    x = c.source("x", kind, ne, CONTIGUOUS, ANYTHING)
    two = c.optional("gate")
    parameters: dict[str, Any] = {"swapped": c.pick("swapped", (False, True))}
    for name in ("alpha", "limit"):
        if name in op.parameters:
            parameters[name] = c.pick(name, (1.702, 7.0, 0.0, 1.0, 0.1))
    if two and parameters["swapped"]:
        c.promised = False
    return Drawn([x, c.source("gate", kind, ne, CONTIGUOUS, ANYTHING) if two else None], parameters)


def _halves(node: Node, x: Array, gate: Array | None) -> tuple[Array, Array]:
    """What a gated unit activates, and its gate: two sources, or the halves of one."""
    if gate is not None:
        return x, gate
    n = x.shape[-1] // 2
    first, second = x[..., :n], x[..., n : 2 * n]
    return (second, first) if node.op.swapped else (first, second)


def _gated(node: Node, exact: Array, x: Array, gate: Array | None = None) -> Array:
    x, gate = _halves(node, x, gate)
    y = node.op.activation.formula(x)
    off = np.maximum(_ACTIVATIONS[node.op.activation][2](x, y), flushed(node, y))
    return np.asarray(off * np.abs(gate) + 2 * np.abs(exact))


def _clamped(node: Node, exact: Array, x: Array, gate: Array | None = None) -> Array:
    x, gate = _halves(node, x, gate)
    limit = node.op.limit
    return _gated(node, exact, np.minimum(x, limit), np.clip(gate, -limit, limit))


def _swiglu_oai(node: Node, exact: Array, x: Array, gate: Array | None = None) -> Array:
    x, gate = _halves(node, x, gate)
    u = np.minimum(x, node.op.limit)
    opened = 1 + np.minimum(np.abs(gate), node.op.limit)
    opens = np.abs(u / (1 + np.exp(-node.op.alpha * u))) * (18 + 3 * np.abs(node.op.alpha * u)) + _overflow(u)
    return np.asarray(opens * opened)


def _glu(of: str, x: str = "x", g: str = "g", compute: Callable[..., Array] = _gated) -> Rule:
    why = "those of f, which may be flushed below 2**-126, and a product"
    return element(f"{of} of f({x}), times abs({g}), + 2 abs(y)", why, compute)


describe(ops.Glu, cases=[glu_cases], special=[_glu_special], draw=_draw_glu)
describe(ops.Reglu, rule=nearest("the product, to the nearest"), signs=True)
describe(ops.Geglu, rule=_glu("gelu"))
describe(ops.GegluErf, rule=_glu("gelu_erf"))
describe(ops.GegluQuick, rule=_glu("gelu_quick"))
describe(ops.Swiglu, rule=_glu("silu"))
describe(ops.SwigluClamp, rule=_glu("silu", "min(x, limit)", "clip(g, -limit, limit)", _clamped))
describe(
    ops.SwigluOai,
    rule=element(
        "((18 + 3 abs(alpha u)) abs(u / (1 + e**(-alpha u))) + 2**-102 abs(u)) (1 + min(abs(g), limit))",
        "as gelu_quick, the sum with 1, a product",
        _swiglu_oai,
    ),
)
