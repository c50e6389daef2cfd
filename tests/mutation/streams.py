"""Devices whose streams and events have one fault each, which only pending work shows."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np

from ggplug.backend import (
    UNGROUPED,
    Backend,
    Buffer,
    Bytes,
    Capabilities,
    Event,
    Groups,
    Plan,
    WalkPlan,
    as_bytes,
    check_parameters,
)
from ggplug.discrete import Batch, Call, Job, QueuedPlan
from ggplug.errors import ComputeError, GGPlugError
from ggplug.graph import Graph
from ggplug.ops.matrix import MulMat
from ggplug_testing.fake import FakeBackend, FakeBuffer, FakeBufferType, FakeDevice, FakeEvent, FakePlan
from ggplug_testing.reference import ReferenceDevice
from tests.mutation.subject.device import SubjectDevice, SubjectStream


class Impatient(FakeDevice):
    """Synchronous reads that do not wait."""

    def __init__(self) -> None:
        super().__init__("faulty", execution="late")
        self._buffer_type = _ImpatientType(self, 64)


class _ImpatientType(FakeBufferType):
    def _alloc(self, size: int) -> FakeBuffer:
        self._fake.take(size)
        return _ImpatientBuffer(self, self._fake, size)


class _ImpatientBuffer(FakeBuffer):
    def _get(self, offset: int, out: Bytes) -> None:
        self.host.get(offset, out)


class Hasty(Impatient):
    """Synchronous writes that do not wait."""

    def __init__(self) -> None:
        super().__init__()
        self._buffer_type = _HastyType(self, 64)


class _HastyType(FakeBufferType):
    def _alloc(self, size: int) -> FakeBuffer:
        self._fake.take(size)
        return _HastyBuffer(self, self._fake, size)


class _HastyBuffer(FakeBuffer):
    def _set(self, offset: int, data: Bytes) -> None:
        self.host.set(offset, data)


class WithoutEvents(FakeDevice):
    """Events that do not make a stream wait."""

    def __init__(self) -> None:
        super().__init__("faulty", execution="late")

    def event(self) -> Event:
        return _Deaf(self)


class _Deaf(FakeEvent):
    def wait(self, stream: Backend) -> None:
        pass


class EventsPassAtOnce(FakeDevice):
    """Events for which the host does not wait."""

    def __init__(self) -> None:
        super().__init__("faulty", execution="late")

    def event(self) -> Event:
        return _Passed(self)


class _Passed(FakeEvent):
    def synchronize(self) -> None:
        pass


class CopiesAtOnce(FakeDevice):
    """Copies between streams that do not wait for the stream that writes the source."""

    def __init__(self) -> None:
        super().__init__("faulty", execution="late")

    def init(self, **params: Any) -> FakeBackend:
        check_parameters(self, params)
        return _CopiesAtOnceStream(self)


class _CopiesAtOnceStream(FakeBackend):
    def copy_async(
        self, source: Buffer, source_offset: int, target: Buffer, target_offset: int, size: int,
        source_stream: Backend | None = None,
    ) -> None:  # fmt: skip
        super().copy_async(source, source_offset, target, target_offset, size)


class Forgetful(FakeDevice):
    """Errors of pending work that are never raised."""

    def __init__(self) -> None:
        super().__init__("faulty", execution="late")

    def init(self, **params: Any) -> FakeBackend:
        check_parameters(self, params)
        return _ForgetfulStream(self)


class _ForgetfulStream(FakeBackend):
    def set_async(self, buffer: Buffer, offset: int, data: Any) -> None:
        def store() -> None:
            buffer.check_read(offset, np.asarray(data).nbytes)
            assert isinstance(buffer, FakeBuffer)
            buffer.host.set(offset, data)

        self.give(store)

    def synchronize(self) -> None:
        self.drain()


class Reorders(FakeDevice):
    """Fetches that overtake what was given to the same stream before."""

    def __init__(self) -> None:
        super().__init__("faulty", execution="late")

    def init(self, **params: Any) -> FakeBackend:
        check_parameters(self, params)
        return _ReordersStream(self)


class _ReordersStream(FakeBackend):
    def get_async(self, buffer: Buffer, offset: int, out: Bytes) -> None:
        assert isinstance(buffer, FakeBuffer)
        buffer.host.get(offset, out)


class LooksUpLate(FakeDevice):
    """Plans that look their places up when the work runs, so that binding them again moves pending work."""

    def __init__(self) -> None:
        super().__init__("faulty", execution="late")

    def init(self, **params: Any) -> FakeBackend:
        check_parameters(self, params)
        return _LooksUpLateStream(self)


class _LooksUpLateStream(FakeBackend):
    def plan(self, graph: Graph, groups: Groups = UNGROUPED) -> Plan:
        return _LooksUpLatePlan(self, graph, groups)


class _LooksUpLatePlan(FakePlan):
    def _give(self, calls: list[Call]) -> None:
        def call(number: int) -> None:
            assert self._bound is not None
            self.call(self._bound[0][number])

        for number in range(len(calls)):
            self.stream.give(partial(call, number))


class ComputesProductsAtOnce(FakeDevice):
    """Products that are computed when they are given, and not in their turn."""

    def __init__(self) -> None:
        super().__init__("faulty", execution="late")

    def init(self, **params: Any) -> FakeBackend:
        check_parameters(self, params)
        return _ComputesProductsAtOnceStream(self)


class _ComputesProductsAtOnceStream(FakeBackend):
    def plan(self, graph: Graph, groups: Groups = UNGROUPED) -> Plan:
        return _ComputesProductsAtOncePlan(self, graph, groups)


class _ComputesProductsAtOncePlan(FakePlan):
    def _give(self, calls: list[Call]) -> None:
        for call in calls:
            if isinstance(call.group.node.op, MulMat):
                self.call(call)
            else:
                self.stream.give(partial(self.call, call))


class Pretends(SubjectDevice):
    """Says that it is synchronous, and does not wait for what ``pending`` names."""

    capabilities = Capabilities(events=True)

    def __init__(self, *pending: str) -> None:
        super().__init__("faulty")
        self.pending = pending

    def init(self, **params: Any) -> SubjectStream:
        check_parameters(self, params)
        return _PretendingStream(self)


class _PretendingStream(SubjectStream):
    device: Pretends

    def _given(self, what: str) -> None:
        if what not in self.device.pending:
            self.drain()

    def set_async(self, buffer: Buffer, offset: int, data: Any) -> None:
        super().set_async(buffer, offset, data)
        self._given("set_async")

    def get_async(self, buffer: Buffer, offset: int, out: Bytes) -> None:
        super().get_async(buffer, offset, out)
        self._given("get_async")

    def copy_async(
        self, source: Buffer, source_offset: int, target: Buffer, target_offset: int, size: int,
        source_stream: Backend | None = None,
    ) -> None:  # fmt: skip
        super().copy_async(source, source_offset, target, target_offset, size, source_stream)
        self._given("copy_async")

    def plan(self, graph: Graph, groups: Groups = UNGROUPED) -> Plan:
        return _PretendingPlan(self, graph, groups)


class _PretendingPlan(QueuedPlan):
    stream: _PretendingStream

    def compute(self) -> None:
        super().compute()
        self.stream._given("compute")


class PretendsOnHostMemory(ReferenceDevice):
    """Computes on a thread of its own, and says nothing of that: what touches its memory waits by core's claims."""

    def __init__(self) -> None:
        super().__init__("faulty")

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


