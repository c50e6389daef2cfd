"""Elements moved to other positions: padded, reflected, rolled.  Any strides; the result is contiguous."""

from __future__ import annotations

import numpy as np

from ggplug.errors import ParameterError
from ggplug.ops.base import Array, Op, builder, explained_by, misfit, mismatch
from ggplug.tensor import Spec, Tensor

__all__ = ["Pad", "PadReflect1d", "Roll", "pad", "pad_circular", "pad_ext", "pad_reflect_1d", "roll"]


def _require_plain(op: Op, x: Tensor) -> None:
    if x.type.is_quantized:
        mismatch(op, f"single elements of {x.type.name} cannot be moved (use gg.cast)", x)


class Pad(Op):
    """x with ``before[d]`` elements before and ``after[d]`` after it in each dimension d  (ggml_pad, ggml_pad_ext).

    x: of any plain type.  The added elements are 0; with ``circular`` they are those of the opposite side, as on a
    torus (ggml_pad_circular, ggml_pad_ext_circular).
    """

    before: tuple[int, ...]
    after: tuple[int, ...]
    circular: bool = False

    def validate(self) -> None:
        for side in (self.before, self.after):
            if len(side) != 4 or min(side) < 0:
                raise ParameterError(
                    f"pad: before and after must be four numbers >= 0 each, got {side}", op=self, got=side
                )

    def result(self, x: Tensor) -> Spec:
        _require_plain(self, x)
        n0, n1, n2, n3 = (b + n + a for b, n, a in zip(self.before, x.ne, self.after, strict=True))
        if self.circular and not x.size and n0 * n1 * n2 * n3:
            misfit(self, "circular padding needs a tensor with elements", x)
        rank = max((i + 1 for i, n in enumerate((n0, n1, n2, n3)) if n != 1), default=0)
        return Spec(x.type, (n0, n1, n2, n3), max(x.rank, rank))

    def reference(self, x: Array) -> Array:
        widths = list(zip(self.before, self.after, strict=True))[::-1]
        if self.circular and x.size:
            return np.pad(x, widths, mode="wrap")
        return np.pad(x, widths)


class PadReflect1d(Op):
    """Rows with ``p0`` elements before and ``p1`` after, reflected at the first and last  (ggml_pad_reflect_1d).

    x: of any plain type; a row a, b, c, d padded by 1 and 2 is b, a, b, c, d, c, b.  p0 and p1 are less than ne0.
    """

    name = "pad_reflect_1d"
    moves = True

    p0: int
    p1: int

    def validate(self) -> None:
        if min(self.p0, self.p1) < 0:
            raise ParameterError(
                f"pad_reflect_1d: p0 and p1 must be >= 0, got {self.p0} and {self.p1}", op=self, got=(self.p0, self.p1)
            )

    def result(self, x: Tensor) -> Spec:
        _require_plain(self, x)
        if max(self.p0, self.p1) >= x.ne[0]:
            misfit(self, f"p0 {self.p0} and p1 {self.p1} must be less than ne0", x)
        return Spec(x.type, (x.ne[0] + self.p0 + self.p1, *x.ne[1:]), max(1, x.rank))

    def reference(self, x: Array) -> Array:
        return np.pad(x, [(0, 0)] * 3 + [(self.p0, self.p1)], mode="reflect")


class Roll(Op):
    """y[i] = x[(i - shift) mod extent] in each dimension  (ggml_roll).

    x: of any plain type.  ``shifts``: four, in ``ne`` order, of either sign.
    """

    moves = True

    shifts: tuple[int, ...]

    def validate(self) -> None:
        if len(self.shifts) != 4:
            raise ParameterError(f"roll: there must be four shifts, got {self.shifts}", op=self, got=self.shifts)

    def result(self, x: Tensor) -> Spec:
        _require_plain(self, x)
        return Spec(x.type, x.ne, x.rank)

    def reference(self, x: Array) -> Array:
        return np.roll(x, self.shifts[::-1], axis=(0, 1, 2, 3))


_pad = builder(Pad)
_roll = builder(Roll)
pad_reflect_1d = builder(PadReflect1d)


@explained_by(Pad)
def pad(x: Tensor, p0: int = 0, p1: int = 0, p2: int = 0, p3: int = 0, *, name: str = "") -> Tensor:
    """``pad(x, p0, p1, p2, p3)``: x followed by that number of zeros in each dimension (ggml_pad)."""
    return _pad(x, (0, 0, 0, 0), (p0, p1, p2, p3), name=name)


@explained_by(pad)
def pad_circular(x: Tensor, p0: int = 0, p1: int = 0, p2: int = 0, p3: int = 0, *, name: str = "") -> Tensor:
    """:func:`pad` with the elements of the opposite side instead of zeros (ggml_pad_circular)."""
    return _pad(x, (0, 0, 0, 0), (p0, p1, p2, p3), True, name=name)


@explained_by(Pad)
def pad_ext(
    x: Tensor,
    lp0: int = 0,
    rp0: int = 0,
    lp1: int = 0,
    rp1: int = 0,
    lp2: int = 0,
    rp2: int = 0,
    lp3: int = 0,
    rp3: int = 0,
    *,
    circular: bool = False,
    name: str = "",
) -> Tensor:
    """``lp`` elements before and ``rp`` after x in each dimension.

    (ggml_pad_ext, and with ``circular`` ggml_pad_ext_circular.)
    """
    return _pad(x, (lp0, lp1, lp2, lp3), (rp0, rp1, rp2, rp3), circular, name=name)


@explained_by(Roll)
def roll(x: Tensor, shift0: int = 0, shift1: int = 0, shift2: int = 0, shift3: int = 0, *, name: str = "") -> Tensor:
    """``roll(x, shift0, ...)``: elements moved cyclically in each dimension."""
    return _roll(x, (shift0, shift1, shift2, shift3), name=name)
