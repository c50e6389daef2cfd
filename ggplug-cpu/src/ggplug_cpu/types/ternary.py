"""TQ1_0, TQ2_0: 256 numbers -1, 0, 1 with one F16 scale, five to a byte or four (``quantize_row_tq*_0_ref``)."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence

from ggplug import types
from ggplug_cpu.simd import values
from ggplug_cpu.simd.lookup import constant_words
from ggplug_cpu.simd.values import F32, I8, I16, I32, Value, vector
from ggplug_cpu.types.blocks import (
    GROUP,
    Blocks,
    Factors,
    f16_at,
    inverse_of,
    is_finite,
    offset_of,
    shifted,
    size_of,
    store_f16,
)

_QS1, _QH1, _D1 = (offset_of(types.TQ1_0, field) for field in ("qs", "qh", "d"))
_QS2, _D2 = (offset_of(types.TQ2_0, field) for field in ("qs", "d"))


def _scales(d: int) -> Callable[[Sequence[Value]], Factors]:
    """One for all eight parts of a block."""
    return lambda addresses: Factors(values.joined([f16_at([at + d]).lane(0).splat(8) for at in addresses]))


def _powers() -> list[int]:
    """For every number of a part the power of three that brings its digit to the top of its byte."""
    first = [[3**digit] * 32 for digit in range(5)]
    middle = [[3**digit] * 16 + [3 ** (digit + 1)] * 16 for digit in (0, 2)]
    last = [[3**4] * 16 + [3 ** (i // 4) for i in range(16)]]
    factors = bytes(factor for part in first + middle + last for factor in part)
    return [int.from_bytes(factors[at : at + 8], "little") for at in range(0, len(factors), 8)]


_POWERS = _powers()


def _quants_tq1(block: Value, part: Value) -> Value:
    """Parts 0 to 4 are digits of 32 bytes, the next two and a half of 16; the last 16 numbers of four."""
    long, middle = values.load(block, vector(I8, 32), _QS1), values.load(block, vector(I8, 16), _QS1 + 32)
    few = values.load(block, vector(I8, 4), _QH1)
    last = middle.concat(few.shuffle([0, 1, 2, 3] * 4))
    packed = (part < 5).select(long, (part < 7).select(middle.concat(middle), last))
    powers = values.load(constant_words(block.b, "tq1_0.powers", _POWERS) + part * GROUP, vector(I8, GROUP))
    digits = packed.zext(I16) * powers.zext(I16) & 255
    return (digits * 3).lshr(8).convert(I8)


def _powers_of_pairs() -> list[list[int]]:
    """The powers of the even and of the odd bytes of each two parts, as int16."""
    return [
        [_POWERS[4 * at + i // 4] >> 8 * (2 * (i % 4) + odd) & 255 for i in range(GROUP)]
        for at in (0, 2, 4, 6)
        for odd in (0, 1)
    ]


_EVEN, _ODD = _powers_of_pairs()[::2], _powers_of_pairs()[1::2]


def _digits(packed: Value, even: Sequence[int], odd: Sequence[int]) -> Value:
    """The digits of 64 bytes that are brought to the top of each by a power of three."""
    pairs = packed.bitcast(vector(I16, GROUP))
    low = (pairs * values.constants(packed.b, I16, even)).bitcast(packed.type)
    high = ((pairs & -256) * values.constants(packed.b, I16, odd)).bitcast(packed.type)
    # three times a byte reaches 256 from 86 on, and 512 from 171 on
    top = low.shuffle([i + i % 2 * 2 * GROUP for i in range(2 * GROUP)], high) ^ -128
    one, two = (top > 85 - 128), (top > 170 - 128)
    return two.select(one.select(top.constant(2), 0), one.select(top.constant(1), 0))


def _all_tq1(addresses: Sequence[Value]) -> list[list[Value]]:
    found = []
    for block in addresses:
        long, middle = values.load(block, vector(I8, 32), _QS1), values.load(block, vector(I8, 16), _QS1 + 32)
        few = values.load(block, vector(I8, 4), _QH1).shuffle([0, 1, 2, 3] * 4)
        twice = middle.concat(middle)
        packed = [long.concat(long)] * 2 + [long.concat(twice), twice.concat(middle.concat(few))]
        found.append([_digits(*each) for each in zip(packed, _EVEN, _ODD, strict=True)])
    return found


def _quants_tq2(block: Value, part: Value) -> Value:
    return shifted(values.load(block + part.lshr(2) * GROUP, vector(I8, GROUP), _QS2), (part & 3) << 1) & 3


# -- encoding ------------------------------------------------------------------------------------------


def _numbers(block: Value, place: Value, d: int) -> tuple[list[Value], Value]:
    """The parts of a block as bytes 0, 1, 2, and whether all are numbers; stores the scale."""
    x = [values.load(place, vector(F32, GROUP), 4 * GROUP * part) for part in range(8)]
    size = functools.reduce(lambda a, b: a.maximum(b), map(size_of, x)).max()
    finite = is_finite(size)
    largest = size.bitcast(F32)
    store_f16(block + d, finite.select(largest, float("nan")))
    inverse = finite.select(inverse_of(largest), 0.0).splat(GROUP)
    found = [(each * inverse).round_away().convert(I32).convert(I8) + 1 for each in x]
    return [finite.select(each, each.constant(0)) for each in found], finite


def _encode_tq1(block: Value, place: Value) -> None:
    parts, finite = _numbers(block, place, _D1)
    sixteens = [part.part(start, 16) for part in parts[5:] for start in (0, 16)]
    fours = [sixteens[5].part(start, 4) for start in range(0, 16, 4)]
    fours.append(fours[0].constant(0))
    for at, digits in ((_QS1, parts[:5]), (_QS1 + 32, sixteens[:5]), (_QH1, fours)):
        wide = [each.zext(I16) for each in digits]
        number = functools.reduce(lambda high, low: high * 3 + low, wide)
        # number * 256 / 243, rounded up: (x * 69043 >> 24) is x / 243 for all x that occur
        scaled = ((number.zext(I32) << 8) + 242) * 69043
        values.store(block, finite.select(scaled.lshr(24).convert(I8), digits[0].constant(0)), at)


def _encode_tq2(block: Value, place: Value) -> None:
    parts, _ = _numbers(block, place, _D2)
    for half in range(2):
        bits = (each << 2 * i for i, each in enumerate(parts[4 * half : 4 * half + 4]))
        values.store(block, functools.reduce(operator.or_, bits), _QS2 + 32 * half)


FAMILY = (
    Blocks(types.TQ1_0, _quants_tq1, _scales(_D1), offset=1, limits=(0, 2), encode=_encode_tq1, at_once=_all_tq1),
    Blocks(types.TQ2_0, _quants_tq2, _scales(_D2), offset=1, limits=(0, 3), encode=_encode_tq2),
)
