"""The fake device's memory: bytes that the host cannot address, and every transfer counted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ggplug.backend import Buffer, BufferType, Bytes
from ggplug.host import HOST, HostBuffer
from ggplug.sharing import accessing

if TYPE_CHECKING:
    from ggplug.testing.fake.device import FakeDevice

POISON = 0xFD
"""Fills new memory and the targets of pending fetches: as float of any type it is a huge negative number."""


class FakeBufferType(BufferType):
    """Memory that the host cannot address."""

    def __init__(self, device: FakeDevice, alignment: int) -> None:
        super().__init__(device.name, device)
        self._alignment = alignment
        self._fake = device

    @property
    def alignment(self) -> int:
        return self._alignment

    def _alloc(self, size: int) -> FakeBuffer:
        self._fake.take(size)
        return FakeBuffer(self, self._fake, size)


class FakeBuffer(Buffer):
    """One allocation on the fake device; ``host`` is how the device itself sees the bytes."""

    def __init__(self, type: BufferType, device: FakeDevice, size: int) -> None:
        super().__init__(type, size)
        self.device = device
        self.host: HostBuffer = HOST.wrap(np.full(size, POISON, np.uint8))

    def _set(self, offset: int, data: Bytes) -> None:
        self.device.queue.drain()
        self.device.act("set", data.size)
        self.host.set(offset, data)

    def _get(self, offset: int, out: Bytes) -> None:
        self.device.queue.drain()
        self.device.act("get", out.size)
        self.host.get(offset, out)

    def memset(self, offset: int, size: int, value: int) -> None:
        with accessing(self):
            offset, size, value = self._check_fill(offset, size, value)
            self.device.queue.drain()
            self.device.act("memset", size)
            self.host.memset(offset, size, value)

    def copy_from(self, source: Buffer, source_offset: int, offset: int, size: int) -> None:
        with accessing(self):
            offset, size = self._check_write(offset, size)
            source_offset, _ = source._check(source_offset, size)
            self.device.queue.drain()
            if isinstance(source, FakeBuffer) and source.device is not self.device:
                source.device.queue.drain()
            self.copy_now(source, source_offset, offset, size, "")

    def copy_now(self, source: Buffer, source_offset: int, offset: int, size: int, stream: str) -> None:
        """Copies without waiting for anything: what a copy in a stream's queue does."""
        staging = np.empty(size, np.uint8)
        if isinstance(source, FakeBuffer) and source.device is self.device:
            self.device.act("copy", size, stream)
            source.host.get(source_offset, staging)
        elif isinstance(source, FakeBuffer):
            # From device to device, without waiting for the other one: its order was seen to when this was given.
            source.device.act("get", size)
            source.host.get(source_offset, staging)
            self.device.act("receive", size, stream)
        else:
            source.get(source_offset, staging)
            self.device.act("receive", size, stream)
        self.host.set(offset, staging)

    def _free(self) -> None:
        self.device.queue.drain()
        self.device.give(self.size)
        self.host.free()
