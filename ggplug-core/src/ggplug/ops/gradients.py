"""Gradients of single ops: from the gradient of the result to that of the source.  Named after the ops, as in ggml."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from ggplug.errors import ParameterError
from ggplug.ops.base import (
    Array,
    Cost,
    Indexes,
    Op,
    builder,
    explained_by,
    is_multiple,
    misfit,
    mismatch,
    require_float,
)
from ggplug.ops.elementwise import Binary
from ggplug.ops.reduce import mean_of
from ggplug.tensor import Spec, Tensor, extents
from ggplug.types import F16, F32, FLOATS, I32

__all__ = [
    "GetRowsBack",
    "RepeatBack",
    "RmsNormBack",
    "RowGradient",
    "SiluBack",
    "SoftMaxBack",
    "get_rows_back",
    "repeat_back",
    "rms_norm_back",
    "silu_back",
    "soft_max_back",
]


class SiluBack(Binary):
    """dx = dy s (1 + x (1 - s)), s = 1 / (1 + e**-x): the gradient of silu  (ggml_silu_back).

    ``a`` is dy, ``b`` is x, repeated to dy's shape; both are floats.
    """

    def result(self, a: Tensor, b: Tensor) -> Spec:
        require_float(self, a, b)
        return super().result(a, b)

    def compute(self, a: Array, b: Array) -> Array:
        s = 1 / (1 + np.exp(-b))
        return a * s * (1 + b * (1 - s))


class RepeatBack(Op):
    """y[i] = the sum of all elements of x to which :class:`~ggplug.ops.Repeat` copies y[i]  (ggml_repeat_back).

    x: floats of any strides, each extent a multiple of that in ``ne``, the extents of the result.
    """

    ne: tuple[int, ...]

    def result(self, x: Tensor) -> Spec:
        if x.type not in FLOATS:
            require_float(self, x)
        ne, rank = extents(self.ne)
        if not all(map(is_multiple, x.ne, ne)):
            misfit(self, f"x's extents are no multiples of {self.ne}", x)
        return Spec(x.type, ne, max(rank, x.rank))

    def reference(self, x: Array) -> Array:
        folded = []
        for n, to in zip(x.shape, extents(self.ne)[0][::-1], strict=True):
            folded += [n // to if to else 1, to]
        with np.errstate(all="ignore"):
            return x.reshape(folded).sum(axis=(0, 2, 4, 6))

    def cost(self, node: Tensor) -> Cost:
        x = node.src[0]
        return Cost(0 if x is None else x.size, super().cost(node).bytes)


class RowGradient(Op, abstract=True):
    """Base of gradients whose rows depend on a row of both sources, of the result's shape and type.  Any strides."""

    inplace = (0, 1)
    takes: ClassVar[str]
    """The names of the two sources in messages."""

    def check(self, first: Tensor, second: Tensor) -> Spec:
        """The result's shape and type, if the sources fit."""
        require_float(self, first, second)
        if first.type is not second.type:
            mismatch(self, f"{self.takes} must have the same type", first, second)
        if first.ne != second.ne:
            misfit(self, f"{self.takes} must have the same shape", first, second)
        return Spec(first.type, first.ne, first.rank)

    def cost(self, node: Tensor) -> Cost:
        return Cost(6 * node.size, super().cost(node).bytes)


class RmsNormBack(RowGradient):
    """dx = r (dy - r**2 mean(x dy) x), r = 1 / sqrt(mean(x**2) + eps): gradient of rms_norm  (ggml_rms_norm_back)."""

    takes = "dy and x"

    eps: float = 1e-6

    def validate(self) -> None:
        if not self.eps >= 0:
            raise ParameterError(f"rms_norm_back: eps must not be negative, got {self.eps}", op=self, got=self.eps)

    def result(self, dy: Tensor, x: Tensor) -> Spec:
        return self.check(dy, x)

    def reference(self, dy: Array, x: Array) -> Array:
        with np.errstate(all="ignore"):
            size = mean_of(x * x) + self.eps
            return (dy - x * (mean_of(x * dy) / size)) / np.sqrt(size)


