"""Packing pieces with known sizes and lifetimes into as little memory as possible.

Two pieces that live at the same time must not overlap.  Finding the least memory is NP-hard, but good orders are
known: the allocators of deep learning runtimes place the largest piece first, each at the lowest offset that is free
during its whole life (Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net Inference", 2020).  We
first walk through time as an ordinary heap would, with best fit, because that is fast and often perfect; a lower
bound (the largest sum of sizes alive at once) tells when nothing better is possible.  Otherwise several greedy orders
compete.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np

GOOD_ENOUGH = 1.01
"""Relative to the lower bound: below this no further order is tried."""

PATIENCE = 3000
"""Pieces up to which all orders are tried; beyond, the second is only tried when the first was bad."""

_SPAN = 32
"""Nodes in a bucket of time: a piece is compared only with those that share a bucket."""

_CROWD = 50
"""Pieces alive at once, on average, from which arrays are faster than loops."""


class Piece(NamedTuple):
    """``size`` bytes that are needed from node number ``first`` to ``last``, both inclusive."""

    size: int
    first: int
    last: int


class Packing(NamedTuple):
    """Offsets of all pieces, the end of the highest one, and the largest live set: the least that is possible."""

    offsets: list[int]
    peak: int
    bound: int = 0


def largest_live_set(pieces: Sequence[Piece]) -> int:
    """The largest sum of sizes alive at once: no packing takes less."""
    if not pieces:
        return 0
    begin = min(piece.first for piece in pieces)
    change = [0] * (max(piece.last for piece in pieces) - begin + 2)
    for size, first, last in pieces:
        change[first - begin] += size
        change[last - begin + 1] -= size
    return max(accumulate(change))


def pack(pieces: Sequence[Piece], limit: int | None = None) -> Packing:
    """Offsets for all pieces.  Sizes have to be multiples of the alignment; then offsets are, too.

    ``limit``: bytes of the largest buffer, a multiple of the alignment.  No piece lies across a multiple of it, so the
    answer can be cut into buffers there.  Every piece has to fit into one.
    """
    bound = largest_live_set(pieces)
    best: Packing | None = None
    if limit is None or bound <= limit:
        best = _walk(pieces)
        if best.peak <= bound * GOOD_ENOUGH:
            return best._replace(bound=bound)
        if limit is not None and best.peak > limit:
            best = None
    for order in _orders(pieces):
        found = _greedy(pieces, order, limit)
        if best is None or found.peak < best.peak:
            best = found
        if best.peak <= bound * GOOD_ENOUGH or (len(pieces) > PATIENCE and best.peak <= bound * 1.1):
            break
    assert best is not None
    return best._replace(bound=bound)


def _orders(pieces: Sequence[Piece]) -> Iterable[list[int]]:
    """Orders in which to place pieces: largest first, largest product of size and life first, longest life first."""
    numbers = range(len(pieces))
    yield sorted(numbers, key=lambda i: (-pieces[i].size, pieces[i].first))
    yield sorted(numbers, key=lambda i: (pieces[i].size * (pieces[i].first - pieces[i].last - 1), pieces[i].first))
    yield sorted(numbers, key=lambda i: (pieces[i].first - pieces[i].last, -pieces[i].size))


def _walk(pieces: Sequence[Piece]) -> Packing:
    """Through time, as a heap does: each piece takes the smallest free block that holds it."""
    starts: dict[int, list[int]] = {}
    ends: dict[int, list[int]] = {}
    for number, piece in enumerate(pieces):
        starts.setdefault(piece.first, []).append(number)
        ends.setdefault(piece.last + 1, []).append(number)
    offsets = [0] * len(pieces)
    blocks: list[tuple[int, int]] = []  # free (size, offset), sorted
    by_start: dict[int, int] = {}  # free offset -> size
    by_end: dict[int, int] = {}  # end of a free block -> offset
    top = peak = 0
    for now in sorted({*starts, *ends}):
        for number in ends.get(now, ()):
            start, size = offsets[number], pieces[number].size
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
        # Of those that begin together the largest choose first.
        for number in sorted(starts.get(now, ()), key=lambda i: -pieces[i].size):
            size = pieces[number].size
            if not size:
                continue
            found = bisect_left(blocks, (size, -1))
            if found < len(blocks):
                room, start = blocks.pop(found)
                del by_start[start]
                if room > size:
                    by_start[start + size] = room - size
                    by_end[start + room] = start + size
                    insort(blocks, (room - size, start + size))
                else:
                    del by_end[start + room]
            else:
                start = top
                if top in by_end:  # grow out of the free block at the top
                    start = by_end.pop(top)
                    del blocks[bisect_left(blocks, (by_start.pop(start), start))]
                top = start + size
                peak = max(peak, top)
            offsets[number] = start
    return Packing(offsets, peak)


def _greedy(pieces: Sequence[Piece], order: Sequence[int], limit: int | None) -> Packing:
    """Each piece, in the given order, at the lowest offset that is free during its whole life."""
    span = max(p.last for p in pieces) - min(p.first for p in pieces) + 1 if pieces else 1
    alive = sum(p.last - p.first + 1 for p in pieces) / span
    return (_greedy_dense if alive > _CROWD else _greedy_sparse)(pieces, order, limit)


def _greedy_sparse(pieces: Sequence[Piece], order: Sequence[int], limit: int | None) -> Packing:
    """Where few live together: compares a piece with those that share a bucket of time with it."""
    buckets: dict[int, list[tuple[int, int, int, int]]] = {}
    long_lived: list[tuple[int, int, int, int]] = []
    offsets = [0] * len(pieces)
    peak = 0
    for number in order:
        size, first, last = pieces[number]
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


def _greedy_dense(pieces: Sequence[Piece], order: Sequence[int], limit: int | None) -> Packing:
    """Where many live together: the same with arrays."""
    offsets = [0] * len(pieces)
    starts, ends, firsts, lasts = np.zeros((4, len(pieces)), np.int64)
    count = peak = 0
    for number in order:
        size, first, last = pieces[number]
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
