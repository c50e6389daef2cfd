"""View ops: other extents and strides over the bytes of their source.  They compute nothing."""

from __future__ import annotations

import numpy as np

from ggplug.errors import ShapeError
from ggplug.ops.base import Array, Op, apply, builder, require
from ggplug.tensor import Extents, Spec, Tensor, contiguous_strides, extents


class Reshape(Op):
    """Other extents over the same elements in the same order (ggml_reshape).  The source must be contiguous.

    ``ne``: the new extents, innermost first; one of them may be -1.
    """

    is_view = True
    ne: tuple[int, ...] = ()

    def result(self, x: Tensor) -> Spec:
        given = self.ne
        if given.count(-1) == 1:
            rest = -int(np.prod(given))
            require(rest > 0 and x.size % rest == 0, self, f"cannot infer -1 in ne {given}", x)
            given = tuple(x.size // rest if n == -1 else n for n in given)
        ne, rank = extents(given)
        require(int(np.prod(ne)) == x.size, self, f"ne {given} has another number of elements", x)
        require(x.is_contiguous(), self, "the source must be contiguous (use gg.cont first)", x)
        return Spec(x.type, ne, rank, contiguous_strides(x.type, ne), x)

    def reference(self, x: Array) -> Array:
        return x.reshape(-1)


class View(Op):
    """A window into the source's bytes (ggml_view_1d to _4d).

    ``ne``: extents; ``nb``: byte strides of dimensions 1, 2 and 3 (missing ones follow contiguously);
    ``offset``: bytes from the source's first byte.  Raises ShapeError if the window leaves the source.
    """

    is_view = True
    ne: tuple[int, ...] = ()
    nb: tuple[int, ...] = ()
    offset: int = 0

    def result(self, x: Tensor) -> Spec:
        ne, rank = extents(self.ne)
        strides = [x.type.block_bytes, *self.nb]
        require(len(strides) <= 4, self, f"nb {self.nb} has more than three entries", x)
        for i in range(len(strides), 4):
            strides.append(x.type.row_bytes(ne[0]) if i == 1 else strides[i - 1] * ne[i - 1])
        nb: Extents = (strides[0], strides[1], strides[2], strides[3])
        window = Tensor(Spec(x.type, ne, rank, nb)).nbytes
        room = x.root.nbytes - x.view_offset
        require(
            self.offset >= 0 and min(nb) >= 0 and self.offset + window <= room,
            self, f"bytes {self.offset} to {self.offset + window} leave the source's {room} bytes", x,
        )  # fmt: skip
        return Spec(x.type, ne, rank, nb, x, self.offset)


class Permute(Op):
    """Reorders dimensions: dimension ``i`` of the source becomes dimension ``axes[i]`` (ggml_permute)."""

    is_view = True
    axes: tuple[int, ...] = (0, 1, 2, 3)

    def result(self, x: Tensor) -> Spec:
        require(sorted(self.axes) == [0, 1, 2, 3], self, f"axes {self.axes} is no permutation of 0, 1, 2, 3", x)
        ne, nb = [0] * 4, [0] * 4
        for source, target in enumerate(self.axes):
            ne[target], nb[target] = x.ne[source], x.nb[source]
        rank = max((i + 1 for i in range(4) if ne[i] != 1), default=1)
        return Spec(x.type, (ne[0], ne[1], ne[2], ne[3]), max(rank, x.rank), (nb[0], nb[1], nb[2], nb[3]), x)

    def reference(self, x: Array) -> Array:
        order = [3 - self.axes.index(3 - position) for position in range(4)]
        return x.transpose(order)


class Transpose(Op):
    """Swaps the first two dimensions (ggml_transpose)."""

    is_view = True

    def result(self, x: Tensor) -> Spec:
        ne, nb = x.ne, x.nb
        return Spec(x.type, (ne[1], ne[0], ne[2], ne[3]), max(x.rank, 2), (nb[1], nb[0], nb[2], nb[3]), x)

    def reference(self, x: Array) -> Array:
        return x.swapaxes(-1, -2)


transpose = builder(Transpose)


def reshape(x: Tensor, *ne: int, name: str = "") -> Tensor:
    """``reshape(x, ne0, ne1, ...)``: other extents over the same elements; see :class:`Reshape`."""
    return apply(Reshape(_flat(ne)), (x,), name)


def view(x: Tensor, *ne: int, nb: tuple[int, ...] = (), offset: int = 0, name: str = "") -> Tensor:
    """``view(x, ne0, ne1, ..., nb=(nb1, ...), offset=bytes)``: a window into x; see :class:`View`."""
    return apply(View(_flat(ne), nb, offset), (x,), name)


def permute(x: Tensor, *axes: int, name: str = "") -> Tensor:
    """``permute(x, 0, 2, 1, 3)``: dimension i of x becomes dimension axes[i]; see :class:`Permute`."""
    given = _flat(axes)
    return apply(Permute(given + tuple(range(len(given), 4))), (x,), name)


def _flat(values: tuple[int, ...]) -> tuple[int, ...]:
    if len(values) == 1 and isinstance(values[0], (tuple, list)):
        return tuple(values[0])
    if not values:
        raise ShapeError("no extents were given")
    return values
