"""Rooms of products of matrices."""

from __future__ import annotations

from typing import Any

import numpy as np

from ggplug.ops.base import Array
from ggplug.tensor import Tensor
from ggplug.types import BF16, F16, Precision, Type
from ggplug_testing.precision.rule import DEVIATIONS, UNIT

COARSE: dict[Type, float] = {F16: 2.0**-10, BF16: 2.0**-8}
"""The largest error of rounding to BF16, and of cutting off what F16 lacks, relative to the number."""


def product(node: Tensor, exact: Array, weights: Array, other: Array, *ids: Array) -> Array:
    op: Any = node.op
    assert node.src[0] is not None
    assert node.src[1] is not None
    kind = node.src[0].type

    def summed(squares: Array) -> Array:
        """The sum of ``weights**2 squares`` of each element of the result."""
        return np.asarray(op.reference(weights * weights, squares, *ids)).reshape(exact.shape)

    weights, other = (np.where(np.isfinite(each), each, 0) for each in (weights, other))
    terms = summed(other * other)
    variance = (weights.shape[-1] + 1) / 3 * np.maximum(exact * exact, 4 * terms)
    if not node.src[1].type.is_quantized:
        if kind.is_quantized:
            variance = variance + summed(block_steps(other, kind.block_size) ** 2) / 12 / UNIT**2
        elif kind in COARSE and op.precision != Precision.F32:
            variance = variance + terms * (COARSE[kind] / UNIT) ** 2 / 3
    return np.asarray(DEVIATIONS * np.sqrt(variance))


def block_steps(values: Array, length: int) -> Array:
    """For each number the step of eight bits: a 127th of the largest number of its block."""
    blocks = values.reshape(-1, length)
    steps = np.abs(blocks).max(axis=-1, keepdims=True, initial=0) / 127
    return np.broadcast_to(steps, blocks.shape).reshape(values.shape)


def out_prod(node: Tensor, exact: Array, a: Array, b: Array) -> Array:
    op: Any = node.op
    a, b = (np.where(np.isfinite(each), each, 0) for each in (a, b))
    terms = op.reference(a * a, b * b)
    return np.asarray(DEVIATIONS * np.sqrt((a.shape[-2] + 1) / 3 * np.maximum(exact * exact, 4 * terms)))


def solve_tri(node: Tensor, exact: Array, a: Array, b: Array) -> Array:
    lower = np.tril(np.where(np.isfinite(a), a, 1))
    n = a.shape[-1]
    singular = (np.diagonal(lower, axis1=-2, axis2=-1) == 0).any()
    if singular or not n:
        return np.zeros_like(exact)
    return np.asarray(2 * (n + 2) * np.abs(np.linalg.inv(lower)) @ np.abs(lower) @ np.abs(exact))