class SoftMaxBack(RowGradient):
    """dx = scale y (dy - sum(y dy)), over ne0: the gradient of soft_max, whose result is y  (ggml_soft_max_ext_back).

    ``max_bias`` is that of the softmax; as in ggml it must be 0.
    """

    takes = "dy and y"

    scale: float = 1.0
    max_bias: float = 0.0

    def validate(self) -> None:
        if self.max_bias != 0:
            raise ParameterError(
                f"soft_max_back: max_bias must be 0, got {self.max_bias}",
                op=self,
                got=self.max_bias,
            )

    def result(self, dy: Tensor, y: Tensor) -> Spec:
        return self.check(dy, y)

    def reference(self, dy: Array, y: Array) -> Array:
        with np.errstate(all="ignore"):
            return self.scale * y * (dy - (y * dy).sum(axis=-1, keepdims=True))


class GetRowsBack(Op):
    """y[:, r] = the sum of all dy[:, i] with ids[i] = r: the gradient of get_rows  (ggml_get_rows_back).

    dy: F32 or F16 [n, >= k].  ids: I32 [k], each less than ``rows``.  Result: F32 [n, rows].  An id that is out of
    range contributes nothing, and raises a ComputeError.
    """

    indexes = Indexes(ids=1, of=None, dim=1)

    rows: int

    def validate(self) -> None:
        if self.rows < 0:
            raise ParameterError(f"get_rows_back: rows must be >= 0, got {self.rows}", op=self, got=self.rows)

    def result(self, dy: Tensor, ids: Tensor) -> Spec:
        if ids.type is not I32:
            mismatch(self, "ids must be i32", dy, ids)
        if dy.type is not F32 and dy.type is not F16:
            mismatch(self, "dy must be f32 or f16", dy, ids)
        if dy.ne[2:] != (1, 1) or ids.ne[1:] != (1, 1, 1) or dy.ne[1] < ids.ne[0]:
            misfit(self, "dy must be a matrix with a row for each of the ids, a vector", dy, ids)
        return Spec(F32, (dy.ne[0], self.rows, 1, 1), 2)

    def reference(self, dy: Array, ids: Array) -> Array:
        chosen = ids.reshape(-1)
        inside = (chosen >= 0) & (chosen < self.rows)
        out = np.zeros((self.rows, dy.shape[3]))
        np.add.at(out, chosen[inside], dy[0, 0, : chosen.size][inside])
        return out

    def cost(self, node: Tensor) -> Cost:
        dy, ids = node.src
        if dy is None or ids is None:
            return Cost(0, 0)
        return Cost(dy.size, dy.nbytes + ids.nbytes + 2 * node.nbytes)


silu_back = builder(SiluBack)
rms_norm_back = builder(RmsNormBack)
soft_max_back = builder(SoftMaxBack)
_repeat_back = builder(RepeatBack)
_get_rows_back = builder(GetRowsBack)


@explained_by(RepeatBack)
def repeat_back(x: Tensor, *ne: int | Tensor, name: str = "") -> Tensor:
    """``repeat_back(x, ne0, ne1, ...)`` or ``repeat_back(x, like)``: the sum of all repetitions."""
    if len(ne) == 1 and isinstance(ne[0], Tensor):
        return _repeat_back(x, ne[0].ne[: max(ne[0].rank, 1)], name=name)
    return _repeat_back(x, ne[0] if len(ne) == 1 and isinstance(ne[0], (tuple, list)) else ne, name=name)


@explained_by(GetRowsBack)
def get_rows_back(dy: Tensor, ids: Tensor, rows: int | Tensor, *, name: str = "") -> Tensor:
    """The gradient of :func:`~ggplug.ops.get_rows`; ``rows``: how many the source has, or the source itself."""
    return _get_rows_back(dy, ids, rows.ne[1] if isinstance(rows, Tensor) else rows, name=name)
