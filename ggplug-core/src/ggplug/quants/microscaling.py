"""Microscaling types, whose numbers are levels of E2M1, doubled so that they are integers: MXFP4, NVFP4.

MXFP4 (OCP Microscaling Formats 1.0; ``quantize_row_mxfp4_ref``): the scale of 32 numbers is ``2 ** (e - 128)``.  The
encoder takes it from the exponent of the largest element; C's ``log2f``, by which ggml finds it, is sometimes one more
for an element a few units in the last place below a power of two.  The format has no NaN: a block with a NaN or an
infinity gets the scale 255 (which the specification calls NaN) and the largest level for all numbers, so they decode as
infinity.

NVFP4 (``quantize_row_nvfp4_ref``): the scale of 16 numbers is half of an E4M3 number without sign, by which the
largest element is the largest level; a block has four scales.  The format has neither NaN nor infinity, and E4M3's
NaN decodes as 0: if one of sixteen numbers is NaN or infinite, all decode as the largest number of the format.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ggplug import types
from ggplug.quants.codec import Blocks, Codec, Values, register

#: ``kvalues_mxfp4``: the value of each number from 0 to 15 in both types, to be multiplied by the scale.
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
    _write(blocks["qs"], values, _scale(e), bad)


def _write(qs: Values, values: Values, scale: npt.NDArray[np.float32], bad: npt.NDArray[np.bool_]) -> None:
    """Writes the nearest levels of groups [n, size], the low nibbles first; where ``bad``, always the largest."""
    numbers = np.zeros(values.shape, np.uint8)
    scale = scale[:, None]
    least = np.abs(_LEVELS[0] * scale - values)
    for number in range(1, 16):
        error = np.abs(_LEVELS[number] * scale - values)
        better = error < least
        numbers[better] = number
        least = np.where(better, error, least)
    numbers[bad] = 7
    half = values.shape[1] // 2
    qs[:] = numbers[:, :half] | numbers[:, half:] << 4


def _decode_mxfp4(blocks: Blocks, values: Values) -> None:
    packed = blocks["qs"]
    scale = _scale(blocks["e"])[:, None]
    np.multiply(MXFP4_LEVELS[packed & 15], scale, out=values[:, :16])
    np.multiply(MXFP4_LEVELS[packed >> 4], scale, out=values[:, 16:])


def _e4m3_table() -> npt.NDArray[np.float32]:
    """Half of the E4M3 value of each byte (``ggml_ue4m3_to_fp32``): the sign is ignored, 127 decodes as 0."""
    bytes_ = np.arange(256)
    exponent, fraction = bytes_ >> 3 & 15, (bytes_ & 7).astype(_F)
    found = np.where(exponent == 0, np.ldexp(fraction, -9), np.ldexp(_F(1) + fraction / _F(8), exponent - 7)) * _F(0.5)
    found[127] = 0
    halves: npt.NDArray[np.float32] = found.astype(_F)
    return halves


#: The scale of each byte.
NVFP4_SCALES = _e4m3_table()


def _e4m3(x: npt.NDArray[np.float32]) -> npt.NDArray[np.uint8]:
    """The nearest E4M3 number, at most 448; of two at the same distance, the greater (``ggml_fp32_to_ue4m3``).

    Values just below 2 ** -6 are rounded down, to the greatest subnormal number.
    """
    bits = x.view(np.int32)
    rounded = (bits + (1 << 19) >> 20) - (120 << 3)  # exponent and three bits of the fraction
    small = (x * _F(512) + _F(0.5)).astype(np.int32)
    found = np.where(x < _F(2**-6), np.minimum(small, 7), np.minimum(rounded, 126))
    return np.where(x > 0, found, 0).astype(np.uint8)


def _encode_nvfp4(values: Values, blocks: Blocks) -> None:
    groups = values.reshape(-1, 16)
    largest = np.abs(groups).max(axis=1)
    bad = ~np.isfinite(largest)
    largest[bad] = _F(448 * 6)
    d = _e4m3(np.minimum(largest / _F(6), _F(448)))
    blocks["d"] = d.reshape(-1, 4)
    qs = np.empty((len(groups), 8), np.uint8)
    _write(qs, groups, NVFP4_SCALES[d], bad)
    blocks["qs"] = qs.reshape(-1, 32)


def _decode_nvfp4(blocks: Blocks, values: Values) -> None:
    packed = blocks["qs"].reshape(-1, 8)
    out = values.reshape(-1, 16)
    scale = NVFP4_SCALES[blocks["d"].reshape(-1)][:, None]
    np.multiply(MXFP4_LEVELS[packed & 15], scale, out=out[:, :8])
    np.multiply(MXFP4_LEVELS[packed >> 4], scale, out=out[:, 8:])


register(Codec(types.MXFP4, _encode_mxfp4, _decode_mxfp4), Codec(types.NVFP4, _encode_nvfp4, _decode_nvfp4))
