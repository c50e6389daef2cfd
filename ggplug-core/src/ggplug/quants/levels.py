"""Types whose numbers are positions in a table of sixteen levels: IQ4_NL.

The arithmetic is float32 in ggml's order, every sum one addition after the other, so the bytes are ggml's.  A block
with a NaN or an infinity reads as NaN as a whole: its scale is NaN and everything else is zero.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ggplug import types
from ggplug.quants.codec import Blocks, Codec, Values, register

Floats = npt.NDArray[np.float32]

#: ``kvalues_iq4nl``: what each number from 0 to 15 stands for, times the scale.
IQ4_NL_LEVELS = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int8)

_F = np.float32
_LEVELS = IQ4_NL_LEVELS.astype(_F)
#: Blocks with no element as large as this have the scale 0 (``GROUP_MAX_EPS``).
_ALL_ZERO = _F(1e-15)


def _nearest_level(values: Floats) -> npt.NDArray[np.intp]:
    """The number of the nearest level, of two at the same distance the greater (``best_index_int8``)."""
    above = np.clip(np.searchsorted(_LEVELS, values, side="right"), 1, 15)
    below = above - 1
    nearer = values - _LEVELS[below] < _LEVELS[above] - values
    found: npt.NDArray[np.intp] = np.where(nearer, below, above)
    found[values <= _LEVELS[0]] = 0
    found[values >= _LEVELS[15]] = 15
    return found


def _sum(terms: Floats) -> Floats:
    """Sums over the first axis, one term after the other."""
    total: Floats = np.add.accumulate(terms, axis=0)[-1]
    return total


def _fit(x: Floats, inverse: Floats) -> tuple[Floats, Floats, npt.NDArray[np.intp]]:
    """``sum(w q x)``, ``sum(w q q)`` and the numbers q of the levels nearest to ``inverse * x``, with weights x * x."""
    numbers = _nearest_level(inverse * x)
    q = _LEVELS[numbers]
    weights = x * x
    return _sum(weights * q * x), _sum(weights * q * q), numbers


def _largest(x: Floats) -> Floats:
    """Of each column the first of the elements that are largest in magnitude."""
    found: Floats = np.take_along_axis(x, np.abs(x).argmax(axis=0)[None], axis=0)[0]
    return found


def _encode_iq4_nl(values: Values, blocks: Blocks) -> None:
    """The best of sixteen scales (``quantize_iq4_nl``)."""
    x: Floats = np.ascontiguousarray(values.T)
    largest = _largest(x)
    sum_qx, sum_q2, _ = _fit(x, _F(1) / (-largest / _LEVELS[0]))
    scale = sum_qx / sum_q2
    best = scale * sum_qx
    for attempt in range(-7, 8):
        sum_qx, sum_q2, _ = _fit(x, (_F(attempt) + _LEVELS[0]) / largest)
        better = (sum_q2 > 0) & (sum_qx * sum_qx > best * sum_q2)
        ratio = sum_qx / sum_q2
        scale[better] = ratio[better]
        best[better] = (ratio * sum_qx)[better]
    scale[np.abs(largest) < _ALL_ZERO] = 0
    inverse = np.where(scale != 0, _F(1) / scale, _F(0))
    _write(blocks, x, scale, _nearest_level(inverse * x))


def _store_iq4_nl(values: Values, blocks: Blocks) -> None:
    """One scale, by which the largest element is the lowest level (``quantize_row_iq4_nl_ref``)."""
    x: Floats = np.ascontiguousarray(values.T)
    largest = _largest(x)
    sum_qx, sum_q2, numbers = _fit(x, _F(1) / (largest / _LEVELS[0]))
    scale = sum_qx / sum_q2
    nothing = np.abs(largest) < _ALL_ZERO
    scale[nothing] = 0
    numbers[:, nothing] = 0
    _write(blocks, x, scale, numbers)


def _write(blocks: Blocks, x: Floats, scale: Floats, numbers: npt.NDArray[np.intp]) -> None:
    scale[np.isnan(scale)] = np.nan  # of numbers whose squares are too large; which NaN depends on the processor
    blocks["d"] = scale
    packed = numbers.astype(np.uint8)
    blocks["qs"] = (packed[:16] | packed[16:] << 4).T
    bad = ~np.isfinite(x).all(axis=0)
    if bad.any():
        blocks[bad] = np.zeros((), blocks.dtype)
        blocks["d"][bad] = np.nan


def _decode_iq4_nl(blocks: Blocks, values: Values) -> None:
    packed = blocks["qs"]
    scale = blocks["d"].astype(_F)[:, None]
    np.multiply(IQ4_NL_LEVELS[packed & 15], scale, out=values[:, :16])
    np.multiply(IQ4_NL_LEVELS[packed >> 4], scale, out=values[:, 16:])


register(Codec(types.IQ4_NL, _encode_iq4_nl, _decode_iq4_nl, store=_store_iq4_nl))
