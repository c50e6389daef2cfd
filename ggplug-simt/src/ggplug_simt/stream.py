"""A stream of a device: transfers, computations and events in one queue."""

from __future__ import annotations

from typing import Any

import numpy as np

from ggplug.backend import UNGROUPED, Backend, Buffer, Bytes, Device, Event, Groups, Plan, check_target
from ggplug.errors import BufferUseError, GGPlugError
from ggplug.graph import Graph
from ggplug.sharing import locked, using
from ggplug.values.arrays import as_bytes
from ggplug_simt.driver import Mark
from ggplug_simt.memory import SimtBuffer
from ggplug_simt.plan import SimtPlan
from ggplug_simt.runtime import Runtime
from ggplug_simt.workspace import Workspace


class SimtBackend(Backend):
    """A stream over a vendor's queue."""

    def __init__(self, device: Device, runtime: Runtime) -> None:
        super().__init__(device)
        self.runtime = runtime
        self.workspace = Workspace(runtime)
        self.lane = self.workspace.lane
        self.queue = self.lane.queue

    # -- transfers ---------------------------------------------------------------------------------

    def set_async(self, buffer: Buffer, offset: int, data: Any) -> None:
        own = self.own(buffer)
        raw = as_bytes(data)
        with using((own,)):
            offset, _ = own.check_write(offset, raw.size)
            if raw.size:
                with self.runtime.guard.guarded("writing"):
                    pending = self.queue.write_async(own.handle, offset, raw)
                self.lane.keep(own, raw, pending)

    def get_async(self, buffer: Buffer, offset: int, out: Bytes) -> None:
        own = self.own(buffer)
        out = check_target(out)
        with using((own,)):
            offset, _ = own.check_read(offset, out.size)
            if out.size:
                with self.runtime.guard.guarded("reading"):
                    pending = self.queue.read_async(own.handle, offset, out)
                    self.queue.flush()
                self.lane.keep(own, out, pending)

    def copy_async(
        self,
        source: Buffer,
        source_offset: int,
        target: Buffer,
        target_offset: int,
        size: int,
        source_stream: Backend | None = None,
    ) -> None:
        own = self.own(target)
        source_offset, size = source.check_read(source_offset, size)
        target_offset, _ = own.check_write(target_offset, size)
        overlaps = source is target and abs(source_offset - target_offset) < size
        if isinstance(source, SimtBuffer) and self.runtime.reaches(source.runtime) and not overlaps:
            if isinstance(source_stream, SimtBackend) and source_stream is not self:
                mark = source_stream.lane.mark()
                with self.runtime.guard.guarded("waiting"):
                    self.queue.wait(mark)
            with using((own, source)):
                own.check_read(target_offset, size)
                source.check_read(source_offset, size)
                if source.runtime is not self.runtime:
                    source.runtime.order.readers.add(self.runtime.order)
                if size:
                    with self.runtime.guard.guarded("copying"):
                        self.queue.copy(source.handle, source_offset, own.handle, target_offset, size)
        elif source.address is not None:
            # The source may be written again as soon as its stream goes on, so a copy is sent.
            if source_stream is not None:
                source_stream.synchronize()
            copied = np.empty(size, np.uint8)
            source.get(source_offset, copied)
            self.set_async(own, target_offset, copied)
        else:
            super().copy_async(source, source_offset, target, target_offset, size, source_stream)

    def own(self, buffer: Buffer) -> SimtBuffer:
        """The buffer, if it is this device's memory.  Raises BufferUseError, or ComputeError on a freed stream."""
        self.workspace.check_open()
        if not isinstance(buffer, SimtBuffer) or buffer.runtime is not self.runtime:
            raise BufferUseError(f"{buffer!r} is no memory of {self.device.name}", device=self.device)
        return buffer

    # -- order -------------------------------------------------------------------------------------

    def synchronize(self) -> None:
        read = None
        if self.workspace.faults.pending and not self.lane.is_free:
            try:
                read = self.workspace.faults.read_record()
            except GGPlugError as failure:
                self.lane.error = self.lane.error or failure
        self.lane.settle()
        error, self.lane.error = self.lane.error, None
        if read is not None:
            error = error or self.workspace.faults.error(read)
        if error is not None:
            raise error

    # -- computing ---------------------------------------------------------------------------------

    def plan(self, graph: Graph, groups: Groups = UNGROUPED) -> Plan:
        return SimtPlan(self, self.workspace, graph, groups)

    def free(self) -> None:
        if self.lane.is_free:
            return
        with locked(self):
            try:
                super().free()
            finally:
                self.workspace.free()


class SimtEvent(Event):
    """A mark in a queue.  Streams of the same device wait for it without the host."""

    def __init__(self, device: Device, runtime: Runtime) -> None:
        super().__init__(device)
        self._runtime = runtime
        self._mark: Mark = None

    def record(self, stream: Backend) -> None:
        if not isinstance(stream, SimtBackend) or stream.runtime is not self._runtime:
            raise BufferUseError(f"an event of {self.device.name} cannot be recorded in {stream!r}", device=self.device)
        self._mark = stream.lane.mark()

    def wait(self, stream: Backend) -> None:
        if self._mark is None:
            return
        if isinstance(stream, SimtBackend) and stream.runtime.reaches(self._runtime):
            with stream.runtime.guard.guarded("waiting for an event"):
                stream.queue.wait(self._mark)
        else:
            self.synchronize()

    def synchronize(self) -> None:
        if self._mark is not None:
            with self._runtime.guard.guarded("waiting for an event"):
                self._runtime.driver.finish_mark(self._mark)

    def free(self) -> None:
        self._mark = None
