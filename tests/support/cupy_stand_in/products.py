"""Matrix products as cuBLAS defines them: columns first, leading dimensions and strides counted in elements."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]


class Matrices(NamedTuple):
    """``batch`` matrices of ``rows`` x ``columns`` at an address."""

    address: int
    rows: int
    columns: int
    leading: int
    stride: int
    batch: int

    @property
    def bytes(self) -> int:
        """From the first byte to the last one."""
        return 4 * ((self.batch - 1) * self.stride + (self.columns - 1) * self.leading + self.rows)

    def view(self, memory: npt.NDArray[np.uint8]) -> Floats:
        """The matrices in memory, as ``[batch, row, column]``."""
        shape, strides = (self.batch, self.rows, self.columns), (4 * self.stride, 4, 4 * self.leading)
        return np.lib.stride_tricks.as_strided(memory.view(np.float32), shape, strides)


def product(a: Floats, b: Floats, c: Floats, tf32: bool) -> None:
    """Makes c the product of a, transposed, and b; it is not read."""
    if tf32:
        a, b = rounded_to_tf32(a), rounded_to_tf32(b)
    with np.errstate(all="ignore"):  # cuBLAS says nothing of infinities and NaN
        c[...] = a.transpose(0, 2, 1) @ b


def rounded_to_tf32(x: Floats) -> Floats:
    """The nearest values with ten bits of mantissa, as tensor cores take them (PTX, ``cvt.rna.tf32.f32``)."""
    bits = np.ascontiguousarray(x).view(np.uint32)
    rounded = ((bits + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(np.float32)
    return np.where(np.isfinite(x), rounded, x)
