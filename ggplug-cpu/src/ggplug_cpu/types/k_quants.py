"""Q2_K to Q6_K, Q8_K: super-blocks of 256 numbers in groups whose scales are quantised too (``quantize_row_q*_K_ref``).

The encoders are ggml's searches, with a lane for every group: the same float32 operations in the same order.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterator, Sequence

from ggplug import types
from ggplug_cpu.simd import values
from ggplug_cpu.simd.transposition import transposed
from ggplug_cpu.simd.values import F32, I8, I16, I32, I64, Value, constant, vector
from ggplug_cpu.types.blocks import (
    GROUP,
    PREPARED,
    UNIT,
    Blocks,
    Factors,
    InPlace,
    Pair,
    Read,
    SideBySide,
    Weigh,
    both_nibbles,
    byte_factors,
    f16_at,
    f16_read,
    first_where,
    is_finite,
    nearest,
    offset_of,
    shifted,
    size_of,
    store_f16,
)
from ggplug_cpu.types.search import (
    ALL_ZERO,
    all_finite,
    between,
    first_largest,
    in_order,
    lanes_of,
    mean_square,
    positive,
    refined,
    signed,
    spread_weights,
    with_minimum,
)

_Q2, _Q3, _Q4, _Q5, _Q6, _Q8 = types.Q2_K, types.Q3_K, types.Q4_K, types.Q5_K, types.Q6_K, types.Q8_K
_SCALES2, _QS2, _D2, _MIN2 = (offset_of(_Q2, field) for field in ("scales", "qs", "d", "dmin"))
_HIGH3, _QS3, _SCALES3, _D3 = (offset_of(_Q3, field) for field in ("hmask", "qs", "scales", "d"))
_QS4 = offset_of(_Q4, "qs")
# Q4_K begins as Q5_K does
_D5, _MIN5, _SCALES5, _QH5, _QS5 = (offset_of(_Q5, field) for field in ("d", "dmin", "scales", "qh", "qs"))
_QL6, _QH6, _SCALES6, _D6 = (offset_of(_Q6, field) for field in ("ql", "qh", "scales", "d"))
_D8, _QS8, _SUMS8 = (offset_of(_Q8, field) for field in ("d", "qs", "bsums"))


# -- reading -------------------------------------------------------------------------------------------


def _pairs(block: Value, part: Value, field: int) -> Value:
    """Four parts share 32 bytes, two bits each."""
    return shifted(values.load(block + part.lshr(2) * GROUP, vector(I8, GROUP), field), (part & 3) << 1) & 3


def _bit(block: Value, part: Value, field: int) -> Value:
    """All parts share 32 bytes, a bit each."""
    return shifted(values.load(block, vector(I8, GROUP), field), part) & 1


def _half_bytes(block: Value, part: Value, field: int) -> Value:
    """Two parts share 32 bytes of nibbles."""
    return shifted(values.load(block + part.lshr(1) * GROUP, vector(I8, GROUP), field), (part & 1) << 2) & 15


def _quants_q2(block: Value, part: Value) -> Value:
    return _pairs(block, part, _QS2)


def _factors_q2(addresses: Sequence[Value]) -> Factors:
    """Sixteen bytes, of a scale and a minimum each."""
    scales, minima = [], []
    for address in addresses:
        both = values.load(address, vector(I8, 16), _SCALES2).zext(I32)
        d = f16_at([address + _D2, address + _MIN2])
        scales.append(d.lane(0).splat(16) * (both & 15).convert(F32))
        minima.append((-d.lane(1)).splat(16) * both.lshr(4).convert(F32))
    return Factors(values.joined(scales), values.joined(minima))


def _quants_q3(block: Value, part: Value) -> Value:
    return _pairs(block, part, _QS3) | _bit(block, part, _HIGH3) << 2


def _factors_q3(addresses: Sequence[Value]) -> Factors:
    """Sixteen scales of six bits in twelve bytes: nibbles, then upper pairs of bits."""
    found = []
    for address in addresses:
        low = values.load(address, vector(I8, 8), _SCALES3).zext(I32)
        high = values.load(address, vector(I8, 4), _SCALES3 + 8).zext(I32)
        upper = values.joined([high.lshr(2 * i) & 3 for i in range(4)])
        numbers = ((low & 15).concat(low.lshr(4)) | upper << 4) - 32
        found.append(f16_at([address + _D3]).lane(0).splat(16) * numbers.convert(F32))
    return Factors(values.joined(found))


def _quants_q4(block: Value, part: Value) -> Value:
    return _half_bytes(block, part, _QS4)


def _quants_q5(block: Value, part: Value) -> Value:
    return _half_bytes(block, part, _QS5) | _bit(block, part, _QH5) << 4


def _factors_q4_and_q5(addresses: Sequence[Value]) -> Factors:
    """Twelve bytes of six-bit scales and minima: four of each whole, the others' upper bits in theirs."""
    scales: list[Value] = []
    minima: list[Value] = []
    for address in addresses:
        low, high, mixed = (values.load(address, vector(I8, 4), _SCALES5 + 4 * i).zext(I32) for i in range(3))
        d = f16_at([address + _D5, address + _MIN5])
        for into, whole, rest, factor in (
            (scales, low, mixed & 15, d.lane(0)),
            (minima, high, mixed.lshr(4), -d.lane(1)),
        ):
            numbers = (whole & 63).concat(rest | whole.lshr(6) << 4)
            into.append(factor.splat(8) * numbers.convert(F32))
    return Factors(values.joined(scales), values.joined(minima))


