"""Round-to-nearest types: blocks of 32 elements with one F16 scale, and perhaps a minimum (``quantize_row_*_ref``).

The arithmetic is float32 in ggml's order, so the bytes are ggml's.  A block whose scale is so small that
its reciprocal overflows encodes as zeros: in C the result is undefined there.  So it is of a NaN or an infinity,
which make their whole block NaN: its scale is not finite (NaN as 0x7E00) and its numbers are zeros.

The encoders transpose first: with blocks along the last axis every step is one long vector operation, and
32-element reductions become 31 of them.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ggplug import types
from ggplug.quants.codec import Blocks, Codec, Values, register

Floats = npt.NDArray[np.float32]

# trunc(x + copysign(this, x)) is C's roundf(x): half away from zero.  With 0.5 itself, the float just below a
# half would be rounded up by the addition.
_BELOW_HALF = np.nextafter(np.float32(0.5), np.float32(0))


def _reciprocal(scale: Floats) -> Floats:
    inverse: Floats = np.float32(1) / scale
    inverse[~np.isfinite(inverse)] = 0
    return inverse


def _poison(columns: Floats, scale: Floats) -> None:
    """Of blocks whose scale is not finite: no numbers, and one NaN for all."""
    bad = ~np.isfinite(scale)
    if bad.any():
        columns[:, bad] = 0
        scale[np.isnan(scale)] = np.nan


def _first_extreme(columns: Floats) -> Floats:
    """The element of largest magnitude in each column with its sign; of a tie, the first."""
    low, high = columns.min(axis=0), columns.max(axis=0)
    extreme: Floats = np.where(-low > high, low, high)
    tie = np.flatnonzero((-low == high) & (high != 0))
    if tie.size:
        first = np.abs(columns[:, tie]).argmax(axis=0)
        extreme[tie] = columns[first, tie]
    extreme += 0  # of zeros always the positive one
    return extreme


def _encode_q4_0(values: Values, blocks: Blocks) -> None:
    columns: Floats = np.array(values.T, order="C")  # a copy even of a single block, which is changed below
    scale = _first_extreme(columns) / np.float32(-8)
    _poison(columns, scale)
    blocks["d"] = scale
    columns *= _reciprocal(scale)
    columns += np.float32(8.5)
    quants = columns.astype(np.uint8)
    np.minimum(quants, 15, out=quants)
    high = quants[16:]
    high <<= 4
    high |= quants[:16]
    blocks["qs"] = high.T


def _decode_q4_0(blocks: Blocks, values: Values) -> None:
    packed = blocks["qs"]
    scale = blocks["d"].astype(np.float32)[:, None]
    np.multiply((packed & 0x0F).view(np.int8) - np.int8(8), scale, out=values[:, :16])
    np.multiply((packed >> 4).view(np.int8) - np.int8(8), scale, out=values[:, 16:])


def _encode_q4_1(values: Values, blocks: Blocks) -> None:
    columns: Floats = np.array(values.T, order="C")  # a copy even of a single block, which is changed below
    # the first of the smallest, so that of two zeros it is the first one's sign
    low = np.take_along_axis(columns, columns.argmin(axis=0)[None], axis=0)[0]
    scale = (columns.max(axis=0) - low) / np.float32(15)
    inverse = _reciprocal(scale)
    bad = ~np.isfinite(columns).all(axis=0)
    columns[:, bad] = low[bad] = inverse[bad] = 0
    scale[bad] = np.nan
    blocks["d"] = scale
    blocks["m"] = low
    columns -= low
    columns *= inverse
    columns += np.float32(0.5)
    quants = columns.astype(np.uint8)
    np.minimum(quants, 15, out=quants)
    blocks["qs"] = (quants[:16] | quants[16:] << 4).T


def _decode_q4_1(blocks: Blocks, values: Values) -> None:
    packed = blocks["qs"]
    scale, low = (blocks[field].astype(np.float32)[:, None] for field in ("d", "m"))
    np.multiply(packed & 0x0F, scale, out=values[:, :16])
    np.multiply(packed >> 4, scale, out=values[:, 16:])
    values += low


def _encode_q8_0(values: Values, blocks: Blocks) -> None:
    columns: Floats = np.array(values.T, order="C")  # a copy even of a single block, which is changed below
    # abs, because a block of zeros has the scale +0.
    largest = np.abs(np.maximum(columns.max(axis=0), -columns.min(axis=0)))
    scale = largest / np.float32(127)
    _poison(columns, scale)
    blocks["d"] = scale
    columns *= _reciprocal(scale)
    columns += np.copysign(_BELOW_HALF, columns)
    quants = columns.astype(np.int8)
    blocks["qs"] = quants.T


def _decode_q8_0(blocks: Blocks, values: Values) -> None:
    np.multiply(blocks["qs"], blocks["d"].astype(np.float32)[:, None], out=values)


register(
    Codec(types.Q4_0, _encode_q4_0, _decode_q4_0),
    Codec(types.Q4_1, _encode_q4_1, _decode_q4_1),
    Codec(types.Q8_0, _encode_q8_0, _decode_q8_0),
)
