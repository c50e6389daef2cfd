"""View ops: other extents and strides over the bytes of their source.  They compute nothing.

:class:`View` has no reference, because its elements depend on the strides of its source: code that evaluates a graph
reads the root with the view's strides.
"""

from __future__ import annotations

import math
from functools import cached_property

from ggplug.errors import ParameterError, ShapeError
from ggplug.ops.base import Array, Op, builder, explained_by, misfit
from ggplug.tensor import Extents, Spec, Tensor, contiguous_strides, extents

__all__ = ["Permute", "Reshape", "Transpose", "View", "permute", "reshape", "transpose", "view"]


class Reshape(Op):
    """y = the elements of x in the same order, with other extents  (ggml_reshape).  x must be contiguous.

    ``ne``: the new extents, innermost first; one of them may be -1.
    """

    is_view = True
    ne: tuple[int, ...]

    @cached_property
    def _extents(self) -> tuple[Extents, int, int]:
        """Extents, rank, and the product of all extents except the inferred one."""
        ne, rank = extents(1 if n == -1 else n for n in self.ne)
        return ne, rank, math.prod(ne)

    def validate(self) -> None:
        if self.ne.count(-1) > 1:
            raise ShapeError(f"reshape: only one extent can be inferred, got ne {self.ne}", op=self, got=self.ne)
        _ = self._extents

    def result(self, x: Tensor) -> Spec:
        ne, rank, size = self._extents
        if -1 in self.ne:
            rest = x.size
            if not size or rest % size:
                misfit(self, f"cannot infer -1 in ne {self.ne}", x)
            full = list(ne)
            full[self.ne.index(-1)] = rest // size
            ne = (full[0], full[1], full[2], full[3])
        elif size != x.size:
            misfit(self, f"ne {self.ne} has another number of elements", x)
        if not x.is_contiguous():
            misfit(self, "the source must be contiguous (use gg.cont first)", x)
        return Spec(x.type, ne, rank, contiguous_strides(x.type, ne), x)

    def reference(self, x: Array) -> Array:
        ne, _, size = self._extents
        return x.reshape([x.size // size if n == -1 else n for n in (self.ne + ne[len(self.ne) :])[::-1]])


class View(Op):
    """A window into the source's bytes  (ggml_view_1d to _4d).

    ``ne``: extents; ``nb``: byte strides of dimensions 1, 2 and 3 (missing ones follow contiguously);
    ``offset``: bytes from the source's first byte.  Raises ShapeError if the window is not inside of the source's root,
    or if strides or offset are no multiples of the bytes of an element (of a quantised type, of a block).
    """

    is_view = True
    ne: tuple[int, ...]
    nb: tuple[int, ...] = ()
    offset: int = 0

    @cached_property
    def _extents(self) -> tuple[Extents, int]:
        return extents(self.ne)

    def validate(self) -> None:
        _ = self._extents
        if len(self.nb) > 3 or min(self.nb, default=0) < 0:
            raise ParameterError(f"view: nb must be at most three strides >= 0, got {self.nb}", op=self, got=self.nb)
        if self.offset < 0:
            raise ParameterError(f"view: offset must be >= 0 bytes, got {self.offset}", op=self, got=self.offset)

    def result(self, x: Tensor) -> Spec:
        ne, rank = self._extents
        kind = x.type
        row = kind.row_bytes(ne[0])
        nb = self.nb
        nb1 = nb[0] if nb else row
        nb2 = nb[1] if len(nb) > 1 else nb1 * ne[1]
        nb3 = nb[2] if len(nb) > 2 else nb2 * ne[2]
        window = row + (ne[1] - 1) * nb1 + (ne[2] - 1) * nb2 + (ne[3] - 1) * nb3 if 0 not in ne else 0
        if self.offset % kind.block_bytes or nb1 % kind.block_bytes or nb2 % kind.block_bytes or nb3 % kind.block_bytes:
            strides = f"strides {nb1}, {nb2} and {nb3}"
            misfit(self, f"offset {self.offset} and {strides} must be multiples of {kind.block_bytes} bytes", x)
        root = x if x.view_src is None else x.view_src
        if self.offset + window > root.nbytes - x.view_offset:
            misfit(
                self,
                f"bytes {self.offset} to {self.offset + window} are not inside of the source's "
                f"{root.nbytes - x.view_offset} bytes",
                x,
            )
        return Spec(kind, ne, rank, (kind.block_bytes, nb1, nb2, nb3), x, self.offset)


class Permute(Op):
    """Permutes dimensions: dimension ``i`` of the source becomes dimension ``axes[i]``  (ggml_permute).

    Dimension 0 of a quantised type must stay dimension 0, because blocks are contiguous.
    """

    is_view = True
    axes: tuple[int, ...]

    def validate(self) -> None:
        if sorted(self.axes) != [0, 1, 2, 3]:
            raise ShapeError(f"permute: axes {self.axes} is no permutation of 0, 1, 2, 3", op=self, got=self.axes)

    @cached_property
    def _order(self) -> tuple[int, int, int, int]:
        """Which dimension of the source each dimension of the result is."""
        index = self.axes.index
        return index(0), index(1), index(2), index(3)

    def result(self, x: Tensor) -> Spec:
        i, j, k, l = self._order
        ne, nb = x.ne, x.nb
        if i and x.type.is_quantized:
            misfit(self, f"blocks of {x.type.name} are contiguous, so dimension 0 must stay dimension 0", x)
        # The rank includes the new place of each dimension, even if its extent is one.
        rank = 1 + max(self.axes[: x.rank], default=-1)
        return Spec(x.type, (ne[i], ne[j], ne[k], ne[l]), rank, (nb[i], nb[j], nb[k], nb[l]), x)

    def reference(self, x: Array) -> Array:
        return x.transpose([3 - axis for axis in self._order[::-1]])


class Transpose(Op):
    """Exchanges dimensions 0 and 1  (ggml_transpose); not for quantised types, whose blocks are contiguous."""

    is_view = True

    def result(self, x: Tensor) -> Spec:
        ne, nb = x.ne, x.nb
        if x.type.is_quantized:
            misfit(self, f"blocks of {x.type.name} are contiguous, so dimension 0 must stay dimension 0", x)
        return Spec(x.type, (ne[1], ne[0], ne[2], ne[3]), max(x.rank, 2), (nb[1], nb[0], nb[2], nb[3]), x)

    def reference(self, x: Array) -> Array:
        return x.swapaxes(-1, -2)


transpose = builder(Transpose)
_reshape = builder(Reshape)
_view = builder(View)
_permute = builder(Permute)


@explained_by(Reshape)
def reshape(x: Tensor, *ne: int, name: str = "") -> Tensor:
    """``reshape(x, ne0, ne1, ...)``: other extents over the same elements."""
    return _reshape(x, _flat(ne), name=name)


@explained_by(View)
def view(x: Tensor, *ne: int, nb: tuple[int, ...] = (), offset: int = 0, name: str = "") -> Tensor:
    """``view(x, ne0, ne1, ..., nb=(nb1, ...), offset=bytes)``: a window into x."""
    return _view(x, _flat(ne), nb, offset, name=name)


@explained_by(Permute)
def permute(x: Tensor, *axes: int, name: str = "") -> Tensor:
    """``permute(x, 0, 2, 1, 3)``: dimension i of x becomes dimension axes[i].

    Axes that are left out stay where they are.
    """
    order = _flat(axes)
    if len(order) < 4:
        order += tuple(range(len(order), 4))
    return _permute(x, order, name=name)


def _flat(values: tuple[int, ...]) -> tuple[int, ...]:
    if len(values) == 1 and isinstance(values[0], (tuple, list)):
        return tuple(values[0])
    if not values:
        raise ShapeError("the extents are missing: pass them as integers or a tuple")
    return values
