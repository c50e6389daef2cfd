"""Means and maxima of windows that slide over rows or images."""

from __future__ import annotations

import enum

import numpy as np

from ggplug.errors import ParameterError
from ggplug.ops.base import Array, Cost, Op, builder, misfit, mismatch, require, require_float
from ggplug.ops.sliding import Axis, check_sliding, fold
from ggplug.tensor import Spec, Tensor
from ggplug.types import F32

__all__ = ["Pool1d", "Pool2d", "Pool2dBack", "PoolKind", "pool_1d", "pool_2d", "pool_2d_back"]

_LOWEST = -float(np.finfo(np.float32).max)


class PoolKind(enum.IntEnum):
    """The function of the elements of a window (GGML_OP_POOL_*)."""

    MAX = 0
    AVG = 1


def _check_kind(op: Op, kind: int) -> None:
    if kind not in list(PoolKind):
        raise ParameterError(f"{op.name}: kind must be 0 (max) or 1 (avg), got {kind}", op=op, got=kind)


def _taps(x: Array, axis: Axis, count: int, at: int, beyond: float) -> Array:
    """Windows along an axis of x: [..., count, taps, ...], where x is padded with ``beyond``."""
    index = np.arange(count)[:, np.newaxis] * axis.stride - axis.padding + np.arange(axis.taps)
    inside = (index >= 0) & (index < x.shape[at])
    shape = inside.shape + (1,) * (x.ndim - at - 1)
    return np.where(inside.reshape(shape), np.take(x, np.where(inside, index, 0), axis=at), beyond)


def _largest(w: Array, axis: tuple[int, ...]) -> Array:
    """The largest numbers without NaN; the lowest number of float32 if there are none."""
    return np.where(np.isnan(w), _LOWEST, np.maximum(w, _LOWEST)).max(axis=axis)


class Pool1d(Op):
    """y = the maximum or the mean of each window of k0 elements of a row  (ggml_pool_1d).

    x: F32, F16 or BF16, any strides.  Result: F32 [(ne0 + 2 p0 - k0) // s0 + 1, ne1, ne2, ne3].
    ``kind``: a :class:`PoolKind`.  Padding is left out of maxima and means.  Maxima ignore NaN; the maximum of no
    number is the lowest number of float32, the mean of none is 0.
    """

    name = "pool_1d"
    kind: int
    k0: int
    s0: int = 1
    p0: int = 0

    def validate(self) -> None:
        _check_kind(self, self.kind)
        check_sliding(self)

    def result(self, x: Tensor) -> Spec:
        require_float(self, x)
        width = Axis(self.k0, self.s0, self.p0).count(x.ne[0])
        require(width > 0, self, f"no window of {self.k0} elements fits", x)
        return Spec(F32, (width, *x.ne[1:]), x.rank)

    def reference(self, x: Array) -> Array:
        axis = Axis(self.k0, self.s0, self.p0)
        count = axis.count(x.shape[3])
        if self.kind == PoolKind.MAX:
            return _largest(_taps(x, axis, count, 3, np.nan), (4,))
        counted = _taps(np.ones(x.shape[3]), axis, count, 0, 0).sum(axis=1)
        with np.errstate(all="ignore"):
            return _taps(x, axis, count, 3, 0).sum(axis=4) / np.maximum(counted, 1)

    def cost(self, node: Tensor) -> Cost:
        return Cost(self.k0 * node.size, super().cost(node).bytes)


class _Pool2d(Op, abstract=True):
    kind: int
    k0: int
    k1: int
    s0: int = 1
    s1: int = 1
    p0: float = 0.0
    p1: float = 0.0

    def validate(self) -> None:
        _check_kind(self, self.kind)
        check_sliding(self)

    def axes(self) -> tuple[Axis, Axis]:
        """The steps of windows along ne0 and ne1; the padding at the beginning is rounded down."""
        return Axis(self.k0, self.s0, int(self.p0)), Axis(self.k1, self.s1, int(self.p1))

    def extents(self, x: Tensor, *tensors: Tensor) -> tuple[int, int]:
        """Numbers of windows along ne0 and ne1 of x.  Raises ShapeError; ``tensors``: all sources, for the message."""
        width = int((x.ne[0] + 2 * self.p0 - self.k0) / self.s0 + 1)
        height = int((x.ne[1] + 2 * self.p1 - self.k1) / self.s1 + 1)
        require(width > 0 < height, self, f"no window of {self.k0} by {self.k1} elements fits", *tensors)
        return width, height


