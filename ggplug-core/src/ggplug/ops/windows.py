"""Ops that set, or add to, a window of a tensor.

A window is defined by strides and an offset, as :class:`~ggplug.ops.View` is.  The functions take both in bytes, as in
ggml; strides that are left out are those of the whole tensor.  The forms without ``_inplace`` copy the tensor first and
do not change it.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ggplug.errors import ParameterError, ShapeError
from ggplug.ops.base import Array, Cost, Op, builder, explained_by, misfit, mismatch, require_float
from ggplug.ops.copy import dup
from ggplug.tensor import Spec, Tensor

__all__ = [
    "Acc",
    "Set",
    "Window",
    "acc",
    "acc_inplace",
    "set",
    "set_1d",
    "set_1d_inplace",
    "set_2d",
    "set_2d_inplace",
    "set_inplace",
]


class Window(Op, abstract=True):
    """Base of ops that change a window of a, with b's extents; the result is a view of all of a.

    a: contiguous.  b: of a's type, any strides.  ``strides`` of the window's dimensions 1, 2 and 3, and ``offset`` of
    its first element, are in elements of a.  Raises ShapeError if the window is not inside of a, if two of its elements
    are the same of a, or if a stride or the offset is no whole number of a's blocks.
    """

    writes = (0,)

    strides: tuple[int, ...]
    offset: int = 0

    def validate(self) -> None:
        if len(self.strides) != 3 or min(self.strides) < 0:
            raise ParameterError(
                f"{self.name}: strides must be three numbers >= 0, got {self.strides}", op=self, got=self.strides
            )
        if self.offset < 0:
            raise ParameterError(f"{self.name}: offset must be >= 0, got {self.offset}", op=self, got=self.offset)

    def result(self, a: Tensor, b: Tensor) -> Spec:
        if a.type is not b.type:
            mismatch(self, "a and b must have the same type (use gg.cast)", a, b)
        if not a.is_contiguous():
            misfit(self, "a must be contiguous (use gg.cont first)", a, b)
        block = a.type.block_size
        if self.offset % block or any(stride % block for stride in self.strides):
            misfit(self, f"offset {self.offset} and strides {self.strides} must be multiples of {block}", a, b)
        if b.size:
            span = b.ne[0]
            for stride, extent in sorted(zip(self.strides, b.ne[1:], strict=True)):
                if extent > 1 and stride < span:
                    misfit(self, f"elements of the window overlap, with strides {self.strides}", a, b)
                span += (extent - 1) * stride
            if self.offset + span > a.size:
                misfit(self, f"elements {self.offset} to {self.offset + span} are not inside of a's {a.size}", a, b)
        return Spec(a.type, a.ne, a.rank, a.nb, a)

    def positions(self, ne: tuple[int, ...]) -> Array:
        """Positions in a, flattened, of the elements of a window with these extents, in the order of b's elements."""
        found = np.full(ne[::-1], self.offset)
        for dim, stride in enumerate((1, *self.strides)):
            found += (np.arange(ne[dim]) * stride).reshape([-1 if dim == 3 - axis else 1 for axis in range(4)])
        return found

    def cost(self, node: Tensor) -> Cost:
        b = node.src[1]
        return Cost(0, 0) if b is None else Cost(b.size, 3 * b.nbytes)


class Set(Window):
    """window of a = b  (ggml_set, ggml_set_1d, ggml_set_2d).

    a: contiguous.  b: of a's type, any strides.  Writes a; the result is a view of all of a.  ``strides`` (of
    dimensions 1, 2 and 3) and ``offset`` of the window are in elements of a; :func:`~ggplug.ops.set` takes bytes.
    """

    moves = True

    def reference(self, a: Array, b: Array) -> Array:
        out = a.flatten()
        out[self.positions(b.shape[::-1])] = b
        return out.reshape(a.shape)


