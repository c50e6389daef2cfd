"""A stream of a device: transfers, computations and events in one queue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ggplug.arrays import as_bytes
from ggplug.backend import UNGROUPED, Backend, Buffer, Bytes, Event, Groups, Plan, check_target
from ggplug.errors import BufferUseError, ComputeError, GGPlugError
from ggplug.graph import Graph
from ggplug.sharing import accessing, turn, using
from ggplug_simt.driver import Handle, Mark, Queue
from ggplug_simt.faults import Faults
from ggplug_simt.memory import SimtBuffer
from ggplug_simt.plan import SimtPlan

if TYPE_CHECKING:
    from ggplug_simt.device import SimtDevice


class SimtBackend(Backend):
    """A stream over a vendor's queue.  What the queue still reads or writes on the host is kept alive here."""

    device: SimtDevice

    def __init__(self, device: SimtDevice, queue: Queue) -> None:
        super().__init__(device)
        self.queue = queue
        self.faults = Faults(device, queue)
        self._kept: list[Any] = []
        self._scratch: list[tuple[int, Handle]] = []
        self._error: GGPlugError | None = None
        self.freed = False

    # -- transfers ---------------------------------------------------------------------------------

    def set_async(self, buffer: Buffer, offset: int, data: Any) -> None:
        own = self.own(buffer)
        raw = as_bytes(data)
        with using((own,)):
            offset, _ = own._check_write(offset, raw.size)
            if raw.size:
                with self.device.guarded("writing"):
                    pending = self.queue.write(own.handle, offset, raw)
                self._kept.append((own, raw, pending))

    def get_async(self, buffer: Buffer, offset: int, out: Bytes) -> None:
        own = self.own(buffer)
        out = check_target(out)
        with using((own,)):
            offset, _ = own._check(offset, out.size)
            if out.size:
                with self.device.guarded("reading"):
                    pending = self.queue.read(own.handle, offset, out)
                    self.queue.flush()
                self._kept.append((own, out, pending))

    def copy_async(
        self, source: Buffer, source_offset: int, target: Buffer, target_offset: int, size: int,
        source_stream: Backend | None = None,
    ) -> None:  # fmt: skip
        own = self.own(target)
        target_offset, size = own._check_write(target_offset, size)
        source_offset, _ = source._check(source_offset, size)
        overlaps = source is target and abs(source_offset - target_offset) < size
        if isinstance(source, SimtBuffer) and self.device.reaches(source.device) and not overlaps:
            if isinstance(source_stream, SimtBackend) and source_stream is not self:
                mark = source_stream.mark()
                with self.device.guarded("waiting"):
                    self.queue.wait(mark)
            with using((own, source)):
                own._check(target_offset, size)
                source._check(source_offset, size)
                if source.device is not self.device:
                    source.device.readers.add(self.device)
                if size:
                    with self.device.guarded("copying"):
                        self.queue.copy(source.handle, source_offset, own.handle, target_offset, size)
        elif source.address is not None:
            # The source may be written again as soon as its stream goes on, so what is sent is a copy.
            if source_stream is not None:
                source_stream.synchronize()
            with accessing(source):
                copied = source.bytes(source_offset, size).copy()
            self.set_async(own, target_offset, copied)
        else:
            super().copy_async(source, source_offset, target, target_offset, size, source_stream)

    def own(self, buffer: Buffer) -> SimtBuffer:
        """The buffer, if it is this device's memory.  Raises BufferUseError, or ComputeError on a freed stream."""
        self.check_open()
        if not isinstance(buffer, SimtBuffer) or buffer.device is not self.device:
            raise BufferUseError(f"{buffer!r} is no memory of {self.device.name}", device=self.device)
        return buffer

    # -- order -------------------------------------------------------------------------------------

    def mark(self) -> Mark:
        """A mark behind everything given so far, which others may wait for."""
        with self.device.guarded("recording an event"):
            mark = self.queue.record()
            self.queue.flush()
        return mark

    def synchronize(self) -> None:
        asked = None
        if self.faults.pending and not self.freed:
            try:
                asked = self.faults.ask()
            except GGPlugError as failure:
                self._error = self._error or failure
        self.settle()
        error, self._error = self._error, None
        if asked is not None:
            error = error or self.faults.error(asked)
        if error is not None:
            raise error

    def settle(self) -> None:
        """Waits for everything given, and keeps what went wrong for :meth:`synchronize`."""
        if self.freed:
            return
        # Another thread may wait for this stream while its own gives it more: only what was given before is done after.
        done, self._kept = self._kept, []
        try:
            with self.device.guarded("waiting"):
                self.queue.finish()
                del done  # here, because what the vendor's library remembers of it may wait, too
        except GGPlugError as error:
            if self._error is None:
                self._error = error

    # -- computing ---------------------------------------------------------------------------------

    def plan(self, graph: Graph, groups: Groups = UNGROUPED) -> Plan:
        return SimtPlan(self, graph, groups)

    def scratch(self, size: int) -> Handle:
        """Memory that launches of one kernel share; all plans have the same, because a stream runs one at a time.

        (A plan has the stream to itself while it gives its launches: those of two threads do not mix.)

        What was handed out stays until the stream is freed: plans hold it.
        """
        if not self._scratch or self._scratch[-1][0] < size:
            self._scratch.append((size, self.device.take(size)))
        return self._scratch[-1][1]

    def free(self) -> None:
        if self.freed:
            return
        with turn(self):
            try:
                super().free()
            finally:
                for size, handle in self._scratch:
                    self.device.give(handle, size)
                self.faults.free()
                self.freed = True
                self.device.forget(self)
                self.queue.free()

    def check_open(self) -> None:
        """Raises ComputeError if the stream was freed."""
        if self.freed:
            raise ComputeError(f"a stream of {self.device.name} is used after it was freed", device=self.device)


class SimtEvent(Event):
    """A mark in a queue.  Streams of the same device wait for it without the host."""

    device: SimtDevice

    def __init__(self, device: SimtDevice) -> None:
        super().__init__(device)
        self._mark: Mark = None

    def record(self, stream: Backend) -> None:
        if not isinstance(stream, SimtBackend) or stream.device is not self.device:
            raise BufferUseError(f"an event of {self.device.name} cannot be recorded in {stream!r}", device=self.device)
        self._mark = stream.mark()

    def wait(self, stream: Backend) -> None:
        if self._mark is None:
            return
        if isinstance(stream, SimtBackend) and stream.device.reaches(self.device):
            with stream.device.guarded("waiting for an event"):
                stream.queue.wait(self._mark)
        else:
            self.synchronize()

    def synchronize(self) -> None:
        if self._mark is not None:
            with self.device.guarded("waiting for an event"):
                self.device.driver.finish_mark(self._mark)

    def free(self) -> None:
        self._mark = None