class Pool2d(_Pool2d):
    """y = the maximum or the mean of each window of k0 by k1 elements of a plane  (ggml_pool_2d).

    x: F32, F16 or BF16, any strides.  Result: F32 [(ne0 + 2 p0 - k0) // s0 + 1, (ne1 + 2 p1 - k1) // s1 + 1, ne2, ne3].
    ``kind``: a :class:`PoolKind`.  A mean is the sum of the elements without padding, divided by k0 k1.  Maxima ignore
    NaN; the maximum of no number is the lowest number of float32.  Paddings may end in .5: then the end is padded by
    one element more than the beginning.
    """

    name = "pool_2d"

    def result(self, x: Tensor) -> Spec:
        require_float(self, x)
        return Spec(F32, (*self.extents(x, x), x.ne[2], x.ne[3]), max(2, x.rank))

    def reference(self, x: Array) -> Array:
        across, down = self.axes()
        width = int((x.shape[3] + 2 * self.p0 - self.k0) / self.s0 + 1)
        height = int((x.shape[2] + 2 * self.p1 - self.k1) / self.s1 + 1)
        beyond = np.nan if self.kind == PoolKind.MAX else 0
        w = _taps(_taps(x, down, height, 2, beyond), across, width, 4, beyond)
        if self.kind == PoolKind.MAX:
            return _largest(w, (3, 5))
        with np.errstate(all="ignore"):
            return w.sum(axis=(3, 5)) / (self.k0 * self.k1)

    def cost(self, node: Tensor) -> Cost:
        return Cost(self.k0 * self.k1 * node.size, super().cost(node).bytes)


class Pool2dBack(_Pool2d):
    """The gradient of x, from the gradient of :class:`Pool2d`'s result  (ggml_pool_2d_back).

    grad: F32 [OW, OH, ne2, ne3], contiguous.  x: F32, F16 or BF16 [ne0, ne1, ne2, ne3].  Result: F32 of x's extents.
    For means, each element of a window gets the gradient divided by k0 k1, also in windows that reach into the padding.
    For maxima, the first of the largest elements (row by row) gets all, if it is above the lowest number of float32.
    """

    name = "pool_2d_back"

    def result(self, grad: Tensor, x: Tensor) -> Spec:
        require_float(self, x)
        if grad.type is not F32:
            mismatch(self, "grad must be f32", grad, x)
        width, height = self.extents(x, grad, x)
        if grad.ne != (width, height, x.ne[2], x.ne[3]) or not grad.is_contiguous():
            misfit(self, f"grad must be contiguous and have the extents {(width, height, *x.ne[2:])}", grad, x)
        return Spec(F32, x.ne, x.rank)

    def reference(self, grad: Array, x: Array) -> Array:
        across, down = self.axes()
        height, width = grad.shape[2:]
        if self.kind == PoolKind.AVG:
            mean_weights = np.ones((self.k1, 1, self.k0)) / (self.k0 * self.k1)
            w = grad[:, :, :, np.newaxis, :, np.newaxis] * mean_weights
        else:
            w = _taps(_taps(x, down, height, 2, np.nan), across, width, 4, np.nan)
            rows = np.where(w > _LOWEST, w, -np.inf).transpose(0, 1, 2, 4, 3, 5)  # [..., OH, OW, KH, KW]
            flat = rows.reshape(*rows.shape[:4], self.k0 * self.k1)
            chosen = np.arange(flat.shape[-1]) == flat.argmax(axis=-1)[..., np.newaxis]
            chosen &= flat.max(axis=-1, keepdims=True) > -np.inf
            w = np.where(chosen, grad[..., np.newaxis], 0).reshape(rows.shape).transpose(0, 1, 2, 4, 3, 5)
        return fold(w, [across, down], [x.shape[3], x.shape[2]])

    def cost(self, node: Tensor) -> Cost:
        return Cost(self.k0 * self.k1 * node.size, super().cost(node).bytes)


pool_1d = builder(Pool1d)
pool_2d = builder(Pool2d)
pool_2d_back = builder(Pool2dBack)
