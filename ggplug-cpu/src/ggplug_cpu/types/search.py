"""The searches for scales of encoders, as ``ggplug.quants.search``: the same float32 operations in its order.

A lane is a group of numbers: ``x[j]`` has number j of every group.  Of a single group the lanes are plain numbers.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence

from ggplug_cpu.simd import values
from ggplug_cpu.simd.values import F32, I32, I64, Value, constant, loop
from ggplug_cpu.types.blocks import is_finite, nearest, size_of

#: Groups with no element as large as this have the scale 0 (``GROUP_MAX_EPS``).
ALL_ZERO = 1e-15
#: How often :func:`improved` goes over a group.
_ROUNDS = 5


def between(low: int, numbers: Value, high: int) -> Value:
    return numbers.maximum(low).minimum(high)


def in_order(terms: Sequence[Value]) -> Value:
    """The sum of ``terms``, added one after the other."""
    return functools.reduce(operator.add, terms)


def finite_groups(x: Sequence[Value]) -> Value:
    """The mask of groups with finite numbers only."""
    return is_finite(functools.reduce(lambda a, b: a.maximum(b), map(size_of, x)))


def all_finite(x: Sequence[Value]) -> Value:
    """Whether all groups have finite numbers only."""
    return is_finite(functools.reduce(lambda a, b: a.maximum(b), map(size_of, x)).max())


def first_largest(numbers: Sequence[Value], sizes: Sequence[Value]) -> Value:
    """The first of the numbers whose size is largest."""
    found, most = numbers[0], sizes[0]
    for each, size in zip(numbers[1:], sizes[1:], strict=True):
        larger = size > most
        found, most = larger.select(each, found), larger.select(size, most)
    return found


def lanes_of(several: Value) -> list[Value]:
    """A group that lies in the lanes of one vector, number by number."""
    return [several.lane(i) for i in range(several.count)]


def _wide(number: Value, like: Value) -> Value:
    return number.splat(like.count) if like.count > 1 else number


def mean_square(place: Value, count: Value, factor: float) -> Value:
    """``factor`` times the mean of the squares of ``count`` (int64) f32 numbers; what is not finite counts as 0."""

    def add(i: Value, total: list[Value]) -> list[Value]:
        x = values.load(place + i * 4, F32)
        known = is_finite(size_of(x)).select(x, 0.0)
        return [total[0] + known * known]

    (total,) = loop(count, [constant(place.b, F32, 0)], add)
    return total * factor / count.convert(F32)


def spread_weights(x: Sequence[Value], importance: Sequence[Value], mean: Value) -> list[Value]:
    """The weights of errors: importance times the root of the mean square plus the square of the number."""
    wide = _wide(mean, x[0])
    return [w * (wide + each * each).unary("sqrt") for w, each in zip(importance, x, strict=True)]


def with_minimum(
    x: Sequence[Value],
    weights: Sequence[Value],
    top: int,
    first: float,
    step: float,
    steps: int,
    *,
    by_magnitude: bool = False,
) -> tuple[Value, Value, list[Value]]:
    """Scales, negated minima and numbers from 0 to ``top`` (``make_qkx2_quants``, ``make_qkx3_quants``)."""
    sum_w, sum_x = in_order(weights), in_order([w * each for w, each in zip(weights, x, strict=True)])
    high = functools.reduce(lambda a, b: a.maximum(b), x)
    low = functools.reduce(lambda a, b: a.minimum(b), x).minimum(0.0)
    level = high <= low

    def rounded(inverse: Value, low: Value) -> list[Value]:
        return [between(0, nearest(inverse * (each - low)), top) for each in x]

    def error(scale: Value, numbers: list[Value], low: Value) -> Value:
        terms = []
        for w, l, each in zip(weights, numbers, x, strict=True):
            difference = scale * l + low - each
            terms.append(w * (difference.abs() if by_magnitude else difference * difference))
        return in_order(terms)

    inverse = float(top) / (high - low)
    scale = 1.0 / inverse
    least = error(scale, [each.convert(F32) for each in rounded(inverse, low)], low)

    def attempt(i: Value, carried: list[Value]) -> list[Value]:
        scale, low, least, best_inverse, best_low = carried
        times = i.convert(F32) * step + first + float(top)
        inverse = _wide(times, high) / (high - low)
        l = [each.convert(F32) for each in rounded(inverse, low)]
        weighted = [w * each for w, each in zip(weights, l, strict=True)]
        sum_l = in_order(weighted)
        sum_l2 = in_order([a * b for a, b in zip(weighted, l, strict=True)])
        sum_xl = in_order([a * b for a, b in zip(weighted, x, strict=True)])
        determinant = sum_w * sum_l2 - sum_l * sum_l
        new_scale = (sum_w * sum_xl - sum_x * sum_l) / determinant
        new_low = (sum_l2 * sum_x - sum_l * sum_xl) / determinant
        above = new_low > 0.0
        new_scale, new_low = above.select(sum_xl / sum_l2, new_scale), above.select(0.0, new_low)
        found = error(new_scale, l, new_low)
        better = (determinant > 0.0) & (found < least) & ~level
        pairs = ((new_scale, scale), (new_low, low), (found, least), (inverse, best_inverse), (low, best_low))
        return [better.select(new, old) for new, old in pairs]

    attempts = constant(high.b, I64, steps + 1)
    scale, last, _, inverse, low = loop(attempts, [scale, low, least, inverse, low], attempt)
    numbers = [level.select(each.constant(0), each) for each in rounded(inverse, low)]
    return level.select(0.0, scale), -last, numbers


def signed(x: Sequence[Value], weights: Sequence[Value], top: int) -> tuple[Value, list[Value]]:
    """Scales, and numbers from 0 to ``2 * top - 1`` of which ``top`` is zero (``make_qx_quants``)."""
    largest = first_largest(x, [each.abs() for each in x])
    nothing = largest.abs() < ALL_ZERO

    def rounded(inverse: Value) -> list[Value]:
        return [between(-top, nearest(inverse * each), top - 1) for each in x]

    def sums(inverse: Value) -> tuple[Value, Value]:
        l = [each.convert(F32) for each in rounded(inverse)]
        both = zip(weights, x, l, strict=True)
        terms = [(w * each * number, w * number * number) for w, each, number in both]
        return in_order([term for term, _ in terms]), in_order([term for _, term in terms])

    inverse = -float(top) / largest
    sum_xl, sum_l2 = sums(inverse)
    scale = sum_l2.unequal(0.0).select(sum_xl / sum_l2, 0.0)

    def attempt(i: Value, carried: list[Value]) -> list[Value]:
        scale, best, best_inverse = carried
        step = (i < 9).select(i - 9, i - 8)  # from -9 to 9 without 0
        inverse = _wide(-(step.convert(F32) * 0.1 + float(top)), largest) / largest
        sum_xl, sum_l2 = sums(inverse)
        better = (sum_l2 > 0.0) & (sum_xl * sum_xl > best * sum_l2)
        ratio = sum_xl / sum_l2
        pairs = ((ratio, scale), (ratio * sum_xl, best), (inverse, best_inverse))
        return [better.select(new, old) for new, old in pairs]

    eighteen = constant(largest.b, I64, 18)
    scale, _, inverse = loop(eighteen, [scale, scale * sum_xl, inverse], attempt)
    numbers = [nothing.select(each.constant(0), each + top) for each in rounded(inverse)]
    return nothing.select(0.0, scale), numbers


def refined(x: Sequence[Value], top: int) -> tuple[Value, list[Value]]:
    """As :func:`signed`, with x * x for weights: one scale, then one number after the other (``make_q3_quants``)."""
    largest = first_largest(x, [each.abs() for each in x])
    inverse = -float(top) / largest
    numbers = [between(-top, nearest(inverse * each), top - 1).convert(F32) for each in x]
    scale, numbers = improved(numbers, x, [each * each for each in x], -top, top - 1)
    nothing = largest.abs() < ALL_ZERO
    whole = [each.convert(I32) + top for each in numbers]
    return nothing.select(0.0, scale), [nothing.select(each.constant(0), each) for each in whole]


def positive(x: Sequence[Value], weights: Sequence[Value], top: int) -> tuple[Value, list[Value]]:
    """Scales, and numbers from 0 to ``top``, of numbers that are not negative (``make_qp_quants``).

    As in ``ggplug.quants.search``, a negative number (of a negative element) counts as 256 more.
    """
    high = x[0].constant(0)
    for each in x:
        high = (each > high).select(each, high)
    nothing = high < ALL_ZERO
    inverse = float(top) / high

    def lost(inverse: Value, numbers: Callable[[Value], Value]) -> Value:
        terms = []
        for w, each in zip(weights, x, strict=True):
            difference = each - 1.0 / inverse * numbers(nearest(inverse * each)).convert(F32)
            terms.append(w * difference * difference)
        return in_order(terms)

    least = lost(inverse, lambda whole: whole & 255)

    def attempt(i: Value, carried: list[Value]) -> list[Value]:
        least, best = carried
        step = (i < 4).select(i - 4, i - 3)  # from -4 to 4 without 0
        trial = _wide(step.convert(F32) * 0.1 + float(top), high) / high
        error = lost(trial, lambda whole: whole.minimum(top))
        better = error < least
        return [better.select(error, least), better.select(trial, best)]

    _, inverse = loop(constant(high.b, I64, 8), [least, inverse], attempt)
    numbers = [nearest(inverse * each).minimum(top).convert(F32) for each in x]
    scale, numbers = improved(numbers, x, weights, None, top)
    whole = [each.convert(I32) for each in numbers]
    return nothing.select(0.0, scale), [nothing.select(each.constant(0), each) for each in whole]


def improved(
    numbers: Sequence[Value], x: Sequence[Value], weights: Sequence[Value], low: int | None, high: int
) -> tuple[Value, list[Value]]:
    """The best scale for all numbers, and the numbers, changed one after the other where that reduces the error.

    ``low``: None where numbers have no sign, and a negative one counts as 256 more.
    """
    weighted = [w * each for w, each in zip(weights, x, strict=True)]
    sum_xl = in_order([w * l for w, l in zip(weighted, numbers, strict=True)])
    sum_l2 = in_order([w * l * l for w, l in zip(weights, numbers, strict=True)])

    def unsigned(number: Value) -> Value:
        return number if low is not None else (number < 0.0).select(number + 256.0, number)

    def go_over(_: Value, carried: list[Value]) -> list[Value]:
        sum_xl, sum_l2, *numbers = carried
        for i, old in enumerate(numbers):
            rest_xl, rest_l2 = sum_xl - weighted[i] * old, sum_l2 - weights[i] * old * old
            new = nearest(x[i] * rest_l2 / rest_xl).minimum(high)
            trial = (new if low is None else new.maximum(low)).convert(F32)
            new_xl, new_l2 = rest_xl + weighted[i] * trial, rest_l2 + weights[i] * trial * trial
            better = (rest_xl > 0.0) & trial.unequal(old) & (new_xl * new_xl * sum_l2 > sum_xl * sum_xl * new_l2)
            # ggml requires a positive sum before the change for numbers without sign, and after it for signed ones
            better = better & ((rest_l2 if low is None else new_l2) > 0.0)
            numbers[i] = better.select(unsigned(trial), old)
            sum_xl, sum_l2 = better.select(new_xl, sum_xl), better.select(new_l2, sum_l2)
        return [sum_xl, sum_l2, *numbers]

    rounds = constant(x[0].b, I64, _ROUNDS)
    sum_xl, sum_l2, *found = loop(rounds, [sum_xl, sum_l2, *map(unsigned, numbers)], go_over)
    return (sum_l2 > 0.0).select(sum_xl / sum_l2, 0.0), found
