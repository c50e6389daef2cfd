"""The buffer type and buffers of device memory, by handles and byte offsets; the host cannot address it."""

from __future__ import annotations

from ggplug.backend import Buffer, BufferType, Bytes, check_target
from ggplug.host import HostBuffer, HostBufferType
from ggplug.sharing import accessing
from ggplug.values.arrays import as_bytes
from ggplug_simt.driver import Handle
from ggplug_simt.ledger import DeviceMemory
from ggplug_simt.runtime import Runtime


class SimtBufferType(BufferType):
    """The device's own memory."""

    def __init__(self, runtime: Runtime) -> None:
        super().__init__(runtime.device.name, runtime.device)
        self.runtime = runtime

    @property
    def alignment(self) -> int:
        driver = self.runtime.driver
        return max(64, driver.alignment, driver.properties.binding_step or 1)

    @property
    def max_size(self) -> int | None:
        return self.runtime.driver.max_buffer

    def _alloc(self, size: int) -> SimtBuffer:
        return SimtBuffer(self, self.runtime, self.runtime.ledger.take(size))


class SimtBuffer(Buffer):
    """One allocation of a device's memory."""

    def __init__(self, type: BufferType, runtime: Runtime, memory: DeviceMemory) -> None:
        self.memory = memory
        self.runtime = runtime
        super().__init__(type, memory.size)

    @property
    def handle(self) -> Handle:
        """The vendor's handle of the memory; None after it was freed."""
        return self.memory.handle

    def _set(self, offset: int, data: Bytes) -> None:
        self.runtime.order.transfer("writing", lambda queue: queue.write(self.handle, offset, data))

    def _get(self, offset: int, out: Bytes) -> None:
        self.runtime.order.transfer("reading", lambda queue: queue.read(self.handle, offset, out))

    def memset(self, offset: int, size: int, value: int) -> None:
        with accessing(self):
            offset, size, value = self.check_fill(offset, size, value)
            if size:
                self.runtime.order.transfer("filling", lambda queue: queue.fill(self.handle, offset, size, value))

    def copy_from(self, source: Buffer, source_offset: int, offset: int, size: int) -> None:
        source_offset, size = source.check_read(source_offset, size)
        offset, _ = self.check_write(offset, size)
        overlaps = source is self and abs(source_offset - offset) < size
        if isinstance(source, SimtBuffer) and self.runtime.reaches(source.runtime) and not overlaps:
            with accessing(self, source):
                source.check_there()
                self.check_there()
                if size:
                    source.runtime.order.finish()
                    places = source.handle, source_offset, self.handle, offset, size
                    self.runtime.order.transfer("copying", lambda queue: queue.copy(*places))
        else:
            super().copy_from(source, source_offset, offset, size)

    def set_2d(self, offset: int, data: Bytes, row_bytes: int, rows: int, stride: int) -> None:
        packed = as_bytes(data)
        with accessing(self):
            offset, row_bytes, rows, stride = self.check_write_rows(offset, packed.size, row_bytes, rows, stride)
            if packed.size:
                packed = packed.reshape(rows, row_bytes)
                self.runtime.order.transfer(
                    "writing",
                    lambda queue: [queue.write(self.handle, offset + row * stride, packed[row]) for row in range(rows)],
                )

    def get_2d(self, offset: int, out: Bytes, row_bytes: int, rows: int, stride: int) -> None:
        packed = check_target(out)
        with accessing(self):
            offset, row_bytes, rows, stride = self.check_rows(offset, packed.size, row_bytes, rows, stride)
            if packed.size:
                packed = packed.reshape(rows, row_bytes)
                self.runtime.order.transfer(
                    "reading",
                    lambda queue: [queue.read(self.handle, offset + row * stride, packed[row]) for row in range(rows)],
                )

    def _free(self) -> None:
        self.runtime.ledger.give(self.memory)


class SimtHostBufferType(HostBufferType):
    """Pinned host memory: ordinary memory for the host, with fast transfers to the device."""

    def __init__(self, runtime: Runtime) -> None:
        super().__init__(f"{runtime.device.name}_Host", runtime.device)
        self._runtime = runtime

    def _alloc(self, size: int) -> HostBuffer:
        with self._runtime.guard.guarded("allocating pinned memory", requested=size):
            memory = self._runtime.driver.allocate_host(max(size, 1))
        assert memory is not None
        return HostBuffer(self, memory[:size], memory)
