"""The order of splits of several computations that are under way at the same time, each by a scheduler of its own.

The computations have an order.  A split waits until no earlier computation has a split left that accesses persistent
memory which one of the two writes, such as a KV cache; and until its device is free, so that each device computes one
split at a time.  So the results are those of one computation after the other.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

from ggplug.errors import ComputeAborted
from ggplug.values.described import Named


class Work(NamedTuple):
    """A split, as far as others may have to wait for it: its device, and the buffers that it accesses and writes."""

    device: Named
    touches: set[Any]
    writes: set[Any]

    def conflicts(self, other: Work) -> bool:
        """Whether the order of the two matters."""
        return not (self.writes.isdisjoint(other.touches) and other.writes.isdisjoint(self.touches))


class Turn:
    """The turn of one computation.  :meth:`end` has to be called in any case."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._works: Sequence[Work] | None = None
        """The splits; None until they are known."""
        self._next = 0
        """The number of the next split, or of the one that is computed."""
        self._computes = False

    def begin(self, works: Sequence[Work]) -> None:
        """Tells the others what will be computed."""
        with self._turns.changed:
            self._works, self._next = works, 0
            self._turns.changed.notify_all()

    def enter(self, number: int) -> None:
        """Waits until a split may be computed.  Raises ComputeAborted if the computations were stopped."""
        with self._turns.changed:
            assert self._works is not None
            self._next = number
            work = self._works[number]
            self._turns.changed.wait_for(lambda: self._turns.stopped or self._may_compute(work))
            if self._turns.stopped:
                raise ComputeAborted("the computation was stopped, because the call that it belongs to was interrupted")
            self._computes = True

    def leave(self) -> None:
        """The split that was entered is computed."""
        with self._turns.changed:
            self._computes = False
            self._next += 1
            self._turns.changed.notify_all()

    def end(self) -> None:
        """The computation is done, or has failed: nobody waits for it any more."""
        with self._turns.changed:
            if self in self._turns.order:
                self._turns.order.remove(self)
            self._turns.changed.notify_all()

    def _may_compute(self, work: Work) -> bool:
        order = self._turns.order
        if any(other._computes and other._left[0].device is work.device for other in order):
            return False
        earlier = order[: order.index(self)]
        return not any(other._works is None or any(map(work.conflicts, other._left)) for other in earlier)

    @property
    def _left(self) -> Sequence[Work]:
        """The splits that are not computed yet."""
        return () if self._works is None else self._works[self._next :]


class Turns:
    """The turns of computations, in their order.

    ``changed``: the condition that is held while anything here is read or changed.  ``stopped``: no split begins any
    more.
    """

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.order: list[Turn] = []
        self.stopped = False

    def next(self) -> Turn:
        """The turn of a computation that comes after all others so far."""
        with self.changed:
            self.order.append(Turn(self))
            return self.order[-1]

    def stop(self) -> None:
        """From now on, splits that would begin raise ComputeAborted."""
        with self.changed:
            self.stopped = True
            self.changed.notify_all()
