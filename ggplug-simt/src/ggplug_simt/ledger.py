"""The ledger of a device's memory: which memory is allocated, and which has no references any more and can be freed."""

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
    """Allocated bytes.  ``handle``: the vendor's handle for them; None before the allocation and after its end."""

    __slots__ = ("handle", "size")

    def __init__(self, size: int) -> None:
        self.handle: Handle = None
        self.size = size


class DeviceMemory:
    """An allocation of the device's memory.  The ledger frees it after the last reference to this object is gone.

    ``freed``: it was freed, and no launch or transfer may access it.
    """

    __slots__ = ("__weakref__", "_taken", "freed", "size")

    def __init__(self, taken: _Taken) -> None:
        self._taken = taken
        self.size = taken.size
        self.freed = False

    @property
    def handle(self) -> Handle:
        """The vendor's handle; None after the memory was freed."""
        return self._taken.handle


class Ledger:
    """Counts the memory of one device, and frees it.  After an error or an interrupt no memory is leaked."""

    def __init__(self, guard: Guard, order: Order, total: Callable[[], int]) -> None:
        self._guard = guard
        self._order = order
        self._total = total
        self._taken: dict[ref[DeviceMemory], _Taken] = {}
        self._dropped: deque[ref[DeviceMemory]] = deque()
        """Allocations without references, which are freed later: an object may be deleted during a vendor's call."""

    @property
    def used(self) -> int:
        """Bytes that this process has allocated."""
        return sum(taken.size for taken in [*self._taken.values()])

    def take(self, size: int) -> DeviceMemory:
        """Allocates ``size`` bytes.  Raises OutOfMemoryError."""
        self.give_dropped()
        device = self._guard.device
        with self._guard.lock:
            # Drivers allocate more than the device has and fail when it is used, so the sum is checked here.
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
        """Frees the allocations in ``_dropped``."""
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
