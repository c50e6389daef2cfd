"""Copies: into another tensor, into contiguous memory, to another type, concatenated, repeated."""

from __future__ import annotations

import math

import numpy as np

from ggplug.errors import ParameterError
from ggplug.ops.base import Array, Op, builder, explained_by, is_multiple, misfit, mismatch
from ggplug.ops.elementwise import add, tile
from ggplug.tensor import Spec, Tensor, extents
from ggplug.types import F32, Type, TypeName, as_type, by_name

__all__ = ["Concat", "Cont", "Cpy", "Dup", "Repeat", "add_cast", "cast", "concat", "cont", "cpy", "dup", "repeat"]


class Cpy(Op):
    """dst = x, converted to dst's type  (ggml_cpy).

    x and dst: any strides and the same number of elements, which are matched in ``ne`` order.
    Writes dst; the result is a view of all of dst.  Conversions are those of :class:`Dup`.
    """

    writes = (1,)
    moves = True

    def result(self, x: Tensor, dst: Tensor) -> Spec:
        if x.ne != dst.ne and x.size != dst.size:
            misfit(self, "x and dst must have the same number of elements", x, dst)
        return Spec(dst.type, dst.ne, dst.rank, dst.nb, dst)

    def reference(self, x: Array, dst: Array) -> Array:
        return x.reshape(dst.shape)


class Cont(Op):
    """A contiguous copy  (ggml_cont, ggml_cont_1d to _4d).

    ``ne``: other extents for the same number of elements; empty keeps the shape.
    """

    moves = True
    ne: tuple[int, ...] = ()

    def result(self, x: Tensor) -> Spec:
        if not self.ne:
            return Spec(x.type, x.ne, x.rank)
        ne, rank = extents(self.ne)
        if math.prod(ne) != x.size:
            misfit(self, f"ne {self.ne} has another number of elements", x)
        return Spec(x.type, ne, rank)

    def reference(self, x: Array) -> Array:
        return x if not self.ne else x.reshape(extents(self.ne)[0][::-1])


class Dup(Op):
    """A contiguous copy, in another type if one is named  (ggml_dup, ggml_cast).

    ``type``: the name of the result's type; empty keeps x's type, and then every bit.

    Conversions round to nearest, ties to even, keep subnormal numbers, and overflow to infinity.  A NaN stays a NaN;
    its sign and payload depend on the device.  If one value of a quantised block is NaN or infinite, all are NaN (in
    MXFP4, which has no NaN, infinite).  Blocks are encoded as by :func:`ggplug.quants.quantize` with ``stored``; types
    that ggml encodes only with an importance matrix cannot be written.
    Integers are converted to F32 first, then to F16, BF16 or blocks.  To integers, floats are truncated towards zero;
    values out of range, also of wider integers, become the nearest integer of the type, and NaN becomes 0.
    """

    moves = True
    type: TypeName = ""

    def result(self, x: Tensor) -> Spec:
        if not self.type:
            return Spec(x.type, x.ne, x.rank)
        return Spec(by_name(self.type), x.ne, x.rank)

    def reference(self, x: Array) -> Array:
        return x


class Concat(Op):
    """a followed by b along dimension ``dim``  (ggml_concat).

    a and b: any strides, the same type, and the same extents in all other dimensions.
    """

    moves = True
    dim: int

    def validate(self) -> None:
        if not 0 <= self.dim < 4:
            raise ParameterError(f"concat: dim must be 0 to 3 (ne order), got {self.dim}", op=self, got=self.dim)

    def result(self, a: Tensor, b: Tensor) -> Spec:
        if a.type is not b.type:
            mismatch(self, "a and b must have the same type", a, b)
        ne = list(a.ne)
        ne[self.dim] = b.ne[self.dim]
        if tuple(ne) != b.ne:
            misfit(self, f"a and b must have the same extents except in dimension {self.dim}", a, b)
        ne[self.dim] += a.ne[self.dim]
        return Spec(a.type, (ne[0], ne[1], ne[2], ne[3]), max(a.rank, b.rank, self.dim + 1))

    def reference(self, a: Array, b: Array) -> Array:
        return np.concatenate((a, b), axis=3 - self.dim)


class Repeat(Op):
    """x repeated in each dimension to the extents ``ne``  (ggml_repeat, ggml_repeat_4d).

    Each extent must be a multiple of x's.  Any strides.
    """

    moves = True
    ne: tuple[int, ...]

    def result(self, x: Tensor) -> Spec:
        ne, rank = extents(self.ne)
        if not all(map(is_multiple, ne, x.ne)):
            misfit(self, f"the extents {self.ne} must be multiples of x's", x)
        return Spec(x.type, ne, max(rank, x.rank))

    def reference(self, x: Array) -> Array:
        return tile(x, extents(self.ne)[0][::-1])


cpy = builder(Cpy)
dup = builder(Dup)
concat = builder(Concat)
_cont = builder(Cont)
_repeat = builder(Repeat)


@explained_by(Cont)
def cont(x: Tensor, *ne: int, name: str = "") -> Tensor:
    """``cont(x)`` or ``cont(x, ne0, ne1, ...)``: a contiguous copy, optionally with other extents."""
    return _cont(x, ne[0] if len(ne) == 1 and isinstance(ne[0], (tuple, list)) else ne, name=name)


@explained_by(Dup)
def cast(x: Tensor, type: Type | str, *, name: str = "") -> Tensor:
    """A contiguous copy of x in another type (ggml_cast)."""
    return dup(x, as_type(type), name=name)


@explained_by(Dup)
def add_cast(a: Tensor, b: Tensor, type: Type | str, *, name: str = "") -> Tensor:
    """y = a + b, rounded once to ``type`` (ggml_add_cast); b is repeated to a's shape.

    a: any float or quantised type; b: as for :func:`~ggplug.ops.add`.  Result: contiguous, of a's shape.
    """
    wide, wanted = a if a.type is F32 else cast(a, F32), as_type(type)
    return add(wide, b, name=name) if wanted is F32 else cast(add(wide, b), wanted, name=name)


@explained_by(Repeat)
def repeat(x: Tensor, *ne: int | Tensor, name: str = "") -> Tensor:
    """``repeat(x, ne0, ne1, ...)`` or ``repeat(x, like)``: x repeated to these extents."""
    if len(ne) == 1 and isinstance(ne[0], Tensor):
        like = ne[0]
        return _repeat(x, like.ne[: max(like.rank, x.rank)], name=name)
    return _repeat(x, ne[0] if len(ne) == 1 and isinstance(ne[0], (tuple, list)) else ne, name=name)
