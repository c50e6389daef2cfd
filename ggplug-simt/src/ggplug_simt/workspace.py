"""The common memory of the plans of one stream: scratch memory, and the record of ids out of range."""

from __future__ import annotations

from ggplug.errors import FreedError
from ggplug_simt.faults import Faults
from ggplug_simt.ledger import DeviceMemory
from ggplug_simt.order import Lane
from ggplug_simt.runtime import Runtime


class Workspace:
    """The queue of a stream, and the memory that its plans use in addition to their tensors'."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.lane: Lane = runtime.order.lane()
        self.faults = Faults(runtime, self.lane.queue)
        self._scratch: list[DeviceMemory] = []

    @property
    def is_free(self) -> bool:
        """Whether the stream was freed."""
        return self.lane.is_free

    def check_open(self) -> None:
        """Raises FreedError if the stream was freed."""
        if self.is_free:
            device = self.runtime.device
            raise FreedError(
                f"a stream of {device.name} is used after it was freed",
                device=device,
                remedy="make a new one with device.init()",
            )

    def scratch(self, size: int) -> DeviceMemory:
        """Scratch memory for the launches of one node; all plans use the same, because a queue runs one launch at a
        time.

        (A plan claims the stream while it submits its launches, so those of two threads do not mix.)

        Memory that was returned exists until the stream is freed: plans are bound to it.
        """
        if not self._scratch or self._scratch[-1].size < size:
            self._scratch.append(self.runtime.ledger.take(size))
        return self._scratch[-1]

    def free(self) -> None:
        """Releases the memory, then the queue."""
        for memory in self._scratch:
            self.runtime.ledger.give(memory)
        self.faults.free()
        self.lane.is_free = True
        self.runtime.order.forget(self.lane)
        self.lane.queue.free()
