"""IQ1_S to IQ3_S: super-blocks of 256 numbers as rows of a grid, with signs and scales apart.

Ops do not encode them: a good encoding takes too long.  The encoders of core do, for files, with compiled searches
(``ggplug_cpu.quantization.searches``).
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
from llvmlite import ir

from ggplug import types
from ggplug.quants import grids
from ggplug_cpu import features
from ggplug_cpu.simd import dots, halves, values
from ggplug_cpu.simd.lookup import (
    BYTES,
    bits_from,
    constant_words,
    emit_lookup_of_64,
    emit_lookup_of_many,
    emit_lookup_of_rising,
    permutes_bytes,
)
from ggplug_cpu.simd.values import F32, I8, I16, I32, I64, Value, constant, constants, joined, vector
from ggplug_cpu.types.blocks import GROUP, Blocks, Factors, bits_at, f16_at, offset_of, shifted


def _words(rows: npt.NDArray[np.int8]) -> list[int]:
    """Rows of a grid, eight bytes in a word."""
    return [int.from_bytes(word.tobytes(), "little") for word in np.ascontiguousarray(rows).reshape(-1, 8)]


#: For each byte of signs 0xFF where a number is negative.
_NEGATIVE = [sum(0xFF << 8 * i for i in range(8) if signs >> i & 1) for signs in map(int, grids.SIGNS)]


def _rows(b: ir.IRBuilder, name: str, table: list[int], word: ir.IntType, indices: Sequence[Value]) -> Value:
    """The rows of a grid at ``indices``, of ``word`` bits each, as 32 int8."""
    # Opaque each time, or LLVM computes the indices of many parts at once and keeps them on the stack.
    address = values.opaque(constant_words(b, name, table), each_time=True)
    size = word.width // 8
    return values.gathered([values.load(address + i * size, word) for i in indices]).bitcast(vector(I8, GROUP))


def _signed_by_sevens(magnitudes: Value, signs: Value) -> Value:
    """With the signs of four times seven bits of an integer, as unsigned bytes of which 128 is zero."""
    chosen = [signs.lshr(7 * i) & 127 for i in range(4)]
    mask = _rows(signs.b, "signs", _NEGATIVE, I64, chosen)
    return ((magnitudes ^ mask) - mask) ^ -128


def _signed_by_bits(magnitudes: Value, signs: Value) -> Value:
    """With the signs of 32 bits at an address, as unsigned bytes of which 128 is zero."""
    return bits_at(signs).select(-magnitudes, magnitudes) ^ -128


def _at(block: Value, field: int, of_part: Value, t: ir.IntType) -> Value:
    """An integer of a block, in 64 bits."""
    return values.load(block + of_part, t, field).zext(I64)


def _d(address: Value, count: int, type: types.Type) -> Value:
    return f16_at([address + offset_of(type, "d")]).lane(0).splat(count)


def _nibbles(address: Value, field: int, size: int) -> Value:
    """``size`` bytes of a block as twice as many int32, the lower half of each first."""
    packed = values.load(address, vector(I8, size), field).zext(I32)
    return (packed & 15).shuffle([i // 2 + i % 2 * size for i in range(2 * size)], packed.lshr(4))


def _halves_up(type: types.Type, address: Value, scales: Value, factor: float) -> Value:
    return _d(address, scales.count, type) * (scales.convert(F32) + 0.5) * factor


def _of_each(factor: Callable[[Value], Value]) -> Callable[[Sequence[Value]], Factors]:
    return lambda addresses: Factors(values.joined([factor(address) for address in addresses]))


# -- two bits ------------------------------------------------------------------------------------------

_QS_XXS, _QS_XS = offset_of(types.IQ2_XXS, "qs"), offset_of(types.IQ2_XS, "qs")
_QS_2S, _QH_2S = offset_of(types.IQ2_S, "qs"), offset_of(types.IQ2_S, "qh")
_SIGNS_2S = _QS_2S + 32
_IQ2_XXS, _IQ2_XS, _IQ2_S = (_words(grid) for grid in (grids.IQ2_XXS_GRID, grids.IQ2_XS_GRID, grids.IQ2_S_GRID))


def _quants_iq2_xxs(block: Value, part: Value) -> Value:
    """Four indices of a byte, then four of seven bits, of the signs; the scale's four bits are above."""
    rows, rest = (_at(block, _QS_XXS + 4 * i, part * 8, I32) for i in (0, 1))
    magnitudes = _rows(block.b, "iq2_xxs", _IQ2_XXS, I64, [rows.lshr(8 * i) & 255 for i in range(4)])
    return _signed_by_sevens(magnitudes, rest)


