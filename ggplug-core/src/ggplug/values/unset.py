"""Which tensors of a buffer have no value yet."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Mapping

_placing = threading.RLock()
"""Held while places are added, so that none of two threads' is missing in the index."""


class Unset(dict[int, int]):
    """First byte and end of each tensor that was placed and not set since; no two share bytes.

    A write finds what it sets in sorted places, past those that were set before: each of these is passed about once,
    however many writes there are.  Every step that sets one is an operation of C, so threads and signal handlers may
    come in between: the dictionary is what counts, and a place too many in the index does no harm.
    """

    def __init__(self) -> None:
        super().__init__()
        self._index: tuple[list[int], list[int]] = [], [0]
        """Where places begin, in order; and for each, and for the end, the first that may be unset from it on."""

    def add(self, places: Mapping[int, int]) -> None:
        """Tensors were placed, from first bytes to ends; what lay there before is gone."""
        with _placing:
            for start, end in places.items() if self else ():
                self.remove(start, end)
            starts = sorted({*self, *places})
            self._index = starts, list(range(len(starts) + 1))
            self.update(places)

    def remove(self, start: int, end: int) -> None:
        """These bytes were written: tensors that have some of them are set."""
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
