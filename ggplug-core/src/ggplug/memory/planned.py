"""Buffers that are planned and not allocated: tensors have places in them, so that devices say what they would do."""

from __future__ import annotations

from ggplug.backend import Buffer, BufferType, Bytes
from ggplug.errors import BufferUseError


class PlannedBuffer(Buffer):
    """``size`` bytes of a kind of memory that were not allocated.  Reading and writing them raises BufferUseError.

    A graph over tensors in planned buffers is scheduled and laid out as over allocated ones; it cannot be computed.
    """

    def __init__(self, type: BufferType, size: int) -> None:
        super().__init__(type, size)

    def _set(self, offset: int, data: Bytes) -> None:
        raise self._error()

    def _get(self, offset: int, out: Bytes) -> None:
        raise self._error()

    def _free(self) -> None:
        pass

    def _error(self) -> BufferUseError:
        return BufferUseError(f"{self!r} was planned and not allocated: it has no bytes", remedy="allocate the tensors")
