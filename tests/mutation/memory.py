"""Devices whose buffers have one fault each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ggplug.backend import Buffer, BufferType, Bytes, Device, host_bytes
from ggplug.host import HostBuffer, HostBufferType
from ggplug.tensor import Tensor
from ggplug.types import BufferUsage
from ggplug_testing.reference import ReferenceDevice


class OtherBuffers(ReferenceDevice):
    """The reference device with other buffers."""

    def __init__(self, kind: Callable[[BufferType, int], Buffer]) -> None:
        super().__init__("faulty")
        self._buffer_type = _OtherBufferType("faulty", self, kind)


class _OtherBufferType(HostBufferType):
    def __init__(self, name: str, device: Device, kind: Callable[[BufferType, int], Buffer]) -> None:
        super().__init__(name, device)
        self._kind = kind

    def _alloc(self, size: int) -> Any:
        if size > 1 << 40:
            return super()._alloc(size)
        return self._kind(self, size)


def _memory(size: int, misaligned: int = 0) -> Bytes:
    block = np.empty(size + 256, np.uint8)
    start = -block.ctypes.data % 64 + misaligned
    return block[start : start + size]


class _Buffer(HostBuffer):
    def __init__(self, type: BufferType, size: int) -> None:
        super().__init__(type, _memory(size))


class Misaligned(HostBuffer):
    def __init__(self, type: BufferType, size: int) -> None:
        super().__init__(type, _memory(size, 8))


class ShortMemset(_Buffer):
    def memset(self, offset: int, size: int, value: int) -> None:
        super().memset(offset, size // 4 * 4, value)


class UncheckedMemset(_Buffer):
    def memset(self, offset: int, size: int, value: int) -> None:
        assert self._memory is not None
        self._memory[max(offset, 0) : offset + max(size, 0)] = value


class PackedRows(_Buffer):
    def set_2d(self, offset: int, data: Bytes, row_bytes: int, rows: int, stride: int) -> None:
        super().set_2d(offset, data, row_bytes, rows, row_bytes)


class UncheckedRows(_Buffer):
    """Looks at where the last row ends, and not at where the others are."""

    def set_2d(self, offset: int, data: Bytes, row_bytes: int, rows: int, stride: int) -> None:
        assert self._memory is not None
        super().set_2d(offset, data, row_bytes, rows, abs(stride))


class FetchesBlindly(_Buffer):
    """Does not look at the array that it fetches into."""

    def get(self, offset: int, out: Bytes) -> None:
        self.check_read(offset, out.size)
        assert self._memory is not None
        out[...] = self._memory[offset : offset + out.size].reshape(out.shape)


class PlacesAnywhere(_Buffer):
    def check_place(self, tensor: Tensor, offset: int) -> int:
        return offset


class ForgetsReadOnly(ReferenceDevice):
    """Uses the caller's memory in place, and writes there even if that may not be written."""

    def __init__(self) -> None:
        super().__init__("faulty")

    def buffer_from_host(self, memory: Any, *, usage: BufferUsage = BufferUsage.ANY) -> Buffer:
        buffer = super().buffer_from_host(memory, usage=usage)
        assert buffer.address is not None
        opened = HostBuffer(self.buffer_type, host_bytes(buffer.address, buffer.size), memory)
        opened.usage = usage
        return opened


class CopiesFromTheBeginning(_Buffer):
    def copy_from(self, source: Buffer, source_offset: int, offset: int, size: int) -> None:
        super().copy_from(source, 0, offset, size)


class FreesTwice(_Buffer):
    def free(self) -> None:
        if self.freed:
            raise RuntimeError("double free")
        super().free()


class FreesExports(_Buffer):
    def check_free(self) -> None:
        pass


def wraps(method: str, bits: int) -> type[HostBuffer]:
    """Memory of which one method keeps so many bits of offsets and strides."""

    def wrapped(self: HostBuffer, *arguments: Any) -> None:
        kept = [each & ((1 << bits) - 1) if isinstance(each, int) else each for each in arguments]
        getattr(_Buffer, method)(self, *kept)

    return type("Wraps", (_Buffer,), {method: wrapped})


class LosesUsage(_Buffer):
    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, BufferUsage.ANY if name == "usage" else value)


class Greedy(ReferenceDevice):
    """Pretends that there is memory where there is none."""

    def __init__(self) -> None:
        super().__init__("faulty")
        self._buffer_type = _GreedyType("faulty", self)


class _GreedyType(HostBufferType):
    def alloc(self, size: int) -> HostBuffer:
        return super()._alloc(min(max(size, 0), 1 << 20))
