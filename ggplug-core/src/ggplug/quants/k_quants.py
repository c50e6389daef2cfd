"""K-quants: super-blocks of 256 elements, in groups whose scales are themselves quantised (``quantize_row_q*_K_ref``).

The encoders search for the scale of a group that loses least, weighted towards large elements.  The arithmetic is
float32 in ggml's order, every sum one addition after the other, so the bytes are ggml's.  A super-block with a NaN or
an infinity reads as NaN as a whole: its scale is NaN and everything else is zero.

The encoders transpose first: one long vector operation handles all groups at once.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ggplug import types
from ggplug.quants.codec import Blocks, Codec, Values, register

Floats = npt.NDArray[np.float32]
Whole = npt.NDArray[np.int32]

_F = np.float32
#: Groups with no element as large as this have the scale 0 (``GROUP_MAX_EPS``).
_ALL_ZERO = _F(1e-15)
#: Adding it leaves the nearest whole number in the lower bits (``nearest_int``).
_MAGIC = _F(12582912)


def _nearest(values: Floats) -> Whole:
    """Rounded to the nearest, ties to even, exactly as ggml does it: also for what is too large, and 0 for NaN."""
    whole: Whole = ((values + _MAGIC).view(np.int32) & 0x7FFFFF) - 0x400000
    return whole


def _sum(terms: Floats) -> Floats:
    """Sums over the first axis, one term after the other."""
    total: Floats = np.add.accumulate(terms, axis=0)[-1]
    return total


def _with_minimum(x: Floats) -> tuple[Floats, Floats, Whole]:
    """Scales, negated minima, and numbers from 0 to 31 for the groups of ``x`` [32, n] (``make_qkx2_quants``)."""
    top = 31
    weights = np.sqrt(_sum(x * x) / _F(32)) + np.abs(x)
    sum_w, sum_x = _sum(weights), _sum(weights * x)
    high = x.max(axis=0)
    low = np.minimum(x.min(axis=0), _F(0))
    level = high == low
    inverse = _F(top) / (high - low)
    scale: Floats = _F(1) / inverse
    numbers = np.clip(_nearest(inverse * (x - low)), 0, top)
    difference = scale * numbers.astype(_F) + low - x
    least = _sum(weights * (difference * difference))
    for step in range(16):
        inverse = (_F(-0.5) + _F(0.1) * _F(step) + _F(top)) / (high - low)
        trial = np.clip(_nearest(inverse * (x - low)), 0, top)
        l = trial.astype(_F)
        weighted = weights * l
        sum_l, sum_l2, sum_xl = _sum(weighted), _sum(weighted * l), _sum(weighted * x)
        determinant = sum_w * sum_l2 - sum_l * sum_l
        new_scale = (sum_w * sum_xl - sum_x * sum_l) / determinant
        new_low = (sum_l2 * sum_x - sum_l * sum_xl) / determinant
        above = new_low > 0
        new_low[above] = 0
        new_scale[above] = (sum_xl / sum_l2)[above]
        difference = new_scale * l + new_low - x
        error = _sum(weights * (difference * difference))
        better = (determinant > 0) & (error < least) & ~level
        numbers[:, better] = trial[:, better]
        least[better] = error[better]
        scale[better] = new_scale[better]
        low[better] = new_low[better]
    numbers[:, level] = 0
    scale[level] = 0
    return scale, -low, numbers


def _encode_q5_k(values: Values, blocks: Blocks) -> None:
    n = len(values)
    x: Floats = np.ascontiguousarray(values.reshape(n * 8, 32).T)
    scale, minimum, numbers = _with_minimum(x)
    scale, minimum = scale.reshape(n, 8), minimum.reshape(n, 8)
    top_scale = np.fmax.reduce(scale, axis=1, initial=_F(0))
    top_minimum = np.fmax.reduce(minimum, axis=1, initial=_F(0))
    parts = []
    for each, top in ((scale, top_scale), (minimum, top_minimum)):
        inverse = np.where(top > 0, _F(63) / top, _F(0))
        parts.append(np.minimum(_nearest(inverse[:, None] * each).astype(np.uint8), 63))
    scales, minima = parts
    blocks["d"] = top_scale / _F(63)
    blocks["dmin"] = top_minimum / _F(63)
    blocks["scales"] = _pack_scales(scales, minima)
    d = (blocks["d"].astype(_F)[:, None] * scales.astype(_F)).reshape(-1)
    m = (blocks["dmin"].astype(_F)[:, None] * minima.astype(_F)).reshape(-1)
    again = np.clip(_nearest((x + m) / d), 0, 31)
    numbers = np.where(d == 0, numbers, again)
    q = np.ascontiguousarray(numbers.T).astype(np.uint8).reshape(n, 4, 2, 32)
    blocks["qs"] = ((q[:, :, 0] & 15) | (q[:, :, 1] & 15) << 4).reshape(n, 128)
    shifts = np.arange(8, dtype=np.uint8)[:, None]
    blocks["qh"] = np.bitwise_or.reduce((q.reshape(n, 8, 32) >> 4) << shifts, axis=1)
    _poison(values, blocks)


def _pack_scales(scales: npt.NDArray[np.uint8], minima: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Eight scales and eight minima of six bits in twelve bytes."""
    upper = [each[:, :4] | (each[:, 4:] >> 4) << 6 for each in (scales, minima)]
    return np.concatenate([*upper, (scales[:, 4:] & 15) | (minima[:, 4:] & 15) << 4], axis=1)


