"""Tensors of a buffer that have no value yet."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Mapping

_placing = threading.RLock()
"""Held while ranges are added, so that the index has those of all threads."""


class Unset(dict[int, int]):
    """The byte ranges of tensors that were placed and not set since; no two overlap.

    A write finds the ranges that it sets in a sorted index and skips those that were set before, each about once for
    all writes.  Each change is one operation of C, so other threads and signal handlers may run in between: the
    dictionary is authoritative, and superfluous entries of the index do no harm.
    """

    def __init__(self) -> None:
        super().__init__()
        self._index: tuple[list[int], list[int]] = [], [0]
        """The sorted beginnings of ranges; for each, and for the end, the number of the next one that may be unset."""

    def add(self, places: Mapping[int, int]) -> None:
        """Adds the ranges (first byte -> end) of newly placed tensors, and removes ranges that overlap them."""
        with _placing:
            for start, end in places.items() if self else ():
                self.remove(start, end)
            starts = sorted({*self, *places})
            self._index = starts, list(range(len(starts) + 1))
            self.update(places)

    def remove(self, start: int, end: int) -> None:
        """Removes the ranges of tensors with bytes from ``start`` to ``end``, which were written."""
        starts, following = self._index
        number = max(bisect_right(starts, start) - 1, 0)
        while True:
            while following[number] != number:
                following[number] = following[following[number]]
                number = following[number]
            if number == len(starts) or starts[number] >= end:
                return
            if self.get(starts[number], end) > start:
                self.pop(starts[number], None)
                following[number] = number + 1
            number += 1
