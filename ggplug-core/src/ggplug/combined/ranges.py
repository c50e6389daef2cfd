"""Ranges of bytes that do not overlap."""

from __future__ import annotations

from bisect import bisect_left, bisect_right


class Ranges:
    """Disjoint ranges of bytes, in order."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []

    def overlap(self, first: int, end: int) -> bool:
        """Whether a range overlaps one of them."""
        number = bisect_right(self._ends, first)
        return number < len(self._starts) and self._starts[number] < end

    def add(self, first: int, end: int) -> None:
        """Adds a range, and joins it with those that it overlaps or touches."""
        low, high = bisect_left(self._ends, first), bisect_right(self._starts, end)
        if low < high:
            first, end = min(first, self._starts[low]), max(end, self._ends[high - 1])
        self._starts[low:high] = [first]
        self._ends[low:high] = [end]
