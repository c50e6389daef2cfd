"""Packs items with known sizes and lifetimes into as little memory as possible.

Two items whose lifetimes overlap must not share bytes.  Finding the least memory is NP-hard.  The allocators of deep
learning runtimes place the largest item first, each at the lowest offset that is free during its whole lifetime
(Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net Inference", 2020).  :func:`pack` first tries best
fit in order of time, as a heap does, because that is fast and often optimal: no packing can be below the largest sum of
sizes alive at once.  If best fit does not reach that bound, the best of several greedy orders is taken.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from itertools import accumulate
from operator import attrgetter
from typing import NamedTuple

import numpy as np

GOOD_ENOUGH = 1.01
"""Ratio of a packing to the lower bound at which no further order is tried."""

PATIENCE = 3000
"""Number of items up to which all orders are tried; with more, the second is tried only if the first was bad."""

ACCEPTABLE = 1.1
"""The ratio above which :data:`TRIES` further orders are tried."""

TRIES = 30

_SPAN = 32
"""Number of nodes in a bucket of time: an item is compared only with items of the same buckets."""

_CROWD = 50
"""Average number of items alive at once from which NumPy is faster than loops."""


class Item(NamedTuple):
    """``size`` bytes that are needed from node number ``first`` to ``last``, both inclusive."""

    size: int
    first: int
    last: int


class Packing(NamedTuple):
    """Offsets of all items, the end of the last byte, and the lower bound: the largest sum of sizes alive at once."""

    offsets: list[int]
    peak: int
    bound: int = 0


def largest_live_set(items: Sequence[Item]) -> int:
    """The largest sum of sizes alive at once: no packing takes less."""
    if not items:
        return 0
    begin = min(item.first for item in items)
    change = [0] * (max(item.last for item in items) - begin + 2)
    for size, first, last in items:
        change[first - begin] += size
        change[last - begin + 1] -= size
    return max(accumulate(change))


def pack(items: Sequence[Item], limit: int | None = None) -> Packing:
    """Offsets for all items.  Sizes must be multiples of the alignment; then offsets are too.

    ``limit``: bytes of the largest buffer, a multiple of the alignment.  No item lies across a multiple of it, so the
    memory can be cut into buffers there.  No item may be larger.
    """
    bound = largest_live_set(items)
    best: Packing | None = None
    if limit is None or bound <= limit:
        best = _walk(items)
        if best.peak <= bound * GOOD_ENOUGH:
            return best._replace(bound=bound)
        if limit is not None and best.peak > limit:
            best = None
    order: list[int] = []
    for order in _orders(items):
        found = _greedy(items, order, limit)
        if best is None or found.peak < best.peak:
            best = found
        if best.peak <= bound * GOOD_ENOUGH or (len(items) > PATIENCE and best.peak <= bound * ACCEPTABLE):
            break
    assert best is not None
    for _ in range(TRIES if len(items) <= PATIENCE else 0):
        if best.peak <= bound * ACCEPTABLE:
            break
        ends = [start + item.size for start, item in zip(found.offsets, items, strict=True)]
        order.sort(key=lambda number: ends[number] < found.peak)  # what reached the top is placed first
        found = _greedy(items, order, limit)
        best = min(best, found, key=attrgetter("peak"))
    return best._replace(bound=bound)


def _orders(items: Sequence[Item]) -> Iterable[list[int]]:
    """Orders in which to place items: largest first, largest product of size and life first, longest life first."""
    numbers = range(len(items))
    yield sorted(numbers, key=lambda i: (-items[i].size, items[i].first))
    yield sorted(numbers, key=lambda i: (items[i].size * (items[i].first - items[i].last - 1), items[i].first))
    yield sorted(numbers, key=lambda i: (items[i].first - items[i].last, -items[i].size))


def _walk(items: Sequence[Item]) -> Packing:
    """Packs in order of time, as a heap does: each item takes the smallest free block that holds it."""
    starts: dict[int, list[int]] = {}
    ends: dict[int, list[int]] = {}
    for number, item in enumerate(items):
        starts.setdefault(item.first, []).append(number)
        ends.setdefault(item.last + 1, []).append(number)
    offsets = [0] * len(items)
    blocks: list[tuple[int, int]] = []  # free (size, offset), sorted
    by_start: dict[int, int] = {}  # free offset -> size
    by_end: dict[int, int] = {}  # end of a free block -> offset
    top = peak = 0
    for now in sorted({*starts, *ends}):
        for number in ends.get(now, ()):
            start, size = offsets[number], items[number].size
            if not size:
                continue
            end = start + size
            if end in by_start:
                after = by_start.pop(end)
                del by_end[end + after]
                del blocks[bisect_left(blocks, (after, end))]
                end += after
            if start in by_end:
                before = by_end.pop(start)
                size_before = by_start.pop(before)
                del blocks[bisect_left(blocks, (size_before, before))]
                start = before
            if end == top:
                top = start
            else:
                by_start[start] = end - start
                by_end[end] = start
                insort(blocks, (end - start, start))
        # Of items that begin at the same node the largest is placed first.
        for number in sorted(starts.get(now, ()), key=lambda i: -items[i].size):
            size = items[number].size
            if not size:
                continue
            found = bisect_left(blocks, (size, -1))
            if found < len(blocks):
                free, start = blocks.pop(found)
                del by_start[start]
                if free > size:
                    by_start[start + size] = free - size
                    by_end[start + free] = start + size
                    insort(blocks, (free - size, start + size))
                else:
                    del by_end[start + free]
            else:
                start = top
                if top in by_end:  # extend the free block at the top
                    start = by_end.pop(top)
                    del blocks[bisect_left(blocks, (by_start.pop(start), start))]
                top = start + size
                peak = max(peak, top)
            offsets[number] = start
    return Packing(offsets, peak)


def _greedy(items: Sequence[Item], order: Sequence[int], limit: int | None) -> Packing:
    """Each item, in the given order, at the lowest offset that is free during its whole life."""
    span = max(p.last for p in items) - min(p.first for p in items) + 1 if items else 1
    alive = sum(p.last - p.first + 1 for p in items) / span
    return (_greedy_dense if alive > _CROWD else _greedy_sparse)(items, order, limit)


def _greedy_sparse(items: Sequence[Item], order: Sequence[int], limit: int | None) -> Packing:
    """The greedy packing for few items alive at once: compares an item with those in the same buckets of time."""
    buckets: dict[int, list[tuple[int, int, int, int]]] = {}
    long_lived: list[tuple[int, int, int, int]] = []
    offsets = [0] * len(items)
    peak = 0
    for number in order:
        size, first, last = items[number]
        if not size:
            continue
        low, high = first // _SPAN, last // _SPAN
        if low == high:
            near = buckets.get(low, [])
        else:
            near = list({entry for bucket in range(low, high + 1) for entry in buckets.get(bucket, ())})
        met = [e for e in near if e[2] <= last and e[3] >= first]
        met += [e for e in long_lived if e[2] <= last and e[3] >= first]
        met.sort()
        start = 0
        for other_start, other_end, _, _ in met:
            if other_end > start:
                if other_start >= start + size:
                    break
                start = _within(other_end, size, limit)
        offsets[number] = start
        peak = max(peak, start + size)
        entry = (start, start + size, first, last)
        if high - low > 64:
            long_lived.append(entry)
        else:
            for bucket in range(low, high + 1):
                buckets.setdefault(bucket, []).append(entry)
    return Packing(offsets, peak)


def _greedy_dense(items: Sequence[Item], order: Sequence[int], limit: int | None) -> Packing:
    """The greedy packing for many items alive at once, with arrays."""
    offsets = [0] * len(items)
    starts, ends, firsts, lasts = np.zeros((4, len(items)), np.int64)
    count = peak = 0
    for number in order:
        size, first, last = items[number]
        if not size:
            continue
        met = np.flatnonzero((firsts[:count] <= last) & (lasts[:count] >= first))
        start = 0
        if met.size:
            begin = starts[met]
            by_start = begin.argsort()
            # The end of what is occupied before each gap, and the first gap that is wide enough.
            before = np.concatenate(([0], np.maximum.accumulate(ends[met][by_start])))
            if limit is not None:
                across = before // limit != (before + size - 1) // limit
                before = np.where(across, (before // limit + 1) * limit, before)
            fits = begin[by_start] - before[:-1] >= size
            gap = int(fits.argmax())
            start = int(before[gap if fits[gap] else -1])
        offsets[number] = start
        peak = max(peak, start + size)
        starts[count], ends[count], firsts[count], lasts[count] = start, start + size, first, last
        count += 1
    return Packing(offsets, peak)


def _within(start: int, size: int, limit: int | None) -> int:
    """The lowest offset from ``start`` where ``size`` bytes do not lie across a multiple of ``limit``."""
    if limit is not None and start // limit != (start + size - 1) // limit:
        return (start // limit + 1) * limit
    return start
