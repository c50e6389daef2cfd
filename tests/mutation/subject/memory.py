"""The device's memory: bytes that the host does not address."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ggplug.backend import BufferType, Bytes
from ggplug.discrete import DiscreteBuffer
from ggplug_testing.fake.memory import poisoned

if TYPE_CHECKING:
    from tests.mutation.subject.device import SubjectDevice


class SubjectBuffer(DiscreteBuffer):
    """One allocation."""

    device: SubjectDevice

    def __init__(self, type: BufferType, size: int, device: SubjectDevice) -> None:
        super().__init__(type, size, device)
        device.take(size)
        self.memory: Bytes = poisoned(size)

    def store(self, offset: int, data: Bytes) -> None:
        self.memory[offset : offset + data.size] = data

    def fetch(self, offset: int, out: Bytes) -> None:
        out[...] = self.memory[offset : offset + out.size]

    def dispose(self) -> None:
        self.device.take(-self.size)
        self.memory = np.empty(0, np.uint8)


class SubjectMemory(BufferType):
    """The device's plain memory."""

    device: SubjectDevice

    def _alloc(self, size: int) -> SubjectBuffer:
        return SubjectBuffer(self, size, self.device)