def _scale_iq2_xxs(address: Value) -> Value:
    words = values.load(address, vector(I32, 16), _QS_XXS).shuffle(range(1, 16, 2))
    return _halves_up(types.IQ2_XXS, address, words.lshr(28), 0.25)


def _quants_iq2_xs(block: Value, part: Value) -> Value:
    """Four times nine bits, of the index, and seven, of the signs."""
    packed = values.load(block + part * 8, I64, _QS_XS)
    magnitudes = _rows(block.b, "iq2_xs", _IQ2_XS, I64, [packed.lshr(16 * i) & 511 for i in range(4)])
    mask = _rows(block.b, "signs", _NEGATIVE, I64, [packed.lshr(16 * i + 9) & 127 for i in range(4)])
    return ((magnitudes ^ mask) - mask) ^ -128


def _scale_iq2_xs(address: Value) -> Value:
    return _halves_up(types.IQ2_XS, address, _nibbles(address, offset_of(types.IQ2_XS, "scales"), 8), 0.25)


def _quants_iq2_s(block: Value, part: Value) -> Value:
    """Indices of a byte and two bits; every number has its sign."""
    low, high = _at(block, _QS_2S, part * 4, I32), _at(block, _QH_2S, part, I8)
    indices = [(low.lshr(8 * i) & 255) | (high.lshr(2 * i) & 3) << 8 for i in range(4)]
    return _signed_by_bits(_rows(block.b, "iq2_s", _IQ2_S, I64, indices), block + (part * 4 + _SIGNS_2S))


def _scale_iq2_s(address: Value) -> Value:
    return _halves_up(types.IQ2_S, address, _nibbles(address, offset_of(types.IQ2_S, "scales"), 8), 0.25)


# -- three bits ----------------------------------------------------------------------------------------

_QS_3XXS = offset_of(types.IQ3_XXS, "qs")
_REST_3XXS = _QS_3XXS + 64
_QS_3S, _QH_3S, _SIGNS_3S = (offset_of(types.IQ3_S, field) for field in ("qs", "qh", "signs"))
_IQ3_XXS, _IQ3_S = _words(grids.IQ3_XXS_GRID), _words(grids.IQ3_S_GRID)


def _quants_iq3_xxs(block: Value, part: Value) -> Value:
    """Eight indices of a byte; further on four of seven bits, of the signs, and the scale's four bits above."""
    packed, rest = values.load(block + part * 8, I64, _QS_3XXS), _at(block, _REST_3XXS, part * 4, I32)
    indices = [packed.lshr(8 * i) & 255 for i in range(8)]
    return _signed_by_sevens(_rows(block.b, "iq3_xxs", _IQ3_XXS, I32, indices), rest)


def _scale_iq3_xxs(address: Value) -> Value:
    return _halves_up(types.IQ3_XXS, address, values.load(address, vector(I32, 8), _REST_3XXS).lshr(28), 0.5)


