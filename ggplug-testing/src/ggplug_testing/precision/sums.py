"""The rounding errors of sums, and of sources of products, from which the tolerances of many ops follow."""

from __future__ import annotations

import math

import numpy as np

from ggplug.ops.base import Array
from ggplug.types import BF16, F16, Type
from ggplug_testing.precision.rule import DEVIATIONS, LARGEST, SUMMED


def added(x: Array) -> Array:
    """The rounding error of the sums of rows, [..., 1]; infinite where a partial sum may overflow."""
    total, squares = (np.sum(each, axis=-1, keepdims=True) for each in (x, x * x))
    tolerance = roundings(max(1, x.shape[-1]), total, squares)
    return np.where(overflows(np.sum(np.abs(x), axis=-1, keepdims=True)), np.inf, tolerance)


def roundings(count: Array | int, total: Array, squares: Array, *, products: bool = False) -> Array:
    """The rounding error of adding up ``count`` terms with this sum and this sum of squares.

    ``products``: the terms are products, which are rounded themselves.

    Where all terms are equal (Cauchy and Schwarz's inequality is then an equation), roundings are not
    independent: a device that adds one term after the other may round each time the same way.
    """
    total = np.abs(total)
    independent = SUMMED * np.sqrt(count + products) * np.maximum(total, 2 * np.sqrt(squares))
    equal = total * total >= (1 - 1e-6) * count * squares
    return np.asarray(np.where(equal, np.maximum(independent, DEVIATIONS / 2 * count * total), independent))


def overflows(magnitudes: Array) -> Array:
    """Where the magnitudes of a sum's terms come to more than float32 holds, and none of them is infinite itself."""
    return np.isfinite(magnitudes) & (magnitudes > LARGEST)


def summed(x: Array) -> float:
    """``SUMMED sqrt(n)`` for rows of n."""
    return SUMMED * math.sqrt(max(1, x.shape[-1]))


COARSE: dict[Type, float] = {F16: 2.0**-10, BF16: 2.0**-8}
"""The largest error of rounding to BF16, and of cutting off what F16 lacks, relative to the number."""


def block_steps(values: Array, length: int) -> Array:
    """For each number the step of eight bits: a 127th of the largest number of its block."""
    blocks = values.reshape(-1, length)
    steps = np.abs(blocks).max(axis=-1, keepdims=True, initial=0) / 127
    return np.broadcast_to(steps, blocks.shape).reshape(values.shape)
