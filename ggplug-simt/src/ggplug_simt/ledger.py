"""The ledger of a device's memory: what was taken, and what nobody has any more."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable

from ggplug.errors import OutOfMemoryError
from ggplug_simt.driver import Handle
from ggplug_simt.guard import Guard
from ggplug_simt.order import Order


class DeviceMemory:
    """A piece of the device's memory.  ``freed``: it was given back, and no launch or transfer may reach it."""

    __slots__ = ("freed", "handle", "size")

    def __init__(self, handle: Handle, size: int) -> None:
        self.handle = handle
        self.size = size
        self.freed = False


class Ledger:
    """Memory of one device, counted.  ``used``: bytes that this process has taken."""

    def __init__(self, guard: Guard, order: Order, total: Callable[[], int]) -> None:
        self.used = 0
        self._guard = guard
        self._order = order
        self._total = total
        self._dropped: deque[DeviceMemory] = deque()

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
                    device=device, requested=size, free=free,
                    remedy="free buffers, or place part of the graph on another device",
                )  # fmt: skip
            with self._guard.guarded("allocating", requested=size):
                handle = self._guard.driver.allocate(max(size, 1))
            self.used += size
            return DeviceMemory(handle, size)

    def give(self, memory: DeviceMemory) -> None:
        """Gives memory back, after everything pending."""
        if not self._guard.lost:
            self._order.finish()
        with self._guard.lock:
            memory.freed = True
            self.used -= memory.size
            self._guard.driver.free(memory.handle)
            memory.handle = None

    def drop(self, memory: DeviceMemory) -> None:
        """Memory of an object that died: anywhere, even amid a vendor's call, so it is given back later."""
        memory.freed = True
        self._dropped.append(memory)

    def give_dropped(self) -> None:
        """Gives back what was dropped."""
        while self._dropped:
            with contextlib.suppress(IndexError):  # another thread was quicker
                self.give(self._dropped.popleft())
