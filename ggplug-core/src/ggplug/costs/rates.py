"""The measured times of a stream: of kernels by op, types and size, of copies by memory and size, of a split.

A time that was measured stands for the same work: of the same ops, types and extents.  Other sizes are predicted from
those: what a kernel takes beyond a launch grows with its operations or its bytes, whichever grow more.
"""

from __future__ import annotations

import math
import statistics
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ggplug.costs.work import Work

GROWTH = 1.25
"""How many times as long as before something is taken to be after one measurement.

Other programs make single measurements too long, never too short; a device that became slower is measured often.
"""
FAR = 16
"""How many times as long as the longest measured kernel another one is predicted by its op alone."""
_MOST = 96
"""Sizes that are kept of an op with its types; the one measured longest ago goes first."""
_KINDS = 1024
"""Ops with types that are kept."""

_Point = tuple[float, float, float]
"""Operations, bytes and seconds."""
_Points = dict[str, _Point]
"""By the extents of a kernel, or by the size class of a copy."""


class Rates:
    """Times of one stream, in seconds.

    ``split``: what a split takes besides its kernels, None if the stream was not measured; ``launch``: the least that a
    kernel takes, one of many in a split; ``call``: what the call of a scheduler takes besides its splits.
    """

    def __init__(self) -> None:
        self._kernels: dict[str, _Points] = {}
        self._copies: dict[str, _Points] = {}
        self._ops: dict[str, list[str]] = {}
        self._lock = threading.Lock()
        """Held while points are added or listed: several threads compute, and note times."""
        self.split: float | None = None
        self.launch = self.call = 0.0
        self._longest = 0.0
        self.asked = False
        """Whether this process measured what was not known before."""
        self.changes = 0
        """How often something was measured; what was predicted before may differ then."""

    # -- what was measured -------------------------------------------------------------------------

    def note(self, work: Work, seconds: float) -> None:
        """Takes over a measurement of a kernel."""
        with self._lock:
            if work.what not in self._kernels:
                if len(self._kernels) >= _KINDS:
                    dropped = next(iter(self._kernels))
                    del self._kernels[dropped]
                    self._ops[dropped.partition(" ")[0]].remove(dropped)
                self._ops.setdefault(work.what.partition(" ")[0], []).append(work.what)
            self._note(self._kernels.setdefault(work.what, {}), work.ne, work.flops, work.bytes, seconds)
        self._longest = max(self._longest, seconds if seconds < math.inf else 0.0)

    def note_copy(self, source: str, nbytes: int, seconds: float) -> None:
        """Takes over a measurement of a copy from a memory, by its name, to that of the stream."""
        with self._lock:
            self._note(self._copies.setdefault(source, {}), _size(nbytes), 0, nbytes, seconds)

    def note_split(self, seconds: float, launch: float) -> None:
        """Takes over what a split takes besides its kernels, and the least that a kernel takes."""
        self.split, self.launch = seconds, launch
        self.changes += 1

    def note_call(self, seconds: float) -> None:
        """Takes over what a call took besides its splits, the first of which was this stream's."""
        self.call = min(seconds, GROWTH * self.call) if self.call else seconds
        self.changes += 1

    def _note(self, points: _Points, key: str, flops: float, nbytes: float, seconds: float) -> None:
        if not 0 < seconds < math.inf:
            return
        known = points.pop(key, None)
        if known is not None:
            seconds = min(seconds, GROWTH * known[2])
        elif len(points) >= _MOST:
            del points[next(iter(points))]
        points[key] = flops, nbytes, seconds
        self.changes += 1

    # -- what it says ------------------------------------------------------------------------------

    def knows(self, work: Work) -> bool:
        """Whether a kernel of this op, with these types and extents, was measured."""
        return work.ne in self._kernels.get(work.what, ())

    def knows_copy(self, source: str, nbytes: int) -> bool:
        """Whether a copy of about this size was measured."""
        return _size(nbytes) in self._copies.get(source, ())

    def kernel(self, work: Work) -> float | None:
        """The predicted time of a kernel: by the op with its types, else by the op; None: the op was not measured.

        Where that is much longer than all that was measured, other ops may say less.
        """
        known = self._kernels.get(work.what, {}).get(work.ne)
        if known is not None:
            return known[2]
        found = self._extended(self._kernels.get(work.what, {}), work.flops, work.bytes)
        if found is None:
            same = list(self._ops.get(work.what.partition(" ")[0], ()))
            found = self._usual([self._kernels.get(what, {}) for what in same], work)
        if found is not None and found > FAR * self._longest:
            found = min(found, self.any_kernel(work) or found)
        return found

    def any_kernel(self, work: Work) -> float | None:
        """The predicted time of an op that was not measured: as long as the usual one of its size."""
        return self._usual(list(self._kernels.values()), work)

    def copy(self, source: str, nbytes: int) -> float | None:
        """The predicted time of a copy from a memory; None if none was measured."""
        return self._extended(self._copies.get(source, {}), 0, nbytes)

    def any_copy(self, nbytes: int) -> float | None:
        """The predicted time of a copy from a memory from which none was measured: the longest that is known."""
        found = [self.copy(source, nbytes) or 0.0 for source in list(self._copies)]
        return max(found, default=None)

    def _usual(self, tables: Iterable[_Points], work: Work) -> float | None:
        """The median of what several ops take for work of this size."""
        found = [self._extended(points, work.flops, work.bytes) for points in tables]
        known = [each for each in found if each is not None]
        return statistics.median(known) if known else None

    def _extended(self, points: _Points, flops: float, nbytes: float) -> float | None:
        """The time of the nearest size, extended to this one, or the least that other sizes say.

        A larger kernel takes at least as long as this one, and a smaller one grows at most with the work, if it takes
        longer than a split.
        """
        nearest, least, limit = None, math.inf, math.inf
        for point in list(points.values()):  # a list: other threads may add points meanwhile
            more = (flops + 1) / (point[0] + 1), (nbytes + 1) / (point[1] + 1)
            fixed = min(self.launch, point[2] / 2)
            found = fixed + (point[2] - fixed) * max(more)
            if max(more) <= 1 or point[2] > (self.split or 0.0):
                limit = min(limit, max(found, point[2]))
            distance = abs(math.log2(more[0])) + abs(math.log2(more[1]))
            if distance < least:
                nearest, least = found, distance
        return None if nearest is None else min(nearest, limit)

    # -- as plain data -----------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        with self._lock:
            return {
                "kernels": {what: dict(points) for what, points in self._kernels.items()},
                "copies": {source: list(points.values()) for source, points in self._copies.items()},
                "split": [self.split, self.launch, self.call],
            }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Rates:
        """The times of what :meth:`to_dict` returned.  Raises ValueError for data of another form."""
        rates = cls()
        try:
            for what, points in data["kernels"].items():
                for ne, point in points.items():
                    flops, nbytes, seconds = _checked(point)
                    rates.note(Work(str(what), int(flops), int(nbytes), str(ne)), seconds)
            for source, points in data["copies"].items():
                for _, nbytes, seconds in map(_checked, points):
                    rates.note_copy(str(source), int(nbytes), seconds)
            if data["split"][0] is not None:
                split, launch, rates.call = _checked(data["split"])
                rates.note_split(split, launch)
        except (AttributeError, KeyError, TypeError, OverflowError) as error:
            raise ValueError(f"no times of a device: {error}") from error
        return rates


def _size(nbytes: int) -> str:
    """The class of the size of a copy; two sizes of a class differ by less than a half."""
    return str(round(2 * math.log2(nbytes + 1)))


def _checked(point: Sequence[Any]) -> _Point:
    """A point of a file.  Raises ValueError unless it has three numbers that are finite and not negative."""
    numbers = [float(each) for each in point]
    if len(numbers) != 3 or not all(0 <= each < 2.0**80 for each in numbers):
        raise ValueError(f"no times of a device: {point!r:.80}")
    return numbers[0], numbers[1], numbers[2]
