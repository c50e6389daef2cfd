"""Sums, means and positions of maxima.  Any strides."""

from __future__ import annotations

import numpy as np

from ggplug.ops.base import FLOATS, Array, Op, builder, misfit, require_float
from ggplug.tensor import Spec, Tensor
from ggplug.types import F32, I32


class SumRows(Op):
    """y = the sum of each row: [1, ne1, ne2, ne3] of x's type  (ggml_sum_rows)."""

    def result(self, x: Tensor) -> Spec:
        if x.type not in FLOATS:
            require_float(self, x)
        return Spec(x.type, (1, *x.ne[1:]), x.rank)

    def reference(self, x: Array) -> Array:
        return x.sum(axis=-1, keepdims=True)


class Mean(Op):
    """y = the mean of each row: F32 [1, ne1, ne2, ne3]  (ggml_mean)."""

    def result(self, x: Tensor) -> Spec:
        if x.type not in FLOATS:
            require_float(self, x)
        return Spec(F32, (1, *x.ne[1:]), x.rank)

    def reference(self, x: Array) -> Array:
        return x.mean(axis=-1, keepdims=True)


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

    Of several equal ones the first.
    """

    def result(self, x: Tensor) -> Spec:
        if x.type not in FLOATS:
            require_float(self, x)
        if x.ne[2] != 1 or x.ne[3] != 1 or not x.ne[0]:
            misfit(self, "x must be a matrix with at least one column", x)
        return Spec(I32, (x.ne[1], 1, 1, 1), min(1, x.rank - 1))

    def reference(self, x: Array) -> Array:
        return np.argmax(x, axis=-1)


sum_rows = builder(SumRows)
mean = builder(Mean)
sum = builder(Sum)
argmax = builder(Argmax)
