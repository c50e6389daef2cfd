"""What a rule is, and the tolerances that are exact, or a number of roundings of the result."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ggplug.ops.base import Array
from ggplug.tensor import Tensor

UNIT = 2.0**-24
"""The largest error of rounding to float32, relative to what is rounded."""

FLUSHED = 2.0**-126
"""Numbers that are smaller than this one may become zero where something is computed, and not only moved."""

LARGEST = float(np.finfo(np.float32).max)
"""A sum whose terms come to more than this may overflow on the way, in an order that a device may add them up in."""

DEVIATIONS = 6.0
"""How many standard deviations a single sum may be off: one of a thousand million sums is further off."""

SUMMED = DEVIATIONS / math.sqrt(3)
"""The roundings of n additions come to at most ``SUMMED sqrt(n)`` roundings of their size."""

Node = Any
"""A tensor, whose op has the parameters of its class."""

Tolerance = Callable[..., Array]
"""``(node, exact, *sources) -> distances in UNITs``, of arrays as references have them."""


class Rule(NamedTuple):
    """How far elements may be off.

    ``kind``: the kind of op.  ``bound``: the distance in words, x, y, a, b the sources' elements, f(x) the result's.
    ``why``: what is rounded.  ``tolerance``: the same as a function.  ``spread``: whether it is DEVIATIONS standard
    deviations, so that means of many elements are held to less.
    """

    kind: str
    bound: str
    why: str
    tolerance: Tolerance
    spread: bool = False


def none(node: Tensor, exact: Array, *sources: Array | None) -> Array:
    return np.zeros_like(exact)


def flushed(node: Tensor, exact: Array, *sources: Array | None) -> Array:
    return np.where((np.abs(exact) < FLUSHED) & (exact != 0), FLUSHED / UNIT, 0)


def once(node: Tensor, exact: Array, *sources: Array | None) -> Array:
    rounded = exact.astype(np.float32).astype(np.float64)
    off = np.where(np.isfinite(rounded), np.abs(rounded - exact), 0) / UNIT
    return np.maximum(off, flushed(node, exact))


def element(bound: str, why: str, tolerance: Tolerance) -> Rule:
    return Rule("one by one", bound, why, tolerance)


def nearest(why: str) -> Rule:
    return element("abs(y - float32(y))", why, once)


def of_result(roundings: int, why: str) -> Rule:
    return element(f"{roundings} abs(y)", why, lambda node, exact, *sources: roundings * np.abs(exact))


def of_magnitudes(bound: str, why: str, count: Callable[..., float]) -> Rule:
    """So many roundings, from the sources, of what the op makes of their magnitudes."""

    def tolerance(node: Node, exact: Array, *sources: Array) -> Array:
        return np.asarray(count(*sources) * np.asarray(node.op.reference(*map(np.abs, sources))))

    return element(bound, why, tolerance)


def row(bound: str, why: str, tolerance: Tolerance) -> Rule:
    return Rule("sums", bound, why, tolerance, spread=True)


MOVES = Rule(
    "moves", "0", "nothing: numbers of one type keep their bits, others become the nearest of the new type", none
)

EXACT = Rule("exact", "0", "nothing: float32 holds the result", flushed)

CHOSEN = Rule("chooses", "0", "nothing: numbers are only compared", none)
