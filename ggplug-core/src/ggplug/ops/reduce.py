"""Sums, means, counts and positions of maxima.  Any strides.  The sum of nothing is 0."""

from __future__ import annotations

import numpy as np

from ggplug.ops.base import Array, Cost, Op, builder, misfit, mismatch, require_float
from ggplug.tensor import Spec, Tensor
from ggplug.types import F32, FLOATS, I32, I64

__all__ = [
    "Argmax",
    "CountEqual",
    "Cumsum",
    "Mean",
    "Sum",
    "SumRows",
    "argmax",
    "count_equal",
    "cumsum",
    "mean",
    "sum",
    "sum_rows",
]


class SumRows(Op):
    """y = the sum of each row: [1, ne1, ne2, ne3] of x's type  (ggml_sum_rows)."""

    def result(self, x: Tensor) -> Spec:
        if x.type not in FLOATS:
            require_float(self, x)
        return Spec(x.type, (1, *x.ne[1:]), x.rank)

    def reference(self, x: Array) -> Array:
        return x.sum(axis=-1, keepdims=True)


def mean_of(x: Array) -> Array:
    """The mean of each row, [..., 1]; NaN of rows without elements."""
    with np.errstate(all="ignore"):
        return x.sum(axis=-1, keepdims=True) / x.shape[-1]


class Mean(Op):
    """y = the mean of each row: F32 [1, ne1, ne2, ne3]  (ggml_mean).  The mean of nothing is NaN."""

    def result(self, x: Tensor) -> Spec:
        if x.type not in FLOATS:
            require_float(self, x)
        return Spec(F32, (1, *x.ne[1:]), x.rank)

    def reference(self, x: Array) -> Array:
        return mean_of(x)


class Sum(Op):
    """y = the sum of all elements, a scalar of x's type  (ggml_sum)."""

    def result(self, x: Tensor) -> Spec:
        if x.type not in FLOATS:
            require_float(self, x)
        return Spec(x.type, (1, 1, 1, 1), 0)

    def reference(self, x: Array) -> Array:
        return x.sum().reshape(1, 1, 1, 1)


class Argmax(Op):
    """y = the position of the largest element of each row of a matrix: I32 [ne1]  (ggml_argmax).

    If several are equal, the first.  NaN is smaller than every number: a row of only NaN gives 0.  (ggml's loop
    restarts after each NaN.)  A row must have at least one element.
    """

    def result(self, x: Tensor) -> Spec:
        if x.type not in FLOATS:
            require_float(self, x)
        if x.ne[2] != 1 or x.ne[3] != 1 or not x.ne[0]:
            misfit(self, "x must be a matrix with at least one column", x)
        return Spec(I32, (x.ne[1], 1, 1, 1), min(1, x.rank - 1))

    def reference(self, x: Array) -> Array:
        highest = np.where(np.isnan(x), -np.inf, x).max(axis=-1, keepdims=True)
        return np.argmax(x == highest, axis=-1)


class Cumsum(Op):
    """y[i] = x[0] + ... + x[i] along each row, of x's type and shape  (ggml_cumsum)."""

    def result(self, x: Tensor) -> Spec:
        if x.type not in FLOATS:
            require_float(self, x)
        return Spec(x.type, x.ne, x.rank)

    def reference(self, x: Array) -> Array:
        with np.errstate(all="ignore"):
            return x.cumsum(axis=-1)


class CountEqual(Op):
    """y = the number of equal elements of a and b: an I64 scalar  (ggml_count_equal).

    a, b: I32, of the same shape.
    """

    def result(self, a: Tensor, b: Tensor) -> Spec:
        if a.type is not I32 or b.type is not I32:
            mismatch(self, "a and b must be i32", a, b)
        if a.ne != b.ne:
            misfit(self, "a and b must have the same shape", a, b)
        return Spec(I64, (1, 1, 1, 1), 0)

    def reference(self, a: Array, b: Array) -> Array:
        return np.array(np.count_nonzero(a == b))

    def cost(self, node: Tensor) -> Cost:
        a = node.src[0]
        return Cost(0 if a is None else a.size, super().cost(node).bytes)


sum_rows = builder(SumRows)
mean = builder(Mean)
sum = builder(Sum)
argmax = builder(Argmax)
cumsum = builder(Cumsum)
count_equal = builder(CountEqual)
