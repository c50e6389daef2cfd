"""Ternary types: super-blocks of 256 numbers -1, 0, 1 with one F16 scale, the largest magnitude: TQ1_0, TQ2_0.

TQ1_0 packs five numbers into a byte q, as base-3 digits of the fraction q / 256: the integer part of three times the
fraction is the first digit (``quantize_row_tq1_0_ref``).  TQ2_0 packs four numbers of two bits.  All numbers of a block
with a NaN or an infinity decode as NaN: its scale is NaN and everything else is zero.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ggplug import types
from ggplug.quants.codec import Blocks, Codec, Values, register
from ggplug.quants.rounding import half_away, reciprocal

Bytes = npt.NDArray[np.uint8]

#: The layout of TQ1_0: for each field its bytes, and how many numbers each byte holds.
_PIECES = (("qs", 0, 32, 5), ("qs", 32, 48, 5), ("qh", 0, 4, 4))


def _numbers(values: Values, blocks: Blocks) -> Bytes:
    """Numbers from 0 to 2; writes the scales."""
    largest = np.abs(values).max(axis=1)
    numbers: Bytes = (half_away(values * reciprocal(largest)[:, None]) + np.float32(1)).astype(np.uint8)
    bad = ~np.isfinite(largest)
    numbers[bad] = 0
    largest[bad] = np.nan
    blocks["d"] = largest
    return numbers


def _encode_tq1_0(values: Values, blocks: Blocks) -> None:
    numbers = _numbers(values, blocks).astype(np.uint16)
    at = 0
    for field, start, stop, digits in _PIECES:
        width = stop - start
        found = np.zeros((len(values), width), np.uint16)
        for place in range(5):
            found *= 3
            if place < digits:
                found += numbers[:, at + place * width : at + (place + 1) * width]
        at += digits * width
        blocks[field][:, start:stop] = (found * 256 + 242) // 243  # rounded up
    blocks["qs"][np.isnan(blocks["d"])] = 0
    blocks["qh"][np.isnan(blocks["d"])] = 0


def _decode_tq1_0(blocks: Blocks, values: Values) -> None:
    scale = blocks["d"].astype(np.float32)[:, None]
    at = 0
    for field, start, stop, digits in _PIECES:
        rest = blocks[field][:, start:stop].copy()
        for _ in range(digits):
            number = (rest.astype(np.uint16) * 3 >> 8).astype(np.int8) - np.int8(1)
            np.multiply(number, scale, out=values[:, at : at + stop - start])
            rest *= 3
            at += stop - start


def _encode_tq2_0(values: Values, blocks: Blocks) -> None:
    numbers = _numbers(values, blocks).reshape(-1, 2, 4, 32)
    shifts = np.array([[0], [2], [4], [6]], np.uint8)
    blocks["qs"] = np.bitwise_or.reduce(numbers << shifts, axis=2).reshape(-1, 64)


def _decode_tq2_0(blocks: Blocks, values: Values) -> None:
    scale = blocks["d"].astype(np.float32)[:, None]
    packed = blocks["qs"].reshape(-1, 2, 1, 32) >> np.array([[0], [2], [4], [6]], np.uint8)
    np.multiply((packed & 3).view(np.int8).reshape(-1, 256) - np.int8(1), scale, out=values)


register(Codec(types.TQ1_0, _encode_tq1_0, _decode_tq1_0), Codec(types.TQ2_0, _encode_tq2_0, _decode_tq2_0))
