"""Matrix products as cuBLAS defines them: columns first, leading dimensions and strides counted in elements."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]


class Matrices(NamedTuple):
    """``batch`` matrices of ``rows`` x ``columns`` at an address, before any transposition."""

    address: int
    rows: int
    columns: int
    leading: int
    stride: int
    batch: int

    @property
    def bytes(self) -> int:
        """From the first byte to the last one."""
        if not self.rows * self.columns:
            return 0
        return 4 * ((self.batch - 1) * self.stride + (self.columns - 1) * self.leading + self.rows)

    def view(self, memory: npt.NDArray[np.uint8]) -> Floats:
        """The matrices in memory, as ``[batch, row, column]``."""
        shape, strides = (self.batch, self.rows, self.columns), (4 * self.stride, 4, 4 * self.leading)
        return np.lib.stride_tricks.as_strided(memory.view(np.float32), shape, strides)


def product(
    alpha: float, a: Floats, transpose_a: bool, b: Floats, transpose_b: bool, beta: float, c: Floats, tf32: bool
) -> None:
    """c = alpha op(a) op(b) + beta c; where beta is 0, c is not read."""
    left = a.transpose(0, 2, 1) if transpose_a else a
    right = b.transpose(0, 2, 1) if transpose_b else b
    if tf32:
        left, right = rounded_to_tf32(left), rounded_to_tf32(right)
    with np.errstate(all="ignore"):  # cuBLAS says nothing of infinities and NaN
        found = np.float32(alpha) * (left @ right)
        c[...] = found + np.float32(beta) * c if beta else found


def rounded_to_tf32(x: Floats) -> Floats:
    """The nearest values with ten bits of mantissa, as tensor cores take them (PTX, ``cvt.rna.tf32.f32``)."""
    bits = np.ascontiguousarray(x).view(np.uint32)
    rounded = ((bits + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(np.float32)
    return np.where(np.isfinite(x), rounded, x)
