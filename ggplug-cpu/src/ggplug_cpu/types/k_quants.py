"""Q5_K, Q6_K: super-blocks of 256 numbers in groups whose scales are quantised too (``quantize_row_q*_K_ref``).

The encoders are ggml's searches, with a lane for every group: the same float32 operations in the same order.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence

from ggplug import types
from ggplug_cpu.simd import values
from ggplug_cpu.simd.transposition import transposed
from ggplug_cpu.simd.values import F32, I8, I32, I64, Value, constant, loop, vector
from ggplug_cpu.types.blocks import (
    GROUP,
    Blocks,
    Factors,
    f16_at,
    is_finite,
    offset_of,
    shifted,
    size_of,
    store_f16,
)

_Q5, _Q6 = types.Q5_K, types.Q6_K
_D5, _MIN5, _SCALES5, _QH5, _QS5 = (offset_of(_Q5, field) for field in ("d", "dmin", "scales", "qh", "qs"))
_QL6, _QH6, _SCALES6, _D6 = (offset_of(_Q6, field) for field in ("ql", "qh", "scales", "d"))
#: Groups with no element as large as this have the scale 0 (``GROUP_MAX_EPS``).
_ALL_ZERO = 1e-15
#: Adding it leaves the nearest whole number in the lower bits (``nearest_int``).
_MAGIC = 12582912.0


# -- reading -------------------------------------------------------------------------------------------


def _quants_q5(block: Value, part: Value) -> Value:
    """Two parts share 32 bytes of nibbles, all parts 32 bytes of fifth bits."""
    lanes = vector(I8, GROUP)
    low = shifted(values.load(block + part.lshr(1) * GROUP, lanes, _QS5), (part & 1) << 2) & 15
    return low | (shifted(values.load(block, lanes, _QH5), part) & 1) << 4


def _factors_q5(addresses: Sequence[Value]) -> Factors:
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


# -- encoding ------------------------------------------------------------------------------------------


def _groups(place: Value, groups: int, size: int) -> list[Value]:
    """The f32 numbers of a super-block: ``out[j]`` has number j of every group."""
    return transposed([values.load(place, vector(F32, size), 4 * size * group) for group in range(groups)])


def _nearest(x: Value) -> Value:
    """Rounded to the nearest, ties to even, exactly as ggml does it: also for what is too large, and 0 for NaN."""
    return ((x + _MAGIC).bits() & 0x7FFFFF) - 0x400000


def _between(low: int, numbers: Value, high: int) -> Value:
    return numbers.maximum(low).minimum(high)


def _sum(terms: Sequence[Value]) -> Value:
    return functools.reduce(operator.add, terms)


def _all_finite(x: Sequence[Value]) -> Value:
    return is_finite(functools.reduce(lambda a, b: a.maximum(b), map(size_of, x)).max())


def _parts(numbers: list[Value], per_part: int) -> list[Value]:
    """Numbers of groups, ``out[j]`` of every group before, as int8 parts of a super-block."""
    groups = [each.convert(I8) for each in transposed(numbers)]
    return [values.joined(groups[first : first + per_part]) for first in range(0, len(groups), per_part)]


def _encode_q5(block: Value, place: Value) -> None:
    x = _groups(place, 8, 32)
    scale, minimum, numbers = _with_minimum(x)
    kept = []
    for each in (scale, minimum):
        top = (each > 0.0).select(each, 0.0).max()
        inverse = (top > 0.0).select(63.0 / top, 0.0)
        kept.append((top, (_nearest(inverse.splat(8) * each) & 255).minimum(63)))
    (top_scale, scales), (top_minimum, minima) = kept
    finite = _all_finite(x)
    store_f16(block + _D5, finite.select(top_scale / 63.0, float("nan")))
    store_f16(block + _MIN5, finite.select(top_minimum / 63.0, 0.0))
    d, m = (f16_at([block + at]).lane(0).splat(8) for at in (_D5, _MIN5))
    d, m = d * scales.convert(F32), m * minima.convert(F32)
    again = [_between(0, _nearest((each + m) / d), 31) for each in x]
    numbers = [d.equal(0.0).select(old, new) for old, new in zip(numbers, again, strict=True)]

    def write(at: int, content: Value) -> None:
        values.store(block, finite.select(content, content.constant(0)), at)

    for i, each in enumerate((scales, minima)):
        packed = each.part(0, 4) | each.part(4, 4).lshr(4) << 6
        write(_SCALES5 + 4 * i, packed.convert(I8))
    write(_SCALES5 + 8, ((scales.part(4, 4) & 15) | minima.part(4, 4) << 4).convert(I8))
    parts = _parts(numbers, 1)
    for pair in range(4):
        write(_QS5 + 32 * pair, (parts[2 * pair] & 15) | parts[2 * pair + 1] << 4)
    upper = [shifted(part, 4) & 1 for part in parts]
    write(_QH5, functools.reduce(operator.or_, (bits << i for i, bits in enumerate(upper))))


def _with_minimum(x: list[Value]) -> tuple[Value, Value, list[Value]]:
    """Scales, negated minima and numbers from 0 to 31 (``make_qkx2_quants``)."""
    size = (_sum([each * each for each in x]) / 32.0).unary("sqrt")
    weights = [size + each.abs() for each in x]
    sum_w, sum_x = _sum(weights), _sum([w * each for w, each in zip(weights, x, strict=True)])
    high = functools.reduce(lambda a, b: a.maximum(b), x)
    low = functools.reduce(lambda a, b: a.minimum(b), x).minimum(0.0)
    level = high.equal(low)

    def rounded(inverse: Value, low: Value) -> list[Value]:
        return [_between(0, _nearest(inverse * (each - low)), 31) for each in x]

    def error(scale: Value, numbers: list[Value], low: Value) -> Value:
        terms = []
        for w, l, each in zip(weights, numbers, x, strict=True):
            difference = scale * l + low - each
            terms.append(w * (difference * difference))
        return _sum(terms)

    inverse = 31.0 / (high - low)
    scale = 1.0 / inverse
    least = error(scale, [each.convert(F32) for each in rounded(inverse, low)], low)

    def attempt(step: Value, carried: list[Value]) -> list[Value]:
        scale, low, least, best_inverse, best_low = carried
        times = step.convert(F32) * 0.1 + -0.5 + 31.0
        inverse = times.splat(8) / (high - low)
        l = [each.convert(F32) for each in rounded(inverse, low)]
        weighted = [w * each for w, each in zip(weights, l, strict=True)]
        sum_l = _sum(weighted)
        sum_l2 = _sum([a * b for a, b in zip(weighted, l, strict=True)])
        sum_xl = _sum([a * b for a, b in zip(weighted, x, strict=True)])
        determinant = sum_w * sum_l2 - sum_l * sum_l
        new_scale = (sum_w * sum_xl - sum_x * sum_l) / determinant
        new_low = (sum_l2 * sum_x - sum_l * sum_xl) / determinant
        above = new_low > 0.0
        new_scale, new_low = above.select(sum_xl / sum_l2, new_scale), above.select(0.0, new_low)
        found = error(new_scale, l, new_low)
        better = (determinant > 0.0) & (found < least) & ~level
        pairs = ((new_scale, scale), (new_low, low), (found, least), (inverse, best_inverse), (low, best_low))
        return [better.select(new, old) for new, old in pairs]

    sixteen = constant(high.b, I64, 16)
    scale, last, _, inverse, low = loop(sixteen, [scale, low, least, inverse, low], attempt)
    numbers = [level.select(each.constant(0), each) for each in rounded(inverse, low)]
    return level.select(0.0, scale), -last, numbers


def _encode_q6(block: Value, place: Value) -> None:
    x = _groups(place, 16, 16)
    scale, numbers = _signed(x)
    size = scale.equal(scale).select(scale.abs(), 0.0)
    largest = _first_largest([scale.lane(i) for i in range(16)], [size.lane(i) for i in range(16)])
    keep = _all_finite(x) & (largest.abs() >= _ALL_ZERO)
    inverse = -128.0 / largest
    scales = _nearest(inverse.splat(16) * scale).minimum(127).convert(I8)
    store_f16(block + _D6, _all_finite(x).select(keep.select(1.0 / inverse, 0.0), float("nan")))
    d = f16_at([block + _D6]).lane(0).splat(16) * scales.convert(F32)
    again = [_between(-32, _nearest(each / d), 31) + 32 for each in x]
    numbers = [d.equal(0.0).select(old, new) for old, new in zip(numbers, again, strict=True)]

    def write(at: int, content: Value) -> None:
        values.store(block, keep.select(content, content.constant(0)), at)

    write(_SCALES6, scales)
    parts = _parts(numbers, 2)
    for half in range(2):
        quarters = parts[4 * half : 4 * half + 4]
        for i in range(2):
            write(_QL6 + 64 * half + 32 * i, (quarters[i] & 15) | quarters[i + 2] << 4)
        upper = ((shifted(each, 4) & 3) << 2 * i for i, each in enumerate(quarters))
        write(_QH6 + 32 * half, functools.reduce(operator.or_, upper))


def _first_largest(numbers: Sequence[Value], sizes: Sequence[Value]) -> Value:
    """The first of the numbers whose size is largest."""
    found, most = numbers[0], sizes[0]
    for each, size in zip(numbers[1:], sizes[1:], strict=True):
        larger = size > most
        found, most = larger.select(each, found), larger.select(size, most)
    return found


def _signed(x: list[Value]) -> tuple[Value, list[Value]]:
    """Scales, and numbers from 0 to 63 of which 32 is zero (``make_qx_quants``)."""
    weights = [each * each for each in x]
    largest = _first_largest(x, [each.abs() for each in x])
    nothing = largest.abs() < _ALL_ZERO

    def rounded(inverse: Value) -> list[Value]:
        return [_between(-32, _nearest(inverse * each), 31) for each in x]

    def sums(inverse: Value) -> tuple[Value, Value]:
        l = [each.convert(F32) for each in rounded(inverse)]
        both = zip(weights, x, l, strict=True)
        terms = [(w * each * number, w * number * number) for w, each, number in both]
        return _sum([term for term, _ in terms]), _sum([term for _, term in terms])

    inverse = -32.0 / largest
    sum_xl, sum_l2 = sums(inverse)
    scale = sum_l2.unequal(0.0).select(sum_xl / sum_l2, 0.0)

    def attempt(i: Value, carried: list[Value]) -> list[Value]:
        scale, best, best_inverse = carried
        step = (i < 9).select(i - 9, i - 8)  # from -9 to 9 without 0
        inverse = (-(step.convert(F32) * 0.1 + 32.0)).splat(16) / largest
        sum_xl, sum_l2 = sums(inverse)
        better = (sum_l2 > 0.0) & (sum_xl * sum_xl > best * sum_l2)
        ratio = sum_xl / sum_l2
        pairs = ((ratio, scale), (ratio * sum_xl, best), (inverse, best_inverse))
        return [better.select(new, old) for new, old in pairs]

    eighteen = constant(largest.b, I64, 18)
    scale, _, inverse = loop(eighteen, [scale, scale * sum_xl, inverse], attempt)
    numbers = [nothing.select(each.constant(0), each + 32) for each in rounded(inverse)]
    return nothing.select(0.0, scale), numbers


FAMILY = (
    Blocks(_Q5, _quants_q5, _factors_q5, has_minima=True, encode=_encode_q5),
    Blocks(_Q6, _quants_q6, _factors_q6, offset=32, group=16, encode=_encode_q6),
)
