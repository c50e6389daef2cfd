"""Buffers with one fault each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ggplug.backend import Buffer, BufferType, Bytes, Described, Device, host_bytes
from ggplug.host import HostBuffer, HostBufferType
from ggplug.types import BufferUsage
from ggplug_testing.contracts.bases import FAR_BYTES
from ggplug_testing.devices.reference import ReferenceDevice
from tests.mutation.fault import by_hand


class OtherBuffers(ReferenceDevice):
    """The reference device with other buffers."""

    def __init__(self, kind: Callable[[BufferType, int], Buffer]) -> None:
        super().__init__("faulty")
        self._buffer_type = _OtherBufferType("faulty", self, kind)


class _OtherBufferType(HostBufferType):
    def __init__(self, name: str, device: Device, kind: Callable[[BufferType, int], Any]) -> None:
        super().__init__(name, device)
        self._kind = kind

    def _alloc(self, size: int) -> HostBuffer:
        return super()._alloc(size) if size > 1 << 40 else self._kind(self, size)


class _Buffer(HostBuffer):
    misaligned = 0

    def __init__(self, type: BufferType, size: int) -> None:
        block = np.empty(size + 256, np.uint8)
        start = -block.ctypes.data % 64 + self.misaligned
        super().__init__(type, block[start : start + size])

    @property
    def all(self) -> Bytes:
        assert self._memory is not None
        return self._memory


faulty = by_hand(OtherBuffers)


@faulty("memory is not aligned", "buffer types describe their memory")
class Misaligned(_Buffer):
    misaligned = 8


@faulty("memset leaves the end", "memset fills a range")
class ShortMemset(_Buffer):
    def memset(self, offset: int, size: int, value: int) -> None:
        super().memset(offset, size // 4 * 4, value)


@faulty("memset is not checked", "accesses out of bounds raise")
class UncheckedMemset(_Buffer):
    def memset(self, offset: int, size: int, value: int) -> None:
        self.all[max(offset, 0) : offset + max(size, 0)] = value


@faulty("rows are packed", "rows are transferred with a stride")
class PackedRows(_Buffer):
    def set_2d(self, offset: int, data: Bytes, row_bytes: int, rows: int, stride: int) -> None:
        super().set_2d(offset, data, row_bytes, rows, row_bytes)


@faulty("rows are not checked", "accesses out of bounds raise")
class UncheckedRows(_Buffer):
    """Looks at where the last row ends, and not at where the others are."""

    def set_2d(self, offset: int, data: Bytes, row_bytes: int, rows: int, stride: int) -> None:
        super().set_2d(offset, data, row_bytes, rows, abs(stride))


@faulty("fetches into anything", "bytes are fetched into writable arrays of bytes")
class FetchesBlindly(_Buffer):
    """Does not look at the array that it fetches into."""

    def get(self, offset: int, out: Bytes) -> None:
        self.check_read(offset, out.size)
        out[...] = self.all[offset : offset + out.size].reshape(out.shape)


@faulty("tensors lie anywhere", "places are inside of their buffer")
class PlacesAnywhere(_Buffer):
    def check_place(self, tensor: Described, offset: int) -> int:
        return offset


@faulty("copies from the beginning", "buffers copy from each other", "copies come from the host")
class CopiesFromTheBeginning(_Buffer):
    def copy_from(self, source: Buffer, source_offset: int, offset: int, size: int) -> None:
        super().copy_from(source, 0, offset, size)


@faulty("freeing twice fails", "a freed buffer refuses use")
class FreesTwice(_Buffer):
    def free(self) -> None:
        if self.freed:
            raise RuntimeError("double free")
        super().free()


@faulty("frees what is exported", "an exported buffer refuses to be freed")
class FreesExports(_Buffer):
    def check_free(self) -> None:
        pass


@faulty("loses the usage", "usage is only a mark")
class LosesUsage(_Buffer):
    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, BufferUsage.ANY if name == "usage" else value)


def wraps(method: str, bits: int) -> type[_Buffer]:
    """Memory of which one method keeps so many bits of offsets and strides."""

    def wrapped(self: _Buffer, *arguments: Any) -> None:
        kept = [each & ((1 << bits) - 1) if isinstance(each, int) else each for each in arguments]
        getattr(_Buffer, method)(self, *kept)

    return type("Wraps", (_Buffer,), {method: wrapped})


for method in ("memset", "copy_from", "set_2d", "get_2d"):
    for bits in (31, 32):
        faulty(f"{method} keeps {bits} bits of offsets", FAR_BYTES)(wraps(method, bits))

device = by_hand(lambda kind: kind("faulty"))


@device(
    "forgets that memory is read-only",
    "memory of the host is used in place",
    "memory that may not be written is refused",
)
class ForgetsReadOnly(ReferenceDevice):
    """Uses the caller's memory in place, and writes there even if that may not be written."""

    def buffer_from_host(self, memory: Any, *, usage: BufferUsage = BufferUsage.ANY) -> Buffer:
        buffer = super().buffer_from_host(memory, usage=usage)
        assert buffer.address is not None
        opened = HostBuffer(self.buffer_type, host_bytes(buffer.address, buffer.size), memory)
        opened.usage = usage
        return opened


@device("promises memory it does not have", "too much memory raises", "impossible sizes raise")
class Greedy(ReferenceDevice):
    """Pretends that there is memory where there is none."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._buffer_type = _GreedyType(name, self)


class _GreedyType(HostBufferType):
    def alloc(self, size: int) -> HostBuffer:
        return super()._alloc(min(max(size, 0), 1 << 20))