def _quants_iq3_s(block: Value, part: Value) -> Value:
    """Indices of a byte and a bit; every number has its sign."""
    packed, high = values.load(block + part * 8, I64, _QS_3S), _at(block, _QH_3S, part, I8)
    indices = [(packed.lshr(8 * i) & 255) | (high.lshr(i) & 1) << 8 for i in range(8)]
    magnitudes = _rows(block.b, "iq3_s", _IQ3_S, I32, indices)
    return _signed_by_bits(magnitudes, block + (part * 4 + _SIGNS_3S))


def _scale_iq3_s(address: Value) -> Value:
    scales = _nibbles(address, offset_of(types.IQ3_S, "scales"), 4)
    return _d(address, 8, types.IQ3_S) * ((scales << 1) + 1).convert(F32)


# -- one bit: numbers are eighths, -9 to 9, of which 0 is stored as 9 ----------------------------------

_EIGHTHS = _words(8 * grids.IQ1_GRID + np.int8(8))
_TWOS = 0x0202_0202_0202_0202
_ZERO = 9
#: Four times three bits in each of two words.
_THREES_OF_TWO_WORDS = (0, 3, 6, 9, 16, 19, 22, 25)
_QS_1S, _QH_1S = offset_of(types.IQ1_S, "qs"), offset_of(types.IQ1_S, "qh")
_QS_1M, _QH_1M, _SCALES_1M = (offset_of(types.IQ1_M, field) for field in ("qs", "qh", "scales"))


def _quants_one_bit(block: Value, indices: Sequence[Value], down: Sequence[Value]) -> Value:
    """Rows of the grid, moved by an eighth: upwards where ``down`` is 0, downwards where it is 1 (int64)."""
    grid = constant_words(block.b, "iq1", _EIGHTHS)
    rows = [values.load(grid + i * 8, I64) + (1 - each) * _TWOS for i, each in zip(indices, down, strict=True)]
    return values.gathered(rows).bitcast(vector(I8, GROUP))


def _quants_iq1_s(block: Value, part: Value) -> Value:
    """Indices of a byte and three bits; above these the scale's three bits and one for all rows' direction."""
    low, high = _at(block, _QS_1S, part * 4, I32), _at(block, _QH_1S, part * 2, I16)
    indices = [(low.lshr(8 * i) & 255) | (high.lshr(3 * i) & 7) << 8 for i in range(4)]
    return _quants_one_bit(block, indices, [high.lshr(15)] * 4)


def _scale_iq1_s(address: Value) -> Value:
    scales = values.load(address, vector(I16, 8), _QH_1S).zext(I32).lshr(12) & 7
    return _d(address, 8, types.IQ1_S) * ((scales << 1) + 1).convert(F32) * 0.125


def _quants_iq1_m(block: Value, part: Value) -> Value:
    """Indices of a byte and three bits of a nibble, whose fourth is the direction."""
    low, high = _at(block, _QS_1M, part * 4, I32), _at(block, _QH_1M, part * 2, I16)
    indices = [(low.lshr(8 * i) & 255) | (high.lshr(4 * i) & 7) << 8 for i in range(4)]
    return _quants_one_bit(block, indices, [high.lshr(4 * i + 3) & 1 for i in range(4)])


def _scale_iq1_m(address: Value) -> Value:
    """Four words have four scales of three bits each, and above them four bits of the scale of all."""
    words = values.load(address, I64, _SCALES_1M)
    if permutes_bytes() and features.has("bmi2"):
        d = values.call(words.b, "llvm.x86.bmi.pext.64", I64, words, words.constant(-0x0FFF_0FFF_0FFF_1000))
        twice = values.load(address, vector(I32, 2), _SCALES_1M).shuffle([0, 0, 1, 1] * 4)
        scales = bits_from(twice, _THREES_OF_TWO_WORDS).part(0, 16).zext(I32) & 7
    else:
        d = constant(words.b, I64, 0)
        for i in range(4):
            d = d | (words.lshr(16 * i + 12) & 15) << 4 * i
        shifts = constants(words.b, I64, [16 * i + 3 * j for i in range(4) for j in range(4)])
        scales = (words.splat(16).lshr(shifts) & 7).convert(I32)
    whole = halves.emit_widen_f16(d.convert(I16).splat(4)).lane(0).splat(16)
    return whole * ((scales << 1) + 1).convert(F32) * 0.125