class Acc(Window):
    """window of a += b  (ggml_acc).

    a: F32, F16 or BF16, contiguous.  b: of a's type, any strides.  Writes a; the result is a view of all of a.
    ``strides`` and ``offset`` of the window are as those of :class:`Set`; :func:`~ggplug.ops.acc` takes bytes.
    """

    def result(self, a: Tensor, b: Tensor) -> Spec:
        require_float(self, a, b)
        return super().result(a, b)

    def reference(self, a: Array, b: Array) -> Array:
        out = a.flatten()
        out[self.positions(b.shape[::-1])] += b
        return out.reshape(a.shape)


_set = builder(Set)
_acc = builder(Acc)


def _write(into: Callable[..., Tensor], a: Tensor, b: Tensor, nb: tuple[int, ...], offset: int, name: str) -> Tensor:
    """``into`` with strides and offset in elements; ``nb``: up to three strides in bytes, the others are a's."""
    unit, block = a.type.block_bytes, a.type.block_size
    strides = (*nb, *a.nb[1 + len(nb) :])
    if any(count % unit for count in (*strides, offset)):
        raise ShapeError(
            f"{into.__name__}: strides {strides} and offset {offset} must be multiples of {unit} bytes, the size of an "
            f"element of {a!r}",
            tensor=(a, b),
            got=(*strides, offset),
        )
    return into(a, b, tuple(stride // unit * block for stride in strides), offset // unit * block, name=name)


@explained_by(Set)
def set(a: Tensor, b: Tensor, *, nb: tuple[int, ...] = (), offset: int = 0, name: str = "") -> Tensor:
    """A copy of a with b in a window (ggml_set); ``nb`` (of dimensions 1, 2, 3) and ``offset`` in bytes."""
    return _write(_set, dup(a), b, nb, offset, name)


@explained_by(set)
def set_inplace(a: Tensor, b: Tensor, *, nb: tuple[int, ...] = (), offset: int = 0, name: str = "") -> Tensor:
    """Writes b into a window of a (ggml_set_inplace); the result is a view of a.  As :func:`set` otherwise."""
    return _write(_set, a, b, nb, offset, name)


@explained_by(set)
def set_1d(a: Tensor, b: Tensor, *, offset: int = 0, name: str = "") -> Tensor:
    """:func:`set` with a's own strides (ggml_set_1d)."""
    return set(a, b, offset=offset, name=name)


@explained_by(set_inplace)
def set_1d_inplace(a: Tensor, b: Tensor, *, offset: int = 0, name: str = "") -> Tensor:
    """:func:`set_inplace` with a's own strides (ggml_set_1d_inplace)."""
    return set_inplace(a, b, offset=offset, name=name)


@explained_by(set)
def set_2d(a: Tensor, b: Tensor, nb1: int, *, offset: int = 0, name: str = "") -> Tensor:
    """:func:`set` with rows ``nb1`` bytes apart (ggml_set_2d)."""
    return set(a, b, nb=(nb1,), offset=offset, name=name)


@explained_by(set_inplace)
def set_2d_inplace(a: Tensor, b: Tensor, nb1: int, *, offset: int = 0, name: str = "") -> Tensor:
    """:func:`set_inplace` with rows ``nb1`` bytes apart (ggml_set_2d_inplace)."""
    return set_inplace(a, b, nb=(nb1,), offset=offset, name=name)


@explained_by(set)
def acc(a: Tensor, b: Tensor, *, nb: tuple[int, ...] = (), offset: int = 0, name: str = "") -> Tensor:
    """A copy of a with b added to a window (ggml_acc); ``nb`` and ``offset`` in bytes, as for :func:`set`."""
    return _write(_acc, dup(a), b, nb, offset, name)


@explained_by(acc)
def acc_inplace(a: Tensor, b: Tensor, *, nb: tuple[int, ...] = (), offset: int = 0, name: str = "") -> Tensor:
    """Adds b to a window of a (ggml_acc_inplace); the result is a view of a.  As :func:`set` otherwise."""
    return _write(_acc, a, b, nb, offset, name)
