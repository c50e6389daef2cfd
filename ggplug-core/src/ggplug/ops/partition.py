"""Ops of attention over windows of an image: partition into windows and its inverse, relative positions."""

from __future__ import annotations

import numpy as np

from ggplug.errors import ParameterError
from ggplug.ops.base import Array, Op, builder, misfit, mismatch, require, require_float
from ggplug.tensor import Spec, Tensor
from ggplug.types import F16, F32

__all__ = ["AddRelPos", "GetRelPos", "WinPart", "WinUnpart", "add_rel_pos", "get_rel_pos", "win_part", "win_unpart"]


def _check_window(op: Op, w: int) -> None:
    if not 1 <= w <= 1 << 30:
        raise ParameterError(f"{op.name}: w must be 1 or more, got {w}", op=op, got=w)


class WinPart(Op):
    """y[:, i, j, (q, p)] = x[:, p w + i, q w + j], 0 beyond the ends of x  (ggml_win_part).

    x: F32 [C, W, H], any strides.  Result: F32 [C, w, w, P Q] with P and Q windows along ne1 and ne2; along its last
    dimension p varies fastest.
    """

    w: int

    def validate(self) -> None:
        _check_window(self, self.w)

    def result(self, x: Tensor) -> Spec:
        if x.type is not F32:
            mismatch(self, "x must be f32", x)
        require(x.ne[3] == 1, self, "x must have at most three dimensions", x)
        return Spec(F32, (x.ne[0], self.w, self.w, -(-x.ne[1] // self.w) * -(-x.ne[2] // self.w)), 4)

    def reference(self, x: Array) -> Array:
        _, height, width, channels = x.shape
        w = self.w
        across, down = -(-width // w), -(-height // w)
        padded = np.pad(x[0], ((0, down * w - height), (0, across * w - width), (0, 0)))
        parts = padded.reshape(down, w, across, w, channels).transpose(0, 2, 1, 3, 4)
        return parts.reshape(down * across, w, w, channels)


class WinUnpart(Op):
    """y[:, p w + i, q w + j] = x[:, i, j, (q, p)], the inverse of :class:`WinPart`  (ggml_win_unpart).

    x: F32 [C, w, w, P Q], any strides.  Result: F32 [C, w0, h0].
    """

    w0: int
    h0: int
    w: int

    def validate(self) -> None:
        _check_window(self, self.w)

    def result(self, x: Tensor) -> Spec:
        if x.type is not F32:
            mismatch(self, "x must be f32", x)
        require(self.w0 >= 0 <= self.h0, self, "w0 and h0 must not be negative", x)
        wanted = (x.ne[0], self.w, self.w, -(-self.w0 // self.w) * -(-self.h0 // self.w))
        require(x.ne == wanted, self, f"x must have the extents {wanted}", x)
        return Spec(F32, (x.ne[0], self.w0, self.h0, 1), 3)

    def reference(self, x: Array) -> Array:
        w = self.w
        across, down = -(-self.w0 // w), -(-self.h0 // w)
        rows = x.reshape(down, across, w, w, -1).transpose(0, 2, 1, 3, 4).reshape(1, down * w, across * w, -1)
        return rows[:, : self.h0, : self.w0]


class GetRelPos(Op):
    """y[:, i, j] = x[:, kh - 1 - i + j]: a row for the distance of each pair of positions  (ggml_get_rel_pos).

    x: F32, F16 or BF16 [n, 2 kh - 1], any strides.  Result: F16 [n, kh, qh]; qh and kh must be equal.
    """

    moves = True
    qh: int
    kh: int

    def result(self, x: Tensor) -> Spec:
        require_float(self, x)
        require(self.qh == self.kh > 0, self, "qh and kh must be equal and not 0", x)
        require(x.ne[1:] == (2 * self.kh - 1, 1, 1), self, f"x must have {2 * self.kh - 1} rows", x)
        return Spec(F16, (x.ne[0], self.kh, self.qh, 1), 3)

    def reference(self, x: Array) -> Array:
        distance = self.kh - 1 - np.arange(self.kh) + np.arange(self.qh)[:, np.newaxis]
        return x[:, 0, distance]


class AddRelPos(Op):
    """y[i + K j, r, b] = a[i + K j, r, b] + pw[i, r, b] + ph[j, r, b]  (ggml_add_rel_pos).

    a: F32 [K K, R, B], contiguous.  pw and ph: F32 [K, W, H, B] with W H = R, contiguous: of the positions in a row and
    of rows.  Result: of a's type and extents.
    """

    inplace = (0,)

    def result(self, a: Tensor, pw: Tensor, ph: Tensor) -> Spec:
        if any(tensor.type is not F32 for tensor in (a, pw, ph)):
            mismatch(self, "takes f32", a, pw, ph)
        if not all(tensor.is_contiguous() for tensor in (a, pw, ph)):
            misfit(self, "a, pw and ph must be contiguous", a, pw, ph)
        if pw.ne != ph.ne or a.ne != (pw.ne[0] ** 2, pw.ne[1] * pw.ne[2], pw.ne[3], 1):
            misfit(self, "pw and ph must be [K, W, H, B] for a [K K, W H, B]", a, pw, ph)
        return Spec(a.type, a.ne, a.rank)

    def reference(self, a: Array, pw: Array, ph: Array) -> Array:
        _, batches, rows, _ = a.shape
        width = pw.shape[3]
        across, down = pw.reshape(batches, rows, 1, width), ph.reshape(batches, rows, width, 1)
        with np.errstate(all="ignore"):
            return (a.reshape(batches, rows, width, width) + across + down).reshape(a.shape)


win_part = builder(WinPart)
win_unpart = builder(WinUnpart)
get_rel_pos = builder(GetRelPos)
add_rel_pos = builder(AddRelPos)