# -- blocks of two rows at once, for processors that permute bytes --------------------------------------
#
# A row of a grid is sixteen bits: two for each of eight numbers, or four for each of four.  So a grid is two tables of
# bytes that stay in registers, of which one instruction reads 64.  These are the rows of two blocks, or of one.

_TWOS_OF_A_WORD = (0, 2, 4, 6, 8, 10, 12, 14)
_FOURS_OF_TWO_WORDS = (0, 4, 8, 12, 16, 20, 24, 28)
_SEVENS = (0, 7, 14, 21, 32, 39, 46, 53)
_BYTES_OF_SIGNS = [int(signs) for signs in grids.SIGNS]


class _Planes:
    """A grid whose rows are sixteen bits: the tables of their lower and of their upper bytes, and what bits stand for.

    ``levels``: the magnitudes in order, for which numbers are stored.
    """

    def __init__(self, grid: npt.NDArray[np.int8], levels: Sequence[int]) -> None:
        numbers = np.searchsorted(np.array(levels), grid)
        self.bits = 16 // grid.shape[1]
        words = (numbers << np.arange(grid.shape[1]) * self.bits).sum(axis=1)
        self.tables = [(words & 255).tolist(), (words >> 8).tolist()]
        self.levels = levels

    def numbers(self, low: Value, higher: Sequence[Value]) -> list[Value]:
        """The numbers of 64 rows, whose indices are as :func:`emit_lookup_of_many` takes them, 64 to a vector.

        Each has ``bits`` bits; above them are others, which do not matter.
        """
        return self.spread(*(emit_lookup_of_many([_as_int8(byte) for byte in t], low, higher) for t in self.tables))

    def spread(self, first: Value, second: Value) -> list[Value]:
        """The numbers of 64 rows, whose lower and upper bytes these are, as :meth:`numbers` gives them."""
        words = [
            first.shuffle([start + i // 2 + i % 2 * BYTES for i in range(BYTES)], second) for start in (0, BYTES // 2)
        ]
        # sixteen bits in each 64-bit lane, or 32
        size = BYTES // 8 * (2 if self.bits == 2 else 4)
        offsets = _TWOS_OF_A_WORD if self.bits == 2 else _FOURS_OF_TWO_WORDS
        each = size // 8
        found = []
        for word in words:
            for start in range(0, BYTES, size):
                spread = word.shuffle([start + i // 8 * each + i % each for i in range(BYTES)])
                found.append(bits_from(spread, offsets))
        return found


def _as_int8(byte: int) -> int:
    return byte - 256 if byte > 127 else byte


def _by_pairs(
    of_two: Callable[[Value, Value], tuple[list[Value], list[Value]]],
) -> Callable[[Sequence[Value]], list[list[Value]]]:
    """Any number of rows, two at once; the last perhaps twice."""

    def at_once(addresses: Sequence[Value]) -> list[list[Value]]:
        found: list[list[Value]] = []
        for i in range(0, len(addresses), 2):
            found += of_two(addresses[i], addresses[min(i + 1, len(addresses) - 1)])
        return found[: len(addresses)]

    return at_once


def _is_set(bytes: Value, bits: int | Sequence[int]) -> Value:
    """The mask of lanes in which one of the bits is set."""
    chosen = bytes & _as_int8(bits) if isinstance(bits, int) else bytes & constants(bytes.b, I8, [*map(_as_int8, bits)])
    return chosen.unequal(0)


def _signed_levels(planes: _Planes, numbers: Value, negative: Value) -> Value:
    """The levels of 64 numbers with their signs, as unsigned bytes of which 128 is zero."""
    count = 1 << planes.bits
    levels = [*planes.levels, *[0] * (count - len(planes.levels))]
    table = [_as_int8(128 + levels[i % count]) for i in range(BYTES)]
    magnitudes = emit_lookup_of_64(table, numbers)
    return negative.select(-magnitudes, magnitudes)


def _masks_of_signs(indices: Value) -> list[Value]:
    """Of each eight bytes the signs that their lower seven bits stand for, as a mask of 64 lanes."""
    signs = emit_lookup_of_many([_as_int8(byte) for byte in _BYTES_OF_SIGNS], indices, [])
    bits = [1 << i % 8 for i in range(BYTES)]
    return [_is_set(signs.shuffle([start + i // 8 for i in range(BYTES)]), bits) for start in range(0, BYTES, 8)]


def _masks_at(address: Value) -> list[Value]:
    """256 bits as four masks."""
    return [bits_at(address + 8 * i, BYTES) for i in range(4)]


def _bytes_at(block: Value, field: int, size: int = BYTES) -> Value:
    return values.load(block, vector(I8, size), field)


def _all_signed(planes: _Planes, numbers: Sequence[Value], masks: Sequence[Value]) -> list[Value]:
    return [_signed_levels(planes, each, mask) for each, mask in zip(numbers, masks, strict=True)]


_TWO_XXS, _TWO_XS, _TWO_S = (
    _Planes(grid, (8, 25, 43)) for grid in (grids.IQ2_XXS_GRID, grids.IQ2_XS_GRID, grids.IQ2_S_GRID)
)
_THREE_XXS = _Planes(grids.IQ3_XXS_GRID, (4, 12, 20, 28, 36, 44, 52, 62))
_THREE_S = _Planes(grids.IQ3_S_GRID, (1, 3, 5, 7, 9, 11, 13, 15))
_ONE = _Planes(grids.IQ1_GRID, (-1, 0, 1))


@_by_pairs
def _two_iq2_xxs(one: Value, two: Value) -> tuple[list[Value], list[Value]]:
    a, b = (_bytes_at(block, _QS_XXS).bitcast(vector(I32, 16)) for block in (one, two))
    low, rest = (a.shuffle(range(i, 32, 2), b).bitcast(vector(I8, BYTES)) for i in (0, 1))
    numbers = _TWO_XXS.numbers(low, [_is_set(low, 128)])
    found = _all_signed(_TWO_XXS, numbers, _masks_of_signs(bits_from(rest, _SEVENS)))
    return found[:4], found[4:]


@_by_pairs
def _two_iq2_xs(one: Value, two: Value) -> tuple[list[Value], list[Value]]:
    a, b = (_bytes_at(block, _QS_XS) for block in (one, two))
    low, high = (a.shuffle(range(i, 2 * BYTES, 2), b) for i in (0, 1))
    numbers = _TWO_XS.numbers(low, [_is_set(low, 128), _is_set(high, 1)])
    found = _all_signed(_TWO_XS, numbers, _masks_of_signs(shifted(high, 1)))
    return found[:4], found[4:]


@_by_pairs
def _two_iq2_s(one: Value, two: Value) -> tuple[list[Value], list[Value]]:
    low = joined([_bytes_at(block, _QS_2S, 32) for block in (one, two)])
    high = joined([_bytes_at(block, _QH_2S, 8) for block in (one, two)]).shuffle([i // 4 for i in range(BYTES)])
    masks = [_is_set(high, [bit << 2 * (i % 4) for i in range(BYTES)]) for bit in (1, 2)]
    numbers = _TWO_S.numbers(low, [_is_set(low, 128), *masks])
    signs = [mask for block in (one, two) for mask in _masks_at(block + _SIGNS_2S)]
    found = _all_signed(_TWO_S, numbers, signs)
    return found[:4], found[4:]


def _one_iq3_xxs(addresses: Sequence[Value]) -> list[list[Value]]:
    found = []
    for block in addresses:
        low = _bytes_at(block, _QS_3XXS)
        rest = _bytes_at(block, _REST_3XXS, 32)
        signs = _masks_of_signs(bits_from(rest.concat(rest), _SEVENS))[:4]
        found.append(_all_signed(_THREE_XXS, _THREE_XXS.numbers(low, [_is_set(low, 128)]), signs))
    return found


def _one_iq3_s(addresses: Sequence[Value]) -> list[list[Value]]:
    found = []
    for block in addresses:
        low, high = _bytes_at(block, _QS_3S), bits_at(block + _QH_3S, BYTES)
        numbers = _THREE_S.numbers(low, [_is_set(low, 128), high])
        found.append(_all_signed(_THREE_S, numbers, _masks_at(block + _SIGNS_3S)))
    return found


def _bytes_of_ones(low: Value, high: Value) -> tuple[Value, Value]:
    """The lower and the upper bytes of 64 rows of the grid of one bit, whose rows are in the order of their numbers."""
    lower, upper = ([_as_int8(byte) for byte in table] for table in _ONE.tables)
    masks = [_is_set(low, 128), *(_is_set(high, 1 << i) for i in range(3))]
    return emit_lookup_of_many(lower, low, masks), emit_lookup_of_rising(upper, low, high)


def _dwords_apart(bytes: Value) -> Value:
    """Each four of 32 bytes in a 64-bit lane."""
    return bytes.shuffle([i // 8 * 4 + i % 4 for i in range(BYTES)])


def _sums_iq1_s(addresses: Sequence[Value], columns: Sequence[Value]) -> list[list[Value]]:
    """A group is four rows of the grid: a product of bytes adds up what one scale belongs to."""
    across = [_numbers_across(column) for column in columns]
    zero = constant(addresses[0].b, vector(I32, 16), 0)
    ones = [constant(zero.b, vector(I8, BYTES), 1)] * 8
    totals = [_added_fours(ones, each).part(0, 8).convert(F32) for each in across]
    found = []
    for blocks in _pairs(addresses):
        low = joined([_bytes_at(block, _QS_1S, 32) for block in blocks])
        words = joined([values.load(block, vector(I16, 8), _QH_1S) for block in blocks])
        high = bits_from(_dwords_apart(words.bitcast(vector(I8, 32))), _THREES_OF_TWO_WORDS)
        numbers = [shifted(plane, 2 * k) & 3 for plane in _bytes_of_ones(low, high) for k in range(4)]
        # 0, 1 and 2 stand for -1, 0 and 1, all an eighth lower or higher
        moved = (words < 0).select(constant(zero.b, vector(F32, 16), -9), constant(zero.b, vector(F32, 16), -7))
        sums = [(_added_fours(numbers, each) << 3).convert(F32) for each in across]
        for at in (0, 8):
            found.append([moved.part(at, 8).fma(y, x.part(at, 8)) for x, y in zip(sums, totals, strict=True)])
    return found[: len(addresses)]


def _sums_iq1_m(addresses: Sequence[Value], columns: Sequence[Value]) -> list[list[Value]]:
    """A group is two rows of the grid, each with a direction of its own, which is a bit below the number's."""
    across = [_numbers_across(column) for column in columns]
    ones = [constant(addresses[0].b, vector(I8, BYTES), 1)] * 8
    totals = [_added_twos(ones, each).part(0, 16).convert(F32) * -9.0 for each in across]
    found = []
    for blocks in _pairs(addresses):
        low = joined([_bytes_at(block, _QS_1M, 32) for block in blocks])
        packed = joined([_bytes_at(block, _QH_1M, 16) for block in blocks])
        high = bits_from(_dwords_apart(packed), _FOURS_OF_TWO_WORDS)
        up = _is_set(high, 8).select(low.constant(0), low.constant(1))
        numbers = []
        for plane in _bytes_of_ones(low, high):
            above = (plane.bitcast(vector(I16, BYTES // 2)) << 2).bitcast(plane.type)
            numbers += [each & 12 | up for each in (above, plane, shifted(plane, 2), shifted(plane, 4))]
        sums = [_added_twos(numbers, each) for each in across]
        for at in (0, 16):
            found.append([x.part(at, 16).convert(F32).fma(2.0, y) for x, y in zip(sums, totals, strict=True)])
    return found[: len(addresses)]


def _pairs(addresses: Sequence[Value]) -> list[list[Value]]:
    """Two at once, the last perhaps twice."""
    return [[addresses[i], addresses[min(i + 1, len(addresses) - 1)]] for i in range(0, len(addresses), 2)]


def _added_fours(numbers: Sequence[Value], across: Sequence[Value]) -> Value:
    """The sums of the products of unsigned with signed bytes, of each four lanes in one."""
    sums = constant(across[0].b, vector(I32, BYTES // 4), 0)
    for q, x in zip(numbers, across, strict=True):
        sums = dots.emit_dot("u8i8", sums, q, x)
    return sums


def _added_twos(numbers: Sequence[Value], across: Sequence[Value]) -> Value:
    """The sums of the products of each two lanes, in int16, which hold those of numbers up to 9."""
    products = [
        values.call(q.b, "llvm.x86.avx512.pmaddubs.w.512", vector(I16, BYTES // 2), q, x)
        for q, x in zip(numbers, across, strict=True)
    ]
    return functools.reduce(operator.add, products)


def _numbers_across(address: Value) -> list[Value]:
    """Of 32 times eight int8 the first of each, then the second of each, and so on, each 32 twice in a vector."""
    transposed = []
    for at in range(0, 4 * BYTES, BYTES):
        rows = values.load(address + at, vector(I8, BYTES)).shuffle([8 * (i % 8) + i // 8 for i in range(BYTES)])
        transposed.append(rows.bitcast(vector(I64, 8)))
    found = []
    for half in (0, 4):
        pairs = [half + i // 2 + i % 2 * 8 for i in range(8)]
        a, b = (transposed[i].shuffle(pairs, transposed[i + 1]) for i in (0, 2))
        for k in range(0, 8, 2):
            found.append(a.shuffle([k, k + 1, k + 8, k + 9] * 2, b).bitcast(vector(I8, BYTES)))
    return found


_TWO = 128 - 43, 128 + 43

FAMILY = (
    Blocks(types.IQ2_XXS, _quants_iq2_xxs, _of_each(_scale_iq2_xxs), offset=128, limits=_TWO, at_once=_two_iq2_xxs),
    Blocks(
        types.IQ2_XS, _quants_iq2_xs, _of_each(_scale_iq2_xs), offset=128, limits=_TWO, group=16, at_once=_two_iq2_xs
    ),
    Blocks(types.IQ2_S, _quants_iq2_s, _of_each(_scale_iq2_s), offset=128, limits=_TWO, group=16, at_once=_two_iq2_s),
    Blocks(
        types.IQ3_XXS,
        _quants_iq3_xxs,
        _of_each(_scale_iq3_xxs),
        offset=128,
        limits=(128 - 62, 128 + 62),
        at_once=_one_iq3_xxs,
    ),
    Blocks(
        types.IQ3_S, _quants_iq3_s, _of_each(_scale_iq3_s), offset=128, limits=(128 - 15, 128 + 15), at_once=_one_iq3_s
    ),
    Blocks(
        types.IQ1_S,
        _quants_iq1_s,
        _of_each(_scale_iq1_s),
        offset=_ZERO,
        limits=(0, 2 * _ZERO),
        sums_of_groups=_sums_iq1_s,
    ),
    Blocks(
        types.IQ1_M,
        _quants_iq1_m,
        _of_each(_scale_iq1_m),
        offset=_ZERO,
        limits=(0, 2 * _ZERO),
        group=16,
        sums_of_groups=_sums_iq1_m,
    ),
)
