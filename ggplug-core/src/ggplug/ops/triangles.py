"""Diagonals and triangles of matrices, whose rows are numbered by i1 and columns by i0."""

from __future__ import annotations

import enum

import numpy as np

from ggplug.errors import ParameterError
from ggplug.ops.base import Array, Cost, Op, builder, misfit, mismatch, require_float
from ggplug.tensor import Spec, Tensor
from ggplug.types import F32, FLOATS

__all__ = [
    "Banded",
    "Diag",
    "DiagMask",
    "DiagMaskInf",
    "DiagMaskZero",
    "SolveTri",
    "Tri",
    "TriType",
    "diag",
    "diag_mask_inf",
    "diag_mask_zero",
    "solve_tri",
    "tri",
]


class TriType(enum.IntEnum):
    """Which elements of a matrix are kept (GGML_TRI_TYPE_*)."""

    UPPER_DIAG = 0
    UPPER = 1
    LOWER_DIAG = 2
    LOWER = 3


class Banded(Op, abstract=True):
    """y = x where i1 + first <= i0 <= i1 + last, else a constant; x: any strides, the result has its type and shape."""

    inplace = (0,)

    @property
    def band(self) -> tuple[int | None, int | None]:
        """First and last kept column, relative to the diagonal; None for no limit."""
        raise AssertionError

    @property
    def outside(self) -> float:
        """The value of all other elements."""
        return 0.0

    def result(self, x: Tensor) -> Spec:
        if x.type not in FLOATS:
            require_float(self, x)
        return Spec(x.type, x.ne, x.rank)

    def reference(self, x: Array) -> Array:
        first, last = self.band
        column = np.arange(x.shape[3]) - np.arange(x.shape[2])[:, np.newaxis]
        stays = np.full(column.shape, True)
        if first is not None:
            stays &= column >= first
        if last is not None:
            stays &= column <= last
        return np.where(stays, x, self.outside)


class Tri(Banded):
    """y = x in a triangle, else 0  (ggml_tri).  x: square matrices, any strides.

    ``type``: a :class:`TriType`; the two with DIAG keep the diagonal.
    """

    type: int

    def validate(self) -> None:
        if self.type not in (0, 1, 2, 3):
            known = ", ".join(f"{t.name} {int(t)}" for t in TriType)
            raise ParameterError(f"tri: type {self.type} is none of {known}", op=self, got=self.type)

    @property
    def band(self) -> tuple[int | None, int | None]:
        bands = {
            TriType.UPPER_DIAG: (0, None),
            TriType.UPPER: (1, None),
            TriType.LOWER_DIAG: (None, 0),
            TriType.LOWER: (None, -1),
        }
        return bands[TriType(self.type)]

    def result(self, x: Tensor) -> Spec:
        if x.ne[0] != x.ne[1]:
            misfit(self, "x must be square matrices", x)
        return super().result(x)


class DiagMask(Banded, abstract=True):
    """y = x where i0 <= ``n_past`` + i1, else a constant."""

    n_past: int

    def validate(self) -> None:
        if not 0 <= self.n_past < 1 << 31:
            raise ParameterError(
                f"{self.name}: n_past must be 0 to 2**31 - 1, got {self.n_past}", op=self, got=self.n_past
            )

    @property
    def band(self) -> tuple[int | None, int | None]:
        return None, self.n_past


class DiagMaskInf(DiagMask):
    """y = x where i0 <= ``n_past`` + i1, else -inf: the causal mask of attention  (ggml_diag_mask_inf)."""

    @property
    def outside(self) -> float:
        return -np.inf


class DiagMaskZero(DiagMask):
    """y = x where i0 <= ``n_past`` + i1, else 0  (ggml_diag_mask_zero)."""


class Diag(Op):
    """y[i, i] = x[i], and 0 off the diagonal: [n, n, B, C] from x [n, 1, B, C]  (ggml_diag).  Any strides."""

    def result(self, x: Tensor) -> Spec:
        if x.type not in FLOATS:
            require_float(self, x)
        if x.ne[1] != 1:
            misfit(self, "x must have one row (ne1 is 1)", x)
        return Spec(x.type, (x.ne[0], x.ne[0], *x.ne[2:]), max(2, x.rank))

    def reference(self, x: Array) -> Array:
        return np.where(np.eye(x.shape[3], dtype=bool), x, 0.0)


class SolveTri(Op):
    """The solution x of a x = b, where a is lower triangular  (ggml_solve_tri with left and lower, without uni).

    a: F32 [n, n, B, C], contiguous; elements above the diagonal are not read.  b: F32 [k, n, B, C], contiguous:
    n rows of k right-hand sides.  Result: F32 like b.  A zero on the diagonal gives infinities or NaN, as division
    does.
    """

    def result(self, a: Tensor, b: Tensor) -> Spec:
        if a.type is not F32 or b.type is not F32:
            mismatch(self, "a and b must be f32", a, b)
        if a.ne[0] != a.ne[1] or a.ne[1:] != b.ne[1:]:
            misfit(self, "a must be square matrices with as many rows as b, one for each matrix of b", a, b)
        if not (a.is_contiguous() and b.is_contiguous()):
            misfit(self, "a and b must be contiguous (use gg.cont first)", a, b)
        return Spec(F32, b.ne, b.rank)

    def reference(self, a: Array, b: Array) -> Array:
        x = np.zeros(b.shape)
        with np.errstate(all="ignore"):
            for i in range(b.shape[2]):
                known = np.einsum("bct,bctk->bck", a[:, :, i, :i], x[:, :, :i])
                x[:, :, i] = (b[:, :, i] - known) / a[:, :, i, i, np.newaxis]
        return x

    def cost(self, node: Tensor) -> Cost:
        return Cost(node.size * max(1, node.ne[1]), super().cost(node).bytes)


tri = builder(Tri)
diag_mask_inf = builder(DiagMaskInf)
diag_mask_zero = builder(DiagMaskZero)
diag = builder(Diag)
solve_tri = builder(SolveTri)
