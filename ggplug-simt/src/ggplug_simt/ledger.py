"""The ledger of a device's memory: what was taken, and what nobody has any more."""

from __future__ import annotations

import contextlib
import weakref
from collections import deque
from collections.abc import Callable
from operator import attrgetter, call

from ggplug.errors import OutOfMemoryError
from ggplug_simt.driver import Handle
from ggplug_simt.guard import Guard
from ggplug_simt.order import Order


class DeviceMemory:
    """A piece of the device's memory.  When the last reference to it goes the ledger gives the memory back.

    ``taken``: its bytes while they are taken, 0 afterwards.  ``freed``: it was given back, or will be, and no launch or
    transfer may reach it.
    """

    __slots__ = ("__weakref__", "freed", "handle", "ledger", "size", "taken")

    def __init__(self, ledger: Ledger, size: int) -> None:
        self.handle: Handle = None
        self.ledger = ledger
        self.size = size
        self.taken = 0
        self.freed = False

    def __del__(self) -> None:
        if getattr(self, "handle", None) is not None:  # it may never have got that
            heir = DeviceMemory(self.ledger, self.size)
            heir.handle, self.handle = self.handle, None
            self.ledger.drop(heir)


_taken = attrgetter("taken")


class Ledger:
    """Memory of one device, counted.  Wherever something breaks off, none of it is lost."""

    def __init__(self, guard: Guard, order: Order, total: Callable[[], int]) -> None:
        self._guard = guard
        self._order = order
        self._total = total
        self._memories: set[weakref.ref[DeviceMemory]] = set()
        self._dropped: deque[DeviceMemory] = deque()

    @property
    def used(self) -> int:
        """Bytes that this process has taken."""
        return sum(map(_taken, filter(None, map(call, tuple(self._memories)))))

    def _count(self, memory: DeviceMemory) -> None:
        memory.taken = memory.size
        self._memories.add(weakref.ref(memory, self._memories.discard))

    def take(self, size: int) -> DeviceMemory:
        """Takes ``size`` bytes.  Raises OutOfMemoryError."""
        self.give_dropped()
        device = self._guard.device
        with self._guard.lock:
            # Drivers promise more than there is and fail when it is used, so the sum is checked here.
            free = self._total() - self.used
            if size > free:
                raise OutOfMemoryError(
                    f"{device.name}: {size} bytes were asked for, {free} of {self._total()} are free",
                    device=device,
                    requested=size,
                    free=free,
                    remedy="free buffers, or place part of the graph on another device",
                )
            memory = DeviceMemory(self, size)
            self._count(memory)
            try:
                with self._guard.guarded("allocating", requested=size):
                    memory.handle = self._guard.driver.allocate(max(size, 1))
            except BaseException:
                memory.taken = 0  # the error keeps it alive
                raise
            return memory

    def give(self, memory: DeviceMemory) -> None:
        """Gives memory back, after everything pending; twice does nothing."""
        if not self._guard.lost:
            self._order.finish()
        with self._guard.lock:
            memory.freed = True
            handle, memory.handle = memory.handle, None
            if handle is not None:
                self._guard.driver.free(handle)
            memory.taken = 0

    def drop(self, memory: DeviceMemory) -> None:
        """Memory of an object that died: anywhere, even amid a vendor's call, so it is given back later."""
        if memory.handle is not None:
            memory.freed = True
            if not memory.taken:
                self._count(memory)
            self._dropped.append(memory)

    def give_dropped(self) -> None:
        """Gives back what was dropped."""
        while self._dropped:
            with contextlib.suppress(IndexError, ValueError):  # another thread was quicker
                memory = self._dropped[0]
                self.give(memory)
                self._dropped.remove(memory)
