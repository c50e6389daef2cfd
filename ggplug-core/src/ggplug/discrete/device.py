"""Devices whose memory the host does not see."""

from __future__ import annotations

import threading
from typing import Any
from weakref import WeakSet

from ggplug.backend import Capabilities, Device, Event
from ggplug.discrete.memory import DiscreteBuffer
from ggplug.discrete.queue import QueuedBackend, QueuedEvent
from ggplug.tensor import Tensor


class DiscreteDevice(Device):
    """A device with memory and queues of its own, and a table of ``kernels``.

    Required besides what every device has: :meth:`init`, which answers a new :class:`QueuedBackend`, and a buffer type
    whose buffers are :class:`DiscreteBuffer`.  A subclass with an ``__init__`` of its own calls this one.
    """

    capabilities = Capabilities(asynchronous=True, events=True)

    def __init__(self) -> None:
        self._queued: WeakSet[QueuedBackend] = WeakSet()
        self._queued_lock = threading.Lock()

    def operand(self, tensor: Tensor, buffer: DiscreteBuffer, offset: int) -> Any:
        """What kernels are given for a tensor, which lies at byte ``offset`` of a buffer.

        ``offset`` is that of the tensor itself, a view's too.  Made when a plan is bound, and used until it is bound
        elsewhere; so it shows the memory, not a copy of it.  Default: the three.
        """
        return tensor, buffer, offset

    def event(self) -> Event:
        return QueuedEvent(self)

    def drain(self) -> None:
        """Waits for everything given to any stream so far; errors stay with the streams in which they happened."""
        with self._queued_lock:
            streams = list(self._queued)
        for stream in streams:
            stream.drain()

    def joined(self, stream: QueuedBackend) -> None:
        """Called by a new stream of this device."""
        with self._queued_lock:
            self._queued.add(stream)
