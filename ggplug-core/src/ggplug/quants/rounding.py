"""Rounding and reciprocals in float32, as in ggml's encoders."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Whole = npt.NDArray[np.int32]

#: Adding it leaves the nearest whole number in the lower bits (``nearest_int``).
_MAGIC = np.float32(12582912)
# trunc(x + copysign(this, x)) is C's roundf(x): half away from zero.  With 0.5 itself, the float just below a
# half would be rounded up by the addition.
_BELOW_HALF = np.nextafter(np.float32(0.5), np.float32(0))


def nearest(values: Floats) -> Whole:
    """Rounds to nearest, ties to even, exactly as in ggml, also where numbers are out of range; NaN becomes 0."""
    whole: Whole = ((values + _MAGIC).view(np.int32) & 0x7FFFFF) - 0x400000
    return whole


def half_away(values: Floats) -> Floats:
    """Rounds to nearest, ties away from zero (``roundf``)."""
    rounded: Floats = np.trunc(values + np.copysign(_BELOW_HALF, values))
    return rounded


def reciprocal(scale: Floats, of: float = 1) -> Floats:
    """``of / scale``; 0 where that is not finite, so that blocks of zeros, or of tiny numbers, become zeros."""
    inverse: Floats = np.float32(of) / scale
    inverse[~np.isfinite(inverse)] = 0
    return inverse
