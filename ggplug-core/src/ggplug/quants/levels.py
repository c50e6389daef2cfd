"""Types whose numbers are indices into a table of sixteen levels: IQ4_NL, IQ4_XS (``quantize_row_iq4_nl_impl``).

The arithmetic is float32 in ggml's order, every sum one addition after the other, so the bytes are the same.  All
numbers of a block with a NaN or an infinity decode as NaN: its scale is NaN and everything else is zero.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ggplug import types
from ggplug.quants.codec import Blocks, Codec, Values, register
from ggplug.quants.rounding import Floats, nearest
from ggplug.quants.search import ALL_ZERO, largest_of, spread_weights, total

#: ``kvalues_iq4nl``: the value of each number from 0 to 15, to be multiplied by the scale.
IQ4_NL_LEVELS = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int8)

_F = np.float32
_LEVELS = IQ4_NL_LEVELS.astype(_F)


def _nearest_level(values: Floats) -> npt.NDArray[np.intp]:
    """The index of the nearest level; of two at the same distance, the greater (``best_index_int8``)."""
    above = np.clip(np.searchsorted(_LEVELS, values, side="right"), 1, 15)
    below = above - 1
    nearer = values - _LEVELS[below] < _LEVELS[above] - values
    found: npt.NDArray[np.intp] = np.where(nearer, below, above)
    found[values <= _LEVELS[0]] = 0
    found[values >= _LEVELS[15]] = 15
    return found


def _fit(x: Floats, weights: Floats, inverse: Floats) -> tuple[Floats, Floats, npt.NDArray[np.intp]]:
    """``sum(w q x)``, ``sum(w q q)`` and the numbers q of the levels nearest to ``inverse * x``."""
    numbers = _nearest_level(inverse * x)
    q = _LEVELS[numbers]
    return total(weights * q * x), total(weights * q * q), numbers


def _best_scale(x: Floats, weights: Floats) -> Floats:
    """The best of sixteen scales for each group of ``x`` [32, n]."""
    largest = largest_of(x)
    sum_qx, sum_q2, _ = _fit(x, weights, _F(1) / (-largest / _LEVELS[0]))
    scale = np.where(sum_q2 > 0, sum_qx / sum_q2, _F(0))
    best = scale * sum_qx
    for attempt in range(-7, 8):
        sum_qx, sum_q2, _ = _fit(x, weights, (_F(attempt) + _LEVELS[0]) / largest)
        better = (sum_q2 > 0) & (sum_qx * sum_qx > best * sum_q2)
        ratio = sum_qx / sum_q2
        scale[better] = ratio[better]
        best[better] = (ratio * sum_qx)[better]
    scale[np.abs(largest) < ALL_ZERO] = 0
    return scale


def _inverse(scale: Floats) -> Floats:
    return np.where(scale != 0, _F(1) / scale, _F(0))


def _poison(values: Values, blocks: Blocks) -> None:
    bad = ~np.isfinite(values).all(axis=1)
    if bad.any():
        blocks[bad] = np.zeros((), blocks.dtype)
        blocks["d"][bad] = np.nan


# -- IQ4_NL --------------------------------------------------------------------------------------------


def _encode_iq4_nl(values: Values, blocks: Blocks) -> None:
    x: Floats = np.ascontiguousarray(values.T)
    scale = _best_scale(x, x * x)
    _write_iq4_nl(values, blocks, scale, _nearest_level(_inverse(scale) * x))


def _weigh_iq4_nl(values: Values, blocks: Blocks, importance: Values) -> None:
    of_blocks = np.broadcast_to(importance, values.shape).reshape(-1, 32)
    values = values.reshape(-1, 32)
    x: Floats = np.ascontiguousarray(values.T)
    scale = _best_scale(x, spread_weights(values, of_blocks, 2, 32))
    _write_iq4_nl(values, blocks.reshape(-1), scale, _nearest_level(_inverse(scale) * x))


def _store_iq4_nl(values: Values, blocks: Blocks) -> None:
    """Encodes with the scale by which the largest element is the lowest level (``quantize_row_iq4_nl_ref``)."""
    x: Floats = np.ascontiguousarray(values.T)
    largest = largest_of(x)
    sum_qx, sum_q2, numbers = _fit(x, x * x, _F(1) / (largest / _LEVELS[0]))
    scale = sum_qx / sum_q2
    nothing = np.abs(largest) < ALL_ZERO
    scale[nothing] = 0
    numbers[:, nothing] = 0
    _write_iq4_nl(values, blocks, scale, numbers)


def _write_iq4_nl(values: Values, blocks: Blocks, scale: Floats, numbers: npt.NDArray[np.intp]) -> None:
    scale[np.isnan(scale)] = np.nan  # NaN where squares overflow; its bits would depend on the processor
    blocks["d"] = scale
    packed = numbers.astype(np.uint8)
    blocks["qs"] = (packed[:16] | packed[16:] << 4).T
    _poison(values, blocks)


def _decode_iq4_nl(blocks: Blocks, values: Values) -> None:
    packed = blocks["qs"]
    scale = blocks["d"].astype(_F)[:, None]
    np.multiply(IQ4_NL_LEVELS[packed & 15], scale, out=values[:, :16])
    np.multiply(IQ4_NL_LEVELS[packed >> 4], scale, out=values[:, 16:])


# -- IQ4_XS: eight groups, with scales of six bits -----------------------------------------------------


def _encode_iq4_xs(values: Values, blocks: Blocks) -> None:
    x: Floats = np.ascontiguousarray(values.reshape(-1, 32).T)
    _write_iq4_xs(values, blocks, x, _best_scale(x, x * x))


def _weigh_iq4_xs(values: Values, blocks: Blocks, importance: Values) -> None:
    of_blocks = np.broadcast_to(importance, values.shape).reshape(-1, 256)
    values = values.reshape(-1, 256)
    x: Floats = np.ascontiguousarray(values.reshape(-1, 32).T)
    _write_iq4_xs(values, blocks.reshape(-1), x, _best_scale(x, spread_weights(values, of_blocks, 2, 32)))


def _write_iq4_xs(values: Values, blocks: Blocks, x: Floats, scale: Floats) -> None:
    n = len(blocks)
    scale = scale.reshape(n, 8)
    largest = largest_of(np.ascontiguousarray(np.where(np.isnan(scale), _F(0), scale).T))
    d = -(largest + _F(0)) / _F(32)  # -0 rather than +0
    blocks["d"] = d
    scales = np.clip(nearest(_inverse(d)[:, None] * scale), -32, 31)
    of_groups = _inverse((d[:, None] * scales.astype(_F)).reshape(-1))
    q = _nearest_level(of_groups * x).T.astype(np.uint8).reshape(n, 8, 2, 16)
    blocks["qs"] = (q[:, :, 0] | q[:, :, 1] << 4).reshape(n, 128)
    stored = (scales + 32).astype(np.uint16)
    low = (stored & 15).astype(np.uint8)
    blocks["scales_l"] = low[:, 0::2] | low[:, 1::2] << 4
    blocks["scales_h"] = np.bitwise_or.reduce(stored >> 4 << np.arange(0, 16, 2, dtype=np.uint16), axis=1)
    _poison(values, blocks)


def _decode_iq4_xs(blocks: Blocks, values: Values) -> None:
    n = len(blocks)
    low = (blocks["scales_l"][:, :, None] >> np.array([0, 4], np.uint8) & 15).reshape(n, 8)
    high = blocks["scales_h"][:, None] >> np.arange(0, 16, 2, dtype=np.uint16) & 3
    scales = (low | high << 4).astype(np.int32) - 32
    d = blocks["d"].astype(_F)[:, None] * scales.astype(_F)
    packed = blocks["qs"].reshape(n, 8, 16)
    numbers = np.concatenate([packed & 15, packed >> 4], axis=2)
    np.multiply(IQ4_NL_LEVELS[numbers], d[:, :, None], out=values.reshape(n, 8, 32))


register(
    Codec(types.IQ4_NL, _encode_iq4_nl, _decode_iq4_nl, store=_store_iq4_nl, weighted=_weigh_iq4_nl),
    Codec(types.IQ4_XS, _encode_iq4_xs, _decode_iq4_xs, weighted=_weigh_iq4_xs),
)
