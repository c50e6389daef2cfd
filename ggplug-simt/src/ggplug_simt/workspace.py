"""What the plans of one stream share: its queue, scratch memory, and the record of ids out of range."""

from __future__ import annotations

from ggplug.errors import FreedError
from ggplug_simt.faults import Faults
from ggplug_simt.ledger import DeviceMemory
from ggplug_simt.order import Lane
from ggplug_simt.runtime import Runtime


class Workspace:
    """The queue of a stream and the memory that its plans use beside their tensors'."""

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
        """Memory that launches of one node share; all plans have the same, because a queue runs one at a time.

        (A plan has the stream to itself while it gives its launches: those of two threads do not mix.)

        What was handed out stays until the stream is freed: plans are bound to it.
        """
        if not self._scratch or self._scratch[-1].size < size:
            self._scratch.append(self.runtime.ledger.take(size))
        return self._scratch[-1]

    def free(self) -> None:
        """Gives everything back, the queue last."""
        for memory in self._scratch:
            self.runtime.ledger.give(memory)
        self.faults.free()
        self.lane.is_free = True
        self.runtime.order.forget(self.lane)
        self.lane.queue.free()
