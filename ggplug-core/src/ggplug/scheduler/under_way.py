"""The order of splits of several computations that are under way at the same time, each by a scheduler of its own.

The computations have an order.  A split waits until no earlier computation has a split left that accesses persistent
memory which one of the two writes, such as a KV cache; and until its device is free, and no earlier computation's next
split is for it.  So each device computes one split at a time, and the results are those of one computation after the
other.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import NamedTuple

from ggplug.backend import Buffer
from ggplug.errors import ComputeAborted
from ggplug.values.described import Named


class Work(NamedTuple):
    """A split, as far as others may have to wait for it: its device, and the buffers that it accesses and writes.

    ``copies``: whether it reads copies of what others may write.
    """

    device: Named
    touches: set[Buffer]
    writes: set[Buffer]
    copies: bool

    def conflicts(self, other: Work) -> bool:
        """Whether the order of the two matters."""
        return _share(self.writes, other.touches) or _share(other.writes, self.touches)


def _share(some: set[Buffer], others: set[Buffer]) -> bool:
    """Whether a buffer is among both, or two of them are over the same bytes of host memory."""
    return not some.isdisjoint(others) or any(_overlap(one, other) for one in some for other in others)


def _overlap(one: Buffer, other: Buffer) -> bool:
    first, second = one.address, other.address
    return first is not None and second is not None and first < second + other.size and second < first + one.size


class Computation:
    """One of the computations.  :meth:`end` has to be called in any case.

    A device is held from :meth:`enter` on until the next split enters: so what that reads is copied from the device
    before another computation keeps it busy.
    """

    def __init__(self, others: UnderWay) -> None:
        self._others = others
        self._works: Sequence[Work] | None = None
        """The splits; None until they are known."""
        self._entered = self._done = 0
        """How many splits were begun, and are done."""
        self._held: Named | None = None

    def begin(self, works: Sequence[Work]) -> None:
        """Makes known which splits will be computed."""
        with self._others.changed:
            self._works = works
            self._entered = self._done = 0
            self._others.changed.notify_all()

    def enter(self, number: int) -> None:
        """Waits until a split may be computed, unless it was entered.  Raises ComputeAborted if the computations were
        stopped."""
        if number < self._entered:
            return
        with self._others.changed:
            assert self._works is not None
            work = self._works[number]
            self._held = None
            self._others.changed.notify_all()
            self._others.changed.wait_for(lambda: self._others.stopped or self._may_compute(work))
            if self._others.stopped:
                raise ComputeAborted("the computation was stopped, because the call that it belongs to was interrupted")
            self._held, self._entered = work.device, number + 1

    def leave(self) -> None:
        """The split that was entered is computed."""
        with self._others.changed:
            self._done += 1
            self._others.changed.notify_all()

    def end(self) -> None:
        """The computation is done, or has failed: nobody waits for it any more."""
        with self._others.changed:
            if self in self._others.order:
                self._others.order.remove(self)
            self._others.changed.notify_all()

    def _may_compute(self, work: Work) -> bool:
        order = self._others.order
        if any(other._held is work.device for other in order):
            return False
        return not any(other._goes_before(work) for other in order[: order.index(self)])

    def _goes_before(self, work: Work) -> bool:
        """Whether a split of a later computation has to wait for this one."""
        if self._works is None:
            return True
        left = self._works[self._done :]
        return any(map(work.conflicts, left)) or any(each.device is work.device for each in left[:1])


class UnderWay:
    """The computations that are under way, in their order.

    ``changed``: the condition that is held while anything here is read or changed.  ``stopped``: no split begins any
    more.
    """

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.order: list[Computation] = []
        self.stopped = False

    def add(self) -> Computation:
        """A new computation, after all others."""
        with self.changed:
            self.order.append(Computation(self))
            return self.order[-1]

    def stop(self) -> None:
        """From now on, splits that would begin raise ComputeAborted."""
        with self.changed:
            self.stopped = True
            self.changed.notify_all()
