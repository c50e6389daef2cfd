"""IQ4_NL, IQ4_XS: numbers from 0 to 15 that stand for sixteen uneven levels, with a scale for every 32."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence

from ggplug import types
from ggplug.quants.levels import IQ4_NL_LEVELS
from ggplug_cpu.simd import values
from ggplug_cpu.simd.lookup import emit_lookup
from ggplug_cpu.simd.values import F32, I8, I16, I32, I64, Value, constant, constants, loop, vector
from ggplug_cpu.types.blocks import (
    ANY_NUMBER,
    GROUP,
    PREPARED,
    UNIT,
    Blocks,
    Factors,
    InPlace,
    Read,
    SideBySide,
    Weigh,
    as_nibbles,
    both_nibbles,
    byte_factors,
    f16_at,
    f16_factors,
    first_where,
    is_finite,
    nearest,
    nibbles,
    numbers_of_bytes,
    offset_of,
    shifted,
    size_of,
    store_f16,
    sum_in_order,
)
from ggplug_cpu.types.search import ALL_ZERO, mean_square, spread_weights

_LEVELS = [int(level) for level in IQ4_NL_LEVELS]
_QS = offset_of(types.IQ4_NL, "qs")


_UNSIGNED = [level - _LEVELS[0] for level in _LEVELS]


def _quants(block: Value, _: Value) -> Value:
    return emit_lookup(_UNSIGNED, nibbles(block + _QS))


def _spread(stored: Value) -> tuple[Value, ...]:
    return tuple(emit_lookup(_UNSIGNED, numbers) for numbers in both_nibbles(stored))


def _nearest_level(scaled: Value) -> tuple[Value, Value]:
    """The number of the nearest level (int32), of two at the same distance the greater, and the level (f32)."""
    numbers = constant(scaled.b, vector(I32, GROUP), 0)
    q = scaled.constant(_LEVELS[0])
    for number, (low, high) in enumerate(itertools.pairwise(_LEVELS), 1):
        below = (scaled - float(low)) < (float(high) - scaled)
        numbers = below.select(numbers, number)
        q = below.select(q, float(high))
    return numbers, q


def _encode_iq4_nl(block: Value, place: Value) -> None:
    """``quantize_row_iq4_nl_ref``: one scale, by which the largest element is the lowest level."""
    x = values.load(place, vector(F32, GROUP))
    size = size_of(x)
    largest = first_where(size.equal(size.max().splat(GROUP)), x)
    numbers, q = _nearest_level((1.0 / (largest / float(_LEVELS[0]))).splat(GROUP) * x)
    weights = x * x
    scale = sum_in_order(weights * q * x) / sum_in_order(weights * q * q)
    nothing = largest.abs() < ALL_ZERO
    finite = is_finite(size.max())
    store_f16(block, finite.select(nothing.select(0.0, scale), float("nan")))
    chosen = (finite & ~nothing).select(numbers, numbers.constant(0))
    values.store(block, as_nibbles(chosen.convert(I8)), _QS)


def _file_iq4_nl(block: Value, place: Value) -> None:
    x = values.load(place, vector(F32, GROUP))
    _write_best(block, x, x * x)


def _weigh_iq4_nl(block: Value, place: Value, importance: Value, _: Value) -> None:
    x = values.load(place, vector(F32, GROUP))
    mean = mean_square(place, constant(place.b, I64, GROUP), 2.0)
    _write_best(block, x, spread_weights([x], [values.load(importance, vector(F32, GROUP))], mean)[0])


def _write_best(block: Value, x: Value, weights: Value) -> None:
    scale, finite = _best_scale(x, weights), is_finite(size_of(x).max())
    numbers, _ = _nearest_level(_inverse(scale).splat(GROUP) * x)
    store_f16(block, finite.select(scale, float("nan")))
    values.store(block, as_nibbles(finite.select(numbers, numbers.constant(0)).convert(I8)), _QS)


# -- IQ4_XS: eight groups, with scales of six bits -----------------------------------------------------

_D_XS, _LOW_XS, _HIGH_XS, _QS_XS = (offset_of(types.IQ4_XS, each) for each in ("d", "scales_l", "scales_h", "qs"))


def _quants_iq4_xs(block: Value, part: Value) -> Value:
    return emit_lookup(_UNSIGNED, nibbles(block + (part * 16 + _QS_XS)))


def _factors_iq4_xs(addresses: Sequence[Value]) -> Factors:
    """Four bits of each scale in a nibble, two more of all in one word."""
    found = []
    for address in addresses:
        packed = values.load(address, vector(I8, 4), _LOW_XS).zext(I32)
        low = (packed & 15).shuffle([0, 4, 1, 5, 2, 6, 3, 7], packed.lshr(4))
        word = values.load(address, I16, _HIGH_XS).zext(I32).splat(8)
        high = word.lshr(constants(word.b, I32, range(0, 16, 2))) & 3
        d = f16_at([address + _D_XS]).lane(0).splat(8)
        found.append(d * ((low | high << 4) - 32).convert(F32))
    return Factors(values.joined(found))


def _scales_of_rows_iq4_xs(read: Read) -> list[Value]:
    scales = []
    for group in range(8):
        low = read("scales_l", group // 2)
        high = shifted(read("scales_h", group // 4), 2 * (group % 4))
        scales.append((both_nibbles(low)[group % 2] | (high & 3) << 4) - 32)
    return scales


def _best_scale(x: Value, weights: Value) -> Value:
    """The best of sixteen scales for 32 numbers, whose errors count by weights (``quantize_row_iq4_nl_impl``)."""
    size = size_of(x)
    largest = first_where(size.equal(size.max().splat(GROUP)), x)

    def sums(inverse: Value) -> tuple[Value, Value]:
        _, q = _nearest_level(inverse.splat(GROUP) * x)
        return sum_in_order(weights * q * x), sum_in_order(weights * q * q)

    sum_qx, sum_q2 = sums(1.0 / (-largest / float(_LEVELS[0])))
    scale = (sum_q2 > 0.0).select(sum_qx / sum_q2, 0.0)

    def attempt(i: Value, carried: list[Value]) -> list[Value]:
        scale, best = carried
        sum_qx, sum_q2 = sums(((i - 7).convert(F32) + float(_LEVELS[0])) / largest)
        better = (sum_q2 > 0.0) & (sum_qx * sum_qx > best * sum_q2)
        ratio = sum_qx / sum_q2
        return [better.select(ratio, scale), better.select(ratio * sum_qx, best)]

    scale, _ = loop(constant(x.b, I64, 15), [scale, scale * sum_qx], attempt)
    return (largest.abs() < ALL_ZERO).select(0.0, scale)


def _inverse(x: Value) -> Value:
    return x.unequal(0.0).select(1.0 / x, 0.0)


def _weights(place: Value, x: Value, importance: Value | None, mean: Value | None) -> Value:
    """The weights of errors: the squares of 32 numbers, or an importance matrix."""
    if importance is None or mean is None:
        return x * x
    return spread_weights([x], [values.load(importance + place, vector(F32, GROUP))], mean)[0]


def _encode_iq4_xs(block: Value, place: Value) -> None:
    _search_iq4_xs(block, place, None)


def _weigh_iq4_xs(block: Value, place: Value, importance: Value, _: Value) -> None:
    _search_iq4_xs(block, place, importance)


def _search_iq4_xs(block: Value, place: Value, importance: Value | None) -> None:
    mean = None if importance is None else mean_square(place, constant(place.b, I64, 256), 2.0)
    parts = [values.load(place, vector(F32, GROUP), 4 * GROUP * part) for part in range(8)]
    finite = is_finite(functools.reduce(lambda a, b: a.maximum(b), map(size_of, parts)).max())
    eight = constant(place.b, I64, 8)
    lanes = constants(place.b, I32, range(8))

    def search(part: Value, scales: list[Value]) -> list[Value]:
        at = part * (4 * GROUP)
        x = values.load(place + at, vector(F32, GROUP))
        found = _best_scale(x, _weights(at, x, importance, mean))
        return [lanes.equal(part.convert(I32).splat(8)).select(found.splat(8), scales[0])]

    (scales,) = loop(eight, [constant(place.b, vector(F32, 8), 0)], search)
    known = scales.equal(scales).select(scales, 0.0)  # others are of numbers whose squares are too large
    size = size_of(known)
    largest = first_where(size.equal(size.max().splat(8)), known)
    d = -(largest + 0.0) / 32.0
    store_f16(block + _D_XS, finite.select(d, float("nan")))
    numbers = nearest(_inverse(d).splat(8) * scales).maximum(-32).minimum(31)
    inverses = _inverse(d.splat(8) * numbers.convert(F32))
    stored = finite.select(numbers + 32, numbers.constant(0))
    low = stored & 15
    values.store(block, (low.shuffle(range(0, 8, 2)) | low.shuffle(range(1, 8, 2)) << 4).convert(I8), _LOW_XS)
    high = stored.lshr(4) << constants(place.b, I32, range(0, 16, 2))
    values.store(block, high.sum().convert(I16), _HIGH_XS)

    def write(part: Value, _: list[Value]) -> list[Value]:
        x = values.load(place + part * (4 * GROUP), vector(F32, GROUP))
        q, _level = _nearest_level(inverses.lane_at(part).splat(GROUP) * x)
        packed = as_nibbles(q.convert(I8))
        values.store(block + part * 16, finite.select(packed, packed.constant(0)), _QS_XS)
        return []

    loop(eight, [], write)


FAMILY = (
    Blocks(
        types.IQ4_NL,
        _quants,
        lambda at: Factors(f16_at(at)),
        offset=-_LEVELS[0],
        limits=(0, _UNSIGNED[-1]),
        encode=_encode_iq4_nl,
        file=_file_iq4_nl,
        weigh=Weigh(_weigh_iq4_nl),
        side_by_side=SideBySide((("qs", UNIT), ("d", 2)), numbers_of_bytes("qs", _spread, 2), f16_factors("d")),
    ),
    Blocks(
        types.IQ4_XS,
        _quants_iq4_xs,
        _factors_iq4_xs,
        offset=-_LEVELS[0],
        limits=(0, _UNSIGNED[-1]),
        encode=_encode_iq4_xs,
        weigh=Weigh(_weigh_iq4_xs),
        side_by_side=SideBySide(
            (("qs", UNIT), ("d", 2), ("scales_l", 1), ("scales_h", 1)),
            numbers_of_bytes("qs", _spread, 2),
            byte_factors(PREPARED),
            prepared=_scales_of_rows_iq4_xs,
            in_place=InPlace(6, ANY_NUMBER),
        ),
    ),
)
