"""Memory of a device as buffer type and buffers.  Handles and byte offsets; the host cannot address it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ggplug.arrays import as_bytes
from ggplug.backend import Buffer, BufferType, Bytes, check_target
from ggplug.host import HostBuffer, HostBufferType
from ggplug.sharing import accessing
from ggplug_simt.driver import Handle

if TYPE_CHECKING:
    from ggplug_simt.device import SimtDevice


class SimtBufferType(BufferType):
    """The device's own memory."""

    def __init__(self, device: SimtDevice) -> None:
        super().__init__(device.name, device)
        self._simt = device

    @property
    def alignment(self) -> int:
        return max(64, self._simt.driver.alignment)

    @property
    def max_size(self) -> int | None:
        return self._simt.driver.max_buffer

    def _alloc(self, size: int) -> SimtBuffer:
        return SimtBuffer(self, self._simt, self._simt.take(size), size)


class SimtBuffer(Buffer):
    """One allocation; ``handle`` is the vendor's name for it."""

    def __init__(self, type: BufferType, device: SimtDevice, handle: Handle, size: int) -> None:
        super().__init__(type, size)
        self.device = device
        self.handle = handle

    def _set(self, offset: int, data: Bytes) -> None:
        with self.device.transfer("writing") as queue:
            queue.write(self.handle, offset, data)

    def _get(self, offset: int, out: Bytes) -> None:
        with self.device.transfer("reading") as queue:
            queue.read(self.handle, offset, out)

    def memset(self, offset: int, size: int, value: int) -> None:
        with accessing(self):
            offset, size, value = self._check_fill(offset, size, value)
            if size:
                with self.device.transfer("filling") as queue:
                    queue.fill(self.handle, offset, size, value)

    def copy_from(self, source: Buffer, source_offset: int, offset: int, size: int) -> None:
        offset, size = self._check_write(offset, size)
        source_offset, _ = source._check(source_offset, size)
        overlaps = source is self and abs(source_offset - offset) < size
        if isinstance(source, SimtBuffer) and self.device.reaches(source.device) and not overlaps:
            with accessing(self, source):
                offset, size = self._check_write(offset, size)
                source_offset, _ = source._check(source_offset, size)
                if size:
                    source.device.finish()
                    with self.device.transfer("copying") as queue:
                        queue.copy(source.handle, source_offset, self.handle, offset, size)
        else:
            super().copy_from(source, source_offset, offset, size)

    def set_2d(self, offset: int, data: Bytes, row_bytes: int, rows: int, stride: int) -> None:
        packed = as_bytes(data)
        with accessing(self):
            offset, row_bytes, rows, stride = self._check_rows(offset, packed.size, row_bytes, rows, stride)
            self._check_write(offset, 0)
            if packed.size:
                packed = packed.reshape(rows, row_bytes)
                with self.device.transfer("writing") as queue:
                    kept = [queue.write(self.handle, offset + row * stride, packed[row]) for row in range(rows)]
                    queue.finish()
                    del kept

    def get_2d(self, offset: int, out: Bytes, row_bytes: int, rows: int, stride: int) -> None:
        packed = check_target(out)
        with accessing(self):
            offset, row_bytes, rows, stride = self._check_rows(offset, packed.size, row_bytes, rows, stride)
            if packed.size:
                packed = packed.reshape(rows, row_bytes)
                with self.device.transfer("reading") as queue:
                    kept = [queue.read(self.handle, offset + row * stride, packed[row]) for row in range(rows)]
                    queue.finish()
                    del kept

    def _free(self) -> None:
        self.device.give(self.handle, self.size)
        self.handle = None

    def __del__(self) -> None:
        # Objects die anywhere, even amid a vendor's call, so the memory of a dropped buffer is given back later.
        if not self.freed:
            self.device.dropped.append((self.handle, self.size))


class SimtHostBufferType(HostBufferType):
    """Pinned host memory: ordinary to the host, quick to transfer for the device."""

    def __init__(self, device: SimtDevice) -> None:
        super().__init__(f"{device.name}_Host", device)
        self._simt = device

    def _alloc(self, size: int) -> HostBuffer:
        with self._simt.guarded("allocating pinned memory", requested=size):
            memory = self._simt.driver.allocate_host(max(size, 1))
        assert memory is not None
        return HostBuffer(self, memory[:size], memory)
