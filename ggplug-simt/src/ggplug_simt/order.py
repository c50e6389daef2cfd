"""The order of a device's queues: what is pending in them, and synchronous transfers between what they were given."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable
from typing import Any

from ggplug.errors import GGPlugError
from ggplug_simt.driver import Mark, Queue
from ggplug_simt.guard import Guard


class Lane:
    """A queue of one stream, and what of its pending work the host has to remember.

    ``error``: the first thing that went wrong while somebody waited; the stream's own ``synchronize`` raises it.
    """

    def __init__(self, guard: Guard) -> None:
        self.guard = guard
        with guard.guarded("making a stream"):
            self.queue: Queue = guard.driver.queue()
        self.error: GGPlugError | None = None
        self.is_free = False
        self._kept: list[Any] = []

    def keep(self, *objects: Any) -> None:
        """Keeps what the queue reads or writes on the host until it was finished."""
        self._kept.append(objects)

    def mark(self) -> Mark:
        """A mark behind everything given so far, which others may wait for."""
        with self.guard.guarded("recording an event"):
            mark = self.queue.record()
            self.queue.flush()
        return mark

    def settle(self) -> None:
        """Waits for everything given, and keeps what went wrong in ``error``."""
        if self.is_free:
            return
        # Another thread may wait for this queue while its own gives it more: only what was given before is done after.
        done, self._kept = self._kept, []
        try:
            with self.guard.guarded("waiting"):
                self.queue.finish()
                done.clear()  # here, because what the vendor's library remembers of it may wait, too
        except GGPlugError as error:
            self.error = self.error or error
        except BaseException:  # broken off: the queue may still be at it
            self._kept += done
            raise


class Order:
    """The queues of one device.

    ``readers``: the orders of other devices whose queues have copied from this one's memory.
    """

    def __init__(self, guard: Guard) -> None:
        self.readers: set[Order] = set()
        self._guard = guard
        self._lanes: weakref.WeakSet[Lane] = weakref.WeakSet()
        self._transfers: Queue | None = None

    def lane(self) -> Lane:
        """A new queue."""
        lane = Lane(self._guard)
        with self._guard.lock:
            self._lanes.add(lane)
        return lane

    def forget(self, lane: Lane) -> None:
        """A lane that was freed."""
        with self._guard.lock:
            self._lanes.discard(lane)

    def finish(self) -> None:
        """Waits for everything that may use memory of this device.  Errors stay with their lane."""
        for order in (self, *tuple(self.readers)):
            with order._guard.lock:
                lanes = list(order._lanes)
            for lane in lanes:
                lane.settle()

    def transfer(self, what: str, action: Callable[[Queue], object]) -> None:
        """A synchronous transfer: ``action(queue)`` comes after everything given before, and is done in the end.

        What it returns is kept until then.
        """
        self.finish()
        with self._guard.lock, self._guard.guarded(what):
            if self._transfers is None:
                self._transfers = self._guard.driver.queue()
            try:
                kept = action(self._transfers)
                self._transfers.finish()
                del kept  # here, because what the vendor's library remembers of it may wait, too
            except BaseException:
                # The host's memory may still be read or written.
                with contextlib.suppress(Exception):
                    self._transfers.finish()
                raise
