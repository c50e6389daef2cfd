"""The searches of encoders for types with grids: for scales, and for the nearest rows of the grid.

The arithmetic is float32 in ggml's order, so the bytes are the same.  As in ``search`` all arrays are transposed, with
groups of numbers along the last axis.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from ggplug.quants.rounding import Floats, Whole, nearest
from ggplug.quants.search import total

Bytes = npt.NDArray[np.uint8]
Mask = npt.NDArray[np.bool_]

_F = np.float32
#: Points whose neighbours are compared at a time.
_POINTS = 4096


class Lattice:
    """The rows of a grid as digits, and for other points the rows nearby.

    ``digits``: [rows, width], small whole numbers.  ``shells``: the rows nearby are those at this number of smallest
    distances.
    """

    def __init__(self, digits: npt.NDArray[np.int64], shells: int) -> None:
        self.digits = digits
        self.width = digits.shape[1]
        self.bits = 2 if self.width == 8 else 3
        self.shells = shells
        self.row_of = np.full(1 << self.bits * self.width, -1, np.int32)
        self.row_of[self.code(digits.T)] = np.arange(len(digits))
        self._known = np.full(len(self.row_of), -1, np.int32)
        self._near = np.empty((0, 0), np.int32)

    def code(self, digits: npt.NDArray[np.integer]) -> npt.NDArray[np.int64]:
        """Digits [width, ...], each point encoded as one number."""
        shifts = self.bits * np.arange(self.width).reshape(-1, *[1] * (digits.ndim - 1))
        codes: npt.NDArray[np.int64] = np.bitwise_or.reduce(digits.astype(np.int64) << shifts, axis=0)
        return codes

    def near(self, codes: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
        """For each code the rows nearby, the nearest first, then by number; padded with -1."""
        new = np.unique(codes[self._known[codes] < 0])
        for start in range(0, len(new), 256):
            self._learn(new[start : start + 256])
        return self._near[self._known[codes]]

    def _learn(self, codes: npt.NDArray[np.int64]) -> None:
        points = codes[:, None] >> self.bits * np.arange(self.width) & (1 << self.bits) - 1
        distance = np.zeros((len(codes), len(self.digits)), np.int16)  # which are sorted faster than wider ones
        for i in range(self.width):
            distance += np.square(points[:, i, None] - self.digits[None, :, i]).astype(np.int16)
        order = np.argsort(distance, axis=1, kind="stable")
        ordered = np.take_along_axis(distance, order, axis=1)
        further = np.cumsum(ordered[:, 1:] > ordered[:, :-1], axis=1)
        count = 1 + (further < self.shells).sum(axis=1)
        wide = max(int(count.max()), self._near.shape[1])
        rows = np.where(np.arange(len(self.digits)) < count[:, None], order, -1)[:, :wide].astype(np.int32)
        before = np.full((len(self._near), wide), -1, np.int32)
        before[:, : self._near.shape[1]] = self._near
        self._known[codes] = len(before) + np.arange(len(codes))
        self._near = np.concatenate([before, rows])

    def rows(
        self, digits: Whole, x: Floats, weights: Floats, scale: Floats, levels: Floats
    ) -> tuple[npt.NDArray[np.int32], Mask]:
        """For each point the number of a row of the grid, and whether the point is that row itself.

        If a point is no row of the grid, the row is the one with the least error among the rows near it.

        ``digits``, ``x``, ``weights``: [width, n].  A digit d of point j stands for ``scale[j] * levels[d]``, or
        ``levels[d, j]``.
        """
        codes = self.code(digits)
        rows = self.row_of[codes]
        is_row = rows >= 0
        between = np.flatnonzero(~is_row)
        for start in range(0, len(between), _POINTS):
            chosen = between[start : start + _POINTS]
            near = self.near(codes[chosen])
            lost = np.zeros(near.shape, _F)
            for i in range(self.width):
                digit = self.digits[near, i]
                q = levels[digit] if levels.ndim == 1 else levels[digit, chosen[:, None]]
                difference = scale[chosen, None] * q - x[i, chosen, None]
                lost += weights[i, chosen, None] * difference * difference
            lost[near < 0] = np.inf
            rows[chosen] = np.take_along_axis(near, lost.argmin(axis=1)[:, None], axis=1)[:, 0]
        return rows, is_row


class Magnitudes(NamedTuple):
    """Parameters of the search for a type of two or three bits.

    ``size``: numbers with one scale.  ``tries``, ``step``: how many scales are tried on either side of the first one,
    and the distance between them.  ``least``: groups whose elements are all smaller have the scale 0.  ``even``: of
    eight signs an even number is negative; one sign is changed if necessary.  ``from_all``: the first scale is fitted
    to all numbers, not to the largest.  ``again``: which rows are searched again with the best scale: ``"all"``;
    ``"if any"``, all if one point was no row; ``"others"``, the points that were no rows.
    """

    lattice: Lattice
    size: int
    tries: int
    step: float
    least: float
    even: bool
    again: str
    from_all: bool = False


class Searches(Protocol):
    """Functions that find scales and rows: those of this module, or others with the same results."""

    def magnitudes(self, x: Floats, weights: Floats, how: Magnitudes) -> tuple[Floats, npt.NDArray[np.int32], Bytes]:
        """See :func:`search_magnitudes`."""

    def signs(
        self, x: Floats, weights: Floats, lattice: Lattice, least: float, eighth: float, halves: int
    ) -> tuple[Floats, npt.NDArray[np.int32], npt.NDArray[np.int64]]:
        """See :func:`search_signs`."""


class References:
    """The functions of this module."""

    @staticmethod
    def magnitudes(x: Floats, weights: Floats, how: Magnitudes) -> tuple[Floats, npt.NDArray[np.int32], Bytes]:
        """See :func:`search_magnitudes`."""
        return search_magnitudes(x, weights, how)

    @staticmethod
    def signs(
        x: Floats, weights: Floats, lattice: Lattice, least: float, eighth: float, halves: int
    ) -> tuple[Floats, npt.NDArray[np.int32], npt.NDArray[np.int64]]:
        """See :func:`search_signs`."""
        return search_signs(x, weights, lattice, least, eighth, halves)


def search_magnitudes(x: Floats, weights: Floats, how: Magnitudes) -> tuple[Floats, npt.NDArray[np.int32], Bytes]:
    """Scales [n], rows [size / width, n] and signs [size / 8, n] for groups ``x`` [size, n]."""
    from ggplug.quants.search import positive

    lattice, n = how.lattice, x.shape[1]
    width, levels = lattice.width, 3 if lattice.width == 8 else 8
    odd = (2 * np.arange(levels) + 1).astype(_F)
    size, negative = np.abs(x), x < 0
    if how.even:
        _make_even(size, negative, weights * x * x)
    signs = np.packbits(negative.reshape(-1, 8, n), axis=1, bitorder="little")[:, 0]
    if how.even:
        signs &= 127
    roots = np.sqrt(weights)
    largest = size.max(axis=0)
    nothing = largest < _F(how.least) if how.least else largest == 0
    first = _F(2 * levels - 1)
    parts, part_roots = (each.reshape(-1, width, n).swapaxes(0, 1).reshape(width, -1) for each in (size, roots))

    def rows_by(inverse: Floats, scale: Floats) -> tuple[npt.NDArray[np.int32], Mask]:
        digits = np.clip(nearest(_F(0.5) * (inverse * size - _F(1))), 0, levels - 1)
        points = digits.reshape(-1, width, n).swapaxes(0, 1).reshape(width, -1)
        rows, is_row = lattice.rows(points, parts, part_roots, np.tile(scale, len(size) // width), odd)
        return rows.reshape(-1, n), is_row.reshape(-1, n)

    def sums(rows: npt.NDArray[np.int32]) -> tuple[Floats, Floats]:
        q = odd[lattice.digits[rows]].swapaxes(1, 2).reshape(size.shape)
        return total(weights * size * q), total(weights * q * q)

    if how.from_all:
        scale, _ = positive(size, weights, levels + 1)
        nothing = nothing | ~(scale * _F(levels) > 0)
        largest = scale * _F(levels)
    else:
        scale = largest / first
    rows = np.full((len(size) // width, n), lattice.row_of[0], np.int32)
    is_row = np.full(rows.shape, how.again != "if any")
    best = np.zeros(n, _F)
    for attempt in range(-how.tries, how.tries + 1):
        inverse = (first + _F(attempt) * _F(how.step)) / largest
        trial, trial_is_row = rows_by(inverse, _F(1) / inverse)
        sum_qx, sum_q2 = sums(trial)
        better = (sum_q2 > 0) & (sum_qx * sum_qx > best * sum_q2)
        scale[better] = (sum_qx / sum_q2)[better]
        best[better] = (scale * sum_qx)[better]
        rows[:, better], is_row[:, better] = trial[:, better], trial_is_row[:, better]
    again = np.broadcast_to(scale > 0, rows.shape)
    if how.again != "all":
        again = again & (~is_row.all(axis=0) if how.again == "if any" else ~is_row)
    rows = np.where(again, rows_by(_F(1) / scale, scale)[0], rows)
    sum_qx, sum_q2 = sums(rows)
    scale = np.where(again.any(axis=0) & (sum_q2 > 0), sum_qx / sum_q2, scale)
    signs[:, scale < 0] ^= 127 if how.even else 255
    rows[:, nothing], signs[:, nothing] = 0, 0
    return np.where(nothing, _F(0), np.abs(scale)), rows, signs


def _make_even(size: Floats, negative: Mask, worth: Floats) -> None:
    """If an odd number of eight signs is negative, changes the sign of the element whose error counts least."""
    n = size.shape[1]
    least = worth.reshape(-1, 8, n).argmin(axis=1)[:, None]
    is_odd = np.logical_xor.reduce(negative.reshape(-1, 8, n), axis=1)[:, None]
    for each, changed in ((size, np.negative), (negative, np.logical_not)):
        eights = each.reshape(-1, 8, n)
        one = np.take_along_axis(eights, least, axis=1)
        np.put_along_axis(eights, least, np.where(is_odd, changed(one), one), axis=1)


class Sorted(NamedTuple):
    """Groups sorted by value, [size, n], to be cut into three intervals, one for each level, in one of several ways.

    ``levels``: [2, 3], moved upwards and downwards.  ``downwards``: [ways, parts of a group], 1 if a way moves the
    part downwards; ``part``: the part that a number belongs to.
    """

    x: Floats
    weights: Floats
    part: npt.NDArray[np.int64]
    levels: Floats
    downwards: npt.NDArray[np.int64]

    @property
    def is_apart(self) -> bool:
        """Whether the parts of a group may move in different directions."""
        return bool(self.downwards.shape[1] > 1)


#: From sorted groups and first scales [n] to the best scales, borders [2, n] between the intervals, and ways [n], or
# -1.
Borders = Callable[[Sorted, Floats], tuple[Floats, npt.NDArray[np.int64], npt.NDArray[np.int64]]]


def best_borders(groups: Sorted, scale: Floats) -> tuple[Floats, npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Finds the best borders by trying all."""
    size, n = groups.x.shape
    splits = _Splits(groups)
    scale = scale.copy()
    best = np.full(n, -np.finfo(_F).max, _F)
    borders, way = np.full((2, n), -1), np.full(n, -1)
    for low in range(size + 1):
        for high in range(low, size + 1):
            for k, (sum_qx, sum_q2) in enumerate(splits.sums(low, high)):
                better = (sum_q2 > 0) & (sum_qx * sum_qx > best * sum_q2)
                scale[better] = (sum_qx / sum_q2)[better]
                best[better] = (scale * sum_qx)[better]
                borders[:, better], way[better] = [[low], [high]], k
    return scale, borders, way


