"""Arithmetic of two tensors; the second is repeated to the shape of the first.

``b`` is repeated to the shape of ``a``: every extent of ``a`` must be a multiple of ``b``'s (ggml_can_repeat), so a
row, a column, a scalar and also a half of ``a`` fit.  Any strides.  The result has ``a``'s type and shape and is
contiguous. The arithmetic is in float also where ``a`` is F16, BF16 or quantised; integers are not supported.
"""

from __future__ import annotations

import numpy as np

from ggplug.errors import ShapeError
from ggplug.ops.base import Array, Op, builder, explained_by, is_multiple, misfit, mismatch
from ggplug.tensor import Spec, Tensor, describe

__all__ = ["Add", "Binary", "Div", "Mul", "Sub", "add", "add1", "div", "mul", "sub"]


class Binary(Op, abstract=True):
    """y = f(a, b) for every element, b repeated to a's shape."""

    inplace = (0, 1)

    def result(self, a: Tensor, b: Tensor) -> Spec:
        ne = a.ne
        if ne != b.ne:
            n0, n1, n2, n3 = b.ne
            if n0 and n1 and n2 and n3:
                misfits = ne[0] % n0 or ne[1] % n1 or ne[2] % n2 or ne[3] % n3
            else:
                misfits = not all(map(is_multiple, ne, b.ne))
            if misfits:
                misfit(self, "b cannot be repeated to a's shape (each extent of a must be a multiple of b's)", a, b)
        if b.type is not a.type and (a.type.dtype.kind == "i" or b.type.dtype.kind == "i" or b.type.is_quantized):
            mismatch(self, "a and b must both be floats, or a quantised and b float (use gg.cast)", a, b)
        if a.type.dtype.kind == "i":
            mismatch(self, "takes no integers (use gg.cast)", a, b)
        return Spec(a.type, ne, a.rank)

    def reference(self, a: Array, b: Array) -> Array:
        with np.errstate(all="ignore"):
            return self.compute(a, tile(b, a.shape))

    def compute(self, a: Array, b: Array) -> Array:
        """The formula; NumPy's warnings are off."""
        raise AssertionError


def tile(array: Array, shape: tuple[int, ...]) -> Array:
    """``array`` repeated along each axis to ``shape``, which is a multiple of its own."""
    if array.shape == shape:
        return array
    return np.tile(array, [to // n if n else 1 for to, n in zip(shape, array.shape, strict=True)])


class Add(Binary):
    """y = a + b, b repeated to a's shape  (ggml_add)."""

    def compute(self, a: Array, b: Array) -> Array:
        return a + b


class Sub(Binary):
    """y = a - b, b repeated to a's shape  (ggml_sub)."""

    def compute(self, a: Array, b: Array) -> Array:
        return a - b


class Mul(Binary):
    """y = a * b, b repeated to a's shape  (ggml_mul)."""

    def compute(self, a: Array, b: Array) -> Array:
        return a * b


class Div(Binary):
    """y = a / b, b repeated to a's shape  (ggml_div)."""

    def compute(self, a: Array, b: Array) -> Array:
        return a / b


add = builder(Add)
sub = builder(Sub)
mul = builder(Mul)
div = builder(Div)


@explained_by(Add)
def add1(a: Tensor, b: Tensor, *, name: str = "") -> Tensor:
    """y = a + b, b being a scalar (ggml_add1, which ggml replaces by ggml_add).

    Raises ShapeError if b has more than one element.
    """
    if b.ne != (1, 1, 1, 1):
        raise ShapeError(f"add1: b must be a scalar (gg.add takes others); got {describe((a, b))}", tensor=(a, b))
    return add(a, b, name=name)
