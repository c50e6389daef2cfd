"""The fake device's streams, events and plans: work goes through the queue, piece by piece."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from ggplug.backend import Backend, Buffer, Bytes, Operand, Places, Plan, check_target
from ggplug.discrete import Batch, Call, DiscreteBuffer, Job, QueuedBackend, QueuedEvent, QueuedPlan
from ggplug.errors import ComputeError
from ggplug.graph import Graph
from ggplug.memory.allocation import Allocation
from ggplug.memory.layout import NOWHERE
from ggplug.nodes.groups import UNGROUPED, Groups
from ggplug.sharing import using
from ggplug.tensor import Tensor
from ggplug.values.arrays import as_bytes
from ggplug_testing.fake.acting import ActingDevice
from ggplug_testing.fake.memory import POISON, FakeBuffer
from ggplug_testing.fake.queue import Lane


class FakeEvent(QueuedEvent):
    """A mark in a stream's queue, which the device's log shows."""

    def record(self, stream: Backend) -> None:
        assert isinstance(stream, FakeBackend)
        stream.give(lambda: stream.device.act("record"))
        super().record(stream)

    def wait(self, stream: Backend) -> None:
        job = self.job
        if job is not None and not job.done and isinstance(stream, FakeBackend) and stream.can_wait_for(job.stream):
            stream.give(lambda: stream.device.act("wait"), after=job)
        else:
            super().wait(stream)


class FakeBackend(QueuedBackend):
    """A stream of the fake device."""

    device: ActingDevice

    def __init__(self, device: ActingDevice) -> None:
        super().__init__(device)
        self.lane: Lane = device.queue.lane(device.stream_name())
        self.inner = device.inner.init() if device.inner is not None else None

    def submit(self, job: Job) -> None:
        self.device.queue.submit(self.lane, job)

    def advance(self, job: Job) -> None:
        self.device.queue.advance(self.lane, job)

    def can_wait_for(self, other: Backend) -> bool:
        return isinstance(other, FakeBackend) and other.device is self.device

    def close(self) -> None:
        if self.inner is not None:
            self.inner.free()
        self.device.queue.close([self.lane])

    def give(self, run: Callable[[], None], *, batch: Batch | None = None, after: Job | None = None) -> Job:
        """Puts work into the stream's queue; a device that works at once does it before this returns."""
        name = self.lane.name

        def named() -> None:
            with self.device.working(name):
                run()

        job = super().give(named, batch=batch, after=after)
        if self.device.immediate:
            self.synchronize()
        return job

    def set_async(self, buffer: Buffer, offset: int, data: Any) -> None:
        own, raw = self.own(buffer), as_bytes(data)
        promised = raw.copy()
        with using((own,)):
            start, _ = own.check_write(offset, raw.size)

            def store() -> None:
                if not np.array_equal(raw, promised):
                    raise ComputeError("the array passed to set_async was changed before the stream was synchronized")
                own.store(start, raw)

            self.give(store)

    def get_async(self, buffer: Buffer, offset: int, out: Bytes) -> None:
        target = check_target(out)
        self.own(buffer).check_read(offset, target.size)
        # Reading the target before synchronizing shall be noticed.
        target.fill(POISON)
        super().get_async(buffer, offset, out)

    def plan(self, graph: Graph, groups: Groups = UNGROUPED) -> Plan:
        return FakePlan(self, graph, groups)


class FakePlan(QueuedPlan):
    """Submits each group as a piece of work of its own, or the whole graph by the inner device's plan."""

    stream: FakeBackend

    def __init__(self, stream: FakeBackend, graph: Graph, groups: Groups = UNGROUPED) -> None:
        super().__init__(stream, graph, groups)
        self._inner = stream.inner.plan(graph, groups) if stream.inner is not None else None
        self._inside: tuple[Graph, Allocation] | None = None

    def rebind(self, graph: Graph, allocation: Places) -> None:
        super().rebind(graph, allocation)
        if self._inner is not None:
            buffers, which, offsets = allocation.places(graph, self.groups)
            hosts = [buffer.host if isinstance(buffer, FakeBuffer) else buffer for buffer in buffers]
            slots = [number if number >= 0 else NOWHERE for number in which.tolist()]
            self._inside = graph, Allocation(graph, hosts, slots, offsets.tolist(), groups=self.groups)

    def operand(self, tensor: Tensor, buffer: DiscreteBuffer, offset: int) -> Operand:
        assert isinstance(buffer, FakeBuffer)
        return Operand(tensor, buffer.host, offset)

    def ids(self, tensor: Tensor, buffer: DiscreteBuffer, offset: int) -> Any:
        return self.operand(tensor, buffer, offset).array()

    def _give(self, calls: list[Call]) -> None:
        stream, batch = self.stream, Batch()
        stream.give(self._begin, batch=batch)
        if self._inside is not None:
            inside = self._inside
            stream.give(lambda: self._run_inner(calls, *inside), batch=batch)
            return
        for call in calls:
            stream.give(partial(self.call, call), batch=batch)

    def _begin(self) -> None:
        self.stream.device.act("compute")
        super()._begin()

    def call(self, call: Call) -> None:
        self._note(call)
        with using([each.buffer for each in call.operands if each is not None]):
            super().call(call)

    def free(self) -> None:
        if self._inner is not None:
            self._inner.free()

    def _note(self, call: Call) -> None:
        """A group in the device's log: the names of its ops."""
        what = " ".join(node.op.name for node in call.group.nodes if node.op is not None)
        self.stream.device.act("kernel", call.group.node.nbytes, what)

    def _run_inner(self, calls: list[Call], graph: Graph, allocation: Allocation) -> None:
        assert self._inner is not None
        assert self.stream.inner is not None
        start = time.perf_counter_ns()
        for call in calls:
            self._note(call)
        self._inner.rebind(graph, allocation)
        self._inner.compute()
        self.stream.inner.synchronize()
        self._note_time(-1, start)