class Repeats(FakeDevice):
    """Raises what went wrong each time that a stream is synchronized."""

    def __init__(self) -> None:
        super().__init__("faulty", execution="late")

    def init(self, **params: Any) -> FakeBackend:
        check_parameters(self, params)
        return _RepeatsStream(self)


class _RepeatsStream(FakeBackend):
    _kept: Any = None

    def synchronize(self) -> None:
        try:
            super().synchronize()
        except GGPlugError as error:
            self._kept = error
        if self._kept is not None:
            raise self._kept


class Swallows(FakeDevice):
    """Errors of computations that are never raised."""

    def __init__(self) -> None:
        super().__init__("faulty", execution="late")

    def init(self, **params: Any) -> FakeBackend:
        check_parameters(self, params)
        return _SwallowsStream(self)


class _SwallowsStream(FakeBackend):
    def failed(self, error: Exception) -> None:
        pass


class Spreads(FakeDevice):
    """Errors that every stream of the device raises."""

    def __init__(self) -> None:
        super().__init__("faulty", execution="late")
        self.wrong: Any = None

    def init(self, **params: Any) -> FakeBackend:
        check_parameters(self, params)
        return _SpreadsStream(self)


class _SpreadsStream(FakeBackend):
    device: Spreads

    def failed(self, error: Exception) -> None:
        self.device.wrong = error

    def synchronize(self) -> None:
        self.device.drain()
        error, self.device.wrong = self.device.wrong, None
        if error is not None:
            raise error


