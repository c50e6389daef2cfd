"""Types whose numbers are rows of a grid, with separate signs and scales: IQ1_S to IQ3_S (``dequantize_row_iq*``).

Super-blocks of 256 numbers.  In the types of two and three bits a row of the grid holds magnitudes; in those of one bit
it holds -1, 0, 1, and all eight numbers of a row are moved by an eighth.  Some types store seven signs of eight: the
number of negative signs is even.

The grids are data, kept in ``data/`` with their source and licence.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from importlib.resources import files
from typing import Any

import numpy as np
import numpy.typing as npt

from ggplug import types
from ggplug.quants.codec import Blocks, Codec, Values, register
from ggplug.quants.grid_search import Lattice, Magnitudes, References, Searches
from ggplug.quants.rounding import Floats, nearest
from ggplug.quants.search import spread_weights, total

_F = np.float32
Whole = npt.NDArray[Any]
Mask = npt.NDArray[np.bool_]


def _grid(name: str, magnitudes: tuple[int, ...], width: int) -> npt.NDArray[np.int8]:
    """The grid in a file of ``data/``, [rows, ``width``]: two or four bits per number, which select a magnitude."""
    lines = (files("ggplug.quants") / "data" / f"{name}.txt").read_text("ascii").splitlines()
    packed = np.frombuffer(bytes.fromhex("".join(line for line in lines if not line.startswith("#"))), np.uint8)
    bits = 2 if len(magnitudes) <= 4 else 4
    numbers = packed[:, None] >> np.arange(0, 8, bits, dtype=np.uint8) & np.uint8((1 << bits) - 1)
    grid: npt.NDArray[np.int8] = np.array(magnitudes, np.int8)[numbers.reshape(-1, width)]
    return grid


_TWO_BITS = (8, 25, 43)
#: ``iq2xxs_grid``, ``iq2xs_grid``, ``iq2s_grid``: 256, 512 and 1024 rows of eight magnitudes.
IQ2_XXS_GRID = _grid("iq2_xxs_grid", _TWO_BITS, 8)
IQ2_XS_GRID = _grid("iq2_xs_grid", _TWO_BITS, 8)
IQ2_S_GRID = _grid("iq2_s_grid", _TWO_BITS, 8)
#: ``iq3xxs_grid``, ``iq3s_grid``: 256 and 512 rows of four magnitudes.
IQ3_XXS_GRID = _grid("iq3_xxs_grid", (4, 12, 20, 28, 36, 44, 52, 62), 4)
IQ3_S_GRID = _grid("iq3_s_grid", (1, 3, 5, 7, 9, 11, 13, 15), 4)
#: ``iq1s_grid``, of IQ1_S and IQ1_M: 2048 rows of eight signs.
IQ1_GRID = _grid("iq1_grid", (-1, 0, 1), 8)

_SEVEN = np.arange(128, dtype=np.uint8)
_ODD = np.bitwise_xor.reduce(_SEVEN[:, None] >> np.arange(7, dtype=np.uint8) & 1, axis=1)
#: ``ksigns_iq2xs``: the signs of eight numbers as bits, of which seven are stored; the number of ones is even.
SIGNS: npt.NDArray[np.uint8] = _SEVEN | _ODD << 7

_FOUR_SEVENS = np.array([0, 7, 14, 21], np.uint32)


def _signed(magnitudes: npt.NDArray[np.int8], negative: npt.NDArray[np.uint8]) -> npt.NDArray[np.int8]:
    """Rows of a grid, as [n, eights, 8], with signs by the bits of ``negative``, [n, eights]."""
    bits = negative[..., None] >> np.arange(8, dtype=np.uint8) & 1
    found: npt.NDArray[np.int8] = magnitudes.reshape(bits.shape) * (1 - 2 * bits.view(np.int8))
    return found


def _multiply(numbers: npt.NDArray[np.int8], scale: npt.NDArray[np.float32], values: Values) -> None:
    """Multiplies equal parts of the numbers by a scale each, [n, groups]."""
    shape = (*scale.shape, -1)
    np.multiply(numbers.reshape(shape), scale[..., None], out=values.reshape(shape))


def _halves_up(blocks: Blocks, scales: npt.NDArray[np.integer], factor: float) -> npt.NDArray[np.float32]:
    """``d * (0.5 + scale) * factor``."""
    found: npt.NDArray[np.float32] = blocks["d"].astype(_F)[:, None] * (_F(0.5) + scales.astype(_F))
    return found * _F(factor)


def _nibbles(packed: Whole) -> Whole:
    """Bytes [n, m] as [n, 2 m], the lower half of each first."""
    return (packed[:, :, None] >> np.array([0, 4], np.uint8) & 15).reshape(len(packed), -1)


# -- two bits ------------------------------------------------------------------------------------------


def _decode_iq2_xxs(blocks: Blocks, values: Values) -> None:
    n = len(blocks)
    words = np.ascontiguousarray(blocks["qs"]).astype("<u2").view("<u4").reshape(n, 8, 2)
    rows = np.ascontiguousarray(words[:, :, 0]).view(np.uint8).reshape(n, 32)
    rest = words[:, :, 1]
    negative = SIGNS[rest[:, :, None] >> _FOUR_SEVENS & 127].reshape(n, 32)
    _multiply(_signed(IQ2_XXS_GRID[rows], negative), _halves_up(blocks, rest >> 28, 0.25), values)


def _decode_iq2_xs(blocks: Blocks, values: Values) -> None:
    packed = blocks["qs"]
    numbers = _signed(IQ2_XS_GRID[packed & 511], SIGNS[packed >> 9])
    _multiply(numbers, _halves_up(blocks, _nibbles(blocks["scales"]), 0.25), values)


def _decode_iq2_s(blocks: Blocks, values: Values) -> None:
    low, negative = blocks["qs"][:, :32], blocks["qs"][:, 32:]
    high = blocks["qh"][:, :, None] >> np.array([0, 2, 4, 6], np.uint8) & 3
    rows = low | high.reshape(-1, 32).astype(np.uint16) << 8
    _multiply(_signed(IQ2_S_GRID[rows], negative), _halves_up(blocks, _nibbles(blocks["scales"]), 0.25), values)


# -- three bits ----------------------------------------------------------------------------------------


def _decode_iq3_xxs(blocks: Blocks, values: Values) -> None:
    n = len(blocks)
    rows = blocks["qs"][:, :64]
    rest = np.ascontiguousarray(blocks["qs"][:, 64:]).view("<u4")
    negative = SIGNS[rest[:, :, None] >> _FOUR_SEVENS & 127].reshape(n, 32)
    _multiply(_signed(IQ3_XXS_GRID[rows], negative), _halves_up(blocks, rest >> 28, 0.5), values)


def _decode_iq3_s(blocks: Blocks, values: Values) -> None:
    rows = blocks["qs"] | np.unpackbits(blocks["qh"], axis=1, bitorder="little").astype(np.uint16) << 8
    scale = blocks["d"].astype(_F)[:, None] * (1 + 2 * _nibbles(blocks["scales"])).astype(_F)
    _multiply(_signed(IQ3_S_GRID[rows], blocks["signs"]), scale, values)


# -- one bit -------------------------------------------------------------------------------------------


def _decode_one_bit(
    rows: npt.NDArray[np.uint16], down: npt.NDArray[np.bool_], scale: npt.NDArray[np.float32], values: Values
) -> None:
    """Rows of the grid [n, 32], moved by an eighth, downwards where ``down``; eighths are whole numbers."""
    eighths = IQ1_GRID[rows] * np.int8(8) + np.where(down, np.int8(-1), np.int8(1))[..., None]
    _multiply(eighths, scale * _F(0.125), values)


def _decode_iq1_s(blocks: Blocks, values: Values) -> None:
    packed = blocks["qh"]
    high = (packed[:, :, None] >> np.array([0, 3, 6, 9], np.uint16) & 7).reshape(-1, 32)
    scale = blocks["d"].astype(_F)[:, None] * (2 * (packed >> 12 & 7) + 1).astype(_F)
    _decode_one_bit(blocks["qs"] | high << 8, np.repeat(packed >> 15 != 0, 4, axis=1), scale, values)


def _decode_iq1_m(blocks: Blocks, values: Values) -> None:
    words = np.ascontiguousarray(blocks["scales"]).view("<u2")
    # the common scale lies in the upper four bits of four words
    d = np.bitwise_or.reduce(words >> 12 << np.array([0, 4, 8, 12], np.uint16), axis=1).view(np.float16)
    scales = (words[:, :, None] >> np.array([0, 3, 6, 9], np.uint16) & 7).reshape(-1, 16)
    high = _nibbles(blocks["qh"])
    rows = blocks["qs"] | (high & 7).astype(np.uint16) << 8
    _decode_one_bit(rows, high >> 3 != 0, d.astype(_F)[:, None] * (2 * scales + 1).astype(_F), values)


def _put_scale_iq1_m(blocks: Blocks, scales: Values) -> None:
    bits = scales.astype(np.float16).view(np.uint16)[:, None] >> np.array([0, 4, 8, 12], np.uint16) & 15
    words = np.ascontiguousarray(blocks["scales"]).view("<u2") & 0x0FFF | bits << 12
    blocks["scales"] = words.astype("<u2").view(np.uint8)


# -- encoding ------------------------------------------------------------------------------------------


def _lattice(grid: npt.NDArray[np.int8], shells: int) -> Callable[[], Lattice]:
    """The lattice of a grid, made when it is first needed."""
    return functools.cache(lambda: Lattice(np.searchsorted(np.unique(grid), grid), shells))


_IQ2_XXS, _IQ2_XS, _IQ2_S = _lattice(IQ2_XXS_GRID, 2), _lattice(IQ2_XS_GRID, 2), _lattice(IQ2_S_GRID, 1)
_IQ3_XXS, _IQ3_S = _lattice(IQ3_XXS_GRID, 2), _lattice(IQ3_S_GRID, 3)
_IQ1 = _lattice(IQ1_GRID, 3)


def _weights_of(values: Values, importance: Values | None, factor: float, size: int, mean: float = 0) -> Floats:
    """Weights of errors, [``size``, n groups]: by importance, else by the square and a part of the mean square."""
    if importance is not None:
        return spread_weights(values, importance, factor, size)
    squares = np.square(values)
    if mean:
        squares = _F(mean) * (_F(factor) * total(squares.T) / _F(256))[:, None] + squares
    return np.ascontiguousarray(squares.reshape(-1, size).T)


def _blocks_of(values: Values, blocks: Blocks, importance: Values | None) -> tuple[Values, Blocks, Values | None, Mask]:
    """Values by super-block, with NaN and infinities replaced by zero, and which super-blocks had them."""
    if importance is not None:
        importance = np.broadcast_to(importance, values.shape).reshape(-1, 256)
    values = values.reshape(-1, 256)
    bad: Mask = np.asarray(~np.isfinite(values).all(axis=1))
    return np.where(bad[:, None], _F(0), values), blocks.reshape(-1), importance, bad


def _poison(blocks: Blocks, bad: Mask) -> None:
    if bad.any():
        blocks[bad] = np.zeros((), blocks.dtype)
        blocks["d"][bad] = np.nan


def _scales_of(scale: Floats, n: int, top: int, most: int) -> tuple[Floats, Whole]:
    """The scale d of each super-block, and for its groups numbers i from 0 to ``most``, with the scales d (2 i + 1)."""
    scale = scale.reshape(n, -1)
    largest = scale.max(axis=1)
    d = largest / _F(top)
    inverse = _F(1) / d
    numbers = np.clip(nearest(_F(0.5) * (inverse[:, None] * scale - _F(1))), 0, most)
    numbers[largest == 0] = 0
    return d, numbers.astype(np.uint8)


def _by_blocks(rows: Whole, n: int) -> Whole:
    """[rows of a group, n groups] as [n super-blocks, rows]."""
    return np.ascontiguousarray(rows.T).reshape(n, -1)


def _low(rows: Whole) -> Whole:
    return (rows & 255).astype(np.uint8)


def _pairs(scales: Whole) -> Whole:
    """The inverse of :func:`_nibbles`."""
    packed: Whole = scales[:, 0::2] | scales[:, 1::2] << 4
    return packed


def _with_signs(blocks: Blocks, scales: Whole, signs: Whole) -> Whole:
    """Words of four times seven signs, with a scale of four bits above them, [n, 8]."""
    packed = signs.reshape(len(blocks), 8, 4).astype(np.uint32) << _FOUR_SEVENS
    joined: Whole = np.bitwise_or.reduce(packed, axis=2) | scales.astype(np.uint32) << 28
    return joined


def _weigh_iq2_xxs(values: Values, blocks: Blocks, importance: Values | None, searches: Searches) -> None:
    values, blocks, importance, bad = _blocks_of(values, blocks, importance)
    how = Magnitudes(_IQ2_XXS(), 32, 6, 0.1, 1e-15, even=True, again="all", from_all=True)
    scale, rows, signs, n = _searched(searches, values, importance, 1, how)
    blocks["d"], scales = _scales_of(scale, n, 31, 15)
    words = np.empty((n, 8, 2), "<u4")
    words[:, :, 0] = np.ascontiguousarray(_low(_by_blocks(rows, n))).view("<u4")
    words[:, :, 1] = _with_signs(blocks, scales, _by_blocks(signs, n))
    blocks["qs"] = words.reshape(n, 16).view("<u2")
    _poison(blocks, bad)


def _weigh_iq2_xs(values: Values, blocks: Blocks, importance: Values | None, searches: Searches) -> None:
    values, blocks, importance, bad = _blocks_of(values, blocks, importance)
    how = Magnitudes(_IQ2_XS(), 16, 9, 0.1, 1e-15, even=True, again="others")
    scale, rows, signs, n = _searched(searches, values, importance, 1, how)
    blocks["d"], scales = _scales_of(scale, n, 31, 15)
    blocks["qs"] = _by_blocks(rows, n) | _by_blocks(signs, n).astype(np.int32) << 9
    blocks["scales"] = _pairs(scales)
    _poison(blocks, bad)


def _weigh_iq2_s(values: Values, blocks: Blocks, importance: Values | None, searches: Searches) -> None:
    values, blocks, importance, bad = _blocks_of(values, blocks, importance)
    how = Magnitudes(_IQ2_S(), 16, 9, 0.1, 1e-8, even=False, again="others")
    scale, rows, signs, n = _searched(searches, values, importance, 2, how, mean=0.25)
    d, scales = _scales_of(scale, n, 31, 15)
    blocks["d"] = d * _F(0.9875)
    by_blocks = _by_blocks(rows, n)
    blocks["qs"] = np.concatenate([_low(by_blocks), _by_blocks(signs, n)], axis=1)
    high = (by_blocks >> 8).reshape(n, 8, 4) << np.array([0, 2, 4, 6])
    blocks["qh"] = np.bitwise_or.reduce(high, axis=2)
    blocks["scales"] = _pairs(scales)
    _poison(blocks, bad)


def _weigh_iq3_xxs(values: Values, blocks: Blocks, importance: Values | None, searches: Searches) -> None:
    values, blocks, importance, bad = _blocks_of(values, blocks, importance)
    how = Magnitudes(_IQ3_XXS(), 32, 15, 0.2, 1e-8, even=True, again="others")
    scale, rows, signs, n = _searched(searches, values, importance, 2, how)
    d, scales = _scales_of(scale, n, 31, 15)
    blocks["d"] = d * _F(1.0125)
    rest = _with_signs(blocks, scales, _by_blocks(signs, n)).astype("<u4").view(np.uint8)
    blocks["qs"] = np.concatenate([_low(_by_blocks(rows, n)), rest], axis=1)
    blocks["qs"][d == 0] = 0
    _poison(blocks, bad)


def _weigh_iq3_s(values: Values, blocks: Blocks, importance: Values | None, searches: Searches) -> None:
    values, blocks, importance, bad = _blocks_of(values, blocks, importance)
    how = Magnitudes(_IQ3_S(), 32, 9, 0.2, 0, even=False, again="if any")
    scale, rows, signs, n = _searched(searches, values, importance, 2, how)
    d, scales = _scales_of(scale, n, 31, 15)
    blocks["d"] = d * _F(1.033)
    by_blocks = _by_blocks(rows, n)
    blocks["qs"] = _low(by_blocks)
    blocks["qh"] = np.packbits(by_blocks >> 8, axis=1, bitorder="little")
    blocks["signs"] = _by_blocks(signs, n)
    blocks["scales"] = _pairs(scales)
    _poison(blocks, bad)


def _searched(
    searches: Searches, values: Values, importance: Values | None, factor: float, how: Magnitudes, mean: float = 0
) -> tuple[Floats, Whole, Whole, int]:
    x: Floats = np.ascontiguousarray(values.reshape(-1, how.size).T)
    return *searches.magnitudes(x, _weights_of(values, importance, factor, how.size, mean), how), len(values)


def _weigh_iq1_s(values: Values, blocks: Blocks, importance: Values | None, searches: Searches) -> None:
    values, blocks, importance, bad = _blocks_of(values, blocks, importance)
    n, x = len(values), np.ascontiguousarray(values.reshape(-1, 32).T)
    scale, rows, down = searches.signs(x, _weights_of(values, importance, 2, 32), _IQ1(), 1e-12, 0.125, 1)
    d, scales = _scales_of(scale, n, 15, 7)
    blocks["d"] = d * _F(1.125)
    by_blocks = _by_blocks(rows, n)
    blocks["qs"] = _low(by_blocks)
    high = np.bitwise_or.reduce((by_blocks >> 8).reshape(n, 8, 4) << np.array([0, 3, 6, 9]), axis=2)
    blocks["qh"] = high | np.where(d[:, None] == 0, 0, scales | down.reshape(n, 8) << 3) << 12
    _poison(blocks, bad)


def _weigh_iq1_m(values: Values, blocks: Blocks, importance: Values | None, searches: Searches) -> None:
    values, blocks, importance, bad = _blocks_of(values, blocks, importance)
    n, x = len(values), np.ascontiguousarray(values.reshape(-1, 16).T)
    weights = _weights_of(values, importance, 2, 16)
    scale, rows, down = searches.signs(x, weights, _IQ1(), 1e-7, 0.125, 2)
    d, scales = _scales_of(scale, n, 15, 7)
    first, second = down >> 1, down & 1
    # the common scale again, now that those of the groups are known
    moved = np.repeat(np.where(np.stack([first, second]), _F(-0.125), _F(0.125)), 8, axis=0)
    digits = _IQ1().digits[rows].swapaxes(1, 2).reshape(16, -1)
    q = ((digits - 1).astype(_F) + moved) * (2 * scales.reshape(-1).astype(_F) + 1)

    def of_all(terms: Floats) -> Floats:
        return total(np.ascontiguousarray(terms.T).reshape(n, 256).T)

    sum_qx, sum_q2 = of_all(weights * q * x), of_all(weights * q * q)
    some = d != 0
    d = np.where(some & (sum_q2 > 0), sum_qx / sum_q2, d)
    by_blocks = _by_blocks(rows, n)
    blocks["qs"] = _low(by_blocks)
    high = by_blocks >> 8
    directions = np.where(some[:, None], first.reshape(n, 16) << 3 | second.reshape(n, 16) << 7, 0)
    blocks["qh"] = high[:, 0::2] | high[:, 1::2] << 4 | directions
    words = np.bitwise_or.reduce(scales.reshape(n, 4, 4).astype(np.uint16) << np.array([0, 3, 6, 9], np.uint16), axis=2)
    blocks["scales"] = words.astype("<u2").view(np.uint8)
    blocks[bad] = np.zeros((), blocks.dtype)
    d[bad] = np.nan
    _put_scale_iq1_m(blocks, d * _F(1.1125))


_NEEDS = "ggml quantises it only with an importance matrix"


def _codec(
    type: types.Type,
    decode: Callable[[Blocks, Values], None],
    search: Callable[[Values, Blocks, Values | None, Searches], None],
    *,
    needs_importance: bool = False,
    put_scale: Callable[[Blocks, Values], None] | None = None,
) -> Codec:
    def weigh(values: Values, blocks: Blocks, importance: Values) -> None:
        search(values, blocks, importance, References())

    def encode(values: Values, blocks: Blocks) -> None:
        search(values, blocks, None, References())

    return Codec(
        type,
        None if needs_importance else encode,
        decode,
        missing=_NEEDS if needs_importance else "",
        weighted=weigh,
        put_scale=put_scale,
        is_stored=False,
        search=search,
    )


register(
    _codec(types.IQ2_XXS, _decode_iq2_xxs, _weigh_iq2_xxs, needs_importance=True),
    _codec(types.IQ2_XS, _decode_iq2_xs, _weigh_iq2_xs, needs_importance=True),
    _codec(types.IQ2_S, _decode_iq2_s, _weigh_iq2_s),
    _codec(types.IQ3_XXS, _decode_iq3_xxs, _weigh_iq3_xxs),
    _codec(types.IQ3_S, _decode_iq3_s, _weigh_iq3_s),
    _codec(types.IQ1_S, _decode_iq1_s, _weigh_iq1_s, needs_importance=True),
    _codec(types.IQ1_M, _decode_iq1_m, _weigh_iq1_m, put_scale=_put_scale_iq1_m),
)
