"""How far sums are off, from which the rooms of many ops are made."""

from __future__ import annotations

import math

import numpy as np

from ggplug.ops.base import Array
from ggplug_testing.precision.rule import LARGEST, SUMMED


def added(x: Array) -> Array:
    """The roundings of adding up rows, [..., 1]; infinite where a sum may overflow on the way."""
    total = np.abs(np.sum(x, axis=-1, keepdims=True))
    size = np.maximum(total, 2 * np.sqrt(np.sum(x * x, axis=-1, keepdims=True)))
    return np.where(overflows(np.sum(np.abs(x), axis=-1, keepdims=True)), np.inf, summed(x) * size)


def overflows(magnitudes: Array) -> Array:
    """Where the magnitudes of a sum's terms come to more than float32 holds, and none of them is infinite itself."""
    return np.isfinite(magnitudes) & (magnitudes > LARGEST)


def summed(x: Array) -> float:
    """``SUMMED sqrt(n)`` for rows of n."""
    return SUMMED * math.sqrt(max(1, x.shape[-1]))