class SharesStaging(FakeDevice):
    """Stores that pass through memory that all streams of the device have in common."""

    def __init__(self) -> None:
        super().__init__("faulty", execution="late")
        self.staging = np.empty(0, np.uint8)

    def init(self, **params: Any) -> FakeBackend:
        check_parameters(self, params)
        return _SharesStagingStream(self)


class _SharesStagingStream(FakeBackend):
    device: SharesStaging

    def set_async(self, buffer: Buffer, offset: int, data: Any) -> None:
        own, raw = self.own(buffer), as_bytes(data)
        own.check_write(offset, raw.size)
        if self.device.staging.size < raw.size:
            self.device.staging = np.empty(raw.size, np.uint8)
        staging = self.device.staging[: raw.size]
        staging[...] = raw
        self.give(lambda: own.store(offset, staging))


class FreesAtOnce(FakeDevice):
    """Buffers that are freed under pending work."""

    def __init__(self) -> None:
        super().__init__("faulty", execution="late")
        self._buffer_type = _FreesAtOnceType(self, 64)


class _FreesAtOnceType(FakeBufferType):
    def _alloc(self, size: int) -> FakeBuffer:
        self._fake.take(size)
        return _FreesAtOnceBuffer(self, self._fake, size)


class _FreesAtOnceBuffer(FakeBuffer):
    def _free(self) -> None:
        self.host.memset(0, self.size, 0)
        self.device.give(self.size)


class Returns(FakeDevice):
    """Streams whose ``synchronize`` does not wait."""

    def __init__(self) -> None:
        super().__init__("faulty", execution="late")

    def init(self, **params: Any) -> FakeBackend:
        check_parameters(self, params)
        return _ReturnsStream(self)


class _ReturnsStream(FakeBackend):
    def synchronize(self) -> None:
        pass


class Stumbles(FakeDevice):
    """Fails at the first kernel of each stream's life."""

    def __init__(self) -> None:
        super().__init__("faulty", execution="late")

    def init(self, **params: Any) -> FakeBackend:
        check_parameters(self, params)
        self.fail("kernel", 1, ComputeError("the first launch fails"))
        return super().init(**params)


class Cancels(FakeDevice):
    """Streams that drop their pending work when they are freed."""

    def __init__(self) -> None:
        super().__init__("faulty", execution="late")

    def init(self, **params: Any) -> FakeBackend:
        check_parameters(self, params)
        return _CancelsStream(self)


class _CancelsStream(FakeBackend):
    _cancelled = False

    def give(self, run: Callable[[], None], *, batch: Batch | None = None, after: Job | None = None) -> Job:
        return super().give(lambda: None if self._cancelled else run(), batch=batch, after=after)

    def free(self) -> None:
        self._cancelled = True
        super().free()


class CancelsWithPlans(FakeDevice):
    """Plans whose pending computations are dropped when they are freed."""

    def __init__(self) -> None:
        super().__init__("faulty", execution="late")

    def init(self, **params: Any) -> FakeBackend:
        check_parameters(self, params)
        return _CancelsWithPlansStream(self)


class _CancelsWithPlansStream(FakeBackend):
    def plan(self, graph: Graph, groups: Groups = UNGROUPED) -> Plan:
        return _CancelsPlan(self, graph, groups)


class _CancelsPlan(FakePlan):
    _freed = False

    def call(self, call: Call) -> None:
        if not self._freed:
            super().call(call)

    def free(self) -> None:
        self._freed = True
        super().free()


class ForgetsFreedEvents(FakeDevice):
    """Streams that do not wait any longer for an event that is freed."""

    def __init__(self) -> None:
        super().__init__("faulty", execution="late")

    def event(self) -> Event:
        return _ForgottenWhenFreed(self)


class _ForgottenWhenFreed(FakeEvent):
    def wait(self, stream: Backend) -> None:
        job = self.job
        assert isinstance(stream, FakeBackend)
        if job is not None:

            def passed() -> None:
                if self.job is not None:
                    job.wait()

            stream.give(passed)


class KeepsWhatFailed(FakeDevice):
    """Streams that are not freed where something failed: ``free`` raises, and leaves plans and stream as they are."""

    def __init__(self) -> None:
        super().__init__("faulty", execution="late")

    def init(self, **params: Any) -> FakeBackend:
        check_parameters(self, params)
        return _KeepsWhatFailedStream(self)


class _KeepsWhatFailedStream(FakeBackend):
    def free(self) -> None:
        self.synchronize()
        super().free()
