"""The ledger of a device's memory: what was taken, and what nobody has any more."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable
from weakref import ref

from ggplug.errors import OutOfMemoryError
from ggplug_simt.driver import Handle
from ggplug_simt.guard import Guard
from ggplug_simt.order import Order


class _Taken:
    """Bytes that were taken.  ``handle``: the vendor's name for them; None before and after."""

    __slots__ = ("handle", "size")

    def __init__(self, size: int) -> None:
        self.handle: Handle = None
        self.size = size


class DeviceMemory:
    """A piece of the device's memory.  When the last reference to it goes the ledger gives the memory back.

    ``freed``: it was given back, and no launch or transfer may reach it.
    """

    __slots__ = ("__weakref__", "_taken", "freed", "size")

    def __init__(self, taken: _Taken) -> None:
        self._taken = taken
        self.size = taken.size
        self.freed = False

    @property
    def handle(self) -> Handle:
        """The vendor's name for it; None after it was given back."""
        return self._taken.handle


class Ledger:
    """Memory of one device, counted.  Wherever something breaks off, none of it is lost."""

    def __init__(self, guard: Guard, order: Order, total: Callable[[], int]) -> None:
        self._guard = guard
        self._order = order
        self._total = total
        self._taken: dict[ref[DeviceMemory], _Taken] = {}
        self._dropped: deque[ref[DeviceMemory]] = deque()
        """What died anywhere, even amid a vendor's call, and is given back later."""

    @property
    def used(self) -> int:
        """Bytes that this process has taken."""
        return sum(taken.size for taken in [*self._taken.values()])

    def take(self, size: int) -> DeviceMemory:
        """Takes ``size`` bytes.  Raises OutOfMemoryError."""
        self.give_dropped()
        device = self._guard.device
        with self._guard.lock:
            # Drivers promise more than there is and fail when it is used, so the sum is checked here.
            free = self._total() - self.used
            if size > free:
                raise OutOfMemoryError(
                    f"{device.name}: {size} bytes were requested, {free} of {self._total()} are free",
                    device=device,
                    requested=size,
                    free=free,
                    remedy="free buffers, or place part of the graph on another device",
                )
            taken = _Taken(size)
            memory = DeviceMemory(taken)
            try:
                self._taken[ref(memory, self._dropped.append)] = taken
                with self._guard.guarded("allocating", requested=size):
                    taken.handle = self._guard.driver.allocate(max(size, 1))
            except BaseException:
                if taken.handle is None:
                    self._taken.pop(ref(memory), None)  # the error keeps it alive
                raise
            return memory

    def give(self, memory: DeviceMemory) -> None:
        """Gives memory back, after everything pending; twice does nothing."""
        self._give(ref(memory), memory)

    def give_dropped(self) -> None:
        """Gives back what was dropped."""
        while self._dropped:
            with contextlib.suppress(IndexError, ValueError):  # another thread was quicker
                dropped = self._dropped[0]
                self._give(dropped)
                self._dropped.remove(dropped)

    def _give(self, reference: ref[DeviceMemory], memory: DeviceMemory | None = None) -> None:
        if not self._guard.lost:
            self._order.finish()
        with self._guard.lock:
            if memory is not None:
                memory.freed = True
            taken = self._taken.get(reference)
            if taken is not None:
                handle, taken.handle = taken.handle, None
                if handle is not None:
                    self._guard.driver.free(handle)
                self._taken.pop(reference, None)
