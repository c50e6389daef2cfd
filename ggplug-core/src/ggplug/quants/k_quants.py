"""K-quants: super-blocks of 256 elements, in groups whose scales are themselves quantised (``quantize_row_q*_K_ref``).

The encoders search for the scale of a group with the least error (``search``), weighted towards large elements, or by
an importance matrix.  The arithmetic is float32 in ggml's order, so the bytes are the same.  All numbers of a
super-block with a NaN or an infinity decode as NaN: its scale is NaN and everything else is zero.

Activations are rounded to Q8_K before products with the other types: one float32 scale, and sums of sixteen numbers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from ggplug import types
from ggplug.quants.codec import Blocks, Codec, Values, register
from ggplug.quants.rounding import Floats, Whole, nearest
from ggplug.quants.search import (
    ALL_ZERO,
    largest_of,
    positive,
    refined,
    signed,
    spread_weights,
    total,
    with_minimum,
)

#: Arrays that hold bytes, of any dtype.
Bytes = npt.NDArray[Any]
#: A function from groups [size, n] to their scales, negated minima, and numbers.
Fit = Callable[[Floats], tuple[Floats, Floats, Whole]]

_F = np.float32


def _in_groups(values: Values, size: int) -> Floats:
    """[n, 256] as [``size``, n groups]."""
    return np.ascontiguousarray(values.reshape(-1, size).T)


def _bits(packed: Bytes, each: int) -> Bytes:
    """The numbers of ``each`` bits in bytes [..., n], [..., 8 / ``each``, n]: first the lowest bits of all bytes."""
    shifts = np.arange(0, 8, each, dtype=np.uint8)[:, None]
    return packed[..., None, :] >> shifts & np.uint8((1 << each) - 1)


def _packed(numbers: Bytes, each: int) -> Bytes:
    """The inverse of :func:`_bits`."""
    shifts = np.arange(0, 8, each, dtype=np.uint8)[:, None]
    joined: Bytes = np.bitwise_or.reduce(numbers << shifts, axis=-2)
    return joined


def _poison(values: Values, blocks: Blocks) -> None:
    """Makes all numbers of blocks NaN whose values are not all finite."""
    bad = ~np.isfinite(values).all(axis=-1)
    if bad.any():
        blocks[bad] = np.zeros((), blocks.dtype)
        blocks["d"][bad] = np.nan


def _requantised(x: Floats, numbers: Whole, d: Floats, low: int, high: int) -> Whole:
    """The numbers for the scales as they are stored, where these are not zero."""
    again = np.clip(nearest(x / d), low, high) - min(low, 0)
    return np.where(d == 0, numbers, again)


# -- with a minimum: Q2_K, Q4_K, Q5_K ------------------------------------------------------------------


def _unweighted(x: Floats, top: int, first: float, steps: int) -> tuple[Floats, Floats, Whole]:
    weights = np.sqrt(total(x * x) / _F(32)) + np.abs(x)
    return with_minimum(x, weights, top, first, 0.1, steps)


def _factors(each: Floats, top: int) -> tuple[Floats, Bytes]:
    """Quantises n rows of scales: a common scale for each row, and numbers from 0 to ``top``."""
    largest = np.fmax.reduce(each, axis=1, initial=_F(0)) + _F(0)  # +0 rather than -0
    inverse = np.where(largest > 0, _F(top) / largest, _F(0))
    return largest / _F(top), np.minimum(nearest(inverse[:, None] * each).astype(np.uint8), top)


def _encode_with_minimum(
    values: Values, blocks: Blocks, size: int, top: int, fit: Fit, pack: Callable[[Blocks, Bytes, Bytes, Bytes], None]
) -> None:
    n = len(values)
    x = _in_groups(values, size)
    scale, minimum, numbers = fit(x)
    most = 15 if size == 16 else 63
    blocks["d"], scales = _factors(scale.reshape(n, -1), most)
    blocks["dmin"], minima = _factors(minimum.reshape(n, -1), most)
    _write_with_minimum(blocks, x, numbers, top, scales, minima, pack)
    _poison(values, blocks)


def _weigh_with_minimum(
    values: Values, blocks: Blocks, importance: Values, type: types.Type, top: int, factor: float
) -> None:
    """Encodes with an importance matrix (``quantize_row_q*_K_impl``)."""
    n = values.size // 256
    size = 16 if type is types.Q2_K else 32
    of_blocks = np.broadcast_to(importance, values.shape).reshape(n, 256)
    values, blocks = values.reshape(n, 256), blocks.reshape(n)
    x = _in_groups(values, size)
    weights = spread_weights(values, of_blocks, factor, size)
    scale, minimum, numbers = with_minimum(x, weights, top, -0.9, 0.05, 36)
    of_groups = np.ascontiguousarray(total(weights).reshape(n, -1).T)
    most = 15 if size == 16 else 63
    d, scales = positive(np.ascontiguousarray(scale.reshape(n, -1).T), of_groups, most)
    m, minima = positive(np.ascontiguousarray(minimum.reshape(n, -1).T), of_groups, most)
    blocks["d"], blocks["dmin"] = d, m
    found = scales.T.astype(np.uint8), minima.T.astype(np.uint8)
    _write_with_minimum(blocks, x, numbers, top, *found, _PACKED[type])
    _poison(values, blocks)


def _write_with_minimum(
    blocks: Blocks,
    x: Floats,
    numbers: Whole,
    top: int,
    scales: Bytes,
    minima: Bytes,
    pack: Callable[[Blocks, Bytes, Bytes, Bytes], None],
) -> None:
    d = (blocks["d"].astype(_F)[:, None] * scales.astype(_F)).reshape(-1)
    m = (blocks["dmin"].astype(_F)[:, None] * minima.astype(_F)).reshape(-1)
    numbers = _requantised(x + m, numbers, d, 0, top)
    pack(blocks, scales, minima, np.ascontiguousarray(numbers.T).astype(np.uint8).reshape(len(blocks), 256))


def _pack_q2_k(blocks: Blocks, scales: Bytes, minima: Bytes, numbers: Bytes) -> None:
    blocks["scales"] = scales | minima << 4
    blocks["qs"] = _packed(numbers.reshape(-1, 2, 4, 32), 2).reshape(-1, 64)


def _pack_q4_k(blocks: Blocks, scales: Bytes, minima: Bytes, numbers: Bytes) -> None:
    blocks["scales"] = _pack_scales(scales, minima)
    blocks["qs"] = _packed(numbers.reshape(-1, 4, 2, 32), 4).reshape(-1, 128)


def _pack_q5_k(blocks: Blocks, scales: Bytes, minima: Bytes, numbers: Bytes) -> None:
    _pack_q4_k(blocks, scales, minima, numbers & 15)
    blocks["qh"] = _packed(numbers.reshape(-1, 8, 32) >> 4, 1)


_PACKED = {types.Q2_K: _pack_q2_k, types.Q4_K: _pack_q4_k, types.Q5_K: _pack_q5_k}


def _fit_q2_k(x: Floats) -> tuple[Floats, Floats, Whole]:
    return with_minimum(x, np.abs(x), 3, -0.5, 0.1, 15, by_magnitude=True)


def _encode_q2_k(values: Values, blocks: Blocks) -> None:
    _encode_with_minimum(values, blocks, 16, 3, _fit_q2_k, _pack_q2_k)


def _encode_q4_k(values: Values, blocks: Blocks) -> None:
    _encode_with_minimum(values, blocks, 32, 15, lambda x: _unweighted(x, 15, -1.0, 20), _pack_q4_k)


def _encode_q5_k(values: Values, blocks: Blocks) -> None:
    _encode_with_minimum(values, blocks, 32, 31, lambda x: _unweighted(x, 31, -0.5, 15), _pack_q5_k)


def _pack_scales(scales: Bytes, minima: Bytes) -> Bytes:
    """Eight scales and eight minima of six bits in twelve bytes."""
    upper = [each[:, :4] | (each[:, 4:] >> 4) << 6 for each in (scales, minima)]
    return np.concatenate([*upper, (scales[:, 4:] & 15) | (minima[:, 4:] & 15) << 4], axis=1)


def unpack_scales(packed: Bytes) -> tuple[Bytes, Bytes]:
    """Scales and minima, each [n, 8] from 0 to 63, of Q4_K's and Q5_K's field ``scales`` [n, 12]."""
    low, high, mixed = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = np.concatenate([low & 63, (mixed & 15) | (low >> 6) << 4], axis=1)
    minima = np.concatenate([high & 63, (mixed >> 4) | (high >> 6) << 4], axis=1)
    return scales, minima


def _decode_with_minimum(blocks: Blocks, values: Values, scales: Bytes, minima: Bytes, numbers: Bytes) -> None:
    d = blocks["d"].astype(_F)[:, None] * scales.astype(_F)
    m = blocks["dmin"].astype(_F)[:, None] * minima.astype(_F)
    out = values.reshape(*scales.shape, -1)
    np.multiply(numbers.reshape(out.shape), d[:, :, None], out=out)
    np.subtract(out, m[:, :, None], out=out)


def _decode_q2_k(blocks: Blocks, values: Values) -> None:
    scales = blocks["scales"]
    _decode_with_minimum(blocks, values, scales & 15, scales >> 4, _bits(blocks["qs"].reshape(-1, 2, 32), 2))


def _decode_q4_k(blocks: Blocks, values: Values) -> None:
    numbers = _bits(blocks["qs"].reshape(-1, 4, 32), 4)
    _decode_with_minimum(blocks, values, *unpack_scales(blocks["scales"]), numbers)


def _decode_q5_k(blocks: Blocks, values: Values) -> None:
    numbers = _bits(blocks["qs"].reshape(-1, 4, 32), 4).reshape(-1, 8, 32) | _bits(blocks["qh"], 1) << 4
    _decode_with_minimum(blocks, values, *unpack_scales(blocks["scales"]), numbers)


# -- without a minimum: Q3_K, Q6_K ---------------------------------------------------------------------


def _encode_q3_k(values: Values, blocks: Blocks) -> None:
    n = len(values)
    x = _in_groups(values, 16)
    scale, numbers = refined(x, 4)
    scale = scale.reshape(n, 16)
    largest = largest_of(np.ascontiguousarray(np.where(np.isnan(scale), _F(0), scale).T))
    inverse = np.where(largest != 0, _F(-32) / largest, _F(0))
    # as in ggml the number is converted to int8 before it is clamped
    scales = np.clip(nearest(inverse[:, None] * scale).astype(np.int8), -32, 31).astype(np.int32) + 32
    scales[largest == 0] = 0
    blocks["d"] = np.where(largest != 0, _F(1) / inverse, _F(0))
    _write_q3_k(blocks, x, numbers, scales)
    _poison(values, blocks)


def _weigh_q3_k(values: Values, blocks: Blocks, importance: Values) -> None:
    n = values.size // 256
    of_blocks = np.broadcast_to(importance, values.shape).reshape(n, 256)
    values, blocks = values.reshape(n, 256), blocks.reshape(n)
    x, weights = _in_groups(values, 16), spread_weights(values, of_blocks, 2, 16)
    scale, numbers = signed(x, weights, 4)
    of_groups = np.ascontiguousarray(total(weights).reshape(n, 16).T)
    blocks["d"], scales = signed(np.ascontiguousarray(scale.reshape(n, 16).T), of_groups, 32)
    _write_q3_k(blocks, x, numbers, scales.T)
    _poison(values, blocks)


def _write_q3_k(blocks: Blocks, x: Floats, numbers: Whole, scales: Whole) -> None:
    """``scales`` [n, 16] from 0 to 63, of which 32 is zero."""
    n = len(blocks)
    d = (blocks["d"].astype(_F)[:, None] * (scales - 32).astype(_F)).reshape(-1)
    q = _requantised(x, numbers, d, -4, 3).T.astype(np.uint8).reshape(n, 256)
    blocks["hmask"] = _packed(q.reshape(n, 8, 32) >> 2, 1)
    blocks["qs"] = _packed(q.reshape(n, 2, 4, 32) & 3, 2).reshape(n, 64)
    packed = scales.astype(np.uint8)
    low, high = packed & 15, packed >> 4
    joined = [low[:, :8] | low[:, 8:] << 4, _packed(high.reshape(n, 4, 4), 2)]
    blocks["scales"] = np.concatenate(joined, axis=1)


def _decode_q3_k(blocks: Blocks, values: Values) -> None:
    n = len(blocks)
    packed = blocks["scales"]
    low, high = _bits(packed[:, :8], 4).reshape(n, 16), _bits(packed[:, 8:], 2).reshape(n, 16)
    scales = (low | high << 4).view(np.int8) - np.int8(32)
    numbers = _bits(blocks["qs"].reshape(n, 2, 32), 2).reshape(n, 8, 32) | _bits(blocks["hmask"], 1) << 2
    d = blocks["d"].astype(_F)[:, None] * scales.astype(_F)
    signed_numbers = numbers.view(np.int8).reshape(n, 16, 16) - np.int8(4)
    np.multiply(signed_numbers, d[:, :, None], out=values.reshape(n, 16, 16))


def _encode_q6_k(values: Values, blocks: Blocks) -> None:
    x = _in_groups(values, 16)
    _write_q6_k(values, blocks, x, *signed(x, x * x, 32))


def _weigh_q6_k(values: Values, blocks: Blocks, importance: Values) -> None:
    weights = _in_groups(np.broadcast_to(importance, values.shape), 16)
    values = values.reshape(-1, 256)
    x = _in_groups(values, 16)
    _write_q6_k(values, blocks.reshape(-1), x, *signed(x, weights, 32))


def _write_q6_k(values: Values, blocks: Blocks, x: Floats, scale: Floats, numbers: Whole) -> None:
    n = len(values)
    scale = scale.reshape(n, 16)
    size = np.where(np.isnan(scale), _F(0), np.abs(scale))  # the scale is NaN where squares overflow
    largest = np.take_along_axis(scale, size.argmax(axis=1)[:, None], axis=1)
    inverse = _F(-128) / largest
    nothing = size.max(axis=1) < ALL_ZERO
    blocks["d"] = (_F(1) / inverse)[:, 0]
    blocks["scales"] = np.minimum(nearest(inverse * scale), 127).astype(np.int8)
    d = (blocks["d"].astype(_F)[:, None] * blocks["scales"].astype(_F)).reshape(-1)
    q = _requantised(x, numbers, d, -32, 31).T.astype(np.uint8).reshape(n, 2, 4, 32)
    blocks["ql"] = _packed((q & 15).reshape(n, 2, 2, 64), 4).reshape(n, 128)
    blocks["qh"] = _packed(q >> 4, 2).reshape(n, 64)
    blocks[nothing] = np.zeros((), blocks.dtype)
    _poison(values, blocks)


def _decode_q6_k(blocks: Blocks, values: Values) -> None:
    n = len(blocks)
    d = blocks["d"].astype(_F)[:, None] * blocks["scales"].astype(_F)
    low = _bits(blocks["ql"].reshape(n, 2, 64), 4).reshape(n, 2, 4, 32)
    numbers = low | _bits(blocks["qh"].reshape(n, 2, 32), 2) << 4
    signed_numbers = numbers.view(np.int8).reshape(n, 16, 16) - np.int8(32)
    np.multiply(signed_numbers, d[:, :, None], out=values.reshape(n, 16, 16))


# -- one scale: Q8_K -----------------------------------------------------------------------------------


def _encode_q8_k(values: Values, blocks: Blocks) -> None:
    x: Floats = np.ascontiguousarray(values.T)
    largest = largest_of(x)
    inverse = _F(-127) / largest
    numbers = np.minimum(nearest(inverse * x), 127)
    nothing = largest == 0
    numbers[:, nothing] = 0
    blocks["d"] = np.where(nothing, _F(0), _F(1) / inverse)
    blocks["qs"] = numbers.T
    blocks["bsums"] = blocks["qs"].reshape(-1, 16, 16).sum(axis=2, dtype=np.int16)
    _poison(values, blocks)


def _decode_q8_k(blocks: Blocks, values: Values) -> None:
    np.multiply(blocks["qs"], blocks["d"][:, None], out=values)


def _by_importance(type: types.Type, top: int, factor: float) -> Callable[[Values, Blocks, Values], None]:
    return functools.partial(_weigh_with_minimum, type=type, top=top, factor=factor)


register(
    Codec(types.Q2_K, _encode_q2_k, _decode_q2_k, weighted=_by_importance(types.Q2_K, 3, 1)),
    Codec(types.Q3_K, _encode_q3_k, _decode_q3_k, weighted=_weigh_q3_k),
    Codec(types.Q4_K, _encode_q4_k, _decode_q4_k, weighted=_by_importance(types.Q4_K, 15, 2)),
    Codec(types.Q5_K, _encode_q5_k, _decode_q5_k, weighted=_by_importance(types.Q5_K, 31, 2)),
    Codec(types.Q6_K, _encode_q6_k, _decode_q6_k, weighted=_weigh_q6_k),
    Codec(types.Q8_K, _encode_q8_k, _decode_q8_k),
)
