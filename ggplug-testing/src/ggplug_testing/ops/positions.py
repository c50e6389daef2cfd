"""Ops that move elements, keep some of them, write a window, or make elements from their position."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from ggplug import ops
from ggplug.ops.base import Array, Op
from ggplug.ops.triangles import Banded
from ggplug.ops.windows import Window
from ggplug.types import F32, I32, KERNEL_FLOATS, Q8_0, Type
from ggplug_testing.cases.case import LAYOUTS, LENGTHS, Case, Layout
from ggplug_testing.cases.making import case, laid, leaf, made, spell
from ggplug_testing.description import describe
from ggplug_testing.drawing import ADDED_UP, ANY, ANYTHING, CONTIGUOUS, EVERY, Draw, Drawn
from ggplug_testing.precision.rule import MOVES, Node, element, of_result

_TYPES = (*KERNEL_FLOATS, I32)


# -- moved -----------------------------------------------------------------------------------------

_PADDINGS: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "behind a row": ((0, 0, 0, 0), (5, 0, 0, 0)),
    "before a row": ((3, 0, 0, 0), (0, 0, 0, 0)),
    "around all": ((1, 2, 0, 3), (2, 1, 1, 0)),
    "nothing": ((0, 0, 0, 0), (0, 0, 0, 0)),
    "more than there is": ((20, 7, 0, 0), (0, 12, 0, 0)),
}


def pad_cases(op: type[Op]) -> Iterator[Case]:
    """Zeros and what lies on the other side, on each side of each dimension; types and layouts."""
    x = leaf(F32, (13, 5, 2, 2))
    for circular in (False, True):
        for what, (before, after) in _PADDINGS.items():
            label = f"{what}{', circular' if circular else ''}"
            yield case(op, label, x, before=before, after=after, circular=circular)
        what = " circular" if circular else ""
        sides: dict[str, Any] = {"before": (1, 0, 2, 0), "after": (4, 3, 0, 0), "circular": circular}
        yield from laid(op, (11, 4, 3), _TYPES, what=what, **sides)


def pad_reflect_cases(op: type[Op]) -> Iterator[Case]:
    """Both sides, one, none; row lengths, types, layouts."""
    for length in LENGTHS[1:]:
        yield case(op, f"rows of {length}", leaf(F32, (length, 3)), p0=min(4, length - 1), p1=length // 2)
    yield from laid(op, (19, 3, 2), _TYPES, p0=18, p1=1)
    yield case(op, "nothing", leaf(F32, (9, 2)), p0=0, p1=0)


def roll_cases(op: type[Op]) -> Iterator[Case]:
    """Shifts of either sign along each dimension, types, layouts."""
    for dim in range(4):
        for shift in (1, -2):
            shifts = tuple(shift if i == dim else 0 for i in range(4))
            yield case(op, f"by {shift} along {dim}", leaf(F32, (17, 4, 3, 5)), shifts=shifts)
    yield case(op, "by more than there is", leaf(F32, (7, 3)), shifts=(-16, 10, 1, 0))
    yield from laid(op, (33, 4, 3, 2), _TYPES, shifts=(5, -1, 2, 1))


def diag_cases(op: type[Op]) -> Iterator[Case]:
    """Lengths, types, layouts."""
    for length in (1, 2, 16, 33, 129):
        yield case(op, spell(F32, (length,)), leaf(F32, (length,)))
    yield from laid(op, (21, 1, 3, 2))


def band_cases(op: type[Op]) -> Iterator[Case]:
    """Each triangle of square matrices (``tri``); masks of square and other matrices, by ``n_past``; types, layouts."""
    kinds: list[dict[str, Any]]
    if op is ops.Tri:
        kinds, shapes = [{"type": kind} for kind in range(4)], [(n, n) for n in (1, 2, 16, 33, 129)]
    else:
        kinds = [{"n_past": n} for n in (0, 5, 100)]
        shapes = [(1, 1), (7, 16), (33, 5), (64, 64), (129, 3)]
    for kind in kinds:
        what = "".join(f" {name} {value}" for name, value in kind.items())
        for shape in shapes:
            yield case(op, f"{spell(F32, shape)}{what}", leaf(F32, shape), **kind)
    yield from laid(op, (17, 17, 3, 2), **kinds[1])


describe(ops.Pad, cases=[pad_cases], rule=MOVES)
describe(ops.PadReflect1d, cases=[pad_reflect_cases], rule=MOVES)
describe(ops.Roll, cases=[roll_cases], rule=MOVES)
describe(ops.Diag, cases=[diag_cases], rule=MOVES)
describe(Banded, cases=[band_cases])
describe(ops.Tri, ops.DiagMaskInf, ops.DiagMaskZero, rule=MOVES)


# -- windows ---------------------------------------------------------------------------------------


def window_cases(op: type[Op]) -> Iterator[Case]:
    """Windows of every rank, of rows apart and of everything, into leafs and into results; types and layouts of b."""

    def into(
        label: str,
        a: tuple[int, ...],
        b: tuple[int, ...],
        strides: tuple[int, ...],
        offset: int = 0,
        *,
        type: Type = F32,
        layout: Layout = "packed",
        computed: bool = False,
    ) -> Case:
        target = made(ops.Dup, leaf(type, a)) if computed else leaf(type, a)
        return case(op, label, target, leaf(type, b, layout), strides=strides, offset=offset)

    whole = (12, 60, 240)
    for length in (1, 7, 12):
        yield into(f"{length} of a row", (12, 5, 4), (length,), whole, 12 * 7 + 12 - length)
    yield into("a part of rows", (12, 5, 4, 3), (6, 5, 4, 3), whole, 3)
    yield into("a part of everything", (12, 5, 4, 3), (7, 3, 2, 2), whole, 5 + 12 + 60)
    yield into("everything", (12, 5, 4, 3), (12, 5, 4, 3), whole)
    yield into("rows that are columns", (12, 5), (5, 2), (30, 60, 60), 0)
    yield into("into a result", (12, 5, 4), (6, 5, 2), whole, 6, computed=True)
    for type in KERNEL_FLOATS if op is ops.Acc else (*KERNEL_FLOATS, I32, Q8_0):
        for layout in LAYOUTS if type is not Q8_0 else LAYOUTS[:5]:
            label, strides = f"{type.name}, b {layout}", (96, 480, 1440)
            yield into(label, (96, 5, 3), (32, 3, 2), strides, 32 + 96, type=type, layout=layout)
    yield into("many rows", (33, 700), (30, 600), (33, 33, 33), 2)
    first = made(op, leaf(F32, (32, 6)), leaf(F32, (20, 4)), strides=(32, 32, 32), offset=4)
    yield case(op, "twice, one after the other", first, leaf(F32, (20, 4)), strides=(32, 32, 32), offset=40)


def _draw_window(c: Draw, op: type[Op]) -> Drawn:
    """A window of a at any place in it."""
    kind = c.type(c.target[0], EVERY if op is ops.Set else KERNEL_FLOATS)
    ne = c.shape(kind)
    unit = (kind.block_size, 1, 1, 1)
    inner = [max(0, n - c.pick(f"less{i}", (0, 1, 2)) * unit[i]) for i, n in enumerate(ne)]
    strides = (ne[0], ne[0] * ne[1], ne[0] * ne[1] * ne[2])
    first = [c.pick(f"first{i}", (0, 1)) * (n - m) for i, (n, m) in enumerate(zip(ne, inner, strict=True))]
    offset = sum(start * stride for start, stride in zip(first, (1, *strides), strict=True))
    if 0 in ne or 0 in inner:
        c.promised = False
    values = ANYTHING if op is ops.Set else ADDED_UP
    a, b = c.source("a", kind, ne, CONTIGUOUS, values), c.source("b", kind, inner, ANY, values)
    return Drawn([a, b], {"strides": strides, "offset": offset})


describe(Window, cases=[window_cases], draw=_draw_window)
describe(ops.Set, rule=MOVES)
describe(ops.Acc, rule=of_result(1, "the sum"))


# -- made from positions ---------------------------------------------------------------------------


def arange_cases(op: type[Op]) -> Iterator[Case]:
    """Lengths, steps that are no whole numbers, ranges that begin below zero."""
    ranges = [(0.0, float(length), 1.0) for length in (*LENGTHS, 9000)]
    for start, stop, step in (*ranges, (-5.0, 5.0, 0.25), (0.5, 100.0, 3.0), (-1.0, -0.5, 2.0)):
        yield case(op, f"{start} to {stop} by {step}", start=start, stop=stop, step=step)


describe(
    ops.Arange,
    cases=[arange_cases],
    rule=element(
        "4 (abs(y) + abs(start))",
        "start, step, their product with i, the sum",
        lambda node, exact: 4 * (np.abs(exact) + abs(node.op.start)),
    ),
)


def timestep_cases(op: type[Op]) -> Iterator[Case]:
    """Even and odd lengths, periods, time steps that are no whole numbers, and many of them."""
    for dim in (1, 2, 3, 32, 65, 320):
        yield case(op, f"rows of {dim}", leaf(F32, (3,), low=0, high=100.0), dim=dim)
    yield case(op, "another period", leaf(F32, (5,), low=0, high=10.0), dim=64, max_period=100)
    yield case(op, "many time steps", leaf(F32, (300,), low=0, high=1.0), dim=16)


def _timestep_embedding(node: Node, exact: Array, x: Array) -> Array:
    half = node.op.dim // 2
    around = (12 + 4 * math.log(node.op.max_period)) * np.abs(x.reshape(-1, 1) * node.op.frequencies)
    tolerance = np.zeros(exact.shape)
    tolerance[..., :half] = tolerance[..., half : 2 * half] = around
    return tolerance + 8


describe(
    ops.TimestepEmbedding,
    cases=[timestep_cases],
    rule=element(
        "8 + (12 + 4 ln(max_period)) abs(angle)",
        "the frequency's logarithm and power, the angle, its sine or cosine",
        _timestep_embedding,
    ),
)