def unpack_scales(packed: npt.NDArray[np.uint8]) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    """Scales and minima, each [n, 8] from 0 to 63, of Q4_K's and Q5_K's field ``scales`` [n, 12]."""
    low, high, mixed = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = np.concatenate([low & 63, (mixed & 15) | (low >> 6) << 4], axis=1)
    minima = np.concatenate([high & 63, (mixed >> 4) | (high >> 6) << 4], axis=1)
    return scales, minima


def _decode_q5_k(blocks: Blocks, values: Values) -> None:
    n = len(blocks)
    scales, minima = unpack_scales(blocks["scales"])
    d = blocks["d"].astype(_F)[:, None] * scales.astype(_F)
    m = blocks["dmin"].astype(_F)[:, None] * minima.astype(_F)
    packed = blocks["qs"].reshape(n, 4, 1, 32) >> np.array([[0], [4]], np.uint8)
    fifth = blocks["qh"][:, None] >> np.arange(8, dtype=np.uint8)[:, None]
    numbers = (packed & 15).reshape(n, 8, 32) | (fifth & 1) << 4
    out = values.reshape(n, 8, 32)
    np.multiply(numbers, d[:, :, None], out=out)
    np.subtract(out, m[:, :, None], out=out)


def _signed(x: Floats) -> tuple[Floats, Whole]:
    """Scales, and numbers from 0 to 63 of which 32 is zero, for the groups of ``x`` [16, n] (``make_qx_quants``)."""
    top = 32
    weights = x * x
    largest = np.take_along_axis(x, np.abs(x).argmax(axis=0)[None], axis=0)[0]
    nothing = np.abs(largest) < _ALL_ZERO
    scale = best = np.zeros_like(largest)
    numbers = np.zeros(x.shape, np.int32)
    for step in (0, *range(-9, 0), *range(1, 10)):
        inverse = -(_F(top) + _F(0.1) * _F(step)) / largest
        trial = np.clip(_nearest(inverse * x), -top, top - 1)
        l = trial.astype(_F)
        sum_xl, sum_l2 = _sum(weights * x * l), _sum(weights * l * l)
        ratio = sum_xl / sum_l2
        if step == 0:
            numbers = trial + top
            scale = np.where(sum_l2 != 0, ratio, _F(0))
            best = scale * sum_xl
        else:
            better = (sum_l2 > 0) & (sum_xl * sum_xl > best * sum_l2)
            numbers[:, better] = trial[:, better] + top
            scale[better] = ratio[better]
            best[better] = (ratio * sum_xl)[better]
    numbers[:, nothing] = 0
    scale[nothing] = 0
    return scale, numbers


def _encode_q6_k(values: Values, blocks: Blocks) -> None:
    n = len(values)
    x: Floats = np.ascontiguousarray(values.reshape(n * 16, 16).T)
    scale, numbers = _signed(x)
    scale = scale.reshape(n, 16)
    size = np.where(np.isnan(scale), _F(0), np.abs(scale))  # of numbers whose squares are too large
    largest = np.take_along_axis(scale, size.argmax(axis=1)[:, None], axis=1)
    inverse = _F(-128) / largest
    nothing = size.max(axis=1) < _ALL_ZERO
    blocks["d"] = (_F(1) / inverse)[:, 0]
    blocks["scales"] = np.minimum(_nearest(inverse * scale), 127).astype(np.int8)
    d = (blocks["d"].astype(_F)[:, None] * blocks["scales"].astype(_F)).reshape(-1)
    again = np.clip(_nearest(x / d), -32, 31) + 32
    numbers = np.where(d == 0, numbers, again)
    q = np.ascontiguousarray(numbers.T).astype(np.uint8).reshape(n, 2, 4, 32)
    low, high = q & 15, q >> 4
    blocks["ql"] = (low[:, :, :2] | low[:, :, 2:] << 4).reshape(n, 128)
    shifts = np.array([[0], [2], [4], [6]], np.uint8)
    blocks["qh"] = np.bitwise_or.reduce(high << shifts, axis=2).reshape(n, 64)
    blocks[nothing] = np.zeros((), blocks.dtype)
    _poison(values, blocks)


def _decode_q6_k(blocks: Blocks, values: Values) -> None:
    n = len(blocks)
    d = blocks["d"].astype(_F)[:, None] * blocks["scales"].astype(_F)
    low = blocks["ql"].reshape(n, 2, 1, 64) >> np.array([[0], [4]], np.uint8)
    high = blocks["qh"].reshape(n, 2, 1, 32) >> np.array([[0], [2], [4], [6]], np.uint8)
    numbers = (low & 15).reshape(n, 2, 4, 32) | (high & 3) << 4
    signed = numbers.view(np.int8).reshape(n, 16, 16) - np.int8(32)
    np.multiply(signed, d[:, :, None], out=values.reshape(n, 16, 16))


def _poison(values: Values, blocks: Blocks) -> None:
    """Blocks of values that are not all finite become one NaN each."""
    bad = ~np.isfinite(values).all(axis=1)
    if bad.any():
        blocks[bad] = np.zeros((), blocks.dtype)
        blocks["d"][bad] = np.nan


register(
    Codec(types.Q5_K, _encode_q5_k, _decode_q5_k),
    Codec(types.Q6_K, _encode_q6_k, _decode_q6_k),
)
