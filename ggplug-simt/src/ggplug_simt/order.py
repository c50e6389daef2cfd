"""The order of a device's queues: their pending work, and synchronous transfers, which wait for this work."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable
from typing import Any

from ggplug.errors import GGPlugError
from ggplug_simt.driver import Mark, Queue
from ggplug_simt.guard import Guard


class Lane:
    """A queue of one stream, with the host memory that its pending work uses.

    ``error``: the first error found while a thread waited for the queue; the stream's ``synchronize`` raises it.
    """

    def __init__(self, guard: Guard) -> None:
        self.guard = guard
        with guard.guarded("making a stream"):
            self.queue: Queue = guard.driver.queue()
        self.error: GGPlugError | None = None
        self.is_free = False
        self._kept: list[Any] = []

    def keep(self, *objects: Any) -> None:
        """Keeps alive what the queue reads or writes on the host, until the queue has finished."""
        self._kept.append(objects)

    def mark(self) -> Mark:
        """A mark after all work submitted so far; other queues can wait for it."""
        with self.guard.guarded("recording an event"):
            mark = self.queue.record()
            self.queue.flush()
        return mark

    def settle(self) -> None:
        """Waits for all submitted work, and keeps an error in ``error``."""
        if self.is_free:
            return
        # While one thread waits here another may submit more work, which need not be done at the end.
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
        """Removes a lane that was freed."""
        with self._guard.lock:
            self._lanes.discard(lane)

    def finish(self) -> None:
        """Waits for all work that may use memory of this device.  Each lane keeps its error."""
        for order in (self, *tuple(self.readers)):
            with order._guard.lock:
                lanes = list(order._lanes)
            for lane in lanes:
                lane.settle()

    def transfer(self, what: str, action: Callable[[Queue], object]) -> None:
        """Does ``action(queue)``, a transfer, after all work submitted before, and waits until it is done.

        Keeps what ``action`` returns alive until then.
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
