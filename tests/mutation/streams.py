"""Devices that say that they are synchronous: one that is, into which faults are seeded, and one that is not."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from ggplug.backend import UNGROUPED, Backend, Buffer, Bytes, Capabilities, Groups, Plan, WalkPlan, check_parameters
from ggplug.discrete import QueuedPlan
from ggplug.graph import Graph
from ggplug_testing.devices.reference import ReferenceDevice
from tests.mutation.fault import by_hand
from tests.mutation.subject.device import SubjectDevice, SubjectStream


class SynchronousDevice(SubjectDevice):
    """Its streams wait for what they are given."""

    capabilities = Capabilities(events=True)

    def init(self, **params: Any) -> SubjectStream:
        check_parameters(self, params)
        return _WaitingStream(self)


class _WaitingStream(SubjectStream):
    def set_async(self, *args: Any, **kwargs: Any) -> None:
        super().set_async(*args, **kwargs)
        self.drain()

    def get_async(self, *args: Any, **kwargs: Any) -> None:
        super().get_async(*args, **kwargs)
        self.drain()

    def copy_async(self, *args: Any, **kwargs: Any) -> None:
        super().copy_async(*args, **kwargs)
        self.drain()

    def plan(self, graph: Graph, groups: Groups = UNGROUPED) -> Plan:
        return _WaitingPlan(self, graph, groups)


class _WaitingPlan(QueuedPlan):
    def compute(self) -> None:
        super().compute()
        self.stream.drain()


class PretendsOnHostMemory(ReferenceDevice):
    """Computes on a thread of its own, and says nothing of that: what touches its memory waits by core's claims."""

    def init(self, **params: Any) -> Backend:
        check_parameters(self, params)
        return _ThreadedStream(self)


class _ThreadedStream(Backend):
    def __init__(self, device: PretendsOnHostMemory) -> None:
        super().__init__(device)
        self.thread = ThreadPoolExecutor(1)
        self.last: Future[None] | None = None

    def plan(self, graph: Graph, groups: Groups = UNGROUPED) -> Plan:
        return _ThreadedPlan(self, graph, groups)

    def set_async(self, buffer: Buffer, offset: int, data: Any) -> None:
        self.synchronize()
        super().set_async(buffer, offset, data)

    def get_async(self, buffer: Buffer, offset: int, out: Bytes) -> None:
        self.synchronize()
        super().get_async(buffer, offset, out)

    def synchronize(self) -> None:
        last, self.last = self.last, None
        if last is not None:
            last.result()

    def free(self) -> None:
        try:
            super().free()
        finally:
            self.thread.shutdown()


class _ThreadedPlan(WalkPlan):
    stream: _ThreadedStream

    def compute(self) -> None:
        self.stream.synchronize()
        self.stream.last = self.stream.thread.submit(super().compute)


by_hand(PretendsOnHostMemory)(
    "says nothing of its thread", "computations of a synchronous device are done when they return"
)("faulty")
