"""Rooms of convolutions, pools, and whatever else computes in windows."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ggplug.ops.base import Array
from ggplug.ops.interpolation import ScaleMode
from ggplug.ops.pooling import PoolKind
from ggplug.tensor import Tensor
from ggplug_testing.precision.rule import DEVIATIONS, SUMMED


def convolved(node: Tensor, exact: Array, first: Array, second: Array) -> Array:
    op: Any = node.op
    terms = np.asarray(op.reference(first * first, second * second))
    count = np.asarray(op.reference(np.ones_like(first), np.ones_like(second)))
    return np.asarray(DEVIATIONS * np.sqrt((count + 1) / 3 * np.maximum(exact * exact, 4 * terms)))


def gathered(node: Tensor, exact: Array, x: Array, *others: Array) -> Array:
    """Of ops that are sums of elements of x, or of equal parts of them."""
    op: Any = node.op
    count = np.asarray(op.reference(np.ones_like(x), *others))
    return np.asarray((6 + SUMMED * np.sqrt(count)) * np.asarray(op.reference(np.abs(x), *others)))


def pooled(node: Tensor, exact: Array, x: Array) -> Array:
    op: Any = node.op
    if op.kind == PoolKind.MAX:
        return np.zeros_like(exact)
    return (6 + SUMMED * math.sqrt(op.k0 * getattr(op, "k1", 1))) * np.asarray(op.reference(np.abs(x)))


def pooled_back(node: Tensor, exact: Array, grad: Array, x: Array) -> Array:
    op: Any = node.op
    return (6 + SUMMED * math.sqrt(op.k0 * op.k1)) * np.asarray(op.reference(np.abs(grad), x))


def interpolated(node: Tensor, exact: Array, x: Array) -> Array:
    op: Any = node.op
    if op.mode & 255 == ScaleMode.NEAREST:
        return np.zeros_like(exact)
    return np.full_like(exact, (32 + 8 * max(*op.ne, *x.shape)) * np.abs(x).max(initial=0))


def with_positions(node: Tensor, exact: Array, *sources: Array) -> Array:
    op: Any = node.op
    return 2 * np.asarray(op.reference(*map(np.abs, sources)))
