"""Searches of the encoders for the scale with the least error.

The arithmetic is float32 in ggml's order, every sum one addition after the other, so the bytes are the same.  Arrays
are transposed: ``x`` is [size of a group, n groups], so that one long vector operation handles all groups at once.
``weights`` has the same shape and says how much the error of each element counts.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ggplug.quants.rounding import Floats, Whole, nearest

_F = np.float32
#: Groups whose elements are all smaller have the scale 0 (``GROUP_MAX_EPS``).
ALL_ZERO = _F(1e-15)
#: How often :func:`positive` and :func:`refined` go over a group (``itry``).
_ROUNDS = 5


def total(terms: Floats) -> Floats:
    """The sum over the first axis, one addition after the other."""
    found: Floats = _F(0) + terms[0]
    for each in terms[1:]:
        found += each
    return found


def largest_of(x: Floats) -> Floats:
    """For each column, the first of the elements that are largest in magnitude."""
    found: Floats = np.take_along_axis(x, np.abs(x).argmax(axis=0)[None], axis=0)[0]
    return found


def spread_weights(values: Floats, importance: Floats, factor: float, size: int) -> Floats:
    """Weights of errors, as in ggml: importance * sqrt(``factor`` * mean square + square of the element).

    ``values``: [n, elements whose squares are averaged]; ``importance``: the same shape or one row.  Result:
    [``size``, n groups], as the searches take it.
    """
    known = np.where(np.isfinite(values), values, _F(0))  # a NaN would make the weights of a whole row NaN
    mean = total(np.square(known.T)) * _F(factor) / _F(values.shape[1])
    weights = importance * np.sqrt(mean[:, None] + np.square(values))
    return np.ascontiguousarray(weights.reshape(-1, size).T)


def with_minimum(
    x: Floats, weights: Floats, top: int, first: float, step: float, steps: int, *, by_magnitude: bool = False
) -> tuple[Floats, Floats, Whole]:
    """Scales, negated minima, and numbers from 0 to ``top`` (``make_qkx2_quants``, ``make_qkx3_quants``).

    Tries ``steps`` + 1 scales, which divide the range of a group into ``top + first + i * step`` steps.
    ``by_magnitude``: the error is the sum of magnitudes, not of squares.
    """

    def lost(scale: npt.NDArray[Any], numbers: Floats, low: npt.NDArray[Any]) -> Floats:
        difference = scale * numbers + low - x
        return total(weights * (np.abs(difference) if by_magnitude else difference * difference))

    sum_w, sum_x = total(weights), total(weights * x)
    high = x.max(axis=0)
    low = np.minimum(x.min(axis=0), _F(0))
    level = high <= low
    inverse = _F(top) / (high - low)
    scale: Floats = _F(1) / inverse
    numbers = np.clip(nearest(inverse * (x - low)), 0, top)
    least = lost(scale, numbers.astype(_F), low)
    for attempt in range(steps + 1):
        inverse = (_F(first) + _F(step) * _F(attempt) + _F(top)) / (high - low)
        trial = np.clip(nearest(inverse * (x - low)), 0, top)
        l = trial.astype(_F)
        weighted = weights * l
        sum_l, sum_l2, sum_xl = total(weighted), total(weighted * l), total(weighted * x)
        determinant = sum_w * sum_l2 - sum_l * sum_l
        new_scale = (sum_w * sum_xl - sum_x * sum_l) / determinant
        new_low = (sum_l2 * sum_x - sum_l * sum_xl) / determinant
        above = new_low > 0
        new_low[above] = 0
        new_scale[above] = (sum_xl / sum_l2)[above]
        error = lost(new_scale, l, new_low)
        better = (determinant > 0) & (error < least) & ~level
        numbers[:, better] = trial[:, better]
        least[better] = error[better]
        scale[better] = new_scale[better]
        low[better] = new_low[better]
    numbers[:, level] = 0
    scale[level] = 0
    return scale, -low, numbers


def signed(x: Floats, weights: Floats, top: int) -> tuple[Floats, Whole]:
    """Scales, and numbers from 0 to ``2 * top - 1`` of which ``top`` is zero (``make_qx_quants``)."""
    largest = largest_of(x)
    nothing = np.abs(largest) < ALL_ZERO
    scale = best = np.zeros_like(largest)
    numbers = np.zeros(x.shape, np.int32)
    for step in (0, *range(-9, 0), *range(1, 10)):
        inverse = -(_F(top) + _F(0.1) * _F(step)) / largest
        trial = np.clip(nearest(inverse * x), -top, top - 1)
        l = trial.astype(_F)
        sum_xl, sum_l2 = total(weights * x * l), total(weights * l * l)
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


def refined(x: Floats, top: int) -> tuple[Floats, Whole]:
    """As :func:`signed`, with weights x * x: finds a scale, then improves one number at a time (``make_q3_quants``)."""
    largest = largest_of(x)
    nothing = np.abs(largest) < ALL_ZERO
    numbers = np.clip(nearest(_F(-top) / largest * x), -top, top - 1).astype(_F)
    scale = _improve(numbers, x, x * x, -top, top - 1)
    whole: Whole = numbers.astype(np.int32) + top
    whole[:, nothing] = 0
    scale[nothing] = 0
    return scale, whole


def positive(x: Floats, weights: Floats, top: int) -> tuple[Floats, Whole]:
    """Scales, and numbers from 0 to ``top``, of numbers that are not negative (``make_qp_quants``).

    ggml keeps the numbers in unsigned bytes, so a negative one, of a negative element, is read as 256 more.
    """
    high = np.fmax.reduce(x, axis=0, initial=_F(0))
    nothing = high < ALL_ZERO
    inverse: Floats = _F(top) / high

    def lost(inverse: Floats, numbers: Whole) -> Floats:
        difference = x - _F(1) / inverse * numbers.astype(_F)
        return total(weights * difference * difference)

    least = lost(inverse, nearest(inverse * x) & 255)
    for step in (*range(-4, 0), *range(1, 5)):
        trial = (_F(0.1) * _F(step) + _F(top)) / high
        error = lost(trial, np.minimum(nearest(trial * x), top))
        better = error < least
        least[better] = error[better]
        inverse[better] = trial[better]
    numbers = np.minimum(nearest(inverse * x), top).astype(_F)
    scale = _improve(numbers, x, weights, None, top)
    whole: Whole = numbers.astype(np.int32)
    whole[:, nothing] = 0
    scale[nothing] = 0
    return scale, whole


def _improve(numbers: Floats, x: Floats, weights: Floats, low: int | None, high: int) -> Floats:
    """Changes one number at a time if that reduces the error of the best scale; returns that scale."""
    weighted = weights * x
    sum_xl, sum_l2 = total(weighted * numbers), total(weights * numbers * numbers)
    if low is None:
        numbers[numbers < 0] += 256
    for _ in range(_ROUNDS):
        changed = False
        for i, old in enumerate(numbers):
            rest_xl, rest_l2 = sum_xl - weighted[i] * old, sum_l2 - weights[i] * old * old
            new = np.minimum(nearest(x[i] * rest_l2 / rest_xl), high)
            trial = (new if low is None else np.maximum(new, low)).astype(_F)
            new_xl, new_l2 = rest_xl + weighted[i] * trial, rest_l2 + weights[i] * trial * trial
            better = (rest_xl > 0) & (trial != old) & (new_xl * new_xl * sum_l2 > sum_xl * sum_xl * new_l2)
            # ggml requires a positive sum before the change for numbers without sign, and after it for numbers with
            # sign
            better &= (rest_l2 if low is None else new_l2) > 0
            if better.any():
                changed = True
                old[better] = np.where(trial < 0, trial + 256, trial)[better] if low is None else trial[better]
                sum_xl, sum_l2 = np.where(better, new_xl, sum_xl), np.where(better, new_l2, sum_l2)
        if not changed:
            break
    return np.where(sum_l2 > 0, sum_xl / sum_l2, _F(0)).astype(_F)
