"""Microscaling types: blocks whose scale is a power of two (OCP Microscaling Formats 1.0; ``quantize_row_mxfp4_ref``).

The scale of a block is ``2 ** (e - 128)``, and numbers are levels of E2M1, doubled so that they are whole.  The encoder
takes the scale from the exponent of the largest element; C's ``log2f``, by which ggml finds it, is sometimes one more
for an element a few units in the last place below a power of two.

The format has no NaN: a block with a NaN or an infinity gets the scale 255 (which the specification calls NaN) and the
largest level throughout, so it reads as infinity as a whole.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ggplug import types
from ggplug.quants.codec import Blocks, Codec, Values, register

#: ``kvalues_mxfp4``: what each number from 0 to 15 stands for, times the scale.
MXFP4_LEVELS = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int8)

_F = np.float32
_LEVELS = MXFP4_LEVELS.astype(_F)


def _scale(e: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    """``2 ** (e - 128)``, subnormal for the two smallest (``ggml_e8m0_to_fp32_half``)."""
    wide = e.astype(np.uint32)
    return np.where(wide < 2, np.uint32(0x0020_0000) << wide, (wide - 1) << 23).view(_F)


def _encode_mxfp4(values: Values, blocks: Blocks) -> None:
    largest = np.abs(values).max(axis=1)
    _, exponent = np.frexp(largest)
    e = np.where(largest > 0, np.clip(exponent + (127 - 3), 0, 255), 0).astype(np.uint8)
    bad = ~np.isfinite(largest)
    e[bad] = 255
    blocks["e"] = e
    scale = _scale(e)[:, None]
    numbers = np.zeros(values.shape, np.uint8)
    least = np.abs(_LEVELS[0] * scale - values)
    for number in range(1, 16):
        error = np.abs(_LEVELS[number] * scale - values)
        better = error < least
        numbers[better] = number
        least = np.where(better, error, least)
    numbers[bad] = 7
    blocks["qs"] = numbers[:, :16] | numbers[:, 16:] << 4


def _decode_mxfp4(blocks: Blocks, values: Values) -> None:
    packed = blocks["qs"]
    scale = _scale(blocks["e"])[:, None]
    np.multiply(MXFP4_LEVELS[packed & 15], scale, out=values[:, :16])
    np.multiply(MXFP4_LEVELS[packed >> 4], scale, out=values[:, 16:])


register(Codec(types.MXFP4, _encode_mxfp4, _decode_mxfp4))