def _quants_q6(block: Value, part: Value) -> Value:
    """Four parts share 64 bytes of nibbles and 32 bytes of upper pairs of bits."""
    lanes = vector(I8, GROUP)
    half, quarter = part.lshr(2), part & 3
    low = shifted(values.load(block + half * 64 + (quarter & 1) * GROUP, lanes, _QL6), quarter.lshr(1) << 2) & 15
    return low | (shifted(values.load(block + half * GROUP, lanes, _QH6), quarter << 1) & 3) << 4


def _factors_q6(addresses: Sequence[Value]) -> Factors:
    scales = [
        f16_at([address + _D6]).lane(0).splat(16) * values.load(address, vector(I8, 16), _SCALES6).convert(F32)
        for address in addresses
    ]
    return Factors(values.joined(scales))


def _quants_q8(block: Value, part: Value) -> Value:
    return values.load(block + part * GROUP, vector(I8, GROUP), _QS8) ^ -128


def _factors_q8(addresses: Sequence[Value]) -> Factors:
    return Factors(values.joined([values.load(address, F32, _D8).splat(8) for address in addresses]))


# -- reading packed weights ----------------------------------------------------------------------------


def _numbers_of_rows_q2(read: Read, step: Value, group: int) -> Iterator[tuple[int, Value]]:
    for unit in range(4):
        stored = read("qs", step * GROUP + (group % 2 * 16 + unit * UNIT))
        yield unit, shifted(stored, group // 2 * 2) & 3


def _factors_of_rows_q2(read: Read, group: Value) -> Pair:
    both = read("scales", group)
    scale, minimum = (each.zext(I32).convert(F32) for each in both_nibbles(both))
    return f16_read(read, "d") * scale, -f16_read(read, "dmin") * minimum


def _numbers_of_rows_q3(read: Read, step: Value, group: int) -> Iterator[tuple[int, Value]]:
    for unit, low in _numbers_of_rows_q2(read, step, group):
        high = shifted(read("hmask", group % 2 * 16 + unit * UNIT), step * 4 + group // 2)
        yield unit, low | (high & 1) << 2


def _scales_of_rows_q3(read: Read) -> list[Value]:
    low, high = both_nibbles(read("scales", 0, 8))
    upper = read("scales", 8, 4)
    pairs = [(shifted(upper, 2 * i) & 3) << 4 for i in range(4)]
    return [(low | pairs[0].concat(pairs[1])) - 32, (high | pairs[2].concat(pairs[3])) - 32]


def _numbers_of_rows_q4(read: Read, step: Value, group: int) -> Iterator[tuple[int, Value]]:
    for unit in range(8):
        yield unit, both_nibbles(read("qs", step * GROUP + unit * UNIT))[group]


def _numbers_of_rows_q5(read: Read, step: Value, group: int) -> Iterator[tuple[int, Value]]:
    for unit, low in _numbers_of_rows_q4(read, step, group):
        yield unit, low | (shifted(read("qh", unit * UNIT), step * 2 + group) & 1) << 4


def _scales_of_rows_q4_and_q5(read: Read) -> list[Value]:
    """Eight scales, then eight minima."""
    first, second, mixed = (read("scales", 4 * i, 4) for i in range(3))
    low, high = both_nibbles(mixed)
    return [
        numbers
        for whole, rest in ((first, low), (second, high))
        for numbers in (whole & 63, rest | (shifted(whole, 6) & 3) << 4)
    ]


def _factors_of_rows_q4_and_q5(read: Read, group: Value) -> Pair:
    scale, minimum = (read(PREPARED, group + i).zext(I32).convert(F32) for i in (0, 8))
    return f16_read(read, "d") * scale, -f16_read(read, "dmin") * minimum


def _numbers_of_rows_q6(read: Read, step: Value, group: int) -> Iterator[tuple[int, Value]]:
    quarter, half = divmod(group, 2)
    for unit in range(4):
        at = half * 16 + unit * UNIT
        low = both_nibbles(read("ql", step * 64 + (quarter % 2 * GROUP + at)))[quarter // 2]
        high = shifted(read("qh", step * GROUP + at), 2 * quarter)
        yield unit, low | (high & 3) << 4


# -- encoding ------------------------------------------------------------------------------------------


def _groups(place: Value, groups: int, size: int) -> list[Value]:
    """The f32 numbers of a super-block: ``out[j]`` has number j of every group."""
    return transposed([values.load(place, vector(F32, size), 4 * size * group) for group in range(groups)])


def _parts(numbers: list[Value], per_part: int) -> list[Value]:
    """Numbers of groups, ``out[j]`` of every group before, as int8 parts of a super-block."""
    groups = [each.convert(I8) for each in transposed(numbers)]
    return [values.joined(groups[first : first + per_part]) for first in range(0, len(groups), per_part)]


def _requantised(x: list[Value], numbers: list[Value], d: Value, low: int, high: int) -> list[Value]:
    """The numbers again, by the scales that are stored, where these are not zero."""
    again = [between(low, nearest(each / d), high) - min(low, 0) for each in x]
    return [d.equal(0.0).select(old, new) for old, new in zip(numbers, again, strict=True)]


def _factors_of(each: Value, top: int) -> tuple[Value, Value]:
    """A scale for scales, and these as numbers from 0 to ``top``."""
    most = (each > 0.0).select(each, 0.0).max()
    inverse = (most > 0.0).select(float(top) / most, 0.0)
    return most / float(top), (nearest(inverse.splat(each.count) * each) & 255).minimum(top)


#: Numbers, scales with the scale of all, and minima with theirs.
_Found = tuple[list[Value], tuple[Value, Value], tuple[Value, Value]]


def _by_values(found: tuple[Value, Value, list[Value]]) -> _Found:
    scale, minimum, numbers = found
    most = 15 if scale.count == 16 else 63
    return numbers, _factors_of(scale, most), _factors_of(minimum, most)


def _by_importance(x: list[Value], weights: list[Value], top: int) -> _Found:
    scale, minimum, numbers = with_minimum(x, weights, top, -0.9, 0.05, 36)
    of_groups = lanes_of(in_order(weights))
    most = 15 if scale.count == 16 else 63
    d, scales = positive(lanes_of(scale), of_groups, most)
    m, minima = positive(lanes_of(minimum), of_groups, most)
    return numbers, (d, values.gathered(scales) & 255), (m, values.gathered(minima) & 255)


def _weights(place: Value, importance: Value, x: list[Value], factor: float) -> list[Value]:
    """The weights of errors, by an importance matrix and the mean square of the super-block."""
    count, size = x[0].count, len(x)
    mean = mean_square(place, constant(place.b, I64, 256), factor)
    return spread_weights(x, _groups(importance, count, size), mean)


class _Minima:
    """Encodes a super-block whose groups have minima: scales and minima first, then the numbers by what is stored."""

    def __init__(self, block: Value, x: list[Value], found: _Found, top: int, at: int) -> None:
        """Stores the scales of scales and minima, the one behind the other, ``at`` bytes behind ``block``."""
        self.block, count = block, x[0].count
        numbers, (d, self.scales), (m, self.minima) = found
        self.finite = all_finite(x)
        store_f16(block + at, self.finite.select(d, float("nan")))
        store_f16(block + (at + 2), self.finite.select(m, 0.0))
        both = f16_at([block + at, block + (at + 2)])
        stored = [both.lane(i).splat(count) * each.convert(F32) for i, each in enumerate((self.scales, self.minima))]
        self.numbers = _requantised([each + stored[1] for each in x], numbers, stored[0], 0, top)

    def write(self, at: int, content: Value) -> None:
        values.store(self.block, self.finite.select(content, content.constant(0)), at)

    def write_six_bits(self) -> None:
        """Eight scales and eight minima in twelve bytes."""
        for i, each in enumerate((self.scales, self.minima)):
            packed = each.part(0, 4) | each.part(4, 4).lshr(4) << 6
            self.write(_SCALES5 + 4 * i, packed.convert(I8))
        self.write(_SCALES5 + 8, ((self.scales.part(4, 4) & 15) | self.minima.part(4, 4) << 4).convert(I8))


def _joined_bits(parts: Sequence[Value], bits: int) -> Value:
    """Numbers of so many bits in one byte each, the first part's lowest."""
    return functools.reduce(operator.or_, (part << bits * i for i, part in enumerate(parts)))


def _encode_q2(block: Value, place: Value) -> None:
    x = _groups(place, 16, 16)
    found = with_minimum(x, [each.abs() for each in x], 3, -0.5, 0.1, 15, by_magnitude=True)
    _write_q2(block, x, _by_values(found))


def _weigh_q2(block: Value, place: Value, importance: Value, _: Value) -> None:
    x = _groups(place, 16, 16)
    _write_q2(block, x, _by_importance(x, _weights(place, importance, x, 1.0), 3))


def _write_q2(block: Value, x: list[Value], found: _Found) -> None:
    minima = _Minima(block, x, found, 3, _D2)
    minima.write(_SCALES2, (minima.scales | minima.minima << 4).convert(I8))
    parts = _parts(minima.numbers, 2)
    for half in range(2):
        minima.write(_QS2 + 32 * half, _joined_bits(parts[4 * half : 4 * half + 4], 2))


def _by_size(x: list[Value]) -> list[Value]:
    size = (in_order([each * each for each in x]) / 32.0).unary("sqrt")
    return [size + each.abs() for each in x]


def _encode_q4(block: Value, place: Value) -> None:
    x = _groups(place, 8, 32)
    _write_q4(block, x, _by_values(with_minimum(x, _by_size(x), 15, -1.0, 0.1, 20)))


def _weigh_q4(block: Value, place: Value, importance: Value, _: Value) -> None:
    x = _groups(place, 8, 32)
    _write_q4(block, x, _by_importance(x, _weights(place, importance, x, 2.0), 15))


def _write_q4(block: Value, x: list[Value], found: _Found) -> None:
    minima = _Minima(block, x, found, 15, _D5)
    minima.write_six_bits()
    parts = _parts(minima.numbers, 1)
    for pair in range(4):
        minima.write(_QS4 + 32 * pair, _joined_bits(parts[2 * pair : 2 * pair + 2], 4))


def _encode_q5(block: Value, place: Value) -> None:
    x = _groups(place, 8, 32)
    _write_q5(block, x, _by_values(with_minimum(x, _by_size(x), 31, -0.5, 0.1, 15)))


def _weigh_q5(block: Value, place: Value, importance: Value, _: Value) -> None:
    x = _groups(place, 8, 32)
    _write_q5(block, x, _by_importance(x, _weights(place, importance, x, 2.0), 31))


def _write_q5(block: Value, x: list[Value], found: _Found) -> None:
    minima = _Minima(block, x, found, 31, _D5)
    minima.write_six_bits()
    parts = _parts(minima.numbers, 1)
    for pair in range(4):
        minima.write(_QS5 + 32 * pair, (parts[2 * pair] & 15) | parts[2 * pair + 1] << 4)
    minima.write(_QH5, _joined_bits([shifted(part, 4) & 1 for part in parts], 1))


def _encode_q3(block: Value, place: Value) -> None:
    x = _groups(place, 16, 16)
    scale, numbers = refined(x, 4)
    known = scale.equal(scale).select(scale, 0.0)  # others are of numbers whose squares are too large
    largest = first_largest(lanes_of(known), lanes_of(known.abs()))
    some = largest.unequal(0.0)
    inverse = some.select(-32.0 / largest, 0.0)
    # the whole number becomes an int8 before it is bounded
    found = between(-32, nearest(inverse.splat(16) * scale).convert(I8).convert(I32), 31) + 32
    _write_q3(block, x, numbers, some.select(1.0 / inverse, 0.0), some.select(found, found.constant(0)))


def _weigh_q3(block: Value, place: Value, importance: Value, _: Value) -> None:
    x = _groups(place, 16, 16)
    weights = _weights(place, importance, x, 2.0)
    scale, numbers = signed(x, weights, 4)
    d, scales = signed(lanes_of(scale), lanes_of(in_order(weights)), 32)
    _write_q3(block, x, numbers, d, values.gathered(scales))


def _write_q3(block: Value, x: list[Value], numbers: list[Value], scale: Value, scales: Value) -> None:
    """``scales``: from 0 to 63, of which 32 is zero."""
    finite = all_finite(x)
    store_f16(block + _D3, finite.select(scale, float("nan")))
    d = f16_at([block + _D3]).lane(0).splat(16) * (scales - 32).convert(F32)

    def write(at: int, content: Value) -> None:
        values.store(block, finite.select(content, content.constant(0)), at)

    write(_SCALES3, ((scales.part(0, 8) & 15) | (scales.part(8, 8) & 15) << 4).convert(I8))
    upper = scales.lshr(4)
    write(_SCALES3 + 8, _joined_bits([upper.part(4 * i, 4) for i in range(4)], 2).convert(I8))
    parts = _parts(_requantised(x, numbers, d, -4, 3), 2)
    write(_HIGH3, _joined_bits([shifted(part, 2) & 1 for part in parts], 1))
    for half in range(2):
        write(_QS3 + 32 * half, _joined_bits([part & 3 for part in parts[4 * half : 4 * half + 4]], 2))


def _encode_q6(block: Value, place: Value) -> None:
    x = _groups(place, 16, 16)
    _write_q6(block, x, *signed(x, [each * each for each in x], 32))


def _weigh_q6(block: Value, place: Value, importance: Value, _: Value) -> None:
    x = _groups(place, 16, 16)
    _write_q6(block, x, *signed(x, _groups(importance, 16, 16), 32))


def _write_q6(block: Value, x: list[Value], scale: Value, numbers: list[Value]) -> None:
    size = scale.equal(scale).select(scale.abs(), 0.0)
    largest = first_largest(lanes_of(scale), lanes_of(size))
    keep = all_finite(x) & (largest.abs() >= ALL_ZERO)
    inverse = -128.0 / largest
    scales = nearest(inverse.splat(16) * scale).minimum(127).convert(I8)
    store_f16(block + _D6, all_finite(x).select(keep.select(1.0 / inverse, 0.0), float("nan")))
    d = f16_at([block + _D6]).lane(0).splat(16) * scales.convert(F32)
    numbers = _requantised(x, numbers, d, -32, 31)

    def write(at: int, content: Value) -> None:
        values.store(block, keep.select(content, content.constant(0)), at)

    write(_SCALES6, scales)
    parts = _parts(numbers, 2)
    for half in range(2):
        quarters = parts[4 * half : 4 * half + 4]
        for i in range(2):
            write(_QL6 + 64 * half + 32 * i, (quarters[i] & 15) | quarters[i + 2] << 4)
        write(_QH6 + 32 * half, _joined_bits([shifted(each, 4) & 3 for each in quarters], 2))


def _encode_q8(block: Value, place: Value) -> None:
    """One scale, by which the first of the largest is -127, and the sums of sixteen numbers each."""
    parts = [values.load(place, vector(F32, GROUP), 4 * GROUP * part) for part in range(8)]
    most = functools.reduce(lambda a, b: a.maximum(b), map(size_of, parts)).max()
    finite = is_finite(most)
    first = [first_where(size_of(part).equal(most.splat(GROUP)), part) for part in parts]
    largest = first[7]
    for each in reversed(first[:7]):
        largest = size_of(each).equal(most).select(each, largest)
    some = largest.unequal(0.0)
    inverse = -127.0 / largest
    values.store(block, finite.select(some.select(1.0 / inverse, 0.0), float("nan")), _D8)
    sums = []
    for i, part in enumerate(parts):
        numbers = nearest(inverse.splat(GROUP) * part).minimum(127)
        numbers = (finite & some).select(numbers, numbers.constant(0))
        values.store(block, numbers.convert(I8), _QS8 + GROUP * i)
        sums += [numbers.part(start, 16).sum() for start in (0, 16)]
    values.store(block, values.gathered(sums).convert(I16), _SUMS8)


FAMILY = (
    Blocks(
        _Q2,
        _quants_q2,
        _factors_q2,
        limits=(0, 3),
        group=16,
        has_minima=True,
        encode=_encode_q2,
        weigh=Weigh(_weigh_q2),
        side_by_side=SideBySide(
            (("qs", UNIT), ("scales", 1), ("d", 2), ("dmin", 2)),
            _numbers_of_rows_q2,
            _factors_of_rows_q2,
            8,
        ),
    ),
    Blocks(
        _Q3,
        _quants_q3,
        _factors_q3,
        offset=4,
        limits=(0, 7),
        group=16,
        encode=_encode_q3,
        weigh=Weigh(_weigh_q3),
        side_by_side=SideBySide(
            (("qs", UNIT), ("hmask", UNIT), ("scales", 1), ("d", 2)),
            _numbers_of_rows_q3,
            byte_factors(PREPARED),
            8,
            _scales_of_rows_q3,
            in_place=InPlace(8, 8),
        ),
    ),
    Blocks(
        _Q4,
        _quants_q4,
        _factors_q4_and_q5,
        limits=(0, 15),
        has_minima=True,
        encode=_encode_q4,
        weigh=Weigh(_weigh_q4),
        side_by_side=SideBySide(
            (("qs", UNIT), ("scales", 1), ("d", 2), ("dmin", 2)),
            _numbers_of_rows_q4,
            _factors_of_rows_q4_and_q5,
            2,
            _scales_of_rows_q4_and_q5,
            in_place=InPlace(31, 31),
        ),
    ),
    Blocks(
        _Q5,
        _quants_q5,
        _factors_q4_and_q5,
        limits=(0, 31),
        has_minima=True,
        encode=_encode_q5,
        weigh=Weigh(_weigh_q5),
        side_by_side=SideBySide(
            (("qs", UNIT), ("qh", UNIT), ("scales", 1), ("d", 2), ("dmin", 2)),
            _numbers_of_rows_q5,
            _factors_of_rows_q4_and_q5,
            2,
            _scales_of_rows_q4_and_q5,
            in_place=InPlace(6, 15),
        ),
    ),
    Blocks(
        _Q6,
        _quants_q6,
        _factors_q6,
        offset=32,
        limits=(0, 63),
        group=16,
        encode=_encode_q6,
        weigh=Weigh(_weigh_q6),
        side_by_side=SideBySide(
            (("ql", UNIT), ("qh", UNIT), ("scales", 1), ("d", 2)),
            _numbers_of_rows_q6,
            byte_factors("scales"),
            8,
            in_place=InPlace(8, 15),
        ),
    ),
    Blocks(_Q8, _quants_q8, _factors_q8, offset=128, encode=_encode_q8, is_activation=True),
)
