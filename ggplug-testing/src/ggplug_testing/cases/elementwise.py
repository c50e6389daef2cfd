"""Cases of ops that work element by element: functions of one number, arithmetic of two, gated linear units."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ggplug.ops.base import Array, Op
from ggplug.ops.elementwise import Add, Div, Mul, Sub
from ggplug.ops.glu import Geglu, GegluErf, GegluQuick, Reglu, Swiglu, SwigluOai
from ggplug.ops.gradients import SiluBack
from ggplug.ops.unary import Cos, Sin
from ggplug.sketches import parameters_of
from ggplug.types import BF16, F16, F32, KERNEL_FLOATS
from ggplug_testing.cases.case import (
    ENCODED,
    LAYOUTS,
    LENGTHS,
    ROWWISE,
    Case,
    Leafs,
    generates,
    node,
    spell,
)

_RANGES: dict[str, tuple[float, float]] = {"log": (1e-3, 20.0), "sqrt": (0.0, 20.0)}
"""Where a function is defined, if that is not everywhere."""

SPECIAL = np.array(
    [
        0.0,
        -0.0,
        0.5,
        -0.5,
        1.5,
        -1.5,
        2.5,
        -2.5,
        1e-30,
        -1e-30,
        3.4e-4,
        20.0,
        -20.0,
        88.0,
        -88.0,
        110.0,
        -110.0,
        1e4,
        -1e4,
    ]
)
"""Zeros, halves (for rounding), tiny and huge numbers, both sides of where float32's exp overflows and vanishes."""


ANGLES = np.array([-4e-28, 1e-3, 0.25, 1.0, 3.1415927, 314.15927, 51471.85, 1e5, 1e10])
"""From tiny to billions of turns: how one of them is reduced must not depend on those beside it."""


def _special(random: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return random.choice(SPECIAL, shape)


def _angles(random: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return random.choice(ANGLES, shape)


def unary_cases(cls: type[Op]) -> Iterator[Case]:
    """For every function of one number: lengths, types, layouts, special values."""
    low, high = _RANGES.get(cls.name, (-6.0, 6.0))

    def case(label: str, type: Any, ne: tuple[int, ...], parameters: dict[str, Any], **leaf: Any) -> Case:
        leaf = {"low": low, "high": high} | leaf
        return Case(cls.name, label, lambda leafs: node(cls, leafs.tensor(type, *ne, **leaf), **parameters))

    for parameters in parameters_of(cls):
        with_what = "".join(f" {name}={value}" for name, value in parameters.items())
        for length in LENGTHS:
            yield case(spell(F32, (length,)) + with_what, F32, (length,), parameters)
        for type in KERNEL_FLOATS:
            for layout in ROWWISE:
                shape = (37, 5, 3, 2)
                yield case(spell(type, shape, layout) + with_what, type, shape, parameters, layout=layout)
        yield case(f"special values{with_what}", F32, (64, 3), parameters, values=_clip(_special, cls))
        if cls in (Sin, Cos):
            yield case("tiny beside huge angles", F32, (48, 3), parameters, values=_angles)
        yield case(f"column of one element{with_what}", F32, (1, 9, 2), parameters, layout="transposed")
        yield case(f"many rows{with_what}", F32, (3, 700), parameters)


def _clip(values: Any, cls: type[Op]) -> Any:
    if cls.name not in _RANGES:
        return values
    return lambda random, shape: np.abs(values(random, shape)) + 1e-3


BROADCASTS = (
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


@generates(Add, Sub, Mul, Div, SiluBack)
def binary_cases(cls: type[Op]) -> Iterator[Case]:
    """Arithmetic: lengths, broadcasts, layouts of each side, mixed types, a tensor with itself."""
    divides = cls is Div

    def case(label: str, types: Any, nes: Any, layouts: Any = ("packed", "packed")) -> Case:
        def make(leafs: Leafs) -> Any:
            a = leafs.tensor(types[0], *nes[0], layout=layouts[0])
            # Away from zero where it divides: a quotient by almost nothing would hide every other error.
            low, high = (0.5, 2.0) if divides else (None, None)
            return node(cls, a, leafs.tensor(types[1], *nes[1], layout=layouts[1], low=low, high=high))

        return Case(cls.name, label, make)

    for length in LENGTHS:
        yield case(f"{spell(F32, (length, 2))} rows", (F32, F32), ((length, 2), (length, 2)))
    for a, b in BROADCASTS:
        yield case(f"{spell(F32, a)} with {spell(F32, b)}", (F32, F32), (a, b))
    ne = (24, 5, 3, 2)
    for types in ((F32, F32), (F16, F16), (BF16, BF16), (F16, F32), (BF16, F32), (F32, F16)):
        yield case(f"{types[0].name} with {types[1].name}", types, (ne, ne))
        yield case(f"{types[0].name} with a row of {types[1].name}", types, (ne, (24,)))
    for layout in LAYOUTS[1:]:
        yield case(f"a {layout}", (F32, F32), (ne, ne), (layout, "packed"))
        yield case(f"b {layout}", (F32, F32), (ne, ne), ("packed", layout))
        yield case(f"a {layout}, b broadcast {layout}", (F32, F32), (ne, (24, 1, 3)), (layout, layout))
        yield case(f"f16, both {layout}", (F16, F16), (ne, ne), (layout, layout))
    for type in () if cls is SiluBack else ENCODED:
        n = 3 * type.block_size
        yield case(f"{type.name} with f32", (type, F32), ((n, 5), (n, 5)))
        for b in ((n // 3, 5), (n // 2, 1), (3, 5), (1, 5)):
            yield case(f"{type.name} with {spell(F32, b)}", (type, F32), ((n, 5), b))
    yield Case(cls.name, "with itself", lambda leafs: _twice(cls, leafs))


def _twice(cls: type[Op], leafs: Leafs) -> Any:
    x = leafs.tensor(F32, 33, 4, low=0.5, high=2)
    return node(cls, x, x)


@generates(Reglu, Geglu, GegluErf, GegluQuick, Swiglu, SwigluOai)
def glu_cases(cls: type[Op]) -> Iterator[Case]:
    """Gated linear units: halves of one tensor, either way round, and two tensors."""

    def one(label: str, type: Any, ne: tuple[int, ...], layout: Any, **parameters: Any) -> Case:
        return Case(cls.name, label, lambda leafs: node(cls, leafs.tensor(type, *ne, layout=layout), **parameters))

    def two(label: str, type: Any, ne: tuple[int, ...], layout: Any, **parameters: Any) -> Case:
        def make(leafs: Leafs) -> Any:
            x, gate = leafs.tensor(type, *ne, layout=layout), leafs.tensor(type, *ne, layout=layout)
            return node(cls, x, gate, **parameters)

        return Case(cls.name, label, make)

    for parameters in parameters_of(cls):
        with_what = "".join(f" {name}={value}" for name, value in parameters.items())
        for length in LENGTHS[1:]:
            yield one(f"halves of {spell(F32, (length, 3))}{with_what}", F32, (length, 3), "packed", **parameters)
            yield two(f"two {spell(F32, (length, 2))}{with_what}", F32, (length, 2), "packed", **parameters)
        for type in KERNEL_FLOATS:
            for layout in ("packed", "offset", "rows apart"):
                ne = (46, 6)
                label = spell(type, ne, layout) + with_what
                yield one(f"halves of {label}", type, ne, layout, **parameters)
                yield one(f"halves of {label} swapped", type, ne, layout, swapped=True, **parameters)
                yield two(f"two {label}", type, ne, layout, **parameters)