def search_signs(
    x: Floats,
    weights: Floats,
    lattice: Lattice,
    least: float,
    eighth: float,
    halves: int,
    find: Borders = best_borders,
) -> tuple[Floats, npt.NDArray[np.int32], npt.NDArray[np.int64]]:
    """Scales [n], rows [size / 8, n] and directions [n] for groups ``x`` [size, n] of the types of one bit.

    Numbers are -1, 0, 1, moved by an ``eighth`` upwards or downwards, for each of ``halves`` parts of a group:
    direction k has bit ``halves - 1 - i`` set if part i is moved downwards.  The sorted group is cut into three
    intervals, and all borders are tried.
    """
    size, n = x.shape
    order = np.argsort(x, axis=0, kind="stable")
    part = order // (size // halves)
    sorted_x, sorted_w = np.take_along_axis(x, order, axis=0), np.take_along_axis(weights, order, axis=0)
    levels = np.array([[-1, 0, 1]], _F) + np.array([[eighth], [-eighth]], _F)
    ways = 1 << halves
    downwards = np.array([[k >> halves - 1 - i & 1 for i in range(halves)] for k in range(ways)])
    groups = Sorted(sorted_x, sorted_w, part, levels, downwards)
    largest = np.abs(x).max(axis=0)
    nothing = largest < _F(least)
    scale, borders, way = find(groups, largest)
    nothing = nothing | (way < 0)
    place = np.arange(size)[:, None]
    digits = np.empty((size, n), np.int32)
    np.put_along_axis(digits, order, ((place >= borders[0]).astype(np.int32) + (place >= borders[1])), axis=0)
    below = scale < 0
    digits[:, below] = 2 - digits[:, below]
    way[below] = ways - 1 - way[below]
    scale = np.abs(scale)
    of_rows = np.repeat(downwards[way].T, size // 8 // halves, axis=0)  # [rows, n]
    row_levels = levels[of_rows.reshape(-1)].T

    def by_rows(each: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return each.reshape(-1, 8, n).swapaxes(0, 1).reshape(8, -1)

    rows, is_row = lattice.rows(
        by_rows(digits),
        by_rows(x),
        by_rows(weights),
        np.tile(scale, size // 8),
        row_levels,
    )
    rows = rows.reshape(-1, n)
    q = np.take_along_axis(levels[of_rows], lattice.digits[rows], axis=2).swapaxes(1, 2).reshape(size, n)
    sum_qx, sum_q2 = total(weights * q * x), total(weights * q * q)
    changed = ~is_row.reshape(-1, n).all(axis=0) & (sum_qx > 0) & (sum_q2 > 0)
    scale = np.where(changed, sum_qx / sum_q2, scale)
    rows[:, nothing], way[nothing] = 0, 0
    return np.where(nothing, _F(0), scale), rows, way


class _Splits:
    """Sums of q x and q q for every way to cut sorted groups into three intervals, one for each level."""

    def __init__(self, groups: Sorted) -> None:
        self.levels, self.size = groups.levels, len(groups.x)
        self.ways = len(groups.downwards)
        self.up_to_x: Floats | None = None
        self.up_to_w: Floats | None = None
        if groups.is_apart:
            self.qx, self.q2 = terms_apart(groups)
        else:  # one direction per group: prefix sums are enough
            self.up_to_x, self.up_to_w = sums_up_to(groups)

    def sums(self, low: int, high: int) -> list[tuple[Floats, Floats]]:
        """For each way, with the second level from place ``low`` on and the third from ``high`` on."""
        if self.up_to_x is not None and self.up_to_w is not None:
            return [
                (self._sum(self.up_to_x, low, high, q, 1), self._sum(self.up_to_w, low, high, q, 2))
                for q in self.levels
            ]
        level = np.repeat([0, 1, 2], [low, high - low, self.size - high])
        places = np.arange(self.size)
        sum_qx, sum_q2 = total(self.qx[level, places]), total(self.q2[level, places])
        return [(sum_qx[k], sum_q2[k]) for k in range(self.ways)]

    def _sum(self, up_to: Floats, low: int, high: int, q: Floats, power: int) -> Floats:
        runs = (up_to[low] - up_to[0], up_to[high] - up_to[low], up_to[self.size] - up_to[high])
        a, b, c = (run * level if power == 1 else run * level * level for run, level in zip(runs, q, strict=True))
        found: Floats = a + b + c
        return found


def sums_up_to(groups: Sorted) -> tuple[Floats, Floats]:
    """Prefix sums of w x and of w, [size + 1, n]."""
    start = np.zeros((1, groups.x.shape[1]), _F)
    of_x = np.add.accumulate(np.concatenate([start, groups.weights * groups.x]), axis=0)
    of_w = np.add.accumulate(np.concatenate([start, groups.weights]), axis=0)
    return of_x, of_w


def terms_apart(groups: Sorted) -> tuple[Floats, Floats]:
    """w q x and w q q of every number for each level q, [level, place, way, n]."""
    q = groups.levels[groups.downwards.T[groups.part]].transpose(3, 0, 2, 1)
    of_x: Floats = groups.weights[:, None] * q * groups.x[:, None]
    of_q: Floats = groups.weights[:, None] * q * q
    return of_x, of_q
