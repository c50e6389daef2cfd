"""The fake device's memory: bytes that the host cannot address, and every transfer counted."""

from __future__ import annotations

import numpy as np

from ggplug.backend import Buffer, BufferType, Bytes
from ggplug.discrete import DiscreteBuffer
from ggplug.host import HOST, HostBuffer
from ggplug.sharing import accessing
from ggplug_testing.fake.acting import ActingDevice

POISON = 0xFD
"""Fills new memory and the targets of pending fetches: as float of any type it is a huge negative number."""

POISONED = 1 << 24
"""Bytes of new memory that are filled.  What is behind them takes no memory of the host until it is used."""


def poisoned(size: int) -> Bytes:
    """New memory."""
    memory = np.zeros(size, np.uint8)
    memory[:POISONED] = POISON
    return memory


class FakeBufferType(BufferType):
    """Memory that the host cannot address."""

    def __init__(self, device: ActingDevice, alignment: int) -> None:
        super().__init__(device.name, device)
        self._alignment = alignment
        self._fake = device

    @property
    def alignment(self) -> int:
        return self._alignment

    def _alloc(self, size: int) -> FakeBuffer:
        self._fake.take(size)
        return FakeBuffer(self, self._fake, size)


class FakeBuffer(DiscreteBuffer):
    """One allocation on the fake device; ``host`` is how the device itself sees the bytes."""

    device: ActingDevice

    def __init__(self, type: BufferType, device: ActingDevice, size: int) -> None:
        super().__init__(type, size, device)
        self.host: HostBuffer = HOST.wrap(poisoned(size))

    def store(self, offset: int, data: Bytes) -> None:
        self.device.act("set", data.size)
        self.host.set(offset, data)

    def fetch(self, offset: int, out: Bytes) -> None:
        self.device.act("get", out.size)
        self.host.get(offset, out)

    def memset(self, offset: int, size: int, value: int) -> None:
        with accessing(self):
            offset, size, value = self.check_fill(offset, size, value)
            self.device.drain()
            self.device.act("memset", size)
            self.host.memset(offset, size, value)

    def copy(self, source: Buffer, source_offset: int, offset: int, size: int) -> None:
        staging = np.empty(size, np.uint8)
        if isinstance(source, FakeBuffer) and source.device is self.device:
            self.device.act("copy", size)
            source.host.get(source_offset, staging)
        else:
            if isinstance(source, DiscreteBuffer):
                source.fetch(source_offset, staging)
            else:
                source.get(source_offset, staging)
            self.device.act("receive", size)
        self.host.set(offset, staging)

    def dispose(self) -> None:
        self.device.give(self.size)
        self.host.free()
