"""Types of one or two bits per number, with one F16 scale per block: Q1_0, Q2_0 (``quantize_row_q1_0_ref``).

Q1_0: signs; the scale is the mean of the magnitudes.  Q2_0: -1, 0, 1 or 2 times the largest magnitude.  All numbers of
a block with a NaN or an infinity decode as NaN: its scale is NaN and everything else is zero.
"""

from __future__ import annotations

import numpy as np

from ggplug import types
from ggplug.quants.codec import Blocks, Codec, Values, register
from ggplug.quants.rounding import half_away, reciprocal
from ggplug.quants.search import total

_F = np.float32


def _poison(values: Values, blocks: Blocks) -> None:
    bad = ~np.isfinite(values).all(axis=1)
    if bad.any():
        blocks[bad] = np.zeros((), blocks.dtype)
        blocks["d"][bad] = np.nan


def _encode_q1_0(values: Values, blocks: Blocks) -> None:
    blocks["d"] = total(np.abs(values.T)) / _F(128)
    blocks["qs"] = np.packbits(values >= 0, axis=1, bitorder="little")
    _poison(values, blocks)


def _decode_q1_0(blocks: Blocks, values: Values) -> None:
    scale = blocks["d"].astype(_F)[:, None]
    values[:] = np.where(np.unpackbits(blocks["qs"], axis=1, bitorder="little"), scale, -scale)


def _encode_q2_0(values: Values, blocks: Blocks) -> None:
    largest = np.abs(values).max(axis=1)
    blocks["d"] = largest
    numbers = np.clip(half_away(values * reciprocal(largest)[:, None]) + _F(1), 0, 3).astype(np.uint8)
    shifts = np.array([0, 2, 4, 6], np.uint8)
    blocks["qs"] = np.bitwise_or.reduce(numbers.reshape(-1, 16, 4) << shifts, axis=2)
    _poison(values, blocks)


def _decode_q2_0(blocks: Blocks, values: Values) -> None:
    numbers = blocks["qs"][:, :, None] >> np.array([0, 2, 4, 6], np.uint8) & 3
    scale = blocks["d"].astype(_F)[:, None]
    np.multiply(numbers.view(np.int8).reshape(-1, 64) - np.int8(1), scale, out=values)


register(Codec(types.Q1_0, _encode_q1_0, _decode_q1_0), Codec(types.Q2_0, _encode_q2_0, _decode_q2_0))
